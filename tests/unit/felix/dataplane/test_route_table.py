"""felix.dataplane.route_table against the fake kernel, both families."""

from __future__ import annotations

import errno

import pytest

from felix.dataplane.manager import InterfaceState
from felix.dataplane.ownership import RouteOwnership
from felix.dataplane.route_table import NO_INTERFACE, RouteClass, RouteTable, RouteTarget
from libcalico.errors import DumpInterrupted
from libcalico.netlink import (
    AF_INET,
    AF_INET6,
    PROTO_BGP,
    PROTO_KERNEL,
    NextHop,
    Route,
    RouteEvent,
    RouteType,
    device_route,
)
from libcalico.testing.clock import FakeClock
from libcalico.testing.kernel import FakeKernel

WORKLOAD = RouteClass.LOCAL_WORKLOAD


class World:
    """One route table, its kernel, and the wiring that the loop does in real life."""

    def __init__(self, family: int, **ownership: object) -> None:
        self.kernel = FakeKernel()
        self.clock = FakeClock()
        self.family = family
        self.ownership = RouteOwnership(**ownership)  # type: ignore[arg-type]
        self.table = self.new_table()

    def new_table(self) -> RouteTable:
        return RouteTable(self.kernel, self.family, ownership=self.ownership, clock=self.clock)

    def add_link(self, name: str, *, is_up: bool = True) -> int:
        ifindex = self.kernel.add_link(name, is_up=is_up)
        self.follow(name)
        return ifindex

    def follow(self, name: str) -> None:
        """Tell the table what the kernel says of a link, and of routes."""
        links = {link.name: link for link in self.kernel._links.values()}
        link = links.get(name)
        state = None
        if link is not None:
            state = InterfaceState(name, link.ifindex, link.is_up, link.is_running)
        self.table.on_interface(name, state)
        self.events()

    def events(self) -> None:
        for event in self.kernel.read():
            if isinstance(event, RouteEvent):
                self.table.on_route_event(event)

    def dst(self, number: int = 1) -> str:
        return f"10.65.0.{number}/32" if self.family == AF_INET else f"fd00:65::{number}/128"

    def device(self, number: int, ifindex: int, *, protocol: int = 3, metric: int = 1024) -> Route:
        return device_route(self.dst(number), ifindex, protocol=protocol, metric=metric)

    def want(self, ifname: str, *numbers: int, route_class: RouteClass = WORKLOAD) -> None:
        targets = [RouteTarget(self.dst(number), metric=1024) for number in numbers]
        self.table.set_routes(route_class, ifname, targets)

    async def apply(self):
        result = await self.table.apply()
        self.table.check()
        return result

    @property
    def routes(self) -> set[Route]:
        return self.kernel.routes()

    def written(self) -> list[str]:
        writes, self.kernel.writes = self.kernel.writes, []
        return [f"{w.operation} {w.key}" for w in writes]


