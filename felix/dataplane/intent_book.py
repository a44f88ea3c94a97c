"""What all intents so far add up to, kept for questions about packets.

Layer: felix.dataplane, pure. Used by policy_sweep.py; satisfies felix.rules.verdict.Intents.

  B1  the book holds what the messages said, and nothing else: every set whole, every local workload
      with its policy. (Sets are kept as text, as they come: about 100 bytes a member.)
  B2  a change of a set tightens policy when something leaves what an Allow rule looks for or comes
      to what a Deny rule looks for; for exclusions the other way round, for Pass rules either way.
      (So a pod that comes to the usual allow list tightens nothing.)
  B3  of several workloads that claim one address the one whose key sorts first has it, as in the
      routing table (endpoint_mgr E1).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TypeVar

from felix.intent import (
    HostEndpointUpdate,
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
from libcalico.compute.rules import Action, CompiledRule
from libcalico.model.keys import ResourceKey

# A policy or a profile: what holds rules.
Owner = ResourceKey | str
# A set, and whether it is its growing that tightens (else its shrinking).
Use = tuple[str, bool]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


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
    _uses_of: dict[Owner, frozenset[Use]] = field(default_factory=dict)
    _owners_by_use: dict[Use, set[Owner]] = field(default_factory=dict)
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
        """The local workload that has the address (B3)."""
        keys = self._keys_by_address.get(str(address))
        return self.workloads[min(keys, key=_sort_key)] if keys else None

    def governed_by(self, owners: Iterable[Owner]) -> set[ResourceKey]:
        """The workloads whose tiers or profiles list any of them."""
        found: set[ResourceKey] = set()
        return found.union(*(self._keys_by_owner.get(owner, ()) for owner in owners))

    def tightened_by(self, set_id: str, *, grows: bool) -> set[Owner]:
        """The policies and profiles that a growing, or a shrinking, set tightens (B2)."""
        return self._owners_by_use.get((set_id, grows), set())

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
                self._index(intent.key, tightening_uses((*intent.ingress, *intent.egress)))
            case ProfileUpdate():
                self.profiles[intent.name] = intent
                self._index(intent.name, tightening_uses((*intent.ingress, *intent.egress)))
            case PolicyRemove():
                self.policies.pop(intent.key, None)
                self._index(intent.key, frozenset())
            case ProfileRemove():
                self.profiles.pop(intent.name, None)
                self._index(intent.name, frozenset())
            case WorkloadEndpointUpdate():
                self._put(intent.key, intent)
            case WorkloadEndpointRemove():
                self._put(intent.key, None)
            case _:
                pass

    def _index(self, owner: Owner, uses: frozenset[Use]) -> None:
        before = self._uses_of.pop(owner, frozenset())
        if uses:
            self._uses_of[owner] = uses
        for use in uses - before:
            self._owners_by_use.setdefault(use, set()).add(owner)
        _unlist(self._owners_by_use, before - uses, owner)

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


def owners_of(endpoint: WorkloadEndpointUpdate | HostEndpointUpdate) -> set[Owner]:
    """The policies and profiles that govern it (a host endpoint: at the normal stage)."""
    found: set[Owner] = set(endpoint.profiles)
    for tier in endpoint.tiers:
        found.update(tier.ingress, tier.egress)
    return found


def tightening_uses(rules: Iterable[CompiledRule]) -> frozenset[Use]:
    """The address sets that rules look into, each with the changes that tighten (B2)."""
    found: set[Use] = set()
    for rule in rules:
        for side in (rule.source, rule.destination):
            wanted = (*side.sets, *side.named_port_sets, *side.ip_port_sets)
            found.update((set_id, grows) for set_id in wanted for grows in _TIGHTENS[rule.action])
            excluded = (*side.not_sets, *side.not_named_port_sets)
            found.update(
                (set_id, not grows) for set_id in excluded for grows in _TIGHTENS[rule.action]
            )
    return frozenset(found)


_TIGHTENS: dict[Action, tuple[bool, ...]] = {
    Action.ALLOW: (False,),
    Action.DENY: (True,),
    Action.PASS: (False, True),
    Action.LOG: (),
}


def _unlist(index: dict[K, set[V]], names: Iterable[K], value: V) -> None:
    for name in names:
        index[name].discard(value)
        if not index[name]:
            del index[name]


def _sort_key(key: ResourceKey) -> tuple[str, str]:
    return key.namespace, key.name
