"""calicoctl.questions: a packet of each class that rules tell apart (QU1, QU2)."""

from __future__ import annotations

import pytest

from calicoctl.questions import traffic_for
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, IcmpMatch, PortRange

MEMBERS = {"n:http": ("10.0.0.1,tcp,8080", "fd00::1,udp,53")}


def rule(*ranges: tuple[int, int], protocol: int | None = 6, **fields) -> CompiledRule:
    ports = tuple(PortRange(*item) for item in ranges)
    side = EntityMatch(ports=ports, named_port_sets=fields.pop("named", ()))
    return CompiledRule(Action.ALLOW, 0, protocol=protocol, destination=side, **fields)


def asked(*rules: CompiledRule) -> list[str]:
    return list(traffic_for(rules, lambda set_id: MEMBERS[set_id]))


def test_without_rules_a_ping_and_a_port_are_asked():
    assert asked() == ["icmp", "tcp/65535"]


@pytest.mark.parametrize(
    ("rules", "ports"),
    [
        ([rule((80, 80))], [80, 65535]),
        ([rule((80, 90))], [80, 65535]),
        ([rule((80, 90)), rule((80, 80))], [80, 81, 65535]),
        ([rule((10, 20)), rule((15, 30))], [10, 15, 21, 65535]),
        ([rule((1, 65535)), rule((80, 80))], [1, 80]),
        ([rule((0, 65535))], [1]),
        ([rule((65535, 65535))], [65534, 65535]),
    ],
)
def test_one_port_of_each_class_of_ports(rules, ports):
    assert asked(*rules) == ["icmp", *(f"tcp/{port}" for port in ports)]


def test_named_ports_are_numbers_of_their_own_protocol():
    found = asked(rule(named=("n:http",)))
    assert found == ["icmp", "tcp/8080", "tcp/65535", "udp/53", "udp/65535"]


def test_protocols_that_are_named_and_one_that_is_not():
    assert asked(rule(protocol=47)) == ["icmp", "tcp/65535", "47"]
    ping = rule(protocol=1, icmp=IcmpMatch(3, 1))
    assert asked(rule(), ping) == ["icmp", "icmp/3/0", "icmp/3/1", "tcp/65535", "udp/65535"]
    everything = [rule(protocol=number) for number in (6, 1, 17, 132)]
    assert asked(*everything)[-1] == "253"
    negative = CompiledRule(Action.DENY, 0, not_protocol=132)
    assert "sctp/65535" in asked(negative)


def test_types_of_icmp_with_and_without_code():
    assert asked(rule(protocol=1, icmp=IcmpMatch(5)))[:3] == ["icmp", "icmp/5/0", "icmp/5/1"]


def test_a_type_that_no_rule_names_is_asked_also_when_pings_are_named():
    ping = rule(protocol=1, icmp=IcmpMatch(8))
    assert asked(ping)[:3] == ["icmp/254/0", "icmp/8/0", "icmp/8/1"]
    but_ping = CompiledRule(Action.DENY, 0, protocol=1, not_icmp=IcmpMatch(8))
    assert asked(but_ping)[0] == "icmp/254/0"
