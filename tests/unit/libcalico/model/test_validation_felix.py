"""libcalico.model.validation_felix: the FelixConfiguration table; fragment -> exact failures."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from libcalico.model.codec import decode
from libcalico.model.validation import problems
from libcalico.model.validation_felix import _ANY_CASE, _ENUMS, _WHOLE_DURATIONS

WHOLE = r"^([0-9]+(\\.[0-9]+)?(ms|s|m|h))*$"


def failures(spec: dict[str, Any], name: str = "default") -> list[str]:
    document = {"kind": "FelixConfiguration", "metadata": {"name": name}, "spec": spec}
    resource = decode("FelixConfiguration", json.dumps(document).encode(), 1)
    return [error.detail() for error in problems(resource)]


def tag(field: str, name: str) -> str:
    return f"(Reason: failed to validate Field: {field} because of Tag: {name} )"


def mismatch(member: str, pattern: str) -> str:
    return f"spec.{member} (spec.{member} in body should match '{pattern}')"


@pytest.mark.parametrize("member", _WHOLE_DURATIONS)
def test_twenty_durations_take_whole_units_only(member):
    for good in ("0s", "500ms", "90s", "1m30s", "1h", "2000ms"):
        assert failures({member: good}) == [], good
    for bad in ("1.5s", "1500ms", "1us", "-1s"):
        assert failures({member: bad}) == [mismatch(member, WHOLE)], bad


def test_there_are_twenty_of_them():
    assert len(_WHOLE_DURATIONS) == 20


def test_other_durations_may_have_fractions():
    assert failures({"liveMigrationRouteConvergenceTime": "1.5s"}) == []
    assert failures({"liveMigrationRouteConvergenceTime": "1us"}) == [
        mismatch("liveMigrationRouteConvergenceTime", r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))*$")
    ]
    assert failures({"dataplaneWatchdogTimeout": "1.5s", "nftablesRefreshInterval": "1us"}) == []


@pytest.mark.parametrize("member", _ENUMS)
def test_an_enum_lists_what_it_takes(member):
    words = _ENUMS[member].split()
    for word in words:
        assert failures({member: word}) == []
    listed = ", ".join(f'"{word}"' for word in words)
    assert failures({member: words[0].lower() + "x"}) == [
        f"spec.{member} (supported values: {listed})"
    ]


@pytest.mark.parametrize("member", _ANY_CASE)
def test_some_words_are_taken_in_any_case(member):
    words = _ANY_CASE[member].split("|")
    for word in words:
        assert failures({member: word.upper()}) == []
        assert failures({member: word.lower()}) == []
    assert failures({member: words[0] + "x"}) == [mismatch(member, f"^(?i)({_ANY_CASE[member]})?$")]


SPECS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"logPrefix": "drop %n"}, []),
    ({"logPrefix": "drop;"}, [mismatch("logPrefix", "^([a-zA-Z0-9%: /_-])*$")]),
    ({"logPrefix": "drop\n"}, [mismatch("logPrefix", "^([a-zA-Z0-9%: /_-])*$")]),
    ({"logActionRateLimit": "10/second"}, []),
    (
        {"logActionRateLimit": "0/second"},
        [mismatch("logActionRateLimit", r"^[1-9]\d{0,3}/(?:second|minute|hour|day)$")],
    ),
    ({"featureDetectOverride": "A=true,B=false,C="}, []),
    (
        {"featureDetectOverride": "A=maybe"},
        [
            mismatch(
                "featureDetectOverride",
                "^([a-zA-Z0-9-_]+=(true|false|),)*([a-zA-Z0-9-_]+=(true|false|))?$",
            )
        ],
    ),
    (
        {"featureDetectOverride": "novalue"},
        [
            f"FeatureDetectOverride = 'novalue' {tag('FeatureDetectOverride', 'keyValueList')}",
            mismatch(
                "featureDetectOverride",
                "^([a-zA-Z0-9-_]+=(true|false|),)*([a-zA-Z0-9-_]+=(true|false|))?$",
            ),
        ],
    ),
    ({"featureGates": "A=1,B=two"}, []),
    ({"debugPort": 65536}, [f"DebugPort = '65536' {tag('DebugPort', 'lte')}"]),
    ({"debugPort": -1}, [f"DebugPort = '-1' {tag('DebugPort', 'gte')}"]),
    (
        {"wireguardListeningPort": 0},
        [f"WireguardListeningPort = '0' {tag('WireguardListeningPort', 'gt')}"],
    ),
    (
        {"wireguardRoutingRulePriority": 32766},
        [f"WireguardRoutingRulePriority = '32766' {tag('WireguardRoutingRulePriority', 'lt')}"],
    ),
    (
        {"ipv4NormalRoutePriority": 2147483647},
        [f"IPv4NormalRoutePriority = '2147483647' {tag('IPv4NormalRoutePriority', 'lte')}"],
    ),
    (
        {"bpfMapSizeConntrackCleanupQueue": 0},
        [f"BPFMapSizeConntrackCleanupQueue = '0' {tag('BPFMapSizeConntrackCleanupQueue', 'gte')}"],
    ),
    ({"goGCThreshold": -1}, []),
    ({"goGCThreshold": -2}, [f"GoGCThreshold = '-2' {tag('GoGCThreshold', 'gte')}"]),
    (
        {"bpfMaglevMaxServices": 3001},
        [f"BPFMaglevMaxServices = '3001' {tag('BPFMaglevMaxServices', 'lte')}"],
    ),
    ({"mtuIfacePattern": "^(eth|en[ops].*)"}, []),
    (
        {"mtuIfacePattern": "(?=eth)"},
        [f"MTUIfacePattern = '(?=eth)' {tag('MTUIfacePattern', 'regexp')}"],
    ),
    (
        {"bpfDataIfacePattern": "("},
        [f"BPFDataIfacePattern = '(' {tag('BPFDataIfacePattern', 'regexp')}"],
    ),
    (
        {"prometheusMetricsHost": "a b"},
        [f"PrometheusMetricsHost = 'a b' {tag('PrometheusMetricsHost', 'prometheusHost')}"],
    ),
    (
        {"iptablesNATOutgoingInterfaceFilter": "eth 0"},
        [
            "IptablesNATOutgoingInterfaceFilter = 'eth 0' "
            + tag("IptablesNATOutgoingInterfaceFilter", "ifaceFilter")
        ],
    ),
    (
        {"bpfForceTrackPacketsFromIfaces": ["docker+", "a/b"]},
        [
            "BPFForceTrackPacketsFromIfaces = '[docker+ a/b]' "
            + tag("BPFForceTrackPacketsFromIfaces", "ifaceFilterSlice")
        ],
    ),
    (
        {"bpfExcludeCIDRsFromNAT": ["10.0.0.1/8", "x"]},
        [
            "BPFExcludeCIDRsFromNAT = '[10.0.0.1/8 x]' " + tag("BPFExcludeCIDRsFromNAT", "cidrs"),
        ],
    ),
    (
        {"bpfLogFilters": {"eth 0": "x"}},
        [f"BPFLogFilters = 'map[eth 0:x]' {tag('BPFLogFilters', 'bpfLogFilters')}"],
    ),
    (
        {"wireguardInterfaceName": "wireguard/calico"},
        [
            "WireguardInterfaceName = 'wireguard/calico' "
            + tag("WireguardInterfaceName", "interface")
        ],
    ),
    (
        {"natOutgoingAddress": "fd00::1"},
        ["spec (natOutgoingAddress must be a valid IPv4 address)"],
    ),
    (
        {"deviceRouteSourceAddress": "here"},
        [
            "DeviceRouteSourceAddress = 'here' (is not a valid IP address)",
            "spec (deviceRouteSourceAddress must be a valid IPv4 address)",
        ],
    ),
    (
        {"deviceRouteSourceAddressIPv6": "10.0.0.1"},
        ["spec (deviceRouteSourceAddressIPv6 must be a valid IPv6 address)"],
    ),
    (
        {"externalNodesList": ["10.0.0.0/8", "x", "fd00::/8"]},
        [
            "ExternalNodesCIDRList = 'x' (has invalid CIDR(s))",
            "ExternalNodesCIDRList = 'fd00::/8' (has invalid IPv6 CIDR)",
        ],
    ),
    ({"kubeNodePortRanges": ["30000:32767", 80]}, []),
    (
        {"kubeNodePortRanges": [1, 2, 3, 4, 5, 6, 7, 8]},
        ["KubeNodePortRanges = '[1 2 3 4 5 6 7 8]' (node port ranges list is too long (max 7))"],
    ),
    (
        {"kubeNodePortRanges": ["http"]},
        ["KubeNodePortRanges = '[http]' (node port ranges should not contain named ports)"],
    ),
    ({"openstackRegion": "r" * 46}, []),
    ({"openstackRegion": "r" * 47}, [f"OpenstackRegion = '{'r' * 47}' (is too long)"]),
    ({"openstackRegion": "R1"}, ["OpenstackRegion = 'R1' (must be a valid DNS label)"]),
    ({"failsafeInboundHostPorts": []}, []),
    ({"failsafeInboundHostPorts": [{"protocol": "SCTP", "port": 1, "net": "fd00::/8"}]}, []),
    (
        {"failsafeOutboundHostPorts": [{"protocol": "tcp", "port": 1, "net": "x"}]},
        [
            f"Net = 'x' {tag('Net', 'cidr')}",
            "ProtoPort.Protocol = 'tcp' (protocol must be 'TCP' or 'UDP' or 'SCTP'.)",
        ],
    ),
    (
        {"healthTimeoutOverrides": [{"name": "calc/graph", "timeout": "-1s"}]},
        [
            "HealthTimeoutOverride.Name = 'calc/graph' (name should match regex ^[a-zA-Z0-9_ -]+$)",
            "HealthTimeoutOverride.Timeout = '-1s' (Timeout should not be negative)",
        ],
    ),
    (
        {"routeTableRange": {"min": 1, "max": 9}, "routeTableRanges": [{"min": 1, "max": 9}]},
        ["spec (routeTableRange and routeTableRanges cannot both be set)"],
    ),
    (
        {"routeTableRange": {"min": 1, "max": 251}},
        ["spec.routeTableRange (must be a range of route table indices within 1..250)"],
    ),
    (
        {"routeTableRanges": [{"min": 0, "max": 1}, {"min": 9, "max": 8}]},
        [
            "spec.routeTableRanges[0] (min must be >= 1)",
            "spec.routeTableRanges[1] (min must not be greater than max)",
        ],
    ),
    ({"routeTableRanges": [{"min": 1, "max": 65535}]}, []),
    (
        {"routeTableRanges": [{"min": 1, "max": 65536}]},
        ["RouteTableRanges = '[{1 65536}]' (targets too many tables)"],
    ),
    ({"bpfConntrackTimeouts": {"tcpFinsSeen": "Auto", "udpTimeout": "1m30s"}}, []),
    (
        {"bpfConntrackTimeouts": {"udpTimeout": "auto"}},
        [
            "spec.bpfConntrackTimeouts.udpTimeout (spec.bpfConntrackTimeouts.udpTimeout in body"
            r" should match '^(([0-9]*(\.[0-9]*)?(ms|s|h|m|us)+)+|Auto)$')"
        ],
    ),
    (
        {"reportingInterval": "often"},
        ["spec.reportingInterval = 'often' (time: invalid duration \"often\")"],
    ),
    ({"natPortRange": "100:50"}, ["Port = '50' (port range invalid)"]),
]


@pytest.mark.parametrize(("spec", "expected"), SPECS)
def test_a_spec(spec, expected):
    assert failures(spec) == expected


@pytest.mark.parametrize("name", ["default", "node.worker-1"])
def test_only_other_objects_select_nodes(name):
    expected = (
        "FelixConfiguration (nodeSelector must not be set on the 'default' or per-node ('node.*')"
        " FelixConfiguration)"
    )
    assert failures({"nodeSelector": "has(rack)"}, name=name) == [expected]
    assert failures({"nodeSelector": "has(rack)"}, name="racks") == []


def test_a_hostile_timeout_is_refused_at_once():
    started = time.process_time()
    assert len(failures({"bpfConntrackTimeouts": {"udpTimeout": "ms" * 5000 + "!"}})) == 1
    assert time.process_time() - started < 1
