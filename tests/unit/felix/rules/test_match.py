"""felix.rules.match, held to datamodel 5.2: every row as packets that match and that do not.

The matches are encoded, put into the fake nf_tables and met by packets, so that a wrong order of
loads or a missing protocol guard shows as a wrong verdict.
"""

from __future__ import annotations

import pytest

from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddSet,
    AddTable,
    WriteRules,
)
from felix.kernel.nft import NftKernel
from felix.rules.chain import ACCEPT, DROP, BaseHook, Chain, Field, Hook, Lookup, Rule
from felix.rules.match import merge_ranges, port_match, variants
from felix.rules.names import address_set
from felix.rules.sets import ip_port_element, ip_port_set, net_element, net_set, parse_net
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, IcmpMatch, PortRange
from libcalico.testing.fakenft import FakeNft, Packet

NETS = {"s:one": ("10.0.0.1/32", "fd00::1/128"), "s:wide": ("10.0.0.0/24", "fd00::/64")}
PORTS = {"n:http": ("10.0.0.2,tcp,8080", "fd00::2,tcp,8080"), "n:dns": ("10.0.0.2,udp,53",)}


async def verdict(rule: CompiledRule, packet: Packet) -> bool:
    """Whether the packet matches the rule, by the fake kernel."""
    fake = FakeNft()
    kernel = NftKernel(fake)
    rules = [Rule(matches, (ACCEPT,)) for matches in variants(rule)]
    chain = Chain("c", (*rules, Rule((), (DROP,))), BaseHook(Hook.FORWARD, 0))
    ops = [AddTable(), *_sets(), AddChain("c", chain.base), WriteRules(chain, bytes(16))]
    await kernel.commit(ops)
    kernel.close()
    return fake.forward(packet, "eth0", "eth1") == "accept"


def _sets():
    for version in (4, 6):
        for set_id, members in NETS.items():
            spec = net_set(address_set(set_id, version), version)
            parsed = [net[1:] for net in map(parse_net, members) if net[0] == version]
            yield AddSet(spec)
            yield AddElements(spec, [net_element(version, *net) for net in parsed])
        for set_id, members in PORTS.items():
            spec = ip_port_set(address_set(set_id, version), version)
            ours = [member for member in members if (":" in member) == (version == 6)]
            yield AddSet(spec)
            yield AddElements(spec, [ip_port_element(member) for member in ours])


def allow(**fields: object) -> CompiledRule:
    return CompiledRule(Action.ALLOW, 0, **fields)  # type: ignore[arg-type]


def tcp(src: str = "10.0.0.1", dst: str = "10.0.0.2", dport: int = 80, **more: object) -> Packet:
    return Packet(src, dst, "tcp", dport=dport, **more)  # type: ignore[arg-type]


def tcp6(src: str = "fd00::1", dst: str = "fd00::2", dport: int = 80) -> Packet:
    return Packet(src, dst, "tcp", dport=dport)


def udp(**more: object) -> Packet:
    return Packet("10.0.0.1", "10.0.0.2", "udp", **more)  # type: ignore[arg-type]


def ping(icmp_type: int = 8, icmp_code: int = 0) -> Packet:
    return Packet("10.0.0.1", "10.0.0.2", "icmp", icmp_type=icmp_type, icmp_code=icmp_code)


def ping6(icmp_type: int = 128, icmp_code: int = 0) -> Packet:
    return Packet("fd00::1", "fd00::2", "icmpv6", icmp_type=icmp_type, icmp_code=icmp_code)


def ranges(*pairs: tuple[int, int]) -> tuple[PortRange, ...]:
    return tuple(PortRange(*pair) for pair in pairs)


