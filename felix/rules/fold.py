"""Consecutive rules that differ only in values, as one lookup in a set of value combinations.

Layer: pure. Used by policy.py.

Consecutive rules of one action are an OR, so their order does not matter. Those among them that
constrain the same fields by plain values (nets, protocol, ports; no sets, no negation, no ICMP)
become one rule that looks the concatenation of these fields up in a set of intervals: a policy of
thousands of addresses and ports costs a packet one lookup instead of thousands of comparisons.

  F1  the combinations of a set are disjoint (the kernel refuses overlapping ones): ports of one
      address are merged, and from a network's ports those of every wider network are taken away;
      where two address fields could overlap crosswise the rules stay as they are;
  F2  the union of the combinations is the union of the rules, exactly (property test);
  F3  few rules stay as they are: comparing a few values is cheaper than a lookup, and each rule
      keeps its own comment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from felix.intent import Action, CompiledRule, EntityMatch
from felix.rules.chain import (
    INET_PROTO,
    INET_SERVICE,
    Field,
    Literal,
    Lookup,
    Match,
    key_of,
    of_family,
    port_bytes,
)
from felix.rules.match import merge_ranges
from felix.rules.sets import ADDRESS_TYPE, BITS, family_of, parse_net

FOLD_MIN_RULES = 4
_MAX_COMBINATIONS_PER_RULE = 256
_MAX_COMBINATIONS = 16_384
_ALL_PORTS = ((0, 65535),)

Net = tuple[int, int]
Ports = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Group:
    """Several rules in one: `conjunctions` are alternatives, `label` names the rules ("0-9")."""

    action: Action
    label: str
    conjunctions: tuple[tuple[Match, ...], ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Which fields a rule constrains."""

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
    shape = _Shape(
        family, bool(source.nets), bool(destination.nets), rule.protocol is not None, ports
    )
    if not (shape.source or shape.destination or shape.protocol):
        return None
    return shape if _combinations(rule) <= _MAX_COMBINATIONS_PER_RULE else None


def _is_plain(entity: EntityMatch) -> bool:
    return not (
        entity.not_nets
        or entity.sets
        or entity.not_sets
        or entity.named_port_sets
        or entity.not_ports
        or entity.not_named_port_sets
        or entity.ip_port_sets
    )


def _family(rule: CompiledRule) -> int | None:
    """The one family the rule is about, None for both, 0 when it mixes them."""
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


@dataclass(frozen=True, slots=True)
class _Place:
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
    head: tuple[Match, ...] = (of_family(shape.family),) if shape.family is not None else ()
    lookup = Lookup(_fields(shape), Literal(_elements(disjoint, shape), interval=True))
    return Group(rules[0].action, _label(rules), ((*head, lookup),))


def _places(rule: CompiledRule) -> Iterator[_Place]:
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


def _fields(shape: _Shape) -> tuple[Field, ...]:
    fields: list[Field] = []
    if shape.source:
        fields.append(Field.IP6_SADDR if shape.family == 6 else Field.IP4_SADDR)
    if shape.destination:
        fields.append(Field.IP6_DADDR if shape.family == 6 else Field.IP4_DADDR)
    if shape.protocol:
        fields.append(Field.L4PROTO)
    if shape.ports is not None:
        fields.append(shape.ports)
    return tuple(fields)


def _elements(places: dict[_Place, Ports], shape: _Shape) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for place, ports in places.items():
        for first_port, last_port in ports:
            found.append(
                _corner(place, first_port, shape, last=False)
                + _corner(place, last_port, shape, last=True)
            )
    return tuple(sorted(found))


def _corner(place: _Place, port: int, shape: _Shape, *, last: bool) -> bytes:
    family = shape.family or 4
    parts = [
        (ADDRESS_TYPE[family], _end(net, family, last=last))
        for net in (place.source, place.destination)
        if net is not None
    ]
    if shape.protocol:
        parts.append((INET_PROTO, bytes([place.protocol or 0])))
    if shape.ports is not None:
        parts.append((INET_SERVICE, port_bytes(port)))
    return key_of(*parts) if len(parts) > 1 else parts[0][1]


def _end(net: Net, family: int, *, last: bool) -> bytes:
    base, length = net
    bits = BITS[family]
    value = base | ((1 << (bits - length)) - 1) if last else base
    return value.to_bytes(bits // 8, "big")


def _label(rules: list[CompiledRule]) -> str:
    """ "0-9", or "0-9 (7)" when others stand between them."""
    first, last = rules[0].index, rules[-1].index
    whole = last - first + 1 == len(rules)
    return f"{first}-{last}" if whole else f"{first}-{last} ({len(rules)})"
