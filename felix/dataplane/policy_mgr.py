"""Policies and profiles into chains.

Layer: felix.dataplane, a manager. Pushes into the nft driver's wanted ruleset.

A policy with a Pass rule has no chain of its own (felix.rules.policy P1): the endpoint manager
writes its rules into the tier chains that hold it. `PolicyBook` is what both managers share.

  M1  staged policies are never enforced; untracked and preDNAT ones are rendered for the stages
      they stand in (felix.rules.host), no list of a workload has them;
  M2  a policy that is removed while a tier still lists it is a jump into nothing, which the driver
      closes (W2 of nft_wanted).
"""

from __future__ import annotations

from collections.abc import Iterable

from felix.dataplane.nft_wanted import WantedRuleset
from felix.intent import Intent, PolicyRemove, PolicyUpdate, ProfileRemove, ProfileUpdate
from felix.rules.names import policy_chain, profile_chain
from felix.rules.policy import PolicyRules, directions, policy_rules, profile_rules
from felix.rules.settings import RuleSettings
from libcalico.model.keys import ResourceKey


class PolicyBook:
    """Rendered policies that must be written into tier chains, and which of them changed."""

    def __init__(self) -> None:
        self._passing: dict[tuple[ResourceKey, str], PolicyRules] = {}
        self._changed: set[ResourceKey] = set()
        self._tiers_of: dict[ResourceKey, set[str]] = {}
        self._written: dict[str, frozenset[ResourceKey]] = {}

    def put(self, key: ResourceKey, direction: str, rules: PolicyRules | None) -> None:
        """None: has no Pass rule in this direction (any more)."""
        before = self._passing.get((key, direction))
        if rules == before:
            return
        if rules is None:
            del self._passing[key, direction]
        else:
            self._passing[key, direction] = rules
        self._changed.add(key)

    def passing(self, key: ResourceKey, direction: str) -> PolicyRules | None:
        return self._passing.get((key, direction))

    def note_written(self, tier_chain: str, keys: Iterable[ResourceKey]) -> None:
        """The policies whose rules a tier chain holds now."""
        before, after = self._written.pop(tier_chain, frozenset()), frozenset(keys)
        if after:
            self._written[tier_chain] = after
        for key in before - after:
            self._tiers_of[key].discard(tier_chain)
            if not self._tiers_of[key]:
                del self._tiers_of[key]
        for key in after - before:
            self._tiers_of.setdefault(key, set()).add(tier_chain)

    def written_into(self, key: ResourceKey) -> frozenset[str]:
        """The tier chains that hold rules of a policy."""
        return frozenset(self._tiers_of.get(key, ()))

    def take_changed(self) -> set[ResourceKey]:
        """Policies whose rules in tier chains are out of date; forgets them."""
        changed, self._changed = self._changed, set()
        return changed


class PolicyManager:
    """Manager."""

    def __init__(self, wanted: WantedRuleset, settings: RuleSettings, book: PolicyBook) -> None:
        self._wanted = wanted
        self._settings = settings
        self._book = book
        self._directions = directions(settings)
        self._policies: dict[ResourceKey, PolicyUpdate | None] = {}
        self._profiles: dict[str, ProfileUpdate | None] = {}

    def refused_part(self, key: ResourceKey) -> str | None:
        """What of a policy the kernel refused, "chain NAME" or "set NAME": it is closed."""
        if not self._wanted.has_refusals:
            return None
        own = (policy_chain(d, key.kind, key.namespace, key.name) for d in self._directions)
        names = (*own, *sorted(self._book.written_into(key)))
        return next(filter(None, map(self._wanted.refused_part, names)), None)

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, PolicyUpdate):
            self._policies[intent.key] = intent
        elif isinstance(intent, PolicyRemove):
            self._policies[intent.key] = None
        elif isinstance(intent, ProfileUpdate):
            self._profiles[intent.name] = intent
        elif isinstance(intent, ProfileRemove):
            self._profiles[intent.name] = None

    def complete_deferred_work(self) -> None:
        for key, policy in self._policies.items():
            if policy is None or policy.staged:
                self._drop_policy(key)
            else:
                self._put_policy(policy)
        for name, profile in self._profiles.items():
            self._put_profile(name, profile)
        self._policies.clear()
        self._profiles.clear()

    def _drop_policy(self, key: ResourceKey) -> None:
        for direction in self._directions:
            self._book.put(key, direction, None)
            self._wanted.drop_chain(policy_chain(direction, key.kind, key.namespace, key.name))

    def _put_policy(self, policy: PolicyUpdate) -> None:
        for direction in self._directions:
            rules = policy_rules(policy, direction, self._settings)
            self._book.put(policy.key, direction, rules if rules.passes else None)
            if rules.passes:
                self._wanted.drop_chain(rules.chain.name)
            else:
                self._wanted.want_chain(rules.chain)

    def _put_profile(self, name: str, profile: ProfileUpdate | None) -> None:
        for direction in self._directions:
            if profile is None:
                self._wanted.drop_chain(profile_chain(direction, name))
            else:
                self._wanted.want_chain(profile_rules(profile, direction, self._settings))
