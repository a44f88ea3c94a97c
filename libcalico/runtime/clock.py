"""Time as something that is handed in, so that tests decide how fast it passes.

Layer: runtime edge. Pure code takes `now: float` as an argument; loops at the edge take a `Clock`.
`FakeClock` lives in `libcalico.testing.clock`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Three questions a loop asks of time."""

    def monotonic(self) -> float:
        """Seconds since some fixed instant; never jumps. For intervals and deadlines."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch. Only for what is stored or shown."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real one."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM = SystemClock()


async def wait_for_event(event: asyncio.Event, wait_s: float, clock: Clock) -> None:
    """Until the event is set, `wait_s` by this clock at most. Nothing is left running."""
    sleeping = asyncio.ensure_future(clock.sleep(wait_s))
    waking = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sleeping, waking):
            task.cancel()
        await asyncio.gather(sleeping, waking, return_exceptions=True)
