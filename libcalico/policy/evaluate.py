"""The verdict of policy on one packet: tiers, then profiles, then drop. Slow and obvious.

Layer: pure, above policy.matching. Users: tests (the oracle of rendered rules), calicoctl.

    packet ─► source's egress ─► destination's ingress
                 │
                 tiers in order ─ policies in order ─ rules in order
                    Allow: accept    Deny: drop    Log: go on    Pass: next tier
                 end of a tier that applied: its default action
                 after the last tier: profiles in list order
                 nothing accepted: drop

Only new connections are asked about: established ones pass before policy.

Source: reference/datamodel.md 5.1, 5.2, 5.4, 7.4, 7.9 to 7.13.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from libcalico.model import Rule
from libcalico.model.keys import ResourceKey
from libcalico.policy.matching import matches
from libcalico.policy.packet import (
    ICMPV6,
    ICMPV6_OF_HOST,
    ICMPV6_TO_HOST,
    IPIP,
    UDP,
    Direction,
    Packet,
)
from libcalico.policy.world import Entity, Failsafe, Policy, TierPolicies, World

HOST_ENDPOINT = "HostEndpoint"
WORKLOAD_ENDPOINT = "WorkloadEndpoint"


class Stage(enum.Enum):
    """Where a host endpoint's policy stands. Workloads know NORMAL only."""

    NORMAL = "normal"
    FORWARD = "forward"
    PRE_DNAT = "pre-dnat"
    UNTRACKED = "untracked"


class Outcome(enum.Enum):
    ALLOW = "allow"
    DENY = "deny"
    # Never at the normal stage: whatever comes after this stage decides.
    UNDECIDED = "undecided"


class Reason(enum.Enum):
    """What decided."""

    RULE = "policy rule"
    TIER_DEFAULT = "end of tier"
    PROFILE_RULE = "profile rule"
    PROFILE_MISSING = "missing profile"
    NO_MATCH = "no policy or profile matched"
    ENCAPSULATED = "encapsulated packet from a workload"
    NEIGHBOUR_DISCOVERY = "neighbour discovery with the host"
    FAILSAFE = "failsafe port"
    NOTHING_APPLIES = "no policy applies at this stage"
    NOT_POLICED = "no endpoint of ours"
    ENDPOINT_TO_HOST = "default endpoint to host action"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was consulted on the way: a tier that was passed, and by what."""

    tier: str
    policy: ResourceKey | None
    rule_index: int | None
    passed_by: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome in one direction of one endpoint, and what decided it."""

    outcome: Outcome
    reason: Reason
    direction: Direction
    endpoint: ResourceKey | None = None
    tier: str = ""
    policy: ResourceKey | None = None
    profile: str = ""
    rule_index: int | None = None
    trail: tuple[Step, ...] = ()

    @property
    def allowed(self) -> bool:
        return self.outcome is Outcome.ALLOW


@dataclass(frozen=True, slots=True)
class PacketVerdict:
    """Both directions. `ingress` is None when egress already stopped the packet."""

    egress: Verdict
    ingress: Verdict | None

    @property
    def allowed(self) -> bool:
        return self.egress.allowed and self.ingress is not None and self.ingress.allowed


def evaluate_packet(world: World, packet: Packet) -> PacketVerdict:
    """A packet between workloads (or between one and the outside).

    It must pass the egress policy of the workload it comes from and the ingress policy of the one
    it goes to; an address that no workload owns is not policed.
    """
    egress = _workload_verdict(world, packet, Direction.EGRESS)
    if not egress.allowed:
        return PacketVerdict(egress, None)
    return PacketVerdict(egress, _workload_verdict(world, packet, Direction.INGRESS))


# One direction of one endpoint at the normal stage, as `evaluate_endpoint` or something held to it.
Judge = Callable[[World, ResourceKey, Direction, Packet], Verdict]


