"""Routes, links and notifications: the rtnetlink side of felix's ports.

Layer: felix.kernel (edge). Implements RoutePort, LinkPort and EventPort of felix.dataplane.ports
over libcalico.netlink; the daemon makes one of each.

Routes that share everything but their prefix are encoded from a template (RouteTemplate), so a
batch costs about 5 us a route, most of it the kernel's.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence

from felix.dataplane.ports import RouteWrite
from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import (
    TABLE_MAIN,
    Address,
    Event,
    EventStream,
    Group,
    Link,
    NetlinkSocket,
    Request,
    Route,
    RouteFilter,
    RouteInterest,
    RouteTemplate,
    delete_route,
    list_addresses,
    list_links,
    list_routes,
    replace_route,
)
from libcalico.netlink.messages import pack_prefix

_GROUPS = (
    Group.LINK,
    Group.IPV4_ADDRESS,
    Group.IPV6_ADDRESS,
    Group.IPV4_ROUTE,
    Group.IPV6_ROUTE,
)
# "It is not there": what a delete wanted.
_ABSENT_ERRNOS = frozenset({errno.ESRCH, errno.ENODEV})


class KernelRoutes:
    """RoutePort. One socket, used only in the worker's thread."""

    def __init__(self, worker: KernelWorker, socket: NetlinkSocket) -> None:
        self._worker, self._socket = worker, socket

    async def list_routes(self, family: int, skip_protocols: frozenset[int]) -> list[Route]:
        query = list_routes(family, RouteFilter(skip_protocols=skip_protocols))
        return await self._worker.run(lambda: self._socket.query(query))

    async def write_routes(self, writes: Sequence[RouteWrite]) -> Mapping[int, ProgrammingFailed]:
        return await self._worker.run(lambda: self._write(writes), items=len(writes))

    def _write(self, writes: Sequence[RouteWrite]) -> dict[int, ProgrammingFailed]:
        encoder = _BatchEncoder()
        messages = [encoder.encode(write) for write in writes]
        refused = {}
        for index, refusal in self._socket.transact_messages(messages).items():
            write = writes[index]
            if write.is_delete and refusal.errno in _ABSENT_ERRNOS:
                continue
            operation = "delete route" if write.is_delete else "replace route"
            refused[index] = refusal.failure(operation, write.route.dst)
        return refused


_Kind = tuple[tuple[int, ...], tuple[int, ...], tuple[str, int]]


class _BatchEncoder:
    """Encodes the routes of one batch; the second of a kind makes the template for the rest."""

    def __init__(self) -> None:
        self._seen: set[_Kind] = set()
        self._templates: dict[_Kind, RouteTemplate] = {}

    def encode(self, write: RouteWrite) -> bytes:
        build: Callable[[Route], Request] = delete_route if write.is_delete else replace_route
        family, packed, prefix_len = pack_prefix(write.route.dst)
        route = write.route
        # The routes of a batch outlive it, so the identity of their next hops will do: equal ones
        # that are not the same only cost a template more.
        kind = (
            (write.is_delete, family, prefix_len, id(route.nexthops)),
            (route.protocol, route.metric, route.type, route.scope, route.table),
            (route.source, route.tos),
        )
        template = self._templates.get(kind)
        if template is not None:
            return template.encode(packed)
        if kind in self._seen:
            self._templates[kind] = RouteTemplate(build, write.route)
        self._seen.add(kind)
        return build(write.route).message


class KernelLinks:
    """LinkPort."""

    def __init__(self, worker: KernelWorker, socket: NetlinkSocket) -> None:
        self._worker, self._socket = worker, socket

    async def list_links(self) -> list[Link]:
        return await self._worker.run(lambda: self._socket.query(list_links()))

    async def list_addresses(self) -> list[Address]:
        return await self._worker.run(lambda: self._socket.query(list_addresses()))


class KernelEvents:
    """EventPort: links, addresses and the main table's routes, except those `own_ports` wrote.

    `skip_protocols`: route protocols not worth decoding, unless such a route replaced another."""

    def __init__(self, own_ports: frozenset[int], skip_protocols: frozenset[int]) -> None:
        interest = RouteInterest(TABLE_MAIN, skip_protocols, own_ports)
        self._stream = EventStream(*_GROUPS, interest=interest)

    async def wait(self) -> None:
        await self._stream.wait()

    def read(self) -> list[Event]:
        return self._stream.read()

    def close(self) -> None:
        self._stream.close()
