"""Restarts of either side: what must stay stays, what is right is not touched, the rest goes."""

from __future__ import annotations

import time

import pytest

from tests.peers.base import BgpNode, Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp
from tests.support.netns import eventually

OURS = ("10.65.1.0/26", "fd65::100/122")
THEIRS = ("10.65.2.0/26", "10.65.2.64/26", "fd65::200/122")


class RouteMonitor:
    """`ip monitor route` in a node: what happened to its kernel routes."""

    def __init__(self, node: BgpNode) -> None:
        self._path = node.directory / "monitor"
        self._out = self._path.open("wb")
        self._process = node.netns.spawn("ip", "monitor", "route", stdout=self._out)

    def lines(self, *prefixes: str) -> list[str]:
        shown = self._path.read_text().splitlines()
        return [line for line in shown if any(prefix in line for prefix in prefixes)]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()


@pytest.fixture
def pair(fabric: Fabric) -> tuple[CalicoBgp, Bird]:
    ours = CalicoBgp(fabric, 1, blocks=OURS)
    bird = Bird(fabric, 2, routes=THEIRS)
    ours.configure(Neighbour(bird.v4))
    bird.configure(Neighbour(ours.v4, is_passive=True))
    bird.start()
    ours.start()
    ours.wait_established(bird.v4)
    bird.wait_learned(*OURS)
    for prefix in THEIRS:
        ours.wait_kernel(prefix, "proto bgp")
    for prefix in OURS:
        bird.wait_kernel(prefix, "via")
    return ours, bird


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_our_restart_touches_nothing_on_either_side(pair: tuple[CalicoBgp, Bird], how: str):
    ours, bird = pair
    here, there = RouteMonitor(ours), RouteMonitor(bird)
    try:
        getattr(ours, how)()
        assert eventually(lambda: not bird.established(ours.v4))
        for prefix in THEIRS:
            assert "proto bgp" in ours.kernel(prefix)
        assert set(OURS) <= bird.learned()
        ours.start()
        ours.wait_established(bird.v4)
        ours.wait_learned(*THEIRS)
        # Only when it has spoken is anything concluded.
        assert eventually(lambda: ours.ask("version").get("restarting") is False, timeout_s=15)
        assert here.lines(*THEIRS, *OURS) == []
        assert there.lines(*OURS) == []
    finally:
        here.close()
        there.close()


def test_what_went_while_we_were_away_goes_when_the_peer_has_spoken(
    pair: tuple[CalicoBgp, Bird],
):
    ours, bird = pair
    ours.kill()
    bird.announce("10.65.2.0/26")
    bird.configure(Neighbour(ours.v4, is_passive=True))
    ours.set_blocks("10.65.1.0/26")
    ours.publish((ours.bgp_dir / "exabgp.conf").read_text())
    ours.start()
    ours.wait_no_kernel("10.65.2.64/26")
    ours.wait_no_kernel("fd65::200/122")
    ours.wait_no_kernel("fd65::100/122")
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    bird.wait_forgotten("fd65::100/122")


def test_a_former_life_is_kept_as_long_as_the_peer_is_away(pair: tuple[CalicoBgp, Bird]):
    ours, bird = pair
    ours.kill()
    bird.kill()
    ours.start()
    assert eventually(lambda: ours.ask("version") != {})
    assert ours.ask("version")["restarting"]
    for prefix in THEIRS:
        assert "proto bgp" in ours.kernel(prefix)
    bird.start()
    ours.wait_established(bird.v4)
    ours.wait_learned(*THEIRS)
    assert eventually(lambda: ours.ask("version").get("restarting") is False)


def test_a_peer_that_dies_and_comes_back_keeps_its_routes(pair: tuple[CalicoBgp, Bird]):
    ours, bird = pair
    monitor = RouteMonitor(ours)
    try:
        bird.kill()
        assert eventually(lambda: not ours.established(bird.v4))
        assert ours.peer(bird.v4)["stale"] == 3
        assert ours.peer(bird.v4)["last_error"] == "connection lost"
        bird.announce("10.65.2.0/26", "fd65::200/122")
        bird.configure(Neighbour(ours.v4, is_passive=True))
        bird.start()
        ours.wait_established(bird.v4)
        # Its End-of-RIB sweeps what it did not say again.
        ours.wait_no_kernel("10.65.2.64/26")
        assert monitor.lines("10.65.2.0/26", "fd65::200/122") == []
        assert ours.peer(bird.v4)["stale"] == 0
    finally:
        monitor.close()


def test_without_graceful_restart_a_dead_peer_is_forgotten(fabric: Fabric):
    ours = CalicoBgp(fabric, 1, blocks=OURS)
    bird = Bird(fabric, 2, routes=THEIRS)
    ours.configure(Neighbour(bird.v4, restart_s=0))
    bird.configure(Neighbour(ours.v4, is_passive=True, restart_s=0))
    bird.start()
    ours.start()
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    bird.wait_learned(*OURS)
    bird.kill()
    for prefix in THEIRS:
        ours.wait_no_kernel(prefix)


def test_a_node_that_vanished_and_came_back_is_let_in_at_once(fabric: Fabric):
    """No FIN: for us the old session still stands. RFC 4724 4.2: the new connection ends it."""
    ours = CalicoBgp(fabric, 1)
    bird = Bird(fabric, 2, routes=THEIRS)
    ours.configure(Neighbour(bird.v4, is_passive=True))
    bird.configure(Neighbour(ours.v4))
    ours.start()
    bird.start()
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    since = float(ours.uptime_since(bird.v4))
    # Two connections that cross at the start are a collision; after that, a restart.
    assert eventually(lambda: time.time() - since > 5.5, timeout_s=10)
    hook = "{ type filter hook output priority 0; policy drop; }"
    bird.netns.run("nft", f"add table inet cut; add chain inet cut out {hook}")
    bird.kill()
    bird.netns.run("nft", "delete", "table", "inet", "cut")
    bird.start()
    assert eventually(
        lambda: ours.established(bird.v4) and float(ours.uptime_since(bird.v4)) > since,
        timeout_s=10,
    ), ours.log()
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")


def test_many_restarts_in_a_row(pair: tuple[CalicoBgp, Bird]):
    ours, bird = pair
    here, there = RouteMonitor(ours), RouteMonitor(bird)
    try:
        for _ in range(20):
            ours.kill()
            assert eventually(lambda: not bird.established(ours.v4))
            ours.start()
            ours.wait_established(bird.v4)
            ours.wait_learned(*THEIRS)
        assert here.lines(*THEIRS, *OURS) == []
        assert there.lines(*OURS) == []
    finally:
        here.close()
        there.close()
