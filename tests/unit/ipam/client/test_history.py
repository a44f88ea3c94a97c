"""ipam.client.history: what an audit is fed, and that nothing is left out in silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from ipam.audit import Violation
from ipam.client.history import BadRange, Compacted, History
from libcalico.datastore.api import WatchBatch
from libcalico.errors import Unauthorized
from libcalico.model import codec
from libcalico.model.ipam import BlockAffinity
from libcalico.model.keys import BlockAffinityKey, path_of
from libcalico.testing.datastore import MemoryDatastore

BAD = path_of(BlockAffinityKey("n1", "10.0.0.0/29"))  # confirmed for a block that is not there
VALUE = codec.encode(BlockAffinity(state="confirmed"))


async def revisions(found: AsyncGenerator[Sequence[Violation], None]) -> list[int]:
    return [violation.revision async for batch in found for violation in batch]


@pytest.fixture
def store() -> MemoryDatastore:
    """Revisions: 2 something else, 3 wrong, 4 right again, 5 wrong again, 6 something else."""
    made = MemoryDatastore()
    made.seed({"x": b"1", BAD: VALUE})
    made.erase(BAD)
    made.seed({BAD: VALUE, "y": b"2"})
    return made


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, None, [3, 5]), (1, 6, [3, 5]), (2, 4, [3]), (3, 3, [3]), (3, 5, [3, 5]),
        (4, 4, []), (4, None, [5]), (5, 6, [5]), (6, 6, [6]), (None, 2, []), (None, 3, [3]),
    ],
)  # fmt: skip
async def test_a_range_begins_with_a_state_and_ends_where_it_was_told(
    store: MemoryDatastore, first: int | None, last: int | None, expected: list[int]
):
    """What is wrong in the state to begin with is said of that revision."""
    before = store.contents()
    history = History(store)
    assert await revisions(history.replay(first, last)) == expected
    assert (history.first, history.last) == (first or 1, last or 6)
    assert store.contents() == before


async def test_the_default_range_begins_at_the_last_compaction(store: MemoryDatastore):
    store.compact(4)
    history = History(store)
    assert await revisions(history.replay(None, None)) == [5]
    assert (history.first, history.last) == (4, 6)


@pytest.mark.parametrize(("first", "last"), [(3, None), (1, 3), (None, 3)])
async def test_a_compacted_start_names_the_oldest_revision(
    store: MemoryDatastore, first: int | None, last: int | None
):
    store.compact(4)
    with pytest.raises(Compacted) as caught:
        await revisions(History(store).replay(first, last))
    assert str(caught.value) == (
        f"revision {first or last} has been compacted: "
        "the oldest revision that can be replayed is 4"
    )


async def test_what_is_compacted_while_it_is_replayed_is_no_clean_result(store: MemoryDatastore):
    store.before_next(lambda: store.compact(6), operations=["watch"])
    with pytest.raises(Compacted) as caught:
        await revisions(History(store).replay(2, 5))
    assert (caught.value.revision, caught.value.oldest) == (3, 6)


async def test_a_compaction_while_the_oldest_state_is_taken_takes_the_next(store: MemoryDatastore):
    store.before_next(lambda: store.compact(5), operations=["list"], prefix="/calico/resources/")
    history = History(store)
    assert await revisions(history.replay(None, None)) == [5]
    assert history.first == 5


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [
        (7, None, "--from: revision 7 is in the future: the datastore stands at 6"),
        (None, 9, "--to: revision 9 is in the future: the datastore stands at 6"),
        (5, 3, "--from 5 is after --to 3"),
    ],
)
async def test_ranges_that_do_not_exist(
    store: MemoryDatastore, first: int | None, last: int | None, reason: str
):
    with pytest.raises(BadRange) as caught:
        await revisions(History(store).replay(first, last))
    assert str(caught.value) == reason


async def test_an_empty_store_has_a_history_that_ends():
    history = History(MemoryDatastore())
    assert await revisions(history.replay(None, None)) == []
    assert (history.first, history.last) == (1, 1)


async def test_following_goes_on_until_it_is_stopped(store: MemoryDatastore):
    stop = asyncio.Event()
    history, seen = History(store), []
    async for batch in history.follow(None, stop):
        seen += [violation.revision for violation in batch]
        if history.last == 6 and len(seen) == 1:
            store.erase(BAD)
            store.seed({BAD: VALUE})
        elif len(seen) == 2:
            stop.set()
    assert seen == [6, 8]
    assert (history.first, history.last) == (6, 8)
    with pytest.raises(BadRange, match="revision 99 is in the future"):
        await revisions(History(store).follow(99, stop))


class OnlyCalico(MemoryDatastore):
    """A user who may read what is below /calico/ only."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = asyncio.Event()

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        if not prefix:
            raise Unauthorized("etcdserver: permission denied")
        if start_revision > 1:
            self.watched.set()
        async with aclosing(super().watch(prefix, start_revision)) as batches:
            async for batch in batches:
                yield batch


async def test_who_may_not_read_all_keys_sees_the_end_with_the_next_write():
    store = OnlyCalico()
    store.seed({BAD: VALUE, "elsewhere": b"x"})
    history = History(store)
    waiting = asyncio.create_task(revisions(history.replay(None, None)))
    await store.watched.wait()
    store.seed({"/calico/later": b"x"})
    assert await waiting == [2]
    assert (history.first, history.last) == (1, 3)
