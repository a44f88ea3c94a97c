"""Where the Services that rules name are: their EndpointSlices as members of address sets.

Layer: felix.calc, pure. Used by address_sets.py, beside the member index of labels.

  SV1  a set of a service holds what its slices say now; a service without slices, or that nobody
       knows, is an empty set, and a rule that asks for it matches nothing (datamodel 5.2);
  SV2  a destination is meant with its port (`SetKind.IP_PORT`), a source by its address only
       (`SetKind.NET`); an address that two slices hold is one member;
  SV3  slices of services that no active rule names cost their memory and nothing else.

Source: Calico felix/serviceindex/serviceindex.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from libcalico.compute.contributions import cidr
from libcalico.compute.members import SetDelta
from libcalico.compute.rules import SetKind
from libcalico.model.keys import ResourceKey
from libcalico.model.kubernetes import KubernetesEndpointSlice

Service = tuple[str, str]  # namespace, name


@dataclass(slots=True)
class _ServiceSet:
    service: Service
    kind: SetKind
    members: frozenset[str] | None = None  # None: not handed out yet


class ServiceIndex:
    """See the module docstring."""

    def __init__(self) -> None:
        self._slice_by_key: dict[ResourceKey, KubernetesEndpointSlice] = {}
        self._keys_by_service: dict[Service, set[ResourceKey]] = {}
        self._sets: dict[str, _ServiceSet] = {}
        self._ids_by_service: dict[Service, set[str]] = {}
        self._dirty: set[str] = set()

    def update_slice(self, key: ResourceKey, value: KubernetesEndpointSlice | None) -> None:
        """What the slice says now; None takes it away."""
        before = self._slice_by_key.pop(key, None)
        if before is not None:
            self._keys_by_service[before.service].discard(key)
            if not self._keys_by_service[before.service]:
                del self._keys_by_service[before.service]
            self._dirty |= self._ids_by_service.get(before.service, set())
        if value is not None:
            self._slice_by_key[key] = value
            self._keys_by_service.setdefault(value.service, set()).add(key)
            self._dirty |= self._ids_by_service.get(value.service, set())

    def update_set(self, set_id: str, service: Service, kind: SetKind) -> None:
        """Begin to keep a set that is not kept yet."""
        self._sets[set_id] = _ServiceSet(service, kind)
        self._ids_by_service.setdefault(service, set()).add(set_id)
        self._dirty.add(set_id)

    def delete_set(self, set_id: str) -> None:
        gone = self._sets.pop(set_id)
        self._dirty.discard(set_id)
        self._ids_by_service[gone.service].discard(set_id)
        if not self._ids_by_service[gone.service]:
            del self._ids_by_service[gone.service]

    def flush(self) -> list[SetDelta[str]]:
        changes = []
        for set_id in self._dirty:
            held = self._sets[set_id]
            before, now = held.members, frozenset(self._members(held))
            held.members = now
            known = before or frozenset()
            if before is None or now != before:
                changes.append(SetDelta(set_id, before is None, now - known, known - now))
        self._dirty = set()
        return changes

    def members(self, set_id: str) -> frozenset[str]:
        """As of the last flush."""
        held = self._sets.get(set_id)
        return (held and held.members) or frozenset()

    def dump(self) -> dict[str, object]:
        return {
            "endpoint_slices": len(self._slice_by_key),
            "service_sets": {
                set_id: f"{'/'.join(held.service)}: {len(held.members or ())}"
                for set_id, held in self._sets.items()
            },
        }

    def _members(self, held: _ServiceSet) -> Iterator[str]:
        for key in self._keys_by_service.get(held.service, ()):
            found = self._slice_by_key[key]
            if held.kind is SetKind.NET:
                yield from map(cidr, found.addresses)
                continue
            for port in found.ports:
                protocol = port.protocol.lower()
                yield from (f"{address},{protocol},{port.port}" for address in found.addresses)
