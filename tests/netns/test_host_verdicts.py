"""A sample of random packets by host interfaces, real ones through the real kernel, both families.

    wire -- eth0, eth1 -- node, whose address is 192.0.2.1, 2001:db8::1

Random clusters as in tests/property/test_host_endpoints.py; the oracle reads the objects. Packets
to the node and forwarded from eth0 to eth1; what it sends is sampled in test_host_endpoints.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from felix.kernel.nft import NftKernel
from felix.rules.settings import DenyAction, RuleSettings
from libcalico import net
from libcalico.policy.packet import Packet
from tests.support.calc_random import ADDRESSES, Maker
from tests.support.host_oracle import Oracle, host_cluster, intents_of, some_packet
from tests.support.injection import Injector, Watch, is_sendable, mac_of, wire
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    connect,
    eventually,
    why_unavailable,
)
from tests.support.nft import Node

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "nft")), reason=why)

OWN = {4: net.parse_ip("192.0.2.1"), 6: net.parse_ip("2001:db8::1")}
PACKETS = 40
SEEDS = range(30)
# Who a packet is forwarded to need not exist.
NEIGHBOUR_MAC = "02:00:00:00:00:99"


@dataclass(frozen=True)
class World:
    node: Namespace
    injector: Injector


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with NamespaceSet() as netns:
        node, outside = netns.make("node"), netns.make("outside")
        for namespace in (node, outside):
            namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")
        for ifname in ("eth0", "eth1"):
            connect(node, ifname, outside, ifname)
            node.sysctl(f"net/ipv4/conf/{ifname}/rp_filter", "0")
        node.sysctl("net/ipv4/conf/all/rp_filter", "0")
        node.sysctl("net/ipv4/ip_forward", "1")
        node.sysctl("net/ipv6/conf/all/forwarding", "1")
        add_addresses(node, "lo", "192.0.2.1/32", "2001:db8::1/128")
        for family, gateway in (("-4", "198.51.100.9"), ("-6", "2001:db8:1::9")):
            way = ("via", gateway, "dev", "eth1", "onlink")
            node.run("ip", family, "route", "add", "default", *way)
            node.run("ip", "neigh", "add", gateway, "lladdr", NEIGHBOUR_MAC, "dev", "eth1")
        injector = Injector(outside, "eth0", mac_of(node, "eth0"))
        yield World(node, injector)
        injector.close()


def sample(maker: Maker) -> dict[int, Packet]:
    """Numbered packets, each of a connection of its own: half of them for the node itself."""
    found: dict[int, Packet] = {}
    used: set[frozenset[object]] = set()
    for number in range(1, 40 * PACKETS):
        packet = some_packet(maker)
        if number % 2:
            packet = _with_destination(packet, OWN[packet.version])
        connection = frozenset(
            [(packet.source, packet.source_port), (packet.destination, packet.destination_port),
             (packet.protocol, packet.icmp_type)]
        )  # fmt: skip
        is_own_source = packet.source == OWN[packet.version]
        if is_own_source or not is_sendable(packet) or connection in used:
            continue
        used.add(connection)
        found[number] = packet
        if len(found) == PACKETS:
            break
    return found


def _with_destination(packet: Packet, destination: net.Address) -> Packet:
    return Packet(
        packet.source,
        destination,
        packet.protocol,
        packet.source_port,
        packet.destination_port,
        packet.icmp_type,
        packet.icmp_code,
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_real_packets_meet_what_the_objects_say(world: World, seed: int):
    maker = Maker(seed)
    cluster = host_cluster(maker)
    oracle = Oracle.of(cluster)
    world.node.run("nft", "flush ruleset")
    world.node.run("conntrack", "-F")
    watch = Watch(world.node)
    kernel = NftKernel.in_namespace(world.node.path)
    try:
        deny = DenyAction.REJECT if seed % 2 else DenyAction.DROP
        result = await Node(kernel, RuleSettings(deny_action=deny)).push(*intents_of(cluster))
        assert (result.failed, result.deferred) == (0, 0), result.error
        packets = sample(maker)
        for number, packet in packets.items():
            world.injector.send(wire(packet, number))
        assert eventually(lambda: packets.keys() <= watch.came())
        expected = {n for n, packet in packets.items() if _passes(oracle, packet)}
        passed = watch.passed() & packets.keys()
        lost = {n: packets[n] for n in expected - passed}
        leaked = {n: packets[n] for n in passed - expected}
        assert (lost, leaked) == ({}, {})
    finally:
        kernel.close()


def _passes(oracle: Oracle, packet: Packet) -> bool:
    if packet.destination == OWN[packet.version]:
        return oracle.to_host("eth0", packet)
    return oracle.comes_in("eth0", packet) and oracle.goes_out("eth1", packet)


def test_the_sample_is_of_both_kinds_and_families():
    assert str(OWN[4]) in ADDRESSES[4]
    packets = [packet for seed in SEEDS for packet in sample(Maker(seed)).values()]
    local = sum(packet.destination == OWN[packet.version] for packet in packets)
    six = sum(packet.version == 6 for packet in packets)
    assert len(packets) > 250
    assert local > 60
    assert len(packets) - local > 60
    assert six > 50
