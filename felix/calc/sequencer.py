"""One pending entry per object; a flush hands them out in dependency order.

Layer: felix.calc, pure. Used by graph.py. It keeps the ordering promise O1 to O6 of
felix/intent.py, and is the graph's back-pressure: however many updates arrive between two flushes,
an object is pending once.

  Q1  what equals what was handed out last is not handed out again;
  Q2  an object that came and went between two flushes is never heard of;
  Q3  updates go referent first, removals referrer first.

Source: Calico felix/calc/event_sequencer.go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from felix.calc.address_sets import SetChanges
from felix.calc.policy_resolver import EndpointUpdate
from felix.intent import (
    HostEndpointRemove,
    HostEndpointUpdate,
    HostRemove,
    HostUpdate,
    InSync,
    Intent,
    PolicyRemove,
    PolicyUpdate,
    PoolRemove,
    PoolUpdate,
    ProfileRemove,
    ProfileUpdate,
    SetDelta,
    SetRemove,
    SetUpdate,
    WorkloadEndpointRemove,
)
from libcalico.model.keys import ResourceKey, identifier

K = TypeVar("K", bound=Hashable)
M = TypeVar("M", bound=Intent)


class _Stream(Generic[K, M]):
    """All objects of one kind: what was handed out, and what waits."""

    def __init__(self, removal: Callable[[K, M], Intent]) -> None:
        self._removal = removal
        self._sent: dict[K, M] = {}
        self._pending: dict[K, M | None] = {}

    def put(self, key: K, message: M | None) -> None:
        """None: the object is gone."""
        self._pending[key] = message

    def sent(self, key: K) -> M | None:
        return self._sent.get(key)

    def all_sent(self) -> Iterable[M]:
        return self._sent.values()

    def updates(self) -> Iterator[Intent]:
        for key, message in self._pending.items():
            if message is not None and self._sent.get(key) != message:
                self._sent[key] = message
                yield message

    def removals(self) -> Iterator[Intent]:
        """After `updates`: forgets everything pending."""
        for key, message in self._pending.items():
            if message is None:
                before = self._sent.pop(key, None)
                if before is not None:
                    yield self._removal(key, before)
        self._pending = {}

    def __len__(self) -> int:
        return len(self._sent)


def _endpoint_removal(key: ResourceKey, before: EndpointUpdate) -> Intent:
    if isinstance(before, HostEndpointUpdate):
        return HostEndpointRemove(key)
    return WorkloadEndpointRemove(key)


class Sequencer:
    def __init__(self) -> None:
        self.policies: _Stream[ResourceKey, PolicyUpdate] = _Stream(
            lambda key, _: PolicyRemove(key)
        )
        self.profiles: _Stream[str, ProfileUpdate] = _Stream(lambda name, _: ProfileRemove(name))
        self.endpoints: _Stream[ResourceKey, EndpointUpdate] = _Stream(_endpoint_removal)
        self.pools: _Stream[str, PoolUpdate] = _Stream(lambda cidr, _: PoolRemove(cidr))
        self.hosts: _Stream[str, HostUpdate] = _Stream(lambda node, _: HostRemove(node))

    def flush(self, sets: SetChanges) -> list[Intent]:
        """Everything pending, in order; `sets` are the differences since the flush before."""
        out: list[Intent] = []
        for facts in (self.pools, self.hosts):
            out.extend(facts.updates())
            out.extend(facts.removals())
        # O1: what is referred to first.
        out.extend(sets.updates)
        out.extend(sets.deltas)
        out.extend(self.policies.updates())
        out.extend(self.profiles.updates())
        out.extend(self.endpoints.updates())
        # O2: what refers first.
        out.extend(self.endpoints.removals())
        out.extend(self.profiles.removals())
        out.extend(self.policies.removals())
        out.extend(map(SetRemove, sets.removed))
        return out

    def dump(self) -> dict[str, object]:
        return {
            "policies": len(self.policies),
            "profiles": len(self.profiles),
            "endpoints": len(self.endpoints),
            "pools": len(self.pools),
            "hosts": len(self.hosts),
        }


def subject(intent: Intent) -> str:
    """What an intent is about, for stories: "NetworkPolicy(prod/web)", a set id, a CIDR."""
    if isinstance(intent, SetUpdate | SetDelta | SetRemove):
        return intent.set_id
    if isinstance(intent, ProfileUpdate | ProfileRemove):
        return intent.name
    if isinstance(intent, PoolUpdate | PoolRemove):
        return intent.cidr
    if isinstance(intent, HostUpdate | HostRemove):
        return intent.node
    return "" if isinstance(intent, InSync) else identifier(intent.key)
