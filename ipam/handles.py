"""Handles: who asked for which blocks, and how many addresses of each.

Layer: ipam, pure. Used by `ipam.batch` and, for tunnels, by felix and calicoctl. The ids themselves
are made by `libcalico.model.names` (a workload's by `cni_handle_id`).

A handle counts addresses by block, so that everything of one owner is found without a scan.
  H1  a handle never counts less than is assigned; Calico's counts more when it dies between its two
      writes or gets fewer addresses than it asked for, ours (written with the block) is exact;
  H2  a handle that counts nothing is deleted.

Source: datamodel §2.2, §2.4-2.6, §2.8; Calico libcalico-go/lib/ipam/ipam_handle.go,
node/pkg/allocateip (tunnels).
"""

from __future__ import annotations

import enum

import msgspec

from ipam.errors import HandleLimitReached, HandleMismatch
from libcalico.model.ipam import Handle
from libcalico.model.names import tunnel_handle_id
from libcalico.net import parse_cidr


class Tunnel(enum.Enum):
    """The addresses a node takes for its own tunnel devices; the value is the attribute `type`."""

    IPIP = "ipipTunnelAddress"
    VXLAN = "vxlanTunnelAddress"
    VXLAN_V6 = "vxlanV6TunnelAddress"
    WIREGUARD = "wireguardTunnelAddress"
    WIREGUARD_V6 = "wireguardV6TunnelAddress"

    @property
    def version(self) -> int:
        return 6 if self in (Tunnel.VXLAN_V6, Tunnel.WIREGUARD_V6) else 4

    def handle(self, node: str) -> str:
        return tunnel_handle_id(self.value, node)

    def attributes(self, node: str) -> dict[str, str]:
        return {"node": node, "type": self.value}


def increment(
    handle: Handle | None, handle_id: str, block: str, count: int, *, max_alloc: int = 0
) -> Handle:
    """Count `count` more addresses of `block`. Errors: HandleLimitReached (§2.8, per family)."""
    if max_alloc:
        present = held(handle, parse_cidr(block).version)
        if present + count > max_alloc:
            raise HandleLimitReached(handle_id, present, max_alloc)
    before = {} if handle is None else handle.block
    after = {**before, block: before.get(block, 0) + count}
    return Handle(block=after) if handle is None else msgspec.structs.replace(handle, block=after)


def decrement(handle: Handle | None, handle_id: str, block: str, count: int) -> Handle | None:
    """Count `count` fewer; None when nothing is left (H2). Errors: HandleMismatch."""
    present = None if handle is None else handle.block.get(block)
    if handle is None or present is None:
        raise HandleMismatch(
            handle_id,
            f"Tried to decrement block {block} by {count} "
            f"but it isn't linked to handle {handle_id}",
        )
    if present < count:
        raise HandleMismatch(
            handle_id,
            f"Tried to decrement block {block} by {count} but it only has {present} addresses "
            f"on handle {handle_id}",
        )
    after = {cidr: number for cidr, number in handle.block.items() if cidr != block}
    if present > count:
        after[block] = present - count
    return msgspec.structs.replace(handle, block=after) if after else None


def held(handle: Handle | None, version: int) -> int:
    """How many addresses of one family a handle counts."""
    blocks = {} if handle is None else handle.block
    return sum(n for cidr, n in blocks.items() if (":" in cidr) == (version == 6))
