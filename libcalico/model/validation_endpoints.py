"""Tables for workload endpoints, host endpoints and nodes.

Layer: libcalico.model, pure. User: validation. WorkloadEndpoint and Node have no CRD family.

Source: reference/datamodel.md 1.9, 4.3, 4.5; Calico LCG/validator/v3/validator.go,
LCG/apis/internalapi/{workloadendpoint,node}.go, api/.../v3/hostendpoint.go.
"""

from __future__ import annotations

from libcalico.model import scalars
from libcalico.model.endpoints import (
    IPNAT,
    EndpointPort,
    HostEndpointSpec,
    QoSControls,
    WorkloadEndpointPort,
    WorkloadEndpointSpec,
)
from libcalico.model.meta import Model
from libcalico.model.node import (
    NodeAddress,
    NodeBGPSpec,
    NodeSpec,
    NodeStatus,
    NodeWireguardSpec,
)
from libcalico.model.validation_qos import check_qos
from libcalico.model.validation_rules import Cel, Member, Report, StructRules, gt
from libcalico.model.validation_tags import (
    CIDR,
    CIDR_V4,
    CIDR_V6,
    CONTAINER_ID,
    INTERFACE,
    IP,
    IP_TYPE,
    IPV4,
    IPV6,
    MAC,
    NAME,
    NET,
    PORT_NAME,
    WIREGUARD_PUBLIC_KEY,
    address_of,
    network_of,
)


def _has_ports(protocol: int | str) -> bool:
    number = scalars.PROTOCOL_NUMBER_BY_NAME.get(str(protocol), protocol)
    return number in scalars.PROTOCOLS_WITH_PORTS


def _check_endpoint_port(port: EndpointPort, report: Report) -> None:
    if not _has_ports(port.protocol):
        reason = "EndpointPort protocol does not support ports."
        report.reason("EndpointPort.Protocol", port.protocol, reason)


def _check_workload_port(port: WorkloadEndpointPort, report: Report) -> None:
    if not _has_ports(port.protocol):
        reason = "WorkloadEndpointPort protocol does not support ports."
        report.reason("WorkloadEndpointPort.Protocol", port.protocol, reason)
    if not port.name and not port.host_port:
        reason = "WorkloadEndpointPort name must not be empty if no HostPort is specified"
        report.reason("WorkloadEndpointPort.Name", "", reason)


def _check_nat(nat: IPNAT, report: Report) -> None:
    internal, external = address_of(nat.internal_ip), address_of(nat.external_ip)
    for address in (internal, external):
        if address is None:
            # Both under the same name, with the external address as the value: as Calico has it.
            report.reason("InternalIP", nat.external_ip, "invalid IP address")
    if internal and external and internal.version != external.version:
        report.reason("ExternalIP", nat.external_ip, "mismatched IP versions")


def _check_workload(spec: WorkloadEndpointSpec, report: Report) -> None:
    for text in spec.ip_networks:
        network = network_of(text)
        if network is None:
            report.reason("IPNetworks", text, "invalid CIDR")
        elif network.num_addresses > 1:
            reason = "IP network contains multiple addresses"
            report.reason("IPNetworks", spec.ip_networks, reason)
    _check_gateway("IPv4Gateway", spec.ipv4_gateway or "", 4, report)
    _check_gateway("IPv6Gateway", spec.ipv6_gateway or "", 6, report)
    _check_nats(spec, report)


def _check_gateway(field: str, text: str, version: int, report: Report) -> None:
    if not text:
        return
    network = network_of(text)
    if network is None:
        report.reason(field, text, "invalid CIDR")
    elif network.version != version:
        report.reason(field, text, f"invalid IPv{version} gateway address specified")


