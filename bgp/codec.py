"""`calico-bgp decode` and `encode`: BGP messages as hexadecimal text, and as JSON.

Layer: edge-free but for `main`. The codec is the speaker's own, so what this shows is what it
understands: a capture can be read with it, and a test message written.

  C1  `decode` and `encode` raise nothing but InvalidInput, whatever they are given;
  C2  decode(encode(decode(x))) is decode(x), unless x is `malformed` (which encode refuses).

Source: RFC 4271 4, RFC 2918, RFC 4760, RFC 5492, RFC 7313.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import Annotated, Literal, Union

import msgspec

from bgp.rib.admission import missing
from bgp.rib.attributes import (
    MP_REACH_NLRI,
    MP_UNREACH_NLRI,
    Malformed,
    PathAttributes,
    Segment,
    UnknownAttribute,
)
from bgp.rib.attributes import (
    encode as encode_attributes,
)
from bgp.rib.nlri import FAMILIES, IPV4, IPV6, Nlri, address_text, pack_address, parse, text
from bgp.rib.policy import split_communities
from bgp.rib.update import (
    HEADER_BYTES,
    KEEPALIVE,
    MARKER,
    MAX_MESSAGE,
    ROUTE_REFRESH,
    UPDATE,
    end_of_rib,
    message,
    mp_attribute,
)
from bgp.rib.update import (
    parse as parse_update,
)
from libcalico.errors import SuiteError, ValidationError, WireError

OPEN, NOTIFICATION = 1, 3
U8 = Annotated[int, msgspec.Meta(ge=0, le=0xFF)]
U16 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_ORIGINS = ("IGP", "EGP", "incomplete")
_KINDS = ("set", "sequence", "confed_sequence", "confed_set")  # 1..4 on the wire


class _Text(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class _Tagged(_Text, frozen=True, tag_field="type", forbid_unknown_fields=True):
    pass


class SegmentText(_Text, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["set", "sequence", "confed_sequence", "confed_set"] = "sequence"
    asns: tuple[U32, ...]


class AggregatorText(_Text, frozen=True, kw_only=True, forbid_unknown_fields=True):
    asn: U32
    address: str


class UnknownText(_Text, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`value` is hexadecimal."""

    flags: U8
    code: U8
    value: str = ""


