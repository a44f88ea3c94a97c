"""libcalico.compute.rule_compiler: rules with selectors -> rules with set ids."""

from __future__ import annotations

import itertools

import pytest

from felix.testing.interpreter import matches as interpreter_matches
from libcalico.compute.rule_compiler import ServiceDefinition, SetsById, check_rules, compile_rules
from libcalico.compute.rules import Action, CompiledRule, IcmpMatch, PortRange, SetKind
from libcalico.errors import InvalidInput
from libcalico.model import EntityRule, HTTPMatch, ICMPFields, Rule, RuleMetadata, ServiceMatch
from libcalico.policy.matching import matches as evaluator_matches
from libcalico.policy.packet import Packet
from libcalico.policy.world import world_of
from libcalico.selector import parse
from tests.support import calc
from tests.support.calc import rule


def compiled(namespace: str = "", **fields) -> tuple[CompiledRule, SetsById]:
    sets: SetsById = {}
    (found,) = compile_rules([rule(**fields)], namespace, sets)
    return found, sets


def one(**fields) -> CompiledRule:
    return compiled(**fields)[0]


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("Allow", Action.ALLOW),
        ("Deny", Action.DENY),
        ("Pass", Action.PASS),
        ("Log", Action.LOG),
    ],
)
def test_actions(name, action):
    assert one(action=name).action is action


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "allow"},
        {"action": ""},
        {"protocol": "tcp"},
        {"source": {"selector": "a = 'b'"}},
        {"source": {"not_selector": "has(a"}},
        {"source": {"nets": ("10.0.0.0/33",)}},
        {"protocol": "TCP", "source": {"ports": ("9:1",)}},
        {"protocol": "ICMP", "source": {"ports": ("http",)}},
    ],
)
def test_what_cannot_be_compiled_is_refused(fields):
    with pytest.raises(InvalidInput):
        one(**fields)


@pytest.mark.parametrize(
    ("given", "number"), [("TCP", 6), ("UDPLite", 136), ("ICMPv6", 58), (47, 47), ("132", 132)]
)
def test_protocols_become_numbers(given, number):
    assert one(protocol=given).protocol == number
    assert one(not_protocol=given).not_protocol == number


def test_icmp_types_codes_and_their_negation():
    found = one(protocol="ICMP", icmp=ICMPFields(type=8, code=0), not_icmp=ICMPFields(type=3))
    assert found.icmp == IcmpMatch(8, 0)
    assert found.not_icmp == IcmpMatch(3)
    assert one(protocol="ICMP", icmp=ICMPFields()).icmp is None


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({}, None),
        ({"ip_version": 4}, 4),
        ({"ip_version": 6}, 6),
        ({"protocol": "ICMP"}, 4),
        ({"protocol": 58}, 6),
        ({"not_protocol": "ICMP"}, None),
        ({"source": {"nets": ("10.0.0.0/8",)}}, 4),
        ({"destination": {"nets": ("fd00::/8",)}}, 6),
        ({"source": {"not_nets": ("10.0.0.0/8",)}}, 4),
        ({"source": {"nets": ("10.0.0.0/8", "fd00::/8")}}, None),
        ({"source": {"nets": ("10.0.0.0/8", "fd00::/8"), "not_nets": ("fd00::/16",)}}, 6),
        ({"source": {"nets": ("10.0.0.0/8", "fd00::/8"), "not_nets": ("::/0", "10.0.0.0/9")}}, 4),
    ],
)
def test_the_family_a_rule_is_for(fields, version):
    """R3."""
    found = one(**fields)
    assert not found.unmatchable
    assert found.ip_version == version


@pytest.mark.parametrize(
    "fields",
    [
        {"ip_version": 4, "source": {"nets": ("fd00::/8",)}},
        {"protocol": "ICMP", "destination": {"not_nets": ("fd00::/8",)}},
        {"source": {"nets": ("10.0.0.0/8",)}, "destination": {"nets": ("fd00::/8",)}},
        {"source": {"not_nets": ("0.0.0.0/0",)}},
        {"source": {"not_nets": ("::/0",), "nets": ("fd00::/8",)}},
    ],
)
def test_a_rule_that_nothing_can_match_is_kept_as_such_and_needs_no_set(fields):
    """R1."""
    fields.setdefault("source", {})
    fields["source"] = EntityRule(**{**fields["source"], "selector": "has(a)"})
    found, sets = compiled(action="Deny", **fields)
    assert found == CompiledRule(Action.DENY, 0, unmatchable=True)
    assert sets == {}


