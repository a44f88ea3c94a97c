"""The update stream that every consumer of the datastore stands on.

Layer: contract. Produced by `libcalico.syncer.watcher` (and typha's client later); consumed by
felix.calc, confd and calicoctl's watchers.

Eventual convergence, in words: after the last change has been delivered, the sink holds for every
key the value that the datastore holds, whatever was compacted, reconnected or re-listed in between.
  S1  updates for one key arrive in revision order; the same state may be said twice;
  S2  a key that vanished while nobody watched gets exactly one delete after the re-list;
  S3  IN_SYNC is said once per (re)synchronisation, after every listed item was delivered;
  S4  a value that does not parse is delivered as absent, with `error` set: one bad object never
      stops the others;
  S5  `value` is a decoded, immutable model object; validation belongs to the consumer.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from libcalico.errors import DecodeError
from libcalico.model.keys import Key


class SyncStatus(enum.Enum):
    WAIT_FOR_DATASTORE = "wait-for-datastore"
    RESYNC = "resync"
    IN_SYNC = "in-sync"


@dataclass(frozen=True, slots=True)
class Update:
    """`value` None means: does not exist. `revision` is the mod revision (or the delete's)."""

    key: Key
    value: object | None
    revision: int
    error: DecodeError | None = None


class SyncSink(Protocol):
    def on_updates(self, updates: Sequence[Update]) -> None: ...

    def on_status(self, status: SyncStatus) -> None: ...


class GroupChange(NamedTuple):
    """What became of an address group. `whole`: `added` is all that is in it; `gone`: it is not
    needed here any more."""

    id: str
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    whole: bool = False
    gone: bool = False


class SpansSink(SyncSink, Protocol):
    """A sink of steps: all calls of one come in one turn of the loop (Z1 of `syncer.spans`)."""

    def on_groups(self, changes: Sequence[GroupChange]) -> None: ...

    def on_positions(self, positions: Mapping[str, int]) -> None:
        """Everything up to these (prefix: revision) was said, if it concerns this node."""
