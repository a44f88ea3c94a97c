"""Kubernetes objects -> ours (datamodel §5.5, §5.6), failing closed (§7.1)."""

from __future__ import annotations

from typing import Any

import pytest

from libcalico import selector
from libcalico.errors import InvalidInput
from libcalico.model import EntityRule, ObjectMeta, Profile, ProfileSpec, Rule, conversion
from libcalico.model.conversion import network_policy
from libcalico.model.scalars import PortRange

PODS = "projectcalico.org/orchestrator == 'k8s'"
ANYONE = Rule(action="Allow")


def _policy(**spec: Any) -> Any:
    return network_policy({"metadata": {"name": "np1", "namespace": "prod"}, "spec": spec})


def _ingress(*rules: Any) -> tuple[Rule, ...]:
    converted = _policy(ingress=list(rules))
    assert converted.warnings == ()
    rules_out: tuple[Rule, ...] = converted.resource.spec.ingress
    return rules_out


def _from(**peer: Any) -> Rule:
    return Rule(action="Allow", source=EntityRule(**peer))


def test_an_empty_policy_isolates_every_pod_of_the_namespace() -> None:
    policy = _policy(podSelector={}).resource
    assert policy.metadata == ObjectMeta(name="knp.default.np1", namespace="prod")
    assert (policy.spec.tier, policy.spec.order) == ("default", 1000.0)
    assert policy.spec.selector == PODS
    assert policy.spec.types == ("Ingress",)
    assert policy.spec.ingress == policy.spec.egress == ()


def test_metadata_is_reduced_to_the_name() -> None:
    k8s = {
        "metadata": {
            "name": "a",
            "namespace": "n",
            "uid": "u",
            "labels": {"x": "y"},
            "generation": 2,
        },
        "spec": {},
    }
    assert network_policy(k8s).resource.metadata == ObjectMeta(name="knp.default.a", namespace="n")


def test_a_pod_selector_lists_labels_by_key_then_expressions_in_order() -> None:
    k8s = {
        "matchLabels": {"b": "2", "a": "1", "app.kubernetes.io/name": ""},
        "matchExpressions": [
            {"key": "k", "operator": "In", "values": ["x", "y"]},
            {"key": "k", "operator": "NotIn", "values": ["z"]},
            {"key": "e", "operator": "Exists"},
            {"key": "d", "operator": "DoesNotExist"},
        ],
    }
    text = (
        f"{PODS} && a == '1' && app.kubernetes.io/name == '' && b == '2'"
        " && k in { 'x', 'y' } && k not in { 'z' } && has(e) && ! has(d)"
    )
    assert _policy(podSelector=k8s).resource.spec.selector == text
    assert conversion.pod_selector(None) == PODS
    assert conversion.namespace_selector(None) is None
    assert conversion.namespace_selector({}) == "all()"
    assert conversion.namespace_selector({"matchLabels": {"a": "1"}}) == "a == '1'"


def test_a_value_with_a_quote_keeps_its_meaning() -> None:
    text = conversion.namespace_selector({"matchLabels": {"a": "it's"}})
    assert text is not None
    assert selector.parse(text).evaluate({"a": "it's"})


