"""bgp.kernel.writer against a kernel table that refuses what the real one refuses."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from bgp.kernel.decision import Spec
from bgp.kernel.writer import RETRY_S, RouteWriter
from bgp.rib.nlri import parse
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import (
    PROTO_BGP,
    PROTO_STATIC,
    NextHop,
    Refusal,
    Route,
    RouteEvent,
    RouteType,
)
from libcalico.netlink.messages import Message
from libcalico.netlink.route import RTM_DELROUTE, RTM_NEWROUTE, parse_route

EXCL, REPLACE = 0x200, 0x100
ONE, TWO = (NextHop(2, "10.0.0.2"),), (NextHop(2, "10.0.0.2"), NextHop(2, "10.0.0.3"))
A, B = parse("10.65.1.0/26"), parse("10.65.2.0/26")


class FakeKernel:
    """One IPv4 table: at most one route per (destination, metric), whoever made it."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, int], Route] = {}
        self.writes = 0
        self.refuse: dict[str, int] = {}
        self.broken = False

    def put(self, route: Route) -> None:
        self.routes[route.dst, route.metric] = route

    def transact_messages(self, messages: Sequence[bytes]) -> dict[int, Refusal]:
        if self.broken:
            raise ProgrammingFailed("send", "x", errno.ENOBUFS)
        found = {}
        for index, raw in enumerate(messages):
            number = self._do(raw)
            if number:
                found[index] = Refusal(number, "refused")
        self.writes += len(messages)
        return found

    def _do(self, raw: bytes) -> int:
        kind, flags = int.from_bytes(raw[4:6], "little"), int.from_bytes(raw[6:8], "little")
        route = parse_route(Message(RTM_NEWROUTE, 0, 1, 0, memoryview(raw)[16:]))
        assert route is not None
        key = (route.dst, route.metric)
        present = self.routes.get(key)
        if route.dst in self.refuse:
            return self.refuse[route.dst]
        if kind == RTM_DELROUTE:
            if present is None or present.protocol != route.protocol:
                return errno.ESRCH
            del self.routes[key]
            return 0
        assert flags & (EXCL | REPLACE), "a plain append would pile up"
        if flags & EXCL and present is not None:
            return errno.EEXIST
        self.routes[key] = route
        return 0

    def shown(self) -> dict[tuple[str, int], tuple[int, tuple[str, ...]]]:
        return {
            key: (route.protocol, tuple(hop.gateway for hop in route.nexthops))
            for key, route in self.routes.items()
        }


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def writer(kernel: FakeKernel) -> RouteWriter:
    made = RouteWriter(kernel, table=254, protocol=PROTO_BGP)
    made.observe([])
    made.hold_deletes = False
    return made


def ours(cidr: str, hops: tuple[NextHop, ...] = ONE, **changes) -> Route:
    values = {"protocol": PROTO_BGP, "metric": 1024, **changes}
    return Route(cidr, hops, **values)


def settle(writer: RouteWriter, now: float = 0.0) -> None:
    writer.apply(now)
    writer.check()


def test_wishes_become_routes_and_go_again(kernel, writer):
    writer.want(A, Spec(1024, ONE))
    writer.want(B, Spec(1024, type=RouteType.BLACKHOLE))
    settle(writer)
    assert kernel.routes["10.65.1.0/26", 1024].nexthops == ONE
    assert kernel.routes["10.65.2.0/26", 1024].type == RouteType.BLACKHOLE
    writer.want(A, Spec(1024, TWO))
    settle(writer)
    assert kernel.routes["10.65.1.0/26", 1024].nexthops == TWO
    writer.want(A, None)
    writer.want(B, None)
    settle(writer)
    assert kernel.routes == {}
    assert writer.dirty == {}


def test_what_is_right_is_not_written(kernel, writer):
    writer.want(A, Spec(1024, TWO))
    kernel.put(ours("10.65.1.0/26", TWO[::-1]))  # the kernel's order is its own
    writer.observe(kernel.routes.values())
    settle(writer)
    assert kernel.writes == 0
    writer.want(A, Spec(1024, TWO))
    settle(writer)
    assert kernel.writes == 0


