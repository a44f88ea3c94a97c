"""What the templates are given: the BGP configuration of one node as a typed, frozen value.

Layer: pure. Used by confd.daemon (which renders it) and tests. The same context serves every
template set, so that one engine's configuration never says something else than another's.

  X1  equal datastore content gives an equal context, and so byte-identical files;
  X2  an object that makes no sense costs itself and a warning, never the pass;
  X3  a filter rule that is not understood rejects everything that comes to it: what it would let
      through nobody can know.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from confd.filters import check_community, sound_filter
from confd.peers import DEFAULT_AS, PeerCalculator, Secrets, Session
from confd.view import DatastoreView
from libcalico.model import BGPConfiguration, IPPool, Node
from libcalico.model import speaker as speaker_file
from libcalico.model.bgp import (
    BGPConfigurationSpec,
    PrefixAdvertisement,
    ServiceClusterIPBlock,
    ServiceExternalIPBlock,
    ServiceLoadBalancerIPBlock,
)
from libcalico.model.node import DRAIN_ANNOTATION
from libcalico.model.speaker import (
    Drain,
    Filter,
    KernelExport,
    LocalBlock,
    PeerOptions,
    PoolExport,
    SpeakerConfig,
)
from libcalico.net import Network

T = TypeVar("T")
R = TypeVar("R")
ServiceBlock = ServiceClusterIPBlock | ServiceExternalIPBlock | ServiceLoadBalancerIPBlock

DEFAULT_METRIC = 1024
BGP_ROUTE_PROTOCOL = 186


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who we are, from the environment. `router_id` is CALICO_ROUTER_ID: "", "hash" or an id."""

    name: str
    router_id: str = ""
    interface_prefixes: tuple[str, ...] = ("cali",)


@dataclass(frozen=True, slots=True)
class BgpContext:
    """`speaker` lacks its exabgp_sha256 until exabgp.conf has been rendered."""

    node_name: str
    router_id: str
    listen_port: int
    listen_addresses: tuple[str, ...]
    log_severity: str
    sessions: tuple[Session, ...]
    speaker: SpeakerConfig
    ignored_interfaces: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def workload_patterns(self) -> tuple[str, ...]:
        return tuple(f"{prefix}*" for prefix in self.speaker.workload_interface_prefixes)


