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


async def test_a_small_call_runs_where_it_is_unless_another_is_running():
    worker = KernelWorker()
    here = threading.current_thread().name

    def where() -> str:
        return threading.current_thread().name

    assert await worker.run(where, items=3) == here
    assert await worker.run(where, items=1000) != here
    release = threading.Event()
    large = asyncio.ensure_future(worker.run(release.wait))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(worker.run(where, items=3))
    await asyncio.sleep(0)
    assert not small.done(), "it waits for its turn"
    release.set()
    await large
    assert await small != here
    assert await worker.run(where, items=3) == here
    worker.close()


async def test_an_exception_reaches_the_caller():
    worker = KernelWorker()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await worker.run(fail)
    worker.close()
