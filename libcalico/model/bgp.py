"""BGP configuration and peers.

Layer: libcalico.model, pure. Used by confd, bgp and the CLI.
Source: datamodel §1.9; Calico api/pkg/apis/projectcalico/v3/{bgpconfig,bgppeer}.go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from libcalico.model.meta import Model, Resource
from libcalico.model.scalars import ASNumber, Duration, Int32, UInt8, UInt16


class SecretKeySelector(Model, frozen=True, kw_only=True):
    """A key of a Kubernetes Secret."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("key",)

    name: str | None = None
    key: str = ""
    optional: bool | None = None


class BGPPassword(Model, frozen=True, kw_only=True):
    """Where the TCP-MD5 password is found."""

    secret_key_ref: SecretKeySelector | None = field(default=None, name="secretKeyRef")


class ServiceLoadBalancerIPBlock(Model, frozen=True, kw_only=True):
    """A range service load balancer addresses are advertised from."""

    cidr: str | None = None


class ServiceExternalIPBlock(Model, frozen=True, kw_only=True):
    """A range service external addresses are advertised from."""

    cidr: str | None = None


class ServiceClusterIPBlock(Model, frozen=True, kw_only=True):
    """A range of service cluster addresses to advertise."""

    cidr: str | None = None


class Community(Model, frozen=True, kw_only=True):
    """A name for a community value `aa:nn` or `aa:nn:mm`."""

    name: str | None = None
    value: str | None = None


class PrefixAdvertisement(Model, frozen=True, kw_only=True):
    """Communities attached to the routes inside `cidr`."""

    cidr: str | None = None
    communities: tuple[str, ...] = ()


class BGPConfigurationSpec(Model, frozen=True, kw_only=True):
    """Members marked D in datamodel §1.9 count on the object `default` only."""

    log_severity_screen: str | None = field(default=None, name="logSeverityScreen")
    node_to_node_mesh_enabled: bool | None = field(default=None, name="nodeToNodeMeshEnabled")
    as_number: ASNumber | None = field(default=None, name="asNumber")
    service_load_balancer_ips: tuple[ServiceLoadBalancerIPBlock, ...] = field(
        default=(), name="serviceLoadBalancerIPs"
    )
    service_external_ips: tuple[ServiceExternalIPBlock, ...] = field(
        default=(), name="serviceExternalIPs"
    )
    service_cluster_ips: tuple[ServiceClusterIPBlock, ...] = field(
        default=(), name="serviceClusterIPs"
    )
    service_load_balancer_aggregation: str | None = field(
        default=None, name="serviceLoadBalancerAggregation"
    )
    communities: tuple[Community, ...] = ()
    prefix_advertisements: tuple[PrefixAdvertisement, ...] = field(
        default=(), name="prefixAdvertisements"
    )
    listen_port: UInt16 | None = field(default=None, name="listenPort")
    node_mesh_password: BGPPassword | None = field(default=None, name="nodeMeshPassword")
    node_mesh_max_restart_time: Duration | None = field(default=None, name="nodeMeshMaxRestartTime")
    bind_mode: str | None = field(default=None, name="bindMode")
    ignored_interfaces: tuple[str, ...] = field(default=(), name="ignoredInterfaces")
    local_workload_peering_ipv4: str | None = field(default=None, name="localWorkloadPeeringIPV4")
    local_workload_peering_ipv6: str | None = field(default=None, name="localWorkloadPeeringIPV6")
    program_cluster_routes: str | None = field(default=None, name="programClusterRoutes")
    ipv4_normal_route_priority: int | None = field(default=None, name="ipv4NormalRoutePriority")
    ipv6_normal_route_priority: int | None = field(default=None, name="ipv6NormalRoutePriority")


class BGPConfiguration(Resource, frozen=True, kw_only=True, tag="BGPConfiguration"):
    """Cluster-wide (`default`) or per-node (`node.<name>`) BGP settings."""

    kind: ClassVar[str] = "BGPConfiguration"

    spec: BGPConfigurationSpec = field(default_factory=BGPConfigurationSpec)


class BGPPeerSpec(Model, frozen=True, kw_only=True):
    """Neither `node` nor `nodeSelector`: every node. `asNumber` None or 0 means unset."""

    node: str | None = None
    node_selector: str | None = field(default=None, name="nodeSelector")
    peer_ip: str | None = field(default=None, name="peerIP")
    as_number: ASNumber | None = field(default=None, name="asNumber")
    local_as_number: ASNumber | None = field(default=None, name="localASNumber")
    peer_selector: str | None = field(default=None, name="peerSelector")
    keep_original_next_hop: bool = field(default=False, name="keepOriginalNextHop")
    next_hop_mode: str | None = field(default=None, name="nextHopMode")
    password: BGPPassword | None = None
    source_address: str | None = field(default=None, name="sourceAddress")
    max_restart_time: Duration | None = field(default=None, name="maxRestartTime")
    keepalive_time: Duration | None = field(default=None, name="keepaliveTime")
    num_allowed_local_as_numbers: Int32 | None = field(
        default=None, name="numAllowedLocalASNumbers"
    )
    ttl_security: UInt8 | None = field(default=None, name="ttlSecurity")
    reachable_by: str | None = field(default=None, name="reachableBy")
    filters: tuple[str, ...] = ()
    local_workload_selector: str | None = field(default=None, name="localWorkloadSelector")
    reverse_peering: str | None = field(default=None, name="reversePeering")


class BGPPeer(Resource, frozen=True, kw_only=True, tag="BGPPeer"):
    """One peer, or a family of peers by selector."""

    kind: ClassVar[str] = "BGPPeer"

    spec: BGPPeerSpec = field(default_factory=BGPPeerSpec)
