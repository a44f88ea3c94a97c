"""felix.dataplane.ipset_mgr: intents about sets into members of both families."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix.dataplane.ipset_mgr import IpSetManager
from felix.dataplane.nft_wanted import WantedRuleset
from felix.intent import Intent, SetDelta, SetRemove, SetUpdate
from felix.rules.names import address_set
from felix.rules.sets import ip_port_element, net_element, outermost, parse_net
from libcalico.compute.rules import SetKind

V4, V6 = address_set("s:x", 4), address_set("s:x", 6)


@pytest.fixture
def wanted():
    made = WantedRuleset()
    yield made
    made.check()


def send(manager: IpSetManager, *intents: Intent) -> None:
    for intent in intents:
        manager.on_intent(intent)
    manager.complete_deferred_work()


def nets(*members: str) -> SetUpdate:
    return SetUpdate("s:x", SetKind.NET, frozenset(members))


def delta(added: set[str], removed: set[str]) -> SetDelta:
    return SetDelta("s:x", frozenset(added), frozenset(removed))


def element(text: str) -> bytes:
    return net_element(*parse_net(text))


def test_members_are_split_by_family(wanted: WantedRuleset):
    send(IpSetManager(wanted), nets("10.0.0.1/32", "fd00::/64"))
    assert wanted.members[V4].wanted == {element("10.0.0.1/32")}
    assert wanted.members[V6].wanted == {element("fd00::/64")}
    assert wanted.spec(V4).interval


def test_address_port_members_are_exact_keys(wanted: WantedRuleset):
    members = frozenset({"10.0.0.1,tcp,80", "fd00::1,udp,53"})
    manager = IpSetManager(wanted)
    send(manager, SetUpdate("s:x", SetKind.IP_PORT, members))
    assert wanted.members[V4].wanted == {ip_port_element("10.0.0.1,tcp,80")}
    assert wanted.members[V6].wanted == {ip_port_element("fd00::1,udp,53")}
    send(manager, delta({"10.0.0.2,tcp,80"}, {"10.0.0.1,tcp,80"}))
    assert wanted.members[V4].wanted == {ip_port_element("10.0.0.2,tcp,80")}


def test_an_update_replaces_and_voids_what_came_before_it(wanted: WantedRuleset):
    manager = IpSetManager(wanted)
    send(manager, nets("10.0.0.1/32"), delta({"10.0.0.2/32"}, set()), nets("10.0.0.3/32"))
    assert wanted.members[V4].wanted == {element("10.0.0.3/32")}


def test_nested_members_come_and_go_with_their_cover(wanted: WantedRuleset):
    manager = IpSetManager(wanted)
    send(manager, nets("10.0.0.0/24", "10.0.0.7/32"))
    assert wanted.members[V4].wanted == {element("10.0.0.0/24")}
    send(manager, delta(set(), {"10.0.0.0/24"}))
    assert wanted.members[V4].wanted == {element("10.0.0.7/32")}


def test_a_removed_set_goes_in_both_families(wanted: WantedRuleset):
    manager = IpSetManager(wanted)
    send(manager, nets("10.0.0.1/32"))
    send(manager, SetRemove("s:x"))
    assert wanted.members == {}
    send(manager, SetRemove("s:x"))


def test_a_set_removed_and_announced_again_in_one_go_stays(wanted: WantedRuleset):
    manager = IpSetManager(wanted)
    send(manager, nets("10.0.0.1/32"))
    send(manager, SetRemove("s:x"), nets("10.0.0.2/32"))
    assert wanted.members[V4].wanted == {element("10.0.0.2/32")}


def test_a_set_may_change_its_kind(wanted: WantedRuleset):
    manager = IpSetManager(wanted)
    send(manager, nets("10.0.0.1/32"))
    send(manager, SetUpdate("s:x", SetKind.IP_PORT, frozenset({"10.0.0.1,tcp,80"})))
    assert not wanted.spec(V4).interval
    assert wanted.members[V4].wanted == {ip_port_element("10.0.0.1,tcp,80")}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (SetKind.NET, "10.0.0.1/32", "10.0.0.1/99"),
        (SetKind.IP_PORT, "10.0.0.1,tcp,80", "10.0.0.1,tcp"),
    ],
)
def test_a_bad_member_is_left_out_and_named(
    wanted: WantedRuleset, caplog: pytest.LogCaptureFixture, kind: SetKind, good: str, bad: str
):
    send(IpSetManager(wanted), SetUpdate("s:x", kind, frozenset({good, bad})))
    assert len(wanted.members[V4].wanted) == 1
    assert "bad member" in caplog.text


def test_a_delta_for_an_unknown_set_is_an_error_and_nothing_else(
    wanted: WantedRuleset, caplog: pytest.LogCaptureFixture
):
    send(IpSetManager(wanted), delta({"10.0.0.1/32"}, set()))
    assert wanted.members == {}
    assert "unknown address set" in caplog.text


MEMBERS = st.sets(
    st.sampled_from(["10.0.0.0/24", "10.0.0.0/30", "10.0.0.1/32", "10.0.1.1/32", "fd00::/64"])
)


@given(st.lists(MEMBERS, min_size=1, max_size=6), st.booleans())
def test_deltas_end_where_an_update_would(states: list[set[str]], push_each: bool):
    wanted = WantedRuleset()
    manager = IpSetManager(wanted)
    manager.on_intent(nets(*states[0]))
    for before, after in itertools.pairwise(states):
        if push_each:
            manager.complete_deferred_work()
        manager.on_intent(delta(after - before, before - after))
    manager.complete_deferred_work()
    for version, name in ((4, V4), (6, V6)):
        parsed = [net[1:] for net in map(parse_net, states[-1]) if net[0] == version]
        assert wanted.members[name].wanted == set(outermost(version, parsed))
