"""felix.testing.dataplane: the fake refuses every broken promise of felix/intent.py."""

from __future__ import annotations

import pytest

from felix.intent import (
    HostEndpointRemove,
    HostEndpointUpdate,
    HostRemove,
    InSync,
    PolicyRemove,
    PolicyUpdate,
    PoolRemove,
    PoolUpdate,
    ProfileRemove,
    ProfileUpdate,
    SetDelta,
    SetRemove,
    SetUpdate,
    TierPolicies,
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from felix.testing.dataplane import BrokenPromise, FakeDataplane
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, SetKind
from libcalico.model.keys import ResourceKey

P = ResourceKey("NetworkPolicy", "p", "prod")
W = ResourceKey("WorkloadEndpoint", "w", "prod")
H = ResourceKey("HostEndpoint", "h")

NETS = SetUpdate("s", SetKind.NET, frozenset({"10.0.0.1/32"}))
PORTS = SetUpdate("n", SetKind.IP_PORT, frozenset({"10.0.0.1,tcp,80"}))


def rule(**source: object) -> tuple[CompiledRule, ...]:
    return (CompiledRule(Action.ALLOW, 0, source=EntityMatch(**source)),)  # type: ignore[arg-type]


POLICY = PolicyUpdate(P, "default", rule(sets=("s",)), ())
PROFILE = ProfileUpdate("kns.prod", (), ())


def workload(*tiers: TierPolicies, profiles: tuple[str, ...] = ()) -> WorkloadEndpointUpdate:
    return WorkloadEndpointUpdate(W, "cali1", "", ("10.0.0.1/32",), profiles, tiers)


GOVERNED = workload(TierPolicies("default", (P,), ()), profiles=("kns.prod",))


@pytest.fixture
def dataplane() -> FakeDataplane:
    return FakeDataplane()


def test_a_good_life(dataplane):
    dataplane.apply([NETS, POLICY, PROFILE, GOVERNED, InSync()])
    dataplane.apply([SetDelta("s", frozenset({"fd00::1/128"}), frozenset({"10.0.0.1/32"}))])
    assert dataplane.contents().members("s") == {"fd00::1/128"}
    assert dataplane.in_sync
    dataplane.apply(
        [WorkloadEndpointRemove(W), ProfileRemove("kns.prod"), PolicyRemove(P), SetRemove("s")]
    )
    assert dataplane.contents() == FakeDataplane().contents()
    assert dataplane.messages == 10


@pytest.mark.parametrize(
    ("flush", "promise"),
    [
        ([POLICY, NETS], "order"),
        ([NETS, InSync(), POLICY], "order"),
        ([InSync(), InSync()], "O3"),
        ([NETS, NETS], "O3"),
        ([NETS, SetDelta("s", frozenset({"10.0.0.2/32"}), frozenset())], "O3"),
        ([NETS, SetRemove("s")], "O3"),
        ([SetDelta("s", frozenset({"10.0.0.2/32"}), frozenset())], "O4"),
        ([SetRemove("s")], "O2"),
        ([POLICY], "O1: unknown set"),
        ([PORTS, PolicyUpdate(P, "t", rule(sets=("n",)), ())], "kind"),
        ([NETS, PolicyUpdate(P, "t", rule(named_port_sets=("s",)), ())], "kind"),
        ([PolicyUpdate(P, "t", (CompiledRule(Action.DENY, 5),), ())], "index"),
        ([PolicyUpdate(P, "t", rule(nets=("10.0.0.1/8",)), ())], "strictly masked"),
        ([PolicyRemove(P)], "O2"),
        ([ProfileRemove("x")], "O2"),
        ([WorkloadEndpointRemove(W)], "O2"),
        ([HostEndpointRemove(H)], "O2"),
        ([PoolRemove("10.0.0.0/8")], "unknown pool"),
        ([HostRemove("n")], "unknown host"),
        ([GOVERNED], "O1: unknown policy"),
        ([workload(profiles=("kns.prod",))], "O1: unknown profile"),
        ([WorkloadEndpointUpdate(W, "c", "", (), (), ())], "without address"),
        ([WorkloadEndpointUpdate(W, "c", "", ("10.0.0.0/33",), (), ())], "CIDR"),
        ([HostEndpointUpdate(H, "e", ("FD00::1",), (), ())], "address"),
        ([PoolUpdate("10.1.0.0/8", True)], "strictly masked"),
        ([SetUpdate("s", SetKind.NET, frozenset({"0.0.0.0/0"}))], "canonical"),
        ([SetUpdate("s", SetKind.NET, frozenset({"FD00::/64"}))], "canonical"),
        ([SetUpdate("s", SetKind.IP_PORT, frozenset({"10.0.0.1,TCP,80"}))], "canonical"),
        ([SetUpdate("s", SetKind.IP_PORT, frozenset({"10.0.0.1,tcp,0"}))], "canonical"),
    ],
)
def test_a_broken_promise_is_refused(dataplane, flush, promise):
    with pytest.raises(Exception, match=promise):
        dataplane.apply(flush)


@pytest.mark.parametrize(
    "flush",
    [
        [SetRemove("s")],
        [PolicyRemove(P)],
        [ProfileRemove("kns.prod")],
        [SetDelta("s", frozenset({"10.0.0.1/32"}), frozenset())],
        [SetDelta("s", frozenset(), frozenset({"10.0.0.9/32"}))],
        [SetDelta("s", frozenset(), frozenset())],
        [HostEndpointRemove(W)],
        [InSync()],
    ],
)
def test_what_is_in_use_or_no_change_is_refused(dataplane, flush):
    dataplane.apply([NETS, POLICY, PROFILE, GOVERNED, InSync()])
    with pytest.raises(BrokenPromise):
        dataplane.apply(flush)


@pytest.mark.parametrize(
    ("policy", "endpoint", "refused"),
    [
        ({"staged": True}, {"tiers": True}, True),
        ({"untracked": True}, {"tiers": True}, True),
        ({"pre_dnat": True}, {"tiers": True}, True),
        ({}, {"tiers": True}, False),
        ({}, {"forward_tiers": True}, True),
        ({"apply_on_forward": True}, {"forward_tiers": True}, False),
        ({"untracked": True}, {"untracked_tiers": True}, False),
        ({"pre_dnat": True}, {"pre_dnat_tiers": True}, False),
        ({}, {"untracked_tiers": True}, True),
        ({"tier": "other"}, {"tiers": True}, True),
    ],
)
def test_a_policy_stands_where_it_belongs(dataplane, policy, endpoint, refused):
    found = PolicyUpdate(P, **{"tier": "default", "ingress": (), "egress": (), **policy})
    tiers = (TierPolicies("default", (P,), ()),)
    stages = {"tiers": (), **{stage: tiers for stage in endpoint}}
    flush = [found, HostEndpointUpdate(H, "eth0", (), (), **stages)]
    if refused:
        with pytest.raises(BrokenPromise):
            dataplane.apply(flush)
    else:
        dataplane.apply(flush)
