"""Notifications: links, routes and addresses as they change, for one asyncio loop.

Layer: bottom edge. Used by felix.kernel and bgp.

The kernel drops notifications when our buffer is full and says so once (ENOBUFS): `Overrun` tells
the consumer to list everything again. Invariant: after an Overrun has been handled by a fresh
listing made *after* it was read, nothing was missed.

Every event carries `origin`, the port id of the socket whose request caused it (0: the kernel
itself), so that a writer can recognise its own writes. A route event is filtered on its header
before it is decoded: a full BGP table being written costs about half a microsecond an event.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass

from libcalico.errors import ProgrammingFailed
from libcalico.netlink.addr import RTM_DELADDR, RTM_NEWADDR, Address, parse_address
from libcalico.netlink.link import RTM_DELLINK, RTM_NEWLINK, Link, parse_link
from libcalico.netlink.messages import NLM_F_REPLACE, Message, iter_messages
from libcalico.netlink.namespace import run_in_namespace
from libcalico.netlink.route import RTM_DELROUTE, RTM_NEWROUTE, Route, parse_route

_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP = 270, 1
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 8 << 20
_RECEIVE_BYTES = 64 << 10
_MAX_DATAGRAMS = 512
_PROTOCOL_AT = 5  # in struct rtmsg


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
RouteInterest = Callable[[int, bool], bool]  # (protocol, is_replacement) -> decode it?


class EventStream:
    """A subscription. Either `await next()` for batches, or poll `read()` when `fileno()` is ready.

    `interest` sees a route's protocol and whether it replaced another before it is decoded."""

    def __init__(self, *groups: Group, interest: RouteInterest | None = None) -> None:
        try:
            self._socket = _subscribe(groups)
        except OSError as err:
            number = err.errno or errno.EIO
            raise ProgrammingFailed("subscribe", str(groups), number, str(err)) from err
        self._interest = interest

    @classmethod
    def in_namespace(
        cls, where: str | int, *groups: Group, interest: RouteInterest | None = None
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


def decode_event(received: Message, interest: RouteInterest | None = None) -> Event | None:
    """One notification; None for what nobody asked for. Errors: WireError."""
    if received.type in (RTM_NEWROUTE, RTM_DELROUTE):
        return _decode_route(received, interest)
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


def _decode_route(received: Message, interest: RouteInterest | None) -> RouteEvent | None:
    is_new = received.type == RTM_NEWROUTE
    is_replacement = is_new and bool(received.flags & NLM_F_REPLACE)
    is_whole = len(received.body) > _PROTOCOL_AT
    if interest and is_whole and not interest(received.body[_PROTOCOL_AT], is_replacement):
        return None
    route = parse_route(received)
    if route is None:
        return None
    return RouteEvent(route, not is_new, is_replacement, received.port_id)


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
