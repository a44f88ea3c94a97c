"""Track, key by key, the gap between the state we want and the state that is programmed.

Layer: pure (no I/O, no clock, no logging). Used by felix.dataplane's drivers (routes, rules, sets).

Invariants, asserted by check() after every step of the property test:
  I1  a key is dirty exactly when wanted.get(key) differs from programmed.get(key);
  I2  applying every pending update and deletion leaves nothing dirty;
  I3  a key whose two values agree is never pending (a resync never flaps a good route).

Source: the idea is Felix's (felix/deltatracker/delta_tracker.go), which aliases equal values to
save memory; two plain dicts are clearer and enough for the keys of one node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class DeltaTracker(Generic[K, V]):
    """Two views of one kernel table. Values must be immutable and never None."""

    def __init__(self) -> None:
        self._wanted: dict[K, V] = {}
        self._programmed: dict[K, V] = {}
        self._dirty: set[K] = set()

    def want(self, key: K, value: V | None) -> None:
        """Desire `value`; None means absent. Repeating a call changes nothing."""
        self._store(self._wanted, key, value)

    def confirm(self, key: K, value: V | None) -> None:
        """Record a write the driver saw succeed; None means it deleted the key."""
        self._store(self._programmed, key, value)

    def resync(self, observed: Mapping[K, V]) -> None:
        """Replace the programmed view by a full read-back: all our keys, not a delta."""
        for key in self._programmed.keys() | observed.keys():
            self.confirm(key, observed.get(key))

    def wanted(self, key: K) -> V | None:
        return self._wanted.get(key)

    def programmed(self, key: K) -> V | None:
        return self._programmed.get(key)

    def wanted_items(self) -> Iterator[tuple[K, V]]:
        """Every desired key with its value. Do not change the tracker while iterating."""
        return iter(self._wanted.items())

    def programmed_items(self) -> Iterator[tuple[K, V]]:
        """Every programmed key with its value. Do not change the tracker while iterating."""
        return iter(self._programmed.items())

    def pending_updates(self) -> dict[K, V]:
        """Keys to add or replace. Ordering belongs to the driver, not to the tracker."""
        return {key: self._wanted[key] for key in self._dirty if key in self._wanted}

    def pending_deletions(self) -> set[K]:
        return {key for key in self._dirty if key not in self._wanted}

    def is_dirty(self, key: K) -> bool:
        return key in self._dirty

    def in_sync(self) -> bool:
        return not self._dirty

    def check(self) -> None:
        every_key = self._wanted.keys() | self._programmed.keys() | self._dirty
        differing = {k for k in every_key if self._wanted.get(k) != self._programmed.get(k)}
        assert self._dirty == differing, f"I1 broken for {self._dirty ^ differing}"

    def dump(self) -> dict[str, object]:
        """State for the debug endpoint: two counts and the dirty keys."""
        dirty = sorted(map(str, self._dirty))
        return {"wanted": len(self._wanted), "programmed": len(self._programmed), "dirty": dirty}

    def _store(self, view: dict[K, V], key: K, value: V | None) -> None:
        if value is None:
            view.pop(key, None)
        else:
            view[key] = value
        agree = self._wanted.get(key) == self._programmed.get(key)
        (self._dirty.discard if agree else self._dirty.add)(key)
