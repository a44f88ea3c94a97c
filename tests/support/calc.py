"""One-line resources, and a calc graph with the fake dataplane behind it.

Every builder returns `(key, resource)`, what a datastore would hold; a state of the datastore is a
dict of them. Defaults are made for the graph's tests: node "here", namespace "prod".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from felix.calc import CalcGraph
from felix.intent import Intent
from felix.testing.dataplane import Contents, FakeDataplane
from libcalico.model import (
    EndpointPort,
    EntityRule,
    GlobalNetworkPolicy,
    GlobalNetworkPolicySpec,
    GlobalNetworkSet,
    GlobalNetworkSetSpec,
    HostEndpoint,
    HostEndpointSpec,
    IPPool,
    IPPoolSpec,
    NetworkPolicy,
    NetworkPolicySpec,
    NetworkSet,
    NetworkSetSpec,
    Node,
    NodeSpec,
    ObjectMeta,
    Profile,
    ProfileSpec,
    Resource,
    Rule,
    StagedGlobalNetworkPolicy,
    StagedGlobalNetworkPolicySpec,
    StagedNetworkPolicy,
    StagedNetworkPolicySpec,
    Tier,
    TierSpec,
    WorkloadEndpoint,
    WorkloadEndpointPort,
    WorkloadEndpointSpec,
)
from libcalico.model.keys import Key, ResourceKey
from libcalico.model.kubernetes import SERVICE_NAME_LABEL, KubernetesEndpointSlice, SlicePort
from libcalico.syncer.api import SyncStatus, Update

HERE, ELSEWHERE = "here", "elsewhere"
NAMESPACE_LABEL = "projectcalico.org/namespace"

Object = tuple[ResourceKey, Resource]
Labels = Mapping[str, str]


def _object(kind: type[Resource], name: str, namespace: str, labels: Labels, spec: Any) -> Object:
    meta = ObjectMeta(name=name, namespace=namespace, labels=dict(labels))
    return ResourceKey(kind.kind, name, namespace), kind(metadata=meta, spec=spec)  # type: ignore[call-arg]


def wep(
    name: str,
    *ips: str,
    labels: Labels | None = None,
    node: str = HERE,
    namespace: str = "prod",
    ports: Sequence[tuple[str, str, int]] = (),
    **spec: Any,
) -> Object:
    """A workload endpoint, labelled with its namespace as all real ones are."""
    spec.setdefault("interface_name", f"cali{name}")
    spec.setdefault("orchestrator", "k8s")
    offered = tuple(WorkloadEndpointPort(name=n, protocol=p, port=i) for n, p, i in ports)
    full = WorkloadEndpointSpec(node=node, ip_networks=ips, ports=offered, **spec)
    own = {NAMESPACE_LABEL: namespace, **(labels or {})}
    return _object(WorkloadEndpoint, name, namespace, own, full)


def hep(
    name: str,
    *ips: str,
    labels: Labels | None = None,
    node: str = HERE,
    ports: Sequence[tuple[str, str, int]] = (),
    **spec: Any,
) -> Object:
    offered = tuple(EndpointPort(name=n, protocol=p, port=i) for n, p, i in ports)
    full = HostEndpointSpec(node=node, expected_ips=ips, ports=offered, **spec)
    return _object(HostEndpoint, name, "", labels or {}, full)


def np(name: str, *, namespace: str = "prod", **spec: Any) -> Object:
    return _object(NetworkPolicy, name, namespace, {}, NetworkPolicySpec(**spec))


def gnp(name: str, **spec: Any) -> Object:
    return _object(GlobalNetworkPolicy, name, "", {}, GlobalNetworkPolicySpec(**spec))


def snp(name: str, *, namespace: str = "prod", **spec: Any) -> Object:
    return _object(StagedNetworkPolicy, name, namespace, {}, StagedNetworkPolicySpec(**spec))


def sgnp(name: str, **spec: Any) -> Object:
    return _object(StagedGlobalNetworkPolicy, name, "", {}, StagedGlobalNetworkPolicySpec(**spec))


def tier(name: str, order: float | None = None, action: str | None = None) -> Object:
    return _object(Tier, name, "", {}, TierSpec(order=order, default_action=action))


def profile(name: str, *, labels: Labels | None = None, **spec: Any) -> Object:
    return _object(Profile, name, "", {}, ProfileSpec(labels_to_apply=dict(labels or {}), **spec))


def netset(name: str, *nets: str, labels: Labels | None = None, namespace: str = "prod") -> Object:
    return _object(NetworkSet, name, namespace, labels or {}, NetworkSetSpec(nets=nets))


def gnetset(name: str, *nets: str, labels: Labels | None = None) -> Object:
    return _object(GlobalNetworkSet, name, "", labels or {}, GlobalNetworkSetSpec(nets=nets))


def endpoint_slice(
    name: str,
    service: str,
    *addresses: str,
    ports: Sequence[tuple[str, int]] = (),
    namespace: str = "prod",
) -> Object:
    """A piece of a Kubernetes Service."""
    labels = {SERVICE_NAME_LABEL: service}
    made = KubernetesEndpointSlice(
        metadata=ObjectMeta(name=name, namespace=namespace, labels=labels),
        addresses=addresses,
        ports=tuple(SlicePort(protocol=protocol, port=port) for protocol, port in ports),
    )
    return ResourceKey(KubernetesEndpointSlice.kind, name, namespace), made


def pool(name: str, cidr: str, **spec: Any) -> Object:
    return _object(IPPool, name, "", {}, IPPoolSpec(cidr=cidr, **spec))


def node(name: str, **spec: Any) -> Object:
    return _object(Node, name, "", {}, NodeSpec(**spec))


def rule(action: str = "Allow", **fields: Any) -> Rule:
    """`source` and `destination` may be given as dicts."""
    for side in ("source", "destination"):
        if isinstance(fields.get(side), dict):
            fields[side] = EntityRule(**fields[side])
    return Rule(action=action, **fields)


ALLOW, DENY, PASS = (rule("Allow"),), (rule("Deny"),), (rule("Pass"),)


class Rig:
    """A graph of node "here" in sync, whose every flush goes through the fake dataplane.

    Revisions count up with each update, or stay 1 with `fixed_revision` (so that two ways to the
    same state can be compared)."""

    def __init__(self, *objects: Object, fixed_revision: bool = False, **options: Any) -> None:
        self.graph = CalcGraph(HERE, **options)
        self.dataplane = FakeDataplane()
        self.last: list[Intent] = []
        self._revision = 1
        self._is_fixed = fixed_revision
        self.put(*objects)
        self.graph.on_status(SyncStatus.IN_SYNC)
        self.flush()

    @property
    def contents(self) -> Contents:
        return self.dataplane.contents()

    def change(self, key: Key, value: object | None) -> None:
        if not self._is_fixed:
            self._revision += 1
        self.graph.on_updates([Update(key, value, self._revision)])

    def put(self, *objects: Object) -> None:
        for key, value in objects:
            self.change(key, value)

    def delete(self, *objects: Object) -> None:
        for key, _ in objects:
            self.change(key, None)

    def flush(self) -> list[Intent]:
        self.last = self.graph.flush()
        self.dataplane.apply(self.last)
        self.graph.check()
        return self.last

    def now(self, *objects: Object) -> list[Intent]:
        self.put(*objects)
        return self.flush()

    def without(self, *objects: Object) -> list[Intent]:
        self.delete(*objects)
        return self.flush()

    def tiers(self, endpoint: Object) -> list[tuple[str, list[str], list[str], bool]]:
        """(tier, ingress policies, egress policies, denies at its end) of the normal stage."""
        return shown(self.contents.endpoints[endpoint[0]].tiers)

    def source_members(self, policy: Object, index: int = 0) -> set[str]:
        """The addresses that the source of an ingress rule is restricted to."""
        match = self.contents.policies[policy[0]].ingress[index].source
        assert match.sets, "the rule has no source selector"
        return set.intersection(*(set(self.contents.members(item)) for item in match.sets))


def shown(tiers: Iterable[Any]) -> list[tuple[str, list[str], list[str], bool]]:
    return [
        (
            item.tier,
            [key.name for key in item.ingress],
            [key.name for key in item.egress],
            item.default_deny,
        )
        for item in tiers
    ]


def state_of(*objects: Object) -> dict[ResourceKey, object]:
    return dict(objects)
