"""Nodes and the status reports about them.

Layer: libcalico.model, pure. Used by calicoctl.node, felix, confd, ipam and the CLI.
Source: datamodel §1.9; Calico libcalico-go/lib/apis/internalapi/node.go, api/.../v3/nodestatus.go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from libcalico.model.meta import Model, Resource
from libcalico.model.scalars import ASNumber, UInt32

# Ours, unknown to Calico: a value of libcalico.model.speaker.Drain, set by `calicoctl node drain`.
DRAIN_ANNOTATION = "projectcalico.org/BGPDrain"


class NodeBGPSpec(Model, frozen=True, kw_only=True):
    """`ipv4Address` and `ipv6Address` keep their host bits (`192.0.2.11/24`)."""

    as_number: ASNumber | None = field(default=None, name="asNumber")
    ipv4_address: str | None = field(default=None, name="ipv4Address")
    ipv6_address: str | None = field(default=None, name="ipv6Address")
    ipv4_ipip_tunnel_addr: str | None = field(default=None, name="ipv4IPIPTunnelAddr")
    route_reflector_cluster_id: str | None = field(default=None, name="routeReflectorClusterID")


class OrchRef(Model, frozen=True, kw_only=True):
    """What an orchestrator calls this node."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("orchestrator",)

    node_name: str | None = field(default=None, name="nodeName")
    orchestrator: str = ""


class NodeWireguardSpec(Model, frozen=True, kw_only=True):
    """Addresses of the WireGuard interfaces."""

    interface_ipv4_address: str | None = field(default=None, name="interfaceIPv4Address")
    interface_ipv6_address: str | None = field(default=None, name="interfaceIPv6Address")


class NodeAddress(Model, frozen=True, kw_only=True):
    """One address; type CalicoNodeIP, InternalIP or ExternalIP."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("address",)

    address: str = ""
    type: str | None = None


class NodeInterface(Model, frozen=True, kw_only=True):
    """One interface of the host with its addresses."""

    name: str | None = None
    addresses: tuple[str, ...] = ()


class NodeSpec(Model, frozen=True, kw_only=True):
    """`bgp` absent: the node takes no part in BGP."""

    bgp: NodeBGPSpec | None = None
    ipv4_vxlan_tunnel_addr: str | None = field(default=None, name="ipv4VXLANTunnelAddr")
    vxlan_tunnel_mac_addr: str | None = field(default=None, name="vxlanTunnelMACAddr")
    ipv6_vxlan_tunnel_addr: str | None = field(default=None, name="ipv6VXLANTunnelAddr")
    vxlan_tunnel_mac_addr_v6: str | None = field(default=None, name="vxlanTunnelMACAddrV6")
    orch_refs: tuple[OrchRef, ...] = field(default=(), name="orchRefs")
    wireguard: NodeWireguardSpec | None = None
    addresses: tuple[NodeAddress, ...] = ()
    interfaces: tuple[NodeInterface, ...] = ()


class NodeStatus(Model, frozen=True, kw_only=True):
    """Written by the node itself."""

    wireguard_public_key: str | None = field(default=None, name="wireguardPublicKey")
    wireguard_public_key_v6: str | None = field(default=None, name="wireguardPublicKeyV6")
    pod_cidrs: tuple[str, ...] = field(default=(), name="podCIDRs")


class Node(Resource, frozen=True, kw_only=True, tag="Node"):
    """One host of the cluster."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("status",)
    kind: ClassVar[str] = "Node"

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


class CalicoNodeStatusSpec(Model, frozen=True, kw_only=True):
    """Which classes of status to report; a period of 0 reports once."""

    node: str | None = None
    classes: tuple[str, ...] = ()
    update_period_seconds: UInt32 | None = field(default=None, name="updatePeriodSeconds")


class BGPDaemonStatus(Model, frozen=True, kw_only=True):
    """One BGP daemon; state Ready or NotReady."""

    state: str | None = None
    version: str | None = None
    router_id: str | None = field(default=None, name="routerID")
    last_boot_time: str | None = field(default=None, name="lastBootTime")
    last_reconfiguration_time: str | None = field(default=None, name="lastReconfigurationTime")


class CalicoNodeAgentStatus(Model, frozen=True, kw_only=True):
    """The daemons by family."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "birdV4",
        "birdV6",
    )

    bird_v4: BGPDaemonStatus = field(default_factory=BGPDaemonStatus, name="birdV4")
    bird_v6: BGPDaemonStatus = field(default_factory=BGPDaemonStatus, name="birdV6")


class CalicoNodePeer(Model, frozen=True, kw_only=True):
    """One session."""

    peer_ip: str | None = field(default=None, name="peerIP")
    type: str | None = None
    state: str | None = None
    since: str | None = None


class CalicoNodeBGPStatus(Model, frozen=True, kw_only=True):
    """Session counts and sessions."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "numberEstablishedV4",
        "numberNotEstablishedV4",
        "numberEstablishedV6",
        "numberNotEstablishedV6",
    )

    number_established_v4: int = field(default=0, name="numberEstablishedV4")
    number_not_established_v4: int = field(default=0, name="numberNotEstablishedV4")
    number_established_v6: int = field(default=0, name="numberEstablishedV6")
    number_not_established_v6: int = field(default=0, name="numberNotEstablishedV6")
    peers_v4: tuple[CalicoNodePeer, ...] = field(default=(), name="peersV4")
    peers_v6: tuple[CalicoNodePeer, ...] = field(default=(), name="peersV6")


class CalicoNodeRouteLearnedFrom(Model, frozen=True, kw_only=True):
    """Where a route came from."""

    source_type: str | None = field(default=None, name="sourceType")
    peer_ip: str | None = field(default=None, name="peerIP")


class CalicoNodeRoute(Model, frozen=True, kw_only=True):
    """One route; type FIB or RIB."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("learnedFrom",)

    type: str | None = None
    destination: str | None = None
    gateway: str | None = None
    interface: str | None = None
    learned_from: CalicoNodeRouteLearnedFrom = field(
        default_factory=CalicoNodeRouteLearnedFrom, name="learnedFrom"
    )


class CalicoNodeBGPRouteStatus(Model, frozen=True, kw_only=True):
    """Routes by family."""

    routes_v4: tuple[CalicoNodeRoute, ...] = field(default=(), name="routesV4")
    routes_v6: tuple[CalicoNodeRoute, ...] = field(default=(), name="routesV6")


class CalicoNodeStatusStatus(Model, frozen=True, kw_only=True):
    """`lastUpdated` is null until the first report."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "lastUpdated",
        "agent",
        "bgp",
        "routes",
    )

    last_updated: str | None = field(default=None, name="lastUpdated")
    agent: CalicoNodeAgentStatus = field(default_factory=CalicoNodeAgentStatus)
    bgp: CalicoNodeBGPStatus = field(default_factory=CalicoNodeBGPStatus)
    routes: CalicoNodeBGPRouteStatus = field(default_factory=CalicoNodeBGPRouteStatus)


class CalicoNodeStatus(Resource, frozen=True, kw_only=True, tag="CalicoNodeStatus"):
    """A request for, and the report of, a node's state."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("status",)
    kind: ClassVar[str] = "CalicoNodeStatus"

    spec: CalicoNodeStatusSpec = field(default_factory=CalicoNodeStatusSpec)
    status: CalicoNodeStatusStatus = field(default_factory=CalicoNodeStatusStatus)
