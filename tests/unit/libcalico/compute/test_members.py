"""libcalico.compute.members: what the contract promises, example by example."""

from __future__ import annotations

import pytest

from libcalico.compute.members import EndpointPort, MemberIndex, PortMatch, port_member
from libcalico.selector import parse

V4, V6, SHARED = "10.0.0.1/32", "fd00::1/128", "10.0.0.9/32"


@pytest.fixture
def index():
    index: MemberIndex[str, str] = MemberIndex()
    yield index
    index.flush()
    index.check()


def told(index: MemberIndex[str, str]) -> dict[str, tuple[bool, set[str], set[str]]]:
    return {
        delta.set_id: (delta.is_new, set(delta.added), set(delta.removed))
        for delta in index.flush()
    }


def test_a_new_set_is_told_whole_even_when_it_is_empty(index):
    index.update_set("s", parse("has(a)"))
    assert told(index) == {"s": (True, set(), set())}
    index.update_item("pod", {"a": ""}, addresses=[V4, V6])
    assert told(index) == {"s": (False, {V4, V6}, set())}
    index.update_set("t", parse("has(a)"))
    assert told(index) == {"t": (True, {V4, V6}, set())}
    assert index.members("t") == {V4, V6}


def test_a_shared_address_stays_as_long_as_one_owner_does(index):
    index.update_set("s", parse("has(a)"))
    index.update_item("one", {"a": ""}, addresses=[SHARED])
    index.update_item("two", {"a": ""}, addresses=[SHARED])
    assert told(index) == {"s": (True, {SHARED}, set())}
    index.delete_item("one")
    assert told(index) == {}
    index.update_item("two", {})
    assert told(index) == {"s": (False, set(), {SHARED})}


def test_an_address_that_moves_between_items_is_no_change(index):
    index.update_set("s", parse("has(a)"))
    index.update_item("old", {"a": ""}, addresses=[SHARED])
    index.flush()
    index.delete_item("old")
    index.update_item("new", {"a": ""}, addresses=[SHARED])
    assert told(index) == {}
    assert index.members("s") == {SHARED}


def test_addresses_that_are_swapped_are_no_change(index):
    index.update_set("s", parse("has(a)"))
    index.update_item("one", {"a": ""}, addresses=[V4])
    index.update_item("two", {"a": ""}, addresses=[V6])
    index.flush()
    index.update_item("one", {"a": ""}, addresses=[V6])
    index.update_item("two", {"a": ""}, addresses=[V4])
    assert told(index) == {}


def test_an_item_that_names_an_address_twice_counts_once(index):
    index.update_set("s", parse("has(a)"))
    index.update_item("pod", {"a": ""}, addresses=[V4, V4])
    index.flush()
    index.update_item("pod", {"a": ""}, addresses=[V6])
    assert told(index) == {"s": (False, {V6}, {V4})}


def test_addresses_and_labels_may_change_together(index):
    index.update_set("a", parse("has(a)"))
    index.update_set("b", parse("has(b)"))
    index.update_set("all", parse("all()"))
    index.update_item("pod", {"a": ""}, addresses=[V4])
    index.flush()
    index.update_item("pod", {"b": ""}, addresses=[V6])
    assert told(index) == {
        "a": (False, set(), {V4}),
        "b": (False, {V6}, set()),
        "all": (False, {V6}, {V4}),
    }


HTTP = EndpointPort("http", "tcp", 80)
ALT = EndpointPort("http", "tcp", 8080)
DNS = EndpointPort("dns", "udp", 53)


def test_a_port_set_holds_address_protocol_and_port(index):
    index.update_set("s", parse("all()"), port=PortMatch("http", "tcp"))
    index.update_item("pod", {}, addresses=[V4, V6], ports=[HTTP, ALT, DNS])
    index.update_item("set", {}, addresses=["192.0.2.0/24"])
    wanted = {"10.0.0.1,tcp,80", "10.0.0.1,tcp,8080", "fd00::1,tcp,80", "fd00::1,tcp,8080"}
    assert told(index) == {"s": (True, wanted, set())}
    index.update_item("pod", {}, addresses=[V4], ports=[ALT])
    assert told(index) == {"s": (False, set(), wanted - {"10.0.0.1,tcp,8080"})}


def test_a_port_set_looks_for_name_and_protocol(index):
    index.update_item("pod", {}, addresses=[V4], ports=[DNS])
    for name, protocol, wanted in (
        ("dns", "udp", {"10.0.0.1,udp,53"}),
        ("dns", "tcp", set()),
        ("gopher", "udp", set()),
    ):
        index.update_set("s", parse("all()"), port=PortMatch(name, protocol))
        index.flush()
        assert index.members("s") == wanted


def test_a_set_may_change_what_it_looks_for(index):
    index.update_item("pod", {}, addresses=[V4], ports=[HTTP])
    index.update_set("s", parse("all()"))
    index.flush()
    index.update_set("s", parse("all()"), port=PortMatch("http", "tcp"))
    assert told(index) == {"s": (False, {"10.0.0.1,tcp,80"}, {V4})}


def test_a_deleted_set_is_told_nothing_and_may_come_again(index):
    index.update_item("pod", {}, addresses=[V4])
    index.update_set("s", parse("all()"))
    index.flush()
    index.delete_set("s")
    index.update_item("pod", {}, addresses=[V6])
    assert told(index) == {}
    assert index.members("s") == frozenset()
    index.update_set("s", parse("all()"))
    assert told(index) == {"s": (True, {V6}, set())}


def test_a_set_deleted_and_set_again_in_one_flush_goes_on(index):
    index.update_item("pod", {"a": ""}, addresses=[V4])
    index.update_set("s", parse("all()"))
    index.flush()
    index.delete_set("s")
    index.update_set("s", parse("has(b)"))
    assert told(index) == {"s": (False, set(), {V4})}


def test_labels_of_profiles_count(index):
    index.update_set("s", parse("has(a)"))
    index.update_item("pod", {}, ["p"], addresses=[V4])
    index.flush()
    index.update_parent("p", {"a": ""})
    assert told(index) == {"s": (False, {V4}, set())}
    index.delete_parent("p")
    assert told(index) == {"s": (False, set(), {V4})}


def test_which_sets_an_item_is_in(index):
    index.update_set("s", parse("has(a)"))
    index.update_set("t", parse("all()"))
    index.update_item("pod", {}, addresses=[V4])
    index.flush()
    assert index.sets_of("pod") == ["t"]


def test_a_member_text_drops_the_length_of_a_host_prefix():
    assert port_member("10.0.0.1/32", "tcp", 80) == "10.0.0.1,tcp,80"
    assert port_member("fd00::1", "udp", 53) == "fd00::1,udp,53"
