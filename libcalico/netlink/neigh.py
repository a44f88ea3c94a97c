"""Neighbour entries (ARP, NDP, proxy): typed values, requests and dumps.

Layer: bottom edge, pure (see messages). Used by felix.kernel (static and proxy entries) and cni.

Source: linux/neighbour.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from libcalico.errors import WireError
from libcalico.netlink.messages import (
    ADDRESS_BYTES,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_REPLACE,
    Message,
    Query,
    Request,
    attr,
    attr_u32,
    message,
    pack_address,
    pack_mac,
    parse_attrs,
    read_address,
    read_mac,
)

RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30

_NDMSG = struct.Struct("=BxxxiHBB")  # family, ifindex, state, flags, type

NDA_DST, NDA_LLADDR, NDA_IFINDEX = 1, 2, 8
NUD_INCOMPLETE, NUD_REACHABLE, NUD_STALE, NUD_FAILED = 0x01, 0x02, 0x04, 0x20
NUD_NOARP, NUD_PERMANENT = 0x40, 0x80
_NTF_PROXY = 0x08


@dataclass(frozen=True, slots=True)
class Neighbour:
    """`mac` is empty for a proxy entry (the host answers) and for an unresolved one."""

    ifindex: int
    address: str
    mac: str = ""
    state: int = NUD_PERMANENT
    is_proxy: bool = False


def set_neighbour(entry: Neighbour) -> Request:
    """Create or replace."""
    flags = NLM_F_CREATE | NLM_F_REPLACE
    return Request(message(RTM_NEWNEIGH, flags, _encode(entry)), "set neighbour", entry.address)


def delete_neighbour(entry: Neighbour) -> Request:
    """ENOENT when it is not there."""
    return Request(message(RTM_DELNEIGH, 0, _encode(entry)), "delete neighbour", entry.address)


def list_neighbours(family: int, *, ifindex: int = 0, proxies: bool = False) -> Query[Neighbour]:
    """Resolved and static entries, or the proxy entries, of one family."""
    body = _NDMSG.pack(family, 0, 0, _NTF_PROXY if proxies else 0, 0)
    if ifindex:
        body += attr_u32(NDA_IFINDEX, ifindex)

    def parse(received: Message) -> Neighbour | None:
        found = parse_neighbour(received) if received.type == RTM_NEWNEIGH else None
        if found is None or found.is_proxy != proxies:
            return None
        return None if ifindex and found.ifindex != ifindex else found

    return Query(message(RTM_GETNEIGH, NLM_F_DUMP, body), "list neighbours", str(ifindex), parse)


def parse_neighbour(received: Message) -> Neighbour | None:
    """An RTM_NEWNEIGH or RTM_DELNEIGH; None for another family (bridge forwarding entries)."""
    body = received.body
    if len(body) < _NDMSG.size:
        raise WireError(f"neighbour message of {len(body)} bytes")
    family, ifindex, state, flags, _ = _NDMSG.unpack_from(body)
    if family not in ADDRESS_BYTES:
        return None
    attrs = parse_attrs(body, _NDMSG.size)
    dst, mac = attrs.get(NDA_DST), attrs.get(NDA_LLADDR)
    if dst is None:
        return None
    text = "" if mac is None else read_mac(mac)
    return Neighbour(ifindex, read_address(family, dst), text, state, bool(flags & _NTF_PROXY))


def _encode(entry: Neighbour) -> bytes:
    family, packed = pack_address(entry.address)
    flags = _NTF_PROXY if entry.is_proxy else 0
    body = _NDMSG.pack(family, entry.ifindex, entry.state, flags, 0) + attr(NDA_DST, packed)
    return body + attr(NDA_LLADDR, pack_mac(entry.mac)) if entry.mac else body
