"""The IPAM garbage collection on a real etcd: garbage goes, whatever dies, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import pytest

from controllers.leader import LEADER_KEY
from ipam.client import DatastoreSource, IpamClient
from ipam.client.collector import Collector, Report
from ipam.garbage import Terms
from libcalico.datastore.api import Compare, Datastore, Delete, Put, TxnResult
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.errors import DatastoreUnavailable
from libcalico.model.keys import BlockKey, path_of
from libcalico.testing.etcd import EtcdCluster, free_ports
from tests.support import garbage
from tests.support.garbage import connected, controllers_process, endpoint, initialised
from tests.support.ipam import (
    ImpatientClock,
    all_blocks,
    all_handles,
    ask,
    audited,
    client,
    consistent,
    held,
    pool,
    source,
)

pytestmark = pytest.mark.etcd
POOL = pool("a", "10.0.0.0/18", 28)
WAIT_S = 60.0


@pytest.fixture
async def store(etcd: EtcdCluster) -> AsyncIterator[EtcdDatastore]:
    found = EtcdDatastore(EtcdConfig(etcd.endpoints))
    yield found
    await found.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.05)


async def ipam_keys(store: Datastore) -> list[str]:
    return [kv.key for kv in (await store.list("/calico/ipam/v2/", keys_only=True)).kvs]


async def after_writes(store: Datastore, count: int) -> None:
    """Returns when `count` IPAM keys have been written from now on."""
    start = (await store.list("/calico/none/")).revision
    seen = 0
    watch = store.watch("/calico/ipam/v2/", start + 1)
    async with asyncio.timeout(WAIT_S), contextlib.aclosing(watch) as batches:
        async for batch in batches:
            seen += len(batch.events)
            if seen >= count:
                return


async def test_two_hundred_vanished_nodes_are_cleaned_up_though_the_collector_is_killed(
    store: EtcdDatastore, etcd: EtcdCluster
):
    start = (await store.list("/calico/")).revision
    await initialised(store, [POOL], ["alive"])
    living = client(store, source(POOL, nodes=["alive"]))
    address = await connected(living, store, "web", "alive")
    kept = sorted(await ipam_keys(store))
    nodes = [f"gone-{i}" for i in range(200)]
    await garbage.leave_behind(store, POOL, nodes, pods=3)
    assert len(await all_blocks(store)) == 201
    counting = asyncio.ensure_future(after_writes(store, 150))
    await asyncio.sleep(0)
    async with controllers_process(etcd) as first:
        await counting
        first.send_signal(signal.SIGKILL)
        await first.wait()
    left = set(await ipam_keys(store)) - set(kept)
    assert left, "killed too late to prove anything"

    async def clean() -> bool:
        return sorted(await ipam_keys(store)) == kept

    async with controllers_process(etcd):  # one pass an hour: this is the first and only one
        await until(clean)
    assert {str(a) for a in await held(store)} == {address}
    assert await audited(store, start + 1) == []
    await consistent(store)


class Contested:
    """A datastore in which somebody always writes one block first, and another key always fails."""

    def __init__(self, inner: Datastore, contested: str, failing: str) -> None:
        self._inner, self._contested, self._failing = inner, contested, failing

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TxnResult:
        keys = {operation.key for operation in operations}
        if self._failing in keys:
            raise DatastoreUnavailable("this key fails")
        if self._contested in keys:
            kv = await self._inner.get(self._contested)
            assert kv is not None
            await self._inner.put(self._contested, kv.value)
        return await self._inner.txn(compares, operations)


async def test_a_malformed_a_contested_and_a_failing_block_do_not_stop_the_others(
    store: EtcdDatastore, caplog: pytest.LogCaptureFixture
):
    await initialised(store, [POOL], [])
    nodes = [f"gone-{i}" for i in range(8)]
    await garbage.leave_behind(store, POOL, nodes, pods=2)
    by_host = {block.host: cidr for cidr, block in (await all_blocks(store)).items()}
    malformed, contested, failing = (path_of(BlockKey(by_host[n])) for n in nodes[:3])
    await store.put(malformed, b'{"cidr": "10.0.0.0/28", "allocations": "x"}')
    faulty = Contested(store, contested, failing)
    collector = collector_of(faulty)  # type: ignore[arg-type]
    report = await collector.run_pass(Terms(900.0))
    broken = {by_host[name] for name in nodes[:3]}
    listed = {kv.key for kv in (await store.list("/calico/ipam/v2/assignment/")).kvs}
    assert listed == {path_of(BlockKey(cidr)) for cidr in broken}
    assert report.seen.malformed == {by_host[nodes[0]]}
    assert report.failed["address"] > 0
    said = len([r for r in caplog.records if "left as it is" in r.message])
    await collector.run_pass(Terms(900.0))
    again = len([r for r in caplog.records if "left as it is" in r.message])
    assert said == again > 0
    # Everything is well again: the next pass takes it all.
    await store.delete(malformed)
    for handle in ("one", "bulk"):
        with contextlib.suppress(Exception):
            await store.delete(f"/calico/ipam/v2/handle/net.{nodes[0]}-{handle}")
    await collector_of(store).run_pass(Terms(900.0))
    assert await all_blocks(store) == {}


def collector_of(store: Datastore, clock: ImpatientClock | None = None) -> Collector:
    """A fresh collector that reads the datastore."""
    ipam = IpamClient(store, DatastoreSource(store), clock=clock or ImpatientClock())
    return ipam.collector()


class Ticks(ImpatientClock):
    """A monotonic clock that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Race:
    """Pods that come and go while the collector looks again and again.

    Its clock moves only when every request that had begun at the last move has ended: whatever the
    machine does, none lasts for two moves, and the grace period is two."""

    WORKERS, STEPS = 6, 25
    NODES = ("n1", "n2")
    TERMS = Terms(2.0)

    def __init__(self, store: EtcdDatastore) -> None:
        self.store = store
        self.clock, self.rng = Ticks(), random.Random(7)
        self.collector = collector_of(store, self.clock)
        self.ipam = client(store, source(POOL, nodes=self.NODES))
        self.living: dict[str, str] = {}
        self.running: dict[str, float] = {}
        self.passes = self.finished = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.collect())
            for number in range(self.WORKERS):
                group.create_task(self.work(number))

    async def collect(self) -> None:
        while self.finished < self.WORKERS:
            await self.collector.run_pass(self.TERMS)
            self.passes += 1
            if all(began >= self.clock.now for began in self.running.values()):
                self.clock.now += 1.0

    async def work(self, number: int) -> None:
        on = self.NODES[number % 2]
        for step in range(self.STEPS):
            name = f"p{number}-{step}"
            with self.request(name):
                await self.add(name, on)
            if name in self.living and self.rng.random() < 0.5:
                with self.request(f"del {name}"):
                    await self.store.delete(path_of(garbage.endpoint_key(name, on)))
                    await self.ipam.release_by_handle(f"net.{name}")
                del self.living[name]
        self.finished += 1

    @contextlib.contextmanager
    def request(self, name: str) -> Iterator[None]:
        self.running[name] = self.clock.now
        try:
            yield
        finally:
            del self.running[name]

    async def add(self, name: str, on: str) -> None:
        """As the agent: address, then the endpoint, with passes of the collector in between; three
        in ten die before."""
        got = (await self.ipam.auto_assign(ask(name, on))).addresses[0].ip
        if self.rng.random() < 0.3:
            return
        begun = self.passes

        async def looked() -> bool:
            return self.passes > begun

        await until(looked)
        await garbage.put(self.store, endpoint(name, on, f"{got}/32"))
        assert (await held(self.store)).get(got) == f"net.{name}"
        self.living[name] = str(got)


