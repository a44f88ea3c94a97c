"""What all intents so far add up to, kept for questions about packets.

Layer: felix.dataplane, pure. Used by policy_sweep.py; satisfies felix.rules.verdict.Intents.

  B1  the book holds what the messages said, and nothing else: every set whole, every local workload
      with its policy. (Sets are kept as text, as they come: about 100 bytes a member.)
  B2  of several workloads that claim one address the one whose key sorts first has it, as in the
      routing table (endpoint_mgr E1).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TypeVar

from felix.intent import (
    CompiledRule,
    Intent,
    PolicyRemove,
    PolicyUpdate,
    ProfileRemove,
    ProfileUpdate,
    SetDelta,
    SetRemove,
    SetUpdate,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from libcalico import net
from libcalico.model.keys import ResourceKey

# A policy or a profile: what holds rules.
Owner = ResourceKey | str
T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class _Set:
    members: set[str]
    # (family, prefix length) of the members, found when somebody asks.
    shapes: frozenset[tuple[int, int]] | None = None

    def contains(self, address: net.Address) -> bool:
        if self.shapes is None:
            self.shapes = frozenset(
                (6 if ":" in member else 4, int(member.rpartition("/")[2]))
                for member in self.members
            )
        return any(
            str(ip_network((address, length), strict=False)) in self.members
            for version, length in self.shapes
            if version == address.version
        )


@dataclass(slots=True)
class IntentBook:
    """See the module docstring. `take` every intent, in order."""

    policies: dict[ResourceKey, PolicyUpdate] = field(default_factory=dict)
    profiles: dict[str, ProfileUpdate] = field(default_factory=dict)
    workloads: dict[ResourceKey, WorkloadEndpointUpdate] = field(default_factory=dict)
    _sets: dict[str, _Set] = field(default_factory=dict)
    _sets_of: dict[Owner, frozenset[str]] = field(default_factory=dict)
    _keys_by_owner: dict[Owner, set[ResourceKey]] = field(default_factory=dict)
    _keys_by_address: dict[str, set[ResourceKey]] = field(default_factory=dict)

    # -- questions ----------------------------------------------------------------------------

    def holds(self, set_id: str, address: net.Address) -> bool:
        found = self._sets.get(set_id)
        return found is not None and found.contains(address)

    def offers(self, set_id: str, member: str) -> bool:
        found = self._sets.get(set_id)
        return found is not None and member in found.members

    def members(self, set_id: str) -> frozenset[str]:
        found = self._sets.get(set_id)
        return frozenset(found.members) if found else frozenset()

    def at(self, address: net.Address) -> WorkloadEndpointUpdate | None:
        """The local workload that has the address (B2)."""
        keys = self._keys_by_address.get(str(address))
        return self.workloads[min(keys, key=_sort_key)] if keys else None

    def governed_by(self, owners: Iterable[Owner]) -> set[ResourceKey]:
        """The workloads whose tiers or profiles list any of them."""
        found: set[ResourceKey] = set()
        return found.union(*(self._keys_by_owner.get(owner, ()) for owner in owners))

    def users_of(self, set_id: str) -> set[ResourceKey]:
        """The workloads that a rule with that set governs."""
        return self.governed_by(owner for owner, sets in self._sets_of.items() if set_id in sets)

    def addresses(self) -> list[str]:
        return list(self._keys_by_address)

    # -- messages -----------------------------------------------------------------------------

    def take(self, intent: Intent) -> None:
        match intent:
            case SetUpdate():
                self._sets[intent.set_id] = _Set(set(intent.members))
            case SetDelta():
                self._change_set(intent)
            case SetRemove():
                self._sets.pop(intent.set_id, None)
            case PolicyUpdate():
                self.policies[intent.key] = intent
                self._sets_of[intent.key] = sets_of((*intent.ingress, *intent.egress))
            case ProfileUpdate():
                self.profiles[intent.name] = intent
                self._sets_of[intent.name] = sets_of((*intent.ingress, *intent.egress))
            case PolicyRemove():
                self.policies.pop(intent.key, None)
                self._sets_of.pop(intent.key, None)
            case ProfileRemove():
                self.profiles.pop(intent.name, None)
                self._sets_of.pop(intent.name, None)
            case WorkloadEndpointUpdate():
                self._put(intent.key, intent)
            case WorkloadEndpointRemove():
                self._put(intent.key, None)
            case _:
                pass

    def _change_set(self, delta: SetDelta) -> None:
        found = self._sets[delta.set_id]
        found.members |= delta.added
        found.members -= delta.removed
        found.shapes = None

    def _put(self, key: ResourceKey, after: WorkloadEndpointUpdate | None) -> None:
        before = self.workloads.pop(key, None)
        if before is not None:
            _unlist(self._keys_by_address, addresses_of(before), key)
            _unlist(self._keys_by_owner, owners_of(before), key)
        if after is not None:
            self.workloads[key] = after
            for address in addresses_of(after):
                self._keys_by_address.setdefault(address, set()).add(key)
            for owner in owners_of(after):
                self._keys_by_owner.setdefault(owner, set()).add(key)


def addresses_of(endpoint: WorkloadEndpointUpdate) -> list[str]:
    """Without prefix lengths, which are those of one address."""
    return [text.partition("/")[0] for text in endpoint.nets]


def owners_of(endpoint: WorkloadEndpointUpdate) -> set[Owner]:
    """The policies and profiles that govern it."""
    found: set[Owner] = set(endpoint.profiles)
    for tier in endpoint.tiers:
        found.update(tier.ingress, tier.egress)
    return found


def sets_of(rules: Iterable[CompiledRule]) -> frozenset[str]:
    """The address sets that rules look into."""
    return frozenset(
        set_id
        for rule in rules
        for side in (rule.source, rule.destination)
        for ids in (
            side.sets,
            side.not_sets,
            side.named_port_sets,
            side.not_named_port_sets,
            side.ip_port_sets,
        )
        for set_id in ids
    )


def _unlist(index: dict[T, set[ResourceKey]], names: Iterable[T], key: ResourceKey) -> None:
    for name in names:
        index[name].discard(key)
        if not index[name]:
            del index[name]


def _sort_key(key: ResourceKey) -> tuple[str, str]:
    return key.namespace, key.name
