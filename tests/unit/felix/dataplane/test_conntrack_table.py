"""felix.dataplane.conntrack_table against the fake kernel, on fake time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from felix.dataplane.conntrack_table import ConntrackTable
from libcalico.testing.clock import FakeClock
from libcalico.testing.kernel import FakeKernel


class World:
    def __init__(self) -> None:
        self.kernel, self.clock = FakeKernel(), FakeClock()
        self.kernel.connections = {"10.0.0.1": 3, "fd00::1": 2}
        self.table = ConntrackTable(self.kernel, clock=self.clock)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.table.run())
        await self.clock.advance(0)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def asked(self) -> list[str]:
        return [write.key for write in self.kernel.writes]


@pytest.fixture
def world() -> World:
    return World()


async def test_addresses_are_forgotten_once_and_only_after_the_cycle_that_took_their_route(world):
    async with world.running():
        for address in ("10.0.0.1", "10.0.0.1", "fd00::1"):
            world.table.forget(address)
        await world.clock.advance(1)
        assert world.asked() == [], "C1"
        world.table.on_cycle()
        await world.clock.advance(0)
        assert world.asked() == ["10.0.0.1", "fd00::1"]
        assert world.kernel.connections == {}
        world.table.on_cycle()
        await world.clock.advance(1)
        assert len(world.asked()) == 2
        assert world.table.dump() == {"pending": [], "due": []}


async def test_what_failed_is_tried_again_with_what_has_come_since(world):
    world.kernel.fail_next("forget", "10.0.0.1", times=2)
    async with world.running():
        world.table.forget("10.0.0.1")
        world.table.on_cycle()
        await world.clock.advance(0)
        assert world.table.dump() == {"pending": [], "due": ["10.0.0.1"]}
        world.table.forget("fd00::1")
        world.table.on_cycle()
        await world.clock.advance(0.05)
        assert world.kernel.connections != {}, "it waits before it tries again"
        await world.clock.advance(1)
        assert world.kernel.connections == {}
        assert world.table.dump() == {"pending": [], "due": []}
