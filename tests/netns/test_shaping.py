"""Bandwidth limits on a real kernel: exact parameters, packets held back, nothing of others harmed.

node: cali1 (10.65.0.1) -- eth0 (10.65.0.2) :pod
"""

from __future__ import annotations

import json
import socket

import pytest

from felix.dataplane.shaping import Shape, ifb_name, shape_of
from felix.dataplane.shaping_table import ShapingTable
from felix.intent import DirectionLimits, QosControls
from felix.kernel.shaping import KernelShaping
from felix.kernel.worker import KernelWorker
from libcalico.netlink import NetlinkSocket, TokenBucket, list_qdiscs
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    connect,
    eventually,
    why_unavailable,
)

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "ifb")), reason=why)

IFB = ifb_name("cali1")
SLOW = DirectionLimits(bits_per_s=80_000, burst_bits=16_000)
BOTH = QosControls(SLOW, SLOW)
DATAGRAMS = 200


class World:
    def __init__(self, node: Namespace, pod: Namespace) -> None:
        self.node, self.pod = node, pod
        connect(node, "cali1", pod, "eth0")
        add_addresses(node, "cali1", "10.65.0.1/24")
        add_addresses(pod, "eth0", "10.65.0.2/24")
        self._worker = KernelWorker()
        self._socket = NetlinkSocket.in_namespace(node.path)
        self.restart()

    def restart(self) -> None:
        self.table = ShapingTable(KernelShaping(self._worker, self._socket), ("cali",))

    async def want(self, controls: QosControls):
        self.table.set_shape("cali1", shape_of(controls, 1500))
        return await self.table.apply()

    def close(self) -> None:
        self._worker.close()
        self._socket.close()

    def bucket(self, ifname: str) -> TokenBucket | None:
        ifindex = self.node.link(ifname).ifindex
        found = [q.bucket for q in self.node.socket.query(list_qdiscs()) if q.ifindex == ifindex]
        return next((bucket for bucket in found if bucket), None)

    def held_back(self, ifname: str) -> int:
        """Packets the token bucket of an interface delayed or dropped."""
        shown = json.loads(self.node.run("tc", "-s", "-j", "qdisc", "show", "dev", ifname))
        return sum(q["overlimits"] + q["drops"] for q in shown if q["kind"] == "tbf")

    def state(self) -> str:
        shown = [self.node.run("tc", "-d", "qdisc"), self.node.run("ip", "-o", "link")]
        return "\n".join([*shown, self.node.run("tc", "filter", "show", "dev", "cali1", "ingress")])

    def exchange(self, source: Namespace, address: str, target: Namespace, to: str) -> int:
        """Datagrams that arrived at once."""

        def opened(where: str, port: int) -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((where, port))
            made.setblocking(False)
            return made

        server = target.call(lambda: opened(to, 7000))
        client = source.call(lambda: opened(address, 0))
        with server, client:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            client.setblocking(True)
            for _ in range(DATAGRAMS):
                client.sendto(bytes(500), (to, 7000))
            count = 0
            while True:
                try:
                    server.recv(1000)
                except BlockingIOError:
                    return count
                count += 1


@pytest.fixture
def world(netns: NamespaceSet):
    made = World(netns.make("node"), netns.make("pod"))
    yield made
    made.close()


async def test_both_directions_are_limited_with_exact_parameters(world: World):
    await world.want(BOTH)
    expected = shape_of(BOTH, 1500)
    assert expected == Shape(world.bucket("cali1"), world.bucket(IFB), 1500)
    shown = world.node.run("tc", "-d", "qdisc", "show", "dev", IFB)
    assert "rate 80Kbit burst 2000b" in shown
    world.exchange(world.node, "10.65.0.1", world.pod, "10.65.0.2")
    assert eventually(lambda: world.held_back("cali1") > 0)
    before = world.held_back(IFB)
    world.exchange(world.pod, "10.65.0.2", world.node, "10.65.0.1")
    assert eventually(lambda: world.held_back(IFB) > before)


async def test_without_controls_nothing_is_held_back(world: World):
    untouched = world.state()
    await world.want(QosControls())
    assert world.state() == untouched
    assert world.exchange(world.pod, "10.65.0.2", world.node, "10.65.0.1") == DATAGRAMS


async def test_a_fresh_process_writes_nothing(world: World):
    await world.want(BOTH)
    before = world.state()
    world.restart()
    result = await world.want(BOTH)
    assert (result.written, result.deleted, result.failed) == (0, 0, 0)
    assert world.state() == before


async def test_limits_that_go_leave_nothing(world: World):
    before = world.state()
    await world.want(BOTH)
    assert world.state() != before
    result = await world.want(QosControls())
    assert (result.deleted, result.failed) == (2, 0)
    assert world.state() == before


@pytest.mark.parametrize(
    "harm",
    [
        ("tc", "qdisc", "del", "dev", "cali1", "root"),
        ("tc", "qdisc", "del", "dev", "cali1", "ingress"),
        ("ip", "link", "del", IFB),
        ("ip", "link", "set", IFB, "down"),
        ("tc", "qdisc", "del", "dev", IFB, "root"),
    ],
    ids=["bucket", "ingress", "ifb", "down", "ifb bucket"],
)
async def test_what_others_break_is_repaired(world: World, harm: tuple[str, ...]):
    await world.want(BOTH)
    world.node.run(*harm)
    world.table.queue_resync("test")
    assert (await world.table.apply()).failed == 0
    world.restart()
    result = await world.want(BOTH)
    assert (result.written, result.failed) == (0, 0)


async def test_a_bandwidth_plugins_qdisc_is_left_alone(world: World):
    """The chained plugin puts a tbf under handle 1: and a redirection of its own."""
    bucket = "root handle 1: tbf rate 1mbit burst 9k lat 25ms"
    world.node.run("tc", "qdisc", "add", "dev", "cali1", *bucket.split())
    world.node.run("ip", "link", "add", "bwp1", "type", "ifb")
    world.node.run("tc", "qdisc", "add", "dev", "cali1", "ingress")
    redirect = "dev cali1 ingress u32 match u32 0 0 action mirred egress redirect dev bwp1"
    world.node.run("tc", "filter", "add", *redirect.split())
    before = world.state()
    result = await world.want(BOTH)
    assert (result.failed, result.deferred) == (0, 2)
    assert "another program" in world.table.problem("cali1")
    await world.want(QosControls())
    assert world.state() == before


async def test_the_ifb_goes_with_its_interface(world: World):
    await world.want(BOTH)
    world.node.run("ip", "link", "del", "cali1")
    world.table.forget_written("cali1")
    assert (await world.want(QosControls())).failed == 0
    assert IFB not in world.node.run("ip", "-o", "link")
