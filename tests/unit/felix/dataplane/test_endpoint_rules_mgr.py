"""felix.dataplane.endpoint_rules_mgr: workloads come, change and go; chains follow."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from felix.intent import NatMapping, PolicyRemove, WorkloadEndpointRemove
from felix.rules.settings import RuleSettings
from libcalico.compute.rules import Action
from libcalico.testing.fakenft import Packet
from tests.support.nft import (
    ALLOW,
    DENY,
    FakeNode,
    allow_all_profile,
    policy,
    policy_key,
    rule,
    tier,
    workload,
    workload_key,
)

A = workload("a", "cali1", "10.65.0.2/32", "fd00::2/128")
B = workload("b", "cali2", "10.65.0.3/32", "fd00::3/128")
WORLD = "198.51.100.7"


@pytest.fixture
async def node() -> FakeNode:
    made = FakeNode()
    await made.push(allow_all_profile(), A, B)
    return made


def chains(node: FakeNode, beginning: str) -> set[str]:
    return {name for name in node.chain_names() if name.startswith(beginning)}


def out(node: FakeNode, src: str, iif: str) -> str:
    return node.fake.forward(Packet(src, WORLD if "." in src else "2001:db8::7"), iif, "eth0")


async def test_workloads_governed_alike_share_their_chains(node: FakeNode):
    assert len(chains(node, "endpoint-in-")) == 1
    assert len(chains(node, "endpoint-out-")) == 1
    node.fake.messages_seen.clear()
    await node.push(workload("c", "cali3", "10.65.0.4/32"))
    assert {kind for kind, _name in node.fake.messages_seen} == {12}, "elements only"


async def test_a_workload_that_goes_leaves_nothing(node: FakeNode):
    await node.push(WorkloadEndpointRemove(workload_key("a")))
    assert out(node, "10.65.0.2", "cali1") == "drop"
    assert out(node, "10.65.0.3", "cali2") == "accept"
    await node.push(WorkloadEndpointRemove(workload_key("b")))
    assert not chains(node, "endpoint-")
    table = node.fake.tables[1, "calico"]
    for name in ("dispatch-egress", "dispatch-ingress", "sources-4", "sources-6"):
        assert not table.sets[name].elements


async def test_removing_what_is_not_there_does_nothing(node: FakeNode):
    result = await node.push(WorkloadEndpointRemove(workload_key("zzz")))
    assert (result.written, result.deleted) == (0, 0)


async def test_addresses_change_in_place(node: FakeNode):
    await node.push(replace(A, nets=("10.65.0.99/32", "fd00::2/128")))
    assert out(node, "10.65.0.2", "cali1") == "drop"
    assert out(node, "10.65.0.99", "cali1") == "accept"
    assert out(node, "fd00::2", "cali1") == "accept"


async def test_a_workload_moves_to_another_interface(node: FakeNode):
    await node.push(replace(A, interface="cali7"))
    assert out(node, "10.65.0.2", "cali1") == "drop"
    assert out(node, "10.65.0.2", "cali7") == "accept"


async def test_two_workloads_swap_interfaces(node: FakeNode):
    await node.push(replace(A, interface="cali2"), replace(B, interface="cali1"))
    assert out(node, "10.65.0.2", "cali2") == "accept"
    assert out(node, "10.65.0.2", "cali1") == "drop"


async def test_an_inactive_workload_is_closed(node: FakeNode):
    await node.push(replace(A, active=False))
    assert out(node, "10.65.0.2", "cali1") == "drop"
    assert node.fake.forward(Packet(WORLD, "10.65.0.2"), "eth0", "cali1") == "drop"
    await node.push(A)
    assert out(node, "10.65.0.2", "cali1") == "accept"


async def test_the_first_key_holds_a_contested_interface_whatever_the_order():
    old, new = replace(B, interface="cali1"), A
    for order in permutations((old, new)):
        node = FakeNode()
        await node.push(allow_all_profile(), *order)
        assert out(node, "10.65.0.2", "cali1") == "accept"
        assert out(node, "10.65.0.3", "cali1") == "drop"
        await node.push(WorkloadEndpointRemove(workload_key("a")))
        assert out(node, "10.65.0.3", "cali1") == "accept"


async def test_a_policy_edited_in_place_rewrites_only_itself(node: FakeNode):
    await node.push(policy("p", [ALLOW], [ALLOW]), replace(A, tiers=(tier("p"),)))
    node.fake.messages_seen.clear()
    await node.push(policy("p", [DENY], [ALLOW]))
    name = node.chain_named("policy-in-p-")
    assert {seen for _kind, seen in node.fake.messages_seen} == {name}
    assert node.fake.forward(Packet(WORLD, "10.65.0.2"), "eth0", "cali1") == "drop"


async def test_a_policy_that_begins_to_pass_moves_into_the_tier(node: FakeNode):
    first, second = tier("p", name="first"), tier("q", name="second")
    await node.push(policy("p", [DENY]), policy("q", [ALLOW]), replace(A, tiers=(first, second)))
    assert node.fake.forward(Packet(WORLD, "10.65.0.2"), "eth0", "cali1") == "drop"
    await node.push(policy("p", [rule(Action.PASS)]))
    assert node.fake.forward(Packet(WORLD, "10.65.0.2"), "eth0", "cali1") == "accept"
    assert not chains(node, "policy-in-p-")
    await node.push(policy("p", [DENY]))
    assert node.fake.forward(Packet(WORLD, "10.65.0.2"), "eth0", "cali1") == "drop"


async def test_a_policy_taken_away_too_early_closes(node: FakeNode):
    await node.push(policy("p", [ALLOW]), replace(A, tiers=(tier("p"),)))
    await node.push(PolicyRemove(policy_key("p")))
    assert node.fake.forward(Packet(WORLD, "10.65.0.2"), "eth0", "cali1") == "drop"


async def test_tier_chains_live_as_long_as_an_endpoint_uses_them(node: FakeNode):
    both = (tier("p"),)
    await node.push(policy("p", [ALLOW], [ALLOW]), replace(A, tiers=both), replace(B, tiers=both))
    assert len(chains(node, "tier-in-")) == 1
    await node.push(replace(A, tiers=()))
    assert len(chains(node, "tier-in-")) == 1
    await node.push(replace(B, tiers=()))
    assert not chains(node, "tier-")


async def test_a_floating_address_is_held_by_one_workload():
    node = FakeNode(RuleSettings(translates_floating_ips=True))
    claim_a = replace(A, nats=(NatMapping("10.65.0.2", "203.0.113.5"),))
    claim_b = replace(B, nats=(NatMapping("10.65.0.3", "203.0.113.5"),))
    await node.push(allow_all_profile(), claim_b, claim_a)
    node.fake.forward(Packet(WORLD, "203.0.113.5"), "eth0", "cali1")
    assert node.fake.effects == ["dnat 10.65.0.2"]
    await node.push(WorkloadEndpointRemove(workload_key("a")))
    node.fake.forward(Packet(WORLD, "203.0.113.5"), "eth0", "cali1")
    assert node.fake.effects == ["dnat 10.65.0.3"]
    await node.push(B)
    node.fake.forward(Packet(WORLD, "203.0.113.5"), "eth0", "cali1")
    assert node.fake.effects == []


FLOATING = tuple(NatMapping("10.65.0.2", f"203.0.113.{n}") for n in (5, 6, 7))


@pytest.mark.parametrize("before", list(permutations(FLOATING, 2)))
@pytest.mark.parametrize("after", [(one,) for one in FLOATING] + list(permutations(FLOATING, 2)))
async def test_a_workload_reaches_itself_under_the_first_of_its_addresses_now(before, after):
    """Its entry is of the internal address, which stays while external ones come and go."""
    node = FakeNode(RuleSettings(translates_floating_ips=True))
    for mappings in (before, after):
        await node.push(allow_all_profile(), replace(A, nats=mappings))
        node.fake.forward(Packet("10.65.0.2", "10.65.0.2"), "cali1", "cali1")
        assert node.fake.effects == [f"snat {min(item.external_ip for item in mappings)}"]
    await node.push(A)
    node.fake.forward(Packet("10.65.0.2", "10.65.0.2"), "cali1", "cali1")
    assert node.fake.effects == []


def test_a_dump_names_contested_interfaces():
    node = FakeNode()
    node.tell(A, replace(B, interface="cali1"))
    dump = node.managers[2].dump()  # type: ignore[attr-defined]
    assert list(dump["contested"]) == ["cali1"]
    assert list(dump["interfaces"]) == ["cali1"]
