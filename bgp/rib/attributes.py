"""The path attributes of a route, decoded, and their encoding.

Layer: pure. Decoding is injected (`Decode`): the speaker does it with ExaBGP once per distinct
attribute blob; encoding is ours because a group of peers shares the bytes.

AS numbers are always four bytes in here; a peer that only knows two gets AS_TRANS and AS4_PATH on
the way out (RFC 6793). Next hops are packed addresses, 4 or 16 bytes.

Source: RFC 4271 4.3 and 5, RFC 1997, RFC 4360, RFC 4456, RFC 6793, RFC 8092.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")

AS_SET, AS_SEQUENCE, CONFED_SEQUENCE, CONFED_SET = 1, 2, 3, 4
AS_TRANS = 23456
DEFAULT_LOCAL_PREF = 100

ORIGIN, AS_PATH, NEXT_HOP, MED, LOCAL_PREF = 1, 2, 3, 4, 5
ATOMIC_AGGREGATE, AGGREGATOR, COMMUNITIES = 6, 7, 8
ORIGINATOR_ID, CLUSTER_LIST = 9, 10
MP_REACH_NLRI, MP_UNREACH_NLRI = 14, 15
EXT_COMMUNITIES, AS4_PATH, AS4_AGGREGATOR, LARGE_COMMUNITIES = 16, 17, 18, 32

OPTIONAL, TRANSITIVE, PARTIAL, EXTENDED_LENGTH = 0x80, 0x40, 0x20, 0x10

NO_EXPORT, NO_ADVERTISE, NO_EXPORT_SUBCONFED = 0xFFFFFF01, 0xFFFFFF02, 0xFFFFFF03

GRACEFUL_SHUTDOWN = 0xFFFF0000  # RFC 8326

_U16, _U32 = struct.Struct("!H"), struct.Struct("!I")
LargeCommunity = tuple[int, int, int]


class Segment(NamedTuple):
    """One segment of an AS path."""

    kind: int
    asns: tuple[int, ...]


AsPath = tuple[Segment, ...]


class UnknownAttribute(NamedTuple):
    """An optional transitive attribute we do not understand and pass on (RFC 4271 9)."""

    flags: int
    code: int
    value: bytes


@dataclass(frozen=True, slots=True)
class PathAttributes:
    """What a route says about itself."""

    origin: int = 0
    as_path: AsPath = ()
    next_hop: bytes = b""
    med: int | None = None
    local_pref: int | None = None
    atomic_aggregate: bool = False
    aggregator: tuple[int, bytes] | None = None
    communities: tuple[int, ...] = ()
    originator_id: bytes | None = None
    cluster_list: tuple[bytes, ...] = ()
    ext_communities: tuple[bytes, ...] = ()
    large_communities: tuple[LargeCommunity, ...] = ()
    unknown: tuple[UnknownAttribute, ...] = ()


@dataclass(frozen=True, slots=True)
class Malformed:
    """RFC 7606 treat-as-withdraw: the routes of this message are withdrawn, the session stays."""

    reason: str


# An attribute section without its MP attributes, in the peer's AS width -> what it says.
Decode = Callable[[bytes], PathAttributes | Malformed]


def as_path_length(path: AsPath) -> int:
    """RFC 4271 9.1.2.2 a: a set counts one; RFC 5065 5.3: confederation segments count none."""
    length = 0
    for segment in path:
        if segment.kind == AS_SEQUENCE:
            length += len(segment.asns)
        elif segment.kind == AS_SET:
            length += 1
    return length


def neighbour_as(path: AsPath) -> int:
    """The AS the route came from, for comparing MEDs; 0 for a route of our own AS."""
    for segment in path:
        if segment.kind in (AS_SEQUENCE, AS_SET) and segment.asns:
            return segment.asns[0] if segment.kind == AS_SEQUENCE else 0
    return 0


def occurrences(path: AsPath, asn: int) -> int:
    return sum(segment.asns.count(asn) for segment in path)


def as_list(path: AsPath) -> tuple[int, ...]:
    """The AS numbers in order, sets flattened."""
    return tuple(asn for segment in path for asn in segment.asns)


def prepend(path: AsPath, asns: Iterable[int]) -> AsPath:
    """`asns` in front, joined to a leading sequence that has room (255 at most, RFC 4271 4.3)."""
    added = tuple(asns)
    if not added:
        return path
    if path and path[0].kind == AS_SEQUENCE and len(path[0].asns) + len(added) <= 255:
        return (Segment(AS_SEQUENCE, added + path[0].asns), *path[1:])
    return (Segment(AS_SEQUENCE, added), *path)


def without_confederation(path: AsPath) -> AsPath:
    """RFC 5065 4: confederation segments never leave the confederation."""
    if all(segment.kind in (AS_SET, AS_SEQUENCE) for segment in path):
        return path
    return tuple(segment for segment in path if segment.kind in (AS_SET, AS_SEQUENCE))


def with_communities(
    attributes: PathAttributes, standard: Iterable[int], large: Iterable[LargeCommunity]
) -> PathAttributes:
    """Add what is not there yet; order of the present ones is kept."""
    communities = _extended(attributes.communities, standard)
    large_communities = _extended(attributes.large_communities, large)
    if communities is attributes.communities and large_communities is attributes.large_communities:
        return attributes
    return replace(attributes, communities=communities, large_communities=large_communities)


def _extended(present: tuple[_T, ...], added: Iterable[_T]) -> tuple[_T, ...]:
    missing = tuple(dict.fromkeys(item for item in added if item not in present))
    return present + missing if missing else present


def encode(attributes: PathAttributes, *, asn4: bool, with_next_hop: bool) -> bytes:
    """The attribute section without MP_REACH_NLRI, in ascending order of type code."""
    parts = [_attribute(TRANSITIVE, ORIGIN, bytes([attributes.origin]))]
    parts.append(_attribute(TRANSITIVE, AS_PATH, _encode_path(attributes.as_path, asn4=asn4)))
    if with_next_hop:
        parts.append(_attribute(TRANSITIVE, NEXT_HOP, attributes.next_hop))
    if attributes.med is not None:
        parts.append(_attribute(OPTIONAL, MED, _U32.pack(attributes.med)))
    if attributes.local_pref is not None:
        parts.append(_attribute(TRANSITIVE, LOCAL_PREF, _U32.pack(attributes.local_pref)))
    if attributes.atomic_aggregate:
        parts.append(_attribute(TRANSITIVE, ATOMIC_AGGREGATE, b""))
    parts += _encode_aggregator(attributes, asn4=asn4)
    parts += _encode_lists(attributes)
    parts += _encode_as4(attributes, asn4=asn4)
    if attributes.large_communities:
        value = b"".join(struct.pack("!III", *item) for item in attributes.large_communities)
        parts.append(_attribute(OPTIONAL | TRANSITIVE, LARGE_COMMUNITIES, value))
    known = sorted(attributes.unknown, key=lambda item: item.code)
    parts += [_attribute(item.flags, item.code, item.value) for item in known]
    return b"".join(parts)


def _encode_lists(attributes: PathAttributes) -> list[bytes]:
    parts = []
    if attributes.communities:
        value = struct.pack(f"!{len(attributes.communities)}I", *attributes.communities)
        parts.append(_attribute(OPTIONAL | TRANSITIVE, COMMUNITIES, value))
    if attributes.originator_id is not None:
        parts.append(_attribute(OPTIONAL, ORIGINATOR_ID, attributes.originator_id))
    if attributes.cluster_list:
        parts.append(_attribute(OPTIONAL, CLUSTER_LIST, b"".join(attributes.cluster_list)))
    if attributes.ext_communities:
        value = b"".join(attributes.ext_communities)
        parts.append(_attribute(OPTIONAL | TRANSITIVE, EXT_COMMUNITIES, value))
    return parts


def _encode_aggregator(attributes: PathAttributes, *, asn4: bool) -> list[bytes]:
    if attributes.aggregator is None:
        return []
    asn, address = attributes.aggregator
    head = _U32.pack(asn) if asn4 else _U16.pack(asn if asn < 65536 else AS_TRANS)
    return [_attribute(OPTIONAL | TRANSITIVE, AGGREGATOR, head + address)]


def _encode_as4(attributes: PathAttributes, *, asn4: bool) -> list[bytes]:
    """RFC 6793 4.2.2: beside an AS_TRANS, the truth for those behind the old speaker."""
    parts: list[bytes] = []
    if asn4:
        return parts
    path = without_confederation(attributes.as_path)
    if any(asn > 65535 for asn in as_list(attributes.as_path)) and path:
        value = _encode_path(path, asn4=True)
        parts.append(_attribute(OPTIONAL | TRANSITIVE, AS4_PATH, value))
    if attributes.aggregator is not None and attributes.aggregator[0] > 65535:
        value = _U32.pack(attributes.aggregator[0]) + attributes.aggregator[1]
        parts.append(_attribute(OPTIONAL | TRANSITIVE, AS4_AGGREGATOR, value))
    return parts


def _encode_path(path: AsPath, *, asn4: bool) -> bytes:
    parts = []
    for segment in path:
        for start in range(0, len(segment.asns), 255):
            asns = segment.asns[start : start + 255]
            if not asn4:
                asns = tuple(asn if asn < 65536 else AS_TRANS for asn in asns)
            numbers = struct.pack(f"!{len(asns)}{'I' if asn4 else 'H'}", *asns)
            parts.append(bytes([segment.kind, len(asns)]) + numbers)
    return b"".join(parts)


def _attribute(flags: int, code: int, value: bytes) -> bytes:
    if len(value) > 255:
        return bytes([flags | EXTENDED_LENGTH, code]) + _U16.pack(len(value)) + value
    return bytes([flags & ~EXTENDED_LENGTH, code, len(value)]) + value
