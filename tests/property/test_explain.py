"""`calicoctl policy explain` asks compiled tables, and says what the evaluator says of the objects.

Random clusters and packets between any two of their endpoints, or an address of nobody: the whole
way must agree, with the deciding rule, the tiers passed, and what stands before policy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from calicoctl.explain import Cluster, End, judge
from libcalico import net
from libcalico.model import HostEndpoint, WorkloadEndpoint
from libcalico.policy.evaluate import Verdict, evaluate_endpoint, evaluate_to_host
from libcalico.policy.packet import Packet
from libcalico.policy.world import Settings, World, world_of
from tests.support.calc_random import Maker

SEEDS = st.integers(0, 2**64)
PACKETS = 12
NOBODY = End((net.parse_ip("203.0.113.9"),))


@dataclass(frozen=True)
class Oracle:
    """In the place of a Cluster, without tables."""

    world: World

    def endpoint(self, *asked, **options) -> Verdict:
        return evaluate_endpoint(self.world, *asked, **options)

    def to_host(self, key, packet) -> Verdict:
        return evaluate_to_host(self.world, key, packet)


def agree(seed: int) -> Counter[str]:
    """Returns what decided."""
    maker = Maker(seed)
    resources = [*maker.cluster().values()]
    ends = [NOBODY, *map(end, (r for r in resources if isinstance(r, KINDS) and r.spec.node))]
    oracle = Oracle(world_of(resources, settings=Settings()))
    reasons: Counter[str] = Counter()
    for number in range(PACKETS):
        # Both ends change with the packet; every pair comes in its turn.
        first, second = ends[number % len(ends)], ends[(number * 7 + seed) % len(ends)]
        cluster = Cluster.of(resources, Settings(), first, second)
        packet: Packet = maker.packet()
        ours = judge(cluster, first, second, packet)
        assert ours == judge(oracle, first, second, packet), (first, second, packet)  # type: ignore[arg-type]
        reasons.update(verdict.reason.name for verdict in ours)
    return reasons


KINDS = (WorkloadEndpoint, HostEndpoint)


def end(endpoint: WorkloadEndpoint | HostEndpoint) -> End:
    return End((), endpoint)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_an_explanation_agrees_with_the_evaluator(seed):
    agree(seed)


def test_the_questions_meet_every_way_to_a_verdict():
    reasons: Counter[str] = Counter()
    for seed in range(40):
        reasons += agree(seed)
    wanted = ("RULE", "TIER_DEFAULT", "PROFILE_RULE", "PROFILE_MISSING", "NO_MATCH", "FAILSAFE")
    assert min(reasons[name] for name in wanted) > 0, reasons
