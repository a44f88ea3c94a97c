"""felix.kernel.worker: one thread, in order, exceptions included."""

from __future__ import annotations

import asyncio
import threading

import pytest

from felix.kernel.worker import KernelWorker


async def test_calls_run_one_after_the_other_in_one_other_thread():
    worker = KernelWorker()
    done: list[tuple[int, str]] = []

    def work(number: int) -> int:
        done.append((number, threading.current_thread().name))
        return number

    results = await asyncio.gather(*(worker.run(lambda n=n: work(n)) for n in range(20)))
    assert results == list(range(20))
    assert [number for number, _ in done] == list(range(20))
    assert len({name for _, name in done}) == 1
    assert threading.current_thread().name not in {name for _, name in done}
    worker.close()


async def test_an_exception_reaches_the_caller():
    worker = KernelWorker()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await worker.run(fail)
    worker.close()
