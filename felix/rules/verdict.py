"""What a packet of a new connection meets, read from intents: policy without a packet filter.

Layer: pure. Used by felix.dataplane.policy_sweep, by `calicoctl policy`, and by
felix.testing.interpreter, which holds it against `libcalico.policy.evaluate`. That one knows
objects and nothing of intents; this one knows intents and nothing of selectors, labels or
resources.

Semantics: felix/intent.py and reference/datamodel.md 5.1, 5.2, 5.4. What stands before policy is
not here (failsafe ports, overlay protocols, connection tracking, interfaces): one packet, one
endpoint, one direction. What should be there and is not denies, as its place in the kernel does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_network
from typing import Protocol

from felix.intent import (
    HostEndpointUpdate,
    PolicyUpdate,
    ProfileUpdate,
    TierPolicies,
    WorkloadEndpointUpdate,
)
from libcalico import net
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, IcmpMatch, PortRange
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Outcome, Reason, Stage, Step, Verdict
from libcalico.policy.packet import ICMP, ICMPV6, Direction, Packet

Endpoint = WorkloadEndpointUpdate | HostEndpointUpdate


class Intents(Protocol):
    """What all intents so far add up to."""

    @property
    def policies(self) -> Mapping[ResourceKey, PolicyUpdate]: ...

    @property
    def profiles(self) -> Mapping[str, ProfileUpdate]: ...

    def holds(self, set_id: str, address: net.Address) -> bool:
        """Whether a NET set has a member that contains the address."""
        ...

    def offers(self, set_id: str, member: str) -> bool:
        """Whether an IP_PORT set has the member."""
        ...


_DENY_ALL = (CompiledRule(Action.DENY, 0),)
_PROTOCOL_NAME = {6: "tcp", 17: "udp", 132: "sctp"}


def outcome(
    intents: Intents,
    endpoint: Endpoint,
    direction: Direction,
    packet: Packet,
    *,
    stage: Stage = Stage.NORMAL,
) -> Outcome:
    """What the tiers and profiles of one endpoint say, at one stage."""
    return decide(intents, endpoint, direction, packet, stage=stage).outcome


def decide(
    intents: Intents,
    endpoint: Endpoint,
    direction: Direction,
    packet: Packet,
    *,
    stage: Stage = Stage.NORMAL,
) -> Verdict:
    """The same with what decided and the tiers passed, in the words of the evaluator. Of a profile
    that does not exist the tables hold one rule, which denies."""
    return _Walk(intents, endpoint, direction, packet, stage).run()


def _tiers(endpoint: Endpoint, stage: Stage) -> tuple[TierPolicies, ...]:
    if not isinstance(endpoint, HostEndpointUpdate):
        return endpoint.tiers if stage is Stage.NORMAL else ()
    return {
        Stage.NORMAL: endpoint.tiers,
        Stage.UNTRACKED: endpoint.untracked_tiers,
        Stage.PRE_DNAT: endpoint.pre_dnat_tiers,
        Stage.FORWARD: endpoint.forward_tiers,
    }[stage]


def _policies(tier: TierPolicies, direction: Direction) -> tuple[ResourceKey, ...]:
    return tier.ingress if direction is Direction.INGRESS else tier.egress


class _Walk:
    """One way through tiers and profiles; `_trail` is what was passed."""

    __slots__ = ("_direction", "_endpoint", "_intents", "_packet", "_stage", "_trail")

    def __init__(
        self,
        intents: Intents,
        endpoint: Endpoint,
        direction: Direction,
        packet: Packet,
        stage: Stage,
    ) -> None:
        self._intents, self._endpoint, self._packet = intents, endpoint, packet
        self._direction, self._stage = direction, stage
        self._trail: tuple[Step, ...] = ()

    def run(self) -> Verdict:
        tiers = [
            tier for tier in _tiers(self._endpoint, self._stage) if _policies(tier, self._direction)
        ]
        if not tiers and self._stage is not Stage.NORMAL:
            allowed = self._stage is Stage.FORWARD
            outcome = Outcome.ALLOW if allowed else Outcome.UNDECIDED
            return self._verdict(outcome, Reason.NOTHING_APPLIES)
        for tier in tiers:
            decided = self._tier(tier)
            if decided is not None:
                return decided
        if self._stage is not Stage.NORMAL:
            return self._verdict(Outcome.UNDECIDED, Reason.NO_MATCH)
        return self._profiles()

    def _tier(self, tier: TierPolicies) -> Verdict | None:
        """None: passed."""
        for key in _policies(tier, self._direction):
            rules = _rules(self._intents.policies.get(key), self._direction)
            rule = _first_match(self._intents, rules, self._packet)
            if rule is None:
                continue
            if rule.action is Action.PASS:
                self._trail += (Step(tier.tier, key, rule.index, "Pass rule"),)
                return None
            outcome = Outcome.ALLOW if rule.action is Action.ALLOW else Outcome.DENY
            verdict = self._verdict(outcome, Reason.RULE)
            return replace(verdict, tier=tier.tier, policy=key, rule_index=rule.index)
        if tier.default_deny:
            return replace(self._verdict(Outcome.DENY, Reason.TIER_DEFAULT), tier=tier.tier)
        is_early = self._stage in (Stage.UNTRACKED, Stage.PRE_DNAT)
        by = "no match" if is_early else "default action Pass"
        self._trail += (Step(tier.tier, None, None, by),)
        return None

    def _profiles(self) -> Verdict:
        for name in self._endpoint.profiles:
            rules = _rules(self._intents.profiles.get(name), self._direction)
            rule = _first_match(self._intents, rules, self._packet)
            if rule is None or rule.action is Action.PASS:
                continue
            outcome = Outcome.ALLOW if rule.action is Action.ALLOW else Outcome.DENY
            verdict = self._verdict(outcome, Reason.PROFILE_RULE)
            return replace(verdict, profile=name, rule_index=rule.index)
        return self._verdict(Outcome.DENY, Reason.NO_MATCH)

    def _verdict(self, outcome: Outcome, reason: Reason) -> Verdict:
        key = self._endpoint.key
        return Verdict(outcome, reason, self._direction, endpoint=key, trail=self._trail)


def _rules(
    owner: PolicyUpdate | ProfileUpdate | None, direction: Direction
) -> tuple[CompiledRule, ...]:
    if owner is None:
        return _DENY_ALL
    return owner.ingress if direction is Direction.INGRESS else owner.egress


def _first_match(
    intents: Intents, rules: Iterable[CompiledRule], packet: Packet
) -> CompiledRule | None:
    """The first matching rule that does more than log."""
    for rule in rules:
        if rule.action is not Action.LOG and matches(intents, rule, packet):
            return rule
    return None


def matches(intents: Intents, rule: CompiledRule, packet: Packet) -> bool:
    if rule.unmatchable or rule.ip_version not in (None, packet.version):
        return False
    if rule.protocol not in (None, packet.protocol) or rule.not_protocol == packet.protocol:
        return False
    if rule.icmp is not None and not _icmp_matches(rule.icmp, packet):
        return False
    if rule.not_icmp is not None and _icmp_matches(rule.not_icmp, packet):
        return False
    source = (packet.source, packet.source_port)
    destination = (packet.destination, packet.destination_port)
    return _side_matches(intents, rule.source, packet, source) and _side_matches(
        intents, rule.destination, packet, destination
    )


def _icmp_matches(match: IcmpMatch, packet: Packet) -> bool:
    if packet.protocol not in (ICMP, ICMPV6) or packet.icmp_type != match.type:
        return False
    return match.code is None or packet.icmp_code == match.code


def _side_matches(
    intents: Intents,
    side: EntityMatch,
    packet: Packet,
    end: tuple[net.Address, int | None],
) -> bool:
    address, port = end
    if side.nets and not _in_nets(address, side.nets):
        return False
    if _in_nets(address, side.not_nets):
        return False
    if not all(intents.holds(set_id, address) for set_id in side.sets):
        return False
    if any(intents.holds(set_id, address) for set_id in side.not_sets):
        return False
    member = f"{address},{_PROTOCOL_NAME.get(packet.protocol)},{port}"

    def in_any(set_ids: Iterable[str]) -> bool:
        return any(intents.offers(set_id, member) for set_id in set_ids)

    if side.ip_port_sets and not in_any(side.ip_port_sets):
        return False
    wants_port = side.ports or side.named_port_sets
    if wants_port and not (_in_ranges(port, side.ports) or in_any(side.named_port_sets)):
        return False
    return not (_in_ranges(port, side.not_ports) or in_any(side.not_named_port_sets))


def _in_nets(address: net.Address, nets: Iterable[str]) -> bool:
    return any(address in _network(text) for text in nets)


# Rules repeat the same few networks, and a sweep asks about thousands of connections.
@lru_cache(maxsize=1 << 12)
def _network(text: str) -> net.Network:
    return ip_network(text)


def _in_ranges(port: int | None, ranges: Iterable[PortRange]) -> bool:
    return port is not None and any(item.first <= port <= item.last for item in ranges)
