"""Tiers, policies, network sets and profiles.

Layer: libcalico.model, pure. Used by felix.calc, controllers and the CLI.
Field rules are those of `libcalico.model.meta`; selectors are text (see `libcalico.selector`),
protocols and ports as stored (see `libcalico.model.scalars`). Meaning: datamodel §5.
Source: datamodel §1.9; Calico api/pkg/apis/projectcalico/v3 for member order.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import field

from libcalico.model.meta import Condition, Model, Resource
from libcalico.model.scalars import Port, Protocol


class ServiceMatch(Model, frozen=True, kw_only=True):
    """A Kubernetes Service. An empty namespace means the policy's own."""

    name: str | None = None
    namespace: str | None = None


class ServiceAccountMatch(Model, frozen=True, kw_only=True):
    """Service accounts by name, by selector, or both (ANDed)."""

    names: tuple[str, ...] = ()
    selector: str | None = None


class EntityRule(Model, frozen=True, kw_only=True):
    """What one side of the traffic must be; all given members must match."""

    OMIT_WHEN_EMPTY: ClassVar[bool] = True

    nets: tuple[str, ...] = ()
    selector: str | None = None
    namespace_selector: str | None = field(default=None, name="namespaceSelector")
    services: ServiceMatch | None = None
    ports: tuple[Port, ...] = ()
    not_nets: tuple[str, ...] = field(default=(), name="notNets")
    not_selector: str | None = field(default=None, name="notSelector")
    not_ports: tuple[Port, ...] = field(default=(), name="notPorts")
    service_accounts: ServiceAccountMatch | None = field(default=None, name="serviceAccounts")


class ICMPFields(Model, frozen=True, kw_only=True):
    """An ICMP type 0-254 and, with a type, a code 0-255."""

    type: int | None = None
    code: int | None = None


class HTTPPath(Model, frozen=True, kw_only=True):
    """One of `exact` or `prefix`."""

    exact: str | None = None
    prefix: str | None = None


class HTTPMatch(Model, frozen=True, kw_only=True):
    """Enforced at layer 7 only; the packet dataplanes ignore it."""

    methods: tuple[str, ...] = ()
    paths: tuple[HTTPPath, ...] = ()


class RuleMetadata(Model, frozen=True, kw_only=True):
    """Free annotations of a rule."""

    annotations: dict[str, str] = field(default_factory=dict)


class Rule(Model, frozen=True, kw_only=True):
    """One policy rule: Allow, Deny, Log or Pass."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("action",)

    action: str = ""
    ip_version: int | None = field(default=None, name="ipVersion")
    protocol: Protocol | None = None
    icmp: ICMPFields | None = None
    not_protocol: Protocol | None = field(default=None, name="notProtocol")
    not_icmp: ICMPFields | None = field(default=None, name="notICMP")
    source: EntityRule | None = None
    destination: EntityRule | None = None
    http: HTTPMatch | None = None
    metadata: RuleMetadata | None = None


class TierSpec(Model, frozen=True, kw_only=True):
    """`order` None sorts last; only the action Pass is special, all else denies."""

    order: float | None = None
    default_action: str | None = field(default=None, name="defaultAction")


class TierStatus(Model, frozen=True, kw_only=True):
    """Conditions set by a controller."""

    conditions: tuple[Condition, ...] = ()


class Tier(Resource, frozen=True, kw_only=True, tag="Tier"):
    """A group of policies, evaluated in order."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("status",)
    kind: ClassVar[str] = "Tier"

    spec: TierSpec = field(default_factory=TierSpec)
    status: TierStatus = field(default_factory=TierStatus)


class NetworkPolicySpec(Model, frozen=True, kw_only=True):
    """Empty `types` in a stored object is enforced in both directions."""

    tier: str | None = None
    order: float | None = None
    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()
    selector: str | None = None
    types: tuple[str, ...] = ()
    service_account_selector: str | None = field(default=None, name="serviceAccountSelector")
    performance_hints: tuple[str, ...] = field(default=(), name="performanceHints")


class NetworkPolicy(Resource, frozen=True, kw_only=True, tag="NetworkPolicy"):
    """Policy for the endpoints of one namespace."""

    kind: ClassVar[str] = "NetworkPolicy"

    spec: NetworkPolicySpec = field(default_factory=NetworkPolicySpec)


class GlobalNetworkPolicySpec(Model, frozen=True, kw_only=True):
    """As NetworkPolicySpec, with namespaces and the host endpoint flags."""

    tier: str | None = None
    order: float | None = None
    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()
    selector: str | None = None
    types: tuple[str, ...] = ()
    do_not_track: bool = field(default=False, name="doNotTrack")
    pre_dnat: bool = field(default=False, name="preDNAT")
    apply_on_forward: bool = field(default=False, name="applyOnForward")
    service_account_selector: str | None = field(default=None, name="serviceAccountSelector")
    namespace_selector: str | None = field(default=None, name="namespaceSelector")
    performance_hints: tuple[str, ...] = field(default=(), name="performanceHints")


