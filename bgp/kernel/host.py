"""A mirror of what others keep in the kernel: links, addresses and foreign routes of one table.

Layer: kernel side, but only data goes through it (listings and events in, answers out). Used by
bgp.kernel.side.

It answers: through which links and gateways is a next hop reached (longest match over routes that
are not ours, so a learned route never carries another); which addresses are our own; which routes
lead to local workloads.
Invariants:
  I1  after `load` the mirror is the listing; after events it is what a new listing would show, as
      long as no event was lost and `needs_listing` is not set (then the owner loads again);
  I2  our own routes are never in it, nor are routes to IPv6 link-local destinations: no next hop is
      one, and every link brings one.

Known kernel quirks: an interface that goes down takes its IPv4 routes along without saying so, and
so does an IPv4 address. What a pod does is followed all the same: links of workloads come, go up,
down and away, with their link-local addresses. Other links may appear, and addresses. Any other
change of a link or address asks for a new listing.
Source: rtnetlink(7); bgp reference 6 (gateway recursive, learn, workload prefixes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address

from bgp.kernel.foreign import ForeignRoutes, Key, key_of
from bgp.rib.nlri import IPV4, IPV6, Family, is_link_local, is_martian, truncated
from bgp.rib.path import LocalRoute
from libcalico.netlink import (
    Address,
    AddressEvent,
    Event,
    Link,
    LinkEvent,
    NextHop,
    Route,
    RouteEvent,
    RouteType,
)
from libcalico.netlink.messages import pack_address


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything at one moment."""

    links: tuple[Link, ...] = ()
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()


