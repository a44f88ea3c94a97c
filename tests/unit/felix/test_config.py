"""felix.config: every documented parameter, its default, its source order and its raw form."""

from __future__ import annotations

import ipaddress

import msgspec
import pytest

from felix.config import SCHEMA, FelixConfig, etcd_environment
from felix.config_datastore import param_name
from libcalico.errors import ConfigError
from libcalico.model import FelixConfigurationSpec
from libcalico.runtime.config import Layer, LiveConfig, Source, environment_layer
from libcalico.runtime.parse import PortRange, ProtoPort

MEMBERS = msgspec.structs.fields(FelixConfigurationSpec)
DEFAULTS = FelixConfig()


def resolve(**values: str) -> FelixConfig:
    return SCHEMA.resolve([Layer(Source.ENVIRONMENT, values)]).config


def refuse(**values: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(**values)
    return str(caught.value)


def test_every_member_of_the_datastore_object_has_one_parameter():
    names = [param_name(member.encode_name).lower() for member in MEMBERS]
    names.remove("nodeselector")
    assert len(names) == len(set(names)) == 187
    assert set(names) <= set(SCHEMA.by_name())


def test_every_default_is_what_its_own_parser_would_accept_back():
    """The type of a default is the type of a parsed value: no row mixes units or kinds."""
    for row in SCHEMA.params:
        zero = row.zero
        if row.default is None:
            continue
        assert zero is None or isinstance(zero, type(row.default)), row.name
    assert SCHEMA.resolve([]).config == DEFAULTS


# reference/datamodel.md 1.9: raw text of each documented default -> the same value parsed.
DOCUMENTED_DEFAULTS = {
    "DataplaneWatchdogTimeout": "90s",
    "Ipv6Support": "true",
    "RouteRefreshInterval": "90s",
    "InterfaceRefreshInterval": "90s",
    "IptablesRefreshInterval": "180s",
    "IptablesPostWriteCheckIntervalSecs": "5",
    "IptablesLockProbeIntervalMillis": "50",
    "IpsetsRefreshInterval": "90s",
    "MaxIpsetSize": "1048576",
    "IptablesBackend": "auto",
    "NetlinkTimeoutSecs": "10",
    "InterfacePrefix": "cali",
    "InterfaceExclude": "kube-ipvs0",
    "ChainInsertMode": "insert",
    "DefaultEndpointToHostAction": "DROP",
    "IptablesFilterAllowAction": "ACCEPT",
    "IptablesMangleAllowAction": "ACCEPT",
    "IptablesFilterDenyAction": "DROP",
    "LogPrefix": "calico-packet",
    "LogActionRateLimitBurst": "5",
    "LogSeverityFile": "INFO",
    "LogSeverityScreen": "INFO",
    "LogSeveritySys": "INFO",
    "IpInIpMtu": "0",
    "VXLANMTU": "0",
    "VXLANPort": "4789",
    "VXLANVNI": "4096",
    "AllowVXLANPacketsFromWorkloads": "false",
    "ReportingIntervalSecs": "30",
    "ReportingTTLSecs": "90",
    "EndpointReportingDelaySecs": "1",
    "IptablesMarkMask": "0xffff0000",
    "DisableConntrackInvalidCheck": "false",
    "HealthEnabled": "false",
    "HealthHost": "localhost",
    "HealthPort": "9099",
    "PrometheusMetricsEnabled": "false",
    "PrometheusMetricsPort": "9091",
    "PrometheusMetricsClientAuth": "NoClientCert",
    "KubeNodePortRanges": "30000:32767",
    "UsageReportingInitialDelaySecs": "300",
    "UsageReportingIntervalSecs": "86400",
    "NATOutgoingExclusions": "IPPoolsOnly",
    "DeviceRouteProtocol": "3",
    "RemoveExternalRoutes": "true",
    "ProgramClusterRoutes": "EnabledIPIPOnly",
    "IPForwarding": "Enabled",
    "DebugHost": "localhost",
    "NftablesMode": "Auto",
    "NftablesRefreshInterval": "180s",
    "NftablesFilterDenyAction": "DROP",
    "NftablesMarkMask": "0xffff0000",
    "NftablesFlowTableOffload": "Disabled",
    "RouteSource": "CalicoIPAM",
    "IPv4NormalRoutePriority": "1024",
    "IPv4ElevatedRoutePriority": "512",
    "IPv6NormalRoutePriority": "1024",
    "IPv6ElevatedRoutePriority": "512",
    "LiveMigrationRouteConvergenceTime": "30s",
    "ServiceLoopPrevention": "Drop",
    "WorkloadSourceSpoofing": "Disabled",
    "MTUIfacePattern": "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)",
    "FloatingIPs": "Disabled",
    "LocalSubnetL2Reachability": "Disabled",
    "LocalSubnetL2ReachabilityRefreshInterval": "120s",
    "RequireMTUFile": "false",
    "BPFConntrackTimeouts": (
        "CreationGracePeriod=10s,TCPSynSent=20s,TCPEstablished=1h,TCPFinsSeen=Auto,"
        "TCPResetSeen=40s,UDPTimeout=60s,GenericTimeout=10m,ICMPTimeout=5s"
    ),
    "BPFPSNATPorts": "20000:29999",
    "BPFDataIfacePattern": "^((en|wl|ww|sl|ib)[Popsx].*|(eth|wlan|wwan|bond).*)",
    "BPFForceTrackPacketsFromIfaces": "docker+",
    "BPFMapSizeConntrackScaling": "DoubleIfFull",
    "WireguardListeningPort": "51820",
    "WireguardInterfaceName": "wireguard.cali",
    "AWSSrcDstCheck": "DoNothing",
    "IstioDSCPMark": "23",
    "GoGCThreshold": "40",
    "XDPRefreshInterval": "90s",
}


@pytest.mark.parametrize("name", DOCUMENTED_DEFAULTS)
def test_documented_default(name):
    row = SCHEMA.by_name()[name.lower()]
    assert row.parse(DOCUMENTED_DEFAULTS[name]) == row.default


def test_the_failsafe_ports_keep_ssh_etcd_bgp_typha_and_dhcp_alive():
    inbound = {(item.protocol, item.port) for item in DEFAULTS.failsafe_inbound_host_ports}
    outbound = {(item.protocol, item.port) for item in DEFAULTS.failsafe_outbound_host_ports}
    shared = {("tcp", port) for port in (179, 2379, 2380, 5473, 6443, 6666, 6667)}
    assert inbound == shared | {("tcp", 22), ("udp", 68)}
    assert outbound == shared | {("udp", 53), ("udp", 67)}


def test_none_switches_failsafe_ports_off_entirely():
    assert resolve(FailsafeInboundHostPorts="none").failsafe_inbound_host_ports == ()


def test_failsafe_ports_with_nets_of_both_families():
    found = resolve(FailsafeInboundHostPorts="tcp:10.0.0.0/8:22, tcp:[fd00::]/8:22,udp:53")
    assert found.failsafe_inbound_host_ports == (
        ProtoPort("tcp", 22, ipaddress.ip_network("10.0.0.0/8")),
        ProtoPort("tcp", 22, ipaddress.ip_network("fd00::/8")),
        ProtoPort("udp", 53),
    )


def test_several_interface_prefixes():
    assert resolve(InterfacePrefix="cali,tap").interface_prefixes == ("cali", "tap")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("InterfacePrefix", "none"),
        ("InterfacePrefix", "cali/x"),
        ("InterfacePrefix", "abcdefghijklmno"),
        ("IptablesMarkMask", "0"),
        ("KubeNodePortRanges", "1,2,3,4,5,6,7,8"),
        ("RouteTableRange", "1-251"),
        ("RouteTableRange", "9-1"),
        ("RouteTableRanges", "0-5"),
        ("RouteTableRanges", "1-70000"),
        ("LogActionRateLimit", "0/second"),
        ("LogPrefix", "no;semicolons"),
        ("HealthTimeoutOverrides", "calc=-1s"),
        ("HealthTimeoutOverrides", "ca/lc=1s"),
        ("BPFConntrackTimeouts", "Nonsense=1s"),
        ("BPFForceTrackPacketsFromIfaces", "a b"),
        ("WireguardInterfaceName", "far-too-long-a-name"),
        ("DeviceRouteSourceAddress", "fd00::1"),
        ("DeviceRouteSourceAddressIPv6", "10.0.0.1"),
        ("IstioDSCPMark", "64"),
        ("NFTablesMode", "maybe"),
        ("Ipv6Support", "perhaps"),
        ("NoSuchParameter", "1"),
    ],
)
def test_a_bad_local_value_is_refused_by_name(name, value):
    assert name.lower() in refuse(**{name: value}).lower()


