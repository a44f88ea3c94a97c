"""The framing of UPDATE messages, both ways: fields out of a body, prefixes packed into messages.

Layer: pure. Used by bgp.rib.peer (in), bgp.rib.adj_rib_out (out), bgp.speaker (constants).

What a malformed message costs follows RFC 7606: a WireError resets the session (the fields that
hold prefixes cannot be located or read), `Fields.malformed` treats the message as a withdrawal, and
the meaning of single attributes is the decoder's business.
Invariants:
  I1  `parse` raises nothing but WireError, whatever the bytes;
  I2  every message `pack_*` returns is at most MAX_MESSAGE bytes and carries prefixes of one kind.

Source: RFC 4271 4.3 and 6.3, RFC 4760 3-5, RFC 4724 2 (End-of-RIB), RFC 7606, RFC 8950.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bgp.rib.attributes import (
    EXTENDED_LENGTH,
    MP_REACH_NLRI,
    MP_UNREACH_NLRI,
    OPTIONAL,
)
from bgp.rib.nlri import IPV4, UPDATE_ERROR, Family, Nlri, family_of, split
from libcalico.errors import WireError

MARKER = b"\xff" * 16
HEADER_BYTES, MAX_MESSAGE = 19, 4096
UPDATE, KEEPALIVE, ROUTE_REFRESH = 2, 4, 5
MALFORMED_ATTRIBUTE_LIST, OPTIONAL_ATTRIBUTE_ERROR = 1, 9
BEGIN_OF_REFRESH, END_OF_REFRESH = 1, 2

_U16 = struct.Struct("!H")
_HEADER = struct.Struct("!16sHB")
_NEXT_HOP_BYTES = {1: (4, 16, 32), 2: (16, 32)}


@dataclass(slots=True)
class Fields:
    """One UPDATE taken apart. Prefixes are grouped by family; there is at most one next hop each.

    `plain` is the attribute section without its MP attributes: what the decoder gets and what
    paths are interned by; `codes` are the attributes in it. The next hop of `announced` is the one
    of MP_REACH_NLRI, empty for the classic field. `end_of_rib` names the family whose initial dump
    is complete."""

    withdrawn: list[tuple[Family, list[Nlri]]] = field(default_factory=list)
    announced: list[tuple[Family, list[Nlri], bytes]] = field(default_factory=list)
    plain: bytes = b""
    codes: set[int] = field(default_factory=set)
    malformed: str = ""
    end_of_rib: Family | None = None


@dataclass(slots=True)
class _Attribute:
    flags: int
    code: int
    start: int  # of the header
    value: int  # of the value
    end: int


def locate(body: bytes) -> tuple[int, int]:
    """Start and end of the attribute section; withdrawn routes are body[2:start-2].

    Errors: WireError 3/1, the lengths do not fit the message (RFC 4271 6.3)."""
    size = len(body)
    if size < 4:
        raise WireError(f"UPDATE of {size} bytes", UPDATE_ERROR, MALFORMED_ATTRIBUTE_LIST)
    start = ((body[0] << 8) | body[1]) + 4
    if start > size:
        raise WireError("withdrawn routes too long", UPDATE_ERROR, MALFORMED_ATTRIBUTE_LIST)
    end = start + ((body[start - 2] << 8) | body[start - 1])
    if end > size:
        raise WireError("path attributes too long", UPDATE_ERROR, MALFORMED_ATTRIBUTE_LIST)
    return start, end


def parse(body: bytes) -> Fields:
    """The body of an UPDATE (without its header). Errors: WireError."""
    start, end = locate(body)
    fields = Fields()
    if len(body) == 4:
        fields.end_of_rib = IPV4
        return fields
    if start > 4:
        fields.withdrawn.append((IPV4, split(IPV4, body, 2, start - 2)))
    _read_attributes(body, start, end, fields)
    if end < len(body):
        fields.announced.append((IPV4, split(IPV4, body, end, len(body)), b""))
    elif fields.malformed and not fields.announced and start == 4 and not fields.withdrawn:
        # RFC 7606 3 j: the prefixes may be in the part that cannot be read.
        raise WireError(fields.malformed, UPDATE_ERROR, MALFORMED_ATTRIBUTE_LIST)
    return fields


def _read_attributes(body: bytes, start: int, end: int, fields: Fields) -> None:
    plain: list[bytes] = []
    seen = fields.codes
    others = False
    for found in _attributes(body, start, end, fields):
        code = found.code
        if code in seen:
            if code in (MP_REACH_NLRI, MP_UNREACH_NLRI):
                # RFC 7606 3 g: more than one of these resets the session.
                raise WireError("duplicate MP attribute", UPDATE_ERROR, MALFORMED_ATTRIBUTE_LIST)
            continue  # RFC 7606 3 g: all but the first are discarded
        seen.add(code)
        if code in (MP_REACH_NLRI, MP_UNREACH_NLRI) and found.flags & 0xC0 != OPTIONAL:
            # RFC 7606 3 c; the prefixes are known, so withdrawing them is possible.
            fields.malformed = f"attribute {code} with flags {found.flags:#x}"
        if code == MP_REACH_NLRI:
            _read_reach(body, found, fields)
        elif code == MP_UNREACH_NLRI:
            others = _read_unreach(body, found, fields) or others
        else:
            plain.append(body[found.start : found.end])
    fields.plain = b"".join(plain)
    if fields.plain or fields.announced or others or start > 4 or end < len(body):
        fields.end_of_rib = None


def raw_attributes(section: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(flags, code, value) of a section that `parse` has read without complaint."""
    for found in _attributes(section, 0, len(section), Fields()):
        yield found.flags, found.code, section[found.value : found.end]