async def test_an_add_in_progress_never_loses_its_address_and_what_died_is_collected(
    store: EtcdDatastore,
):
    start = (await store.list("/calico/")).revision
    race = Race(store)
    await initialised(store, [POOL], race.NODES)
    await race.run()
    for _ in range(4):
        race.clock.now += 1.0
        await race.collector.run_pass(race.TERMS)
    assert len(race.living) > 10
    assert {str(a): h for a, h in (await held(store)).items()} == {
        address: f"net.{name}" for name, address in race.living.items()
    }
    assert set(await all_handles(store)) == {f"net.{name}" for name in race.living}
    assert await audited(store, start + 1) == []
    await consistent(store)


async def leader(store: Datastore) -> str:
    kv = await store.get(LEADER_KEY)
    return "" if kv is None else garbage.holder(kv.value)


async def test_another_instance_takes_over_when_the_leader_is_killed(
    store: EtcdDatastore, etcd: EtcdCluster
):
    await initialised(store, [POOL], [])
    async with (
        controllers_process(etcd, RECONCILER_PERIOD="200ms") as one,
        controllers_process(etcd, RECONCILER_PERIOD="200ms") as two,
    ):
        await until(lambda: exists(store, LEADER_KEY))
        first = await leader(store)
        by_pid = {f"-{process.pid}-": process for process in (one, two)}
        killed = next(process for mark, process in by_pid.items() if mark in first)
        other = two if killed is one else one
        killed.send_signal(signal.SIGKILL)
        await killed.wait()

        async def succeeded() -> bool:
            return await leader(store) not in ("", first)

        await until(succeeded)
        assert f"-{other.pid}-" in await leader(store)
        await garbage.leave_behind(store, POOL, ["gone"], pods=1)

        async def clean() -> bool:
            return await ipam_keys(store) == []

        await until(clean)
        other.terminate()
        assert await asyncio.wait_for(other.wait(), WAIT_S) == 0
        assert await leader(store) == ""  # given back, not waited for


