"""felix.rules.nat: who is translated to what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.intent import HostUpdate, NatMapping, PoolUpdate
from felix.rules.chain import Masquerade, SourceNat
from felix.rules.nat import outgoing_chain
from felix.rules.settings import RuleSettings
from libcalico.testing.fakenft import FakeNft, Packet
from tests.support.nft import FakeNode, allow_all_profile, workload

POOLS = (
    PoolUpdate("10.65.0.0/16", nat_outgoing=True),
    PoolUpdate("10.66.0.0/16", nat_outgoing=False),
    PoolUpdate("fd00::/64", nat_outgoing=True),
)
HOSTS = (HostUpdate("n1", "192.0.2.1", None), HostUpdate("n2", "192.0.2.2", "2001:db8::2"))


async def make(settings: RuleSettings | None = None) -> FakeNft:
    node = FakeNode(settings)
    a = workload("a", "cali1", "10.65.0.2/32", "fd00::2/128")
    await node.push(
        allow_all_profile(),
        *POOLS,
        *HOSTS,
        replace(
            a,
            nats=(NatMapping("10.65.0.2", "203.0.113.5"), NatMapping("fd00::2", "2001:db8:5::5")),
        ),
        workload("b", "cali2", "10.66.0.2/32"),
    )
    return node.fake


def effects(fake: FakeNft, src: str, dst: str, iif: str = "cali1", oif: str = "eth0") -> list[str]:
    assert fake.forward(Packet(src, dst), iif, oif) == "accept"
    return fake.effects


@pytest.mark.parametrize(
    ("src", "dst", "iif", "expected"),
    [
        ("10.65.0.2", "8.8.8.8", "cali1", ["masquerade"]),
        ("fd00::2", "2001:db8:9::9", "cali1", ["masquerade"]),
        ("10.65.0.2", "10.66.0.9", "cali1", []),  # another pool
        ("10.65.0.2", "10.65.3.3", "cali1", []),
        ("10.66.0.2", "8.8.8.8", "cali2", []),  # a pool without natOutgoing
        ("198.51.100.7", "8.8.8.8", "eth1", []),  # nobody's
        ("10.65.0.2", "192.0.2.2", "cali1", ["masquerade"]),  # a node is outside the pools
    ],
)
async def test_what_leaves_the_pools_is_masqueraded(
    src: str, dst: str, iif: str, expected: list[str]
):
    assert effects(await make(), src, dst, iif) == expected


async def test_nodes_are_left_out_when_configured():
    fake = await make(RuleSettings(nat_excludes_hosts=True))
    assert effects(fake, "10.65.0.2", "192.0.2.2") == []
    assert effects(fake, "10.65.0.2", "8.8.8.8") == ["masquerade"]


async def test_only_through_the_configured_interface():
    fake = await make(RuleSettings(nat_interface_filter="eth+"))
    assert effects(fake, "10.65.0.2", "8.8.8.8", oif="eth7") == ["masquerade"]
    assert effects(fake, "10.65.0.2", "8.8.8.8", oif="bond0") == []
    fake = await make(RuleSettings(nat_interface_filter="eth0"))
    assert effects(fake, "10.65.0.2", "8.8.8.8", oif="eth0") == ["masquerade"]
    assert effects(fake, "10.65.0.2", "8.8.8.8", oif="eth01") == []


async def test_a_configured_address_replaces_the_interfaces_own():
    fake = await make(RuleSettings(nat_outgoing_address="192.0.2.77"))
    assert effects(fake, "10.65.0.2", "8.8.8.8") == ["snat 192.0.2.77"]
    assert effects(fake, "fd00::2", "2001:db8:9::9") == ["masquerade"]


def test_ports_are_chosen_only_where_there_are_ports():
    rules = outgoing_chain(RuleSettings(nat_ports=(1000, 2000))).rules
    of_v4 = rules[: len(rules) // 2]
    assert [rule.actions for rule in of_v4] == [
        (Masquerade((1000, 2000)),),
        (Masquerade((1000, 2000)),),
        (Masquerade((1000, 2000)),),
        (Masquerade(),),
    ]
    settings = RuleSettings(nat_ports=(1000, 2000), nat_outgoing_address="192.0.2.77")
    first = outgoing_chain(settings).rules[0]
    assert first.actions == (SourceNat(bytes([192, 0, 2, 77]), (1000, 2000)),)


FLOATING = RuleSettings(translates_floating_ips=True)


async def test_floating_addresses_lead_inside():
    fake = await make(FLOATING)
    assert effects(fake, "198.51.100.7", "203.0.113.5", "eth0", "cali1") == ["dnat 10.65.0.2"]
    assert effects(fake, "2001:db8::7", "2001:db8:5::5", "eth0", "cali1") == ["dnat fd00::2"]
    assert effects(fake, "198.51.100.7", "10.65.0.2", "eth0", "cali1") == []
    fake.originate(Packet("192.0.2.1", "203.0.113.5"), "cali1")
    assert fake.effects == ["dnat 10.65.0.2"]


async def test_a_workload_that_reaches_itself_sees_the_external_address():
    fake = await make(FLOATING)
    assert effects(fake, "10.65.0.2", "10.65.0.2", "cali1", "cali1") == ["snat 203.0.113.5"]


async def test_floating_addresses_need_the_switch():
    fake = await make()
    assert effects(fake, "198.51.100.7", "203.0.113.5", "eth0", "cali1") == []
