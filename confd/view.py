"""The part of the datastore that BGP configuration depends on, as the syncer delivers it.

Layer: pure (a SyncSink without I/O or clock). Used by confd.daemon; read by confd.context.

Invariants:
  V1  the view holds the last value of each key, or nothing; the order of updates does not matter;
  V2  `generation` grows with every update that changed something, and only then;
  V3  an object that fails validation is treated as absent and listed in `problems`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from libcalico.errors import InvalidInput
from libcalico.model import BGPConfiguration, BGPFilter, BGPPeer, IPPool, Node
from libcalico.model.ipam import BlockAffinity
from libcalico.model.keys import BlockAffinityKey, Key, ResourceKey
from libcalico.syncer.api import SyncStatus, Update

R = TypeVar("R")
Validate = Callable[[object], None]

# What confd reads of the datastore; the block affinities of its own node come on top.
KINDS = ("Node", "BGPConfiguration", "BGPPeer", "BGPFilter", "IPPool")


def accept_all(_: object) -> None:
    """A `Validate` for callers whose input is known to be valid."""


class DatastoreView:
    """Typed access to what was synchronised. `validate` raises InvalidInput for a bad object."""

    def __init__(self, validate: Validate = accept_all) -> None:
        self._value_by_key: dict[Key, object] = {}
        self._validate = validate
        self.problems: dict[Key, str] = {}
        self.generation = 0
        self.in_sync = False

    def copy(self) -> DatastoreView:
        """The view as it is now, for a reader in another thread."""
        made = DatastoreView(self._validate)
        made._value_by_key, made.problems = dict(self._value_by_key), dict(self.problems)
        made.generation, made.in_sync = self.generation, self.in_sync
        return made

    def on_updates(self, updates: Sequence[Update]) -> None:
        for update in updates:
            value = self._valid(update)
            before = self._value_by_key.get(update.key)
            if value is None:
                self._value_by_key.pop(update.key, None)
            else:
                self._value_by_key[update.key] = value
            if value != before:
                self.generation += 1

    def on_status(self, status: SyncStatus) -> None:
        # Once complete, the view stays usable: a re-list repairs it, it never empties it.
        self.in_sync = self.in_sync or status is SyncStatus.IN_SYNC

    def _valid(self, update: Update) -> object | None:
        self.problems.pop(update.key, None)
        if update.error is not None:
            self.problems[update.key] = str(update.error)
            return None
        if update.value is None:
            return None
        try:
            self._validate(update.value)
        except InvalidInput as err:
            self.problems[update.key] = str(err)
            return None
        return update.value

    def nodes(self) -> Mapping[str, Node]:
        return dict(self._named("Node", Node))

    def bgp_configuration(self, name: str) -> BGPConfiguration | None:
        found = self._value_by_key.get(ResourceKey("BGPConfiguration", name))
        return found if isinstance(found, BGPConfiguration) else None

    def bgp_peers(self) -> Sequence[tuple[str, BGPPeer]]:
        return sorted(self._named("BGPPeer", BGPPeer), key=lambda pair: pair[0])

    def bgp_filters(self) -> Mapping[str, BGPFilter]:
        return dict(self._named("BGPFilter", BGPFilter))

    def pools(self) -> Sequence[tuple[str, IPPool]]:
        return sorted(self._named("IPPool", IPPool), key=lambda pair: pair[0])

    def confirmed_blocks(self, node: str) -> Sequence[str]:
        """CIDRs of the blocks this node owns for certain; pending affinities do not count."""
        found = []
        for key, value in self._value_by_key.items():
            if isinstance(key, BlockAffinityKey) and isinstance(value, BlockAffinity):
                is_ours = key.host == node and key.affinity_type == "host"
                if is_ours and value.effective_state == "confirmed" and not value.deleted:
                    found.append(key.cidr)
        return sorted(found)

    def _named(self, kind: str, type_: type[R]) -> Iterator[tuple[str, R]]:
        for key, value in self._value_by_key.items():
            if isinstance(key, ResourceKey) and key.kind == kind and isinstance(value, type_):
                yield key.name, value

    def dump(self) -> dict[str, object]:
        return {
            "in_sync": self.in_sync,
            "generation": self.generation,
            "keys": len(self._value_by_key),
            "problems": {str(key): reason for key, reason in self.problems.items()},
        }
