"""felix.dataplane.governance_chains: a chain is there while somebody uses it."""

from __future__ import annotations

import pytest

from felix.dataplane.governance_chains import GovernanceChains
from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.policy_mgr import PolicyBook
from felix.rules.endpoints import Governance
from felix.rules.policy import policy_rules, tier_chain_name
from felix.rules.settings import RuleSettings
from libcalico.compute.rules import Action
from tests.support.nft import policy, policy_key, rule, tier

SETTINGS = RuleSettings()
TIER = tier("p")
PLAIN = Governance.of("in", (TIER,), ())
HEADED = Governance.of("in", (TIER,), (), before="first")
TIER_CHAIN = tier_chain_name(TIER, "in")


class Rig:
    def __init__(self) -> None:
        self.wanted, self.book = WantedRuleset(), PolicyBook()
        self.chains = GovernanceChains(self.wanted, SETTINGS, self.book)

    def known(self) -> set[str]:
        return set(self.wanted._chains)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_chain_lives_as_long_as_its_last_user(rig: Rig):
    rig.chains.use(PLAIN, "cali1")
    rig.chains.use(PLAIN, "cali2")
    rig.chains.use(PLAIN, "cali2")
    rig.chains.unuse(PLAIN.chain_name, "cali1")
    assert rig.known() == {PLAIN.chain_name, TIER_CHAIN}
    rig.chains.unuse(PLAIN.chain_name, "cali2")
    assert rig.known() == set()


def test_a_tier_chain_outlives_one_of_two_endpoint_chains(rig: Rig):
    rig.chains.use(PLAIN, "cali1")
    rig.chains.use(HEADED, "host-in eth0")
    rig.chains.unuse(PLAIN.chain_name, "cali1")
    assert rig.known() == {HEADED.chain_name, TIER_CHAIN}
    assert rig.chains.dump() == {HEADED.chain_name: ["host-in eth0"]}


def test_policies_that_pass_are_written_into_the_tier_when_they_change(rig: Rig):
    rig.chains.use(PLAIN, "cali1")
    before = rig.wanted._chains[TIER_CHAIN]
    passing = policy_rules(policy("p", [rule(Action.PASS)]), "in", SETTINGS)
    rig.book.put(policy_key("p"), "in", passing)
    rig.chains.rewrite_changed()
    after = rig.wanted._chains[TIER_CHAIN]
    assert before != after
    assert passing.chain.rules[0] in after.rules


def test_the_book_knows_which_tier_chains_hold_a_policy(rig: Rig):
    passing = policy_rules(policy("p", [rule(Action.PASS)]), "in", SETTINGS)
    rig.book.put(policy_key("p"), "in", passing)
    rig.chains.use(PLAIN, "cali1")
    assert rig.book.written_into(policy_key("p")) == {TIER_CHAIN}
    rig.chains.unuse(PLAIN.chain_name, "cali1")
    assert rig.book.written_into(policy_key("p")) == frozenset()
