"""The intents mean what the objects mean: the graph's output, interpreted, against the evaluator.

Random policies of all kinds, tiers, profiles, endpoints, network sets and packets. The evaluator
(libcalico.policy) reads the objects and knows nothing of label indexes, sets or compiled rules; the
interpreter (felix.testing.interpreter) reads intents and knows nothing of selectors. For every
local endpoint, direction and stage they must agree on every packet: the outcome, the tier, policy
and rule that decide, and the tiers passed on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from felix.testing.dataplane import Contents
from felix.testing.interpreter import decide
from libcalico.policy.evaluate import Reason, Stage, Verdict, evaluate_endpoint
from libcalico.policy.packet import Direction, Packet
from libcalico.policy.world import Settings, World, world_of
from tests.support.calc import Rig
from tests.support.calc_random import Maker

# Policy alone: what stands before it is the dataplane's matter.
NOTHING_BEFORE_POLICY = Settings(
    allow_vxlan_from_workloads=True,
    allow_ipip_from_workloads=True,
    inbound_failsafes=(),
    outbound_failsafes=(),
)
SEEDS = st.integers(0, 2**64)
PACKETS = 25


def agree(contents: Contents, world: World, packets: Iterable[Packet]) -> Counter[Reason]:
    """Every packet at every endpoint, direction and stage; returns what decided."""
    reasons: Counter[Reason] = Counter()
    for packet in packets:
        for key in contents.endpoints:
            stages = Stage if key.kind == "HostEndpoint" else (Stage.NORMAL,)
            for stage in stages:
                for direction in Direction:
                    ours = decide(contents, key, direction, packet, stage=stage)
                    expected = evaluate_endpoint(world, key, direction, packet, stage=stage)
                    if expected.reason is Reason.NEIGHBOUR_DISCOVERY:
                        continue  # before policy, like failsafe ports
                    assert ours == in_tables(expected), (key, packet, expected)
                    reasons[expected.reason] += 1
    return reasons


def in_tables(verdict: Verdict) -> Verdict:
    """Of a profile that does not exist the tables hold one rule, which denies."""
    if verdict.reason is not Reason.PROFILE_MISSING:
        return verdict
    return replace(verdict, reason=Reason.PROFILE_RULE, rule_index=0)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_the_interpreted_intents_agree_with_the_evaluator(seed):
    maker = Maker(seed)
    cluster = maker.cluster()
    world = world_of(cluster.values(), settings=NOTHING_BEFORE_POLICY)
    agree(Rig(*cluster.items()).contents, world, [maker.packet() for _ in range(PACKETS)])


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_they_still_agree_after_one_cluster_became_another(seed):
    maker = Maker(seed)
    before, after = maker.cluster(), maker.cluster()
    rig = Rig(*before.items())
    for key in before.keys() - after.keys():
        rig.change(key, None)
    rig.put(*after.items())
    rig.flush()
    world = world_of(after.values(), settings=NOTHING_BEFORE_POLICY)
    agree(rig.contents, world, [maker.packet() for _ in range(PACKETS)])


def test_the_random_clusters_exercise_every_way_to_a_verdict():
    """The odds of the generator are part of the test: empty clusters prove nothing."""
    reasons: Counter[Reason] = Counter()
    for seed in range(60):
        maker = Maker(seed)
        cluster = maker.cluster()
        world = world_of(cluster.values(), settings=NOTHING_BEFORE_POLICY)
        reasons += agree(
            Rig(*cluster.items()).contents, world, [maker.packet() for _ in range(PACKETS)]
        )
    decided = sum(reasons.values())
    assert reasons[Reason.RULE] > decided * 0.2, reasons
    for reason in (
        Reason.TIER_DEFAULT,
        Reason.PROFILE_RULE,
        Reason.PROFILE_MISSING,
        Reason.NO_MATCH,
        Reason.NOTHING_APPLIES,
    ):
        assert reasons[reason] > decided * 0.01, (reason, reasons)
