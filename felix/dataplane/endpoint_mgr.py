"""Manager of workload endpoints: their routes, interface settings, bandwidths and connections.

Layer: felix.dataplane. Fed with intents and interface states by the loop; pushes into the route
tables (one per family) and the tables of settings, bandwidth and connections. Policy of the same
endpoints is endpoint_rules_mgr's; both must have done their part before a pod may talk, see
`problem()`.

Invariants:
  E1  what an interface gets depends only on the endpoints that name it now: of several the one
      with the smallest (namespace, name) is in force, the others are reported as errors;
  E2  an address whose route leaves an interface, to another one or for good, has its connections
      forgotten, after that route is gone. An interface that loses an address which is another's by
      then takes no connections with it;
  E3  settings are wanted only for interfaces that exist and belong to an endpoint;
  E4  a bandwidth that cannot be limited is an error of the endpoint's status, and does not stop
      it: `problem()` is about what a workload needs, `status()` about all it should have;
  E5  both families come from the same code (`settings.families`).

Source: Calico felix/dataplane/linux/endpoint_mgr.go (configureInterface); datamodel 7.12.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from felix.config import FelixConfig
from felix.dataplane.conntrack_table import ConntrackTable
from felix.dataplane.manager import InterfaceState
from felix.dataplane.route_table import RouteClass, RouteTable, RouteTarget
from felix.dataplane.shaping import shape_of
from felix.dataplane.shaping_table import ShapingTable
from felix.dataplane.sysctl_table import NODE, Setting, SysctlTable
from felix.intent import Intent, WorkloadEndpointRemove, WorkloadEndpointUpdate
from libcalico.model.keys import ResourceKey
from libcalico.netlink import AF_INET, AF_INET6


class EndpointStatus(enum.Enum):
    """Calico's three words."""

    UP = "up"
    DOWN = "down"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """What the manager needs of the configuration."""

    families: tuple[int, ...] = (AF_INET, AF_INET6)
    metrics: Mapping[int, int] = field(default_factory=lambda: {AF_INET: 1024, AF_INET6: 1024})
    sources: Mapping[int, str] = field(default_factory=dict)
    route_protocol: int = 3
    programs_routes: bool = True
    enables_forwarding: bool = True
    allows_spoofing: bool = False
    has_floating_ips: bool = False
    sweeps_connections: bool = False

    @classmethod
    def of(cls, config: FelixConfig, *, has_ipv6: bool = True) -> EndpointSettings:
        """`has_ipv6` False: the kernel was booted without it."""
        sources = {
            AF_INET: config.device_route_source_address,
            AF_INET6: config.device_route_source_address_ipv6,
        }
        return cls(
            families=(AF_INET, AF_INET6) if config.ipv6_support and has_ipv6 else (AF_INET,),
            metrics={
                AF_INET: config.ipv4_normal_route_priority,
                AF_INET6: config.ipv6_normal_route_priority,
            },
            sources={family: str(address) for family, address in sources.items() if address},
            route_protocol=config.device_route_protocol,
            programs_routes=not config.route_sync_disabled,
            enables_forwarding=config.ip_forwarding == "Enabled",
            allows_spoofing=config.workload_source_spoofing == "Any",
            has_floating_ips=config.floating_ips == "Enabled",
            sweeps_connections=config.policy_conntrack_sweep == "Enabled",
        )


def node_settings(settings: EndpointSettings) -> tuple[Setting, ...]:
    """Forwarding between interfaces, which a router needs. Nothing is ever switched back.

    Where policy ends connections, none may come back by a packet out of its middle
    (policy_sweep.py)."""
    wanted = []
    if settings.enables_forwarding:
        wanted.append(Setting("net/ipv4/ip_forward", "1"))
    if settings.enables_forwarding and AF_INET6 in settings.families:
        # Optional: a kernel booted without IPv6 has no such file.
        wanted.append(Setting("net/ipv6/conf/all/forwarding", "1", is_optional=True))
    if settings.sweeps_connections:
        wanted.append(Setting("net/netfilter/nf_conntrack_tcp_loose", "0", is_optional=True))
    return tuple(wanted)


