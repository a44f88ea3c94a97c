"""One policy rule's conditions as packet-filter matches: what a rule means, field by field.

Layer: pure. Used by policy.py.

A rule is family-neutral; nf_tables loads addresses of one family. So a rule becomes one variant
when nothing in it depends on the family, else one for IPv4 and one for IPv6, and within a variant
one alternative for every OR that a single nf_tables rule cannot express (numeric ports or a named
port). Alternatives of one rule share its action, so their order does not matter.

  M1  fields are ANDed, members of a field ORed, `not_*` excluded when any member matches (5.2);
  M2  a rule whose nets (or not_nets) are all of the other family does not exist for this one, nor
      does one that excludes a whole family (5.2);
  M3  a transport field is only read behind a match on protocols that have it (chain.C2): a load
      that fails ends the rule, which for a negated match would mean "does not match".

Source: datamodel 5.2, 7.5, 7.6; Calico felix/rules/policy.go.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from felix.rules.chain import (
    DADDR,
    ICMP_CODE,
    ICMP_TYPE,
    ICMPV6_CODE,
    ICMPV6_TYPE,
    SADDR,
    Between,
    Compare,
    Field,
    InNet,
    Literal,
    Lookup,
    Match,
    key_of,
    of_family,
    of_protocol,
    port_bytes,
)
from felix.rules.names import address_set
from felix.rules.sets import BITS, family_of, outermost, parse_net
from libcalico.compute.rules import CompiledRule, EntityMatch, PortRange

ICMP_PROTOCOL = {4: 1, 6: 58}
# The protocols whose header starts with two ports (validated: 4.4).
PORT_PROTOCOLS = (6, 17, 132)
_ALL_PORT_PROTOCOLS = Literal(tuple(bytes([number]) for number in PORT_PROTOCOLS))

Conjunction = tuple[Match, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """The fields one entity of a rule is matched against."""

    address: dict[int, Field]
    port: Field


_SOURCE = _Side(SADDR, Field.TH_SPORT)
_DESTINATION = _Side(DADDR, Field.TH_DPORT)


def variants(rule: CompiledRule) -> list[Conjunction]:
    """All ways a packet can match the rule; [] when none can."""
    if rule.unmatchable:
        return []
    if not _is_per_family(rule):
        return _alternatives(rule, None)
    families = (4, 6) if rule.ip_version is None else (rule.ip_version,)
    return [found for family in families for found in _alternatives(rule, family)]


def _is_per_family(rule: CompiledRule) -> bool:
    if rule.ip_version is not None or rule.icmp or rule.not_icmp or rule.protocol in (1, 58):
        return True
    return any(_has_addresses(entity) for entity in (rule.source, rule.destination))


def _has_addresses(entity: EntityMatch) -> bool:
    return bool(
        entity.nets
        or entity.not_nets
        or entity.sets
        or entity.not_sets
        or entity.ip_port_sets
        or entity.named_port_sets
        or entity.not_named_port_sets
    )


def _has_ports(entity: EntityMatch) -> bool:
    return bool(
        entity.ports
        or entity.named_port_sets
        or entity.ip_port_sets
        or entity.not_ports
        or entity.not_named_port_sets
    )


def _alternatives(rule: CompiledRule, family: int | None) -> list[Conjunction]:
    """The rule for one family (None: family-neutral)."""
    if _is_other_family(rule, family):
        return []
    head: tuple[Match, ...] = (of_family(family),) if family is not None else ()
    sides = ((_SOURCE, rule.source), (_DESTINATION, rule.destination))
    addresses = [_addresses(entity, side, family) for side, entity in sides]
    if any(found is None for found in addresses):
        return []
    choices = [_protocols(rule, family)]
    choices += [_port_choices(entity, side, family) for side, entity in sides]
    tail = tuple(match for found in addresses if found for match in found)
    return [
        _without_repeats((*head, *itertools.chain(*chosen), *tail))
        for chosen in itertools.product(*choices)
    ]


def _is_other_family(rule: CompiledRule, family: int | None) -> bool:
    """ICMP is of IPv4 and ICMPv6 of IPv6: neither exists in the other family."""
    return (rule.protocol == 1 and family == 6) or (rule.protocol == 58 and family == 4)


def _without_repeats(matches: Sequence[Match]) -> Conjunction:
    return tuple(dict.fromkeys(matches))


# --------------------------------------------------------------------------- protocol, ICMP


def _protocols(rule: CompiledRule, family: int | None) -> list[Conjunction]:
    """Alternatives for protocol and ICMP conditions, protocol first (M3)."""
    fixed: list[Match] = []
    if rule.protocol is not None:
        fixed.append(of_protocol(rule.protocol))
    if rule.not_protocol is not None:
        fixed.append(of_protocol(rule.not_protocol, negated=True))
    found = _behind_ports(rule, tuple(fixed))
    if family is None:
        return found  # ICMP conditions make a rule per family
    is_icmp = of_protocol(ICMP_PROTOCOL[family])
    if rule.icmp is not None:
        wanted = (is_icmp, *_icmp(rule.icmp.type, rule.icmp.code, family))
        found = [(*one, *wanted) for one in found]
    if rule.not_icmp is None or rule.protocol not in (None, ICMP_PROTOCOL[family]):
        return found  # another protocol has no ICMP messages to exclude
    excluded = (is_icmp, *_not_icmp(rule.not_icmp.type, rule.not_icmp.code, family))
    behind = [(*one, *excluded) for one in found]
    if rule.protocol is None and rule.icmp is None:
        # Any other protocol is not this ICMP message either.
        other = of_protocol(ICMP_PROTOCOL[family], negated=True)
        behind += [(*one, other) for one in found]
    return behind


def _icmp_fields(family: int) -> tuple[Field, Field]:
    if family == 4:
        return Field.ICMP_TYPE, Field.ICMP_CODE
    return Field.ICMPV6_TYPE, Field.ICMPV6_CODE


def _icmp(icmp_type: int, code: int | None, family: int) -> Conjunction:
    type_field, code_field = _icmp_fields(family)
    matches: list[Match] = [Compare(type_field, bytes([icmp_type]))]
    if code is not None:
        matches.append(Compare(code_field, bytes([code])))
    return tuple(matches)


def _not_icmp(icmp_type: int, code: int | None, family: int) -> Conjunction:
    """Type and code are negated as a pair (7.6)."""
    type_field, code_field = _icmp_fields(family)
    if code is None:
        return (Compare(type_field, bytes([icmp_type]), negated=True),)
    types = (ICMP_TYPE, ICMP_CODE) if family == 4 else (ICMPV6_TYPE, ICMPV6_CODE)
    pair = key_of((types[0], bytes([icmp_type])), (types[1], bytes([code])))
    return (Lookup((type_field, code_field), Literal((pair,)), negated=True),)


def _behind_ports(rule: CompiledRule, fixed: Conjunction) -> list[Conjunction]:
    """M3 for rules with ports but without a protocol that has them (named ports may be so)."""
    if rule.protocol in PORT_PROTOCOLS:
        return [fixed]
    entities = (rule.source, rule.destination)
    has_ports = Lookup((Field.L4PROTO,), _ALL_PORT_PROTOCOLS)
    if any(e.ports or e.named_port_sets or e.ip_port_sets for e in entities):
        return [(*fixed, has_ports)]
    if not any(e.not_ports or e.not_named_port_sets for e in entities):
        return [fixed]
    # A packet without ports is in no port list, so the exclusion lets it pass.
    without = Lookup((Field.L4PROTO,), _ALL_PORT_PROTOCOLS, negated=True)
    return [(*fixed, has_ports), (*fixed, without)]


# ---------------------------------------------------------------------------------- ports


def _port_choices(entity: EntityMatch, side: _Side, family: int | None) -> list[Conjunction]:
    """Positive ports are alternatives of each other, negative ones conditions on all of them."""
    if not _has_ports(entity):
        return [()]
    excluded = _excluded_ports(entity, side, family)
    choices: list[Conjunction] = []
    if entity.ports:
        choices.append((port_match(side.port, entity.ports),))
    choices += [
        (_address_port_lookup(set_id, side, family),)
        for set_id in entity.named_port_sets
        if family is not None
    ]
    services: list[Conjunction] = [
        (_address_port_lookup(set_id, side, family),)
        for set_id in entity.ip_port_sets
        if family is not None
    ]
    return [
        (*ports, *service, *excluded) for ports in choices or [()] for service in services or [()]
    ]


def _excluded_ports(entity: EntityMatch, side: _Side, family: int | None) -> Conjunction:
    found: list[Match] = []
    if entity.not_ports:
        found.append(port_match(side.port, entity.not_ports, negated=True))
    if family is not None:
        found += [
            _address_port_lookup(set_id, side, family, negated=True)
            for set_id in entity.not_named_port_sets
        ]
    return tuple(found)


def _address_port_lookup(
    set_id: str, side: _Side, family: int | None, *, negated: bool = False
) -> Lookup:
    assert family is not None, "address sets make a rule per family"
    fields = (side.address[family], Field.L4PROTO, side.port)
    return Lookup(fields, address_set(set_id, family), negated)


def port_match(field: Field, ports: Sequence[PortRange], *, negated: bool = False) -> Match:
    ranges = merge_ranges((port.first, port.last) for port in ports)
    if len(ranges) > 1:
        elements = tuple(port_bytes(first) + port_bytes(last) for first, last in ranges)
        return Lookup((field,), Literal(elements, interval=True), negated)
    first, last = ranges[0]
    if first == last:
        return Compare(field, port_bytes(first), negated)
    return Between(field, port_bytes(first), port_bytes(last), negated)


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, disjoint, neighbours joined."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


# -------------------------------------------------------------------------------- addresses


def _addresses(entity: EntityMatch, side: _Side, family: int | None) -> Conjunction | None:
    """Conditions on one side's address; None when no packet of the family can meet them (M2)."""
    if family is None or not _has_addresses(entity):
        return ()
    field = side.address[family]
    wanted = _net_matches(entity.nets, field, family, negated=False)
    excluded = _net_matches(entity.not_nets, field, family, negated=True)
    if wanted is None or excluded is None:
        return None
    lookups = [Lookup((field,), address_set(set_id, family)) for set_id in entity.sets]
    lookups += [Lookup((field,), address_set(set_id, family), True) for set_id in entity.not_sets]
    return (*wanted, *excluded, *lookups)


def _net_matches(
    nets: Sequence[str], field: Field, family: int, *, negated: bool
) -> Conjunction | None:
    if not nets:
        return ()
    ours = [parse_net(net)[1:] for net in nets if family_of(net) == family]
    if not ours:
        return None
    if any(length == 0 for _base, length in ours):
        return None if negated else ()
    if len(ours) == 1:
        return (one_net(field, *ours[0], negated=negated),)
    return (Lookup((field,), Literal(outermost(family, ours), interval=True), negated),)


def one_net(field: Field, base: int, prefix_len: int, *, negated: bool = False) -> Match:
    size = field.type.length
    packed = base.to_bytes(size, "big")
    if prefix_len == BITS[6 if size == 16 else 4]:
        return Compare(field, packed, negated)
    return InNet(field, packed, prefix_len, negated)
