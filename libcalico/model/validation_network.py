"""Tables for pools, IPAM settings and BGP.

Layer: libcalico.model, pure. User: validation.

Source: reference/datamodel.md 1.9, 4.5; Calico LCG/validator/v3/validator.go,
LCG/clientv3/{ippool,bgpconfig}.go, api/.../v3/{ippool,bgppeer,bgpconfig,bgpfilter}.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from libcalico import net
from libcalico.errors import FieldError, ValidationError
from libcalico.model.bgp import (
    BGPConfiguration,
    BGPConfigurationSpec,
    BGPPeerSpec,
    Community,
    PrefixAdvertisement,
    ServiceClusterIPBlock,
    ServiceExternalIPBlock,
    ServiceLoadBalancerIPBlock,
)
from libcalico.model.bgp_filter import (
    BGPFilterAddCommunity,
    BGPFilterCommunityMatch,
    BGPFilterOperation,
    BGPFilterPrefixLengthV4,
    BGPFilterPrefixLengthV6,
    BGPFilterPrependASPath,
    BGPFilterRuleV4,
    BGPFilterRuleV6,
    BGPFilterSetPriority,
)
from libcalico.model.defaults import DEFAULT_BLOCK_SIZE
from libcalico.model.ippool import (
    BlockAffinitySpec,
    IPAMConfigSpec,
    IPAMConfigurationSpec,
    IPPoolSpec,
    IPReservationSpec,
)
from libcalico.model.meta import Model
from libcalico.model.validation_rules import (
    REQUIRED,
    Cel,
    Member,
    Report,
    StructRules,
    gt,
    gte,
    lte,
)
from libcalico.model.validation_tags import (
    BGP_FILTER_INTERFACE,
    IGNORED_INTERFACE,
    IP_PORT,
    IPV4,
    IPV6,
    NAME,
    NET,
    NET_V4,
    NET_V6,
    REACHABLE_BY,
    SELECTOR,
    address_of,
    cidr_of,
    network_of,
    split_peer_ip,
)

_ENCAP_MODES = ("Never", "Always", "CrossSubnet")
_LINK_LOCAL = {4: net.parse_cidr("169.254.0.0/16"), 6: net.parse_cidr("fe80::/10")}
_SELECTOR = Member(tags=(SELECTOR,), max_length=1024)
_PRIORITY = Member(tags=(gte(1), lte(2147483646)), minimum=1, maximum=2147483646)

# -- pools ------------------------------------------------------------------------------------


def check_pool_cidr(cidr: str) -> None:
    """What must be right before anything else about a pool can be said.

    Errors: ValidationError, alone: Calico stops here too.
    """
    if not cidr:
        raise ValidationError(FieldError("IPPool.Spec.CIDR", None, "IPPool CIDR must be specified"))
    if "/" not in cidr or cidr_of(cidr) is None:
        reason = "IPPool CIDR must be a valid subnet"
        raise ValidationError(FieldError("IPPool.Spec.CIDR", cidr, reason))


def _check_pool(spec: IPPoolSpec, report: Report) -> None:
    try:
        net.parse_strict_cidr(spec.cidr)
    except net.AddressError:
        report.reason("IPPool.Spec.CIDR", spec.cidr, "IPPool CIDR is not strictly masked")


def _on_cidr(holds: Callable[[IPPoolSpec, net.Network], bool]) -> Callable[[IPPoolSpec], bool]:
    """A rule about a pool's network, which holds when there is none to judge."""

    def rule(spec: IPPoolSpec) -> bool:
        network = cidr_of(spec.cidr)
        return network is None or holds(spec, network)

    return rule


def _encapsulated(mode: str | None) -> bool:
    return mode in ("Always", "CrossSubnet")


def _block_size(spec: IPPoolSpec, version: int) -> int:
    return spec.block_size or DEFAULT_BLOCK_SIZE[version]


def _block_size_holds(spec: IPPoolSpec, network: net.Network) -> bool:
    low, high = (20, 32) if network.version == 4 else (116, 128)
    return low <= _block_size(spec, network.version) <= high


