"""The traffic to ask about, so that every difference some rules can make is met by a question.

Layer: pure. Used by calicoctl.dryrun.

  QU1  destination ports fall into classes that no rule tells apart: one port of each class is
       asked, one that no rule names among them;
  QU2  so with protocols: those that rules name, and one that none does; ICMP by the types and codes
       that rules name, another code of such a type, and a type
       that none names: an echo request if possible;
  QU3  rules are asked for a connection from an ordinary port of clients
       (explain.DEFAULT_SOURCE_PORT), whatever source ports they name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from libcalico.compute.rules import CompiledRule, EntityMatch, PortRange
from libcalico.policy.packet import ICMP, ICMPV6, SCTP, TCP, UDP

_WITH_PORTS = {TCP: "tcp", UDP: "udp", SCTP: "sctp"}
_BY_NAME = {name: number for number, name in _WITH_PORTS.items()}
_LAST_PORT = 65535
_MEANT_FOR_NOTHING = 253  # RFC 3692
_ECHO_REQUESTS = frozenset({8, 128})


@dataclass(slots=True)
class _Named:
    """What rules name."""

    protocols: set[int] = field(default_factory=set)
    ranges: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    icmp: set[tuple[int, int]] = field(default_factory=set)


def traffic_for(
    rules: Iterable[CompiledRule], members: Callable[[str], Iterable[str]]
) -> tuple[str, ...]:
    """In the form of `explain.packet_between`. `members` of an IP_PORT set: "10.0.0.1,tcp,80"."""
    named = _Named()
    for rule in rules:
        _note(named, rule, members)
    texts = [_unnamed_icmp(named), *(f"icmp/{kind}/{code}" for kind, code in sorted(named.icmp))]
    for number in sorted(_protocols(named)):
        if number in _WITH_PORTS:
            ports = _ports(named.ranges.get(number, set()))
            texts += [f"{_WITH_PORTS[number]}/{port}" for port in ports]
        elif number not in (0, ICMP, ICMPV6):
            texts.append(str(number))
    return tuple(texts)


def _unnamed_icmp(named: _Named) -> str:
    """A type that no rule names: an echo request, else any other (QU2)."""
    types = {kind for kind, _ in named.icmp}
    if _ECHO_REQUESTS.isdisjoint(types):
        return "icmp"
    return f"icmp/{next(kind for kind in range(254, -1, -1) if kind not in types)}/0"


def _note(named: _Named, rule: CompiledRule, members: Callable[[str], Iterable[str]]) -> None:
    for number in (rule.protocol, rule.not_protocol):
        if number is not None:
            named.protocols.add(number)
    for match in (rule.icmp, rule.not_icmp):
        if match is not None:
            code = match.code or 0
            named.icmp |= {(match.type, code), (match.type, 0 if code else 1)}
    side = rule.destination
    protocol = TCP if rule.protocol is None else rule.protocol
    for ports in (*side.ports, *side.not_ports):
        _note_range(named, protocol, ports)
    for set_id in _port_sets(side):
        for member in members(set_id):
            _, name, port = member.rsplit(",", 2)
            _note_range(named, _BY_NAME[name], PortRange(int(port), int(port)))


def _note_range(named: _Named, protocol: int, ports: PortRange) -> None:
    named.protocols.add(protocol)
    named.ranges.setdefault(protocol, set()).add((ports.first, ports.last))


def _port_sets(side: EntityMatch) -> tuple[str, ...]:
    return (*side.named_port_sets, *side.not_named_port_sets, *side.ip_port_sets)


def _protocols(named: _Named) -> set[int]:
    """TCP in any case, and one that nobody names (QU2)."""
    asked = named.protocols | {TCP}
    # ICMP, which is asked anyway, is ICMPv6 in the other family.
    is_ping_named = bool(named.protocols & {ICMP, ICMPV6})
    if TCP in named.protocols and is_ping_named:
        candidates = (UDP, SCTP, _MEANT_FOR_NOTHING)
        asked.add(next(number for number in candidates if number not in named.protocols))
    return asked


def _ports(ranges: set[tuple[int, int]]) -> list[int]:
    """One of each class (QU1), ascending."""
    free = next((n for n in range(_LAST_PORT, 0, -1) if not _within(n, ranges)), None)
    beginnings = sorted(max(1, first) for first, _ in ranges)
    behind = sorted(last + 1 for _, last in ranges if last < _LAST_PORT)
    found: dict[tuple[bool, ...], int] = {}
    ordered = sorted(ranges)
    for port in (*([] if free is None else [free]), *beginnings, *behind):
        found.setdefault(tuple(first <= port <= last for first, last in ordered), port)
    return sorted(found.values())


def _within(port: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= port <= last for first, last in ranges)
