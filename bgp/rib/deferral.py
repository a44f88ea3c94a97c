"""The restarting speaker's patience (RFC 4724 4.1): what we do not conclude before all have spoken.

Layer: pure. Used by bgp.rib.rib (when to say End-of-RIB) and bgp.kernel (when to remove routes that
a former run left and nobody confirmed).

While it lasts nothing is concluded from silence; what is known is used and announced at once. Two
conclusions, both also allowed when the time is up:
    End-of-RIB to peers that depend on what others tell us: when every peer has sent its own, or is
        itself restarting (waiting for each other would be for ever), or cannot say it;
    removal of stale kernel routes: when every peer has sent its own, or cannot say it and has had
        SETTLE_S to tell its routes. A peer that restarts too will tell them a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable

from bgp.rib.nlri import Family
from bgp.rib.peer import RibPeer

# The default restart time of Calico's BIRD; a peer that is down for longer is not coming back soon.
DEFERRAL_S = 120.0
SETTLE_S = 5.0


class Deferral:
    """Active from the start of the process; both holds end once and for all."""

    def __init__(self, now: float, *, limit_s: float = DEFERRAL_S) -> None:
        self.holds_end_of_rib = True
        self.holds_kernel = True
        self._deadline = now + limit_s
        self._missing: dict[RibPeer, set[Family]] = {}
        self._restarting: set[RibPeer] = set()
        self._settles_at: dict[RibPeer, float] = {}

    def session_up(self, peer: RibPeer, now: float) -> None:
        session = peer.session
        assert session is not None, "the session has just come up"
        if not self.holds_kernel:
            return
        if session.restart is None:
            self._settles_at[peer] = now + SETTLE_S
            self._missing[peer] = set()
            return
        self._missing[peer] = set(session.families)
        if session.restart.is_restarting:
            self._restarting.add(peer)

    def end_of_rib(self, peer: RibPeer, family: Family) -> None:
        if peer in self._missing:
            self._missing[peer].discard(family)

    def session_down(self, peer: RibPeer) -> None:
        self._missing.pop(peer, None)
        self._settles_at.pop(peer, None)
        self._restarting.discard(peer)

    forget = session_down

    def tick(self, now: float, peers: Iterable[RibPeer]) -> bool:
        """True when End-of-RIB may be said from now on (once)."""
        if not self.holds_kernel:
            return False
        is_over = now >= self._deadline
        everybody = list(peers)
        if is_over or all(self._is_confirmed(peer, now) for peer in everybody):
            self.holds_kernel = False
        if not self.holds_end_of_rib:
            return False
        if is_over or all(self._has_spoken(peer) for peer in everybody):
            self.holds_end_of_rib = False
            return True
        return False

    def _has_spoken(self, peer: RibPeer) -> bool:
        return peer in self._restarting or self._missing.get(peer) == set()

    def _is_confirmed(self, peer: RibPeer, now: float) -> bool:
        return self._missing.get(peer) == set() and now >= self._settles_at.get(peer, now)
