"""Connections of an address, found and deleted through ctnetlink.

Layer: felix.kernel (edge). Implements ConntrackPort over libcalico.netlink's socket and framing.

The kernel filters the dump (CTA_FILTER, Linux 5.8, IPv4 only, see below); older ones send
everything, so the parser always looks again. Deleting is by tuple, zone and id of what the dump
showed, never by filter: a kernel that does not know filters on delete would flush everything.

Source: linux/netfilter/nfnetlink_conntrack.h, net/netfilter/nf_conntrack_netlink.c.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Sequence

from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import AF_INET, AF_INET6, NetlinkSocket, Query, Request
from libcalico.netlink.messages import (
    NLM_F_DUMP,
    Message,
    attr,
    attr_u32,
    message,
    nested,
    pack_address,
    parse_attrs,
)
from libcalico.runtime import log

LOG = log.get(__name__)

NETLINK_NETFILTER = 12
_SUBSYSTEM = 1 << 8  # NFNL_SUBSYS_CTNETLINK
_CT_NEW, _CT_GET, _CT_DELETE = _SUBSYSTEM | 0, _SUBSYSTEM | 1, _SUBSYSTEM | 2
_NFGENMSG = struct.Struct(">BBH")

_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP = 1
_V4_SRC, _V4_DST = 1, 2
_FILTER_ORIG, _FILTER_REPLY = 1, 2
_FLAG_BY_ATTR = {_V4_SRC: 1 << 0, _V4_DST: 1 << 1}
# Four filtered dumps an address cost as much as one of everything from about here on.
_FILTERED_ADDRESSES = 4


def delete_connection(family: int, attrs: dict[int, memoryview]) -> Request:
    """Delete exactly the connection that a dump showed."""
    body = _NFGENMSG.pack(family, 0, 0) + nested(_TUPLE_ORIG, bytes(attrs[_TUPLE_ORIG]))
    for wanted in (_ID, _ZONE):
        if wanted in attrs:
            body += attr(wanted, bytes(attrs[wanted]))
    return Request(message(_CT_DELETE, 0, body), "forget", "connection")


def connection_queries(family: int, addresses: Sequence[str]) -> list[Query[Request]]:
    """The dumps that together show every connection of `addresses` (of one family), as requests
    that delete it."""
    packed = frozenset(pack_address(address)[1] for address in addresses)
    # The kernel's filter takes one address, and its IPv6 one is inverted: it hides what was asked
    # for (ctnetlink_filter_match_tuple, `!ipv6_addr_cmp`; Linux 6.18). Then take everything.
    if family != AF_INET or len(packed) > _FILTERED_ADDRESSES:
        return [_query(family, packed, b"")]
    return [
        _query(family, packed, _filter(one, tuple_type, attr_type))
        for one in sorted(packed)
        for tuple_type in (_TUPLE_ORIG, _TUPLE_REPLY)
        for attr_type in (_V4_SRC, _V4_DST)
    ]


def _filter(packed: bytes, tuple_type: int, attr_type: int) -> bytes:
    flags = {_TUPLE_ORIG: 0, _TUPLE_REPLY: 0, tuple_type: _FLAG_BY_ATTR[attr_type]}
    wanted = nested(tuple_type, nested(_TUPLE_IP, attr(attr_type, packed)))
    orig = attr_u32(_FILTER_ORIG, flags[_TUPLE_ORIG])
    return wanted + nested(_FILTER, orig, attr_u32(_FILTER_REPLY, flags[_TUPLE_REPLY]))


def _query(family: int, packed: frozenset[bytes], filters: bytes) -> Query[Request]:
    # A search in C first: few connections in a hundred thousand are what we look for.
    search = re.compile(b"|".join(map(re.escape, sorted(packed)))).search

    def parse(received: Message) -> Request | None:
        if received.type != _CT_NEW or search(received.body) is None:
            return None
        attrs = parse_attrs(received.body, _NFGENMSG.size)
        if _TUPLE_ORIG not in attrs or packed.isdisjoint(_addresses(attrs)):
            return None
        return delete_connection(family, attrs)

    body = _NFGENMSG.pack(family, 0, 0) + filters
    return Query(message(_CT_GET, NLM_F_DUMP, body), "list connections", "conntrack", parse)


def _addresses(attrs: dict[int, memoryview]) -> set[bytes]:
    """Both ends of both directions."""
    found: set[bytes] = set()
    for tuple_type in (_TUPLE_ORIG, _TUPLE_REPLY):
        addresses = (
            parse_attrs(attrs[tuple_type], 0).get(_TUPLE_IP) if tuple_type in attrs else None
        )
        if addresses is not None:
            found |= {bytes(value) for value in parse_attrs(addresses, 0).values()}
    return found


class KernelConntrack:
    """ConntrackPort. The socket is opened at the first use."""

    def __init__(self, worker: KernelWorker, *, timeout_s: float = 10.0) -> None:
        self._worker, self._timeout_s = worker, timeout_s
        self._socket: NetlinkSocket | None = None
        self._is_missing = False

    async def forget_addresses(self, addresses: Sequence[str]) -> int:
        return await self._worker.run(lambda: self._forget(addresses))

    def open_socket(self) -> NetlinkSocket:
        return NetlinkSocket(protocol=NETLINK_NETFILTER, timeout_s=self._timeout_s)

    def _forget(self, addresses: Sequence[str]) -> int:
        if self._is_missing:
            return 0
        if self._socket is None:
            self._socket = self.open_socket()
        count = 0
        v4 = [address for address in addresses if ":" not in address]
        v6 = [address for address in addresses if ":" in address]
        queries = connection_queries(AF_INET, v4) if v4 else []
        queries += connection_queries(AF_INET6, v6) if v6 else []
        for query in queries:
            try:
                requests = self._socket.query(query)
            except ProgrammingFailed as err:
                if err.errno != errno.EINVAL:
                    raise
                # nfnetlink's word for a subsystem it does not have: no conntrack, nothing to
                # forget, and asking again would not help.
                LOG.warning("this kernel has no ctnetlink: connections are not forgotten")
                self._is_missing = True
                return count
            count += self._delete(requests)
        return count

    def _delete(self, requests: list[Request]) -> int:
        assert self._socket is not None
        failures = self._socket.transact(requests)
        serious = [f for f in failures.values() if f.errno != errno.ENOENT]
        if serious:
            raise serious[0]
        return len(requests) - len(failures)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
