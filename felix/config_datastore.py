"""What the datastore says about this node's configuration, as layers of raw parameters.

Layer: felix.config, pure (no I/O, no clock, no logging). The daemon feeds it the syncer's updates
and hands `layers()` to `LiveConfig.set_layers`.

Three layers (reference/datamodel.md 1.9), lowest first:
  global    FelixConfiguration `default`, and the facts of ClusterInformation `default`
  selector  of the objects with any other name and a nodeSelector that matches this Node's labels
            only the oldest by creationTimestamp; a tie goes to the smaller name
  node      FelixConfiguration `node.<name>`, and the tunnel addresses of our own Node object

An annotation `config.projectcalico.org/<Param>: value` overrides the spec member or adds a raw
parameter. Bad values are not judged here: `Schema.resolve` names them one by one.

Source: Calico libcalico-go/lib/backend/syncersv1/updateprocessors/felixconfigprocessor.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from felix.config import SCHEMA
from libcalico.errors import InvalidInput, SelectorSyntaxError
from libcalico.model import (
    BPFConntrackTimeouts,
    ClusterInformation,
    FelixConfiguration,
    FelixConfigurationSpec,
    HealthTimeoutOverride,
    Node,
    ProtoPort,
    RouteTableIDRange,
    RouteTableRange,
)
from libcalico.model.keys import ResourceKey
from libcalico.model.scalars import parse_duration_ns
from libcalico.runtime.config import Layer, Param, Source
from libcalico.selector import parse as parse_selector
from libcalico.syncer.api import Update

R = TypeVar("R")

ANNOTATION_PREFIX = "config.projectcalico.org/"
GLOBAL_NAME = "default"
NODE_PREFIX = "node."

# Members whose parameter is not simply their own name (compared without case).
PARAM_BY_MEMBER: Mapping[str, str] = {
    "iptablesPostWriteCheckInterval": "IptablesPostWriteCheckIntervalSecs",
    "iptablesLockProbeInterval": "IptablesLockProbeIntervalMillis",
    "netlinkTimeout": "NetlinkTimeoutSecs",
    "ipipEnabled": "IpInIpEnabled",
    "ipipMTU": "IpInIpMtu",
    "reportingInterval": "ReportingIntervalSecs",
    "reportingTTL": "ReportingTTLSecs",
    "endpointReportingDelay": "EndpointReportingDelaySecs",
    "usageReportingInitialDelay": "UsageReportingInitialDelaySecs",
    "usageReportingInterval": "UsageReportingIntervalSecs",
    "externalNodesList": "ExternalNodesCIDRList",
    "bpfConntrackMode": "BPFConntrackCleanupMode",
    "wireguardKeepAlive": "WireguardPersistentKeepAlive",
}
# Lists where an explicit empty one says something: no failsafe ports at all.
_EMPTY_SAYS_NONE = frozenset({"failsafeInboundHostPorts", "failsafeOutboundHostPorts"})
_TIMEOUT_BY_ATTRIBUTE = {
    "creation_grace_period": "CreationGracePeriod",
    "tcp_syn_sent": "TCPSynSent",
    "tcp_established": "TCPEstablished",
    "tcp_fins_seen": "TCPFinsSeen",
    "tcp_reset_seen": "TCPResetSeen",
    "udp_timeout": "UDPTimeout",
    "generic_timeout": "GenericTimeout",
    "icmp_timeout": "ICMPTimeout",
}
_PARAMS = SCHEMA.by_name()


def raw_parameters(config: FelixConfiguration) -> dict[str, str]:
    """One FelixConfiguration as raw parameters, annotations included."""
    values: dict[str, str] = {}
    for member in msgspec.structs.fields(FelixConfigurationSpec):
        if member.name == "node_selector":
            continue
        raw = _raw_member(member.encode_name, getattr(config.spec, member.name))
        if raw:
            values[param_name(member.encode_name)] = raw
    spelled = {name.lower(): name for name in values}
    for annotation, raw in config.metadata.annotations.items():
        if annotation.startswith(ANNOTATION_PREFIX):
            name = annotation.removeprefix(ANNOTATION_PREFIX)
            values[spelled.get(name.lower(), name)] = raw
    return values


def param_name(member: str) -> str:
    """The raw parameter that a FelixConfiguration member sets."""
    name = PARAM_BY_MEMBER.get(member, member)
    row = _PARAMS.get(name.lower())
    return row.name if row else name


class DatastoreSettings:
    """Collects what concerns one node's configuration. Anything else is ignored."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._config_by_name: dict[str, FelixConfiguration] = {}
        self._own_node: Node | None = None
        self._cluster: ClusterInformation | None = None
        self._bad_selectors: dict[str, str] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """Name of each FelixConfiguration whose nodeSelector does not parse -> why."""
        return self._bad_selectors

    def on_updates(self, updates: Sequence[Update]) -> bool:
        """True when one of them may change the layers."""
        return any([self._on_update(update) for update in updates])

    def layers(self) -> list[Layer]:
        """All three, also when empty, so that a vanished object takes its values away."""
        chosen = self._selected()
        return [
            self._layer(Source.DATASTORE_GLOBAL, GLOBAL_NAME, self._cluster_facts()),
            self._layer(Source.DATASTORE_SELECTOR, chosen, {}),
            self._layer(Source.DATASTORE_NODE, NODE_PREFIX + self._node, self._node_facts()),
        ]

    def _on_update(self, update: Update) -> bool:
        key = update.key
        if not isinstance(key, ResourceKey):
            return False
        if key.kind == FelixConfiguration.kind:
            return self._store(key.name, _typed(update, FelixConfiguration))
        if key.kind == Node.kind and key.name == self._node:
            before, self._own_node = self._own_node, _typed(update, Node)
            return before != self._own_node
        if key.kind == ClusterInformation.kind and key.name == GLOBAL_NAME:
            known, self._cluster = self._cluster, _typed(update, ClusterInformation)
            return known != self._cluster
        return False

    def _store(self, name: str, config: FelixConfiguration | None) -> bool:
        before = self._config_by_name.pop(name, None)
        if config is not None:
            self._config_by_name[name] = config
        return before != config

    def _layer(self, source: Source, name: str, facts: dict[str, str]) -> Layer:
        config = self._config_by_name.get(name)
        values = facts | (raw_parameters(config) if config is not None else {})
        return Layer(source, values, f"FelixConfiguration {name}" if name else source.label)

    def _selected(self) -> str:
        """The name of the one selector-scoped object that governs us, "" for none."""
        labels = self._own_node.metadata.labels if self._own_node is not None else {}
        self._bad_selectors = {}
        candidates = [
            (config.metadata.creation_timestamp or "", name)
            for name, config in self._config_by_name.items()
            if name != GLOBAL_NAME
            and not name.startswith(NODE_PREFIX)
            and self._selects(name, config.spec.node_selector or "", labels)
        ]
        return min(candidates)[1] if candidates else ""

    def _selects(self, name: str, selector: str, labels: Mapping[str, str]) -> bool:
        if not selector or self._own_node is None:
            return False
        try:
            return parse_selector(selector).evaluate(labels)
        except SelectorSyntaxError as err:
            self._bad_selectors[name] = str(err)
            return False

    def _cluster_facts(self) -> dict[str, str]:
        if self._cluster is None:
            return {}
        spec = self._cluster.spec
        return _present(
            ClusterGUID=spec.cluster_guid,
            ClusterType=spec.cluster_type,
            CalicoVersion=spec.calico_version,
            Variant=spec.variant,
        )

    def _node_facts(self) -> dict[str, str]:
        if self._own_node is None:
            return {}
        spec = self._own_node.spec
        return _present(
            IpInIpTunnelAddr=spec.bgp.ipv4_ipip_tunnel_addr if spec.bgp else None,
            IPv4VXLANTunnelAddr=spec.ipv4_vxlan_tunnel_addr,
            IPv6VXLANTunnelAddr=spec.ipv6_vxlan_tunnel_addr,
            VXLANTunnelMACAddr=spec.vxlan_tunnel_mac_addr,
            VXLANTunnelMACAddrV6=spec.vxlan_tunnel_mac_addr_v6,
        )


