"""libcalico.testing.clock and libcalico.runtime.clock."""

from __future__ import annotations

import asyncio

import pytest

from libcalico.runtime.clock import SYSTEM
from libcalico.testing.clock import FakeClock


async def test_sleepers_wake_in_order_of_their_deadlines_each_at_its_instant():
    clock = FakeClock()
    start = clock.monotonic()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic() - start))

    tasks = [asyncio.ensure_future(sleeper(*item)) for item in (("b", 2.0), ("a", 1.0), ("c", 9.0))]
    await clock.advance(5)
    assert woken == [("a", 1.0), ("b", 2.0)]
    assert clock.monotonic() - start == 5
    assert clock.sleepers() == 1
    assert clock.next_deadline() == start + 9
    await clock.advance(4)
    assert woken[-1] == ("c", 9.0)
    await asyncio.gather(*tasks)


async def test_a_loop_that_sleeps_again_is_woken_again():
    clock = FakeClock()
    ticks = 0

    async def loop() -> None:
        nonlocal ticks
        while True:
            await clock.sleep(1)
            ticks += 1

    task = asyncio.ensure_future(loop())
    await clock.advance(10)
    assert ticks == 10
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleepers() == 0


async def test_a_cancelled_sleeper_is_forgotten():
    clock = FakeClock()
    task = asyncio.ensure_future(clock.sleep(5))
    await clock.advance(0)
    task.cancel()
    await clock.advance(10)
    assert task.cancelled()


async def test_no_sleep_is_only_a_turn_for_others():
    await FakeClock().sleep(0)


def test_the_wall_clock_can_jump_and_monotonic_time_does_not_notice():
    clock = FakeClock(monotonic=5.0, wall=100.0)
    clock.jump_wall(3600)
    assert (clock.monotonic(), clock.wall()) == (5.0, 3700.0)


async def test_the_system_clock_tells_time():
    before = SYSTEM.monotonic()
    await SYSTEM.sleep(0)
    assert SYSTEM.monotonic() >= before
    assert SYSTEM.wall() > 1_600_000_000
