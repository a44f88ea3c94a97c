"""Whether a path may be used at all: loops, next hops, and the import policy.

Layer: pure. Used by bgp.rib.rib for every path a peer announces (once per set of attributes) and
again when our own identity changes.

Source: RFC 4271 9.1.2 (AS loops) and 5.1.3 (next hop), RFC 4456 8 (ORIGINATOR_ID, CLUSTER_LIST),
RFC 7606 3 d and 7 (missing attributes), RFC 8326 (GRACEFUL_SHUTDOWN).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from bgp.rib.attributes import (
    AS_PATH,
    GRACEFUL_SHUTDOWN,
    NEXT_HOP,
    ORIGIN,
    Malformed,
    PathAttributes,
    occurrences,
)
from bgp.rib.nlri import FAMILIES, Family, Nlri, is_martian_next_hop, pack_address
from bgp.rib.path import Path
from bgp.rib.peer import RibPeer
from bgp.rib.policy import FamilyPolicy, run_chain
from libcalico.errors import ConfigError
from libcalico.model.speaker import SpeakerConfig


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are, for recognising ourselves in what others send."""

    router_id: bytes
    cluster_id: bytes
    cluster_ids: frozenset[bytes]
    addresses: tuple[tuple[Family, bytes], ...]

    @classmethod
    def of(cls, config: SpeakerConfig) -> Identity:
        """Errors: ConfigError."""
        texts = [config.cluster_id, *(p.cluster_id for p in config.peers if p.rr_client)]
        clusters = [_packed("cluster_id", text) for text in texts if text]
        router_id = _packed("router_id", config.router_id)
        shown = (config.ipv4_address, config.ipv6_address)
        addresses = tuple(
            (family, _packed("address", text.partition("/")[0]))
            for family, text in zip(FAMILIES, shown, strict=True)
            if text
        )
        # RFC 4456 7: a reflector without a cluster id uses its router id.
        cluster_id = clusters[0] if clusters else router_id
        return cls(router_id, cluster_id, frozenset(clusters or [router_id]), addresses)

    def own_address(self, family: Family) -> bytes:
        """Empty when the node has none of the family."""
        return dict(self.addresses).get(family, b"")

    def objection(self, peer: RibPeer, attributes: PathAttributes) -> str:
        """Why a path of `peer` may not be used ("" when it may)."""
        own_as = peer.options.local_as
        if occurrences(attributes.as_path, own_as) > peer.options.allowed_local_as:
            return f"AS {own_as} is in the path"
        if peer.source.is_ibgp and attributes.originator_id == self.router_id:
            return "we are the originator"
        if not self.cluster_ids.isdisjoint(attributes.cluster_list):
            return "our cluster is in the list"
        if is_martian_next_hop(attributes.next_hop):
            return "the next hop is no host"
        if any(attributes.next_hop == address for _, address in self.addresses):
            return "the next hop is ourselves"
        return ""


def missing(codes: Collection[int], *, is_classic: bool) -> Malformed | None:
    """RFC 7606 3 d: a route without its mandatory attributes is withdrawn."""
    for code, name in _MANDATORY:
        if code not in codes and (is_classic or code != NEXT_HOP):
            return Malformed(f"no {name}")
    return None


_MANDATORY = ((ORIGIN, "ORIGIN"), (AS_PATH, "AS_PATH"), (NEXT_HOP, "NEXT_HOP"))


def as_received(peer: RibPeer, decoded: PathAttributes) -> PathAttributes | Malformed:
    """What holds for an internal or an external peer, whatever it sent."""
    if not peer.source.is_ibgp:
        # RFC 4271 5.1.5, RFC 4456 8: not ours to hear from an external peer.
        decoded = replace(decoded, local_pref=None, originator_id=None, cluster_list=())
    elif decoded.local_pref is None:
        return Malformed("no LOCAL_PREF from an internal peer")
    if GRACEFUL_SHUTDOWN in decoded.communities:
        return replace(decoded, local_pref=0)  # RFC 8326 4: while there is any other path, that one
    return decoded


def accepted(peer: RibPeer, policy: FamilyPolicy, nlri: Nlri, path: Path) -> Path | None:
    """The path after the import policy; None when it is not to be used for this prefix."""
    if path.ineligible:
        return None
    chain = peer.import_chains[policy.classifier.family]
    if not chain:
        return path
    mask = policy.classifier.classify(nlri)
    if path.generation is not policy:
        path.generation = policy
        path.cache.clear()
    if mask not in path.cache:
        verdict = run_chain(chain, path, mask, to_ibgp=peer.source.is_ibgp)
        if isinstance(verdict, bool):
            path.cache[mask] = path if verdict else None
        else:
            path.cache[mask] = path if verdict is path.attributes else Path(path.source, verdict)
    found: Path | None = path.cache[mask]
    return found


def peer_key(address: str) -> bytes:
    """Errors: ConfigError."""
    return _packed("peers", address)


def _packed(where: str, text: str) -> bytes:
    try:
        return pack_address(text)
    except ValueError as err:
        raise ConfigError("speaker.json", where, "not an address", text) from err
