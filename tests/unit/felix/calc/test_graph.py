"""felix.calc.graph: whole paths through the graph, row by row of reference/datamodel.md 5."""

from __future__ import annotations

import pytest

from felix.calc import CalcGraph
from felix.intent import (
    NO_QOS,
    DirectionLimits,
    HostUpdate,
    InSync,
    PolicyRemove,
    PolicyUpdate,
    PoolUpdate,
    ProfileUpdate,
    QosControls,
    SetDelta,
    SetUpdate,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from libcalico.compute.rules import Action
from libcalico.errors import DecodeError, ValidationError
from libcalico.model import (
    IPNAT,
    EntityRule,
    HTTPMatch,
    NodeAddress,
    NodeBGPSpec,
    QoSControls,
    ServiceAccountMatch,
    ServiceMatch,
)
from libcalico.model.keys import BlockKey, ResourceKey
from libcalico.model.validation import validate
from libcalico.syncer.api import SyncStatus, Update
from tests.support.calc import (
    ALLOW,
    DENY,
    ELSEWHERE,
    PASS,
    Rig,
    endpoint_slice,
    gnetset,
    gnp,
    hep,
    netset,
    node,
    np,
    pool,
    profile,
    rule,
    sgnp,
    shown,
    snp,
    tier,
    wep,
)

WEB = wep("web", "10.0.0.1", "fd00::1", labels={"app": "web"}, profiles=("kns.prod",))
FE = wep("fe", "10.0.0.2/32", labels={"app": "fe"}, node=ELSEWHERE)
PROD = profile("kns.prod", labels={"pcns.env": "live"}, ingress=ALLOW, egress=ALLOW)


def from_(**entity: object) -> tuple:
    return (rule(source=EntityRule(**entity)),)  # type: ignore[arg-type]


# -- before and after being in sync --------------------------------------------------------------


def test_nothing_is_handed_out_before_the_datastore_is_in_sync():
    graph = CalcGraph("here")
    graph.on_updates([Update(*WEB, 1)])
    assert graph.flush() == []
    graph.on_status(SyncStatus.RESYNC)
    assert graph.flush() == []
    graph.on_status(SyncStatus.IN_SYNC)
    first = graph.flush()
    assert isinstance(first[-1], InSync)
    assert any(isinstance(intent, WorkloadEndpointUpdate) for intent in first)


def test_in_sync_is_said_once_also_after_the_next_resync():
    rig = Rig(WEB)
    rig.graph.on_status(SyncStatus.RESYNC)
    rig.graph.on_status(SyncStatus.IN_SYNC)
    assert rig.flush() == []


def test_an_update_that_changes_nothing_hands_out_nothing():
    rig = Rig(WEB, FE, PROD, np("p", ingress=from_(selector="app == 'fe'")), fixed_revision=True)
    assert rig.now(WEB, FE, PROD, np("p", ingress=from_(selector="app == 'fe'"))) == []


def test_a_change_taken_back_before_the_flush_hands_out_nothing():
    policy = np("p", ingress=from_(selector="app == 'fe'"))
    rig = Rig(WEB, FE, policy, fixed_revision=True)
    rig.delete(FE, policy)
    rig.put(FE, policy)
    assert rig.flush() == []


def test_a_changed_rule_of_a_policy_does_not_hand_out_its_endpoints_again():
    rig = Rig(WEB, np("p", ingress=ALLOW))
    changed = rig.now(np("p", ingress=DENY))
    assert [type(intent) for intent in changed] == [PolicyUpdate]


def test_one_remote_address_is_one_set_delta():
    rig = Rig(WEB, FE, np("p", ingress=from_(selector="app == 'fe'")))
    changed = rig.now(wep("fe2", "10.0.0.3", labels={"app": "fe"}, node=ELSEWHERE))
    assert [type(intent) for intent in changed] == [SetDelta]
    assert changed[0].added == {"10.0.0.3/32"}


# -- what reaches this node -----------------------------------------------------------------------


def test_only_policies_that_select_a_local_endpoint_reach_the_node():
    rig = Rig(WEB, FE, np("mine", selector="app == 'web'"), np("theirs", selector="app == 'fe'"))
    assert [key.name for key in rig.contents.policies] == ["mine"]
    assert list(rig.contents.endpoints) == [WEB[0]]


def test_without_a_local_endpoint_nothing_is_programmed_whatever_the_cluster_holds():
    rig = Rig(FE, PROD, gnp("all", ingress=from_(selector="all()")))
    assert rig.contents.policies == rig.contents.profiles == rig.contents.sets == {}


def test_a_policy_leaves_with_the_last_endpoint_it_selects():
    rig = Rig(WEB, np("p", ingress=from_(selector="app == 'fe'")))
    left = rig.without(WEB)
    assert WorkloadEndpointRemove(WEB[0]) in left
    assert PolicyRemove(ResourceKey("NetworkPolicy", "p", "prod")) in left
    assert rig.contents.sets == {}


def test_an_endpoint_that_moves_to_another_node_leaves_this_one():
    rig = Rig(WEB)
    rig.now(wep("web", "10.0.0.1", node=ELSEWHERE))
    assert rig.contents.endpoints == {}


def test_a_workload_without_address_does_not_exist_yet():
    rig = Rig(wep("web", labels={"app": "web"}))
    assert rig.contents.endpoints == {}


def test_facts_of_a_local_workload():
    from libcalico.model import IPNAT

    found = wep(
        "web",
        "10.0.0.1",
        "FD00::0:1/128",
        mac="EE:EE:EE:EE:EE:EE",
        profiles=("a", "b", "a"),
        ip_nats=(IPNAT(internal_ip="10.0.0.1", external_ip="192.0.2.7"),),
        allow_spoofed_source_prefixes=("10.9.0.0/16",),
        qos_controls=QoSControls(egress_max_connections=3, dscp="EF"),
    )
    rig = Rig(found, allow_source_spoofing=True)
    endpoint = rig.contents.endpoints[found[0]]
    assert endpoint.interface == "caliweb"
    assert endpoint.mac == "ee:ee:ee:ee:ee:ee"
    assert endpoint.nets == ("10.0.0.1/32", "fd00::1/128")
    assert endpoint.profiles == ("a", "b")
    assert endpoint.allowed_source_prefixes == ("10.9.0.0/16",)
    assert [(nat.internal_ip, nat.external_ip) for nat in endpoint.nats] == [
        ("10.0.0.1", "192.0.2.7")
    ]
    assert endpoint.qos == QosControls(egress=DirectionLimits(connections=3), dscp=46)


def test_changed_limits_are_handed_out_alone():
    rig = Rig(WEB)
    facts = {"labels": {"app": "web"}, "profiles": ("kns.prod",)}
    limited = wep("web", "10.0.0.1", "fd00::1", qos_controls=QoSControls(dscp=1), **facts)
    assert [type(intent) for intent in rig.now(limited)] == [WorkloadEndpointUpdate]
    assert rig.contents.endpoints[WEB[0]].qos == QosControls(dscp=1)
    rig.now(WEB)
    assert rig.contents.endpoints[WEB[0]].qos == NO_QOS


# -- 5.1 order of evaluation -----------------------------------------------------------------------


def test_tiers_by_order_absent_last_ties_by_name():
    """5.1 row 1."""
    rig = Rig(
        WEB,
        tier("last-b"),
        tier("last-a"),
        tier("tie-b", 10),
        tier("tie-a", 10),
        tier("first", -1),
        *(gnp(name, tier=name) for name in ("tie-a", "last-a", "first", "last-b", "tie-b")),
    )
    assert [item[0] for item in rig.tiers(WEB)] == ["first", "tie-a", "tie-b", "last-a", "last-b"]


def test_a_tier_without_object_comes_last_and_denies_at_its_end():
    """5.1 row 1: fail closed."""
    lost = gnp("lost", tier="a-missing")
    rig = Rig(WEB, tier("open", action="Pass"), gnp("p", tier="open"), lost)
    assert [(item[0], item[3]) for item in rig.tiers(WEB)] == [("open", False), ("a-missing", True)]
    rig.now(tier("a-missing", 1, "Pass"))
    assert [(item[0], item[3]) for item in rig.tiers(WEB)] == [
        ("a-missing", False),
        ("open", False),
    ]


def test_only_tiers_with_a_policy_that_selects_the_endpoint_in_that_direction_take_part():
    """5.1 row 2."""
    rig = Rig(
        WEB,
        tier("a", 1),
        tier("b", 2),
        tier("empty", 0),
        gnp("other", tier="empty", selector="app == 'nobody'"),
        gnp("in", tier="a", types=("Ingress",)),
        gnp("out", tier="b", types=("Egress",)),
    )
    assert rig.tiers(WEB) == [("a", ["in"], [], True), ("b", [], ["out"], True)]


def test_policies_by_order_absent_last_ties_by_name_namespace_kind():
    """5.1 row 3."""
    rig = Rig(
        WEB,
        np("b", order=1.5),
        np("a", order=1.5),
        gnp("a", order=1.5),
        gnp("z", order=-5.0),
        np("none"),
        np("big", order=1e9),
        snp("0", order=-9.0),
    )
    ingress = rig.contents.endpoints[WEB[0]].tiers[0].ingress
    assert [(key.name, key.kind) for key in ingress] == [
        ("z", "GlobalNetworkPolicy"),
        ("a", "GlobalNetworkPolicy"),  # "a//Global…" sorts before "a/prod/Network…"
        ("a", "NetworkPolicy"),
        ("b", "NetworkPolicy"),
        ("big", "NetworkPolicy"),
        ("none", "NetworkPolicy"),
    ]


def test_changing_the_order_of_a_policy_resolves_its_endpoints_again():
    rig = Rig(WEB, np("a", order=1), np("b", order=2))
    assert rig.tiers(WEB)[0][1] == ["a", "b"]
    rig.now(np("a", order=3))
    assert rig.tiers(WEB)[0][1] == ["b", "a"]


def test_changing_the_order_of_a_tier_resolves_its_endpoints_again():
    rig = Rig(WEB, tier("x", 1), tier("y", 2), gnp("px", tier="x"), gnp("py", tier="y"))
    rig.now(tier("x", 3))
    assert [item[0] for item in rig.tiers(WEB)] == ["y", "x"]


def test_a_tier_default_of_pass_and_anything_else():
    """5.1 row 5; an unknown default action denies (1.9)."""
    for action, denies in (("Pass", False), ("Deny", True), (None, True), ("Allow", True)):
        rig = Rig(WEB, tier("t", 1, action), gnp("p", tier="t"))
        assert rig.tiers(WEB)[0][3] is denies


def test_a_tier_of_staged_policies_only_takes_no_part():
    """5.1 row 5."""
    rig = Rig(WEB, tier("t", 1), sgnp("s", tier="t", ingress=DENY), gnp("p"))
    assert [item[0] for item in rig.tiers(WEB)] == ["default"]


def test_profiles_are_listed_in_the_endpoints_order_and_handed_out():
    """5.1 row 6."""
    found = wep("web", "10.0.0.1", profiles=("b", "a"))
    rig = Rig(found, profile("a", ingress=ALLOW), profile("b", egress=DENY), profile("unused"))
    assert rig.contents.endpoints[found[0]].profiles == ("b", "a")
    assert sorted(rig.contents.profiles) == ["a", "b"]
    assert [item.action for item in rig.contents.profiles["b"].egress] == [Action.DENY]


def test_a_listed_profile_that_does_not_exist_denies_everything():
    """7.10."""
    rig = Rig(WEB)
    missing = rig.contents.profiles["kns.prod"]
    assert [item.action for item in missing.ingress] == [Action.DENY]
    assert [item.action for item in missing.egress] == [Action.DENY]
    rig.now(PROD)
    assert rig.contents.profiles["kns.prod"].ingress[0].action is Action.ALLOW
    rig.without(PROD)
    assert rig.contents.profiles["kns.prod"].ingress[0].action is Action.DENY


def test_the_default_allow_profile_is_always_there():
    """0.9, 5.7."""
    found = hep("auto", interface_name="*", profiles=("projectcalico-default-allow",))
    rig = Rig(found)
    always = rig.contents.profiles["projectcalico-default-allow"]
    assert [item.action for item in always.ingress + always.egress] == [Action.ALLOW] * 2


# -- 5.2, 3.4 selectors, address sets ------------------------------------------------------------


def test_a_namespaced_selector_sees_its_own_namespace_only():
    """3.4 rule 1."""
    other = wep("other", "10.0.0.9", labels={"app": "fe"}, namespace="dev", node=ELSEWHERE)
    policy = np("p", ingress=from_(selector="app == 'fe'"))
    rig = Rig(WEB, FE, other, policy)
    assert rig.source_members(policy) == {"10.0.0.2/32"}


def test_a_global_policys_rule_selector_sees_every_namespace():
    other = wep("other", "10.0.0.9", labels={"app": "fe"}, namespace="dev", node=ELSEWHERE)
    policy = gnp("p", ingress=from_(selector="app == 'fe'"))
    rig = Rig(WEB, FE, other, policy)
    assert rig.source_members(policy) == {"10.0.0.2/32", "10.0.0.9/32"}


def test_a_rule_of_nets_and_ports_only_is_not_restricted_to_its_namespace():
    """3.4 rule 4."""
    policy = np("p", ingress=(rule(protocol="TCP", source={"nets": ("192.0.2.0/24",)}),))
    rig = Rig(WEB, policy)
    assert rig.contents.policies[policy[0]].ingress[0].source.sets == ()


def test_a_namespace_selector_reads_the_labels_that_profiles_hand_down():
    """3.4, 5.6."""
    dev = profile("kns.dev", labels={"pcns.env": "dev", "pcns.projectcalico.org/name": "dev"})
    other = wep("o", "10.0.0.9", namespace="dev", profiles=("kns.dev",), node=ELSEWHERE)
    policy = np("p", ingress=from_(namespace_selector="env == 'dev'"))
    rig = Rig(WEB, PROD, dev, other, policy)
    assert rig.source_members(policy) == {"10.0.0.9/32"}
    changed = rig.now(profile("kns.dev", labels={"pcns.env": "test"}))
    assert [type(intent) for intent in changed] == [SetDelta]
    assert rig.source_members(policy) == set()


def test_an_endpoints_own_label_wins_over_its_profiles():
    """3.3."""
    remote = wep("o", "10.0.0.9", labels={"team": "own"}, profiles=("p1", "p2"), node=ELSEWHERE)
    p1 = profile("p1", labels={"team": "first", "rank": "first"})
    p2 = profile("p2", labels={"team": "second", "rank": "second"})
    own = gnp("own", ingress=from_(selector="team == 'own' && rank == 'first'"))
    rig = Rig(WEB, remote, p1, p2, own)
    assert rig.source_members(own) == {"10.0.0.9/32"}


def test_profile_labels_can_make_a_policy_select_a_local_endpoint():
    policy = gnp("p", namespace_selector="env == 'live'")
    rig = Rig(WEB, policy)
    assert rig.tiers(WEB) == []
    rig.now(PROD)
    assert rig.tiers(WEB) == [("default", ["p"], ["p"], True)]
    rig.without(PROD)
    assert rig.tiers(WEB) == []


def test_a_workload_cannot_pretend_to_be_of_another_namespace_or_service_account():
    """1.9."""
    forged = wep(
        "o",
        "10.0.0.9",
        labels={
            "pcns.env": "live",
            "pcsa.role": "admin",
            "projectcalico.org/serviceaccount": "admin",
        },
        service_account_name="guest",
        node=ELSEWHERE,
    )
    by_env = gnp("env", ingress=from_(namespace_selector="env == 'live'"))
    by_account = gnp("sa", ingress=from_(service_accounts=ServiceAccountMatch(names=("admin",))))
    by_guest = gnp("g", ingress=from_(service_accounts=ServiceAccountMatch(names=("guest",))))
    rig = Rig(WEB, PROD, forged, by_env, by_account, by_guest)
    assert rig.source_members(by_env) == {"10.0.0.1/32", "fd00::1/128"}
    assert rig.source_members(by_account) == set()
    assert rig.source_members(by_guest) == {"10.0.0.9/32"}


def test_service_account_selectors_choose_the_endpoints_of_a_policy():
    """3.4."""
    builder = wep("b", "10.0.0.7", profiles=("ksa.prod.builder",), service_account_name="builder")
    account = profile("ksa.prod.builder", labels={"pcsa.role": "build"})
    policy = np("p", service_account_selector="role == 'build'")
    rig = Rig(WEB, builder, account, policy)
    assert rig.tiers(builder) == [("default", ["p"], ["p"], True)]
    assert rig.tiers(WEB) == []


def test_network_sets_of_both_kinds_are_members_by_their_labels():
    """5.2; 3.4: a NetworkSet carries its namespace and inherits kns.<namespace>."""
    inside = netset("s", "192.0.2.0/24", "198.51.100.7", labels={"set": "a"})
    outside = netset("s", "203.0.113.0/24", labels={"set": "a"}, namespace="dev")
    everywhere = gnetset("g", "2001:db8::/32", labels={"set": "a"})
    local = np("local", ingress=from_(selector="set == 'a'"))
    cluster = gnp("cluster", ingress=from_(selector="set == 'a'"))
    by_namespace = gnp("ns", ingress=from_(selector="has(set)", namespace_selector="has(env)"))
    rig = Rig(WEB, PROD, inside, outside, everywhere, local, cluster, by_namespace)
    own = {"192.0.2.0/24", "198.51.100.7/32"}
    assert rig.source_members(local) == own
    assert rig.source_members(cluster) == own | {"203.0.113.0/24", "2001:db8::/32"}
    assert rig.source_members(by_namespace) == own


def test_a_catch_all_member_is_split_into_its_two_halves():
    """5.2."""
    policy = gnp("p", ingress=from_(selector="set == 'a'"))
    rig = Rig(WEB, policy, gnetset("g", "0.0.0.0/0", "::/0", labels={"set": "a"}))
    assert rig.source_members(policy) == {"0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"}


def test_an_address_that_leads_to_a_workload_from_outside_is_no_member():
    """5.2: floating and other external addresses are not the endpoint's own."""
    nat = IPNAT(internal_ip="10.0.0.2", external_ip="198.51.100.2")
    fe = wep("fe", "10.0.0.2", labels={"app": "fe"}, node=ELSEWHERE, ip_nats=(nat,))
    policy = np("p", ingress=from_(selector="app == 'fe'"))
    assert Rig(WEB, fe, policy).source_members(policy) == {"10.0.0.2/32"}


def test_host_endpoints_are_members_by_their_expected_addresses():
    remote = hep("h", "192.0.2.5", "fd00::5", labels={"role": "db"}, node=ELSEWHERE)
    policy = gnp("p", ingress=from_(selector="role == 'db'"))
    rig = Rig(WEB, remote, policy)
    assert rig.source_members(policy) == {"192.0.2.5/32", "fd00::5/128"}


def test_named_ports_differ_per_endpoint_and_protocol():
    """5.2."""
    one = wep("a", "10.0.0.11", node=ELSEWHERE, ports=[("http", "TCP", 80), ("dns", "UDP", 53)])
    two = wep("b", "10.0.0.12", node=ELSEWHERE, ports=[("http", "TCP", 8080)])
    udp = wep("c", "10.0.0.13", node=ELSEWHERE, ports=[("http", "UDP", 8081)])
    policy = np(
        "p", types=("Egress",), egress=(rule(protocol="TCP", destination={"ports": ("http", 443)}),)
    )
    rig = Rig(WEB, one, two, udp, policy)
    match = rig.contents.policies[policy[0]].egress[0].destination
    assert [(item.first, item.last) for item in match.ports] == [(443, 443)]
    (set_id,) = match.named_port_sets
    assert rig.contents.members(set_id) == {"10.0.0.11,tcp,80", "10.0.0.12,tcp,8080"}


def test_a_port_name_that_nobody_offers_matches_nothing():
    policy = np("p", ingress=(rule(protocol="TCP", destination={"ports": ("nope",)}),))
    rig = Rig(WEB, policy)
    (set_id,) = rig.contents.policies[policy[0]].ingress[0].destination.named_port_sets
    assert rig.contents.members(set_id) == frozenset()


def test_a_rule_follows_the_endpoints_of_its_service():
    """5.2: destinations by address and port; empty, it is the policy's own namespace."""
    to_service = rule(destination=EntityRule(services=ServiceMatch(name="web")))
    policy = np("p", types=("Egress",), egress=(to_service, rule("Deny")))
    slice_ = endpoint_slice("web-1", "web", "10.0.0.9", ports=[("TCP", 80)])
    rig = Rig(WEB, policy, slice_, endpoint_slice("web-1", "web", "10.0.0.8", namespace="dev"))
    (set_id,) = rig.contents.policies[policy[0]].egress[0].destination.ip_port_sets
    assert rig.contents.members(set_id) == {"10.0.0.9,tcp,80"}
    more = endpoint_slice("web-1", "web", "10.0.0.9", "fd00::9", ports=[("TCP", 80)])
    assert rig.now(more) == [SetDelta(set_id, frozenset({"fd00::9,tcp,80"}), frozenset())]
    rig.without(more)
    assert rig.contents.members(set_id) == frozenset()


def test_a_service_that_nobody_knows_matches_nothing():
    """5.2: in etcd there are no Services, so this is what every rule about one comes to."""
    from_service = rule(source=EntityRule(services=ServiceMatch(name="web")))
    rig = Rig(WEB, np("p", ingress=(from_service,)))
    (policy,) = rig.contents.policies.values()
    (set_id,) = policy.ingress[0].source.sets
    assert rig.contents.members(set_id) == frozenset()
    rig.without(np("p"))
    assert rig.contents.sets == {}


def test_a_rule_about_http_is_kept_closed_and_said():
    http = rule(http=HTTPMatch(methods=("GET",)))
    policy, handed_down = np("p", ingress=(http,)), profile("kns.prod", ingress=(http,))
    rig = Rig(WEB, policy, handed_down)
    assert [item.unmatchable for item in rig.contents.policies[policy[0]].ingress] == [True]
    assert set(rig.graph.notices) == {policy[0], handed_down[0]}
    assert rig.graph.dump()["notices"].keys() == {str(policy[0]), str(handed_down[0])}
    rig.now(np("p", ingress=ALLOW), PROD)
    assert rig.graph.notices == {}


# -- 5.3 types ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "ingress", "egress"),
    [
        (("Ingress",), ["p"], []),
        (("Egress",), [], ["p"]),
        (("Ingress", "Egress"), ["p"], ["p"]),
        ((), ["p"], ["p"]),  # written by a foreign hand: both directions
    ],
)
def test_types_decide_the_directions(types, ingress, egress):
    rig = Rig(WEB, np("p", types=types, ingress=ALLOW, egress=ALLOW))
    assert rig.tiers(WEB) == [("default", ingress, egress, True)]
    policy = rig.contents.policies[ResourceKey("NetworkPolicy", "p", "prod")]
    assert (len(policy.ingress), len(policy.egress)) == (len(ingress), len(egress))


