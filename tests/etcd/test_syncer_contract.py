"""The syncer's contract (rules S1 to S5), on the store in memory and on a real etcd alike."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from libcalico.datastore.api import Datastore, ListResult
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.model import Node
from libcalico.model.keys import Key, ResourceKey
from libcalico.syncer.api import SyncStatus, Update
from libcalico.syncer.watcher import WatchSyncer
from libcalico.testing.datastore import MemoryDatastore
from libcalico.testing.etcd import EtcdCluster
from tests.support.etcd import ClusterFactory, LossyProxy

NODES = "/calico/resources/v3/projectcalico.org/nodes/"
WAIT_S = 20.0


def node(name: str, uid: str = "") -> bytes:
    return json.dumps({"kind": "Node", "metadata": {"name": name, "uid": uid}}).encode()


@dataclass
class Sink:
    state: dict[str, object] = field(default_factory=dict)
    log: list[object] = field(default_factory=list)
    revisions: dict[Key, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_updates(self, updates: Sequence[Update]) -> None:
        for update in updates:
            assert update.revision > self.revisions.get(update.key, 0), "S1, and nothing twice"
            self.revisions[update.key] = update.revision
            assert isinstance(update.key, ResourceKey)
            if update.value is None:
                self.state.pop(update.key.name, None)
            else:
                self.state[update.key.name] = update.value
            self.log.append(update)
        self.changed.set()

    def on_status(self, status: SyncStatus) -> None:
        self.log.append(status)
        self.changed.set()

    async def until(self, condition: Callable[[Sink], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()


@dataclass
class World:
    """`behind` is a client that faults do not touch; `cut`/`mend` the syncer's own connection."""

    behind: Datastore
    compact: Callable[[], Awaitable[None]]
    cut: Callable[[], Awaitable[None]]
    mend: Callable[[], Awaitable[None]]
    syncer: WatchSyncer
    sink: Sink


@contextlib.asynccontextmanager
async def memory_world() -> AsyncIterator[World]:
    # Two stores of one mind: `behind` reaches the data while the syncer's calls are partitioned.
    store = MemoryDatastore()
    sink = Sink()

    class Behind(MemoryDatastore):
        async def create(self, key: str, value: bytes, *, lease: int = 0) -> int:
            store.seed({key: value})
            return store.revision

        async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
            return await self.create(key, value)

        async def delete(self, key: str, *, mod_revision: int | None = None):  # type: ignore[no-untyped-def]
            store.erase(key)

    async def compact() -> None:
        store.compact()

    async def cut() -> None:
        store.partition()

    async def mend() -> None:
        store.heal()

    yield World(Behind(), compact, cut, mend, WatchSyncer(store, [NODES], sink), sink)


@contextlib.asynccontextmanager
async def etcd_world(cluster: EtcdCluster) -> AsyncIterator[World]:
    async with LossyProxy(cluster.endpoints[0]) as proxy:
        behind = EtcdDatastore(EtcdConfig(cluster.endpoints))
        store = EtcdDatastore(EtcdConfig((proxy.endpoint,)))
        sink = Sink()

        async def compact() -> None:
            await behind.compact((await behind.list("/compaction/")).revision)

        async def cut() -> None:
            proxy.cut()

        yield World(behind, compact, cut, proxy.open, WatchSyncer(store, [NODES], sink), sink)
        await store.close()
        await behind.close()


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made = (
        memory_world() if request.param == "memory" else etcd_world(request.getfixturevalue("etcd"))
    )
    async with made as found:
        yield found


