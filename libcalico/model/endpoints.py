"""Workload endpoints, host endpoints and live migrations.

Layer: libcalico.model, pure. Used by cni, felix, controllers and the CLI. A cluster has hundreds of
thousands of WorkloadEndpoints: keep them flat.
Source: datamodel §1.9; Calico libcalico-go/lib/apis/internalapi, api/.../v3/hostendpoint.go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from libcalico.model.meta import Model, Resource
from libcalico.model.scalars import DSCP, Protocol, UInt16


class EndpointPort(Model, frozen=True, kw_only=True):
    """A named port of a host endpoint."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "name",
        "protocol",
        "port",
    )

    name: str = ""
    protocol: Protocol = 0
    port: UInt16 = 0


class HostEndpointSpec(Model, frozen=True, kw_only=True):
    """`interfaceName` may be `*`; else it or `expectedIPs` finds the interface."""

    node: str | None = None
    interface_name: str | None = field(default=None, name="interfaceName")
    expected_ips: tuple[str, ...] = field(default=(), name="expectedIPs")
    profiles: tuple[str, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class HostEndpoint(Resource, frozen=True, kw_only=True, tag="HostEndpoint"):
    """An interface of a host that policy applies to."""

    kind: ClassVar[str] = "HostEndpoint"

    spec: HostEndpointSpec = field(default_factory=HostEndpointSpec)


class IPNAT(Model, frozen=True, kw_only=True):
    """`externalIP` is translated to `internalIP`, one of the endpoint's own."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "internalIP",
        "externalIP",
    )

    internal_ip: str = field(default="", name="internalIP")
    external_ip: str = field(default="", name="externalIP")


class WorkloadEndpointPort(Model, frozen=True, kw_only=True):
    """A named port, and the host port that leads to it."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "name",
        "protocol",
        "port",
        "hostPort",
        "hostIP",
    )

    name: str = ""
    protocol: Protocol = 0
    port: UInt16 = 0
    host_port: UInt16 = field(default=0, name="hostPort")
    host_ip: str = field(default="", name="hostIP")


class QoSControls(Model, frozen=True, kw_only=True):
    """Limits of one workload: bandwidth and peakrate in bits a second, burst in bits, minburst in
    bytes, packetRate in packets a second; 0 is none (ranges: validation_qos)."""

    ingress_bandwidth: int | None = field(default=None, name="ingressBandwidth")
    egress_bandwidth: int | None = field(default=None, name="egressBandwidth")
    ingress_burst: int | None = field(default=None, name="ingressBurst")
    egress_burst: int | None = field(default=None, name="egressBurst")
    ingress_peakrate: int | None = field(default=None, name="ingressPeakrate")
    egress_peakrate: int | None = field(default=None, name="egressPeakrate")
    ingress_minburst: int | None = field(default=None, name="ingressMinburst")
    egress_minburst: int | None = field(default=None, name="egressMinburst")
    ingress_packet_rate: int | None = field(default=None, name="ingressPacketRate")
    egress_packet_rate: int | None = field(default=None, name="egressPacketRate")
    ingress_packet_burst: int | None = field(default=None, name="ingressPacketBurst")
    egress_packet_burst: int | None = field(default=None, name="egressPacketBurst")
    ingress_max_connections: int | None = field(default=None, name="ingressMaxConnections")
    egress_max_connections: int | None = field(default=None, name="egressMaxConnections")
    dscp: DSCP | None = None


class WorkloadEndpointSpec(Model, frozen=True, kw_only=True):
    """Which of the identifiers are set depends on the orchestrator (names.py)."""

    orchestrator: str | None = None
    workload: str | None = None
    node: str | None = None
    container_id: str | None = field(default=None, name="containerID")
    pod: str | None = None
    endpoint: str | None = None
    service_account_name: str | None = field(default=None, name="serviceAccountName")
    ip_networks: tuple[str, ...] = field(default=(), name="ipNetworks")
    ip_nats: tuple[IPNAT, ...] = field(default=(), name="ipNATs")
    ipv4_gateway: str | None = field(default=None, name="ipv4Gateway")
    ipv6_gateway: str | None = field(default=None, name="ipv6Gateway")
    profiles: tuple[str, ...] = ()
    interface_name: str | None = field(default=None, name="interfaceName")
    mac: str | None = None
    ports: tuple[WorkloadEndpointPort, ...] = ()
    allow_spoofed_source_prefixes: tuple[str, ...] = field(
        default=(), name="allowSpoofedSourcePrefixes"
    )
    qos_controls: QoSControls | None = field(default=None, name="qosControls")


class WorkloadEndpoint(Resource, frozen=True, kw_only=True, tag="WorkloadEndpoint"):
    """One interface of one workload."""

    kind: ClassVar[str] = "WorkloadEndpoint"

    spec: WorkloadEndpointSpec = field(default_factory=WorkloadEndpointSpec)


class LiveMigrationWorkload(Model, frozen=True, kw_only=True):
    """A workload on a host."""

    hostname: str | None = None
    orchestrator_id: str | None = field(default=None, name="orchestratorID")
    workload_id: str | None = field(default=None, name="workloadID")


class LiveMigrationWorkloadEndpoint(Model, frozen=True, kw_only=True):
    """One endpoint of a workload on a host."""

    hostname: str | None = None
    orchestrator_id: str | None = field(default=None, name="orchestratorID")
    workload_id: str | None = field(default=None, name="workloadID")
    endpoint_id: str | None = field(default=None, name="endpointID")


class LiveMigrationSource(Model, frozen=True, kw_only=True):
    """One of the two."""

    workload: LiveMigrationWorkload | None = None
    workload_endpoint: LiveMigrationWorkloadEndpoint | None = field(
        default=None, name="workloadEndpoint"
    )


class LiveMigrationTarget(Model, frozen=True, kw_only=True):
    """One of the two."""

    selector: str | None = None
    workload_endpoint: LiveMigrationWorkloadEndpoint | None = field(
        default=None, name="workloadEndpoint"
    )


class LiveMigrationSpec(Model, frozen=True, kw_only=True):
    """From where to where."""

    source: LiveMigrationSource | None = None
    target: LiveMigrationTarget | None = None


class LiveMigration(Resource, frozen=True, kw_only=True, tag="LiveMigration"):
    """A workload on the move (OpenStack, KubeVirt)."""

    kind: ClassVar[str] = "LiveMigration"

    spec: LiveMigrationSpec = field(default_factory=LiveMigrationSpec)