def test_what_a_former_process_left_is_ours_to_correct(kernel, writer):
    for route in (ours("10.65.1.0/26", TWO), ours("10.65.9.0/26"), ours("10.65.1.0/26", metric=9)):
        kernel.put(route)
    writer.want(A, Spec(1024, ONE))
    writer.observe(kernel.routes.values())
    settle(writer)
    settle(writer)
    assert kernel.shown() == {("10.65.1.0/26", 1024): (PROTO_BGP, ("10.0.0.2",))}


def test_other_peoples_routes_are_never_touched(kernel, writer):
    theirs = Route("10.65.1.0/26", (NextHop(2, "10.0.0.9"),), protocol=PROTO_STATIC, metric=1024)
    kernel.put(theirs)
    kernel.put(Route("10.65.7.0/26", ONE, protocol=PROTO_STATIC))
    writer.observe(kernel.routes.values())
    writer.want(A, Spec(1024, ONE))
    writer.want(B, Spec(1024, ONE))
    settle(writer)
    assert kernel.routes["10.65.1.0/26", 1024] == theirs
    assert ("10.65.2.0/26", 1024) in kernel.routes
    assert writer.conflicts == {A}
    # It goes: ours comes, without waiting.
    del kernel.routes["10.65.1.0/26", 1024]
    writer.notice(RouteEvent(theirs, True, False, 0))
    settle(writer, 0.1)
    assert kernel.routes["10.65.1.0/26", 1024].protocol == PROTO_BGP
    assert writer.conflicts == set()


def test_a_route_that_somebody_removed_is_put_back(kernel, writer):
    writer.want(A, Spec(1024, ONE))
    settle(writer)
    lost = kernel.routes.pop(("10.65.1.0/26", 1024))
    writer.notice(RouteEvent(lost, True, False, 0))
    settle(writer, 0.1)
    assert kernel.routes["10.65.1.0/26", 1024] == lost


def test_a_route_that_somebody_changed_is_put_right(kernel, writer):
    writer.want(A, Spec(1024, ONE))
    settle(writer)
    changed = ours("10.65.1.0/26", TWO)
    kernel.put(changed)
    writer.notice(RouteEvent(changed, False, True, 0))
    settle(writer, 0.1)
    assert kernel.routes["10.65.1.0/26", 1024].nexthops == ONE


def test_a_route_that_somebody_took_over_is_a_conflict(kernel, writer):
    writer.want(A, Spec(1024, ONE))
    settle(writer)
    theirs = Route("10.65.1.0/26", TWO, protocol=PROTO_STATIC, metric=1024)
    kernel.put(theirs)
    writer.notice(RouteEvent(theirs, False, True, 0))
    settle(writer, 0.1)
    assert kernel.routes["10.65.1.0/26", 1024] == theirs
    assert writer.conflicts == {A}


def test_a_route_of_ours_that_we_did_not_make_goes(kernel, writer):
    stray = ours("10.65.9.0/26")
    kernel.put(stray)
    writer.notice(RouteEvent(stray, False, False, 0))
    settle(writer)
    assert kernel.routes == {}


def test_a_new_metric_is_there_before_the_old_one_goes(kernel, writer):
    writer.want(A, Spec(1024, ONE))
    settle(writer)
    writer.want(A, Spec(512, ONE))
    kernel.refuse["10.65.1.0/26"] = errno.ENETUNREACH
    settle(writer)
    assert list(kernel.routes) == [("10.65.1.0/26", 1024)]
    kernel.refuse.clear()
    settle(writer, RETRY_S)
    assert list(kernel.routes) == [("10.65.1.0/26", 512)]
    assert writer.dirty == {}


