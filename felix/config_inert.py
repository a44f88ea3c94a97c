"""Felix parameters that Brindle accepts, checks and shows, but that have no effect here.

Layer: felix.config, pure. `FelixConfig` (felix/config.py) extends this table, so users see one flat
configuration. They exist so that a Calico user's felix.cfg, environment and FelixConfiguration
objects keep working: a typo is still refused, a bad value still named. They belong to parts that
Brindle does not have: the eBPF and XDP dataplanes, WireGuard, Windows, Istio, flow logs,
AWS, the Go runtime. A row moves to felix/config.py when something starts to act on it.

Source: reference/datamodel.md 1.9; Calico felix/config/config_params.go.
"""

# ruff: noqa: RUF009 - param() is dataclasses.field() with our metadata, not a shared default.

from __future__ import annotations

import re
from dataclasses import dataclass

from felix import config_parse as forms
from libcalico.runtime import parse
from libcalico.runtime.config import param
from libcalico.runtime.parse import IPNetwork, PortRange

_BPF_DATA_PATTERN = r"^((en|wl|ww|sl|ib)[Popsx].*|(eth|wlan|wwan|bond).*)"
_PORT_NUMBER = parse.integer(0, 65535)
_COUNT = parse.integer(0)
_SWITCH = parse.one_of("Enabled", "Disabled")