def _attributes(body: bytes, start: int, end: int, fields: Fields) -> Iterator[_Attribute]:
    """The attributes one by one; stops at a framing error and says so (RFC 7606 4)."""
    while start < end:
        if end - start < 3:
            fields.malformed = "attribute header cut short"
            return
        flags, code = body[start], body[start + 1]
        value = start + 3
        length = body[start + 2]
        if flags & EXTENDED_LENGTH:
            if end - start < 4:
                fields.malformed = "attribute header cut short"
                return
            length = (length << 8) | body[start + 3]
            value = start + 4
        if value + length > end:
            fields.malformed = f"attribute {code} longer than the message"
            return
        yield _Attribute(flags, code, start, value, value + length)
        start = value + length


def _read_reach(body: bytes, found: _Attribute, fields: Fields) -> None:
    start, end = found.value, found.end
    if end - start < 5:
        raise WireError("MP_REACH_NLRI cut short", UPDATE_ERROR, OPTIONAL_ATTRIBUTE_ERROR)
    afi, safi, size = (body[start] << 8) | body[start + 1], body[start + 2], body[start + 3]
    family = family_of(afi, safi)
    if family is None:
        return  # RFC 4760 7: not negotiated, ignored
    at = start + 4 + size + 1
    if at > end or size not in _NEXT_HOP_BYTES[afi]:
        raise WireError("MP_REACH_NLRI next hop", UPDATE_ERROR, OPTIONAL_ATTRIBUTE_ERROR)
    # RFC 2545 3: a second, link-local address may follow; routes go to the global one.
    next_hop = body[start + 4 : start + 4 + min(size, 16)]
    fields.announced.append((family, split(family, body, at, end), next_hop))


def _read_unreach(body: bytes, found: _Attribute, fields: Fields) -> bool:
    """Returns whether it withdrew anything (then the message is no End-of-RIB)."""
    start, end = found.value, found.end
    if end - start < 3:
        raise WireError("MP_UNREACH_NLRI cut short", UPDATE_ERROR, OPTIONAL_ATTRIBUTE_ERROR)
    family = family_of((body[start] << 8) | body[start + 1], body[start + 2])
    if family is None:
        return True
    if end - start == 3:
        fields.end_of_rib = family
        return False
    fields.withdrawn.append((family, split(family, body, start + 3, end)))
    return True