def interface_settings(
    ifname: str, endpoint: WorkloadEndpointUpdate, settings: EndpointSettings
) -> tuple[Setting, ...]:
    """The host's side of a workload's wire.

    The host answers every ARP and ND question of the workload with its own MAC (proxy_arp,
    proxy_ndp), at once (proxy_delay). A packet from an address that is not the workload's fails
    the strict reverse path check (datamodel 7.12; IPv6 has no such setting: the rules do it).
    Router advertisements of a workload would be an attack on the host's routes."""
    v4, v6 = f"net/ipv4/conf/{ifname}", f"net/ipv6/conf/{ifname}"
    may_spoof = settings.allows_spoofing and bool(endpoint.allowed_source_prefixes)
    wanted = [
        Setting(f"{v6}/accept_ra", "0", is_optional=True),
        Setting(f"{v4}/rp_filter", "0" if may_spoof else "1"),
        Setting(f"{v4}/route_localnet", "1"),
        Setting(f"net/ipv4/neigh/{ifname}/proxy_delay", "0", is_optional=True),
        Setting(f"{v4}/proxy_arp", "1"),
        Setting(f"{v4}/forwarding", "1"),
    ]
    has_v6 = any(":" in net for net in endpoint.nets)
    if has_v6 and AF_INET6 in settings.families:
        wanted += [
            Setting(f"{v6}/disable_ipv6", "0"),
            Setting(f"{v6}/accept_dad", "0"),
            Setting(f"{v6}/proxy_ndp", "1"),
            Setting(f"{v6}/forwarding", "1"),
        ]
    return tuple(wanted)


