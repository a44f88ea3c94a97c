"""Rules in the kernel against intents, and against the objects: random packets must agree.

Readings that share no code. Intents are read by felix.testing.interpreter, objects by the evaluator
of libcalico.policy; the other way goes through (calc,) rules, fold, netlink encoder and the fake
kernel, which executes the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from felix.intent import (
    Intent,
    PolicyUpdate,
    ProfileUpdate,
    SetUpdate,
    TierPolicies,
    WorkloadEndpointUpdate,
)
from felix.testing.dataplane import FakeDataplane
from felix.testing.interpreter import matches, outcome
from libcalico import net
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, IcmpMatch, PortRange, SetKind
from libcalico.model.keys import ResourceKey
from libcalico.policy import packet as policy
from libcalico.policy.evaluate import Outcome, evaluate_packet, evaluate_to_host
from libcalico.policy.packet import Direction
from libcalico.policy.world import Settings, world_of
from libcalico.testing.fakenft import Packet
from tests.support import calc, calc_strategies
from tests.support.nft import FakeNode, policy_key, workload_key

V4 = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "172.16.0.1"]
V6 = ["fd00::1", "fd00::2", "fd00:1::1", "2001:db8::1"]
NETS = {
    4: ["10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32", "10.0.1.0/29", "0.0.0.0/0", "172.16.0.0/12"],
    6: ["fd00::/8", "fd00::/64", "fd00::1/128", "fd00:1::/61", "::/0", "2001:db8::/32"],
}
NET_SETS = {
    "s:a": ["10.0.0.1/32", "fd00::1/128"],
    "s:b": ["10.0.0.0/24", "10.0.0.2/32", "fd00::/64"],
    "s:empty": [],
}
PORT_SETS = {
    "n:web": ["10.0.0.2,tcp,80", "10.0.1.1,tcp,81", "fd00::2,tcp,80"],
    "n:dns": ["10.0.0.2,udp,53", "fd00::2,udp,53"],
}
SETS: list[Intent] = [
    *(SetUpdate(name, SetKind.NET, frozenset(found)) for name, found in NET_SETS.items()),
    *(SetUpdate(name, SetKind.IP_PORT, frozenset(found)) for name, found in PORT_SETS.items()),
]

A = "10.0.0.2", "fd00::2"  # the addresses of the endpoint under test


def lists(values: list[str], most: int = 2) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), max_size=most, unique=True).map(tuple)


PORTS = st.lists(
    st.sampled_from([PortRange(80, 80), PortRange(53, 60), PortRange(81, 81), PortRange(1, 65535)]),
    max_size=2,
).map(tuple)


@st.composite
def entities(draw: st.DrawFn, family: int, *, has_ports: bool) -> EntityMatch:
    """Mostly empty, as real rules are."""
    if draw(st.booleans()):
        return EntityMatch()
    return EntityMatch(
        nets=draw(lists(NETS[family])),
        not_nets=draw(lists(NETS[family], 1)),
        sets=draw(lists(list(NET_SETS), 1)),
        not_sets=draw(lists(list(NET_SETS), 1)),
        ports=draw(PORTS) if has_ports else (),
        named_port_sets=draw(lists(list(PORT_SETS), 1)),
        not_ports=draw(PORTS) if has_ports else (),
        not_named_port_sets=draw(lists(list(PORT_SETS), 1)),
        ip_port_sets=draw(lists(list(PORT_SETS), 1)) if draw(st.booleans()) else (),
    )


ICMP = st.sampled_from([IcmpMatch(8), IcmpMatch(3, 4), IcmpMatch(128), IcmpMatch(8, 0)])


@st.composite
def full_rules(draw: st.DrawFn) -> CompiledRule:
    """What calc may emit (R3 of rule_compiler: nets come with their family)."""
    family = draw(st.sampled_from([4, 6]))
    protocol = draw(st.sampled_from([None, None, 6, 17, 132, 1, 58, 47]))
    has_ports = protocol in (6, 17, 132)
    source = draw(entities(family, has_ports=has_ports))
    destination = draw(entities(family, has_ports=has_ports))
    has_nets = any(side.nets or side.not_nets for side in (source, destination))
    implied = {1: 4, 58: 6}.get(protocol or 0)
    version = implied or (family if has_nets else draw(st.sampled_from([None, 4, 6])))
    is_icmp = protocol in (1, 58)
    return CompiledRule(
        draw(st.sampled_from([*Action, Action.ALLOW])),
        0,
        ip_version=version,
        protocol=protocol,
        not_protocol=draw(st.sampled_from([None, None, None, 6, 1])),
        icmp=draw(st.none() | ICMP) if is_icmp else None,
        not_icmp=draw(st.none() | st.none() | ICMP),
        source=_of_version(source, version),
        destination=_of_version(destination, version),
        unmatchable=draw(st.sampled_from([False] * 9 + [True])),
    )


def _of_version(side: EntityMatch, version: int | None) -> EntityMatch:
    """Nets of the other family are dropped by calc when the rule's family is fixed."""
    keep = [net for net in side.nets if (":" in net) == (version == 6)]
    keep_not = [net for net in side.not_nets if (":" in net) == (version == 6)]
    return replace(side, nets=tuple(keep), not_nets=tuple(keep_not))


