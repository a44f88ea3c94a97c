"""Many clients at once, a store that fails, Calico writing beside us: nobody shares an address,
nothing is lost for ever.

Every run is a seed: which calls fail (refused, or applied with the answer lost), who is cancelled,
in which order things happen. The history of the store is audited, the end state compared, and after
a collection of what nobody claims to hold the store is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from dataclasses import dataclass, field

import pytest

from ipam import leaks
from ipam.client import IpamClient
from ipam.requests import Release
from libcalico.errors import DatastoreUnavailable, NotFound, RevisionConflict, SuiteError
from libcalico.net import Address
from libcalico.testing.datastore import MemoryDatastore
from tests.support.calico_ipam import CalicoWriter, Crashed
from tests.support.faulty import Fault, FaultyDatastore
from tests.support.ipam import (
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

POOL, BLOCK_SIZE, ADDRESSES = "10.0.0.0/27", 30, 32
HOSTS = ["n1", "n2", "n3", "n4"]
SEEDS = pytest.mark.parametrize("seed", range(int(os.environ.get("IPAM_SEEDS", "12"))))


@dataclass
class Runtime:
    """A node's container runtime: what it believes it has. `doubtful`: requests that failed, which
    may hold something; a runtime sends a DEL for those."""

    ipam: IpamClient
    host: str
    rng: random.Random
    holds: dict[str, Address] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)

    async def run(self, steps: int) -> None:
        for step in range(steps):
            if self.holds and self.rng.random() < 0.45:
                await self.delete(self.rng.choice(sorted(self.holds)))
            else:
                await self.add(f"{self.host}-{step}")

    async def add(self, name: str) -> None:
        request = self.ipam.auto_assign(ask(name, self.host))
        try:
            got = await self.maybe_cancelled(request)
        except (SuiteError, asyncio.CancelledError):
            self.doubtful.add(name)
            return
        if got.addresses:
            self.holds[name] = got.addresses[0].ip

    async def delete(self, name: str) -> None:
        del self.holds[name]
        try:
            await self.maybe_cancelled(self.ipam.release_by_handle(f"net.{name}"))
        except NotFound:
            return
        except (SuiteError, asyncio.CancelledError):
            self.doubtful.add(name)

    async def maybe_cancelled(self, call):  # type: ignore[no-untyped-def]
        task = asyncio.ensure_future(call)
        if self.rng.random() < 0.1:
            for _ in range(self.rng.randrange(6)):
                await asyncio.sleep(0)
            task.cancel()
        return await task

    async def clean_up(self) -> None:
        """The DELs of requests that failed, from a process that remembers nothing."""
        for name in self.doubtful:
            with contextlib.suppress(NotFound):
                await self.ipam.release_by_handle(f"net.{name}")


def failing(rng: random.Random, share: float):  # type: ignore[no-untyped-def]
    def script(_: int, operation: str) -> Fault:
        if rng.random() >= share:
            return Fault.OK
        return Fault.LOSE if operation == "txn" and rng.random() < 0.5 else Fault.REFUSE

    return script


async def collect_garbage(store: MemoryDatastore, owned: set[Address]) -> None:
    """What the controller does: what nobody names goes, by its sequence number."""
    known = source(pool("a", POOL, BLOCK_SIZE), nodes=HOSTS)
    owners = {address: ("runtime",) for address in owned}
    found = leaks.classify((await all_blocks(store)).values(), owners)
    leaked = [a.as_release() for a in found if a.standing is leaks.Standing.LEAKED]
    (await client(store, known).release_ips(leaked)).raise_failed()


@SEEDS
async def test_many_tasks_of_four_hosts_on_a_store_that_fails(seed: int):
    rng = random.Random(seed)
    store = MemoryDatastore()
    known = source(pool("a", POOL, BLOCK_SIZE), nodes=HOSTS)
    script = failing(random.Random(seed + 1000), 0.15)
    runtimes = [
        Runtime(
            client(FaultyDatastore(store, script), known),  # type: ignore[arg-type]
            f"{host}" , random.Random(rng.random()),
        )
        for host in HOSTS
    ]  # fmt: skip
    # Three workers of each host share that host's client, as the CNI agent's requests do.
    workers = [
        Runtime(r.ipam, r.host, random.Random(rng.random())) for r in runtimes for _ in range(3)
    ]
    for number, worker in enumerate(workers):
        worker.add = named(worker, number)  # type: ignore[method-assign]
    await asyncio.gather(*(worker.run(12) for worker in workers))
    assert await audited(store) == []
    await consistent(store)

    believed = {a: f"net.{n}" for worker in workers for n, a in worker.holds.items()}
    assert len(believed) == sum(len(worker.holds) for worker in workers)
    actual = await held(store)
    assert {a: actual.get(a) for a in believed} == believed

    for worker in workers:
        await Runtime(client(store, known), worker.host, rng, {}, worker.doubtful).clean_up()
    await collect_garbage(store, set(believed))
    assert await held(store) == believed
    for worker in workers:
        for name in worker.holds:
            await client(store, known).release_by_handle(f"net.{name}")
    assert await held(store) == {}
    assert await all_handles(store) == {}
    assert await audited(store) == []


def named(worker: Runtime, number: int):  # type: ignore[no-untyped-def]
    """Names of different workers of one host must differ."""
    plain = worker.add

    async def add(name: str) -> None:
        await plain(f"{name}-w{number}")

    return add


KNOWN = source(pool("a", POOL, BLOCK_SIZE), nodes=HOSTS)


@dataclass
class Beside:
    """Our writers and Calico's on one store. `ours` and `theirs`: who believes to hold what."""

    store: MemoryDatastore
    rng: random.Random
    ours: dict[str, Address] = field(default_factory=dict)
    theirs: dict[str, Address] = field(default_factory=dict)

    async def we(self, host: str, number: int) -> None:
        ipam = client(self.store, KNOWN)
        for step in range(10):
            name = f"b-{host}-{number}-{step}"
            got = await ipam.auto_assign(ask(name, host))
            if got.addresses:
                self.ours[name] = got.addresses[0].ip
            if self.rng.random() < 0.5 and name in self.ours:
                del self.ours[name]
                await ipam.release_by_handle(f"net.{name}")

    async def calico(self, host: str, number: int) -> None:
        """A process for each step, which may die after any of its writes."""
        for step in range(10):
            writer = CalicoWriter(self.store, host, POOL, BLOCK_SIZE)
            writer.crash_at = self.rng.randrange(1, 40)
            with contextlib.suppress(Crashed, RevisionConflict, NotFound):
                await self.one_calico_step(writer, f"c-{host}-{number}-{step}")

    async def one_calico_step(self, writer: CalicoWriter, name: str) -> None:
        address = await writer.assign(name)
        if address is not None:
            self.theirs[name] = address
        if self.rng.random() < 0.5 and name in self.theirs:
            del self.theirs[name]
            await writer.release(name)
        elif self.rng.random() < 0.3:
            await writer.release_affinity(self.rng.choice(writer.blocks))


