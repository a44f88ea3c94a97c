"""The garbage collector of IPAM: one pass reads, decides (`ipam.garbage`) and gives back.

Layer: ipam edge. Made by `IpamClient.collector`, run by controllers.node. Collectors of several
processes, or one that was killed at any point, do no harm to each other or to the data:

  J1  every step is one transaction that compares what it was decided from. Addresses go by sequence
      number, those of a vanished node only while its Node object does not exist, handles and
      endpoints by revision: a step that is overtaken does nothing, and the next pass decides anew;
  J2  one step that fails does not stop the others; it is said once, counted and tried again in the
      next pass. Only a datastore that fails `GIVE_UP` times in a row ends the pass;
  J3  before leaks of living nodes are released the endpoints are read again, at that moment;
  J4  `may_write` is asked before each step: a leader that lost its lease stops.

Source: Calico kube-controllers/pkg/controllers/node/ipam.go (syncIPAM).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ipam import blocks
from ipam.affinity import Owner
from ipam.blocks import BlockDraft
from ipam.client.claims import Claims
from ipam.client.fanout import AT_ONCE, first_of
from ipam.client.lane import Guard
from ipam.client.parts import Parts
from ipam.client.records import Change
from ipam.client.release import Releaser
from ipam.client.said import Said
from ipam.client.snapshot import SnapshotReader
from ipam.garbage import GarbageFinder, Plan, Snapshot, Terms
from ipam.leaks import Allocation
from libcalico.datastore.api import Compare, Delete
from libcalico.errors import (
    AffinityLost,
    DatastoreUnavailable,
    NotFound,
    RevisionConflict,
    Stale,
    SuiteError,
)
from libcalico.model.ipam import Block
from libcalico.model.keys import BlockKey, HandleKey, IpamHostKey, Key, ResourceKey, path_of
from libcalico.model.node import Node
from libcalico.net import Address
from libcalico.runtime import log
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)
GIVE_UP = AT_ONCE
T = TypeVar("T")

ADDRESS, ENDPOINT, AFFINITY, BLOCK = "address", "endpoint", "affinity", "block"
HANDLE, MARKER = "handle", "marker"


class Stopped(Stale):
    """The collector may not write any more."""

    def __str__(self) -> str:
        return "another process collects now"


@dataclass(slots=True)
class Report:
    """What one pass did. The counters are by kind (address, endpoint, affinity, block, handle,
    marker): given back, overtaken by others, failed. `released`: the leaks among them."""

    plan: Plan
    seen: Snapshot
    freed: Counter[str] = field(default_factory=Counter)
    overtaken: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    released: list[Allocation] = field(default_factory=list)


class Collector:
    """`run_pass()`, again and again; remembers suspects in between."""

    def __init__(self, parts: Parts, releaser: Releaser, may_write: Callable[[], bool]) -> None:
        self._claims: Claims = parts.claims
        self._lanes = parts.lanes
        self._records = parts.lanes.context.records
        self._clock: Clock = parts.lanes.context.clock
        self._releaser = releaser
        self._may_write = may_write
        self._said = Said()
        self._reader = SnapshotReader(self._records.datastore, parts.source, self._said)
        self._finder = GarbageFinder()

    async def run_pass(self, terms: Terms) -> Report:
        """Errors: DatastoreUnavailable, Unauthorized; Stopped (J4). What was done is done."""
        seen = await self._reader.read()
        now, wall = self._clock.monotonic(), self._clock.wall()
        # In a thread: seconds in a large cluster, in which the lease has to be refreshed.
        plan = await asyncio.to_thread(self._finder.find, seen, terms, now=now, wall=wall)
        run = _Pass(self, Report(plan, seen))
        await run.run()
        return run.report

    def dump(self) -> dict[str, object]:
        return self._finder.dump()


class _Pass:
    """One plan being performed."""

    def __init__(self, collector: Collector, report: Report) -> None:
        self._of = collector
        self.report = report
        self._in_a_row = 0
        self._unsaid: list[tuple[str, SuiteError]] = []

    async def run(self) -> None:
        """Endpoints before their addresses, addresses before the blocks they are in."""
        plan = self.report.plan
        endpoints = [(node, key) for node, keys in plan.endpoints.items() for key in keys]
        await self._each(ENDPOINT, endpoints, self._delete_endpoint)
        await self._each(ADDRESS, plan.gone, self._release_of_node)
        if plan.leaks:
            await self._each(ADDRESS, ["leaks of living nodes"], self._release_leaks)
        await self._each(AFFINITY, plan.owned, self._give_back)
        await self._each(MARKER, plan.markers, self._delete_marker)
        await self._each(BLOCK, [block.cidr for block in plan.surplus], self._release_empty)
        await self._each(BLOCK, plan.ownerless, self._discard)
        await self._each(BLOCK, plan.cooled, self._tidy)
        await self._each(HANDLE, plan.handles, self._delete_handle)
        for subject, error in self._unsaid:
            self._of._said.say(subject, error)

    async def _each(
        self, kind: str, items: Iterable[T], step: Callable[[T], Awaitable[int]]
    ) -> None:
        """At most `AT_ONCE` steps at a time (J2). A step returns how many it gave back."""
        permits = asyncio.Semaphore(AT_ONCE)

        async def one(item: T) -> None:
            async with permits:
                if not self._of._may_write():
                    raise Stopped
                try:
                    count = await step(item)
                except SuiteError as err:
                    self._failed(kind, str(item), err)
                    return
                self.report.freed[kind] += count
                if count:
                    self._in_a_row = 0
                    self._of._said.recovered(f"{kind} {item}")

        try:
            async with asyncio.TaskGroup() as group:
                for item in items:
                    group.create_task(one(item))
        except BaseExceptionGroup as failures:
            raise first_of(failures) from failures

    def _failed(self, kind: str, subject: str, error: SuiteError) -> None:
        if isinstance(error, Stale | NotFound | RevisionConflict):
            self.report.overtaken[kind] += 1
            LOG.debug("overtaken", key=f"{kind} {subject}", error=error)
            return
        self.report.failed[kind] += 1
        # Said at the end: of a datastore that is away our caller says so, once.
        self._unsaid.append((f"{kind} {subject}", error))
        is_away = isinstance(error, DatastoreUnavailable)
        self._in_a_row = self._in_a_row + 1 if is_away else 0
        if self._in_a_row >= GIVE_UP:
            raise error

    # ---- addresses -----------------------------------------------------------------------------

    async def _release_of_node(self, node: str) -> int:
        return await self._release(self.report.plan.gone[node], _absent(node))

    async def _release_leaks(self, _: str) -> int:
        """J3."""
        named: set[Address] = await self._of._reader.named()
        leaks = self.report.plan.leaks
        return await self._release([a for a in leaks if a.address not in named])

    async def _release(self, allocations: Iterable[Allocation], guard: Guard | None = None) -> int:
        """Failures are of single blocks."""
        wanted = {a.address: a for a in allocations}
        requests = [allocation.as_release() for allocation in wanted.values()]
        releaser, facts = self._of._releaser, self._of._reader.facts
        outcome = await releaser.release(requests, guard=guard, facts=facts)
        for failure in outcome.failed:
            block = wanted[failure.request.address].block
            self._failed(ADDRESS, f"{failure.request.address} in {block}", failure.error)
        self.report.released += [wanted[release.address] for release in outcome.released]
        return len(outcome.released)

    async def _delete_endpoint(self, item: tuple[str, ResourceKey]) -> int:
        node, key = item
        absent, revision = _absent(node), self.report.seen.endpoints[key].mod_revision
        compares = [Compare(path_of(absent.key), 0), Compare(path_of(key), revision)]
        store = self._of._records.datastore
        if not (await store.txn(compares, [Delete(path_of(key))])).succeeded:
            raise AffinityLost(f"{key.name} or its node was written meanwhile")
        LOG.info("endpoint of a vanished node deleted", endpoint=key.name, node=node)
        return 1

    # ---- blocks and the rest -------------------------------------------------------------------

    async def _give_back(self, item: tuple[Owner, str]) -> int:
        owner, cidr = item
        try:
            await self._of._claims.release(owner, cidr, must_be_empty=False)
        except NotFound:
            await self._of._claims.disown(owner, cidr)
        return 1

    async def _release_empty(self, cidr: str) -> int:
        """Unchanged since it was seen."""
        block = self.report.seen.blocks[cidr].value
        assert block is not None
        owner = Owner(block.host or "")
        number = block.sequence_number
        await self._of._claims.release(
            owner, block.cidr, must_be_empty=True, sequence_number=number
        )
        return 1

    async def _discard(self, cidr: str) -> int:
        return await self._write(BlockKey(cidr), self._seen(cidr), None)

    async def _tidy(self, cidr: str) -> int:
        """Free what has rested; the block is then looked at like any empty one."""
        block = self.report.seen.blocks[cidr].value
        assert block is not None
        draft = BlockDraft(block)
        draft.collect(self._of._clock.wall(), self.report.seen.cooldown_s)
        after = draft.finish()
        assert blocks.is_empty(after)
        return await self._write(BlockKey(cidr), self._seen(cidr), after)

    def _seen(self, cidr: str) -> int:
        return self.report.seen.blocks[cidr].mod_revision

    async def _delete_handle(self, item: tuple[str, int]) -> int:
        handle_id, revision = item
        return await self._write(HandleKey(handle_id), revision, None)

    async def _delete_marker(self, host: str) -> int:
        store, path = self._of._records.datastore, path_of(IpamHostKey(host))
        found = await store.get(path)
        if found is None:
            raise NotFound(path)
        await store.delete(path, mod_revision=found.mod_revision)
        return 1

    async def _write(self, key: Key, revision: int, after: Block | None) -> int:
        committed = await self._of._records.commit([Change(key, revision, after)])
        if not committed.succeeded:
            raise AffinityLost(f"{path_of(key)} was written meanwhile")
        if isinstance(key, BlockKey):
            self._of._lanes.forget_view(key.cidr)
        elif isinstance(key, HandleKey):
            self._of._lanes.context.handles.pop(key.handle_id, None)
        return 1


def _absent(node: str) -> Guard:
    return Guard(ResourceKey(Node.kind, node), 0)
