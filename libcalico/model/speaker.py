"""The file that confd renders for calico-bgp beside exabgp.conf: what the RIB needs to know.

Layer: data. Written by confd (`speaker.json`), read by bgp. exabgp.conf carries the sessions
(addresses, AS numbers, timers, MD5, families); this file carries what ExaBGP has no words for.

Generation rule: confd writes exabgp.conf first, then speaker.json whose `exabgp_sha256` is the
hex digest of that exabgp.conf, each by rename. A reader that finds a mismatch waits for the next
change; so the two are always taken together.
JSON member names are the attribute names. Addresses and CIDRs are canonical text. Peers are
matched to ExaBGP neighbours by `address`.
"""

from __future__ import annotations

import enum

import msgspec

from libcalico.model.bgp_filter import BGPFilterRuleV4, BGPFilterRuleV6


class Drain(enum.StrEnum):
    """How far a node is taken out of service (RFC 8326), the value of its Node's annotation."""

    NONE = ""
    GRACEFUL_SHUTDOWN = "graceful-shutdown"  # everything is announced as the last resort
    WITHDRAWN = "withdrawn"  # nothing is announced


class LocalBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block whose confirmed affinity is this node. /32 and /128 blocks get no blackhole."""

    cidr: str
    blackhole: bool = True
    export: bool = True


class PoolExport(msgspec.Struct, frozen=True, kw_only=True):
    """An enabled or disabled pool as far as advertising goes; modes as in IPPool."""

    cidr: str
    export: bool = True
    ipip_mode: str = "Never"
    vxlan_mode: str = "Never"


class PrefixAdvertisement(msgspec.Struct, frozen=True, kw_only=True):
    """Communities added to routes inside `cidr`: "aa:nn" standard, "aa:nn:mm" large."""

    cidr: str
    communities: tuple[str, ...] = ()
    large_communities: tuple[str, ...] = ()


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """One BGPFilter, rules in order; the first match wins, no match continues."""

    name: str
    export_v4: tuple[BGPFilterRuleV4, ...] = ()
    import_v4: tuple[BGPFilterRuleV4, ...] = ()
    export_v6: tuple[BGPFilterRuleV6, ...] = ()
    import_v6: tuple[BGPFilterRuleV6, ...] = ()


class PeerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One neighbour. `name` is Calico's protocol name (Mesh_10_0_0_2, Node_..., Global_...).

    `kind`: mesh, node, global, local_workload. `next_hop_mode`: Auto, Self, Keep.
    `rr_client`: we reflect to it with `cluster_id`. Filter names in order of evaluation.
    `restart_time_s` 0 means graceful restart off."""

    name: str
    address: str
    kind: str
    remote_as: int
    local_as: int
    rr_client: bool = False
    cluster_id: str = ""
    next_hop_mode: str = "Auto"
    keep_original_next_hop: bool = False
    filters: tuple[str, ...] = ()
    allowed_local_as: int = 0
    restart_time_s: int = 120
    is_calico_node: bool = False


class KernelExport(msgspec.Struct, frozen=True, kw_only=True):
    """How learned routes reach the kernel. `program_cluster_routes` as BGPConfiguration's.

    `metric` is IPv4's."""

    table: int = 254
    protocol: int = 186
    metric: int = 1024
    metric_v6: int = 1024
    program_cluster_routes: str = "EnabledNoEncapOnly"

    def metric_of(self, version: int) -> int:
        return self.metric if version == 4 else self.metric_v6


class SpeakerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, in one file; identical input renders identical bytes.

    `listen_addresses` empty: every address of the node (Calico's bindMode None); otherwise the
    node's own (bindMode NodeIP). `listen_port` is ours; a peer's port is in exabgp.conf."""

    exabgp_sha256: str
    node_name: str
    router_id: str
    local_as: int
    ipv4_address: str | None = None
    ipv6_address: str | None = None
    workload_interface_prefixes: tuple[str, ...] = ("cali",)
    cluster_id: str = ""
    listen_port: int = 179
    listen_addresses: tuple[str, ...] = ()
    blocks: tuple[LocalBlock, ...] = ()
    pools: tuple[PoolExport, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    prefix_advertisements: tuple[PrefixAdvertisement, ...] = ()
    filters: tuple[Filter, ...] = ()
    peers: tuple[PeerOptions, ...] = ()
    kernel: KernelExport = KernelExport()
    log_severity: str = "Info"
    drain: Drain = Drain.NONE