EMPTY = allow()
PROTOCOL = allow(protocol=6)
NOT_PROTOCOL = allow(not_protocol=6)
VERSION_6 = allow(ip_version=6)
NET = allow(source=EntityMatch(nets=("10.0.0.0/30",)))
HOST_NET = allow(destination=EntityMatch(nets=("10.0.0.2/32",)))
ANY_NET = allow(source=EntityMatch(nets=("0.0.0.0/0",)))
TWO_NETS = allow(source=EntityMatch(nets=("10.0.0.0/30", "10.0.0.1/32", "fd00::1/128")))
ODD_NET = allow(source=EntityMatch(nets=("10.0.0.0/29",)))
NOT_NET = allow(source=EntityMatch(not_nets=("10.0.0.0/30",)), ip_version=4)
NOT_NETS = allow(source=EntityMatch(not_nets=("10.0.0.0/30", "10.0.1.0/24")), ip_version=4)
BOTH_NETS = allow(source=EntityMatch(nets=("10.0.0.0/24",), not_nets=("10.0.0.1/32",)))
NOT_ANY = allow(source=EntityMatch(not_nets=("0.0.0.0/0", "fd00::1/128")))
SET = allow(source=EntityMatch(sets=("s:one",)))
TWO_SETS = allow(source=EntityMatch(sets=("s:one", "s:wide")))
NOT_SET = allow(source=EntityMatch(not_sets=("s:one",)))
SET_NOT_SET = allow(source=EntityMatch(sets=("s:wide",), not_sets=("s:one",)))
PORT = allow(protocol=6, destination=EntityMatch(ports=ranges((80, 80))))
RANGE = allow(protocol=6, destination=EntityMatch(ports=ranges((80, 90))))
PORT_LIST = allow(protocol=17, source=EntityMatch(ports=ranges((53, 53), (1000, 2000))))
NOT_PORTS = allow(protocol=6, destination=EntityMatch(not_ports=ranges((80, 80), (443, 443))))
NAMED = allow(protocol=6, destination=EntityMatch(named_port_sets=("n:http",)))
NAMED_ANY_PROTOCOL = allow(destination=EntityMatch(named_port_sets=("n:http",)))
NAMED_OR_NUMBER = allow(
    protocol=6, destination=EntityMatch(ports=ranges((80, 80)), named_port_sets=("n:http",))
)
NOT_NAMED = allow(protocol=6, destination=EntityMatch(not_named_port_sets=("n:http",)))
NOT_NAMED_ANY = allow(destination=EntityMatch(not_named_port_sets=("n:http",)))
SERVICE = allow(destination=EntityMatch(ip_port_sets=("n:http", "n:dns")))
ICMP = allow(protocol=1, icmp=IcmpMatch(8))
ICMP_CODE = allow(protocol=1, icmp=IcmpMatch(3, 4))
ICMPV6 = allow(protocol=58, icmp=IcmpMatch(128))
NOT_ICMP = allow(protocol=1, not_icmp=IcmpMatch(8))
NOT_ICMP_PAIR = allow(protocol=1, not_icmp=IcmpMatch(3, 4))
NOT_ICMP_ANY = allow(not_icmp=IcmpMatch(8))
NOT_ICMP_TCP = allow(protocol=6, not_icmp=IcmpMatch(8))
NOT_ICMP_NAMED = allow(
    not_icmp=IcmpMatch(8), destination=EntityMatch(not_named_port_sets=("n:http",))
)
ICMP_PROTOCOL = allow(protocol=1)
UNMATCHABLE = allow(unmatchable=True)
LITE = allow(protocol=136)