def test_a_policy_without_rules_isolates():
    rig = Rig(WEB, PROD, np("deny", types=("Ingress",)))
    assert rig.tiers(WEB) == [("default", ["deny"], [], True)]


# -- staged ---------------------------------------------------------------------------------------


def test_a_staged_policy_is_handed_out_but_governs_nothing():
    staged = snp("s", ingress=from_(selector="app == 'fe'"))
    rig = Rig(WEB, FE, staged)
    found = rig.contents.policies[staged[0]]
    assert found.staged
    assert rig.tiers(WEB) == []
    assert rig.graph.endpoints_of(staged[0]) == [WEB[0]]


def test_the_dump_says_whom_a_staged_policy_would_govern():
    staged = snp("p", tier="early", types=("Ingress",), ingress=(*ALLOW, *DENY))
    rig = Rig(WEB, FE, staged, snp("elsewhere", namespace="dev"), np("enforced"))
    assert rig.graph.dump()["staged"] == {
        str(staged[0]): {
            "revision": 4,
            "tier": "early",
            "ingress_rules": 2,
            "egress_rules": 0,
            "endpoints": [str(WEB[0])],
        }
    }


@pytest.mark.parametrize("action", ["Delete", "Ignore"])
def test_a_staged_policy_that_says_nothing_is_not_handed_out(action):
    rig = Rig(WEB, snp("s", staged_action=action))
    assert rig.contents.policies == {}


