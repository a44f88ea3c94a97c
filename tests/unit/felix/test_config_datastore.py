"""felix.config_datastore: FelixConfiguration, Node and ClusterInformation as raw layers."""

from __future__ import annotations

from felix.config import SCHEMA
from felix.config_datastore import DatastoreSettings, raw_parameters
from libcalico.model import (
    BPFConntrackTimeouts,
    ClusterInformation,
    ClusterInformationSpec,
    FelixConfiguration,
    FelixConfigurationSpec,
    HealthTimeoutOverride,
    Node,
    NodeBGPSpec,
    NodeSpec,
    ObjectMeta,
    ProtoPort,
    RouteTableIDRange,
)
from libcalico.model.keys import BlockKey, ResourceKey
from libcalico.runtime.config import LiveConfig, Source
from libcalico.syncer.api import Update


def config(name: str = "default", *, created: str | None = None, annotations=None, **spec):
    meta = ObjectMeta(name=name, creation_timestamp=created, annotations=annotations or {})
    return FelixConfiguration(metadata=meta, spec=FelixConfigurationSpec(**spec))


def node(name: str = "here", labels=None, **spec):
    return Node(metadata=ObjectMeta(name=name, labels=labels or {}), spec=NodeSpec(**spec))


def update(value) -> Update:
    return Update(ResourceKey(type(value).kind, value.metadata.name), value, 1)


def gone(kind: str, name: str) -> Update:
    return Update(ResourceKey(kind, name), None, 2)


def settings(*objects) -> DatastoreSettings:
    found = DatastoreSettings("here")
    found.on_updates([update(item) for item in objects])
    return found


def layer_values(found: DatastoreSettings) -> dict[Source, dict[str, str]]:
    return {layer.source: dict(layer.values) for layer in found.layers()}


def test_durations_become_decimal_seconds_or_milliseconds():
    raw = raw_parameters(
        config(
            route_refresh_interval="1m30s",
            iptables_lock_probe_interval="50ms",
            reporting_interval="0s",
            usage_reporting_interval="24h",
            wireguard_keep_alive="500ms",
        )
    )
    assert raw == {
        "RouteRefreshInterval": "90",
        "IptablesLockProbeIntervalMillis": "50",
        "ReportingIntervalSecs": "0",
        "UsageReportingIntervalSecs": "86400",
        "WireguardPersistentKeepAlive": "0.5",
    }


def test_raw_forms_of_lists_and_structures():
    raw = raw_parameters(
        config(
            ipv6_support=False,
            ipip_enabled=True,
            iptables_mark_mask=0xFF000000,
            failsafe_inbound_host_ports=(
                ProtoPort(protocol="TCP", port=22, net="10.0.0.0/8"),
                ProtoPort(protocol="UDP", port=68),
                ProtoPort(protocol="TCP", port=22, net="fd00::/8"),
            ),
            kube_node_port_ranges=("30000:32767", 5),
            external_nodes_list=("192.0.2.1", "fd00::/8"),
            route_table_ranges=(
                RouteTableIDRange(min=1, max=10),
                RouteTableIDRange(min=20, max=30),
            ),
            health_timeout_overrides=(HealthTimeoutOverride(name="calc", timeout="10s"),),
            bpf_log_filters={"eth1": "udp", "eth0": "tcp"},
            bpf_conntrack_timeouts=BPFConntrackTimeouts(
                tcp_syn_sent="1s", creation_grace_period="5s"
            ),
        )
    )
    assert raw == {
        "Ipv6Support": "false",
        "IpInIpEnabled": "true",
        "IptablesMarkMask": "4278190080",
        "FailsafeInboundHostPorts": "tcp:10.0.0.0/8:22,udp:68,tcp:[fd00::]/8:22",
        "KubeNodePortRanges": "30000:32767,5",
        "ExternalNodesCIDRList": "192.0.2.1,fd00::/8",
        "RouteTableRanges": "1-10,20-30",
        "HealthTimeoutOverrides": "calc=10s",
        "BPFLogFilters": "eth0=tcp,eth1=udp",
        "BPFConntrackTimeouts": "CreationGracePeriod=5s,TCPSynSent=1s",
    }
    resolution = SCHEMA.resolve(settings(config(**{})).layers())
    assert resolution.problems == ()


def test_an_explicit_empty_failsafe_list_means_none_but_another_empty_list_says_nothing():
    raw = raw_parameters(config(failsafe_outbound_host_ports=(), external_nodes_list=()))
    assert raw == {"FailsafeOutboundHostPorts": "none"}


def test_an_annotation_overrides_a_member_and_can_add_what_no_member_sets():
    found = config(
        vxlan_port=4000,
        annotations={
            "config.projectcalico.org/VxlanPort": "5000",
            "config.projectcalico.org/PolicyConntrackSweep": "Enabled",
            "unrelated": "x",
        },
    )
    assert raw_parameters(found) == {"VXLANPort": "5000", "PolicyConntrackSweep": "Enabled"}


