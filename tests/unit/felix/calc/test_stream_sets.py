"""felix.calc.stream_sets: members as typha tells them (SM1 to SM4), and the graph on top of it."""

from __future__ import annotations

from felix.calc import CalcGraph
from felix.calc.stream_sets import StreamMembers
from libcalico.selector import parse
from libcalico.syncer.api import GroupChange, SyncStatus, Update
from tests.support import calc
from tests.support.calc import HERE, rule

ALL = parse("all()")
G = "s:group"


def told(added: str = "", removed: str = "", **more: bool) -> list[GroupChange]:
    return [GroupChange(G, frozenset(added.split()), frozenset(removed.split()), **more)]


def used(*changes: list[GroupChange]) -> StreamMembers:
    members = StreamMembers()
    for change in changes:
        members.on_groups(change)
    members.update_set(G, ALL)
    members.flush()
    return members


def test_a_group_waits_for_the_policy_that_names_it():
    members = StreamMembers()
    members.on_groups(told("a b", whole=True))
    assert members.flush() == []
    members.update_set(G, ALL)
    (delta,) = members.flush()
    assert (delta.is_new, delta.added) == (True, {"a", "b"})


def test_what_is_told_again_as_a_whole_gives_what_differs():
    members = used(told("a b c", whole=True))
    members.on_groups(told("b c d", whole=True))
    (delta,) = members.flush()
    assert (delta.added, delta.removed) == ({"d"}, {"a"})


def test_deltas_are_net_and_true():
    members = used(told("a", whole=True))
    members.on_groups(told("b a", "x"))
    members.on_groups(told("", "b"))
    assert members.flush() == []
    members.on_groups(told("", "a"))
    members.on_groups(told("a"))
    assert members.flush() == []
    members.check()


def test_a_group_told_gone_while_used_keeps_its_members():
    members = used(told("a", whole=True))
    members.on_groups(told(gone=True))
    assert members.members(G) == {"a"}
    members.delete_set(G)
    assert members.members(G) == set()
    members.check()


def test_a_policy_whose_group_nobody_tells_denies_all_until_it_comes():
    graph = CalcGraph(HERE, in_spans=True)
    policy = calc.np("p", selector="all()", ingress=(rule(source={"selector": "app == 'a'"}),))
    pod = calc.wep("w", "10.0.0.1")
    graph.on_updates([Update(key, value, 1) for key, value in (policy, pod)])
    graph.on_status(SyncStatus.IN_SYNC)
    graph.flush()
    sent = graph._sequencer.policies.sent(policy[0])
    assert sent is not None
    assert [rule.action.value for rule in sent.ingress] == ["deny"]
    (why,) = graph.notices.values()
    assert "does not tell the members of s:" in why
    (set_id,) = graph._stream.lacks(graph._stream._used)  # type: ignore[union-attr]
    graph.on_groups([GroupChange(set_id, frozenset({"10.0.0.9/32"}), whole=True)])
    graph.flush()
    sent = graph._sequencer.policies.sent(policy[0])
    assert sent is not None
    assert [rule.action.value for rule in sent.ingress] == ["allow"]
    assert not graph.notices


def test_a_pinned_workload_is_closed_until_the_stream_shows_it():
    graph = CalcGraph(HERE, in_spans=True)
    graph.on_status(SyncStatus.IN_SYNC)
    graph.on_updates([Update(*calc.profile("kns.prod"), 1)])
    key, pod = calc.wep("w", "10.0.0.1", profiles=("kns.prod",), labels={"app": "a"})
    graph.pin(key, pod)
    graph.flush()
    sent = graph._sequencer.endpoints.sent(key)
    assert sent is not None
    assert (sent.profiles, sent.tiers) == ((), ())
    assert not graph.is_settled(key)
    policy = calc.np("p", selector="app == 'a'")
    graph.on_updates([Update(*policy, 2), Update(key, pod, 3)])
    graph.flush()
    sent = graph._sequencer.endpoints.sent(key)
    assert sent is not None
    assert sent.profiles == ("kns.prod",)
    assert [tier.ingress for tier in sent.tiers] == [(policy[0],)]
    assert graph.is_settled(key)
    graph.pin(key, calc.wep("w", "10.0.0.1", profiles=("kns.prod",), labels={"app": "b"})[1])
    assert not graph.is_settled(key)