@st.composite
def value_rules(draw: st.DrawFn) -> list[CompiledRule]:
    """Many rules that differ in values only: what fold looks for."""
    family = draw(st.sampled_from([4, 6]))
    action = draw(st.sampled_from([Action.ALLOW, Action.DENY, Action.PASS]))
    protocol = draw(st.sampled_from([None, 6]))
    one = st.builds(
        lambda nets, ports: CompiledRule(
            action,
            0,
            ip_version=family,
            protocol=protocol,
            source=EntityMatch(nets=nets),
            destination=EntityMatch(ports=ports if protocol else ()),
        ),
        st.lists(st.sampled_from(NETS[family]), min_size=1, max_size=2, unique=True).map(tuple),
        PORTS,
    )
    return draw(st.lists(one, min_size=4, max_size=8))


RULE_LISTS = st.lists(full_rules(), max_size=4) | value_rules()


def numbered(rules: list[CompiledRule]) -> tuple[CompiledRule, ...]:
    return tuple(replace(one, index=index) for index, one in enumerate(rules))


@st.composite
def worlds(draw: st.DrawFn) -> list[Intent]:
    """Sets, policies, profiles and one endpoint that lists some of them."""
    intents = list(SETS)
    names = ["p0", "p1", "p2", "p3"]
    tier_of = {name: draw(st.sampled_from(["first", "second"])) for name in names}
    for name in names:
        ingress, egress = numbered(draw(RULE_LISTS)), numbered(draw(RULE_LISTS))
        intents.append(PolicyUpdate(policy_key(name), tier_of[name], ingress, egress))
    for name in ("q0", "q1"):
        intents.append(ProfileUpdate(name, numbered(draw(RULE_LISTS)), numbered(draw(RULE_LISTS))))
    tiers = tuple(
        TierPolicies(
            tier,
            _some(draw, names, tier_of, tier),
            _some(draw, names, tier_of, tier),
            draw(st.booleans()),
        )
        for tier in ("first", "second")
    )
    profiles = tuple(draw(lists(["q0", "q1"])))
    nets = (f"{A[0]}/32", f"{A[1]}/128")
    intents.append(WorkloadEndpointUpdate(workload_key("a"), "cali1", "", nets, profiles, tiers))
    return intents


def _some(
    draw: st.DrawFn, names: list[str], tier_of: dict[str, str], tier: str
) -> tuple[ResourceKey, ...]:
    chosen = [name for name in names if tier_of[name] == tier and draw(st.booleans())]
    return tuple(policy_key(name) for name in chosen)


def probes() -> list[Packet]:
    found = []
    for addresses, own in ((V4, A[0]), (V6, A[1])):
        for other in addresses:
            for protocol in (6, 17, 47):
                for sport, dport in ((40000, 80), (40000, 53), (53, 81), (80, 7)):
                    found.append(Packet(other, own, protocol, sport=sport, dport=dport))
            icmp = 1 if "." in own else 58
            for kind, code in ((8, 0), (3, 4), (3, 1), (128, 0)):
                found.append(Packet(other, own, icmp, icmp_type=kind, icmp_code=code))
    return found


PROBES = probes()
PORT_PROTOCOLS = (6, 17, 132)


def expected(plane: FakeDataplane, direction: Direction, probe: Packet) -> str:
    found = outcome(plane.contents(), workload_key("a"), direction, in_words(probe))
    return "accept" if found is Outcome.ALLOW else "drop"


def in_words(probe: Packet) -> policy.Packet:
    """The same packet for the interpreter and the evaluator."""
    ends = net.parse_ip(probe.src), net.parse_ip(probe.dst)
    if probe.number in PORT_PROTOCOLS:
        return policy.Packet(*ends, probe.number, probe.sport, probe.dport)
    if probe.number in (1, 58):
        kind, code = probe.icmp_type, probe.icmp_code
        return policy.Packet(*ends, probe.number, icmp_type=kind, icmp_code=code)
    return policy.Packet(*ends, probe.number)


def reply(probe: Packet) -> Packet:
    return replace(probe, src=probe.dst, dst=probe.src)


@contextmanager
def node_with(intents: Iterable[Intent]) -> Iterator[FakeNode]:
    node = FakeNode()
    try:
        result = asyncio.run(node.push(*intents))
        assert (result.failed, result.deferred) == (0, 0), result.error
        yield node
    finally:
        node.kernel.close()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(full_rules().filter(lambda rule: rule.action is not Action.LOG))
def test_one_rule_matches_what_it_says(rule: CompiledRule):
    plane = FakeDataplane()
    plane.apply(SETS)
    rule = replace(rule, action=Action.ALLOW)
    nets = (f"{A[0]}/32", f"{A[1]}/128")
    endpoint = WorkloadEndpointUpdate(workload_key("a"), "cali1", "", nets, ("p",), ())
    with node_with([*SETS, ProfileUpdate("p", (rule,), ()), endpoint]) as node:
        for probe in PROBES:
            expected = matches(plane.contents(), rule, in_words(probe))
            assert (node.fake.forward(probe, "eth0", "cali1") == "accept") == expected, probe


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_rules_in_the_kernel_decide_as_intents_say(world: list[Intent]):
    plane = FakeDataplane()
    plane.apply(world)
    with node_with(world) as node:
        _compare(plane, node)


