"""The one thread in which felix's blocking kernel calls run.

Layer: felix.kernel (edge). Shared by the adapters of this folder.

rtnetlink calls take microseconds, but they wait for the kernel's RTNL lock, which a namespace
being torn down may hold for tens of milliseconds; the asyncio loop must not stand still for that.
One thread, so calls stay in the order in which they were made (about 60 us a hand-over).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class KernelWorker:
    """Runs functions one after the other, in the network namespace it was made in."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="felix-kernel")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, or its exception. A call once begun is finished even when the
        caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
