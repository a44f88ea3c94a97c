"""Constants that reach the kernel, and which kernel state is ours.

Layer: felix.dataplane, pure. Used by the drivers; the nftables names are in felix.rules.names.

Routes (main table), recognised by a fresh process:
  protocol 80                    ours, wherever it points (cluster routes; Calico's convention);
  DeviceRouteProtocol (3, boot)  ours on workload interfaces only: the number is everybody's;
  any other on a workload interface  somebody else's: removed when RemoveExternalRoutes is on (the
                                 default), except what the kernel makes itself and what a BGP
                                 daemon of this suite learned from a workload (186, 12).
Everything else is foreign and never deleted. Overwriting needs a second look, because the kernel's
`replace` matches (dst, metric) only: see `may_overwrite`.

Source: Calico felix/routetable/ownershippol/main_route_table_policy.go; reference/bgp.md 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from libcalico.netlink import PROTO_BGP, PROTO_BOOT, PROTO_KERNEL, Route

FELIX_ROUTE_PROTOCOL = 80
BIRD_ROUTE_PROTOCOL = 12
# What our own routing daemons program: left alone by sweeps, overwritten by a local workload.
ROUTING_DAEMON_PROTOCOLS = frozenset({PROTO_BGP, BIRD_ROUTE_PROTOCOL})

# Calico's CNI plugin programs the route of a new workload before felix hears of it; a route on an
# interface younger than this is given the benefit of the doubt.
FOREIGN_ROUTE_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class RouteOwnership:
    """Decides from a route and the name of its interface ("" when it has none)."""

    interface_prefixes: tuple[str, ...] = ("cali",)
    device_route_protocol: int = PROTO_BOOT
    remove_external_routes: bool = True

    def is_workload_interface(self, ifname: str) -> bool:
        return ifname.startswith(self.interface_prefixes)

    def is_ours(self, route: Route, ifname: str) -> bool:
        """True: keep it only if it is wanted."""
        if route.protocol == self._exclusive_protocol:
            return True
        if not self.is_workload_interface(ifname):
            return False
        if route.protocol == self.device_route_protocol:
            return True
        made_by_others = route.protocol in ROUTING_DAEMON_PROTOCOLS | {PROTO_KERNEL}
        return self.remove_external_routes and not made_by_others

    def may_overwrite(self, route: Route, ifname: str) -> bool:
        """Whether a wanted route may take the place of this one (same dst and metric)."""
        return self.is_ours(route, ifname) or route.protocol in ROUTING_DAEMON_PROTOCOLS

    @property
    def _exclusive_protocol(self) -> int:
        """A DeviceRouteProtocol other than boot is used for all our routes, and by nobody else."""
        if self.device_route_protocol == PROTO_BOOT:
            return FELIX_ROUTE_PROTOCOL
        return self.device_route_protocol

    @property
    def interesting_protocols(self) -> frozenset[int]:
        """Route notifications worth decoding; replacements are always looked at."""
        return frozenset(range(256)) - ROUTING_DAEMON_PROTOCOLS
