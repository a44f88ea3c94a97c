"""felix.dataplane.route_table through felix.kernel.netlink on a real kernel, with real links."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from felix.dataplane.link_monitor import LinkMonitor
from felix.dataplane.loop import Dataplane, DataplaneParts, Stage
from felix.dataplane.ownership import ROUTING_DAEMON_PROTOCOLS, RouteOwnership
from felix.dataplane.route_table import NO_INTERFACE, RouteClass, RouteTable, RouteTarget
from felix.intent import InSync
from felix.kernel.netlink import KernelEvents, KernelLinks, KernelRoutes
from felix.kernel.worker import KernelWorker
from libcalico.netlink import (
    AF_INET,
    AF_INET6,
    EventStream,
    Group,
    LinkChange,
    NetlinkSocket,
    NextHop,
    Route,
    RouteEvent,
    RouteType,
    VethEnd,
    change_link,
    create_veth,
    delete_link,
    delete_route,
    device_route,
    list_routes,
    replace_route,
)
from libcalico.runtime.clock import SYSTEM
from tests.support.netns import Namespace

FAMILIES = {"v4": AF_INET, "v6": AF_INET6}
# How long a foreign deletion may stay unrepaired.
REPAIR_S = 2.0


class Router:
    """A dataplane with one route table in a namespace."""

    def __init__(self, node: Namespace, family: int) -> None:
        self.node, self.family = node, family
        self._worker = KernelWorker()
        self._socket = NetlinkSocket.in_namespace(node.path)
        own = frozenset({self._socket.port_id})
        self._events = node.call(lambda: KernelEvents(own, ROUTING_DAEMON_PROTOCOLS))
        self.table = RouteTable(
            KernelRoutes(self._worker, self._socket),
            family,
            ownership=RouteOwnership(),
            clock=SYSTEM,
            grace_s=0,
        )
        links = LinkMonitor(KernelLinks(self._worker, self._socket))
        links.add_listener(self.table)
        self.loop = Dataplane(
            DataplaneParts(
                managers=[],
                stages=[Stage(self.table)],
                links=links,
                events=self._events,
                route_tables=[self.table],
            ),
            clock=SYSTEM,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self.loop.run()),
            asyncio.create_task(self.loop.watch_kernel()),
        ]
        self.loop.on_intents([InSync()])

    async def stop(self) -> None:
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._worker.close()
        self._events.close()
        self._socket.close()

    def want(self, ifname: str, *numbers: int) -> None:
        targets = [RouteTarget(self.dst(number), metric=1024) for number in numbers]
        self.table.set_routes(RouteClass.LOCAL_WORKLOAD, ifname, targets)
        self.loop.wake()

    def dst(self, number: int) -> str:
        return f"10.65.0.{number}/32" if self.family == AF_INET else f"fd00:65::{number}/128"

    def device(self, number: int, ifname: str, *, protocol: int = 3, metric: int = 1024) -> Route:
        ifindex = self.node.link(ifname).ifindex
        return device_route(self.dst(number), ifindex, protocol=protocol, metric=metric)

    def present(self) -> list[Route]:
        """Routes but the kernel's own."""
        return [r for r in self.node.socket.query(list_routes(self.family)) if r.protocol != 2]

    async def until(self, *expected: Route, timeout_s: float = REPAIR_S) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while set(self.present()) != set(expected) or len(self.present()) != len(expected):
            assert asyncio.get_running_loop().time() < deadline, f"still {self.present()}"
            await asyncio.sleep(0.005)


def add_veth(node: Namespace, name: str, *, is_up: bool = True) -> None:
    node.socket.execute(create_veth(VethEnd(name), VethEnd(f"far-{name}"), near_is_up=is_up))
    node.socket.execute(change_link(f"far-{name}", LinkChange(is_up=True)))


@pytest.fixture(params=FAMILIES)
def router(node: Namespace, request: pytest.FixtureRequest) -> Router:
    for name in ("cali1", "cali2", "eth0"):
        add_veth(node, name)
    return Router(node, FAMILIES[request.param])