def message(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(MARKER, HEADER_BYTES + len(body), kind) + body


def pack_announce(
    family: Family, attributes: bytes, next_hop: bytes, nlris: Sequence[Nlri]
) -> list[tuple[bytes, list[Nlri]]]:
    """UPDATEs that announce `nlris`; `next_hop` empty means the classic field (it is in
    `attributes`). Empty when the attributes leave no room (`fits`)."""
    if not next_hop:
        prefix = b"\0\0" + _U16.pack(len(attributes)) + attributes
        chunks = _chunks(nlris, MAX_MESSAGE - HEADER_BYTES - len(prefix))
        return [(message(UPDATE, prefix + b"".join(chunk)), chunk) for chunk in chunks]
    # RFC 7606 5.1: the MP attribute first, so that a reader finds the prefixes in any case.
    head = struct.pack("!HBB", family.afi, family.safi, len(next_hop)) + next_hop + b"\0"
    chunks = _chunks(nlris, MAX_MESSAGE - HEADER_BYTES - 8 - len(head) - len(attributes))
    packed = []
    for chunk in chunks:
        section = mp_attribute(MP_REACH_NLRI, head + b"".join(chunk)) + attributes
        packed.append((message(UPDATE, b"\0\0" + _U16.pack(len(section)) + section), chunk))
    return packed


def fits(attributes: bytes, next_hop: bytes) -> bool:
    """Whether at least one prefix of any length goes beside these attributes."""
    head = 8 + 5 + len(next_hop) if next_hop else 4
    return len(attributes) + head + 17 <= MAX_MESSAGE - HEADER_BYTES


def pack_withdraw(family: Family, nlris: Sequence[Nlri]) -> list[tuple[bytes, list[Nlri]]]:
    if family is IPV4:
        chunks = _chunks(nlris, MAX_MESSAGE - HEADER_BYTES - 4)
        packed = []
        for chunk in chunks:
            routes = b"".join(chunk)
            packed.append((message(UPDATE, _U16.pack(len(routes)) + routes + b"\0\0"), chunk))
        return packed
    head = struct.pack("!HB", *family.code)
    chunks = _chunks(nlris, MAX_MESSAGE - HEADER_BYTES - 8 - len(head))
    return [(_unreach(head + b"".join(chunk)), chunk) for chunk in chunks]


def end_of_rib(family: Family) -> bytes:
    """RFC 4724 2: an UPDATE with nothing in it, of the family."""
    if family is IPV4:
        return message(UPDATE, b"\0\0\0\0")
    return _unreach(struct.pack("!HB", *family.code))


def refresh_marker(family: Family, subtype: int) -> bytes:
    """RFC 7313 3: BoRR or EoRR around a refresh."""
    return message(ROUTE_REFRESH, struct.pack("!HBB", family.afi, subtype, family.safi))


def _unreach(value: bytes) -> bytes:
    section = mp_attribute(MP_UNREACH_NLRI, value)
    return message(UPDATE, b"\0\0" + _U16.pack(len(section)) + section)


def mp_attribute(code: int, value: bytes) -> bytes:
    if len(value) > 255:
        return bytes([OPTIONAL | EXTENDED_LENGTH, code]) + _U16.pack(len(value)) + value
    return bytes([OPTIONAL, code, len(value)]) + value


def _chunks(nlris: Sequence[Nlri], room: int) -> list[list[Nlri]]:
    """Cut into runs of at most `room` bytes; nothing when not even one prefix fits."""
    found: list[list[Nlri]] = []
    run: list[Nlri] = []
    size = 0
    for nlri in nlris:
        length = len(nlri)
        if length > room:
            continue
        if size + length > room:
            found.append(run)
            run, size = [], 0
        run.append(nlri)
        size += length
    if run:
        found.append(run)
    return found
