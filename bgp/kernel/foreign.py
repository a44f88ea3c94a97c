"""The routes of others in one table, by destination and by link.

Layer: kernel side, pure. Used by bgp.kernel.host.

Of one destination and rank (tos, metric) there may be several routes: IPv4 keeps appended ones,
IPv6 one for each link. Which of them a notification speaks of, and in which order the kernel holds
them, is not always known: a method that returns False has done what it could and asks for a
listing.
Invariants (check()):
  I1  no destination is empty, no rank of it is;
  I2  `over` knows exactly the destinations with a route over a link;
  I3  `lengths` are those in use, longest first.

Source: net/ipv4/fib_trie.c (fib_table_insert), fib_semantics.c (fib_sync_down_dev),
net/ipv6/route.c (fib6_ifdown).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from msgspec import structs

from bgp.rib.nlri import FAMILIES, IPV4, IPV6, Family, Nlri, truncated
from libcalico.netlink import AF_INET, SCOPE_HOST, NextHop, Route
from libcalico.netlink.messages import pack_prefix

Key = tuple[Family, Nlri]  # a destination
_Rank = tuple[int, int]  # tos, metric


def key_of(cidr: str) -> Key:
    """Of a route's `dst`, or of the prefix an address lies in. A tenth of the cost of nlri.parse,
    which understands more."""
    family, packed, length = pack_prefix(cidr)
    return (IPV4 if family == AF_INET else IPV6), truncated(packed, length)


class ForeignRoutes:
    """See the module."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[_Rank, tuple[Route, ...]]] = {}
        self._over: dict[int, set[Key]] = {}
        self._count_by_length: dict[Family, Counter[int]] = {f: Counter() for f in FAMILIES}
        self.lengths: dict[Family, tuple[int, ...]] = dict.fromkeys(FAMILIES, ())

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_key)

    # -- changes

    def list_one(self, key: Key, route: Route) -> None:
        """The next route of a listing."""
        rank = _rank(route)
        self._put(key, rank, (*self._ranks(key).get(rank, ()), route))

    def add(self, key: Key, route: Route, *, is_replacement: bool) -> bool:
        rank = _rank(route)
        # A notification from before the listing tells what we know already.
        is_sure = self._ranks(key).get(rank, ()) in ((), (route,))
        if is_sure or is_replacement:
            self._put(key, rank, (route,))
        return is_sure

    def remove(self, key: Key, route: Route) -> bool:
        """False when another of its rank is known: an IPv6 hop that left a route of several."""
        rank = _rank(route)
        present = self._ranks(key).get(rank, ())
        if route in present:
            at = present.index(route)
            self._put(key, rank, present[:at] + present[at + 1 :])
            return True
        return not present

    def displace(self, key: Key, route: Route) -> bool:
        """A route that is not kept here took the place of another. False: maybe of one of these."""
        return _rank(route) not in self._ranks(key)

    def take_down(self, ifindex: int, *, is_gone: bool) -> bool:
        """The kernel drops the routes over a link that goes down or away: IPv4 without a word, and
        but for those of scope host while the link exists. False for routes of several ways, which
        may go on without this one."""
        is_sure = True
        for key in self.over(ifindex):
            for rank, routes in list(self._ranks(key).items()):
                is_sure = is_sure and not any(_goes_also_over(route, ifindex) for route in routes)
                left = (
                    route
                    for route in routes
                    if not _goes_only_over(route, ifindex)
                    or (not is_gone and _outlives_its_link(key[0], route))
                )
                self._put(key, rank, tuple(left))
        return is_sure

    def set_carrier(self, ifindex: int, *, has_carrier: bool) -> bool:
        """The kernel marks the ways over a link that lost its carrier. False: as take_down."""
        is_sure = True
        for key in self.over(ifindex):
            for rank, routes in list(self._ranks(key).items()):
                is_sure = is_sure and all(len(route.nexthops) == 1 for route in routes)
                marked = tuple(_marked(route, ifindex, not has_carrier) for route in routes)
                self._put(key, rank, marked)
        return is_sure

    # -- questions

    def at(self, key: Key) -> Iterator[Route]:
        """What leads to exactly this destination, best first."""
        for _, routes in sorted(self._ranks(key).items()):
            yield from routes

    def covering(self, packed: bytes) -> Iterator[tuple[int, Route]]:
        """What leads to an address, with the length of its prefix, best first."""
        family = IPV4 if len(packed) == 4 else IPV6
        for length in self.lengths[family]:
            for route in self.at((family, truncated(packed, length))):
                yield length, route

    def over(self, ifindex: int) -> list[Key]:
        """Destinations with a route over this link."""
        return list(self._over.get(ifindex, ()))

    # -- the tables

    def _ranks(self, key: Key) -> dict[_Rank, tuple[Route, ...]]:
        return self._by_key.get(key, {})

    def _put(self, key: Key, rank: _Rank, routes: tuple[Route, ...]) -> None:
        ranks = self._by_key.get(key)
        if ranks is None:
            if not routes:
                return
            ranks = self._by_key[key] = {}
            self._count(key, 1)
        before = ranks.pop(rank, ())
        if routes:
            ranks[rank] = routes
        elif not ranks:
            del self._by_key[key]
            self._count(key, -1)
        for ifindex in _links_of(routes):
            self._over.setdefault(ifindex, set()).add(key)
        for ifindex in _links_of(before) - {i for own in ranks.values() for i in _links_of(own)}:
            self._over[ifindex].discard(key)
            if not self._over[ifindex]:
                del self._over[ifindex]

    def _count(self, key: Key, change: int) -> None:
        family, nlri = key
        counts, length = self._count_by_length[family], nlri[0]
        counts[length] += change
        if counts[length] == 0:
            del counts[length]
        if (length in counts) is not (length in self.lengths[family]):
            self.lengths[family] = tuple(sorted(counts, reverse=True))

    def check(self) -> None:
        over: dict[int, set[Key]] = {}
        for key, ranks in self._by_key.items():
            assert ranks, f"I1: nothing at {key}"
            for routes in ranks.values():
                assert routes, f"I1: an empty rank at {key}"
                for ifindex in _links_of(routes):
                    over.setdefault(ifindex, set()).add(key)
        assert over == self._over, "I2"
        for family in FAMILIES:
            lengths = {nlri[0] for known, nlri in self._by_key if known is family}
            assert self.lengths[family] == tuple(sorted(lengths, reverse=True)), "I3"

    def dump(self) -> dict[Key, list[tuple[Route, list[bool]]]]:
        """Every route, with which of its ways are dead (comparing routes does not look at that)."""
        return {
            key: [(route, [hop.is_dead for hop in route.nexthops]) for route in self.at(key)]
            for key in self._by_key
        }


def _rank(route: Route) -> _Rank:
    return (route.tos, route.metric)


def _links_of(routes: Iterable[Route]) -> set[int]:
    return {hop.ifindex for route in routes for hop in route.nexthops}


def _goes_also_over(route: Route, ifindex: int) -> bool:
    return len(route.nexthops) > 1 and any(hop.ifindex == ifindex for hop in route.nexthops)


def _goes_only_over(route: Route, ifindex: int) -> bool:
    return len(route.nexthops) == 1 and route.nexthops[0].ifindex == ifindex


def _outlives_its_link(family: Family, route: Route) -> bool:
    return family is IPV4 and route.scope >= SCOPE_HOST


def _marked(route: Route, ifindex: int, is_dead: bool) -> Route:
    if not _goes_only_over(route, ifindex) or route.nexthops[0].is_dead is is_dead:
        return route
    hop: NextHop = replace(route.nexthops[0], is_dead=is_dead)
    return structs.replace(route, nexthops=(hop,))