def _away_from_link_local(version: int) -> Callable[[IPPoolSpec], bool]:
    return _on_cidr(lambda _, network: not net.overlap(network, _LINK_LOCAL[version]))


def _is_balancer(spec: IPPoolSpec) -> bool:
    return "LoadBalancer" in spec.allowed_uses


_POOL_CEL = (
    Cel(
        lambda spec: not (_encapsulated(spec.ipip_mode) and _encapsulated(spec.vxlan_mode)),
        "ipipMode and vxlanMode cannot both be enabled",
    ),
    Cel(
        lambda spec: (
            not _is_balancer(spec)
            or not (_encapsulated(spec.ipip_mode) or _encapsulated(spec.vxlan_mode))
        ),
        "LoadBalancer IP pool cannot have IPIP or VXLAN enabled",
    ),
    Cel(
        lambda spec: not _is_balancer(spec) or set(spec.allowed_uses) == {"LoadBalancer"},
        "LoadBalancer cannot be combined with Workload or Tunnel allowed uses",
    ),
    Cel(
        _on_cidr(lambda spec, network: network.version == 4 or not _encapsulated(spec.ipip_mode)),
        "IPIP is not supported on IPv6 pools",
    ),
    Cel(
        lambda spec: not (_is_balancer(spec) and spec.disable_bgp_export),
        "LoadBalancer IP pools cannot disable BGP export",
    ),
    Cel(
        lambda spec: not _is_balancer(spec) or spec.node_selector in (None, "", "all()"),
        "IP Pool with AllowedUse LoadBalancer must have nodeSelector set to all()",
    ),
    Cel(
        lambda spec: not (spec.namespace_selector and "Tunnel" in spec.allowed_uses),
        "IP Pool with AllowedUse Tunnel cannot have namespaceSelector",
    ),
    Cel(
        lambda spec: "global(" not in (spec.node_selector or ""),
        "global() selector is not valid for IPPool nodeSelector",
    ),
    Cel(
        lambda spec: "global(" not in (spec.namespace_selector or ""),
        "global() selector is not valid for IPPool namespaceSelector",
    ),
    Cel(
        _away_from_link_local(4),
        "IPPool CIDR overlaps with IPv4 link local range 169.254.0.0/16",
    ),
    Cel(_away_from_link_local(6), "IPPool CIDR overlaps with IPv6 link local range fe80::/10"),
    Cel(
        _on_cidr(_block_size_holds),
        "blockSize must be between 20 and 32 for IPv4 pools, and between 116 and 128 for IPv6"
        " pools",
    ),
    Cel(
        _on_cidr(
            lambda spec, network: (
                spec.disabled or network.prefixlen <= _block_size(spec, network.version)
            )
        ),
        "IP pool size is too small for use with Calico IPAM. It must be equal to or greater than"
        " the block size.",
    ),
)


def _check_affinity(spec: BlockAffinitySpec, report: Report) -> None:
    if spec.deleted == "true":
        report.reason("Spec.Deleted", None, 'spec.Deleted cannot be set to "true"')


def _check_max_blocks(spec: IPAMConfigurationSpec, report: Report) -> None:
    if (spec.max_blocks_per_host or 0) < 0:
        reason = "must be greater than or equal to 0"
        report.reason("MaxBlocksPerHost", spec.max_blocks_per_host, reason)


def _ipam_members(max_blocks: int) -> dict[str, Member]:
    return {
        "maxBlocksPerHost": Member(minimum=0, maximum=max_blocks),
        "kubeVirtVMAddressPersistence": Member(enum=("Enabled", "Disabled")),
        "ipCooldownSeconds": Member(minimum=0, maximum=1200),
    }


# -- BGP --------------------------------------------------------------------------------------