@pytest.mark.parametrize(
    "selector_in",
    [
        {"matchLabels": {"a == 'x' || all() || b": "1"}},
        {"matchLabels": {"a": "both ' and \""}},
        {"matchLabels": {"a": 5}},
        {"matchLabels": ["a"]},
        {"matchLabels": {"": "x"}},
        {"matchExpressions": {"key": "a"}},
        {"matchExpressions": [{"operator": "Exists"}]},
        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
        {"matchExpressions": [{"key": "a", "operator": "In"}]},
        {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": "x"}]},
        {"matchExpressions": ["a"]},
        {"matchLabels": {"x" * 600: "long"}},
    ],
)
def test_a_selector_that_cannot_be_expressed_never_widens_the_policy(selector_in: Any) -> None:
    with pytest.raises(InvalidInput, match=r"prod/np1: spec\.podSelector"):
        _policy(podSelector=selector_in)
    converted = _policy(ingress=[{"from": [{"podSelector": selector_in}, {"podSelector": {}}]}])
    assert converted.resource.spec.ingress == (_from(selector=PODS),)
    (warning,) = converted.warnings
    assert warning.startswith("spec.ingress[0].from[0]: ")
    assert warning.endswith("the peer matches nothing")


def test_types_are_copied_in_order_and_default_to_ingress() -> None:
    assert _policy(policyTypes=["Egress", "Ingress"]).resource.spec.types == ("Ingress", "Egress")
    assert _policy(policyTypes=["Egress"]).resource.spec.types == ("Egress",)
    assert _policy(policyTypes=[], egress=[{}]).resource.spec.types == ("Ingress",)


@pytest.mark.parametrize("rule", [{}, {"from": []}, {"from": None, "ports": None}, {"ports": []}])
def test_a_rule_without_peers_and_ports_allows_everything(rule: dict[str, Any]) -> None:
    assert _ingress(rule) == (ANYONE,)


def test_peers() -> None:
    assert _ingress(
        {
            "from": [
                {"podSelector": {"matchLabels": {"app": "fe"}}},
                {"namespaceSelector": {}},
                {"namespaceSelector": {"matchLabels": {"n": "1"}}, "podSelector": {}},
                {"ipBlock": {"cidr": "10.1.2.3/8", "except": ["10.2.0.1/16", "10.3.0.0/16"]}},
                {"ipBlock": {"cidr": "FD00::1/16"}},
                {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}},
                {},
            ]
        }
    ) == (
        _from(selector=f"{PODS} && app == 'fe'"),
        _from(selector=PODS, namespace_selector="all()"),
        _from(selector=PODS, namespace_selector="n == '1'"),
        _from(nets=("10.0.0.0/8",), not_nets=("10.2.0.0/16", "10.3.0.0/16")),
        _from(nets=("fd00::/16",)),
        _from(nets=("0.0.0.0/0",), not_nets=("10.0.0.0/8",)),
        _from(selector=PODS),
    )


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        ({"ipBlock": {"cidr": "nonsense"}}, "bad cidr 'nonsense'"),
        ({"ipBlock": {"cidr": "10.0.0.1"}}, "bad cidr"),
        ({"ipBlock": {}}, "bad cidr None"),
        ({"ipBlock": "10.0.0.0/8"}, "ipBlock is not an object"),
        ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}, "bad except 'x'"),
        ({"ipBlock": {"cidr": "10.0.0.0/8", "except": "10.1.0.0/16"}}, "except is not a list"),
        ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["fd00::/16"]}}, "not of the family"),
        ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["0.0.0.0/0"]}}, "leaves nothing"),
        ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.9.9.9/8"]}}, "leaves nothing"),
        ({"podSelector": "x"}, "podSelector is not an object"),
        ({"namespaceSelector": [1]}, "namespaceSelector is not an object"),
        ("10.0.0.0/8", "not an object"),
        (None, "not an object"),
    ],
)
@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_bad_peer_matches_nothing_not_everyone(direction: str, peer: Any, reason: str) -> None:
    field = "from" if direction == "ingress" else "to"
    converted = _policy(**{direction: [{field: [peer]}]})
    assert getattr(converted.resource.spec, direction) == ()
    (warning,) = converted.warnings
    assert warning.startswith(f"spec.{direction}[0].{field}[0]: ")
    assert reason in warning


def test_peers_that_are_no_list_match_nothing() -> None:
    converted = _policy(ingress=[{"from": {"podSelector": {}}}])
    assert converted.resource.spec.ingress == ()
    assert converted.warnings == ("spec.ingress[0].from: not a list, the rule matches nothing",)


def _to_ports(*ports: Any) -> list[tuple[Any, tuple[int | str, ...]]]:
    return [
        (rule.protocol, rule.destination.ports if rule.destination else ())
        for rule in _ingress({"ports": list(ports)})
    ]


def test_ports_are_grouped_by_protocol_sorted_by_name() -> None:
    assert _to_ports(
        {"port": 53, "protocol": "UDP"}, {"port": 80}, {"port": 5, "protocol": "SCTP"}
    ) == [("SCTP", (5,)), ("TCP", (80,)), ("UDP", (53,))]


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([{"port": 80}], (80,)),
        ([{"port": "80"}], (80,)),
        ([{"port": "http"}], ("http",)),
        ([{"port": 80, "endPort": 90}], ("80:90",)),
        ([{"port": 80, "endPort": 80}], (80,)),
        ([{"port": 82}, {"port": 80}, {"port": 81}, {"port": 90}], ("80:82", 90)),
        ([{"port": 80}, {"port": "http"}, {"port": 81}], ("http", "80:81")),
        ([{"port": 80}, {"port": "http"}], (80, "http")),
        ([{"port": 80}, {"port": 80}], (80,)),
        ([{"port": 80, "endPort": 90}, {"port": 85, "endPort": 100}, {"port": 101}], ("80:101",)),
        ([{"port": 80}, {}], ()),
        ([{}, {"port": 80}], ()),
        ([{"port": "a"}, {"port": 5, "endPort": 6}], ("a", "5:6")),
    ],
)
def test_ports_are_merged_into_the_fewest_ranges(
    ports: list[Any], expected: tuple[int | str, ...]
) -> None:
    assert _to_ports(*ports) == [("TCP", expected)]


def test_one_rule_per_protocol_and_peer() -> None:
    rules = _policy(
        egress=[
            {
                "to": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}],
                "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}],
            }
        ]
    ).resource.spec.egress
    assert [(rule.protocol, rule.source) for rule in rules] == [
        ("TCP", None),
        ("TCP", None),
        ("UDP", None),
        ("UDP", None),
    ]
    assert rules[0].destination == EntityRule(selector=PODS, ports=(53,))
    assert rules[1].destination == EntityRule(nets=("10.0.0.0/8",), ports=(53,))


def test_ingress_ports_are_the_destinations() -> None:
    (rule,) = _ingress({"from": [{"podSelector": {}}], "ports": [{"port": 80}]})
    assert rule.source == EntityRule(selector=PODS)
    assert rule.destination == EntityRule(ports=(80,))


