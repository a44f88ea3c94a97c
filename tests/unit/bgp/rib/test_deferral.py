"""bgp.rib.deferral: what a restarted speaker does not conclude from silence."""

from __future__ import annotations

import pytest

from bgp.rib.deferral import DEFERRAL_S, SETTLE_S, Deferral
from bgp.rib.nlri import FAMILIES, IPV4, IPV6
from bgp.rib.peer import GracefulRestart, RibPeer, Session
from bgp.speaker.decode import decoder
from tests.unit.bgp.builders import options, packed

PLAIN, RESTARTING = GracefulRestart(60), GracefulRestart(60, is_restarting=True)


def peer(last: int, restart: GracefulRestart | None = PLAIN) -> RibPeer:
    made = RibPeer.of(options(f"10.0.0.{last}"), packed(f"10.0.0.{last}"))
    made.session = Session(
        FAMILIES, packed("1.1.1.1"), packed("10.0.0.1"), decoder(asn4=True), restart=restart
    )
    return made


@pytest.fixture
def deferral() -> Deferral:
    return Deferral(0.0)


def holds(deferral: Deferral, now: float, *peers: RibPeer) -> tuple[bool, bool]:
    deferral.tick(now, peers)
    return deferral.holds_end_of_rib, deferral.holds_kernel


def test_everybody_must_say_end_of_rib_for_every_family(deferral):
    one, two = peer(2), peer(3)
    for each in (one, two):
        deferral.session_up(each, 1)
    deferral.end_of_rib(one, IPV4)
    deferral.end_of_rib(one, IPV6)
    deferral.end_of_rib(two, IPV4)
    assert holds(deferral, 2, one, two) == (True, True)
    deferral.end_of_rib(two, IPV6)
    assert deferral.tick(3, (one, two))
    assert not deferral.tick(4, (one, two))
    assert holds(deferral, 5, one, two) == (False, False)


def test_a_peer_that_is_down_is_waited_for_only_so_long(deferral):
    absent = peer(2)
    assert holds(deferral, DEFERRAL_S - 1, absent) == (True, True)
    assert deferral.tick(DEFERRAL_S, (absent,))
    assert not deferral.holds_kernel


def test_those_who_restart_too_are_not_waited_for_but_their_routes_are(deferral):
    both = peer(2, RESTARTING)
    deferral.session_up(both, 1)
    assert holds(deferral, 2, both) == (False, True)
    for family in FAMILIES:
        deferral.end_of_rib(both, family)
    assert holds(deferral, 3, both) == (False, False)


def test_who_cannot_say_it_gets_a_moment(deferral):
    old = peer(2, None)
    deferral.session_up(old, 1)
    assert holds(deferral, 2, old) == (False, True)
    assert holds(deferral, 1 + SETTLE_S, old) == (False, False)


def test_a_lost_session_starts_over(deferral):
    one = peer(2)
    deferral.session_up(one, 1)
    for family in FAMILIES:
        deferral.end_of_rib(one, family)
    deferral.session_down(one)
    assert holds(deferral, 2, one) == (True, True)


def test_without_peers_there_is_nobody_to_wait_for(deferral):
    assert holds(deferral, 0) == (False, False)


def test_a_removed_peer_is_not_waited_for(deferral):
    one, two = peer(2), peer(3)
    deferral.session_up(one, 1)
    for family in FAMILIES:
        deferral.end_of_rib(one, family)
    deferral.forget(two)
    assert holds(deferral, 2, one) == (False, False)
