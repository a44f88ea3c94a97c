"""Local endpoints as the graph sees them: what of a workload or host endpoint concerns its node.

Layer: felix.calc, pure. Used by graph.py, and by policy_resolver.py, which turns local endpoints
into intents. What an endpoint contributes to the cluster is libcalico.compute.contributions.
"""

from __future__ import annotations

from dataclasses import dataclass

from felix.calc.qos import qos_controls
from felix.intent import NO_QOS, NatMapping, QosControls
from libcalico import net
from libcalico.compute.contributions import cidrs, unique
from libcalico.model import (
    HostEndpoint,
    WorkloadEndpoint,
)
from libcalico.model.keys import ResourceKey

ANY_INTERFACE = "*"


@dataclass(frozen=True, slots=True)
class LocalWorkload:
    """A workload of this node, without its policy."""

    key: ResourceKey
    interface: str
    mac: str
    nets: tuple[str, ...]
    profiles: tuple[str, ...]
    nats: tuple[NatMapping, ...]
    allowed_source_prefixes: tuple[str, ...]
    qos: QosControls = NO_QOS


@dataclass(frozen=True, slots=True)
class LocalHost:
    """A host endpoint of this node, without its policy. `interface` "" is found by address."""

    key: ResourceKey
    interface: str
    expected_ips: tuple[str, ...]
    profiles: tuple[str, ...]


LocalEndpoint = LocalWorkload | LocalHost


def local_workload(key: ResourceKey, endpoint: WorkloadEndpoint) -> LocalWorkload:
    spec = endpoint.spec
    nats = tuple(
        NatMapping(_address(item.internal_ip), _address(item.external_ip)) for item in spec.ip_nats
    )
    return LocalWorkload(
        key=key,
        interface=spec.interface_name or "",
        mac=(spec.mac or "").lower(),
        nets=cidrs(spec.ip_networks),
        profiles=unique(spec.profiles),
        nats=nats,
        allowed_source_prefixes=cidrs(spec.allow_spoofed_source_prefixes),
        qos=qos_controls(spec.qos_controls),
    )


def local_host(key: ResourceKey, endpoint: HostEndpoint) -> LocalHost:
    spec = endpoint.spec
    return LocalHost(
        key=key,
        interface=spec.interface_name or "",
        expected_ips=unique(_address(text) for text in spec.expected_ips),
        profiles=unique(spec.profiles),
    )


def _address(text: str) -> str:
    return str(net.parse_ip(text))
