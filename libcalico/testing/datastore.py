"""A datastore in memory that behaves like etcd, and breaks like etcd on request.

Layer: testing. Used by unit and component tests of everything that takes a `Datastore`; runs the
same contract suite as the etcd client (tests/etcd/test_contract.py).

What it keeps of etcd, because somebody would otherwise rely on the opposite:
  I1  revisions count writes: one for a whole transaction, none when it changes nothing;
  I2  reads at an old revision work until `compact`, then raise WatchExpired;
  I3  a watch that fell behind a compaction raises WatchExpired, one that had seen all lives on;
  I4  what etcd refuses is refused: empty keys, unknown leases, duplicate keys in one transaction,
      more than 128 operations, requests over 1.5 MiB, revisions of the future;
  I5  every call gives other tasks a chance to run before it takes effect, as the network would.

Faults are queued by the test and used up by matching calls, in order:
`fail_next`, `lose_answer_next` (applied, but the caller sees DatastoreUnavailable), `slow_next`,
`before_next` (something else happens first), `stall`/`resume`, `partition`/`heal` (nothing answers,
watches hang), `hold_watches`, `lose_watch_events`, `deny`.
"""

from __future__ import annotations

import asyncio
import bisect
import enum
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from libcalico.datastore.api import (
    Compare,
    Delete,
    EventType,
    KeyValue,
    ListResult,
    Put,
    TxnResult,
    WatchBatch,
    WatchEvent,
)
from libcalico.errors import (
    AlreadyExists,
    DatastoreUnavailable,
    InvalidInput,
    NotFound,
    RevisionConflict,
    SuiteError,
    Unauthorized,
    WatchExpired,
)

MAX_TXN_OPERATIONS = 128
MAX_REQUEST_BYTES = 1536 * 1024
_CALL_LOG_LENGTH = 10_000


class _FaultKind(enum.Enum):
    FAIL = "fail"
    LOSE_ANSWER = "lose-answer"
    SLOW = "slow"
    INTERLUDE = "interlude"


@dataclass(slots=True)
class _Fault:
    kind: _FaultKind
    remaining: int
    operations: frozenset[str]
    prefix: str
    delay_s: float = 0.0
    error: SuiteError | None = None
    after: int = 0
    action: Callable[[], object] | None = None

    def hits(self, operation: str, key: str) -> bool:
        """Does this call meet the fault? Counts it if so."""
        wanted = not self.operations or operation in self.operations
        if self.remaining < 1 or not wanted or not key.startswith(self.prefix):
            return False
        if self.after:
            self.after -= 1
            return False
        self.remaining -= 1
        return True


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    expires_at: float


@dataclass(frozen=True, slots=True)
class _Version:
    """One version of one key; `kv` None is a delete."""

    revision: int
    kv: KeyValue | None


class _Watcher:
    """One open watch: a queue of what it has yet to deliver."""

    __slots__ = ("expired", "next_revision", "prefix", "queue", "wake")

    def __init__(self, prefix: str, start_revision: int) -> None:
        self.prefix = prefix
        self.next_revision = start_revision
        self.queue: deque[WatchBatch] = deque()
        self.wake = asyncio.Event()
        self.expired: WatchExpired | None = None

    def offer(self, revision: int, events: Iterable[WatchEvent]) -> None:
        if revision < self.next_revision:
            return
        self.next_revision = revision + 1
        mine = tuple(event for event in events if event.kv.key.startswith(self.prefix))
        if mine:
            self.queue.append(WatchBatch(mine, revision))
            self.wake.set()