def test_nets_of_a_family_the_rule_cannot_match_are_dropped():
    found = one(
        ip_version=6,
        source={"nets": ("10.0.0.0/8", "fd00::/8")},
        destination={"not_nets": ("10.0.0.0/8", "fd01::/16")},
    )
    assert found.source.nets == ("fd00::/8",)
    assert found.destination.not_nets == ("fd01::/16",)


def test_nets_are_canonical_and_unique():
    found = one(source={"nets": ("10.0.0.0/8", "10.0.0.0/8", "192.0.2.1/32")})
    assert found.source.nets == ("10.0.0.0/8", "192.0.2.1/32")


def test_ports_ranges_and_names():
    found, sets = compiled(
        protocol="UDP", destination={"ports": (53, "8000:8080", "dns"), "not_ports": (8001, "x")}
    )
    match = found.destination
    assert match.ports == (PortRange(53, 53), PortRange(8000, 8080))
    assert match.not_ports == (PortRange(8001, 8001),)
    assert [sets[item].port for item in match.named_port_sets] == [("dns", "udp")]
    assert [sets[item].port for item in match.not_named_port_sets] == [("x", "udp")]
    assert {item.kind for item in sets.values()} == {SetKind.IP_PORT}


def test_a_named_port_without_protocol_means_tcp_and_every_endpoint():
    """R4."""
    found, sets = compiled(destination={"ports": ("http",)})
    (definition,) = sets.values()
    assert definition.port == ("http", "tcp")
    assert definition.selector == parse("all()")
    assert found.protocol is None


def test_named_ports_are_those_of_the_endpoints_that_match_the_positive_selector():
    """R4, 7.8: notSelector is folded in."""
    _, sets = compiled(
        protocol="TCP",
        destination={"ports": ("http",), "selector": "has(a)", "not_selector": "has(b)"},
    )
    by_kind = {item.kind: item.selector for item in sets.values()}
    assert by_kind[SetKind.IP_PORT] == by_kind[SetKind.NET] == parse("has(a) && !has(b)")
    _, sets = compiled(protocol="TCP", destination={"ports": ("http",), "not_selector": "has(b)"})
    by_kind = {item.kind: item.selector for item in sets.values()}
    assert by_kind[SetKind.IP_PORT] == parse("all()")
    assert by_kind[SetKind.NET] == parse("has(b)")


def test_a_not_selector_alone_is_a_negated_set():
    found, sets = compiled(source={"not_selector": "has(b)"})
    assert found.source.sets == ()
    assert [sets[item].selector for item in found.source.not_sets] == [parse("has(b)")]


def test_a_not_selector_in_a_namespace_has_a_positive_part():
    """3.4, 7.3."""
    found, sets = compiled("prod", source={"not_selector": "has(b)"})
    assert found.source.not_sets == ()
    (set_id,) = found.source.sets
    assert sets[set_id].selector == parse("projectcalico.org/namespace == 'prod' && !has(b)")


def test_the_same_match_has_the_same_set_id_and_another_match_another():
    """R2."""
    first, _ = compiled(source={"selector": "has(a)||has(b)"})
    same, _ = compiled(destination={"selector": "( has(a)  || has(b) )"})
    other, _ = compiled(source={"selector": "has(a)"})
    assert first.source.sets == same.destination.sets != other.source.sets
    assert first.source.sets[0].startswith("s:")
    tcp, _ = compiled(protocol="TCP", source={"ports": ("x",)})
    udp, _ = compiled(protocol="UDP", source={"ports": ("x",)})
    assert tcp.source.named_port_sets != udp.source.named_port_sets
    assert tcp.source.named_port_sets[0].startswith("n:")


def test_indexes_are_the_places_in_the_users_list():
    sets: SetsById = {}
    rules = [rule("Log"), rule(source={"not_nets": ("::/0",)}), rule("Deny")]
    found = compile_rules(rules, "", sets)
    assert [item.index for item in found] == [0, 1, 2]


def test_annotations_are_carried_in_order():
    found = one(metadata=RuleMetadata(annotations={"b": "2", "a": "1"}))
    assert found.annotations == (("a", "1"), ("b", "2"))