def _typed(update: Update, kind: type[R]) -> R | None:
    return update.value if isinstance(update.value, kind) else None


def _present(**facts: str | None) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}


def _raw_member(member: str, value: object) -> str:
    """The raw form of one member; "" when the object does not set it."""
    if value is None:
        return ""
    if value == () and member in _EMPTY_SAYS_NONE:
        return "none"
    row = _PARAMS.get(param_name(member).lower())
    if isinstance(value, str) and row is not None and row.attribute.endswith("_s"):
        return _raw_duration(value, row)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(_raw_item, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in sorted(value.items()))
    return _raw_item(value)


def _raw_duration(text: str, row: Param) -> str:
    """Decimal seconds, or milliseconds where the parameter's name says so."""
    if not text:
        return ""
    try:
        nanoseconds = parse_duration_ns(text)
    except InvalidInput:
        return text  # the schema refuses it, and names the parameter
    unit_ns = 1_000_000 if row.name.endswith("Millis") else 1_000_000_000
    return format(nanoseconds / unit_ns, ".12g")


def _raw_timeouts(timeouts: object) -> str:
    pairs = ((name, getattr(timeouts, item)) for item, name in _TIMEOUT_BY_ATTRIBUTE.items())
    return ",".join(f"{name}={value}" for name, value in pairs if value)


def _raw_proto_port(item: ProtoPort) -> str:
    net = item.net or ""
    if ":" in net:
        address, slash, length = net.partition("/")
        net = f"[{address}]{slash}{length}"
    return ":".join(filter(None, (item.protocol.lower(), net, str(item.port))))


_RAW_STRUCTS: Mapping[type, Callable[..., str]] = {
    ProtoPort: _raw_proto_port,
    HealthTimeoutOverride: lambda item: f"{item.name}={item.timeout}",
    RouteTableIDRange: lambda item: f"{item.min}-{item.max}",
    RouteTableRange: lambda item: f"{item.min}-{item.max}",
    BPFConntrackTimeouts: _raw_timeouts,
}


def _raw_item(item: object) -> str:
    write = _RAW_STRUCTS.get(type(item), str)
    return write(item)
