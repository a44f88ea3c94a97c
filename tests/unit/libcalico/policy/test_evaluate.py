"""libcalico.policy.evaluate: every row of datamodel 5 for workloads, host endpoint stages, 7.x."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from libcalico import model, net
from libcalico.model import conversion
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import (
    Outcome,
    Reason,
    Stage,
    evaluate_endpoint,
    evaluate_packet,
    evaluate_to_host,
)
from libcalico.policy.packet import Direction, Packet
from libcalico.policy.world import Failsafe, Settings, World, world_of
from tests.support.calc import endpoint_slice

WEB, DB, OTHER = "10.0.0.1", "10.0.0.2", "10.0.1.1"
WEB6, DB6 = "fd00::1", "fd00::2"
OUTSIDE, OUTSIDE6 = "192.0.2.1", "2001:db8::1"


def meta(name: str, namespace: str = "", **labels: str) -> model.ObjectMeta:
    return model.ObjectMeta(name=name, namespace=namespace, labels=labels)


def workload(name: str, *addresses: str, namespace: str = "prod", **more: Any) -> Any:
    labels = more.pop("labels", {"app": name})
    spec = {
        "interfaceName": f"cali{name}",
        "ipNetworks": addresses,
        "profiles": ["kns." + namespace],
    }
    return model.WorkloadEndpoint(
        metadata=meta(name, namespace, **labels),
        spec=msgspec.convert(spec | more, model.WorkloadEndpointSpec),
    )


def policy(name: str = "p", namespace: str = "prod", **spec: Any) -> model.NetworkPolicy:
    spec = {"selector": "app == 'web'", "types": ["Ingress"], "order": 100} | spec
    return model.NetworkPolicy(
        metadata=meta(name, namespace), spec=msgspec.convert(spec, model.NetworkPolicySpec)
    )


def global_policy(name: str = "g", **spec: Any) -> model.GlobalNetworkPolicy:
    spec = {"selector": "all()", "types": ["Ingress"], "order": 100} | spec
    return model.GlobalNetworkPolicy(
        metadata=meta(name), spec=msgspec.convert(spec, model.GlobalNetworkPolicySpec)
    )


def tier(name: str, **spec: Any) -> model.Tier:
    return model.Tier(metadata=meta(name), spec=msgspec.convert(spec, model.TierSpec))


def profile(name: str, ingress: Any = (), egress: Any = (), **labels: str) -> model.Profile:
    spec = {"ingress": ingress, "egress": egress, "labelsToApply": labels}
    return model.Profile(metadata=meta(name), spec=msgspec.convert(spec, model.ProfileSpec))


ALLOW, DENY, PASS, LOG = ({"action": action} for action in ("Allow", "Deny", "Pass", "Log"))
DEFAULT_TIER = tier("default", order=1000000, defaultAction="Deny")
OPEN = profile("kns.prod", [ALLOW], [ALLOW], **{"pcns.projectcalico.org/name": "prod"})
OTHER_OPEN = profile("kns.other", [ALLOW], [ALLOW], **{"pcns.team": "blue"})
PODS = (
    workload("web", f"{WEB}/32", f"{WEB6}/128"),
    workload("db", f"{DB}/32", f"{DB6}/128"),
    workload("other", f"{OTHER}/32", namespace="other"),
)


def world(*resources: Any, **more: Any) -> World:
    return world_of([DEFAULT_TIER, OPEN, OTHER_OPEN, *PODS, *resources], **more)


def allowed(got: World, packet: Packet) -> bool:
    return evaluate_packet(got, packet).allowed


def to_web(got: World, source: str = DB, port: int = 80) -> bool:
    return allowed(got, Packet.tcp(source, WEB, port))


def ingress(got: World, packet: Packet, name: str = "web", namespace: str = "prod"):
    key = ResourceKey("WorkloadEndpoint", name, namespace)
    return evaluate_endpoint(got, key, Direction.INGRESS, packet)


# -- 5.1 order of evaluation --------------------------------------------------------------------


def test_5_1_1_tiers_go_by_order_then_name_and_absent_order_is_last():
    late = [global_policy("l", tier="late", ingress=[DENY])]
    first = [global_policy("f", tier="first", ingress=[ALLOW])]
    tiers = [tier("late"), tier("first", order=5)]
    verdict = ingress(world(*tiers, *late, *first), Packet.tcp(DB, WEB, 80))
    assert (verdict.allowed, verdict.tier) == (True, "first")
    tied = [tier("late", order=5), tier("first", order=5)]
    verdict = ingress(world(*tied, *late, *first), Packet.tcp(DB, WEB, 80))
    assert verdict.tier == "first"


def test_5_1_1_a_tier_that_is_missing_comes_last_and_denies():
    lost = global_policy("l", tier="lost", ingress=[])
    assert not to_web(world(lost))
    verdict = ingress(world(lost), Packet.tcp(DB, WEB, 80))
    assert (verdict.reason, verdict.tier) == (Reason.TIER_DEFAULT, "lost")
    known = global_policy("k", tier="unordered", ingress=[ALLOW])
    verdict = ingress(world(lost, known, tier("unordered")), Packet.tcp(DB, WEB, 80))
    assert (verdict.allowed, verdict.tier) == (True, "unordered")


def test_5_1_2_a_tier_takes_part_only_with_a_policy_for_this_endpoint_and_direction():
    strict = tier("strict", order=1)
    elsewhere = global_policy("g", tier="strict", selector="app == 'db'")
    assert to_web(world(strict, elsewhere))
    other_way = global_policy("g", tier="strict", types=["Egress"], egress=[ALLOW])
    assert to_web(world(strict, other_way))
    here = global_policy("g", tier="strict", selector="app == 'web'")
    assert not to_web(world(strict, here))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (policy("a", order=1, ingress=[ALLOW]), policy("b", order=2, ingress=[DENY]), True),
        (policy("a", order=2, ingress=[ALLOW]), policy("b", order=1, ingress=[DENY]), False),
        # Absent order is last.
        (policy("a", order=None, ingress=[ALLOW]), policy("b", order=9e9, ingress=[DENY]), False),
        # Ties by name/namespace/kind.
        (policy("a", ingress=[ALLOW]), policy("b", ingress=[DENY]), True),
        (policy("b", ingress=[ALLOW]), policy("a", ingress=[DENY]), False),
        (policy("a", ingress=[DENY]), global_policy("a", ingress=[ALLOW]), True),
    ],
)
def test_5_1_3_policies_go_by_order_then_name_namespace_kind(first, second, expected):
    assert to_web(world(first, second)) is expected
    assert to_web(world(second, first)) is expected


def test_5_1_4_rules_go_in_order_and_no_match_goes_to_the_next_policy():
    tcp_only = policy("a", order=1, ingress=[{"action": "Deny", "protocol": "UDP"}, ALLOW])
    assert to_web(world(tcp_only))
    none = policy("a", order=1, ingress=[{"action": "Deny", "protocol": "UDP"}])
    assert to_web(world(none, policy("b", order=2, ingress=[ALLOW])))
    assert not to_web(world(none))


def test_5_1_4_log_goes_on_with_the_next_rule():
    verdict = ingress(world(policy(ingress=[LOG, ALLOW])), Packet.tcp(DB, WEB, 80))
    assert (verdict.allowed, verdict.rule_index) == (True, 1)


def test_5_1_4_pass_leaves_the_tier_even_past_its_other_policies():
    first = tier("first", order=1)
    passing = global_policy("a", tier="first", order=1, ingress=[PASS])
    denying = global_policy("b", tier="first", order=2, ingress=[DENY])
    verdict = ingress(world(first, passing, denying), Packet.tcp(DB, WEB, 80))
    assert (verdict.allowed, verdict.reason) == (True, Reason.PROFILE_RULE)
    assert [(step.tier, step.passed_by) for step in verdict.trail] == [("first", "Pass rule")]
    nobody = replace_profile(world(first, passing), "kns.prod", profile("kns.prod"))
    assert not to_web(nobody)


def replace_profile(got: World, name: str, new: model.Profile) -> World:
    return replace(got, profiles={**got.profiles, name: new})


@pytest.mark.parametrize(("action", "expected"), [("Deny", False), ("Pass", True)])
def test_5_1_5_the_end_of_a_tier_is_its_default_action(action, expected):
    got = world(tier("t", order=1, defaultAction=action), global_policy("g", tier="t"))
    assert to_web(got) is expected


def test_5_1_5_a_tier_of_staged_policies_only_passes():
    staged = model.StagedGlobalNetworkPolicy(
        metadata=meta("s"),
        spec=model.StagedGlobalNetworkPolicySpec(tier="t", types=("Ingress",)),
    )
    assert to_web(world(tier("t", order=1), staged))


def test_5_1_6_profiles_follow_in_list_order():
    pod = workload("two", "10.0.0.9/32", profiles=["one", "two"])
    one = profile("one", [{"action": "Allow", "protocol": "UDP"}, PASS, DENY])
    two = profile("two", [{"action": "Deny", "source": {"nets": [f"{DB}/32"]}}, ALLOW])
    got = world(pod, one, two)
    assert allowed(got, Packet.udp(DB, "10.0.0.9", 1))
    # Pass only ends profile one.
    assert not allowed(got, Packet.tcp(DB, "10.0.0.9", 1))
    verdict = ingress(got, Packet.tcp(WEB, "10.0.0.9", 1), "two")
    assert (verdict.allowed, verdict.profile, verdict.rule_index) == (True, "two", 1)


def test_5_1_6_neither_policy_nor_profile_denies_all():
    got = world(workload("bare", "10.0.0.9/32", profiles=[]))
    verdict = ingress(got, Packet.tcp(DB, "10.0.0.9", 1), "bare")
    assert (verdict.allowed, verdict.reason) == (False, Reason.NO_MATCH)


def test_5_1_6_policy_in_one_direction_leaves_the_other_to_profiles():
    got = world(policy(ingress=[]))
    assert not to_web(got)
    assert allowed(got, Packet.tcp(WEB, DB, 80))


def test_5_1_6_the_synthetic_profile_allows_everything():
    pod = workload("free", "10.0.0.9/32", profiles=["projectcalico-default-allow"])
    assert allowed(world(pod), Packet.tcp(OUTSIDE, "10.0.0.9", 1))


def test_7_10_a_missing_profile_denies_at_its_place_in_the_list():
    first = workload("a", "10.0.0.8/32", profiles=["lost", "kns.prod"])
    last = workload("b", "10.0.0.9/32", profiles=["kns.prod", "lost"])
    got = world(first, last)
    verdict = ingress(got, Packet.tcp(DB, "10.0.0.8", 1), "a")
    assert (verdict.allowed, verdict.reason) == (False, Reason.PROFILE_MISSING)
    assert allowed(got, Packet.tcp(DB, "10.0.0.9", 1))


def test_5_1_8_workloads_may_not_speak_our_overlay_protocols():
    vxlan, ipip = (
        Packet.udp(WEB, OUTSIDE, 4789),
        Packet(net.parse_ip(WEB), net.parse_ip(OUTSIDE), 4),
    )
    got = world()
    assert evaluate_packet(got, vxlan).egress.reason is Reason.ENCAPSULATED
    assert evaluate_packet(got, ipip).egress.reason is Reason.ENCAPSULATED
    # Only outwards, and only that port.
    assert allowed(got, Packet.udp(OUTSIDE, WEB, 4789))
    assert allowed(got, Packet.udp(WEB, OUTSIDE, 4790))
    relaxed = Settings(allow_vxlan_from_workloads=True, allow_ipip_from_workloads=True)
    assert allowed(world(settings=relaxed), vxlan)
    assert allowed(world(settings=relaxed), ipip)


def test_5_1_a_packet_passes_egress_of_its_source_and_ingress_of_its_destination():
    no_way_out = policy("e", selector="app == 'db'", types=["Egress"])
    verdict = evaluate_packet(world(no_way_out), Packet.tcp(DB, WEB, 80))
    assert (verdict.allowed, verdict.ingress) == (False, None)
    no_way_in = evaluate_packet(world(policy()), Packet.tcp(DB, WEB, 80))
    assert no_way_in.egress.allowed
    assert not no_way_in.allowed


def test_an_address_of_nobody_is_not_policed():
    verdict = evaluate_packet(world(), Packet.tcp(OUTSIDE, OUTSIDE, 80))
    assert verdict.allowed
    assert verdict.egress.reason is Reason.NOT_POLICED


# -- 5.2 matches --------------------------------------------------------------------------------

MATCHES: list[tuple[str, dict[str, Any], Packet, bool]] = [
    ("protocol by name", {"protocol": "TCP"}, Packet.tcp(DB, WEB, 80), True),
    ("protocol by name", {"protocol": "TCP"}, Packet.udp(DB, WEB, 80), False),
    ("protocol by number", {"protocol": 17}, Packet.udp(DB, WEB, 80), True),
    ("not protocol", {"notProtocol": "UDP"}, Packet.udp(DB, WEB, 80), False),
    ("not protocol", {"notProtocol": 17}, Packet.tcp(DB, WEB, 80), True),
    ("ip version", {"ipVersion": 4}, Packet.tcp(DB6, WEB6, 80), False),
    ("ip version", {"ipVersion": 6}, Packet.tcp(DB6, WEB6, 80), True),
    ("icmp implies its family", {"protocol": "ICMP"}, Packet.icmp(DB6, WEB6, 8), False),
    ("icmpv6 implies its family", {"protocol": "ICMPv6"}, Packet.icmp(DB6, WEB6, 128), True),
    ("icmpv6 implies its family", {"protocol": "ICMPv6"}, Packet.icmp(DB, WEB, 8), False),
    ("icmp type", {"protocol": "ICMP", "icmp": {"type": 8}}, Packet.icmp(DB, WEB, 8), True),
    ("icmp type", {"protocol": "ICMP", "icmp": {"type": 8}}, Packet.icmp(DB, WEB, 0), False),
    (
        "icmp code",
        {"protocol": "ICMP", "icmp": {"type": 3, "code": 1}},
        Packet.icmp(DB, WEB, 3, code=1),
        True,
    ),
    (
        "icmp code",
        {"protocol": "ICMP", "icmp": {"type": 3, "code": 1}},
        Packet.icmp(DB, WEB, 3, code=2),
        False,
    ),
    ("not icmp", {"protocol": "ICMP", "notICMP": {"type": 8}}, Packet.icmp(DB, WEB, 8), False),
    ("not icmp", {"protocol": "ICMP", "notICMP": {"type": 8}}, Packet.icmp(DB, WEB, 0), True),
    (
        "7.6 not icmp negates the pair",
        {"protocol": "ICMP", "notICMP": {"type": 3, "code": 1}},
        Packet.icmp(DB, WEB, 3, code=1),
        False,
    ),
    (
        "7.6 not icmp negates the pair",
        {"protocol": "ICMP", "notICMP": {"type": 3, "code": 1}},
        Packet.icmp(DB, WEB, 3, code=2),
        True,
    ),
    ("icmp without a type", {"protocol": "ICMP", "icmp": {}}, Packet.icmp(DB, WEB, 3), True),
    ("not icmp without a type", {"notICMP": {}}, Packet.icmp(DB, WEB, 3), True),
    ("not icmp of another protocol", {"notICMP": {"type": 8}}, Packet.tcp(DB, WEB, 3), True),
    (
        "nets are ored",
        {"source": {"nets": ["192.0.2.0/24", "10.0.0.0/24"]}},
        Packet.tcp(DB, WEB, 1),
        True,
    ),
    ("nets", {"source": {"nets": ["192.0.2.0/24"]}}, Packet.tcp(DB, WEB, 1), False),
    (
        "nets of the other family only",
        {"source": {"nets": ["fd00::/8"]}},
        Packet.tcp(DB, WEB, 1),
        False,
    ),
    ("destination nets", {"destination": {"nets": [f"{WEB}/32"]}}, Packet.tcp(DB, WEB, 1), True),
    ("not nets exclude", {"source": {"notNets": ["10.0.0.0/24"]}}, Packet.tcp(DB, WEB, 1), False),
    ("not nets exclude", {"source": {"notNets": ["192.0.2.0/24"]}}, Packet.tcp(DB, WEB, 1), True),
    (
        "not nets: excluded if any member matches",
        {"source": {"notNets": ["192.0.2.0/24", f"{DB}/32"]}},
        Packet.tcp(DB, WEB, 1),
        False,
    ),
    (
        "not nets of the other family only omit the rule",
        {"source": {"notNets": ["fd00::/8"]}},
        Packet.tcp(DB, WEB, 1),
        False,
    ),
    (
        "a negated catch-all omits the rule",
        {"source": {"notNets": ["0.0.0.0/0"]}},
        Packet.tcp(DB, WEB, 1),
        False,
    ),
    ("port", {"protocol": "TCP", "destination": {"ports": [80]}}, Packet.tcp(DB, WEB, 80), True),
    ("port", {"protocol": "TCP", "destination": {"ports": [81]}}, Packet.tcp(DB, WEB, 80), False),
    (
        "port range",
        {"protocol": "TCP", "destination": {"ports": ["79:81"]}},
        Packet.tcp(DB, WEB, 81),
        True,
    ),
    (
        "port range",
        {"protocol": "TCP", "destination": {"ports": ["79:81"]}},
        Packet.tcp(DB, WEB, 82),
        False,
    ),
    (
        "source port",
        {"protocol": "TCP", "source": {"ports": [40000]}},
        Packet.tcp(DB, WEB, 80),
        True,
    ),
    (
        "not ports",
        {"protocol": "TCP", "destination": {"notPorts": [80, "90:99"]}},
        Packet.tcp(DB, WEB, 95),
        False,
    ),
    (
        "not ports",
        {"protocol": "TCP", "destination": {"notPorts": [80]}},
        Packet.tcp(DB, WEB, 81),
        True,
    ),
    (
        "all fields are anded",
        {"protocol": "TCP", "source": {"nets": ["10.0.0.0/24"]}, "destination": {"ports": [1]}},
        Packet.tcp(DB, WEB, 80),
        False,
    ),
    (
        "http is nothing a packet can show",
        {"http": {"methods": ["GET"]}},
        Packet.tcp(DB, WEB, 80),
        False,
    ),
]


@pytest.mark.parametrize(
    ("rule", "packet", "expected"), [row[1:] for row in MATCHES], ids=[row[0] for row in MATCHES]
)
def test_5_2_a_rule_that_allows_alone(rule, packet, expected):
    assert allowed(world(policy(ingress=[{"action": "Allow"} | rule])), packet) is expected


NAMED = workload(
    "named",
    "10.0.0.9/32",
    "fd00::9/128",
    ports=[
        {"name": "http", "protocol": "TCP", "port": 8080},
        {"name": "dns", "protocol": "UDP", "port": 53},
    ],
)


@pytest.mark.parametrize(
    ("rule", "packet", "expected"),
    [
        (
            {"protocol": "TCP", "destination": {"ports": ["http"]}},
            Packet.tcp(DB, "10.0.0.9", 8080),
            True,
        ),
        (
            {"protocol": "TCP", "destination": {"ports": ["http"]}},
            Packet.tcp(DB6, "fd00::9", 8080),
            True,
        ),
        (
            {"protocol": "TCP", "destination": {"ports": ["http"]}},
            Packet.tcp(DB, "10.0.0.9", 80),
            False,
        ),
        # The name is looked up for the rule's protocol, TCP when there is none.
        (
            {"protocol": "UDP", "destination": {"ports": ["http"]}},
            Packet.udp(DB, "10.0.0.9", 8080),
            False,
        ),
        (
            {"protocol": "UDP", "destination": {"ports": ["dns"]}},
            Packet.udp(DB, "10.0.0.9", 53),
            True,
        ),
        ({"destination": {"ports": ["http"]}}, Packet.tcp(DB, "10.0.0.9", 8080), True),
        ({"destination": {"ports": ["http"]}}, Packet.udp(DB, "10.0.0.9", 8080), False),
        # Unknown names match nothing; numbers beside them still do.
        (
            {"protocol": "TCP", "destination": {"ports": ["gopher"]}},
            Packet.tcp(DB, "10.0.0.9", 70),
            False,
        ),
        (
            {"protocol": "TCP", "destination": {"ports": ["gopher", 70]}},
            Packet.tcp(DB, "10.0.0.9", 70),
            True,
        ),
        (
            {"protocol": "TCP", "destination": {"notPorts": ["http"]}},
            Packet.tcp(DB, "10.0.0.9", 8080),
            False,
        ),
        (
            {"protocol": "TCP", "destination": {"notPorts": ["http"]}},
            Packet.tcp(DB, "10.0.0.9", 80),
            True,
        ),
        # Restricted to the endpoints that the positive selector of that side matches.
        (
            {"protocol": "TCP", "destination": {"selector": "app == 'db'", "ports": ["http"]}},
            Packet.tcp(DB, "10.0.0.9", 8080),
            False,
        ),
        (
            {"protocol": "TCP", "destination": {"selector": "has(app)", "ports": ["http"]}},
            Packet.tcp(DB, "10.0.0.9", 8080),
            True,
        ),
        # 7.8: with the notSelector of the same entity folded in.
        (
            {
                "protocol": "TCP",
                "destination": {
                    "selector": "has(app)",
                    "notSelector": "app == 'named'",
                    "ports": ["http"],
                },
            },
            Packet.tcp(DB, "10.0.0.9", 8080),
            False,
        ),
    ],
)
def test_5_2_named_ports(rule, packet, expected):
    rules = [{"action": "Allow"} | rule]
    got = world(NAMED, policy(selector="app == 'named'", ingress=rules))
    assert allowed(got, packet) is expected


def test_7_8_network_sets_have_no_ports_and_host_endpoints_have_them_by_expected_ip():
    host = model.HostEndpoint(
        metadata=meta("h"),
        spec=msgspec.convert(
            {
                "node": "n",
                "expectedIPs": [OUTSIDE],
                "ports": [{"name": "ssh", "protocol": "TCP", "port": 22}],
            },
            model.HostEndpointSpec,
        ),
    )
    rule = {"action": "Allow", "protocol": "TCP", "destination": {"ports": ["ssh"]}}
    egress = policy(types=["Egress"], egress=[rule])
    assert allowed(world(host, egress), Packet.tcp(WEB, OUTSIDE, 22))
    assert not allowed(world(egress), Packet.tcp(WEB, OUTSIDE, 22))


# -- 3.4 and 5.2: selectors of rules ------------------------------------------------------------

SOURCES: list[tuple[str, dict[str, Any], str, bool]] = [
    ("own namespace", {"selector": "has(app)"}, DB, True),
    ("own namespace only", {"selector": "has(app)"}, OTHER, False),
    ("an address that nobody owns", {"selector": "has(app)"}, OUTSIDE, False),
    ("namespaceSelector all()", {"namespaceSelector": "all()"}, OTHER, True),
    (
        "namespaceSelector all() means in a namespace",
        {"namespaceSelector": "all()"},
        OUTSIDE,
        False,
    ),
    ("namespaceSelector by label", {"namespaceSelector": "team == 'blue'"}, OTHER, True),
    ("namespaceSelector by label", {"namespaceSelector": "team == 'blue'"}, DB, False),
    ("both", {"namespaceSelector": "all()", "selector": "app == 'db'"}, OTHER, False),
    ("global()", {"namespaceSelector": "global()", "selector": "has(site)"}, OUTSIDE, True),
    ("global() is no namespace", {"namespaceSelector": "global()"}, DB, False),
    ("nets only are not confined to the namespace", {"nets": ["10.0.0.0/8"]}, OTHER, True),
    ("7.3 notSelector in a namespaced policy", {"notSelector": "app == 'db'"}, DB, False),
    ("7.3 notSelector in a namespaced policy", {"notSelector": "app == 'x'"}, DB, True),
    ("7.3 outsiders never match it", {"notSelector": "app == 'x'"}, OUTSIDE, False),
    (
        "service account by name",
        {"serviceAccounts": {"names": ["builder"]}},
        "10.0.0.7",
        True,
    ),
    ("service account by name", {"serviceAccounts": {"names": ["builder"]}}, DB, False),
    (
        "service account by label",
        {"serviceAccounts": {"selector": "role == 'ci'"}},
        "10.0.0.7",
        True,
    ),
    (
        "service account by both",
        {"serviceAccounts": {"selector": "role == 'ci'", "names": ["cook"]}},
        "10.0.0.7",
        False,
    ),
]
SITE = model.GlobalNetworkSet(
    metadata=meta("site", site="hq"), spec=model.GlobalNetworkSetSpec(nets=("192.0.2.0/24",))
)
BUILDER = (
    workload(
        "build",
        "10.0.0.7/32",
        serviceAccountName="builder",
        profiles=["kns.prod", "ksa.prod.builder"],
    ),
    profile("ksa.prod.builder", **{"pcsa.role": "ci"}),
)


@pytest.mark.parametrize(
    ("entity", "source", "expected"), [row[1:] for row in SOURCES], ids=[row[0] for row in SOURCES]
)
def test_3_4_a_source_of_a_namespaced_policy(entity, source, expected):
    got = world(SITE, *BUILDER, policy(ingress=[{"action": "Allow", "source": entity}]))
    assert to_web(got, source) is expected


GLOBAL_SOURCES: list[tuple[str, dict[str, Any], str, bool]] = [
    ("every namespace", {"selector": "has(app)"}, OTHER, True),
    ("network sets too", {"selector": "has(site)"}, OUTSIDE, True),
    (
        "7.3 notSelector alone lets unknown addresses pass",
        {"notSelector": "has(app)"},
        "192.0.3.1",
        True,
    ),
    ("7.3 notSelector alone excludes what matches", {"notSelector": "has(app)"}, DB, False),
    (
        "selector and notSelector are folded",
        {"selector": "has(app)", "notSelector": "app == 'db'"},
        "192.0.3.1",
        False,
    ),
    ("namespaceSelector", {"namespaceSelector": "all()"}, OUTSIDE, False),
]


@pytest.mark.parametrize(
    ("entity", "source", "expected"),
    [row[1:] for row in GLOBAL_SOURCES],
    ids=[row[0] for row in GLOBAL_SOURCES],
)
def test_3_4_a_source_of_a_global_policy(entity, source, expected):
    rules = [{"action": "Allow", "source": entity}]
    assert to_web(world(SITE, global_policy(ingress=rules)), source) is expected


def test_3_4_two_owners_of_one_address_count_both():
    shared = workload("twin", f"{DB}/32", namespace="other")
    rules = [{"action": "Allow", "source": {"selector": "app == 'db'"}}]
    assert to_web(world(shared, policy(ingress=rules)))


def test_3_4_network_sets_belong_to_their_namespace_and_inherit_its_labels():
    nets = model.NetworkSet(
        metadata=meta("s", "other", kind="office"),
        spec=model.NetworkSetSpec(nets=("192.0.2.0/24",)),
    )
    rules = [{"action": "Allow", "source": {"selector": "kind == 'office'"}}]
    assert not to_web(world(nets, policy(ingress=rules)), OUTSIDE)
    rules[0]["source"]["namespaceSelector"] = "team == 'blue'"
    assert to_web(world(nets, policy(ingress=rules)), OUTSIDE)


SELECTED: list[tuple[str, Any, bool]] = [
    ("namespaced: own namespace", policy(selector="all()"), False),
    ("namespaced: other namespace", policy(selector="", namespace="other"), True),
    ("namespaced: empty selector is all", policy(selector=""), False),
    ("service account", policy(selector="", serviceAccountSelector="role == 'ci'"), True),
    ("global: empty selector", global_policy(selector=""), False),
    (
        "global: namespaceSelector",
        global_policy(selector="", namespaceSelector="team == 'blue'"),
        True,
    ),
    (
        "global: namespaceSelector all()",
        global_policy(selector="", namespaceSelector="all()"),
        False,
    ),
    (
        "global: service accounts",
        global_policy(selector="", serviceAccountSelector="all()"),
        True,
    ),
]


@pytest.mark.parametrize(
    ("denying", "expected"), [row[1:] for row in SELECTED], ids=[row[0] for row in SELECTED]
)
def test_3_4_which_endpoints_a_policy_applies_to(denying, expected):
    assert to_web(world(denying)) is expected


def test_labels_of_a_workload_own_ones_win_and_reserved_ones_are_dropped():
    pod = workload(
        "pod",
        "10.0.0.9/32",
        labels={"app": "pod", "pcns.team": "forged"},
        profiles=["first", "second"],
    )
    first, second = profile("first", app="x", tier="1"), profile("second", tier="2", zone="z")
    entity = world(pod, first, second).entity(ResourceKey("WorkloadEndpoint", "pod", "prod"))
    assert entity.labels == {
        "app": "pod",
        "tier": "1",
        "zone": "z",
        "projectcalico.org/namespace": "prod",
    }


# -- services -----------------------------------------------------------------------------------

SERVICES = {("prod", "web"): [(net.parse_ip(DB), 6, 5432)]}


def test_5_2_a_destination_service_matches_address_and_port():
    rule = {"action": "Allow", "destination": {"services": {"name": "web"}}}
    got = world(policy(types=["Egress"], egress=[rule]), services=SERVICES)
    assert allowed(got, Packet.tcp(WEB, DB, 5432))
    assert not allowed(got, Packet.tcp(WEB, DB, 5433))
    assert not allowed(got, Packet.udp(WEB, DB, 5432))


def test_5_2_a_source_service_matches_addresses_only_and_an_unknown_one_nothing():
    rule = {"action": "Allow", "source": {"services": {"name": "web", "namespace": "prod"}}}
    assert to_web(world(policy(ingress=[rule]), services=SERVICES))
    assert not to_web(world(policy(ingress=[rule]), services=SERVICES), OTHER)
    assert not to_web(world(policy(ingress=[rule])))


def test_5_2_services_are_read_from_their_endpoint_slices():
    rule = {"action": "Allow", "destination": {"services": {"name": "web"}}}
    _, web = endpoint_slice("web-1", "web", DB, ports=[("TCP", 5432)])
    _, bare = endpoint_slice("web-2", "web", OTHER)
    got = world(policy(types=["Egress"], egress=[rule]), web, bare)
    assert allowed(got, Packet.tcp(WEB, DB, 5432))
    assert not allowed(got, Packet.tcp(WEB, DB, 5433))
    assert not allowed(got, Packet.tcp(WEB, OTHER, 5432)), "a slice without ports offers none"
    source = {"action": "Allow", "source": {"services": {"name": "web"}}}
    assert to_web(world(policy(ingress=[source]), bare), OTHER), "but has an address"


def test_5_2_http_only_narrows_a_deny_that_cannot_be_narrowed_here():
    """Allow with http lets nothing through, Deny with http denies all it may mean."""
    http = {"http": {"methods": ["GET"]}}
    deny = [{"action": "Deny"} | http, {"action": "Allow"}]
    assert not to_web(world(policy(ingress=deny)))
    passing = [{"action": "Pass"} | http, {"action": "Deny"}]
    assert not to_web(world(policy(ingress=passing)))


# -- 5.3 types ----------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [[], ["ingress"]])
def test_5_3_a_policy_read_without_types_that_we_know_governs_both_directions(types):
    got = world(policy(types=types))
    assert not to_web(got)
    assert not allowed(got, Packet.tcp(WEB, DB, 80))


def test_5_3_types_without_rules_isolate():
    assert not to_web(world(policy(types=["Ingress"])))


# -- 5.5 Kubernetes -----------------------------------------------------------------------------


def test_5_5_a_kubernetes_policy_through_conversion():
    converted = conversion.network_policy(
        {
            "metadata": {"name": "np", "namespace": "prod"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "web"}},
                "ingress": [
                    {
                        "from": [{"podSelector": {"matchLabels": {"app": "db"}}}],
                        "ports": [{"port": 80, "endPort": 82}],
                    }
                ],
            },
        }
    ).resource
    k8s = {"projectcalico.org/orchestrator": "k8s"}
    pods = [
        workload("kweb", "10.0.0.11/32", labels={"app": "web"} | k8s),
        workload("kdb", "10.0.0.12/32", labels={"app": "db"} | k8s),
        workload("kother", "10.0.0.13/32", namespace="other", labels={"app": "db"} | k8s),
    ]
    got = world(converted, *pods)
    assert allowed(got, Packet.tcp("10.0.0.12", "10.0.0.11", 81))
    assert not allowed(got, Packet.tcp("10.0.0.12", "10.0.0.11", 83))
    assert not allowed(got, Packet.udp("10.0.0.12", "10.0.0.11", 80))
    assert not allowed(got, Packet.tcp("10.0.0.13", "10.0.0.11", 81))
    assert allowed(got, Packet.tcp("10.0.0.11", "10.0.0.12", 1))


# -- the host of a workload ---------------------------------------------------------------------

WEB_KEY = ResourceKey("WorkloadEndpoint", "web", "prod")


@pytest.mark.parametrize(
    ("action", "outcome"), [("DROP", False), ("ACCEPT", True), ("RETURN", True), ("Accept", True)]
)
def test_5_4_a_workload_to_its_own_host(action, outcome):
    got = world(settings=Settings(endpoint_to_host_action=action))
    assert evaluate_to_host(got, WEB_KEY, Packet.tcp(WEB, OUTSIDE, 80)).allowed is outcome
    closed = world(policy(types=["Egress"]), settings=Settings(endpoint_to_host_action=action))
    assert not evaluate_to_host(closed, WEB_KEY, Packet.tcp(WEB, OUTSIDE, 80)).allowed


def test_7_11_neighbour_discovery_with_the_host_comes_before_egress_policy():
    closed = world(policy(types=["Egress"]))
    for type_ in (130, 131, 132, 133, 135, 136):
        assert evaluate_to_host(closed, WEB_KEY, Packet.icmp(WEB6, "fe80::1", type_)).allowed
    assert not evaluate_to_host(closed, WEB_KEY, Packet.icmp(WEB6, "fe80::1", 134)).allowed
    assert not evaluate_to_host(closed, WEB_KEY, Packet.icmp(WEB6, "fe80::1", 128)).allowed


# -- 5.4 host endpoints -------------------------------------------------------------------------

HOST_KEY = ResourceKey("HostEndpoint", "h")


def host(interface: str = "eth0", profiles: tuple[str, ...] = ()) -> model.HostEndpoint:
    return model.HostEndpoint(
        metadata=meta("h", role="node"),
        spec=model.HostEndpointSpec(
            node="n", interface_name=interface, expected_ips=("192.0.2.9",), profiles=profiles
        ),
    )


def at(got: World, stage: Stage, packet: Packet, direction: Direction = Direction.INGRESS):
    return evaluate_endpoint(got, HOST_KEY, direction, packet, stage=stage)


TO_HOST = Packet.tcp(OUTSIDE, "192.0.2.9", 8080)


def test_5_4_normal_stage_without_policy_and_profile_drops_except_failsafes():
    got = world(host())
    assert at(got, Stage.NORMAL, TO_HOST).outcome is Outcome.DENY
    ssh = at(got, Stage.NORMAL, Packet.tcp(OUTSIDE, "192.0.2.9", 22))
    assert (ssh.allowed, ssh.reason) == (True, Reason.FAILSAFE)
    dns = Packet.udp("192.0.2.9", OUTSIDE, 53)
    assert at(got, Stage.NORMAL, dns, Direction.EGRESS).reason is Reason.FAILSAFE
    assert at(got, Stage.NORMAL, dns).outcome is Outcome.DENY
    assert at(world(host(profiles=("kns.prod",))), Stage.NORMAL, TO_HOST).allowed


def test_5_4_failsafes_can_name_a_peer_network_or_be_none():
    near = (Failsafe(6, 8080, net.parse_cidr("192.0.2.0/24")),)
    assert at(
        world(host(), settings=Settings(inbound_failsafes=near)), Stage.NORMAL, TO_HOST
    ).allowed
    far = (Failsafe(6, 8080, net.parse_cidr("198.51.100.0/24")),)
    got = world(host(), settings=Settings(inbound_failsafes=far))
    assert not at(got, Stage.NORMAL, TO_HOST).allowed
    none = world(host(), settings=Settings(inbound_failsafes=()))
    assert not at(none, Stage.NORMAL, Packet.tcp(OUTSIDE, "192.0.2.9", 22)).allowed


def test_5_4_failsafes_hold_for_replies_before_tracking_only():
    flags = {"types": ["Ingress", "Egress"], "doNotTrack": True, "applyOnForward": True}
    raw = global_policy("r", ingress=[DENY], egress=[DENY], **flags)
    got = world(host(), raw)
    bgp_reply = Packet.tcp(OUTSIDE, "192.0.2.9", 40000, source_port=179)
    safe = at(got, Stage.UNTRACKED, bgp_reply)
    assert (safe.outcome, safe.reason) == (Outcome.UNDECIDED, Reason.FAILSAFE), "then tracking"
    assert at(got, Stage.NORMAL, bgp_reply).outcome is Outcome.DENY
    ssh_reply = Packet.tcp("192.0.2.9", OUTSIDE, 40000, source_port=22)
    assert at(got, Stage.UNTRACKED, ssh_reply, Direction.EGRESS).reason is Reason.FAILSAFE
    assert at(got, Stage.UNTRACKED, ssh_reply).outcome is Outcome.DENY, "22 is inbound only"


@pytest.mark.parametrize("stage", [Stage.NORMAL, Stage.UNTRACKED, Stage.PRE_DNAT])
@pytest.mark.parametrize("direction", Direction)
def test_5_4_no_policy_of_a_host_endpoint_stops_neighbour_discovery(stage, direction):
    flag = {Stage.UNTRACKED: "doNotTrack", Stage.PRE_DNAT: "preDNAT"}.get(stage)
    flags = {flag: True, "applyOnForward": True} if flag else {}
    flags["types"] = ["Ingress", "Egress"]
    got = world(host(), global_policy("d", ingress=[DENY], egress=[DENY], **flags))
    for kind in (130, 131, 132, 133, 134, 135, 136, 143):
        message = Packet.icmp("fd00::9", "fd00::1", kind)
        assert at(got, stage, message, direction).reason is Reason.NEIGHBOUR_DISCOVERY
    redirect = Packet.icmp("fd00::9", "fd00::1", 137)
    assert at(got, stage, redirect).outcome is Outcome.DENY


def test_5_4_forward_stage_without_a_policy_allows_and_knows_no_failsafes():
    got = world(host(), global_policy("plain", selector="role == 'node'"))
    verdict = at(got, Stage.FORWARD, TO_HOST)
    assert (verdict.outcome, verdict.reason) == (Outcome.ALLOW, Reason.NOTHING_APPLIES)
    forward = global_policy("f", selector="role == 'node'", applyOnForward=True)
    closed = world(host(), forward)
    assert at(closed, Stage.FORWARD, Packet.tcp(OUTSIDE, "10.0.0.1", 22)).outcome is Outcome.DENY
    # ... and the policy counts at the normal stage as well.
    assert at(closed, Stage.NORMAL, TO_HOST).outcome is Outcome.DENY


def test_7_9_forward_policies_that_all_pass_leave_it_to_the_hook():
    passing = global_policy("f", selector="role == 'node'", applyOnForward=True, ingress=[PASS])
    assert at(world(host(), passing), Stage.FORWARD, TO_HOST).outcome is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("stage", "flag"), [(Stage.UNTRACKED, "doNotTrack"), (Stage.PRE_DNAT, "preDNAT")]
)
def test_5_4_early_stages_have_no_end_of_tier_drop_and_no_profiles(stage, flag):
    flags = {flag: True, "applyOnForward": True}
    udp = global_policy("e", ingress=[{"action": "Deny", "protocol": "UDP"}], **flags)
    got = world(host(profiles=("kns.prod",)), udp)
    assert at(got, stage, TO_HOST).outcome is Outcome.UNDECIDED
    assert at(got, stage, Packet.udp(OUTSIDE, "192.0.2.9", 1)).outcome is Outcome.DENY
    assert at(world(host()), stage, TO_HOST).reason is Reason.NOTHING_APPLIES
    # Such policies take no part in the normal stage, nor in that of workloads.
    assert at(got, Stage.NORMAL, Packet.udp(OUTSIDE, "192.0.2.9", 1)).allowed
    assert to_web(world(global_policy("e", ingress=[DENY], **flags)))


def test_5_4_pre_dnat_policy_is_for_ingress_only():
    both = global_policy(
        "e", types=["Ingress", "Egress"], egress=[DENY], preDNAT=True, applyOnForward=True
    )
    verdict = at(world(host(), both), Stage.PRE_DNAT, TO_HOST, Direction.EGRESS)
    assert verdict.reason is Reason.NOTHING_APPLIES


def test_7_13_untracked_policy_is_ignored_on_a_star_host_endpoint():
    untracked = global_policy("e", ingress=[DENY], doNotTrack=True, applyOnForward=True)
    assert at(world(host(), untracked), Stage.UNTRACKED, TO_HOST).outcome is Outcome.DENY
    star = world(host("*"), untracked)
    assert at(star, Stage.UNTRACKED, TO_HOST).outcome is Outcome.UNDECIDED
