"""libcalico.testing.datastore: faults to order, beyond the contract it shares with etcd."""

from __future__ import annotations

import asyncio

import pytest

from libcalico.errors import (
    DatastoreUnavailable,
    InvalidInput,
    NotFound,
    Unauthorized,
    WatchExpired,
)
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

A = "/t/a"


@pytest.fixture
def store() -> MemoryDatastore:
    return MemoryDatastore()


async def test_fail_next_refuses_matching_calls_and_applies_nothing(store: MemoryDatastore):
    store.fail_next(2, operations=["create"], prefix="/t/")
    await store.create("/other", b"1")
    assert await store.get(A) is None
    for _ in range(2):
        with pytest.raises(DatastoreUnavailable):
            await store.create(A, b"1")
    assert await store.get(A) is None
    await store.create(A, b"1")


async def test_fail_next_can_let_some_calls_pass_first(store: MemoryDatastore):
    store.fail_next(after=1, error=Unauthorized("x"))
    await store.put(A, b"1")
    with pytest.raises(Unauthorized):
        await store.put(A, b"2")
    await store.put(A, b"3")


@pytest.mark.parametrize("operation", ["create", "put", "delete", "txn"])
async def test_a_lost_answer_means_applied(store: MemoryDatastore, operation: str):
    if operation == "delete":
        store.seed({A: b"0"})
    before = store.revision
    store.lose_answer_next(operations=[operation])
    calls = {
        "create": lambda: store.create(A, b"1"),
        "put": lambda: store.put(A, b"1"),
        "delete": lambda: store.delete(A),
        "txn": lambda: store.txn([], []),
    }
    with pytest.raises(DatastoreUnavailable):
        await calls[operation]()
    assert store.revision == before + (operation != "txn")


async def test_a_race_to_order_happens_before_the_call(store: MemoryDatastore):
    store.before_next(lambda: store.seed({A: b"theirs"}), operations=["get"])
    found = await store.get(A)
    assert found is not None
    assert found.value == b"theirs"


async def test_a_stalled_store_answers_when_resumed(store: MemoryDatastore):
    store.stall()
    writing = asyncio.ensure_future(store.create(A, b"1"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not writing.done()
    assert store.contents() == {}
    store.resume()
    assert await writing == store.revision


async def opened(store: MemoryDatastore) -> None:
    """The watch stands."""
    for _ in range(100):
        if store.open_watches():
            return
        await asyncio.sleep(0)
    raise AssertionError("no watch was opened")


async def test_slow_calls_let_others_overtake(store: MemoryDatastore):
    store.slow_next(0.01, operations=["put"])
    slow = asyncio.ensure_future(store.put(A, b"slow"))
    await asyncio.sleep(0)
    await store.put(A, b"quick")
    await slow
    assert store.contents() == {A: b"slow"}


async def test_a_partition_fails_calls_and_hangs_watches(store: MemoryDatastore):
    batches = store.watch("/t/", store.revision + 1)
    waiting = asyncio.ensure_future(anext(batches))
    await opened(store)
    store.partition()
    with pytest.raises(DatastoreUnavailable):
        await store.get(A)
    store.seed({A: b"1"})
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    store.heal()
    assert [event.kv.value for event in (await waiting).events] == [b"1"]
    await batches.aclose()


async def test_a_store_is_drained_when_its_watches_have_taken_everything(store: MemoryDatastore):
    batches = store.watch("/t/", store.revision + 1)
    waiting = asyncio.ensure_future(anext(batches))
    await opened(store)
    assert store.is_drained()
    store.seed({A: b"1", "/t/b": b"2"})
    assert not store.is_drained()
    await waiting
    assert not store.is_drained()
    await anext(batches)
    assert store.is_drained()
    await batches.aclose()


async def test_a_watch_compacted_behind_a_partition_expires(store: MemoryDatastore):
    batches = store.watch("/t/", store.revision + 1)
    waiting = asyncio.ensure_future(anext(batches))
    await opened(store)
    store.partition()
    store.seed({A: b"1", "/t/b": b"1"})
    store.compact()
    store.heal()
    with pytest.raises(WatchExpired):
        await waiting


async def test_hidden_writes_are_stored_and_not_watched(store: MemoryDatastore):
    batches = store.watch("/t/", store.revision + 1)
    waiting = asyncio.ensure_future(anext(batches))
    await opened(store)
    store.lose_watch_events()
    store.seed({A: b"hidden", "/t/b": b"seen"})
    assert [event.kv.value for event in (await waiting).events] == [b"seen"]
    assert store.contents()[A] == b"hidden"
    await batches.aclose()


async def test_denied_keys_are_unauthorized(store: MemoryDatastore):
    store.deny("/secret/")
    await store.put(A, b"1")
    for call in (store.get("/secret/x"), store.put("/secret/x", b"1"), store.list("/secret/")):
        with pytest.raises(Unauthorized):
            await call
    store.allow()
    await store.put("/secret/x", b"1")


async def test_a_lease_runs_out_with_the_clock():
    clock = FakeClock()
    store = MemoryDatastore(now=clock.monotonic)
    lease = await store.grant_lease(10)
    await store.put(A, b"1", lease=lease)
    await clock.advance(9)
    assert await store.keep_lease_alive(lease) == 10
    await clock.advance(9)
    assert await store.get(A) is not None
    await clock.advance(2)
    assert await store.get(A) is None
    with pytest.raises(NotFound):
        await store.keep_lease_alive(lease)


async def test_progress_is_an_empty_batch(store: MemoryDatastore):
    batches = store.watch("/t/", store.revision + 1)
    waiting = asyncio.ensure_future(anext(batches))
    await opened(store)
    store.seed({"/elsewhere": b"1"})
    store.progress()
    batch = await waiting
    assert (batch.events, batch.revision) == ((), store.revision)
    await batches.aclose()


def test_compaction_refuses_past_and_future(store: MemoryDatastore):
    store.seed({A: b"1"})
    with pytest.raises(InvalidInput):
        store.compact(store.revision + 1)
    store.compact()
    with pytest.raises(WatchExpired):
        store.compact()


async def test_a_closed_store_answers_nobody(store: MemoryDatastore):
    batches = store.watch("/t/", store.revision + 1)
    waiting = asyncio.ensure_future(anext(batches))
    await opened(store)
    await store.close()
    with pytest.raises(DatastoreUnavailable, match="closed"):
        await waiting
    with pytest.raises(DatastoreUnavailable, match="closed"):
        await store.get(A)


async def test_calls_are_recorded_with_their_keys(store: MemoryDatastore):
    await store.get(A)
    await store.list("/t/")
    assert list(store.calls) == [("get", A), ("list", "/t/")]
