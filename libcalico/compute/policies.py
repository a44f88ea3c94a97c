"""Policies of all five kinds in one shape: whom they select, where they stand, what they govern.

Layer: pure. Used by felix.calc: graph.py (makes them), active_rules.py (selectors), and
policy_resolver.py (order and stages); by typha's spans (whom they select).

  tier      "" is `default`
  order     ascending, absent last; ties by the text name/namespace/kind (datamodel 5.1.3)
  types     none at all (foreign writers), or only words we do not know, governs both directions
            (5.3); preDNAT only ingress (5.4)
  stage     what of a host endpoint's path it belongs to; workloads know NORMAL only
  staged    computed and reported, never enforced

Source: Calico felix/calc/policy_sorter.go; syncersv1/updateprocessors/*policyprocessor.go.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from libcalico.model import (
    GlobalNetworkPolicy,
    NetworkPolicy,
    NetworkPolicySpec,
    Resource,
    Rule,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    StagedNetworkPolicySpec,
    conversion,
)
from libcalico.model.defaults import DEFAULT_TIER
from libcalico.model.keys import ResourceKey
from libcalico.model.meta import NAMESPACE_LABEL
from libcalico.model.names import SERVICE_ACCOUNT_LABEL_PREFIX
from libcalico.selector import Selector, ast, parse, scope

GlobalKind = GlobalNetworkPolicy | StagedGlobalNetworkPolicy
NamespacedKind = NetworkPolicy | StagedNetworkPolicy
NamespacedSpec = NetworkPolicySpec | StagedNetworkPolicySpec

STAGED_KINDS = frozenset(
    kind.kind
    for kind in (StagedNetworkPolicy, StagedGlobalNetworkPolicy, StagedKubernetesNetworkPolicy)
)
# Staged actions of objects that say nothing about traffic.
_EMPTY_ACTIONS = frozenset({"Delete", "Ignore"})

_DIRECTIONS = frozenset({"Ingress", "Egress"})

SortKey = tuple[float, str, str]


class Stage(enum.Enum):
    NORMAL = "normal"
    UNTRACKED = "untracked"
    PRE_DNAT = "pre-dnat"


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy. `namespace` scopes the selectors of its rules; "" for the global kinds."""

    key: ResourceKey
    namespace: str
    selector: Selector
    tier: str
    sort_key: SortKey
    governs_ingress: bool
    governs_egress: bool
    stage: Stage
    on_forward: bool
    ingress: tuple[Rule, ...]
    egress: tuple[Rule, ...]
    revision: int

    @property
    def selector_id(self) -> str:
        return self.selector.canonical

    @property
    def staged(self) -> bool:
        return self.key.kind in STAGED_KINDS

    def stands_like(self, other: Policy) -> bool:
        """Whether a change from `other` leaves the endpoints' lists of policies as they are."""
        return (
            self.tier == other.tier
            and self.sort_key == other.sort_key
            and self.governs_ingress == other.governs_ingress
            and self.governs_egress == other.governs_egress
            and self.stage is other.stage
            and self.on_forward == other.on_forward
        )


def of_resource(key: ResourceKey, value: Resource, revision: int) -> Policy | None:
    """None for a staged object that says nothing. Errors: InvalidInput (a bad selector)."""
    if isinstance(value, StagedKubernetesNetworkPolicy):
        return _of_staged_kubernetes(key, value, revision)
    if isinstance(value, StagedNetworkPolicy | StagedGlobalNetworkPolicy):
        if value.spec.staged_action in _EMPTY_ACTIONS:
            return None
        if isinstance(value, StagedNetworkPolicy):
            return _of_namespaced(key, value, revision)
        return _of_global(key, value, revision)
    if isinstance(value, NetworkPolicy):
        return _of_namespaced(key, value, revision)
    if isinstance(value, GlobalNetworkPolicy):
        return _of_global(key, value, revision)
    raise TypeError(f"not a policy: {key}")


def _of_namespaced(key: ResourceKey, value: NamespacedKind, revision: int) -> Policy:
    spec = value.spec
    return Policy(
        key=key,
        namespace=key.namespace,
        selector=_namespaced_selector(spec, key.namespace),
        tier=spec.tier or DEFAULT_TIER,
        sort_key=_sort_key(key, value.metadata.name, spec.order),
        governs_ingress=_governs(spec.types, "Ingress"),
        governs_egress=_governs(spec.types, "Egress"),
        stage=Stage.NORMAL,
        on_forward=False,
        ingress=spec.ingress,
        egress=spec.egress,
        revision=revision,
    )


def _namespaced_selector(spec: NamespacedSpec, namespace: str) -> Selector:
    """What `scope.network_policy_selector` says, without parsing the namespace part every time: a
    cluster may have a policy with the same few selectors in each of 100,000 namespaces."""
    own = ast.Equal(NAMESPACE_LABEL, namespace)
    root: ast.Node = ast.And((parse(spec.selector).root, own)) if spec.selector else own
    if spec.service_account_selector:
        accounts = parse(spec.service_account_selector).prefixed(SERVICE_ACCOUNT_LABEL_PREFIX)
        root = ast.And((root, accounts.root))
    return Selector(root)


def _of_global(key: ResourceKey, value: GlobalKind, revision: int) -> Policy:
    spec = value.spec
    selector = scope.global_policy_selector(
        spec.selector or "",
        namespace_selector=spec.namespace_selector or "",
        service_account_selector=spec.service_account_selector or "",
    )
    stage = _stage(do_not_track=spec.do_not_track, pre_dnat=spec.pre_dnat)
    egress_too = stage is not Stage.PRE_DNAT
    return Policy(
        key=key,
        namespace="",
        selector=parse(selector),
        tier=spec.tier or DEFAULT_TIER,
        sort_key=_sort_key(key, value.metadata.name, spec.order),
        governs_ingress=_governs(spec.types, "Ingress"),
        governs_egress=egress_too and _governs(spec.types, "Egress"),
        stage=stage,
        on_forward=spec.apply_on_forward and stage is Stage.NORMAL,
        ingress=spec.ingress,
        egress=spec.egress,
        revision=revision,
    )


def _of_staged_kubernetes(
    key: ResourceKey, value: StagedKubernetesNetworkPolicy, revision: int
) -> Policy | None:
    spec = value.spec
    if spec.staged_action in _EMPTY_ACTIONS:
        return None
    converted = conversion.network_policy(
        {
            "metadata": {"name": key.name, "namespace": key.namespace},
            "spec": {
                "podSelector": spec.pod_selector,
                "ingress": list(spec.ingress),
                "egress": list(spec.egress),
                "policyTypes": list(spec.policy_types),
            },
        }
    )
    return _of_namespaced(key, converted.resource, revision)


def _governs(types: tuple[str, ...], direction: str) -> bool:
    """A list that holds no word we know says nothing: a policy that governed neither direction
    would let through what it was written to deny."""
    return direction in types or not _DIRECTIONS.intersection(types)


def _stage(*, do_not_track: bool, pre_dnat: bool) -> Stage:
    if do_not_track:
        return Stage.UNTRACKED
    return Stage.PRE_DNAT if pre_dnat else Stage.NORMAL


def _sort_key(key: ResourceKey, name: str, order: float | None) -> SortKey:
    """The key's own name last: before v3.32 two keys could show the same name."""
    shown = f"{name or key.name}/{key.namespace}/{key.kind}"
    return (math.inf if order is None else order, shown, key.name)
