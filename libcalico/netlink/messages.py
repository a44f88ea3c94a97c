"""The netlink wire format: headers, attributes, error answers. Bytes in, typed results out.

Layer: bottom edge, pure (no socket is opened here). Used by the other modules of this package, by
felix.kernel (nfnetlink and ctnetlink speak the same framing), by cni and bgp.

A message is built with sequence number 0; `NetlinkSocket` patches the number (offset 8) and the
flags (offset 6) of the copy it sends, so one built message may be sent many times.
Invariants:
  I1  whatever the kernel (or a test) feeds a parser, it returns a value or raises WireError;
  I2  attributes are padded to 4 bytes, lengths exclude the padding, nested ones carry NLA_F_NESTED.

Source: linux/netlink.h, linux/rtnetlink.h, netlink(7).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from libcalico.errors import ProgrammingFailed, WireError

T = TypeVar("T")

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_ATTR = struct.Struct("=HH")  # length, type
_U16 = struct.Struct("=H")
_U32 = struct.Struct("=I")
_S32 = struct.Struct("=i")
HEADER_BYTES = HEADER.size
FLAGS_OFFSET = 6
SEQUENCE_OFFSET = 8

NLMSG_NOOP, NLMSG_ERROR, NLMSG_DONE, NLMSG_OVERRUN = 1, 2, 3, 4

NLM_F_REQUEST = 0x01
NLM_F_MULTI = 0x02
NLM_F_ACK = 0x04
NLM_F_ECHO = 0x08
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800
# Flags of an error answer share bits with the request flags above.
_NLM_F_CAPPED = 0x100
_NLM_F_ACK_TLVS = 0x200

NLA_F_NESTED = 0x8000
_NLA_TYPE_MASK = 0x3FFF
_NLMSGERR_ATTR_MSG = 1


class Message(NamedTuple):
    """One received message. `body` is a view into the receive buffer: copy what you keep."""

    type: int
    flags: int
    sequence: int
    port_id: int
    body: memoryview


class Refusal(NamedTuple):
    """The kernel's no: a positive errno and its own words (empty when it had none)."""

    errno: int
    text: str

    def failure(self, operation: str, key: str) -> ProgrammingFailed:
        return ProgrammingFailed(operation, key, self.errno, self.text or os.strerror(self.errno))


@dataclass(frozen=True, slots=True)
class Request:
    """A message that changes something, and the words for the error it may cause."""

    message: bytes
    operation: str
    key: str


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """A message that asks something. `parse` returns None for an answer that is not wanted (older
    kernels ignore filters, so a parser always filters again). An error in `empty_errnos` means
    that there is nothing, e.g. a table that was never used."""

    message: bytes
    operation: str
    key: str
    parse: Callable[[Message], T | None]
    empty_errnos: tuple[int, ...] = ()


def message(message_type: int, flags: int, body: bytes) -> bytes:
    """Frame `body` (family header and attributes) as a request."""
    length = HEADER_BYTES + len(body)
    return HEADER.pack(length, message_type, flags | NLM_F_REQUEST, 0, 0) + body


def attr(attr_type: int, payload: bytes) -> bytes:
    padding = -len(payload) % 4
    return _ATTR.pack(len(payload) + 4, attr_type) + payload + b"\0" * padding


def attr_u8(attr_type: int, value: int) -> bytes:
    return attr(attr_type, value.to_bytes(1, "little"))


def attr_u16(attr_type: int, value: int) -> bytes:
    return attr(attr_type, _U16.pack(value))


def attr_u32(attr_type: int, value: int) -> bytes:
    return attr(attr_type, _U32.pack(value))


def attr_s32(attr_type: int, value: int) -> bytes:
    return attr(attr_type, _S32.pack(value))


def attr_text(attr_type: int, value: str) -> bytes:
    return attr(attr_type, value.encode() + b"\0")


def nested(attr_type: int, *attrs: bytes) -> bytes:
    return attr(attr_type | NLA_F_NESTED, b"".join(attrs))


def iter_messages(buffer: bytes | bytearray | memoryview) -> Iterator[Message]:
    """Split one datagram. Errors: WireError on a length that does not fit."""
    view = memoryview(buffer)
    offset, end = 0, len(view)
    while offset + HEADER_BYTES <= end:
        length, message_type, flags, sequence, port_id = HEADER.unpack_from(view, offset)
        if length < HEADER_BYTES or offset + length > end:
            raise WireError(f"netlink message of {length} bytes at {offset} of {end}")
        body = view[offset + HEADER_BYTES : offset + length]
        yield Message(message_type, flags, sequence, port_id, body)
        offset += (length + 3) & ~3