# -- 5.4 host endpoints ---------------------------------------------------------------------------


def test_the_flags_of_global_policies_split_the_stages_of_a_host_endpoint():
    """5.4."""
    eth0 = hep("h", interface_name="eth0")
    rig = Rig(
        eth0,
        WEB,
        gnp("plain"),
        gnp("forward", apply_on_forward=True),
        gnp("raw", do_not_track=True, apply_on_forward=True),
        gnp("early", pre_dnat=True, apply_on_forward=True, ingress=DENY),
    )
    found = rig.contents.endpoints[eth0[0]]
    both = ["forward", "plain"]
    assert shown(found.tiers) == [("default", both, both, True)]
    assert shown(found.forward_tiers) == [("default", ["forward"], ["forward"], True)]
    assert shown(found.untracked_tiers) == [("default", ["raw"], ["raw"], False)]
    assert shown(found.pre_dnat_tiers) == [("default", ["early"], [], False)]
    # A workload knows the normal stage only.
    assert rig.tiers(WEB) == [("default", both, both, True)]


def test_untracked_policy_is_ignored_on_a_host_endpoint_for_any_interface():
    """7.13."""
    anywhere = hep("h", interface_name="*")
    rig = Rig(anywhere, gnp("raw", do_not_track=True, apply_on_forward=True))
    assert rig.contents.endpoints[anywhere[0]].untracked_tiers == ()
    assert rig.contents.endpoints[anywhere[0]].ignores_untracked