CASES = [
    # 5.2: all fields are ANDed; no field matches everything of both families
    (EMPTY, tcp(), True), (EMPTY, tcp6(), True), (EMPTY, ping(), True),
    (PROTOCOL, tcp(), True), (PROTOCOL, tcp6(), True), (PROTOCOL, udp(), False),
    (NOT_PROTOCOL, tcp(), False), (NOT_PROTOCOL, udp(), True), (NOT_PROTOCOL, ping6(), True),
    # protocols by number, UDPLite among them
    (LITE, Packet("10.0.0.1", "10.0.0.2", 136), True), (LITE, udp(), False),
    # a rule with ipVersion only in that family
    (VERSION_6, tcp6(), True), (VERSION_6, tcp(), False),
    # nets, list members ORed
    (NET, tcp("10.0.0.3"), True), (NET, tcp("10.0.0.4"), False), (NET, tcp6(), False),
    (ODD_NET, tcp("10.0.0.7"), True), (ODD_NET, tcp("10.0.0.8"), False),
    (HOST_NET, tcp(), True), (HOST_NET, tcp(dst="10.0.0.3"), False),
    (ANY_NET, tcp(), True), (ANY_NET, tcp6(), False),
    (TWO_NETS, tcp("10.0.0.2"), True), (TWO_NETS, tcp("10.0.0.5"), False),
    (TWO_NETS, tcp6(), True), (TWO_NETS, tcp6("fd00::2"), False),
    # notNets: excluded if any member matches; the other family has no rule
    (NOT_NET, tcp("10.0.0.1"), False), (NOT_NET, tcp("10.0.0.9"), True),
    (NOT_NET, tcp6(), False),
    (NOT_NETS, tcp("10.0.1.1"), False), (NOT_NETS, tcp("10.0.0.1"), False),
    (NOT_NETS, tcp("10.0.2.1"), True),
    (BOTH_NETS, tcp("10.0.0.1"), False), (BOTH_NETS, tcp("10.0.0.2"), True),
    # a negated catch-all makes the rule omitted, for its family
    (NOT_ANY, tcp(), False), (NOT_ANY, tcp6("fd00::2"), True), (NOT_ANY, tcp6(), False),
    # address sets, both families; several sets are ANDed
    (SET, tcp(), True), (SET, tcp("10.0.0.2"), False), (SET, tcp6(), True),
    (TWO_SETS, tcp(), True), (TWO_SETS, tcp("10.0.0.2"), False),
    (NOT_SET, tcp(), False), (NOT_SET, tcp("10.9.9.9"), True), (NOT_SET, tcp6(), False),
    (SET_NOT_SET, tcp("10.0.0.2"), True), (SET_NOT_SET, tcp(), False),
    # ports: numbers, ranges, lists, exclusions
    (PORT, tcp(), True), (PORT, tcp(dport=81), False), (PORT, tcp6(), True),
    (PORT, udp(dport=80), False),
    (RANGE, tcp(dport=90), True), (RANGE, tcp(dport=91), False), (RANGE, tcp(dport=79), False),
    (PORT_LIST, udp(sport=1500), True), (PORT_LIST, udp(sport=53), True),
    (PORT_LIST, udp(sport=54), False),
    (NOT_PORTS, tcp(dport=80), False), (NOT_PORTS, tcp(dport=443), False),
    (NOT_PORTS, tcp(dport=444), True),
    # named ports: (address, protocol, port), ORed with numbers
    (NAMED, tcp(dport=8080), True), (NAMED, tcp(dport=80), False),
    (NAMED, tcp(dst="10.0.0.3", dport=8080), False), (NAMED, tcp6(dport=8080), True),
    (NAMED_ANY_PROTOCOL, tcp(dport=8080), True), (NAMED_ANY_PROTOCOL, udp(dport=8080), False),
    (NAMED_ANY_PROTOCOL, ping(), False),
    (NAMED_OR_NUMBER, tcp(dport=80), True), (NAMED_OR_NUMBER, tcp(dport=8080), True),
    (NAMED_OR_NUMBER, tcp(dport=81), False),
    (NOT_NAMED, tcp(dport=8080), False), (NOT_NAMED, tcp(dport=80), True),
    (NOT_NAMED_ANY, tcp(dport=8080), False), (NOT_NAMED_ANY, udp(dport=8080), True),
    (NOT_NAMED_ANY, ping(), True), (NOT_NAMED_ANY, Packet("10.0.0.1", "10.0.0.2", 89), True),
    # services: address and port of an endpoint slice
    (SERVICE, tcp(dport=8080), True), (SERVICE, udp(dport=53), True), (SERVICE, tcp(), False),
    # ICMP type and code, per family; negation of the pair (7.6)
    (ICMP, ping(), True), (ICMP, ping(0), False), (ICMP, ping6(8), False), (ICMP, tcp(), False),
    (ICMP_CODE, ping(3, 4), True), (ICMP_CODE, ping(3, 1), False), (ICMP_CODE, ping(8, 4), False),
    (ICMPV6, ping6(), True), (ICMPV6, ping(128), False), (ICMPV6, ping6(135), False),
    (NOT_ICMP, ping(), False), (NOT_ICMP, ping(3, 1), True), (NOT_ICMP, tcp(), False),
    (NOT_ICMP_PAIR, ping(3, 4), False), (NOT_ICMP_PAIR, ping(3, 1), True),
    (NOT_ICMP_PAIR, ping(8, 4), True),
    (NOT_ICMP_ANY, ping(), False), (NOT_ICMP_ANY, ping(0), True), (NOT_ICMP_ANY, tcp(), True),
    (NOT_ICMP_ANY, ping6(8), False), (NOT_ICMP_ANY, ping6(), True),
    (NOT_ICMP_TCP, tcp(), True), (NOT_ICMP_TCP, udp(), False), (NOT_ICMP_TCP, ping(0), False),
    (NOT_ICMP_NAMED, tcp(dport=8080), False), (NOT_ICMP_NAMED, tcp(), True),
    (NOT_ICMP_NAMED, ping(), False), (NOT_ICMP_NAMED, ping(0), True),
    (NOT_ICMP_NAMED, Packet("10.0.0.1", "10.0.0.2", 89), True),
    # ICMP implies its family
    (ICMP_PROTOCOL, ping(), True),
    (ICMP_PROTOCOL, Packet("fd00::1", "fd00::2", 1), False),
    # what can match nothing is rendered as nothing
    (UNMATCHABLE, tcp(), False),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "packet", "expected"), CASES)
async def test_a_rule_matches_what_5_2_says(rule: CompiledRule, packet: Packet, expected: bool):
    assert await verdict(rule, packet) is expected


def test_a_rule_that_no_address_limits_is_one_for_both_families():
    assert len(variants(PORT)) == 1
    assert len(variants(SET)) == 2


def test_a_single_value_needs_no_set():
    matches = [match for conjunction in variants(PORT) for match in conjunction]
    assert not any(isinstance(match, Lookup) for match in matches)


def test_neighbouring_ports_become_one_range():
    assert merge_ranges([(90, 99), (80, 80), (81, 89), (200, 201)]) == [(80, 99), (200, 201)]
    assert port_match(Field.TH_DPORT, ranges((1, 2), (3, 9))) == port_match(
        Field.TH_DPORT, ranges((1, 9))
    )