async def exists(store: Datastore, key: str) -> bool:
    return await store.get(key) is not None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"ENABLED_CONTROLLERS": "node,policy"}, "there is no controller 'policy' here"),
        ({"LEAK_GRACE_PERIOD": "soon"}, "LeakGracePeriod"),
        ({"DATASTORE_TYPE": "kubernetes", "ETCD_ENDPOINTS": ""}, "kubernetes"),
    ],
)
async def test_what_cannot_be_is_refused_in_one_line(
    etcd: EtcdCluster, environ: dict[str, str], said: str
):
    async with controllers_process(etcd, **environ) as process:
        _, err = await process.communicate()
        assert process.returncode == 1
    lines = [line for line in err.decode().splitlines() if "calico-kube-controllers:" in line]
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in err.decode()


async def test_a_leader_that_the_datastore_leaves_stops_writing_and_leads_again(
    etcd_cluster_factory: Callable[..., EtcdCluster],
):
    cluster = etcd_cluster_factory()
    store = EtcdDatastore(EtcdConfig(cluster.endpoints))
    await initialised(store, [POOL], [])
    async with controllers_process(cluster, RECONCILER_PERIOD="200ms") as process:
        await until(lambda: exists(store, LEADER_KEY))
        member = cluster.members[0]
        await asyncio.to_thread(member.kill)
        assert process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while b"not leading any more" not in await process.stderr.readline():
                assert process.returncode is None
        member.start()
        await asyncio.to_thread(member.wait_ready)
        await store.close()
        store = EtcdDatastore(EtcdConfig(cluster.endpoints))  # one that has not given up on it
        await garbage.leave_behind(store, POOL, ["gone"], pods=1)

        async def clean() -> bool:
            return await ipam_keys(store) == []

        await until(clean)
        process.terminate()
        _, err = await process.communicate()
    assert process.returncode == 0
    assert err.decode().count("the datastore") < 5
    await store.close()


def freed(report: Report) -> dict[str, int]:
    return {kind: count for kind, count in report.freed.items() if count}


async def test_a_node_that_comes_back_meanwhile_keeps_its_tunnel_address(store: EtcdDatastore):
    await initialised(store, [POOL], [])
    await garbage.leave_behind(store, POOL, ["gone"], pods=1)

    class ComesBack:
        """The Node object is made again between the look and the first write."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def txn(
            self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
        ) -> TxnResult:
            await garbage.put(store, garbage.node("gone"))
            return await store.txn(compares, operations)

    report = await collector_of(ComesBack()).run_pass(Terms(900.0))  # type: ignore[arg-type]
    assert freed(report).get("address") is None
    assert report.overtaken["address"] > 0
    assert len(await held(store)) == 3
    await consistent(store)


async def page(port: int, path: str) -> str:
    """The body of a page; "" while nobody serves it."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    found = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return found


async def test_the_pages_show_what_was_collected_and_how_it_goes(
    store: EtcdDatastore, etcd: EtcdCluster
):
    await initialised(store, [POOL], ["n1"])
    await connected(client(store, source(POOL, nodes=["n1"])), store, "web", "n1")
    await garbage.leave_behind(store, POOL, ["gone"], pods=1)
    health, metrics = free_ports(2)
    settings = {
        "HEALTH_ENABLED": "true",
        "HEALTH_HOST": "127.0.0.1",
        "HEALTH_PORT": str(health),
        "PROMETHEUS_METRICS_HOST": "127.0.0.1",
        "PROMETHEUS_METRICS_PORT": str(metrics),
    }
    async with controllers_process(etcd, **settings):

        async def collected() -> bool:
            return 'ipam_gc_passes_total{outcome="complete"} 1.0' in await page(metrics, "/metrics")

        await until(collected)
        shown = await page(metrics, "/metrics")
        assert 'ipam_allocations_in_use{ippool="a",node="n1"} 1.0' in shown
        assert 'ipam_allocations_gc_reclamations{ippool="a",node="gone"} 3.0' in shown
        ready = await page(health, "/readiness")
        assert "200" in ready.splitlines()[0]
        assert "0 addresses look leaked" in ready
