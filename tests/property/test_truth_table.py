"""Truth tables of random policy sets: the evaluator and both rendered dataplanes, case by case.

Over 20,000 cases, each read three times: from the objects, and from rules as nftables and as
iptables have them. The seeds are fixed: what differs once differs again.
(tests/netns/test_truth_table.py: the same tables with real packets.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from felix.intent import Intent, PolicyUpdate
from libcalico.model import EntityRule, Rule
from libcalico.policy.evaluate import Reason
from libcalico.policy.packet import Packet
from tests.support.truth_table import (
    CASES,
    Difference,
    FakeReader,
    cluster_of,
    compare,
    fake_readers,
    tables_for,
)

WANTED = 20_000


async def test_both_rendered_dataplanes_agree_with_the_evaluator_case_by_case():
    tally = await compare(fake_readers(), range(tables_for(WANTED)))
    assert tally.cases >= WANTED
    assert 0.1 < tally.passed / tally.cases < 0.9, "one-sided tables prove little"
    decided = sum(tally.reasons.values())
    for reason in (
        Reason.RULE,
        Reason.TIER_DEFAULT,
        Reason.PROFILE_RULE,
        Reason.PROFILE_MISSING,
        Reason.NO_MATCH,
        Reason.ENCAPSULATED,
    ):
        assert tally.reasons[reason] > decided * 0.01, (reason, tally.reasons)


def test_the_policy_sets_say_everything_that_policy_can_say():
    clusters = [cluster_of(seed) for seed in range(tables_for(WANTED))]
    objects = [value for cluster in clusters for value in cluster.values()]
    assert {value.kind for value in objects} == {
        *("WorkloadEndpoint", "HostEndpoint", "NetworkPolicy", "GlobalNetworkPolicy"),
        *("StagedNetworkPolicy", "StagedGlobalNetworkPolicy", "NetworkSet", "GlobalNetworkSet"),
        *("Tier", "Profile", "KubernetesEndpointSlice"),
    }
    rules = [
        rule
        for value in objects
        for direction in ("ingress", "egress")
        for rule in getattr(getattr(value, "spec", None), direction, ())
    ]
    assert {rule.action for rule in rules} == {"Allow", "Deny", "Pass", "Log"}
    assert _said_by(rules) == set(Rule.__struct_fields__) - {"metadata"}
    sides = [side for rule in rules for side in (rule.source, rule.destination) if side]
    assert _said_by(sides) == set(EntityRule.__struct_fields__)
    assert {type(port) for side in sides for port in side.ports} == {int, str}


def _said_by(structs: Iterable[Rule | EntityRule]) -> set[str]:
    """The members that are set in one at least."""
    return {
        name
        for one in structs
        for name in one.__struct_fields__
        if getattr(one, name) not in (None, ())
    }


class ForgetsARule(FakeReader):
    """A dataplane in which the first ingress rule of every policy got lost."""

    async def enforce(self, intents: Iterable[Intent]) -> None:
        await super().enforce(
            replace(one, ingress=one.ingress[1:]) if isinstance(one, PolicyUpdate) else one
            for one in intents
        )


@pytest.mark.parametrize("which", [0, 1], ids=["nftables", "iptables"])
async def test_a_rule_that_got_lost_is_found_and_shown_with_few_objects(which: int):
    node = fake_readers()[which].node
    with pytest.raises(Difference) as found:
        await compare([ForgetsARule("broken", node)], range(10))
    seed, *_, objects = str(found.value).partition("\n")
    assert "the evaluator says" in seed
    assert 1 <= len(objects.splitlines()) - 2 <= 6, "what has nothing to do with it is left out"


def test_no_two_cases_of_a_table_are_of_one_connection():
    connections = [_connection(case.packet) for case in CASES]
    assert len(set(connections)) == len(CASES) > 1000


def _connection(packet: Packet) -> frozenset[object]:
    """The same for both directions."""
    if packet.icmp_type is not None:  # requests of the two directions are not each other's answer
        kind = packet.icmp_type, packet.icmp_code
        return frozenset([("from", packet.source), ("to", packet.destination), kind])
    ends = (packet.source, packet.source_port), (packet.destination, packet.destination_port)
    return frozenset([*ends, packet.protocol])
