"""libcalico.model.validation_policy: rows of datamodel 4.4 and 4.5, fragment -> exact failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libcalico.model.codec import decode
from libcalico.model.validation import problems

NUMERIC = "rules with numeric port or port range must set protocol to TCP or UDP or SCTP"
PORTS = "rules that specify ports must set protocol to TCP or UDP or SCTP"
PORT_RANGE = "port range invalid, port number must be between 1 and 65535"
GLOBAL = "global() can only be used in an EntityRule namespaceSelector"
CATCH_ALL = "catch-all CIDR in negation creates logical contradiction (matches no traffic)"
BOTH = "rule contains both IPv4 and IPv6 CIDRs"
NAMESPACED = {
    "NetworkPolicy",
    "StagedNetworkPolicy",
    "StagedKubernetesNetworkPolicy",
    "NetworkSet",
}


def failures(kind: str, spec: dict[str, Any], name: str = "x", **metadata: Any) -> list[str]:
    metadata |= {"name": name} | ({"namespace": "prod"} if kind in NAMESPACED else {})
    document = {"kind": kind, "metadata": metadata, "spec": spec}
    return [error.detail() for error in problems(decode(kind, json.dumps(document).encode(), 1))]


def tag(field: str, name: str) -> str:
    return f"(Reason: failed to validate Field: {field} because of Tag: {name} )"


RULES: list[tuple[dict[str, Any], list[str]]] = [
    ({"action": "Allow"}, []),
    ({"action": "Log"}, []),
    ({}, ["spec.ingress[0].action (Required value)"]),
    (
        {"action": "allow"},
        ['spec.ingress[0].action (supported values: "Allow", "Deny", "Log", "Pass")'],
    ),
    (
        {"action": "Allow", "ipVersion": 5},
        ['spec.ingress[0].ipVersion (supported values: "4", "6")'],
    ),
    # Protocols.
    ({"action": "Allow", "protocol": "tcp"}, ["Protocol = 'tcp' (protocol name invalid)"]),
    ({"action": "Allow", "protocol": 0}, ["Protocol = '0' (protocol number invalid)"]),
    ({"action": "Allow", "notProtocol": "GRE"}, ["Protocol = 'GRE' (protocol name invalid)"]),
    ({"action": "Allow", "protocol": 255}, []),
    ({"action": "Allow", "protocol": "UDPLite"}, []),
    # Ports need a protocol that has them.
    (
        {"action": "Allow", "source": {"ports": [80]}},
        [f"Source.Ports = '[80]' ({NUMERIC})"],
    ),
    (
        {"action": "Allow", "source": {"notPorts": ["1:2", "http"]}},
        [f"Source.NotPorts = '[1:2 http]' ({NUMERIC})"],
    ),
    ({"action": "Allow", "destination": {"ports": ["http"]}}, []),
    (
        {"action": "Allow", "destination": {"ports": ["http", 80], "notPorts": [9]}},
        [
            f"Destination.Ports = '[http 80]' ({NUMERIC})",
            f"Destination.NotPorts = '[9]' ({NUMERIC})",
        ],
    ),
    (
        {"action": "Allow", "protocol": "ICMP", "destination": {"ports": ["http"]}},
        [f"Destination.Ports = '[http]' ({PORTS})"],
    ),
    (
        {"action": "Allow", "protocol": 47, "source": {"notPorts": [1]}},
        [f"Source.NotPorts = '[1]' ({PORTS})"],
    ),
    ({"action": "Allow", "protocol": "UDP", "source": {"ports": [1, "2:3", "dns"]}}, []),
    ({"action": "Allow", "protocol": 132, "source": {"ports": [65535]}}, []),
    (
        {"action": "Allow", "protocol": "TCP", "source": {"ports": [0]}},
        [f"Port = '0' ({PORT_RANGE})"],
    ),
    # Nets.
    (
        {"action": "Allow", "source": {"nets": ["10.0.0.1"]}},
        ["Source.Nets = '10.0.0.1' (invalid CIDR)"],
    ),
    (
        {"action": "Allow", "destination": {"notNets": ["nonsense"]}},
        [
            f"NotNets[0] = 'nonsense' {tag('NotNets[0]', 'net')}",
            "Destination.NotNets = 'nonsense' (invalid CIDR)",
        ],
    ),
    (
        {"action": "Allow", "source": {"nets": ["10.0.0.0/8", "10.0.0.1/8"]}},
        [f"Nets[1] = '10.0.0.1/8' {tag('Nets[1]', 'net')}"],
    ),
    (
        {"action": "Allow", "source": {"notNets": ["0.0.0.0/0"]}},
        [f"Source.NotNets = '0.0.0.0/0' ({CATCH_ALL})"],
    ),
    (
        {"action": "Allow", "destination": {"notNets": ["::/0"]}},
        [f"Destination.NotNets = '::/0' ({CATCH_ALL})"],
    ),
    ({"action": "Allow", "source": {"nets": ["0.0.0.0/0"]}}, []),
    (
        {"action": "Allow", "source": {"nets": ["10.0.0.0/8", "fd00::/8"]}},
        [f"Source.Nets = '[10.0.0.0/8 fd00::/8]' ({BOTH})"],
    ),
    (
        {
            "action": "Allow",
            "source": {"nets": ["10.0.0.0/8"]},
            "destination": {"nets": ["f::/16"]},
        },
        [f"Destination.Nets = '[f::/16]' ({BOTH})"],
    ),
    (
        {"action": "Allow", "ipVersion": 6, "source": {"notNets": ["10.0.0.0/8"]}},
        ["Source.NotNets = '[10.0.0.0/8]' (rule IP version doesn't match CIDR version)"],
    ),
    (
        {"action": "Allow", "ipVersion": 4, "destination": {"nets": ["fd00::/8"]}},
        ["Destination.Nets = '[fd00::/8]' (rule IP version doesn't match CIDR version)"],
    ),
    (
        {"action": "Allow", "source": {"nets": ["10.0.0.0/8", "10.0.0.0/8"]}},
        ['spec.ingress[0].source.nets[1] (Duplicate value: "10.0.0.0/8")'],
    ),
    (
        {"action": "Allow", "source": {"nets": [f"10.0.{i}.0/24" for i in range(257)][:257]}},
        [
            "Nets[256] = '10.0.256.0/24' " + tag("Nets[256]", "net"),
            "Source.Nets = '10.0.256.0/24' (invalid CIDR)",
            "spec.ingress[0].source.nets (may not be more than 256 items)",
        ],
    ),
    (
        {"action": "Allow", "protocol": "TCP", "source": {"ports": list(range(1, 52))}},
        ["spec.ingress[0].source.ports (may not be more than 50 items)"],
    ),
    # Selectors.
    (
        {"action": "Allow", "source": {"selector": "a=b"}},
        [f"Selector = 'a=b' {tag('Selector', 'selector')}"],
    ),
    (
        {"action": "Allow", "destination": {"notSelector": "a", "namespaceSelector": "b"}},
        [
            f"NamespaceSelector = 'b' {tag('NamespaceSelector', 'selector')}",
            f"NotSelector = 'a' {tag('NotSelector', 'selector')}",
        ],
    ),
    (
        {"action": "Allow", "source": {"serviceAccounts": {"selector": "!"}}},
        [f"Selector = '!' {tag('Selector', 'selector')}"],
    ),
    (
        {"action": "Allow", "source": {"selector": "global()"}},
        [f"spec.ingress[0].source ({GLOBAL})"],
    ),
    ({"action": "Allow", "source": {"namespaceSelector": " global() "}}, []),
    (
        {"action": "Allow", "source": {"namespaceSelector": "global() || has(x)"}},
        [
            "NamespaceSelector field = 'global() || has(x)' "
            "(global() cannot be combined with other selectors)"
        ],
    ),
    (
        {"action": "Allow", "source": {"selector": f"a == '{'x' * 1024}'"}},
        ["spec.ingress[0].source.selector (may not be more than 1024 bytes)"],
    ),
    # ICMP.
    ({"action": "Allow", "protocol": "ICMP", "icmp": {"type": 8, "code": 0}}, []),
    ({"action": "Allow", "protocol": 58, "icmp": {"type": 128}}, []),
    (
        {"action": "Allow", "icmp": {"type": 8}},
        ["spec.ingress[0] (ICMP fields require protocol to be ICMP or ICMPv6)"],
    ),
    ({"action": "Allow", "notICMP": {"type": 8}}, []),
    (
        {"action": "Allow", "protocol": "ICMP", "icmp": {"code": 1}},
        ["spec.ingress[0].icmp (ICMP code specified without an ICMP type)"],
    ),
    (
        {"action": "Allow", "notICMP": {"code": 1}},
        ["spec.ingress[0].notICMP (ICMP code specified without an ICMP type)"],
    ),
    (
        {"action": "Allow", "protocol": "ICMP", "icmp": {"type": 255}},
        [
            f"Type = '255' {tag('Type', 'lte')}",
            "spec.ingress[0].icmp.type (spec.ingress[0].icmp.type in body should be less than or"
            " equal to 254)",
        ],
    ),
    (
        {"action": "Allow", "protocol": "ICMP", "icmp": {"type": 3, "code": -1}},
        [
            f"Code = '-1' {tag('Code', 'gte')}",
            "spec.ingress[0].icmp.code (spec.ingress[0].icmp.code in body should be greater than"
            " or equal to 0)",
        ],
    ),
    (
        {"action": "Allow", "protocol": "ICMP", "ipVersion": 6},
        ["spec.ingress[0] (protocol ICMP requires ipVersion 4)"],
    ),
    (
        {"action": "Allow", "notProtocol": 58, "ipVersion": 4},
        ["spec.ingress[0] (protocol ICMPv6 requires ipVersion 6)"],
    ),
    ({"action": "Allow", "protocol": "ICMPv6"}, []),
    # Services.
    ({"action": "Allow", "source": {"services": {"name": "web"}}}, []),
    (
        {"action": "Allow", "destination": {"services": {"name": "web", "namespace": "n"}}},
        ["Services = '&{web n}' (not allowed in ingress rule destination)"],
    ),
    (
        {"action": "Allow", "source": {"services": {}}},
        ["spec.ingress[0].source (services must specify a service name)"],
    ),
    (
        {"action": "Allow", "source": {"services": {"name": "w"}, "namespaceSelector": "all()"}},
        ["spec.ingress[0].source (cannot specify NamespaceSelector and Services on the same rule)"],
    ),
    (
        {"action": "Allow", "source": {"services": {"name": "w"}, "serviceAccounts": {}}},
        ["spec.ingress[0].source (cannot specify ServiceAccounts and Services on the same rule)"],
    ),
    (
        {"action": "Allow", "source": {"services": {"name": "w"}, "notSelector": "all()"}},
        [
            "spec.ingress[0].source (cannot specify Selector/NotSelector and Services on the same"
            " rule)"
        ],
    ),
    (
        {"action": "Allow", "source": {"services": {"name": "w"}, "nets": ["10.0.0.0/8"]}},
        ["spec.ingress[0].source (cannot specify Nets/NotNets and Services on the same rule)"],
    ),
    (
        {"action": "Allow", "source": {"services": {"name": "W"}}},
        [f"Name = 'W' {tag('Name', 'name')}"],
    ),
    # HTTP.
    ({"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}}, []),
    (
        {"action": "Allow", "protocol": "UDP", "http": {"methods": ["GET"]}},
        ["spec.ingress[0] (rules with HTTP match must have protocol TCP or unset)"],
    ),
    (
        {"action": "Deny", "http": {"paths": [{"exact": "/"}]}},
        ["spec.ingress[0] (HTTP match is only valid on Allow rules)"],
    ),
    (
        {"action": "Allow", "http": {"methods": ["GET", "GET"]}},
        ["Methods = '[GET GET]' (Invalid methods (duplicates): [GET GET])"],
    ),
    (
        {"action": "Allow", "http": {"paths": [{"exact": "/a", "prefix": "/b"}]}},
        ["Paths = '[{/a /b}]' (Invalid path match. Both 'exact' and 'prefix' are set)"],
    ),
    (
        {"action": "Allow", "http": {"paths": [{}]}},
        ["Paths = '[{ }]' (Invalid path match. Either 'exact' or 'prefix' must be set)"],
    ),
    (
        {"action": "Allow", "http": {"paths": [{"prefix": "/a?b"}]}},
        [
            "Paths = '[{ /a?b}]' (Invalid path /a?b. (must start with `/` and not contain `?` or"
            " `#`)"
        ],
    ),
    (
        {"action": "Allow", "http": {"methods": [f"M{i}" for i in range(21)]}},
        ["spec.ingress[0].http.methods (may not be more than 20 items)"],
    ),
]


@pytest.mark.parametrize(("rule", "expected"), RULES)
def test_a_rule_of_an_ingress_list(rule, expected):
    assert failures("NetworkPolicy", {"ingress": [rule]}) == expected


def test_annotations_of_a_rule_are_checked_like_those_of_an_object():
    rule = {"action": "Allow", "metadata": {"annotations": {"bad key": "x"}}}
    (failure,) = failures("NetworkPolicy", {"ingress": [rule]})
    assert failure.startswith("Metadata.Annotations (key) = 'bad key' (name part must consist of")


EGRESS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "NetworkPolicy",
        {"action": "Allow", "source": {"services": {"name": "w"}}},
        ["Services = '&{w }' (not allowed in egress rule source)"],
    ),
    ("NetworkPolicy", {"action": "Allow", "http": {}}, ["HTTP (not allowed in egress rule)"]),
    (
        "GlobalNetworkPolicy",
        {"action": "Allow", "http": {}},
        ["HTTP (not allowed in egress rules)"],
    ),
    (
        "GlobalNetworkPolicy",
        {"action": "Allow", "destination": {"services": {"name": "w"}}},
        ["Namespace = '' (must specify a namespace)"],
    ),
    ("NetworkPolicy", {"action": "Allow", "destination": {"services": {"name": "w"}}}, []),
    (
        "NetworkPolicy",
        {
            "action": "Allow",
            "protocol": "TCP",
            "destination": {"services": {"name": "w"}, "ports": [80]},
        },
        ["spec.egress[0] (ports and notPorts cannot be specified with services)"],
    ),
]


@pytest.mark.parametrize(("kind", "rule", "expected"), EGRESS)
def test_a_rule_of_an_egress_list(kind, rule, expected):
    assert failures(kind, {"egress": [rule]}) == expected


def test_a_global_policy_names_the_namespace_of_a_source_service():
    rule = {"action": "Allow", "source": {"services": {"name": "w"}}}
    assert failures("GlobalNetworkPolicy", {"ingress": [rule]}) == [
        "Namespace = '' (must specify a namespace)"
    ]


POLICIES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("NetworkPolicy", {}, []),
    (
        "NetworkPolicy",
        {"types": ["Ingress", "Ingress"]},
        [
            "NetworkPolicySpec.Types = '[Ingress Ingress]' ('Ingress' type specified more than"
            " once)",
            'spec.types[1] (Duplicate value: "Ingress")',
        ],
    ),
    (
        "GlobalNetworkPolicy",
        {"types": ["Egress", "Egress"]},
        [
            "GlobalNetworkPolicySpec.Types = '[Egress Egress]' ('Egress' type specified more than"
            " once)",
            'spec.types[1] (Duplicate value: "Egress")',
        ],
    ),
    (
        "NetworkPolicy",
        {"types": ["ingress"]},
        ['spec.types[0] (supported values: "Ingress", "Egress")'],
    ),
    (
        "NetworkPolicy",
        {"types": ["Ingress", "Egress", "Both"]},
        [
            "spec.types (may not be more than 2 items)",
            'spec.types[2] (supported values: "Ingress", "Egress")',
        ],
    ),
    ("NetworkPolicy", {"tier": "Bad"}, [f"Tier = 'Bad' {tag('Tier', 'name')}"]),
    ("NetworkPolicy", {"selector": "global()"}, [f"spec ({GLOBAL})"]),
    ("NetworkPolicy", {"serviceAccountSelector": "global()"}, [f"spec ({GLOBAL})"]),
    ("GlobalNetworkPolicy", {"namespaceSelector": "global()"}, [f"spec ({GLOBAL})"]),
    (
        "NetworkPolicy",
        {"selector": "a ="},
        [f"Selector = 'a =' {tag('Selector', 'selector')}"],
    ),
    (
        "NetworkPolicy",
        {"ingress": [{"action": "Allow"}] * 1025},
        ["spec.ingress (may not be more than 1024 items)"],
    ),
    (
        "NetworkPolicy",
        {"performanceHints": ["Faster"]},
        ['spec.performanceHints[0] (supported values: "AssumeNeededOnEveryNode")'],
    ),
    (
        "GlobalNetworkPolicy",
        {"doNotTrack": True, "preDNAT": True, "applyOnForward": True},
        ["spec (preDNAT and doNotTrack cannot both be true)"],
    ),
    (
        "GlobalNetworkPolicy",
        {"preDNAT": True, "applyOnForward": True, "egress": [{"action": "Allow"}]},
        ["spec (preDNAT policy cannot have any egress rules)"],
    ),
    (
        "GlobalNetworkPolicy",
        {"preDNAT": True, "applyOnForward": True, "types": ["Egress"]},
        ["spec (preDNAT policy cannot have 'Egress' type)"],
    ),
    (
        "GlobalNetworkPolicy",
        {"doNotTrack": True},
        ["spec (applyOnForward must be true if either preDNAT or doNotTrack is true)"],
    ),
    (
        "StagedNetworkPolicy",
        {"stagedAction": "Remove"},
        ['spec.stagedAction (supported values: "Set", "Delete", "Learn", "Ignore")'],
    ),
    ("StagedNetworkPolicy", {"stagedAction": "Delete", "tier": "t"}, []),
    (
        "StagedNetworkPolicy",
        {"stagedAction": "Delete", "order": 5},
        [
            "StagedNetworkPolicySpec (Spec fields, except Tier, should all be zero-value if"
            " stagedAction is Delete)"
        ],
    ),
    (
        "StagedNetworkPolicy",
        {"egress": [{"action": "Allow", "http": {}}]},
        ["HTTP (not allowed in egress rule)"],
    ),
    (
        "StagedGlobalNetworkPolicy",
        {"stagedAction": "Delete", "selector": "all()"},
        [
            "StagedGlobalNetworkPolicySpec (Spec fields, except Tier, should all be zero-value if"
            " stagedAction is Delete)"
        ],
    ),
    (
        "StagedGlobalNetworkPolicy",
        {"preDNAT": True},
        ["spec (applyOnForward must be true if either preDNAT or doNotTrack is true)"],
    ),
    (
        "StagedKubernetesNetworkPolicy",
        {"stagedAction": "Delete", "podSelector": {"matchLabels": {"a": "b"}}},
        [
            "StagedKubernetesNetworkPolicySpec (Spec fields should all be zero-value if"
            " stagedAction is Delete)"
        ],
    ),
    (
        "StagedKubernetesNetworkPolicy",
        {"policyTypes": ["Sideways"]},
        ['spec.policyTypes[0] (supported values: "Ingress", "Egress")'],
    ),
    ("NetworkSet", {"nets": ["10.0.0.1", "10.0.0.1/8", "fd00::1"]}, []),
    ("NetworkSet", {"nets": ["host"]}, [f"Nets[0] = 'host' {tag('Nets[0]', 'cidr')}"]),
    ("GlobalNetworkSet", {"nets": ["f::", "f::"]}, ['spec.nets[1] (Duplicate value: "f::")']),
    (
        "Profile",
        {"labelsToApply": {"bad label": "x"}},
        [
            "LabelsToApply = 'map[bad label:x]' " + tag("LabelsToApply", "labels"),
        ],
    ),
    # A profile has no CRD: the unknown action is not noticed here.
    ("Profile", {"ingress": [{"action": "whatever"}]}, []),
    (
        "Profile",
        {"ingress": [{"action": "Allow", "source": {"nets": ["10.0.0.1"]}}]},
        ["Source.Nets = '10.0.0.1' (invalid CIDR)"],
    ),
]


@pytest.mark.parametrize(("kind", "spec", "expected"), POLICIES)
def test_a_spec(kind, spec, expected):
    assert failures(kind, spec) == expected


TIERS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("mine", {}, []),
    ("mine", {"order": 1, "defaultAction": "Pass"}, []),
    ("mine", {"defaultAction": "Allow"}, ['spec.defaultAction (supported values: "Deny", "Pass")']),
    ("default", {"order": 1000000, "defaultAction": "Deny"}, []),
    (
        "default",
        {"order": 1, "defaultAction": "Pass"},
        [
            "Tier (default tier order must be 1000000)",
            "Tier (The 'default' tier must have default action 'Deny')",
        ],
    ),
    (
        "kube-admin",
        {"order": 2, "defaultAction": "Deny"},
        [
            "Tier (kube-admin tier order must be 1000)",
            "Tier (The 'kube-admin' tier must have default action 'Pass')",
        ],
    ),
    (
        "kube-baseline",
        {"defaultAction": "Deny"},
        [
            "Tier (kube-baseline tier order must be 10000000)",
            "Tier (The 'kube-baseline' tier must have default action 'Pass')",
        ],
    ),
]


@pytest.mark.parametrize(("name", "spec", "expected"), TIERS)
def test_a_tier(name, spec, expected):
    assert failures("Tier", spec, name=name) == expected


@pytest.mark.parametrize("kind", ["NetworkSet", "GlobalNetworkSet"])
def test_a_network_set_may_not_carry_the_namespace_label(kind):
    labels = {"projectcalico.org/namespace": "prod"}
    assert failures(kind, {}, labels=labels) == [
        "Metadata.Labels (label) = 'projectcalico.org/namespace' "
        "(projectcalico.org/namespace is not a valid label name)"
    ]
