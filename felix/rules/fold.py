"""Consecutive rules that differ only in values, as one lookup in a set of value combinations.

Layer: pure. Used by policy.py.

Consecutive rules of one action are an OR, so their order does not matter. Those among them that
constrain the same fields by plain values (nets, protocol, ports) and have everything else in common
(address sets, excluded nets; no ICMP, no excluded or named ports) become one rule that looks the
concatenation of these fields up in a set of intervals: a policy of thousands of addresses and ports
costs a packet one lookup instead of thousands of comparisons, and a kernel that checks all rules of
a table at every change has fewer to check.

  F1  the combinations of a set are disjoint (the kernel refuses overlapping ones): ports of one
      address are merged, and from a network's ports those of every wider network are taken away;
      where two address fields could overlap crosswise the rules stay as they are;
  F2  the union of the combinations is the union of the rules, exactly (property test);
  F3  few rules stay as they are: comparing a few values is cheaper than a lookup, and each rule
      keeps its own comment;
  F4  a field in which all combinations agree is compared and not part of the lookup: what is left
      is often one field, or nothing but a range of ports, which the kernel does far more cheaply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from felix.rules.chain import (
    DADDR,
    INET_SERVICE,
    SADDR,
    Between,
    Compare,
    Field,
    InNet,
    Literal,
    Lookup,
    Match,
    key_of,
    port_bytes,
)
from felix.rules.match import merge_ranges, variants
from felix.rules.sets import BITS, family_of, parse_net
from libcalico.compute.rules import Action, CompiledRule, EntityMatch

FOLD_MIN_RULES = 4
_MAX_COMBINATIONS_PER_RULE = 256
_MAX_COMBINATIONS = 16_384
_ALL_PORTS = ((0, 65535),)

Net = tuple[int, int]
Ports = list[tuple[int, int]]
# Sets, excluded sets, excluded nets.
_Others = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Group:
    """Several rules in one: `conjunctions` are alternatives, `label` names the rules ("0-9")."""

    action: Action
    label: str
    conjunctions: tuple[tuple[Match, ...], ...]


class _Shape(NamedTuple):
    """Which fields a rule constrains by values, and what else it says of (source, destination)."""

    others: tuple[_Others, _Others]
    family: int | None
    source: bool
    destination: bool
    protocol: bool
    ports: Field | None


def fold(rules: Sequence[CompiledRule]) -> list[CompiledRule | Group]:
    """The rules in an order that means the same, runs of like rules replaced by groups."""
    found: list[CompiledRule | Group] = []
    for run in _runs(rules):
        found += _fold_run(run)
    return found


def _runs(rules: Sequence[CompiledRule]) -> Iterator[list[CompiledRule]]:
    """Maximal stretches of one action; Log has an effect each time, so each stands alone."""
    run: list[CompiledRule] = []
    for rule in rules:
        if run and (rule.action is not run[0].action or rule.action is Action.LOG):
            yield run
            run = []
        run.append(rule)
    if run:
        yield run


def _fold_run(run: list[CompiledRule]) -> list[CompiledRule | Group]:
    if len(run) < FOLD_MIN_RULES:
        return list(run)
    places_by_shape: dict[_Shape, list[int]] = {}
    for place, rule in enumerate(run):
        shape = _shape(rule)
        if shape is not None:
            places_by_shape.setdefault(shape, []).append(place)
    found: list[CompiledRule | Group | None] = list(run)
    for shape, places in places_by_shape.items():
        if len(places) < FOLD_MIN_RULES:
            continue
        group = _group(shape, [run[place] for place in places])
        if group is not None:
            # The group stands where the first of its rules stood; the others are gone.
            for place in places:
                found[place] = None
            found[places[0]] = group
    return [item for item in found if item is not None]


# ------------------------------------------------------------------------------------- shapes


def _shape(rule: CompiledRule) -> _Shape | None:
    """None: not made of plain values only, or of nothing to look up."""
    if rule.unmatchable or rule.not_protocol is not None or rule.icmp or rule.not_icmp:
        return None
    source, destination = rule.source, rule.destination
    if not (_is_plain(source) and _is_plain(destination)):
        return None
    if source.ports and destination.ports:
        return None
    family = _family(rule)
    if family == 0 or rule.protocol in (1, 58):
        return None
    ports = Field.TH_SPORT if source.ports else Field.TH_DPORT if destination.ports else None
    if (ports is not None) and rule.protocol is None:
        return None
    has_protocol = rule.protocol is not None
    if not (source.nets or destination.nets or has_protocol):
        return None
    others = (
        (source.sets, source.not_sets, source.not_nets),
        (destination.sets, destination.not_sets, destination.not_nets),
    )
    shape = _Shape(others, family, bool(source.nets), bool(destination.nets), has_protocol, ports)
    return shape if _combinations(rule) <= _MAX_COMBINATIONS_PER_RULE else None


def _is_plain(entity: EntityMatch) -> bool:
    """Whether its ports are values alone: a named port is an alternative of theirs."""
    return not (
        entity.named_port_sets
        or entity.not_ports
        or entity.not_named_port_sets
        or entity.ip_port_sets
    )


def _family(rule: CompiledRule) -> int | None:
    """The one family the rule is about, None for both, 0 when it mixes them."""
    if not (rule.source.nets or rule.destination.nets):
        return rule.ip_version
    families = {family_of(net) for net in (*rule.source.nets, *rule.destination.nets)}
    if rule.ip_version is not None:
        families.add(rule.ip_version)
    if len(families) > 1:
        return 0
    return families.pop() if families else None


def _combinations(rule: CompiledRule) -> int:
    ports = len(rule.source.ports or rule.destination.ports) or 1
    return max(1, len(rule.source.nets)) * max(1, len(rule.destination.nets)) * ports


# ------------------------------------------------------------------------------- combinations


class _Place(NamedTuple):
    """A combination without its ports."""

    source: Net | None
    destination: Net | None
    protocol: int | None


def _group(shape: _Shape, rules: list[CompiledRule]) -> Group | None:
    ports_by_place: dict[_Place, Ports] = {}
    for rule in rules:
        ports = [(port.first, port.last) for port in (rule.source.ports or rule.destination.ports)]
        for place in _places(rule):
            ports_by_place.setdefault(place, []).extend(ports or _ALL_PORTS)
    if shape.source and shape.destination and not _is_flat(ports_by_place, BITS[shape.family or 4]):
        return None
    disjoint = _disjoint(ports_by_place, shape)
    if sum(map(len, disjoint.values())) > _MAX_COMBINATIONS:
        return None
    found = _matches(disjoint, shape)
    # What all rules have in common begins with the family (C2 of chain.py), if it has anything.
    conjunctions = tuple((*rest[:1], *found, *rest[1:]) for rest in variants(_rest(shape)))
    return Group(rules[0].action, _label(rules), conjunctions)


def _rest(shape: _Shape) -> CompiledRule:
    """What the rules have in common."""
    source, destination = (
        EntityMatch(sets=sets, not_sets=not_sets, not_nets=not_nets)
        for sets, not_sets, not_nets in shape.others
    )
    return CompiledRule(
        Action.ALLOW, 0, ip_version=shape.family, source=source, destination=destination
    )


def _places(rule: CompiledRule) -> Iterator[_Place]:
    if not (rule.source.nets or rule.destination.nets):
        yield _Place(None, None, rule.protocol)
        return
    sources: list[Net | None] = [parse_net(net)[1:] for net in rule.source.nets] or [None]
    targets: list[Net | None] = [parse_net(net)[1:] for net in rule.destination.nets] or [None]
    for source, destination in product(sources, targets):
        yield _Place(source, destination, rule.protocol)


def _is_flat(places: dict[_Place, Ports], bits: int) -> bool:
    """With two address fields: no network of either lies inside another one of it (F1)."""
    for nets in (
        {place.source for place in places if place.source},
        {place.destination for place in places if place.destination},
    ):
        lengths = {length for _base, length in nets}
        if any(wider in nets for net in nets for wider in _wider(net, lengths, bits)):
            return False
    return True


def _wider(net: Net, lengths: set[int], bits: int) -> list[Net]:
    """The networks of the given lengths that properly contain `net`."""
    base, length = net
    return [
        (base >> (bits - other) << (bits - other), other) for other in lengths if other < length
    ]


def _disjoint(places: dict[_Place, Ports], shape: _Shape) -> dict[_Place, Ports]:
    merged = {place: merge_ranges(ports) for place, ports in places.items()}
    if shape.source == shape.destination:
        return merged  # no address field, or two that do not nest
    bits = BITS[shape.family or 4]
    lengths = {(place.source or place.destination or (0, 0))[1] for place in merged}
    found: dict[_Place, Ports] = {}
    for place, ports in merged.items():
        left = ports
        for wider in _wider(place.source or place.destination or (0, 0), lengths, bits):
            above = _Place(
                wider if place.source else None,
                wider if place.destination else None,
                place.protocol,
            )
            left = subtract_ranges(left, merged.get(above, []))
        if left:
            found[place] = left
    return found


def subtract_ranges(ports: Ports, taken: Ports) -> Ports:
    """What is left of sorted disjoint ranges."""
    left: Ports = []
    for first, last in ports:
        for taken_first, taken_last in taken:
            if taken_last < first or taken_first > last:
                continue
            if taken_first > first:
                left.append((first, taken_first - 1))
            first = taken_last + 1
        if first <= last:
            left.append((first, last))
    return left


# ------------------------------------------------------------------------------------ encoding


@dataclass(frozen=True, slots=True)
class _Column:
    """One field of the combinations: its (first, last) in each, in the kernel's bytes."""

    field: Field
    ranges: list[tuple[bytes, bytes]]

    @property
    def is_common(self) -> bool:
        return all(one == self.ranges[0] for one in self.ranges)

    @property
    def is_exact(self) -> bool:
        return all(first == last for first, last in self.ranges)


