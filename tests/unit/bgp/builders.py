"""One-line builders for RIB tests: a speaker with peers, sessions and messages."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from bgp.rib.attributes import AS_SEQUENCE, Malformed, PathAttributes, Segment, encode
from bgp.rib.nlri import IPV4, IPV6, Family, parse, text
from bgp.rib.peer import GracefulRestart, RibPeer, Session
from bgp.rib.rib import Rib
from bgp.rib.update import HEADER_BYTES, pack_announce, pack_withdraw
from bgp.rib.update import parse as parse_update
from bgp.speaker.decode import decode_attributes, decoder
from libcalico.model.speaker import PeerOptions, PoolExport, SpeakerConfig

OWN_AS = 64512
POOLS = (PoolExport(cidr="10.65.0.0/16"), PoolExport(cidr="fd65::/48"))


def options(address: str, **changes: Any) -> PeerOptions:
    values: dict[str, Any] = {
        "name": f"p{address}",
        "address": address,
        "kind": "mesh",
        "remote_as": OWN_AS,
        "local_as": OWN_AS,
        **changes,
    }
    return PeerOptions(**values)


def config(*peers: PeerOptions, **changes: Any) -> SpeakerConfig:
    values: dict[str, Any] = {
        "exabgp_sha256": "",
        "node_name": "n1",
        "router_id": "10.0.0.1",
        "local_as": OWN_AS,
        "ipv4_address": "10.0.0.1",
        "ipv6_address": "fd00::1",
        "pools": POOLS,
        "peers": peers,
        **changes,
    }
    return SpeakerConfig(**values)


def packed(address: str) -> bytes:
    return ip_address(address).packed


def sequence(*asns: int) -> tuple[Segment, ...]:
    return (Segment(AS_SEQUENCE, asns),) if asns else ()


def route(next_hop: str = "10.0.0.2", **changes: Any) -> PathAttributes:
    return replace(PathAttributes(next_hop=packed(next_hop), local_pref=100), **changes)


def bodies(cidrs: list[str], attributes: PathAttributes, *, asn4: bool = True) -> list[bytes]:
    """UPDATE bodies that announce these prefixes (of one family)."""
    family, _ = parse(cidrs[0])
    classic = family is IPV4 and len(attributes.next_hop) == 4
    section = encode(attributes, asn4=asn4, with_next_hop=classic)
    next_hop = b"" if classic else attributes.next_hop
    nlris = [parse(cidr)[1] for cidr in cidrs]
    return [m[HEADER_BYTES:] for m, _ in pack_announce(family, section, next_hop, nlris)]


class Wire:
    """One peer of a Rib under test: speaks and listens."""

    def __init__(self, rib: Rib, address: str) -> None:
        self.rib = rib
        self.address = address
        self.session: Session | None = None
        self.messages: list[bytes] = []
        self.holds: dict[str, PathAttributes] = {}
        self.ends: list[str] = []

    @property
    def peer(self) -> RibPeer:
        return self.rib.peers[packed(self.address)]

    def up(
        self,
        *,
        now: float = 0.0,
        families: tuple[Family, ...] = (IPV4, IPV6),
        restart: GracefulRestart | None = None,
        **changes: Any,
    ) -> Wire:
        local = "fd00::1" if ":" in self.address else "10.0.0.1"
        asn4 = changes.get("asn4", True)
        values: dict[str, Any] = {
            "families": families,
            "router_id": packed(self.address)[-4:],
            "local_address": packed(local),
            "decode": decoder(asn4=asn4),
            "restart": restart,
            **changes,
        }
        self.session = Session(**values)
        self.rib.session_up(self.peer, self.session, now=now)
        self.holds.clear()
        self.ends.clear()
        return self

    def announce(self, *cidrs: str, **changes: Any) -> None:
        attributes = changes.pop("attributes", None) or route(
            changes.pop("next_hop", self.address if ":" not in cidrs[0] else "fd00::2"), **changes
        )
        assert self.session is not None
        for body in bodies(list(cidrs), attributes, asn4=self.session.asn4):
            self.rib.receive(self.peer, body)

    def withdraw(self, *cidrs: str) -> None:
        for cidr in cidrs:
            family, nlri = parse(cidr)
            for message, _ in pack_withdraw(family, [nlri]):
                self.rib.receive(self.peer, message[HEADER_BYTES:])

    def listen(self, limit: int = 1 << 20) -> list[bytes]:
        """Take everything there is; returns the messages of this time."""
        taken: list[bytes] = []
        while found := self.peer.take(limit):
            taken += found
        for message in taken:
            if message[18] == 2:
                self._apply(message[HEADER_BYTES:])
        self.messages += taken
        return taken

    def _apply(self, body: bytes) -> None:
        fields = parse_update(body)
        if fields.end_of_rib is not None:
            self.ends.append(fields.end_of_rib.name)
        for family, nlris in fields.withdrawn:
            for nlri in nlris:
                self.holds.pop(text(family, nlri), None)
        for family, nlris, next_hop in fields.announced:
            assert self.session is not None
            found = decode_attributes(fields.plain, asn4=self.session.asn4)
            assert not isinstance(found, Malformed)
            for nlri in nlris:
                shown = replace(found, next_hop=next_hop) if next_hop else found
                self.holds[text(family, nlri)] = shown


def speaker(*peers: PeerOptions, now: float = 0.0, **changes: Any) -> tuple[Rib, list[Wire]]:
    """A Rib with these peers, all sessions up."""
    rib = Rib(config(*peers, **changes), now=now)
    wires = [Wire(rib, peer.address).up(now=now) for peer in peers]
    return rib, wires