def evaluate_to_host(
    world: World, endpoint: ResourceKey, packet: Packet, judge: Judge | None = None
) -> Verdict:
    """A packet from a workload to its own host."""
    if packet.protocol == ICMPV6 and packet.icmp_type in ICMPV6_TO_HOST:
        return Verdict(
            Outcome.ALLOW, Reason.NEIGHBOUR_DISCOVERY, Direction.EGRESS, endpoint=endpoint
        )
    verdict = (judge or evaluate_endpoint)(world, endpoint, Direction.EGRESS, packet)
    action = world.settings.endpoint_to_host_action.upper()
    # RETURN leaves it to the host's own rules, which is not for us to say.
    if not verdict.allowed or action == "RETURN":
        return verdict
    outcome = Outcome.ALLOW if action == "ACCEPT" else Outcome.DENY
    return Verdict(outcome, Reason.ENDPOINT_TO_HOST, Direction.EGRESS, endpoint=endpoint)


def evaluate_endpoint(
    world: World,
    endpoint: ResourceKey,
    direction: Direction,
    packet: Packet,
    *,
    stage: Stage = Stage.NORMAL,
) -> Verdict:
    """One direction of one endpoint, at one stage."""
    entity = world.entity(endpoint)
    return _Evaluation(world, entity, direction, packet, stage=stage).run()


def before_policy(
    world: World,
    endpoint: ResourceKey,
    direction: Direction,
    packet: Packet,
    *,
    stage: Stage = Stage.NORMAL,
) -> Verdict | None:
    """What decides before tiers and profiles are asked: failsafe ports, neighbour discovery, the
    overlay's own protocols. None: they are asked."""
    entity = world.entity(endpoint)
    return _Evaluation(world, entity, direction, packet, stage=stage).before_policy()


def _workload_verdict(world: World, packet: Packet, direction: Direction) -> Verdict:
    address = packet.source if direction is Direction.EGRESS else packet.destination
    for entity in world.entities:
        if entity.key.kind == WORKLOAD_ENDPOINT and entity.owns(address):
            return evaluate_endpoint(world, entity.key, direction, packet)
    return Verdict(Outcome.ALLOW, Reason.NOT_POLICED, direction)