class MemoryDatastore:
    """Satisfies `libcalico.datastore.api.Datastore`. One event loop at a time."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._revision = 1  # an empty etcd stands at revision 1
        self._compacted = 0
        self._keys: list[str] = []  # every key with a kept version, bytewise order
        self._versions: dict[str, list[_Version]] = {}
        self._log: list[tuple[int, tuple[WatchEvent, ...]]] = []
        self._watchers: set[_Watcher] = set()
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1000
        self._faults: list[_Fault] = []
        self._gate: asyncio.Event | None = None
        self._partitioned = False
        self._held = False
        self._hidden_writes = 0
        self._denied: tuple[str, ...] | None = None
        self._closed = False
        #: Keys in one page of `list_pages`; make it small to test what happens between pages.
        self.page_keys = 500
        #: (operation, key or prefix) of every call that reached the store, oldest first.
        self.calls: deque[tuple[str, str]] = deque(maxlen=_CALL_LOG_LENGTH)

    # ---- reading -------------------------------------------------------------------------------

    async def get(self, key: str, *, revision: int = 0) -> KeyValue | None:
        _check_key(key)
        await self._enter("get", key)
        found = self._at(key, self._readable(revision))
        self._leave("get", key)
        return found

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> ListResult:
        await self._enter("list", prefix)
        at = self._readable(revision)
        found = [kv for key in self._under(prefix) if (kv := self._at(key, at)) is not None]
        if keys_only:
            found = [_without_value(kv) for kv in found]
        # etcd's header carries the store's revision; D3 says the snapshot's: the adapter does too.
        result = ListResult(tuple(found), at)
        self._leave("list", prefix)
        return result

    async def list_pages(
        self, prefix: str, *, revision: int = 0, keys_only: bool = False
    ) -> AsyncGenerator[ListResult, None]:
        """Pages of `page_keys`; a fault may hit between any two."""
        found = await self.list(prefix, revision=revision, keys_only=keys_only)
        size = self.page_keys
        for start in range(0, max(1, len(found.kvs)), size):
            if start:
                await self._enter("list", prefix)
                self._readable(found.revision)
                self._leave("list", prefix)
            yield ListResult(found.kvs[start : start + size], found.revision)

    # ---- writing -------------------------------------------------------------------------------

    async def create(self, key: str, value: bytes, *, lease: int = 0) -> int:
        result = await self._write("create", key, [Compare(key, 0)], Put(key, value, lease))
        if not result.succeeded:
            raise AlreadyExists(key)
        return result.revision

    async def update(self, key: str, value: bytes, mod_revision: int, *, lease: int = 0) -> int:
        if mod_revision < 1:
            raise InvalidInput(f"update of {key} needs the revision it was read at")
        compare = Compare(key, mod_revision)
        result = await self._write("update", key, [compare], Put(key, value, lease))
        _raise_conflict(result, compare)
        return result.revision

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        return (await self._write("put", key, [], Put(key, value, lease))).revision

    async def delete(self, key: str, *, mod_revision: int | None = None) -> KeyValue:
        _check_key(key)
        await self._enter("delete", key)
        before = self._at(key, self._revision)
        if before is None:
            self._leave("delete", key)
            raise NotFound(key)
        if mod_revision is not None and before.mod_revision != mod_revision:
            self._leave("delete", key)
            raise RevisionConflict(key, mod_revision, before.mod_revision)
        self._commit([Delete(key)])
        self._leave("delete", key)
        return before

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TxnResult:
        _check_txn(compares, operations)
        anchor = compares[0].key if compares else operations[0].key if operations else ""
        await self._enter("txn", anchor)
        result = self._apply(compares, operations)
        self._leave("txn", anchor)
        return result

    # ---- leases --------------------------------------------------------------------------------

    async def grant_lease(self, ttl_s: int) -> int:
        if ttl_s < 1:
            raise InvalidInput(f"lease TTL {ttl_s} s is too short")
        await self._enter("grant_lease", "")
        self._next_lease += 1
        self._leases[self._next_lease] = _Lease(ttl_s, self._now() + ttl_s)
        self._leave("grant_lease", "")
        return self._next_lease

    async def keep_lease_alive(self, lease: int) -> int:
        await self._enter("keep_lease_alive", "")
        found = self._leases.get(lease)
        if found is not None:
            found.expires_at = self._now() + found.ttl_s
        self._leave("keep_lease_alive", "")
        if found is None:
            raise NotFound(f"lease {lease}")
        return found.ttl_s

    async def revoke_lease(self, lease: int) -> None:
        await self._enter("revoke_lease", "")
        known = lease in self._leases
        if known:
            self.expire_lease(lease)
        self._leave("revoke_lease", "")
        if not known:
            raise NotFound(f"lease {lease}")

    # ---- watching ------------------------------------------------------------------------------

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        if start_revision < 1:
            raise InvalidInput("a watch starts at revision 1 or later")
        await self._enter("watch", prefix, watching=True)
        watcher = _Watcher(prefix, start_revision)
        self._watchers.add(watcher)
        try:
            self._catch_up(watcher)
            while True:
                while watcher.queue:
                    yield watcher.queue.popleft()
                if watcher.expired is not None:
                    raise watcher.expired
                watcher.wake.clear()
                await watcher.wake.wait()
                self._check_open()
        finally:
            self._watchers.discard(watcher)

    async def close(self) -> None:
        self._closed = True
        for watcher in self._watchers:
            watcher.wake.set()

    # ---- what a test does to the store ---------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def compacted(self) -> int:
        """The revision of the last compaction, 0 for none."""
        return self._compacted

    def seed(self, values: Mapping[str, bytes]) -> None:
        """Write without going through faults, one revision each."""
        for key, value in values.items():
            self._commit([Put(key, value)])

    def restore(self, values: Mapping[str, bytes]) -> None:
        """Another store in its place, as after restoring a backup: revisions begin anew."""
        self._revision, self._compacted = 1, 0
        self._keys, self._versions, self._log = [], {}, []
        self.seed(values)

    def erase(self, *keys: str) -> None:
        """Delete as somebody else would: no faults, one revision each, absent keys are fine."""
        for key in keys:
            self._commit([Delete(key)])

    def contents(self, prefix: str = "") -> dict[str, bytes]:
        """What is stored now, in key order."""
        return {kv.key: kv.value for kv in self.snapshot(prefix)}

    def snapshot(self, prefix: str = "") -> tuple[KeyValue, ...]:
        """What is stored now, with revisions."""
        present = (self._at(key, self._revision) for key in self._under(prefix))
        return tuple(kv for kv in present if kv is not None)

    def compact(self, revision: int | None = None) -> None:
        """Forget what was superseded before `revision` (default: now), as etcd's Compact does."""
        at = self._revision if revision is None else revision
        if at > self._revision:
            raise InvalidInput(f"revision {at} is in the future")
        if at <= self._compacted:
            raise WatchExpired(self._compacted)
        self._compacted = at
        self._log = [entry for entry in self._log if entry[0] >= at]
        for key in list(self._keys):
            self._versions[key] = kept = _compacted_versions(self._versions[key], at)
            if not kept:
                del self._versions[key]
                self._keys.remove(key)

    def progress(self) -> None:
        """Send every watch etcd's progress notification: an empty batch."""
        for watcher in self._watchers:
            if self._watches_flow:
                watcher.queue.append(WatchBatch((), self._revision))
                watcher.wake.set()

    def expire_lease(self, lease: int) -> None:
        """Let the lease run out now; its keys go, each as a delete of one common revision."""
        del self._leases[lease]
        bound = [kv.key for key in self._keys if (kv := self._at(key, self._revision)) is not None
                 and kv.lease == lease]  # fmt: skip
        self._commit([Delete(key) for key in bound])

    def fail_next(
        self,
        count: int = 1,
        *,
        operations: Iterable[str] = (),
        prefix: str = "",
        error: SuiteError | None = None,
        after: int = 0,
    ) -> None:
        """`count` matching calls are refused before they take effect, `after` so many went well.

        Every page of a list counts as a call.
        """
        fault = _Fault(_FaultKind.FAIL, count, frozenset(operations), prefix)
        fault.error, fault.after = error, after
        self._faults.append(fault)

    def lose_answer_next(
        self, count: int = 1, *, operations: Iterable[str] = (), prefix: str = ""
    ) -> None:
        """The next `count` matching calls take effect, yet raise DatastoreUnavailable."""
        fault = _Fault(_FaultKind.LOSE_ANSWER, count, frozenset(operations), prefix)
        self._faults.append(fault)

    def slow_next(
        self, delay_s: float, count: int = 1, *, operations: Iterable[str] = (), prefix: str = ""
    ) -> None:
        fault = _Fault(_FaultKind.SLOW, count, frozenset(operations), prefix, delay_s)
        self._faults.append(fault)

    def before_next(
        self, action: Callable[[], object], *, operations: Iterable[str] = (), prefix: str = ""
    ) -> None:
        """Run `action` right before the next matching call takes effect: a race, made to order."""
        fault = _Fault(_FaultKind.INTERLUDE, 1, frozenset(operations), prefix)
        fault.action = action
        self._faults.append(fault)

    def stall(self) -> None:
        """Every call from now on waits until `resume`; watches go on."""
        self._gate = asyncio.Event()

    def resume(self) -> None:
        if self._gate is not None:
            self._gate.set()
            self._gate = None

    def partition(self) -> None:
        """Nobody reaches the store: calls fail at once, watches hang as while reconnecting."""
        self._partitioned = True

    def heal(self) -> None:
        """End `partition`: watches continue where they were, or expire if that was compacted."""
        self._partitioned = False
        self._wake_watchers()

    def hold_watches(self) -> None:
        """Watches fall behind: what happens is delivered by `release_watches`; calls go on."""
        self._held = True

    def release_watches(self) -> None:
        self._held = False
        self._wake_watchers()

    def lose_watch_events(self, count: int = 1) -> None:
        """The next `count` writes stay unseen by every watch: what anti-entropy is for."""
        self._hidden_writes += count

    def see_all_events(self) -> None:
        """End `lose_watch_events`."""
        self._hidden_writes = 0

    def deny(self, *prefixes: str) -> None:
        """Refuse access to keys under these prefixes (none given: to everything)."""
        self._denied = prefixes or ("",)

    def allow(self) -> None:
        self._denied = None

    def is_drained(self) -> bool:
        """Everything that was announced to a watch has been taken from it."""
        return not any(watcher.queue or watcher.expired for watcher in self._watchers)

    def open_watches(self) -> int:
        return len(self._watchers)

    def _wake_watchers(self) -> None:
        for watcher in self._watchers:
            self._catch_up(watcher)
            watcher.wake.set()

    # ---- inside --------------------------------------------------------------------------------

    @property
    def _watches_flow(self) -> bool:
        return not (self._partitioned or self._held)

    async def _enter(self, operation: str, key: str, *, watching: bool = False) -> None:
        """Everything that may go wrong before the call takes effect."""
        self._check_open()
        await asyncio.sleep(0)
        if self._gate is not None and not watching:
            await self._gate.wait()
        slow = self._use_fault(operation, key, _FaultKind.SLOW)
        if slow is not None:
            await asyncio.sleep(slow.delay_s)
        self._check_open()
        if self._partitioned and not watching:
            raise DatastoreUnavailable("the datastore is partitioned away")
        if self._denied is not None and key.startswith(self._denied):
            raise Unauthorized("etcdserver: permission denied")
        failing = self._use_fault(operation, key, _FaultKind.FAIL)
        if failing is not None:
            raise failing.error or DatastoreUnavailable(f"injected failure of {operation}")
        self.calls.append((operation, key))
        interlude = self._use_fault(operation, key, _FaultKind.INTERLUDE)
        if interlude is not None and interlude.action is not None:
            interlude.action()
        self._expire_leases()

    def _leave(self, operation: str, key: str) -> None:
        """Everything that may go wrong after it took effect."""
        if self._use_fault(operation, key, _FaultKind.LOSE_ANSWER) is not None:
            raise DatastoreUnavailable(f"injected loss of the answer to {operation}")

    def _use_fault(self, operation: str, key: str, kind: _FaultKind) -> _Fault | None:
        for fault in self._faults:
            if fault.kind is kind and fault.hits(operation, key):
                return fault
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise DatastoreUnavailable("the datastore client is closed")

    def _expire_leases(self) -> None:
        now = self._now()
        for lease in [name for name, lease in self._leases.items() if lease.expires_at <= now]:
            self.expire_lease(lease)

    async def _write(
        self, operation: str, key: str, compares: Sequence[Compare], write: Put
    ) -> TxnResult:
        _check_txn(compares, [write])
        await self._enter(operation, key)
        result = self._apply(compares, [write])
        self._leave(operation, key)
        return result

    def _apply(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        found = tuple(self._at(compare.key, self._revision) for compare in compares)
        for compare, kv in zip(compares, found, strict=True):
            if (0 if kv is None else kv.mod_revision) != compare.mod_revision:
                return TxnResult(False, self._revision, found)
        for operation in operations:
            if isinstance(operation, Put) and operation.lease not in (0, *self._leases):
                raise NotFound(f"lease {operation.lease}")
        self._commit(operations)
        return TxnResult(True, self._revision)

    def _commit(self, operations: Sequence[Put | Delete]) -> None:
        """Apply under one new revision; I1: nothing changed means no revision."""
        revision = self._revision + 1
        events = [event for op in operations if (event := self._change(op, revision)) is not None]
        if not events:
            return
        self._revision = revision
        if self._hidden_writes > 0:
            self._hidden_writes -= 1
            return
        self._log.append((revision, tuple(events)))
        if self._watches_flow:
            for watcher in self._watchers:
                watcher.offer(revision, events)

    def _change(self, operation: Put | Delete, revision: int) -> WatchEvent | None:
        key = operation.key
        before = self._latest(key)
        if isinstance(operation, Delete):
            if before is None:
                return None
            self._versions[key].append(_Version(revision, None))
            return WatchEvent(EventType.DELETE, KeyValue(key, b"", revision), before)
        if key not in self._versions:
            self._versions[key] = []
            bisect.insort(self._keys, key)
        after = KeyValue(
            key,
            bytes(operation.value),
            mod_revision=revision,
            create_revision=revision if before is None else before.create_revision,
            version=1 if before is None else before.version + 1,
            lease=operation.lease,
        )
        self._versions[key].append(_Version(revision, after))
        return WatchEvent(EventType.PUT, after, before)

    def _latest(self, key: str) -> KeyValue | None:
        versions = self._versions.get(key)
        return versions[-1].kv if versions else None

    def _at(self, key: str, revision: int) -> KeyValue | None:
        for version in reversed(self._versions.get(key, [])):
            if version.revision <= revision:
                return version.kv
        return None

    def _under(self, prefix: str) -> tuple[str, ...]:
        first = bisect.bisect_left(self._keys, prefix)
        found = []
        for key in self._keys[first:]:
            if not key.startswith(prefix):
                break
            found.append(key)
        return tuple(found)

    def _readable(self, revision: int) -> int:
        if revision > self._revision:
            raise InvalidInput(f"revision {revision} is in the future")
        if 0 < revision < self._compacted:
            raise WatchExpired(self._compacted)
        return revision or self._revision

    def _catch_up(self, watcher: _Watcher) -> None:
        """Queue what the log holds for a watch that starts, or continues after a partition."""
        if not self._watches_flow:
            return
        if watcher.next_revision < self._compacted:
            watcher.expired = WatchExpired(self._compacted)
            return
        for revision, events in self._log:
            watcher.offer(revision, events)
        watcher.next_revision = max(watcher.next_revision, self._revision + 1)


def _check_key(key: str) -> None:
    if not key:
        raise InvalidInput("etcdserver: key is not provided")


def _check_txn(compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> None:
    """I4: what etcd would refuse before looking at any data."""
    if max(len(compares), len(operations)) > MAX_TXN_OPERATIONS:
        raise InvalidInput("etcdserver: too many operations in txn request")
    for item in (*compares, *operations):
        _check_key(item.key)
    puts = [operation for operation in operations if isinstance(operation, Put)]
    put_keys = {put.key for put in puts}
    deleted = {operation.key for operation in operations if isinstance(operation, Delete)}
    if len(put_keys) < len(puts) or put_keys & deleted:
        raise InvalidInput("etcdserver: duplicate key given in txn request")
    if sum(len(put.key) + len(put.value) for put in puts) > MAX_REQUEST_BYTES:
        raise InvalidInput("etcdserver: request is too large")


def _raise_conflict(result: TxnResult, compare: Compare) -> None:
    if result.succeeded:
        return
    found = result.found[0]
    if found is None:
        raise NotFound(compare.key)
    raise RevisionConflict(compare.key, compare.mod_revision, found.mod_revision)


def _without_value(kv: KeyValue) -> KeyValue:
    return KeyValue(kv.key, b"", kv.mod_revision, kv.create_revision, kv.version, kv.lease)


def _compacted_versions(versions: list[_Version], at: int) -> list[_Version]:
    """Keep what a reader at `at` or later can still see."""
    newer = [version for version in versions if version.revision > at]
    older = [version for version in versions if version.revision <= at]
    visible = [version for version in older[-1:] if version.kv is not None]
    return visible + newer
