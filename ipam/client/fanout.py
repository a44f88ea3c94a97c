"""Several datastore calls at once, none left behind.

Layer: ipam edge. Used by the other modules of `ipam.client`. At most `AT_ONCE` calls are under way
(the bound of our load on etcd); the first failure cancels the rest and is raised as itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from libcalico.errors import SuiteError

AT_ONCE = 16

T = TypeVar("T")
R = TypeVar("R")


async def for_each(call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """`call` for every item; results in the order of the items."""
    wanted = list(items)
    if len(wanted) <= 1:
        return [await call(item) for item in wanted]
    permits = asyncio.Semaphore(AT_ONCE)

    async def permitted(item: T) -> R:
        async with permits:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(permitted(item)) for item in wanted]
    except BaseExceptionGroup as failures:
        raise first_of(failures) from failures
    return [task.result() for task in tasks]


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Several failures of one cause, told as one; the group itself when a bug is among them."""
    ours, others = group.split(SuiteError)
    if ours is None or others is not None:
        return group
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