def test_a_refused_route_stays_dirty_and_the_others_go_on(kernel, writer):
    kernel.refuse["10.65.1.0/26"] = errno.ENETUNREACH
    writer.want(A, Spec(1024, ONE))
    writer.want(B, Spec(1024, ONE))
    settle(writer)
    assert ("10.65.2.0/26", 1024) in kernel.routes
    assert list(writer.dirty) == [A]
    writes = kernel.writes
    settle(writer, 0.5)
    assert kernel.writes == writes  # not before its time
    kernel.refuse.clear()
    writer.retry_all()  # unless there is news
    settle(writer, 0.5)
    assert ("10.65.1.0/26", 1024) in kernel.routes


def test_a_deletion_that_is_none_is_fine(kernel, writer):
    writer.want(A, Spec(1024, ONE))
    settle(writer)
    kernel.routes.clear()
    writer.want(A, None)
    settle(writer)
    assert writer.dirty == {}


def test_after_a_restart_nothing_is_concluded_from_silence(kernel):
    kernel.put(ours("10.65.1.0/26"))
    kernel.put(ours("10.65.2.0/26"))
    kernel.put(ours("10.65.3.0/26", (), type=RouteType.BLACKHOLE))
    writer = RouteWriter(kernel, table=254, protocol=PROTO_BGP)
    writer.observe(kernel.routes.values())
    writer.want(A, Spec(1024, ONE))
    settle(writer)
    # Our own block is known to be gone; of 10.65.2.0/26 nobody has said anything yet.
    assert [dst for dst, _ in kernel.routes] == ["10.65.1.0/26", "10.65.2.0/26"]
    # What was confirmed in this life may go.
    writer.want(A, None)
    settle(writer)
    assert [dst for dst, _ in kernel.routes] == ["10.65.2.0/26"]
    # A later listing does not change what is unconfirmed.
    writer.observe(kernel.routes.values())
    settle(writer)
    assert [dst for dst, _ in kernel.routes] == ["10.65.2.0/26"]
    writer.hold_deletes = False
    settle(writer)
    assert kernel.routes == {}


def test_much_is_done_in_parts(kernel, writer):
    for number in range(9000):
        writer.want(parse(f"10.{number >> 8}.{number & 255}.0/24"), Spec(1024, ONE))
    parts = 1
    while writer.apply(0.0).remaining:
        parts += 1
    assert parts == 3
    assert len(kernel.routes) == 9000
    writer.check()


def test_a_socket_that_fails_is_reported(kernel, writer):
    kernel.broken = True
    writer.want(A, Spec(1024, ONE))
    with pytest.raises(ProgrammingFailed):
        writer.apply(0.0)
    assert list(writer.dirty) == [A]


def test_events_of_other_tables_and_protocols_are_not_ours(kernel, writer):
    writer.want(A, Spec(1024, ONE))
    settle(writer)
    for route in (ours("10.65.1.0/26", table=99), ours("10.65.1.0/26", protocol=PROTO_STATIC)):
        writer.notice(RouteEvent(route, True, False, 0))
    assert writer.dirty == {}


def test_links_of_our_routes_are_known_until_a_listing_says_otherwise(kernel, writer):
    hops = (NextHop(5, "10.0.0.2"), NextHop(6, "10.1.0.2"))
    writer.want(parse("10.65.1.0/26"), Spec(1024, hops))
    assert not writer.led_over(5)
    settle(writer)
    writer.notice(RouteEvent(ours("10.65.2.0/26", (NextHop(7, "10.0.0.2"),)), False, False, 0))
    assert [writer.led_over(ifindex) for ifindex in (4, 5, 6, 7)] == [False, True, True, True]
    writer.observe([ours("10.65.3.0/26", (NextHop(4, "10.0.0.2"),))])
    assert [writer.led_over(ifindex) for ifindex in (4, 5, 6, 7)] == [True, False, False, False]


def test_the_dump_says_what_is_wrong(kernel, writer):
    kernel.put(Route("10.65.1.0/26", ONE, protocol=PROTO_STATIC, metric=1024))
    writer.want(A, Spec(1024, ONE))
    settle(writer)
    dump = writer.dump()
    assert dump["dirty"] == dump["conflicts"] == ["10.65.1.0/26"]
