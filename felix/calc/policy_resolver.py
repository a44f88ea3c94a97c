"""Ordered tiers per endpoint: which policies govern it, in which order, at which stage.

Layer: felix.calc, pure. Used by graph.py once per flush, for the endpoints that active_rules.py
found dirty.

  V1  tiers by order, absent last, ties by name; a tier that policies name but that has no object
      comes after all others and denies at its end: fail closed (datamodel 5.1.1);
  V2  policies by order, absent last, ties by the text name/namespace/kind (5.1.3);
  V3  a tier is listed when a policy that is not staged governs the endpoint there; the list of a
      direction that none governs is empty, and the tier takes no part in it (5.1.2, 5.1.5);
  V4  doNotTrack and preDNAT policies stand in their own stages only, applyOnForward ones in the
      normal and the forward stage; workloads know the normal stage only (5.4);
  V5  the untracked and preDNAT stages never deny at the end of a tier (5.4); the untracked stage
      of a `*` host endpoint is empty (7.13).

Source: Calico felix/calc/{policy_sorter,policy_resolver,event_sequencer}.go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from felix.calc.active_rules import ActiveRules
from felix.calc.endpoints import ANY_INTERFACE, LocalEndpoint, LocalHost, LocalWorkload
from felix.intent import HostEndpointUpdate, TierPolicies, WorkloadEndpointUpdate
from libcalico.compute.policies import Policy, Stage
from libcalico.model import Tier
from libcalico.model.keys import ResourceKey

Tiers = tuple[TierPolicies, ...]
EndpointUpdate = WorkloadEndpointUpdate | HostEndpointUpdate


@dataclass(frozen=True, slots=True)
class Stages:
    """The tiers of every stage of one endpoint."""

    normal: Tiers
    untracked: Tiers
    pre_dnat: Tiers
    forward: Tiers


@dataclass(frozen=True, slots=True)
class _TierFacts:
    order: float
    default_deny: bool


_MISSING = _TierFacts(math.inf, default_deny=True)


class PolicyResolver:
    def __init__(self, active: ActiveRules) -> None:
        self._active = active
        self._tiers: dict[str, _TierFacts] = {}

    def update_tier(self, name: str, tier: Tier | None) -> bool:
        """True when the endpoints of that tier must be resolved again."""
        before = self._tiers.pop(name, None)
        if tier is not None:
            order = math.inf if tier.spec.order is None else tier.spec.order
            # Anything but Pass denies (datamodel 1.9).
            self._tiers[name] = _TierFacts(order, tier.spec.default_action != "Pass")
        return before != self._tiers.get(name)

    def resolve(self, endpoints: Iterable[LocalEndpoint]) -> dict[ResourceKey, EndpointUpdate]:
        """The complete intent of each endpoint, as of the last flush of the active rules."""
        stages: dict[frozenset[str], Stages] = {}
        updates: dict[ResourceKey, EndpointUpdate] = {}
        for endpoint in endpoints:
            selectors = self._active.selectors_of(endpoint.key)
            if selectors not in stages:
                stages[selectors] = self.stages_of(self._active.policies_of(selectors))
            updates[endpoint.key] = _complete(endpoint, stages[selectors])
        return updates

    def stages_of(self, policies: Iterable[Policy]) -> Stages:
        ordered = self._in_order(policy for policy in policies if not policy.staged)
        return Stages(
            normal=self._stage(ordered, lambda policy: policy.stage is Stage.NORMAL),
            untracked=self._stage(ordered, lambda policy: policy.stage is Stage.UNTRACKED),
            pre_dnat=self._stage(ordered, lambda policy: policy.stage is Stage.PRE_DNAT),
            forward=self._stage(ordered, lambda policy: policy.on_forward),
        )

    def dump(self) -> dict[str, object]:
        ordered = sorted(self._tiers, key=self._tier_sort_key)
        return {
            name: {
                "order": self._tiers[name].order,
                "default_deny": self._tiers[name].default_deny,
            }
            for name in ordered
        }

    def _tier_sort_key(self, name: str) -> tuple[bool, float, str]:
        facts = self._tiers.get(name, _MISSING)
        return (name not in self._tiers, facts.order, name)

    def _in_order(self, policies: Iterable[Policy]) -> list[tuple[str, list[Policy]]]:
        """Tiers in order, each with its policies in order (V1, V2)."""
        by_tier: dict[str, list[Policy]] = {}
        for policy in policies:
            by_tier.setdefault(policy.tier, []).append(policy)
        for found in by_tier.values():
            found.sort(key=lambda policy: policy.sort_key)
        return sorted(by_tier.items(), key=lambda item: self._tier_sort_key(item[0]))

    def _stage(
        self, ordered: list[tuple[str, list[Policy]]], belongs: Callable[[Policy], bool]
    ) -> Tiers:
        found = []
        for name, policies in ordered:
            here = [policy for policy in policies if belongs(policy)]
            ingress = tuple(policy.key for policy in here if policy.governs_ingress)
            egress = tuple(policy.key for policy in here if policy.governs_egress)
            if not (ingress or egress):
                continue
            drops_at_end = here[0].stage is Stage.NORMAL  # V5
            default_deny = drops_at_end and self._tiers.get(name, _MISSING).default_deny
            found.append(TierPolicies(name, ingress, egress, default_deny))
        return tuple(found)


def _complete(endpoint: LocalEndpoint, stages: Stages) -> EndpointUpdate:
    if isinstance(endpoint, LocalHost):
        return _host(endpoint, stages)
    return _workload(endpoint, stages)


def _workload(endpoint: LocalWorkload, stages: Stages) -> WorkloadEndpointUpdate:
    return WorkloadEndpointUpdate(
        key=endpoint.key,
        interface=endpoint.interface,
        mac=endpoint.mac,
        nets=endpoint.nets,
        profiles=endpoint.profiles,
        tiers=stages.normal,
        nats=endpoint.nats,
        allowed_source_prefixes=endpoint.allowed_source_prefixes,
        qos=endpoint.qos,
    )


def _host(endpoint: LocalHost, stages: Stages) -> HostEndpointUpdate:
    is_any = endpoint.interface == ANY_INTERFACE
    return HostEndpointUpdate(
        key=endpoint.key,
        interface=endpoint.interface,
        expected_ips=endpoint.expected_ips,
        profiles=endpoint.profiles,
        tiers=stages.normal,
        untracked_tiers=() if is_any else stages.untracked,
        pre_dnat_tiers=stages.pre_dnat,
        forward_tiers=stages.forward,
        ignores_untracked=is_any and bool(stages.untracked),
    )