def build(view: DatastoreView, identity: NodeIdentity, secrets: Secrets) -> BgpContext | None:
    """None while the node is not registered, or takes no part in BGP."""
    calculator = PeerCalculator(view, identity.name, secrets)
    me = calculator.me
    if me is None or not (me.ipv4 or me.ipv6):
        return None
    default = _spec(view.bgp_configuration("default"))
    own = _spec(view.bgp_configuration(f"node.{identity.name}"))
    sessions = calculator.sessions()
    warnings = calculator.warnings
    router_id = router_id_of(identity, me.ipv4)
    is_bound = (own.bind_mode or default.bind_mode) == "NodeIP"
    addresses = tuple(filter(None, (me.ipv4, me.ipv6))) if is_bound else ()
    severity = own.log_severity_screen or default.log_severity_screen or "Info"
    speaker = SpeakerConfig(
        exabgp_sha256="",
        node_name=identity.name,
        router_id=router_id,
        local_as=me.as_number or DEFAULT_AS,
        ipv4_address=me.ipv4 or None,
        ipv6_address=me.ipv6 or None,
        workload_interface_prefixes=identity.interface_prefixes,
        cluster_id=me.cluster_id,
        blocks=_blocks(view.confirmed_blocks(identity.name), warnings),
        pools=_pools(view.pools(), warnings),
        service_cidrs=_service_cidrs(default, warnings),
        prefix_advertisements=_advertisements(own, default, warnings),
        filters=_filters(sessions, view, warnings),
        peers=tuple(_peer_options(session) for session in sessions),
        kernel=_kernel(own, default),
        log_severity=severity,
        listen_port=me.port,
        listen_addresses=addresses,
        drain=_drain(view.nodes()[identity.name], warnings),
    )
    return BgpContext(
        node_name=identity.name,
        router_id=router_id,
        listen_port=me.port,
        listen_addresses=addresses,
        log_severity=severity,
        sessions=sessions,
        speaker=speaker,
        ignored_interfaces=own.ignored_interfaces or default.ignored_interfaces,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def router_id_of(identity: NodeIdentity, ipv4: str) -> str:
    """The node's IPv4 address; with "hash", or without an IPv4 address, four bytes of SHA-256 of
    the node name (first octet kept below 224, as Calico does); or what was given."""
    if identity.router_id and identity.router_id != "hash":
        return identity.router_id
    if ipv4 and not identity.router_id:
        return ipv4
    octets = bytearray(hashlib.sha256(identity.name.encode()).digest()[:4])
    if octets[0] > 223:
        octets[0] -= 32
    return str(ipaddress.IPv4Address(bytes(octets)))


def _spec(configuration: BGPConfiguration | None) -> BGPConfigurationSpec:
    return configuration.spec if configuration else BGPConfigurationSpec()


def _each(
    items: Iterable[tuple[str, T]], make: Callable[[T], R], warnings: list[str]
) -> tuple[R, ...]:
    """`make` of every item; one that it refuses is left out with a warning (X2)."""
    made = []
    for name, item in items:
        try:
            made.append(make(item))
        except ValueError as err:
            warnings.append(f"{name}: {err}")
    return tuple(made)


def _blocks(cidrs: Iterable[str], warnings: list[str]) -> tuple[LocalBlock, ...]:
    return _each(((f"BlockAffinity({cidr})", cidr) for cidr in cidrs), _block, warnings)


def _block(cidr: str) -> LocalBlock:
    network = ipaddress.ip_network(cidr)
    # A single address needs no blackhole: there is nothing else in the block to protect.
    return LocalBlock(cidr=cidr, blackhole=network.prefixlen < network.max_prefixlen)


def _pools(pools: Iterable[tuple[str, IPPool]], warnings: list[str]) -> tuple[PoolExport, ...]:
    return _each(((f"IPPool({name})", pool) for name, pool in pools), _pool, warnings)


def _pool(pool: IPPool) -> PoolExport:
    spec = pool.spec
    return PoolExport(
        cidr=str(ipaddress.ip_network(spec.cidr)),
        export=not spec.disable_bgp_export,
        ipip_mode=spec.ipip_mode or "Never",
        vxlan_mode=spec.vxlan_mode or "Never",
    )


def _service_cidrs(default: BGPConfigurationSpec, warnings: list[str]) -> tuple[str, ...]:
    """Ranges every node announces; single external and load balancer addresses go per service."""

    def networks(blocks: Iterable[ServiceBlock], member: str) -> Sequence[Network]:
        name = f"BGPConfiguration(default).{member}"
        cidrs = ((name, block.cidr) for block in blocks if block.cidr)
        return _each(cidrs, ipaddress.ip_network, warnings)

    found = list(networks(default.service_cluster_ips, "serviceClusterIPs"))
    for network in (
        *networks(default.service_external_ips, "serviceExternalIPs"),
        *networks(default.service_load_balancer_ips, "serviceLoadBalancerIPs"),
    ):
        if network.prefixlen < network.max_prefixlen:
            found.append(network)
    return tuple(sorted({str(network) for network in found}))


def _advertisements(
    own: BGPConfigurationSpec, default: BGPConfigurationSpec, warnings: list[str]
) -> tuple[speaker_file.PrefixAdvertisement, ...]:
    """The node's list replaces the global one; names are resolved through `communities`."""
    source = own if own.prefix_advertisements else default
    value_by_name = {c.name: c.value for c in (*default.communities, *source.communities)}

    def resolved(advertisement: PrefixAdvertisement) -> speaker_file.PrefixAdvertisement:
        values = [value_by_name.get(name) or name for name in advertisement.communities]
        for value in values:
            check_community(value)
        return speaker_file.PrefixAdvertisement(
            cidr=str(ipaddress.ip_network(advertisement.cidr or "", strict=False)),
            communities=tuple(value for value in values if value.count(":") == 1),
            large_communities=tuple(value for value in values if value.count(":") == 2),
        )

    named = (("BGPConfiguration.prefixAdvertisements", a) for a in source.prefix_advertisements)
    return _each(named, resolved, warnings)


def _filters(
    sessions: Iterable[Session], view: DatastoreView, warnings: list[str]
) -> tuple[Filter, ...]:
    """The filters that sessions name, and a warning for each that does not exist."""
    by_name = view.bgp_filters()
    names = sorted({name for session in sessions for name in session.filters})
    warnings += [f"BGPFilter({name}) does not exist" for name in names if name not in by_name]
    return tuple(sound_filter(name, by_name[name], warnings) for name in names if name in by_name)


def _peer_options(session: Session) -> PeerOptions:
    return PeerOptions(
        name=session.name,
        address=session.address,
        kind=session.kind,
        remote_as=session.remote_as,
        local_as=session.local_as,
        rr_client=session.rr_client,
        cluster_id=session.cluster_id if session.rr_client else "",
        next_hop_mode=session.next_hop_mode,
        keep_original_next_hop=session.keep_original_next_hop,
        filters=session.filters,
        allowed_local_as=session.allowed_local_as,
        restart_time_s=session.restart_s,
        is_calico_node=session.is_calico_node,
    )


def _drain(node: Node, warnings: list[str]) -> Drain:
    """How far the node is drained; a value that makes no sense drains nothing (X2)."""
    value = node.metadata.annotations.get(DRAIN_ANNOTATION, "")
    try:
        return Drain(value)
    except ValueError:
        expected = ", ".join(drain.value for drain in Drain if drain.value)
        warnings.append(
            f"Node({node.metadata.name}): {DRAIN_ANNOTATION} {value!r} is none of {expected}"
        )
        return Drain.NONE


def _kernel(own: BGPConfigurationSpec, default: BGPConfigurationSpec) -> KernelExport:
    metric = own.ipv4_normal_route_priority or default.ipv4_normal_route_priority
    metric_v6 = own.ipv6_normal_route_priority or default.ipv6_normal_route_priority
    routes = own.program_cluster_routes or default.program_cluster_routes
    return KernelExport(
        protocol=BGP_ROUTE_PROTOCOL,
        metric=metric or DEFAULT_METRIC,
        metric_v6=metric_v6 or DEFAULT_METRIC,
        program_cluster_routes=routes or "EnabledNoEncapOnly",
    )
