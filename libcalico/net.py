"""IP addresses and CIDRs as the data model uses them: parsing, canonical text, order, prefix trie.

Layer: libcalico bottom, pure (only `errors` below). Used by everybody. The types are the standard
library's `ipaddress` ones; the parsers here are Go's `net.ParseIP` and `net.ParseCIDR`, which
decide what a Calico object may hold: no netmask notation, no zone, no leading zeros, IPv4-mapped
addresses are IPv4.

  N1  the text form of a parsed value is canonical (masked where strict, RFC 5952 for v6);
  N2  whatever works for IPv4 works for IPv6;
  N3  order is family, address, prefix length: a network sorts directly before what it contains.

Source: datamodel §1.4, §1.6, §4.3; RFC 5952.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)
from typing import Generic, TypeVar

from libcalico.errors import InvalidInput

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network

_V = TypeVar("_V")


class AddressError(InvalidInput):
    """A text is not the address or CIDR it should be."""

    def __init__(self, text: object, reason: str) -> None:
        super().__init__(text, reason)
        self.text, self.reason = text, reason

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}"


def parse_ip(text: str) -> Address:
    """A bare address. Errors: AddressError."""
    if "%" in text or "/" in text:
        raise AddressError(text, "invalid IP address")
    try:
        address = ip_address(text)
    except ValueError as err:
        raise AddressError(text, "invalid IP address") from err
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def parse_interface(text: str) -> Interface:
    """An address with its prefix length, host bits kept ("192.0.2.11/24")."""
    address, slash, length = text.partition("/")
    # ipaddress would also read "/255.255.255.0"; Go reads decimal digits only.
    if not slash or "%" in address or not (length.isascii() and length.isdigit()):
        raise AddressError(text, "invalid CIDR address")
    try:
        return ip_interface(text)
    except ValueError as err:
        raise AddressError(text, "invalid CIDR address") from err


def parse_cidr(text: str) -> Network:
    """A CIDR; host bits are masked off."""
    return parse_interface(text).network


def parse_strict_cidr(text: str) -> Network:
    """A CIDR without host bits. Errors: AddressError when there are some."""
    interface = parse_interface(text)
    if interface.ip != interface.network.network_address:
        raise AddressError(text, "CIDR is not strictly masked")
    return interface.network


def parse_cidr_or_ip(text: str) -> Network:
    """A CIDR (host bits masked off) or a bare address as its /32 or /128."""
    return parse_cidr(text) if "/" in text else host_network(parse_ip(text))


def host_network(address: Address) -> Network:
    """The /32 or /128 of one address."""
    if isinstance(address, IPv4Address):
        return IPv4Network(address)
    return IPv6Network(address)


def network_of(version: int, address: int, prefix_len: int) -> Network:
    """Build a network from integers; host bits are masked off."""
    if version == 4:
        return IPv4Network((address, prefix_len), strict=False)
    return IPv6Network((address, prefix_len), strict=False)


def address_of(version: int, address: int) -> Address:
    """Build an address from an integer."""
    return IPv4Address(address) if version == 4 else IPv6Address(address)


def sort_key(network: Network) -> tuple[int, int, int]:
    """The order of N3, for `sorted`."""
    return network.version, int(network.network_address), network.prefixlen


def split_catch_all(network: Network) -> tuple[Network, ...]:
    """A /0 as its two halves (kernel sets cannot hold a /0), anything else as itself."""
    if network.prefixlen:
        return (network,)
    return tuple(network.subnets())


def overlap(one: Network, other: Network) -> bool:
    """Whether two networks share an address; networks of different families never do."""
    if one.version != other.version:
        return False
    shorter = min(one.prefixlen, other.prefixlen)
    shift = one.max_prefixlen - shorter
    return int(one.network_address) >> shift == int(other.network_address) >> shift


@dataclass(slots=True)
class _Table(Generic[_V]):
    """One family: a hash table per prefix length in use, longest first."""

    bits: int
    by_length: dict[int, dict[int, _V]] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)

    def table(self, length: int) -> dict[int, _V]:
        found = self.by_length.get(length)
        if found is None:
            found = self.by_length[length] = {}
            self.lengths = sorted(self.by_length, reverse=True)
        return found

    def drop_if_empty(self, length: int) -> None:
        if not self.by_length[length]:
            del self.by_length[length]
            self.lengths = sorted(self.by_length, reverse=True)


class PrefixTrie(Generic[_V]):
    """Networks of both families -> values, with longest-prefix match.

    Not a tree of nodes but one hash table per prefix length in use: a lookup costs one probe per
    length, real tables use few lengths, and add and remove cost one probe.
    """

    __slots__ = ("_size", "_tables")

    def __init__(self) -> None:
        self._tables: dict[int, _Table[_V]] = {4: _Table(32), 6: _Table(128)}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, network: Network, value: _V) -> None:
        """Set the value of exactly this network."""
        table = self._tables[network.version].table(network.prefixlen)
        key = _key(network)
        self._size += key not in table
        table[key] = value

    def remove(self, network: Network) -> _V | None:
        """Forget exactly this network; returns its value, None when it was not there."""
        family = self._tables[network.version]
        table = family.by_length.get(network.prefixlen)
        key = _key(network)
        if table is None or key not in table:
            return None
        value = table.pop(key)
        self._size -= 1
        family.drop_if_empty(network.prefixlen)
        return value

    def get(self, network: Network) -> _V | None:
        """The value of exactly this network."""
        table = self._tables[network.version].by_length.get(network.prefixlen)
        if table is None:
            return None
        return table.get(_key(network))

    def lookup(self, address: Address) -> tuple[Network, _V] | None:
        """The longest network that contains the address, and its value."""
        return self._longest(address.version, int(address), address.max_prefixlen)

    def covering(self, network: Network) -> tuple[Network, _V] | None:
        """The longest network that contains (or is) the given one, and its value."""
        return self._longest(network.version, int(network.network_address), network.prefixlen)

    def _longest(self, version: int, address: int, max_len: int) -> tuple[Network, _V] | None:
        family = self._tables[version]
        for length in family.lengths:
            if length > max_len:
                continue
            shift = family.bits - length
            key = address >> shift
            table = family.by_length[length]
            if key in table:
                return network_of(version, key << shift, length), table[key]
        return None

    def all_covering(self, network: Network) -> list[tuple[Network, _V]]:
        """Every stored network that contains (or is) the given one, longest first."""
        family, found = self._tables[network.version], []
        address = int(network.network_address)
        for length in family.lengths:
            shift = family.bits - length
            key = address >> shift
            if length <= network.prefixlen and key in family.by_length[length]:
                value = family.by_length[length][key]
                found.append((network_of(network.version, key << shift, length), value))
        return found

    def covered_by(self, network: Network) -> list[tuple[Network, _V]]:
        """Every stored network inside (or equal to) the given one, in the order of N3."""
        return [(net, value) for net, value in self.items() if _contains(network, net)]

    def items(self) -> Iterator[tuple[Network, _V]]:
        """Everything stored, in the order of N3."""
        for version, family in self._tables.items():
            entries = [
                (key << (family.bits - length), length, value)
                for length, table in family.by_length.items()
                for key, value in table.items()
            ]
            entries.sort(key=lambda entry: entry[:2])
            for address, length, value in entries:
                yield network_of(version, address, length), value


def _contains(outer: Network, inner: Network) -> bool:
    return outer.prefixlen <= inner.prefixlen and overlap(outer, inner)


def _key(network: Network) -> int:
    """The bits of a network that its prefix length leaves."""
    return int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