def test_host_endpoints_of_other_nodes_are_not_ours():
    rig = Rig(hep("h", interface_name="eth0", node=ELSEWHERE), hep("i", "192.0.2.1"))
    assert [key.name for key in rig.contents.endpoints] == ["i"]
    assert rig.contents.endpoints[ResourceKey("HostEndpoint", "i")].expected_ips == ("192.0.2.1",)


def test_a_namespaced_policy_never_selects_a_host_endpoint():
    eth0 = hep("h", interface_name="eth0", labels={"app": "web"})
    rig = Rig(eth0, np("p", selector="app == 'web'"), gnp("g", namespace_selector="all()"))
    assert rig.contents.endpoints[eth0[0]].tiers == ()


# -- pools and hosts ------------------------------------------------------------------------------


def test_pools_and_hosts_are_handed_out():
    rig = Rig(
        pool("p4", "10.0.0.0/16", nat_outgoing=True, vxlan_mode="CrossSubnet"),
        pool("p6", "fd00::/64", disabled=True),
        node("n1", bgp=NodeBGPSpec(ipv4_address="192.0.2.11/24", ipv6_address="fd00::b/64")),
        node("n2", addresses=(NodeAddress(address="192.0.2.12", type="InternalIP"),)),
        node("n3"),
    )
    assert rig.contents.pools == {
        "10.0.0.0/16": PoolUpdate("10.0.0.0/16", True, "Never", "CrossSubnet"),
        "fd00::/64": PoolUpdate("fd00::/64", False),
    }
    assert rig.contents.hosts == {
        "n1": HostUpdate("n1", "192.0.2.11", "fd00::b"),
        "n2": HostUpdate("n2", "192.0.2.12", None),
        "n3": HostUpdate("n3", None, None),
    }
    rig.without(pool("p6", "fd00::/64"), node("n3"))
    assert sorted(rig.contents.pools) == ["10.0.0.0/16"]
    assert sorted(rig.contents.hosts) == ["n1", "n2"]


