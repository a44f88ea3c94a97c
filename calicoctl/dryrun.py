"""Which pairs of workloads would be allowed or denied something else after a change of objects.

Layer: pure. Used by calicoctl.commands.policy. Both clusters go through the calculation that felix
runs (felix.calc), as if all workloads were on one node, and the packets through its intents.

    objects before ─► intents ─┐
                               ├─► workloads whose rules differ ─► their pairs × packets ─► changes
    objects after  ─► intents ─┘

  DR1  asked is about workloads that both clusters have; hosts and addresses of nobody are not ends;
  DR2  a pair is asked about when one of the two is governed by something that differs: other pairs
       cannot change;
  DR3  packets, unless they are given: the ports that the differing rules name, of their protocols,
       one port that none of them names, and an echo request; in each family that both ends have;
  DR4  more than `LIMIT` questions are refused before the first is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calicoctl.explain import BadQuestion, End, packet_between
from calicoctl.tables import Tables
from felix.dataplane.intent_book import IntentBook, Owner, addresses_of, owners_of, tightening_uses
from felix.intent import CompiledRule, PolicyUpdate, ProfileUpdate, WorkloadEndpointUpdate
from felix.rules import verdict
from libcalico import net
from libcalico.model import Resource, WorkloadEndpoint
from libcalico.model.keys import ResourceKey, key_of
from libcalico.policy.evaluate import Outcome
from libcalico.policy.packet import Direction, Packet

LIMIT = 500_000
_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
_TCP = 6
_LAST_PORT = 65535
_ANYBODY = End((net.parse_ip("0.0.0.0"),))


@dataclass(frozen=True, slots=True)
class Change:
    """A packet between two workloads that meets another verdict. Names are namespace/name."""

    source: str
    destination: str
    packet: Packet
    is_allowed: bool


@dataclass(frozen=True, slots=True)
class Report:
    """`asked` packets were looked at."""

    changes: tuple[Change, ...]
    asked: int


def compare(
    before: Iterable[Resource], after: Iterable[Resource], *, traffic: Sequence[str] = ()
) -> Report:
    """`traffic` as in explain.packet_between. Errors: BadQuestion, InvalidInput."""
    for text in traffic:
        packet_between(_ANYBODY, _ANYBODY, text)  # refused also when nothing is asked
    old, new = compiled(before), compiled(after)
    owners = _differing_owners(old, new)
    both = [new.workloads[key] for key in sorted(new.workloads) if key in old.workloads]
    touched = {
        item.key
        for item in both
        if _differs(old.workloads[item.key], item) or not owners.isdisjoint(owners_of(item))
    }
    texts = tuple(traffic) or _traffic(old, new, owners)
    packets = [
        (source, destination, packet)
        for source, destination in _pairs(both, touched, len(texts))
        for packet in _packets(source, destination, texts)
    ]
    changes = []
    for source, destination, packet in packets:
        was, now = _allows(old, packet), _allows(new, packet)
        if was != now:
            changes.append(Change(_name(source), _name(destination), packet, now))
    return Report(tuple(changes), len(packets))


def compiled(resources: Iterable[Resource]) -> IntentBook:
    """What felix would program if all workloads were of one node."""
    given = list(resources)
    local = [key_of(item) for item in given if isinstance(item, WorkloadEndpoint)]
    return Tables(given, local).book


# -- what differs (DR2) --------------------------------------------------------------------------


def _differing_owners(old: IntentBook, new: IntentBook) -> set[Owner]:
    names: set[Owner] = {*old.policies, *new.policies, *old.profiles, *new.profiles}
    return {name for name in names if _content(old, name) != _content(new, name)}


def _content(book: IntentBook, owner: Owner) -> tuple[object, ...]:
    """The rules, and who is in the sets that they look into."""
    found = _owner(book, owner)
    if found is None:
        return ()
    sets = {set_id for set_id, _ in tightening_uses(_rules(found))}
    return (found.ingress, found.egress, {set_id: book.members(set_id) for set_id in sets})


def _owner(book: IntentBook, owner: Owner) -> PolicyUpdate | ProfileUpdate | None:
    return book.profiles.get(owner) if isinstance(owner, str) else book.policies.get(owner)


def _rules(owner: PolicyUpdate | ProfileUpdate | None) -> tuple[CompiledRule, ...]:
    return () if owner is None else (*owner.ingress, *owner.egress)


def _differs(old: WorkloadEndpointUpdate, new: WorkloadEndpointUpdate) -> bool:
    return (old.tiers, old.profiles, old.nets) != (new.tiers, new.profiles, new.nets)


# -- what is asked (DR3, DR4) --------------------------------------------------------------------


def _traffic(old: IntentBook, new: IntentBook, owners: Iterable[Owner]) -> tuple[str, ...]:
    rules = [rule for name in owners for book in (old, new) for rule in _rules(_owner(book, name))]
    named: set[tuple[int, int]] = set()
    for rule in rules:
        protocol = _TCP if rule.protocol is None else rule.protocol
        side = rule.destination
        ranges = (*side.ports, *side.not_ports)
        named.update((protocol, ports.first) for ports in ranges)
        for book in (old, new):
            for set_id in (*side.named_port_sets, *side.not_named_port_sets, *side.ip_port_sets):
                ends = (member.rsplit(",", 1)[1] for member in book.members(set_id))
                named.update((protocol, int(port)) for port in ends)
    known = {(number, port) for number, port in named if number in _PROTOCOLS and port > 0}
    known |= {(number, _unnamed(known)) for number in {_TCP} | {number for number, _ in known}}
    return ("icmp", *(f"{_PROTOCOLS[number]}/{port}" for number, port in sorted(known)))


def _unnamed(known: set[tuple[int, int]]) -> int:
    ports = {port for _, port in known}
    return next(port for port in range(_LAST_PORT, 0, -1) if port not in ports)


def _pairs(
    both: Sequence[WorkloadEndpointUpdate], touched: set[ResourceKey], packets: int
) -> list[tuple[WorkloadEndpointUpdate, WorkloadEndpointUpdate]]:
    count = 2 * len(touched) * len(both) * packets
    if count > LIMIT:
        raise BadQuestion(
            f"about {count} questions ({len(touched)} workloads would be governed otherwise, of"
            f" {len(both)}): more than {LIMIT}, ask about less with --traffic"
        )
    return [
        (source, destination)
        for source in both
        for destination in both
        if source is not destination and (source.key in touched or destination.key in touched)
    ]


def _packets(
    source: WorkloadEndpointUpdate, destination: WorkloadEndpointUpdate, texts: Iterable[str]
) -> list[Packet]:
    found: list[Packet] = []
    ends = (_end(source), _end(destination))
    for version in (4, 6):
        if all(any(a.version == version for a in end.addresses) for end in ends):
            found += [packet_between(*ends, text, version=version) for text in texts]
    return found


def _end(endpoint: WorkloadEndpointUpdate) -> End:
    return End(tuple(net.parse_ip(text) for text in addresses_of(endpoint)))


def _allows(book: IntentBook, packet: Packet) -> bool:
    for address, direction in (
        (packet.source, Direction.EGRESS),
        (packet.destination, Direction.INGRESS),
    ):
        endpoint = book.at(address)
        if endpoint is not None:
            outcome = verdict.outcome(book, endpoint, direction, packet)
            if outcome is not Outcome.ALLOW:
                return False
    return True


def _name(endpoint: WorkloadEndpointUpdate) -> str:
    return f"{endpoint.key.namespace}/{endpoint.key.name}"
