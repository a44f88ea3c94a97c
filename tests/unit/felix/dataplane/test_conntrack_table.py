"""felix.dataplane.conntrack_table against the fake kernel, on fake time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
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
        await world.table.apply()
        await world.clock.advance(0)
        assert world.asked() == ["10.0.0.1", "fd00::1"]
        assert world.kernel.connections == {}
        await world.table.apply()
        await world.clock.advance(1)
        assert len(world.asked()) == 2
        assert world.table.dump() == {"pending": [], "due": []}


async def test_what_failed_is_tried_again_with_what_has_come_since(world):
    world.kernel.fail_next("forget", "10.0.0.1", times=2)
    async with world.running():
        world.table.forget("10.0.0.1")
        await world.table.apply()
        await world.clock.advance(0)
        assert world.table.dump() == {"pending": [], "due": ["10.0.0.1"]}
        world.table.forget("fd00::1")
        await world.table.apply()
        await world.clock.advance(0.05)
        assert world.kernel.connections != {}, "it waits before it tries again"
        await world.clock.advance(1)
        assert world.kernel.connections == {}
        assert world.table.dump() == {"pending": [], "due": []}


async def test_nobody_waits_for_an_address_that_is_not_to_be_forgotten(world):
    world.table.forget("10.0.0.1")
    assert await world.table.forgotten({"10.0.0.2", "fd00::1"}, 5.0) == ""


async def test_the_next_owner_waits_until_its_address_is_forgotten(world):
    world.kernel.fail_next("forget", "10.0.0.1", times=2)
    async with world.running():
        world.table.forget("10.0.0.1")
        waiting = asyncio.ensure_future(world.table.forgotten({"10.0.0.1"}, 5.0))
        await world.clock.advance(0)
        await world.table.apply()
        await world.clock.advance(0.05)
        assert not waiting.done()
        await world.clock.advance(1)
        assert await waiting == ""
        assert "10.0.0.1" not in world.kernel.connections


async def test_patience_ends_with_the_kernels_words(world):
    world.kernel.fail_next("forget", "10.0.0.1", times=1000)
    async with world.running():
        world.table.forget("10.0.0.1")
        await world.table.apply()
        waiting = asyncio.ensure_future(world.table.forgotten({"10.0.0.1"}, 5.0))
        await world.clock.advance(4.9)
        assert not waiting.done()
        await world.clock.advance(0.2)
        assert "forget" in await waiting
    never = asyncio.ensure_future(world.table.forgotten({"10.0.0.1"}, 5.0))
    await world.clock.advance(6)
    assert await never, "nobody runs it: an end all the same"


class SlowKernel(FakeKernel):
    """Forgets when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()

    async def forget_addresses(self, addresses: Sequence[str]) -> int:
        count = await super().forget_addresses(addresses)
        self.entered.set()
        await self.go_on.wait()
        return count


async def test_an_address_that_is_asked_for_again_meanwhile_is_forgotten_again(world):
    world.kernel = SlowKernel()
    world.table = ConntrackTable(world.kernel, clock=world.clock)
    async with world.running():
        world.table.forget("10.0.0.1")
        await world.table.apply()
        await world.kernel.entered.wait()
        world.kernel.connections = {"10.0.0.1": 1}
        world.table.forget("10.0.0.1")
        await world.table.apply()
        assert world.table.dump() == {"pending": [], "due": ["10.0.0.1", "10.0.0.1"]}
        world.kernel.go_on.set()
        await world.clock.advance(0)
        assert world.asked() == ["10.0.0.1", "10.0.0.1"]
        assert world.kernel.connections == {}
