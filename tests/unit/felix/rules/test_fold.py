"""felix.rules.fold: many rules in one lookup mean what they meant one by one."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

from hypothesis import given, settings
from hypothesis import strategies as st

from felix.intent import Action, CompiledRule, EntityMatch, IcmpMatch, PortRange
from felix.rules.chain import Compare, Field, Literal, Lookup, key_types, split_key
from felix.rules.fold import FOLD_MIN_RULES, Group, fold, subtract_ranges
from felix.rules.match import variants


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
    assert lookup_of(group).fields == (Field.IP4_SADDR, Field.L4PROTO, Field.TH_DPORT)
    assert len(literal_of(group).elements) == 50


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
    max_size=2,
)


@st.composite
def rules(draw: st.DrawFn) -> CompiledRule:
    nets = draw(st.sampled_from([NETS4, NETS6]))
    protocol = draw(st.sampled_from([None, 6, 17]))
    return CompiledRule(
        draw(st.sampled_from([Action.ALLOW, Action.ALLOW, Action.DENY])),
        0,
        protocol=protocol,
        source=EntityMatch(nets=tuple(draw(st.lists(nets, max_size=2)))),
        destination=EntityMatch(
            nets=tuple(draw(st.lists(nets, max_size=1))),
            ports=tuple(draw(PORTS)) if protocol else (),
        ),
    )


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


def rule_matches(rule: CompiledRule, probe: Probe) -> bool:
    src, dst, protocol, port = probe
    if rule.protocol not in (None, protocol):
        return False
    for nets, address in ((rule.source.nets, src), (rule.destination.nets, dst)):
        if nets and not any(ip_address(address) in ip_network(net) for net in nets):
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


def group_matches(matches: tuple[object, ...], probe: Probe) -> bool:
    for match in matches:
        if isinstance(match, Compare):
            assert match.field is Field.NFPROTO
            if (match.value == b"\x0a") != (":" in probe[0]):
                return False
        elif isinstance(match, Lookup) and not in_literal(match, probe):
            return False
    return True


def in_literal(lookup: Lookup, probe: Probe) -> bool:
    src, dst, protocol, port = probe
    values = {
        Field.IP4_SADDR: ip_address(src).packed,
        Field.IP6_SADDR: ip_address(src).packed,
        Field.IP4_DADDR: ip_address(dst).packed,
        Field.IP6_DADDR: ip_address(dst).packed,
        Field.L4PROTO: bytes([protocol]),
        Field.TH_DPORT: port.to_bytes(2, "big"),
    }
    wanted = [values[field] for field in lookup.fields]
    types = key_types(lookup.fields)
    assert isinstance(lookup.members, Literal)
    for element in lookup.members.elements:
        half = len(element) // 2
        first = [value for _type, value in split_key(types, element[:half])]
        last = [value for _type, value in split_key(types, element[half:])]
        if all(a <= value <= b for a, value, b in zip(first, wanted, last, strict=True)):
            return True
    return False


def boxes_overlap(lookup: Lookup) -> bool:
    types = key_types(lookup.fields)
    assert isinstance(lookup.members, Literal)
    boxes = []
    for element in lookup.members.elements:
        half = len(element) // 2
        boxes.append(
            (
                [value for _type, value in split_key(types, element[:half])],
                [value for _type, value in split_key(types, element[half:])],
            )
        )
    return any(
        all(a <= d and c <= b for a, b, c, d in zip(*boxes[i], *boxes[j], strict=True))
        for i in range(len(boxes))
        for j in range(i)
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(rules(), max_size=14))
def test_folding_changes_no_verdict_and_makes_disjoint_sets(made: list[CompiledRule]):
    made = numbered(made)
    folded = fold(made)
    for probe in PROBES:
        assert folded_action(folded, probe) == first_action(made, probe), probe
    for item in folded:
        if isinstance(item, Group):
            assert not boxes_overlap(lookup_of(item)), "F1"
        else:
            variants(item)