# -- invalid is absent (4, last paragraph) --------------------------------------------------------


def test_an_invalid_object_counts_as_absent_and_the_others_stand():
    def refuse_bad(value: object) -> None:
        if "bad" in value.metadata.name:  # type: ignore[attr-defined]
            raise ValidationError.of("Metadata.Name", "bad", "must not be bad")

    rig = Rig(WEB, np("bad", ingress=DENY), np("good", ingress=ALLOW), validate=refuse_bad)
    assert rig.tiers(WEB)[0][1] == ["good"]
    assert list(rig.graph.problems) == [ResourceKey("NetworkPolicy", "bad", "prod")]
    rig.without(np("bad"))
    assert rig.graph.problems == {}


def test_with_the_models_own_validation():
    """As the daemon runs it: each object refused for its own reason, the good ones enforced."""
    pod = wep("here-k8s-web-eth0", "10.0.0.1", pod="web", endpoint="eth0", interface_name="cali1")
    misnamed = wep("here-k8s-other-eth0", "10.0.0.2", pod="web", endpoint="eth0")
    rig = Rig(
        pod,
        misnamed,
        gnp("both", do_not_track=True, pre_dnat=True, apply_on_forward=True),
        gnp("portless", ingress=(rule(destination={"ports": (80,)}),)),
        gnp("good", ingress=(rule(protocol="TCP", destination={"ports": (80,)}),)),
        tier("default", 1, "Deny"),
        validate=validate,
    )
    assert list(rig.contents.endpoints) == [pod[0]]
    assert rig.tiers(pod) == [("default", ["good"], ["good"], True)]
    refused = {key.name: reason for key, reason in rig.graph.problems.items()}
    assert set(refused) == {"here-k8s-other-eth0", "both", "portless", "default"}
    assert "preDNAT and doNotTrack cannot both be true" in refused["both"]


