"""Prefixes as BGP carries them: one byte of length, then as many address bytes as needed.

Layer: pure. Used by every module of bgp.rib and by bgp.kernel. A prefix stays in wire form from the
socket to the socket; it is decoded only for policy, the kernel and people.

Invariants:
  I1  a prefix that left `split` or `parse` is canonical (bits behind the length are zero), so two
      equal prefixes are equal bytes;
  I2  a prefix belongs to a Family; the bytes alone do not say which.

Source: RFC 4271 4.3 (encoding; trailing bits are irrelevant) and 6.3 (errors), RFC 4760 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from libcalico.errors import WireError

Nlri = bytes

UPDATE_ERROR, INVALID_NETWORK_FIELD = 3, 10


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """An address family we route. Compared by identity: there are exactly two."""

    name: str
    afi: int
    safi: int
    bits: int

    def __repr__(self) -> str:
        return self.name

    @property
    def code(self) -> tuple[int, int]:
        return (self.afi, self.safi)


IPV4 = Family("ipv4", 1, 1, 32)
IPV6 = Family("ipv6", 2, 1, 128)
FAMILIES = (IPV4, IPV6)
_BY_CODE = {family.code: family for family in FAMILIES}

# The bits of the last byte that a length of n (mod 8) leaves unused.
_SPARE = (0x00, 0x7F, 0x3F, 0x1F, 0x0F, 0x07, 0x03, 0x01)


def family_of(afi: int, safi: int) -> Family | None:
    return _BY_CODE.get((afi, safi))


def split(family: Family, data: bytes, start: int, end: int) -> list[Nlri]:
    """The prefixes of one NLRI or withdrawn-routes field.

    Errors: WireError 3/10 (RFC 4271 6.3): the field cannot be read, hence the session resets.
    """
    found: list[Nlri] = []
    append = found.append
    bits = family.bits
    while start < end:
        length = data[start]
        stop = start + 1 + ((length + 7) >> 3)
        if length > bits or stop > end:
            raise WireError(
                f"prefix of {length} bits at byte {start}", UPDATE_ERROR, INVALID_NETWORK_FIELD
            )
        nlri = data[start:stop]
        if length & 7 and nlri[-1] & _SPARE[length & 7]:
            nlri = _without_spare_bits(nlri, length)
        append(nlri)
        start = stop
    return found


def _without_spare_bits(nlri: Nlri, length: int) -> Nlri:
    return nlri[:-1] + bytes([nlri[-1] & ~_SPARE[length & 7] & 0xFF])


def parse(cidr: str) -> tuple[Family, Nlri]:
    """From text, host bits dropped. Errors: ValueError."""
    network = ip_network(cidr, strict=False)
    length = network.prefixlen
    packed = network.network_address.packed[: (length + 7) >> 3]
    return (IPV4 if network.version == 4 else IPV6), bytes([length]) + packed


def truncated(packed_address: bytes, length: int) -> Nlri:
    """The prefix of this length that an address (4 or 16 bytes) lies in."""
    nlri = bytes((length,)) + packed_address[: (length + 7) >> 3]
    if length & 7 and nlri[-1] & _SPARE[length & 7]:
        return _without_spare_bits(nlri, length)
    return nlri


def text(family: Family, nlri: Nlri) -> str:
    address = int.from_bytes(nlri[1:], "big") << (family.bits - 8 * (len(nlri) - 1))
    shown = IPv4Address(address) if family is IPV4 else IPv6Address(address)
    return f"{shown}/{nlri[0]}"


def packed(family: Family, nlri: Nlri) -> bytes:
    """The network address in full: 4 or 16 bytes."""
    return nlri[1:].ljust(family.bits >> 3, b"\0")


def number(family: Family, nlri: Nlri) -> int:
    """The network address as an integer of the family's width."""
    return int.from_bytes(nlri[1:], "big") << (family.bits - 8 * (len(nlri) - 1))


def pack_address(address: str) -> bytes:
    """Errors: ValueError."""
    return ip_address(address).packed


def address_text(packed_address: bytes) -> str:
    return str(ip_address(packed_address)) if packed_address else ""


def is_martian(family: Family, nlri: Nlri) -> bool:
    """Never a destination to route to: loopback, multicast, link-local v6, class E.

    RFC 4271 6.3: such a prefix is ignored, the session goes on. The default route is fine."""
    if len(nlri) == 1:
        return False
    first = nlri[1]
    if family is IPV4:
        return first == 127 or first >= 224 or (first == 0 and nlri[0] >= 8)
    if first == 0xFF:
        return True
    if first == 0xFE and len(nlri) > 2 and nlri[2] & 0xC0 == 0x80:
        return True
    return nlri[0] == 128 and nlri[1:] in (_V6_LOOPBACK, _V6_ANY)


_V6_LOOPBACK = bytes(15) + b"\x01"
_V6_ANY = bytes(16)


def is_link_local(family: Family, nlri: Nlri) -> bool:
    """Inside 169.254.0.0/16 or fe80::/10: means something on its link only."""
    if family is IPV4:
        return nlri[0] >= 16 and nlri[1:3] == b"\xa9\xfe"
    return nlri[0] >= 10 and nlri[1] == 0xFE and nlri[2] & 0xC0 == 0x80


def is_martian_next_hop(address: bytes) -> bool:
    """RFC 7606 7.3, RFC 4271 5.1.3: what can never be the next hop of a route."""
    if len(address) == 4:
        return address[0] in (0, 127) or address[0] >= 224
    if len(address) != 16:
        return True
    is_link_local = address[0] == 0xFE and address[1] & 0xC0 == 0x80
    return address[0] == 0xFF or is_link_local or address in (_V6_LOOPBACK, _V6_ANY)