@dataclass(frozen=True, slots=True)
class InertParams:
    """One row per parameter: default, parser, Calico's raw name where ours does not give it."""

    # The dataplane driver of long ago, and OpenStack's metadata service.
    use_internal_dataplane_driver: bool = param(True, parse=parse.boolean)
    dataplane_driver: str = param("calico-iptables-plugin", parse=parse.text)
    metadata_addr: str = param("127.0.0.1", parse=parse.text)
    metadata_port: int = param(8775, parse=_PORT_NUMBER)
    sidecar_acceleration_enabled: bool = param(False, parse=parse.boolean)
    usage_reporting_enabled: bool = param(True, parse=parse.boolean)
    usage_reporting_initial_delay_s: float = param(
        300.0, parse=parse.seconds, name="UsageReportingInitialDelaySecs"
    )
    usage_reporting_interval_s: float = param(
        86400.0, parse=parse.seconds, name="UsageReportingIntervalSecs"
    )
    feature_gates: tuple[tuple[str, str], ...] = param((), parse=parse.key_values)

    # XDP and eBPF.
    xdp_enabled: bool = param(True, parse=parse.boolean, name="XDPEnabled")
    generic_xdp_enabled: bool = param(False, parse=parse.boolean, name="GenericXDPEnabled")
    xdp_refresh_interval_s: float = param(90.0, parse=parse.seconds, name="XDPRefreshInterval")
    bpf_enabled: bool = param(False, parse=parse.boolean, name="BPFEnabled")
    bpf_overlay_host_source_ip: str = param(
        "TunnelAddress",
        parse=parse.one_of("TunnelAddress", "HostAddress"),
        name="BPFOverlayHostSourceIP",
    )
    bpf_disable_unprivileged: bool = param(True, parse=parse.boolean, name="BPFDisableUnprivileged")
    bpf_jit_hardening: str = param(
        "Auto", parse=parse.one_of("Auto", "Strict"), name="BPFJITHardening"
    )
    bpf_log_level: str = param(
        "off", parse=parse.one_of("off", "info", "debug"), name="BPFLogLevel"
    )
    bpf_conntrack_log_level: str = param(
        "off", parse=parse.one_of("off", "debug"), name="BPFConntrackLogLevel"
    )
    bpf_conntrack_cleanup_mode: str = param(
        "Auto",
        parse=parse.one_of("Auto", "Userspace", "BPFProgram"),
        name="BPFConntrackCleanupMode",
    )
    bpf_conntrack_timeouts: tuple[tuple[str, str], ...] = param(
        (
            ("CreationGracePeriod", "10s"),
            ("TCPSynSent", "20s"),
            ("TCPEstablished", "1h"),
            ("TCPFinsSeen", "Auto"),
            ("TCPResetSeen", "40s"),
            ("UDPTimeout", "60s"),
            ("GenericTimeout", "10m"),
            ("ICMPTimeout", "5s"),
        ),
        parse=forms.conntrack_timeouts,
        name="BPFConntrackTimeouts",
    )
    bpf_ip_frag_timeout_s: float = param(0.0, parse=parse.seconds, name="BPFIPFragTimeout")
    bpf_log_filters: tuple[tuple[str, str], ...] = param(
        (), parse=parse.key_values, name="BPFLogFilters"
    )
    bpf_ctlb_log_filter: str = param("", parse=parse.one_of("all"), name="BPFCTLBLogFilter")
    bpf_data_iface_pattern: re.Pattern[str] = param(
        re.compile(_BPF_DATA_PATTERN), parse=parse.regexp, name="BPFDataIfacePattern", non_zero=True
    )
    bpf_l3_iface_pattern: re.Pattern[str] | None = param(
        None, parse=forms.optional(parse.regexp), name="BPFL3IfacePattern"
    )
    bpf_connect_time_load_balancing_enabled: bool | None = param(
        None,
        parse=forms.optional(parse.boolean),
        name="BPFConnectTimeLoadBalancingEnabled",
    )
    bpf_connect_time_load_balancing: str = param(
        "TCP",
        parse=parse.one_of("TCP", "Enabled", "Disabled"),
        name="BPFConnectTimeLoadBalancing",
    )
    bpf_host_networked_nat_without_ctlb: str = param(
        "Enabled", parse=_SWITCH, name="BPFHostNetworkedNATWithoutCTLB"
    )
    bpf_external_service_mode: str = param(
        "tunnel", parse=parse.one_of("tunnel", "dsr"), name="BPFExternalServiceMode"
    )
    bpf_dsr_optout_cidrs: tuple[IPNetwork, ...] = param(
        (), parse=parse.cidrs, name="BPFDSROptoutCIDRs"
    )
    bpf_ext_to_service_connmark: int = param(
        0, parse=parse.integer(0, 0xFFFFFFFF), name="BPFExtToServiceConnmark"
    )
    bpf_kube_proxy_iptables_cleanup_enabled: bool = param(
        True, parse=parse.boolean, name="BPFKubeProxyIptablesCleanupEnabled"
    )
    bpf_kube_proxy_min_sync_period_s: float = param(
        1.0, parse=parse.seconds, name="BPFKubeProxyMinSyncPeriod"
    )
    bpf_kube_proxy_healthz_port: int = param(
        10256, parse=_PORT_NUMBER, name="BPFKubeProxyHealthzPort"
    )
    bpf_psnat_ports: PortRange = param(
        PortRange(20000, 29999), parse=parse.port_range, name="BPFPSNATPorts", non_zero=True
    )
    bpf_map_size_nat_frontend: int = param(65536, parse=_COUNT, name="BPFMapSizeNATFrontend")
    bpf_map_size_nat_backend: int = param(262144, parse=_COUNT, name="BPFMapSizeNATBackend")
    bpf_map_size_nat_affinity: int = param(65536, parse=_COUNT, name="BPFMapSizeNATAffinity")
    bpf_map_size_route: int = param(262144, parse=_COUNT, name="BPFMapSizeRoute")
    bpf_map_size_conntrack: int = param(512000, parse=_COUNT, name="BPFMapSizeConntrack")
    bpf_map_size_per_cpu_conntrack: int = param(0, parse=_COUNT, name="BPFMapSizePerCpuConntrack")
    bpf_map_size_conntrack_scaling: str = param(
        "DoubleIfFull",
        parse=parse.one_of("Disabled", "DoubleIfFull"),
        name="BPFMapSizeConntrackScaling",
    )
    bpf_map_size_conntrack_cleanup_queue: int = param(
        100000, parse=parse.integer(1), name="BPFMapSizeConntrackCleanupQueue"
    )
    bpf_map_size_ip_sets: int = param(1048576, parse=_COUNT, name="BPFMapSizeIPSets")
    bpf_map_size_if_state: int = param(1000, parse=_COUNT, name="BPFMapSizeIfState")
    bpf_host_conntrack_bypass: bool = param(
        False, parse=parse.boolean, name="BPFHostConntrackBypass"
    )
    bpf_ip_fragment_reassembly_enabled: bool = param(
        True, parse=parse.boolean, name="BPFIPFragmentReassemblyEnabled"
    )
    bpf_enforce_rpf: str = param(
        "Loose", parse=parse.one_of("Disabled", "Strict", "Loose"), name="BPFEnforceRPF"
    )
    bpf_policy_debug_enabled: bool = param(True, parse=parse.boolean, name="BPFPolicyDebugEnabled")
    bpf_force_track_packets_from_ifaces: tuple[str, ...] = param(
        ("docker+",),
        parse=parse.list_of(forms.interface_filter),
        name="BPFForceTrackPacketsFromIfaces",
    )
    bpf_disable_gro_for_ifaces: re.Pattern[str] | None = param(
        None, parse=forms.optional(parse.regexp), name="BPFDisableGROForIfaces"
    )
    bpf_exclude_cidrs_from_nat: tuple[IPNetwork, ...] = param(
        (), parse=parse.cidrs, name="BPFExcludeCIDRsFromNAT"
    )
    bpf_export_buffer_size_mb: int = param(1, parse=_COUNT, name="BPFExportBufferSizeMB")
    bpf_redirect_to_peer: str = param("Enabled", parse=_SWITCH, name="BPFRedirectToPeer")
    bpf_attach_type: str = param(
        "Netkit", parse=parse.one_of("TC", "TCX", "Netkit"), name="BPFAttachType"
    )
    bpf_profiling: str = param("Disabled", parse=_SWITCH, name="BPFProfiling")
    bpf_maglev_max_endpoints_per_service: int = param(
        100, parse=parse.integer(1, 3000), name="BPFMaglevMaxEndpointsPerService"
    )
    bpf_maglev_max_services: int = param(
        100, parse=parse.integer(1, 3000), name="BPFMaglevMaxServices"
    )
    debug_bpf_cgroup_v2: str = param("", parse=parse.text, name="DebugBPFCgroupV2", local_only=True)
    cgroup_v2_path: str = param("", parse=parse.text)

    # WireGuard.
    wireguard_enabled: bool = param(False, parse=parse.boolean)
    wireguard_enabled_v6: bool = param(False, parse=parse.boolean)
    wireguard_threading_enabled: bool = param(False, parse=parse.boolean)
    wireguard_listening_port: int = param(51820, parse=parse.port)
    wireguard_listening_port_v6: int = param(51821, parse=parse.port)
    wireguard_routing_rule_priority: int = param(99, parse=parse.integer(1, 32765))
    wireguard_interface_name: str = param(
        "wireguard.cali", parse=forms.interface_name, non_zero=True
    )
    wireguard_interface_name_v6: str = param(
        "wg-v6.cali", parse=forms.interface_name, non_zero=True
    )
    wireguard_mtu: int = param(0, parse=_COUNT, name="WireguardMTU")
    wireguard_mtu_v6: int = param(0, parse=_COUNT, name="WireguardMTUV6")
    wireguard_host_encryption_enabled: bool = param(False, parse=parse.boolean)
    wireguard_persistent_keep_alive_s: float = param(0.0, parse=parse.seconds)
    prometheus_wireguard_metrics_enabled: bool = param(
        True, parse=parse.boolean, name="PrometheusWireGuardMetricsEnabled"
    )

    # Clouds, meshes, flow logs, Windows, the Go runtime.
    aws_src_dst_check: str = param(
        "DoNothing", parse=parse.one_of("DoNothing", "Enable", "Disable"), name="AWSSrcDstCheck"
    )
    istio_ambient_mode: str = param("Disabled", parse=_SWITCH)
    istio_dscp_mark: int = param(23, parse=forms.dscp, name="IstioDSCPMark")
    flow_logs_policy_evaluation_mode: str = param(
        "Continuous", parse=parse.one_of("None", "Continuous")
    )
    flow_logs_flush_interval_s: float = param(300.0, parse=parse.seconds)
    flow_logs_collector_debug_trace: bool = param(False, parse=parse.boolean)
    flow_logs_goldmane_server: str = param("", parse=parse.text)
    flow_logs_local_reporter: str = param("Disabled", parse=_SWITCH)
    windows_manage_firewall_rules: str = param("Disabled", parse=_SWITCH)
    go_gc_threshold: int = param(40, parse=parse.integer(-1), name="GoGCThreshold")
    go_memory_limit_mb: int = param(-1, parse=parse.integer(-1), name="GoMemoryLimitMB")
    go_max_procs: int = param(-1, parse=parse.integer(-1), name="GoMaxProcs")
    debug_data_race: bool = param(False, parse=parse.boolean, name="DebugSimulateDataRace")
    debug_memory_profile_path: str = param("", parse=parse.text)
    debug_cpu_profile_path: str = param("", parse=parse.text, name="DebugCPUProfilePath")