def test_forms_that_are_accepted():
    found = resolve(
        RouteTableRanges="1-250,1000-1999",
        RouteTableRange="1-250",
        NATPortRange="32768:65535",
        LogActionRateLimit="20/minute",
        HealthTimeoutOverrides="CalculationGraph=10s,other=0",
        FeatureDetectOverride="MASQFullyRandom=false,RestoreSupportsLock=",
        IstioDSCPMark="AF11",
        BPFConntrackTimeouts="tcpsynsent=5s",
        NATOutgoingAddress="192.0.2.1",
        PolicyConntrackSweep="enabled",
    )
    assert [(item.first, item.last) for item in found.route_table_ranges] == [
        (1, 250),
        (1000, 1999),
    ]
    assert found.route_table_range == found.route_table_ranges[0]
    assert found.nat_port_range == PortRange(32768, 65535)
    assert [(item.name, item.timeout_s) for item in found.health_timeout_overrides] == [
        ("CalculationGraph", 10.0),
        ("other", 0.0),
    ]
    assert found.feature_detect_override == (("MASQFullyRandom", False),)
    assert found.istio_dscp_mark == 10
    assert found.bpf_conntrack_timeouts == (("TCPSynSent", "5s"),)
    assert found.policy_conntrack_sweep == "Enabled"


