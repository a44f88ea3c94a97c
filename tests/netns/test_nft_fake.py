"""The kernel refuses what the fake refuses, and takes what it takes: the same cases on both."""

from __future__ import annotations

import pytest

from felix.dataplane.nft_port import TransactionRefused
from felix.kernel.nft import NftKernel
from tests.support.netns import Namespace, NamespaceSet, why_unavailable
from tests.support.nft_cases import CASES, Case

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(why := why_unavailable("nft")), reason=why),
]


@pytest.fixture(scope="module")
def namespace():
    with NamespaceSet() as netns:
        yield netns.make("nft")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_kernel_does_as_the_fake_says(namespace: Namespace, case: Case):
    kernel = NftKernel.in_namespace(namespace.path)
    namespace.run("nft", "flush", "ruleset")
    try:
        await kernel.commit(case.before)
        before = await kernel.read()
        if not case.number:
            await kernel.commit(case.ops)
            return
        with pytest.raises(TransactionRefused) as caught:
            await kernel.commit(case.ops)
        first = caught.value.refusals[0]
        assert (first.op_index, first.errno) == (case.place, case.number)
        after = await kernel.read()
        assert (after.chains, after.sets, after.elements) == (
            before.chains, before.sets, before.elements,
        )  # fmt: skip
    finally:
        kernel.close()
