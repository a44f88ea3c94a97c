"""A kernel for tests: links, routes, settings and connections, refusing what Linux refuses.

Layer: testing. Satisfies felix.dataplane.ports (RoutePort, LinkPort, EventPort, SysctlPort,
ConntrackPort) by shape; never imports felix.

What it refuses, as observed on Linux 6.18:
  a route over an interface that does not exist (ENODEV) or is down (ENETDOWN); host bits in a
  destination (EINVAL); a setting whose file does not exist (ENOENT).
What it does by itself: flushes the routes of an interface that goes down or away, IPv4 silently,
IPv6 with notifications; gives every new interface its settings; notifies of everything that
anybody but the ports does.
Faults: `fail_next(operation, …)` makes one item or one whole call fail; `lose_events()` drops the
queue as a full buffer does. Every accepted write is in `writes`, so a test can say "and nothing
was rewritten".
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import structs

from libcalico.errors import DumpInterrupted, ProgrammingFailed
from libcalico.netlink import (
    AF_INET,
    Address,
    AddressEvent,
    Event,
    Link,
    LinkEvent,
    Overrun,
    Route,
    RouteEvent,
)
from libcalico.testing.shaping import FakeShaping

_INTERFACE_SETTINGS = {
    "net/ipv4/conf/{}": ("forwarding", "proxy_arp", "route_localnet", "rp_filter"),
    "net/ipv4/neigh/{}": ("proxy_delay",),
    "net/ipv6/conf/{}": ("accept_dad", "accept_ra", "disable_ipv6", "forwarding", "proxy_ndp"),
}
_NODE_SETTINGS = {
    "net/ipv4/ip_forward": "0",
    "net/ipv6/conf/all/forwarding": "0",
    "net/netfilter/nf_conntrack_tcp_loose": "1",
}


class RouteWriteLike(Protocol):
    @property
    def route(self) -> Route: ...
    @property
    def is_delete(self) -> bool: ...


class SysctlLike(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def value(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Written:
    """One accepted write: operation and what it concerned."""

    operation: str
    key: str


@dataclass(slots=True)
class _Fault:
    operation: str
    key: str
    error: Exception
    left: int


class FakeKernel:
    """All ports in one object; tests change it as other programs would."""

    def __init__(self) -> None:
        self.writes: list[Written] = []
        self.sysctls: dict[str, str] = dict(_NODE_SETTINGS)
        self.connections: dict[str, int] = {}
        # What `conntrack -L` would show: felix.dataplane.ports.TrackedConnection, by shape.
        self.tracked: list[Any] = []
        self.conntrack_readings: list[frozenset[str]] = []
        self._links: dict[int, Link] = {}
        self._addresses: list[Address] = []
        self._routes: list[Route] = []
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._faults: list[_Fault] = []
        self._next_ifindex = 1
        self.shaping = FakeShaping(self)
        self.add_link("lo")

    # ------------------------------------------------------------- what tests do and look at

    def add_link(
        self,
        name: str,
        *,
        is_up: bool = True,
        has_carrier: bool = True,
        mtu_bytes: int = 0,
        kind: str = "",
    ) -> int:
        """Like `ip link add`. A name that is taken is the test's mistake."""
        assert all(link.name != name for link in self._links.values()), f"{name} exists"
        ifindex, self._next_ifindex = self._next_ifindex, self._next_ifindex + 1
        for directory, names in _INTERFACE_SETTINGS.items():
            for setting in names:
                self.sysctls[f"{directory.format(name)}/{setting}"] = "?"
        carrier = is_up and has_carrier
        link = Link(ifindex, name, kind, mtu_bytes=mtu_bytes, is_up=is_up, has_carrier=carrier)
        self._store_link(link)
        return ifindex

    def set_link(
        self,
        name: str,
        *,
        is_up: bool | None = None,
        has_carrier: bool | None = None,
        mtu_bytes: int | None = None,
    ) -> None:
        link = self.link(name)
        if mtu_bytes is not None:
            link = structs.replace(link, mtu_bytes=mtu_bytes)
        now_up = link.is_up if is_up is None else is_up
        carrier = link.has_carrier if has_carrier is None else has_carrier
        if link.is_up and not now_up:
            self._flush_routes(link.ifindex)
        self._store_link(structs.replace(link, is_up=now_up, has_carrier=now_up and carrier))

    def delete_link(self, name: str) -> None:
        link = self.link(name)
        self._flush_routes(link.ifindex)
        del self._links[link.ifindex]
        self._addresses = [a for a in self._addresses if a.ifindex != link.ifindex]
        for directory in _INTERFACE_SETTINGS:
            prefix = directory.format(name) + "/"
            self.sysctls = {p: v for p, v in self.sysctls.items() if not p.startswith(prefix)}
        self._notify(LinkEvent(link, True, 0))

    def add_address(self, name: str, cidr: str) -> None:
        address = Address(self.link(name).ifindex, cidr)
        self._addresses.append(address)
        self._notify(AddressEvent(address, False, 0))

    def delete_address(self, name: str, cidr: str) -> None:
        address = Address(self.link(name).ifindex, cidr)
        self._addresses.remove(address)
        self._notify(AddressEvent(address, True, 0))

    def all_links(self) -> list[Link]:
        return list(self._links.values())

    def link(self, name: str) -> Link:
        return next(link for link in self._links.values() if link.name == name)

    def put_route(self, route: Route, *, append: bool = False) -> None:
        """Another program writes a route: `ip route replace`, or `append`."""
        self._check_route(route)
        replaced = [] if append else [r for r in self._routes if _slot(r) == _slot(route)]
        if route in replaced and len(replaced) == 1:
            return
        self._enter_route(route, replaced)
        self._notify(RouteEvent(route, False, bool(replaced), 0))

    def drop_route(self, route: Route) -> None:
        """Another program deletes a route."""
        self._routes.remove(route)
        self._notify(RouteEvent(route, True, False, 0))

    def routes(self, family: int = 0) -> set[Route]:
        return {route for route in self._routes if not family or route.family == family}

    def lose_events(self) -> None:
        """The buffer overflowed: what was queued is lost, and only that is said."""
        self._events = [Overrun()]
        self._arrived.set()

    def fail_next(
        self,
        operation: str,
        key: str = "",
        *,
        error: Exception | int = errno.EIO,
        times: int = 1,
    ) -> None:
        """Let the next `times` of an operation fail. Items ("replace route", "delete route",
        "set") are chosen by key, or any; whole calls ("list routes", "write routes", "list links",
        "list addresses", "write settings", "forget", "read events") raise."""
        if isinstance(error, int):
            error = ProgrammingFailed(operation, key, error, os.strerror(error))
        self._faults.append(_Fault(operation, key, error, times))

    # ------------------------------------------------------------------------------- ports

    async def list_routes(self, family: int, skip_protocols: frozenset[int]) -> list[Route]:
        self._maybe_raise("list routes")
        return [
            route
            for route in self._routes
            if route.family == family and route.protocol not in skip_protocols
        ]

    async def write_routes(
        self, writes: Sequence[RouteWriteLike]
    ) -> Mapping[int, ProgrammingFailed]:
        self._maybe_raise("write routes")
        refused = {}
        for index, write in enumerate(writes):
            try:
                self._write_route(write.route, is_delete=write.is_delete)
            except ProgrammingFailed as err:
                refused[index] = err
        return refused

    async def list_links(self) -> list[Link]:
        self._maybe_raise("list links")
        return list(self._links.values())

    async def list_addresses(self) -> list[Address]:
        self._maybe_raise("list addresses")
        return list(self._addresses)

    async def wait(self) -> None:
        await self._arrived.wait()

    def read(self) -> list[Event]:
        self._maybe_raise("read events")
        events, self._events = self._events, []
        self._arrived.clear()
        return events

    async def write_sysctls(self, wanted: Sequence[SysctlLike]) -> Mapping[int, ProgrammingFailed]:
        self._maybe_raise("write settings")
        refused = {}
        for index, sysctl in enumerate(wanted):
            try:
                self._maybe_raise("set", sysctl.path)
                if sysctl.path not in self.sysctls:
                    raise _refusal("set", sysctl.path, errno.ENOENT)
            except ProgrammingFailed as err:
                refused[index] = err
                continue
            if self.sysctls[sysctl.path] != sysctl.value:
                self.sysctls[sysctl.path] = sysctl.value
                self.writes.append(Written("set", sysctl.path))
        return refused

    async def forget_addresses(self, addresses: Sequence[str]) -> int:
        count = 0
        for address in addresses:
            self._maybe_raise("forget", address)
            self.writes.append(Written("forget", address))
            count += self.connections.pop(address, 0)
        return count

    async def list_connections(self, addresses: Collection[str]) -> list[Any]:
        self._maybe_raise("list connections")
        self.conntrack_readings.append(frozenset(addresses))
        return [
            tracked
            for tracked in self.tracked
            if not {str(tracked.packet.source), str(tracked.packet.destination)}.isdisjoint(
                addresses
            )
        ]

    async def delete_connections(self, connections: Sequence[Any]) -> int:
        before = len(self.tracked)
        for tracked in connections:
            self._maybe_raise("delete connection", str(tracked.packet.source))
            self.tracked = [other for other in self.tracked if other is not tracked]
        return before - len(self.tracked)

    # ------------------------------------------------------------------------------ inside

    def _write_route(self, route: Route, *, is_delete: bool) -> None:
        operation = "delete route" if is_delete else "replace route"
        self._maybe_raise(operation, route.dst)
        if is_delete:
            if route not in self._routes:
                return  # deleting what is not there is no failure
            self._routes.remove(route)
        else:
            self._check_route(route)
            same = [r for r in self._routes if _slot(r) == _slot(route)]
            self._enter_route(route, same)
        self.writes.append(Written(operation, route.dst))

    def _enter_route(self, route: Route, replaced: Sequence[Route]) -> None:
        """The new one takes the place of the first; others with the same slot stay behind it."""
        if replaced:
            self._routes[self._routes.index(replaced[0])] = route
        else:
            self._routes.append(route)

    def _check_route(self, route: Route) -> None:
        try:
            ipaddress.ip_network(route.dst)
        except ValueError as err:
            raise _refusal("replace route", route.dst, errno.EINVAL) from err
        assert route == route.canonical(), "the kernel would show this route differently"
        for hop in route.nexthops:
            link = self._links.get(hop.ifindex)
            if link is None:
                raise _refusal("replace route", route.dst, errno.ENODEV)
            if not link.is_up:
                raise _refusal("replace route", route.dst, errno.ENETDOWN)

    def _flush_routes(self, ifindex: int) -> None:
        gone = [r for r in self._routes if any(hop.ifindex == ifindex for hop in r.nexthops)]
        for route in gone:
            self._routes.remove(route)
            if route.family != AF_INET:
                self._notify(RouteEvent(route, True, False, 0))

    def _store_link(self, link: Link) -> None:
        self._links[link.ifindex] = link
        self._notify(LinkEvent(link, False, 0))

    def _notify(self, event: Event) -> None:
        self._events.append(event)
        self._arrived.set()

    def _maybe_raise(self, operation: str, key: str = "") -> None:
        for fault in self._faults:
            if fault.operation == operation and fault.key in ("", key):
                fault.left -= 1
                if not fault.left:
                    self._faults.remove(fault)
                raise fault.error


def _slot(route: Route) -> tuple[str, int, int, int]:
    """What `replace` takes for the same route."""
    return (route.dst, route.metric, route.tos, route.table)


def _refusal(operation: str, key: str, number: int) -> ProgrammingFailed:
    return ProgrammingFailed(operation, key, number, os.strerror(number))


# Every way in which a single call of a port can fail, for parametrised fault tests.
FAULTS: tuple[tuple[str, Exception | int], ...] = (
    ("list routes", DumpInterrupted("the table kept changing")),
    ("list routes", errno.ENOBUFS),
    ("write routes", errno.ENOBUFS),
    ("replace route", errno.ENOMEM),
    ("replace route", errno.ENODEV),
    ("replace route", errno.ENETDOWN),
    ("delete route", errno.EBUSY),
    ("list links", DumpInterrupted("the table kept changing")),
    ("list addresses", errno.ENOBUFS),
    ("write settings", errno.EIO),
    ("set", errno.EACCES),
    ("forget", errno.ENOBUFS),
    ("read events", errno.EIO),
)
