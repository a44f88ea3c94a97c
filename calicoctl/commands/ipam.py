"""ipam show and configure: how full the pools are, who holds an address, the settings.

Layer: edge; the tables are datamodel 6.8's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

import click
import msgspec

from calicoctl import options
from calicoctl.boxes import draw, five_digits, percent
from calicoctl.main import UsageProblem
from calicoctl.results import CommandFailed
from calicoctl.session import Session, run
from ipam.client import IpamClient
from ipam.errors import AddressUnassigned
from ipam.requests import Assignment, Release
from ipam.utilization import BlockUse, PoolUse
from libcalico.errors import NotFound
from libcalico.model.ipam import Block, IpamConfig

ORPHANS = "0.0.0.0/0"
_USE_HEADERS = ("GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE")
_BORROWED_HEADERS = ("IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO")


@click.group()
def ipam() -> None:
    """IP address management."""


@ipam.command()
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

    async def work(session: Session) -> str:
        client = IpamClient(session.datastore)
        if address:
            return await _describe(client, address)
        if show_configuration:
            return _configuration(await client.settings.get())
        if show_borrowed:
            return _borrowed(await client.blocks())
        return _use(await client.utilization(), show_blocks)

    click.echo(run(ctx, config, work))


async def _describe(client: IpamClient, text: str) -> str:
    parsed = _parsed(text)
    try:
        assignment = await client.assignment(parsed)
    except (NotFound, AddressUnassigned):
        return f"{parsed} is not assigned"
    return _assignment(assignment)


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as err:
        raise CommandFailed(f"invalid IP address specified: {text}") from err


def _assignment(assignment: Assignment) -> str:
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


def _use(pools: Iterable[PoolUse], show_blocks: bool) -> str:
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


def _configuration(config: IpamConfig) -> str:
    rows = [
        ("StrictAffinity", _go(config.strict_affinity)),
        ("AutoAllocateBlocks", _go(config.auto_allocate_blocks)),
        ("MaxBlocksPerHost", str(config.max_blocks_per_host)),
        ("KubeVirtVMAddressPersistence", config.kube_virt_vm_address_persistence or "<nil>"),
        ("IPCooldownSeconds", str(config.ip_cooldown_seconds)),
    ]
    return draw(("PROPERTY", "VALUE"), rows)


def _go(value: bool) -> str:
    return "true" if value else "false"


def _borrowed(blocks: Iterable[Block]) -> str:
    """An address is borrowed when its holder's node is not the block's."""
    rows, without_node = [], 0
    for block in blocks:
        base = ipaddress.ip_network(block.cidr).network_address
        for ordinal in range(block.size):
            attribute = block.attribute_of(ordinal)
            if attribute is None or attribute.released_at:
                continue
            owner = attribute.secondary or {}
            node = owner.get("node", "")
            without_node += not node
            if node and node != block.host:
                kind = owner.get("type") or ("pod" if owner.get("pod") else "unknown")
                holder = f"{owner.get('namespace', '')}/{owner.get('pod', '')}".strip("/")
                who = holder or attribute.handle_id or ""
                rows.append([str(base + ordinal), node, block.cidr, block.host or "", kind, who])
    said = draw(_BORROWED_HEADERS, rows)
    if without_node:
        said += (
            f"\n\nNote: found {without_node} IP allocations without an explicit node association. "
            "Unable to determine if they are borrowed."
        )
    return said


@ipam.command()
@options.config
@click.option("--ip", "address", default="", help="The address to release.")
@click.pass_context
def release(ctx: click.Context, config: str, address: str) -> None:
    """Release one address that nothing uses any more."""
    if not address:
        raise UsageProblem('required flag(s) "ip" not set')
    parsed = _parsed(address)

    async def work(session: Session) -> None:
        released = await IpamClient(session.datastore).release_ips([Release(address=parsed)])
        released.raise_failed()
        if released.unallocated:
            raise CommandFailed(f"IP address {parsed} is not assigned")

    run(ctx, config, work)
    click.echo(f"Successfully released IP address {parsed}")


@ipam.command()
@options.config
@click.option("--strictaffinity", default="", help="true or false.")
@click.option("--max-blocks-per-host", default="", help="A number; needs strict affinity.")
@click.option("--ip-cooldown-seconds", default="", help="Before an address is given out again.")
@click.pass_context
def configure(
    ctx: click.Context,
    config: str,
    strictaffinity: str,
    max_blocks_per_host: str,
    ip_cooldown_seconds: str,
) -> None:
    """Change IPAM's settings."""
    changes: dict[str, object] = {}
    said = []
    if strictaffinity:
        if strictaffinity.lower() not in ("true", "false"):
            raise CommandFailed("invalid value. Use true or false to set strictaffinity")
        changes["strict_affinity"] = strictaffinity.lower() == "true"
        said.append(f"Successfully set StrictAffinity to: {strictaffinity.lower()}")
    if max_blocks_per_host:
        if not max_blocks_per_host.isdigit():
            raise CommandFailed("invalid value for maxblockhost. Use a valid number")
        changes["max_blocks_per_host"] = int(max_blocks_per_host)
        said.append(f"Successfully set MaxBlocksPerHost to: {int(max_blocks_per_host)}")
    if ip_cooldown_seconds:
        if not ip_cooldown_seconds.isdigit():
            raise CommandFailed("invalid value for --ip-cooldown-seconds. Use a valid number")
        changes["ip_cooldown_seconds"] = int(ip_cooldown_seconds)
        said.append(f"Successfully set IPCooldownSeconds to: {int(ip_cooldown_seconds)}")
    if not changes:
        raise CommandFailed("at least one configuration option must be specified")

    async def work(session: Session) -> None:
        settings = IpamClient(session.datastore).settings
        await settings.set(msgspec.structs.replace(await settings.get(), **changes))

    run(ctx, config, work)
    click.echo("\n".join(said))
