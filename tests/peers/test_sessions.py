"""calico-bgp and BIRD: routes both ways, both families."""

from __future__ import annotations

from tests.peers.base import Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp


def test_routes_go_both_ways_in_both_families(fabric: Fabric):
    ours = CalicoBgp(fabric, 1, blocks=("10.65.1.0/26", "fd65::100/122"))
    bird = Bird(fabric, 2, routes=("10.65.2.0/26", "fd65::200/122"))
    ours.configure(Neighbour(bird.v4))
    bird.configure(Neighbour(ours.v4, is_passive=True))
    bird.start()
    ours.start()
    ours.wait_established(bird.v4)
    bird.wait_learned("10.65.1.0/26", "fd65::100/122")
    ours.wait_learned("10.65.2.0/26", "fd65::200/122")
    ours.wait_kernel("10.65.2.0/26", "via 10.99.0.2", "proto bgp", "metric 1024")
    ours.wait_kernel("fd65::200/122", "via fd99::2", "proto bgp", "metric 1024")
    assert "blackhole" in ours.kernel("10.65.1.0/26")
    assert "blackhole" in ours.kernel("fd65::100/122")
    assert "2147482623" in bird.route("10.65.1.0/26")  # Calico's LOCAL_PREF for metric 1024
    # Withdrawn on both sides.
    bird.announce()
    bird.configure(Neighbour(ours.v4, is_passive=True))
    ours.wait_forgotten("10.65.2.0/26", "fd65::200/122")
    ours.wait_no_kernel("10.65.2.0/26")
    ours.wait_no_kernel("fd65::200/122")
    ours.set_blocks()
    ours.configure(Neighbour(bird.v4))
    bird.wait_forgotten("10.65.1.0/26", "fd65::100/122")