def driven(
    test: Callable[[Router], Awaitable[None]],
) -> Callable[[Router], Coroutine[Any, Any, None]]:
    """Run the router's loop for the length of the test."""

    @functools.wraps(test)
    async def run(router: Router) -> None:
        router.start()
        try:
            await test(router)
        finally:
            await router.stop()

    return run


@driven
async def test_wanted_routes_come_and_go(router):
    router.want("cali1", 1, 2)
    await router.until(router.device(1, "cali1"), router.device(2, "cali1"))
    router.want("cali1", 2)
    await router.until(router.device(2, "cali1"))


@driven
async def test_a_foreign_deletion_is_repaired_at_once(router):
    router.want("cali1", 1)
    await router.until(router.device(1, "cali1"))
    for _ in range(3):
        router.node.socket.execute(delete_route(router.device(1, "cali1")))
        await router.until(router.device(1, "cali1"))


@driven
async def test_a_flush_of_everything_is_repaired(router):
    router.want("cali1", *range(1, 100))
    wanted = [router.device(number, "cali1") for number in range(1, 100)]
    await router.until(*wanted)
    flag = "-4" if router.family == AF_INET else "-6"
    router.node.run("ip", flag, "route", "flush", "dev", "cali1", "proto", "boot")
    await router.until(*wanted)


@driven
async def test_a_replacement_by_the_bgp_daemon_is_taken_back(router):
    """Both have metric 1024: an address that moved here while its old route was still known."""
    gateway = "192.0.2.9" if router.family == AF_INET else "2001:db8::9"
    eth0 = router.node.link("eth0").ifindex
    hops = (NextHop(eth0, gateway, is_onlink=True),)
    learned = Route(router.dst(1), hops, protocol=186, metric=1024)
    router.node.socket.execute(replace_route(learned))
    router.want("cali1", 1)
    await router.until(router.device(1, "cali1"))
    router.node.socket.execute(replace_route(learned))
    await router.until(router.device(1, "cali1"))


@driven
async def test_a_foreign_route_in_the_way_is_respected_until_it_goes(router):
    foreign = router.device(1, "eth0", protocol=4)
    router.node.socket.execute(replace_route(foreign))
    router.want("cali1", 1, 2)
    await router.until(foreign, router.device(2, "cali1"))
    assert "in the way" in router.table.problem(router.dst(1))
    router.node.socket.execute(delete_route(foreign))
    await router.until(router.device(1, "cali1"), router.device(2, "cali1"))


@driven
async def test_orphans_of_every_shape_go_and_foreign_routes_stay(router):
    hole = "10.65.9.0/26" if router.family == AF_INET else "fd00:65:9::/122"
    keep = [
        router.device(20, "eth0", protocol=4),
        router.device(21, "eth0", protocol=186),
        router.device(22, "cali1", protocol=186),
        router.device(23, "eth0", protocol=3),
        Route(hole, type=RouteType.BLACKHOLE, protocol=186, metric=1024),
    ]
    hole80 = hole.replace("9", "8", 1)
    gone = [
        router.device(30, "cali1"),
        router.device(31, "cali2", metric=7),
        router.device(32, "cali1", protocol=4),
        router.device(33, "eth0", protocol=80),
        Route(hole80, type=RouteType.BLACKHOLE, protocol=80, metric=1024),
    ]
    router.node.socket.execute(*(replace_route(route) for route in keep + gone))
    router.table.queue_resync("test")
    router.loop.wake()
    await router.until(*keep)


@driven
async def test_a_blackhole_of_ours_is_written_and_read_back_the_same(router):
    dst = "10.65.7.0/26" if router.family == AF_INET else "fd00:65:7::/122"
    target = RouteTarget(dst, 1024, 80, type=RouteType.BLACKHOLE)
    router.table.set_routes(RouteClass.BLOCK_DROP, NO_INTERFACE, [target])
    router.loop.wake()
    await router.until(Route(dst, type=RouteType.BLACKHOLE, protocol=80, metric=1024))
    router.table.queue_resync("test")
    report = await router.loop.flush()
    assert (report.total.written, report.total.deleted) == (0, 0)


