"""ipam show: how full the pools are, who holds an address, the settings.

Layer: edge; the tables are datamodel 6.8's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from calicoctl import options
from calicoctl.boxes import draw, five_digits, percent
from calicoctl.commands.ipam.address import parse_address
from calicoctl.session import Session, run
from ipam import leaks
from ipam.client import IpamClient
from ipam.errors import AddressUnassigned
from ipam.leaks import Allocation, Standing
from ipam.requests import Assignment
from ipam.utilization import BlockUse, PoolUse, utilization
from libcalico.errors import NotFound
from libcalico.model.ipam import Block, IpamConfig
from libcalico.net import Address

_USE_HEADERS = ("GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE")
_NAMED = 3
_BORROWED_HEADERS = ("IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO")


@click.command()
@options.config
@click.option("--ip", "address", default="", help="Who holds this address.")
@click.option("--show-blocks", is_flag=True, help="A row for each block.")
@click.option("--show-borrowed", is_flag=True, help="Addresses used by another node's pods.")
@click.option("--show-configuration", is_flag=True, help="IPAM's settings.")
@click.pass_context
def show(
    ctx: click.Context,
    config: str,
    address: str,
    show_blocks: bool,
    show_borrowed: bool,
    show_configuration: bool,
) -> None:
    """Show use of addresses."""
    wanted = parse_address(address) if address else None

    async def work(session: Session) -> str:
        client = IpamClient(session.datastore)
        if wanted is not None:
            return await _describe(client, wanted)
        if show_configuration:
            return configuration_text(await client.settings.get())
        blocks, unreadable = await client.stored_blocks()
        if unreadable:
            click.echo(unreadable_text(unreadable), err=True)
        if show_borrowed:
            return borrowed_text(blocks)
        facts = await client.source.facts()
        return use_text(utilization(facts.pools, blocks, facts.reservations), show_blocks)

    click.echo(run(ctx, config, work))


async def _describe(client: IpamClient, address: Address) -> str:
    try:
        assignment = await client.assignment(address)
    except (NotFound, AddressUnassigned):
        return f"{address} is not assigned"
    return assignment_text(assignment)


def assignment_text(assignment: Assignment) -> str:
    lines = [f"IP {assignment.address} is in use"]
    lines.append(f"Handle ID: {assignment.handle_id or '<none>'}")
    if assignment.attributes:
        lines.append("Active Owner Attributes:")
        lines += [f"  {key}: {value}" for key, value in sorted(assignment.attributes.items())]
    else:
        lines.append("No Active Owner attributes defined")
    if assignment.alternate_attributes:
        lines.append("Alternate Owner Attributes:")
        pairs = sorted(assignment.alternate_attributes.items())
        lines += [f"  {key}: {value}" for key, value in pairs]
    return "\n".join(lines)


def unreadable_text(cidrs: Sequence[str]) -> str:
    """One line, however many they are."""
    named, more = ", ".join(cidrs[:_NAMED]), len(cidrs) - _NAMED
    shown = named if more <= 0 else f"{named} and {more} more"
    return f"warning: IPAM blocks that do not parse are left out (see ipam check): {shown}"


def use_text(pools: Iterable[PoolUse], show_blocks: bool) -> str:
    rows = []
    for pool in pools:
        if pool.cidr is not None:
            rows.append(_use_row("IP Pool", pool))
        if show_blocks:
            rows += [_use_row("Block", block) for block in pool.blocks]
    return draw(_USE_HEADERS, rows, right=(2, 3, 4, 5))


def _use_row(grouping: str, use: PoolUse | BlockUse) -> list[str]:
    total = use.capacity
    return [
        grouping,
        str(use.cidr),
        five_digits(total),
        percent(use.in_use, total),
        percent(use.reserved, total),
        percent(use.available, total),
    ]


def configuration_text(config: IpamConfig) -> str:
    """Go's %#v of each member. Of the one that is a pointer we show what it points to, where Go
    shows an address."""
    persistence = config.kube_virt_vm_address_persistence
    pointed_to = f'"{persistence}"' if persistence else "nil"
    rows = [
        ("StrictAffinity", _go(config.strict_affinity)),
        ("AutoAllocateBlocks", _go(config.auto_allocate_blocks)),
        ("MaxBlocksPerHost", str(config.max_blocks_per_host)),
        ("KubeVirtVMAddressPersistence", f"(*ipam.VMAddressPersistence)({pointed_to})"),
        ("IPCooldownSeconds", str(config.ip_cooldown_seconds)),
    ]
    return draw(("PROPERTY", "VALUE"), rows)


def _go(value: bool) -> str:
    return "true" if value else "false"


def borrowed_text(blocks: Iterable[Block]) -> str:
    """An address is borrowed when its holder's node is not the block's owner, whoever that is."""
    rows, without_node = [], 0
    for block in blocks:
        owner = (block.affinity or "").rpartition(":")[2]
        for allocation in leaks.classify([block], {}):
            if allocation.standing is Standing.COOLING:
                continue
            without_node += allocation.node is None
            if allocation.node is not None and allocation.node != owner:
                rows.append(_borrowed_row(allocation, owner))
    said = draw(_BORROWED_HEADERS, rows)
    if without_node:
        said += (
            f"\n\nNote: found {without_node} IP allocations without an explicit node association. "
            "Unable to determine if they are borrowed."
        )
    return said


def _borrowed_row(allocation: Allocation, owner: str) -> list[str]:
    attributes = allocation.attributes
    kind, holder = attributes.get("type", ""), ""
    for member, name in (("vmi-name", "vmi"), ("pod", "pod")):
        if member in attributes:
            kind, holder = name, f"{attributes.get('namespace', '')}/{attributes[member]}"
            break
    node = allocation.node or ""
    return [str(allocation.address), node, allocation.block, owner, kind, holder]
