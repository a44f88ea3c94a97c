"""What the suite needs from a datastore: the Protocol that etcd and the in-memory store satisfy.

Layer: edge contract. Implemented by `libcalico.datastore.etcd` and `libcalico.testing.datastore`;
both run the same contract suite (tests/etcd/test_contract.py). Used by syncers, ipam, CLI.

Revision rules (etcd's, and the whole contract rests on them):
  D1  every write makes a new store revision; a key's `mod_revision` is that of its last write;
  D2  `create` succeeds only when the key does not exist, `update` only when `mod_revision` matches;
  D3  a list is one snapshot: all pages are read at the revision of the first;
  D4  a watch from revision R delivers every change with revision >= R, in order, exactly once,
      across reconnects; when R is compacted it raises WatchExpired and the caller lists again;
  D5  nothing is retried silently that could have been applied: a write whose answer was lost raises
      DatastoreUnavailable and the caller reads back.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One stored value. Revisions are etcd's int64; lease 0 means none."""

    key: str
    value: bytes
    mod_revision: int
    create_revision: int = 0
    version: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class ListResult:
    """A snapshot: `kvs` in bytewise key order, `revision` the store revision it shows."""

    kvs: tuple[KeyValue, ...]
    revision: int


class EventType(enum.Enum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change. For DELETE `kv.value` is empty and `kv.mod_revision` is the delete's revision."""

    type: EventType
    kv: KeyValue
    previous: KeyValue | None = None


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Events of one or more revisions, in order. Empty is progress: `revision` was reached."""

    events: tuple[WatchEvent, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Compare:
    """`mod_revision` of `key` must equal the given one; 0 means the key must not exist."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`succeeded` tells whether every compare held; `found` is the present state of each compared
    key (None = absent) when it did not; `revision` is the header revision."""

    succeeded: bool
    revision: int
    found: tuple[KeyValue | None, ...] = ()


class Datastore(Protocol):
    """See the module docstring for the rules. Every method may raise DatastoreUnavailable or
    Unauthorized; keys are str, values bytes, times seconds."""

    async def get(self, key: str, *, revision: int = 0) -> KeyValue | None: ...

    async def list(
        self, prefix: str, *, revision: int = 0, keys_only: bool = False
    ) -> ListResult: ...

    def list_pages(
        self, prefix: str, *, revision: int = 0, keys_only: bool = False
    ) -> AsyncGenerator[ListResult, None]:
        """The same snapshot page by page (at least one page), for callers that decode as they go.
        Raises WatchExpired when it is compacted before the last page: start again."""
        ...

    async def create(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Returns the new mod revision. Errors: AlreadyExists(key)."""
        ...

    async def update(self, key: str, value: bytes, mod_revision: int, *, lease: int = 0) -> int:
        """Errors: NotFound(key) when absent, RevisionConflict when written since."""
        ...

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Write without comparing. Only for keys with one writer (status reports, IPAM config)."""
        ...

    async def delete(self, key: str, *, mod_revision: int | None = None) -> KeyValue:
        """Returns what was deleted. Errors: NotFound, RevisionConflict."""
        ...

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TxnResult:
        """Apply all operations if every compare holds, else none."""
        ...

    async def grant_lease(self, ttl_s: int) -> int: ...

    async def keep_lease_alive(self, lease: int) -> int:
        """One refresh; returns the remaining TTL in seconds. Errors: NotFound when it expired."""
        ...

    async def revoke_lease(self, lease: int) -> None: ...

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Stream changes under `prefix` from `start_revision` on (D4). Never ends by itself: it
        reconnects inside; it raises WatchExpired on compaction and Unauthorized when refused."""
        ...

    async def close(self) -> None: ...
