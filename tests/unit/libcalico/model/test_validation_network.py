"""libcalico.model.validation_network: pools, IPAM settings, BGP; fragment -> exact failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libcalico.model.codec import decode
from libcalico.model.defaults import with_defaults
from libcalico.model.validation import problems

SIZE = (
    "spec (IP pool size is too small for use with Calico IPAM. It must be equal to or greater than"
    " the block size.)"
)
BLOCK = (
    "spec (blockSize must be between 20 and 32 for IPv4 pools, and between 116 and 128 for IPv6"
    " pools)"
)
MODES = 'supported values: "Never", "Always", "CrossSubnet"'


def failures(kind: str, spec: dict[str, Any], name: str = "default", **flags: bool) -> list[str]:
    document = {"kind": kind, "metadata": {"name": name}, "spec": spec}
    resource = decode(kind, json.dumps(document).encode(), 1)
    if flags.get("defaults", False):
        resource = with_defaults(resource)
    return [error.detail() for error in problems(resource)]


def tag(field: str, name: str) -> str:
    return f"(Reason: failed to validate Field: {field} because of Tag: {name} )"


POOLS: list[tuple[dict[str, Any], list[str]]] = [
    ({"cidr": "10.0.0.0/16"}, []),
    ({"cidr": "fd00::/48"}, []),
    ({"cidr": ""}, ["IPPool.Spec.CIDR (IPPool CIDR must be specified)"]),
    (
        {"cidr": "10.0.0.0"},
        ["IPPool.Spec.CIDR = '10.0.0.0' (IPPool CIDR must be a valid subnet)"],
    ),
    ({"cidr": "pool"}, ["IPPool.Spec.CIDR = 'pool' (IPPool CIDR must be a valid subnet)"]),
    (
        {"cidr": "10.0.0.1/16"},
        ["IPPool.Spec.CIDR = '10.0.0.1/16' (IPPool CIDR is not strictly masked)"],
    ),
    ({"cidr": "10.0.0.0/16", "vxlanMode": "always"}, [f"spec.vxlanMode ({MODES})"]),
    ({"cidr": "10.0.0.0/16", "ipipMode": "Sometimes"}, [f"spec.ipipMode ({MODES})"]),
    (
        {"cidr": "10.0.0.0/16", "ipipMode": "Always", "vxlanMode": "CrossSubnet"},
        ["spec (ipipMode and vxlanMode cannot both be enabled)"],
    ),
    (
        {"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"], "vxlanMode": "Always"},
        ["spec (LoadBalancer IP pool cannot have IPIP or VXLAN enabled)"],
    ),
    (
        {"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer", "Tunnel"]},
        ["spec (LoadBalancer cannot be combined with Workload or Tunnel allowed uses)"],
    ),
    (
        {"cidr": "fd00::/48", "ipipMode": "Always"},
        ["spec (IPIP is not supported on IPv6 pools)"],
    ),
    (
        {"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"], "disableBGPExport": True},
        ["spec (LoadBalancer IP pools cannot disable BGP export)"],
    ),
    (
        {"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"], "nodeSelector": "has(rack)"},
        ["spec (IP Pool with AllowedUse LoadBalancer must have nodeSelector set to all())"],
    ),
    (
        {"cidr": "10.0.0.0/16", "namespaceSelector": "has(team)"},
        ["spec (IP Pool with AllowedUse Tunnel cannot have namespaceSelector)"],
    ),
    (
        {"cidr": "10.0.0.0/16", "namespaceSelector": "has(a)", "allowedUses": ["Workload"]},
        [],
    ),
    (
        {"cidr": "10.0.0.0/16", "nodeSelector": "global()"},
        ["spec (global() selector is not valid for IPPool nodeSelector)"],
    ),
    (
        {
            "cidr": "10.0.0.0/16",
            "namespaceSelector": "global()",
            "allowedUses": ["Workload"],
        },
        ["spec (global() selector is not valid for IPPool namespaceSelector)"],
    ),
    (
        {"cidr": "10.0.0.0/16", "nodeSelector": "rack"},
        [f"NodeSelector = 'rack' {tag('NodeSelector', 'selector')}"],
    ),
    (
        {"cidr": "169.254.0.0/17"},
        ["spec (IPPool CIDR overlaps with IPv4 link local range 169.254.0.0/16)"],
    ),
    (
        {"cidr": "fe00::/8"},
        ["spec (IPPool CIDR overlaps with IPv6 link local range fe80::/10)"],
    ),
    ({"cidr": "10.0.0.0/16", "blockSize": 19}, [BLOCK]),
    ({"cidr": "10.0.0.0/16", "blockSize": 33}, [BLOCK]),
    ({"cidr": "fd00::/48", "blockSize": 115}, [BLOCK]),
    ({"cidr": "fd00::/48", "blockSize": 116}, []),
    ({"cidr": "10.0.0.0/27"}, [SIZE]),
    ({"cidr": "10.0.0.0/27", "blockSize": 27}, []),
    ({"cidr": "10.0.0.0/27", "disabled": True}, []),
    (
        {"cidr": "10.0.0.0/16", "allowedUses": ["Workload", "Workload", "Other"]},
        [
            'spec.allowedUses[1] (Duplicate value: "Workload")',
            'spec.allowedUses[2] (supported values: "Workload", "Tunnel", "LoadBalancer")',
        ],
    ),
    (
        {"cidr": "10.0.0.0/16", "assignmentMode": "Random"},
        ['spec.assignmentMode (supported values: "Automatic", "Manual")'],
    ),
]


@pytest.mark.parametrize(("spec", "expected"), POOLS)
def test_a_pool_after_defaulting(spec, expected):
    assert failures("IPPool", spec, name="pool-a", defaults=True) == expected


COMMUNITY_BITS = "invalid community value, expected {} bit value"
UNUSED = "spec (communities are defined but not used in prefixAdvertisements)"
ADVERTISED = [{"cidr": "10.0.0.0/16", "communities": ["64512:1"]}]

OTHERS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("IPReservation", {"reservedCIDRs": ["10.0.0.1/24", "fd00::/64"]}, []),
    (
        "IPReservation",
        {"reservedCIDRs": ["10.0.0.1"]},
        ['spec.reservedCIDRs[0] (spec.reservedCIDRs[0] in body must be of type cidr: "10.0.0.1")'],
    ),
    (
        "IPAMConfiguration",
        {"maxBlocksPerHost": -1},
        [
            "MaxBlocksPerHost = '-1' (must be greater than or equal to 0)",
            "spec.maxBlocksPerHost (spec.maxBlocksPerHost in body should be greater than or equal"
            " to 0)",
        ],
    ),
    (
        "IPAMConfiguration",
        {"maxBlocksPerHost": 1000001, "ipCooldownSeconds": 1201},
        [
            "spec.maxBlocksPerHost (spec.maxBlocksPerHost in body should be less than or equal to"
            " 1000000)",
            "spec.ipCooldownSeconds (spec.ipCooldownSeconds in body should be less than or equal"
            " to 1200)",
        ],
    ),
    (
        "IPAMConfiguration",
        {"kubeVirtVMAddressPersistence": "yes"},
        ['spec.kubeVirtVMAddressPersistence (supported values: "Enabled", "Disabled")'],
    ),
    ("IPAMConfig", {"maxBlocksPerHost": 2147483647}, []),
    (
        "BlockAffinity",
        {"state": "confirmed", "node": "n", "cidr": "10.0.0.0/26", "deleted": "true"},
        ['Spec.Deleted (spec.Deleted cannot be set to "true")'],
    ),
    (
        "BlockAffinity",
        {"state": "taken", "node": "n", "cidr": "10.0.0.0/26", "deleted": "false"},
        ['spec.state (supported values: "", "confirmed", "pending", "pendingDeletion")'],
    ),
    # BGPConfiguration.
    ("BGPConfiguration", {"logSeverityScreen": "debug", "asNumber": 64512}, []),
    (
        "BGPConfiguration",
        {"logSeverityScreen": "Loud"},
        [
            "spec.logSeverityScreen (spec.logSeverityScreen in body should match"
            " '^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$')"
        ],
    ),
    (
        "BGPConfiguration",
        {"nodeToNodeMeshEnabled": False, "nodeMeshPassword": {"secretKeyRef": {"key": "k"}}},
        ["spec (nodeMeshPassword cannot be set when nodeToNodeMeshEnabled is false)"],
    ),
    (
        "BGPConfiguration",
        {"nodeToNodeMeshEnabled": False, "nodeMeshMaxRestartTime": "1m0s"},
        ["spec (nodeMeshMaxRestartTime cannot be set when nodeToNodeMeshEnabled is false)"],
    ),
    ("BGPConfiguration", {"communities": [{"name": "a", "value": "1:2"}]}, [UNUSED]),
    (
        "BGPConfiguration",
        {
            "communities": [{"name": "a", "value": "1:2"}],
            "prefixAdvertisements": [{"cidr": "10.0.0.0/16", "communities": ["a", "3:4"]}],
        },
        [],
    ),
    (
        "BGPConfiguration",
        {
            "communities": [{"name": "a", "value": "one"}],
            "prefixAdvertisements": ADVERTISED,
        },
        [
            "Spec.Communities[].Value = 'one' (invalid community value or format used.)",
            "spec.communities[0].value (spec.communities[0].value in body should match"
            r" '^(\d+):(\d+)$|^(\d+):(\d+):(\d+)$')",
        ],
    ),
    (
        "BGPConfiguration",
        {
            "communities": [{"name": "a", "value": "70000:1"}, {"name": "b", "value": "1:2:3"}],
            "prefixAdvertisements": ADVERTISED,
        },
        [f"Spec.Communities[].Value = '70000:1' ({COMMUNITY_BITS.format(16)})"],
    ),
    (
        "BGPConfiguration",
        {"prefixAdvertisements": [{"cidr": "10.0.0.0/16", "communities": ["1:2:4294967296"]}]},
        [
            "Spec.PrefixAdvertisement[].Communities[] = '1:2:4294967296'"
            f" ({COMMUNITY_BITS.format(32)})"
        ],
    ),
    (
        "BGPConfiguration",
        {"prefixAdvertisements": [{"cidr": "10.0.0.0/16", "communities": ["none"]}]},
        [
            "Spec.PrefixAdvertisement[].Communities[] = 'none' (community used is invalid or not"
            " defined.)"
        ],
    ),
    (
        "BGPConfiguration",
        {"prefixAdvertisements": [{"cidr": "ten", "communities": ["1:1"]}]},
        [
            f"CIDR = 'ten' {tag('CIDR', 'net')}",
            "Spec.PrefixAdvertisement[].CIDR = 'ten' (invalid CIDR value.)",
        ],
    ),
    (
        "BGPConfiguration",
        {"serviceClusterIPs": [{"cidr": "10.96.0.1/12"}]},
        [f"CIDR = '10.96.0.1/12' {tag('CIDR', 'net')}"],
    ),
    (
        "BGPConfiguration",
        {"listenPort": 0},
        [
            f"ListenPort = '0' {tag('ListenPort', 'gt')}",
            "spec.listenPort (spec.listenPort in body should be greater than or equal to 1)",
        ],
    ),
    (
        "BGPConfiguration",
        {"ignoredInterfaces": ["eth*", "*", "eth0"]},
        [f"IgnoredInterfaces[1] = '*' {tag('IgnoredInterfaces[1]', 'ignoredInterface')}"],
    ),
    (
        "BGPConfiguration",
        {"localWorkloadPeeringIPV4": "fd00::1"},
        [f"LocalWorkloadPeeringIPV4 = 'fd00::1' {tag('LocalWorkloadPeeringIPV4', 'ipv4')}"],
    ),
    (
        "BGPConfiguration",
        {"bindMode": "All"},
        ['spec.bindMode (supported values: "None", "NodeIP")'],
    ),
    (
        "BGPConfiguration",
        {"ipv6NormalRoutePriority": 0},
        [
            f"IPv6NormalRoutePriority = '0' {tag('IPv6NormalRoutePriority', 'gte')}",
            "spec.ipv6NormalRoutePriority (spec.ipv6NormalRoutePriority in body should be greater"
            " than or equal to 1)",
        ],
    ),
    # BGPPeer.
    ("BGPPeer", {"peerIP": "10.0.0.1:179", "asNumber": 64512}, []),
    ("BGPPeer", {"peerIP": "[fd00::1]:1790"}, []),
    ("BGPPeer", {"peerIP": "10.0.0.1:0"}, [f"PeerIP = '10.0.0.1:0' {tag('PeerIP', 'IP:port')}"]),
    ("BGPPeer", {"peerIP": "peer"}, [f"PeerIP = 'peer' {tag('PeerIP', 'IP:port')}"]),
    (
        "BGPPeer",
        {"node": "n", "nodeSelector": "all()"},
        ["spec (node and nodeSelector cannot both be set)"],
    ),
    (
        "BGPPeer",
        {"peerIP": "10.0.0.1", "peerSelector": "all()"},
        ["spec (peerIP and peerSelector cannot both be set)"],
    ),
    (
        "BGPPeer",
        {"asNumber": 1, "peerSelector": "all()"},
        ["spec (asNumber must be empty when peerSelector is set)"],
    ),
    (
        "BGPPeer",
        {"localWorkloadSelector": "all()", "peerIP": "10.0.0.1", "asNumber": 1},
        ["spec (peerIP must be empty when localWorkloadSelector is set)"],
    ),
    (
        "BGPPeer",
        {"localWorkloadSelector": "all()", "peerSelector": "all()"},
        [
            "spec (peerSelector must be empty when localWorkloadSelector is set)",
            "spec (asNumber is required when localWorkloadSelector is set)",
        ],
    ),
    (
        "BGPPeer",
        {"reachableBy": "10.0.0.9"},
        ["spec (reachableBy must be empty when peerIP is empty)"],
    ),
    (
        "BGPPeer",
        {"reachableBy": "fd00::9", "peerIP": "10.0.0.1:179"},
        ["ReachableBy = 'fd00::9' (ReachableBy and PeerIP address family mismatched)"],
    ),
    (
        "BGPPeer",
        {"keepOriginalNextHop": True, "nextHopMode": "Self"},
        [
            "spec (keepOriginalNextHop and nextHopMode cannot both be set; keepOriginalNextHop is"
            " deprecated, use nextHopMode instead)"
        ],
    ),
    (
        "BGPPeer",
        {"nextHopMode": "Same", "sourceAddress": "Any", "reversePeering": "On"},
        [
            'spec.nextHopMode (supported values: "Auto", "Self", "Keep")',
            'spec.sourceAddress (supported values: "UseNodeIP", "None")',
            'spec.reversePeering (supported values: "Auto", "Manual")',
        ],
    ),
    (
        "BGPPeer",
        {"maxRestartTime": "soon"},
        ["spec.maxRestartTime = 'soon' (time: invalid duration \"soon\")"],
    ),
]


@pytest.mark.parametrize(("kind", "spec", "expected"), OTHERS)
def test_a_spec(kind, spec, expected):
    assert failures(kind, spec) == expected


def test_cluster_wide_settings_stand_on_the_default_object_only():
    spec = {
        "nodeToNodeMeshEnabled": True,
        "asNumber": 1,
        "serviceLoadBalancerIPs": [{"cidr": "10.0.0.0/8"}],
        "serviceExternalIPs": [{"cidr": "10.0.0.0/8"}],
        "serviceClusterIPs": [{"cidr": "10.0.0.0/8"}],
        "nodeMeshPassword": {"secretKeyRef": {"key": "k"}},
        "nodeMeshMaxRestartTime": "1m0s",
    }
    words = (
        ("NodeToNodeMeshEnabled", "nodeToNodeMeshEnabled"),
        ("ASNumber", "ASNumber"),
        ("ServiceLoadBalancerIPs", "ServiceLoadBalancerIPs"),
        ("ServiceExternalIPs", "ServiceExternalIPs"),
        ("ServiceClusterIPs", "ServiceClusterIPs"),
        ("NodeMeshPassword", "nodeMeshPassword"),
        ("NodeMeshMaxRestartTime", "nodeMeshMaxRestartTime"),
    )
    assert failures("BGPConfiguration", spec, name="node.n1") == [
        f"BGPConfiguration.Spec.{field} (Cannot set {shown} on a non default BGP Configuration.)"
        for field, shown in words
    ]
    assert failures("BGPConfiguration", spec) == []


FILTER_RULES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("exportV4", {"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In"}, []),
    (
        "exportV4",
        {
            "action": "Accept",
            "cidr": "10.0.0.0/8",
            "matchOperator": "In",
            "prefixLength": {"min": 0, "max": 33},
        },
        [
            "spec.exportV4[0].prefixLength.max (spec.exportV4[0].prefixLength.max in body should"
            " be less than or equal to 32)"
        ],
    ),
    (
        "importV6",
        {
            "action": "Accept",
            "cidr": "fd00::/8",
            "matchOperator": "In",
            "prefixLength": {"min": -1, "max": 128},
        },
        [
            "spec.importV6[0].prefixLength.min (spec.importV6[0].prefixLength.min in body should"
            " be greater than or equal to 0)"
        ],
    ),
    (
        "exportV4",
        {"action": "Accept", "cidr": "10.0.0.0/8"},
        ["spec.exportV4[0] (cidr and matchOperator must both be set or both be empty)"],
    ),
    (
        "importV4",
        {"action": "Reject", "prefixLength": {"min": 8}},
        ["spec.importV4[0] (cidr is required when prefixLength is set)"],
    ),
    (
        "importV6",
        {"action": "Reject", "cidr": "10.0.0.0/8", "matchOperator": "Equal"},
        [f"CIDR = '10.0.0.0/8' {tag('CIDR', 'netv6')}"],
    ),
    (
        "exportV6",
        {"action": "Reject", "operations": [{"setPriority": {"value": 5}}]},
        ["spec.exportV6[0] (operations may only be used with action Accept)"],
    ),
    (
        "exportV6",
        {"action": "Accept", "operations": [{}]},
        ["spec.exportV6[0].operations[0] (exactly one operation must be set)"],
    ),
    (
        "exportV4",
        {"action": "Accept", "operations": [{"addCommunity": {"value": "1:2"}}] * 11},
        ["spec.exportV4[0].operations (may not be more than 10 items)"],
    ),
    (
        "exportV4",
        {"action": "Accept", "operations": [{"prependASPath": {"prefix": list(range(1, 12))}}]},
        ["spec.exportV4[0].operations[0].prependASPath.prefix (may not be more than 10 items)"],
    ),
    (
        "exportV4",
        {"action": "Accept", "communities": {"values": ["1:2", "3:4"]}},
        ["spec.exportV4[0].communities.values (may not be more than 1 items)"],
    ),
    ("exportV4", {"action": "Accept", "communities": {"values": ["4294967295:0:1"]}}, []),
    (
        "exportV4",
        {"action": "Maybe"},
        ['spec.exportV4[0].action (supported values: "Accept", "Reject")'],
    ),
    (
        "exportV4",
        {},
        [
            f"Action = '' {tag('Action', 'required')}",
            "spec.exportV4[0].action (Required value)",
        ],
    ),
    (
        "exportV4",
        {"action": "Accept", "interface": "a-very-long-interface"},
        [f"Interface = 'a-very-long-interface' {tag('Interface', 'bgpFilterInterface')}"],
    ),
    ("exportV4", {"action": "Accept", "interface": "*"}, []),
    (
        "exportV4",
        {"action": "Accept", "source": "All", "peerType": "mBGP", "matchOperator": "Is"},
        [
            'spec.exportV4[0].source (supported values: "RemotePeers")',
            'spec.exportV4[0].matchOperator (supported values: "Equal", "NotEqual", "In", "NotIn")',
            'spec.exportV4[0].peerType (supported values: "eBGP", "iBGP")',
            "spec.exportV4[0] (cidr and matchOperator must both be set or both be empty)",
        ],
    ),
]


@pytest.mark.parametrize(("direction", "rule", "expected"), FILTER_RULES)
def test_a_filter_rule(direction, rule, expected):
    assert failures("BGPFilter", {direction: [rule]}, name="f") == expected


@pytest.mark.parametrize("value", ["65536:1", "1:2:4294967296", "01:2", "1:2:3:4"])
def test_a_filter_community_out_of_range_is_refused(value):
    rule = {"action": "Accept", "communities": {"values": [value]}}
    (failure,) = failures("BGPFilter", {"importV4": [rule]}, name="f")
    assert failure.startswith("spec.importV4[0].communities.values[0] (")
    assert "in body should match '^((" in failure