def test_a_value_that_becomes_invalid_takes_the_good_one_with_it():
    rig = Rig(WEB, np("p", selector="app == 'web'"))
    rig.now(np("p", selector="app = 'web'"))
    assert rig.tiers(WEB) == []
    assert "selector" in rig.graph.refusal_of(ResourceKey("NetworkPolicy", "p", "prod"))


def test_a_value_that_does_not_decode_is_absent_and_reported():
    rig = Rig(WEB, np("p"))
    key = ResourceKey("NetworkPolicy", "p", "prod")
    rig.graph.on_updates([Update(key, None, 9, DecodeError("/x", b"{", "broken"))])
    rig.flush()
    assert rig.contents.policies == {}
    assert "broken" in rig.graph.problems[key]


def test_a_policy_whose_rule_does_not_compile_is_absent_from_every_list():
    bad = np("bad", ingress=from_(selector="a = 'b'"), order=1)
    rig = Rig(WEB, bad, np("good", order=2))
    assert rig.tiers(WEB) == [("default", ["good"], ["good"], True)]
    assert list(rig.graph.problems) == [bad[0]]
    rig.now(np("bad", ingress=from_(selector="a == 'b'"), order=1))
    assert rig.tiers(WEB)[0][1] == ["bad", "good"]
    assert rig.graph.problems == {}
    rig.now(bad)
    assert rig.tiers(WEB)[0][1] == ["good"]


