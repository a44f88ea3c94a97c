"""felix.dataplane.loop: order, retries, refreshes, waiters; on recording drivers and fake time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from felix.dataplane.link_monitor import LinkMonitor
from felix.dataplane.loop import CycleReport, Dataplane, DataplaneParts, Stage
from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from felix.dataplane.ownership import RouteOwnership
from felix.dataplane.route_table import RouteClass, RouteTable, RouteTarget
from felix.intent import InSync, Intent, PoolUpdate
from libcalico.errors import DataplaneStuck
from libcalico.netlink import AF_INET, LinkEvent, device_route
from libcalico.testing.clock import FakeClock
from libcalico.testing.kernel import FakeKernel

POOL = PoolUpdate("10.65.0.0/16", True)
WORKED = ApplyResult(written=1)
FAILED = ApplyResult(failed=1, error="refused")


class RecordingDriver:
    """Answers from a script (the last answer stays) and writes down when it was asked."""

    def __init__(self, name: str, log: list[str], *answers: ApplyResult) -> None:
        self._name, self._log = name, log
        self.answers = list(answers) or [NOTHING_DONE]
        self.resyncs: list[str] = []
        self.began = asyncio.Event()

    @property
    def name(self) -> str:
        return self._name

    def queue_resync(self, reason: str) -> None:
        self.resyncs.append(reason)

    async def apply(self) -> ApplyResult:
        self._log.append(self.name)
        self.began.set()
        await asyncio.sleep(0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def dump(self) -> dict[str, object]:
        return {"name": self.name}


class RecordingManager:
    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.intents: list[Intent] = []

    def on_intent(self, intent: Intent) -> None:
        self.intents.append(intent)

    def complete_deferred_work(self) -> None:
        self._log.append("manager")


class World:
    def __init__(self, **parts: float) -> None:
        self.log: list[str] = []
        self.kernel, self.clock = FakeKernel(), FakeClock()
        self.filter = RecordingDriver("filter", self.log)
        self.routes = RecordingDriver("routes", self.log)
        self.manager = RecordingManager(self.log)
        self.links = LinkMonitor(self.kernel)
        self.reports: list[CycleReport] = []
        self.dataplane = Dataplane(
            DataplaneParts(
                managers=[self.manager],
                stages=[
                    Stage(self.filter, refresh_s=180, is_vital=True),
                    Stage(self.routes, refresh_s=90),
                ],
                links=self.links,
                events=self.kernel,
                **parts,  # type: ignore[arg-type]
            ),
            clock=self.clock,
        )
        self.dataplane.add_observer(self.reports.append)

    @asynccontextmanager
    async def running(self, *, in_sync: bool = True, watching: bool = True) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.dataplane.run())]
        if watching:
            tasks.append(asyncio.create_task(self.dataplane.watch_kernel()))
        if in_sync:
            self.dataplane.on_intents([InSync()])
        await self.clock.advance(0)
        try:
            yield
            assert not any(task.done() for task in tasks), "the loop ended by itself"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def take(self) -> list[str]:
        log = self.log[:]
        self.log.clear()
        return log


CYCLE = ["manager", "filter", "routes"]


async def test_nothing_is_applied_before_in_sync_and_everything_at_once_after():
    world = World()
    async with world.running(in_sync=False):
        world.dataplane.on_intents([POOL])
        await world.clock.advance(300)
        assert world.take() == []
        assert not world.dataplane.is_in_sync
        world.dataplane.on_intents([InSync()])
        await world.clock.advance(0)
        assert world.take() == CYCLE
        assert world.manager.intents == [POOL, InSync()]
        assert world.dataplane.has_applied


async def test_waiting_before_in_sync_costs_no_cpu():
    world = World()
    async with world.running(in_sync=False):
        world.dataplane.on_intents([POOL])
        await world.clock.advance(1)
        assert world.clock.sleepers() == 1, "the loop sleeps although it was woken"


async def test_an_intent_wakes_the_loop_and_many_share_a_cycle():
    world = World()
    async with world.running():
        world.take()
        for _ in range(100):
            world.dataplane.on_intents([POOL])
        await world.clock.advance(0)
        assert world.take() == CYCLE
        world.dataplane.on_intents([])
        await world.clock.advance(0)
        assert world.take() == []


async def test_a_cycle_tells_how_long_its_oldest_intent_waited():
    world = World(apply_delay_s=1)
    async with world.running():
        await world.clock.advance(1.5)
        world.dataplane.on_intents([POOL])
        await world.clock.advance(0.5)
        world.dataplane.on_intents([POOL])
        await world.clock.advance(20)
        assert [report.waited_s for report in world.reports if report.waited_s is not None] == [
            1.0,
            1.0,
        ]


async def test_flush_waits_for_a_cycle_that_began_after_it():
    world = World()
    async with world.running():
        world.take()
        first = asyncio.create_task(world.dataplane.flush())
        second = asyncio.create_task(world.dataplane.flush())
        await world.clock.advance(0)
        assert first.done()
        assert second.done()
        assert world.take() == CYCLE, "one cycle for both"
        assert (await first).is_filtering


async def test_a_flush_during_a_cycle_gets_the_next_one():
    world = World()
    async with world.running():
        world.take()
        world.filter.began.clear()
        world.dataplane.wake()
        await world.filter.began.wait()
        late = asyncio.create_task(world.dataplane.flush())
        await world.clock.advance(0)
        assert (await late) is world.reports[-1]
        assert world.take() == CYCLE * 2
        assert len(world.reports) == 3


async def test_a_failure_does_not_stop_the_later_stages_unless_it_is_vital():
    world = World()
    world.routes.answers = [FAILED]
    async with world.running():
        assert world.take()[:3] == CYCLE
        assert world.reports[-1].is_filtering
        world.filter.answers = [FAILED]
        world.dataplane.wake()
        await world.clock.advance(0)
        log = world.take()
        assert log[:2] == ["manager", "filter"]
        assert "routes" not in log
        assert not world.reports[-1].is_filtering


async def test_failures_are_retried_with_growing_waits_that_a_success_resets():
    world = World()
    world.routes.answers = [FAILED] * 6 + [WORKED]
    async with world.running():
        await world.clock.advance(0.1)
        assert len(world.reports) == 2
        await world.clock.advance(0.05)
        assert len(world.reports) == 2, "the second wait is longer"
        await world.clock.advance(8)
        assert world.reports[-1].total.written == 1
        count = len(world.reports)
        await world.clock.advance(5)
        assert len(world.reports) == count, "nothing to retry any more"
        world.routes.answers = [FAILED, WORKED]
        world.dataplane.wake()
        await world.clock.advance(0.1)
        assert world.reports[-1].total.written == 1, "the first wait is short again"


async def test_a_deferred_item_is_looked_at_when_its_time_comes():
    world = World()
    world.routes.answers = [ApplyResult(deferred=1, retry_after_s=4.0), WORKED]
    async with world.running():
        await world.clock.advance(3.9)
        assert len(world.reports) == 1
        await world.clock.advance(0.2)
        assert world.reports[-1].total.written == 1


async def test_each_stage_is_read_back_at_its_own_interval():
    world = World(link_refresh_s=100)
    async with world.running():
        await world.clock.advance(89)
        assert (world.filter.resyncs, world.routes.resyncs) == ([], [])
        await world.clock.advance(2)
        assert (world.filter.resyncs, world.routes.resyncs) == ([], ["periodic"])
        world.kernel.add_link("quiet")
        world.kernel.read()
        await world.clock.advance(10)
        assert world.links.interface("quiet") is not None
        await world.clock.advance(85)
        assert (world.filter.resyncs, world.routes.resyncs) == (["periodic"], ["periodic"] * 2)


async def test_a_requested_resync_reaches_everybody():
    world = World()
    async with world.running():
        world.kernel.add_link("quiet")
        world.kernel.read()
        world.dataplane.queue_resync("SIGHUP")
        await world.clock.advance(0)
        assert world.filter.resyncs == world.routes.resyncs == ["SIGHUP"]
        assert world.links.interface("quiet") is not None


async def test_an_idle_loop_shows_that_it_is_alive():
    world = World()
    async with world.running():
        count = len(world.reports)
        await world.clock.advance(35)
        assert len(world.reports) - count == 3


async def test_cycles_are_bounded_in_rate_after_a_burst():
    world = World()
    async with world.running():
        count = len(world.reports)
        for _ in range(100):
            world.dataplane.wake()
            await world.clock.advance(0)
        assert len(world.reports) - count <= 20
        await world.clock.advance(1)
        world.dataplane.wake()
        await world.clock.advance(0)
        assert len(world.reports) - count > 20


async def test_who_waits_for_a_cycle_is_not_held_up_by_the_bound():
    world = World()
    async with world.running():
        for _ in range(100):
            world.dataplane.wake()
            await world.clock.advance(0)
        count = len(world.reports)
        # The loop sleeps until its next token; then somebody comes who waits.
        for _ in range(5):
            waiting = asyncio.create_task(world.dataplane.flush())
            await world.clock.advance(0)
            assert waiting.done()
        assert len(world.reports) - count == 5


async def test_a_filter_that_keeps_failing_ends_the_process_and_its_waiters():
    world = World()
    world.filter.answers = [FAILED]
    run = asyncio.create_task(world.dataplane.run())
    world.dataplane.on_intents([InSync()])
    await world.clock.advance(55)
    assert not run.done()
    await world.clock.advance(0.5)
    waiter = asyncio.create_task(world.dataplane.flush())
    await world.clock.advance(30)
    assert run.done()
    with pytest.raises(DataplaneStuck):
        await run
    # The waiter either shared a failing cycle or heard of the end; it does not hang.
    assert waiter.done()


async def test_a_waiter_whose_cycle_breaks_hears_of_it():
    world = World()

    async def broken() -> ApplyResult:
        raise RuntimeError("a bug")

    world.routes.apply = broken  # type: ignore[method-assign]
    run = asyncio.create_task(world.dataplane.run())
    waiter = asyncio.create_task(world.dataplane.flush())
    await world.clock.advance(0)
    world.dataplane.on_intents([InSync()])
    await world.clock.advance(0)
    with pytest.raises(RuntimeError, match="a bug"):
        await run
    with pytest.raises(DataplaneStuck):
        await waiter


async def test_a_waiter_hears_of_the_end_of_the_loop():
    world = World()
    async with world.running(in_sync=False):
        waiter = asyncio.create_task(world.dataplane.flush())
        await world.clock.advance(0)
    with pytest.raises(DataplaneStuck):
        await waiter


async def test_after_the_end_of_the_loop_nobody_waits_for_a_cycle():
    """As a pod whose ADD is rolled back while felix ends."""
    world = World()
    async with world.running():
        world.take()
    with pytest.raises(DataplaneStuck):
        await asyncio.wait_for(world.dataplane.flush(), 5)
    async with world.running():
        world.take()
        waiter = asyncio.create_task(world.dataplane.flush())
        await world.clock.advance(0)
        assert (await waiter).is_filtering, "a loop that was started again serves again"


async def test_a_filter_that_recovers_in_time_is_forgiven():
    world = World()
    world.filter.answers = [FAILED]
    async with world.running():
        for _ in range(3):
            await world.clock.advance(40)
            world.filter.answers = [WORKED]
            await world.clock.advance(15)
            world.filter.answers = [FAILED]
            world.dataplane.wake()
            await world.clock.advance(0)
        assert len(world.reports) > 6


async def test_links_that_cannot_be_listed_are_tried_again():
    world = World()
    world.kernel.fail_next("list links", error=errno.ENOBUFS)
    async with world.running():
        assert world.reports[0].total.failed == 1
        assert world.take()[:3] == CYCLE, "the rest goes on"
        await world.clock.advance(0.2)
        assert world.links.interface("lo") is not None
        assert world.reports[-1].total.failed == 0


async def test_a_simulated_hang_and_delay_are_what_they_say():
    world = World(hang_after_s=5, apply_delay_s=1)
    async with world.running():
        await world.clock.advance(0.9)
        assert world.reports == []
        await world.clock.advance(0.2)
        assert len(world.reports) == 1
        await world.clock.advance(100)
        count = len(world.reports)
        world.dataplane.wake()
        await world.clock.advance(100)
        assert len(world.reports) == count


# --- with a real route table: events reach it, and only what is asked of it is done


class RouteWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(self.kernel, AF_INET, ownership=RouteOwnership(), clock=self.clock)
        self.links.add_listener(self.table)
        self.dataplane = Dataplane(
            DataplaneParts(
                managers=[self.manager],
                stages=[Stage(self.table)],
                links=self.links,
                events=self.kernel,
                route_tables=[self.table],
            ),
            clock=self.clock,
        )
        self.ifindex = self.kernel.add_link("cali1")
        target = RouteTarget("10.65.0.1/32", 1024)
        self.table.set_routes(RouteClass.LOCAL_WORKLOAD, "cali1", [target])
        self.route = device_route("10.65.0.1/32", self.ifindex, protocol=3, metric=1024)


async def test_a_deleted_route_is_repaired_without_waiting_for_anything():
    world = RouteWorld()
    async with world.running():
        assert world.kernel.routes() == {world.route}
        world.kernel.drop_route(world.route)
        await world.clock.advance(0)
        assert world.kernel.routes() == {world.route}


async def test_what_others_do_to_their_own_makes_no_cycle():
    world = RouteWorld()
    async with world.running():
        world.take()
        foreign = device_route("192.0.2.0/24", world.ifindex, protocol=2)
        world.kernel.put_route(foreign)
        world.kernel.drop_route(foreign)
        world.kernel._notify(LinkEvent(world.kernel.link("cali1"), False, 0))
        await world.clock.advance(1)
        assert world.kernel._events == [], "they were read"
        assert world.take() == []
        world.kernel.set_link("cali1", mtu_bytes=1400)
        await world.clock.advance(1)
        assert world.take() == ["manager"]


async def test_lost_notifications_lead_to_a_reading():
    world = RouteWorld()
    async with world.running():
        world.kernel.drop_route(world.route)
        world.kernel.add_link("unseen")
        world.kernel.lose_events()
        await world.clock.advance(0)
        assert world.kernel.routes() == {world.route}
        assert world.links.interface("unseen") is not None


async def test_notifications_that_cannot_be_read_lead_to_a_reading():
    world = RouteWorld()
    async with world.running():
        world.kernel.fail_next("read events")
        world.kernel.drop_route(world.route)
        world.kernel._events.clear()
        await world.clock.advance(1)
        assert world.kernel.routes() == {world.route}


async def test_an_interface_made_just_now_is_known_to_the_cycle_that_flush_waits_for():
    """The CNI agent makes the veth and asks for its route at once."""
    world = RouteWorld()
    async with world.running(watching=False):
        ifindex = world.kernel.add_link("cali2")
        targets = [RouteTarget("10.65.0.2/32", 1024)]
        world.table.set_routes(RouteClass.LOCAL_WORKLOAD, "cali2", targets)
        flushed = asyncio.create_task(world.dataplane.flush())
        await world.clock.advance(0)
        assert flushed.done()
        assert device_route("10.65.0.2/32", ifindex, protocol=3, metric=1024) in (
            world.kernel.routes()
        )


async def test_the_dump_shows_interfaces_and_drivers():
    world = World()
    async with world.running():
        dump = world.dataplane.dump()
        assert dump["in_sync"] is True
        assert set(dump["drivers"]) == {"filter", "routes"}
        assert "lo" in dump["links"]
