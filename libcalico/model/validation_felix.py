"""Tables for FelixConfiguration: allowed values, ranges and patterns of its 188 members.

Layer: libcalico.model, pure. User: validation. Felix itself reads the same parameters from other
sources as well; what *it* accepts is felix.config's table.

Source: reference/datamodel.md 1.4, 1.9 (the table), 4.5; Calico api/.../v3/felixconfig.go,
LCG/validator/v3/validator.go `validateFelixConfigSpec`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from libcalico.errors import ValidationError
from libcalico.model import scalars
from libcalico.model.felix_config import (
    BPFConntrackTimeouts,
    FelixConfiguration,
    FelixConfigurationSpec,
    HealthTimeoutOverride,
    ProtoPort,
    RouteTableIDRange,
    RouteTableRange,
)
from libcalico.model.meta import Model
from libcalico.model.validation_rules import (
    Cel,
    Member,
    Report,
    StructRules,
    gt,
    gte,
    lt,
    lte,
)
from libcalico.model.validation_tags import (
    BPF_LOG_FILTERS,
    CIDR,
    CIDRS,
    IFACE_FILTER,
    IFACE_FILTER_SLICE,
    INTERFACE,
    KEY_VALUE_LIST,
    PROMETHEUS_HOST,
    REGEXP,
    SELECTOR,
    address_of,
    is_dns_label,
    network_of,
)

MAX_NODE_PORT_RANGES = 7
MAX_ROUTE_TABLES = 0xFFFF
# 63, the length of a namespace, less "openstack-region-".
MAX_REGION_LENGTH = 46

_HEALTH_NAME = re.compile(r"[a-zA-Z0-9_ -]+")
# As Calico's CRD has it: the point is escaped once too often, so fractions never match.
_WHOLE_DURATION = r"^([0-9]+(\\.[0-9]+)?(ms|s|m|h))*$"
_DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))*$"
_CONNTRACK_TIMEOUT = r"^(([0-9]*(\.[0-9]*)?(ms|s|h|m|us)+)+|Auto)$"
# The same language without the choices that make a backtracking engine take for ever.
_CONNTRACK_TIMEOUT_REGEX = re.compile(
    r"(?:(?:[0-9]*+(?:\.[0-9]*+)?+(?:ms|us|s|h|m))++|Auto)\Z", re.ASCII
)

_ENUMS = {
    "iptablesBackend": "Legacy NFT Auto",
    "prometheusMetricsClientAuth": "RequireAndVerifyClientCert RequireAnyClientCert"
    " VerifyClientCertIfGiven NoClientCert",
    "natOutgoingExclusions": "IPPoolsOnly IPPoolsAndHostIPs",
    "programClusterRoutes": "Enabled Disabled EnabledIPIPOnly EnabledNoEncapOnly",
    "ipForwarding": "Enabled Disabled",
    "nftablesMode": "Disabled Enabled Auto",
    "nftablesFlowTableOffload": "All Disabled",
    "bpfOverlayHostSourceIP": "TunnelAddress HostAddress",
    "bpfJITHardening": "Auto Strict",
    "bpfConntrackLogLevel": "Off Debug",
    "bpfConntrackMode": "Auto Userspace BPFProgram",
    "bpfConnectTimeLoadBalancing": "TCP Enabled Disabled",
    "bpfHostNetworkedNATWithoutCTLB": "Enabled Disabled",
    "istioAmbientMode": "Enabled Disabled",
    "flowLogsPolicyEvaluationMode": "None Continuous",
    "bpfRedirectToPeer": "Enabled Disabled",
    "bpfAttachType": "TC TCX Netkit",
    "flowLogsLocalReporter": "Disabled Enabled",
    "bpfProfiling": "Enabled Disabled",
    "awsSrcDstCheck": "DoNothing Enable Disable",
    "floatingIPs": "Enabled Disabled",
    "localSubnetL2Reachability": "Disabled PodsAndLoadBalancers",
    "windowsManageFirewallRules": "Enabled Disabled",
}

# Words in any case: the CRD has patterns for these.
_ANY_CASE = {
    "chainInsertMode": "Insert|Append",
    "defaultEndpointToHostAction": "Drop|Accept|Return",
    "iptablesFilterAllowAction": "Accept|Return",
    "iptablesMangleAllowAction": "Accept|Return",
    "iptablesFilterDenyAction": "Drop|Reject",
    "logSeverityFile": "Trace|Debug|Info|Warning|Error|Fatal",
    "logSeverityScreen": "Trace|Debug|Info|Warning|Error|Fatal",
    "logSeveritySys": "Trace|Debug|Info|Warning|Error|Fatal",
    "nftablesFilterAllowAction": "Accept|Return",
    "nftablesMangleAllowAction": "Accept|Return",
    "nftablesFilterDenyAction": "Drop|Reject",
    "bpfLogLevel": "Off|Info|Debug",
    "bpfExternalServiceMode": "Tunnel|DSR",
    "bpfMapSizeConntrackScaling": "Disabled|DoubleIfFull",
    "bpfEnforceRPF": "Disabled|Strict|Loose",
    "routeSource": "WorkloadIPs|CalicoIPAM",
    "serviceLoopPrevention": "Drop|Reject|Disabled",
    "workloadSourceSpoofing": "Disabled|Any",
}

_PATTERNS = {
    "logPrefix": "^([a-zA-Z0-9%: /_-])*$",
    "logActionRateLimit": r"^[1-9]\d{0,3}/(?:second|minute|hour|day)$",
}

_WHOLE_DURATIONS = (
    "bpfIPFragTimeout",
    "bpfKubeProxyMinSyncPeriod",
    "debugSimulateCalcGraphHangAfter",
    "debugSimulateDataplaneApplyDelay",
    "debugSimulateDataplaneHangAfter",
    "endpointReportingDelay",
    "flowLogsFlushInterval",
    "interfaceRefreshInterval",
    "ipsetsRefreshInterval",
    "iptablesLockProbeInterval",
    "iptablesPostWriteCheckInterval",
    "iptablesRefreshInterval",
    "netlinkTimeout",
    "reportingInterval",
    "reportingTTL",
    "routeRefreshInterval",
    "usageReportingInitialDelay",
    "usageReportingInterval",
    "wireguardKeepAlive",
    "xdpRefreshInterval",
)

_PORT_RANGE = Member(tags=(gte(0), lte(65535)))
_ROUTE_PRIORITY = Member(tags=(gte(1), lte(2147483646)))
_WIREGUARD_PORT = Member(tags=(gt(0), lte(65535)))
_MAGLEV = Member(tags=(gt(0), lte(3000)))
_AT_LEAST_MINUS_ONE = Member(tags=(gte(-1),))
_REGEXP = Member(tags=(REGEXP,))

_OTHERS = {
    "nodeSelector": Member(tags=(SELECTOR,), max_length=1024),
    "featureDetectOverride": Member(
        tags=(KEY_VALUE_LIST,),
        pattern="^([a-zA-Z0-9-_]+=(true|false|),)*([a-zA-Z0-9-_]+=(true|false|))?$",
    ),
    "featureGates": Member(
        tags=(KEY_VALUE_LIST,),
        pattern="^([a-zA-Z0-9-_]+=([^=]+),)*([a-zA-Z0-9-_]+=([^=]+))?$",
    ),
    "logDebugFilenameRegex": _REGEXP,
    "prometheusMetricsHost": Member(tags=(PROMETHEUS_HOST,)),
    "debugPort": _PORT_RANGE,
    "iptablesNATOutgoingInterfaceFilter": Member(tags=(IFACE_FILTER,)),
    "nftablesFlowTableDataIfacePattern": _REGEXP,
    "bpfLogFilters": Member(tags=(BPF_LOG_FILTERS,)),
    "bpfDataIfacePattern": _REGEXP,
    "bpfL3IfacePattern": _REGEXP,
    "bpfDSROptoutCIDRs": Member(tags=(CIDRS,)),
    "bpfExtToServiceConnmark": Member(tags=(gte(0), lte(4294967295))),
    "bpfKubeProxyHealthzPort": _PORT_RANGE,
    "bpfMapSizeConntrackCleanupQueue": Member(tags=(gte(1),)),
    "bpfForceTrackPacketsFromIfaces": Member(tags=(IFACE_FILTER_SLICE,)),
    "bpfDisableGROForIfaces": _REGEXP,
    "bpfExcludeCIDRsFromNAT": Member(tags=(CIDRS,)),
    "ipv4NormalRoutePriority": _ROUTE_PRIORITY,
    "ipv4ElevatedRoutePriority": _ROUTE_PRIORITY,
    "ipv6NormalRoutePriority": _ROUTE_PRIORITY,
    "ipv6ElevatedRoutePriority": _ROUTE_PRIORITY,
    "wireguardListeningPort": _WIREGUARD_PORT,
    "wireguardListeningPortV6": _WIREGUARD_PORT,
    "wireguardRoutingRulePriority": Member(tags=(gt(0), lt(32766))),
    "wireguardInterfaceName": Member(tags=(INTERFACE,)),
    "wireguardInterfaceNameV6": Member(tags=(INTERFACE,)),
    "mtuIfacePattern": _REGEXP,
    "goGCThreshold": _AT_LEAST_MINUS_ONE,
    "goMemoryLimitMB": _AT_LEAST_MINUS_ONE,
    "goMaxProcs": _AT_LEAST_MINUS_ONE,
    "bpfMaglevMaxEndpointsPerService": _MAGLEV,
    "bpfMaglevMaxServices": _MAGLEV,
}


class _AtStart:
    """A compiled pattern that must match from the first character."""

    def __init__(self, regex: re.Pattern[str]) -> None:
        self._regex = regex

    def search(self, value: str) -> object:
        return self._regex.match(value)


class _AfterNormalising:
    """A duration pattern looks at the normal form: 1500ms is "1.5s" by the time it is stored."""

    def __init__(self, pattern: str) -> None:
        self._regex = re.compile(pattern[:-1] + r"\Z")

    def search(self, value: str) -> object:
        """Anything true when the value is acceptable."""
        try:
            return self._regex.search(scalars.normal_duration(value))
        except ValidationError:
            return True  # told elsewhere: it is no duration at all


def _spec_members() -> dict[str, Member]:
    members = {name: Member(enum=tuple(words.split())) for name, words in _ENUMS.items()}
    members |= {name: Member(pattern=f"^(?i)({words})?$") for name, words in _ANY_CASE.items()}
    members |= {name: Member(pattern=pattern) for name, pattern in _PATTERNS.items()}
    whole = Member(pattern=_WHOLE_DURATION, regex=_AfterNormalising(_WHOLE_DURATION))
    members |= dict.fromkeys(_WHOLE_DURATIONS, whole)
    members["liveMigrationRouteConvergenceTime"] = Member(
        pattern=_DURATION, regex=_AfterNormalising(_DURATION)
    )
    return members | _OTHERS


def _check_spec(spec: FelixConfigurationSpec, report: Report) -> None:
    _check_node_ports(spec, report)
    _check_external_nodes(spec, report)
    _check_region(spec.openstack_region or "", report)
    for field, text in (
        ("NATOutgoingAddress", spec.nat_outgoing_address),
        ("DeviceRouteSourceAddress", spec.device_route_source_address),
        ("DeviceRouteSourceAddressIPv6", spec.device_route_source_address_ipv6),
    ):
        if text and address_of(text) is None:
            report.reason(field, text, "is not a valid IP address")
    ranges = spec.route_table_ranges or ()
    if sum(max(0, table.max - table.min + 1) for table in ranges) > MAX_ROUTE_TABLES:
        shown = tuple(f"{{{table.min} {table.max}}}" for table in ranges)
        report.reason("RouteTableRanges", shown, "targets too many tables")


def _check_node_ports(spec: FelixConfigurationSpec, report: Report) -> None:
    ranges = spec.kube_node_port_ranges or ()
    if len(ranges) > MAX_NODE_PORT_RANGES:
        reason = f"node port ranges list is too long (max {MAX_NODE_PORT_RANGES})"
        report.reason("KubeNodePortRanges", ranges, reason)
    if any(isinstance(port, str) and not port.replace(":", "").isdigit() for port in ranges):
        reason = "node port ranges should not contain named ports"
        report.reason("KubeNodePortRanges", ranges, reason)


def _check_external_nodes(spec: FelixConfigurationSpec, report: Report) -> None:
    for text in spec.external_nodes_list or ():
        network = network_of(text)
        if network is None:
            report.reason("ExternalNodesCIDRList", text, "has invalid CIDR(s)")
        elif network.version != 4:
            report.reason("ExternalNodesCIDRList", text, "has invalid IPv6 CIDR")


def _check_region(region: str, report: Report) -> None:
    if len(region) > MAX_REGION_LENGTH:
        report.reason("OpenstackRegion", region, "is too long")
    elif region and not is_dns_label(region):
        report.reason("OpenstackRegion", region, "must be a valid DNS label")


def _check_failsafe(port: ProtoPort, report: Report) -> None:
    if port.protocol not in ("TCP", "UDP", "SCTP"):
        reason = "protocol must be 'TCP' or 'UDP' or 'SCTP'."
        report.reason("ProtoPort.Protocol", port.protocol, reason)


def _check_health_override(override: HealthTimeoutOverride, report: Report) -> None:
    if not _HEALTH_NAME.fullmatch(override.name):
        reason = f"name should match regex ^{_HEALTH_NAME.pattern}$"
        report.reason("HealthTimeoutOverride.Name", override.name, reason)
    if override.timeout.startswith("-"):
        reason = "Timeout should not be negative"
        report.reason("HealthTimeoutOverride.Timeout", override.timeout, reason)


def _address_of_version(attribute: str, version: int) -> Callable[[FelixConfigurationSpec], bool]:
    def holds(spec: FelixConfigurationSpec) -> bool:
        text = getattr(spec, attribute)
        address = address_of(text) if text else None
        return not text or (address is not None and address.version == version)

    return holds


def _may_select_nodes(config: FelixConfiguration) -> bool:
    name = config.metadata.name
    scoped = name != "default" and not name.startswith("node.")
    return scoped or not config.spec.node_selector


_SPEC_CEL = (
    Cel(
        lambda spec: spec.route_table_range is None or spec.route_table_ranges is None,
        "routeTableRange and routeTableRanges cannot both be set",
    ),
    Cel(
        _address_of_version("nat_outgoing_address", 4),
        "natOutgoingAddress must be a valid IPv4 address",
    ),
    Cel(
        _address_of_version("device_route_source_address", 4),
        "deviceRouteSourceAddress must be a valid IPv4 address",
    ),
    Cel(
        _address_of_version("device_route_source_address_ipv6", 6),
        "deviceRouteSourceAddressIPv6 must be a valid IPv6 address",
    ),
)

TABLES: dict[type[Model], StructRules] = {
    FelixConfigurationSpec: StructRules(_spec_members(), go=(_check_spec,), cel=_SPEC_CEL),
    FelixConfiguration: StructRules(
        cel=(
            Cel(
                _may_select_nodes,
                "nodeSelector must not be set on the 'default' or per-node ('node.*')"
                " FelixConfiguration",
            ),
        )
    ),
    ProtoPort: StructRules({"net": Member(tags=(CIDR,))}, go=(_check_failsafe,)),
    HealthTimeoutOverride: StructRules(go=(_check_health_override,)),
    RouteTableRange: StructRules(
        cel=(
            Cel(
                lambda table: 1 <= table.min <= table.max <= 250,
                "must be a range of route table indices within 1..250",
            ),
        )
    ),
    RouteTableIDRange: StructRules(
        cel=(
            Cel(lambda table: table.min >= 1, "min must be >= 1"),
            Cel(lambda table: table.min <= table.max, "min must not be greater than max"),
        )
    ),
    BPFConntrackTimeouts: StructRules(
        dict.fromkeys(
            (
                "creationGracePeriod",
                "tcpSynSent",
                "tcpEstablished",
                "tcpFinsSeen",
                "tcpResetSeen",
                "udpTimeout",
                "genericTimeout",
                "icmpTimeout",
            ),
            Member(pattern=_CONNTRACK_TIMEOUT, regex=_AtStart(_CONNTRACK_TIMEOUT_REGEX)),
        )
    ),
}
