"""felix.dataplane.policy_mgr: which policies become chains, and which are written into tiers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.policy_mgr import PolicyBook, PolicyManager
from felix.intent import Intent, PolicyRemove, ProfileRemove
from felix.rules.chain import BaseHook, Chain, Hook, Rule, jump
from felix.rules.names import policy_chain, profile_chain
from felix.rules.settings import RuleSettings
from libcalico.compute.rules import Action
from tests.support.nft import ALLOW, DENY, allow_all_profile, policy, policy_key, rule

KEY = policy_key("p")
IN = policy_chain("in", KEY.kind, KEY.namespace, KEY.name)
OUT = policy_chain("out", KEY.kind, KEY.namespace, KEY.name)
PASSING = rule(Action.PASS)


class Rig:
    def __init__(self) -> None:
        self.wanted = WantedRuleset()
        self.book = PolicyBook()
        self.manager = PolicyManager(self.wanted, RuleSettings(), self.book)

    def send(self, *intents: Intent) -> None:
        for intent in intents:
            self.manager.on_intent(intent)
        self.manager.complete_deferred_work()
        self.wanted.check()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def is_known(rig: Rig, name: str) -> bool:
    rig.wanted.want_chain(Chain("b", (Rule((), (jump(name),)),), BaseHook(Hook.INPUT, 0)))
    rig.wanted.settle()
    return [r.comment for r in rig.wanted.effective[name].rules] != ["unknown: closed"]


def test_a_policy_is_a_chain_per_direction(rig: Rig):
    rig.send(policy("p", [ALLOW], [DENY]))
    assert is_known(rig, IN)
    assert is_known(rig, OUT)
    rig.send(PolicyRemove(KEY))
    assert not is_known(rig, IN)
    assert not is_known(rig, OUT)


def test_a_profile_is_a_chain_per_direction(rig: Rig):
    rig.send(allow_all_profile("kns.x"))
    assert is_known(rig, profile_chain("in", "kns.x"))
    rig.send(ProfileRemove("kns.x"))
    assert not is_known(rig, profile_chain("in", "kns.x"))


def test_staged_policies_are_not_rendered(rig: Rig):
    rig.send(policy("p", [ALLOW]))
    rig.send(replace(policy("p", [ALLOW]), staged=True))
    assert not is_known(rig, IN)


@pytest.mark.parametrize("flag", ["untracked", "pre_dnat"])
def test_policies_of_early_stages_are_rendered_for_host_endpoints(rig: Rig, flag: str):
    rig.send(replace(policy("p", [ALLOW]), **{flag: True}))
    assert is_known(rig, IN)


def test_a_policy_with_pass_is_in_the_book_and_no_chain(rig: Rig):
    rig.send(policy("p", [PASSING], [ALLOW]))
    assert rig.book.passing(KEY, "in") is not None
    assert rig.book.passing(KEY, "out") is None
    assert not is_known(rig, IN)
    assert is_known(rig, OUT)
    assert rig.book.take_changed() == {KEY}
    assert rig.book.take_changed() == set()


def test_beginning_and_ceasing_to_pass_are_changes(rig: Rig):
    rig.send(policy("p", [ALLOW]))
    assert rig.book.take_changed() == set()
    rig.send(policy("p", [PASSING]))
    assert rig.book.take_changed() == {KEY}
    rig.send(policy("p", [PASSING]))
    assert rig.book.take_changed() == set()
    rig.send(policy("p", [ALLOW]))
    assert rig.book.take_changed() == {KEY}
    assert is_known(rig, IN)
    rig.send(policy("p", [PASSING]), PolicyRemove(KEY))
    assert rig.book.take_changed() == set()


def test_the_last_word_of_a_flush_counts(rig: Rig):
    rig.send(PolicyRemove(KEY), policy("p", [ALLOW]))
    assert is_known(rig, IN)


def test_what_the_kernel_refused_of_a_policy_is_named(rig: Rig):
    rig.send(policy("p", [ALLOW], [DENY]))
    assert rig.manager.refused_part(KEY) is None
    rig.wanted.refuse({OUT}, set())
    assert rig.manager.refused_part(KEY) == f"chain {OUT}"
    assert rig.manager.refused_part(policy_key("other")) is None


def test_a_policy_is_refused_with_the_tier_chain_that_its_rules_stand_in(rig: Rig):
    rig.send(policy("p", [PASSING]))
    rig.book.note_written("tier-in-x", [KEY])
    rig.wanted.refuse({"tier-in-x"}, set())
    assert rig.manager.refused_part(KEY) == "chain tier-in-x"
    rig.book.note_written("tier-in-x", [])
    assert rig.manager.refused_part(KEY) is None
