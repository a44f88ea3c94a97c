"""A clock that stands still until the test moves it.

Layer: testing. `await clock.advance(5)` wakes every sleeper that is due, in order of deadline, and
lets the woken tasks run until they sleep or wait again. No test that uses it needs a real sleep.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

# Loop turns given to woken tasks after each wake-up. A task needs one turn for every future it
# passes through; chains longer than this would be a design worth looking at.
_SETTLE_TURNS = 50


class FakeClock:
    """Satisfies `libcalico.runtime.clock.Clock`. Monotonic and wall time advance together."""

    def __init__(self, *, monotonic: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall_offset = wall - monotonic
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._monotonic + self._wall_offset

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._order), future))
        await future

    def sleepers(self) -> int:
        """How many tasks wait for time to pass."""
        return sum(1 for _, _, future in self._sleepers if not future.done())

    def next_deadline(self) -> float | None:
        """When the first sleeper is due, in monotonic seconds."""
        deadlines = [due for due, _, future in self._sleepers if not future.done()]
        return min(deadlines, default=None)

    def jump_wall(self, seconds: float) -> None:
        """Somebody set the machine's clock; monotonic time does not notice."""
        self._wall_offset += seconds

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, waking sleepers at their own instants on the way."""
        target = self._monotonic + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            self._monotonic = max(self._monotonic, due)
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._monotonic = target
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)
