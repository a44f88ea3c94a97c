"""Packets by host interfaces: the rules in the (fake) kernel against the objects, all stages.

Random clusters with host endpoints, and random packets to this host, from it and through it. The
evaluator of libcalico.policy reads the objects, stage by stage; what the stages make of each other
(what is allowed early is not asked again, who governs which interface) is said here once more, in
its plainest form. The other way goes through calc, rules, netlink encoder and the fake kernel.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from felix.intent import SetUpdate
from felix.rules.settings import DenyAction, HostAction, RuleSettings
from felix.testing.dataplane import Contents
from libcalico import net
from libcalico.model import HostEndpoint, WorkloadEndpoint
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import (
    Outcome,
    Reason,
    Stage,
    Verdict,
    evaluate_endpoint,
    evaluate_packet,
)
from libcalico.policy.packet import ICMPV6, Direction
from libcalico.policy.packet import Packet as Words
from libcalico.policy.world import World, world_of
from libcalico.testing.fakenft import Packet
from tests.support import calc
from tests.support.calc import HERE, Object, Rig
from tests.support.calc_random import UNKNOWN, Maker
from tests.support.nft import FakeNode

INTERFACES = ("eth0", "eth1", "eth2")
PACKETS = 12
# What the random packets of Maker have too rarely: (protocol, ports or ICMP type).
NEEDED = ((6, 22), (6, 179), (17, 53), (17, 68), (132, 22))
FLAGS: Mapping[str, dict[str, object]] = {
    "normal": {},
    "forward": {"apply_on_forward": True},
    "untracked": {"do_not_track": True, "apply_on_forward": True},
    "pre-dnat": {"pre_dnat": True, "apply_on_forward": True, "types": ("Ingress",), "egress": ()},
}


@dataclass
class Oracle:
    """What the objects say; counts what decided."""

    world: World
    endpoints: Mapping[ResourceKey, HostEndpoint]
    seen: Counter[tuple[Stage, Reason]] = field(default_factory=Counter)

    def governing(self, ifname: str) -> ResourceKey | None:
        """Datamodel 5.4: by name, else `*`; of several the smallest name."""
        for wanted in (ifname, "*"):
            named = [key.name for key, found in self.endpoints.items() if _is_for(found, wanted)]
            if named:
                return ResourceKey(HostEndpoint.kind, min(named))
        return None

    def ask(self, key: ResourceKey, stage: Stage, way: Direction, packet: Words) -> Verdict:
        verdict = evaluate_endpoint(self.world, key, way, packet, stage=stage)
        self.seen[stage, verdict.reason] += 1
        return verdict

    def early(self, key: ResourceKey, packet: Words) -> bool | None:
        """The two stages before routing: allowed for good, denied, or (None) not decided."""
        for stage in (Stage.UNTRACKED, Stage.PRE_DNAT):
            verdict = self.ask(key, stage, Direction.INGRESS, packet)
            if verdict.outcome is Outcome.DENY:
                return False
            if verdict.reason is Reason.RULE:
                return True
        return None

    def to_host(self, ifname: str, packet: Words) -> bool:
        key = self.governing(ifname)
        if key is None:
            return True
        decided = self.early(key, packet)
        if decided is not None:
            return decided
        return self.ask(key, Stage.NORMAL, Direction.INGRESS, packet).allowed

    def from_host(self, ifname: str, packet: Words) -> bool:
        key = self.governing(ifname)
        if key is None:
            return True
        verdict = self.ask(key, Stage.UNTRACKED, Direction.EGRESS, packet)
        if verdict.outcome is Outcome.DENY or verdict.reason is Reason.RULE:
            return verdict.allowed
        return self.ask(key, Stage.NORMAL, Direction.EGRESS, packet).allowed

    def comes_in(self, ifname: str, packet: Words) -> bool:
        """Forwarded, as far as the interface it came by is concerned."""
        key = self.governing(ifname)
        if key is None:
            return True
        decided = self.early(key, packet)
        return self._passes(key, Direction.INGRESS, packet) if decided is None else decided

    def goes_out(self, ifname: str, packet: Words) -> bool:
        key = self.governing(ifname)
        return key is None or self._passes(key, Direction.EGRESS, packet)

    def _passes(self, key: ResourceKey, way: Direction, packet: Words) -> bool:
        """The forward stage: what is not decided goes on to other people's rules."""
        return self.ask(key, Stage.FORWARD, way, packet).outcome is not Outcome.DENY


def _is_for(endpoint: HostEndpoint, ifname: str) -> bool:
    return endpoint.spec.interface_name == ifname


@dataclass(frozen=True)
class Scene:
    maker: Maker
    oracle: Oracle
    node: FakeNode
    cluster: Mapping[ResourceKey, object]


@contextmanager
def scene(seed: int) -> Iterator[Scene]:
    maker = Maker(seed)
    cluster = maker.cluster()
    cluster |= dict(_more(maker))
    contents = Rig(*cluster.items()).contents
    local = {
        key: found
        for key, found in cluster.items()
        if isinstance(found, HostEndpoint) and found.spec.node == HERE
    }
    deny = DenyAction.REJECT if seed % 2 else DenyAction.DROP
    node = FakeNode(RuleSettings(deny_action=deny, endpoint_to_host=HostAction.ACCEPT))
    try:
        result = asyncio.run(node.push(*_intents(contents)))
        assert (result.failed, result.deferred) == (0, 0), result.error
        yield Scene(maker, Oracle(world_of(cluster.values()), local), node, cluster)
    finally:
        node.kernel.close()


def _more(maker: Maker) -> Iterator[Object]:
    """Host endpoints and policies of every stage, more than a cluster usually has."""
    for _ in range(2):
        yield maker._host_endpoint()
    for name, flags in FLAGS.items():
        if maker._chance(0.7):
            yield calc.gnp(name, **maker._policy() | {"selector": "all()"} | flags)


def _intents(contents: Contents) -> list[object]:
    return [
        *(SetUpdate(name, kind, members) for name, (kind, members) in contents.sets.items()),
        *contents.policies.values(),
        *contents.profiles.values(),
        *contents.endpoints.values(),
    ]


def some_packet(maker: Maker) -> Words:
    packet = maker.packet()
    if packet.protocol == ICMPV6 and maker._chance(0.5):
        return Words(packet.source, packet.destination, ICMPV6, icmp_type=135, icmp_code=0)
    if packet.source_port is None or not maker._chance(0.4):
        return packet
    protocol, port = maker._pick(NEEDED)
    ports = (port, 4000) if maker._chance(0.3) else (4000, port)
    return Words(packet.source, packet.destination, protocol, *ports)


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