def parse_attrs(body: memoryview, offset: int) -> dict[int, memoryview]:
    """Attributes from `offset` to the end of `body`; the last of a repeated type wins."""
    found: dict[int, memoryview] = {}
    end = len(body)
    unpack = _ATTR.unpack_from
    while offset + 4 <= end:
        length, attr_type = unpack(body, offset)
        if length < 4 or offset + length > end:
            raise WireError(f"netlink attribute {attr_type} of {length} bytes at {offset} of {end}")
        found[attr_type & _NLA_TYPE_MASK] = body[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def find_attrs(body: memoryview, offset: int, wanted: frozenset[int]) -> dict[int, memoryview]:
    """Of parse_attrs, only the `wanted` types: a link has forty attributes, of which few matter."""
    found: dict[int, memoryview] = {}
    end = len(body)
    unpack = _ATTR.unpack_from
    while offset + 4 <= end:
        length, attr_type = unpack(body, offset)
        if length < 4 or offset + length > end:
            raise WireError(f"netlink attribute {attr_type} of {length} bytes at {offset} of {end}")
        attr_type &= _NLA_TYPE_MASK
        if attr_type in wanted:
            found[attr_type] = body[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def iter_attrs(body: memoryview, offset: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Like parse_attrs, for lists in which a type repeats."""
    end = len(body)
    while offset + 4 <= end:
        length, attr_type = _ATTR.unpack_from(body, offset)
        if length < 4 or offset + length > end:
            raise WireError(f"netlink attribute {attr_type} of {length} bytes at {offset} of {end}")
        yield attr_type & _NLA_TYPE_MASK, body[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def read_u32(value: memoryview) -> int:
    if len(value) < 4:
        raise WireError(f"netlink u32 attribute of {len(value)} bytes")
    return int(_U32.unpack_from(value)[0])


def read_s32(value: memoryview) -> int:
    if len(value) < 4:
        raise WireError(f"netlink s32 attribute of {len(value)} bytes")
    return int(_S32.unpack_from(value)[0])


def read_text(value: memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode("utf-8", "backslashreplace")


def read_mac(value: memoryview) -> str:
    return value.hex(":")


def pack_mac(mac: str) -> bytes:
    """Errors: WireError when `mac` is not six hexadecimal octets."""
    try:
        packed = bytes(int(part, 16) for part in mac.split(":"))
    except ValueError as err:
        raise WireError(f"{mac!r} is not a MAC address") from err
    if len(packed) != 6:
        raise WireError(f"{mac!r} is not a MAC address")
    return packed


def parse_error(received: Message) -> Refusal | None:
    """The verdict of an NLMSG_ERROR (or of the tail of a dump): None is an acknowledgement."""
    if len(received.body) < 4:
        raise WireError("netlink error message without a code")
    code = _S32.unpack_from(received.body)[0]
    if code == 0:
        return None
    return Refusal(-code, _ack_text(received))


def _ack_text(received: Message) -> str:
    """NLMSGERR_ATTR_MSG, the kernel's sentence (NETLINK_EXT_ACK)."""
    if not received.flags & _NLM_F_ACK_TLVS or received.type != NLMSG_ERROR:
        return ""
    # nlmsgerr: the code, then the request's header, then its payload unless capped, then TLVs.
    echoed = HEADER_BYTES
    if not received.flags & _NLM_F_CAPPED:
        if len(received.body) < 4 + HEADER_BYTES:
            raise WireError("netlink error message without the request's header")
        echoed = HEADER.unpack_from(received.body, 4)[0]
    text = parse_attrs(received.body, 4 + ((echoed + 3) & ~3)).get(_NLMSGERR_ATTR_MSG)
    return "" if text is None else read_text(text)


# Addresses. `socket`'s converters are C, and ten times faster than ipaddress.

AF_UNSPEC, AF_INET, AF_INET6 = 0, int(socket.AF_INET), int(socket.AF_INET6)
ADDRESS_BYTES = {AF_INET: 4, AF_INET6: 16}


def pack_address(address: str) -> tuple[int, bytes]:
    """Family and packed form. Errors: WireError when `address` is of neither family."""
    family = AF_INET6 if ":" in address else AF_INET
    try:
        return family, socket.inet_pton(family, address)
    except OSError as err:
        raise WireError(f"{address!r} is not an IP address") from err


def read_address(family: int, packed: bytes | memoryview) -> str:
    """Errors: WireError when the length does not fit the family."""
    try:
        return socket.inet_ntop(family, packed)
    except (ValueError, OSError) as err:
        raise WireError(f"{len(packed)} bytes are no address of family {family}") from err


def pack_prefix(cidr: str) -> tuple[int, bytes, int]:
    """Family, packed address and prefix length; a bare address is a host prefix."""
    address, slash, length_text = cidr.partition("/")
    family, packed = pack_address(address)
    bits = len(packed) * 8
    if not slash:
        return family, packed, bits
    if not length_text.isdecimal() or int(length_text) > bits:
        raise WireError(f"{cidr!r} has no valid prefix length")
    return family, packed, int(length_text)
