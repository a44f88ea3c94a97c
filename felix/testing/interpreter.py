"""What a packet meets, read from intents: a kernel made of plain Python.

Layer: testing. It takes the contents of a FakeDataplane as the only truth (compiled rules, sets,
tiers) and knows nothing of selectors, labels or resources, so that it can be held against
`libcalico.policy.evaluate`, which knows nothing of intents. Slow and obvious on purpose.

Semantics: felix/intent.py and reference/datamodel.md 5.1, 5.2, 5.4. What stands before policy is
not here (failsafe ports, overlay protocols, connection tracking, interfaces): one packet of a new
connection, one endpoint, one direction.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network

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
from felix.testing.dataplane import Contents
from libcalico import net
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Outcome, Stage
from libcalico.policy.packet import ICMP, ICMPV6, Direction, Packet

_PROTOCOL_NAME = {6: "tcp", 17: "udp", 132: "sctp"}


def outcome(
    contents: Contents,
    endpoint: ResourceKey,
    direction: Direction,
    packet: Packet,
    *,
    stage: Stage = Stage.NORMAL,
) -> Outcome:
    """What the tiers and profiles of one endpoint say, at one stage."""
    found = contents.endpoints[endpoint]
    tiers = [tier for tier in _tiers(found, stage) if _policies(tier, direction)]
    if stage is Stage.FORWARD and not tiers:
        return Outcome.ALLOW
    decided = _through_tiers(contents, tiers, direction, packet)
    if decided is not None:
        return decided
    if stage is not Stage.NORMAL:
        return Outcome.UNDECIDED
    return _through_profiles(contents, found.profiles, direction, packet)


def _tiers(
    endpoint: WorkloadEndpointUpdate | HostEndpointUpdate, stage: Stage
) -> tuple[TierPolicies, ...]:
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
    contents: Contents, tiers: Iterable[TierPolicies], direction: Direction, packet: Packet
) -> Outcome | None:
    """The deciding tier's outcome; None when all were passed."""
    for tier in tiers:
        rules = [
            rule
            for key in _policies(tier, direction)
            for rule in _rules(contents.policies[key], direction)
        ]
        action = _first_action(contents, rules, packet)
        if action is Action.ALLOW:
            return Outcome.ALLOW
        if action is Action.DENY or (action is None and tier.default_deny):
            return Outcome.DENY
    return None


def _through_profiles(
    contents: Contents, names: Iterable[str], direction: Direction, packet: Packet
) -> Outcome:
    for name in names:
        rules = _rules(contents.profiles[name], direction)
        action = _first_action(contents, rules, packet)
        if action is Action.ALLOW:
            return Outcome.ALLOW
        if action is Action.DENY:
            return Outcome.DENY
    return Outcome.DENY


def _rules(owner: PolicyUpdate | ProfileUpdate, direction: Direction) -> tuple[CompiledRule, ...]:
    return owner.ingress if direction is Direction.INGRESS else owner.egress


def _first_action(
    contents: Contents, rules: Iterable[CompiledRule], packet: Packet
) -> Action | None:
    """The first terminating action of a matching rule: Log goes on."""
    for rule in rules:
        if rule.action is not Action.LOG and matches(contents, rule, packet):
            return rule.action
    return None


def matches(contents: Contents, rule: CompiledRule, packet: Packet) -> bool:
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
    return _side_matches(contents, rule.source, packet, source) and _side_matches(
        contents, rule.destination, packet, destination
    )


def _icmp_matches(match: IcmpMatch, packet: Packet) -> bool:
    if packet.protocol not in (ICMP, ICMPV6) or packet.icmp_type != match.type:
        return False
    return match.code is None or packet.icmp_code == match.code


def _side_matches(
    contents: Contents,
    side: EntityMatch,
    packet: Packet,
    end: tuple[net.Address, int | None],
) -> bool:
    address, port = end
    if side.nets and not _in_nets(address, side.nets):
        return False
    if _in_nets(address, side.not_nets):
        return False
    if not all(_in_nets(address, contents.members(set_id)) for set_id in side.sets):
        return False
    if any(_in_nets(address, contents.members(set_id)) for set_id in side.not_sets):
        return False
    member = f"{address},{_PROTOCOL_NAME.get(packet.protocol)},{port}"

    def in_any(set_ids: Iterable[str]) -> bool:
        return any(member in contents.members(set_id) for set_id in set_ids)

    if side.ip_port_sets and not in_any(side.ip_port_sets):
        return False
    wants_port = side.ports or side.named_port_sets
    if wants_port and not (_in_ranges(port, side.ports) or in_any(side.named_port_sets)):
        return False
    return not (_in_ranges(port, side.not_ports) or in_any(side.not_named_port_sets))


def _in_nets(address: net.Address, nets: Iterable[str]) -> bool:
    return any(address in ip_network(text) for text in nets)


def _in_ranges(port: int | None, ranges: Iterable[PortRange]) -> bool:
    return port is not None and any(item.first <= port <= item.last for item in ranges)
