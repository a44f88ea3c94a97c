"""Connections of an address, found and deleted through ctnetlink.

Layer: felix.kernel (edge). Implements ConntrackPort over libcalico.netlink's socket and framing.

Deleting is by tuple, zone and id of what a dump showed, never by filter: a kernel that does not
know filters on delete would flush everything.

Source: linux/netfilter/nfnetlink_conntrack.h, net/netfilter/nf_conntrack_netlink.c.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

from felix.dataplane.ports import TrackedConnection
from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import NetlinkSocket, Query, Request
from libcalico.netlink.messages import (
    AF_UNSPEC,
    NLM_F_DUMP,
    Message,
    attr,
    message,
    nested,
    pack_address,
    parse_attrs,
)
from libcalico.policy.packet import Packet
from libcalico.runtime import log

LOG = log.get(__name__)
T = TypeVar("T")

NETLINK_NETFILTER = 12
_SUBSYSTEM = 1 << 8  # NFNL_SUBSYS_CTNETLINK
_CT_NEW, _CT_GET, _CT_DELETE = _SUBSYSTEM | 0, _SUBSYSTEM | 1, _SUBSYSTEM | 2
_NFGENMSG = struct.Struct(">BBH")

_TUPLE_ORIG, _TUPLE_REPLY, _ID, _MASTER, _ZONE = 1, 2, 12, 14, 18
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_V4_SRC, _V4_DST, _V6_SRC, _V6_DST = 1, 2, 3, 4
_PROTO_NUM, _PROTO_SRC_PORT, _PROTO_DST_PORT = 1, 2, 3
# Type and code by protocol number.
_ICMP_ATTRS = {1: (5, 6), 58: (8, 9)}
# A tuple with its addresses as the kernel has always written it: three headers (tuple, addresses,
# source), the source, one header, the destination. What looks otherwise is read attribute by
# attribute, which takes ten times as long.
_TUPLE_LAYOUTS = {
    2: (struct.Struct("=6H4s2H4s"), (_V4_SRC, _V4_DST)),
    10: (struct.Struct("=6H16s2H16s"), (_V6_SRC, _V6_DST)),
}
_TYPE_MASK = 0x3FFF


def delete_connection(family: int, attrs: dict[int, memoryview]) -> Request:
    """Delete exactly the connection that a dump showed."""
    body = _NFGENMSG.pack(family, 0, 0) + nested(_TUPLE_ORIG, bytes(attrs[_TUPLE_ORIG]))
    for wanted in (_ID, _ZONE):
        if wanted in attrs:
            body += attr(wanted, bytes(attrs[wanted]))
    return Request(message(_CT_DELETE, 0, body), "forget", "connection")


def connections_of(addresses: Sequence[str]) -> Query[Request]:
    """The dump that shows every connection of `addresses`, as requests that delete it."""

    def read(received: Message, attrs: dict[int, memoryview]) -> Request | None:
        return delete_connection(received.body[0], attrs)

    return _listing(addresses, read)


def tracked_connections(addresses: Collection[str]) -> Query[TrackedConnection]:
    """The dump that shows every connection of `addresses`, read."""

    def read(received: Message, attrs: dict[int, memoryview]) -> TrackedConnection | None:
        return _tracked(received.body[0], attrs) if _TUPLE_REPLY in attrs else None

    return _listing(addresses, read)


def _listing(
    addresses: Collection[str], read: Callable[[Message, dict[int, memoryview]], T | None]
) -> Query[T]:
    """Not filtered by the kernel: its filter takes one side of one address, each such dump costs as
    much as one of everything (the hash table is walked, 9 ms for 262,144 buckets), and the one for
    IPv6 is inverted (ctnetlink_filter_match_tuple, `!ipv6_addr_cmp`; Linux 6.18).

    Few connections in a hundred thousand are what we look for; passing over another one costs a
    microsecond, however many addresses there are."""
    packed = frozenset(pack_address(address)[1] for address in addresses)

    def parse(received: Message) -> T | None:
        if received.type != _CT_NEW:
            return None
        ends = _ends_at_their_places(received.body)
        if ends is not None and packed.isdisjoint(ends):
            return None
        attrs = parse_attrs(received.body, _NFGENMSG.size)
        if _TUPLE_ORIG not in attrs or packed.isdisjoint(_addresses(attrs)):
            return None
        return read(received, attrs)

    body = _NFGENMSG.pack(AF_UNSPEC, 0, 0)
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


def _ends_at_their_places(body: memoryview) -> list[bytes] | None:
    """Both ends of both directions; None when the message looks otherwise than we know it."""
    layout = _TUPLE_LAYOUTS.get(body[0])
    if layout is None:
        return None
    fields, (source, destination) = layout
    at = _NFGENMSG.size
    found: list[bytes] = []
    for direction in (_TUPLE_ORIG, _TUPLE_REPLY):
        if len(body) < at + fields.size:
            return None
        size, kind, _, inner, _, first, address, _, second, other = fields.unpack_from(body, at)
        kinds = (kind & _TYPE_MASK, inner & _TYPE_MASK, first & _TYPE_MASK, second & _TYPE_MASK)
        if kinds != (direction, _TUPLE_IP, source, destination):
            return None
        found += (address, other)
        at += (size + 3) & ~3
    return found


@dataclass(frozen=True, slots=True)
class _Tuple:
    """One direction: where from, where to, and the fields of its protocol."""

    source: bytes
    destination: bytes
    proto: dict[int, memoryview]

    @classmethod
    def of(cls, value: memoryview) -> _Tuple | None:
        attrs = parse_attrs(value, 0)
        if not {_TUPLE_IP, _TUPLE_PROTO} <= attrs.keys():
            return None
        ends, proto = parse_attrs(attrs[_TUPLE_IP], 0), parse_attrs(attrs[_TUPLE_PROTO], 0)
        source = ends.get(_V4_SRC) or ends.get(_V6_SRC)
        destination = ends.get(_V4_DST) or ends.get(_V6_DST)
        if source is None or destination is None or _PROTO_NUM not in proto:
            return None
        return cls(bytes(source), bytes(destination), proto)

    def number(self, kind: int) -> int | None:
        value = self.proto.get(kind)
        return None if value is None else int.from_bytes(value, "big")


def _tracked(family: int, attrs: dict[int, memoryview]) -> TrackedConnection | None:
    original, reply = _Tuple.of(attrs[_TUPLE_ORIG]), _Tuple.of(attrs[_TUPLE_REPLY])
    if original is None or reply is None or len(original.source) != len(reply.source):
        return None
    protocol = original.number(_PROTO_NUM)
    assert protocol is not None
    kind, code = _ICMP_ATTRS.get(protocol, (None, None))
    packet = Packet(
        ip_address(original.source),
        # Where the answers come from is where the first packet was sent on to.
        ip_address(reply.source),
        protocol,
        original.number(_PROTO_SRC_PORT),
        reply.number(_PROTO_SRC_PORT),
        None if kind is None else original.number(kind),
        None if code is None else original.number(code),
    )
    return TrackedConnection(
        packet,
        bytes(attrs[_TUPLE_ORIG]),
        bytes(attrs.get(_MASTER, b"")),
        delete_connection(family, attrs),
    )


class KernelConntrack:
    """ConntrackPort. The socket is opened at the first use."""

    def __init__(self, worker: KernelWorker, *, timeout_s: float = 10.0) -> None:
        self._worker, self._timeout_s = worker, timeout_s
        self._socket: NetlinkSocket | None = None
        self._is_missing = False

    async def forget_addresses(self, addresses: Sequence[str]) -> int:
        return await self._worker.run(lambda: self._forget(addresses))

    async def list_connections(self, addresses: Collection[str]) -> list[TrackedConnection]:
        query = tracked_connections(addresses)
        return await self._worker.run(lambda: self._query(query))

    async def delete_connections(self, connections: Sequence[TrackedConnection]) -> int:
        requests = [c.handle for c in connections if isinstance(c.handle, Request)]
        return await self._worker.run(lambda: self._delete(requests))

    def open_socket(self) -> NetlinkSocket:
        return NetlinkSocket(protocol=NETLINK_NETFILTER, timeout_s=self._timeout_s)

    def _forget(self, addresses: Sequence[str]) -> int:
        return self._delete(self._query(connections_of(addresses)))

    def _query(self, query: Query[T]) -> list[T]:
        if self._is_missing:
            return []
        if self._socket is None:
            self._socket = self.open_socket()
        try:
            return self._socket.query(query)
        except ProgrammingFailed as err:
            if err.errno != errno.EINVAL:
                raise
            # nfnetlink's word for a subsystem it does not have: no conntrack, nothing to forget,
            # and asking again would not help.
            LOG.warning("this kernel has no ctnetlink: connections are not forgotten")
            self._is_missing = True
            return []

    def _delete(self, requests: list[Request]) -> int:
        if not requests:
            return 0
        assert self._socket is not None, "what is deleted has been listed"
        failures = self._socket.transact(requests)
        serious = [f for f in failures.values() if f.errno != errno.ENOENT]
        if serious:
            raise serious[0]
        return len(requests) - len(failures)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
