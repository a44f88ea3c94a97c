"""Handles: who asked for which blocks. Their names are made and read here only.

Layer: ipam, pure. Used by `ipam.batch`, cni (workload handles), felix and calicoctl (tunnels).

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

from ipam.blocks import sanitize
from ipam.errors import HandleLimitReached, HandleMismatch
from libcalico.model.ipam import Handle
from libcalico.net import parse_cidr

__all__ = ["Tunnel", "decrement", "held", "increment", "sanitize", "workload_handle"]


def workload_handle(network_name: str, container_id: str) -> str:
    """What the CNI plugin files a container's addresses under."""
    return f"{network_name}.{container_id}"


class Tunnel(enum.Enum):
    """The addresses a node takes for its own tunnel devices: (handle prefix, type, family)."""

    IPIP = ("ipip-tunnel-addr", "ipipTunnelAddress", 4)
    VXLAN = ("vxlan-tunnel-addr", "vxlanTunnelAddress", 4)
    VXLAN_V6 = ("vxlan-v6-tunnel-addr", "vxlanV6TunnelAddress", 6)
    WIREGUARD = ("wireguard-tunnel-addr", "wireguardTunnelAddress", 4)
    WIREGUARD_V6 = ("wireguard-v6-tunnel-addr", "wireguardV6TunnelAddress", 6)

    def __init__(self, prefix: str, attribute_type: str, version: int) -> None:
        self.prefix = prefix
        self.attribute_type = attribute_type
        self.version = version

    def handle(self, node: str) -> str:
        return f"{self.prefix}-{node}"

    def attributes(self, node: str) -> dict[str, str]:
        return {"node": node, "type": self.attribute_type}


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
