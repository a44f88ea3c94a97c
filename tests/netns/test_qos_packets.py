"""Packet rates, connection limits and DSCP marks as packets meet them.

pod (10.65.0.2, fd00::2) -- cali1 - node - eth0 -- remote (192.0.2.7, 2001:db8::7)
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from felix.intent import DirectionLimits, PoolUpdate, QosControls
from felix.kernel.nft import NftKernel
from libcalico.netlink import NextHop, Route, device_route, replace_route
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    connect,
    eventually,
    why_unavailable,
    wire_workload,
)
from tests.support.nft import Node, allow_all_profile, workload

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "nft")), reason=why)

POD_NETS = ("10.65.0.2/32", "fd00::2/128")
POD = workload("a", "cali1", *POD_NETS)
POOLS = (PoolUpdate("10.65.0.0/16", nat_outgoing=False), PoolUpdate("fd00::/64", False))
REMOTE = {4: "192.0.2.7", 6: "2001:db8::7"}
INSIDE = {4: "10.65.1.9", 6: "fd00::1:9"}  # another address of the remote, in a pool
POD_ADDRESS = {4: "10.65.0.2", 6: "fd00::2"}
AF = {4: socket.AF_INET, 6: socket.AF_INET6}
FAMILIES = [4, 6]


@dataclass(frozen=True, slots=True)
class World:
    node: Namespace
    pod: Namespace
    remote: Namespace


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with NamespaceSet() as netns:
        node, remote = netns.make("node"), netns.make("remote")
        for namespace in (node, remote):
            namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")
        connect(node, "eth0", remote, "eth0")
        add_addresses(node, "eth0", "192.0.2.1/24", "2001:db8::1/64")
        add_addresses(remote, "eth0", "192.0.2.7/24", "2001:db8::7/64")
        add_addresses(remote, "eth0", INSIDE[4] + "/32", INSIDE[6] + "/128")
        node.sysctl("net/ipv4/ip_forward", "1")
        node.sysctl("net/ipv6/conf/all/forwarding", "1")
        _route(node, "0.0.0.0/0", "192.0.2.7")
        _route(node, "::/0", "2001:db8::7")
        _route(remote, "10.65.0.0/24", "192.0.2.1")
        _route(remote, "fd00::/112", "2001:db8::1")
        pod = wire_workload(node, netns.make("pod"), "cali1", *POD_NETS)
        node.sysctl("net/ipv4/conf/cali1/proxy_arp", "1")
        node.sysctl("net/ipv4/neigh/cali1/proxy_delay", "0")
        ifindex = node.link("cali1").ifindex
        node.socket.execute(
            *(replace_route(device_route(n, ifindex, protocol=3)) for n in POD_NETS)
        )
        yield World(node, pod, remote)


def _route(namespace: Namespace, destination: str, gateway: str) -> None:
    hop = NextHop(namespace.link("eth0").ifindex, gateway)
    namespace.socket.execute(replace_route(Route(destination, (hop,))))


class Rig:
    def __init__(self, world: World) -> None:
        self.world = world
        world.node.run("nft", "flush", "ruleset")
        self.node = Node(NftKernel.in_namespace(world.node.path))

    async def enforce(self, **controls: object) -> None:
        qos = QosControls(**controls)  # type: ignore[arg-type]
        result = await self.node.push(allow_all_profile(), *POOLS, replace(POD, qos=qos))
        assert (result.failed, result.deferred) == (0, 0), result.error

    def dropped(self, beginning: str) -> int:
        """What the counter of the one chain of that beginning has counted."""
        listed = json.loads(self.world.node.run("nft", "-j", "list", "table", "inet", "calico"))
        return sum(
            part["counter"]["packets"]
            for item in listed["nftables"]
            if item.get("rule", {}).get("chain", "").startswith(beginning)
            for part in item["rule"]["expr"]
            if "counter" in part
        )


@pytest.fixture
async def rig(world: World):
    made = Rig(world)
    yield made
    made.node.kernel.close()


def udp(namespace: Namespace, address: str = "", port: int = 0) -> socket.socket:
    def make() -> socket.socket:
        opened = socket.socket(AF[6 if ":" in address else 4], socket.SOCK_DGRAM)
        opened.bind((address, port))
        opened.setblocking(False)
        return opened

    return namespace.call(make)


def drain(opened: socket.socket) -> list[bytes]:
    """What has arrived by now."""
    found: list[bytes] = []
    while True:
        try:
            found.append(opened.recv(100))
        except BlockingIOError:
            return found


# -------------------------------------------------------------------------------- packet rate


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("direction", ["egress", "ingress"])
async def test_what_is_over_the_packet_rate_is_dropped_and_counted(
    rig: Rig, direction: str, family: int
):
    await rig.enforce(**{direction: DirectionLimits(packets_per_s=1, packet_burst=3)})
    places = [(rig.world.pod, POD_ADDRESS[family]), (rig.world.remote, REMOTE[family])]
    (source, source_address), (target, target_address) = (
        places if direction == "egress" else places[::-1]
    )
    sent, received = [b"%d" % number for number in range(100)], list[bytes]()
    word = "out" if direction == "egress" else "in"
    with udp(source, source_address) as client, udp(target, target_address, 7000) as server:
        for payload in sent:
            client.sendto(payload, (target_address, 7000))

        def is_all_accounted_for() -> bool:
            received.extend(drain(server))
            return len(received) + rig.dropped(f"packet-rate-{word}-cali1") >= len(sent)

        assert eventually(is_all_accounted_for)
    dropped = rig.dropped(f"packet-rate-{word}-cali1")
    assert len(received) + dropped == len(sent)
    assert received[:3] == sent[:3], "the burst"
    # A second and more per packet would have to pass for none to be dropped.
    assert dropped > 0


async def test_no_control_no_loss(rig: Rig):
    await rig.enforce()
    with (
        udp(rig.world.pod, POD_ADDRESS[4]) as client,
        udp(rig.world.remote, REMOTE[4], 7000) as server,
    ):
        for _ in range(50):
            client.sendto(b"x", (REMOTE[4], 7000))
        received: list[bytes] = []

        def has_all() -> bool:
            received.extend(drain(server))
            return len(received) == 50

        assert eventually(has_all)


# -------------------------------------------------------------------------------- connections


def listen(namespace: Namespace, address: str) -> socket.socket:
    def make() -> socket.socket:
        server = socket.socket(AF[6 if ":" in address else 4], socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.settimeout(5)
        server.bind((address, 7001))
        server.listen()
        return server

    return namespace.call(make)


def dial(namespace: Namespace, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """A connection, both ends. Errors: ConnectionRefusedError when it is reset."""

    def make() -> socket.socket:
        client = socket.socket(server.family, socket.SOCK_STREAM)
        client.settimeout(5)
        try:
            client.connect(server.getsockname()[:2])
        except OSError:
            client.close()
            raise
        return client

    return namespace.call(make), server.accept()[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("direction", ["egress", "ingress"])
async def test_a_connection_too_many_is_refused_until_one_closes(
    rig: Rig, direction: str, family: int
):
    await rig.enforce(**{direction: DirectionLimits(connections=2)})
    pod, remote = rig.world.pod, rig.world.remote
    client, address = (
        (pod, REMOTE[family]) if direction == "egress" else (remote, POD_ADDRESS[family])
    )
    with listen(remote if direction == "egress" else pod, address) as server:
        held = [dial(client, server) for _ in range(2)]
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                dial(client, server)
        for near, far in held:
            near.sendall(b"still here")
            assert far.recv(100) == b"still here"
        for end in held.pop():
            end.close()

        def is_allowed_again() -> bool:
            try:
                held.append(dial(client, server))
            except ConnectionRefusedError:
                return False
            return True

        assert eventually(is_allowed_again)
        with pytest.raises(ConnectionRefusedError):
            dial(client, server)
        for ends in held:
            for end in ends:
                end.close()


# --------------------------------------------------------------------------------------- DSCP


class Capture:
    """IP headers of UDP packets from the pod, as they arrive at the remote's interface."""

    def __init__(self, remote: Namespace, family: int) -> None:
        self._family = family
        ethertype = socket.htons(0x0800 if family == 4 else 0x86DD)

        def make() -> socket.socket:
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, ethertype)
            opened.bind(("eth0", 0))
            opened.settimeout(5)
            return opened

        self._socket = remote.call(make)

    def header(self) -> bytes:
        while True:
            packet = self._socket.recv(2000)
            if self._family == 4 and packet[9] == 17:
                return packet[:20]
            if self._family == 6 and packet[6] == 17:
                return packet[:40]

    def close(self) -> None:
        self._socket.close()


