"""The netlink encoder and decoder against the real kernel and the real nft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from felix.dataplane.nft_port import ChainImage, TableImage
from felix.kernel.nft import NftKernel
from felix.rules.render_nft import chain_digest, script
from libcalico.testing.fakenft import FakeNft
from tests.support import nft_sample
from tests.support.netns import Namespace, NamespaceSet, why_unavailable

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("nft")), reason=why)


@pytest.fixture
async def loaded(netns: NamespaceSet):
    namespace = netns.make("nft")
    kernel = NftKernel.in_namespace(namespace.path)
    await kernel.commit(nft_sample.operations())
    yield namespace, kernel
    kernel.close()


def listing(namespace: Namespace) -> list[dict]:
    """What nft reads back: every object without its handle, in any order."""
    found = json.loads(namespace.run("nft", "-j", "list", "ruleset"))["nftables"]
    objects = [item for item in found if "metainfo" not in item]
    for item in objects:
        (body,) = item.values()
        body.pop("handle", None)
        if isinstance(body.get("elem"), list):
            body["elem"] = sorted(body["elem"], key=json.dumps)
    rules = [item for item in objects if "rule" in item]
    others = sorted((item for item in objects if "rule" not in item), key=json.dumps)
    return others + sorted(rules, key=lambda item: item["rule"]["chain"])  # order within a chain


async def test_nft_reads_from_netlink_what_it_makes_of_the_text(
    netns: NamespaceSet, loaded: tuple[Namespace, NftKernel], tmp_path: Path
):
    namespace, _kernel = loaded
    text = tmp_path / "sample.nft"
    text.write_text(script(nft_sample.RULESET))
    by_text = netns.make("text")
    by_text.run("nft", "-f", str(text))
    assert listing(namespace) == listing(by_text)


async def test_a_listing_can_be_read_by_a_person(loaded: tuple[Namespace, NftKernel]):
    namespace, _kernel = loaded
    text = namespace.run("nft", "list", "ruleset")
    for expected in (
        'ip saddr 10.0.0.0/8 accept comment "default: policy ns/web rule 0"',
        'comment "what comes through"',
        '"cali1" comment "default/pod" : goto leaf',
        'iifname "cali*" goto leaf',
        "iifname vmap @dispatch",
        "ct state established,related accept",
        "tcp dport { 1-5, 80, 443-65535 } accept",
        "ip daddr . meta l4proto . th dport @services-4 jump leaf",
        '"cali1" . 10.0.0.0/24',
        "type filter hook forward priority filter - 2; policy accept;",
    ):
        assert expected in text, expected


async def test_what_was_written_is_read_back(loaded: tuple[Namespace, NftKernel]):
    _namespace, kernel = loaded
    image = await kernel.read()
    assert image.chains == {
        chain.name: ChainImage(chain.base, chain_digest(chain)) for chain in nft_sample.CHAINS
    }
    assert image.sets.keys() == {spec.name for spec in nft_sample.SETS}
    for spec in nft_sample.SETS:
        found = image.sets[spec.name]
        assert found is not None
        assert spec.same_shape(found)
    assert image.elements == {name: set(keys) for name, keys in nft_sample.MEMBERS.items()}
    assert image.entries == nft_sample.ENTRIES


async def test_the_fake_reads_back_the_same(loaded: tuple[Namespace, NftKernel]):
    _namespace, kernel = loaded
    fake = NftKernel(FakeNft())
    await fake.commit(nft_sample.operations())
    real, pretended = await kernel.read(), await fake.read()
    fake.close()
    assert _without_generation(real) == _without_generation(pretended)


def _without_generation(image: TableImage) -> tuple[object, ...]:
    return image.chains, image.sets, image.elements, image.entries


@pytest.mark.parametrize(
    ("command", "digest"),
    [
        ("add rule inet calico leaf accept", None),
        ("insert rule inet calico leaf accept", None),
        ("flush chain inet calico leaf", b""),
    ],
)
async def test_rules_of_others_in_our_chains_are_noticed(
    loaded: tuple[Namespace, NftKernel], command: str, digest: bytes | None
):
    namespace, kernel = loaded
    namespace.run("nft", *command.split())
    assert (await kernel.read()).chains["leaf"].digest == digest


async def test_a_replaced_rule_is_noticed(loaded: tuple[Namespace, NftKernel]):
    namespace, kernel = loaded
    listed = namespace.run("nft", "-a", "list", "chain", "inet", "calico", "leaf")
    handle = listed.split("# handle ")[-1].split()[0]
    namespace.run("nft", "replace", "rule", "inet", "calico", "leaf", "handle", handle, "accept")
    assert (await kernel.read()).chains["leaf"].digest is None


async def test_sets_of_a_make_we_do_not_know_are_known_by_name(
    loaded: tuple[Namespace, NftKernel],
):
    namespace, kernel = loaded
    command = "add set inet calico odd { type ipv4_addr; flags timeout; }"
    namespace.run("nft", command)
    assert (await kernel.read()).sets["odd"] is None
