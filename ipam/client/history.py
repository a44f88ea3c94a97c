"""Feeding etcd's history, or what happens from now on, to an audit.

Layer: ipam edge. Used by calicoctl (`ipam audit`). `ipam.audit` judges.

  N1  nothing is written, and nothing of the history is kept: a snapshot page by page, then the
      changes batch by batch, as fast as they are judged;
  N2  no revision is left out in silence: what was compacted before it was looked at is an error;
  N3  the end of a range is seen because all keys are watched: every revision changed one of them.
      Who may not read all keys watches /calico/, and sees the end with the next write below it, or
      when etcd says how far it is (every ten minutes).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ipam.audit import PREFIXES, Auditor, Violation, event_of
from libcalico.datastore.api import Datastore, WatchBatch
from libcalico.errors import InvalidInput, Unauthorized, WatchExpired
from libcalico.model.keys import ROOT, IpamConfigKey, path_of

_ATTEMPTS = 3
EVERYTHING = ""


class Compacted(InvalidInput):
    """etcd has forgotten what was asked for (N2)."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(revision, oldest)
        self.revision, self.oldest = revision, oldest

    def __str__(self) -> str:
        return (
            f"revision {self.revision} has been compacted: "
            f"the oldest revision that can be replayed is {self.oldest}"
        )


class BadRange(InvalidInput):
    """There is no such range. The reason is the whole text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(slots=True)
class History:
    """One audit of one datastore. `first` and `last`: the revisions it has covered so far."""

    datastore: Datastore
    auditor: Auditor = field(default_factory=Auditor)
    first: int = 0
    last: int = 0

    async def replay(
        self, first: int | None, last: int | None
    ) -> AsyncGenerator[Sequence[Violation], None]:
        """From the state at `first` (None: the oldest there is) to `last` (None: now).

        Errors: BadRange, Compacted, DatastoreUnavailable, Unauthorized."""
        now = await self._revision()
        end = now if last is None else last
        for name, revision in (("from", first), ("to", last)):
            if revision is not None and revision > now:
                reason = f"--{name}: revision {revision} is in the future"
                raise BadRange(f"{reason}: the datastore stands at {now}")
        if first is not None and first > end:
            raise BadRange(f"--from {first} is after --to {end}")
        yield await self._load(first, now)
        if self.first > end:
            raise Compacted(end, self.first)
        if self.last >= end:
            return
        async with aclosing(self._changes()) as batches:
            async for batch in batches:
                yield self._judge(batch, end)
                if batch.revision >= end:
                    return

    async def follow(
        self, first: int | None, stop: asyncio.Event
    ) -> AsyncGenerator[Sequence[Violation], None]:
        """From the state at `first` (None: now) on, until `stop` is set. Errors as `replay`."""
        now = await self._revision()
        if first is not None and first > now:
            reason = f"--from: revision {first} is in the future"
            raise BadRange(f"{reason}: the datastore stands at {now}")
        yield await self._load(now if first is None else first, now)
        async with aclosing(self._changes()) as batches:
            while (batch := await _next_or(stop, batches)) is not None:
                yield self._judge(batch, batch.revision)

    def _judge(self, batch: WatchBatch, end: int) -> list[Violation]:
        relevant = [
            event_of(event)
            for event in batch.events
            if event.kv.key.startswith(PREFIXES) and event.kv.mod_revision <= end
        ]
        self.last = min(batch.revision, end)
        return self.auditor.apply(relevant)

    async def _revision(self) -> int:
        """Where the store stands. One short list, of what is there or not."""
        return (await self.datastore.list(path_of(IpamConfigKey()), keys_only=True)).revision

    async def _load(self, first: int | None, now: int) -> list[Violation]:
        """Take the state at `first`, or the oldest there is."""
        for _ in range(_ATTEMPTS):
            start = await self._oldest(now) if first is None else first
            try:
                found = await self._snapshot(start)
            except WatchExpired:
                if first is None:
                    self.auditor = Auditor()
                    continue  # compacted just now: the next one is the oldest
                break
            self.first = self.last = start
            return found
        asked = first or 1
        raise Compacted(asked, await self._oldest(now))

    async def _snapshot(self, revision: int) -> list[Violation]:
        found: list[Violation] = []
        for prefix in PREFIXES:
            async with aclosing(self.datastore.list_pages(prefix, revision=revision)) as pages:
                async for page in pages:
                    found += self.auditor.load(page.kvs, revision)
        return found + self.auditor.settle(revision)

    async def _oldest(self, now: int) -> int:
        """The revision of the last compaction, which a snapshot can still be taken of; 1 when
        there was none. Only a watch that comes too late is told."""
        if now <= 1:
            return 1  # nothing was ever written, and a watch would wait for it
        try:
            async with aclosing(_watched(self.datastore, 1)) as batches:
                await anext(batches)
        except WatchExpired as err:
            return err.compact_revision
        return 1

    async def _changes(self) -> AsyncGenerator[WatchBatch, None]:
        """Everything after what is covered. Errors: Compacted."""
        try:
            async with aclosing(_watched(self.datastore, self.last + 1)) as batches:
                async for batch in batches:
                    yield batch
        except WatchExpired as err:
            raise Compacted(self.last + 1, err.compact_revision) from err


async def _watched(datastore: Datastore, first: int) -> AsyncGenerator[WatchBatch, None]:
    """N3."""
    following = first
    try:
        async with aclosing(datastore.watch(EVERYTHING, following)) as batches:
            async for batch in batches:
                yield batch
                following = batch.revision + 1
    except Unauthorized:
        async with aclosing(datastore.watch(ROOT, following)) as batches:
            async for batch in batches:
                yield batch


async def _next_or(
    stop: asyncio.Event, batches: AsyncGenerator[WatchBatch, None]
) -> WatchBatch | None:
    """The next batch, None when `stop` was set first."""
    arriving = asyncio.ensure_future(anext(batches))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({arriving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return arriving.result() if arriving.done() else None
    finally:
        stopping.cancel()
        arriving.cancel()
        await asyncio.gather(arriving, stopping, return_exceptions=True)
