"""One direction of one endpoint: its tiers, then its profiles, then the end.

Layer: pure. Used by felix.dataplane.endpoint_rules_mgr.

Endpoints governed alike (same tier lists, same profiles) share the chain: it is named by what it
lists, so a hundred pods of one deployment are a hundred map elements and one chain. (An endpoint
with a limit of connections has its own: the limit comes before policy, and counts for it alone.)

  E1  a tier without a policy governing this direction is not there at all (5.1.2);
  E2  what no tier and no profile decides is denied (5.1.6): an endpoint with neither is closed;
  E3  an endpoint that is not active lets nothing through;
  E4  a host endpoint has such a chain for each of its stages (host.py). At the stages that are
      open what nothing decides goes on to the next stage, and no profile is asked (5.4).

Source: datamodel 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from felix.intent import TierPolicies, WorkloadEndpointUpdate
from felix.rules.chain import DROP, Chain, Rule, Verdict, goto, jump
from felix.rules.names import endpoint_chain, profile_chain
from felix.rules.policy import deny, policies_of, settings_for, tier_chain_name
from felix.rules.settings import RuleSettings


@dataclass(frozen=True)
class Governance:
    """All that decides one direction of an endpoint.

    `before` is a chain that is asked first: the limit of a workload's connections (qos.py), what no
    policy of a host endpoint may take away (host.py); "" for most. `is_open`: E4."""

    direction: str
    tiers: tuple[TierPolicies, ...]
    profiles: tuple[str, ...]
    before: str = ""
    is_open: bool = False

    @classmethod
    def of(
        cls,
        direction: str,
        tiers: Sequence[TierPolicies],
        profiles: Sequence[str],
        *,
        before: str = "",
        is_open: bool = False,
    ) -> Governance:
        taking_part = tuple(tier for tier in tiers if policies_of(tier, direction))
        return cls(direction, taking_part, tuple(profiles), before, is_open)

    @cached_property
    def chain_name(self) -> str:
        tiers = (f"tier:{tier_chain_name(tier, self.direction)}" for tier in self.tiers)
        profiles = (f"profile:{name}" for name in self.profiles)
        before = [f"before:{self.before}"] if self.before else []
        ending = ["open"] if self.is_open else []
        return endpoint_chain(self.direction, *before, *tiers, *profiles, *ending)


def endpoint_rules(governance: Governance, settings: RuleSettings) -> Chain:
    direction = governance.direction
    rules = [Rule((), (jump(governance.before),))] if governance.before else []
    rules += [Rule((), (jump(tier_chain_name(tier, direction)),)) for tier in governance.tiers]
    rules += [Rule((), (jump(profile_chain(direction, name)),)) for name in governance.profiles]
    if not governance.is_open:
        effects = deny(settings_for(direction, settings))
        rules.append(Rule((), effects, "no policy and no profile allows this"))
    tiers = ", ".join(tier.tier for tier in governance.tiers) or "none"
    profiles = ", ".join(governance.profiles) or "none"
    comment = f"tiers: {tiers}; profiles: {profiles}"
    return Chain(governance.chain_name, tuple(rules), comment=comment)


def endpoint_verdict(endpoint: WorkloadEndpointUpdate, governance: Governance) -> Verdict:
    """What the dispatch map says for the endpoint's interface (E3)."""
    return goto(governance.chain_name) if endpoint.active else DROP