DEV_LOCAL = wep("w", "10.0.0.7", namespace="dev")


@pytest.mark.parametrize(
    "bad",
    [
        np("bad", namespace="dev", ingress=from_(selector="has(")),
        np("bad", namespace="dev", selector="has(nobody)", egress=from_(selector="has(")),
        gnp("bad", selector="has(nobody)", ingress=from_(nets=("x",))),
        sgnp("bad", selector="has(nobody)", ingress=from_(ports=("a:b:c",))),
        np("bad", namespace="dev", ingress=from_(namespace_selector="has(")),
    ],
    ids=lambda item: item[0].kind,
)
def test_a_bad_rule_is_reported_whether_or_not_its_policy_ever_concerned_this_node(bad):
    """What is wrong depends on what is stored now, not on which endpoints were here before."""
    never, was_here = Rig(bad), Rig(DEV_LOCAL, bad)
    was_here.without(DEV_LOCAL)
    assert list(never.graph.problems) == list(was_here.graph.problems) == [bad[0]]
    assert never.graph.problems == was_here.graph.problems
    never.now(DEV_LOCAL)
    assert list(never.graph.problems) == [bad[0]]
    assert never.contents.policies == {}
    never.without(bad)
    assert never.graph.problems == {}


def test_rules_of_a_direction_that_a_policy_does_not_govern_are_nobodys_problem():
    rig = Rig(WEB, np("p", types=("Egress",), ingress=from_(selector="has(")))
    assert rig.graph.problems == {}
    assert rig.tiers(WEB) == [("default", [], ["p"], True)]