def test_check_refuses_what_compiling_would_whatever_the_namespace():
    good = (rule(source=EntityRule(selector="has(a)")),)
    bad = (rule(source=EntityRule(selector="has(")),)
    for namespace in ("", "prod", "team-1"):
        check_rules(good, namespace)
        with pytest.raises(InvalidInput):
            check_rules(bad, namespace)
    unquotable = "a'b\"c"
    for refuse in (check_rules, lambda rules, name: compile_rules(rules, name, {})):
        with pytest.raises(InvalidInput):
            refuse(good, unquotable)


def test_a_destination_service_is_a_set_of_addresses_with_ports():
    """R6."""
    found, sets = compiled("prod", destination={"services": ServiceMatch(name="web")})
    (set_id,) = found.destination.ip_port_sets
    assert set_id.startswith("svc:")
    assert sets == {set_id: ServiceDefinition(SetKind.IP_PORT, ("prod", "web"))}
    assert found.destination.sets == ()


def test_a_source_service_is_a_set_of_addresses_beside_the_selectors():
    """R6."""
    service = ServiceMatch(name="web", namespace="other")
    found, sets = compiled(source={"services": service, "nets": ("10.0.0.0/8",)})
    (set_id,) = found.source.sets
    assert set_id.startswith("svcnoport:")
    assert sets == {set_id: ServiceDefinition(SetKind.NET, ("other", "web"))}
    assert (found.source.ip_port_sets, found.source.nets) == ((), ("10.0.0.0/8",))


@pytest.mark.parametrize(
    ("action", "matches"), [("Allow", False), ("Pass", False), ("Log", False), ("Deny", True)]
)
def test_a_rule_about_http_never_lets_through_more_than_it_says(action, matches):
    """R5."""
    found, sets = compiled(action=action, http=HTTPMatch(methods=("GET",)), protocol="TCP")
    assert found.unmatchable is not matches
    assert sets == {}


# -- all conditions of one side together -----------------------------------------------------------

OPTIONS: dict[str, tuple[object, ...]] = {
    "nets": (None, ("10.0.0.0/24", "fd00::/64")),
    "not_nets": (None, ("10.0.0.2/32", "fd00::2/128"), ("fd00::/64",)),
    "selector": (None, "app == 'a'"),
    "not_selector": (None, "role == 'b'"),
    "ports": (None, (80, "http")),
    "not_ports": (None, ("80:81",), ("http",)),
}
OWNERS = (
    calc.wep("one", "10.0.0.1", "fd00::1", labels={"app": "a"}, ports=[("http", "TCP", 8080)]),
    calc.wep("two", "10.0.0.2", "fd00::2", labels={"app": "a", "role": "b"}),
    calc.wep("dev", "10.0.1.1", labels={"app": "a"}, namespace="dev", ports=[("http", "TCP", 80)]),
    calc.gnetset("set", "10.0.0.0/25", "192.0.2.0/24", labels={"app": "a"}),
)
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.9", "10.0.1.1", "192.0.2.1", "fd00::1", "fd00::2")


def _combinations(side: str) -> tuple[Rule, ...]:
    chosen = (
        dict(zip(OPTIONS, values, strict=True)) for values in itertools.product(*OPTIONS.values())
    )
    return tuple(
        rule(protocol="TCP", **{side: {k: v for k, v in one.items() if v is not None}})
        for one in chosen
    )


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize("make", [calc.np, calc.gnp], ids=["namespaced", "global"])
def test_every_combination_of_conditions_means_what_the_evaluator_says(make, side):
    """5.2: fields are ANDed, members ORed, exclusions exclude."""
    rules = _combinations(side)
    key, policy = make("p", ingress=rules, types=("Ingress",))
    world = world_of([policy, *(value for _, value in OWNERS)])
    contents = calc.Rig(*OWNERS, (key, policy)).contents
    compiled = contents.policies[key].ingress
    matched = 0
    for address, port in itertools.product(ADDRESSES, (80, 81, 8080)):
        other = "fd00::99" if ":" in address else "10.99.0.1"
        if side == "source":
            packet = Packet.tcp(address, other, 1, source_port=port)
        else:
            packet = Packet.tcp(other, address, port, source_port=1)
        for given, found in zip(rules, compiled, strict=True):
            expected = evaluator_matches(world, given, key.namespace, packet)
            assert interpreter_matches(contents, found, packet) is expected, (given, packet)
            matched += expected
    assert matched > len(rules), "and some do match"
