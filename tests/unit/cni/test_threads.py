"""cni.threads: what was begun has ended, one way or the other, before anybody undoes it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cni.threads import both, in_thread


async def test_both_results_come_in_the_order_asked_for():
    async def slow() -> str:
        await asyncio.sleep(0)
        return "slow"

    assert await both(slow(), in_thread(lambda: "thread")) == ("slow", "thread")


@pytest.mark.parametrize("failing_first", [True, False])
async def test_when_one_fails_the_other_has_ended_before_the_error_goes_on(failing_first: bool):
    ended = []

    async def fails() -> None:
        raise ValueError("refused")

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("other")

    order = (fails(), goes_on()) if failing_first else (goes_on(), fails())
    with pytest.raises(ValueError, match="refused"):
        await both(*order)
    assert ended == ["other"]


async def test_a_thread_is_waited_for_when_its_caller_is_cancelled_or_its_sibling_fails():
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        may_end.wait(10)
        ended.append("thread")

    async def fails() -> None:
        await asyncio.to_thread(begun.wait, 10)
        asyncio.get_running_loop().call_later(0.02, may_end.set)
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await both(in_thread(work), fails())
    assert ended == ["thread"]

    begun.clear(), may_end.clear(), ended.clear()
    caller = asyncio.ensure_future(both(in_thread(work), asyncio.sleep(0)))
    await asyncio.to_thread(begun.wait, 10)
    caller.cancel()
    asyncio.get_running_loop().call_later(0.02, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == ["thread"]


async def test_the_error_of_a_thread_nobody_waits_for_any_more_is_not_lost_on_the_loop():
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

    def work() -> None:
        raise ValueError("too late")

    caller = asyncio.ensure_future(in_thread(work))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    assert said == []