@pytest.fixture(params=[AF_INET, AF_INET6], ids=["v4", "v6"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


async def test_a_wanted_route_is_programmed_and_goes_when_it_is_not_wanted_any_more(world):
    one = world.add_link("cali1")
    world.want("cali1", 1, 2)
    result = await world.apply()
    assert (result.written, result.failed) == (2, 0)
    assert world.routes == {world.device(1, one), world.device(2, one)}
    assert world.table.problem(world.dst(1)) == ""
    world.want("cali1", 2)
    result = await world.apply()
    assert (result.written, result.deleted) == (0, 1)
    assert world.routes == {world.device(2, one)}
    assert world.table.is_absent(world.dst(1))
    assert not world.table.is_absent(world.dst(2))


async def test_nothing_is_written_when_nothing_changed(world):
    world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.written()
    world.want("cali1", 1)
    world.table.queue_resync("test")
    result = await world.apply()
    assert (result.written, result.deleted) == (0, 0)
    assert world.written() == []


async def test_a_fresh_process_keeps_what_is_right_and_sweeps_the_rest(world):
    one = world.add_link("cali1")
    uplink = world.add_link("eth0")
    kept = world.device(1, one)
    orphan, felix_orphan = world.device(2, one), world.device(3, uplink, protocol=80)
    foreign = [
        world.device(4, uplink, protocol=4),
        world.device(5, uplink, protocol=PROTO_BGP),
        world.device(6, one, protocol=2),
        world.device(7, one, protocol=PROTO_BGP),
        world.device(8, uplink, protocol=3),
    ]
    for route in [kept, orphan, felix_orphan, *foreign]:
        world.kernel.put_route(route)
    world.want("cali1", 1)
    await world.apply()
    assert world.routes == {kept, *foreign}
    assert f"replace route {world.dst(1)}" not in world.written(), "R2"


@pytest.mark.parametrize("remove", [True, False])
async def test_remove_external_routes_decides_about_strangers_on_our_interfaces(remove):
    world = World(AF_INET, remove_external_routes=remove)
    one = world.add_link("cali1")
    stranger = world.device(1, one, protocol=4)
    world.kernel.put_route(stranger)
    await world.apply()
    assert world.routes == (set() if remove else {stranger})


async def test_a_device_route_protocol_of_its_own_is_ours_everywhere_and_boot_is_not():
    world = World(AF_INET, device_route_protocol=99, remove_external_routes=False)
    one, uplink = world.add_link("cali1"), world.add_link("eth0")
    kept = world.device(1, one, protocol=3), world.device(2, uplink, protocol=80)
    for route in (*kept, world.device(3, uplink, protocol=99)):
        world.kernel.put_route(route)
    await world.apply()
    assert world.routes == set(kept)


async def test_a_route_waits_for_its_interface_and_comes_as_soon_as_it_is_up(world):
    world.want("cali1", 1)
    assert (await world.apply()).failed == 0
    assert "is not up" in world.table.problem(world.dst(1))
    world.add_link("cali1", is_up=False)
    await world.apply()
    assert world.routes == set()
    world.kernel.set_link("cali1", is_up=True, has_carrier=False)
    world.follow("cali1")
    await world.apply()
    assert world.routes == {world.device(1, world.kernel.link("cali1").ifindex)}


async def test_an_interface_that_goes_down_and_up_gets_its_routes_back(world):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.kernel.set_link("cali1", is_up=False)
    world.follow("cali1")
    await world.apply()
    assert world.routes == set()
    world.kernel.set_link("cali1", is_up=True)
    world.follow("cali1")
    result = await world.apply()
    assert result.written == 1
    assert world.routes == {world.device(1, one)}


async def test_an_interface_made_anew_gets_routes_with_its_new_number(world):
    world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.kernel.delete_link("cali1")
    second = world.kernel.add_link("cali1")
    world.follow("cali1")
    await world.apply()
    assert world.routes == {world.device(1, second)}


async def test_a_deletion_by_somebody_else_is_repaired(world):
    one = world.add_link("cali1")
    world.want("cali1", 1, 2)
    await world.apply()
    world.kernel.drop_route(world.device(1, one))
    world.events()
    result = await world.apply()
    assert result.written == 1
    assert world.routes == {world.device(1, one), world.device(2, one)}


async def test_a_replacement_by_a_routing_daemon_is_taken_back(world):
    one, uplink = world.add_link("cali1"), world.add_link("eth0")
    world.want("cali1", 1)
    await world.apply()
    world.kernel.put_route(world.device(1, uplink, protocol=PROTO_BGP))
    world.events()
    await world.apply()
    assert world.routes == {world.device(1, one)}


async def test_a_foreign_route_in_our_place_is_left_alone_until_it_goes(world):
    one, uplink = world.add_link("cali1"), world.add_link("eth0")
    foreign = world.device(1, uplink, protocol=4)
    world.kernel.put_route(foreign)
    world.want("cali1", 1, 2)
    result = await world.apply()
    assert (result.failed, result.deferred) == (0, 1), "no retry: its removal will wake us"
    assert world.routes == {foreign, world.device(2, one)}
    assert "in the way" in world.table.problem(world.dst(1))
    world.kernel.drop_route(foreign)
    world.events()
    await world.apply()
    assert world.routes == {world.device(1, one), world.device(2, one)}


async def test_a_foreign_route_that_replaced_ours_is_noticed(world):
    world.add_link("cali1")
    uplink = world.add_link("eth0")
    world.want("cali1", 1)
    await world.apply()
    foreign = world.device(1, uplink, protocol=4)
    world.kernel.put_route(foreign)
    world.events()
    assert (await world.apply()).deferred == 1
    assert world.routes == {foreign}


async def test_a_foreign_route_behind_ours_is_not_in_the_way(world):
    """Found by the property test: appended, it leaves ours first in the kernel, and in use."""
    one, uplink = world.add_link("cali1"), world.add_link("eth0")
    world.want("cali1", 1)
    await world.apply()
    both = {world.device(1, one)}
    for foreign in (world.device(1, one, protocol=2), world.device(1, uplink, protocol=4)):
        world.kernel.put_route(foreign, append=True)
        both.add(foreign)
    world.events()
    for _ in range(2):
        result = await world.apply()
        assert (result.written, result.deleted, result.deferred) == (0, 0, 0)
        assert world.routes == both
        assert world.table.problem(world.dst(1)) == ""
        world.table.queue_resync("test")


async def test_ours_does_not_go_on_to_the_old_interface_when_a_foreign_one_is_in_the_way(world):
    one, uplink = world.add_link("cali1"), world.add_link("eth0")
    world.add_link("cali2")
    world.want("cali1", 1)
    await world.apply()
    foreign = world.device(1, uplink, protocol=4)
    world.kernel.put_route(foreign, append=True)
    world.events()
    world.want("cali1")
    world.want("cali2", 1)
    world.kernel.fail_next("delete route", error=errno.EBUSY)
    assert (await world.apply()).failed == 1
    assert world.routes == {world.device(1, one), foreign}
    result = await world.apply()
    assert (result.deleted, result.deferred) == (1, 1)
    assert world.routes == {foreign}


async def test_a_double_that_becomes_the_wanted_route_is_kept(world):
    """A `replace` with it is refused by Linux (EEXIST), and deleting it would delete ours."""
    world.add_link("cali1")
    two = world.add_link("cali2")
    world.want("cali1", 1)
    await world.apply()
    world.kernel.put_route(world.device(1, two), append=True)
    world.events()
    world.want("cali1")
    world.want("cali2", 1)
    result = await world.apply()
    assert (result.written, result.deleted) == (0, 1)
    assert world.routes == {world.device(1, two)}


async def test_a_change_of_metric_writes_the_new_route_before_the_old_one_goes(world):
    one = world.add_link("cali1")
    world.kernel.put_route(world.device(1, one, metric=77))
    world.want("cali1", 1)
    await world.apply()
    assert world.routes == {world.device(1, one)}
    assert world.written() == [f"replace route {world.dst(1)}", f"delete route {world.dst(1)}"]


async def test_of_two_interfaces_that_want_one_address_the_first_name_has_it(world):
    one, two = world.add_link("cali1"), world.add_link("cali2")
    world.want("cali2", 1)
    await world.apply()
    assert world.routes == {world.device(1, two)}
    world.want("cali1", 1)
    await world.apply()
    assert world.routes == {world.device(1, one)}, "whatever came first"
    world.kernel.set_link("cali1", is_up=False)
    world.follow("cali1")
    await world.apply()
    assert world.routes == {world.device(1, two)}, "an interface that is down has no claim"
    world.want("cali2")
    await world.apply()
    assert world.routes == set()


async def test_the_lower_class_wins_and_the_other_comes_back(world):
    one = world.add_link("cali1")
    hole = RouteTarget(world.dst(1), metric=1024, protocol=80, type=RouteType.BLACKHOLE)
    world.table.set_routes(RouteClass.BLOCK_DROP, NO_INTERFACE, [hole])
    await world.apply()
    (only,) = world.routes
    assert (only.type, only.nexthops) == (RouteType.BLACKHOLE, ())
    world.want("cali1", 1)
    await world.apply()
    assert world.routes == {world.device(1, one)}
    world.want("cali1")
    await world.apply()
    assert world.routes == {only}


async def test_a_gateway_route_has_universe_scope_and_its_flags(world):
    uplink = world.add_link("eth0")
    gateway = "192.0.2.1" if world.family == AF_INET else "fd00::1"
    target = RouteTarget(world.dst(1), 1024, 80, gateway=gateway, is_onlink=True)
    world.table.set_routes(RouteClass.NO_ENCAP, "eth0", [target])
    await world.apply()
    assert world.routes == {
        Route(world.dst(1), (NextHop(uplink, gateway, True),), protocol=80, metric=1024)
    }


async def test_a_refused_write_stays_dirty_and_the_others_go_on(world):
    one = world.add_link("cali1")
    world.want("cali1", 1, 2)
    world.kernel.fail_next("replace route", world.dst(1), error=errno.ENOMEM)
    result = await world.apply()
    assert (result.written, result.failed) == (1, 1)
    assert "Cannot allocate memory" in result.error
    assert "Cannot allocate" in world.table.problem(world.dst(1))
    result = await world.apply()
    assert (result.written, result.failed) == (1, 0)
    assert world.routes == {world.device(1, one), world.device(2, one)}
    assert world.table.problem(world.dst(1)) == ""


async def test_a_refused_deletion_stays_dirty(world):
    world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.want("cali1")
    world.kernel.fail_next("delete route", world.dst(1), error=errno.EBUSY)
    assert (await world.apply()).failed == 1
    assert not world.table.is_absent(world.dst(1))
    assert (await world.apply()).deleted == 1
    assert world.table.is_absent(world.dst(1))


@pytest.mark.parametrize("error", [DumpInterrupted("busy"), errno.ENOBUFS])
async def test_a_failed_listing_is_tried_again_and_nothing_is_written_before(world, error):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    world.kernel.fail_next("list routes", error=error)
    assert (await world.apply()).failed == 1
    assert world.written() == []
    assert (await world.apply()).failed == 0
    assert world.routes == {world.device(1, one)}


async def test_after_a_write_of_unknown_outcome_the_table_is_read_back(world):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.want("cali1", 1, 2)
    world.kernel.fail_next("write routes", error=errno.ENOBUFS)
    assert (await world.apply()).failed == 1
    world.kernel.put_route(world.device(2, one))  # it had been applied after all
    world.kernel.read()
    result = await world.apply()
    assert (result.written, result.failed) == (0, 0)
    assert world.table.problem(world.dst(2)) == ""


async def test_a_stranger_on_a_young_interface_waits_until_it_is_old_enough(world):
    """Calico's CNI plugin writes the route of a pod before felix hears of the pod."""
    await world.apply()
    one = world.add_link("cali1")
    early = world.device(1, one, metric=7)
    world.kernel.put_route(early)
    world.events()
    result = await world.apply()
    assert (result.deleted, result.deferred, result.retry_after_s) == (0, 1, 10.0)
    await world.clock.advance(9.9)
    assert (await world.apply()).deferred == 1
    await world.clock.advance(0.1)
    assert (await world.apply()).deleted == 1
    assert world.routes == set()


async def test_our_own_withdrawn_route_on_a_young_interface_goes_at_once(world):
    await world.apply()
    world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.want("cali1")
    assert (await world.apply()).deleted == 1


async def test_a_second_route_of_the_same_destination_and_metric_is_removed(world):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    double = world.device(1, one, protocol=4)
    world.kernel.put_route(double, append=True)
    world.events()
    await world.apply()
    assert world.routes == {world.device(1, one)}
    world.kernel.put_route(double, append=True)
    world.kernel.read()
    world.table.queue_resync("test")
    await world.apply()
    assert world.routes == {world.device(1, one)}
    assert f"replace route {world.dst(1)}" not in world.written()[1:]


async def test_the_stranger_that_turns_out_to_be_the_wanted_route_is_adopted(world):
    await world.apply()
    one = world.add_link("cali1")
    world.kernel.put_route(world.device(1, one))
    world.events()
    assert (await world.apply()).deferred == 1
    world.want("cali1", 1)
    await world.clock.advance(60)
    result = await world.apply()
    assert (result.written, result.deleted, result.deferred) == (0, 0, 0)
    assert world.routes == {world.device(1, one)}


async def test_a_stranger_found_by_a_reading_has_its_grace_too(world):
    await world.apply()
    one = world.add_link("cali1")
    world.kernel.put_route(world.device(1, one))
    world.kernel.read()
    world.table.queue_resync("test")
    assert (await world.apply()).deferred == 1


async def test_a_foreign_route_that_went_unseen_is_not_waited_for_after_a_reading(world):
    one, uplink = world.add_link("cali1"), world.add_link("eth0")
    foreign = world.device(1, uplink, protocol=4)
    world.kernel.put_route(foreign)
    world.want("cali1", 1)
    assert (await world.apply()).deferred == 1
    world.kernel.drop_route(foreign)
    world.kernel.lose_events()
    world.kernel.read()
    world.table.queue_resync("test")
    assert (await world.apply()).written == 1
    assert world.routes == {world.device(1, one)}


async def test_ours_is_recognised_behind_a_double_in_the_listing(world):
    one = world.add_link("cali1")
    world.kernel.put_route(world.device(1, one, protocol=4))
    world.kernel.put_route(world.device(1, one), append=True)
    world.want("cali1", 1)
    result = await world.apply()
    assert (result.written, result.deleted) == (0, 1)
    assert world.routes == {world.device(1, one)}


async def test_a_double_whose_removal_is_refused_is_tried_again(world):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.kernel.put_route(world.device(1, one, protocol=4), append=True)
    world.events()
    world.kernel.fail_next("delete route", error=errno.EBUSY)
    assert (await world.apply()).failed == 1
    assert (await world.apply()).deleted == 1
    assert world.routes == {world.device(1, one)}


@pytest.mark.parametrize("how", ["reading", "down"])
async def test_a_double_that_is_gone_already_is_forgotten(world, how):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    double = world.device(1, one, protocol=4)
    world.kernel.put_route(double, append=True)
    world.events()
    if how == "reading":
        world.kernel.drop_route(double)
        world.kernel.read()
        world.table.queue_resync("test")
        assert (await world.apply()).deleted == 0
    else:
        world.kernel.set_link("cali1", is_up=False)
        world.follow("cali1")
        world.kernel.set_link("cali1", is_up=True)
        world.follow("cali1")
        result = await world.apply()
        assert (result.written, result.deleted) == (1, 0)


async def test_a_dirty_route_is_lost_with_its_interface_too(world):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.want("cali1")
    world.kernel.set_link("cali1", is_up=False)
    world.follow("cali1")
    world.kernel.set_link("cali1", is_up=True)
    world.follow("cali1")
    world.want("cali1", 1)
    assert (await world.apply()).written == 1
    assert world.routes == {world.device(1, one)}


async def test_when_somebody_else_writes_the_wanted_route_the_old_one_still_goes(world):
    one, two = world.add_link("cali1"), world.add_link("cali2")
    world.want("cali1", 1)
    await world.apply()
    world.want("cali1")
    world.want("cali2", 1)
    world.kernel.put_route(world.device(1, two), append=True)
    world.events()
    await world.apply()
    assert world.routes == {world.device(1, two)}
    assert world.device(1, one) not in world.routes


async def test_a_refusal_is_charged_to_the_right_item_of_a_mixed_batch(world):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.want("cali1", 2, 3)
    world.kernel.fail_next("delete route", world.dst(1), error=errno.EBUSY)
    result = await world.apply()
    assert (result.written, result.deleted, result.failed) == (2, 0, 1)
    assert world.table.problem(world.dst(2)) == ""
    assert world.routes == {world.device(number, one) for number in (1, 2, 3)}
    assert (await world.apply()).deleted == 1


async def test_other_families_and_tables_are_not_our_business(world):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    other = "fd00:65::1/128" if world.family == AF_INET else "10.65.0.1/32"
    elsewhere = Route(world.dst(1), (NextHop(one),), protocol=3, table=99, metric=1024)
    for route in (device_route(other, one, protocol=3, metric=1024), elsewhere):
        world.table.on_route_event(RouteEvent(route, True, False, 0))
    assert world.table.dump()["resync"] == ""
    assert (await world.apply()).written == 0


async def test_an_event_that_changes_nothing_of_ours_makes_no_work(world):
    one = world.add_link("cali1")
    ours, theirs = world.device(1, one), world.device(7, one, protocol=PROTO_KERNEL)
    world.want("cali1", 1)
    await world.apply()
    for is_removed in (False, True):
        assert not world.table.on_route_event(RouteEvent(theirs, is_removed, False, 0))
    assert world.table.on_route_event(RouteEvent(ours, True, False, 0)), "to be written again"
    assert world.table.on_route_event(RouteEvent(ours, False, False, 0)), "somebody did: report it"
    assert not world.table.on_route_event(RouteEvent(ours, False, False, 0))
    stranger = world.device(8, one)
    assert world.table.on_route_event(RouteEvent(stranger, False, False, 0)), "to be deleted"


async def test_an_unexpected_form_of_removal_leads_to_a_reading(world):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    await world.apply()
    world.kernel._routes.clear()
    odd = Route(world.dst(1), (NextHop(one, weight=2),), protocol=3, scope=0, metric=1024)
    world.table.on_route_event(RouteEvent(odd.canonical(), True, False, 0))
    assert (await world.apply()).written == 1
    assert world.routes == {world.device(1, one)}


async def test_the_dump_names_what_is_in_trouble(world):
    world.add_link("cali1")
    uplink = world.add_link("eth0")
    world.kernel.put_route(world.device(1, uplink, protocol=4))
    world.want("cali1", 1)
    await world.apply()
    dump = world.table.dump()
    assert dump["wanted"] == 1
    assert dump["foreign_in_the_way"] == [world.dst(1)]


@pytest.mark.parametrize("number", [errno.ENODEV, errno.ENETDOWN])
async def test_a_write_that_lost_the_race_with_its_interface_is_retried(world, number):
    one = world.add_link("cali1")
    world.want("cali1", 1)
    world.kernel.fail_next("replace route", error=number)
    assert (await world.apply()).failed == 1
    assert (await world.apply()).written == 1
    assert world.routes == {world.device(1, one)}


async def test_names(world):
    assert world.table.name == {AF_INET: "routes-v4", AF_INET6: "routes-v6"}[world.family]