class _Evaluation:
    """One walk through tiers and profiles; `_trail` is the way so far."""

    def __init__(
        self,
        world: World,
        entity: Entity,
        direction: Direction,
        packet: Packet,
        *,
        stage: Stage,
    ) -> None:
        self._world = world
        self._entity = entity
        self._direction = direction
        self._packet = packet
        self._stage = stage
        self._trail: list[Step] = []

    def run(self) -> Verdict:
        before = self.before_policy()
        if before is not None:
            return before
        tiers = [(tier, self._applicable(tier)) for tier in self._world.tiers]
        taking_part = [(tier, policies) for tier, policies in tiers if policies]
        if not taking_part and self._stage is not Stage.NORMAL:
            # Also the forward stage lets pass what no policy applies to.
            allowed = self._stage is Stage.FORWARD
            outcome = Outcome.ALLOW if allowed else Outcome.UNDECIDED
            return self._verdict(outcome, Reason.NOTHING_APPLIES)
        for tier, policies in taking_part:
            decided = self._tier(tier, policies)
            if decided is not None:
                return decided
        return self._after_tiers()

    def before_policy(self) -> Verdict | None:
        if self._entity.key.kind == HOST_ENDPOINT:
            return self._needed_by_host()
        return self._encapsulated()

    def _encapsulated(self) -> Verdict | None:
        """Workloads may not speak our own overlay protocols."""
        packet, settings = self._packet, self._world.settings
        vxlan = packet.protocol == UDP and packet.destination_port == settings.vxlan_port
        refused = (vxlan and not settings.allow_vxlan_from_workloads) or (
            packet.protocol == IPIP and not settings.allow_ipip_from_workloads
        )
        if self._direction is Direction.EGRESS and refused:
            return self._verdict(Outcome.DENY, Reason.ENCAPSULATED)
        return None

    def _needed_by_host(self) -> Verdict | None:
        packet = self._packet
        if self._stage is Stage.FORWARD:
            return None
        # The policy of an early stage is not asked; the stages after it are.
        outcome = Outcome.ALLOW if self._stage is Stage.NORMAL else Outcome.UNDECIDED
        if packet.protocol == ICMPV6 and packet.icmp_type in ICMPV6_OF_HOST:
            return self._verdict(outcome, Reason.NEIGHBOUR_DISCOVERY)
        if self._is_failsafe():
            return self._verdict(outcome, Reason.FAILSAFE)
        return None

    def _is_failsafe(self) -> bool:
        inbound = self._direction is Direction.INGRESS
        settings, packet = self._world.settings, self._packet
        ports, others = settings.inbound_failsafes, settings.outbound_failsafes
        if not inbound:
            ports, others = others, ports
        peer = packet.source if inbound else packet.destination
        if _any_covers(ports, packet.protocol, packet.destination_port, peer):
            return True
        # Before tracking replies are packets like others (datamodel 5.4).
        is_untracked = self._stage is Stage.UNTRACKED
        return is_untracked and _any_covers(others, packet.protocol, packet.source_port, peer)

    def _applicable(self, tier: TierPolicies) -> list[Policy]:
        return [
            policy
            for policy in tier.policies
            if policy.governs(self._direction)
            and self._at_this_stage(policy)
            and policy.selector.evaluate(self._entity.labels)
        ]

    def _at_this_stage(self, policy: Policy) -> bool:
        match self._stage:
            case Stage.UNTRACKED:
                return policy.do_not_track and not self._entity.is_any_interface
            case Stage.PRE_DNAT:
                return policy.pre_dnat and self._direction is Direction.INGRESS
            case Stage.FORWARD:
                plain = not policy.do_not_track and not policy.pre_dnat
                return plain and policy.apply_on_forward
            case Stage.NORMAL:
                return not policy.do_not_track and not policy.pre_dnat

    def _tier(self, tier: TierPolicies, policies: Iterable[Policy]) -> Verdict | None:
        """The verdict of one tier that applies, or None to go on to the next."""
        for policy in policies:
            rules = policy.rules(self._direction)
            found = self._first_match(rules, policy.key.namespace)
            if found is None:
                continue
            index, action = found
            if action == "Pass":
                self._trail.append(Step(tier.name, policy.key, index, "Pass rule"))
                return None
            outcome = Outcome.ALLOW if action == "Allow" else Outcome.DENY
            verdict = self._verdict(outcome, Reason.RULE)
            return replace(verdict, tier=tier.name, policy=policy.key, rule_index=index)
        if self._stage in (Stage.UNTRACKED, Stage.PRE_DNAT):
            self._trail.append(Step(tier.name, None, None, "no match"))
            return None
        if tier.default_pass:
            self._trail.append(Step(tier.name, None, None, "default action Pass"))
            return None
        return replace(self._verdict(Outcome.DENY, Reason.TIER_DEFAULT), tier=tier.name)

    def _after_tiers(self) -> Verdict:
        if self._stage is not Stage.NORMAL:
            # The next stage decides; after the forward stage, the FORWARD hook's own policy.
            return self._verdict(Outcome.UNDECIDED, Reason.NO_MATCH)
        for name in self._entity.profiles:
            decided = self._profile(name)
            if decided is not None:
                return decided
        return self._verdict(Outcome.DENY, Reason.NO_MATCH)

    def _profile(self, name: str) -> Verdict | None:
        profile = self._world.profiles.get(name)
        if profile is None:
            # Fail closed at its place in the list: a later profile is not asked.
            return replace(self._verdict(Outcome.DENY, Reason.PROFILE_MISSING), profile=name)
        ingress = self._direction is Direction.INGRESS
        rules = profile.spec.ingress if ingress else profile.spec.egress
        found = self._first_match(rules, "")
        if found is None or found[1] == "Pass":
            return None
        index, action = found
        outcome = Outcome.ALLOW if action == "Allow" else Outcome.DENY
        verdict = self._verdict(outcome, Reason.PROFILE_RULE)
        return replace(verdict, profile=name, rule_index=index)

    def _first_match(self, rules: Iterable[Rule], namespace: str) -> tuple[int, str] | None:
        """The first rule that matches and does more than log."""
        for index, rule in enumerate(rules):
            if rule.action != "Log" and matches(self._world, rule, namespace, self._packet):
                return index, rule.action
        return None

    def _verdict(self, outcome: Outcome, reason: Reason) -> Verdict:
        return Verdict(
            outcome,
            reason,
            self._direction,
            endpoint=self._entity.key,
            trail=tuple(self._trail),
        )


def _any_covers(
    failsafes: Iterable[Failsafe], protocol: int, port: int | None, peer: object
) -> bool:
    return any(
        (item.protocol, item.port) == (protocol, port) and (item.net is None or peer in item.net)
        for item in failsafes
    )
