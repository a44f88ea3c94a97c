"""What `ipam check` says, section by section (datamodel 6.9).

Layer: pure. Used by calicoctl.commands.ipam.check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ipam.check import Findings, Unreadable, Use
from ipam.leaks import Allocation
from libcalico.model.ipam import AllocationAttribute

FIRST_LINES = ("Checking IPAM for inconsistencies...", "")
NODES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Detail:
    """--show-all-ips, which means --show-problem-ips as well."""

    all_ips: bool = False
    problem_ips: bool = False


def lines(findings: Findings, detail: Detail) -> Iterator[str]:
    """Everything after FIRST_LINES."""
    yield from _blocks(findings, detail)
    yield from _pools(findings)
    yield from _users(findings, detail)
    yield from _by_node(findings)
    problems = detail.problem_ips or detail.all_ips
    yield from _leaked(findings, problems)
    yield from _unallocated(findings, problems)
    yield from _handles(findings, detail.all_ips, problems)
    yield "Validating IPAMBlock structures..."
    for cidr, reason in sorted(findings.invalid.items()):
        name = cidr if cidr.startswith("/") else f"BlockKey(cidr={cidr})"
        yield f"  IPAMBlock {name} is invalid: {reason}"
    yield f"Found {len(findings.invalid)} invalid IPAMBlocks."
    yield f"Check complete; found {findings.problems} problems."


def _blocks(findings: Findings, detail: Detail) -> Iterator[str]:
    inventory = findings.inventory
    yield "Loading all IPAM blocks..."
    yield f"Found {len(inventory.blocks) + len(inventory.unreadable_of('Block'))} IPAM blocks."
    by_block: dict[str, list[Allocation]] = {}
    for allocation in findings.allocations:
        by_block.setdefault(allocation.block, []).append(allocation)
    for block in inventory.blocks:
        yield f" IPAM block {block.cidr} affinity={block.affinity or '<none>'}:"
        if detail.all_ips:
            for allocation in by_block.get(block.cidr, ()):
                yield f"  {allocation.address} allocated; attrs {attributes_text(allocation)}"
    yield f"IPAM blocks record {len(findings.allocations)} allocations."
    yield ""


def _pools(findings: Findings) -> Iterator[str]:
    pools = findings.inventory.pools
    yield "Loading all IPAM pools..."
    yield from (f"  {pool}" for pool in pools)
    yield from _unreadable(findings, "IPPool")
    yield f"Found {len(pools)} active IP pools."
    yield ""


def _users(findings: Findings, detail: Detail) -> Iterator[str]:
    yield "Loading all nodes."
    yield from _belonging(findings.tunnels, detail)
    yield from _unreadable(findings, "Node")
    yield f"Found {len(findings.tunnels)} node tunnel IPs."
    yield ""
    yield "Loading all service load balancer IPs."
    yield from _belonging(findings.services, detail)
    if findings.services:
        yield (
            f"  {len(findings.services)} addresses of services are taken to be in use: "
            "there is no Kubernetes API to ask."
        )
    yield "Found 0 service load balancer(s)."
    yield ""
    yield "Loading all workload endpoints."
    yield from _belonging(findings.workloads, detail)
    yield from _unreadable(findings, "WorkloadEndpoint")
    yield f"Found {len(findings.workloads)} workload IPs."
    yield f"Workloads and nodes are using {len(findings.users)} IPs."
    yield ""


def _belonging(uses: Sequence[Use], detail: Detail) -> Iterator[str]:
    if detail.all_ips:
        yield from (f"  {use.address} belongs to {use.owner}" for use in uses)


def _unreadable(findings: Findings, kind: str) -> Iterator[str]:
    found: list[Unreadable] = [item for item in findings.unreadable if item.kind == kind]
    yield from (f"  {item}" for item in found)


def _by_node(findings: Findings) -> Iterator[str]:
    yield "Loading all handles"
    yield from _unreadable(findings, "Handle")
    yield f"Looking for top (up to {NODES_SHOWN}) nodes by allocations..."
    counts = findings.nodes_by_allocations
    for node, count in counts[:NODES_SHOWN]:
        yield f"  {node} has {count} allocations"
    if counts:
        most, median = counts[0][1], counts[len(counts) // 2][1]
        yield f"Node with most allocations has {most}; median is {median}"
    yield ""


def _leaked(findings: Findings, shown: bool) -> Iterator[str]:
    yield "Scanning for IPs that are allocated but not actually in use..."
    if shown:
        for address, held in findings.leaked.items():
            for allocation in held:
                yield f"  {address} leaked; attrs {attributes_text(allocation)}"
    yield f"Found {len(findings.leaked)} IPs that are allocated in IPAM but not actually in use."


def _unallocated(findings: Findings, shown: bool) -> Iterator[str]:
    yield ("Scanning for IPs that are in use by a workload or node but not allocated in IPAM...")
    if shown:
        for address, owners in findings.users.items():
            if len(owners) > 1:
                yield f"  {address} has multiple owners."
            what = ""
            if address in findings.outside:
                what = "is not in any active IP pool."
            elif address in findings.unallocated:
                what = "and in active IPAM pool but has no IPAM allocation."
            if what:
                yield from (f"  {address} in use by {owner} {what}" for owner in owners)
    yield f"Found {len(findings.outside)} in-use IPs that are not in active IP pools."
    yield (
        f"Found {len(findings.unallocated)} in-use IPs that are in active IP pools "
        "but have no corresponding IPAM allocation."
    )
    yield ""


def _handles(findings: Findings, all_shown: bool, shown: bool) -> Iterator[str]:
    handles = findings.handles
    yield "Scanning for IPAM handles with no matching IPs..."
    if all_shown:
        yield from (f"  {handle_id} doesn't have any active IPs." for handle_id in handles.idle)
    yield (
        f"Found {len(handles.idle)} handles with no matching IPs "
        f"(and {handles.matched} handles with matches)."
    )
    yield "Scanning for IPs with missing handle..."
    if shown:
        for handle_id in handles.missing:
            yield f"  {handle_id} is in use in a block but doesn't exist."
    count = len(handles.missing)
    yield f"Found {count} handles mentioned in blocks with no matching handle resource."


def attributes_text(allocation: Allocation) -> str:
    """Main:<handle> Extra:<owner> and, for a live migration, Alternate:<the other party>."""
    attribute: AllocationAttribute | None = allocation.attribute
    if attribute is None:
        return "<missing>"
    text = f"Main:{attribute.handle_id or '<none>'} Extra:{_pairs(attribute.secondary)}"
    if attribute.alternate_owner_attrs:
        text += f" Alternate:{_pairs(attribute.alternate_owner_attrs)}"
    return text


def _pairs(attributes: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(attributes.items()))
