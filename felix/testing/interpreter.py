"""What a packet meets, read from intents: a kernel made of plain Python.

Layer: testing. It takes the contents of a FakeDataplane as the only truth (compiled rules, sets,
tiers) and knows nothing of selectors, labels or resources, so that it can be held against
`libcalico.policy.evaluate`, which knows nothing of intents. Slow and obvious on purpose.

Semantics: felix/intent.py and reference/datamodel.md 5.1, 5.2, 5.4. Failsafe ports, connection
tracking and interfaces are not here: one packet of a new connection, one endpoint, one direction.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from felix.intent import (
    Action,
    CompiledRule,
    EntityMatch,
    HostEndpointUpdate,
    IcmpMatch,
    PortRange,
    TierPolicies,
)
from felix.testing.dataplane import Contents
from libcalico.model.keys import ResourceKey

_PROTOCOL_NAME = {6: "tcp", 17: "udp", 132: "sctp"}
_ICMP_PROTOCOLS = (1, 58)


class Verdict(enum.Enum):
    ALLOW = "allow"
    DENY = "deny"


class Direction(enum.Enum):
    INGRESS = "ingress"
    EGRESS = "egress"


class Stage(enum.Enum):
    """Part of a host endpoint's path; workloads know NORMAL only."""

    NORMAL = "normal"
    UNTRACKED = "untracked"
    PRE_DNAT = "pre-dnat"
    FORWARD = "forward"


@dataclass(frozen=True, slots=True)
class Packet:
    """Ports are 0, and ICMP fields None, where the protocol has none."""

    source: IPv4Address | IPv6Address
    destination: IPv4Address | IPv6Address
    protocol: int
    source_port: int = 0
    destination_port: int = 0
    icmp_type: int | None = None
    icmp_code: int | None = None

    @property
    def version(self) -> int:
        return self.source.version


def packet(source: str, destination: str, protocol: int, **fields: int) -> Packet:
    return Packet(ip_address(source), ip_address(destination), protocol, **fields)


def verdict(
    contents: Contents,
    endpoint: ResourceKey,
    direction: Direction,
    packet: Packet,
    *,
    stage: Stage = Stage.NORMAL,
) -> Verdict | None:
    """None: the stage has no opinion, the packet goes on to the next."""
    found = contents.endpoints[endpoint]
    outcome = _through_tiers(contents, _tiers(found, stage), direction, packet)
    if outcome is not None:
        return outcome
    if stage in (Stage.UNTRACKED, Stage.PRE_DNAT):
        return None
    if stage is Stage.FORWARD:
        taking_part = [t for t in _tiers(found, stage) if _policies(t, direction)]
        if not taking_part:
            return Verdict.ALLOW
    return _through_profiles(contents, found.profiles, direction, packet)


def _tiers(endpoint: object, stage: Stage) -> tuple[TierPolicies, ...]:
    if not isinstance(endpoint, HostEndpointUpdate):
        return getattr(endpoint, "tiers", ()) if stage is Stage.NORMAL else ()
    return {
        Stage.NORMAL: endpoint.tiers,
        Stage.UNTRACKED: endpoint.untracked_tiers,
        Stage.PRE_DNAT: endpoint.pre_dnat_tiers,
        Stage.FORWARD: endpoint.forward_tiers,
    }[stage]


def _policies(tier: TierPolicies, direction: Direction) -> tuple[ResourceKey, ...]:
    return tier.ingress if direction is Direction.INGRESS else tier.egress


def _through_tiers(
    contents: Contents,
    tiers: Iterable[TierPolicies],
    direction: Direction,
    packet: Packet,
) -> Verdict | None:
    """The deciding tier's verdict; None when all were passed."""
    for tier in tiers:
        keys = _policies(tier, direction)
        if not keys:
            continue
        rules = [rule for key in keys for rule in getattr(contents.policies[key], direction.value)]
        action = _first_action(contents, rules, packet)
        if action is Action.ALLOW:
            return Verdict.ALLOW
        if action is Action.DENY or (action is None and tier.default_deny):
            return Verdict.DENY
    return None


def _through_profiles(
    contents: Contents, names: Iterable[str], direction: Direction, packet: Packet
) -> Verdict:
    for name in names:
        rules = getattr(contents.profiles[name], direction.value)
        action = _first_action(contents, rules, packet)
        if action is Action.ALLOW:
            return Verdict.ALLOW
        if action is Action.DENY:
            return Verdict.DENY
    return Verdict.DENY


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
    if packet.protocol not in _ICMP_PROTOCOLS or packet.icmp_type != match.type:
        return False
    return match.code is None or packet.icmp_code == match.code


def _side_matches(
    contents: Contents,
    side: EntityMatch,
    packet: Packet,
    end: tuple[IPv4Address | IPv6Address, int],
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


def _in_nets(address: IPv4Address | IPv6Address, nets: Iterable[str]) -> bool:
    return any(address in ip_network(text) for text in nets)


def _in_ranges(port: int, ranges: Iterable[PortRange]) -> bool:
    return any(item.first <= port <= item.last for item in ranges)
