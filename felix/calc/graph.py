"""CalcGraph: the wiring of the calculation, and its front door.

Layer: felix.calc, pure and synchronous (no I/O, no clock, no logging). `felix.daemon` calls it from
one task: updates and status in, a list of intents out of each `flush()`.

                    on_updates, on_status            pin, confirm, retract
                            │                                │
                            ▼                                ▼
                   ValidationFilter ◄──────────────── EndpointOverlay
                            │   invalid becomes absent
                            ▼
                       Dispatcher
      ┌──────────────┬──────┴────┬──────────────┬─────────────────┬─────────┐
   endpoints,     Profile     policies        Tier             IPPool     Node
   network sets      │           │              │                 │         │
      │  local ones  │           │              ▼                 ▼         ▼
      ├──────────► ActiveRules ◄─┘       PolicyResolver         Pools     hosts
      │              │     │ dirty endpoints ──►│                 │         │
      │              │     └─ dirty policies     │                 │         │
      │              │        and profiles       │                 │         │
      │              ▼              ▼            │                 │         │
      │            labels     compile_rules      │                 │         │
      ▼              ▼              │ sets used  │                 │         │
      AddressSets (all of the cluster) ◄┘        │                 │         │
              │                     │            │                 │         │
              └──────────┬──────────┴────────────┴─────────────────┴─────────┘
                         ▼
                     Sequencer ──► [sets, policies, profiles, endpoints, …removals] InSync

What on_updates does is remember and mark; the work is done once per flush. Before the first
IN_SYNC a flush returns nothing: nobody may act on it (felix/intent.py O6).

  G1  the intents handed out so far always add up to the same node state for the same datastore
      state, whatever the order, repetition or grouping of updates was (O5);
  G2  a referent is handed out before what refers to it and outlives it (O1, O2);
  G3  one invalid object changes nothing but itself; what is refused depends on what is stored now,
      never on what was active before. A rule is checked when its policy arrives.

Source: Calico felix/calc/calc_graph.go, felix/design/calc-graph.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from felix.calc import endpoints
from felix.calc.active_rules import ActiveRules
from felix.calc.address_sets import AddressSets
from felix.calc.dispatcher import Dispatcher
from felix.calc.endpoints import LocalEndpoint
from felix.calc.overlay import EndpointOverlay
from felix.calc.policy_resolver import PolicyResolver
from felix.calc.pools_hosts import Pools, host_update
from felix.calc.sequencer import Sequencer, subject
from felix.calc.stream_sets import StreamMembers
from felix.intent import InSync, Intent, PolicyUpdate, ProfileUpdate, WorkloadEndpointUpdate
from libcalico.compute import contributions, policies
from libcalico.compute.contributions import Contribution
from libcalico.compute.policies import Policy
from libcalico.compute.rule_compiler import SetsById, check_rules, compile_rules, needs_layer_7
from libcalico.compute.rules import Action, CompiledRule
from libcalico.model import (
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    IPPool,
    NetworkPolicy,
    NetworkSet,
    Node,
    Profile,
    Resource,
    Rule,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
    WorkloadEndpoint,
)
from libcalico.model.defaults import default_allow_profile
from libcalico.model.keys import Key, ResourceKey
from libcalico.model.kubernetes import KubernetesEndpointSlice
from libcalico.syncer.api import GroupChange, SyncStatus, Update
from libcalico.syncer.validation_filter import ValidationFilter, Validator

# One line per intent handed out; the oldest fall out.
STORY_LENGTH = 2000

_DEFAULT_ALLOW = default_allow_profile()

# What a listed profile that does not exist means (reference/datamodel.md 7.10).
_DENY_ALL = (CompiledRule(Action.DENY, 0),)

_LACKS_MEMBERS = "typha does not tell the members of {}: it denies all until it does"
_NEEDS_LAYER_7 = "its rules with an http clause match nothing: no layer 7 enforcement on this node"

_POLICY_KINDS = (
    NetworkPolicy,
    GlobalNetworkPolicy,
    StagedNetworkPolicy,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
)


class CalcGraph:
    """See the module. `validate` raises InvalidInput for an object to be treated as absent.

    `in_spans`: what comes is the spans stream (libcalico.syncer.spans), of the cluster only what
    concerns this node, and the members of address sets (`on_groups`). What this node pins ahead of
    it may be governed by policies that have not come yet: a pinned workload that the stream does
    not show with the same labels and profiles is handed out closed."""

    def __init__(
        self,
        node: str,
        *,
        validate: Validator | None = None,
        allow_source_spoofing: bool = False,
        in_spans: bool = False,
    ) -> None:
        self._node = node
        self._stream = StreamMembers() if in_spans else None
        # Policies and profiles that deny all because they lack members, and why.
        self._lacking: dict[ResourceKey, str] = {}
        self._filter = ValidationFilter(validate, allow_source_spoofing=allow_source_spoofing)
        self._overlay = EndpointOverlay(node)
        self._dispatcher = Dispatcher(self._filter.refuse)
        self._active = ActiveRules()
        self._sets = AddressSets(self._stream)
        self._resolver = PolicyResolver(self._active)
        self._pools = Pools()
        self._sequencer = Sequencer()
        self._local_by_key: dict[ResourceKey, LocalEndpoint] = {}
        self._profile_by_name: dict[str, Profile] = {}
        self._needing_layer_7: set[ResourceKey] = set()
        self._is_in_sync = False
        self._said_in_sync = False
        self._flushes = 0
        self._story: deque[tuple[int, str, str]] = deque(maxlen=STORY_LENGTH)
        self._register()
        self._on_profile(ResourceKey(Profile.kind, _DEFAULT_ALLOW.metadata.name), None, 0)

    def _register(self) -> None:
        register = self._dispatcher.register
        register(WorkloadEndpoint.kind, self._on_workload)
        register(HostEndpoint.kind, self._on_host_endpoint)
        register(NetworkSet.kind, self._on_network_set)
        register(GlobalNetworkSet.kind, self._on_global_network_set)
        register(Profile.kind, self._on_profile)
        register(Tier.kind, self._on_tier)
        register(IPPool.kind, self._on_pool)
        register(Node.kind, self._on_node)
        register(KubernetesEndpointSlice.kind, self._on_endpoint_slice)
        for kind in _POLICY_KINDS:
            register(kind.kind, self._on_policy)

    # -- in ---------------------------------------------------------------------------------

    def on_updates(self, updates: Sequence[Update]) -> None:
        """Take the datastore's word, in the syncer's order. Kinds we do not use are skipped."""
        kinds = self._dispatcher.kinds()
        for update in updates:
            key = update.key
            if not isinstance(key, ResourceKey) or key.kind not in kinds:
                continue
            if key.kind == WorkloadEndpoint.kind:
                update = self._overlay.on_update(key, update)
            self._deliver(key, update)

    def on_groups(self, changes: Sequence[GroupChange]) -> None:
        """Members of address sets, of the spans stream only."""
        assert self._stream is not None
        self._stream.on_groups(changes)

    def on_status(self, status: SyncStatus) -> None:
        if status is SyncStatus.IN_SYNC:
            self._is_in_sync = True

    def pin(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        """Believe in a local endpoint ahead of the datastore (see overlay.py)."""
        self._deliver(key, self._overlay.pin(key, endpoint))

    def pinned(self, key: ResourceKey) -> WorkloadEndpoint | None:
        """What `pin` was last told of the key, while that stands."""
        return self._overlay.pinned(key)

    def is_settled(self, key: ResourceKey) -> bool:
        """Whether all policies of a pinned workload are known here: without spans always."""
        return self._stream is None or self._overlay.is_echoed(key)

    def confirm(self, key: ResourceKey, revision: int) -> None:
        """The pinned endpoint was written at `revision`: trust the datastore from there on."""
        released = self._overlay.confirm(key, revision)
        if released is not None:
            self._deliver(key, released)

    def retract(self, key: ResourceKey) -> None:
        """Believe that a local endpoint is gone, though the datastore may still show it."""
        hidden = self._overlay.retract(key)
        if hidden is not None:
            self._deliver(key, hidden)

    # -- out --------------------------------------------------------------------------------

    def flush(self) -> list[Intent]:
        """Everything that changed since the flush before, in dependency order."""
        if not self._is_in_sync:
            return []
        dirty_endpoints = self._settle_rules()
        sets = self._sets.flush()
        self._resolve(dirty_endpoints)
        for cidr, pool in self._pools.flush().items():
            self._sequencer.pools.put(cidr, pool)
        out = self._sequencer.flush(sets)
        if not self._said_in_sync:
            self._said_in_sync = True
            out.append(InSync())
        self._flushes += 1
        self._story.extend((self._flushes, type(item).__name__, subject(item)) for item in out)
        return out

    # -- questions --------------------------------------------------------------------------

    @property
    def is_in_sync(self) -> bool:
        return self._is_in_sync

    @property
    def problems(self) -> Mapping[Key, str]:
        """Objects that count as absent because they are invalid, and why."""
        return self._filter.problems

    def refusal_of(self, key: Key) -> str | None:
        """Why the latest value of `key` counts as absent: a pinned endpoint may be invalid too."""
        return self._filter.problems.get(key)

    @property
    def notices(self) -> Mapping[Key, str]:
        """Objects that are valid, and that do less here than they say."""
        found: dict[Key, str] = dict(self._lacking.items())
        for key in self._needing_layer_7:
            found.setdefault(key, _NEEDS_LAYER_7)
        return found

    def shortcomings(self) -> tuple[Mapping[Key, str], Mapping[Key, str], int]:
        """(`problems`, `notices`, how many problems found no room)."""
        return self.problems, self.notices, self._filter.unlisted

    def endpoints_of(self, policy: ResourceKey) -> list[ResourceKey]:
        """The local endpoints that a policy selects, staged policies too: for reports."""
        return sorted(self._active.endpoints_of(policy))

    def staged(self) -> dict[str, dict[str, object]]:
        """What each staged policy of this node would govern: it is computed, and not enforced."""
        return {
            str(policy.key): {
                "revision": policy.revision,
                "tier": policy.tier,
                "ingress_rules": len(policy.ingress),
                "egress_rules": len(policy.egress),
                "endpoints": [str(key) for key in self.endpoints_of(policy.key)],
            }
            for policy in self._sequencer.policies.all_sent()
            if policy.staged
        }

    def story(self, text: str = "") -> list[tuple[int, str, str]]:
        """(flush, intent, object) of the last intents whose object contains `text`."""
        return [entry for entry in self._story if text in entry[2]]

    def check(self) -> None:
        """Every node's invariants, slowly: for tests, after a flush."""
        self._active.check()
        self._sets.check()

    def dump(self) -> dict[str, object]:
        return {
            "node": self._node,
            "in_sync": self._is_in_sync,
            "flushes": self._flushes,
            "active": self._active.dump(),
            "sets": self._sets.dump(),
            "tiers": self._resolver.dump(),
            "pools": self._pools.dump(),
            "handed_out": self._sequencer.dump(),
            "staged": self.staged(),
            "held": self._overlay.dump(),
            "invalid": self._filter.dump(),
            "notices": {str(key): why for key, why in self.notices.items()},
        }

    # -- handlers: the value a key has now --------------------------------------------------

    def _deliver(self, key: ResourceKey, update: Update) -> None:
        self._dispatcher.deliver(key, self._filter.valid_value(update), update.revision)

    def _on_workload(self, key: ResourceKey, value: object | None, revision: int) -> None:
        endpoint = cast("WorkloadEndpoint | None", value)
        item = None if endpoint is None else contributions.of_workload(key.namespace, endpoint)
        local: LocalEndpoint | None = None
        if endpoint is not None and item is not None and endpoint.spec.node == self._node:
            local = endpoints.local_workload(key, endpoint)
        self._set_endpoint(key, item, local)

    def _on_host_endpoint(self, key: ResourceKey, value: object | None, revision: int) -> None:
        endpoint = cast("HostEndpoint | None", value)
        item = None if endpoint is None else contributions.of_host_endpoint(endpoint)
        local: LocalEndpoint | None = None
        if endpoint is not None and endpoint.spec.node == self._node:
            local = endpoints.local_host(key, endpoint)
        self._set_endpoint(key, item, local)

    def _set_endpoint(
        self, key: ResourceKey, item: Contribution | None, local: LocalEndpoint | None
    ) -> None:
        self._sets.update_item(key, item)
        if local is not None and item is not None:
            self._local_by_key[key] = local
            self._active.update_endpoint(key, item.labels, local.profiles)
        elif self._local_by_key.pop(key, None) is not None:
            self._active.delete_endpoint(key)

    def _on_network_set(self, key: ResourceKey, value: object | None, revision: int) -> None:
        networks = cast("NetworkSet | None", value)
        item = None if networks is None else contributions.of_network_set(networks, key.namespace)
        self._sets.update_item(key, item)

    def _on_global_network_set(self, key: ResourceKey, value: object | None, revision: int) -> None:
        networks = cast("GlobalNetworkSet | None", value)
        item = None if networks is None else contributions.of_global_network_set(networks)
        self._sets.update_item(key, item)

    def _on_policy(self, key: ResourceKey, value: object | None, revision: int) -> None:
        policy = None
        if value is not None:
            policy = policies.of_resource(key, cast("Resource", value), revision)
        if policy is not None:
            # Now, and not when it becomes active: what is refused must depend on what is stored,
            # not on which endpoints this node happened to host.
            for rules in _governed(policy):
                check_rules(rules, policy.namespace)
        self._active.update_policy(key, policy)
        self._note_layer_7(key, () if policy is None else (*policy.ingress, *policy.egress))

    def _on_profile(self, key: ResourceKey, value: object | None, revision: int) -> None:
        profile = cast("Profile | None", value)
        if profile is None and key.name == _DEFAULT_ALLOW.metadata.name:
            profile = _DEFAULT_ALLOW  # never stored, always there (datamodel 0.9)
        if profile is None:
            self._profile_by_name.pop(key.name, None)
            self._set_profile_labels(key.name, None)
            self._note_layer_7(key, ())
            return
        _profile_update(profile, key.name, {})  # refuses it as a whole when a rule is invalid
        self._profile_by_name[key.name] = profile
        self._set_profile_labels(key.name, profile.spec.labels_to_apply)
        self._note_layer_7(key, (*profile.spec.ingress, *profile.spec.egress))

    def _note_layer_7(self, key: ResourceKey, rules: Iterable[Rule]) -> None:
        if any(map(needs_layer_7, rules)):
            self._needing_layer_7.add(key)
        else:
            self._needing_layer_7.discard(key)

    def _set_profile_labels(self, name: str, labels: Mapping[str, str] | None) -> None:
        self._active.update_profile(name, labels)
        self._sets.update_parent(name, labels)

    def _on_tier(self, key: ResourceKey, value: object | None, revision: int) -> None:
        if self._resolver.update_tier(key.name, cast("Tier | None", value)):
            self._active.touch_tier(key.name)

    def _on_endpoint_slice(self, key: ResourceKey, value: object | None, revision: int) -> None:
        self._sets.update_slice(key, cast("KubernetesEndpointSlice | None", value))

    def _on_pool(self, key: ResourceKey, value: object | None, revision: int) -> None:
        self._pools.update(key, cast("IPPool | None", value))

    def _on_node(self, key: ResourceKey, value: object | None, revision: int) -> None:
        node = cast("Node | None", value)
        self._sequencer.hosts.put(key.name, None if node is None else host_update(key.name, node))

    # -- the work of a flush ----------------------------------------------------------------

    def _settle_rules(self) -> set[ResourceKey]:
        """Compile what changed; returns the local endpoints to be resolved again."""
        activity = self._active.flush()
        policies, profiles = set(activity.dirty_policies), set(activity.dirty_profiles)
        if self._stream is not None and self._stream.arrived:
            for owner in self._sets.owners_of(self._stream.arrived):
                if isinstance(owner, ResourceKey):
                    policies.add(owner)
                else:
                    profiles.add(str(owner))
        for name in profiles:
            self._compile_profile(name)
        for key in policies:
            self._compile_policy(key)
        return set(activity.dirty_endpoints)

    def _compile_policy(self, key: ResourceKey) -> None:
        policy = self._active.active_policy(key)
        if policy is None and self._sequencer.policies.sent(key) is None:
            return  # one of the many that never concerned this node
        sets: SetsById = {}
        message = None if policy is None else _policy_update(policy, sets)
        self._sets.use(key, sets)
        if self._is_lacking(key, sets) and message is not None:
            message = replace(message, ingress=_DENY_ALL, egress=_DENY_ALL)
        self._sequencer.policies.put(key, message)

    def _compile_profile(self, name: str) -> None:
        sets: SetsById = {}
        message = None
        if self._active.is_profile_active(name):
            message = _profile_update(self._profile_by_name.get(name), name, sets)
        self._sets.use(name, sets)
        if self._is_lacking(ResourceKey(Profile.kind, name), sets) and message is not None:
            message = ProfileUpdate(name, _DENY_ALL, _DENY_ALL)
        self._sequencer.profiles.put(name, message)

    def _is_lacking(self, key: ResourceKey, sets: SetsById) -> bool:
        """Whether members of its sets were never told: then it denies all (G4)."""
        self._lacking.pop(key, None)
        lacking = self._sets.lacks(sets)
        if lacking:
            self._lacking[key] = _LACKS_MEMBERS.format(", ".join(lacking))
        return bool(lacking)

    def _resolve(self, dirty: set[ResourceKey]) -> None:
        present = [self._local_by_key[key] for key in dirty if key in self._local_by_key]
        updates = self._resolver.resolve(present)
        for key in dirty:
            update = updates.get(key)
            if isinstance(update, WorkloadEndpointUpdate) and not self.is_settled(key):
                update = replace(update, tiers=(), profiles=())  # nothing allows: all is denied
            self._sequencer.endpoints.put(key, update)


def _governed(policy: Policy) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """Ingress and egress; a direction that is not governed costs no rule and no set."""
    return (
        policy.ingress if policy.governs_ingress else (),
        policy.egress if policy.governs_egress else (),
    )


def _policy_update(policy: Policy, sets: SetsById) -> PolicyUpdate:
    ingress, egress = _governed(policy)
    return PolicyUpdate(
        key=policy.key,
        tier=policy.tier,
        ingress=compile_rules(ingress, policy.namespace, sets),
        egress=compile_rules(egress, policy.namespace, sets),
        staged=policy.staged,
        untracked=policy.stage is policies.Stage.UNTRACKED,
        pre_dnat=policy.stage is policies.Stage.PRE_DNAT,
        apply_on_forward=policy.on_forward,
        revision=policy.revision,
    )


def _profile_update(profile: Profile | None, name: str, sets: SetsById) -> ProfileUpdate:
    if profile is None:
        return ProfileUpdate(name, _DENY_ALL, _DENY_ALL)
    return ProfileUpdate(
        name,
        compile_rules(profile.spec.ingress, "", sets),
        compile_rules(profile.spec.egress, "", sets),
    )
