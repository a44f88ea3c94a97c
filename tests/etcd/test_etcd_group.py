"""Transactions of one moment share a call; what each of them promises stays its own (T1 to T5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from libcalico.datastore import etcd_group
from libcalico.datastore.api import Compare, Delete, Put
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import Connection, EtcdConfig
from libcalico.errors import AlreadyExists, DatastoreUnavailable, NotFound, RevisionConflict
from libcalico.testing.etcd import EtcdCluster

pytestmark = pytest.mark.etcd


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Members of each call that was sent; 0 for a transaction sent as it is."""
    sent: list[int] = []
    write = Connection.write

    async def counted(self, method, request):
        nested = [op for op in getattr(request, "success", ()) if op.HasField("request_txn")]
        sent.append(len(nested))
        return await write(self, method, request)

    monkeypatch.setattr(Connection, "write", counted)
    return sent


@pytest.fixture
async def store(etcd: EtcdCluster) -> AsyncIterator[EtcdDatastore]:
    opened = EtcdDatastore(EtcdConfig(etcd.endpoints))
    yield opened
    await opened.close()


async def results(*work):
    return await asyncio.gather(*work, return_exceptions=True)


async def test_what_is_asked_for_in_one_moment_shares_calls(store, calls):
    found = await results(*(store.create(f"/g/{i}", b"%d" % i) for i in range(30)))
    assert all(isinstance(revision, int) for revision in found), found
    assert calls == [0, 24, 5]
    listed = await store.list("/g/")
    assert {kv.key: kv.value for kv in listed.kvs} == {f"/g/{i}": b"%d" % i for i in range(30)}
    # Each was told the revision its own key has.
    at = {kv.key: kv.mod_revision for kv in listed.kvs}
    assert found == [at[f"/g/{i}"] for i in range(30)]


async def test_each_has_a_verdict_of_its_own(store, calls):
    taken = await store.create("/v/taken", b"1")
    calls.clear()
    found = await results(
        store.create("/v/first", b""),
        store.create("/v/taken", b"2"),
        store.update("/v/taken", b"2", taken + 1000),
        store.update("/v/absent", b"2", taken),
        store.delete("/v/absent2", mod_revision=taken),
        store.create("/v/fine", b"3"),
        store.txn([Compare("/v/none", 0)], [Put("/v/a", b"a"), Put("/v/b", b"b")]),
        store.txn([Compare("/v/taken", 1), Compare("/v/none", 0)], [Put("/v/c", b"c")]),
    )
    assert max(calls) > 4
    kinds = [type(one) for one in found]
    assert kinds[1:5] == [AlreadyExists, RevisionConflict, NotFound, NotFound]
    assert isinstance(found[5], int)
    assert found[6].succeeded
    lost = found[7]
    assert not lost.succeeded
    assert lost.found[0].value == b"1"
    assert lost.found[1] is None
    keys = [kv.key for kv in (await store.list("/v/")).kvs]
    assert keys == ["/v/a", "/v/b", "/v/fine", "/v/first", "/v/taken"]


async def test_a_delete_hands_back_what_was_there_also_in_company(store):
    revisions = [await store.create(f"/d/{i}", b"%d" % i) for i in range(3)]
    gone = await results(
        *(store.delete(f"/d/{i}", mod_revision=revisions[i]) for i in range(3)),
    )
    assert [kv.value for kv in gone] == [b"0", b"1", b"2"]
    assert (await store.list("/d/")).kvs == ()


async def test_of_those_that_concern_each_other_one_wins_and_the_other_sees_it(store, calls):
    """T2. etcd would let both of the last two pass if they shared a call."""
    await store.create("/c/first", b"")
    fence = await store.create("/c/fence", b"")
    for _ in range(20):
        calls.clear()
        found = await results(
            store.create("/c/first", b""),  # alone, so that the others are company
            store.txn([Compare("/c/fence", fence)], [Delete("/c/fence")]),
            store.txn([Compare("/c/fence", fence)], [Put("/c/kept", b"")]),
            store.txn([Compare("/c/fence", fence)], [Put("/c/kept2", b"")]),
        )
        fence_went, kept, kept2 = (one.succeeded for one in found[1:])
        assert fence_went
        order = {name: kv for name in ("kept", "kept2") if (kv := await store.get(f"/c/{name}"))}
        assert set(order) == {n for n, won in (("kept", kept), ("kept2", kept2)) if won}
        # Whoever compared the fence wrote before it went.
        assert all(kv.mod_revision < found[1].revision for kv in order.values())
        for name in order:
            await store.delete(f"/c/{name}")
        fence = await store.create("/c/fence", b"")


async def test_one_key_written_twice_is_two_calls(store):
    found = await results(*(store.create("/t/same", b"%d" % i) for i in range(5)))
    assert sum(isinstance(one, int) for one in found) == 1
    assert sum(isinstance(one, AlreadyExists) for one in found) == 4


async def test_a_member_that_etcd_refuses_outright_costs_the_others_nothing(store, calls):
    """T3."""
    found = await results(
        store.create("/l/0", b""),
        store.create("/l/1", b""),
        store.create("/l/2", b"", lease=4711),
        store.create("/l/3", b""),
    )
    assert 3 in calls
    assert isinstance(found[2], NotFound)
    assert [isinstance(one, int) for one in found] == [True, True, False, True]
    assert [kv.key for kv in (await store.list("/l/")).kvs] == ["/l/0", "/l/1", "/l/3"]


async def test_a_lost_answer_is_lost_for_every_member(store, monkeypatch):
    """T4."""
    alone = etcd_group.Committer._alone

    async def lost(self, request):
        await alone(self, request)
        raise DatastoreUnavailable("the answer was lost")

    monkeypatch.setattr(etcd_group.Committer, "_alone", lost)
    found = await results(*(store.create(f"/x/{i}", b"") for i in range(4)))
    assert all(isinstance(one, DatastoreUnavailable) for one in found)
    assert len((await store.list("/x/")).kvs) == 4


async def test_who_is_cancelled_before_the_group_leaves_writes_nothing(store):
    """T5."""
    tasks = [asyncio.ensure_future(store.create(f"/k/{i}", b"")) for i in range(4)]

    async def cancel_third():
        tasks[2].cancel()

    await asyncio.gather(cancel_third(), *tasks, return_exceptions=True)
    assert tasks[2].cancelled()
    assert [kv.key for kv in (await store.list("/k/")).kvs] == ["/k/0", "/k/1", "/k/3"]


async def test_large_values_and_many_operations_go_by_themselves(store, calls):
    many = [Put(f"/m/{i:03d}", b"") for i in range(etcd_group.MAX_OPERATIONS + 4)]
    found = await results(
        store.create("/b/0", b""),
        store.create("/b/1", b"x" * (300 << 10)),
        store.create("/b/2", b"x" * (300 << 10)),
        store.create("/b/3", b"x" * (700 << 10)),
        store.txn([], many),
        store.create("/b/4", b""),
    )
    assert not [one for one in found if isinstance(one, Exception)]
    assert max(calls) == 2
    assert len((await store.list("/m/", keys_only=True)).kvs) == len(many)
    assert len((await store.list("/b/", keys_only=True)).kvs) == 5
