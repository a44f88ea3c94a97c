"""The next hops in use and which of them cannot be reached.

Layer: pure. Used by bgp.rib.rib; the kernel side answers for `take_fresh` and says when an answer
changes. A next hop counts as reachable until somebody says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

from bgp.rib.peer import RibPeer

_PRUNE_ABOVE = 4096


class NextHops:
    """See the module."""

    def __init__(self) -> None:
        self.known: dict[bytes, None] = {}
        self.unreachable: set[bytes] = set()
        self._fresh: list[bytes] = []
        self._prune_at = _PRUNE_ABOVE

    def note(self, next_hop: bytes) -> None:
        if next_hop not in self.known:
            self.known[next_hop] = None
            self._fresh.append(next_hop)

    def take_fresh(self) -> list[bytes]:
        """Those seen for the first time since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def set_reachable(self, next_hop: bytes, *, reachable: bool) -> bool:
        """Returns whether that is news."""
        if reachable is (next_hop not in self.unreachable):
            return False
        if reachable:
            self.unreachable.discard(next_hop)
        else:
            self.unreachable.add(next_hop)
        return True

    def prune(self, peers: Iterable[RibPeer]) -> None:
        """Forget those no path uses, when there are many; the next limit is twice what is left."""
        if len(self.known) < self._prune_at:
            return
        used = {
            path.attributes.next_hop
            for peer in peers
            for routes in peer.adj_in.values()
            for path in routes.values()
        }
        self.known = {hop: None for hop in self.known if hop in used}
        self.unreachable &= used
        self._prune_at = max(_PRUNE_ABOVE, 2 * len(used))