def test_a_profile_with_a_bad_rule_denies_and_hands_down_no_labels():
    bad = profile("kns.prod", labels={"pcns.env": "live"}, ingress=from_(selector="a = 'b'"))
    rig = Rig(WEB, PROD, gnp("p", namespace_selector="env == 'live'"))
    rig.now(bad)
    assert rig.tiers(WEB) == []
    assert rig.contents.profiles["kns.prod"].ingress[0].action is Action.DENY


@pytest.mark.parametrize(
    "broken",
    [
        wep("web", "10.0.0.300"),
        wep("web", "10.0.0.1", interface_name=None),
        wep("web", "10.0.0.1", allow_spoofed_source_prefixes=("10.9.0.0/16",)),
    ],
)
def test_a_broken_workload_is_absent(broken):
    rig = Rig(WEB)
    rig.now(broken)
    assert rig.contents.endpoints == {}
    assert list(rig.graph.problems) == [WEB[0]]


def test_a_pool_or_node_with_a_bad_address_is_absent():
    bad_node = node("n", bgp=NodeBGPSpec(ipv4_address="192.0.2/24"))
    rig = Rig(pool("p", "10.0.0.0/99"), bad_node)
    assert rig.contents.pools == rig.contents.hosts == {}
    assert len(rig.graph.problems) == 2


def test_kinds_and_keys_of_others_are_skipped():
    rig = Rig()
    rig.graph.on_updates(
        [
            Update(BlockKey("10.0.0.0/26"), object(), 1),
            Update(ResourceKey("BGPPeer", "x"), object(), 1),
        ]
    )
    assert rig.flush() == []


# -- the overlay, through the graph ---------------------------------------------------------------


def test_a_pinned_endpoint_is_programmed_with_its_policy_before_the_datastore_shows_it():
    rig = Rig(PROD, np("p", selector="app == 'web'"))
    rig.graph.pin(*WEB)
    rig.flush()
    assert rig.tiers(WEB) == [("default", ["p"], ["p"], True)]
    rig.graph.on_updates([Update(WEB[0], None, 3)])
    assert rig.flush() == []
    rig.graph.confirm(WEB[0], 50)
    rig.graph.on_updates([Update(*WEB, 50)])
    assert rig.flush() == []
    rig.graph.on_updates([Update(WEB[0], None, 51)])
    rig.flush()
    assert rig.contents.endpoints == {}


def test_a_retracted_endpoint_is_gone_before_the_datastore_says_so():
    rig = Rig(WEB)
    rig.graph.retract(WEB[0])
    assert WorkloadEndpointRemove(WEB[0]) in rig.flush()
    rig.put()
    assert rig.flush() == []


def test_a_pinned_endpoint_that_is_invalid_is_refused_and_can_be_asked_about():
    rig = Rig()
    key, endpoint = wep("web", "10.0.0.1", interface_name=None)
    rig.graph.pin(key, endpoint)
    assert rig.flush() == []
    assert "interfaceName" in rig.graph.refusal_of(key)


def test_a_resync_that_does_not_show_a_pinned_endpoint_yet_does_not_remove_it():
    """cni/ports.py P1."""
    rig = Rig(PROD)
    rig.graph.pin(*WEB)
    rig.graph.confirm(WEB[0], 50)
    rig.flush()
    rig.graph.on_status(SyncStatus.RESYNC)
    rig.graph.on_updates([Update(*PROD, 2)])
    rig.graph.on_status(SyncStatus.IN_SYNC)
    assert rig.flush() == []
    assert WEB[0] in rig.contents.endpoints


# -- helping ourselves ---------------------------------------------------------------------------


def test_the_story_of_an_object_and_the_dump_of_the_graph():
    policy = np("p", ingress=from_(selector="app == 'fe'"))
    rig = Rig(WEB, policy)
    rig.without(policy)
    story = [(flush, intent) for flush, intent, _ in rig.graph.story("prod/p")]
    assert story == [(1, "PolicyUpdate"), (2, "PolicyRemove")]
    dump = rig.graph.dump()
    assert dump["in_sync"] is True
    assert dump["handed_out"] == {
        "policies": 0,
        "profiles": 1,
        "endpoints": 1,
        "pools": 0,
        "hosts": 0,
    }


def test_the_revision_of_a_policy_travels_with_it():
    rig = Rig(WEB)
    rig.graph.on_updates([Update(*np("p", ingress=PASS), 777)])
    (update,) = [item for item in rig.flush() if isinstance(item, PolicyUpdate)]
    assert update.revision == 777


def test_sets_come_first_and_whole():
    rig = Rig(WEB, FE, PROD, np("p", ingress=from_(selector="app == 'fe'")))
    kinds = [type(intent) for intent in rig.last]
    assert kinds == [SetUpdate, PolicyUpdate, ProfileUpdate, WorkloadEndpointUpdate, InSync]
