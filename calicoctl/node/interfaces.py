"""The host's interfaces and addresses, asked from the kernel.

Layer: edge (raw netlink). Used by calicoctl.node.main; the decisions are autodetect's.
"""

from __future__ import annotations

import ipaddress
import socket

from calicoctl.node.autodetect import HostInterface
from libcalico.errors import ProgrammingFailed
from libcalico.net import parse_interface
from libcalico.netlink import NetlinkSocket, list_addresses, list_links, resolve_route


def host_interfaces() -> list[HostInterface]:
    """Every interface in the kernel's order. Errors: ProgrammingFailed."""
    with NetlinkSocket() as sock:
        by_index: dict[int, list[str]] = {}
        for address in sock.query(list_addresses()):
            by_index.setdefault(address.ifindex, []).append(address.cidr)
        return [
            HostInterface(
                name=link.name,
                addresses=tuple(parse_interface(c) for c in by_index.get(link.ifindex, ())),
                is_up=link.is_up,
                kind=link.kind,
            )
            for link in sock.query(list_links())
        ]


def source_for(host: str, version: int) -> str | None:
    """The address the kernel would use to reach `host` (a name or an address)."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        found = socket.getaddrinfo(host, None, family, socket.SOCK_DGRAM)
        target = str(ipaddress.ip_address(found[0][4][0]))
        with NetlinkSocket() as sock:
            return sock.query_one(resolve_route(target)).source or None
    except (OSError, ProgrammingFailed):
        return None
