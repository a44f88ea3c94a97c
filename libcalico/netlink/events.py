"""Notifications: links, routes and addresses as they change, for one asyncio loop.

Layer: bottom edge. Used by felix.kernel and bgp.

The kernel drops notifications when our buffer is full and says so once (ENOBUFS): `Overrun` tells
the consumer to list everything again. Invariant: after an Overrun has been handled by a fresh
listing made *after* it was read, nothing was missed.

Every event carries `origin`, the port id of the socket whose request caused it (0: the kernel
itself), so that a writer can recognise its own writes. A route event is filtered on its header
before it is decoded (`RouteInterest`): a full BGP table being written costs about half a
microsecond an event, and so do the routes of the local table that come with every new interface.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import socket
from dataclasses import dataclass

from libcalico.errors import ProgrammingFailed
from libcalico.netlink.addr import RTM_DELADDR, RTM_NEWADDR, Address, parse_address
from libcalico.netlink.link import RTM_DELLINK, RTM_NEWLINK, Link, parse_link
from libcalico.netlink.messages import (
    NLM_F_REPLACE,
    Message,
    find_attrs,
    iter_messages,
    read_u32,
)
from libcalico.netlink.namespace import run_in_namespace
from libcalico.netlink.route import (
    RTA_TABLE,
    RTM_DELROUTE,
    RTM_NEWROUTE,
    RTMSG_BYTES,
    Route,
    parse_route,
)

_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP = 270, 1
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 8 << 20
_RECEIVE_BYTES = 64 << 10
_MAX_DATAGRAMS = 512
_TABLE_AT, _PROTOCOL_AT = 4, 5  # in struct rtmsg
# Of a table above 255 the header says RT_TABLE_COMPAT (or nothing), RTA_TABLE the number.
_TABLE_IN_ATTRIBUTE = frozenset({0, 252})
_TABLE_ATTRIBUTE = frozenset({RTA_TABLE})


class Group(enum.IntEnum):
    """RTNLGRP_*: what one may subscribe to."""

    LINK = 1
    IPV4_ADDRESS = 5
    IPV4_ROUTE = 7
    IPV6_ADDRESS = 9
    IPV6_ROUTE = 11


@dataclass(frozen=True, slots=True)
class LinkEvent:
    link: Link
    is_removed: bool
    origin: int


@dataclass(frozen=True, slots=True)
class RouteEvent:
    """`is_replacement`: it took the place of another route, which gets no event of its own."""

    route: Route
    is_removed: bool
    is_replacement: bool
    origin: int


@dataclass(frozen=True, slots=True)
class AddressEvent:
    address: Address
    is_removed: bool
    origin: int


@dataclass(frozen=True, slots=True)
class Overrun:
    """Notifications were lost: list again."""


Event = LinkEvent | RouteEvent | AddressEvent | Overrun


@dataclass(frozen=True, slots=True)
class RouteInterest:
    """Which route notifications are worth decoding; the others are passed over.

    `table`: only this one (0: any). `skip_protocols`: not these, unless such a route replaced
    another, which gets no event of its own. `own_ports`: not what requests of these sockets did."""

    table: int = 0
    skip_protocols: frozenset[int] = frozenset()
    own_ports: frozenset[int] = frozenset()

    def wants(self, received: Message) -> bool:
        """Looks at the header alone, but for tables that do not fit into it. Errors: WireError."""
        body = received.body
        if received.port_id in self.own_ports:
            return False
        if len(body) < RTMSG_BYTES:
            return True  # for the parser to refuse
        if body[_PROTOCOL_AT] in self.skip_protocols and not _is_replacement(received):
            return False
        return not self.table or self.table == _table_of(body)


EVERY_ROUTE = RouteInterest()


class EventStream:
    """A subscription. Either `await next()` for batches, or poll `read()` when `fileno()` is
    ready."""

    def __init__(self, *groups: Group, interest: RouteInterest = EVERY_ROUTE) -> None:
        try:
            self._socket = _subscribe(groups)
        except OSError as err:
            number = err.errno or errno.EIO
            raise ProgrammingFailed("subscribe", str(groups), number, str(err)) from err
        self._interest = interest

    @classmethod
    def in_namespace(
        cls, where: str | int, *groups: Group, interest: RouteInterest = EVERY_ROUTE
    ) -> EventStream:
        return run_in_namespace(where, lambda: cls(*groups, interest=interest))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    async def next(self) -> list[Event]:
        """Wait for notifications; returns at least one event, at most a bounded batch."""
        while True:
            await self.wait()
            events = self.read()
            if events:
                return events

    def read(self) -> list[Event]:
        """What has arrived by now, without waiting. Errors: WireError, ProgrammingFailed."""
        events: list[Event] = []
        for _ in range(_MAX_DATAGRAMS):
            try:
                datagram = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError as err:
                if err.errno != errno.ENOBUFS:
                    number = err.errno or errno.EIO
                    raise ProgrammingFailed("receive", "events", number, str(err)) from err
                events.append(Overrun())
                continue
            for received in iter_messages(datagram):
                event = decode_event(received, self._interest)
                if event is not None:
                    events.append(event)
        return events

    async def wait(self) -> None:
        """Until there is something to read. One waiter at a time."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._socket.fileno(), _wake, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._socket.fileno())


def decode_event(received: Message, interest: RouteInterest = EVERY_ROUTE) -> Event | None:
    """One notification; None for what nobody asked for. Errors: WireError."""
    if received.type in (RTM_NEWROUTE, RTM_DELROUTE):
        return _decode_route(received) if interest.wants(received) else None
    if received.type in (RTM_NEWLINK, RTM_DELLINK):
        link = parse_link(received)
        if link is None:
            return None
        return LinkEvent(link, received.type == RTM_DELLINK, received.port_id)
    if received.type in (RTM_NEWADDR, RTM_DELADDR):
        address = parse_address(received)
        if address is None:
            return None
        return AddressEvent(address, received.type == RTM_DELADDR, received.port_id)
    return None


def _decode_route(received: Message) -> RouteEvent | None:
    route = parse_route(received)
    if route is None:
        return None
    is_removed = received.type == RTM_DELROUTE
    return RouteEvent(route, is_removed, _is_replacement(received), received.port_id)


def _is_replacement(received: Message) -> bool:
    return received.type == RTM_NEWROUTE and bool(received.flags & NLM_F_REPLACE)


def _table_of(body: memoryview) -> int:
    table = body[_TABLE_AT]
    if table not in _TABLE_IN_ATTRIBUTE:
        return table
    wide = find_attrs(body, RTMSG_BYTES, _TABLE_ATTRIBUTE).get(RTA_TABLE)
    return table if wide is None else read_u32(wide)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _subscribe(groups: tuple[Group, ...]) -> socket.socket:
    flags = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    opened = socket.socket(socket.AF_NETLINK, flags, socket.NETLINK_ROUTE)
    try:
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except PermissionError:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        opened.bind((0, 0))
        for group in groups:
            opened.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, int(group))
    except BaseException:
        opened.close()
        raise
    return opened
