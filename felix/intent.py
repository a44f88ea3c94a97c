"""The contract between calc and dataplane: frozen messages that say what this node should enforce.

Layer: pure data. Emitted by felix.calc (CalcGraph.flush), consumed by felix.dataplane managers.

The ordering promise of one flush (a referent always comes before what refers to it):
  O1  updates: sets -> policies and profiles -> endpoints; pools and hosts anywhere;
  O2  removals in reverse: endpoints -> policies and profiles -> sets;
  O3  at most one message per object in one flush: a SetUpdate, and never a SetDelta for it too;
  O4  a set is announced whole (SetUpdate) before its first SetDelta;
  O5  content depends on the present state only, never on the order of the updates that led to it;
  O6  InSync is emitted once, in the first flush after the datastore is in sync, as its last
      message. Nothing is written to the kernel, and nothing swept, before it.

Rules are those of libcalico.compute.rules.
Names and semantics follow Calico's calc graph (reference/datamodel.md 5).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from libcalico.compute.rules import CompiledRule, SetKind
from libcalico.model.keys import ResourceKey


@dataclass(frozen=True, slots=True)
class SetUpdate:
    """The whole set. Replaces what was there."""

    set_id: str
    kind: SetKind
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class SetDelta:
    """Added and removed members are disjoint, and true changes."""

    set_id: str
    added: frozenset[str]
    removed: frozenset[str]


@dataclass(frozen=True, slots=True)
class SetRemove:
    set_id: str


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """A policy that applies to at least one local endpoint. `key.kind` tells GNP from NP.

    `staged` policies are computed and reported, never enforced. `revision` is the policy's mod
    revision (for realisation reports and the latency histogram)."""

    key: ResourceKey
    tier: str
    ingress: tuple[CompiledRule, ...]
    egress: tuple[CompiledRule, ...]
    staged: bool = False
    untracked: bool = False
    pre_dnat: bool = False
    apply_on_forward: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class PolicyRemove:
    key: ResourceKey


@dataclass(frozen=True, slots=True)
class ProfileUpdate:
    """A listed profile that does not exist is emitted with one deny rule per direction (7.10)."""

    name: str
    ingress: tuple[CompiledRule, ...]
    egress: tuple[CompiledRule, ...]


@dataclass(frozen=True, slots=True)
class ProfileRemove:
    name: str


@dataclass(frozen=True, slots=True)
class TierPolicies:
    """The policies of one tier that govern one endpoint, in order of evaluation.

    A tier whose list for a direction is empty does not take part in that direction. `default_deny`
    False means the tier's end passes to the next. Staged policies are not listed here; a tier with
    only staged policies in a direction has an empty list there.

    `names` is what felix.rules.policy calls the list, by direction, once it has worked that out:
    endpoints that are governed alike have one such object, and its name is asked for by each."""

    tier: str
    ingress: tuple[ResourceKey, ...]
    egress: tuple[ResourceKey, ...]
    default_deny: bool = True
    names: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class NatMapping:
    internal_ip: str
    external_ip: str


@dataclass(frozen=True, slots=True)
class DirectionLimits:
    """Limits of what a workload gets (ingress) or sends (egress); 0 is none.

    A bandwidth comes with its burst, a packet rate with its; a peak rate is above the bandwidth."""

    bits_per_s: int = 0
    burst_bits: int = 0
    peak_bits_per_s: int = 0
    peak_burst_bytes: int = 0
    packets_per_s: int = 0
    packet_burst: int = 0
    connections: int = 0


@dataclass(frozen=True, slots=True)
class QosControls:
    """`dscp` 0-63 marks what leaves the cluster, None leaves it as it is."""

    ingress: DirectionLimits = DirectionLimits()
    egress: DirectionLimits = DirectionLimits()
    dscp: int | None = None


NO_QOS = QosControls()


@dataclass(frozen=True, slots=True)
class WorkloadEndpointUpdate:
    """A local workload. `nets` are canonical /32 and /128 of both families.

    `policy_ready` False never happens here: an endpoint is emitted with its complete policy."""

    key: ResourceKey
    interface: str
    mac: str
    nets: tuple[str, ...]
    profiles: tuple[str, ...]
    tiers: tuple[TierPolicies, ...]
    nats: tuple[NatMapping, ...] = ()
    allowed_source_prefixes: tuple[str, ...] = ()
    qos: QosControls = NO_QOS
    active: bool = True


@dataclass(frozen=True, slots=True)
class WorkloadEndpointRemove:
    key: ResourceKey


@dataclass(frozen=True, slots=True)
class HostEndpointUpdate:
    """A host endpoint of this node, with the tiers of each stage (reference/datamodel.md 5.4).

    `ignores_untracked`: doNotTrack policies select it and are not among its tiers, because it is
    for all interfaces (7.13)."""

    key: ResourceKey
    interface: str
    expected_ips: tuple[str, ...]
    profiles: tuple[str, ...]
    tiers: tuple[TierPolicies, ...]
    untracked_tiers: tuple[TierPolicies, ...] = ()
    pre_dnat_tiers: tuple[TierPolicies, ...] = ()
    forward_tiers: tuple[TierPolicies, ...] = ()
    ignores_untracked: bool = False


@dataclass(frozen=True, slots=True)
class HostEndpointRemove:
    key: ResourceKey


@dataclass(frozen=True, slots=True)
class PoolUpdate:
    """An IP pool, for NAT outgoing and overlay decisions. `cidr` canonical."""

    cidr: str
    nat_outgoing: bool
    ipip_mode: str = "Never"
    vxlan_mode: str = "Never"


@dataclass(frozen=True, slots=True)
class PoolRemove:
    cidr: str


@dataclass(frozen=True, slots=True)
class HostUpdate:
    """Addresses of a cluster node without prefix length (None = has none in that family)."""

    node: str
    ipv4: str | None
    ipv6: str | None


@dataclass(frozen=True, slots=True)
class HostRemove:
    node: str


@dataclass(frozen=True, slots=True)
class InSync:
    """The datastore snapshot is complete: programming and sweeping may begin."""


Intent = (
    SetUpdate
    | SetDelta
    | SetRemove
    | PolicyUpdate
    | PolicyRemove
    | ProfileUpdate
    | ProfileRemove
    | WorkloadEndpointUpdate
    | WorkloadEndpointRemove
    | HostEndpointUpdate
    | HostEndpointRemove
    | PoolUpdate
    | PoolRemove
    | HostUpdate
    | HostRemove
    | InSync
)
