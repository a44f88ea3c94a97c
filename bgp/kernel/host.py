"""A mirror of what others keep in the kernel: links, addresses and foreign routes of one table.

Layer: kernel side, but only data goes through it (listings and events in, answers out). Used by
bgp.kernel.side.

It answers: through which links and gateways is a next hop reached (longest match over routes that
are not ours, so a learned route never carries another); which addresses are our own; which routes
lead to local workloads.
Invariants:
  I1  after `load` the mirror is the listing; after events it is what a new listing would show, as
      long as no event was lost (then the owner loads again);
  I2  our own routes are never in it.

Known kernel quirks: an interface that goes down takes its IPv4 routes along without saying so, so a
change of a link or an address asks for a new listing (`needs_listing`).
Source: rtnetlink(7); bgp reference 6 (gateway recursive, learn, workload prefixes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from bgp.rib.nlri import Family, Nlri, parse, text
from bgp.rib.path import LocalRoute
from libcalico.net import Network, PrefixTrie, host_network
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

Key = tuple[Family, Nlri]
RouteKey = tuple[int, int]  # tos, metric: with the destination, what identifies a route


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
        self.own_addresses: frozenset[bytes] = frozenset()
        self.needs_listing = False
        self._routes: PrefixTrie[dict[RouteKey, Route]] = PrefixTrie()
        self.workloads: dict[Key, LocalRoute] = {}
        self._changed: list[Network] = []
        self._everything_changed = True
        self._changed_workloads: set[Key] = set()

    def load(self, listing: Listing) -> None:
        """Replace the mirror."""
        self.links = {link.ifindex: link for link in listing.links}
        self.own_addresses = frozenset(
            ip_address(address.address).packed for address in listing.addresses
        )
        self._routes = PrefixTrie()
        for route in listing.routes:
            if self._is_foreign(route):
                self._store(route)
        self._changed.clear()
        self._everything_changed = True
        self.needs_listing = False
        self._find_workloads()

    def use_workload_prefixes(self, prefixes: tuple[str, ...]) -> None:
        if prefixes != self.workload_prefixes:
            self.workload_prefixes = prefixes
            self._find_workloads()

    def apply(self, event: Event) -> None:
        """One notification. Route events of our own routes are the writer's business."""
        if isinstance(event, RouteEvent):
            if self._is_foreign(event.route):
                self._apply_route(event)
        elif isinstance(event, LinkEvent):
            if event.is_removed or self.links.get(event.link.ifindex) != event.link:
                self.needs_listing = True
        elif isinstance(event, AddressEvent):
            self.needs_listing = True

    def _apply_route(self, event: RouteEvent) -> None:
        network = ip_network(event.route.dst)
        self._changed.append(network)
        if event.is_removed:
            self._discard(network, event.route)
        else:
            self._store(event.route)
        self._note_workload(network)

    def _discard(self, network: Network, route: Route) -> None:
        present = self._routes.get(network)
        if present is not None:
            present.pop((route.tos, route.metric), None)
            if not present:
                self._routes.remove(network)

    def _store(self, route: Route) -> None:
        network = ip_network(route.dst)
        present = self._routes.get(network)
        if present is None:
            present = {}
            self._routes.add(network, present)
        present[route.tos, route.metric] = route

    def _is_foreign(self, route: Route) -> bool:
        return route.table == self.table and route.protocol != self.own_protocol

    # -- answers

    def affected(self, next_hops: Iterable[bytes]) -> list[bytes]:
        """Of these, the ones whose answer may be another since the last call."""
        changed, self._changed = self._changed, []
        if self._everything_changed:
            self._everything_changed = False
            return list(next_hops)
        if not changed:
            return []
        found = []
        for packed in next_hops:
            address = ip_address(packed)
            if any(address.version == net.version and address in net for net in changed):
                found.append(packed)
        return found

    def resolve(self, packed: bytes) -> tuple[NextHop, ...]:
        """How to send towards a next hop; empty: it cannot be reached now."""
        if packed in self.own_addresses:
            return ()
        address = ip_address(packed)
        for network, routes in self._routes.all_covering(host_network(address)):
            for _, route in sorted(routes.items()):
                if route.type != RouteType.UNICAST:
                    return ()  # somebody wants this traffic gone
                hops = self._running(route.nexthops)
                if hops:
                    return tuple(_towards(str(address), hop, network) for hop in hops)
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

    def _find_workloads(self) -> None:
        for network in {ip_network(text(*key)) for key in self.workloads}:
            self._note_workload(network)
        for network, _ in self._routes.items():
            self._note_workload(network)

    def _note_workload(self, network: Network) -> None:
        key, found = parse(str(network)), self._workload(network)
        if self.workloads.get(key) != found:
            self._changed_workloads.add(key)
            if found is None:
                del self.workloads[key]
            else:
                self.workloads[key] = found

    def _workload(self, network: Network) -> LocalRoute | None:
        """The route out of a workload interface, whoever made it."""
        if network.is_link_local or network.is_multicast:
            return None
        for (_, metric), route in sorted((self._routes.get(network) or {}).items()):
            name = self._workload_interface(route)
            if name:
                return LocalRoute("workload", metric=metric, interface=name)
        return None

    def _workload_interface(self, route: Route) -> str:
        if route.type != RouteType.UNICAST or len(route.nexthops) != 1:
            return ""
        hop = route.nexthops[0]
        link = self.links.get(hop.ifindex)
        if link is None or hop.gateway or not link.name.startswith(self.workload_prefixes):
            return ""
        return link.name

    def dump(self) -> dict[str, object]:
        return {
            "links": {link.name: link.is_running for link in self.links.values()},
            "foreign_routes": len(self._routes),
            "own_addresses": len(self.own_addresses),
        }


def _towards(address: str, hop: NextHop, network: Network) -> NextHop:
    """Over a gateway as that route goes, or directly: the address itself is the gateway."""
    if hop.gateway:
        return NextHop(hop.ifindex, hop.gateway, hop.is_onlink)
    # A host or default route says the address is on the link, though no subnet does.
    is_bare = network.prefixlen in (0, network.max_prefixlen)
    return NextHop(hop.ifindex, address, is_bare)