def _matches(places: dict[_Place, Ports], shape: _Shape) -> list[Match]:
    """F4: comparisons of what is common, then one lookup of the rest."""
    columns = _columns(places, shape)
    common = [column for column in columns if column.is_common]
    if shape.protocol and columns[0] not in common:
        # A port is read behind the protocol (match.M3): in one lookup with it.
        common = [column for column in common if column.field is not shape.ports]
    others = [column for column in columns if column not in common]
    found = [match for column in common for match in _compare(column)]
    return [*found, _lookup(others)] if others else found


def _columns(places: dict[_Place, Ports], shape: _Shape) -> list[_Column]:
    """The protocol first, then addresses, then ports."""
    rows = [(place, one) for place, ports in places.items() for one in ports]
    family = shape.family or 4
    columns: list[_Column] = []
    if shape.protocol:
        numbers = [bytes([place.protocol or 0]) for place, _ in rows]
        columns.append(_Column(Field.L4PROTO, list(zip(numbers, numbers, strict=True))))
    if shape.source:
        spans = [_span(place.source, family) for place, _ in rows]
        columns.append(_Column(SADDR[family], spans))
    if shape.destination:
        spans = [_span(place.destination, family) for place, _ in rows]
        columns.append(_Column(DADDR[family], spans))
    if shape.ports is not None:
        ends = [(port_bytes(first), port_bytes(last)) for _, (first, last) in rows]
        columns.append(_Column(shape.ports, ends))
    return columns


