"""The one thread in which felix's blocking kernel calls run.

Layer: felix.kernel (edge). Shared by the adapters of this folder.

Listings and large batches take milliseconds, for which the asyncio loop must not stand still. A
small write takes less than handing it over to a thread does (60 us, much more on a busy machine),
and a pod that starts waits for three of them: those run where they are. All calls are in the order
in which they were made, because a small one is handed over too while another is running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# A workload's settings are ten, its routes two.
_INLINE_ITEMS = 16
_MANY = 1 << 30


class KernelWorker:
    """Runs functions one after the other, in the network namespace it was made in."""

    def __init__(self) -> None:
        self._last: Future[Any] | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="felix-kernel")

    async def run(self, work: Callable[[], T], *, items: int = _MANY) -> T:
        """The result of `work`, or its exception. `items` says how much it is: a few small writes
        run at once. A call once begun is finished even when the caller is cancelled."""
        if items <= _INLINE_ITEMS and (self._last is None or self._last.done()):
            return work()
        submitted = self._executor.submit(work)
        self._last = submitted
        return await asyncio.wrap_future(submitted)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
