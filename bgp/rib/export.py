"""From the best path to what a group of peers is told: who may hear it, and how it is changed.

Layer: pure. Used by bgp.rib.rib at flush. Everything that changes the bytes is in the GroupKey, so
peers with equal keys share one Adj-RIB-Out.

Rules, in order:
    well-known communities (RFC 1997); reflection (RFC 4456 6: from a client to everybody, from a
    non-client to clients only; external and own routes to everybody); the policy (bgp.rib.policy);
    then the attributes: next hop, AS path, LOCAL_PREF, MED, ORIGINATOR_ID and CLUSTER_LIST;
    last, a node that is drained marks everything GRACEFUL_SHUTDOWN (RFC 8326), or says nothing.
Never told back to the peer it came from: that exclusion is the Out's `source`.

Source: RFC 4271 5.1 and 9.2, RFC 4456 6-8, RFC 5065 4; next hop rules as BIRD's for multihop
sessions: kept towards internal peers, self towards external ones, unless told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from bgp.rib.attributes import (
    DEFAULT_LOCAL_PREF,
    GRACEFUL_SHUTDOWN,
    NO_ADVERTISE,
    NO_EXPORT,
    NO_EXPORT_SUBCONFED,
    PathAttributes,
    encode,
    prepend,
    with_communities,
    without_confederation,
)
from bgp.rib.nlri import IPV4, Family
from bgp.rib.path import Path, Source
from bgp.rib.policy import FamilyPolicy, run_chain
from bgp.rib.update import fits
from libcalico.model.speaker import Drain


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What makes two peers hear the same bytes. `own_address` is the next hop `self`, empty when
    the node has none of the family."""

    family: Family
    is_ibgp: bool
    is_client: bool
    local_as: int
    asn4: bool
    own_address: bytes
    next_hop_mode: str = "Auto"
    cluster_id: bytes = b""
    extended_next_hop: bool = False
    filters: tuple[str, ...] = ()


class Out:
    """One set of attributes as sent. Interned, so identity means equal bytes and exclusion."""

    __slots__ = ("__weakref__", "attributes", "encoded", "next_hop", "source")

    def __init__(
        self, attributes: PathAttributes, encoded: bytes, next_hop: bytes, source: Source
    ) -> None:
        self.attributes = attributes
        self.encoded = encoded
        self.next_hop = next_hop  # for MP_REACH_NLRI; empty when it is inside `encoded`
        self.source = source


class Exporter:
    """Evaluates one group's view of a path, remembering per (path, mask)."""

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self._interned: WeakValueDictionary[tuple[bytes, bytes, Source], Out]
        self._interned = WeakValueDictionary()

    def export(self, policy: FamilyPolicy, path: Path, mask: int) -> Out | None:
        cache = path.cache
        if path.generation is not policy:
            path.generation = policy
            cache.clear()
        known = cache.get((self, mask), _UNKNOWN)
        if known is _UNKNOWN:
            known = cache[self, mask] = self._evaluate(policy, path, mask)
        result: Out | None = known
        return result

    def _evaluate(self, policy: FamilyPolicy, path: Path, mask: int) -> Out | None:
        key = self.key
        if policy.drain is Drain.WITHDRAWN or not may_hear(key, path):
            return None
        verdict = run_chain(policy.export_chain(key.filters), path, mask, to_ibgp=key.is_ibgp)
        if verdict is False:
            return None
        filtered = policy.export(path, mask) if verdict is True else verdict
        if not isinstance(filtered, PathAttributes):
            return None
        told = transform(key, path, filtered)
        if told is not None and policy.drain is Drain.GRACEFUL_SHUTDOWN:
            told = as_last_resort(told, to_ibgp=key.is_ibgp)
        return self._intern(path.source, told)

    def _intern(self, source: Source, attributes: PathAttributes | None) -> Out | None:
        if attributes is None:
            return None
        key = self.key
        is_classic = key.family is IPV4 and len(attributes.next_hop) == 4
        encoded = encode(attributes, asn4=key.asn4, with_next_hop=is_classic)
        next_hop = b"" if is_classic else attributes.next_hop
        if not fits(encoded, next_hop):
            return None
        # Two sources with the same bytes stay apart: each is left out of its own.
        identity = (encoded, next_hop, source)
        out = self._interned.get(identity)
        if out is None:
            out = self._interned[identity] = Out(attributes, encoded, next_hop, source)
        return out


_UNKNOWN = object()


def may_hear(key: GroupKey, path: Path) -> bool:
    """RFC 1997 and RFC 4456 6."""
    communities = path.attributes.communities
    if communities:
        if NO_ADVERTISE in communities:
            return False
        if not key.is_ibgp and (NO_EXPORT in communities or NO_EXPORT_SUBCONFED in communities):
            return False
    source = path.source
    if source.is_local or not source.is_ibgp or not key.is_ibgp:
        return True
    return source.is_client or key.is_client


def transform(key: GroupKey, path: Path, attributes: PathAttributes) -> PathAttributes | None:
    """The attributes as the group hears them; None when there is no next hop to give."""
    next_hop = _next_hop(key, path)
    usable = (4, 16) if key.extended_next_hop else (key.family.bits >> 3,)
    if len(next_hop) not in usable:
        return None
    if key.is_ibgp:
        return _to_internal(key, path, replace(attributes, next_hop=next_hop))
    stripped = without_confederation(attributes.as_path)
    return replace(
        attributes,
        next_hop=next_hop,
        as_path=prepend(stripped, (key.local_as,)),
        # RFC 4271 5.1.4: another AS's MED is not passed on.
        med=attributes.med if path.local is not None else None,
        local_pref=None,
        originator_id=None,
        cluster_list=(),
    )


def _to_internal(key: GroupKey, path: Path, attributes: PathAttributes) -> PathAttributes:
    preference = attributes.local_pref
    if preference is None:
        preference = DEFAULT_LOCAL_PREF
    if path.source.is_local or not path.source.is_ibgp:
        return replace(attributes, local_pref=preference)
    # RFC 4456 8: we reflect.
    return replace(
        attributes,
        local_pref=preference,
        originator_id=attributes.originator_id or path.source.router_id,
        cluster_list=(key.cluster_id, *attributes.cluster_list),
    )


def as_last_resort(attributes: PathAttributes, *, to_ibgp: bool) -> PathAttributes:
    """RFC 8326 4: marked; and with the lowest LOCAL_PREF, for internal peers (a Calico node's
    BIRD) that do not look at the community."""
    marked = with_communities(attributes, (GRACEFUL_SHUTDOWN,), ())
    return replace(marked, local_pref=0) if to_ibgp else marked


def _next_hop(key: GroupKey, path: Path) -> bytes:
    if path.local is not None or key.next_hop_mode == "Self":
        return key.own_address
    if key.next_hop_mode == "Keep" or key.is_ibgp:
        return path.attributes.next_hop
    return key.own_address
