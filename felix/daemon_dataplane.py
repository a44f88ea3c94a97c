"""The dataplane of one node put together: kernel adapters, drivers, managers, the loop.

Layer: felix.daemon: wiring only, no decision. The order of the stages is the order of writing:

    filter (policy, dispatch, NAT) ─► what the other dataplane left ─► settings of interfaces
      ─► bandwidth ─► routes IPv4, IPv6

The filter is nftables or, with NFTablesMode Disabled, iptables: the same managers over another
driver.

Everything is made in the network namespace of this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from felix.config import FelixConfig
from felix.daemon_notices import GapNotices
from felix.dataplane.conntrack_table import ConntrackTable
from felix.dataplane.endpoint_mgr import EndpointManager, EndpointSettings
from felix.dataplane.host_rules_mgr import HostRulesManager
from felix.dataplane.ipt_port import IptablesPort
from felix.dataplane.ipt_table import IptablesTable, IptOptions
from felix.dataplane.ipt_wiring import iptables_dataplane
from felix.dataplane.leftovers import (
    IpSetLeftover,
    IptablesLeftover,
    Leftover,
    Leftovers,
    NftLeftover,
)
from felix.dataplane.link_monitor import LinkMonitor
from felix.dataplane.loop import CycleReport, Dataplane, DataplaneParts, Stage
from felix.dataplane.manager import InterfaceListener, Manager
from felix.dataplane.nft_port import NftPort
from felix.dataplane.nft_table import NftTable
from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.nft_wiring import nft_dataplane
from felix.dataplane.ownership import ROUTING_DAEMON_PROTOCOLS, RouteOwnership
from felix.dataplane.policy_mgr import PolicyManager
from felix.dataplane.policy_report import PolicyReport
from felix.dataplane.policy_sweep import PolicySweep
from felix.dataplane.ports import (
    ConntrackPort,
    EventPort,
    LinkPort,
    RoutePort,
    ShapingPort,
    SysctlPort,
)
from felix.dataplane.route_table import RouteTable
from felix.dataplane.shaping_table import ShapingTable
from felix.dataplane.status_mgr import StatusManager, StatusSink
from felix.dataplane.sysctl_table import SysctlTable
from felix.dataplane.uplinks import Uplinks
from felix.kernel.conntrack import KernelConntrack
from felix.kernel.iptables import CommandRunner, IptablesKernel, Variant, open_iptables
from felix.kernel.netlink import KernelEvents, KernelLinks, KernelRoutes
from felix.kernel.nft import NftKernel
from felix.kernel.shaping import KernelShaping
from felix.kernel.sysctl import ProcSysctl
from felix.kernel.worker import KernelWorker
from felix.rules.settings import RuleSettings
from libcalico.model.keys import ResourceKey
from libcalico.netlink import NetlinkSocket
from libcalico.runtime import log
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)
# Missing when IPv6 was switched off at boot.
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


@dataclass(frozen=True, slots=True)
class IptablesPorts:
    """The variant in use, None with nftables; and those that may hold rules of an earlier felix."""

    used: IptablesPort | None = None
    others: Mapping[str, IptablesPort] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ports:
    """The kernel, or something that behaves like it."""

    nft: NftPort
    routes: RoutePort
    links: LinkPort
    events: EventPort
    sysctls: SysctlPort
    conntrack: ConntrackPort
    shaping: ShapingPort
    has_ipv6: bool = True
    iptables: IptablesPorts = field(default_factory=IptablesPorts)


def open_kernel(config: FelixConfig, closing: ExitStack) -> Ports:
    """The real ports; `closing` gives everything back. Errors: ProgrammingFailed."""
    worker = KernelWorker()
    socket = NetlinkSocket(timeout_s=config.netlink_timeout_s)
    closing.callback(socket.close)
    events = KernelEvents(frozenset({socket.port_id}), ROUTING_DAEMON_PROTOCOLS)
    closing.callback(events.close)
    # A thread of its own: reading the connection table must not hold up routes.
    conntrack_worker = KernelWorker()
    conntrack = KernelConntrack(conntrack_worker, timeout_s=config.netlink_timeout_s)
    closing.callback(conntrack.close)
    closing.callback(conntrack_worker.close)
    nft = NftKernel.in_namespace()
    closing.callback(nft.close)
    has_ipv6 = _IPV6_ADDRESSES.exists()
    iptables = _open_iptables(config, closing, has_ipv6=has_ipv6)
    closing.callback(worker.close)  # first of all: nobody uses a socket that is being closed
    return Ports(
        nft,
        KernelRoutes(worker, socket),
        KernelLinks(worker, socket),
        events,
        ProcSysctl(worker),
        conntrack,
        KernelShaping(worker, socket),
        has_ipv6=has_ipv6,
        iptables=iptables,
    )


def _open_iptables(config: FelixConfig, closing: ExitStack, *, has_ipv6: bool) -> IptablesPorts:
    """With nftables both variants are only asked for what they hold of ours."""
    worker = KernelWorker()
    closing.callback(worker.close)
    if config.nftables_mode != "Disabled":
        both = (
            IptablesKernel(CommandRunner.dying_with_us(), variant, worker) for variant in Variant
        )
        return IptablesPorts(others={one.variant.value: one for one in both})
    used, other = open_iptables(config.iptables_backend, worker, ip_versions(has_ipv6=has_ipv6))
    others: dict[str, IptablesPort] = {}
    if other.has_own_commands:
        others[other.variant.value] = other
    return IptablesPorts(used, others)


def ip_versions(*, has_ipv6: bool) -> tuple[int, ...]:
    """A kernel without IPv6 has no ip6tables either."""
    return (4, 6) if has_ipv6 else (4,)


@dataclass(frozen=True, slots=True)
class NodeDataplane:
    """What the daemon and the endpoint programmer talk to."""

    loop: Dataplane
    endpoints: EndpointManager
    hosts: HostRulesManager
    wanted: WantedRuleset
    status: StatusManager
    conntrack: ConntrackTable
    uplinks: Uplinks
    policies: PolicyReport
    # None: connections are asked about once, when they begin.
    sweep: PolicySweep | None


def build_dataplane(
    config: FelixConfig, ports: Ports, sinks: Sequence[StatusSink], *, clock: Clock
) -> NodeDataplane:
    if config.ipv6_support and not ports.has_ipv6:
        LOG.warning("this kernel has no IPv6: only IPv4 is programmed")
    settings = EndpointSettings.of(config, has_ipv6=ports.has_ipv6)
    ownership = RouteOwnership(
        config.interface_prefixes, config.device_route_protocol, config.remove_external_routes
    )
    routes = [
        RouteTable(ports.routes, family, ownership=ownership, clock=clock)
        for family in settings.families
    ]
    sysctls = SysctlTable(ports.sysctls)
    conntrack = ConntrackTable(ports.conntrack, clock=clock)
    packet_filter = _packet_filter(config, ports, clock=clock)
    shaping = ShapingTable(ports.shaping, config.interface_prefixes)
    endpoints = EndpointManager(routes, sysctls, conntrack, shaping, settings=settings)
    host, wanted = packet_filter.host, packet_filter.table.wanted
    status = StatusManager(endpoints, host, sinks)
    links = LinkMonitor(ports.links)
    policies = PolicyReport(partial(_why_closed, packet_filter), clock=clock)
    uplinks = Uplinks(config.mtu_iface_pattern, config.interface_prefixes)
    sweep = (
        PolicySweep(ports.conntrack, RuleSettings.of(config), clock=clock)
        if settings.sweeps_connections
        else None
    )
    listeners: list[InterfaceListener] = [*routes, endpoints, host, status, uplinks]
    listeners += [sweep] if sweep else []
    for listener in listeners:
        links.add_listener(listener)
    # A disabled route sync leaves the table alone, orphans included.
    tables = routes if settings.programs_routes else []
    managers: list[Manager] = [*packet_filter.managers, endpoints, status, policies, GapNotices()]
    managers += [sweep] if sweep else []
    loop = Dataplane(
        DataplaneParts(
            managers=managers,
            stages=[
                Stage(packet_filter.table, packet_filter.refresh_s, is_vital=True),
                Stage(Leftovers(_leftovers(ports))),
                Stage(sysctls, config.interface_refresh_interval_s),
                Stage(shaping, config.interface_refresh_interval_s),
                *(Stage(table, config.route_refresh_interval_s) for table in tables),
                Stage(conntrack),
            ],
            links=links,
            events=ports.events,
            route_tables=routes,
            link_refresh_s=config.interface_refresh_interval_s,
            hang_after_s=config.debug_simulate_dataplane_hang_after_s,
            apply_delay_s=config.debug_simulate_dataplane_apply_delay_s,
        ),
        clock=clock,
    )

    def on_cycle(report: CycleReport) -> None:
        status.on_applied(is_filtering=report.is_filtering)

    loop.add_observer(on_cycle)
    loop.add_observer(policies.on_cycle)
    if sweep:
        loop.add_observer(sweep.on_cycle)
    return NodeDataplane(loop, endpoints, host, wanted, status, conntrack, uplinks, policies, sweep)


@dataclass(frozen=True, slots=True)
class _PacketFilter:
    """Either dataplane: a driver, and the managers that fill what it wants."""

    table: NftTable | IptablesTable
    managers: tuple[Manager, ...]
    policies: PolicyManager
    host: HostRulesManager
    refresh_s: float


def _packet_filter(config: FelixConfig, ports: Ports, *, clock: Clock) -> _PacketFilter:
    settings = RuleSettings.of(config)
    if ports.iptables.used is None:
        nft = nft_dataplane(ports.nft, settings, clock=clock)
        refresh_s = config.nftables_refresh_interval_s
        return _PacketFilter(nft.table, nft.managers, nft.policies, nft.host, refresh_s)
    options = IptOptions(
        appends=config.chain_insert_mode == "append",
        max_members=config.max_ipset_size,
        recheck_s=config.iptables_post_write_check_interval_s,
        versions=ip_versions(has_ipv6=ports.has_ipv6),
    )
    made = iptables_dataplane(ports.iptables.used, settings, options, clock=clock)
    # One reading is for both. 0 is "never", for either.
    intervals = (config.iptables_refresh_interval_s, config.ipsets_refresh_interval_s)
    refresh_s = min(filter(None, intervals), default=0.0)
    return _PacketFilter(made.table, made.managers, made.policies, made.host, refresh_s)


def _leftovers(ports: Ports) -> list[Leftover]:
    """Rules before the sets they use."""
    iptables = ports.iptables
    found: list[Leftover] = [NftLeftover(ports.nft)] if iptables.used is not None else []
    versions = ip_versions(has_ipv6=ports.has_ipv6)
    found += [IptablesLeftover(port, name, versions) for name, port in iptables.others.items()]
    if iptables.used is None:
        found += [IpSetLeftover(port) for port in list(iptables.others.values())[:1]]
    return found


def _why_closed(packet_filter: _PacketFilter, key: ResourceKey) -> str | None:
    """What the kernel refused of a policy, so that nothing passes where it governs."""
    part = packet_filter.policies.refused_part(key)
    if part is None:
        return None
    return f"{part}: {packet_filter.table.refused.get(part, 'refused before')}"
