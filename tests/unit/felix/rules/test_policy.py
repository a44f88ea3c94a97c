"""felix.rules.policy: the order of evaluation (datamodel 5.1), by packets through a fake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.intent import PolicyUpdate, ProfileUpdate
from felix.rules.chain import (
    ACCEPT,
    DROP,
    RETURN,
    Count,
    Limit,
    Log,
    NoTrack,
    Reject,
    Rule,
    SetMark,
    jump,
)
from felix.rules.policy import (
    RuleOwner,
    directions,
    log_prefix,
    policy_rules,
    profile_rules,
    tier_rules,
)
from felix.rules.settings import DenyAction, LogRate, RuleSettings
from libcalico.compute.rules import Action, EntityMatch
from libcalico.testing.fakenft import Packet
from tests.support.nft import (
    ALLOW,
    DENY,
    PROFILE,
    FakeNode,
    allow_all_profile,
    policy,
    policy_key,
    rule,
    tier,
    workload,
)

SETTINGS = RuleSettings()
A, B = "10.65.0.2", "10.65.0.3"
A6, B6 = "fd00::2", "fd00::3"


async def node_with(*intents: object, tiers: tuple = (), profiles: tuple = (PROFILE,)) -> FakeNode:
    """Workload a has the tiers, b lets everything through."""
    node = FakeNode()
    await node.push(
        allow_all_profile(),
        *intents,  # type: ignore[arg-type]
        workload("a", "cali1", f"{A}/32", f"{A6}/128", tiers=tiers, profiles=profiles),
        workload("b", "cali2", f"{B}/32", f"{B6}/128"),
    )
    return node


def into_a(node: FakeNode, dport: int = 80, protocol: str = "tcp") -> str:
    """Both families must agree."""
    verdicts = {
        node.fake.forward(Packet(src, dst, protocol, dport=dport), "cali2", "cali1")
        for src, dst in ((B, A), (B6, A6))
    }
    assert len(verdicts) == 1, verdicts
    return verdicts.pop()


def out_of_a(node: FakeNode, dport: int = 80, protocol: str = "tcp") -> str:
    return node.fake.forward(Packet(A, B, protocol, dport=dport), "cali1", "cali2")


async def test_tiers_are_evaluated_in_the_order_given():
    deny, allow = policy("deny", [DENY]), policy("allow", [ALLOW])
    node = await node_with(
        deny, allow, tiers=(tier("deny", name="first"), tier("allow", name="second"))
    )
    assert into_a(node) == "drop"
    node = await node_with(
        deny, allow, tiers=(tier("allow", name="first"), tier("deny", name="second"))
    )
    assert into_a(node) == "accept"


async def test_policies_of_a_tier_are_evaluated_in_the_order_given():
    deny80 = policy("deny80", [rule(Action.DENY, protocol=6, ports=[80])])
    allow = policy("allow", [ALLOW])
    node = await node_with(deny80, allow, tiers=(tier("deny80", "allow"),))
    assert (into_a(node, 80), into_a(node, 81)) == ("drop", "accept")
    node = await node_with(deny80, allow, tiers=(tier("allow", "deny80"),))
    assert into_a(node, 80) == "accept"


async def test_rules_are_evaluated_in_list_order():
    mixed = policy("p", [rule(protocol=6, ports=[80]), DENY, ALLOW])
    node = await node_with(mixed, tiers=(tier("p"),))
    assert (into_a(node, 80), into_a(node, 81)) == ("accept", "drop")


async def test_no_match_at_the_end_of_a_tier_is_its_default_action():
    quiet = policy("quiet", [rule(protocol=6, ports=[80])])
    node = await node_with(quiet, tiers=(tier("quiet"),))
    assert into_a(node, 81) == "drop"
    node = await node_with(quiet, tiers=(tier("quiet", default_deny=False),))
    assert into_a(node, 81) == "accept"  # passed on to the profile


async def test_pass_leaves_the_tier_and_the_next_tier_decides():
    passing = policy("passing", [rule(Action.PASS, protocol=6, ports=[80]), DENY], tier="first")
    after = policy("after", [ALLOW])
    node = await node_with(
        passing, after, tiers=(tier("passing", name="first"), tier("after", name="second"))
    )
    assert (into_a(node, 80), into_a(node, 81)) == ("accept", "drop")


async def test_pass_skips_the_rest_of_its_own_tier():
    passing = policy("passing", [rule(Action.PASS, protocol=6)])
    deny = policy("deny", [DENY])
    node = await node_with(passing, deny, tiers=(tier("passing", "deny"),))
    assert into_a(node) == "accept"  # the profile's word
    assert into_a(node, protocol="udp") == "drop"


async def test_pass_in_the_last_tier_leads_to_the_profiles():
    passing = policy("passing", [rule(Action.PASS)])
    node = await node_with(passing, tiers=(tier("passing"),), profiles=("none",))
    assert into_a(node) == "drop"


async def test_no_match_in_a_policy_that_passes_goes_on_with_the_next_policy():
    passing = policy("passing", [rule(Action.PASS, protocol=17)])
    allow = policy("allow", [ALLOW])
    node = await node_with(passing, allow, tiers=(tier("passing", "allow"),), profiles=())
    assert into_a(node) == "accept"


async def test_log_writes_and_goes_on():
    logging = policy("logging", [rule(Action.LOG, protocol=6), rule(protocol=6, ports=[80])])
    node = await node_with(logging, tiers=(tier("logging"),))
    assert into_a(node, 80) == "accept"
    assert node.fake.logs == ["calico-packet: "]


async def test_profiles_decide_in_the_order_of_the_endpoint():
    deny80 = ProfileUpdate("deny80", (rule(Action.DENY, protocol=6, ports=[80]),), ())
    node = await node_with(deny80, profiles=("deny80", PROFILE))
    assert (into_a(node, 80), into_a(node, 81)) == ("drop", "accept")
    node = await node_with(deny80, profiles=(PROFILE, "deny80"))
    assert into_a(node, 80) == "accept"


async def test_pass_in_a_profile_ends_that_profile_only():
    passing = ProfileUpdate("passing", (rule(Action.PASS), DENY), (ALLOW,))
    node = await node_with(passing, profiles=("passing", PROFILE))
    assert into_a(node) == "accept"
    node = await node_with(passing, profiles=("passing",))
    assert into_a(node) == "drop"


async def test_an_endpoint_without_policies_and_profiles_is_closed_both_ways():
    node = await node_with(profiles=())
    assert (into_a(node), out_of_a(node)) == ("drop", "drop")


async def test_policy_in_one_direction_leaves_the_other_to_the_profiles():
    quiet = policy("quiet")
    node = await node_with(quiet, tiers=(tier(ingress=["quiet"]),))
    assert (into_a(node), out_of_a(node)) == ("drop", "accept")


async def test_a_tier_that_governs_another_direction_only_is_skipped_entirely():
    egress_only = policy("egress", (), [ALLOW])
    tiers = (tier(name="other"), tier(ingress=["egress"]))
    node = await node_with(egress_only, tiers=(tiers[0],))
    assert into_a(node) == "accept"


async def test_a_listed_profile_that_is_not_known_denies_at_its_place():
    node = await node_with(profiles=("gone", PROFILE))
    assert into_a(node) == "drop"
    node = await node_with(profiles=(PROFILE, "gone"))
    assert into_a(node) == "accept"


async def test_a_listed_policy_that_is_not_known_denies_at_its_place():
    allow = policy("allow", [ALLOW])
    node = await node_with(allow, tiers=(tier("gone", "allow"),))
    assert into_a(node) == "drop"
    node = await node_with(allow, tiers=(tier("allow", "gone"),))
    assert into_a(node) == "accept"


async def test_a_rule_with_an_unknown_set_closes_its_policy():
    odd = policy("odd", [ALLOW, rule(source=EntityMatch(sets=("s:gone",)))])
    node = await node_with(odd, tiers=(tier("odd"),))
    assert into_a(node) == "drop"


# ---------------------------------------------------------------------------------- rendering


def test_a_policy_with_pass_is_written_into_the_tier():
    passing = policy("passing", [rule(Action.PASS)])
    rendered = policy_rules(passing, "in", SETTINGS)
    assert rendered.passes
    assert not policy_rules(passing, "out", SETTINGS).passes
    chain = tier_rules(tier("passing"), "in", [(passing.key, rendered)], SETTINGS)
    assert [r.actions for r in chain.rules] == [(RETURN,), (DROP,)]


def test_a_policy_without_pass_is_jumped_to():
    allow = policy("allow", [ALLOW])
    rendered = policy_rules(allow, "in", SETTINGS)
    chain = tier_rules(tier("allow", default_deny=False), "in", [], SETTINGS)
    assert [r.actions for r in chain.rules] == [(jump(rendered.chain.name),)]


def test_tier_chains_are_named_by_what_they_list():
    name = tier_rules(tier("a", "b"), "in", [], SETTINGS).name
    assert name == tier_rules(tier("a", "b"), "in", [], SETTINGS).name
    others = (
        tier("b", "a"),
        tier("a"),
        tier("a", "b", name="x"),
        tier("a", "b", default_deny=False),
    )
    assert name not in {tier_rules(one, "in", [], SETTINGS).name for one in others}
    assert name != tier_rules(tier("a", "b"), "out", [], SETTINGS).name


def test_comments_name_tier_policy_and_rule():
    found = policy_rules(policy("web", [ALLOW, DENY], tier="security"), "in", SETTINGS).chain
    assert [r.comment for r in found.rules] == [
        "security: policy default/web rule 0",
        "security: policy default/web rule 1",
    ]
    assert found.comment == "tier security, NetworkPolicy default/web, ingress"
    profile = profile_rules(ProfileUpdate("kns.x", (ALLOW,), ()), "in", SETTINGS)
    assert profile.rules[0].comment == "profile kns.x rule 0"


def test_many_like_rules_are_one_with_a_comment_over_all():
    many = [rule(source=EntityMatch(nets=(f"10.{n}.0.0/16",))) for n in range(20)]
    (only,) = policy_rules(policy("web", many), "in", SETTINGS).chain.rules
    assert only.comment == "default: policy default/web rules 0-19"


def test_deny_is_reject_when_configured():
    settings = RuleSettings(deny_action=DenyAction.REJECT)
    chain = policy_rules(policy("p", [DENY]), "in", settings).chain
    assert chain.rules[0].actions == (Reject(),)
    closing = tier_rules(tier("p"), "in", [], settings).rules[-1]
    assert closing.actions == (Reject(),)


def test_counters_stand_before_every_verdict_when_configured():
    settings = RuleSettings(counts=True)
    chain = policy_rules(policy("p", [ALLOW, DENY]), "in", settings).chain
    assert [r.actions for r in chain.rules] == [(Count(), ACCEPT), (Count(), DROP)]


def test_log_is_limited_when_configured():
    settings = RuleSettings(log_rate=LogRate(5, 60, 7))
    chain = policy_rules(policy("p", [rule(Action.LOG)]), "in", settings).chain
    expected = (Limit(5, 60, 7), Log("calico-packet: "))
    assert chain.rules == (Rule((), expected, "default: policy default/p rule 0"),)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("calico-packet", "calico-packet: "),
        ("%t/%k/%n", "sec/np/web: "),
        ("%p %x", "ns/web %x: "),
        ("x" * 200, "x" * 125 + ": "),
    ],
)
def test_log_prefixes_are_expanded_and_fit_the_kernel(template: str, expected: str):
    owner = RuleOwner("NetworkPolicy", "web", "ns", "sec")
    assert log_prefix(template, owner) == expected


def test_a_global_policy_has_no_namespace_in_its_comment():
    found = PolicyUpdate(policy_key("web", ""), "default", (ALLOW,), ())
    assert (
        policy_rules(found, "in", SETTINGS).chain.rules[0].comment == "default: policy web rule 0"
    )


@pytest.mark.parametrize(
    ("flag", "effects"),
    [
        ("untracked", (NoTrack(), SetMark(SETTINGS.marks.allowed), ACCEPT)),
        ("pre_dnat", (SetMark(SETTINGS.marks.allowed), ACCEPT)),
        ("apply_on_forward", (ACCEPT,)),
    ],
)
def test_what_an_early_stage_allows_is_marked(flag: str, effects: tuple):
    early = replace(policy("p", [ALLOW]), **{flag: True})
    (allowed,) = policy_rules(early, "in", SETTINGS).chain.rules
    assert allowed.actions == effects
    (counted,) = policy_rules(early, "in", RuleSettings(counts=True)).chain.rules
    assert counted.actions == (Count(), *effects)


@pytest.mark.parametrize(
    ("flag", "direction", "end"),
    [
        ("apply_on_forward", "in", Reject()),
        ("apply_on_forward", "late", DROP),
        ("untracked", "out", DROP),
        ("pre_dnat", "in", DROP),
    ],
)
def test_only_filtering_rejects(flag: str, direction: str, end: object):
    settings = RuleSettings(deny_action=DenyAction.REJECT)
    denying = replace(policy("p", [DENY], [DENY]), **{flag: True})
    (denied,) = policy_rules(denying, direction, settings).chain.rules
    assert denied.actions == (end,)


def test_policies_are_rendered_a_third_time_only_to_reject():
    assert directions(SETTINGS) == ("in", "out")
    assert directions(RuleSettings(deny_action=DenyAction.REJECT)) == ("in", "out", "late")
