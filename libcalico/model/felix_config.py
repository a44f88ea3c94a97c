"""FelixConfiguration: every parameter of the agent that the datastore can set.

Layer: libcalico.model, pure. Used by felix.config, which owns the table of defaults, names and
allowed values (datamodel §1.9); here are only the stored members. None means: not set here, a lower
layer decides. For lists an explicit `()` differs from None (no failsafe ports at all, for example).
Source: datamodel §1.9; Calico api/pkg/apis/projectcalico/v3/felixconfig.go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from libcalico.model.meta import Model, Resource
from libcalico.model.scalars import DSCP, Duration, Port, UInt16


class ProtoPort(Model, frozen=True, kw_only=True):
    """A protocol and port, optionally only for peers inside `net`."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "protocol",
        "port",
    )

    net: str | None = None
    protocol: str = ""
    port: UInt16 = 0


class HealthTimeoutOverride(Model, frozen=True, kw_only=True):
    """A longer (or shorter) watchdog timeout for one named reporter."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "name",
        "timeout",
    )

    name: str = ""
    timeout: Duration = "0s"


class RouteTableRange(Model, frozen=True, kw_only=True):
    """First and last routing table index (deprecated single range)."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "min",
        "max",
    )

    min: int = 0
    max: int = 0


class RouteTableIDRange(Model, frozen=True, kw_only=True):
    """First and last routing table index."""

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "min",
        "max",
    )

    min: int = 0
    max: int = 0


class BPFConntrackTimeouts(Model, frozen=True, kw_only=True):
    """Each a duration or `Auto`."""

    creation_grace_period: str | None = field(default=None, name="creationGracePeriod")
    tcp_syn_sent: str | None = field(default=None, name="tcpSynSent")
    tcp_established: str | None = field(default=None, name="tcpEstablished")
    tcp_fins_seen: str | None = field(default=None, name="tcpFinsSeen")
    tcp_reset_seen: str | None = field(default=None, name="tcpResetSeen")
    udp_timeout: str | None = field(default=None, name="udpTimeout")
    generic_timeout: str | None = field(default=None, name="genericTimeout")
    icmp_timeout: str | None = field(default=None, name="icmpTimeout")