@driven
async def test_a_link_that_goes_down_and_up_gets_its_routes_back(router):
    router.want("cali1", 1, 2)
    wanted = [router.device(number, "cali1") for number in (1, 2)]
    await router.until(*wanted)
    router.node.socket.execute(change_link("cali1", LinkChange(is_up=False)))
    await router.until()
    router.node.socket.execute(change_link("cali1", LinkChange(is_up=True)))
    await router.until(*wanted)
    router.node.socket.execute(
        change_link("cali1", LinkChange(is_up=False)), change_link("cali1", LinkChange(is_up=True))
    )
    await router.until(*wanted)


@driven
async def test_a_link_that_loses_its_carrier_keeps_its_routes(router):
    router.want("cali1", 1)
    await router.until(router.device(1, "cali1"))
    router.node.socket.execute(change_link("far-cali1", LinkChange(is_up=False)))
    router.table.queue_resync("test")
    report = await router.loop.flush()
    assert (report.total.written, report.total.failed) == (0, 0)
    await router.until(router.device(1, "cali1"))


@driven
async def test_a_link_made_later_or_anew_gets_its_routes(router):
    router.want("cali9", 9)
    await router.loop.flush()
    add_veth(router.node, "cali9", is_up=False)
    report = await router.loop.flush()
    assert report.total.failed == 0
    assert router.present() == []
    router.node.socket.execute(change_link("cali9", LinkChange(is_up=True)))
    await router.until(router.device(9, "cali9"))
    router.node.socket.execute(delete_link("cali9"))
    add_veth(router.node, "cali9")
    await router.until(router.device(9, "cali9"))


@driven
async def test_an_address_moves_between_links_without_a_gap(router):
    router.want("cali1", 1)
    await router.until(router.device(1, "cali1"))
    groups = (Group.IPV4_ROUTE, Group.IPV6_ROUTE)
    stream = EventStream.in_namespace(router.node.path, *groups)
    router.want("cali1")
    router.want("cali2", 1)
    await router.until(router.device(1, "cali2"))
    events = [event for event in stream.read() if isinstance(event, RouteEvent)]
    stream.close()
    mine = [(e.is_removed, e.is_replacement) for e in events if e.route.dst == router.dst(1)]
    assert mine == [(False, True)], "one replacement, no deletion"


@driven
async def test_a_restart_writes_nothing(router):
    router.want("cali1", *range(1, 50))
    wanted = [router.device(number, "cali1") for number in range(1, 50)]
    await router.until(*wanted)
    await router.stop()
    groups = (Group.IPV4_ROUTE, Group.IPV6_ROUTE)
    stream = EventStream.in_namespace(router.node.path, *groups)
    second = Router(router.node, router.family)
    second.want("cali1", *range(1, 50))
    second.start()
    report = await second.loop.flush()
    assert (report.total.written, report.total.deleted, report.total.failed) == (0, 0, 0)
    assert stream.read() == []
    stream.close()
    await second.stop()
    assert set(second.present()) == set(wanted)


@driven
async def test_notifications_that_overflow_are_made_up_for(router):
    router.want("cali1", *range(1, 20))
    wanted = [router.device(number, "cali1") for number in range(1, 20)]
    await router.until(*wanted)
    # A hundred thousand notifications while nobody reads, then a deletion nobody hears of.
    eth0 = router.node.link("eth0").ifindex
    many = [
        Route(f"10.{n >> 8}.{n & 255}.0/24", (NextHop(eth0),), scope=253, metric=5)
        for n in range(30_000)
    ]
    add = [replace_route(route).message for route in many]
    drop = [delete_route(route).message for route in many]
    for _ in range(2):
        router.node.socket.transact_messages(add)
        router.node.socket.transact_messages(drop)
    router.node.socket.execute(*(delete_route(route) for route in wanted))
    await router.until(*wanted, timeout_s=5)
