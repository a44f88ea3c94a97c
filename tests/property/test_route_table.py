"""felix.dataplane.route_table: whatever the datastore, links, other programs and refusals do, it
converges, and it never rewrites or deletes what it should not.

Oracle: for each destination the first interface name, among those that want it and are up.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from felix.dataplane.manager import InterfaceState
from felix.dataplane.ownership import RouteOwnership
from felix.dataplane.route_table import RouteClass, RouteTable, RouteTarget
from libcalico.netlink import AF_INET, AF_INET6, PROTO_BGP, Link, Overrun, RouteEvent, device_route
from libcalico.testing.clock import FakeClock
from libcalico.testing.kernel import FakeKernel

IFNAMES = ("cali1", "cali2", "eth0")
NUMBERS = (1, 2, 3)
METRIC = 1024
STATIC = 4


class Converges(RuleBasedStateMachine):
    """The wiring of the loop, one step at a time, in any order."""

    @initialize(family=st.sampled_from([AF_INET, AF_INET6]))
    def start(self, family: int) -> None:
        self.family = family
        self.kernel, self.clock = FakeKernel(), FakeClock()
        self.wanted: dict[str, set[int]] = {}
        self.table = self.fresh_table()

    def fresh_table(self) -> RouteTable:
        # No grace: its timing has tests of its own.
        return RouteTable(
            self.kernel, self.family, ownership=RouteOwnership(), clock=self.clock, grace_s=0
        )

    def dst(self, number: int) -> str:
        return f"10.0.0.{number}/32" if self.family == AF_INET else f"fd00::{number}/128"

    # ------------------------------------------------------------------------- what happens

    @rule(ifname=st.sampled_from(["cali1", "cali2"]), numbers=st.sets(st.sampled_from(NUMBERS)))
    def the_datastore_changes(self, ifname: str, numbers: set[int]) -> None:
        self.wanted[ifname] = numbers
        self.hand_over(ifname)

    def hand_over(self, ifname: str) -> None:
        targets = [RouteTarget(self.dst(n), METRIC) for n in self.wanted.get(ifname, ())]
        self.table.set_routes(RouteClass.LOCAL_WORKLOAD, ifname, targets)

    @rule(ifname=st.sampled_from(IFNAMES), change=st.sampled_from(["up", "down", "gone"]))
    def a_link_changes(self, ifname: str, change: str) -> None:
        link = self.links().get(ifname)
        if change == "gone":
            if link is not None:
                self.kernel.delete_link(ifname)
        elif link is None:
            self.kernel.add_link(ifname, is_up=change == "up")
        else:
            self.kernel.set_link(ifname, is_up=change == "up")

    @rule(ifname=st.sampled_from(IFNAMES))
    def a_link_flaps(self, ifname: str) -> None:
        link = self.links().get(ifname)
        if link is not None and link.is_up:
            self.kernel.set_link(ifname, is_up=False)
            self.kernel.set_link(ifname, is_up=True)

    @rule(
        ifname=st.sampled_from(IFNAMES),
        number=st.sampled_from(NUMBERS),
        protocol=st.sampled_from([2, 3, STATIC, PROTO_BGP]),
        metric=st.sampled_from([METRIC, 5]),
        append=st.booleans(),
    )
    def another_program_writes(
        self, ifname: str, number: int, protocol: int, metric: int, append: bool
    ) -> None:
        link = self.links().get(ifname)
        if link is not None and link.is_up:
            route = device_route(self.dst(number), link.ifindex, protocol=protocol, metric=metric)
            if not append:
                self.kernel.put_route(route)
            elif route not in self.kernel.routes():
                self.kernel.put_route(route, append=True)

    @rule(data=st.data())
    def another_program_deletes(self, data: Any) -> None:
        present = sorted(self.kernel.routes(), key=repr)
        if present:
            self.kernel.drop_route(data.draw(st.sampled_from(present)))

    @rule()
    def notifications_are_lost(self) -> None:
        self.kernel.lose_events()

    @rule()
    def felix_restarts(self) -> None:
        self.kernel.read()
        self.table = self.fresh_table()
        self.tell_of_links()
        for ifname in self.wanted:
            self.hand_over(ifname)

    @rule(
        fault=st.sampled_from(["replace route", "delete route", "write routes", "list routes"]),
        number=st.sampled_from([errno.ENOMEM, errno.ENODEV, errno.ENETDOWN]),
    )
    def an_apply_goes_wrong(self, fault: str, number: int) -> None:
        self.kernel.fail_next(fault, error=number)
        self.cycle()
        self.kernel._faults.clear()

    @rule()
    def an_apply_goes_well(self) -> None:
        before = self.kernel.routes()
        first = self.cycle()
        assert not first.failed
        self.check_outcome(before)
        self.kernel.writes.clear()
        self.table.queue_resync("again")
        second = self.cycle()
        assert (second.written, second.deleted) == (0, 0), "R2"
        assert self.kernel.writes == []

    # ------------------------------------------------------------------------------ wiring

    def links(self) -> dict[str, Link]:
        return {link.name: link for link in self.kernel._links.values()}

    def tell_of_links(self) -> None:
        for ifname in IFNAMES:
            link = self.links().get(ifname)
            state = None
            if link is not None:
                state = InterfaceState(ifname, link.ifindex, link.is_up, link.is_running)
            self.table.on_interface(ifname, state)

    def cycle(self) -> Any:
        # Like the loop: events in order, links told as their events come.
        events = self.kernel.read()
        lost = any(isinstance(event, Overrun) for event in events)
        for event in events:
            if isinstance(event, RouteEvent):
                self.table.on_route_event(event)
            elif not isinstance(event, Overrun):
                self.tell_of_link_event(event)
        if lost:
            self.tell_of_links()
            self.table.queue_resync("lost")
        return asyncio.run(self.table.apply())

    def tell_of_link_event(self, event: Any) -> None:
        link = event.link
        if link.name not in IFNAMES:
            return
        state = InterfaceState(link.name, link.ifindex, link.is_up, link.is_running)
        self.table.on_interface(link.name, None if event.is_removed else state)

    # ------------------------------------------------------------------------------ oracle

    def name_of(self, route: Any) -> str:
        return self.kernel._links[route.nexthops[0].ifindex].name

    def is_ours(self, route: Any) -> bool:
        return self.name_of(route).startswith("cali") and route.protocol in (3, STATIC)

    def check_outcome(self, before: set[Any]) -> None:
        foreign = {route for route in before if not self.is_ours(route)}
        present = self.kernel.routes()
        expected = set()
        for number in NUMBERS:
            takers = [
                name
                for name in ("cali1", "cali2")
                if number in self.wanted.get(name, ())
                and name in self.links()
                and self.links()[name].is_up
            ]
            if not takers:
                continue
            ifindex = self.links()[takers[0]].ifindex
            ours = device_route(self.dst(number), ifindex, protocol=3, metric=METRIC)
            in_the_way = [
                route
                for route in foreign
                if (route.dst, route.metric) == (ours.dst, METRIC) and route.protocol != PROTO_BGP
            ]
            # Appended behind ours it is not in the way: the kernel goes on using ours.
            if not in_the_way or ours in before:
                expected.add(ours)
        assert {route for route in present if self.is_ours(route)} == expected
        replaceable = {(route.dst, route.metric) for route in expected}
        for route in foreign:
            overwritten = route.protocol == PROTO_BGP and (route.dst, route.metric) in replaceable
            assert route in present or overwritten, f"R3: {route} was deleted"

    @invariant()
    def bookkeeping(self) -> None:
        if hasattr(self, "table"):
            self.table.check()


TestConverges = Converges.TestCase
