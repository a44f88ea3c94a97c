"""felix.dataplane.qos_rules: limits stand where packets meet them, and only while wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.intent import (
    DirectionLimits,
    PoolUpdate,
    QosControls,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from felix.rules.render_nft import script
from libcalico.testing.fakenft import Packet
from tests.support.nft import (
    DENY,
    FakeNode,
    allow_all_profile,
    policy,
    tier,
    workload,
    workload_key,
)

A = workload("a", "cali1", "10.65.0.2/32", "fd00::2/128")
B = workload("b", "cali2", "10.65.0.3/32", "fd00::3/128")
POOLS = (PoolUpdate("10.65.0.0/16", nat_outgoing=False), PoolUpdate("fd00::/64", False))
WORLD = {4: "198.51.100.7", 6: "2001:db8::7"}
SOURCES = {4: "10.65.0.2", 6: "fd00::2"}


def rate(packets_per_s: int, burst: int) -> DirectionLimits:
    return DirectionLimits(packets_per_s=packets_per_s, packet_burst=burst)


def limited(
    endpoint: WorkloadEndpointUpdate, *, dscp: int | None = None, **directions: DirectionLimits
) -> WorkloadEndpointUpdate:
    return replace(endpoint, qos=QosControls(dscp=dscp, **directions))


@pytest.fixture
async def node() -> FakeNode:
    made = FakeNode()
    await made.push(allow_all_profile(), *POOLS, A, B)
    return made


def out(node: FakeNode, *, version: int = 4, to: str = "", **packet: object) -> str:
    made = Packet(SOURCES[version], to or WORLD[version], **packet)  # type: ignore[arg-type]
    return node.fake.forward(made, "cali1", "eth0")


def into(node: FakeNode, **packet: object) -> str:
    made = Packet(WORLD[4], "10.65.0.2", **packet)  # type: ignore[arg-type]
    return node.fake.forward(made, "eth0", "cali1")


def text(node: FakeNode) -> str:
    return script(node.table.wanted.ruleset())


async def test_limits_come_and_leave_without_a_trace(node: FakeNode):
    before, names = text(node), node.chain_names()
    every = replace(rate(10, 5), connections=3)
    await node.push(limited(A, ingress=every, egress=every, dscp=8), limited(B, egress=every))
    assert len(node.chain_names()) > len(names)
    assert node.fake.tables[1, "calico"].sets.keys() >= {"packet-rate-egress", "dscp-egress"}
    await node.push(A, WorkloadEndpointRemove(workload_key("b")))
    await node.push(B)
    assert text(node) == before
    assert node.chain_names() == names
    assert not {n for n in node.fake.tables[1, "calico"].sets if "rate" in n or "dscp" in n}


async def test_one_without_controls_meets_no_rule_more(node: FakeNode):
    """Its endpoint chains stay the shared ones; the maps do not name its interface."""
    shared = {name for name in node.chain_names() if name.startswith("endpoint-")}
    every = replace(rate(10, 5), connections=3)
    await node.push(limited(A, ingress=every, egress=every, dscp=8))
    assert shared < {name for name in node.chain_names() if name.startswith("endpoint-")}
    entries = node.table.wanted.entries
    for name in ("packet-rate-egress", "packet-rate-ingress", "dscp-egress"):
        keys = [key for key, _value in entries[name].wanted_items()]
        assert keys == [b"cali1".ljust(16, b"\0")]
    for direction in ("egress", "ingress"):
        verdict = entries[f"dispatch-{direction}"].wanted(b"cali2".ljust(16, b"\0")).verdict
        assert verdict.chain in shared


async def test_the_rate_counts_established_packets_too(node: FakeNode):
    await node.push(limited(A, egress=rate(10, 2)))
    states = [out(node, state=state) for state in ("new", "established", "established", "new")]
    assert states == ["accept", "accept", "drop", "drop"]
    assert into(node, state="established") == "accept", "the other direction has no limit"
    assert node.fake.forward(Packet("10.65.0.3", WORLD[4]), "cali2", "eth0") == "accept"


async def test_each_direction_has_its_rate(node: FakeNode):
    await node.push(limited(A, ingress=rate(10, 1), egress=rate(10, 2)))
    assert [into(node), into(node)] == ["accept", "drop"]
    assert [out(node), out(node), out(node, version=6)] == ["accept", "accept", "drop"]


async def test_packets_to_the_host_count_for_the_rate(node: FakeNode):
    await node.push(limited(A, egress=rate(10, 1)))
    assert out(node) == "accept"
    before = dict(node.fake.tables[1, "calico"].chains)
    assert node.fake.deliver(Packet("10.65.0.2", "192.0.2.1"), "cali1") == "drop"
    assert out(node) == "drop"
    assert node.fake.tables[1, "calico"].chains == before


async def test_a_connection_too_many_is_reset_and_others_go_on(node: FakeNode):
    await node.push(limited(A, egress=DirectionLimits(connections=2)))
    opened = [out(node, sport=port) for port in (1001, 1002, 1003)]
    assert opened == ["accept", "accept", "reset"]
    assert out(node, sport=1001, state="established") == "accept"
    assert out(node, protocol="udp", sport=1004) == "accept", "only TCP is limited"
    assert into(node) == "accept"


async def test_an_edited_policy_does_not_forget_the_connections(node: FakeNode):
    """The counter is in a chain of its own, which is not rewritten."""
    await node.push(limited(A, egress=DirectionLimits(connections=1)))
    assert out(node, sport=1001) == "accept"
    governed = replace(A, tiers=(tier("no", name="late"),))
    await node.push(
        policy("no", [DENY], [], tier="late"),
        limited(governed, egress=DirectionLimits(connections=1)),
    )
    assert out(node, sport=1002) == "reset"


async def test_the_limit_stands_before_policy(node: FakeNode):
    governed = replace(A, tiers=(tier("no"),))
    limit = DirectionLimits(connections=1)
    await node.push(policy("no", [DENY], [DENY]), limited(governed, egress=limit))
    assert [out(node, sport=port) for port in (1, 2)] == ["drop", "reset"]


@pytest.mark.parametrize("version", [4, 6])
async def test_what_leaves_the_cluster_is_marked(node: FakeNode, version: int):
    await node.push(limited(A, dscp=46))
    assert out(node, version=version) == "accept"
    assert node.fake.effects == ["dscp 46"]
    inside = {4: "10.65.0.3", 6: "fd00::3"}[version]
    out(node, version=version, to=inside)
    assert node.fake.effects == []
    assert into(node) == "accept"
    assert node.fake.effects == []


async def test_marks_change_and_are_shared(node: FakeNode):
    await node.push(limited(A, dscp=46), limited(B, dscp=46))
    await node.push(limited(A, dscp=0))
    out(node)
    assert node.fake.effects == ["dscp 0"]
    assert {n for n in node.chain_names() if n.startswith("dscp-")} == {"dscp-0", "dscp-46"}
    await node.push(B)
    assert {n for n in node.chain_names() if n.startswith("dscp-")} == {"dscp-0"}


async def test_an_endpoint_that_is_not_active_has_no_limits(node: FakeNode):
    names = node.chain_names()
    await node.push(replace(limited(A, egress=rate(1, 1), dscp=1), active=False))
    assert not {n for n in node.chain_names() - names if not n.startswith("endpoint-")}


async def test_a_restart_writes_nothing(node: FakeNode):
    every = replace(rate(10, 5), connections=3)
    wanted = (allow_all_profile(), *POOLS, limited(A, ingress=every, egress=every, dscp=8), B)
    await node.push(*wanted)
    commits = node.fake.commits
    again = node.restarted()
    result = await again.push(*wanted)
    assert (result.written, result.deleted, node.fake.commits) == (0, 0, commits)


async def test_limits_follow_whoever_holds_the_interface(node: FakeNode):
    """Two endpoints on one interface: the limits are those of the one in force."""
    rival = limited(replace(A, key=workload_key("a-first")), egress=rate(10, 1))
    await node.push(replace(rival, key=workload_key("0")))
    assert [out(node), out(node)] == ["accept", "drop"]
    await node.push(WorkloadEndpointRemove(workload_key("0")))
    assert [out(node), out(node)] == ["accept", "accept"]
