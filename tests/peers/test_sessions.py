"""calico-bgp with BIRD, and with itself: sessions, routes both ways, both families, withdrawals."""

from __future__ import annotations

import pytest

from tests.peers.base import Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp
from tests.support.netns import eventually

OURS, THEIRS = ("10.65.1.0/26", "fd65::100/122"), ("10.65.2.0/26", "fd65::200/122")


def test_routes_go_both_ways_in_both_families(fabric: Fabric):
    ours = CalicoBgp(fabric, 1, blocks=OURS)
    bird = Bird(fabric, 2, routes=THEIRS)
    ours.configure(Neighbour(bird.v4))
    bird.configure(Neighbour(ours.v4, is_passive=True))
    bird.start()
    ours.start()
    ours.wait_established(bird.v4)
    bird.wait_learned(*OURS)
    ours.wait_learned(*THEIRS)
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2", "proto bgp", "metric 1024")
    ours.wait_kernel("fd65::200/122", "via fd99::2", "proto bgp", "metric 1024")
    assert "blackhole" in ours.kernel("10.65.1.0/26")
    assert "blackhole" in ours.kernel("fd65::100/122")
    assert "2147482623" in bird.route("10.65.1.0/26")  # Calico's LOCAL_PREF for metric 1024
    # Withdrawn on both sides.
    bird.announce()
    bird.configure(Neighbour(ours.v4, is_passive=True))
    ours.wait_forgotten(*THEIRS)
    for prefix in THEIRS:
        ours.wait_no_kernel(prefix)
    ours.set_blocks()
    ours.configure(Neighbour(bird.v4))
    bird.wait_forgotten(*OURS)
    for prefix in OURS:
        ours.wait_no_kernel(prefix)


def test_a_session_over_version_6(fabric: Fabric):
    ours = CalicoBgp(fabric, 1, blocks=OURS)
    bird = Bird(fabric, 2, routes=THEIRS)
    ours.configure(Neighbour(bird.v6, is_passive=True))
    bird.configure(Neighbour(ours.v6))
    ours.start()
    bird.start()
    ours.wait_established(bird.v6)
    bird.wait_learned(*OURS)
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    ours.wait_kernel("fd65::200/122", "via fd99::2")


@pytest.mark.parametrize("we_are_passive", [False, True], ids=["active", "passive"])
def test_md5(fabric: Fabric, we_are_passive: bool):
    """Also on the listening socket, and a neighbour with another key does not get in."""
    ours = CalicoBgp(fabric, 1, blocks=OURS)
    bird = Bird(fabric, 2, routes=THEIRS)
    wrong = Bird(fabric, 3, routes=("10.65.3.0/26",))
    ours.configure(
        Neighbour(bird.v4, password="secret", is_passive=we_are_passive),
        Neighbour(wrong.v4, password="right", is_passive=we_are_passive),
    )
    bird.configure(Neighbour(ours.v4, password="secret", is_passive=not we_are_passive))
    wrong.configure(Neighbour(ours.v4, password="wrong", is_passive=not we_are_passive))
    for node in (bird, wrong, ours):
        node.start()
    ours.wait_established(bird.v4)
    bird.wait_learned(*OURS)
    ours.wait_learned(*THEIRS)
    assert not ours.established(wrong.v4)
    # A new password is a new session.
    wrong.configure(Neighbour(ours.v4, password="right", is_passive=not we_are_passive))
    ours.wait_established(wrong.v4)


def dropped_for_their_ttl(node: CalicoBgp) -> int:
    """Packets for a socket with a minimum TTL that came with less, as the kernel counts them."""
    shown = node.netns.run("cat", "/proc/net/netstat").splitlines()
    names, values = (line.split() for line in shown if line.startswith("TcpExt:"))
    return int(values[names.index("TCPMinTTLDrop")])


@pytest.mark.parametrize("we_are_passive", [False, True], ids=["active", "passive"])
def test_ttl_security(fabric: Fabric, we_are_passive: bool):
    """RFC 5082, also on accepted connections: who does not send 255 is not let in."""
    ours = CalicoBgp(fabric, 1, blocks=OURS)
    near, far = Bird(fabric, 2, routes=THEIRS), Bird(fabric, 3)
    ours.configure(
        *(Neighbour(bird.v4, ttl_security=True, is_passive=we_are_passive) for bird in (near, far))
    )
    near.configure(Neighbour(ours.v4, ttl_security=True, is_passive=not we_are_passive))
    far.configure(Neighbour(ours.v4, is_passive=not we_are_passive))
    for node in (near, far, ours):
        node.start()
    ours.wait_established(near.v4)
    near.wait_learned(*OURS)
    assert eventually(lambda: dropped_for_their_ttl(ours) > 3), "it has tried, and tried again"
    assert not ours.established(far.v4)