def test_a_duration_that_does_not_parse_is_handed_on_for_the_schema_to_refuse():
    found = settings(config(route_refresh_interval="soon", vxlan_port=4000))
    resolution = SCHEMA.resolve(found.layers())
    assert "RouteRefreshInterval" in str(resolution.problems[0])
    assert resolution.config.vxlan_port == 4000
    assert resolution.config.route_refresh_interval_s == 90.0


def test_the_node_object_wins_over_the_selected_one_and_that_over_the_global_one():
    objects = [
        config("default", vxlan_port=1, vxlan_vni=1, health_port=1),
        config("rack", node_selector="rack == 'a'", vxlan_port=2, vxlan_vni=2),
        config("node.here", vxlan_port=3),
        config("node.elsewhere", vxlan_port=4),
        node(labels={"rack": "a"}),
    ]
    for order in (objects, objects[::-1]):
        live = LiveConfig(SCHEMA)
        live.set_layers(settings(*order).layers())
        config_now = live.config
        assert (config_now.vxlan_port, config_now.vxlan_vni, config_now.health_port) == (3, 2, 1)


def test_only_the_oldest_selected_object_counts_and_a_tie_goes_to_the_smaller_name():
    young = config("a", created="2026-02-01T00:00:00Z", node_selector="all()", vxlan_port=1)
    old = config("b", created="2026-01-01T00:00:00Z", node_selector="all()", vxlan_vni=7)
    same_age = config("c", created="2026-01-01T00:00:00Z", node_selector="all()", vxlan_vni=8)
    other_rack = config("0", created="2025-01-01T00:00:00Z", node_selector="has(x)", vxlan_vni=9)
    no_selector = config("1", created="2024-01-01T00:00:00Z", vxlan_vni=10)
    other_node = config(
        "node.x", created="2024-01-01T00:00:00Z", node_selector="all()", vxlan_vni=1
    )
    found = settings(young, same_age, old, other_rack, no_selector, other_node, node())
    assert layer_values(found)[Source.DATASTORE_SELECTOR] == {"VXLANVNI": "7"}


def test_without_our_node_object_no_selector_matches():
    found = settings(config("a", node_selector="all()", vxlan_vni=7))
    assert layer_values(found)[Source.DATASTORE_SELECTOR] == {}


def test_a_selector_that_does_not_parse_is_reported_and_matches_nothing():
    found = settings(config("a", node_selector="rack = 'x'", vxlan_vni=7), node())
    assert layer_values(found)[Source.DATASTORE_SELECTOR] == {}
    assert list(found.problems) == ["a"]


def test_facts_of_the_node_and_the_cluster_are_parameters():
    found = settings(
        node(
            bgp=NodeBGPSpec(ipv4_ipip_tunnel_addr="10.0.0.1"),
            ipv4_vxlan_tunnel_addr="10.0.0.2",
            ipv6_vxlan_tunnel_addr="fd00::2",
            vxlan_tunnel_mac_addr="02:00:00:00:00:01",
        ),
        ClusterInformation(
            metadata=ObjectMeta(name="default"),
            spec=ClusterInformationSpec(cluster_guid="abc", calico_version="v3", variant="Calico"),
        ),
        node("elsewhere", ipv4_vxlan_tunnel_addr="10.9.9.9"),
    )
    values = layer_values(found)
    assert values[Source.DATASTORE_GLOBAL] == {
        "ClusterGUID": "abc",
        "CalicoVersion": "v3",
        "Variant": "Calico",
    }
    resolved = SCHEMA.resolve(found.layers()).config
    assert str(resolved.ip_in_ip_tunnel_addr) == "10.0.0.1"
    assert str(resolved.ipv6_vxlan_tunnel_addr) == "fd00::2"
    assert resolved.cluster_guid == "abc"


def test_deleting_an_object_takes_its_values_away():
    found = settings(config("default", vxlan_port=4000), config("node.here", vxlan_vni=5), node())
    assert found.on_updates([gone("FelixConfiguration", "default"), gone("Node", "here")])
    values = layer_values(found)
    assert values[Source.DATASTORE_GLOBAL] == {}
    assert values[Source.DATASTORE_NODE] == {"VXLANVNI": "5"}


def test_only_what_changes_something_is_reported():
    found = settings(config(vxlan_port=4000), node())
    assert not found.on_updates([update(config(vxlan_port=4000)), update(node())])
    assert not found.on_updates([update(node("elsewhere")), Update(BlockKey("10.0.0.0/26"), 1, 1)])
    assert not found.on_updates([gone("FelixConfiguration", "never")])
    assert found.on_updates([update(config(vxlan_port=4001))])
