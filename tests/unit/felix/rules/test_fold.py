"""felix.rules.fold: many rules in one lookup mean what they meant one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from ipaddress import ip_address, ip_network

from hypothesis import given, settings
from hypothesis import strategies as st

from felix.rules.chain import (
    Between,
    Compare,
    Field,
    InNet,
    Literal,
    Lookup,
    Match,
    key_types,
    of_family,
    of_protocol,
    port_bytes,
    split_key,
)
from felix.rules.fold import FOLD_MIN_RULES, Group, fold, subtract_ranges
from felix.rules.match import variants
from felix.rules.names import address_set
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, IcmpMatch, PortRange


def net_rule(net: str, port: int | None = None, action: Action = Action.ALLOW) -> CompiledRule:
    ports = (PortRange(port, port),) if port else ()
    return CompiledRule(
        action,
        0,
        protocol=6 if port else None,
        source=EntityMatch(nets=(net,)),
        destination=EntityMatch(ports=ports),
    )


def numbered(rules: list[CompiledRule]) -> list[CompiledRule]:
    return [replace(rule, index=index) for index, rule in enumerate(rules)]


def lookup_of(group: Group) -> Lookup:
    return next(m for m in group.conjunctions[0] if isinstance(m, Lookup))


def literal_of(group: Group) -> Literal:
    members = lookup_of(group).members
    assert isinstance(members, Literal)
    return members


def test_rules_that_differ_in_values_become_one_lookup():
    rules = numbered([net_rule(f"10.0.{n}.0/24", 80 + n) for n in range(50)])
    (group,) = fold(rules)
    assert isinstance(group, Group)
    assert group.label == "0-49"
    assert of_protocol(6) in group.conjunctions[0]
    assert lookup_of(group).fields == (Field.IP4_SADDR, Field.TH_DPORT)
    assert len(literal_of(group).elements) == 50
    assert literal_of(group).interval


def test_hosts_and_single_ports_are_looked_up_without_intervals():
    (group,) = fold(numbered([net_rule(f"10.0.0.{n}/32", 80 + n) for n in range(5)]))
    assert isinstance(group, Group)
    assert not literal_of(group).interval
    assert len(literal_of(group).elements) == 5


def set_rule(port: int, last: int | None = None, **of_rule: int | None) -> CompiledRule:
    return CompiledRule(
        Action.ALLOW,
        0,
        protocol=6,
        source=EntityMatch(sets=("s:a",)),
        destination=EntityMatch(ports=(PortRange(port, last or port),)),
        **of_rule,  # type: ignore[arg-type]
    )


def test_rules_that_share_a_set_become_one_that_asks_it_once_per_family():
    (group,) = fold(numbered([set_rule(80 + n) for n in range(10)]))
    assert isinstance(group, Group)
    assert group.label == "0-9"
    four, six = group.conjunctions
    between = Between(Field.TH_DPORT, port_bytes(80), port_bytes(89))
    assert four == (
        of_family(4),
        of_protocol(6),
        between,
        Lookup((Field.IP4_SADDR,), address_set("s:a", 4)),
    )
    assert six[:3] == (of_family(6), of_protocol(6), between)


def test_rules_of_different_sets_fold_apart():
    other = [replace(set_rule(n), source=EntityMatch(sets=("s:b",))) for n in range(1, 5)]
    found = fold(numbered([*(set_rule(n) for n in range(1, 5)), *other]))
    assert [item.label for item in found if isinstance(item, Group)] == ["0-3", "4-7"]


def test_named_ports_are_alternatives_of_the_numbers_and_stay():
    named = EntityMatch(ports=(PortRange(80, 80),), named_port_sets=("n:web",))
    rules = numbered([replace(set_rule(80 + n), destination=named) for n in range(5)])
    assert fold(rules) == rules


def test_few_rules_stay_rules():
    rules = numbered([net_rule(f"10.0.{n}.0/24") for n in range(FOLD_MIN_RULES - 1)])
    assert fold(rules) == rules


def test_an_action_in_between_separates():
    allow = [net_rule(f"10.0.{n}.0/24") for n in range(4)]
    deny = net_rule("10.0.9.0/24", action=Action.DENY)
    first, middle, last = fold(numbered([*allow, deny, *allow]))
    assert isinstance(first, Group)
    assert isinstance(last, Group)
    assert isinstance(middle, CompiledRule)
    assert middle.action is Action.DENY


def test_log_rules_are_never_merged():
    rules = numbered([net_rule(f"10.0.{n}.0/24", action=Action.LOG) for n in range(9)])
    assert fold(rules) == rules


def test_families_and_shapes_fold_apart_and_others_stay():
    plain = [net_rule(f"10.0.{n}.0/24") for n in range(5)]
    six = [net_rule(f"fd00:{n}::/32") for n in range(5)]
    ported = [net_rule(f"10.0.{n}.0/24", 80) for n in range(5)]
    odd = CompiledRule(Action.ALLOW, 0, protocol=1, icmp=IcmpMatch(8))
    found = fold(numbered([*plain, odd, *six, *ported]))
    assert [type(item) for item in found] == [Group, CompiledRule, Group, Group]
    assert [i.label for i in found if isinstance(i, Group)] == ["0-4", "6-10", "11-15"]


def test_a_label_tells_when_others_stand_between():
    plain = [net_rule(f"10.0.{n}.0/24") for n in range(4)]
    odd = CompiledRule(Action.ALLOW, 0, protocol=1)
    group = fold(numbered([*plain[:2], odd, *plain[2:]]))[0]
    assert isinstance(group, Group)
    assert group.label == "0-4 (4)"


def test_nested_nets_keep_only_the_ports_the_wider_one_lacks():
    rules = [
        net_rule("10.0.0.0/8", 80),
        net_rule("10.1.0.0/16", 80),
        net_rule("10.1.0.0/16", 443),
        net_rule("10.2.0.0/16", 22),
    ]
    (group,) = fold(numbered(rules))
    assert isinstance(group, Group)
    assert len(literal_of(group).elements) == 3


def test_nets_that_could_cross_in_two_fields_are_left_alone():
    def pair(source: str, destination: str) -> CompiledRule:
        source_side, target = EntityMatch(nets=(source,)), EntityMatch(nets=(destination,))
        return CompiledRule(Action.ALLOW, 0, source=source_side, destination=target)

    crossing = numbered(
        [pair("10.0.0.0/8", "10.1.0.0/16"), pair("10.1.0.0/16", "10.0.0.0/8")]
        + [pair(f"11.{n}.0.0/16", f"12.{n}.0.0/16") for n in range(3)]
    )
    assert fold(crossing) == crossing
    flat = numbered([pair(f"11.{n}.0.0/16", f"12.{n}.0.0/16") for n in range(5)])
    assert isinstance(fold(flat)[0], Group)


def test_ports_taken_away_split_ranges():
    assert subtract_ranges([(1, 10)], [(3, 4), (8, 20)]) == [(1, 2), (5, 7)]
    assert subtract_ranges([(1, 10)], [(1, 10)]) == []
    assert subtract_ranges([(1, 3), (7, 9)], [(4, 6)]) == [(1, 3), (7, 9)]


# --------------------------------------------------------------- F2: the union stays the union

NETS4 = st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32", "11.0.0.0/8"])
NETS6 = st.sampled_from(["fd00::/16", "fd00:1::/32", "fd00:1::1/128"])
PORTS = st.lists(
    st.builds(
        lambda first, more: PortRange(first, first + more), st.integers(1, 9), st.integers(0, 4)
    ),
    min_size=1,
    max_size=2,
)


MEMBERS = {
    address_set("s:a", 4): {"10.0.0.1", "10.1.2.3", "12.0.0.1"},
    address_set("s:a", 6): {"fd00::1"},
}


@st.composite
def like_rules(draw: st.DrawFn) -> list[CompiledRule]:
    """Rules that constrain the same fields: what folding is about."""
    nets = draw(st.sampled_from([NETS4, NETS6]))
    has_source, has_target, has_ports = (draw(st.booleans()) for _ in range(3))
    side = st.sampled_from([(), ("s:a",)])
    sets, not_sets = draw(side), draw(side)
    protocols = st.sampled_from([6, 17] if has_ports else [None])
    one = st.lists(nets, min_size=1, max_size=2).map(tuple)
    return [
        CompiledRule(
            draw(st.sampled_from([Action.ALLOW] * 9 + [Action.DENY])),
            0,
            protocol=draw(protocols),
            source=EntityMatch(nets=draw(one) if has_source else (), sets=sets),
            destination=EntityMatch(
                nets=draw(one)[:1] if has_target else (),
                not_sets=not_sets,
                ports=tuple(draw(PORTS)) if has_ports else (),
            ),
        )
        for _ in range(draw(st.integers(1, 9)))
    ]


ADDRESSES = ["10.0.0.1", "10.1.0.1", "10.1.2.1", "10.1.2.3", "11.0.0.1", "12.0.0.1",
             "fd00::1", "fd00:1::1", "fd00:1::2", "fe80::1"]  # fmt: skip
PROBES = [
    (src, dst, protocol, port)
    for src in ADDRESSES
    for dst in ADDRESSES
    if (":" in src) == (":" in dst)
    for protocol in (6, 17, 1)
    for port in (1, 4, 8, 13)
]
Probe = tuple[str, str, int, int]


def first_action(rules: list[CompiledRule], probe: Probe) -> Action | None:
    """The oracle: rules read one by one."""
    for rule in rules:
        if rule_matches(rule, probe):
            return rule.action
    return None


@cache
def contains(net: str, address: str) -> bool:
    return ip_address(address) in ip_network(net)


def rule_matches(rule: CompiledRule, probe: Probe) -> bool:
    src, dst, protocol, port = probe
    if rule.protocol not in (None, protocol):
        return False
    for nets, address in ((rule.source.nets, src), (rule.destination.nets, dst)):
        if nets and not any(contains(net, address) for net in nets):
            return False
    for entity, address in ((rule.source, src), (rule.destination, dst)):
        if entity.sets and not in_set("s:a", address):
            return False
        if entity.not_sets and in_set("s:a", address):
            return False
    ports = rule.destination.ports
    return not ports or any(one.first <= port <= one.last for one in ports)


def folded_action(items: list[CompiledRule | Group], probe: Probe) -> Action | None:
    for item in items:
        if isinstance(item, CompiledRule):
            if rule_matches(item, probe):
                return item.action
        elif any(group_matches(matches, probe) for matches in item.conjunctions):
            return item.action
    return None


def in_set(set_id: str, address: str) -> bool:
    return any(address in MEMBERS[address_set(set_id, family)] for family in (4, 6))


def group_matches(matches: tuple[Match, ...], probe: Probe) -> bool:
    return all(match_holds(match, probe) for match in matches)


def match_holds(match: Match, probe: Probe) -> bool:
    values = packet(probe)
    if isinstance(match, Lookup):
        members = match.members
        found = in_literal(match, probe) if isinstance(members, Literal) else False
        if isinstance(members, str):
            (field,) = match.fields
            address = str(ip_address(values[field])) if field in values else ""
            found = address in MEMBERS[members]
        return found is not match.negated
    if isinstance(match, Compare):
        return (values.get(match.field) == match.value) is not match.negated
    if isinstance(match, InNet):
        net = ip_network((match.base, match.prefix_len))
        return (ip_address(values.get(match.field, b"\0" * 4)) in net) is not match.negated
    assert isinstance(match, Between)
    return match.first <= values[match.field] <= match.last


@cache
def packet(probe: Probe) -> dict[Field, bytes]:
    src, dst, protocol, port = probe
    is_six = ":" in src
    addresses = (Field.IP6_SADDR, Field.IP6_DADDR) if is_six else (Field.IP4_SADDR, Field.IP4_DADDR)
    return {
        Field.NFPROTO: b"\x0a" if is_six else b"\x02",
        addresses[0]: ip_address(src).packed,
        addresses[1]: ip_address(dst).packed,
        Field.L4PROTO: bytes([protocol]),
        Field.TH_DPORT: port.to_bytes(2, "big"),
    }


def in_literal(lookup: Lookup, probe: Probe) -> bool:
    values = packet(probe)
    if any(field not in values for field in lookup.fields):
        return False
    wanted = [values[field] for field in lookup.fields]
    return any(
        all(a <= value <= b for a, value, b in zip(first, wanted, last, strict=True))
        for first, last in boxes(lookup)
    )


@cache
def boxes(lookup: Lookup) -> list[tuple[list[bytes], list[bytes]]]:
    types = key_types(lookup.fields)
    assert isinstance(lookup.members, Literal)

    def parts(key: bytes) -> list[bytes]:
        return [value for _type, value in split_key(types, key)]

    halves = [(e[: len(e) // 2], e[len(e) // 2 :]) for e in lookup.members.elements]
    if not lookup.members.interval:
        halves = [(element, element) for element in lookup.members.elements]
    return [(parts(first), parts(last)) for first, last in halves]


def boxes_overlap(lookup: Lookup) -> bool:
    made = boxes(lookup)
    return any(
        all(a <= d and c <= b for a, b, c, d in zip(*made[i], *made[j], strict=True))
        for i in range(len(made))
        for j in range(i)
    )


@settings(max_examples=120)
@given(st.lists(like_rules(), max_size=3))
def test_folding_changes_no_verdict_and_makes_disjoint_sets(stretches: list[list[CompiledRule]]):
    made = numbered([rule for stretch in stretches for rule in stretch])
    folded = fold(made)
    for probe in PROBES:
        assert folded_action(folded, probe) == first_action(made, probe), probe
    for item in folded:
        if isinstance(item, Group):
            for matches in item.conjunctions:
                assert not any(boxes_overlap(one) for one in literals(matches)), "F1"
        else:
            variants(item)


def literals(matches: tuple[Match, ...]) -> list[Lookup]:
    return [m for m in matches if isinstance(m, Lookup) and isinstance(m.members, Literal)]