def _check_nats(spec: WorkloadEndpointSpec, report: Report) -> None:
    """Every NAT must lead to an address of the endpoint."""
    owned = {network_of(text) for text in spec.ip_networks}
    for nat in spec.ip_nats:
        internal = network_of(nat.internal_ip)
        if internal is None:
            report.reason("IPNATs", nat.internal_ip, "invalid InternalIP CIDR")
        if internal not in owned or internal is None:
            shown = tuple(f"{{{n.internal_ip} {n.external_ip}}}" for n in spec.ip_nats)
            report.reason("IPNATs", shown, "NAT is not in the endpoint networks")
            return


def _check_node(spec: NodeSpec, report: Report) -> None:
    if spec.bgp is not None and spec.bgp == NodeBGPSpec():
        report.reason("BGP", None, "Spec.BGP should not be empty")


_NAME = Member(tags=(NAME,))
_V4 = Member(tags=(IPV4,))
_V6 = Member(tags=(IPV6,))
_MAC = Member(tags=(MAC,))
_KEY = Member(tags=(WIREGUARD_PUBLIC_KEY,))

TABLES: dict[type[Model], StructRules] = {
    EndpointPort: StructRules(
        {
            "name": Member(always=(PORT_NAME,)),
            "port": Member(always=(gt(0),), minimum=1, maximum=65535),
        },
        go=(_check_endpoint_port,),
    ),
    HostEndpointSpec: StructRules(
        {
            "node": _NAME,
            "interfaceName": Member(tags=(INTERFACE,)),
            "expectedIPs": Member(each=(IP,), unique=True),
            "profiles": Member(each=(NAME,), unique=True),
        },
        cel=(
            Cel(
                lambda spec: bool(spec.interface_name or spec.expected_ips),
                "at least one of interfaceName or expectedIPs must be specified",
            ),
            Cel(lambda spec: bool(spec.node), "node must be specified"),
        ),
    ),
    IPNAT: StructRules(
        {"internalIP": Member(tags=(IP,)), "externalIP": Member(tags=(IP,))}, go=(_check_nat,)
    ),
    WorkloadEndpointPort: StructRules(
        {
            "name": Member(tags=(PORT_NAME,)),
            "port": Member(always=(gt(0),)),
            "hostIP": Member(tags=(NET,)),
        },
        go=(_check_workload_port,),
    ),
    WorkloadEndpointSpec: StructRules(
        {
            "orchestrator": _NAME,
            "workload": _NAME,
            "node": _NAME,
            "containerID": Member(tags=(CONTAINER_ID,)),
            "pod": _NAME,
            "endpoint": _NAME,
            "serviceAccountName": _NAME,
            "ipNetworks": Member(each=(NET,)),
            "ipv4Gateway": _V4,
            "ipv6Gateway": _V6,
            "profiles": Member(each=(NAME,)),
            "interfaceName": Member(always=(INTERFACE,)),
            "mac": _MAC,
            "allowSpoofedSourcePrefixes": Member(each=(CIDR,)),
        },
        go=(_check_workload,),
    ),
    QoSControls: StructRules(go=(check_qos,)),
    NodeBGPSpec: StructRules(
        {
            "ipv4Address": Member(tags=(CIDR_V4,)),
            "ipv6Address": Member(tags=(CIDR_V6,)),
            "ipv4IPIPTunnelAddr": _V4,
            "routeReflectorClusterID": _V4,
        }
    ),
    NodeWireguardSpec: StructRules({"interfaceIPv4Address": _V4, "interfaceIPv6Address": _V6}),
    NodeAddress: StructRules({"address": Member(always=(CIDR,)), "type": Member(tags=(IP_TYPE,))}),
    NodeSpec: StructRules(
        {
            "ipv4VXLANTunnelAddr": _V4,
            "vxlanTunnelMACAddr": _MAC,
            "ipv6VXLANTunnelAddr": _V6,
            "vxlanTunnelMACAddrV6": _MAC,
        },
        go=(_check_node,),
    ),
    NodeStatus: StructRules({"wireguardPublicKey": _KEY, "wireguardPublicKeyV6": _KEY}),
}
