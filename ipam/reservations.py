"""Which addresses automatic assignment must leave alone (IPReservation objects).

Layer: ipam, pure. Used by `ipam.blocks`, `ipam.pools`, `ipam.utilization`.

  R1  a reservation hides addresses, it never takes one back (datamodel §2.4);
  R2  several CIDRs that together cover a block count as wholly reserved: kept as merged intervals.

Source: Calico libcalico-go/lib/ipam/{addr_filter.go,reserved.go}.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from libcalico.net import AddressError, Network, parse_cidr_or_ip

# First and last address, as integers, both included.
Interval = tuple[int, int]
_FIRST = itemgetter(0)


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted, disjoint, and not even touching."""
    result: list[Interval] = []
    for first, last in sorted(intervals):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return tuple(result)


def interval_of(network: Network) -> Interval:
    return int(network.network_address), int(network.broadcast_address)


@dataclass(frozen=True, slots=True)
class Reservations:
    """The union of all reservations, per family."""

    v4: tuple[Interval, ...] = ()
    v6: tuple[Interval, ...] = ()

    @classmethod
    def of(cls, cidrs: Iterable[str]) -> Reservations:
        """Host bits are masked, a bare address is its /32 or /128. What does not parse is left out:
        validation refuses it, and one bad object must not stop the others."""
        by_version: dict[int, list[Interval]] = {4: [], 6: []}
        for text in cidrs:
            try:
                network = parse_cidr_or_ip(text.strip())
            except AddressError:
                continue
            by_version[network.version].append(interval_of(network))
        return cls(merged(by_version[4]), merged(by_version[6]))

    def within(self, network: Network) -> tuple[Interval, ...]:
        """The reserved parts of a network."""
        intervals = self._of(network.version)
        if not intervals:
            return ()
        first, last = interval_of(network)
        at = max(bisect_right(intervals, first, key=_FIRST) - 1, 0)
        found = []
        for low, high in intervals[at:]:
            if low > last:
                break
            if high >= first:
                found.append((max(low, first), min(high, last)))
        return tuple(found)

    def covers(self, network: Network) -> bool:
        """Whether every address of the network is reserved (R2)."""
        return self.within(network) == (interval_of(network),)

    def overlaps(self, network: Network) -> bool:
        return bool(self.within(network))

    def contains(self, version: int, address: int) -> bool:
        intervals = self._of(version)
        at = bisect_right(intervals, address, key=_FIRST) - 1
        return at >= 0 and intervals[at][1] >= address

    def count_in(self, network: Network) -> int:
        return sum(last - first + 1 for first, last in self.within(network))

    def _of(self, version: int) -> tuple[Interval, ...]:
        return self.v4 if version == 4 else self.v6


NONE_RESERVED = Reservations()