class GlobalNetworkPolicy(Resource, frozen=True, kw_only=True, tag="GlobalNetworkPolicy"):
    """Policy for endpoints of the whole cluster."""

    kind: ClassVar[str] = "GlobalNetworkPolicy"

    spec: GlobalNetworkPolicySpec = field(default_factory=GlobalNetworkPolicySpec)


class StagedNetworkPolicySpec(Model, frozen=True, kw_only=True):
    """As NetworkPolicySpec; never enforced."""

    staged_action: str | None = field(default=None, name="stagedAction")
    tier: str | None = None
    order: float | None = None
    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()
    selector: str | None = None
    types: tuple[str, ...] = ()
    service_account_selector: str | None = field(default=None, name="serviceAccountSelector")
    performance_hints: tuple[str, ...] = field(default=(), name="performanceHints")


class StagedNetworkPolicy(Resource, frozen=True, kw_only=True, tag="StagedNetworkPolicy"):
    """A NetworkPolicy to be tried before it is enforced."""

    kind: ClassVar[str] = "StagedNetworkPolicy"

    spec: StagedNetworkPolicySpec = field(default_factory=StagedNetworkPolicySpec)


class StagedGlobalNetworkPolicySpec(Model, frozen=True, kw_only=True):
    """As GlobalNetworkPolicySpec; never enforced."""

    staged_action: str | None = field(default=None, name="stagedAction")
    tier: str | None = None
    order: float | None = None
    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()
    selector: str | None = None
    types: tuple[str, ...] = ()
    do_not_track: bool = field(default=False, name="doNotTrack")
    pre_dnat: bool = field(default=False, name="preDNAT")
    apply_on_forward: bool = field(default=False, name="applyOnForward")
    service_account_selector: str | None = field(default=None, name="serviceAccountSelector")
    namespace_selector: str | None = field(default=None, name="namespaceSelector")
    performance_hints: tuple[str, ...] = field(default=(), name="performanceHints")


class StagedGlobalNetworkPolicy(
    Resource, frozen=True, kw_only=True, tag="StagedGlobalNetworkPolicy"
):
    """A GlobalNetworkPolicy to be tried before it is enforced."""

    kind: ClassVar[str] = "StagedGlobalNetworkPolicy"

    spec: StagedGlobalNetworkPolicySpec = field(default_factory=StagedGlobalNetworkPolicySpec)


class StagedKubernetesNetworkPolicySpec(Model, frozen=True, kw_only=True):
    """Rules are Kubernetes networking/v1 rules, kept verbatim."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("podSelector",)

    staged_action: str | None = field(default=None, name="stagedAction")
    pod_selector: dict[str, Any] = field(default_factory=dict, name="podSelector")
    ingress: tuple[dict[str, Any], ...] = ()
    egress: tuple[dict[str, Any], ...] = ()
    policy_types: tuple[str, ...] = field(default=(), name="policyTypes")


class StagedKubernetesNetworkPolicy(
    Resource, frozen=True, kw_only=True, tag="StagedKubernetesNetworkPolicy"
):
    """A Kubernetes NetworkPolicy to be tried."""

    kind: ClassVar[str] = "StagedKubernetesNetworkPolicy"

    spec: StagedKubernetesNetworkPolicySpec = field(
        default_factory=StagedKubernetesNetworkPolicySpec
    )


class NetworkSetSpec(Model, frozen=True, kw_only=True):
    """Addresses and CIDRs; host bits are tolerated."""

    nets: tuple[str, ...] = ()


class NetworkSet(Resource, frozen=True, kw_only=True, tag="NetworkSet"):
    """Addresses of one namespace, selected by the labels of the set."""

    kind: ClassVar[str] = "NetworkSet"

    spec: NetworkSetSpec = field(default_factory=NetworkSetSpec)


class GlobalNetworkSetSpec(Model, frozen=True, kw_only=True):
    """Addresses and CIDRs; host bits are tolerated."""

    nets: tuple[str, ...] = ()


class GlobalNetworkSet(Resource, frozen=True, kw_only=True, tag="GlobalNetworkSet"):
    """Addresses selected by the labels of the set."""

    kind: ClassVar[str] = "GlobalNetworkSet"

    spec: GlobalNetworkSetSpec = field(default_factory=GlobalNetworkSetSpec)


class ProfileSpec(Model, frozen=True, kw_only=True):
    """Applied after all tiers; the labels are inherited by member endpoints."""

    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()
    labels_to_apply: dict[str, str] = field(default_factory=dict, name="labelsToApply")


class Profile(Resource, frozen=True, kw_only=True, tag="Profile"):
    """Default rules and inherited labels of the endpoints that list it."""

    kind: ClassVar[str] = "Profile"

    spec: ProfileSpec = field(default_factory=ProfileSpec)