@SEEDS
async def test_calico_writes_the_same_store_at_the_same_moment(seed: int):
    """On the same hosts and blocks, affinities coming and going, Calico processes dying between any
    two of their writes."""
    store = MemoryDatastore()
    beside = Beside(store, random.Random(seed))
    await asyncio.gather(
        *(beside.we(host, n) for host in HOSTS for n in range(2)),
        *(beside.calico(host, n) for host in HOSTS for n in range(2)),
    )
    assert await audited(store) == []
    await consistent(store, exact_handles=False)
    actual = await held(store)
    believed = {address: f"net.{name}" for name, address in beside.ours.items()}
    believed.update({address: name for name, address in beside.theirs.items()})
    assert len(believed) == len(beside.ours) + len(beside.theirs)
    assert {address: actual.get(address) for address in believed} == believed
    # Whatever Calico left unfinished, we can finish: give everything back.
    ipam = client(store, KNOWN)
    requests = [Release(address=address) for address in actual]
    (await ipam.release_ips(requests)).raise_failed()
    for host in HOSTS:
        await ipam.affinities.remove_host(host)
    assert await all_blocks(store) == {}
    assert store.contents("/calico/ipam/v2/host/") == {}
    assert await audited(store) == []


@SEEDS
async def test_a_calico_process_that_died_anywhere_is_no_obstacle(seed: int):
    store = MemoryDatastore()
    known = source(pool("a", "10.0.0.0/29", 30), nodes=HOSTS)
    writer = CalicoWriter(store, "n1", "10.0.0.0/29", 30)
    writer.crash_at = seed + 1
    with contextlib.suppress(Crashed):
        await writer.assign("c-1")
        await writer.assign("c-2")
        await writer.release("c-1")
        await writer.release_affinity("10.0.0.0/30")
    ipam = client(store, known)
    got = [await ipam.auto_assign(ask(f"p{i}")) for i in range(5)]
    assert all(one.addresses for one in got)
    assert await audited(store) == []
    await consistent(store, exact_handles=False)


async def test_the_store_going_away_for_a_while_loses_nothing():
    store = MemoryDatastore()
    known = source(pool("a", POOL, BLOCK_SIZE), nodes=HOSTS)
    ipam = client(store, known)
    got = await ipam.auto_assign(ask("before"))
    store.partition()
    for name in ("during-1", "during-2"):
        with pytest.raises(DatastoreUnavailable):
            await ipam.auto_assign(ask(name))
    store.heal()
    after = await ipam.auto_assign(ask("after"))
    assert await held(store) == {
        got.addresses[0].ip: "net.before", after.addresses[0].ip: "net.after",
    }  # fmt: skip
    await consistent(store)