class HostView:
    """See the module."""

    def __init__(
        self, *, table: int, own_protocol: int, workload_prefixes: tuple[str, ...]
    ) -> None:
        self.table = table
        self.own_protocol = own_protocol
        self.workload_prefixes = workload_prefixes
        self.links: dict[int, Link] = {}
        self.needs_listing = False
        self.workloads: dict[Key, LocalRoute] = {}
        self._addresses: dict[int, dict[str, bytes]] = {}  # packed, by ifindex and CIDR
        self._own_addresses: Counter[bytes] = Counter()
        self._routes = ForeignRoutes()
        self._changed: set[Key] = set()
        self._everything_changed = True
        self._changed_workloads: set[Key] = set()
        self._fallen_links: set[int] = set()

    def load(self, listing: Listing) -> None:
        """Replace the mirror."""
        self.links = {link.ifindex: link for link in listing.links}
        self._addresses, self._own_addresses = {}, Counter()
        for address in listing.addresses:
            self._add_address(address)
        self._routes = ForeignRoutes()
        for route in listing.routes:
            key = key_of(route.dst)
            if self._is_foreign(route) and not _is_left_out(key):
                self._routes.list_one(key, route)
        self._changed.clear()
        self._everything_changed = True
        self._fallen_links.clear()
        self.needs_listing = False
        self._find_workloads()

    def use_workload_prefixes(self, prefixes: tuple[str, ...]) -> None:
        if prefixes != self.workload_prefixes:
            self.workload_prefixes = prefixes
            self._find_workloads()

    # -- events

    def apply(self, event: Event) -> None:
        """One notification. Route events of our own routes are the writer's business."""
        if isinstance(event, RouteEvent):
            self._apply_route(event)
        elif isinstance(event, LinkEvent):
            self._apply_link(event)
        elif isinstance(event, AddressEvent):
            self._apply_address(event)

    def _apply_route(self, event: RouteEvent) -> None:
        route = event.route
        if route.table != self.table:
            return
        key = key_of(route.dst)
        if _is_left_out(key):
            return
        if route.protocol == self.own_protocol:
            is_sure = not event.is_replacement or self._routes.displace(key, route)
        elif event.is_removed:
            is_sure = self._routes.remove(key, route)
        else:
            is_sure = self._routes.add(key, route, is_replacement=event.is_replacement)
        self.needs_listing = self.needs_listing or not is_sure
        self._note_change(key)

    def _apply_link(self, event: LinkEvent) -> None:
        link = event.link
        known = self.links.get(link.ifindex)
        if event.is_removed:
            if known is not None:
                self._on_link_gone(known)
        elif known is None:
            self._on_new_link(link)
        elif _state(known) == _state(link):
            self.links[link.ifindex] = link  # nothing that routes depend on
        elif self._is_workloads(known) and _identity(known) == _identity(link):
            self._use_link(link)
        else:
            self.needs_listing = True

    def _on_new_link(self, link: Link) -> None:
        if any(other.name == link.name for other in self.links.values()):
            self.needs_listing = True  # the other one went, and we did not hear of it
        else:
            self._use_link(link)

    def _use_link(self, link: Link) -> None:
        """Its state decides what the kernel has left of the routes over it."""
        self.links[link.ifindex] = link
        concerned = self._routes.over(link.ifindex)
        if link.is_up:
            is_sure = self._routes.set_carrier(link.ifindex, has_carrier=link.has_carrier)
        else:
            is_sure = self._routes.take_down(link.ifindex, is_gone=False)
            self._fallen_links.add(link.ifindex)
        self.needs_listing = self.needs_listing or not is_sure
        for key in concerned:
            self._note_change(key)

    def _on_link_gone(self, link: Link) -> None:
        if not self._is_workloads(link):
            self.needs_listing = True
            return
        concerned = self._routes.over(link.ifindex)
        is_sure = self._routes.take_down(link.ifindex, is_gone=True)
        self.needs_listing = self.needs_listing or not is_sure
        del self.links[link.ifindex]
        self._fallen_links.add(link.ifindex)
        for cidr in list(self._addresses.get(link.ifindex, ())):
            self._discard_address(link.ifindex, cidr)
        for key in concerned:
            self._note_change(key)

    def _apply_address(self, event: AddressEvent) -> None:
        address = event.address
        if not event.is_removed:
            self._add_address(address)
        elif address.cidr in self._addresses.get(address.ifindex, ()):
            link = self.links.get(address.ifindex)
            if link is not None and self._is_workloads(link) and _is_left_out(key_of(address.cidr)):
                self._discard_address(address.ifindex, address.cidr)
            else:
                self.needs_listing = True

    def _add_address(self, address: Address) -> None:
        packed = pack_address(address.address)[1]
        if self._addresses.setdefault(address.ifindex, {}).get(address.cidr) is None:
            self._addresses[address.ifindex][address.cidr] = packed
            self._own_addresses[packed] += 1
            self._changed.add(_host_key(packed))

    def _discard_address(self, ifindex: int, cidr: str) -> None:
        packed = self._addresses[ifindex].pop(cidr)
        if not self._addresses[ifindex]:
            del self._addresses[ifindex]
        self._own_addresses[packed] -= 1
        if not self._own_addresses[packed]:
            del self._own_addresses[packed]
        self._changed.add(_host_key(packed))

    def _note_change(self, key: Key) -> None:
        self._changed.add(key)
        self._note_workload(key)

    def _is_foreign(self, route: Route) -> bool:
        return route.table == self.table and route.protocol != self.own_protocol

    def _is_workloads(self, link: Link) -> bool:
        return link.name.startswith(self.workload_prefixes)

    # -- answers

    def affected(self, next_hops: Collection[bytes]) -> list[bytes]:
        """Of these, the ones whose answer may be another since the last call. A pod changes host
        routes alone, which are looked up and not searched for: pass a dict or a set."""
        changed, self._changed = self._changed, set()
        if self._everything_changed:
            self._everything_changed = False
            return list(next_hops)
        if not changed:
            return []
        hosts = {nlri[1:] for family, nlri in changed if nlri[0] == family.bits}
        found = [packed for packed in hosts if packed in next_hops]
        by_length: dict[int, set[Key]] = {}
        for key in changed:
            family, nlri = key
            if nlri[0] < family.bits:
                by_length.setdefault(nlri[0], set()).add(key)
        for packed in next_hops if by_length else ():
            if packed not in hosts and _is_inside(packed, by_length):
                found.append(packed)
        return found

    def resolve(self, packed: bytes) -> tuple[NextHop, ...]:
        """How to send towards a next hop; empty: it cannot be reached now."""
        if packed in self._own_addresses:
            return ()
        address = str(ip_address(packed))
        for length, route in self._routes.covering(packed):
            if route.type != RouteType.UNICAST:
                return ()  # somebody wants this traffic gone
            # A host or default route says the address is on the link, though no subnet does.
            is_bare = length in (0, 8 * len(packed))
            hops = self._running(route.nexthops)
            if hops:
                return tuple(_towards(address, hop, is_bare=is_bare) for hop in hops)
        return ()

    def _running(self, hops: tuple[NextHop, ...]) -> list[NextHop]:
        found = []
        for hop in hops:
            link = self.links.get(hop.ifindex)
            if link is not None and link.is_running and not hop.is_dead:
                found.append(hop)
        return found

    def ifindex_of(self, name: str) -> int:
        """0 when there is no such link, or it is down."""
        for link in self.links.values():
            if link.name == name and link.is_up:
                return link.ifindex
        return 0

    def take_workload_changes(self) -> set[Key]:
        """Keys of `workloads` that came, went or changed since the last call."""
        changed, self._changed_workloads = self._changed_workloads, set()
        return changed

    def take_fallen_links(self) -> set[int]:
        """Numbers of the links that went down or away since the last call: so did what IPv4 routes
        of ours led over them, and nobody said so."""
        fallen, self._fallen_links = self._fallen_links, set()
        return fallen

    def _find_workloads(self) -> None:
        for key in [*self.workloads, *self._routes]:
            self._note_workload(key)

    def _note_workload(self, key: Key) -> None:
        found = self._workload(key)
        if self.workloads.get(key) != found:
            self._changed_workloads.add(key)
            if found is None:
                del self.workloads[key]
            else:
                self.workloads[key] = found

    def _workload(self, key: Key) -> LocalRoute | None:
        """The route out of a workload interface, whoever made it."""
        if is_link_local(*key) or is_martian(*key):
            return None
        for route in self._routes.at(key):
            name = self._workload_interface(route)
            if name:
                return LocalRoute("workload", metric=route.metric, interface=name)
        return None

    def _workload_interface(self, route: Route) -> str:
        if route.type != RouteType.UNICAST or len(route.nexthops) != 1:
            return ""
        hop = route.nexthops[0]
        link = self.links.get(hop.ifindex)
        if link is None or hop.gateway or not self._is_workloads(link):
            return ""
        return link.name

    def check(self, fresh: HostView) -> None:
        """I1, against a view that has just loaded, and the bookkeeping."""
        self._routes.check()
        states = [{i: _state(link) for i, link in view.links.items()} for view in (self, fresh)]
        assert states[0] == states[1], "I1: links"
        assert self._addresses == fresh._addresses, "I1: addresses"
        assert self._own_addresses == fresh._own_addresses, "I1: own addresses"
        assert self._routes.dump() == fresh._routes.dump(), "I1: routes"
        assert self.workloads == fresh.workloads, "I1: workloads"

    def dump(self) -> dict[str, object]:
        return {
            "links": {link.name: link.is_running for link in self.links.values()},
            "foreign_routes": len(self._routes),
            "own_addresses": len(self._own_addresses),
        }


def _towards(address: str, hop: NextHop, *, is_bare: bool) -> NextHop:
    """Over a gateway as that route goes, or directly: the address itself is the gateway."""
    if hop.gateway:
        return NextHop(hop.ifindex, hop.gateway, hop.is_onlink)
    return NextHop(hop.ifindex, address, is_bare)


def _is_inside(packed: bytes, by_length: dict[int, set[Key]]) -> bool:
    """Whether an address lies in one of these prefixes."""
    family = _family(packed)
    return any((family, truncated(packed, length)) in keys for length, keys in by_length.items())


def _family(packed: bytes) -> Family:
    return IPV4 if len(packed) == 4 else IPV6


def _host_key(packed: bytes) -> Key:
    return _family(packed), truncated(packed, 8 * len(packed))


def _is_left_out(key: Key) -> bool:
    family, nlri = key
    return family is IPV6 and is_link_local(family, nlri)


def _identity(link: Link) -> tuple[str, int, int]:
    """What may not change without more changing than we follow: a master can move routes to
    another table, a small MTU ends a protocol."""
    return link.name, link.mtu_bytes, link.master


def _state(link: Link) -> tuple[tuple[str, int, int], bool, bool]:
    return _identity(link), link.is_up, link.has_carrier
