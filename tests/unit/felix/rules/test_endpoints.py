"""felix.rules.endpoints: what governs an endpoint, and when it is shared."""

from __future__ import annotations

from dataclasses import replace

from felix.rules.chain import DROP, Reject, goto, jump
from felix.rules.endpoints import Governance, endpoint_rules, endpoint_verdict
from felix.rules.names import profile_chain
from felix.rules.policy import tier_chain_name
from felix.rules.settings import DenyAction, RuleSettings
from tests.support.nft import tier, workload

SETTINGS = RuleSettings()


def test_tiers_come_first_then_profiles_then_the_end():
    one, two = tier("a", name="one"), tier("b", name="two")
    chain = endpoint_rules(Governance.of("in", (one, two), ("p", "q")), SETTINGS)
    assert [rule.actions for rule in chain.rules] == [
        (jump(tier_chain_name(one, "in")),),
        (jump(tier_chain_name(two, "in")),),
        (jump(profile_chain("in", "p")),),
        (jump(profile_chain("in", "q")),),
        (DROP,),
    ]


def test_a_tier_without_a_policy_in_the_direction_is_not_there():
    governance = Governance.of("out", (tier(ingress=["a"]),), ())
    assert governance.tiers == ()
    assert len(endpoint_rules(governance, SETTINGS).rules) == 1


def test_endpoints_governed_alike_share_a_chain():
    first = Governance.of("in", (tier("a"),), ("p",))
    assert first.chain_name == Governance.of("in", (tier("a"),), ("p",)).chain_name
    others = [
        Governance.of("out", (tier("a"),), ("p",)),
        Governance.of("in", (tier("a", "b"),), ("p",)),
        Governance.of("in", (tier("a"),), ("p", "q")),
        Governance.of("in", (), ("p",)),
    ]
    assert len({governance.chain_name for governance in (first, *others)}) == 5


def test_the_order_of_profiles_is_part_of_the_name():
    one = Governance.of("in", (), ("p", "q")).chain_name
    assert one != Governance.of("in", (), ("q", "p")).chain_name


def test_an_inactive_endpoint_is_closed():
    endpoint = workload("a", "cali1", "10.65.0.2/32")
    governance = Governance.of("in", (), ("p",))
    assert endpoint_verdict(endpoint, governance) == goto(governance.chain_name)
    assert endpoint_verdict(replace(endpoint, active=False), governance) == DROP


def test_the_comment_says_what_governs():
    chain = endpoint_rules(Governance.of("in", (tier("a", name="sec"),), ("p",)), SETTINGS)
    assert chain.comment == "tiers: sec; profiles: p"


def test_an_open_chain_has_no_end_and_is_not_the_closed_one():
    closed = Governance.of("in", (tier("a"),), ())
    opened = Governance.of("in", (tier("a"),), (), is_open=True)
    assert opened.chain_name != closed.chain_name
    assert [rule.actions for rule in endpoint_rules(opened, SETTINGS).rules] == [
        (jump(tier_chain_name(tier("a"), "in")),)
    ]


def test_what_is_asked_before_comes_first_and_makes_another_chain():
    plain = Governance.of("in", (), ("p",))
    headed = Governance.of("in", (), ("p",), before="host-needed-in")
    assert headed.chain_name != plain.chain_name
    assert endpoint_rules(headed, SETTINGS).rules[0].actions == (jump("host-needed-in"),)


def test_late_chains_reject_nothing():
    settings = RuleSettings(deny_action=DenyAction.REJECT)
    for direction, end in (("out", Reject()), ("late", DROP)):
        chain = endpoint_rules(Governance.of(direction, (), ()), settings)
        assert chain.rules[-1].actions == (end,)
