"""Address sets: which ones the active rules use, and who is in them.

Layer: felix.calc, pure, above libcalico.compute.members. Used by graph.py: active policies and
profiles say which sets they need, all endpoints and network sets of the cluster contribute.

Where typha computes spans the members come from it (stream_sets.py), and items count for nothing.

    use(owner, sets) ──► users per set ─┐
    update_item(...) ───────────────────┤
    update_slice(...) (services.py) ────┴─flush─► SetUpdate, SetDelta, SetRemove

  A1  a set exists exactly while at least one owner uses it;
  A2  its first message is a SetUpdate with all members, later ones are true differences;
  A3  giving a set up and asking for it again between two flushes is no change at all.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from felix.calc.services import ServiceIndex
from felix.calc.stream_sets import StreamMembers
from felix.intent import SetDelta, SetUpdate
from libcalico.compute.contributions import Contribution
from libcalico.compute.members import MemberIndex
from libcalico.compute.rule_compiler import AnyDefinition, ServiceDefinition
from libcalico.compute.rules import SetKind
from libcalico.model.keys import ResourceKey
from libcalico.model.kubernetes import KubernetesEndpointSlice


@dataclass(slots=True)
class SetChanges:
    """What one flush has to say: whole sets, differences, and sets nobody uses any more."""

    updates: list[SetUpdate] = field(default_factory=list)
    deltas: list[SetDelta] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


class AddressSets:
    """Owners are whatever the caller likes, a policy's key or a profile's name."""

    def __init__(self, stream: StreamMembers | None = None) -> None:
        self._stream = stream
        self._members: MemberIndex[ResourceKey, str] | StreamMembers = stream or MemberIndex()
        self._services = ServiceIndex()
        self._sets_by_owner: dict[Hashable, frozenset[str]] = {}
        self._definition_by_id: dict[str, AnyDefinition] = {}
        self._users_by_id: dict[str, int] = {}
        self._live: dict[str, SetKind] = {}
        self._touched: set[str] = set()

    def use(self, owner: Hashable, sets: Mapping[str, AnyDefinition]) -> None:
        """Replace the sets that `owner` needs; an empty mapping gives them up."""
        before = self._sets_by_owner.pop(owner, frozenset())
        wanted = frozenset(sets)
        if wanted:
            self._sets_by_owner[owner] = wanted
        for set_id in wanted - before:
            self._definition_by_id[set_id] = sets[set_id]
            self._users_by_id[set_id] = self._users_by_id.get(set_id, 0) + 1
            self._touched.add(set_id)
        for set_id in before - wanted:
            self._users_by_id[set_id] -= 1
            self._touched.add(set_id)

    def update_item(self, key: ResourceKey, item: Contribution | None) -> None:
        """What `key` contributes; None takes it away."""
        if item is None:
            self._members.delete_item(key)
            return
        self._members.update_item(
            key, item.labels, item.parents, addresses=item.addresses, ports=item.ports
        )

    def update_parent(self, name: str, labels: Mapping[str, str] | None) -> None:
        if labels is None:
            self._members.delete_parent(name)
        else:
            self._members.update_parent(name, labels)

    def update_slice(self, key: ResourceKey, value: KubernetesEndpointSlice | None) -> None:
        """A piece of a service; None takes it away."""
        self._services.update_slice(key, value)

    def lacks(self, sets: Mapping[str, AnyDefinition]) -> list[str]:
        """The sets among these whose members nobody has told (stream_sets.py SM4)."""
        if self._stream is None:
            return []
        return self._stream.lacks(
            set_id for set_id, found in sets.items() if not isinstance(found, ServiceDefinition)
        )

    def owners_of(self, arrived: Collection[str]) -> list[Hashable]:
        """Who uses one of these sets."""
        return [
            owner for owner, sets in self._sets_by_owner.items() if not sets.isdisjoint(arrived)
        ]

    def flush(self) -> SetChanges:
        changes = SetChanges(removed=self._settle())
        for delta in (*self._members.flush(), *self._services.flush()):
            if delta.is_new:
                kind = self._live[delta.set_id]
                changes.updates.append(SetUpdate(delta.set_id, kind, delta.added))
            else:
                changes.deltas.append(SetDelta(delta.set_id, delta.added, delta.removed))
        return changes

    def members(self, set_id: str) -> frozenset[str]:
        """As of the last flush."""
        return self._members.members(set_id) or self._services.members(set_id)

    def check(self) -> None:
        """A1, and the invariants below."""
        users: dict[str, int] = {}
        for wanted in self._sets_by_owner.values():
            for set_id in wanted:
                users[set_id] = users.get(set_id, 0) + 1
        assert users == {k: n for k, n in self._users_by_id.items() if n}
        if not self._touched:
            assert users.keys() == self._live.keys() == self._definition_by_id.keys(), "A1"
        self._members.check()

    def dump(self) -> dict[str, object]:
        dumps = self._members.dump() | self._services.dump()
        return {"owners": len(self._sets_by_owner)} | dumps

    def _settle(self) -> list[str]:
        """Tell the index which sets came and went since the last flush (A3)."""
        removed = []
        for set_id in self._touched:
            used = self._users_by_id[set_id] > 0
            if used and set_id not in self._live:
                definition = self._definition_by_id[set_id]
                self._begin(set_id, definition)
                self._live[set_id] = definition.kind
            elif not used:
                definition = self._definition_by_id.pop(set_id)
                del self._users_by_id[set_id]
                if self._live.pop(set_id, None) is not None:
                    self._end(set_id, definition)
                    removed.append(set_id)
        self._touched = set()
        return removed

    def _begin(self, set_id: str, definition: AnyDefinition) -> None:
        if isinstance(definition, ServiceDefinition):
            self._services.update_set(set_id, definition.service, definition.kind)
        else:
            self._members.update_set(set_id, definition.selector, port=definition.port)

    def _end(self, set_id: str, definition: AnyDefinition) -> None:
        if isinstance(definition, ServiceDefinition):
            self._services.delete_set(set_id)
        else:
            self._members.delete_set(set_id)