def test_higher_sources_win_and_the_source_is_remembered():
    order = [
        Source.DATASTORE_GLOBAL,
        Source.DATASTORE_SELECTOR,
        Source.DATASTORE_NODE,
        Source.FILE,
        Source.ENVIRONMENT,
    ]
    live = LiveConfig(SCHEMA)
    assert live.config.vxlan_port == 4789
    for port, source in enumerate(order, start=1000):
        live.set_layer(Layer(source, {"VXLANPort": str(port)}))
        assert live.config.vxlan_port == port
        assert live.source_of("vxlan_port") is source
    live.set_layer(Layer(Source.ENVIRONMENT, {}))
    assert live.config.vxlan_port == 1003


def test_connection_parameters_cannot_come_from_the_datastore():
    layer = Layer(Source.DATASTORE_GLOBAL, {"EtcdEndpoints": "http://elsewhere:2379"})
    resolution = SCHEMA.resolve([layer])
    assert resolution.config.etcd_endpoints == ()
    assert "EtcdEndpoints" in str(resolution.problems[0])


def test_a_bad_datastore_value_keeps_the_last_good_one():
    live = LiveConfig(SCHEMA)
    live.set_layer(Layer(Source.DATASTORE_GLOBAL, {"VXLANPort": "4000"}))
    live.set_layer(Layer(Source.DATASTORE_GLOBAL, {"VXLANPort": "many"}))
    assert live.config.vxlan_port == 4000
    assert live.error_count == 1


def test_a_changed_dataplane_parameter_asks_for_a_new_process_but_a_log_level_does_not():
    changes = SCHEMA.changes(DEFAULTS, resolve(InterfacePrefix="tap", LogSeverityScreen="debug"))
    assert changes.restart == ("InterfacePrefix",)
    assert set(changes.changed) == {"interface_prefixes", "log_severity_screen"}


def test_every_parameter_can_be_given_in_the_environment_and_dumped():
    layer = environment_layer(SCHEMA, {"FELIX_INTERFACEPREFIX": "tap", "PATH": "/bin"})
    resolution = SCHEMA.resolve([layer])
    dump = SCHEMA.dump(resolution)
    assert dump["InterfacePrefix"] == {"value": "('tap',)", "source": "environment"}
    assert dump["VXLANVNI"] == {"value": "4096", "source": "default"}
    assert len(dump) == len(SCHEMA.params)


def test_own_etcd_parameters_override_the_common_variables():
    common = {"ETCD_ENDPOINTS": "http://a:2379", "ETCD_KEY_FILE": "/k", "NODENAME": "n"}
    own = resolve(EtcdAddr="b:4001", EtcdScheme="https", EtcdCertFile="/c")
    assert etcd_environment(own, common) == {
        "ETCD_ENDPOINTS": "https://b:4001",
        "ETCD_KEY_FILE": "/k",
        "ETCD_CERT_FILE": "/c",
        "NODENAME": "n",
    }
    assert etcd_environment(DEFAULTS, common) == common
    listed = resolve(EtcdEndpoints="http://x:1,http://y:2", EtcdAddr="z:3")
    assert etcd_environment(listed, {})["ETCD_ENDPOINTS"] == "http://x:1,http://y:2"
