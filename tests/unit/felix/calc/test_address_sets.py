"""felix.calc.address_sets: sets live while somebody uses them."""

from __future__ import annotations

from felix.calc.address_sets import AddressSets
from felix.intent import SetDelta, SetUpdate
from libcalico.compute.contributions import Contribution
from libcalico.compute.members import EndpointPort, PortMatch
from libcalico.compute.rule_compiler import SetDefinition
from libcalico.compute.rules import SetKind
from libcalico.model.keys import ResourceKey
from libcalico.selector import parse

A = {"a": SetDefinition(SetKind.NET, parse("has(x)"))}
B = {"b": SetDefinition(SetKind.IP_PORT, parse("all()"), PortMatch("http", "tcp"))}


def key(name: str) -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", name, "prod")


def endpoint(address: str, *ports: EndpointPort) -> Contribution:
    return Contribution({"x": "1"}, (), (address,), ports)


def flushed(sets: AddressSets):
    changes = sets.flush()
    sets.check()
    return changes.updates, changes.deltas, changes.removed


def test_a_set_is_announced_whole_then_by_differences_and_goes_with_its_last_user():
    """A1, A2."""
    sets = AddressSets()
    sets.update_item(key("one"), endpoint("10.0.0.1/32"))
    sets.use("p", A)
    assert flushed(sets) == ([SetUpdate("a", SetKind.NET, frozenset({"10.0.0.1/32"}))], [], [])
    sets.use("q", A)
    sets.update_item(key("two"), endpoint("fd00::2/128"))
    assert flushed(sets) == ([], [SetDelta("a", frozenset({"fd00::2/128"}), frozenset())], [])
    sets.use("p", {})
    assert flushed(sets) == ([], [], [])
    sets.use("q", {})
    assert flushed(sets) == ([], [], ["a"])
    assert sets.members("a") == frozenset()


def test_named_port_sets():
    sets = AddressSets()
    sets.use("p", B)
    sets.update_item(key("one"), endpoint("10.0.0.1/32", EndpointPort("http", "tcp", 80)))
    updates, _, _ = flushed(sets)
    assert updates == [SetUpdate("b", SetKind.IP_PORT, frozenset({"10.0.0.1,tcp,80"}))]


def test_given_up_and_asked_for_again_is_no_change():
    """A3."""
    sets = AddressSets()
    sets.use("p", A)
    flushed(sets)
    sets.use("p", {})
    sets.use("p", A)
    assert flushed(sets) == ([], [], [])


def test_asked_for_and_given_up_before_the_flush_is_never_heard_of():
    sets = AddressSets()
    sets.use("p", A | B)
    sets.use("p", {})
    assert flushed(sets) == ([], [], [])


def test_moving_a_set_from_one_owner_to_another_in_one_flush_keeps_it():
    sets = AddressSets()
    sets.use("p", A)
    flushed(sets)
    sets.use("p", B)
    sets.use("q", A)
    updates, deltas, removed = flushed(sets)
    assert ([item.set_id for item in updates], deltas, removed) == (["b"], [], [])


def test_parents_hand_down_labels():
    sets = AddressSets()
    sets.update_item(key("one"), Contribution({}, ("kns.prod",), ("10.0.0.1/32",)))
    sets.use("p", A)
    flushed(sets)
    sets.update_parent("kns.prod", {"x": "1"})
    assert flushed(sets)[1] == [SetDelta("a", frozenset({"10.0.0.1/32"}), frozenset())]
    sets.update_parent("kns.prod", None)
    assert flushed(sets)[1] == [SetDelta("a", frozenset(), frozenset({"10.0.0.1/32"}))]
    sets.update_item(key("one"), None)
    assert flushed(sets) == ([], [], [])
    assert sets.dump()["owners"] == 1