def test_an_external_peer(fabric: Fabric):
    ours = CalicoBgp(fabric, 1, blocks=OURS)
    bird = Bird(fabric, 2, routes=THEIRS)
    ours.configure(Neighbour(bird.v4, remote_as=65001))
    bird.configure(Neighbour(ours.v4, local_as=65001))
    bird.start()
    ours.start()
    ours.wait_established(bird.v4)
    bird.wait_learned(*OURS)
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2", "metric 1024")
    route = ours.ask("route", cidr="10.65.2.0/26")
    assert route["paths"][0]["as_path"] == "65001"
    assert route["paths"][0]["best"]
    shown = bird.route("10.65.1.0/26")
    assert "BGP.as_path: 64512" in shown
    assert "BGP.next_hop: 10.99.0.1" in shown


def test_a_reflector_with_two_clients(fabric: Fabric):
    ours = CalicoBgp(fabric, 1)
    birds = [Bird(fabric, 2, routes=THEIRS), Bird(fabric, 3, routes=("10.65.3.0/26",))]
    ours.configure(*(Neighbour(bird.v4, is_client=True, is_passive=True) for bird in birds))
    for bird in birds:
        bird.configure(Neighbour(ours.v4))
    for node in (ours, *birds):
        node.start()
    one, two = birds
    two.wait_learned(*THEIRS)
    one.wait_learned("10.65.3.0/26")
    shown = two.route("10.65.2.0/26")
    assert "BGP.next_hop: 10.99.0.2" in shown
    assert "BGP.originator_id: 10.99.0.2" in shown
    assert "BGP.cluster_list: 10.99.0.1" in shown
    two.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    # The best path moves to the other client: the first one is told, the second forgets its copy.
    two.announce("10.65.3.0/26", "10.65.2.0/26")
    two.configure(Neighbour(ours.v4))
    assert eventually(lambda: len(ours.ask("route", cidr="10.65.2.0/26")["paths"]) == 2)
    assert "10.65.2.0/26" in two.learned()
    one.announce("fd65::200/122")
    one.configure(Neighbour(ours.v4))
    one.wait_kernel("10.65.2.0/26", "via 10.99.0.3")
    two.wait_forgotten("10.65.2.0/26")
    # A client that dies takes its routes along, everywhere.
    one.stop()
    two.wait_forgotten("fd65::200/122")


def test_two_of_ours(fabric: Fabric):
    one = CalicoBgp(fabric, 1, blocks=OURS)
    two = CalicoBgp(fabric, 2, blocks=THEIRS)
    one.configure(Neighbour(two.v4, password="x"), Neighbour(two.v6, password="x"))
    two.configure(
        Neighbour(one.v4, password="x", is_passive=True),
        Neighbour(one.v6, password="x", is_passive=True),
    )
    one.start()
    two.start()
    one.wait_established(two.v4, two.v6)
    two.wait_kernel("10.65.1.0/26", "via 10.99.0.1", "proto bgp", "metric 1024")
    two.wait_kernel("fd65::100/122", "via fd99::1")
    one.wait_kernel("10.65.2.0/26", "via 10.99.0.2")
    one.wait_kernel("fd65::200/122", "via fd99::2")
    peer = one.peer(two.v4)
    assert peer["received"] == peer["sent"] == 2
    assert peer["hold_time_s"] == 90
    assert sorted(peer["families"]) == ["ipv4", "ipv6"]


def test_equal_paths_become_one_route_with_two_next_hops(fabric: Fabric):
    ours = CalicoBgp(fabric, 1)
    birds = [Bird(fabric, n, routes=THEIRS) for n in (2, 3)]
    ours.configure(*(Neighbour(bird.v4) for bird in birds))
    for bird in birds:
        bird.configure(Neighbour(ours.v4, is_passive=True))
    for node in (*birds, ours):
        node.start()
    ours.wait_established(*(bird.v4 for bird in birds))
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2", "via 10.99.0.3")
    ours.wait_kernel("fd65::200/122", "via fd99::2", "via fd99::3")
    birds[0].stop()
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.3")
    assert eventually(lambda: "10.99.0.2" not in ours.kernel("10.65.2.0/26"))