@contextlib.asynccontextmanager
async def running(syncer: WatchSyncer) -> AsyncIterator[None]:
    task = asyncio.ensure_future(syncer.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def in_sync(sink: Sink) -> bool:
    return bool(sink.log) and sink.log[-1] is SyncStatus.IN_SYNC


async def test_what_is_there_comes_before_in_sync_and_changes_after(world: World):
    for name in ("n1", "n2"):
        await world.behind.create(NODES + name, node(name))
    async with running(world.syncer):
        await world.sink.until(in_sync)
        assert world.sink.state.keys() == {"n1", "n2"}
        assert isinstance(world.sink.state["n1"], Node)
        assert world.sink.log.count(SyncStatus.IN_SYNC) == 1
        await world.behind.create(NODES + "n3", node("n3"))
        await world.behind.delete(NODES + "n1")
        await world.sink.until(lambda sink: sink.state.keys() == {"n2", "n3"})
        assert world.sink.log.count(SyncStatus.IN_SYNC) == 1


async def test_one_bad_value_is_absent_with_its_error_and_stops_nobody(world: World):
    await world.behind.create(NODES + "bad", b"{")
    await world.behind.create(NODES + "good", node("good"))
    async with running(world.syncer):
        await world.sink.until(in_sync)
        assert world.sink.state.keys() == {"good"}
        (error,) = [e.error for e in world.sink.log if isinstance(e, Update) and e.error]
        assert error.key == NODES + "bad"
        await world.behind.put(NODES + "bad", node("bad"))
        await world.sink.until(lambda sink: sink.state.keys() == {"good", "bad"})


async def test_a_cut_connection_loses_and_repeats_nothing(world: World):
    await world.behind.create(NODES + "n1", node("n1"))
    async with running(world.syncer):
        await world.sink.until(in_sync)
        told = len(world.sink.log)
        await world.cut()
        await world.behind.put(NODES + "n1", node("n1", "changed"))
        await world.behind.create(NODES + "n2", node("n2"))
        await world.mend()
        await world.sink.until(lambda sink: sink.state.keys() == {"n1", "n2"})
        assert len(world.sink.log) == told + 2
        assert world.sink.state["n1"].metadata.uid == "changed"  # type: ignore[attr-defined]


async def test_what_vanished_behind_a_compaction_is_deleted_exactly_once(world: World):
    for name in ("n1", "n2"):
        await world.behind.create(NODES + name, node(name))
    async with running(world.syncer):
        await world.sink.until(in_sync)
        told = len(world.sink.log)
        await world.cut()
        await world.behind.delete(NODES + "n1")
        await world.behind.create(NODES + "n3", node("n3"))
        await world.behind.put(NODES + "n3", node("n3", "x"))
        await world.compact()
        assert len(world.sink.log) == told, "nothing is said while the datastore is away"
        await world.mend()
        await world.sink.until(lambda sink: sink.log[told:].count(SyncStatus.IN_SYNC) == 1)
        assert world.sink.state.keys() == {"n2", "n3"}
        updates = [e for e in world.sink.log[told:] if isinstance(e, Update)]
        assert sorted((u.key.name, u.value is None) for u in updates) == [  # type: ignore[union-attr]
            ("n1", True),
            ("n3", False),
        ]
        assert world.sink.log[-1] is SyncStatus.IN_SYNC


@pytest.mark.etcd
async def test_etcd_killed_and_restarted_under_the_syncer(etcd_cluster_factory: ClusterFactory):
    cluster = etcd_cluster_factory()
    (member,) = cluster.members
    store = EtcdDatastore(EtcdConfig(cluster.endpoints))
    sink = Sink()
    await store.create(NODES + "n1", node("n1"))
    async with running(WatchSyncer(store, [NODES], sink)):
        await sink.until(in_sync)
        told = len(sink.log)
        await asyncio.to_thread(member.kill)
        await asyncio.to_thread(member.start)
        await asyncio.to_thread(member.wait_ready)
        await asyncio.to_thread(cluster.ctl, "put", NODES + "n2", node("n2").decode())
        await sink.until(lambda found: found.state.keys() == {"n1", "n2"})
        assert len(sink.log) == told + 1
    await store.close()


class CountedLists(EtcdDatastore):
    lists = 0

    def list_pages(
        self, prefix: str, *, revision: int = 0, keys_only: bool = False
    ) -> AsyncGenerator[ListResult, None]:
        self.lists += 1
        return super().list_pages(prefix, revision=revision, keys_only=keys_only)


@pytest.mark.etcd
async def test_a_syncer_started_before_etcd_goes_on_when_it_comes(
    etcd_cluster_factory: ClusterFactory,
):
    cluster = etcd_cluster_factory()
    (member,) = cluster.members
    await asyncio.to_thread(cluster.ctl, "put", NODES + "n1", node("n1").decode())
    await asyncio.to_thread(member.kill)
    store = CountedLists(EtcdConfig(cluster.endpoints))
    sink = Sink()
    async with running(WatchSyncer(store, [NODES], sink)):
        deadline = time.monotonic() + WAIT_S
        while store.lists < 3:  # it has tried, and tried again
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert sink.log == [SyncStatus.WAIT_FOR_DATASTORE]
        await asyncio.to_thread(member.start)
        await sink.until(in_sync)
        assert sink.state.keys() == {"n1"}
    await store.close()
