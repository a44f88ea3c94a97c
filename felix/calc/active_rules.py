"""Which policies and profiles concern this node, and which policies select which local endpoint.

Layer: felix.calc, pure, above libcalico.compute.labelindex. Used by graph.py.

    policies ──► selector ─┐
                           ├─ LabelIndex over local endpoints ─flush─► Activity
    local endpoints ───────┘                                           dirty policies, endpoints

Policies with the same canonical selector share one entry of the index; a node with no local
endpoint has no active policy, whatever the cluster holds.

A namespaced policy selects nothing outside its namespace, so it sleeps beside the index until a
local endpoint of that namespace is seen: a node of a cluster with 100,000 namespaces pays for the
few it hosts. A namespace that woke up stays awake.

  P1  a policy is active exactly when its selector matches at least one local endpoint; a profile,
      when a local endpoint lists it;
  P2  after a flush, `dirty_endpoints` holds every endpoint whose list of policies may differ from
      what it was, and `dirty_policies` every policy whose content or activity may differ.

Source: Calico felix/calc/active_rules_calculator.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from libcalico.compute.labelindex import LabelIndex
from libcalico.compute.policies import Policy
from libcalico.model.keys import ResourceKey
from libcalico.model.meta import NAMESPACE_LABEL


@dataclass(frozen=True, slots=True)
class Activity:
    """What a flush found changed."""

    dirty_policies: frozenset[ResourceKey]
    dirty_profiles: frozenset[str]
    dirty_endpoints: frozenset[ResourceKey]


class ActiveRules:
    def __init__(self) -> None:
        # Selectors go by their canonical text: it hashes fast, and there may be 100,000.
        self._index: LabelIndex[ResourceKey, str] = LabelIndex()
        self._policy_by_key: dict[ResourceKey, Policy] = {}
        self._policies_by_selector: dict[str, dict[ResourceKey, Policy]] = {}
        self._policies_by_tier: dict[str, set[ResourceKey]] = {}
        # Global policies are of the namespace "". A superset of what local endpoints can carry.
        self._awake: set[str] = {""}
        self._asleep: dict[str, dict[ResourceKey, Policy]] = {}
        self._profiles_by_endpoint: dict[ResourceKey, tuple[str, ...]] = {}
        self._users_by_profile: dict[str, int] = {}
        self._dirty_policies: set[ResourceKey] = set()
        self._dirty_profiles: set[str] = set()
        self._dirty_endpoints: set[ResourceKey] = set()
        # Selectors whose endpoints must be looked at again by the next flush.
        self._touched: set[str] = set()

    # -- state in ---------------------------------------------------------------------------

    def update_policy(self, key: ResourceKey, policy: Policy | None) -> None:
        if key.namespace not in self._awake:
            self._keep_asleep(key, policy)
            return
        before = self._policy_by_key.get(key)
        if policy == before:
            return
        self._dirty_policies.add(key)
        moved = before is None or policy is None or before.selector_id != policy.selector_id
        if moved or (before and policy and not policy.stands_like(before)):
            self._touch(before)
            self._touch(policy)
        if before is not None:
            self._forget(before, moved=moved)
        if policy is not None:
            self._remember(policy)

    def update_endpoint(
        self, key: ResourceKey, labels: Mapping[str, str], profiles: tuple[str, ...]
    ) -> None:
        """A local endpoint, with all it lists as profile."""
        self._wake(labels)
        self._index.update_item(key, labels, profiles)
        self._dirty_endpoints.add(key)
        self._use_profiles(key, profiles)

    def delete_endpoint(self, key: ResourceKey) -> None:
        if key in self._profiles_by_endpoint:
            self._index.delete_item(key)
            self._dirty_endpoints.add(key)
            self._use_profiles(key, None)

    def update_profile(self, name: str, labels: Mapping[str, str] | None) -> None:
        """A profile's labels; None when it does not exist. Its rules are the caller's matter."""
        if labels is None:
            self._index.delete_parent(name)
        else:
            self._wake(labels)  # nobody writes such a profile, but it would count
            self._index.update_parent(name, labels)
        if name in self._users_by_profile:
            self._dirty_profiles.add(name)

    def touch_tier(self, tier: str) -> None:
        """The tier's order or action changed: so may the lists of the endpoints it governs."""
        for key in self._policies_by_tier.get(tier, ()):
            self._touched.add(self._policy_by_key[key].selector_id)

    # -- deltas out -------------------------------------------------------------------------

    def flush(self) -> Activity:
        for delta in self._index.flush():
            self._dirty_endpoints.update(delta.started)
            self._dirty_endpoints.update(delta.stopped)
            if len(self._index.members(delta.selector_id)) == len(delta.started):
                # It matched nothing before, or matches nothing now: activity changed (P1).
                self._dirty_policies.update(self._policies_by_selector.get(delta.selector_id, ()))
        # Who left or joined a touched selector in this flush is in its delta; these stayed.
        for selector in self._touched:
            self._dirty_endpoints.update(self._index.members(selector))
        self._touched = set()
        activity = Activity(
            frozenset(self._dirty_policies),
            frozenset(self._dirty_profiles),
            frozenset(self._dirty_endpoints),
        )
        self._dirty_policies, self._dirty_profiles, self._dirty_endpoints = set(), set(), set()
        return activity

    # -- questions, as of the last flush ----------------------------------------------------

    def active_policy(self, key: ResourceKey) -> Policy | None:
        """The policy if it is active, else None."""
        policy = self._policy_by_key.get(key)
        return policy if policy is not None and self._index.members(policy.selector_id) else None

    def is_profile_active(self, name: str) -> bool:
        return name in self._users_by_profile

    def selectors_of(self, endpoint: ResourceKey) -> frozenset[str]:
        """The policy selectors that match a local endpoint: two endpoints with the same ones have
        the same policies."""
        return frozenset(self._index.selectors_of(endpoint))

    def policies_of(self, selectors: Iterable[str]) -> list[Policy]:
        return [
            policy
            for selector in selectors
            for policy in self._policies_by_selector[selector].values()
        ]

    def endpoints_of(self, key: ResourceKey) -> Collection[ResourceKey]:
        """The local endpoints a policy selects."""
        policy = self._policy_by_key.get(key)
        return self._index.members(policy.selector_id) if policy is not None else ()

    def check(self) -> None:
        """The bookkeeping, slowly: for tests."""
        by_selector: dict[str, dict[ResourceKey, Policy]] = {}
        by_tier: dict[str, set[ResourceKey]] = {}
        for key, policy in self._policy_by_key.items():
            by_selector.setdefault(policy.selector_id, {})[key] = policy
            by_tier.setdefault(policy.tier, set()).add(key)
        assert by_selector == self._policies_by_selector
        assert self._awake.isdisjoint(self._asleep)
        assert all(self._asleep.values())
        assert by_tier == self._policies_by_tier
        users: dict[str, int] = {}
        for profiles in self._profiles_by_endpoint.values():
            for name in profiles:
                users[name] = users.get(name, 0) + 1
        assert users == self._users_by_profile
        self._index.check()

    def dump(self) -> dict[str, object]:
        return {
            "policies": len(self._policy_by_key),
            "policies_asleep": sum(map(len, self._asleep.values())),
            "active_policies": sum(
                len(policies)
                for selector, policies in self._policies_by_selector.items()
                if self._index.members(selector)
            ),
            "local_endpoints": len(self._profiles_by_endpoint),
            "active_profiles": sorted(self._users_by_profile),
        }

    # -- bookkeeping ------------------------------------------------------------------------

    def _wake(self, labels: Mapping[str, str]) -> None:
        """An endpoint may carry these labels: let the policies of that namespace take part."""
        namespace = labels.get(NAMESPACE_LABEL, "")
        if namespace not in self._awake:
            self._awake.add(namespace)
            for key, policy in self._asleep.pop(namespace, {}).items():
                self.update_policy(key, policy)

    def _keep_asleep(self, key: ResourceKey, policy: Policy | None) -> None:
        sleepers = self._asleep.setdefault(key.namespace, {})
        if policy is not None:
            sleepers[key] = policy
            return
        sleepers.pop(key, None)
        if not sleepers:
            del self._asleep[key.namespace]

    def _touch(self, policy: Policy | None) -> None:
        # A selector that is new here needs no touch: all it matches will be in its delta.
        if policy is not None and policy.selector_id in self._policies_by_selector:
            self._touched.add(policy.selector_id)

    def _forget(self, policy: Policy, *, moved: bool) -> None:
        del self._policy_by_key[policy.key]
        selector_id = policy.selector_id
        policies = self._policies_by_selector[selector_id]
        del policies[policy.key]
        if not policies:
            del self._policies_by_selector[selector_id]
            if moved:
                self._index.delete_selector(selector_id)
        tier = self._policies_by_tier[policy.tier]
        tier.discard(policy.key)
        if not tier:
            del self._policies_by_tier[policy.tier]

    def _remember(self, policy: Policy) -> None:
        self._policy_by_key[policy.key] = policy
        selector_id = policy.selector_id
        if selector_id not in self._policies_by_selector:
            self._policies_by_selector[selector_id] = {}
            self._index.update_selector(selector_id, policy.selector)
        self._policies_by_selector[selector_id][policy.key] = policy
        self._policies_by_tier.setdefault(policy.tier, set()).add(policy.key)

    def _use_profiles(self, endpoint: ResourceKey, profiles: tuple[str, ...] | None) -> None:
        before = self._profiles_by_endpoint.pop(endpoint, ())
        if profiles is not None:
            self._profiles_by_endpoint[endpoint] = profiles
        for name in profiles or ():
            users = self._users_by_profile.get(name, 0)
            self._users_by_profile[name] = users + 1
            if not users:
                self._dirty_profiles.add(name)
        for name in before:
            self._users_by_profile[name] -= 1
            if not self._users_by_profile[name]:
                del self._users_by_profile[name]
                self._dirty_profiles.add(name)
