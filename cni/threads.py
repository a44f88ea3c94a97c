"""Kernel work beside the event loop, what must not be left half done, and two things at once.

Layer: edge. Used by cni.add and cni.delete. The threads are the loop's executor's: felix gives it
enough of them, because a wire's removal sits 20 ms in the kernel and pods that start must not queue
behind pods that end.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def in_thread(work: Callable[[], A]) -> A:
    """Run `work` in a thread. A cancelled caller waits for its end all the same: what was made must
    be undone, and a thread cannot be stopped half way."""
    running = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, work)
    return await to_the_end(running)


async def to_the_end(work: Awaitable[A]) -> A:
    """Run `work` to its end however often the caller is cancelled meanwhile; only then is it."""
    running = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as err:
            cancelled = err
    if cancelled is not None:
        if not running.cancelled():
            running.exception()  # seen; what matters now is that it has ended
        raise cancelled
    return running.result()


async def both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """Both results. When one fails, or the caller is cancelled, the other is cancelled and has
    ended before the error goes on: whoever undoes things finds them done or not, never on their
    way."""
    one, other = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        await asyncio.wait({one, other}, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        unfinished = {task for task in (one, other) if not task.done()}
        for task in unfinished:
            task.cancel()
        if unfinished:
            await to_the_end(asyncio.wait(unfinished))
    failures = [
        task.exception() for task in (one, other) if not task.cancelled() and task.exception()
    ]
    if failures and failures[0] is not None:
        raise failures[0]
    return one.result(), other.result()
