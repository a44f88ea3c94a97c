"""Path attributes off the wire, by ExaBGP's decoders, once per distinct attribute section.

Layer: edge (ExaBGP's codec, no I/O). Gives bgp.rib the `Decode` it asks for. Framing, MP
attributes and missing attributes are judged in bgp.rib.update and .admission before.

Whatever ExaBGP refuses becomes Malformed, that is treat-as-withdraw: everything that could ask for
more (MP_REACH_NLRI, MP_UNREACH_NLRI) has been taken out already (RFC 7606 7). Attributes that
RFC 7606 discards (ATOMIC_AGGREGATE, AGGREGATOR) are simply missing afterwards.
List attributes are read from the raw value, in the sender's order; ExaBGP has checked their length.

Source: RFC 7606 7, RFC 6793 4.2.3 (AS4_PATH, done by ExaBGP).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exabgp.bgp.message.direction import Direction
from exabgp.bgp.message.notification import Notify
from exabgp.bgp.message.update.attribute import Attribute, Attributes

from bgp.rib.attributes import (
    AGGREGATOR,
    AS4_AGGREGATOR,
    AS4_PATH,
    AS_PATH,
    ATOMIC_AGGREGATE,
    CLUSTER_LIST,
    COMMUNITIES,
    EXT_COMMUNITIES,
    LARGE_COMMUNITIES,
    LOCAL_PREF,
    MED,
    NEXT_HOP,
    OPTIONAL,
    ORIGIN,
    ORIGINATOR_ID,
    PARTIAL,
    TRANSITIVE,
    Malformed,
    PathAttributes,
    Segment,
    UnknownAttribute,
)
from bgp.rib.update import raw_attributes
from bgp.speaker import exabgp_log as _installed  # noqa: F401  # its codec logs

_KNOWN = frozenset(
    {ORIGIN, AS_PATH, NEXT_HOP, MED, LOCAL_PREF, ATOMIC_AGGREGATE, AGGREGATOR, COMMUNITIES}
    | {ORIGINATOR_ID, CLUSTER_LIST, EXT_COMMUNITIES, AS4_PATH, AS4_AGGREGATOR, LARGE_COMMUNITIES}
)
# RFC 7606 3 c: other flags make the attribute malformed. ExaBGP drops some of these without a
# word, but we read the raw value of lists. Those that are discarded anyway are not in here.
_FLAGS = (
    dict.fromkeys((ORIGIN, AS_PATH, NEXT_HOP, LOCAL_PREF), TRANSITIVE)
    | dict.fromkeys((MED, ORIGINATOR_ID, CLUSTER_LIST), OPTIONAL)
    | dict.fromkeys((COMMUNITIES, EXT_COMMUNITIES, LARGE_COMMUNITIES), OPTIONAL | TRANSITIVE)
)
_TREAT_AS_WITHDRAW = Attribute.CODE.INTERNAL_TREAT_AS_WITHDRAW


@dataclass(slots=True)
class _Negotiated:
    """What ExaBGP's attribute decoders ask of a session, and nothing else."""

    asn4: bool
    aigp: bool = False
    cached_attributes: object = None
    cached_wire: bytes = b""


def decoder(*, asn4: bool) -> Callable[[bytes], PathAttributes | Malformed]:
    """A Decode for sessions of this AS width."""

    def decode(section: bytes) -> PathAttributes | Malformed:
        return decode_attributes(section, asn4=asn4)

    return decode


def decode_attributes(section: bytes, *, asn4: bool) -> PathAttributes | Malformed:
    """Never raises, whatever the bytes (fuzzed)."""
    try:
        found = Attributes.unpack(section, Direction.IN, _Negotiated(asn4))
    except Notify as err:
        return Malformed(f"{err.code}/{err.subcode} {err.data!r}")
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error) as err:
        # A decoder that stumbles is a bug of ExaBGP's, but the bytes are the peer's.
        return Malformed(f"undecodable: {err}")
    if _TREAT_AS_WITHDRAW in found:
        return Malformed(str(found[_TREAT_AS_WITHDRAW]))
    raw = {}
    for flags, code, value in raw_attributes(section):
        if code in _FLAGS and flags & (OPTIONAL | TRANSITIVE) != _FLAGS[code]:
            return Malformed(f"attribute {code} with flags {flags:#x}")
        raw[code] = value
    if len(raw.get(ORIGIN, b"\0")) != 1 or raw.get(ORIGIN, b"\0")[0] > 2:
        return Malformed("ORIGIN is not IGP, EGP or INCOMPLETE")  # RFC 7606 7.1
    if len(raw.get(NEXT_HOP, b"\0\0\0\0")) != 4:
        return Malformed("NEXT_HOP is not 4 bytes")  # RFC 7606 7.3
    unknown = _pass_on(section)
    if isinstance(unknown, Malformed):
        return unknown
    return _assemble(found, raw, unknown)


def _assemble(
    found: Any, raw: dict[int, bytes], unknown: tuple[UnknownAttribute, ...]
) -> PathAttributes:
    path = found.get(AS_PATH)
    med, preference, originator = found.get(MED), found.get(LOCAL_PREF), found.get(ORIGINATOR_ID)
    large = struct.iter_unpack("!III", raw.get(LARGE_COMMUNITIES, b""))
    return PathAttributes(
        origin=found[ORIGIN].origin if ORIGIN in found else 0,
        as_path=_segments(path) if path is not None else (),
        next_hop=raw.get(NEXT_HOP, b""),
        med=int(med.med) if med is not None else None,
        local_pref=int(preference.localpref) if preference is not None else None,
        atomic_aggregate=ATOMIC_AGGREGATE in found,
        aggregator=_aggregator(found),
        communities=tuple(
            number for (number,) in struct.iter_unpack("!I", raw.get(COMMUNITIES, b""))
        ),
        originator_id=bytes(originator.ton()) if originator is not None else None,
        cluster_list=_slices(raw.get(CLUSTER_LIST, b""), 4),
        ext_communities=_slices(raw.get(EXT_COMMUNITIES, b""), 8),
        # RFC 8092 5: duplicates are removed.
        large_communities=tuple(dict.fromkeys((a, b, c) for a, b, c in large)),
        unknown=unknown,
    )


def _segments(path: Any) -> tuple[Segment, ...]:
    return tuple(
        Segment(int(part.ID), tuple(int(asn) for asn in part)) for part in path.aspath if part
    )


def _aggregator(found: Any) -> tuple[int, bytes] | None:
    aggregator = found.get(AS4_AGGREGATOR, found.get(AGGREGATOR))
    if aggregator is None:
        return None
    return int(aggregator.asn), bytes(aggregator.speaker.ton())


def _pass_on(section: bytes) -> tuple[UnknownAttribute, ...] | Malformed:
    """RFC 4271 9: unknown optional transitive attributes travel on, marked partial."""
    kept = []
    for flags, code, value in raw_attributes(section):
        if code in _KNOWN:
            continue
        if not flags & OPTIONAL:
            return Malformed(f"well-known attribute {code} is not known")
        if flags & TRANSITIVE:
            kept.append(UnknownAttribute(flags & 0xC0 | PARTIAL, code, value))
    return tuple(kept)


def _slices(value: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(value[at : at + size] for at in range(0, len(value), size))
