"""Interface addresses: typed values, requests and dumps.

Layer: bottom edge, pure (see messages). Used by cni (inside the pod), felix.kernel, calicoctl.node
(finding the node's own addresses).

Source: linux/if_addr.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from libcalico.errors import WireError
from libcalico.netlink.messages import (
    ADDRESS_BYTES,
    AF_INET,
    AF_INET6,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_REPLACE,
    Message,
    Query,
    Request,
    attr,
    attr_u32,
    message,
    pack_prefix,
    parse_attrs,
    read_address,
    read_text,
    read_u32,
)

RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22

_IFADDRMSG = struct.Struct("=BBBBi")  # family, prefix length, flags, scope, ifindex

IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_FLAGS = 1, 2, 3, 8
IFA_F_SECONDARY, IFA_F_NODAD, IFA_F_DADFAILED = 0x01, 0x02, 0x08
IFA_F_TENTATIVE, IFA_F_PERMANENT, IFA_F_NOPREFIXROUTE = 0x40, 0x80, 0x200


@dataclass(frozen=True, slots=True)
class Address:
    """One address of an interface. `cidr` keeps the host bits ("192.0.2.7/24")."""

    ifindex: int
    cidr: str
    scope: int = 0
    flags: int = 0
    label: str = ""

    @property
    def address(self) -> str:
        return self.cidr.partition("/")[0]

    @property
    def family(self) -> int:
        return AF_INET6 if ":" in self.cidr else AF_INET

    @property
    def is_usable(self) -> bool:
        """Duplicate address detection is over, or was never done."""
        return not self.flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)


def set_address(ifindex: int, cidr: str, *, scope: int = 0, prefix_route: bool = True) -> Request:
    """Add, or keep when it is there. IPv6 skips duplicate address detection, which would delay a
    fresh address by a second; `prefix_route` False adds no connected route."""
    flags = IFA_F_NODAD if ":" in cidr else 0
    if not prefix_route:
        flags |= IFA_F_NOPREFIXROUTE
    body = _encode(ifindex, cidr, scope) + attr_u32(IFA_FLAGS, flags)
    return Request(message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, body), "set address", cidr)


def delete_address(ifindex: int, cidr: str) -> Request:
    """EADDRNOTAVAIL when it is not there."""
    return Request(message(RTM_DELADDR, 0, _encode(ifindex, cidr, 0)), "delete address", cidr)


def list_addresses(family: int = 0, *, ifindex: int = 0) -> Query[Address]:
    body = _IFADDRMSG.pack(family, 0, 0, 0, ifindex)

    def parse(received: Message) -> Address | None:
        if received.type != RTM_NEWADDR:
            return None
        found = parse_address(received)
        if found is None or (ifindex and found.ifindex != ifindex):
            return None
        return None if family and found.family != family else found

    return Query(message(RTM_GETADDR, NLM_F_DUMP, body), "list addresses", str(ifindex), parse)


def parse_address(received: Message) -> Address | None:
    """An RTM_NEWADDR or RTM_DELADDR; None for another family."""
    body = received.body
    if len(body) < _IFADDRMSG.size:
        raise WireError(f"address message of {len(body)} bytes")
    family, prefix_len, flags, scope, ifindex = _IFADDRMSG.unpack_from(body)
    if family not in ADDRESS_BYTES:
        return None
    attrs = parse_attrs(body, _IFADDRMSG.size)
    # On a point-to-point link IFA_ADDRESS is the peer and IFA_LOCAL is us.
    local = attrs.get(IFA_LOCAL, attrs.get(IFA_ADDRESS))
    if local is None:
        return None
    wide_flags, label = attrs.get(IFA_FLAGS), attrs.get(IFA_LABEL)
    return Address(
        ifindex,
        f"{read_address(family, local)}/{prefix_len}",
        scope,
        flags if wide_flags is None else read_u32(wide_flags),
        "" if label is None else read_text(label),
    )


def _encode(ifindex: int, cidr: str, scope: int) -> bytes:
    family, packed, prefix_len = pack_prefix(cidr)
    head = _IFADDRMSG.pack(family, prefix_len, 0, scope, ifindex)
    return head + attr(IFA_LOCAL, packed) + attr(IFA_ADDRESS, packed)