class AttributesText(_Text, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses and communities as people write them; `ext_communities` hexadecimal."""

    origin: Literal["IGP", "EGP", "incomplete"]
    as_path: tuple[SegmentText, ...] = ()
    med: U32 | None = None
    local_pref: U32 | None = None
    atomic_aggregate: bool = False
    aggregator: AggregatorText | None = None
    communities: tuple[str, ...] = ()
    originator_id: str = ""
    cluster_list: tuple[str, ...] = ()
    ext_communities: tuple[str, ...] = ()
    large_communities: tuple[str, ...] = ()
    unknown: tuple[UnknownText, ...] = ()


class Update(
    _Text, frozen=True, kw_only=True, tag_field="type", tag="UPDATE", forbid_unknown_fields=True
):
    """`next_hops` by family; `end_of_rib` a family; `malformed` is what RFC 7606 withdraws for."""

    withdrawn: tuple[str, ...] = ()
    announced: tuple[str, ...] = ()
    next_hops: dict[Literal["ipv4", "ipv6"], str] = {}
    attributes: AttributesText | None = None
    end_of_rib: Literal["", "ipv4", "ipv6"] = ""
    malformed: str = ""


class Open(
    _Text, frozen=True, kw_only=True, tag_field="type", tag="OPEN", forbid_unknown_fields=True
):
    """`parameters`: the optional parameters (RFC 5492) as they are, hexadecimal."""

    version: U8 = 4
    asn: U16
    hold_time_s: U16
    router_id: str
    parameters: str = ""


class Notification(
    _Text,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="NOTIFICATION",
    forbid_unknown_fields=True,
):
    code: U8
    subcode: U8
    data: str = ""


class Keepalive(
    _Text, frozen=True, kw_only=True, tag_field="type", tag="KEEPALIVE", forbid_unknown_fields=True
):
    pass


class RouteRefresh(
    _Text,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="ROUTE-REFRESH",
    forbid_unknown_fields=True,
):
    """`subtype` 0 asks, 1 and 2 begin and end the answer (RFC 7313)."""

    afi: U16
    safi: U8
    subtype: U8 = 0


Message = Union[Update, Open, Notification, Keepalive, RouteRefresh]  # noqa: UP007


def decode(data: bytes, *, asn4: bool = True) -> list[Message]:
    """One or more whole messages. Errors: WireError with what a speaker would answer."""
    found: list[Message] = []
    while data:
        if len(data) < HEADER_BYTES or data[:16] != MARKER:
            raise WireError("not a BGP header", 1, 1)
        length, kind = int.from_bytes(data[16:18], "big"), data[18]
        if not HEADER_BYTES <= length <= min(MAX_MESSAGE, len(data)):
            raise WireError(f"length {length} of {len(data)} bytes", 1, 2)
        found.append(_message(kind, data[HEADER_BYTES:length], asn4=asn4))
        data = data[length:]
    return found


def _message(kind: int, body: bytes, *, asn4: bool) -> Message:
    if kind == UPDATE:
        return _update(body, asn4=asn4)
    if kind == KEEPALIVE and not body:
        return Keepalive()
    if kind == OPEN and len(body) >= 10 and body[9] == len(body) - 10:
        version, asn, hold_s, router_id = struct.unpack("!BHH4s", body[:9])
        return Open(
            version=version,
            asn=asn,
            hold_time_s=hold_s,
            router_id=address_text(router_id),
            parameters=body[10:].hex(),
        )
    if kind == NOTIFICATION and len(body) >= 2:
        return Notification(code=body[0], subcode=body[1], data=body[2:].hex())
    if kind == ROUTE_REFRESH and len(body) == 4:
        afi, subtype, safi = struct.unpack("!HBB", body)
        return RouteRefresh(afi=afi, safi=safi, subtype=subtype)
    raise WireError(f"message of type {kind} with {len(body)} bytes", 1, 2 if kind < 6 else 3)


def _update(body: bytes, *, asn4: bool) -> Update:
    fields = parse_update(body)
    hops = {family.name: hop for family, nlris, hop in fields.announced if hop and nlris}
    attributes, malformed = None, fields.malformed
    if fields.plain:
        is_classic = any(not hop for _, _, hop in fields.announced)
        decoded = decode_plain(fields.plain, asn4=asn4)
        absent = missing(fields.codes, is_classic=is_classic) if fields.announced else None
        if isinstance(decoded, Malformed):
            malformed = malformed or decoded.reason
        else:
            attributes = _attributes_text(decoded)
            malformed = malformed or (absent.reason if absent else "")
            if is_classic and decoded.next_hop:
                hops["ipv4"] = decoded.next_hop
    elif fields.announced:
        malformed = malformed or "no attributes"
    return Update(
        withdrawn=tuple(text(f, n) for f, nlris in fields.withdrawn for n in nlris),
        announced=tuple(text(f, n) for f, nlris, _ in fields.announced for n in nlris),
        next_hops={name: address_text(hop) for name, hop in hops.items()},  # type: ignore[misc]
        attributes=attributes,
        end_of_rib=fields.end_of_rib.name if fields.end_of_rib else "",  # type: ignore[arg-type]
        malformed=malformed,
    )


def decode_plain(section: bytes, *, asn4: bool) -> PathAttributes | Malformed:
    # ExaBGP takes 0.2 s to import: not for `--help`, not for encode.
    from bgp.speaker.decode import decode_attributes

    return decode_attributes(section, asn4=asn4)


def _attributes_text(found: PathAttributes) -> AttributesText:
    aggregator = found.aggregator
    return AttributesText(
        origin=_ORIGINS[found.origin],  # type: ignore[arg-type]
        as_path=tuple(
            SegmentText(kind=_KINDS[part.kind - 1], asns=part.asns)  # type: ignore[arg-type]
            for part in found.as_path
        ),
        med=found.med,
        local_pref=found.local_pref,
        atomic_aggregate=found.atomic_aggregate,
        aggregator=None
        if aggregator is None
        else AggregatorText(asn=aggregator[0], address=address_text(aggregator[1])),
        communities=tuple(f"{value >> 16}:{value & 0xFFFF}" for value in found.communities),
        originator_id=address_text(found.originator_id or b""),
        cluster_list=tuple(map(address_text, found.cluster_list)),
        ext_communities=tuple(value.hex() for value in found.ext_communities),
        large_communities=tuple(":".join(map(str, value)) for value in found.large_communities),
        unknown=tuple(
            UnknownText(flags=item.flags, code=item.code, value=item.value.hex())
            for item in found.unknown
        ),
    )


def encode(found: Message, *, asn4: bool = True) -> bytes:
    """Errors: ValidationError."""
    try:
        kind, body = _body(found, asn4=asn4)
    except (ValueError, struct.error) as err:
        raise ValidationError.of(str(found.__struct_config__.tag), "", str(err)) from err
    if HEADER_BYTES + len(body) > MAX_MESSAGE:
        size = HEADER_BYTES + len(body)
        raise ValidationError.of("message", size, f"longer than {MAX_MESSAGE} bytes")
    return message(kind, body)


def _body(found: Message, *, asn4: bool) -> tuple[int, bytes]:
    if isinstance(found, Update):
        return UPDATE, _update_body(found, asn4=asn4)
    if isinstance(found, Open):
        parameters = bytes.fromhex(found.parameters)
        head = struct.pack("!BHH", found.version, found.asn, found.hold_time_s)
        return OPEN, head + _ipv4(found.router_id) + bytes([len(parameters)]) + parameters
    if isinstance(found, Notification):
        return NOTIFICATION, bytes([found.code, found.subcode]) + bytes.fromhex(found.data)
    if isinstance(found, RouteRefresh):
        return ROUTE_REFRESH, struct.pack("!HBB", found.afi, found.subtype, found.safi)
    return KEEPALIVE, b""


def _update_body(found: Update, *, asn4: bool) -> bytes:
    if found.malformed:
        raise ValueError("a malformed message cannot be written again")
    if found.end_of_rib:
        family = next(family for family in FAMILIES if family.name == found.end_of_rib)
        return end_of_rib(family)[HEADER_BYTES:]
    said = {str(name): hop for name, hop in found.next_hops.items()}
    hops = {f: pack_address(said[f.name]) if f.name in said else b"" for f in FAMILIES}
    withdrawn, announced = _by_family(found.withdrawn), _by_family(found.announced)
    is_classic = len(hops[IPV4]) == 4
    section = b""
    if withdrawn[IPV6]:
        section += mp_attribute(MP_UNREACH_NLRI, b"\0\2\1" + b"".join(withdrawn[IPV6]))
    for family in FAMILIES:
        if announced[family] and not (family is IPV4 and is_classic):
            if not hops[family]:
                raise ValueError(f"no next hop for {family.name}")
            head = struct.pack("!HBB", *family.code, len(hops[family])) + hops[family] + b"\0"
            section += mp_attribute(MP_REACH_NLRI, head + b"".join(announced[family]))
    if found.attributes is not None:
        plain = _attributes(found.attributes, hops[IPV4] if is_classic else b"")
        section += encode_attributes(plain, asn4=asn4, with_next_hop=is_classic)
    classic = b"".join(announced[IPV4]) if is_classic else b""
    routes = b"".join(withdrawn[IPV4])
    return (
        struct.pack("!H", len(routes))
        + routes
        + struct.pack("!H", len(section))
        + section
        + classic
    )


def _by_family(cidrs: Iterable[str]) -> dict[object, list[Nlri]]:
    found: dict[object, list[Nlri]] = {IPV4: [], IPV6: []}
    for cidr in cidrs:
        family, nlri = parse(cidr)
        found[family].append(nlri)
    return found


def _attributes(said: AttributesText, next_hop: bytes) -> PathAttributes:
    aggregator = said.aggregator
    return PathAttributes(
        origin=_ORIGINS.index(said.origin),
        as_path=tuple(Segment(_KINDS.index(s.kind) + 1, s.asns) for s in said.as_path),
        next_hop=next_hop,
        med=said.med,
        local_pref=said.local_pref,
        atomic_aggregate=said.atomic_aggregate,
        aggregator=None if aggregator is None else (aggregator.asn, _ipv4(aggregator.address)),
        communities=split_communities(said.communities)[0],
        originator_id=_ipv4(said.originator_id) if said.originator_id else None,
        cluster_list=tuple(map(_ipv4, said.cluster_list)),
        ext_communities=tuple(map(bytes.fromhex, said.ext_communities)),
        large_communities=split_communities(said.large_communities)[1],
        unknown=tuple(
            UnknownAttribute(item.flags, item.code, bytes.fromhex(item.value))
            for item in said.unknown
        ),
    )


def _ipv4(address: str) -> bytes:
    return IPv4Address(address).packed


def run(command: str, given: bytes, *, asn4: bool) -> str:
    """What the command prints: a line per message. Errors: SuiteError."""
    if command == "decode":
        try:
            data = bytes.fromhex(given.decode("ascii"))
        except ValueError as err:
            raise ValidationError.of("message", "", f"not hexadecimal: {err}") from err
        return "".join(
            msgspec.json.encode(found).decode() + "\n" for found in decode(data, asn4=asn4)
        )
    lines = []
    for line in filter(None, map(bytes.strip, given.splitlines())):
        try:
            found = msgspec.json.decode(line, type=Message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise ValidationError.of("message", "", str(err)) from err
        lines.append(encode(found, asn4=asn4).hex() + "\n")
    return "".join(lines)


def main(command: str, given: str, *, asn4: bool) -> int:
    """`given` "-": standard input. Exit code 1 after one line of error."""
    data = sys.stdin.buffer.read() if given == "-" else given.encode(errors="replace")
    try:
        sys.stdout.write(run(command, data, asn4=asn4))
    except SuiteError as err:
        sys.stderr.write(" ".join(str(err).split()) + "\n")
        return 1
    return 0
