"""Faults of a cluster's life at the size named: many restarts, nodes that come and go, a reader
of one byte a second. BIRD is the foreign side."""

from __future__ import annotations

import os
import socket
import struct
import threading

from bgp.rib.nlri import IPV4
from bgp.rib.update import HEADER_BYTES, message
from tests.bench.bgp_load import open_message
from tests.peers.base import Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp
from tests.support.netns import eventually

CYCLES = int(os.environ.get("BRINDLE_PEER_CYCLES", "100"))


def test_a_hundred_changes_of_the_wanted_set_end_with_exactly_that_set(fabric: Fabric):
    """Four nodes are added and removed CYCLES times without a pause; one stays and notices
    nothing. Then the sessions are the wanted set within 5 s."""
    ours = CalicoBgp(fabric, 1, blocks=("10.65.1.0/26",))
    steady, *others = birds = [Bird(fabric, n, routes=(f"10.65.{n}.0/26",)) for n in range(2, 7)]
    for bird in birds:
        bird.configure(Neighbour(ours.v4, is_passive=True))
        bird.start()
    ours.configure(Neighbour(steady.v4))
    ours.start()
    ours.wait_established(steady.v4)
    since = ours.uptime_since(steady.v4)
    wanted = [steady]
    for cycle in range(CYCLES):
        wanted = [steady, *(b for n, b in enumerate(others) if (cycle >> (n % 2)) + n & 1)]
        ours.configure(*(Neighbour(bird.v4) for bird in wanted))
        # Each is taken over: a burst of signals is not one change.
        names = {bird.v4 for bird in wanted}
        assert eventually(lambda n=names: {p["address"] for p in ours.ask("peers")["peers"]} == n)
        if cycle % 25 == 24:
            ours.wait_established(*names)

    def is_right() -> bool:
        found = {p["address"]: p["state"] for p in ours.ask("peers")["peers"]}
        return found == {bird.v4: "Established" for bird in wanted}

    assert 1 < len(wanted) < len(birds)
    assert eventually(is_right, timeout_s=5), ours.ask("peers")
    assert ours.uptime_since(steady.v4) == since
    wanted_routes = {bird.routes[0] for bird in wanted}
    assert eventually(lambda: ours.learned() == wanted_routes, timeout_s=5), ours.learned()
    for bird in birds:
        if bird in wanted:
            bird.wait_learned("10.65.1.0/26")
        else:
            bird.wait_forgotten("10.65.1.0/26")


class Dripper:
    """A peer whose socket is read one byte a second; KEEPALIVEs keep the session."""

    def __init__(self, fabric: Fabric, number: int, server: str) -> None:
        self._netns = fabric.namespace(number)
        self.address = f"10.99.0.{number}"
        self._sock = self._netns.call(lambda: self._connect(server))
        self._ended = threading.Event()
        self.read = 0
        self._thread = threading.Thread(target=self._drip)

    def _connect(self, server: str) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        made.settimeout(10)
        made.bind((self.address, 0))
        made.connect((server, 179))
        return made

    def establish(self) -> None:
        hello = bytearray(open_message(self.address, IPV4))
        struct.pack_into("!H", hello, HEADER_BYTES + 3, 9)
        self._sock.sendall(bytes(hello) + message(4, b""))
        self._thread.start()

    def _drip(self) -> None:
        while not self._ended.wait(1.0):
            self.read += len(self._sock.recv(1))
            self._sock.sendall(message(4, b""))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._sock.close()


def test_a_peer_that_reads_a_byte_a_second_delays_nobody(fabric: Fabric):
    ours = CalicoBgp(fabric, 1)
    many = tuple(f"10.65.{n >> 2}.{(n & 3) << 6}/26" for n in range(1000))
    bird, other = Bird(fabric, 2, routes=many), Bird(fabric, 4)
    ours.configure(
        Neighbour(bird.v4, is_client=True),
        Neighbour("10.99.0.3", is_client=True, is_passive=True, hold_s=9),
        Neighbour(other.v4, is_client=True),
    )
    for made in (bird, other):
        made.configure(Neighbour(ours.v4, is_passive=True))
        made.start()
    ours.start()
    ours.wait_established(bird.v4, other.v4)
    dripper = Dripper(fabric, 3, ours.v4)
    dripper.establish()
    try:
        ours.wait_established(dripper.address)
        other.wait_learned(*many)
        for turn in range(20):
            bird.announce(*many[turn % 2 :: 2], f"10.65.254.{turn}/32")
            bird.configure(Neighbour(ours.v4, is_passive=True))
            other.wait_learned(f"10.65.254.{turn}/32", timeout_s=5)
        assert eventually(lambda: dripper.read >= 4, timeout_s=10)
        assert ours.established(dripper.address), ours.peer(dripper.address)
        assert ours.established(other.v4)
    finally:
        dripper.close()


def test_a_flushed_table_is_whole_again_within_half_a_second(fabric: Fabric):
    ours, bird = CalicoBgp(fabric, 1), Bird(fabric, 2)
    theirs = [*(f"10.65.{n}.0/26" for n in range(2, 52)), "fd65::200/122", "fd65::240/122"]
    bird.announce(*theirs)
    ours.configure(Neighbour(bird.v4))
    bird.configure(Neighbour(ours.v4, is_passive=True))
    bird.start()
    ours.start()
    ours.wait_learned(*theirs)

    def in_kernel() -> int:
        shown = [ours.netns.run("ip", v, "route", "show", "proto", "bgp") for v in ("-4", "-6")]
        return sum(text.count(" via ") for text in shown)

    assert eventually(lambda: in_kernel() == len(theirs))
    for version in ("-4", "-6"):
        ours.netns.run("ip", version, "route", "flush", "proto", "bgp")
        assert eventually(lambda: in_kernel() == len(theirs), timeout_s=0.5), in_kernel()
