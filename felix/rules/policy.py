"""Policies, profiles and tiers as chains.

Layer: pure. Used by felix.dataplane.policy_mgr and endpoint_rules_mgr.

How the verdicts of 5.1 are said without mark bits:

    endpoint chain            tier chain (one list of policies)      policy chain
      jump tier A      --->     jump policy 1                 --->     match  accept | drop
      jump tier B               (rules of a policy with Pass)          (no match: return)
      jump profile 1            drop            (default Deny)
      drop

  Allow   accept: ends the base chain of this direction only;
  Pass    must leave the *tier*, two levels up. So a policy that has a Pass rule is written into
          the tier chain itself, where `return` is exactly that. All others are chains of their
          own, jumped to from every tier list that holds them;
  Log     a log statement, then the next rule;
  no match in a policy: return to the tier chain, next policy.

  stages  an Allow of a preDNAT or doNotTrack policy marks the packet, so that the later stages of
          that host endpoint do not ask again, and the latter leaves it untracked (host.py).

  P1  `return` appears only in tier chains (Pass) and profile chains (where Pass ends the profile);
  P2  deny is drop or reject by configuration; what falls off the end of an endpoint is dropped;
  P3  nothing is rejected but in the hooks of filtering (what the deny action speaks of): the kernel
      does not take it in postrouting at all. Egress policy that is asked there is rendered a second
      time, as direction `late`, when denied packets are to be rejected.

Source: datamodel 5.1, 5.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from felix.intent import PolicyUpdate, ProfileUpdate, TierPolicies
from felix.rules.chain import (
    ACCEPT,
    DROP,
    RETURN,
    Chain,
    Count,
    Limit,
    Log,
    NoTrack,
    Reject,
    Rule,
    SetMark,
    jump,
)
from felix.rules.chain import Action as Effect
from felix.rules.fold import Group, fold
from felix.rules.match import variants
from felix.rules.names import policy_chain, profile_chain, tier_chain
from felix.rules.settings import DenyAction, RuleSettings
from libcalico.compute.rules import Action, CompiledRule
from libcalico.model.keys import ResourceKey

IN, OUT, LATE = ALL_DIRECTIONS = "in", "out", "late"
_LOG_PREFIX_MAX_BYTES = 125
_SHORT_KIND = {"NetworkPolicy": "np", "GlobalNetworkPolicy": "gnp", "Profile": "pro"}


@dataclass(frozen=True, slots=True)
class RuleOwner:
    """Whose rules these are: for comments and log prefixes."""

    kind: str
    name: str
    namespace: str = ""
    tier: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def comment(self, which: str) -> str:
        """ "default: policy ns/name rule 3" """
        if self.kind == "Profile":
            return f"profile {self.full_name} {which}"
        return f"{self.tier}: policy {self.full_name} {which}"


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """One direction of one policy, rendered. `passes`: must be written into tier chains (P1)."""

    chain: Chain
    passes: bool


def deny(settings: RuleSettings) -> tuple[Effect, ...]:
    verdict: Effect = Reject() if settings.deny_action is DenyAction.REJECT else DROP
    return (Count(), verdict) if settings.counts else (verdict,)


def directions(settings: RuleSettings) -> tuple[str, ...]:
    """What policies are rendered for (P3)."""
    return ALL_DIRECTIONS if settings.deny_action is DenyAction.REJECT else (IN, OUT)


def settings_for(direction: str, settings: RuleSettings) -> RuleSettings:
    """P3."""
    return replace(settings, deny_action=DenyAction.DROP) if direction == LATE else settings


# --------------------------------------------------------------------------- policies, profiles


def policy_rules(policy: PolicyUpdate, direction: str, settings: RuleSettings) -> PolicyRules:
    """`direction` is "in", "out" or "late"."""
    key = policy.key
    rules = policy.ingress if direction == IN else policy.egress
    owner = RuleOwner(key.kind, key.name, key.namespace, policy.tier)
    name = policy_chain(direction, key.kind, key.namespace, key.name)
    comment = f"tier {policy.tier}, {key.kind} {owner.full_name}, {_DIRECTIONS[direction]}"
    is_early = policy.untracked or policy.pre_dnat
    effective = settings_for(LATE if is_early else direction, settings)
    made = _rules(rules, owner, effective, _allow(policy, settings))
    chain = Chain(name, made, comment=comment)
    return PolicyRules(chain, any(rule.action is Action.PASS for rule in rules))


def _allow(policy: PolicyUpdate, settings: RuleSettings) -> tuple[Effect, ...]:
    mark = SetMark(settings.marks.allowed)
    if policy.untracked:
        return NoTrack(), mark, ACCEPT
    return (mark, ACCEPT) if policy.pre_dnat else (ACCEPT,)


def profile_rules(profile: ProfileUpdate, direction: str, settings: RuleSettings) -> Chain:
    rules = profile.ingress if direction == IN else profile.egress
    owner = RuleOwner("Profile", profile.name)
    comment = f"profile {profile.name}, {_DIRECTIONS[direction]}"
    name = profile_chain(direction, profile.name)
    made = _rules(rules, owner, settings_for(direction, settings), (ACCEPT,))
    return Chain(name, made, comment=comment)


_DIRECTIONS = {IN: "ingress", OUT: "egress", LATE: "egress to a translated destination"}


def _rules(
    rules: Sequence[CompiledRule],
    owner: RuleOwner,
    settings: RuleSettings,
    allow: tuple[Effect, ...],
) -> tuple[Rule, ...]:
    found: list[Rule] = []
    for item in fold(rules) if settings.folds else rules:
        if isinstance(item, Group):
            comment = owner.comment(f"rules {item.label}")
            effects = _effects(item.action, owner, settings, allow)
            found += [Rule(matches, effects, comment) for matches in item.conjunctions]
            continue
        effects = _effects(item.action, owner, settings, allow)
        comment = owner.comment(f"rule {item.index}")
        found += [Rule(matches, effects, comment) for matches in variants(item)]
    return tuple(found)


def _effects(
    action: Action, owner: RuleOwner, settings: RuleSettings, allow: tuple[Effect, ...]
) -> tuple[Effect, ...]:
    if action is Action.LOG:
        rate = settings.log_rate
        limit = (Limit(rate.rate, rate.unit_s, rate.burst),) if rate else ()
        return (*limit, Log(log_prefix(settings.log_prefix, owner)))
    if action is Action.DENY:
        return deny(settings)
    effects = allow if action is Action.ALLOW else (RETURN,)
    return (Count(), *effects) if settings.counts else effects


def log_prefix(template: str, owner: RuleOwner) -> str:
    """Expand %t %k %n %p (5.2) and end with ": " as Calico does."""
    values = {
        "%t": owner.tier,
        "%k": _SHORT_KIND.get(owner.kind, owner.kind),
        "%n": owner.name,
        "%p": owner.full_name,
    }
    text = re.sub("%[tknp]", lambda found: values[found[0]], template)
    # The kernel takes 127 bytes; names are ASCII.
    return text.encode()[:_LOG_PREFIX_MAX_BYTES].decode(errors="ignore") + ": "


# ---------------------------------------------------------------------------------------- tiers


def policies_of(tier: TierPolicies, direction: str) -> tuple[ResourceKey, ...]:
    return tier.ingress if direction == IN else tier.egress


def tier_chain_name(tier: TierPolicies, direction: str) -> str:
    name = tier.names.get(direction)
    if name is None:
        name = tier.names[direction] = _tier_chain_name(tier, direction)
    return name


def _tier_chain_name(tier: TierPolicies, direction: str) -> str:
    identities = [f"{key.kind}/{key.namespace}/{key.name}" for key in policies_of(tier, direction)]
    default = "deny" if tier.default_deny else "pass"
    return tier_chain(direction, tier.tier, default, *identities)


def tier_rules(
    tier: TierPolicies,
    direction: str,
    passing: Iterable[tuple[ResourceKey, PolicyRules]],
    settings: RuleSettings,
) -> Chain:
    """The chain of one tier's list. `passing` holds its policies that have Pass rules (P1).

    A policy that is not known is jumped to all the same: the driver puts a chain that drops in
    its place (fail closed)."""
    inlined = dict(passing)
    rules: list[Rule] = []
    for key in policies_of(tier, direction):
        if key in inlined:
            rules += inlined[key].chain.rules
        else:
            name = policy_chain(direction, key.kind, key.namespace, key.name)
            rules.append(Rule((), (jump(name),)))
    if tier.default_deny:
        effects = deny(settings_for(direction, settings))
        rules.append(Rule((), effects, f"{tier.tier}: end of tier"))
    comment = f"tier {tier.tier}, {_DIRECTIONS[direction]}"
    return Chain(tier_chain_name(tier, direction), tuple(rules), comment=comment)
