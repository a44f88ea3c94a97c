"""Peers that misbehave: what they send is judged, what they do not read waits, others stay well."""

from __future__ import annotations

import select
import socket
import struct
import time
from pathlib import Path

import pytest

from bgp.rib.attributes import AS_SEQUENCE, PathAttributes, Segment, encode
from bgp.rib.nlri import IPV4, parse
from bgp.rib.update import HEADER_BYTES, UPDATE, message, pack_announce, pack_withdraw
from bgp.rib.update import parse as parse_update
from tests.bench.bgp_load import open_message
from tests.peers.base import Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp
from tests.support.netns import Namespace, eventually

KEEPALIVE = message(4, b"")


class RawPeer:
    """A peer that says exactly what it is told to, and reads only when asked."""

    def __init__(self, netns: Namespace, address: str, server: str, hold_s: int = 180) -> None:
        self._sock = netns.call(
            lambda: socket.create_connection((server, 179), 10, source_address=(address, 0))
        )
        self._sock.settimeout(10)
        hello = bytearray(open_message(address, IPV4))
        struct.pack_into("!H", hello, HEADER_BYTES + 3, hold_s)
        self._unread = b""
        self.send(bytes(hello))
        assert self.read()[18] == 1
        self.send(KEEPALIVE)
        assert self.read()[18] == 4

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def read(self) -> bytes:
        """The next message; b"" at the end."""
        while True:
            if len(self._unread) >= HEADER_BYTES:
                length = int.from_bytes(self._unread[16:18], "big")
                if len(self._unread) >= length:
                    found, self._unread = self._unread[:length], self._unread[length:]
                    return found
            data = self._sock.recv(1 << 16)
            if not data:
                return b""
            self._unread += data

    def drain(self, seconds: float) -> None:
        """Read and forget, answering with KEEPALIVEs."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if select.select([self._sock], [], [], 0.1)[0]:
                assert self._sock.recv(1 << 20), "disconnected"
            self.send(KEEPALIVE)

    def notification(self) -> tuple[int, int]:
        """What it is told at the end."""
        while found := self.read():
            if found[18] == 3:
                return found[19], found[20]
        raise AssertionError("closed without a word")

    def close(self) -> None:
        self._sock.close()


def section(address: str, **changes: object) -> bytes:
    values = {"next_hop": socket.inet_aton(address), "local_pref": 100, **changes}
    return encode(PathAttributes(**values), asn4=True, with_next_hop=True)  # type: ignore[arg-type]


def announce(address: str, *cidrs: str, **changes: object) -> bytes:
    nlris = [parse(cidr)[1] for cidr in cidrs]
    return b"".join(m for m, _ in pack_announce(IPV4, section(address, **changes), b"", nlris))


@pytest.fixture
def scene(fabric: Fabric) -> tuple[CalicoBgp, Bird, RawPeer]:
    """A reflector with BIRD and a raw client."""
    ours = CalicoBgp(fabric, 1)
    bird = Bird(fabric, 2, routes=("10.65.2.0/26",))
    netns = fabric.namespace(3)
    ours.configure(
        Neighbour(bird.v4, is_client=True, is_passive=True),
        Neighbour("10.99.0.3", is_client=True, is_passive=True),
    )
    bird.configure(Neighbour(ours.v4))
    ours.start()
    bird.start()
    ours.wait_established(bird.v4)
    raw = RawPeer(netns, "10.99.0.3", ours.v4)
    ours.wait_established("10.99.0.3")
    return ours, bird, raw


GOOD = announce("10.99.0.3", "10.65.3.0/26")
FATAL = {
    "prefix of 33 bits": (message(UPDATE, GOOD[HEADER_BYTES:-5] + b"\x21\x0a\0\0\0\0"), (3, 10)),
    "attributes too long": (message(UPDATE, b"\0\0\xff\xff"), (3, 1)),
    "bad marker": (b"\0" * 16 + GOOD[16:], (1, 1)),
    "message too long": (GOOD[:16] + b"\xff\xff\x02", (1, 2)),
    "message too short": (GOOD[:16] + b"\x00\x05\x02", (1, 2)),
    "unknown type": (message(9, b""), (1, 3)),
    "broken MP_REACH": (message(UPDATE, b"\0\0\0\x06\x80\x0e\x03\0\x02\x01"), (3, 9)),
}


@pytest.mark.parametrize(("data", "expected"), FATAL.values(), ids=FATAL.keys())
def test_what_cannot_be_read_ends_that_session_and_no_other(scene, data, expected):
    ours, bird, raw = scene
    since = ours.uptime_since(bird.v4)
    raw.send(GOOD)
    bird.wait_learned("10.65.3.0/26")
    raw.send(data)
    assert raw.notification() == expected
    raw.close()
    bird.wait_forgotten("10.65.3.0/26")
    assert ours.uptime_since(bird.v4) == since
    assert "notification sent" in ours.peer("10.99.0.3")["last_error"]


def test_a_malformed_attribute_costs_the_route_and_not_the_session(scene):
    ours, bird, raw = scene
    raw.send(announce("10.99.0.3", "10.65.3.0/26", "10.65.4.0/26"))
    bird.wait_learned("10.65.3.0/26", "10.65.4.0/26")
    raw.send(GOOD.replace(bytes.fromhex("40010100"), bytes.fromhex("40010107")))
    bird.wait_forgotten("10.65.3.0/26")
    assert "10.65.4.0/26" in bird.learned()
    assert ours.established("10.99.0.3")
    assert ours.peer("10.99.0.3")["updates_malformed"] == 1
    raw.send(announce("10.99.0.3", "10.65.5.0/26", as_path=(Segment(AS_SEQUENCE, (64512,)),)))
    raw.send(announce("10.99.0.3", "10.65.6.0/26", originator_id=socket.inet_aton(ours.v4)))
    raw.send(announce("10.99.0.3", "10.65.7.0/26"))
    bird.wait_learned("10.65.7.0/26")
    assert not {"10.65.5.0/26", "10.65.6.0/26"} & bird.learned()
    raw.close()


def test_a_peer_that_reads_nothing_costs_a_bounded_amount(scene):
    """It stands still while thousands of routes come and go many times over."""
    ours, bird, raw = scene
    cidrs = [f"10.65.{n >> 2}.{(n & 3) << 6}/26" for n in range(1000)]
    before = rss_kb(ours.pid)
    for turn in range(40):
        bird.announce(*cidrs[turn % 2 :: 2], *cidrs[:100])
        bird.configure(Neighbour(ours.v4))
    bird.announce("10.65.200.0/26")
    bird.configure(Neighbour(ours.v4))
    ours.wait_learned("10.65.200.0/26")
    assert ours.established("10.99.0.3")
    assert rss_kb(ours.pid) - before < 40_000
    # When it reads again it learns how things are now.
    holds: set[bytes] = set()
    until = time.monotonic() + 10
    wanted = {parse("10.65.200.0/26")[1]}
    while holds != wanted and time.monotonic() < until:
        apply(holds, raw.read())
    assert holds == wanted
    raw.close()


def apply(holds: set[bytes], data: bytes) -> None:
    if data[18] != UPDATE:
        return
    fields = parse_update(data[HEADER_BYTES:])
    for _, nlris in fields.withdrawn:
        holds.difference_update(nlris)
    for _, nlris, _ in fields.announced:
        holds.update(nlris)


def rss_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_a_short_hold_time_survives_a_flood(fabric: Fabric):
    ours = CalicoBgp(fabric, 1)
    bird = Bird(fabric, 2, routes=("10.65.2.0/26",))
    netns = fabric.namespace(3)
    ours.configure(
        Neighbour(bird.v4, is_client=True, hold_s=3),
        Neighbour("10.99.0.3", is_client=True, is_passive=True, hold_s=3),
    )
    bird.configure(Neighbour(ours.v4, is_passive=True, hold_s=3))
    bird.start()
    ours.start()
    ours.wait_established(bird.v4)
    raw = RawPeer(netns, "10.99.0.3", ours.v4, hold_s=3)
    ours.wait_established("10.99.0.3")
    since = ours.uptime_since(bird.v4)
    nlris = [parse(f"10.65.{n >> 2 & 255}.{(n & 3) << 6}/26")[1] for n in range(1000)]
    nlris += [parse(f"10.65.{n >> 8}.{n & 255}/32")[1] for n in range(9000)]
    up = b"".join(m for m, _ in pack_announce(IPV4, section("10.99.0.3"), b"", nlris))
    down = b"".join(m for m, _ in pack_withdraw(IPV4, nlris))
    until = time.monotonic() + 8
    while time.monotonic() < until:
        raw.send(up)
        raw.drain(0.1)
        raw.send(down)
        raw.drain(0.1)
    raw.send(announce("10.99.0.3", "10.65.3.0/26"))
    raw.drain(0.1)
    bird.wait_learned("10.65.3.0/26")
    assert ours.uptime_since(bird.v4) == since
    assert ours.established("10.99.0.3")
    assert eventually(lambda: ours.kernel("10.65.3.0/26") != "")
    raw.close()


def test_a_refresh_is_answered(scene):
    """The stock code reads the request; BIRD's `reload` asks with it."""
    ours, bird, raw = scene
    raw.send(GOOD)
    bird.wait_learned("10.65.3.0/26")
    bird.birdc("reload", "in", "all")
    raw.send(announce("10.99.0.3", "10.65.4.0/26"))
    bird.wait_learned("10.65.3.0/26", "10.65.4.0/26")
    assert ours.established(bird.v4)
    raw.close()
