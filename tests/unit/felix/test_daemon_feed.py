"""felix.daemon_feed: updates in, intents out, one flush for a burst."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from felix.calc.graph import CalcGraph
from felix.daemon_feed import FanOut, GraphFeed
from felix.intent import InSync
from libcalico.model import HTTPMatch
from libcalico.syncer.api import SyncStatus, Update
from libcalico.testing.clock import FakeClock
from tests.support import calc


class Sink:
    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    def on_updates(self, updates) -> None:
        self._log.append(f"{self._name}:{len(updates)}")

    def on_status(self, status) -> None:
        self._log.append(f"{self._name}:{status.value}")


def test_every_sink_hears_everything_in_order():
    log: list[str] = []
    fan = FanOut(Sink(log, "a"), Sink(log, "b"))
    fan.on_updates([Update(calc.pool("p", "10.0.0.0/8")[0], None, 1)])
    fan.on_status(SyncStatus.IN_SYNC)
    assert log == ["a:1", "b:1", "a:in-sync", "b:in-sync"]


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.delivered: list[list[object]] = []
        self.alive = 0
        self.feed = GraphFeed(
            CalcGraph("here"),
            lambda intents: self.delivered.append(list(intents)),
            clock=self.clock,
            is_alive=self.count,
        )

    def count(self) -> None:
        self.alive += 1

    def say(self, *objects) -> None:
        self.feed.on_updates([Update(key, value, 1) for key, value in objects])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.feed.run())
        await self.clock.advance(0)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_burst_becomes_one_delivery():
    world = World()
    async with world.running():
        world.feed.on_status(SyncStatus.IN_SYNC)
        for n in range(50):
            world.say(calc.pool(f"p{n}", f"10.{n}.0.0/16"))
        await world.clock.advance(0)
        assert [len(intents) for intents in world.delivered] == [51]
        assert isinstance(world.delivered[0][-1], InSync)
        assert world.feed.status is SyncStatus.IN_SYNC


async def test_publish_does_not_wait_for_the_task():
    world = World()
    world.feed.on_status(SyncStatus.IN_SYNC)
    world.feed.publish()
    world.say(calc.pool("p", "10.0.0.0/8"))
    world.feed.publish()
    assert [len(intents) for intents in world.delivered] == [1, 1]


async def test_an_idle_feed_shows_that_it_is_alive():
    world = World()
    async with world.running():
        alive = world.alive
        await world.clock.advance(35)
        assert world.alive - alive == 3


async def test_an_invalid_object_is_warned_of_once(caplog):
    world = World()
    bad = calc.np("bad", selector="app ==")
    async with world.running():
        world.feed.on_status(SyncStatus.IN_SYNC)
        for _ in range(3):
            world.say(bad)
            await world.clock.advance(0)
        said = [record for record in caplog.records if "invalid object" in record.getMessage()]
        assert len(said) == 1


async def test_a_rule_that_cannot_be_enforced_here_is_said_once(caplog):
    world = World()
    web = calc.np("web", ingress=(calc.rule(http=HTTPMatch(methods=("GET",))),))
    async with world.running():
        world.feed.on_status(SyncStatus.IN_SYNC)
        for _ in range(3):
            world.say(web)
            await world.clock.advance(0)
        said = [record for record in caplog.records if "not in force" in record.getMessage()]
        assert len(said) == 1
