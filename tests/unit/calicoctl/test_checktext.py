"""calicoctl.checktext: the sections of `ipam check` (datamodel 6.9)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from calicoctl.checktext import Detail, attributes_text, lines
from ipam.blocks import Holder
from ipam.check import Findings, Unreadable
from ipam.leaks import classify
from libcalico.model.ipam import AllocationAttribute, Handle
from tests.unit.ipam.test_check import block, endpoint, found, node, pod


def text(findings: Findings, *, all_ips: bool = False, problem_ips: bool = False) -> list[str]:
    return list(lines(findings, Detail(all_ips, problem_ips)))


def troubled() -> Findings:
    return found(
        block(pod("a"), pod("left"), Holder(None, {}), affinity=None),
        replace(block(cidr="10.0.0.8/29"), unallocated=()),
        nodes=[node("n1", ipv4_vxlan_tunnel_addr="10.0.0.0"),
               node("n2", ipv6_vxlan_tunnel_addr="x")],
        endpoints=[endpoint("a", "10.0.0.0"), endpoint("in", "10.0.0.9"),
                   endpoint("out", "192.0.2.1")],
        handles={"net.a": Handle(), "net.idle": Handle()},
        unreadable=[Unreadable("Handle", "IPAMHandleKey(id=h)", "broken"),
                    Unreadable("Block", "/calico/strange", "its key names no block")],
    )  # fmt: skip


def test_6_9_every_section_line_in_order():
    assert text(troubled()) == [
        "Loading all IPAM blocks...",
        "Found 3 IPAM blocks.",
        " IPAM block 10.0.0.0/29 affinity=<none>:",
        " IPAM block 10.0.0.8/29 affinity=host:n1:",
        "IPAM blocks record 3 allocations.",
        "",
        "Loading all IPAM pools...",
        "  10.0.0.0/24",
        "Found 1 active IP pools.",
        "",
        "Loading all nodes.",
        "  Node(n2) cannot be read: invalid IP address: x",
        "Found 1 node tunnel IPs.",
        "",
        "Loading all service load balancer IPs.",
        "Found 0 service load balancer(s).",
        "",
        "Loading all workload endpoints.",
        "Found 3 workload IPs.",
        "Workloads and nodes are using 3 IPs.",
        "",
        "Loading all handles",
        "  IPAMHandleKey(id=h) cannot be read: broken",
        "Looking for top (up to 20) nodes by allocations...",
        "  n1 has 2 allocations",
        "   has 1 allocations",
        "Node with most allocations has 2; median is 1",
        "",
        "Scanning for IPs that are allocated but not actually in use...",
        "Found 2 IPs that are allocated in IPAM but not actually in use.",
        "Scanning for IPs that are in use by a workload or node but not allocated in IPAM...",
        "Found 1 in-use IPs that are not in active IP pools.",
        "Found 1 in-use IPs that are in active IP pools but have no corresponding IPAM allocation.",
        "",
        "Scanning for IPAM handles with no matching IPs...",
        "Found 1 handles with no matching IPs (and 1 handles with matches).",
        "Scanning for IPs with missing handle...",
        "Found 1 handles mentioned in blocks with no matching handle resource.",
        "Validating IPAMBlock structures...",
        "  IPAMBlock /calico/strange is invalid: its key names no block",
        "  IPAMBlock BlockKey(cidr=10.0.0.8/29) is invalid: 0 allocated and 0 unallocated of 8",
        "Found 2 invalid IPAMBlocks.",
        "Check complete; found 9 problems.",
    ]


PROBLEMS = [
    "  10.0.0.1 leaked; attrs Main:net.left Extra:node=n1,pod=left",
    "  10.0.0.2 leaked; attrs Main:<none> Extra:",
    "  10.0.0.0 has multiple owners.",
    "  10.0.0.9 in use by Workload(prod/in) and in active IPAM pool but has no IPAM allocation.",
    "  192.0.2.1 in use by Workload(prod/out) is not in any active IP pool.",
    "  net.left is in use in a block but doesn't exist.",
]


def test_6_9_show_problem_ips_names_the_problems_only():
    more = [line for line in text(troubled(), problem_ips=True) if line not in text(troubled())]
    assert more == PROBLEMS


def test_6_9_show_all_ips_names_the_rest_as_well():
    more = [line for line in text(troubled(), all_ips=True) if line not in text(troubled())]
    assert [line for line in more if line not in PROBLEMS] == [
        "  10.0.0.0 allocated; attrs Main:net.a Extra:node=n1,pod=a",
        "  10.0.0.1 allocated; attrs Main:net.left Extra:node=n1,pod=left",
        "  10.0.0.2 allocated; attrs Main:<none> Extra:",
        "  10.0.0.0 belongs to Node(n1)",
        "  10.0.0.0 belongs to Workload(prod/a)",
        "  10.0.0.9 belongs to Workload(prod/in)",
        "  192.0.2.1 belongs to Workload(prod/out)",
        "  net.idle doesn't have any active IPs.",
    ]
    assert [line for line in more if line in PROBLEMS] == PROBLEMS


def test_addresses_of_services_are_said_to_be_taken_to_be_in_use():
    said = text(found(block(Holder("lb", {"service": "web", "namespace": "prod"}))), all_ips=True)
    start = said.index("Loading all service load balancer IPs.")
    assert said[start + 1 : start + 4] == [
        "  10.0.0.0 belongs to Service(prod/web)",
        "  1 addresses of services are taken to be in use: there is no Kubernetes API to ask.",
        "Found 0 service load balancer(s).",
    ]


def test_6_9_twenty_nodes_are_shown():
    stored = [block(pod("x", f"n{i:02}"), cidr=f"10.0.{i}.0/29", affinity=None) for i in range(21)]
    shown = [line for line in text(found(*stored)) if line.endswith("has 1 allocations")]
    assert len(shown) == 20
    assert shown[-1] == "  n19 has 1 allocations"
    assert not any("Node with most" in line for line in text(found()))


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        (AllocationAttribute(handle_id="h", secondary={"b": "2", "a": "1"}),
         "Main:h Extra:a=1,b=2"),
        (AllocationAttribute(alternate_owner_attrs={"pod": "y"}),
         "Main:<none> Extra: Alternate:pod=y"),
        (None, "<missing>"),
    ],
)  # fmt: skip
def test_6_9_attributes(attribute: AllocationAttribute | None, expected: str):
    stored = replace(block(pod("a")), attributes=() if attribute is None else (attribute,))
    (allocation,) = classify([stored], {})
    assert attributes_text(allocation) == expected
