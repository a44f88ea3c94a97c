"""A node is drained (RFC 8326) beside BIRD: traffic moves to the other path, nothing is lost."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import msgspec
import pytest

from libcalico.model.speaker import Drain
from tests.peers.base import BgpNode, Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp
from tests.support.netns import add_addresses, eventually

BLOCK, SERVER = "10.65.1.0/26", "10.65.1.1"


class Pings:
    """A flow of a packet each 10 ms from a node to the server."""

    def __init__(self, node: BgpNode) -> None:
        self._path = node.directory / "pings"
        self._out = self._path.open("wb")
        self._process = node.netns.spawn("ping", "-i", "0.01", SERVER, stdout=self._out)

    def answered(self) -> list[int]:
        return [int(n) for n in re.findall(r"icmp_seq=(\d+) ttl", self._path.read_text())]

    def wait_more(self, count: int = 20) -> None:
        before = len(self.answered())
        assert eventually(lambda: len(self.answered()) >= before + count), self._path.read_text()

    def lost(self) -> set[int]:
        """End it; what was sent before the last answer and had none itself."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=5)
        self._out.close()
        seen = self.answered()
        return set(range(1, max(seen) + 1)) - set(seen)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._out.close()


def set_drain(node: CalicoBgp, drain: Drain) -> None:
    node.settings = msgspec.structs.replace(node.settings, drain=drain)
    node.publish((node.bgp_dir / "exabgp.conf").read_text())


def router(fabric: Fabric, number: int) -> CalicoBgp:
    made = CalicoBgp(fabric, number, blocks=(BLOCK,))
    for where in ("all", "eth0"):
        made.netns.sysctl(f"net/ipv4/conf/{where}/send_redirects", "0")
    made.netns.run("ip", "route", "add", SERVER, "via", "10.99.0.4")
    made.configure(Neighbour("10.99.0.2"))
    made.start()
    return made


@pytest.fixture
def paths(fabric: Fabric) -> tuple[CalicoBgp, Bird, CalicoBgp]:
    """Two nodes that lead to the server, and BIRD between them, which prefers the first."""
    server = fabric.namespace(4)
    add_addresses(server, "lo", f"{SERVER}/32")
    bird = Bird(fabric, 2)
    bird.configure(*(Neighbour(f"10.99.0.{n}", is_passive=True) for n in (1, 3)))
    bird.start()
    first, second = router(fabric, 1), router(fabric, 3)
    bird.wait_established(first.v4, second.v4)
    bird.wait_kernel(BLOCK, "via 10.99.0.1")
    assert eventually(lambda: bird.route(BLOCK).count("BGP.next_hop") == 2)
    return first, bird, second


@pytest.fixture
def pings(paths: tuple[CalicoBgp, Bird, CalicoBgp]) -> Iterator[Pings]:
    made = Pings(paths[1])
    yield made
    made.close()


def test_no_packet_of_a_flow_is_lost_while_a_node_is_drained(
    paths: tuple[CalicoBgp, Bird, CalicoBgp], pings: Pings
):
    first, bird, _ = paths
    since = bird.uptime_since(first.v4)
    pings.wait_more()
    set_drain(first, Drain.GRACEFUL_SHUTDOWN)
    # BIRD knows both still, and uses the other: stock BIRD by LOCAL_PREF.
    bird.wait_kernel(BLOCK, "via 10.99.0.3")
    shown = bird.route(BLOCK)
    assert "(65535,0)" in shown
    assert shown.count("BGP.next_hop") == 2
    set_drain(first, Drain.WITHDRAWN)
    assert eventually(lambda: bird.route(BLOCK).count("BGP.next_hop") == 1)
    # Now nothing of it is needed: maintenance may begin.
    first.stop()
    first.netns.run("ip", "route", "del", SERVER)
    pings.wait_more()
    # It comes back drained: the state is in the datastore.
    first.start()
    bird.wait_established(first.v4)
    assert eventually(lambda: bird.uptime_since(first.v4) != since)
    assert eventually(lambda: first.ask("version").get("restarting") is False)
    pings.wait_more()
    assert bird.route(BLOCK).count("BGP.next_hop") == 1
    first.netns.run("ip", "route", "add", SERVER, "via", "10.99.0.4")
    set_drain(first, Drain.NONE)
    bird.wait_kernel(BLOCK, "via 10.99.0.1")
    pings.wait_more()
    assert pings.lost() == set()


def test_a_path_that_bird_marks_is_used_only_when_there_is_no_other(fabric: Fabric):
    """What BIRD sends with the community is the last resort here, from inside and outside."""
    prefix = "10.65.7.0/26"
    marks = "export filter { bgp_community.add((65535,0)); accept; }"
    ours = CalicoBgp(fabric, 1)
    first, second = Bird(fabric, 2, routes=(prefix,)), Bird(fabric, 3, routes=(prefix,))
    ours.configure(
        Neighbour(first.v4, remote_as=65002), Neighbour(second.v4, remote_as=65003, restart_s=0)
    )
    for bird, asn in ((first, 65002), (second, 65003)):
        bird.configure(Neighbour(ours.v4, local_as=asn, is_passive=True))
    conf = first.directory / "bird.conf"
    plain = conf.read_text()
    first.start()
    ours.start()
    ours.wait_kernel(prefix, "via 10.99.0.2")
    conf.write_text(
        plain.replace(
            "export filter { if source ~ [RTS_STATIC, RTS_BGP] then accept; reject; }", marks, 1
        )
    )
    first.birdc("configure")
    assert eventually(lambda: ours.ask("route", cidr=prefix)["paths"][0]["local_pref"] == 0)
    assert "via 10.99.0.2" in ours.kernel(prefix)
    second.start()
    assert eventually(
        lambda: ours.kernel(prefix).count("via") == 1 and "via 10.99.0.3" in ours.kernel(prefix)
    ), ours.log()
    assert len(ours.ask("route", cidr=prefix)["paths"]) == 2
    second.kill()
    ours.wait_kernel(prefix, "via 10.99.0.2")
