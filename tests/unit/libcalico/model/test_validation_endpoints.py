"""libcalico.model.validation_endpoints: endpoints and nodes; fragment -> exact failures."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from libcalico.model.codec import decode
from libcalico.model.validation import problems


def failures(kind: str, spec: dict[str, Any], **more: Any) -> list[str]:
    metadata = {"name": "x"} | ({"namespace": "prod"} if kind == "WorkloadEndpoint" else {})
    document = {"kind": kind, "metadata": metadata, "spec": spec, **more}
    return [error.detail() for error in problems(decode(kind, json.dumps(document).encode(), 1))]


def tag(field: str, name: str) -> str:
    return f"(Reason: failed to validate Field: {field} because of Tag: {name} )"


def workload(**spec: Any) -> dict[str, Any]:
    return {"interfaceName": "cali0", "ipNetworks": ["10.0.0.1/32"], **spec}


WORKLOADS: list[tuple[dict[str, Any], list[str]]] = [
    (workload(), []),
    (workload(ipNetworks=["10.0.0.1", "fd00::1/128", "fd00::2"]), []),
    (workload(interfaceName=""), [f"InterfaceName = '' {tag('InterfaceName', 'interface')}"]),
    (
        workload(interfaceName="far-too-long-name"),
        [f"InterfaceName = 'far-too-long-name' {tag('InterfaceName', 'interface')}"],
    ),
    (
        workload(ipNetworks=["10.0.0.0/24"]),
        ["IPNetworks = '[10.0.0.0/24]' (IP network contains multiple addresses)"],
    ),
    (
        workload(ipNetworks=["ten"]),
        [
            f"IPNetworks[0] = 'ten' {tag('IPNetworks[0]', 'net')}",
            "IPNetworks = 'ten' (invalid CIDR)",
        ],
    ),
    (
        workload(ipv4Gateway="fd00::1"),
        [
            f"IPv4Gateway = 'fd00::1' {tag('IPv4Gateway', 'ipv4')}",
            "IPv4Gateway = 'fd00::1' (invalid IPv4 gateway address specified)",
        ],
    ),
    (
        workload(ipv6Gateway="10.0.0.1"),
        [
            f"IPv6Gateway = '10.0.0.1' {tag('IPv6Gateway', 'ipv6')}",
            "IPv6Gateway = '10.0.0.1' (invalid IPv6 gateway address specified)",
        ],
    ),
    (
        workload(ipv4Gateway="gw"),
        [
            f"IPv4Gateway = 'gw' {tag('IPv4Gateway', 'ipv4')}",
            "IPv4Gateway = 'gw' (invalid CIDR)",
        ],
    ),
    (workload(ipNATs=[{"internalIP": "10.0.0.1", "externalIP": "192.0.2.1"}]), []),
    (
        workload(ipNATs=[{"internalIP": "10.0.0.2", "externalIP": "192.0.2.1"}]),
        ["IPNATs = '[{10.0.0.2 192.0.2.1}]' (NAT is not in the endpoint networks)"],
    ),
    (
        workload(ipNATs=[{"internalIP": "10.0.0.1", "externalIP": "2001:db8::1"}]),
        ["ExternalIP = '2001:db8::1' (mismatched IP versions)"],
    ),
    (
        workload(ipNATs=[{"internalIP": "10.0.0.1", "externalIP": "out"}]),
        [
            f"ExternalIP = 'out' {tag('ExternalIP', 'ip')}",
            "InternalIP = 'out' (invalid IP address)",
        ],
    ),
    (
        workload(ipNATs=[{"internalIP": "in", "externalIP": "192.0.2.1"}]),
        [
            f"InternalIP = 'in' {tag('InternalIP', 'ip')}",
            "InternalIP = '192.0.2.1' (invalid IP address)",
            "IPNATs = 'in' (invalid InternalIP CIDR)",
            "IPNATs = '[{in 192.0.2.1}]' (NAT is not in the endpoint networks)",
        ],
    ),
    (workload(ports=[{"name": "http", "protocol": "TCP", "port": 80}]), []),
    (workload(ports=[{"name": "", "protocol": "TCP", "port": 80, "hostPort": 8080}]), []),
    (
        workload(ports=[{"name": "", "protocol": "TCP", "port": 80}]),
        [
            "WorkloadEndpointPort.Name = '' (WorkloadEndpointPort name must not be empty if no"
            " HostPort is specified)"
        ],
    ),
    (
        workload(ports=[{"name": "ping", "protocol": "ICMP", "port": 1}]),
        [
            "WorkloadEndpointPort.Protocol = 'ICMP' (WorkloadEndpointPort protocol does not"
            " support ports.)"
        ],
    ),
    (
        workload(ports=[{"name": "HTTP", "protocol": "TCP", "port": 0, "hostIP": "h"}]),
        [
            f"Name = 'HTTP' {tag('Name', 'portName')}",
            f"Port = '0' {tag('Port', 'gt')}",
            f"HostIP = 'h' {tag('HostIP', 'net')}",
        ],
    ),
    (workload(mac="ee:ee"), [f"MAC = 'ee:ee' {tag('MAC', 'mac')}"]),
    (
        workload(profiles=["kns.a", "Bad"]),
        [f"Profiles[1] = 'Bad' {tag('Profiles[1]', 'name')}"],
    ),
    (
        workload(containerID="-x", node="N", pod="p_"),
        [
            f"Node = 'N' {tag('Node', 'name')}",
            f"ContainerID = '-x' {tag('ContainerID', 'containerID')}",
            f"Pod = 'p_' {tag('Pod', 'name')}",
        ],
    ),
    (
        workload(allowSpoofedSourcePrefixes=["10.0.0.1/8", "all"]),
        ["AllowSpoofedSourcePrefixes[1] = 'all' " + tag("AllowSpoofedSourcePrefixes[1]", "cidr")],
    ),
    (
        workload(qosControls={"dscp": "EF1"}),
        ["spec.qosControls.dscp = 'EF1' (invalid DSCP value)"],
    ),
]


@pytest.mark.parametrize(("spec", "expected"), WORKLOADS)
def test_a_workload_endpoint(spec, expected):
    assert failures("WorkloadEndpoint", spec) == expected


HOSTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"node": "n", "interfaceName": "*"}, []),
    ({"node": "n", "expectedIPs": ["10.0.0.1", "fd00::1"]}, []),
    ({"node": "n"}, ["spec (at least one of interfaceName or expectedIPs must be specified)"]),
    ({"interfaceName": "eth0"}, ["spec (node must be specified)"]),
    (
        {"node": "n", "expectedIPs": ["10.0.0.1/32"]},
        [f"ExpectedIPs[0] = '10.0.0.1/32' {tag('ExpectedIPs[0]', 'ip')}"],
    ),
    (
        {"node": "n", "interfaceName": "*", "profiles": ["a", "a"]},
        ['spec.profiles[1] (Duplicate value: "a")'],
    ),
    (
        {"node": "n", "interfaceName": "eth0", "ports": [{"name": "x"}]},
        [
            f"Port = '0' {tag('Port', 'gt')}",
            "Protocol = '0' (protocol number invalid)",
            "EndpointPort.Protocol = '0' (EndpointPort protocol does not support ports.)",
            "spec.ports[0].port (spec.ports[0].port in body should be greater than or equal to 1)",
        ],
    ),
]


@pytest.mark.parametrize(("spec", "expected"), HOSTS)
def test_a_host_endpoint(spec, expected):
    got = failures("HostEndpoint", spec)
    assert sorted(got) == sorted(expected)


NODES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"bgp": {}}, ["BGP (Spec.BGP should not be empty)"]),
    (
        {"bgp": {"ipv4Address": "192.0.2.11/24", "ipv6Address": "2001:db8::1/64"}},
        [],
    ),
    (
        {"bgp": {"ipv4Address": "2001:db8::1/64", "ipv6Address": "x"}},
        [
            f"IPv4Address = '2001:db8::1/64' {tag('IPv4Address', 'cidrv4')}",
            f"IPv6Address = 'x' {tag('IPv6Address', 'cidrv6')}",
        ],
    ),
    (
        {"bgp": {"routeReflectorClusterID": "one"}},
        [f"RouteReflectorClusterID = 'one' {tag('RouteReflectorClusterID', 'ipv4')}"],
    ),
    (
        {"vxlanTunnelMACAddr": "x", "ipv6VXLANTunnelAddr": "10.0.0.1"},
        [
            f"VXLANTunnelMACAddr = 'x' {tag('VXLANTunnelMACAddr', 'mac')}",
            f"IPv6VXLANTunnelAddr = '10.0.0.1' {tag('IPv6VXLANTunnelAddr', 'ipv6')}",
        ],
    ),
    (
        {"wireguard": {"interfaceIPv4Address": "fd00::1"}},
        [f"InterfaceIPv4Address = 'fd00::1' {tag('InterfaceIPv4Address', 'ipv4')}"],
    ),
    (
        {"addresses": [{"address": "192.0.2.11/24", "type": "Other"}]},
        [f"Type = 'Other' {tag('Type', 'ipType')}"],
    ),
    ({"interfaces": [{"name": "Weird@if", "addresses": ["192.0.2.1"]}]}, []),
]


@pytest.mark.parametrize(("spec", "expected"), NODES)
def test_a_node(spec, expected):
    assert failures("Node", spec) == expected


def test_a_wireguard_key_is_32_bytes_of_base64():
    good = base64.b64encode(bytes(32)).decode()
    assert failures("Node", {}, status={"wireguardPublicKey": good}) == []
    assert failures("Node", {}, status={"wireguardPublicKeyV6": "AAAA"}) == [
        f"WireguardPublicKeyV6 = 'AAAA' {tag('WireguardPublicKeyV6', 'wireguardPublicKey')}"
    ]