def test_more_ports_than_a_rule_may_hold_become_several_rules() -> None:
    rules = _ingress({"ports": [{"port": port} for port in range(1, 241, 2)]})
    ports = [rule.destination.ports for rule in rules if rule.destination]
    assert [len(part) for part in ports] == [50, 50, 20]
    assert sum(ports, ()) == tuple(range(1, 241, 2))


@pytest.mark.parametrize(
    ("port", "reason"),
    [
        ({"port": 0}, "bad port 0"),
        ({"port": "0"}, "bad port '0'"),
        ({"port": -1}, "bad port -1"),
        ({"port": 65536}, "bad port 65536"),
        ({"port": "a b"}, "bad port 'a b'"),
        ({"port": "http", "endPort": 90}, "bad port 'http:90'"),
        ({"port": 90, "endPort": 80}, "bad port '90:80'"),
        ({"port": 90, "endPort": 70000}, "bad port"),
        ({"port": True}, "bad port True"),
        ({"port": [80]}, "bad port"),
        ({"port": 80, "protocol": "ICMP"}, "has no ports"),
        ({"port": 80, "protocol": "tcp"}, "unknown protocol 'tcp'"),
        ({"protocol": "XYZ"}, "unknown protocol"),
        (80, "not an object"),
    ],
)
def test_a_rule_with_a_bad_port_is_skipped_and_the_others_stay(port: Any, reason: str) -> None:
    converted = _policy(ingress=[{"ports": [{"port": 80}, port]}, {}])
    assert converted.resource.spec.ingress == (ANYONE,)
    (warning,) = converted.warnings
    assert warning.startswith("spec.ingress[0]: ")
    assert reason in warning
    assert warning.endswith("rule skipped")


def test_a_rule_that_is_no_object_is_skipped() -> None:
    converted = _policy(ingress=["x", None])
    assert converted.resource.spec.ingress == ()
    assert len(converted.warnings) == 2


@pytest.mark.parametrize(
    "k8s",
    [
        {},
        {"metadata": {}},
        {"metadata": {"name": ""}},
        {"metadata": []},
        {"metadata": {"name": "a"}, "spec": []},
        {"metadata": {"name": "a"}, "spec": {"ingress": {}}},
        {"metadata": {"name": "a"}, "spec": {"policyTypes": "Ingress"}},
        {"metadata": {"name": "a"}, "spec": {"podSelector": []}},
    ],
)
def test_what_is_no_policy_at_all_is_refused(k8s: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        network_policy(k8s)


def test_simplified_ports_directly() -> None:
    assert conversion.simplify_ports([]) == ()
    assert conversion.simplify_ports([PortRange(5, 9)]) == ("5:9",)
    assert conversion.simplify_ports([PortRange(65534, 65534), PortRange(65535, 65535)]) == (
        "65534:65535",
    )


def test_the_profile_of_a_namespace() -> None:
    k8s = {"metadata": {"name": "prod", "labels": {"team": "a", "projectcalico.org/name": "fake"}}}
    assert conversion.namespace_profile(k8s).resource == Profile(
        metadata=ObjectMeta(name="kns.prod"),
        spec=ProfileSpec(
            ingress=(ANYONE,),
            egress=(ANYONE,),
            labels_to_apply={"pcns.team": "a", "pcns.projectcalico.org/name": "prod"},
        ),
    )


def test_the_profile_of_a_service_account() -> None:
    k8s = {"metadata": {"name": "builder", "namespace": "prod", "labels": {"r": "1"}}}
    assert conversion.service_account_profile(k8s).resource == Profile(
        metadata=ObjectMeta(name="ksa.prod.builder"),
        spec=ProfileSpec(labels_to_apply={"pcsa.r": "1", "pcsa.projectcalico.org/name": "builder"}),
    )


def test_labels_and_profiles_of_a_pod() -> None:
    labels = conversion.pod_labels({"app": "web", "projectcalico.org/namespace": "x"}, "prod", "sa")
    assert labels == {
        "app": "web",
        "projectcalico.org/namespace": "prod",
        "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "sa",
    }
    assert "projectcalico.org/serviceaccount" not in conversion.pod_labels({}, "prod", "s" * 63)
    assert "projectcalico.org/serviceaccount" in conversion.pod_labels({}, "prod", "s" * 62)
    assert "projectcalico.org/serviceaccount" not in conversion.pod_labels({}, "prod", "")
    assert conversion.pod_profiles("prod", "sa") == ("kns.prod", "ksa.prod.sa")
    assert conversion.pod_profiles("prod", "") == ("kns.prod",)


def test_the_profile_of_a_cni_network() -> None:
    profile = conversion.cni_network_profile("net1", "cni")
    assert profile.metadata == ObjectMeta(name="net1")
    assert profile.spec == ProfileSpec(
        ingress=(_from(selector="has(net1)"),), egress=(ANYONE,), labels_to_apply={"net1": ""}
    )
    assert conversion.cni_network_profile("net1", "k8s").spec.ingress == (ANYONE,)