_STANDARD = re.compile(r"[0-9]+:[0-9]+")
_LARGE = re.compile(r"[0-9]+:[0-9]+:[0-9]+")
_COMMUNITY_PATTERN = r"^(\d+):(\d+)$|^(\d+):(\d+):(\d+)$"
_N16 = (
    "([0-9]|[1-9][0-9]{1,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
_N32 = (
    "([0-9]|[1-9][0-9]{1,8}|[1-3][0-9]{9}|4[0-1][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}"
    "|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[0-1][0-9]{2}"
    "|42949672[0-8][0-9]|429496729[0-5])"
)
_FILTER_COMMUNITY = f"^({_N16}:{_N16}|{_N32}:{_N32}:{_N32})$"


def _check_community(text: str, field: str, report: Report) -> bool:
    """Whether a text looks like a community; numbers too large for one are told."""
    if _STANDARD.fullmatch(text):
        bits = 16
    elif _LARGE.fullmatch(text):
        bits = 32
    else:
        return False
    for number in text.split(":"):
        if int(number) >= 1 << bits:
            report.reason(field, text, f"invalid community value, expected {bits} bit value")
    return True


def _check_communities(spec: BGPConfigurationSpec, report: Report) -> None:
    for community in spec.communities:
        field = "Spec.Communities[].Value"
        if not _check_community(community.value or "", field, report):
            report.reason(field, community.value, "invalid community value or format used.")
    defined = {community.name for community in spec.communities}
    for advertisement in spec.prefix_advertisements:
        if network_of(advertisement.cidr or "") is None:
            field = "Spec.PrefixAdvertisement[].CIDR"
            report.reason(field, advertisement.cidr, "invalid CIDR value.")
        for text in advertisement.communities:
            field = "Spec.PrefixAdvertisement[].Communities[]"
            if not _check_community(text, field, report) and text not in defined:
                report.reason(field, text, "community used is invalid or not defined.")


_DEFAULT_ONLY = (
    ("node_to_node_mesh_enabled", "NodeToNodeMeshEnabled", "nodeToNodeMeshEnabled"),
    ("as_number", "ASNumber", "ASNumber"),
    ("service_load_balancer_ips", "ServiceLoadBalancerIPs", "ServiceLoadBalancerIPs"),
    ("service_external_ips", "ServiceExternalIPs", "ServiceExternalIPs"),
    ("service_cluster_ips", "ServiceClusterIPs", "ServiceClusterIPs"),
    ("node_mesh_password", "NodeMeshPassword", "nodeMeshPassword"),
    ("node_mesh_max_restart_time", "NodeMeshMaxRestartTime", "nodeMeshMaxRestartTime"),
)


def _check_default_only(config: BGPConfiguration, report: Report) -> None:
    if config.metadata.name == "default":
        return
    for attribute, field, shown in _DEFAULT_ONLY:
        if getattr(config.spec, attribute) not in (None, ()):
            reason = f"Cannot set {shown} on a non default BGP Configuration."
            report.reason(f"BGPConfiguration.Spec.{field}", None, reason)


def _check_reachable_by(spec: BGPPeerSpec, report: Report) -> None:
    if not spec.reachable_by or not spec.peer_ip:
        return
    gateway, peer = address_of(spec.reachable_by), split_peer_ip(spec.peer_ip)
    if gateway is None:
        report.reason("ReachableBy", spec.reachable_by, "ReachableBy is invalid address")
    elif peer is None:
        report.reason("PeerIP", spec.peer_ip, "PeerIP is invalid address")
    elif gateway.version != peer.version:
        reason = "ReachableBy and PeerIP address family mismatched"
        report.reason("ReachableBy", spec.reachable_by, reason)


def _not_both(first: str, second: str) -> Callable[[BGPPeerSpec], bool]:
    return lambda spec: not (getattr(spec, first) and getattr(spec, second))


_PEER_CEL = (
    Cel(_not_both("node", "node_selector"), "node and nodeSelector cannot both be set"),
    Cel(_not_both("peer_ip", "peer_selector"), "peerIP and peerSelector cannot both be set"),
    Cel(
        _not_both("peer_selector", "as_number"),
        "asNumber must be empty when peerSelector is set",
    ),
    Cel(
        _not_both("local_workload_selector", "peer_ip"),
        "peerIP must be empty when localWorkloadSelector is set",
    ),
    Cel(
        _not_both("local_workload_selector", "peer_selector"),
        "peerSelector must be empty when localWorkloadSelector is set",
    ),
    Cel(
        lambda spec: not spec.local_workload_selector or bool(spec.as_number),
        "asNumber is required when localWorkloadSelector is set",
    ),
    Cel(
        lambda spec: not spec.reachable_by or bool(spec.peer_ip),
        "reachableBy must be empty when peerIP is empty",
    ),
    Cel(
        lambda spec: not (spec.keep_original_next_hop and spec.next_hop_mode is not None),
        "keepOriginalNextHop and nextHopMode cannot both be set; keepOriginalNextHop is"
        " deprecated, use nextHopMode instead",
    ),
)

_CONFIGURATION_CEL = (
    Cel(
        lambda spec: spec.node_to_node_mesh_enabled is not False or spec.node_mesh_password is None,
        "nodeMeshPassword cannot be set when nodeToNodeMeshEnabled is false",
    ),
    Cel(
        lambda spec: (
            spec.node_to_node_mesh_enabled is not False or spec.node_mesh_max_restart_time is None
        ),
        "nodeMeshMaxRestartTime cannot be set when nodeToNodeMeshEnabled is false",
    ),
    Cel(
        lambda spec: not spec.communities or bool(spec.prefix_advertisements),
        "communities are defined but not used in prefixAdvertisements",
    ),
)


def _one_operation(operation: BGPFilterOperation) -> bool:
    parts = (operation.add_community, operation.prepend_as_path, operation.set_priority)
    return sum(part is not None for part in parts) == 1


_FILTER_CEL = (
    Cel(
        lambda rule: bool(rule.cidr) == bool(rule.match_operator),
        "cidr and matchOperator must both be set or both be empty",
    ),
    Cel(
        lambda rule: rule.prefix_length is None or bool(rule.cidr),
        "cidr is required when prefixLength is set",
    ),
    Cel(
        lambda rule: not rule.operations or rule.action == "Accept",
        "operations may only be used with action Accept",
    ),
)


def _filter_members(cidr: Member) -> dict[str, Member]:
    return {
        "cidr": cidr,
        "source": Member(enum=("RemotePeers",)),
        "interface": Member(tags=(BGP_FILTER_INTERFACE,)),
        "matchOperator": Member(enum=("Equal", "NotEqual", "In", "NotIn")),
        "peerType": Member(enum=("eBGP", "iBGP")),
        "priority": _PRIORITY,
        "action": Member(always=(REQUIRED,), required=True, enum=("Accept", "Reject")),
        "operations": Member(min_items=1, max_items=10),
    }


def _prefix_length(longest: int) -> StructRules:
    bound = Member(minimum=0, maximum=longest)
    return StructRules({"min": bound, "max": bound})


_SERVICE_BLOCK = StructRules({"cidr": Member(tags=(NET,))})

TABLES: dict[type[Model], StructRules] = {
    IPPoolSpec: StructRules(
        {
            "cidr": Member(required=True, format_cidr=True, max_length=48),
            "vxlanMode": Member(enum=_ENCAP_MODES),
            "ipipMode": Member(enum=_ENCAP_MODES),
            "nodeSelector": _SELECTOR,
            "namespaceSelector": _SELECTOR,
            "allowedUses": Member(each_enum=("Workload", "Tunnel", "LoadBalancer"), unique=True),
            "assignmentMode": Member(enum=("Automatic", "Manual")),
        },
        go=(_check_pool,),
        cel=_POOL_CEL,
    ),
    IPReservationSpec: StructRules({"reservedCIDRs": Member(each_format_cidr=True, unique=True)}),
    IPAMConfigurationSpec: StructRules(_ipam_members(1_000_000), go=(_check_max_blocks,)),
    IPAMConfigSpec: StructRules(_ipam_members(2**31 - 1), go=(_check_max_blocks,)),
    BlockAffinitySpec: StructRules(
        {
            "state": Member(enum=("", "confirmed", "pending", "pendingDeletion")),
            "type": Member(enum=("host", "virtual")),
            "cidr": Member(format_cidr=True),
        },
        go=(_check_affinity,),
    ),
    ServiceLoadBalancerIPBlock: _SERVICE_BLOCK,
    ServiceExternalIPBlock: _SERVICE_BLOCK,
    ServiceClusterIPBlock: _SERVICE_BLOCK,
    Community: StructRules(
        {
            "name": Member(always=(REQUIRED, NAME)),
            "value": Member(always=(REQUIRED,), pattern=_COMMUNITY_PATTERN),
        }
    ),
    PrefixAdvertisement: StructRules(
        {
            "cidr": Member(always=(REQUIRED, NET)),
            "communities": Member(always=(REQUIRED,), max_items=50),
        }
    ),
    BGPConfigurationSpec: StructRules(
        {
            # Any case: Calico folds it before the schema sees it.
            "logSeverityScreen": Member(pattern="^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$"),
            "serviceLoadBalancerAggregation": Member(enum=("Enabled", "Disabled")),
            "communities": Member(max_items=500),
            "prefixAdvertisements": Member(max_items=500),
            "listenPort": Member(tags=(gt(0),), minimum=1, maximum=65535),
            "bindMode": Member(enum=("None", "NodeIP")),
            "ignoredInterfaces": Member(each=(IGNORED_INTERFACE,), unique=True),
            "localWorkloadPeeringIPV4": Member(tags=(IPV4,)),
            "localWorkloadPeeringIPV6": Member(tags=(IPV6,)),
            "programClusterRoutes": Member(
                enum=("Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly")
            ),
            "ipv4NormalRoutePriority": _PRIORITY,
            "ipv6NormalRoutePriority": _PRIORITY,
        },
        go=(_check_communities,),
        cel=_CONFIGURATION_CEL,
    ),
    BGPConfiguration: StructRules(go=(_check_default_only,)),
    BGPPeerSpec: StructRules(
        {
            "node": Member(tags=(NAME,), max_length=253),
            "nodeSelector": _SELECTOR,
            "peerIP": Member(tags=(IP_PORT,), max_length=64),
            "peerSelector": _SELECTOR,
            "nextHopMode": Member(enum=("Auto", "Self", "Keep")),
            "sourceAddress": Member(enum=("UseNodeIP", "None")),
            "reachableBy": Member(tags=(REACHABLE_BY,), max_length=64),
            "localWorkloadSelector": _SELECTOR,
            "reversePeering": Member(enum=("Auto", "Manual")),
        },
        go=(_check_reachable_by,),
        cel=_PEER_CEL,
    ),
    BGPFilterPrefixLengthV4: _prefix_length(32),
    BGPFilterPrefixLengthV6: _prefix_length(128),
    BGPFilterCommunityMatch: StructRules(
        {
            "values": Member(
                always=(REQUIRED,),
                min_items=1,
                max_items=1,
                each_max_length=32,
                each_pattern=_FILTER_COMMUNITY,
            )
        }
    ),
    BGPFilterAddCommunity: StructRules(
        {"value": Member(required=True, max_length=32, pattern=_FILTER_COMMUNITY)}
    ),
    BGPFilterPrependASPath: StructRules(
        {"prefix": Member(required=True, min_items=1, max_items=10)}
    ),
    BGPFilterSetPriority: StructRules({"value": Member(minimum=1, maximum=2147483646)}),
    BGPFilterOperation: StructRules(
        cel=(Cel(_one_operation, "exactly one operation must be set"),)
    ),
    BGPFilterRuleV4: StructRules(
        _filter_members(Member(tags=(NET_V4,), format_cidr=True, max_length=18)), cel=_FILTER_CEL
    ),
    BGPFilterRuleV6: StructRules(
        _filter_members(Member(tags=(NET_V6,), format_cidr=True, max_length=43)), cel=_FILTER_CEL
    ),
}
