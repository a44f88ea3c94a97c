"""felix.dataplane.leftovers: what another dataplane left goes, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from felix.dataplane.leftovers import IpSetLeftover, IptablesLeftover, Leftovers, NftLeftover
from felix.kernel.iptables import IptablesKernel, Variant
from felix.kernel.nft import NftKernel
from libcalico.errors import ProgrammingFailed
from libcalico.testing.fakeiptables import FakeIptables
from libcalico.testing.fakenft import FakeNft
from libcalico.testing.fakenft_vm import Packet
from tests.support.iptables import FakeIptNode, InlineWorker
from tests.support.nft import FakeNode, allow_all_profile, workload

FOREIGN = "-s 192.0.2.1/32 -j ACCEPT"
PODS = (allow_all_profile(), workload("a", "cali1", "10.65.0.2/32"))


def port(fake: FakeIptables, variant: Variant) -> IptablesKernel:
    return IptablesKernel(fake, variant, InlineWorker(), which=lambda name: name)


def everything_of(fake: FakeIptables) -> Leftovers:
    nft, legacy = (port(fake, variant) for variant in Variant)
    return Leftovers(
        [
            IptablesLeftover(nft, "nft", (4, 6)),
            IptablesLeftover(legacy, "legacy", (4, 6)),
            IpSetLeftover(nft),
        ]
    )


async def test_rules_and_sets_of_iptables_go_and_those_of_others_stay():
    node = FakeIptNode()
    node.fake.table("filter")["FORWARD"].append(FOREIGN)
    node.fake.table("filter")["MINE"] = [FOREIGN]
    node.fake(("ipset", "restore"), "create mine hash:net family inet maxelem 5\n", 1.0)
    await node.push(*PODS)
    result = await everything_of(node.fake).apply()
    assert result.deleted > 10
    assert list(node.fake.sets) == ["mine"]
    for (_variant, version, table), chains in node.fake.tables.items():
        assert not any(name.startswith("cali-") for name in chains), (version, table)
    assert node.fake.table("filter")["FORWARD"] == [FOREIGN]
    assert node.fake.table("filter")["MINE"] == [FOREIGN]


async def test_where_there_is_nothing_nothing_is_written_and_no_table_made():
    fake = FakeIptables()
    leftovers = everything_of(fake)
    assert (await leftovers.apply()).deleted == 0
    assert (fake.scripts, fake.tables) == ([], {})
    fake.calls.clear()
    await leftovers.apply()
    assert fake.calls == [], "once is enough"


async def test_the_other_variant_is_found_too():
    node = FakeIptNode()
    node.fake.variant = "legacy"
    await node.push(*PODS)
    node.fake.tables = {
        ("legacy", version, table): chains
        for (_variant, version, table), chains in node.fake.tables.items()
    }
    await everything_of(node.fake).apply()
    assert not any("cali-FORWARD" in chains for chains in node.fake.tables.values())


async def test_a_tool_that_is_not_installed_has_left_nothing():
    fake = FakeIptables()
    fake.missing |= {"iptables-nft-save", "iptables-legacy-save", "ipset"}
    result = await everything_of(fake).apply()
    assert (result.deferred, result.error) == (0, "")


async def test_what_cannot_be_removed_is_tried_again_and_the_rest_goes():
    node = FakeIptNode()
    await node.push(*PODS)
    node.fake.locked_calls = 1
    leftovers = everything_of(node.fake)
    first = await leftovers.apply()
    assert first.deferred == 2, "the rules, and the sets they use"
    assert first.retry_after_s is not None
    second = await leftovers.apply()
    assert second.deferred == 0
    assert node.fake.sets == {}


async def test_the_table_of_nftables_goes_and_foreign_ones_stay():
    node = FakeNode()
    await node.push(*PODS)
    packet = Packet("10.65.0.9", "10.65.0.8")
    assert node.fake.forward(packet, "cali1", "eth0") == "drop"
    assert (await Leftovers([NftLeftover(node.kernel)]).apply()).deleted == 1
    assert node.fake.tables == {}
    assert node.fake.forward(packet, "cali1", "eth0") == "accept"
    node.kernel.close()


async def test_no_table_of_nftables_no_write():
    fake = FakeNft()
    kernel = NftKernel(fake)
    before = fake.generation
    assert (await Leftovers([NftLeftover(kernel)]).apply()).deleted == 0
    assert fake.generation == before
    kernel.close()


async def test_a_leftover_that_fails_says_so():
    class Broken:
        name = "broken"
        calls: Sequence[str] = ()

        async def remove(self) -> int:
            raise ProgrammingFailed("remove", "it", 5, "no")

    leftovers = Leftovers([Broken()])
    result = await leftovers.apply()
    assert (result.failed, result.deferred) == (0, 1)
    assert "remove it failed" in result.error
    assert leftovers.dump() == {"waiting": ["broken"]}
    leftovers.queue_resync("x")
