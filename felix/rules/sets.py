"""Named sets and maps: their shape, and how members given as text become kernel elements.

Layer: pure. Used by felix.dataplane (ipset_mgr, nft_table) and render_nft.

An element is `bytes`: the key as the kernel compares it. In an interval set it is `first + last`
(inclusive), one string that sorts by address and needs no object of its own: a set may hold
250,000 of them.

  S1  the elements of an interval set are disjoint: a kernel interval tree refuses overlaps, so of
      nested networks only the outermost is programmed (`outermost`, FlatNets);
  S2  FlatNets.elements() is a function of the present members only, whatever order they came in.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from felix.rules.chain import (
    INET_PROTO,
    INET_SERVICE,
    IPV4_ADDR,
    IPV6_ADDR,
    KeyType,
    Verdict,
    key_of,
)
from libcalico.errors import ValidationError

PROTOCOL_NUMBERS = {"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132, "udplite": 136}
BITS = {4: 32, 6: 128}
ADDRESS_TYPE = {4: IPV4_ADDR, 6: IPV6_ADDR}


@dataclass(frozen=True, slots=True)
class SetSpec:
    """The shape of a set or map. `data` None and `verdicts` False: a plain set."""

    name: str
    key: tuple[KeyType, ...]
    interval: bool = False
    verdicts: bool = False
    data: KeyType | None = None
    comment: str = ""

    @property
    def is_map(self) -> bool:
        return self.verdicts or self.data is not None

    def same_shape(self, other: SetSpec) -> bool:
        """Whether the kernel object need not be replaced; the comment does not count."""
        return (
            self.key == other.key
            and self.interval == other.interval
            and self.verdicts == other.verdicts
            and self.data == other.data
        )


@dataclass(frozen=True, slots=True)
class MapValue:
    """What a map says for one key: a verdict, or data bytes. The comment shows in listings."""

    verdict: Verdict | None = None
    data: bytes = b""
    comment: str = ""


def net_set(name: str, version: int, comment: str = "") -> SetSpec:
    return SetSpec(name, (ADDRESS_TYPE[version],), interval=True, comment=comment)


def ip_port_set(name: str, version: int, comment: str = "") -> SetSpec:
    return SetSpec(name, (ADDRESS_TYPE[version], INET_PROTO, INET_SERVICE), comment=comment)


# ------------------------------------------------------------------------------ text to bytes


def family_of(text: str) -> int:
    """Every member of either kind of set starts with an address; only IPv6 has a colon there."""
    return 6 if ":" in text else 4


def parse_net(text: str) -> tuple[int, int, int]:
    """(family, network as integer, prefix length). Errors: ValidationError."""
    address, slash, length = text.partition("/")
    family = family_of(text)
    try:
        base = int(IPv6Address(address) if family == 6 else IPv4Address(address))
        prefix_len = int(length) if slash else BITS[family]
    except ValueError as err:
        raise ValidationError.of("net", text, "not an address or network") from err
    if not 0 <= prefix_len <= BITS[family]:
        raise ValidationError.of("net", text, "prefix length out of range")
    return family, base, prefix_len


# Canonical members only; anything else goes the slow way and is judged there.
_V4_NETS = re.compile(r"(?:\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}/\d{1,2} )*")
_V4_RECORD = struct.Struct(">IB")
_V4_MARKS, _DIGITS = b".../ ", b"0123456789"
_OCTETS = {str(octet): octet for octet in range(256)}


def parse_nets(texts: Sequence[str]) -> dict[int, list[tuple[int, int]]]:
    """Many networks at once, by family. Errors: ValidationError, of the first bad one.

    A set of 10,000 IPv4 members is one pass of the regular expression, one of `int` and one of
    `struct`: a millisecond for each thousand less than parsing them one by one."""
    v4 = [text for text in texts if ":" not in text]
    found = {4: _parse_v4_nets(v4), 6: []}
    if len(v4) < len(texts):
        found[6] = [parse_net(text)[1:] for text in texts if ":" in text]
    return found


def _parse_v4_nets(texts: Sequence[str]) -> list[tuple[int, int]]:
    joined = " ".join(texts) + " " if texts else ""
    if _V4_NETS.fullmatch(joined):
        numbers = joined.replace("/", " ").replace(".", " ").split()
        with suppress(ValueError):  # an octet above 255: the slow way names it
            nets = list(_V4_RECORD.iter_unpack(bytes(map(int, numbers))))
            if max((length for _base, length in nets), default=0) <= BITS[4]:
                return nets
    return [parse_net(text)[1:] for text in texts]


def host_addresses(texts: Iterable[str]) -> list[bytes] | None:
    """The addresses, when every member is a single IPv4 address: the usual set, several times as
    fast as by way of networks. None: look at each."""
    joined = " ".join(texts) + " "
    if not joined.isascii():
        return None
    # What stands between the digits has to be that of networks; that each octet is one, and each
    # length 32, the table of octets says.
    marks = joined.encode().translate(None, _DIGITS)
    if marks != _V4_MARKS * (len(marks) // len(_V4_MARKS)):
        return None
    try:
        data = bytes(map(_OCTETS.__getitem__, joined.replace("/32 ", ".")[:-1].split(".")))
    except KeyError:
        return None
    return [data[at : at + 4] for at in range(0, len(data), 4)]


def address_bytes(text: str) -> bytes:
    family, value, _length = parse_net(text)
    return value.to_bytes(BITS[family] // 8, "big")


def net_element(version: int, base: int, prefix_len: int) -> bytes:
    """The interval element of one network."""
    bits = BITS[version]
    size = bits // 8
    first = base.to_bytes(size, "big")
    if prefix_len == bits:  # most members are single addresses
        return first + first
    last = base | ((1 << (bits - prefix_len)) - 1)
    return first + last.to_bytes(size, "big")


def ip_port_element(member: str) -> bytes:
    """ "10.0.0.1,tcp,8080" as a key. Errors: ValidationError."""
    try:
        address, protocol, port = member.split(",")
        number = PROTOCOL_NUMBERS.get(protocol) or int(protocol)
        service = int(port).to_bytes(2, "big")
        proto = bytes([number])
    except (ValueError, OverflowError) as err:
        raise ValidationError.of("member", member, "not address,protocol,port") from err
    family = family_of(address)
    return key_of(
        (ADDRESS_TYPE[family], address_bytes(address)),
        (INET_PROTO, proto),
        (INET_SERVICE, service),
    )


# --------------------------------------------------------------------- disjoint networks (S1)


def outermost(version: int, nets: Iterable[tuple[int, int]]) -> tuple[bytes, ...]:
    """Elements of the networks (base, prefix length) that no other one of them contains."""
    flat = FlatNets(version)
    flat.add(nets)
    return tuple(sorted(flat.elements()))


@dataclass(slots=True)
class FlatNets:
    """The members of one NET set and family, nested ones included; says what must be programmed.

    Kept as one set of bases per prefix length: a set of nothing but addresses (the usual case)
    has one length, and then no member can contain another, so nothing has to be looked for."""

    version: int
    _by_length: dict[int, set[int]] = field(default_factory=dict)

    def add(self, nets: Iterable[tuple[int, int]]) -> None:
        by_length = self._by_length
        for base, length in nets:
            bases = by_length.get(length)
            if bases is None:
                bases = by_length[length] = set()
            bases.add(base)

    def add_hosts(self, addresses: Sequence[bytes]) -> None:
        """Single IPv4 addresses."""
        numbers = struct.unpack(f">{len(addresses)}I", b"".join(addresses))
        if numbers:
            self._by_length.setdefault(BITS[4], set()).update(numbers)

    def remove(self, nets: Iterable[tuple[int, int]]) -> None:
        for base, length in nets:
            bases = self._by_length.get(length)
            if bases is not None:
                bases.discard(base)
                if not bases:
                    del self._by_length[length]

    def elements(self) -> set[bytes]:
        """Everything that must be programmed."""
        found: set[bytes] = set()
        version = self.version
        for length, bases in self._by_length.items():
            shorter = self._shorter(length)
            if shorter:
                bases = {base for base in bases if not self._contained(base, shorter)}
            found.update([net_element(version, base, length) for base in bases])
        return found

    def change(
        self, added: Iterable[tuple[int, int]], removed: Iterable[tuple[int, int]]
    ) -> tuple[set[bytes], set[bytes]]:
        """Apply a delta; returns (elements to add, elements to delete). Disjoint.

        Only the delta's networks and what lies inside them can change; adding or removing plain
        addresses looks at nothing else."""
        delta = {*added, *removed}
        candidates = delta | self._inside(delta)
        before = {net for net in candidates if self._is_outermost(*net)}
        self.remove(removed)
        self.add(added)
        after = {net for net in candidates if self._is_outermost(*net)}
        return self._plain(after - before), self._plain(before - after)

    def _inside(self, nets: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Members that lie properly inside one of `nets`."""
        found: set[tuple[int, int]] = set()
        bases_by_length: dict[int, set[int]] = {}
        for base, length in nets:
            bases_by_length.setdefault(length, set()).add(base)
        for length, bases in bases_by_length.items():
            mask = self._mask(length)
            for longer, members in self._by_length.items():
                if longer > length:
                    found.update((member, longer) for member in members if member & mask in bases)
        return found

    def _is_outermost(self, base: int, length: int) -> bool:
        return base in self._by_length.get(length, ()) and not self._contained(
            base, self._shorter(length)
        )

    def _plain(self, nets: Iterable[tuple[int, int]]) -> set[bytes]:
        return {net_element(self.version, base, length) for base, length in nets}

    def _mask(self, length: int) -> int:
        bits = BITS[self.version]
        return ((1 << bits) - 1) ^ ((1 << (bits - length)) - 1)

    def _shorter(self, length: int) -> list[tuple[int, set[int]]]:
        return [
            (self._mask(other), bases) for other, bases in self._by_length.items() if other < length
        ]

    def _contained(self, base: int, shorter: list[tuple[int, set[int]]]) -> bool:
        return any(base & mask in bases for mask, bases in shorter)
