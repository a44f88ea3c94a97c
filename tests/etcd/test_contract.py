"""The datastore contract (rules D1 to D5), on the store in memory and on a real etcd alike.

What cannot be done to both (killing, certificates, users) is in test_etcd_faults.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import pytest

from libcalico.datastore.api import (
    Compare,
    Datastore,
    Delete,
    EventType,
    KeyValue,
    Put,
    WatchBatch,
    WatchEvent,
)
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    RevisionConflict,
    WatchExpired,
)
from libcalico.testing.datastore import MemoryDatastore
from libcalico.testing.etcd import EtcdCluster

A, B = "/t/a", "/t/b"
WAIT_S = 10.0


class Compactor(Protocol):
    def __call__(self, revision: int) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Subject:
    store: Datastore
    compact: Compactor


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "memory":
        memory = MemoryDatastore()

        async def compact(revision: int) -> None:
            memory.compact(revision)

        yield Subject(memory, compact)
        await memory.close()
        return
    cluster: EtcdCluster = request.getfixturevalue("etcd")
    store = EtcdDatastore(EtcdConfig(cluster.endpoints))
    yield Subject(store, store.compact)
    await store.close()


@pytest.fixture
def store(subject: Subject) -> Datastore:
    return subject.store


async def next_events(batches: AsyncIterator[WatchBatch], count: int) -> list[WatchEvent]:
    """Exactly `count` events, however they are cut into batches."""
    events: list[WatchEvent] = []
    async with asyncio.timeout(WAIT_S):
        while len(events) < count:
            events.extend((await anext(batches)).events)
    assert len(events) == count
    return events


# ---- D1: revisions -----------------------------------------------------------------------------


async def test_every_write_makes_a_new_revision_and_marks_its_key(store: Datastore):
    first = await store.create(A, b"1")
    second = await store.create(B, b"1")
    third = await store.update(A, b"2", first)
    assert first < second < third
    assert await store.get(A) == KeyValue(A, b"2", third, create_revision=first, version=2)
    assert await store.get(B) == KeyValue(B, b"1", second, create_revision=second, version=1)


async def test_put_writes_whatever_was_there(store: Datastore):
    first = await store.put(A, b"1")
    second = await store.put(A, b"2")
    assert second > first
    found = await store.get(A)
    assert found is not None
    assert (found.value, found.version) == (b"2", 2)


async def test_a_key_that_comes_back_counts_its_versions_anew(store: Datastore):
    await store.create(A, b"1")
    await store.delete(A)
    revision = await store.create(A, b"2")
    assert await store.get(A) == KeyValue(A, b"2", revision, create_revision=revision, version=1)


async def test_an_absent_key_is_none(store: Datastore):
    assert await store.get(A) is None


async def test_an_old_revision_can_still_be_read(store: Datastore):
    first = await store.create(A, b"1")
    await store.update(A, b"2", first)
    found = await store.get(A, revision=first)
    assert found is not None
    assert found.value == b"1"


@pytest.mark.parametrize("value", [b"", b"\x00\xff", "ünïcode".encode(), b"x" * 100_000])
async def test_any_bytes_are_a_value(store: Datastore, value: bytes):
    await store.create(A, value)
    found = await store.get(A)
    assert found is not None
    assert found.value == value


async def test_keys_may_hold_any_text(store: Datastore):
    for key in ("/t/ü", "/t/with space", "/t/%2f", "/t/日本"):
        await store.create(key, b"1")
        found = await store.get(key)
        assert found is not None
        assert found.key == key


# ---- D2: compare and swap ----------------------------------------------------------------------


async def test_create_refuses_a_key_that_exists_and_leaves_it_alone(store: Datastore):
    await store.create(A, b"1")
    with pytest.raises(AlreadyExists) as caught:
        await store.create(A, b"2")
    assert caught.value.identifier == A
    found = await store.get(A)
    assert found is not None
    assert found.value == b"1"


async def test_update_of_an_absent_key_is_not_found(store: Datastore):
    with pytest.raises(NotFound):
        await store.update(A, b"1", 5)


async def test_update_at_an_old_revision_conflicts_and_says_what_it_found(store: Datastore):
    first = await store.create(A, b"1")
    second = await store.update(A, b"2", first)
    with pytest.raises(RevisionConflict) as caught:
        await store.update(A, b"3", first)
    assert (caught.value.expected, caught.value.found) == (first, second)
    found = await store.get(A)
    assert found is not None
    assert found.value == b"2"


async def test_update_needs_a_revision(store: Datastore):
    with pytest.raises(InvalidInput):
        await store.update(A, b"1", 0)
    assert await store.get(A) is None


async def test_delete_returns_what_it_deleted(store: Datastore):
    revision = await store.create(A, b"1")
    assert await store.delete(A) == KeyValue(A, b"1", revision, revision, 1)
    assert await store.get(A) is None


async def test_delete_of_an_absent_key_is_not_found(store: Datastore):
    with pytest.raises(NotFound):
        await store.delete(A)
    with pytest.raises(NotFound):
        await store.delete(A, mod_revision=3)


async def test_delete_at_an_old_revision_conflicts(store: Datastore):
    first = await store.create(A, b"1")
    second = await store.update(A, b"2", first)
    with pytest.raises(RevisionConflict) as caught:
        await store.delete(A, mod_revision=first)
    assert caught.value.found == second
    assert (await store.delete(A, mod_revision=second)).value == b"2"


async def test_of_many_writers_at_one_revision_exactly_one_wins(store: Datastore):
    start = await store.create(A, b"start")

    async def write(index: int) -> bool:
        try:
            await store.update(A, str(index).encode(), start)
        except RevisionConflict:
            return False
        return True

    won = await asyncio.gather(*(write(index) for index in range(20)))
    assert won.count(True) == 1
    found = await store.get(A)
    assert found is not None
    assert found.value == str(won.index(True)).encode()


async def test_a_transaction_applies_all_or_nothing(store: Datastore):
    first = await store.create(A, b"1")
    refused = await store.txn(
        [Compare(A, first), Compare(B, 99)], [Put(A, b"2"), Put("/t/c", b"2")]
    )
    assert not refused.succeeded
    assert refused.found == (KeyValue(A, b"1", first, first, 1), None)
    assert await store.get("/t/c") is None

    applied = await store.txn([Compare(A, first), Compare(B, 0)], [Delete(A), Put(B, b"2")])
    assert applied.succeeded
    assert await store.get(A) is None
    assert await store.get(B) == KeyValue(B, b"2", applied.revision, applied.revision, 1)


async def test_a_transaction_that_changes_nothing_makes_no_revision(store: Datastore):
    first = await store.create(A, b"1")
    result = await store.txn([], [Delete("/t/absent")])
    assert (result.succeeded, result.revision) == (True, first)


@pytest.mark.parametrize(
    ("compares", "operations"),
    [
        ([], [Put(A, b"1"), Put(A, b"2")]),
        ([], [Put(A, b"1"), Delete(A)]),
        ([], [Put("", b"1")]),
        ([Compare("", 0)], [Put(A, b"1")]),
        ([], [Put(f"/t/{i}", b"1") for i in range(129)]),
        ([], [Put(A, b"x" * (1536 * 1024 + 1))]),
    ],
    ids=["put-twice", "put-and-delete", "empty-key", "empty-compare", "too-many", "too-large"],
)
async def test_what_etcd_refuses_is_invalid_input(
    store: Datastore, compares: list[Compare], operations: list[Put | Delete]
):
    with pytest.raises(InvalidInput):
        await store.txn(compares, operations)
    assert (await store.list("/t/")).kvs == ()


async def test_an_empty_key_is_refused_everywhere(store: Datastore):
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get(""),
        lambda: store.create("", b"1"),
        lambda: store.put("", b"1"),
        lambda: store.delete(""),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            await call()


# ---- D3: lists ---------------------------------------------------------------------------------


async def test_a_list_is_in_bytewise_key_order_and_knows_its_revision(store: Datastore):
    for name in ("b", "a", "a/x", "A", "ä", "a-b"):
        last = await store.create("/t/" + name, name.encode())
    found = await store.list("/t/")
    assert [kv.key for kv in found.kvs] == sorted((kv.key for kv in found.kvs), key=str.encode)
    assert len(found.kvs) == 6
    assert found.revision == last


async def test_a_list_takes_the_prefix_literally(store: Datastore):
    for key in ("/t/a", "/t/a/1", "/t/ab", "/u/a"):
        await store.create(key, b"1")
    assert [kv.key for kv in (await store.list("/t/a")).kvs] == ["/t/a", "/t/a/1", "/t/ab"]
    assert [kv.key for kv in (await store.list("/t/a/")).kvs] == ["/t/a/1"]
    assert [kv.key for kv in (await store.list("")).kvs] == ["/t/a", "/t/a/1", "/t/ab", "/u/a"]
    assert (await store.list("/nothing/")).kvs == ()


async def test_a_list_without_values_still_has_revisions(store: Datastore):
    revision = await store.create(A, b"value")
    found = (await store.list("/t/", keys_only=True)).kvs
    assert found == (KeyValue(A, b"", revision, revision, 1),)


async def test_a_list_at_an_old_revision_shows_that_moment(store: Datastore):
    await store.create(A, b"1")
    moment = await store.create(B, b"1")
    await store.delete(A)
    await store.create("/t/c", b"1")
    found = await store.list("/t/", revision=moment)
    assert [kv.key for kv in found.kvs] == [A, B]
    assert found.revision == moment


async def test_pages_are_one_snapshot_although_the_store_changes_between_them(store: Datastore):
    count = 1_700
    for start in range(0, count, 100):
        await store.txn([], [Put(f"/t/{n:05}", b"old") for n in range(start, start + 100)])
    seen: list[KeyValue] = []
    revisions = set()
    async for page in store.list_pages("/t/"):
        if not seen:
            await store.put("/t/00000", b"new")
            await store.put(f"/t/{count - 1:05}", b"new")
            await store.delete(f"/t/{count - 2:05}")
            await store.create("/t/99999", b"new")
        seen.extend(page.kvs)
        revisions.add(page.revision)
    assert [kv.key for kv in seen] == [f"/t/{n:05}" for n in range(count)]
    assert {kv.value for kv in seen} == {b"old"}
    assert len(revisions) == 1
    whole = await store.list("/t/", revision=revisions.pop())
    assert whole.kvs == tuple(seen)


async def test_an_empty_list_is_one_empty_page(store: Datastore):
    revision = await store.create(A, b"1")
    pages = [page async for page in store.list_pages("/nothing/")]
    assert [(page.kvs, page.revision) for page in pages] == [((), revision)]


async def test_reading_before_a_compaction_is_expired(subject: Subject):
    store = subject.store
    first = await store.create(A, b"1")
    second = await store.update(A, b"2", first)
    await subject.compact(second)
    with pytest.raises(WatchExpired):
        await store.list("/t/", revision=first)
    with pytest.raises(WatchExpired):
        await store.get(A, revision=first)
    found = await store.get(A, revision=second)
    assert found is not None
    assert found.value == b"2"


async def test_reading_the_future_is_refused(store: Datastore):
    revision = await store.create(A, b"1")
    with pytest.raises(InvalidInput):
        await store.list("/t/", revision=revision + 1000)


# ---- D4: watches -------------------------------------------------------------------------------


async def test_a_watch_delivers_every_change_in_order(store: Datastore):
    first = await store.create(A, b"1")
    batches = store.watch("/t/", first)
    second = await store.update(A, b"2", first)
    third = await store.create(B, b"1")
    await store.delete(A)
    events = await next_events(batches, 4)
    put_a = KeyValue(A, b"1", first, first, 1)
    put_a2 = KeyValue(A, b"2", second, first, 2)
    assert events == [
        WatchEvent(EventType.PUT, put_a),
        WatchEvent(EventType.PUT, put_a2, put_a),
        WatchEvent(EventType.PUT, KeyValue(B, b"1", third, third, 1)),
        WatchEvent(EventType.DELETE, KeyValue(A, b"", third + 1), put_a2),
    ]
    await batches.aclose()


async def test_a_watch_starts_exactly_at_its_revision(store: Datastore):
    first = await store.create(A, b"1")
    second = await store.update(A, b"2", first)
    await store.update(A, b"3", second)
    batches = store.watch("/t/", second)
    assert [event.kv.value for event in await next_events(batches, 2)] == [b"2", b"3"]
    await batches.aclose()


async def test_a_watch_may_start_in_the_future(store: Datastore):
    first = await store.create(A, b"1")
    batches = store.watch("/t/", first + 2)
    waiting = asyncio.ensure_future(next_events(batches, 1))
    await store.update(A, b"skipped", first)
    await store.create(B, b"seen")
    assert [event.kv.value for event in await waiting] == [b"seen"]
    await batches.aclose()


async def test_a_watch_sees_nothing_outside_its_prefix(store: Datastore):
    start = await store.create("/t/a", b"1")
    batches = store.watch("/t/a/", start)
    await store.create("/t/ab", b"1")
    await store.create("/t/a/1", b"1")
    await store.create("/t/b", b"1")
    await store.create("/t/a/2", b"1")
    assert [event.kv.key for event in await next_events(batches, 2)] == ["/t/a/1", "/t/a/2"]
    await batches.aclose()


async def test_one_transaction_arrives_as_one_batch(store: Datastore):
    start = await store.create(A, b"1")
    batches = store.watch("/t/", start + 1)
    result = await store.txn([], [Put(A, b"2"), Put(B, b"2"), Delete("/t/absent")])
    async with asyncio.timeout(WAIT_S):
        batch = await anext(batches)
    assert sorted(event.kv.key for event in batch.events) == [A, B]
    assert batch.revision == result.revision
    await batches.aclose()


async def test_a_watch_from_before_a_compaction_expires_and_names_the_revision(subject: Subject):
    store = subject.store
    first = await store.create(A, b"1")
    second = await store.update(A, b"2", first)
    third = await store.update(A, b"3", second)
    await subject.compact(third)
    with pytest.raises(WatchExpired) as caught:
        await next_events(store.watch("/t/", first), 1)
    assert caught.value.compact_revision == third
    batches = store.watch("/t/", third)
    assert [event.kv.value for event in await next_events(batches, 1)] == [b"3"]
    await batches.aclose()


async def test_a_watch_that_has_seen_everything_survives_a_compaction(subject: Subject):
    store = subject.store
    first = await store.create(A, b"1")
    batches = store.watch("/t/", first)
    await next_events(batches, 1)
    # Changes elsewhere move the store on without this watch having anything to see.
    other = await store.create("/elsewhere", b"1")
    await subject.compact(other)
    await store.create(B, b"2")
    assert [event.kv.key for event in await next_events(batches, 1)] == [B]
    await batches.aclose()


async def test_several_watches_do_not_disturb_each_other(store: Datastore):
    start = await store.create(A, b"1")
    watches = [store.watch("/t/", start) for _ in range(5)]
    first = [await next_events(batches, 1) for batches in watches]
    await watches[0].aclose()
    await store.create(B, b"1")
    second = [await next_events(batches, 1) for batches in watches[1:]]
    assert {events[0].kv.key for events in first} == {A}
    assert {events[0].kv.key for events in second} == {B}
    for batches in watches[1:]:
        await batches.aclose()


async def test_a_watch_needs_a_start(store: Datastore):
    with pytest.raises(InvalidInput):
        await anext(store.watch("/t/", 0))


async def test_a_thousand_quick_changes_arrive_complete_and_in_order(store: Datastore):
    start = await store.create("/t/n", b"0")
    batches = store.watch("/t/n", start + 1)
    reading = asyncio.ensure_future(next_events(batches, 1000))
    for number in range(1, 1001):
        await store.put("/t/n", str(number).encode())
    values = [int(event.kv.value) for event in await reading]
    assert values == list(range(1, 1001))
    await batches.aclose()


# ---- leases ------------------------------------------------------------------------------------


async def test_a_revoked_lease_takes_its_keys_with_it(store: Datastore):
    lease = await store.grant_lease(60)
    revision = await store.create(A, b"1", lease=lease)
    await store.put(B, b"1", lease=lease)
    await store.create("/t/c", b"kept")
    found = await store.get(A)
    assert found is not None
    assert found.lease == lease
    batches = store.watch("/t/a", revision + 1)
    await store.revoke_lease(lease)
    assert [event.type for event in await next_events(batches, 1)] == [EventType.DELETE]
    assert [kv.key for kv in (await store.list("/t/")).kvs] == ["/t/c"]
    await batches.aclose()


async def test_a_lease_is_kept_alive_by_asking(store: Datastore):
    lease = await store.grant_lease(60)
    assert await store.keep_lease_alive(lease) == 60
    await store.revoke_lease(lease)
    with pytest.raises(NotFound):
        await store.keep_lease_alive(lease)


async def test_an_unknown_lease_is_not_found_and_nothing_is_written(store: Datastore):
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.create(A, b"1", lease=7),
        lambda: store.put(A, b"1", lease=7),
        lambda: store.txn([], [Put(A, b"1", lease=7)]),
        lambda: store.revoke_lease(7),
    ]
    for call in calls:
        with pytest.raises(NotFound) as caught:
            await call()
        assert caught.value.identifier == "lease 7"
    assert await store.get(A) is None


async def test_a_lease_needs_at_least_a_second(store: Datastore):
    with pytest.raises(InvalidInput):
        await store.grant_lease(0)


async def test_a_write_without_the_lease_frees_the_key_from_it(store: Datastore):
    lease = await store.grant_lease(60)
    revision = await store.create(A, b"1", lease=lease)
    await store.update(A, b"2", revision)
    await store.revoke_lease(lease)
    found = await store.get(A)
    assert found is not None
    assert found.value == b"2"
