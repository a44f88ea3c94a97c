"""Spans: nodes and members against a slow and obvious oracle, over random histories."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from typing import TypeVar

from libcalico.compute.members import EndpointPort, PortMatch, port_member
from libcalico.model.keys import ResourceKey
from libcalico.selector import parse
from typha.spans import Group, MemberDelta, Place, Shift, SpanChanges, SpanIndex

K = TypeVar("K", bound=Hashable)

NODES = ("node-a", "node-b", "node-c")
SELECTORS = (
    "all()",
    "a == '1'",
    "a == '2'",
    "has(b)",
    "!has(b)",
    "a == '1' && b == '2'",
    "team == 'x'",
    "nobody == 'here'",
)
ADDRESSES = ("10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "10.0.0.0/24", "fd00::1/128")
PORTS = (EndpointPort("http", "tcp", 80), EndpointPort("http", "tcp", 8080))
GROUPS = {f"s:{text}": Group(parse(text)) for text in SELECTORS} | {
    f"n:{text}": Group(parse(text), PortMatch("http", "tcp")) for text in SELECTORS[:4]
}
HISTORIES, STEPS = 40, 40


def endpoint(name: str) -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", name, "ns")


def policy(name: str) -> ResourceKey:
    return ResourceKey("NetworkPolicy", name, "ns")


class World:
    """The state, and what it means by evaluating every selector on every item."""

    def __init__(self) -> None:
        self.items: dict[ResourceKey, tuple[dict[str, str], tuple[str, ...], Place]] = {}
        self.parents: dict[str, dict[str, str]] = {}
        self.policies: dict[ResourceKey, tuple[str, tuple[str, ...]]] = {}

    def matching(self, selector: str) -> list[ResourceKey]:
        found = []
        for key, (own, parents, _) in self.items.items():
            labels: dict[str, str] = {}
            for name in reversed(parents):
                labels |= self.parents.get(name, {})
            if parse(selector).evaluate(labels | own):
                found.append(key)
        return found

    def span(self, selector: str) -> set[str]:
        return {self.items[key][2].node for key in self.matching(selector)} - {""}

    def group_spans(self) -> dict[str, set[str]]:
        spans: dict[str, set[str]] = {}
        for selector, groups in self.policies.values():
            for group_id in groups:
                spans.setdefault(group_id, set()).update(self.span(selector))
        return spans

    def members(self, group_id: str) -> set[str]:
        group = GROUPS[group_id]
        places = [self.items[key][2] for key in self.matching(group.selector.canonical)]
        if group.port is None:
            return {address for place in places for address in place.addresses}
        return {
            port_member(address, port.protocol, port.port)
            for place in places
            for port in place.ports
            for address in place.addresses
        }

    def policies_of(self, key: ResourceKey) -> set[ResourceKey]:
        return {
            name for name, (selector, _) in self.policies.items() if key in self.matching(selector)
        }


def step(rnd: random.Random, world: World, index: SpanIndex) -> None:
    what = rnd.choice(("item", "item", "item", "policy", "policy", "parent"))
    if what == "parent":
        name, team = rnd.choice(("p1", "p2")), rnd.choice(("x", "y", None))
        if team is None:
            world.parents.pop(name, None)
        else:
            world.parents[name] = {"team": team}
        index.update_parent(name, world.parents.get(name))
        return
    number, gone = rnd.randrange(6), rnd.random() < 0.25
    if what == "policy":
        key = policy(f"policy-{number}")
        world.policies.pop(key, None)
        if gone:
            index.delete_policy(key)
            return
        selector = rnd.choice(SELECTORS)
        groups = tuple(rnd.sample(sorted(GROUPS), rnd.randrange(4)))
        world.policies[key] = (selector, groups)
        index.update_policy(key, parse(selector), {i: GROUPS[i] for i in groups})
        return
    key = endpoint(f"item-{number}")
    world.items.pop(key, None)
    if gone:
        index.delete_item(key)
        return
    labels = {label: rnd.choice("12") for label in rnd.sample(("a", "b", "c"), rnd.randrange(4))}
    parents = tuple(rnd.sample(("p1", "p2"), rnd.randrange(3)))
    place = Place(
        rnd.choice((*NODES, "")),
        tuple(rnd.sample(ADDRESSES, rnd.randrange(3))),
        tuple(rnd.sample(PORTS, rnd.randrange(3))),
    )
    world.items[key] = (labels, parents, place)
    index.update_item(key, labels, parents, place)


class Follower:
    """A client that knows nothing but the changes it was told."""

    def __init__(self) -> None:
        self.policies: dict[ResourceKey, set[str]] = {}
        self.groups: dict[str, set[str]] = {}
        self.members: dict[str, set[str]] = {}

    def follow(self, changes: SpanChanges, index: SpanIndex) -> None:
        _shift(self.policies, changes.policies)
        _shift(self.groups, changes.groups)
        for group_id, delta in changes.members.items():
            held = self.members[group_id]
            assert delta.added.isdisjoint(held), "N2"
            assert delta.removed <= held, "N2"
            assert delta != MemberDelta(frozenset(), frozenset())
            self.members[group_id] = (held | delta.added) - delta.removed


def _shift(spans: dict[K, set[str]], shifts: Mapping[K, Shift]) -> None:
    for key, shift in shifts.items():
        assert shift.started or shift.stopped
        held = spans.setdefault(key, set())
        assert shift.started.isdisjoint(held), "N2"
        assert shift.stopped <= held, "N2"
        spans[key] = (held | shift.started) - shift.stopped
        if not spans[key]:
            del spans[key]


def test_spans_and_members_are_what_every_selector_on_every_item_gives() -> None:
    for seed in range(HISTORIES):
        rnd = random.Random(seed)
        world, index, follower = World(), SpanIndex(), Follower()
        for _ in range(STEPS):
            for _ in range(rnd.choice((1, 1, 2, 5, 12))):
                step(rnd, world, index)
            follower.follow(index.flush(), index)
            index.check()
            compare(world, index, follower)


def compare(world: World, index: SpanIndex, follower: Follower) -> None:
    spans = {key: world.span(selector) for key, (selector, _) in world.policies.items()}
    group_spans = world.group_spans()
    assert {key: set(index.span(key)) for key in spans} == spans, "N1"
    assert {key: set(index.group_span(key)) for key in group_spans} == group_spans, "N1"
    assert follower.policies == {key: nodes for key, nodes in spans.items() if nodes}
    assert follower.groups == {key: nodes for key, nodes in group_spans.items() if nodes}
    for group_id in group_spans:
        members = world.members(group_id)
        assert index.members(group_id) == members, "N3"
        assert follower.members.setdefault(group_id, members) == members, group_id
    for group_id in follower.members.keys() - group_spans.keys():
        del follower.members[group_id]
    for key in world.items:
        assert sorted(map(str, index.policies_of(key))) == sorted(map(str, world.policies_of(key)))
    assert_by_node(index.policies_by_node(), spans)
    assert_by_node(index.groups_by_node(), group_spans)


def assert_by_node(found: Mapping[str, list[K]], spans: Mapping[K, set[str]]) -> None:
    pairs = sorted((node, str(key)) for node, keys in found.items() for key in keys)
    assert pairs == sorted((node, str(key)) for key, nodes in spans.items() for node in nodes)


def test_a_selector_that_is_left_and_taken_again_has_its_span() -> None:
    index = SpanIndex()
    index.update_item(endpoint("pod"), {"a": "1"}, (), Place("node-a", ("10.0.0.1/32",)))
    index.update_policy(policy("one"), parse("a == '1'"), {})
    assert index.flush().policies == {policy("one"): Shift({"node-a"}, frozenset())}
    index.delete_policy(policy("one"))
    index.update_policy(policy("two"), parse("a == '1'"), {})
    assert index.flush().policies == {
        policy("one"): Shift(set(), {"node-a"}),
        policy("two"): Shift({"node-a"}, set()),
    }
    index.delete_policy(policy("two"))
    assert index.flush().policies == {policy("two"): Shift(set(), {"node-a"})}
    assert index.dump() == {"policies": 0, "groups": 0, "selectors": 0}


def test_an_address_stays_in_a_group_while_another_endpoint_carries_it() -> None:
    index = SpanIndex()
    place = Place("node-a", ("10.0.0.1/32",))
    index.update_item(endpoint("old"), {"a": "1"}, (), place)
    index.update_item(endpoint("new"), {"a": "1"}, (), place)
    index.update_policy(policy("one"), parse("all()"), {"s": Group(parse("a == '1'"))})
    index.flush()
    index.delete_item(endpoint("old"))
    assert index.flush().members == {}
    index.delete_item(endpoint("new"))
    assert index.flush().members == {"s": MemberDelta(frozenset(), {"10.0.0.1/32"})}
