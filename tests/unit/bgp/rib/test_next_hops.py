"""bgp.rib.next_hops: what is in use, what cannot be reached."""

from __future__ import annotations

from bgp.rib import next_hops
from bgp.rib.next_hops import NextHops
from bgp.rib.nlri import IPV4
from bgp.rib.path import Path
from bgp.rib.peer import RibPeer
from tests.unit.bgp.builders import options, packed, route


def test_each_is_fresh_once():
    hops = NextHops()
    hops.note(b"a")
    hops.note(b"a")
    assert hops.take_fresh() == [b"a"]
    hops.note(b"a")
    assert hops.take_fresh() == []


def test_news_is_only_what_changes():
    hops = NextHops()
    assert not hops.set_reachable(b"a", reachable=True)
    assert hops.set_reachable(b"a", reachable=False)
    assert not hops.set_reachable(b"a", reachable=False)
    assert hops.unreachable == {b"a"}
    assert hops.set_reachable(b"a", reachable=True)
    assert hops.unreachable == set()


def test_those_not_used_any_more_are_forgotten_when_there_are_many(monkeypatch):
    monkeypatch.setattr(next_hops, "_PRUNE_ABOVE", 3)
    hops = NextHops()
    peer = RibPeer.of(options("10.0.0.2"), packed("10.0.0.2"))
    peer.adj_in[IPV4][b"\x00"] = Path(peer.source, route("10.0.0.7"))
    for last in (7, 8):
        hops.note(packed(f"10.0.0.{last}"))
    hops.set_reachable(packed("10.0.0.8"), reachable=False)
    hops.prune([peer])
    assert len(hops.known) == 2
    hops.note(packed("10.0.0.9"))
    hops.prune([peer])
    assert list(hops.known) == [packed("10.0.0.7")]
    assert hops.unreachable == set()
