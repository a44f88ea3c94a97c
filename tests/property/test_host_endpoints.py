"""Packets by host interfaces: the rules in the (fake) kernel against the objects, all stages.

Random clusters with host endpoints, and random packets to this host, from it and through it. One
reading is tests.support.host_oracle's; the other way goes through calc, rules, netlink encoder and
the fake kernel. (tests/netns/test_host_verdicts.py: a sample of real packets.)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from felix.rules.settings import DenyAction, HostAction, RuleSettings
from libcalico import net
from libcalico.model import WorkloadEndpoint
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Reason, Stage, evaluate_packet
from libcalico.policy.packet import Packet as Words
from libcalico.testing.fakenft import Packet
from tests.support.calc import HERE
from tests.support.calc_random import UNKNOWN, Maker
from tests.support.host_oracle import Oracle, host_cluster, intents_of, some_packet
from tests.support.nft import FakeNode

INTERFACES = ("eth0", "eth1", "eth2")
PACKETS = 12


@dataclass(frozen=True)
class Scene:
    maker: Maker
    oracle: Oracle
    node: FakeNode
    cluster: Mapping[ResourceKey, object]


@contextmanager
def scene(seed: int) -> Iterator[Scene]:
    maker = Maker(seed)
    cluster = host_cluster(maker)
    deny = DenyAction.REJECT if seed % 2 else DenyAction.DROP
    node = FakeNode(RuleSettings(deny_action=deny, endpoint_to_host=HostAction.ACCEPT))
    try:
        result = asyncio.run(node.push(*intents_of(cluster)))
        assert (result.failed, result.deferred) == (0, 0), result.error
        yield Scene(maker, Oracle.of(cluster), node, cluster)
    finally:
        node.kernel.close()


def on_the_wire(packet: Words) -> Packet:
    return Packet(
        str(packet.source),
        str(packet.destination),
        packet.protocol,
        packet.source_port or 0,
        packet.destination_port or 0,
        packet.icmp_type or 0,
        packet.icmp_code or 0,
    )


def compare(found: Scene) -> None:
    oracle, fake = found.oracle, found.node.fake
    for _ in range(PACKETS):
        packet = some_packet(found.maker)
        wire = on_the_wire(packet)
        one, other = found.maker._pick(INTERFACES), found.maker._pick(INTERFACES)
        delivered = fake.deliver(wire, one) == "accept"
        assert delivered == oracle.to_host(one, packet), ("to host", one, packet)
        sent = fake.originate(wire, one) == "accept"
        assert sent == oracle.from_host(one, packet), ("from host", one, packet)
        forwarded = fake.forward(wire, one, other) == "accept"
        expected = oracle.comes_in(one, packet) and oracle.goes_out(other, packet)
        assert forwarded == expected, ("forwarded", one, other, packet)


def compare_with_workloads(found: Scene) -> None:
    """Forwarded between a host interface and a workload: both have their say."""
    for address, ifname in _local_workloads(found.cluster):
        version = 6 if ":" in address else 4
        for _ in range(PACKETS // 4):
            packet = some_packet(found.maker)
            if packet.version != version:
                continue
            _compare_with_workload(found, packet, (address, ifname), UNKNOWN[version])


def _local_workloads(cluster: Mapping[ResourceKey, object]) -> list[tuple[str, str]]:
    """Their addresses, each with its interface."""
    here = [found for found in cluster.values() if isinstance(found, WorkloadEndpoint)]
    found = [
        (cidr.split("/")[0], workload.spec.interface_name)
        for workload in here
        if workload.spec.node == HERE
        for cidr in workload.spec.ip_networks
    ]
    return [pair for pair in found if pair[1]]


def _compare_with_workload(
    found: Scene, packet: Words, workload: tuple[str, str], outside: str
) -> None:
    address, cali = workload
    oracle, fake, eth = found.oracle, found.node.fake, found.maker._pick(INTERFACES)
    into = on_the_wire(packet)
    into = Packet(outside, address, into.number, into.sport, into.dport, into.icmp_type)
    words = _words(into)
    verdict = evaluate_packet(oracle.world, words)
    expected = oracle.comes_in(eth, words) and verdict.allowed
    assert (fake.forward(into, eth, cali) == "accept") == expected, ("to workload", eth, into)
    out = Packet(address, outside, into.number, into.sport, into.dport, into.icmp_type)
    words = _words(out)
    verdict = evaluate_packet(oracle.world, words)
    expected = verdict.allowed and oracle.goes_out(eth, words)
    assert (fake.forward(out, cali, eth) == "accept") == expected, ("from workload", eth, out)


def _words(packet: Packet) -> Words:
    ends = net.parse_ip(packet.src), net.parse_ip(packet.dst)
    if packet.number in (6, 17, 132):
        return Words(*ends, packet.number, packet.sport, packet.dport)
    if packet.number in (1, 58):
        return Words(*ends, packet.number, icmp_type=packet.icmp_type, icmp_code=0)
    return Words(*ends, packet.number)


SEEDS = st.integers(0, 2**64)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_packets_by_host_interfaces_meet_what_the_objects_say(seed: int):
    with scene(seed) as found:
        compare(found)
        compare_with_workloads(found)


def test_the_random_clusters_exercise_every_stage():
    """The odds are part of the test: a stage that nothing decides at proves nothing."""
    seen: Counter[tuple[Stage, Reason]] = Counter()
    for seed in range(40):
        with scene(seed) as found:
            compare(found)
            seen += found.oracle.seen
    for stage in Stage:
        assert seen[stage, Reason.RULE] > 20, (stage, seen)
    for stage in (Stage.UNTRACKED, Stage.PRE_DNAT, Stage.NORMAL):
        assert seen[stage, Reason.FAILSAFE] > 10, (stage, seen)
        assert seen[stage, Reason.NEIGHBOUR_DISCOVERY] > 2, (stage, seen)
    assert seen[Stage.NORMAL, Reason.PROFILE_RULE] > 10, seen
    assert seen[Stage.NORMAL, Reason.TIER_DEFAULT] > 10, seen
    assert seen[Stage.FORWARD, Reason.TIER_DEFAULT] > 10, seen