def traffic_class(header: bytes) -> int:
    if header[0] >> 4 == 4:
        words = [int.from_bytes(header[at : at + 2], "big") for at in range(0, 20, 2)]
        total = sum(words)
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF, "the header's checksum"
        return header[1]
    return int.from_bytes(header[:2], "big") >> 4 & 0xFF


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_mark_is_seen_outside_the_cluster_only(rig: Rig, family: int):
    await rig.enforce(dscp=46)
    capture = Capture(rig.world.remote, family)
    level, option = (socket.IPPROTO_IP, socket.IP_TOS) if family == 4 else (41, socket.IPV6_TCLASS)
    with (
        udp(rig.world.pod, POD_ADDRESS[family]) as client,
        udp(rig.world.remote, REMOTE[family], 7002) as server,
    ):
        client.setsockopt(level, option, 1)  # ECN: must survive
        client.sendto(b"x", (REMOTE[family], 7002))
        assert traffic_class(capture.header()) == 46 << 2 | 1
        assert eventually(lambda: drain(server) == [b"x"]), "and it was fit to be delivered"
        client.sendto(b"x", (INSIDE[family], 7002))
        assert traffic_class(capture.header()) == 1, "inside a pool"
        await rig.enforce()
        client.sendto(b"x", (REMOTE[family], 7002))
        assert traffic_class(capture.header()) == 1, "no control"
    capture.close()


async def test_a_restart_rewrites_nothing(rig: Rig):
    """So the counters of connections and rates go on."""
    limits = DirectionLimits(packets_per_s=100, packet_burst=10, connections=5)
    await rig.enforce(ingress=limits, egress=limits, dscp=10)
    before = rig.world.node.run("nft", "-a", "-s", "list", "ruleset")
    rig.node.kernel.close()
    rig.node = Node(NftKernel.in_namespace(rig.world.node.path))
    await rig.enforce(ingress=limits, egress=limits, dscp=10)
    assert rig.world.node.run("nft", "-a", "-s", "list", "ruleset") == before


async def test_controls_that_go_leave_no_rule(rig: Rig):
    await rig.enforce()
    before = rig.world.node.run("nft", "-s", "list", "ruleset")
    limits = DirectionLimits(packets_per_s=100, packet_burst=10, connections=5)
    await rig.enforce(ingress=limits, egress=limits, dscp=10)
    assert rig.world.node.run("nft", "-s", "list", "ruleset") != before
    await rig.enforce()
    after = rig.world.node.run("nft", "-s", "list", "ruleset")
    assert sorted(after.splitlines()) == sorted(before.splitlines())
