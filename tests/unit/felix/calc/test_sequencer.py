"""felix.calc.sequencer: one entry per object, dependency order, nothing twice."""

from __future__ import annotations

import pytest

from felix.calc.address_sets import SetChanges
from felix.calc.sequencer import Sequencer, subject
from felix.intent import (
    HostEndpointRemove,
    HostEndpointUpdate,
    HostRemove,
    HostUpdate,
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
    WorkloadEndpointRemove,
    WorkloadEndpointUpdate,
)
from libcalico.compute.rules import SetKind
from libcalico.model.keys import ResourceKey

P = ResourceKey("NetworkPolicy", "p", "prod")
W = ResourceKey("WorkloadEndpoint", "w", "prod")
H = ResourceKey("HostEndpoint", "h")
POLICY, PROFILE = PolicyUpdate(P, "default", (), ()), ProfileUpdate("kns.prod", (), ())
WORKLOAD = WorkloadEndpointUpdate(W, "cali1", "", ("10.0.0.1/32",), (), ())
HOST = HostEndpointUpdate(H, "eth0", (), (), ())
POOL, NODE = PoolUpdate("10.0.0.0/16", True), HostUpdate("n", "192.0.2.1", None)
SET = SetUpdate("s", SetKind.NET, frozenset())
DELTA = SetDelta("t", frozenset({"10.0.0.1/32"}), frozenset())


def fill(sequencer: Sequencer, *, present: bool) -> None:
    """Against the order in which they must come out."""
    sequencer.endpoints.put(W, WORKLOAD if present else None)
    sequencer.endpoints.put(H, HOST if present else None)
    sequencer.profiles.put("kns.prod", PROFILE if present else None)
    sequencer.policies.put(P, POLICY if present else None)
    sequencer.hosts.put("n", NODE if present else None)
    sequencer.pools.put("10.0.0.0/16", POOL if present else None)


def test_referents_come_first_and_leave_last():
    """Q3."""
    sequencer = Sequencer()
    fill(sequencer, present=True)
    assert sequencer.flush(SetChanges([SET], [DELTA], [])) == [
        POOL,
        NODE,
        SET,
        DELTA,
        POLICY,
        PROFILE,
        WORKLOAD,
        HOST,
    ]
    fill(sequencer, present=False)
    assert sequencer.flush(SetChanges(removed=["s"])) == [
        PoolRemove("10.0.0.0/16"),
        HostRemove("n"),
        WorkloadEndpointRemove(W),
        HostEndpointRemove(H),
        ProfileRemove("kns.prod"),
        PolicyRemove(P),
        SetRemove("s"),
    ]


def test_the_same_again_is_not_said():
    """Q1."""
    sequencer = Sequencer()
    fill(sequencer, present=True)
    sequencer.flush(SetChanges())
    fill(sequencer, present=True)
    assert sequencer.flush(SetChanges()) == []


def test_what_came_and_went_is_never_heard_of():
    """Q2."""
    sequencer = Sequencer()
    fill(sequencer, present=True)
    fill(sequencer, present=False)
    assert sequencer.flush(SetChanges()) == []


def test_only_the_last_word_counts():
    sequencer = Sequencer()
    sequencer.policies.put(P, POLICY)
    changed = PolicyUpdate(P, "other", (), ())
    sequencer.policies.put(P, changed)
    assert sequencer.flush(SetChanges()) == [changed]
    assert sequencer.policies.sent(P) == changed
    assert sequencer.dump()["policies"] == 1


@pytest.mark.parametrize(
    ("intent", "name"),
    [
        (SET, "s"),
        (DELTA, "t"),
        (SetRemove("u"), "u"),
        (PROFILE, "kns.prod"),
        (ProfileRemove("x"), "x"),
        (POLICY, "NetworkPolicy(prod/p)"),
        (PolicyRemove(P), "NetworkPolicy(prod/p)"),
        (WORKLOAD, "WorkloadEndpoint(prod/w)"),
        (HostEndpointRemove(H), "HostEndpoint(h)"),
        (POOL, "10.0.0.0/16"),
        (HostRemove("n"), "n"),
        (InSync(), ""),
    ],
)
def test_what_an_intent_is_about(intent, name):
    assert subject(intent) == name
