"""The agent's configuration: every Felix parameter as one frozen dataclass.

Layer: felix.config, the lowest of felix. Used by the daemon (which builds it), the dataplane
managers and the renderers (which are handed it); felix.calc takes only the few values it needs.

How a value comes to be (the order decides, lowest first): default < FelixConfiguration `default` <
the one selector-scoped FelixConfiguration < `node.<name>` < /etc/calico/felix.cfg < environment
(`FELIX_<PARAM>`). `felix.config_datastore` makes the three datastore layers, `libcalico.runtime
.config` stacks them:

    live = LiveConfig(SCHEMA, [file_layer(path), environment_layer(SCHEMA, os.environ)])
    changes = live.set_layers(datastore_settings.layers())
    changes.raise_if_restart()
    live.config.interface_prefixes

Invariants:
  F1  each FelixConfiguration member has exactly one row, here if something acts on it, else in
      felix/config_inert.py (accepted, no effect yet);
  F2  rows declared with `setting` need a new process when they change (exit code 129); rows
      declared with `param` are read again by their user and may change under it;
  F3  durations are float seconds and end in `_s`, whatever unit the raw form has.

Source: reference/datamodel.md 1.9; Calico felix/config/config_params.go.
"""

# ruff: noqa: RUF009 - param() is dataclasses.field() with our metadata, not a shared default.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, Unpack

from felix import config_parse as forms
from felix.config_inert import InertParams
from felix.config_parse import NamedTimeout
from libcalico.runtime import parse
from libcalico.runtime.config import ParamOptions, Schema, param
from libcalico.runtime.parse import IPAddress, PortRange, ProtoPort
from libcalico.syncer.choice import TyphaClientConfig
from libcalico.syncer.typhas import Target, parse_targets

T = TypeVar("T")

DEFAULT_FILE = "/etc/calico/felix.cfg"
ENV_PREFIX = "FELIX_"

