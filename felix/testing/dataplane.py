"""A dataplane that programs nothing: it keeps what it was told, and refuses a broken promise.

Layer: testing. Stands behind CalcGraph in tests. It computes nothing; what an intent says is what
`contents()` shows. A broken promise of felix/intent.py raises BrokenPromise, whose text names it:

  O1, O2  the order of one flush, and every reference to something that is not there (yet, or any
          more): a set of another kind than the rule asks for, a staged policy in a tier, a policy
          listed under another tier than its own or at a stage it does not belong to
  O3      two messages about one object in one flush
  O4      a delta for a set that was never announced, or that adds or removes what is no change
  O6      InSync twice, or not as the last message
  and members, nets and addresses that are not in their canonical form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from felix.calc.sequencer import subject
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
    TierPolicies,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from libcalico import net
from libcalico.compute.rules import CompiledRule, EntityMatch, SetKind
from libcalico.model.keys import ResourceKey

EndpointUpdate = WorkloadEndpointUpdate | HostEndpointUpdate

# Where each message stands in a flush (O1, O2); pools and hosts may stand anywhere.
_PHASES: tuple[tuple[type[Intent], ...], ...] = (
    (SetUpdate, SetDelta),
    (PolicyUpdate, ProfileUpdate),
    (WorkloadEndpointUpdate, HostEndpointUpdate),
    (WorkloadEndpointRemove, HostEndpointRemove),
    (PolicyRemove, ProfileRemove),
    (SetRemove,),
    (InSync,),
)
_PHASE_BY_TYPE = {kind: phase for phase, kinds in enumerate(_PHASES) for kind in kinds}
_ANYWHERE = (PoolUpdate, PoolRemove, HostUpdate, HostRemove)


class BrokenPromise(AssertionError):
    """An intent stream that felix/intent.py does not allow."""


def _require(condition: object, promise: str, intent: object) -> None:
    if not condition:
        raise BrokenPromise(f"{promise}: {intent}")


@dataclass(slots=True)
class Contents:
    """The node state that all intents so far add up to. Compared as a whole by tests."""

    sets: dict[str, tuple[SetKind, frozenset[str]]] = field(default_factory=dict)
    policies: dict[ResourceKey, PolicyUpdate] = field(default_factory=dict)
    profiles: dict[str, ProfileUpdate] = field(default_factory=dict)
    endpoints: dict[ResourceKey, EndpointUpdate] = field(default_factory=dict)
    pools: dict[str, PoolUpdate] = field(default_factory=dict)
    hosts: dict[str, HostUpdate] = field(default_factory=dict)

    def members(self, set_id: str) -> frozenset[str]:
        return self.sets[set_id][1]


class FakeDataplane:
    """Feed it each flush as a whole: `apply(graph.flush())`."""

    def __init__(self) -> None:
        self._state = Contents()
        self.in_sync = False
        self.messages = 0
        self._apply_by_type: dict[type[Intent], Callable[..., None]] = {
            SetUpdate: self._set_update,
            SetDelta: self._set_delta,
            SetRemove: self._set_remove,
            PolicyUpdate: self._policy_update,
            PolicyRemove: self._policy_remove,
            ProfileUpdate: self._profile_update,
            ProfileRemove: self._profile_remove,
            WorkloadEndpointUpdate: self._workload_update,
            WorkloadEndpointRemove: self._workload_remove,
            HostEndpointUpdate: self._host_endpoint_update,
            HostEndpointRemove: self._host_endpoint_remove,
            PoolUpdate: self._pool_update,
            PoolRemove: self._pool_remove,
            HostUpdate: self._host_update,
            HostRemove: self._host_remove,
            InSync: self._now_in_sync,
        }

    def contents(self) -> Contents:
        return self._state

    def apply(self, intents: Sequence[Intent]) -> None:
        """One flush."""
        _check_order(intents)
        _check_once(intents)
        for intent in intents:
            self._apply_by_type[type(intent)](intent)
        self.messages += len(intents)

    # -- sets -------------------------------------------------------------------------------

    def _set_update(self, intent: SetUpdate) -> None:
        for member in intent.members:
            _require(_is_member(intent.kind, member), "member is not canonical", member)
        self._state.sets[intent.set_id] = (intent.kind, intent.members)

    def _set_delta(self, intent: SetDelta) -> None:
        _require(intent.set_id in self._state.sets, "O4: delta before the set", intent)
        _require(intent.added or intent.removed, "O4: empty delta", intent)
        kind, members = self._state.sets[intent.set_id]
        _require(not intent.added & members, "O4: added what was there", intent)
        _require(intent.removed <= members, "O4: removed what was not there", intent)
        for member in intent.added:
            _require(_is_member(kind, member), "member is not canonical", member)
        self._state.sets[intent.set_id] = (kind, (members - intent.removed) | intent.added)

    def _set_remove(self, intent: SetRemove) -> None:
        _require(intent.set_id in self._state.sets, "O2: removed an unknown set", intent)
        owners: list[PolicyUpdate | ProfileUpdate] = list(self._state.policies.values())
        owners.extend(self._state.profiles.values())
        for owner in owners:
            used = {set_id for rule in _rules_of(owner) for set_id, _ in _set_references(rule)}
            _require(intent.set_id not in used, "O2: removed a set in use", intent)
        del self._state.sets[intent.set_id]

    # -- policies and profiles --------------------------------------------------------------

    def _policy_update(self, intent: PolicyUpdate) -> None:
        self._check_rules(intent)
        self._state.policies[intent.key] = intent

    def _policy_remove(self, intent: PolicyRemove) -> None:
        _require(intent.key in self._state.policies, "O2: removed an unknown policy", intent)
        for endpoint in self._state.endpoints.values():
            used = {key for _, tier in _tiers_of(endpoint) for key in tier.ingress + tier.egress}
            _require(intent.key not in used, "O2: removed a policy in use", intent)
        del self._state.policies[intent.key]

    def _profile_update(self, intent: ProfileUpdate) -> None:
        self._check_rules(intent)
        self._state.profiles[intent.name] = intent

    def _profile_remove(self, intent: ProfileRemove) -> None:
        _require(intent.name in self._state.profiles, "O2: removed an unknown profile", intent)
        for endpoint in self._state.endpoints.values():
            _require(intent.name not in endpoint.profiles, "O2: removed a profile in use", intent)
        del self._state.profiles[intent.name]

    def _check_rules(self, owner: PolicyUpdate | ProfileUpdate) -> None:
        for rules in (owner.ingress, owner.egress):
            _require([rule.index for rule in rules] == list(range(len(rules))), "index", owner)
        for rule in _rules_of(owner):
            for set_id, kind in _set_references(rule):
                _require(set_id in self._state.sets, f"O1: unknown set {set_id}", owner)
                _require(self._state.sets[set_id][0] is kind, f"kind of {set_id}", owner)
            for side in (rule.source, rule.destination):
                for text in side.nets + side.not_nets:
                    _require(str(net.parse_strict_cidr(text)) == text, "net", owner)

    # -- endpoints --------------------------------------------------------------------------

    def _workload_update(self, intent: WorkloadEndpointUpdate) -> None:
        _require(intent.nets, "a workload without address", intent)
        for text in intent.nets:
            _require(str(net.parse_strict_cidr(text)) == text, "net", intent)
        self._endpoint_update(intent)

    def _host_endpoint_update(self, intent: HostEndpointUpdate) -> None:
        for text in intent.expected_ips:
            _require(str(net.parse_ip(text)) == text, "address", intent)
        self._endpoint_update(intent)

    def _endpoint_update(self, intent: EndpointUpdate) -> None:
        for stage, tier in _tiers_of(intent):
            for key in tier.ingress + tier.egress:
                policy = self._state.policies.get(key)
                _require(policy is not None, f"O1: unknown policy {key}", intent)
                assert policy is not None
                _require(policy.tier == tier.tier, f"tier of {key}", intent)
                _require(_belongs(policy, stage), f"{key} at the {stage} stage", intent)
        for name in intent.profiles:
            _require(name in self._state.profiles, f"O1: unknown profile {name}", intent)
        self._state.endpoints[intent.key] = intent

    def _workload_remove(self, intent: WorkloadEndpointRemove) -> None:
        self._endpoint_remove(intent.key, WorkloadEndpointUpdate, intent)

    def _host_endpoint_remove(self, intent: HostEndpointRemove) -> None:
        self._endpoint_remove(intent.key, HostEndpointUpdate, intent)

    def _endpoint_remove(self, key: ResourceKey, kind: type, intent: Intent) -> None:
        present = self._state.endpoints.get(key)
        _require(isinstance(present, kind), "O2: removed an unknown endpoint", intent)
        del self._state.endpoints[key]

    # -- the rest ---------------------------------------------------------------------------

    def _pool_update(self, intent: PoolUpdate) -> None:
        _require(str(net.parse_strict_cidr(intent.cidr)) == intent.cidr, "cidr", intent)
        self._state.pools[intent.cidr] = intent

    def _pool_remove(self, intent: PoolRemove) -> None:
        _require(self._state.pools.pop(intent.cidr, None), "removed an unknown pool", intent)

    def _host_update(self, intent: HostUpdate) -> None:
        self._state.hosts[intent.node] = intent

    def _host_remove(self, intent: HostRemove) -> None:
        _require(self._state.hosts.pop(intent.node, None), "removed an unknown host", intent)

    def _now_in_sync(self, intent: InSync) -> None:
        _require(not self.in_sync, "O6: InSync twice", intent)
        self.in_sync = True


def _check_order(intents: Sequence[Intent]) -> None:
    phase = 0
    for intent in intents:
        if isinstance(intent, _ANYWHERE):
            continue
        _require(_PHASE_BY_TYPE[type(intent)] >= phase, "O1, O2, O6: order of a flush", intent)
        phase = _PHASE_BY_TYPE[type(intent)]


def _check_once(intents: Sequence[Intent]) -> None:
    seen: set[tuple[str, str]] = set()
    for intent in intents:
        family = type(intent).__name__.removesuffix("Update").removesuffix("Delta")
        identity = (family.removesuffix("Remove"), subject(intent))
        _require(identity not in seen, "O3: two messages about one object", intent)
        seen.add(identity)


def _rules_of(owner: PolicyUpdate | ProfileUpdate) -> tuple[CompiledRule, ...]:
    return owner.ingress + owner.egress


def _set_references(rule: CompiledRule) -> Iterator[tuple[str, SetKind]]:
    for side in (rule.source, rule.destination):
        for set_id in side.sets + side.not_sets:
            yield set_id, SetKind.NET
        for set_id in _port_sets(side):
            yield set_id, SetKind.IP_PORT


def _port_sets(side: EntityMatch) -> tuple[str, ...]:
    return side.named_port_sets + side.not_named_port_sets + side.ip_port_sets


def _tiers_of(endpoint: EndpointUpdate) -> Iterator[tuple[str, TierPolicies]]:
    stages: Mapping[str, tuple[TierPolicies, ...]] = {"normal": endpoint.tiers}
    if isinstance(endpoint, HostEndpointUpdate):
        stages = {
            "normal": endpoint.tiers,
            "untracked": endpoint.untracked_tiers,
            "pre-dnat": endpoint.pre_dnat_tiers,
            "forward": endpoint.forward_tiers,
        }
    for stage, tiers in stages.items():
        for tier in tiers:
            yield stage, tier


def _belongs(policy: PolicyUpdate, stage: str) -> bool:
    if policy.staged:
        return False
    if stage == "untracked":
        return policy.untracked
    if stage == "pre-dnat":
        return policy.pre_dnat
    normal = not (policy.untracked or policy.pre_dnat)
    return normal and (policy.apply_on_forward or stage == "normal")


def _is_member(kind: SetKind, member: str) -> bool:
    if kind is SetKind.NET:
        network = net.parse_strict_cidr(member)
        return str(network) == member and network.prefixlen > 0
    address, protocol, port = member.split(",")
    known = protocol in ("tcp", "udp", "sctp") and 1 <= int(port) <= 65535
    return known and str(net.parse_ip(address)) == address
