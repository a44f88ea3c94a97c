"""Truth tables of random policy sets with real packets: one verdict a case, or the test fails.

Each case is read by the evaluator, from the rules of both dataplanes by their fake kernels, and
from real packets through real kernels with nftables and with both kinds of iptables.

TRUTH_TABLE_CASES is how many at least, TRUTH_TABLE_SEED the first policy set (`make truth-table`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from felix.kernel.iptables import Variant
from tests.support.netns import NamespaceSet, why_unavailable
from tests.support.truth_table import CASES, Reader, compare, fake_readers, tables_for
from tests.support.truth_wire import iptables_reader, nft_reader

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "nft")), reason=why)

WANTED = int(os.environ.get("TRUTH_TABLE_CASES", "20000"))
FIRST_SEED = int(os.environ.get("TRUTH_TABLE_SEED", "0"))


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    with NamespaceSet() as netns:
        kernels = [nft_reader(netns), *(iptables_reader(netns, one) for one in Variant)]
        yield [*fake_readers(), *kernels]
        for reader in kernels:
            reader.close()


def test_every_case_arrives_where_nobody_filters(netns: NamespaceSet):
    """What could never arrive would agree with every drop."""
    reader = nft_reader(netns)
    assert reader.passed(CASES) == {case.number for case in CASES}
    reader.close()


@pytest.mark.timeout(max(120, WANTED // 50))
async def test_objects_rules_and_real_packets_agree_case_by_case(readers: list[Reader]):
    seeds = range(FIRST_SEED, FIRST_SEED + tables_for(WANTED))
    tally = await compare(readers, seeds)
    print(
        f"\n{tally.cases} cases of {len(seeds)} policy sets from seed {FIRST_SEED}, {tally.passed} "
        f"pass; evaluator and {', '.join(reader.name for reader in readers)}: no difference"
    )
    assert tally.cases >= WANTED
    assert 0.1 < tally.passed / tally.cases < 0.9, "one-sided tables prove little"
