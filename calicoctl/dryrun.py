"""Which pairs of workloads would be allowed or denied something else after a change of objects.

Layer: pure. Used by calicoctl.commands.policy. Both clusters go through the calculation that felix
runs (felix.calc), as if all workloads were on one node, and the packets through its intents.

    objects before ─► intents ─┐
                               ├─► workloads whose rules differ ─► their pairs × packets ─► changes
    objects after  ─► intents ─┘

  DR1  asked is about workloads that both clusters have; hosts and addresses of nobody are not ends;
  DR2  a pair is asked about when one of the two is governed by something that differs: other pairs
       cannot change;
  DR3  packets, unless they are given: of every class that the rules which govern the pair, in
       either cluster, tell apart, one (calicoctl.questions); in each family that both ends have,
       between their first addresses;
  DR4  more than `LIMIT` questions are refused before the first is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calicoctl.explain import BadQuestion, End, packet_between, versions_of
from calicoctl.questions import traffic_for
from calicoctl.tables import Tables
from felix.dataplane.intent_book import IntentBook, Owner, addresses_of, owners_of, tightening_uses
from felix.intent import PolicyUpdate, ProfileUpdate, WorkloadEndpointUpdate
from felix.rules import verdict
from libcalico import net
from libcalico.compute.rules import CompiledRule
from libcalico.model import (
    GlobalNetworkPolicy,
    NetworkPolicy,
    Resource,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
    WorkloadEndpoint,
)
from libcalico.model.keys import ResourceKey, identifier, key_of
from libcalico.policy.evaluate import Outcome
from libcalico.policy.packet import Direction, Packet

LIMIT = 500_000
_ANYBODY = End((net.parse_ip("0.0.0.0"), net.parse_ip("::")))


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
    pairs = _pairs(both, touched, len(traffic) or 1)
    texts_of = _Texts(old, new, tuple(traffic))
    count = sum(len(texts_of(*pair)) * len(_families(*pair)) for pair in pairs)
    _check_limit(count, both, touched)
    packets = [
        (source, destination, packet)
        for source, destination in pairs
        for packet in _packets(source, destination, texts_of(source, destination))
    ]
    changes = []
    for source, destination, packet in packets:
        was, now = _allows(old, packet), _allows(new, packet)
        if was != now:
            changes.append(Change(_name(source), _name(destination), packet, now))
    return Report(tuple(changes), len(packets))


_STAGED_KINDS = (
    StagedNetworkPolicy,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
)
_TIERED_KINDS = (NetworkPolicy, GlobalNetworkPolicy)


def doubts(given: Sequence[Resource], after: Iterable[Resource], *, staged: bool) -> list[str]:
    """What whoever gives these objects may not have meant: a line each."""
    found = []
    keys: set[ResourceKey] = set()
    known = {"default", *(item.metadata.name for item in after if isinstance(item, Tier))}
    for item in given:
        key = key_of(item)
        name = identifier(key)
        if key in keys:
            found.append(f"{name}: given more than once, the last one counts")
        keys.add(key)
        if isinstance(item, _STAGED_KINDS) and not staged:
            found.append(f"{name}: is staged and changes nothing; --staged asks what it would do")
        tier = item.spec.tier if isinstance(item, _TIERED_KINDS) else None
        if tier and tier not in known:
            found.append(f'{name}: there is no tier "{tier}": it comes last and denies at its end')
    return found


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


class _Texts:
    """The traffic to ask a pair about; found once for all pairs that the same rules govern."""

    def __init__(self, old: IntentBook, new: IntentBook, given: tuple[str, ...]) -> None:
        self._books, self._given = (old, new), given
        self._known: dict[frozenset[Owner], tuple[str, ...]] = {}

    def __call__(
        self, source: WorkloadEndpointUpdate, destination: WorkloadEndpointUpdate
    ) -> tuple[str, ...]:
        if self._given:
            return self._given
        owners = frozenset(
            owner
            for book in self._books
            for end in (source, destination)
            for owner in owners_of(book.workloads[end.key])
        )
        if owners not in self._known:
            rules = [
                rule
                for owner in sorted(owners, key=str)
                for book in self._books
                for rule in _rules(_owner(book, owner))
            ]
            self._known[owners] = traffic_for(rules, self._members)
        return self._known[owners]

    def _members(self, set_id: str) -> frozenset[str]:
        return frozenset().union(*(book.members(set_id) for book in self._books))


def _pairs(
    both: Sequence[WorkloadEndpointUpdate], touched: set[ResourceKey], packets: int
) -> list[tuple[WorkloadEndpointUpdate, WorkloadEndpointUpdate]]:
    _check_limit(2 * len(touched) * (len(both) - 1) * packets, both, touched)
    return [
        (source, destination)
        for source in both
        for destination in both
        if source is not destination and (source.key in touched or destination.key in touched)
    ]


def _check_limit(
    count: int, both: Sequence[WorkloadEndpointUpdate], touched: set[ResourceKey]
) -> None:
    """Errors: BadQuestion (DR4)."""
    if count > LIMIT:
        raise BadQuestion(
            f"about {count} questions ({len(touched)} workloads would be governed otherwise, of"
            f" {len(both)}): more than {LIMIT}, ask about less with --traffic"
        )


def _packets(
    source: WorkloadEndpointUpdate, destination: WorkloadEndpointUpdate, texts: Iterable[str]
) -> list[Packet]:
    ends = (_end(source), _end(destination))
    return [
        packet_between(*ends, text, version=version)
        for version in _families(source, destination)
        for text in texts
        if version in versions_of(text)
    ]


def _families(*endpoints: WorkloadEndpointUpdate) -> list[int]:
    """Those that all of them have an address of."""
    return [
        version
        for version, mark in ((4, "."), (6, ":"))
        if all(any(mark in text for text in endpoint.nets) for endpoint in endpoints)
    ]


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
