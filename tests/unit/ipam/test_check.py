"""ipam.check: what is in use, what was left behind, what contradicts itself (datamodel §6.9)."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.blocks import BlockDraft, Holder
from ipam.check import Findings, Inventory, StoredHandle, Unreadable, check, in_use, owners_of
from ipam.requests import WINDOWS_RESERVED, Release
from libcalico.model.cluster import ClusterInformation
from libcalico.model.endpoints import WorkloadEndpoint, WorkloadEndpointSpec
from libcalico.model.ipam import Block, Handle
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import Node, NodeSpec

CIDR = "10.0.0.0/29"
NOW = 1_800_000_000.0


def pod(name: str, on: str = "n1") -> Holder:
    return Holder(f"net.{name}", {"pod": name, "node": on})


def block(*holders: Holder, cidr: str = CIDR, affinity: str | None = "host:n1") -> Block:
    draft = BlockDraft(blocks.new_block(cidr, 100))
    for holder in holders:
        draft.assign(1, holder)
    return replace(draft.finish(), affinity=affinity)


def endpoint(name: str, *networks: str, on: str = "n1") -> WorkloadEndpoint:
    spec = WorkloadEndpointSpec(node=on, ip_networks=networks)
    return WorkloadEndpoint(metadata=ObjectMeta(name=name, namespace="prod"), spec=spec)


def node(name: str, **spec: object) -> Node:
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(**spec))  # type: ignore[arg-type]


def found(*stored: Block, handles: dict[str, Handle] | None = None, **more: object) -> Findings:
    kept = {name: StoredHandle(handle, 7) for name, handle in (handles or {}).items()}
    terms: dict[str, object] = {"pools": [ip_network("10.0.0.0/24")], **more}
    inventory = Inventory(
        cluster=ClusterInformation(), blocks=stored, handles=kept, **terms,  # type: ignore[arg-type]
    )  # fmt: skip
    return check(inventory, NOW)


def texts(addresses: object) -> list[str]:
    return [str(address) for address in addresses]  # type: ignore[attr-defined]


def test_6_9_what_nothing_has_is_left_behind():
    result = found(block(pod("a"), pod("b"), Holder()), endpoints=[endpoint("a", "10.0.0.0/32")])
    assert texts(result.leaked) == ["10.0.0.1", "10.0.0.2"]
    assert len(result.handles.missing) == 2
    assert result.problems == 2, "missing handles are not counted"


def test_an_endpoint_of_a_node_that_is_gone_still_has_its_address():
    """As in Calico: nothing is released on the guess that a node will not come back."""
    result = found(block(pod("a")), endpoints=[endpoint("a", "10.0.0.0/32", on="n9")])
    assert result.leaked == {}


@pytest.mark.parametrize("spec", [{"ipv4_vxlan_tunnel_addr": "10.0.0.0"},
                                  {"ipv6_vxlan_tunnel_addr": "10.0.0.0"}])  # fmt: skip
def test_6_9_tunnel_addresses_of_both_families_are_in_use(spec: dict[str, object]):
    result = found(block(Holder("t", {"node": "n1"})), nodes=[node("n1", **spec)])
    assert result.leaked == {}
    assert [(str(use.address), use.owner) for use in result.tunnels] == [("10.0.0.0", "Node(n1)")]


def test_6_9_a_cooling_address_is_neither_in_use_nor_left_behind():
    draft = BlockDraft(block(pod("a")))
    draft.release([Release(address=ip_address("10.0.0.0"))], NOW - 5, 3600)
    result = found(draft.finish(), endpoints=[endpoint("a", "10.0.0.0")])
    (allocation,) = result.allocations
    assert (result.leaked, in_use(allocation), owners_of(allocation)) == (
        {}, False, ("Workload(prod/a)",),
    )  # fmt: skip


def test_what_windows_keeps_is_in_use():
    result = found(blocks.new_block(CIDR, 5, WINDOWS_RESERVED))
    assert result.leaked == {}
    assert {owners_of(allocation) for allocation in result.allocations} == {
        ("Reserved for Windows",)
    }
    assert result.handles.missing == ()


def test_addresses_of_services_are_taken_to_be_in_use():
    service = Holder("lb-1", {"service": "web", "namespace": "prod"})
    controllers = block(Holder("lb-2"), cidr="10.0.0.8/29", affinity="virtual:load-balancer")
    result = found(block(service, affinity=None), controllers)
    assert result.leaked == {}
    assert [use.owner for use in result.services] == ["Service(prod/web)", "Service(/)"]
    assert result.users == {}, "only nodes and workloads count"


def test_6_9_used_without_an_allocation_inside_a_pool_and_outside():
    result = found(endpoints=[endpoint("in", "10.0.0.9/32"), endpoint("out", "192.0.2.1"),
                              endpoint("twice", "192.0.2.1")])  # fmt: skip
    assert {str(a): owners for a, owners in result.unallocated.items()} == {
        "10.0.0.9": ["Workload(prod/in)"]
    }
    assert {str(a): owners for a, owners in result.outside.items()} == {
        "192.0.2.1": ["Workload(prod/out)", "Workload(prod/twice)"]
    }
    assert result.problems == 2


def test_an_address_in_two_blocks_is_left_behind_only_when_nobody_has_either():
    wide = block(pod("b"), cidr="10.0.0.0/28")
    result = found(block(pod("a")), wide)
    assert [len(held) for held in result.leaked.values()] == [2]
    draft = BlockDraft(wide)
    draft.release([Release(address=ip_address("10.0.0.0"))], NOW - 5, 3600)
    assert found(block(pod("a")), draft.finish()).leaked == {}


def test_6_9_allocations_count_for_their_node_else_for_the_blocks():
    ownerless = block(Holder("i"), cidr="10.0.0.8/29", affinity=None)
    result = found(block(pod("a", "n2"), pod("b", "n2"), Holder("h")), ownerless)
    assert result.nodes_by_allocations == [("n2", 2), ("", 1), ("n1", 1)]


def test_6_9_handles_without_addresses_are_problems_and_missing_ones_are_not():
    result = found(
        block(pod("a"), pod("b")),
        handles={"net.a": Handle(), "net.idle": Handle()},
        endpoints=[endpoint("x", "10.0.0.0", "10.0.0.1")],
    )
    assert (result.handles.idle, result.handles.missing) == (("net.idle",), ("net.b",))
    assert (result.handles.matched, result.problems) == (1, 1)


def test_a_handle_of_a_block_nobody_can_read_is_not_idle():
    result = found(
        handles={"net.a": Handle(block={CIDR: 1}), "net.b": Handle(block={"10.0.0.8/29": 1})},
        unreadable=[Unreadable("Block", CIDR, "broken")],
    )
    assert result.handles.idle == ("net.b",)
    assert result.invalid == {CIDR: "broken"}
    assert result.problems == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unallocated": (1, 1, 2, 3, 4, 5, 6)}, "an ordinal is unallocated twice"),
        ({"unallocated": (0, 1, 2, 3, 4, 5, 6)}, "both allocated and unallocated"),
        ({"unallocated": (8, 1, 2, 3, 4, 5, 6)}, "out of range"),
        ({"unallocated": (1,)}, "1 allocated and 1 unallocated of 8"),
        ({"allocations": (3, *[None] * 7)}, "an attribute that does not exist"),
        ({"allocations": (-1, *[None] * 7)}, "an attribute that does not exist"),
        ({"allocations": (0,)}, "1 allocations for 8 addresses"),
        ({"allocations": (None,) * 8}, "an attribute is not used by any allocation"),
    ],
)  # fmt: skip
def test_6_9_a_block_that_contradicts_itself_is_named_and_the_rest_checked(
    change: dict[str, object], reason: str
):
    bad = replace(block(pod("a")), **change)
    result = found(bad, block(pod("left"), cidr="10.0.0.8/29"))
    assert reason in result.invalid[CIDR]
    assert "10.0.0.8" in texts(result.leaked)
    assert "10.0.0.8/29" not in result.invalid


def test_6_9_released_in_the_future_is_a_clock_that_goes_wrong():
    draft = BlockDraft(block(pod("a")))
    draft.release([Release(address=ip_address("10.0.0.0"))], NOW + 60, 3600)
    assert "released in the future" in found(draft.finish()).invalid[CIDR]


def test_addresses_nobody_can_read_are_named_counted_and_forbid_a_report():
    result = found(nodes=[node("n1", ipv4_vxlan_tunnel_addr="rubbish")])
    assert list(map(str, result.hidden_users)) == [
        "Node(n1) cannot be read: invalid IP address: rubbish"
    ]
    assert result.problems == 1
    pools_only = found(unreadable=[Unreadable("IPPool", "IPPool(x)", "broken")])
    assert (pools_only.hidden_users, pools_only.problems) == ([], 1)
