"""The speaker: joins ExaBGP's sessions with the RIB, one turn of the reactor's loop at a time.

Layer: edge. Made by bgp.daemon, which hands in what is to be done each turn; driven by seams.

A turn: ready descriptors (netlink, control socket, signals), then the daemon's own work (timers,
flush of the RIB, kernel). After that the reactor gives every peer its turn, in which it reads into
and writes from the RIB. The loop sleeps up to 100 ms; new output or unfinished work wakes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bgp.eventloop import EventLoop
from bgp.rib.admission import peer_key
from bgp.rib.nlri import Family, address_text
from bgp.rib.peer import RibPeer, Session
from bgp.rib.rib import Rib
from bgp.speaker import seams
from bgp.speaker.seams import Neighbors, SessionProtocol
from libcalico.runtime import log

LOG = log.get(__name__)

TAKE_BYTES = 256 << 10
_SHOWN_REASONS = {"closing connection": "connection lost", "": "internal error"}


@dataclass(frozen=True, slots=True)
class SessionState:
    """For people: `since` is wall time, `hold_time_s` the negotiated one once established,
    `last_error` why the last session ended."""

    state: str
    since: float
    hold_time_s: int
    last_error: str = ""


class Speaker:
    """One per process (ExaBGP's own state is global). See the module."""

    def __init__(
        self,
        rib: Rib,
        events: EventLoop,
        *,
        on_turn: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rib = rib
        self._events = events
        self._on_turn = on_turn
        self._clock = clock
        self._reactor: Any = None
        self._links: dict[str, SessionProtocol] = {}
        self._peers: dict[SessionProtocol, RibPeer] = {}
        self._listening: list[int] = []
        self._last_errors: dict[str, str] = {}

    # -- for the daemon

    def run(self, neighbors: Neighbors, *, listen: Sequence[str], port: int) -> int:
        """Until `stop`; returns ExaBGP's exit code (0 after a stop)."""
        self._reactor = seams.make_reactor(self, neighbors, listen=listen, port=port)
        return seams.run_reactor(self._reactor)

    def stop(self) -> None:
        seams.stop(self._reactor)
        self._events.wake()

    def replace_neighbors(self, neighbors: Neighbors) -> None:
        """Errors: ConfigError."""
        seams.replace_neighbors(self._reactor, neighbors)
        wanted = neighbors.addresses()
        self._last_errors = {a: e for a, e in self._last_errors.items() if a in wanted}
        for link, peer in list(self._peers.items()):
            if peer.session is None:
                # Another peer for the RIB (its AS changed), though not for ExaBGP.
                link.reset()
        self._events.wake()

    def states(self) -> dict[str, SessionState]:
        """By canonical address, for every configured neighbour."""
        if self._reactor is None:
            return {}
        found = seams.peer_states(self._reactor)
        return {
            address_text(peer_key(address)): SessionState(
                *state, last_error=self._last_errors.get(address, "")
            )
            for address, state in found.items()
        }

    # -- for the seams (seams.Driver)

    def fileno(self) -> int:
        return self._events.fileno()

    def turn(self) -> None:
        self._events.run_ready()
        self._watch_listeners()
        self._on_turn()
        if self.rib.take_new_output():
            self._push()

    def _push(self) -> None:
        """Write what was just flushed, without waiting for everybody's next turn."""
        for link, peer in list(self._peers.items()):
            if peer.has_output():
                link.push()

    def opened(self, link: SessionProtocol, session: Session) -> bool:
        peer = self.rib.peers.get(peer_key(link.address))
        if peer is None:
            LOG.warning("session with a peer the RIB does not know", peer=link.address)
            return False
        if peer.session is not None:
            LOG.warning("second session with one peer", peer=link.address)
            return False
        self.rib.session_up(peer, session, now=self._clock())
        self._links[link.address] = link
        self._peers[link] = peer
        self._last_errors.pop(link.address, None)
        self._events.wake()
        names = " ".join(family.name for family in session.families)
        LOG.info("session established", peer=link.address, name=peer.options.name, families=names)
        return True

    def receive(self, link: SessionProtocol, body: bytes) -> None:
        peer = self._peers[link]
        if peer.session is not None:  # else: removed, and the connection is about to go
            self.rib.receive(peer, body)

    def refresh(self, address: str, family: Family, *, enhanced: bool) -> None:
        link = self._links.get(address)
        if link is not None:
            self._peers[link].refresh(family, enhanced=enhanced)

    def has_output(self, address: str) -> bool:
        link = self._links.get(address)
        if link is None:
            return False
        return not link.outbox.is_empty or self._peers[link].has_output()

    def take(self, link: SessionProtocol) -> list[bytes]:
        return self._peers[link].take(TAKE_BYTES)

    def blocked(self, link: SessionProtocol, fd: int) -> None:
        self._events.on_writable(fd, lambda: self._events.forget(fd))

    def closed(self, link: SessionProtocol, reason: str, *, silent: bool) -> None:
        fd = link.fd()
        if fd != -1:
            self._events.forget(fd)
        peer = self._peers.pop(link, None)
        if self._links.get(link.address) is link:
            del self._links[link.address]
        if peer is not None:
            self.rib.session_down(peer, may_restart=silent, now=self._clock())
            self._last_errors[link.address] = _SHOWN_REASONS.get(reason, reason)
            self._events.wake()
            LOG.info("session lost", peer=link.address, reason=reason, keeps=silent)

    def _watch_listeners(self) -> None:
        """The loop accepts once per turn: let a waiting connection be the reason for a turn."""
        found = seams.listening_descriptors(self._reactor)
        if found != self._listening:
            for fd in self._listening:
                if fd not in found:
                    self._events.forget(fd)
            for fd in found:
                self._events.on_readable(fd, _nothing)
            self._listening = found


def _nothing() -> None:
    """Waking up was the purpose."""