class FelixConfigurationSpec(Model, frozen=True, kw_only=True):
    """All 188 members, in the documented order."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("bpfLogLevel",)

    node_selector: str | None = field(default=None, name="nodeSelector")
    use_internal_dataplane_driver: bool | None = field(
        default=None, name="useInternalDataplaneDriver"
    )
    dataplane_driver: str | None = field(default=None, name="dataplaneDriver")
    dataplane_watchdog_timeout: Duration | None = field(
        default=None, name="dataplaneWatchdogTimeout"
    )
    ipv6_support: bool | None = field(default=None, name="ipv6Support")
    route_refresh_interval: Duration | None = field(default=None, name="routeRefreshInterval")
    interface_refresh_interval: Duration | None = field(
        default=None, name="interfaceRefreshInterval"
    )
    iptables_refresh_interval: Duration | None = field(default=None, name="iptablesRefreshInterval")
    iptables_post_write_check_interval: Duration | None = field(
        default=None, name="iptablesPostWriteCheckInterval"
    )
    iptables_lock_probe_interval: Duration | None = field(
        default=None, name="iptablesLockProbeInterval"
    )
    feature_detect_override: str | None = field(default=None, name="featureDetectOverride")
    feature_gates: str | None = field(default=None, name="featureGates")
    ipsets_refresh_interval: Duration | None = field(default=None, name="ipsetsRefreshInterval")
    max_ipset_size: int | None = field(default=None, name="maxIpsetSize")
    iptables_backend: str | None = field(default=None, name="iptablesBackend")
    xdp_refresh_interval: Duration | None = field(default=None, name="xdpRefreshInterval")
    netlink_timeout: Duration | None = field(default=None, name="netlinkTimeout")
    metadata_addr: str | None = field(default=None, name="metadataAddr")
    metadata_port: int | None = field(default=None, name="metadataPort")
    openstack_region: str | None = field(default=None, name="openstackRegion")
    interface_prefix: str | None = field(default=None, name="interfacePrefix")
    interface_exclude: str | None = field(default=None, name="interfaceExclude")
    chain_insert_mode: str | None = field(default=None, name="chainInsertMode")
    default_endpoint_to_host_action: str | None = field(
        default=None, name="defaultEndpointToHostAction"
    )
    iptables_filter_allow_action: str | None = field(default=None, name="iptablesFilterAllowAction")
    iptables_mangle_allow_action: str | None = field(default=None, name="iptablesMangleAllowAction")
    iptables_filter_deny_action: str | None = field(default=None, name="iptablesFilterDenyAction")
    log_prefix: str | None = field(default=None, name="logPrefix")
    log_action_rate_limit: str | None = field(default=None, name="logActionRateLimit")
    log_action_rate_limit_burst: int | None = field(default=None, name="logActionRateLimitBurst")
    log_file_path: str | None = field(default=None, name="logFilePath")
    log_severity_file: str | None = field(default=None, name="logSeverityFile")
    log_severity_screen: str | None = field(default=None, name="logSeverityScreen")
    log_severity_sys: str | None = field(default=None, name="logSeveritySys")
    log_debug_filename_regex: str | None = field(default=None, name="logDebugFilenameRegex")
    ipip_enabled: bool | None = field(default=None, name="ipipEnabled")
    ipip_mtu: int | None = field(default=None, name="ipipMTU")
    vxlan_enabled: bool | None = field(default=None, name="vxlanEnabled")
    vxlan_mtu: int | None = field(default=None, name="vxlanMTU")
    vxlan_mtuv6: int | None = field(default=None, name="vxlanMTUV6")
    vxlan_port: int | None = field(default=None, name="vxlanPort")
    vxlan_vni: int | None = field(default=None, name="vxlanVNI")
    allow_vxlan_packets_from_workloads: bool | None = field(
        default=None, name="allowVXLANPacketsFromWorkloads"
    )
    allow_ipip_packets_from_workloads: bool | None = field(
        default=None, name="allowIPIPPacketsFromWorkloads"
    )
    reporting_interval: Duration | None = field(default=None, name="reportingInterval")
    reporting_ttl: Duration | None = field(default=None, name="reportingTTL")
    endpoint_reporting_enabled: bool | None = field(default=None, name="endpointReportingEnabled")
    endpoint_reporting_delay: Duration | None = field(default=None, name="endpointReportingDelay")
    endpoint_status_path_prefix: str | None = field(default=None, name="endpointStatusPathPrefix")
    iptables_mark_mask: int | None = field(default=None, name="iptablesMarkMask")
    disable_conntrack_invalid_check: bool | None = field(
        default=None, name="disableConntrackInvalidCheck"
    )
    health_enabled: bool | None = field(default=None, name="healthEnabled")
    health_host: str | None = field(default=None, name="healthHost")
    health_port: int | None = field(default=None, name="healthPort")
    health_timeout_overrides: tuple[HealthTimeoutOverride, ...] = field(
        default=(), name="healthTimeoutOverrides"
    )
    prometheus_metrics_enabled: bool | None = field(default=None, name="prometheusMetricsEnabled")
    prometheus_metrics_host: str | None = field(default=None, name="prometheusMetricsHost")
    prometheus_metrics_port: int | None = field(default=None, name="prometheusMetricsPort")
    prometheus_go_metrics_enabled: bool | None = field(
        default=None, name="prometheusGoMetricsEnabled"
    )
    prometheus_process_metrics_enabled: bool | None = field(
        default=None, name="prometheusProcessMetricsEnabled"
    )
    prometheus_wire_guard_metrics_enabled: bool | None = field(
        default=None, name="prometheusWireGuardMetricsEnabled"
    )
    prometheus_metrics_ca_file: str | None = field(default=None, name="prometheusMetricsCAFile")
    prometheus_metrics_cert_file: str | None = field(default=None, name="prometheusMetricsCertFile")
    prometheus_metrics_key_file: str | None = field(default=None, name="prometheusMetricsKeyFile")
    prometheus_metrics_client_auth: str | None = field(
        default=None, name="prometheusMetricsClientAuth"
    )
    failsafe_inbound_host_ports: tuple[ProtoPort, ...] | None = field(
        default=None, name="failsafeInboundHostPorts"
    )
    failsafe_outbound_host_ports: tuple[ProtoPort, ...] | None = field(
        default=None, name="failsafeOutboundHostPorts"
    )
    kube_node_port_ranges: tuple[Port, ...] | None = field(default=None, name="kubeNodePortRanges")
    policy_sync_path_prefix: str | None = field(default=None, name="policySyncPathPrefix")
    usage_reporting_enabled: bool | None = field(default=None, name="usageReportingEnabled")
    usage_reporting_initial_delay: Duration | None = field(
        default=None, name="usageReportingInitialDelay"
    )
    usage_reporting_interval: Duration | None = field(default=None, name="usageReportingInterval")
    nat_port_range: Port | None = field(default=None, name="natPortRange")
    nat_outgoing_address: str | None = field(default=None, name="natOutgoingAddress")
    nat_outgoing_exclusions: str | None = field(default=None, name="natOutgoingExclusions")
    device_route_source_address: str | None = field(default=None, name="deviceRouteSourceAddress")
    device_route_source_address_ipv6: str | None = field(
        default=None, name="deviceRouteSourceAddressIPv6"
    )
    device_route_protocol: int | None = field(default=None, name="deviceRouteProtocol")
    remove_external_routes: bool | None = field(default=None, name="removeExternalRoutes")
    program_cluster_routes: str | None = field(default=None, name="programClusterRoutes")
    ip_forwarding: str | None = field(default=None, name="ipForwarding")
    external_nodes_list: tuple[str, ...] | None = field(default=None, name="externalNodesList")
    debug_memory_profile_path: str | None = field(default=None, name="debugMemoryProfilePath")
    debug_disable_log_dropping: bool | None = field(default=None, name="debugDisableLogDropping")
    debug_simulate_calc_graph_hang_after: Duration | None = field(
        default=None, name="debugSimulateCalcGraphHangAfter"
    )
    debug_simulate_dataplane_hang_after: Duration | None = field(
        default=None, name="debugSimulateDataplaneHangAfter"
    )
    debug_simulate_dataplane_apply_delay: Duration | None = field(
        default=None, name="debugSimulateDataplaneApplyDelay"
    )
    debug_host: str | None = field(default=None, name="debugHost")
    debug_port: int | None = field(default=None, name="debugPort")
    iptables_nat_outgoing_interface_filter: str | None = field(
        default=None, name="iptablesNATOutgoingInterfaceFilter"
    )
    sidecar_acceleration_enabled: bool | None = field(
        default=None, name="sidecarAccelerationEnabled"
    )
    xdp_enabled: bool | None = field(default=None, name="xdpEnabled")
    generic_xdp_enabled: bool | None = field(default=None, name="genericXDPEnabled")
    nftables_mode: str | None = field(default=None, name="nftablesMode")
    nftables_flow_table_offload: str | None = field(default=None, name="nftablesFlowTableOffload")
    nftables_flow_table_data_iface_pattern: str | None = field(
        default=None, name="nftablesFlowTableDataIfacePattern"
    )
    nftables_refresh_interval: Duration | None = field(default=None, name="nftablesRefreshInterval")
    nftables_filter_allow_action: str | None = field(default=None, name="nftablesFilterAllowAction")
    nftables_mangle_allow_action: str | None = field(default=None, name="nftablesMangleAllowAction")
    nftables_filter_deny_action: str | None = field(default=None, name="nftablesFilterDenyAction")
    nftables_mark_mask: int | None = field(default=None, name="nftablesMarkMask")
    bpf_enabled: bool | None = field(default=None, name="bpfEnabled")
    bpf_overlay_host_source_ip: str | None = field(default=None, name="bpfOverlayHostSourceIP")
    bpf_disable_unprivileged: bool | None = field(default=None, name="bpfDisableUnprivileged")
    bpf_jit_hardening: str | None = field(default=None, name="bpfJITHardening")
    bpf_log_level: str = field(default="", name="bpfLogLevel")
    bpf_conntrack_log_level: str | None = field(default=None, name="bpfConntrackLogLevel")
    bpf_conntrack_mode: str | None = field(default=None, name="bpfConntrackMode")
    bpf_conntrack_timeouts: BPFConntrackTimeouts | None = field(
        default=None, name="bpfConntrackTimeouts"
    )
    bpf_ip_frag_timeout: Duration | None = field(default=None, name="bpfIPFragTimeout")
    bpf_log_filters: dict[str, str] | None = field(default=None, name="bpfLogFilters")
    bpf_ctlb_log_filter: str | None = field(default=None, name="bpfCTLBLogFilter")
    bpf_data_iface_pattern: str | None = field(default=None, name="bpfDataIfacePattern")
    bpf_l3_iface_pattern: str | None = field(default=None, name="bpfL3IfacePattern")
    bpf_connect_time_load_balancing_enabled: bool | None = field(
        default=None, name="bpfConnectTimeLoadBalancingEnabled"
    )
    bpf_connect_time_load_balancing: str | None = field(
        default=None, name="bpfConnectTimeLoadBalancing"
    )
    bpf_host_networked_nat_without_ctlb: str | None = field(
        default=None, name="bpfHostNetworkedNATWithoutCTLB"
    )
    bpf_external_service_mode: str | None = field(default=None, name="bpfExternalServiceMode")
    bpf_dsr_optout_cidrs: tuple[str, ...] | None = field(default=None, name="bpfDSROptoutCIDRs")
    bpf_ext_to_service_connmark: int | None = field(default=None, name="bpfExtToServiceConnmark")
    bpf_kube_proxy_iptables_cleanup_enabled: bool | None = field(
        default=None, name="bpfKubeProxyIptablesCleanupEnabled"
    )
    bpf_kube_proxy_min_sync_period: Duration | None = field(
        default=None, name="bpfKubeProxyMinSyncPeriod"
    )
    bpf_kube_proxy_healthz_port: int | None = field(default=None, name="bpfKubeProxyHealthzPort")
    bpf_psnat_ports: Port | None = field(default=None, name="bpfPSNATPorts")
    bpf_map_size_nat_frontend: int | None = field(default=None, name="bpfMapSizeNATFrontend")
    bpf_map_size_nat_backend: int | None = field(default=None, name="bpfMapSizeNATBackend")
    bpf_map_size_nat_affinity: int | None = field(default=None, name="bpfMapSizeNATAffinity")
    bpf_map_size_route: int | None = field(default=None, name="bpfMapSizeRoute")
    bpf_map_size_conntrack: int | None = field(default=None, name="bpfMapSizeConntrack")
    bpf_map_size_per_cpu_conntrack: int | None = field(
        default=None, name="bpfMapSizePerCpuConntrack"
    )
    bpf_map_size_conntrack_scaling: str | None = field(
        default=None, name="bpfMapSizeConntrackScaling"
    )
    bpf_map_size_conntrack_cleanup_queue: int | None = field(
        default=None, name="bpfMapSizeConntrackCleanupQueue"
    )
    bpf_map_size_ip_sets: int | None = field(default=None, name="bpfMapSizeIPSets")
    bpf_map_size_if_state: int | None = field(default=None, name="bpfMapSizeIfState")
    bpf_host_conntrack_bypass: bool | None = field(default=None, name="bpfHostConntrackBypass")
    bpf_ip_fragment_reassembly_enabled: bool | None = field(
        default=None, name="bpfIPFragmentReassemblyEnabled"
    )
    bpf_enforce_rpf: str | None = field(default=None, name="bpfEnforceRPF")
    bpf_policy_debug_enabled: bool | None = field(default=None, name="bpfPolicyDebugEnabled")
    bpf_force_track_packets_from_ifaces: tuple[str, ...] | None = field(
        default=None, name="bpfForceTrackPacketsFromIfaces"
    )
    bpf_disable_gro_for_ifaces: str | None = field(default=None, name="bpfDisableGROForIfaces")
    bpf_exclude_cidrs_from_nat: tuple[str, ...] | None = field(
        default=None, name="bpfExcludeCIDRsFromNAT"
    )
    bpf_export_buffer_size_mb: int | None = field(default=None, name="bpfExportBufferSizeMB")
    istio_ambient_mode: str | None = field(default=None, name="istioAmbientMode")
    istio_dscp_mark: DSCP | None = field(default=None, name="istioDSCPMark")
    cgroup_v2_path: str | None = field(default=None, name="cgroupV2Path")
    flow_logs_policy_evaluation_mode: str | None = field(
        default=None, name="flowLogsPolicyEvaluationMode"
    )
    bpf_redirect_to_peer: str | None = field(default=None, name="bpfRedirectToPeer")
    bpf_attach_type: str | None = field(default=None, name="bpfAttachType")
    flow_logs_flush_interval: Duration | None = field(default=None, name="flowLogsFlushInterval")
    flow_logs_collector_debug_trace: bool | None = field(
        default=None, name="flowLogsCollectorDebugTrace"
    )
    flow_logs_goldmane_server: str | None = field(default=None, name="flowLogsGoldmaneServer")
    flow_logs_local_reporter: str | None = field(default=None, name="flowLogsLocalReporter")
    bpf_profiling: str | None = field(default=None, name="bpfProfiling")
    route_source: str | None = field(default=None, name="routeSource")
    route_table_ranges: tuple[RouteTableIDRange, ...] | None = field(
        default=None, name="routeTableRanges"
    )
    route_table_range: RouteTableRange | None = field(default=None, name="routeTableRange")
    route_sync_disabled: bool | None = field(default=None, name="routeSyncDisabled")
    ipv4_normal_route_priority: int | None = field(default=None, name="ipv4NormalRoutePriority")
    ipv4_elevated_route_priority: int | None = field(default=None, name="ipv4ElevatedRoutePriority")
    ipv6_normal_route_priority: int | None = field(default=None, name="ipv6NormalRoutePriority")
    ipv6_elevated_route_priority: int | None = field(default=None, name="ipv6ElevatedRoutePriority")
    live_migration_route_convergence_time: Duration | None = field(
        default=None, name="liveMigrationRouteConvergenceTime"
    )
    wireguard_enabled: bool | None = field(default=None, name="wireguardEnabled")
    wireguard_enabled_v6: bool | None = field(default=None, name="wireguardEnabledV6")
    wireguard_threading_enabled: bool | None = field(default=None, name="wireguardThreadingEnabled")
    wireguard_listening_port: int | None = field(default=None, name="wireguardListeningPort")
    wireguard_listening_port_v6: int | None = field(default=None, name="wireguardListeningPortV6")
    wireguard_routing_rule_priority: int | None = field(
        default=None, name="wireguardRoutingRulePriority"
    )
    wireguard_interface_name: str | None = field(default=None, name="wireguardInterfaceName")
    wireguard_interface_name_v6: str | None = field(default=None, name="wireguardInterfaceNameV6")
    wireguard_mtu: int | None = field(default=None, name="wireguardMTU")
    wireguard_mtuv6: int | None = field(default=None, name="wireguardMTUV6")
    wireguard_host_encryption_enabled: bool | None = field(
        default=None, name="wireguardHostEncryptionEnabled"
    )
    wireguard_keep_alive: Duration | None = field(default=None, name="wireguardKeepAlive")
    aws_src_dst_check: str | None = field(default=None, name="awsSrcDstCheck")
    service_loop_prevention: str | None = field(default=None, name="serviceLoopPrevention")
    workload_source_spoofing: str | None = field(default=None, name="workloadSourceSpoofing")
    mtu_iface_pattern: str | None = field(default=None, name="mtuIfacePattern")
    floating_ips: str | None = field(default=None, name="floatingIPs")
    local_subnet_l2_reachability: str | None = field(default=None, name="localSubnetL2Reachability")
    local_subnet_l2_reachability_refresh_interval: Duration | None = field(
        default=None, name="localSubnetL2ReachabilityRefreshInterval"
    )
    windows_manage_firewall_rules: str | None = field(
        default=None, name="windowsManageFirewallRules"
    )
    go_gc_threshold: int | None = field(default=None, name="goGCThreshold")
    go_memory_limit_mb: int | None = field(default=None, name="goMemoryLimitMB")
    go_max_procs: int | None = field(default=None, name="goMaxProcs")
    require_mtu_file: bool | None = field(default=None, name="requireMTUFile")
    bpf_maglev_max_endpoints_per_service: int | None = field(
        default=None, name="bpfMaglevMaxEndpointsPerService"
    )
    bpf_maglev_max_services: int | None = field(default=None, name="bpfMaglevMaxServices")


class FelixConfiguration(Resource, frozen=True, kw_only=True, tag="FelixConfiguration"):
    """Settings for all nodes (`default`), one node (`node.<name>`) or selected nodes."""

    kind: ClassVar[str] = "FelixConfiguration"

    spec: FelixConfigurationSpec = field(default_factory=FelixConfigurationSpec)
