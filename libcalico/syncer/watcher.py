"""The syncer that stands on a datastore: list, watch, list again when that expired, and compare.

Layer: syncer edge. `libcalico.syncer.reconcile` decides what is said; here is who is asked, when.
Used by felix, confd and everybody else who follows a part of the datastore.

    syncer = WatchSyncer(datastore, [prefix_of("Node"), prefix_of("IPPool")], sink)
    await syncer.run()          # for ever; cancel it to stop

  W1  only the given prefixes are read; each has its own list and watch, all share one IN_SYNC, said
      when the last of them has been listed (S3);
  W2  while the datastore is away nothing is said to the sink: it keeps what it has. One log line a
      minute says so; both at start and later we simply go on when it comes back;
  W3  every `compare_interval_s` (with jitter) the keys are listed without values and compared. What
      the watch missed is delivered and counted in `missed`; it should be zero for ever: a number
      that grows is a fault of the store, the network or ours that nobody would see otherwise.
      A store whose revision went back (restored from a backup) is listed anew;
  W4  the sink is called synchronously, from the loop that runs us, never from two tasks at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from libcalico.datastore.api import Datastore
from libcalico.errors import Transient, Unauthorized, WatchExpired
from libcalico.model import codec
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff, Throttle
from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.syncer.api import SyncSink, SyncStatus, Update
from libcalico.syncer.reconcile import Decode, Difference, RangeState

LOG = log.get(__name__)

_LOG_PERIOD_S = 60.0


@dataclass(frozen=True, slots=True)
class SyncerOptions:
    compare_interval_s: float = 600.0
    compare_jitter: float = 0.2
    # What a watch may take to deliver a change before the comparison calls it missed.
    compare_grace_s: float = 10.0
    # With more differences than this, listing anew is cheaper than looking at each.
    compare_limit: int = 1_000
    retry_first_s: float = 0.2
    retry_limit_s: float = 5.0
    # What becomes of stored bytes; typha hands them on as they are.
    decode: Decode = codec.decode


@dataclass(slots=True)
class SyncerStats:
    """Counters since start, for metrics and dumps. `went_back`: how often the store turned out to
    be older than what it had told us before (restored from a backup)."""

    updates: int = 0
    resyncs: int = 0
    bad_values: int = 0
    compared: int = 0
    missed: int = 0
    went_back: int = 0


@dataclass(slots=True)
class _Range:
    state: RangeState
    is_in_sync: bool = False
    # Ends the running watch early, when the comparison finds that only a new list can help.
    watch_scope: asyncio.Timeout | None = None

    def ask_for_list(self) -> None:
        if self.watch_scope is not None:
            self.watch_scope.reschedule(asyncio.get_running_loop().time())


class WatchSyncer:
    """Follows prefixes of a datastore into a sink. `run` once."""

    def __init__(
        self,
        datastore: Datastore,
        prefixes: Sequence[str],
        sink: SyncSink,
        *,
        options: SyncerOptions | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        _check_prefixes(prefixes)
        self._datastore = datastore
        self._sink = sink
        self._options = options or SyncerOptions()
        self._clock = clock
        decode = self._options.decode
        self._ranges = tuple(_Range(RangeState(prefix, decode=decode)) for prefix in prefixes)
        self._status: SyncStatus | None = None
        self._throttle = Throttle(_LOG_PERIOD_S)
        self._away = False
        self.stats = SyncerStats()

    @property
    def status(self) -> SyncStatus:
        return self._status or SyncStatus.WAIT_FOR_DATASTORE

    async def run(self) -> None:
        self._say(SyncStatus.WAIT_FOR_DATASTORE)
        async with asyncio.TaskGroup() as tasks:
            for item in self._ranges:
                tasks.create_task(self._follow(item), name=f"syncer {item.state.prefix}")
            tasks.create_task(self._compare_now_and_then(), name="syncer comparison")

    def positions(self) -> dict[str, int]:
        """Prefix: the store's revision up to which it has been delivered."""
        return {item.state.prefix: item.state.position for item in self._ranges}

    async def confirm(self, prefixes: Collection[str]) -> int:
        """Ask the store whether what was delivered of these ranges is all there is. The positions
        of those for which it is move to the revision asked; the lowest such revision is returned
        (0 for no prefix). A quiet range learns so that the store has moved on without it.

        Errors: DatastoreUnavailable, Unauthorized.
        """
        revisions = [
            await self._confirm(item) for item in self._ranges if item.state.prefix in prefixes
        ]
        return min(revisions, default=0)

    async def _confirm(self, item: _Range) -> int:
        listed = await self._datastore.list(item.state.prefix, keys_only=True)
        if listed.revision < item.state.position:
            self._went_back(item, listed.revision)
        elif item.is_in_sync and not item.state.differences(listed.kvs):
            item.state.position = max(item.state.position, listed.revision)
        return listed.revision

    def dump(self) -> dict[str, object]:
        return {
            "status": self.status.value,
            "stats": {name: getattr(self.stats, name) for name in SyncerStats.__slots__},
            "ranges": [item.state.dump() for item in self._ranges],
        }

    # ---- one range -----------------------------------------------------------------------------

    async def _follow(self, item: _Range) -> None:
        """List and watch one prefix for ever."""
        backoff = Backoff(self._options.retry_first_s, self._options.retry_limit_s)
        while True:
            try:
                await self._list(item)
                backoff.reset()
                await self._watch(item)
            except WatchExpired as expired:
                LOG.info("watch expired, listing again", key=item.state.prefix, reason=str(expired))
            except (Transient, Unauthorized) as err:
                self._report_away(err)
                await self._clock.sleep(backoff.next_s())

    async def _list(self, item: _Range) -> None:
        state = item.state
        state.begin_list()
        revision = 0
        async with aclosing(self._datastore.list_pages(state.prefix)) as pages:
            async for page in pages:
                self._report_back()
                self._leave_sync(item)
                revision = page.revision
                self._deliver(state.on_page(page))
        self._deliver(state.end_list(revision))
        item.is_in_sync = True
        if all(other.is_in_sync for other in self._ranges):
            self._say(SyncStatus.IN_SYNC)

    async def _watch(self, item: _Range) -> None:
        """Deliver changes until the watch expires or a new list is asked for."""
        state = item.state
        try:
            async with (
                asyncio.timeout(None) as item.watch_scope,
                aclosing(self._datastore.watch(state.prefix, state.position + 1)) as batches,
            ):
                async for batch in batches:
                    self._report_back()
                    self._deliver(state.on_batch(batch))
        except TimeoutError:
            return  # `ask_for_list`
        finally:
            item.watch_scope = None

    # ---- the comparison ------------------------------------------------------------------------

    async def _compare_now_and_then(self) -> None:
        options = self._options
        while True:
            spread = 1 + options.compare_jitter * (2 * random.random() - 1)
            await self._clock.sleep(options.compare_interval_s * spread)
            for item in self._ranges:
                try:
                    await self._compare(item)
                except (Transient, Unauthorized) as err:
                    LOG.info("comparison skipped", key=item.state.prefix, error=str(err))

    async def _compare(self, item: _Range) -> None:
        """Find what the watch missed in one range (W3)."""
        if not item.is_in_sync:
            return
        state = item.state
        before = state.position
        listed = await self._datastore.list(state.prefix, keys_only=True)
        self.stats.compared += 1
        if listed.revision < before:
            self._went_back(item, listed.revision)
            return
        suspects = state.differences(listed.kvs)
        if not suspects:
            return
        if len(suspects) > self._options.compare_limit:
            LOG.warning("too many differences, listing again", key=state.prefix,
                        count=len(suspects))  # fmt: skip
            self.stats.missed += len(suspects)
            item.ask_for_list()
            return
        await self._clock.sleep(self._options.compare_grace_s)
        for suspect in suspects:
            await self._settle(item, suspect, listed.revision)

    def _went_back(self, item: _Range, revision: int) -> None:
        LOG.warning("the store's revision went back, listing again", key=item.state.prefix,
                    revision=revision)  # fmt: skip
        self.stats.went_back += 1
        item.state.distrust()
        item.ask_for_list()

    async def _settle(self, item: _Range, suspect: Difference, revision: int) -> None:
        found = await self._datastore.get(suspect.path)
        missed = item.state.settle(suspect, found, revision)
        if missed:
            LOG.warning("a change was missed by the watch", key=suspect.path,
                        revision=suspect.listed_revision)  # fmt: skip
            self.stats.missed += 1
            self._deliver(missed)

    # ---- what the sink hears -------------------------------------------------------------------

    def _deliver(self, updates: Sequence[Update]) -> None:
        if not updates:
            return
        for update in updates:
            if update.error is not None:
                # Once per key and revision: a delivered revision is never delivered again (I2).
                self.stats.bad_values += 1
                LOG.warning("a stored value does not parse, treated as absent",
                            key=update.error.key, revision=update.revision,
                            error=update.error.reason)  # fmt: skip
        self.stats.updates += len(updates)
        self._sink.on_updates(updates)

    def _leave_sync(self, item: _Range) -> None:
        """The datastore has begun to answer a list."""
        if item.is_in_sync:
            self.stats.resyncs += 1
        item.is_in_sync = False
        self._say(SyncStatus.RESYNC)

    def _say(self, status: SyncStatus) -> None:
        if status is not self._status:
            self._status = status
            self._sink.on_status(status)

    def _report_away(self, err: Exception) -> None:
        self._away = True
        if self._throttle.allows(self._clock.monotonic()):
            LOG.warning("waiting for the datastore", error=str(err))

    def _report_back(self) -> None:
        if self._away:
            self._away = False
            self._throttle.reset()
            LOG.info("the datastore answers again")


def _check_prefixes(prefixes: Sequence[str]) -> None:
    if not prefixes:
        raise ValueError("a syncer needs at least one prefix")
    for prefix in prefixes:
        if any(other is not prefix and other.startswith(prefix) for other in prefixes):
            raise ValueError(f"{prefix} covers another prefix: its keys would be said twice")
