"""ipam.leaks: which assignments somebody uses (datamodel §6.9)."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from msgspec.structs import replace

from ipam import blocks, leaks
from ipam.blocks import BlockDraft, Holder
from ipam.leaks import LeakTracker, Standing
from ipam.requests import WINDOWS_RESERVED, Release
from libcalico.model.endpoints import WorkloadEndpoint, WorkloadEndpointSpec
from libcalico.model.ipam import Block, Handle
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import Node, NodeBGPSpec, NodeSpec, NodeWireguardSpec

CIDR = "10.0.0.0/29"


def node(name: str, **spec: object) -> Node:
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(**spec))  # type: ignore[arg-type]


def endpoint(name: str, on: str, *networks: str) -> WorkloadEndpoint:
    spec = WorkloadEndpointSpec(node=on, ip_networks=networks)
    return WorkloadEndpoint(metadata=ObjectMeta(name=name, namespace="prod"), spec=spec)


def block(*holders: Holder, affinity: str | None = "host:n1") -> Block:
    draft = BlockDraft(blocks.new_block(CIDR, 100))
    for holder in holders:
        draft.assign(1, holder)
    return replace(draft.finish(), affinity=affinity)


def pod(name: str, on: str = "n1") -> Holder:
    return Holder(f"net.{name}", {"pod": name, "node": on})


def standings(stored: Block, owners: leaks.Owners) -> list[Standing]:
    return [allocation.standing for allocation in leaks.classify([stored], owners)]


def test_what_an_endpoint_or_a_tunnel_names_is_in_use_and_the_rest_leaked():
    owners = leaks.owners_of(
        [endpoint("wep", "n1", "10.0.0.0/32")],
        [node("n1", bgp=NodeBGPSpec(ipv4_ipip_tunnel_addr="10.0.0.1"))],
        {ip_address("10.0.0.2"): ("Service(prod/lb)",)},
    )
    found = leaks.classify([block(pod("a"), pod("t"), pod("lb"), pod("gone"))], owners)
    assert [allocation.standing for allocation in found] == [
        Standing.IN_USE, Standing.IN_USE, Standing.IN_USE, Standing.LEAKED,
    ]  # fmt: skip
    assert [allocation.owners for allocation in found] == [
        ("Workload(prod/wep)",), ("Node(n1)",), ("Service(prod/lb)",), (),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "spec",
    [
        {"bgp": NodeBGPSpec(ipv4_ipip_tunnel_addr="10.0.0.0")},
        {"ipv4_vxlan_tunnel_addr": "10.0.0.0"},
        {"ipv6_vxlan_tunnel_addr": "10.0.0.0"},
        {"wireguard": NodeWireguardSpec(interface_ipv4_address="10.0.0.0")},
        {"wireguard": NodeWireguardSpec(interface_ipv6_address="10.0.0.0")},
    ],
)
def test_every_tunnel_address_counts_those_of_ipv6_too(spec: dict[str, object]):
    """Calico's check forgets the v6 ones and reports them as leaks."""
    assert standings(block(pod("t")), leaks.owners_of([], [node("n1", **spec)])) == [
        Standing.IN_USE
    ]


def test_endpoints_of_a_node_that_is_gone_are_no_evidence():
    owners = leaks.owners_of([endpoint("wep", "n9", "10.0.0.0/32")], [node("n1")])
    assert standings(block(pod("a", "n9")), owners) == [Standing.LEAKED]


def test_a_malformed_endpoint_address_hides_nothing():
    owners = leaks.owners_of([endpoint("wep", "n1", "rubbish", "10.0.0.0")], [node("n1")])
    assert standings(block(pod("a")), owners) == [Standing.IN_USE]


def test_by_hand_cooling_and_windows_are_told_apart():
    draft = BlockDraft(blocks.new_block(CIDR, 100, WINDOWS_RESERVED))
    draft.assign(1, Holder())
    draft.assign(1, pod("a"))
    draft.release([Release(address=ip_address("10.0.0.4"))], 1000, 3600)
    assert standings(draft.finish(), {}) == [
        *[Standing.RESERVED] * 3, Standing.UNKNOWN, Standing.COOLING, Standing.RESERVED,
    ]  # fmt: skip


def test_borrowed_means_the_node_is_not_the_blocks():
    found = leaks.classify([block(pod("a"), pod("b", "n2"), Holder("h", {}))], {})
    assert [allocation.borrowed for allocation in found] == [False, True, False]
    (orphan,) = leaks.classify([block(pod("a"), affinity=None)], {})
    assert orphan.borrowed  # from nobody: datamodel §6.8


def test_an_assignment_that_points_to_no_attribute_is_there_and_its_owner_unknown():
    broken = replace(block(pod("a")), attributes=())
    assert standings(broken, {}) == [Standing.UNKNOWN]
    assert standings(broken, {ip_address("10.0.0.0"): ("x",)}) == [Standing.IN_USE]
    negative = replace(block(pod("a"), pod("b")), allocations=(0, -1, *[None] * 6))
    assert [a.attribute is None for a in leaks.classify([negative], {})] == [False, True]


def test_a_leak_is_released_with_its_handle_and_number_and_so_no_later_assignment():
    (found,) = leaks.classify([block(pod("a"))], {})
    assert found.as_release() == Release(
        address=ip_address("10.0.0.0"), handle_id="net.a", sequence_number=100
    )


def test_a_leak_is_only_one_after_the_grace_period_and_with_the_same_number():
    tracker = LeakTracker(grace_s=900)
    suspects = leaks.classify([block(pod("a"))], {})
    assert tracker.observe(suspects, now=0) == []
    assert tracker.observe(suspects, now=899) == []
    assert tracker.observe(suspects, now=900) == suspects
    newer = leaks.classify(
        [replace(block(pod("a")), sequence_number_for_allocation={"0": 200})], {}
    )
    assert tracker.observe(newer, now=901) == []
    assert tracker.observe(newer, now=1801) == newer


def test_in_use_for_a_moment_starts_the_grace_period_again():
    tracker = LeakTracker(grace_s=10)
    suspects = leaks.classify([block(pod("a"))], {})
    in_use = leaks.classify([block(pod("a"))], {ip_address("10.0.0.0"): ("x",)})
    tracker.observe(suspects, now=0)
    tracker.observe(in_use, now=5)
    assert tracker.observe(suspects, now=11) == []
    assert tracker.dump() == {"10.0.0.0#100": 11}


def test_handles_are_compared_with_what_the_blocks_say():
    stored = [block(pod("a"), pod("b"), Holder("net.c\rxx", {}))]
    recorded = {"net.a": Handle(), "net.c": Handle(), "net.idle": Handle()}
    found = leaks.check_handles(stored, recorded)
    assert (found.idle, found.missing, found.matched) == (("net.idle",), ("net.b",), 2)