class EndpointManager:
    """Manager and InterfaceListener. See the module docstring."""

    def __init__(
        self,
        routes: Sequence[RouteTable],
        sysctls: SysctlTable,
        conntrack: ConntrackTable,
        shaping: ShapingTable,
        *,
        settings: EndpointSettings,
    ) -> None:
        self._routes = {table.family: table for table in routes}
        self._sysctls, self._conntrack, self._shaping = sysctls, conntrack, shaping
        self._settings = settings
        self._pending: dict[ResourceKey, WorkloadEndpointUpdate | None] = {}
        self._endpoints: dict[ResourceKey, WorkloadEndpointUpdate] = {}
        self._keys_by_ifname: dict[str, set[ResourceKey]] = {}
        self._addresses_by_ifname: dict[str, frozenset[str]] = {}
        self._holders_by_address: dict[str, frozenset[str]] = {}
        self._owner_by_address: dict[str, str] = {}
        self._doubtful_addresses: set[str] = set()
        self._interfaces: dict[str, InterfaceState] = {}
        self._dirty_ifnames: set[str] = set()
        self._touched: set[ResourceKey] = set()
        sysctls.set_settings(NODE, node_settings(settings))

    # ------------------------------------------------------------------------------- inputs

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, WorkloadEndpointUpdate):
            self._pending[intent.key] = intent
        elif isinstance(intent, WorkloadEndpointRemove):
            self._pending[intent.key] = None

    def on_interface(self, name: str, state: InterfaceState | None) -> None:
        before = self._interfaces.get(name)
        if state is None:
            self._interfaces.pop(name, None)
        else:
            self._interfaces[name] = state
        if before is not None and (state is None or state.ifindex != before.ifindex):
            self._sysctls.forget_written(name)
            self._shaping.forget_written(name)
        if (before is not None and before.is_up) != (state is not None and state.is_up):
            self._doubtful_addresses |= self._addresses_by_ifname.get(name, frozenset())
        if name in self._keys_by_ifname:
            self._touched |= self._keys_by_ifname[name]
            if before is None or state is None or before.mtu_bytes != state.mtu_bytes:
                self._dirty_ifnames.add(name)

    # --------------------------------------------------------------------------------- work

    def complete_deferred_work(self) -> None:
        for key, endpoint in self._pending.items():
            self._store(key, endpoint)
        self._pending.clear()
        for ifname in sorted(self._dirty_ifnames):
            self._program_interface(ifname)
        self._dirty_ifnames.clear()
        for address in sorted(self._doubtful_addresses):
            self._settle_owner(address)
        self._doubtful_addresses.clear()

    def _store(self, key: ResourceKey, endpoint: WorkloadEndpointUpdate | None) -> None:
        before = self._endpoints.pop(key, None)
        if before is not None:
            keys = self._keys_by_ifname[before.interface]
            keys.discard(key)
            if not keys:
                del self._keys_by_ifname[before.interface]
            self._touch_interface(before.interface)
        if endpoint is not None:
            self._endpoints[key] = endpoint
            self._keys_by_ifname.setdefault(endpoint.interface, set()).add(key)
            self._touch_interface(endpoint.interface)
        self._touched.add(key)

    def _touch_interface(self, ifname: str) -> None:
        self._dirty_ifnames.add(ifname)
        self._touched |= self._keys_by_ifname.get(ifname, set())

    def _in_force(self, ifname: str) -> WorkloadEndpointUpdate | None:
        """E1."""
        keys = self._keys_by_ifname.get(ifname)
        if not keys:
            return None
        return self._endpoints[min(keys, key=lambda key: (key.namespace, key.name))]

    def _program_interface(self, ifname: str) -> None:
        endpoint = self._in_force(ifname)
        is_active = endpoint is not None and endpoint.active
        nets = self._routed_nets(endpoint) if endpoint is not None and is_active else ()
        for family, table in self._routes.items():
            mine = [net for net in nets if (":" in net) == (family == AF_INET6)]
            table.set_routes(
                RouteClass.LOCAL_WORKLOAD, ifname, [self._target(net, family) for net in mine]
            )
        self._hold(ifname, frozenset(net.partition("/")[0] for net in nets))
        interface = self._interfaces.get(ifname)
        if endpoint is not None and is_active and interface is not None:
            self._sysctls.set_settings(ifname, interface_settings(ifname, endpoint, self._settings))
            self._shaping.set_shape(ifname, shape_of(endpoint.qos, interface.mtu_bytes))
        else:
            self._sysctls.set_settings(ifname, ())
            self._shaping.set_shape(ifname, None)

    def _routed_nets(self, endpoint: WorkloadEndpointUpdate) -> tuple[str, ...]:
        """Its addresses, and with floating addresses on, those too: traffic to them comes here
        before DNAT has been undone for the route decision of the host itself."""
        if not self._settings.programs_routes:
            return ()
        floating = []
        if self._settings.has_floating_ips:
            for nat in endpoint.nats:
                floating.append(f"{nat.external_ip}/{128 if ':' in nat.external_ip else 32}")
        return endpoint.nets + tuple(net for net in floating if net not in endpoint.nets)

    def _target(self, net: str, family: int) -> RouteTarget:
        return RouteTarget(
            net,
            metric=self._settings.metrics[family],
            protocol=self._settings.route_protocol,
            source=self._settings.sources.get(family, ""),
        )

    def _hold(self, ifname: str, after: frozenset[str]) -> None:
        """These addresses are the interface's from now on, or one of several interfaces'."""
        before = self._addresses_by_ifname.pop(ifname, frozenset())
        if after:
            self._addresses_by_ifname[ifname] = after
        mine = frozenset({ifname})
        for address in before ^ after:
            holders = self._holders_by_address.pop(address, frozenset()) ^ mine
            if holders:
                self._holders_by_address[address] = holders
        self._doubtful_addresses |= before ^ after

    def _settle_owner(self, address: str) -> None:
        """E2."""
        before, now = self._owner_by_address.get(address, ""), self._owner(address)
        if now:
            self._owner_by_address[address] = now
        else:
            self._owner_by_address.pop(address, None)
        if before not in ("", now):
            self._conntrack.forget(address)

    def _owner(self, address: str) -> str:
        """The interface that has the address's route: of several that are up the first by name, as
        in the route table. While none is up it stays where it was."""
        holders = sorted(self._holders_by_address.get(address, ()))
        if len(holders) == 1:
            return holders[0]
        for ifname in holders:
            interface = self._interfaces.get(ifname)
            if interface is not None and interface.is_up:
                return ifname
        before = self._owner_by_address.get(address, "")
        return before if before in holders else min(holders, default="")

    # ----------------------------------------------------------------------------- questions

    def endpoint(self, key: ResourceKey) -> WorkloadEndpointUpdate | None:
        """As the last complete_deferred_work knew it."""
        return self._endpoints.get(key)

    def addresses_of(self, key: ResourceKey) -> frozenset[str]:
        """Addresses that are routed to the endpoint's interface."""
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            return frozenset()
        return self._addresses_by_ifname.get(endpoint.interface, frozenset())

    @property
    def count(self) -> int:
        return len(self._endpoints)

    def nets_of(self, key: ResourceKey) -> frozenset[str]:
        """Every net the endpoint holds, or is about to: what must be gone when it is gone."""
        known = (self._endpoints.get(key), self._pending.get(key))
        return frozenset(net for endpoint in known if endpoint for net in endpoint.nets)

    def problem(self, key: ResourceKey) -> str:
        """Why routes and settings of this endpoint are not (all) in the kernel; "" when they are.

        An endpoint that is administratively down needs none."""
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            return "not known to the dataplane"
        ifname = endpoint.interface
        in_force = self._in_force(ifname)
        if in_force is not endpoint:
            holder = "" if in_force is None else in_force.key.name
            return f"interface {ifname} belongs to endpoint {holder}"
        if not endpoint.active:
            return ""
        if ifname not in self._interfaces:
            return f"there is no interface {ifname}"
        for net in self._routed_nets(endpoint):
            table = self._routes.get(AF_INET6 if ":" in net else AF_INET)
            trouble = "" if table is None else table.problem(net)
            if trouble:
                return f"route to {net}: {trouble}"
        return self._sysctls.problem(ifname)

    def is_gone(self, key: ResourceKey, nets: Iterable[str]) -> bool:
        """True when the endpoint is forgotten and the kernel routes none of `nets` for it any
        more. A net that another endpoint holds now does not count."""
        if key in self._endpoints or self._pending.get(key) is not None:
            return False
        for net in nets:
            table = self._routes.get(AF_INET6 if ":" in net else AF_INET)
            if table is not None and not (table.is_wanted(net) or table.is_absent(net)):
                return False
        return True

    def status(self, key: ResourceKey) -> EndpointStatus:
        endpoint = self._endpoints[key]
        interface = self._interfaces.get(endpoint.interface)
        if self._in_force(endpoint.interface) is not endpoint:
            return EndpointStatus.ERROR
        if not endpoint.active or interface is None or not interface.is_running:
            return EndpointStatus.DOWN
        is_whole = not self.problem(key) and not self._shaping.problem(endpoint.interface)
        return EndpointStatus.UP if is_whole else EndpointStatus.ERROR

    def take_touched(self) -> set[ResourceKey]:
        """Endpoints whose status may have changed since the last call, removed ones included."""
        touched, self._touched = self._touched, set()
        return touched

    def dump(self) -> dict[str, object]:
        return {
            "endpoints": {
                f"{key.namespace}/{key.name}": {
                    "interface": endpoint.interface,
                    "nets": list(endpoint.nets),
                    "problem": self.problem(key) or self._shaping.problem(endpoint.interface),
                }
                for key, endpoint in sorted(self._endpoints.items())
            }
        }
