"""Everything policy depends on, read from v3 objects into plain tuples. Nothing is indexed.

Layer: pure, above libcalico.model. Users: policy.matching, policy.evaluate.

Invariants:
  W1  an endpoint's labels are its own (less those beginning `pcns.` or `pcsa.`, which only
      profiles may give), the namespace and service account labels, and what its profiles hand
      down, first profile first, own label wins;
  W2  policies are in order of evaluation inside their tier, tiers in theirs; a tier that policies
      name and that does not exist comes last and denies;
  W3  staged policies take no part in any verdict, and so are not read;
  W4  what cannot be read (a selector that does not parse) raises at construction.

Source: reference/datamodel.md 3.4, 5.1, 5.3, 5.4, 5.6, 7.10; the sources named there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libcalico import net
from libcalico.model import (
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    NetworkPolicy,
    NetworkSet,
    Profile,
    Resource,
    Rule,
    Tier,
    WorkloadEndpoint,
)
from libcalico.model.defaults import DEFAULT_TIER, default_allow_profile
from libcalico.model.keys import ResourceKey
from libcalico.model.kubernetes import KubernetesEndpointSlice
from libcalico.model.names import DEFAULT_ALLOW_PROFILE, namespace_profile_name
from libcalico.model.scalars import protocol_number
from libcalico.policy.packet import Direction
from libcalico.selector import Selector, parse, scope

# Address, protocol, port; without the last two the service has an address there, but no port.
ServicePort = tuple[net.Address, int | None, int | None]


@dataclass(frozen=True, slots=True)
class NamedPort:
    name: str
    protocol: int
    port: int


@dataclass(frozen=True, slots=True)
class Entity:
    """Whatever selectors can match: an endpoint or a network set.

    `is_endpoint`: policy applies to it, and its named ports count.
    """

    key: ResourceKey
    labels: Mapping[str, str]
    nets: tuple[net.Network, ...]
    profiles: tuple[str, ...] = ()
    ports: tuple[NamedPort, ...] = ()
    is_endpoint: bool = False
    is_any_interface: bool = False

    def owns(self, address: net.Address) -> bool:
        return any(address in network for network in self.nets)


@dataclass(frozen=True, slots=True)
class Policy:
    """An enforced policy, ready to be asked."""

    key: ResourceKey
    tier: str
    order: float
    tie_break: str
    selector: Selector
    ingress: tuple[Rule, ...]
    egress: tuple[Rule, ...]
    types: tuple[str, ...]
    do_not_track: bool = False
    pre_dnat: bool = False
    apply_on_forward: bool = False

    def governs(self, direction: Direction) -> bool:
        """A stored policy without types, or with words we do not know only, governs both: one that
        governed neither would let through what it was written to deny."""
        known = {one.value for one in Direction}.intersection(self.types)
        return not known or direction.value in known

    def rules(self, direction: Direction) -> tuple[Rule, ...]:
        return self.ingress if direction is Direction.INGRESS else self.egress


@dataclass(frozen=True, slots=True)
class TierPolicies:
    """One tier with its policies in order. Only `Pass` passes at the end."""

    name: str
    order: float
    default_pass: bool
    exists: bool
    policies: tuple[Policy, ...]


@dataclass(frozen=True, slots=True)
class Failsafe:
    """A port of the host that stays open, whatever policy says. `net` limits the peer."""

    protocol: int
    port: int
    net: net.Network | None = None


def _failsafes(text: str) -> tuple[Failsafe, ...]:
    pairs = (item.split(":") for item in text.split())
    return tuple(Failsafe(protocol_number(name.upper()), int(port)) for name, port in pairs)


@dataclass(frozen=True, slots=True)
class Settings:
    """The FelixConfiguration parameters that verdicts depend on, with their defaults."""

    allow_vxlan_from_workloads: bool = False
    allow_ipip_from_workloads: bool = False
    vxlan_port: int = 4789
    # What becomes of a workload's packets to its own host that egress policy let through.
    endpoint_to_host_action: str = "DROP"
    inbound_failsafes: tuple[Failsafe, ...] = _failsafes(
        "tcp:22 udp:68 tcp:179 tcp:2379 tcp:2380 tcp:5473 tcp:6443 tcp:6666 tcp:6667"
    )
    outbound_failsafes: tuple[Failsafe, ...] = _failsafes(
        "udp:53 udp:67 tcp:179 tcp:2379 tcp:2380 tcp:5473 tcp:6443 tcp:6666 tcp:6667"
    )


@dataclass(frozen=True, slots=True)
class World:
    """All objects of a cluster, as far as policy goes."""

    entities: tuple[Entity, ...]
    tiers: tuple[TierPolicies, ...]
    profiles: Mapping[str, Profile]
    # (namespace, name) -> where the service's endpoints listen.
    services: Mapping[tuple[str, str], Sequence[ServicePort]] = field(default_factory=dict)
    settings: Settings = Settings()

    def entity(self, key: ResourceKey) -> Entity:
        return next(entity for entity in self.entities if entity.key == key)


def world_of(
    resources: Iterable[Resource],
    *,
    services: Mapping[tuple[str, str], Sequence[ServicePort]] | None = None,
    settings: Settings | None = None,
) -> World:
    """Read v3 objects of any kinds; those that have nothing to do with policy are ignored.

    Kubernetes objects go through `libcalico.model.conversion` first; EndpointSlices are taken as
    they are, unless `services` says outright where the services are.
    Errors: InvalidInput (a selector, address or port that does not parse).
    """
    given = list(resources)
    profiles = {DEFAULT_ALLOW_PROFILE: default_allow_profile()}
    profiles |= {r.metadata.name: r for r in given if isinstance(r, Profile)}
    policies = [policy for r in given for policy in _policies(r)]
    return World(
        entities=tuple(entity for r in given for entity in _entities(r, profiles)),
        tiers=_tiers([r for r in given if isinstance(r, Tier)], policies),
        profiles=profiles,
        services=services_of(given) if services is None else services,
        settings=settings or Settings(),
    )


def services_of(
    resources: Iterable[Resource],
) -> dict[tuple[str, str], tuple[ServicePort, ...]]:
    """Where services listen, from their EndpointSlices."""
    found: dict[tuple[str, str], tuple[ServicePort, ...]] = {}
    for resource in resources:
        if isinstance(resource, KubernetesEndpointSlice):
            addresses = [net.parse_ip(text) for text in resource.addresses]
            ports = [(protocol_number(p.protocol), p.port) for p in resource.ports]
            answers: list[ServicePort] = [(address, None, None) for address in addresses]
            answers += [(address, *port) for address in addresses for port in ports]
            found[resource.service] = (*found.get(resource.service, ()), *answers)
    return found


def _key(resource: Resource) -> ResourceKey:
    metadata = resource.metadata
    return ResourceKey(resource.kind, metadata.name, metadata.namespace)


# -- entities ---------------------------------------------------------------------------------


def _entities(resource: Resource, profiles: Mapping[str, Profile]) -> Iterable[Entity]:
    match resource:
        case WorkloadEndpoint():
            yield _workload(resource, profiles)
        case HostEndpoint():
            yield _host(resource, profiles)
        case NetworkSet():
            namespace = resource.metadata.namespace
            labels = dict(resource.metadata.labels) | {scope.NAMESPACE_LABEL: namespace}
            inherited = (namespace_profile_name(namespace),)
            nets = tuple(map(net.parse_cidr_or_ip, resource.spec.nets))
            yield Entity(_key(resource), _effective(labels, inherited, profiles), nets)
        case GlobalNetworkSet():
            nets = tuple(map(net.parse_cidr_or_ip, resource.spec.nets))
            yield Entity(_key(resource), dict(resource.metadata.labels), nets)
        case _:
            return


def _workload(resource: WorkloadEndpoint, profiles: Mapping[str, Profile]) -> Entity:
    spec = resource.spec
    reserved = (scope.NAMESPACE_PREFIX, scope.SERVICE_ACCOUNT_PREFIX)
    own = {k: v for k, v in resource.metadata.labels.items() if not k.startswith(reserved)}
    own.setdefault(scope.NAMESPACE_LABEL, resource.metadata.namespace)
    if spec.service_account_name:
        own[scope.SERVICE_ACCOUNT_LABEL] = spec.service_account_name
    return Entity(
        key=_key(resource),
        labels=_effective(own, spec.profiles, profiles),
        nets=tuple(map(net.parse_cidr_or_ip, spec.ip_networks)),
        profiles=spec.profiles,
        ports=tuple(
            NamedPort(port.name, protocol_number(port.protocol), port.port) for port in spec.ports
        ),
        is_endpoint=True,
    )


def _host(resource: HostEndpoint, profiles: Mapping[str, Profile]) -> Entity:
    spec = resource.spec
    return Entity(
        key=_key(resource),
        labels=_effective(dict(resource.metadata.labels), spec.profiles, profiles),
        nets=tuple(map(net.parse_cidr_or_ip, spec.expected_ips)),
        profiles=spec.profiles,
        ports=tuple(
            NamedPort(port.name, protocol_number(port.protocol), port.port) for port in spec.ports
        ),
        is_endpoint=True,
        is_any_interface=spec.interface_name == "*",
    )


def _effective(
    own: Mapping[str, str], inherited: Sequence[str], profiles: Mapping[str, Profile]
) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    for name in reversed(inherited):
        if name in profiles:
            labels.update(profiles[name].spec.labels_to_apply)
    return labels | dict(own)


# -- policies ---------------------------------------------------------------------------------


def _policies(resource: Resource) -> Iterable[Policy]:
    match resource:
        case NetworkPolicy():
            selector = scope.network_policy_selector(
                resource.spec.selector or "",
                resource.metadata.namespace,
                service_account_selector=resource.spec.service_account_selector or "",
            )
            yield _policy(resource, selector)
        case GlobalNetworkPolicy():
            selector = scope.global_policy_selector(
                resource.spec.selector or "",
                namespace_selector=resource.spec.namespace_selector or "",
                service_account_selector=resource.spec.service_account_selector or "",
            )
            yield _policy(resource, selector)
        case _:
            return


def _policy(resource: NetworkPolicy | GlobalNetworkPolicy, selector: str) -> Policy:
    spec, key = resource.spec, _key(resource)
    return Policy(
        key=key,
        tier=spec.tier or DEFAULT_TIER,
        order=math.inf if spec.order is None else spec.order,
        tie_break=f"{key.name}/{key.namespace}/{key.kind}",
        selector=parse(selector),
        ingress=spec.ingress,
        egress=spec.egress,
        types=spec.types,
        do_not_track=getattr(spec, "do_not_track", False),
        pre_dnat=getattr(spec, "pre_dnat", False),
        apply_on_forward=getattr(spec, "apply_on_forward", False),
    )


def _tiers(tiers: Sequence[Tier], policies: Sequence[Policy]) -> tuple[TierPolicies, ...]:
    known = {tier.metadata.name: tier for tier in tiers}
    arranged = []
    for name in known.keys() | {policy.tier for policy in policies}:
        tier = known.get(name)
        order = tier.spec.order if tier else None
        members = [policy for policy in policies if policy.tier == name]
        arranged.append(
            TierPolicies(
                name=name,
                order=math.inf if order is None else order,
                default_pass=tier is not None and tier.spec.default_action == "Pass",
                exists=tier is not None,
                policies=tuple(sorted(members, key=lambda p: (p.order, p.tie_break))),
            )
        )
    return tuple(sorted(arranged, key=lambda tier: (not tier.exists, tier.order, tier.name)))
