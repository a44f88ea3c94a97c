"""Endpoint and tier chains in use, shared by workloads and host endpoints.

Layer: felix.dataplane. A part of endpoint_rules_mgr and host_rules_mgr, which say who uses what;
pushes into the nft driver's wanted ruleset.

  C1  a chain is kept while somebody uses it, counted by name: an endpoint chain by interfaces, a
      tier chain by endpoint chains, whichever manager they belong to;
  C2  a tier chain holds the rules of policies with Pass (felix.rules.policy P1) as the book has
      them, and is rewritten when these change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.policy_mgr import PolicyBook
from felix.intent import TierPolicies
from felix.rules.endpoints import Governance, endpoint_rules
from felix.rules.policy import policies_of, tier_chain_name, tier_rules
from felix.rules.settings import RuleSettings


@dataclass(slots=True)
class _Uses:
    governance: Governance
    users: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _TierUses:
    tier: TierPolicies
    direction: str
    governances: set[str] = field(default_factory=set)


class GovernanceChains:
    """`user` is any name that is one use: an interface, or a stage and an interface."""

    def __init__(self, wanted: WantedRuleset, settings: RuleSettings, book: PolicyBook) -> None:
        self._wanted, self._settings, self._book = wanted, settings, book
        self._uses: dict[str, _Uses] = {}
        self._tiers: dict[str, _TierUses] = {}

    def use(self, governance: Governance, user: str) -> None:
        uses = self._uses.get(governance.chain_name)
        if uses is None:
            uses = self._uses[governance.chain_name] = _Uses(governance)
            self._wanted.want_chain(endpoint_rules(governance, self._settings))
            for tier in governance.tiers:
                self._use_tier(tier, governance)
        uses.users.add(user)

    def unuse(self, name: str, user: str) -> None:
        uses = self._uses[name]
        uses.users.discard(user)
        if uses.users:
            return
        del self._uses[name]
        self._wanted.drop_chain(name)
        for tier in uses.governance.tiers:
            self._unuse_tier(tier_chain_name(tier, uses.governance.direction), name)

    def _use_tier(self, tier: TierPolicies, governance: Governance) -> None:
        name = tier_chain_name(tier, governance.direction)
        uses = self._tiers.get(name)
        if uses is None:
            uses = self._tiers[name] = _TierUses(tier, governance.direction)
            self._write_tier(uses)
        uses.governances.add(governance.chain_name)

    def _unuse_tier(self, name: str, governance: str) -> None:
        uses = self._tiers[name]
        uses.governances.discard(governance)
        if not uses.governances:
            del self._tiers[name]
            self._wanted.drop_chain(name)
            self._book.note_written(name, ())

    def _write_tier(self, uses: _TierUses) -> None:
        found = (
            (key, self._book.passing(key, uses.direction))
            for key in policies_of(uses.tier, uses.direction)
        )
        passing = [(key, rules) for key, rules in found if rules is not None]
        self._book.note_written(
            tier_chain_name(uses.tier, uses.direction), [key for key, _ in passing]
        )
        self._wanted.want_chain(tier_rules(uses.tier, uses.direction, passing, self._settings))

    def rewrite_changed(self) -> None:
        """C2; once a cycle, after the policies."""
        changed = self._book.take_changed()
        if not changed:
            return
        for uses in self._tiers.values():
            if not changed.isdisjoint(policies_of(uses.tier, uses.direction)):
                self._write_tier(uses)

    def dump(self) -> dict[str, object]:
        return {name: sorted(uses.users) for name, uses in self._uses.items()}