def _compare(plane: FakeDataplane, node: FakeNode) -> None:
    for probe in PROBES:
        into = node.fake.forward(probe, "eth0", "cali1")
        assert into == expected(plane, Direction.INGRESS, probe), ("ingress", probe)
        out = reply(probe)
        sent = node.fake.forward(out, "cali1", "eth0")
        assert sent == expected(plane, Direction.EGRESS, out), ("egress", out)


# ----------------------------------------------------- the whole way: from objects to verdicts


def clusters() -> st.SearchStrategy[dict[ResourceKey, object]]:
    """Later objects replace earlier ones of the same key."""
    some = calc_strategies
    anything = (
        some.workloads()
        | some.workloads()
        | some.network_policies()
        | some.network_policies()
        | some.global_policies()
        | some.network_policies(calc.snp)
        | some.profiles()
        | some.network_sets()
        | some.tiers()
    )
    return st.lists(anything, min_size=4, max_size=14).map(dict)


@st.composite
def sent(draw: st.DrawFn) -> Packet:
    is_v6 = draw(st.booleans())
    addresses = calc_strategies.V6_ADDRESSES if is_v6 else calc_strategies.V4_ADDRESSES
    unknown = "2001:db8:ffff::9" if is_v6 else "203.0.113.9"
    src, dst = (draw(st.sampled_from([*addresses, unknown])) for _ in range(2))
    protocol = draw(st.sampled_from([6, 6, 17, 132, 47, 4, 58 if is_v6 else 1]))
    ports = st.sampled_from([80, 53, 85, 4000, 4789])
    kind, code = draw(st.sampled_from([8, 128, 3, 135])), draw(st.sampled_from([0, 1]))
    return Packet(src, dst, protocol, draw(ports), draw(ports), kind, code)


def interface_of(node: Any, address: str) -> str:
    """Where the node has this address: the interface of the local workload, or the uplink."""
    endpoints = node.managers[2]._held.values()  # type: ignore[attr-defined]
    bits = 128 if ":" in address else 32
    owners = [e.interface for e in endpoints if f"{address}/{bits}" in e.nets]
    return min(owners, default="eth0")


def is_contested(cluster: dict[ResourceKey, object]) -> bool:
    """Two workloads with one address or interface: whose verdict it is depends on routing."""
    seen: list[str] = []
    for key, value in cluster.items():
        if key.kind == "WorkloadEndpoint" and value.spec.node == calc.HERE:  # type: ignore[attr-defined]
            seen += [*value.spec.ip_networks, value.spec.interface_name]  # type: ignore[attr-defined]
    return len(seen) != len(set(seen))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cluster=clusters(), packets=st.lists(sent(), min_size=6, max_size=12))
def test_packets_meet_what_the_objects_say(cluster, packets: list[Packet]):
    assume(not is_contested(cluster))
    rig = calc.Rig(*cluster.items())
    contents = rig.contents
    intents = [
        *(SetUpdate(name, kind, members) for name, (kind, members) in contents.sets.items()),
        *contents.policies.values(),
        *contents.profiles.values(),
        *contents.endpoints.values(),
    ]
    with node_with(intents) as node:
        compare_with_objects(cluster, node, packets)


def compare_with_objects(
    cluster: dict[ResourceKey, object], node: Any, packets: list[Packet]
) -> None:
    local = {key: value for key, value in cluster.items() if _is_local(key, value)}
    world = world_of(cluster.values(), settings=Settings())
    for probe in packets:
        iif, oif = interface_of(node, probe.src), interface_of(node, probe.dst)
        if iif == "eth0" and any(_owns(v, probe.src) for k, v in cluster.items()):
            continue  # a remote workload: its own node polices what it sends
        verdict = evaluate_packet(world, in_words(probe))
        remote = oif == "eth0" and any(_owns(v, probe.dst) for k, v in cluster.items())
        allowed = verdict.egress.allowed if remote else verdict.allowed
        assert (node.fake.forward(probe, iif, oif) == "accept") == allowed, (probe, verdict)
        for key, value in local.items():
            if iif != "eth0" and _owns(value, probe.src):
                to_host = evaluate_to_host(world, key, in_words(probe))
                delivered = node.fake.deliver(probe, iif) == "accept"
                assert delivered == to_host.allowed, (probe, to_host)


def _is_local(key: ResourceKey, value: object) -> bool:
    return key.kind == "WorkloadEndpoint" and value.spec.node == calc.HERE  # type: ignore[attr-defined]


def _owns(value: object, address: str) -> bool:
    nets = getattr(value.spec, "ip_networks", ())  # type: ignore[attr-defined]
    return any(net.parse_ip(address) in net.parse_cidr_or_ip(text) for text in nets)
