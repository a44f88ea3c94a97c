"""One neighbour as the RIB knows it: its options, its session, what it told us, what it hears.

Layer: pure. Owned by bgp.rib.rib, which is the only one to change the tables; the speaker holds a
RibPeer only to hand it back and to take output from it.

Graceful restart, helper side (RFC 4724 4.2): when a session is lost without a NOTIFICATION and the
peer had announced it, its routes stay, marked stale, until it confirms them again, says End-of-RIB,
or the time is up. A second loss drops what was still stale from the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from bgp.rib.adj_rib_out import Stream
from bgp.rib.attributes import Decode
from bgp.rib.nlri import FAMILIES, Family, Nlri, address_text
from bgp.rib.path import Path, Source
from bgp.rib.policy import Chain
from libcalico.model.speaker import PeerOptions

# How long we wait for a peer's End-of-RIB once it is back; its own restart time if that is longer.
STALE_AFTER_RECONNECT_S = 120.0


@dataclass(frozen=True, slots=True)
class GracefulRestart:
    """What a peer's OPEN said (RFC 4724 3).

    `families`: their routes are kept when it goes away. `forwarding`: it has kept forwarding for
    them through the restart it comes from, so what was kept is still good."""

    restart_time_s: int
    families: frozenset[Family] = frozenset()
    forwarding: frozenset[Family] = frozenset()
    is_restarting: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """What was negotiated. `decode` reads an attribute section in this session's AS width."""

    families: tuple[Family, ...]
    router_id: bytes
    local_address: bytes
    decode: Decode
    asn4: bool = True
    extended_next_hop: bool = False
    restart: GracefulRestart | None = None


@dataclass(slots=True)
class Counters:
    """For people; never decided upon."""

    updates: int = 0
    malformed: int = 0
    martians: int = 0
    last_malformed: str = ""


@dataclass(slots=True, eq=False)
class RibPeer:
    """See the module. `paths` interns what the current session announced, by attribute bytes."""

    options: PeerOptions
    source: Source
    session: Session | None = None
    adj_in: dict[Family, dict[Nlri, Path]] = field(default_factory=dict)
    stale: dict[Family, set[Nlri]] = field(default_factory=dict)
    stale_deadline: float | None = None
    eor_received: set[Family] = field(default_factory=set)
    streams: dict[Family, Stream] = field(default_factory=dict)
    import_chains: dict[Family, Chain] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    paths: WeakValueDictionary[object, Path] = field(default_factory=WeakValueDictionary)

    @classmethod
    def of(cls, options: PeerOptions, address: bytes) -> RibPeer:
        source = Source(
            options.name, address, local_as=options.local_as, remote_as=options.remote_as
        )
        source.is_client = options.rr_client
        peer = cls(options, source)
        for family in FAMILIES:
            peer.adj_in[family] = {}
            peer.stale[family] = set()
            peer.import_chains[family] = ()
        return peer

    def __repr__(self) -> str:
        return f"<{self.options.name}>"

    @property
    def address(self) -> str:
        return address_text(self.source.address)

    def has_output(self) -> bool:
        for stream in self.streams.values():
            if stream.has_output() or stream.owes_end_of_rib():
                return True
        return False

    def take(self, limit: int) -> list[bytes]:
        """Whole messages for this peer, about `limit` bytes; [] when there is nothing (yet)."""
        taken: list[bytes] = []
        for stream in self.streams.values():
            if stream.has_output():
                taken += stream.take(limit)
            taken += stream.take_end_of_rib()
        return taken

    def refresh(self, family: Family, *, enhanced: bool) -> None:
        """It asked for everything again (RFC 2918; between markers: RFC 7313)."""
        stream = self.streams.get(family)
        if stream is not None:
            stream.refresh(enhanced=enhanced)

    def received(self) -> int:
        return sum(len(routes) for routes in self.adj_in.values())

    def advertised(self) -> int:
        count = 0
        for stream in self.streams.values():
            sent = stream.group.sent.values()
            count += sum(out.source is not self.source for out in sent)
        return count
