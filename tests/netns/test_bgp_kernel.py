"""bgp.kernel against a real kernel: programming, learning, repair, and other people's routes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bgp.eventloop import EventLoop
from bgp.kernel.side import KernelSide
from bgp.rib.nlri import parse
from bgp.rib.rib import Rib
from libcalico.model.speaker import LocalBlock, SpeakerConfig
from libcalico.netlink import LinkChange, change_link
from tests.support.netns import Namespace, NamespaceSet, add_addresses, connect, eventually
from tests.unit.bgp.builders import Wire, config, options

PEERS = ("10.0.0.2", "10.0.0.3")


class Host:
    """A node with one uplink, its RIB and kernel side, and the turns of the loop."""

    def __init__(self, node: Namespace, made: SpeakerConfig) -> None:
        self.node = node
        self.events = EventLoop()
        self.rib = Rib(made, now=time.monotonic())
        self.kernel = node.call(lambda: KernelSide(self.rib, self.events))
        self.kernel.start(time.monotonic())
        now = time.monotonic()
        self.wires = {address: Wire(self.rib, address).up(now=now) for address in PEERS}
        self.is_open = True

    def turn(self) -> None:
        now = time.monotonic()
        self.events.run_ready()
        self.rib.tick(now)
        self.kernel.before_flush(now)
        self.kernel.after_flush(self.rib.flush(), now)

    def until(self, cidr: str, *words: str, within_s: float = 5.0) -> None:
        """Turn until the kernel shows the prefix with these words (no words: until it is gone)."""

        def reached() -> bool:
            self.turn()
            shown = self.shown(cidr)
            return all(word in shown for word in words) if words else not shown

        assert eventually(reached, timeout_s=within_s), self.shown(cidr)

    def shown(self, cidr: str) -> str:
        family = "-6" if ":" in cidr else "-4"
        return self.node.run("ip", family, "route", "show", "exact", cidr).strip()

    def ip(self, *words: str) -> str:
        return self.node.run("ip", *words)

    def route(self, words: str) -> None:
        self.ip("route", *words.split())

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.kernel.close()
            self.events.close()


@pytest.fixture
def node(netns: NamespaceSet) -> Namespace:
    made, other = netns.make("node"), netns.make("other")
    for each in (made, other):
        each.sysctl("net/ipv6/conf/default/accept_dad", "0")
    connect(made, "eth0", other, "eth0")
    add_addresses(made, "eth0", "10.0.0.1/24", "fd00::1/64")
    add_addresses(other, "eth0", "10.0.0.2/24", "10.0.0.3/24", "fd00::2/64")
    connect(made, "eth1", other, "eth1")
    return made


@pytest.fixture
def host(node: Namespace) -> Iterator[Host]:
    made = Host(node, config(*(options(address) for address in PEERS)))
    yield made
    made.close()


ROUTES = [("10.65.2.0/26", "10.0.0.2"), ("fd65::200/122", "fd00::2")]


@pytest.mark.parametrize(("cidr", "hop"), ROUTES)
def test_a_learned_route_is_programmed_and_removed(host: Host, cidr: str, hop: str):
    wire = host.wires[PEERS[0]]
    wire.announce(cidr, next_hop=hop)
    host.until(cidr, f"via {hop}", "dev eth0", "proto bgp", "metric 1024")
    wire.withdraw(cidr)
    host.until(cidr)


@pytest.mark.parametrize(
    ("cidr", "hops"), [("10.65.2.0/26", PEERS), ("fd65::200/122", ("fd00::2", "fd00::3"))]
)
def test_two_next_hops_become_one_and_two_again(host: Host, cidr: str, hops: tuple[str, str]):
    one, two = (host.wires[address] for address in PEERS)
    one.announce(cidr, next_hop=hops[0])
    two.announce(cidr, next_hop=hops[1])
    host.until(cidr, f"via {hops[0]}", f"via {hops[1]}")
    two.withdraw(cidr)
    host.until(cidr, f"via {hops[0]}")
    assert hops[1] not in host.shown(cidr)
    two.announce(cidr, next_hop=hops[1])
    host.until(cidr, f"via {hops[0]}", f"via {hops[1]}")


@pytest.mark.parametrize(("cidr", "hop"), ROUTES)
def test_what_somebody_removes_is_back_within_half_a_second(host: Host, cidr: str, hop: str):
    host.wires[PEERS[0]].announce(cidr, next_hop=hop)
    host.until(cidr, f"via {hop}")
    host.ip("-6" if ":" in cidr else "-4", "route", "flush", "proto", "bgp")
    assert not host.shown(cidr)
    host.until(cidr, f"via {hop}", within_s=0.5)


def test_what_somebody_changes_is_right_again_within_half_a_second(host: Host):
    host.wires[PEERS[0]].announce("10.65.2.0/26")
    host.until("10.65.2.0/26", "via 10.0.0.2")
    host.route("change 10.65.2.0/26 via 10.0.0.3 proto bgp metric 1024")
    host.until("10.65.2.0/26", "via 10.0.0.2", within_s=0.5)


@pytest.mark.parametrize(("cidr", "hop"), ROUTES)
def test_other_peoples_routes_stay_and_ours_comes_when_they_go(host: Host, cidr: str, hop: str):
    family = "-6" if ":" in cidr else "-4"
    theirs = [family, "route", "add", "blackhole", cidr, "proto", "static", "metric", "1024"]
    host.ip(*theirs)
    host.wires[PEERS[0]].announce(cidr, next_hop=hop)
    host.until(cidr, "blackhole")
    for _ in range(5):
        host.turn()
    assert "proto static" in host.shown(cidr)
    assert "proto bgp" not in host.shown(cidr)
    host.ip(family, "route", "del", "blackhole", cidr, "metric", "1024")
    host.until(cidr, f"via {hop}", "proto bgp", within_s=0.5)


def test_a_foreign_route_of_another_metric_lives_beside_ours(host: Host):
    host.route("add 10.65.2.0/26 via 10.0.0.3 proto static metric 5")
    host.wires[PEERS[0]].announce("10.65.2.0/26")
    host.until("10.65.2.0/26", "via 10.0.0.2", "proto bgp", "proto static")
    host.wires[PEERS[0]].withdraw("10.65.2.0/26")
    host.until("10.65.2.0/26", "proto static")
    assert eventually(lambda: host.turn() or "proto bgp" not in host.shown("10.65.2.0/26"))


@pytest.mark.parametrize("cidr", ["10.65.1.0/26", "fd65::/122"])
def test_own_blocks_are_black_holes(host: Host, cidr: str):
    old = host.rib.config
    host.rib.configure(config(*old.peers, blocks=(LocalBlock(cidr=cidr),)))
    host.kernel.reconfigure(host.rib.config)
    host.until(cidr, "blackhole", "proto bgp", "metric 1024")
    host.ip("-6" if ":" in cidr else "-4", "route", "flush", "proto", "bgp")
    host.until(cidr, "blackhole", within_s=0.5)
    host.rib.configure(config(*old.peers))
    host.kernel.reconfigure(host.rib.config)
    host.until(cidr)


@pytest.mark.parametrize("cidr", ["10.65.9.9/32", "fd65::909/128"])
def test_local_workloads_are_learned_and_announced(host: Host, netns: NamespaceSet, cidr: str):
    pod = netns.make("pod")
    connect(host.node, "cali1", pod, "eth0")
    wire = host.wires[PEERS[0]]
    family = "-6" if ":" in cidr else "-4"
    host.ip(family, "route", "add", cidr, "dev", "cali1", "proto", "3", "scope", "link")

    def told() -> bool:
        host.turn()
        wire.listen()
        return cidr in wire.holds

    assert eventually(told)
    assert host.shown(cidr).count("\n") == 0  # no route of ours beside felix's
    host.ip(family, "route", "del", cidr, "dev", "cali1")
    assert eventually(lambda: not told())


def test_a_next_hop_follows_the_routes_of_the_host(host: Host):
    host.wires[PEERS[0]].announce("10.65.2.0/26", next_hop="192.0.2.9")
    for _ in range(3):
        host.turn()
    assert not host.shown("10.65.2.0/26")
    host.route("add 192.0.2.0/24 via 10.0.0.2")
    host.until("10.65.2.0/26", "via 10.0.0.2", within_s=0.5)
    host.route("replace 192.0.2.0/24 via 10.0.0.3")
    host.until("10.65.2.0/26", "via 10.0.0.3", within_s=0.5)
    host.route("del 192.0.2.0/24")
    host.until("10.65.2.0/26", within_s=0.5)


def test_a_link_that_goes_down_and_comes_back(host: Host):
    """The kernel takes IPv4 routes away with the link and does not say so."""
    host.wires[PEERS[0]].announce("10.65.2.0/26")
    host.until("10.65.2.0/26", "via 10.0.0.2")
    host.node.socket.execute(change_link("eth0", LinkChange(is_up=False)))
    host.until("10.65.2.0/26")
    installed = host.kernel.writer.installed
    assert eventually(lambda: host.turn() or parse("10.65.2.0/26") not in installed)
    host.node.socket.execute(change_link("eth0", LinkChange(is_up=True)))
    host.until("10.65.2.0/26", "via 10.0.0.2")


def test_a_pods_link_that_goes_down_and_comes_back_at_once(host: Host, netns: NamespaceSet):
    """Nothing but the routes over it has changed by the time we look."""
    connect(host.node, "cali1", netns.make("pod"), "eth0")
    host.route("add 10.65.9.9/32 dev cali1")
    host.wires[PEERS[0]].announce("10.65.2.0/26", next_hop="10.65.9.9")
    host.until("10.65.2.0/26", "via 10.65.9.9 dev cali1")
    for is_up in (False, True):
        host.node.socket.execute(change_link("cali1", LinkChange(is_up=is_up)))
    assert not host.shown("10.65.2.0/26")
    host.route("add 10.65.9.9/32 dev cali1")
    host.until("10.65.2.0/26", "via 10.65.9.9 dev cali1")


def test_a_new_process_finds_what_the_old_one_left(host: Host):
    host.wires[PEERS[0]].announce("10.65.2.0/26", "10.65.3.0/26")
    host.until("10.65.3.0/26", "via 10.0.0.2")
    host.close()
    fresh = Host(host.node, host.rib.config)
    try:
        fresh.wires[PEERS[0]].announce("10.65.2.0/26")
        for _ in range(3):
            fresh.turn()
        assert "proto bgp" in fresh.shown("10.65.3.0/26")
        fresh.rib.deferral.holds_kernel = False
        fresh.until("10.65.3.0/26")
        assert "proto bgp" in fresh.shown("10.65.2.0/26")
    finally:
        fresh.close()


def test_ten_thousand_routes(host: Host):
    wire = host.wires[PEERS[0]]
    cidrs = [f"10.{64 + (n >> 8 & 63)}.{n & 255}.{n >> 14 << 6}/26" for n in range(10_000)]
    wire.announce(*cidrs)

    def count() -> int:
        host.turn()
        return len(host.ip("route", "show", "proto", "bgp").splitlines())

    assert eventually(lambda: count() == 10_000, timeout_s=20)
    host.ip("route", "flush", "proto", "bgp")
    assert eventually(lambda: count() == 10_000, timeout_s=20)
    host.rib.session_down(wire.peer, may_restart=False, now=0)
    assert eventually(lambda: count() == 0, timeout_s=20)