def _span(net: Net | None, family: int) -> tuple[bytes, bytes]:
    """First and last address."""
    base, length = net or (0, 0)
    size = BITS[family] // 8
    last = base | ((1 << (BITS[family] - length)) - 1)
    return base.to_bytes(size, "big"), last.to_bytes(size, "big")


def _compare(column: _Column) -> tuple[Match, ...]:
    first, last = column.ranges[0]
    if first == last:
        return (Compare(column.field, first),)
    if column.field.type is INET_SERVICE:
        return (Between(column.field, first, last),)
    bits = int.from_bytes(first, "big") ^ int.from_bytes(last, "big")
    length = len(first) * 8 - bits.bit_length()
    # All addresses: the match on the family, which every rule with addresses has, says it.
    return (InNet(column.field, first, length),) if length else ()


def _lookup(columns: list[_Column]) -> Lookup:
    """Without ranges a plain (hashed) set: several times as fast as one of intervals."""
    fields = tuple(column.field for column in columns)
    is_exact = all(column.is_exact for column in columns)
    rows = zip(*(column.ranges for column in columns), strict=True)
    elements = {
        _key(fields, [first for first, _ in row])
        + (b"" if is_exact else _key(fields, [last for _, last in row]))
        for row in rows
    }
    return Lookup(fields, Literal(tuple(sorted(elements)), interval=not is_exact))


def _key(fields: tuple[Field, ...], values: list[bytes]) -> bytes:
    if len(values) == 1:
        return values[0]
    return key_of(*((field.type, value) for field, value in zip(fields, values, strict=True)))


def _label(rules: list[CompiledRule]) -> str:
    """ "0-9", or "0-9 (7)" when others stand between them."""
    first, last = rules[0].index, rules[-1].index
    whole = last - first + 1 == len(rules)
    return f"{first}-{last}" if whole else f"{first}-{last} ({len(rules)})"
