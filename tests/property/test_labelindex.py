"""libcalico.compute.labelindex and .members against slow oracles, whatever happens in any order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from libcalico.compute import labelindex
from libcalico.compute.labelindex import LabelIndex
from libcalico.compute.linear import LinearIndex
from libcalico.compute.members import EndpointPort, MemberIndex, PortMatch, port_member
from libcalico.selector import parse

LABELS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["", "x", "y", "xy"])
LABEL_MAPS = st.dictionaries(LABELS, VALUES, max_size=3)
PARENTS = st.sampled_from(["p1", "p2", "p3"])
PARENT_LISTS = st.lists(PARENTS, max_size=3, unique=True).map(tuple)
ITEMS = st.integers(0, 9)
SELECTOR_IDS = st.sampled_from("STUVW")

ATOMS = st.one_of(
    st.builds("{} == '{}'".format, LABELS, VALUES),
    st.builds("{} != '{}'".format, LABELS, VALUES),
    st.builds("has({})".format, LABELS),
    st.builds("{} contains '{}'".format, LABELS, VALUES),
    st.builds("{} starts with '{}'".format, LABELS, VALUES),
    st.builds("{} ends with '{}'".format, LABELS, VALUES),
    st.builds(
        lambda label, op, values: f"{label} {op} {{{', '.join(map(repr, values))}}}",
        LABELS,
        st.sampled_from(["in", "not in"]),
        st.lists(VALUES, max_size=2),
    ),
    st.sampled_from(["all()", "global()"]),
)
SELECTORS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("!({})".format, inner),
        st.builds("({}) && ({})".format, inner, inner),
        st.builds("({}) || ({})".format, inner, inner),
    ),
    max_leaves=4,
).map(parse)


class IndexMachine(RuleBasedStateMachine):
    """LabelIndex and LinearIndex hear the same things and must say the same things."""

    def __init__(self) -> None:
        super().__init__()
        self.index: LabelIndex[int, str] = LabelIndex()
        self.oracle: LinearIndex[int, str] = LinearIndex()

    @rule(item=ITEMS, labels=LABEL_MAPS, parents=PARENT_LISTS)
    def update_item(self, item: int, labels: dict[str, str], parents: tuple[str, ...]) -> None:
        self.index.update_item(item, labels, parents)
        self.oracle.update_item(item, labels, parents)

    @rule(labels=LABEL_MAPS, parents=PARENT_LISTS, many=st.integers(10, 40))
    def update_many_items(
        self, labels: dict[str, str], parents: tuple[str, ...], many: int
    ) -> None:
        """So many that the index goes over to algebra by selector."""
        for item in range(10, 10 + many):
            own = labels if item % 3 else {}
            self.index.update_item(item, own, parents)
            self.oracle.update_item(item, own, parents)

    @rule(many=st.integers(10, 40))
    def delete_many_items(self, many: int) -> None:
        for item in range(10, 10 + many):
            self.index.delete_item(item)
            self.oracle.delete_item(item)

    @rule(item=ITEMS)
    def delete_item(self, item: int) -> None:
        self.index.delete_item(item)
        self.oracle.delete_item(item)

    @rule(name=PARENTS, labels=LABEL_MAPS)
    def update_parent(self, name: str, labels: dict[str, str]) -> None:
        self.index.update_parent(name, labels)
        self.oracle.update_parent(name, labels)

    @rule(name=PARENTS)
    def delete_parent(self, name: str) -> None:
        self.index.delete_parent(name)
        self.oracle.delete_parent(name)

    @rule(selector_id=SELECTOR_IDS, selector=SELECTORS)
    def update_selector(self, selector_id: str, selector) -> None:
        self.index.update_selector(selector_id, selector)
        self.oracle.update_selector(selector_id, selector)

    @rule(selector_id=SELECTOR_IDS)
    def delete_selector(self, selector_id: str) -> None:
        self.index.delete_selector(selector_id)
        self.oracle.delete_selector(selector_id)

    @rule()
    def flush(self) -> None:
        deltas = self.index.flush()
        got = {
            delta.selector_id: (Counter(delta.started), Counter(delta.stopped)) for delta in deltas
        }
        assert len(got) == len(deltas), "a selector is told once"
        expected = {
            delta.selector_id: (Counter(delta.started), Counter(delta.stopped))
            for delta in self.oracle.flush()
        }
        assert got == expected
        self.index.check()
        for selector_id in "STUVW":
            members = self.index.members(selector_id)
            assert set(members) == self.oracle.members(selector_id)
            assert len(members) == len(self.oracle.members(selector_id))
        for item in range(10):
            assert sorted(self.index.selectors_of(item)) == sorted(self.oracle.selectors_of(item))

    @invariant()
    def nothing_is_told_before_a_flush(self) -> None:
        for selector_id in "STUVW":
            assert set(self.index.members(selector_id)) == self.oracle.members(selector_id)


OFFERS = st.tuples(
    st.lists(st.sampled_from(["10.0.0.1/32", "10.0.0.2/32", "fd00::1/128"]), max_size=3),
    st.lists(
        st.sampled_from(
            [
                EndpointPort("http", "tcp", 80),
                EndpointPort("http", "tcp", 8080),
                EndpointPort("http", "udp", 80),
                EndpointPort("dns", "udp", 53),
            ]
        ),
        max_size=3,
    ),
)
PORT_MATCHES = st.sampled_from(
    [None, PortMatch("http", "tcp"), PortMatch("http", "udp"), PortMatch("none", "tcp")]
)


class MemberMachine(RuleBasedStateMachine):
    """A consumer that applies the deltas of MemberIndex always holds what the oracle computes."""

    def __init__(self) -> None:
        super().__init__()
        self.index: MemberIndex[int, str] = MemberIndex()
        self.matching: LinearIndex[int, str] = LinearIndex()
        self.offers: dict[int, tuple[list[str], list[EndpointPort]]] = {}
        self.ports: dict[str, PortMatch | None] = {}
        self.consumer: dict[str, frozenset[str]] = {}

    @rule(item=ITEMS, labels=LABEL_MAPS, parents=PARENT_LISTS, offer=OFFERS)
    def update_item(self, item, labels, parents, offer) -> None:
        addresses, ports = offer
        self.index.update_item(item, labels, parents, addresses=addresses, ports=ports)
        self.matching.update_item(item, labels, parents)
        self.offers[item] = offer

    @rule(labels=LABEL_MAPS, offer=OFFERS, many=st.integers(20, 60))
    def update_many_items(self, labels, offer, many) -> None:
        for item in range(10, 10 + many):
            self.update_item(item, labels if item % 3 else {}, (), offer)

    @rule(item=ITEMS)
    def delete_item(self, item) -> None:
        self.index.delete_item(item)
        self.matching.delete_item(item)
        self.offers.pop(item, None)

    @rule(name=PARENTS, labels=LABEL_MAPS)
    def update_parent(self, name, labels) -> None:
        self.index.update_parent(name, labels)
        self.matching.update_parent(name, labels)

    @rule(set_id=SELECTOR_IDS, selector=SELECTORS, port=PORT_MATCHES)
    def update_set(self, set_id, selector, port) -> None:
        self.index.update_set(set_id, selector, port=port)
        self.matching.update_selector(set_id, selector)
        self.ports[set_id] = port

    @rule(set_id=SELECTOR_IDS)
    def delete_set(self, set_id) -> None:
        self.index.delete_set(set_id)
        self.matching.delete_selector(set_id)
        self.ports.pop(set_id, None)

    @rule()
    def flush(self) -> None:
        self.matching.flush()
        self.consumer = {k: v for k, v in self.consumer.items() if k in self.ports}
        deltas = self.index.flush()
        assert len({delta.set_id for delta in deltas}) == len(deltas), "a set is told once"
        for delta in deltas:
            assert delta.is_new == (delta.set_id not in self.consumer)
            held = self.consumer.get(delta.set_id, frozenset())
            assert delta.is_new or delta.added or delta.removed, "an empty delta"
            assert not delta.added & held, "M2"
            assert delta.removed <= held, "M2"
            self.consumer[delta.set_id] = (held | delta.added) - delta.removed
        expected = {set_id: self._members(set_id) for set_id in self.ports}
        assert self.consumer == expected
        assert {set_id: self.index.members(set_id) for set_id in self.ports} == expected
        self.index.check()

    def _members(self, set_id: str) -> frozenset[str]:
        port = self.ports[set_id]
        members: set[str] = set()
        for item in self.matching.members(set_id):
            addresses, ports = self.offers[item]
            if port is None:
                members.update(addresses)
            for offered in ports if port else ():
                if (offered.name, offered.protocol) == port:
                    members.update(
                        port_member(a, offered.protocol, offered.port) for a in addresses
                    )
        return frozenset(members)


@pytest.fixture(params=["as configured", "always by item", "always by selector"])
def ways(request, monkeypatch):
    """Both ways of re-evaluation must give the same, so force each."""
    if request.param == "always by item":
        monkeypatch.setattr(labelindex, "_HANDFUL", 10**9)
    if request.param == "always by selector":
        monkeypatch.setattr(labelindex, "_HANDFUL", 0)
        monkeypatch.setattr(labelindex, "_ITEM_COST", 10**9)


STEPS = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.usefixtures("ways")
def test_the_label_index_agrees_with_the_linear_oracle():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(IndexMachine, settings=STEPS)


@pytest.mark.usefixtures("ways")
def test_the_member_index_agrees_with_its_oracle():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(MemberMachine, settings=STEPS)
