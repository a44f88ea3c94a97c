"""What a packet of a new connection meets, read from intents: policy without a packet filter.

Layer: pure. Used by felix.dataplane.policy_sweep, and by felix.testing.interpreter, which holds it
against `libcalico.policy.evaluate`. That one knows objects and nothing of intents; this one knows
intents and nothing of selectors, labels or resources.

Semantics: felix/intent.py and reference/datamodel.md 5.1, 5.2, 5.4. What stands before policy is
not here (failsafe ports, overlay protocols, connection tracking, interfaces): one packet, one
endpoint, one direction. What should be there and is not denies, as its place in the kernel does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_network
from typing import Protocol

from felix.intent import (
    Action,
    CompiledRule,
    EntityMatch,
    HostEndpointUpdate,
    IcmpMatch,
    PolicyUpdate,
    PortRange,
    ProfileUpdate,
    TierPolicies,
    WorkloadEndpointUpdate,
)
from libcalico import net
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Outcome, Stage
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
    tiers = [tier for tier in _tiers(endpoint, stage) if _policies(tier, direction)]
    if stage is Stage.FORWARD and not tiers:
        return Outcome.ALLOW
    decided = _through_tiers(intents, tiers, direction, packet)
    if decided is not None:
        return decided
    if stage is not Stage.NORMAL:
        return Outcome.UNDECIDED
    return _through_profiles(intents, endpoint.profiles, direction, packet)


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


def _through_tiers(
    intents: Intents, tiers: Iterable[TierPolicies], direction: Direction, packet: Packet
) -> Outcome | None:
    """The deciding tier's outcome; None when all were passed."""
    for tier in tiers:
        rules = (
            rule
            for key in _policies(tier, direction)
            for rule in _rules(intents.policies.get(key), direction)
        )
        action = _first_action(intents, rules, packet)
        if action is Action.ALLOW:
            return Outcome.ALLOW
        if action is Action.DENY or (action is None and tier.default_deny):
            return Outcome.DENY
    return None


def _through_profiles(
    intents: Intents, names: Iterable[str], direction: Direction, packet: Packet
) -> Outcome:
    for name in names:
        rules = _rules(intents.profiles.get(name), direction)
        action = _first_action(intents, rules, packet)
        if action is Action.ALLOW:
            return Outcome.ALLOW
        if action is Action.DENY:
            return Outcome.DENY
    return Outcome.DENY


def _rules(
    owner: PolicyUpdate | ProfileUpdate | None, direction: Direction
) -> tuple[CompiledRule, ...]:
    if owner is None:
        return _DENY_ALL
    return owner.ingress if direction is Direction.INGRESS else owner.egress


def _first_action(intents: Intents, rules: Iterable[CompiledRule], packet: Packet) -> Action | None:
    """The first terminating action of a matching rule: Log goes on."""
    for rule in rules:
        if rule.action is not Action.LOG and matches(intents, rule, packet):
            return rule.action
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
