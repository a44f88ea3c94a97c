"""The dataplane of one node put together: kernel adapters, drivers, managers, the loop.

Layer: felix.daemon: wiring only, no decision. The order of the stages is the order of writing:

    nft (policy, dispatch, NAT) ─► settings of interfaces ─► bandwidth ─► routes IPv4, IPv6

Everything is made in the network namespace of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from felix.config import FelixConfig
from felix.daemon_notices import GapNotices
from felix.dataplane.conntrack_table import ConntrackTable
from felix.dataplane.endpoint_mgr import EndpointManager, EndpointSettings
from felix.dataplane.host_rules_mgr import HostRulesManager
from felix.dataplane.link_monitor import LinkMonitor
from felix.dataplane.loop import CycleReport, Dataplane, DataplaneParts, Stage
from felix.dataplane.manager import InterfaceListener, Manager
from felix.dataplane.nft_port import NftPort
from felix.dataplane.nft_table import NftTable
from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.nft_wiring import nft_dataplane
from felix.dataplane.ownership import ROUTING_DAEMON_PROTOCOLS, RouteOwnership
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
from felix.kernel.netlink import KernelEvents, KernelLinks, KernelRoutes
from felix.kernel.nft import NftKernel
from felix.kernel.shaping import KernelShaping
from felix.kernel.sysctl import ProcSysctl
from felix.kernel.worker import KernelWorker
from felix.rules.names import policy_chain
from felix.rules.policy import ALL_DIRECTIONS
from felix.rules.settings import RuleSettings
from libcalico.model.keys import ResourceKey
from libcalico.netlink import NetlinkSocket
from libcalico.runtime import log
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)
# Missing when IPv6 was switched off at boot.
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


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
    closing.callback(worker.close)  # first of all: nobody uses a socket that is being closed
    return Ports(
        nft,
        KernelRoutes(worker, socket),
        KernelLinks(worker, socket),
        events,
        ProcSysctl(worker),
        conntrack,
        KernelShaping(worker, socket),
        has_ipv6=_IPV6_ADDRESSES.exists(),
    )


@dataclass(frozen=True, slots=True)
class NodeDataplane:
    """What the daemon and the endpoint programmer talk to."""

    loop: Dataplane
    endpoints: EndpointManager
    hosts: HostRulesManager
    nft: NftTable
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
    nft = nft_dataplane(ports.nft, RuleSettings.of(config), clock=clock)
    shaping = ShapingTable(ports.shaping, config.interface_prefixes)
    endpoints = EndpointManager(routes, sysctls, conntrack, shaping, settings=settings)
    status = StatusManager(endpoints, nft.host, sinks)
    links = LinkMonitor(ports.links)
    policies = PolicyReport(partial(_is_policy_refused, nft.table.wanted), clock=clock)
    uplinks = Uplinks(config.mtu_iface_pattern, config.interface_prefixes)
    sweep = PolicySweep(ports.conntrack, clock=clock) if settings.sweeps_connections else None
    listeners: list[InterfaceListener] = [*routes, endpoints, nft.host, status, uplinks]
    listeners += [sweep] if sweep else []
    for listener in listeners:
        links.add_listener(listener)
    # A disabled route sync leaves the table alone, orphans included.
    tables = routes if settings.programs_routes else []
    managers: list[Manager] = [*nft.managers, endpoints, status, policies, GapNotices()]
    managers += [sweep] if sweep else []
    loop = Dataplane(
        DataplaneParts(
            managers=managers,
            stages=[
                Stage(nft.table, config.nftables_refresh_interval_s, is_vital=True),
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
    return NodeDataplane(
        loop, endpoints, nft.host, nft.table, status, conntrack, uplinks, policies, sweep
    )


def _is_policy_refused(wanted: WantedRuleset, key: ResourceKey) -> bool:
    names = (policy_chain(d, key.kind, key.namespace, key.name) for d in ALL_DIRECTIONS)
    return any(map(wanted.is_refused_chain, names))