_MTU_PATTERN = r"^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)"
# datamodel 5.4
FAILSAFE_IN = "tcp:22,udp:68,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667"
FAILSAFE_OUT = "udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667"
_PRIORITY = parse.integer(1, 2147483646)
_SWITCH = parse.one_of("Enabled", "Disabled")
_SEVERITY = parse.one_of("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
_ACCEPT = parse.one_of("ACCEPT", "RETURN")
_DROP = parse.one_of("DROP", "REJECT")


def setting(default: T, *, parse: Callable[[str], T], **options: Unpack[ParamOptions]) -> T:
    """A row whose change needs a new process (F2)."""
    options["restart"] = True
    return param(default, parse=parse, **options)


@dataclass(frozen=True, slots=True)
class FelixConfig(InertParams):
    """All parameters. Names are Calico's in our spelling; `doc` is the reference page's text."""

    # --- identity and connections; local: the datastore cannot set what is needed to reach it ---
    datastore_type: str = setting(
        "etcdv3",
        parse=forms.supported("etcdv3", missing="kubernetes", why="only etcdv3 is supported"),
        local_only=True,
        doc="Which datastore driver to use; kubernetes is refused.",
    )
    felix_hostname: str = setting(
        "", parse=parse.text, local_only=True, doc="This node's name; empty asks NODENAME, the OS."
    )
    etcd_addr: str = setting(
        "", parse=parse.text, local_only=True, doc="host:port of etcd, with EtcdScheme (old form)."
    )
    etcd_scheme: str = setting(
        "http", parse=parse.one_of("http", "https"), local_only=True, doc="Scheme for EtcdAddr."
    )
    etcd_endpoints: tuple[str, ...] = setting(
        (), parse=parse.words, local_only=True, doc="URLs of etcd; empty asks ETCD_ENDPOINTS."
    )
    etcd_key_file: str = setting("", parse=parse.text, local_only=True, doc="Client key for etcd.")
    etcd_cert_file: str = setting(
        "", parse=parse.text, local_only=True, doc="Client certificate for etcd."
    )
    etcd_ca_file: str = setting(
        "", parse=parse.text, local_only=True, doc="CA certificate of etcd."
    )

    openstack_region: str = setting(
        "",
        parse=forms.region,
        doc="Region of an OpenStack cloud; set: virtual machines may ask this host for DHCP.",
    )

    # --- interfaces and families ---
    ipv6_support: bool = setting(
        True, parse=parse.boolean, name="Ipv6Support", doc="Program IPv6 as well as IPv4."
    )
    interface_prefixes: tuple[str, ...] = setting(
        ("cali",),
        parse=forms.interface_prefixes,
        name="InterfacePrefix",
        non_zero=True,
        doc="Beginnings of workload interface names; the first is used for new ones.",
    )
    mtu_iface_pattern: re.Pattern[str] = setting(
        re.compile(_MTU_PATTERN),
        parse=parse.regexp,
        name="MTUIfacePattern",
        non_zero=True,
        doc="Interfaces whose MTU decides the workloads'.",
    )
    require_mtu_file: bool = setting(
        False, parse=parse.boolean, name="RequireMTUFile", doc="Fail when no MTU can be found."
    )
    ip_forwarding: str = setting(
        "Enabled", parse=_SWITCH, name="IPForwarding", doc="Switch the kernel's forwarding on."
    )
    workload_source_spoofing: str = setting(
        "Disabled",
        parse=parse.one_of("Disabled", "Any"),
        doc="Any: honour allowSpoofedSourcePrefixes; Disabled: such endpoints are refused.",
    )
    floating_ips: str = setting(
        "Disabled", parse=_SWITCH, name="FloatingIPs", doc="Program ipNATs of endpoints."
    )

    # --- policy ---
    default_endpoint_to_host_action: str = setting(
        "DROP",
        parse=parse.one_of("DROP", "ACCEPT", "RETURN"),
        non_zero=True,
        doc="Traffic from a workload to its own host, after egress policy.",
    )
    disable_conntrack_invalid_check: bool = setting(
        False, parse=parse.boolean, doc="Do not drop what conntrack calls invalid."
    )
    policy_conntrack_sweep: str = setting(
        "Disabled",
        parse=_SWITCH,
        doc="Delete connections that policy of workloads no longer allows, right after programming;"
        " sets nf_conntrack_tcp_loose to 0.",
    )
    policy_rule_counters: str = setting(
        "Disabled",
        parse=_SWITCH,
        doc="A packet counter on every rule of policies and profiles, in `nft list ruleset`; rules"
        " are not folded then. iptables counts by itself.",
    )
    allow_vxlan_packets_from_workloads: bool = setting(
        False,
        parse=parse.boolean,
        name="AllowVXLANPacketsFromWorkloads",
        doc="Let workloads send VXLAN.",
    )
    allow_ipip_packets_from_workloads: bool = setting(
        False,
        parse=parse.boolean,
        name="AllowIPIPPacketsFromWorkloads",
        doc="Let workloads send IP in IP.",
    )
    interface_exclude: tuple[re.Pattern[str], ...] = setting(
        (re.compile("^kube\\-ipvs0$"),),
        parse=parse.name_patterns,
        doc="Interfaces never taken for host endpoints.",
    )
    failsafe_inbound_host_ports: tuple[ProtoPort, ...] = setting(
        parse.proto_ports(FAILSAFE_IN),
        parse=parse.proto_ports,
        doc="Ports of the host no policy can close: proto:port or proto:net:port.",
    )
    failsafe_outbound_host_ports: tuple[ProtoPort, ...] = setting(
        parse.proto_ports(FAILSAFE_OUT),
        parse=parse.proto_ports,
        doc="Ports the host can always reach.",
    )
    log_prefix: str = setting(
        "calico-packet", parse=forms.log_prefix, doc="Prefix of the Log action; %t %k %n %p."
    )
    log_action_rate_limit: str = setting(
        "", parse=forms.rate_limit, doc="Limit of the Log action, as 5/second."
    )
    log_action_rate_limit_burst: int = setting(
        5, parse=parse.integer(1, 9999), doc="Burst of that limit."
    )

    # --- dataplane: which, and how it writes ---
    dataplane_watchdog_timeout_s: float = setting(
        90.0, parse=parse.seconds, doc="A stuck dataplane loop is reported unhealthy after this."
    )
    nftables_mode: str = setting(
        "Auto",
        parse=parse.one_of("Enabled", "Disabled", "Auto"),
        name="NFTablesMode",
        doc="Enabled and Auto: nftables; Disabled: iptables.",
    )
    nftables_refresh_interval_s: float = setting(
        180.0, parse=parse.seconds, name="NftablesRefreshInterval", doc="Read back and compare."
    )
    nftables_filter_deny_action: str = setting(
        "DROP", parse=_DROP, non_zero=True, doc="What a denied packet meets."
    )
    nftables_mark_mask: int = setting(
        0xFFFF0000,
        parse=forms.mark_mask,
        non_zero=True,
        doc="Mark bits we may use; two are used, only for host endpoints.",
    )
    iptables_nat_outgoing_interface_filter: str = setting(
        "",
        parse=forms.interface_filter,
        name="IptablesNATOutgoingInterfaceFilter",
        doc="NAT outgoing only through this interface.",
    )
    netlink_timeout_s: float = setting(
        10.0, parse=parse.seconds, name="NetlinkTimeoutSecs", doc="Time for one kernel request."
    )

    # --- iptables, where it is the dataplane ---
    iptables_backend: str = setting(
        "auto", parse=parse.one_of("legacy", "nft", "auto"), doc="Which iptables binaries."
    )
    iptables_refresh_interval_s: float = setting(
        180.0, parse=parse.seconds, doc="Read back and compare."
    )
    iptables_post_write_check_interval_s: float = setting(
        5.0,
        parse=parse.seconds,
        name="IptablesPostWriteCheckIntervalSecs",
        doc="Check again this long after a write.",
    )
    ipsets_refresh_interval_s: float = setting(
        90.0, parse=parse.seconds, name="IpsetsRefreshInterval", doc="Read sets back, compare."
    )
    max_ipset_size: int = setting(
        1048576, parse=parse.integer(1), name="MaxIpsetSize", doc="Most members of one set."
    )
    chain_insert_mode: str = setting(
        "insert",
        parse=parse.one_of("insert", "append"),
        non_zero=True,
        doc="Where our jumps go in the kernel's own chains.",
    )
    iptables_filter_allow_action: str = setting(
        "ACCEPT", parse=_ACCEPT, non_zero=True, doc="What an allowed packet does next."
    )
    iptables_mangle_allow_action: str = setting(
        "ACCEPT", parse=_ACCEPT, non_zero=True, doc="The same before DNAT."
    )
    iptables_filter_deny_action: str = setting(
        "DROP", parse=_DROP, non_zero=True, doc="What a denied packet meets."
    )
    iptables_mark_mask: int = setting(
        0xFFFF0000,
        parse=forms.iptables_mark_mask,
        non_zero=True,
        doc="Mark bits we may use, five at least.",
    )

    # --- routes and NAT ---
    route_refresh_interval_s: float = setting(
        90.0, parse=parse.seconds, doc="Read routes back and compare."
    )
    interface_refresh_interval_s: float = setting(
        90.0, parse=parse.seconds, doc="List interfaces again."
    )
    route_sync_disabled: bool = setting(
        False, parse=parse.boolean, doc="Leave the routing table alone."
    )
    device_route_source_address: IPAddress | None = setting(
        None,
        parse=forms.optional(parse.address_v4),
        doc="Source address hint on routes to workloads.",
    )
    device_route_source_address_ipv6: IPAddress | None = setting(
        None,
        parse=forms.optional(parse.address_v6),
        name="DeviceRouteSourceAddressIPv6",
        doc="The same for IPv6.",
    )
    device_route_protocol: int = setting(
        3, parse=parse.integer(1, 255), doc="Protocol number of routes to workloads."
    )
    remove_external_routes: bool = setting(
        True, parse=parse.boolean, doc="Remove routes of others from workload interfaces."
    )
    ipv4_normal_route_priority: int = setting(
        1024, parse=_PRIORITY, name="IPv4NormalRoutePriority", doc="Metric of routes."
    )
    ipv6_normal_route_priority: int = setting(
        1024, parse=_PRIORITY, name="IPv6NormalRoutePriority", doc="Metric of routes."
    )
    nat_port_range: PortRange | None = setting(
        None,
        parse=forms.optional(parse.port_range),
        name="NATPortRange",
        doc="Source ports of NAT outgoing.",
    )
    nat_outgoing_address: IPAddress | None = setting(
        None,
        parse=forms.optional(parse.address_v4),
        name="NATOutgoingAddress",
        doc="Source address of NAT outgoing; not set: masquerade.",
    )
    nat_outgoing_exclusions: str = setting(
        "IPPoolsOnly",
        parse=parse.one_of("IPPoolsOnly", "IPPoolsAndHostIPs"),
        name="NATOutgoingExclusions",
        doc="Destinations that are not NATed.",
    )
    vxlan_port: int = setting(4789, parse=parse.port, name="VXLANPort", doc="UDP port of VXLAN.")

    # --- pods while the datastore is away; local: it must hold when nobody can be asked ---
    ipam_offline_allocation: str = param(
        "Disabled",
        parse=_SWITCH,
        name="IPAMOfflineAllocation",
        local_only=True,
        doc="Start pods with addresses set aside beforehand while etcd does not answer.",
    )
    ipam_offline_reserve: int = param(
        16,
        parse=parse.integer(1, 1024),
        name="IPAMOfflineReserve",
        local_only=True,
        doc="Addresses set aside for that, of each family.",
    )

    # --- reports ---
    reporting_interval_s: float = setting(
        30.0,
        parse=parse.seconds,
        name="ReportingIntervalSecs",
        doc="Alive report into the datastore; 0: none.",
    )
    reporting_ttl_s: float = setting(
        90.0, parse=parse.seconds, name="ReportingTTLSecs", doc="Life of that report."
    )
    policy_realization_reporting: str = setting(
        "Enabled",
        parse=_SWITCH,
        doc="Say in the datastore which policies are in force here (`calicoctl get … -o wide`);"
        " every ReportingIntervalSecs, or 30 s where that is 0.",
    )
    endpoint_reporting_enabled: bool = setting(
        False, parse=parse.boolean, doc="Report endpoint status into the datastore."
    )
    endpoint_reporting_delay_s: float = setting(
        1.0,
        parse=parse.seconds,
        name="EndpointReportingDelaySecs",
        doc="Pause between two status writes.",
    )
    endpoint_status_path_prefix: str | None = setting(
        None,
        parse=forms.optional(parse.text),
        zero="",
        doc="Status files go under here; not set: the run directory, none: no files.",
    )

    stale_endpoint_sweep_interval_s: float = param(
        300.0,
        parse=parse.seconds,
        name="StaleEndpointSweepIntervalSecs",
        doc="Endpoints whose container is gone without a DEL are looked for; 0: never.",
    )
    stale_endpoint_grace_s: float = param(
        60.0,
        parse=parse.seconds,
        name="StaleEndpointGraceSecs",
        doc="So long must a container be gone before its endpoint is removed.",
    )

    # --- health, metrics, logs, debugging ---
    health_enabled: bool = setting(False, parse=parse.boolean, doc="Serve /liveness, /readiness.")
    health_host: str = setting("localhost", parse=parse.text, doc="Address to serve them on.")
    health_port: int = setting(9099, parse=parse.port, doc="Port to serve them on.")
    health_timeout_overrides: tuple[NamedTimeout, ...] = setting(
        (), parse=forms.health_timeouts, doc="name=duration,…: timeouts of single reporters."
    )
    prometheus_metrics_enabled: bool = setting(False, parse=parse.boolean, doc="Serve /metrics.")
    prometheus_metrics_host: str = setting(
        "",
        parse=parse.matching(r"[a-zA-Z0-9:._+-]{1,64}", what="host"),
        doc="Address to serve them on; empty: all.",
    )
    prometheus_metrics_port: int = setting(9091, parse=parse.port, doc="Port to serve them on.")
    prometheus_go_metrics_enabled: bool = setting(
        True, parse=parse.boolean, doc="Include metrics of the language runtime."
    )
    prometheus_process_metrics_enabled: bool = setting(
        True, parse=parse.boolean, doc="Include metrics of the process."
    )
    prometheus_metrics_ca_file: str = setting(
        "",
        parse=parse.text,
        name="PrometheusMetricsCAFile",
        doc="CA that signs the clients of /metrics.",
    )
    prometheus_metrics_cert_file: str = setting(
        "", parse=parse.text, doc="Certificate of /metrics; empty: plain HTTP."
    )
    prometheus_metrics_key_file: str = setting("", parse=parse.text, doc="Key of /metrics.")
    prometheus_metrics_client_auth: str = setting(
        "NoClientCert",
        parse=parse.one_of(
            "RequireAndVerifyClientCert",
            "RequireAnyClientCert",
            "VerifyClientCertIfGiven",
            "NoClientCert",
        ),
        doc="What a client of /metrics must show.",
    )
    # Typha: where it is, and how the two know each other.
    typha_addr: tuple[Target, ...] = param(
        (),
        parse=parse_targets,
        local_only=True,
        doc="host:port of typhas, comma-separated (tcp:// without TLS, etcd:// as registered);"
        " empty: the datastore itself.",
    )
    typha_mode: str = param(
        "full",
        parse=parse.one_of("full", "spans"),
        local_only=True,
        doc="spans: take from typha what concerns this node (a typha with TYPHA_MODE=spans).",
    )
    typha_read_timeout_s: float = param(
        30.0, parse=parse.seconds, local_only=True, doc="Silence after which typha is left."
    )
    typha_write_timeout_s: float = param(
        10.0, parse=parse.seconds, local_only=True, doc="Time to write one message to typha."
    )
    typha_key_file: str = param("", parse=parse.text, local_only=True, doc="Client key for typha.")
    typha_cert_file: str = param(
        "", parse=parse.text, local_only=True, doc="Client certificate for typha."
    )
    typha_ca_file: str = param(
        "", parse=parse.text, local_only=True, name="TyphaCAFile", doc="CA certificate of typha."
    )
    typha_cn: str = param(
        "", parse=parse.text, local_only=True, name="TyphaCN", doc="Common name typha must show."
    )
    typha_uri_san: str = param(
        "", parse=parse.text, local_only=True, name="TyphaURISAN", doc="URI SAN typha must show."
    )
    log_severity_screen: str = param("INFO", parse=_SEVERITY, doc="Least severity on stderr.")
    debug_simulate_calc_graph_hang_after_s: float = setting(
        0.0, parse=parse.seconds, doc="Prove that a hanging calculation is noticed."
    )
    debug_simulate_dataplane_hang_after_s: float = setting(
        0.0, parse=parse.seconds, doc="Prove that a hanging dataplane is noticed."
    )
    debug_simulate_dataplane_apply_delay_s: float = setting(
        0.0, parse=parse.seconds, doc="Make every apply slower."
    )


SCHEMA: Schema[FelixConfig] = Schema.of(FelixConfig, prefix=ENV_PREFIX)


def typha_client(config: FelixConfig) -> TyphaClientConfig:
    """What felix's own rows say about typha."""
    return TyphaClientConfig(
        addr=config.typha_addr,
        mode=config.typha_mode,
        read_timeout_s=config.typha_read_timeout_s,
        write_timeout_s=config.typha_write_timeout_s,
        key_file=config.typha_key_file,
        cert_file=config.typha_cert_file,
        ca_file=config.typha_ca_file,
        cn=config.typha_cn,
        uri_san=config.typha_uri_san,
    )


def etcd_environment(config: FelixConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the ETCD_* variables that felix's own etcd parameters override.

    Calico's felix reads the common ETCD_* variables first and lets its own parameters win.
    """
    endpoints = ",".join(config.etcd_endpoints)
    if not endpoints and config.etcd_addr:
        endpoints = f"{config.etcd_scheme}://{config.etcd_addr}"
    own = {
        "ETCD_ENDPOINTS": endpoints,
        "ETCD_KEY_FILE": config.etcd_key_file,
        "ETCD_CERT_FILE": config.etcd_cert_file,
        "ETCD_CA_CERT_FILE": config.etcd_ca_file,
    }
    return {**environ, **{name: value for name, value in own.items() if value}}
