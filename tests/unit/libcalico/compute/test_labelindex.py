"""libcalico.compute.labelindex: what the contract promises, example by example.

That it agrees with the slow oracle in every case is tests/property/test_labelindex.py.
"""

from __future__ import annotations

import pytest

from libcalico.compute.labelindex import LabelIndex
from libcalico.selector import parse


@pytest.fixture
def index():
    index: LabelIndex[str, str] = LabelIndex()
    yield index
    index.flush()
    index.check()


def told(index: LabelIndex[str, str]) -> dict[str, tuple[list[str], list[str]]]:
    return {
        delta.selector_id: (sorted(delta.started), sorted(delta.stopped)) for delta in index.flush()
    }


def test_a_match_starts_and_stops(index):
    index.update_selector("s", parse("app == 'web'"))
    index.update_item("pod", {"app": "web"})
    assert told(index) == {"s": (["pod"], [])}
    index.update_item("pod", {"app": "db"})
    assert told(index) == {"s": ([], ["pod"])}


@pytest.mark.parametrize("selector_first", [True, False])
def test_the_order_of_item_and_selector_does_not_matter(index, selector_first):
    if selector_first:
        index.update_selector("s", parse("has(app)"))
        assert told(index) == {}
    index.update_item("pod", {"app": ""})
    if not selector_first:
        assert told(index) == {}
        index.update_selector("s", parse("has(app)"))
    assert told(index) == {"s": (["pod"], [])}


def test_nothing_happens_twice(index):
    index.update_selector("s", parse("has(app)"))
    index.update_item("pod", {"app": "web"})
    index.flush()
    index.update_selector("s", parse("has(app)"))
    index.update_item("pod", {"app": "web"})
    index.delete_item("nobody")
    index.delete_selector("nothing")
    index.delete_parent("nowhere")
    assert told(index) == {}


def test_a_change_and_its_undoing_within_a_flush_are_no_change(index):
    index.update_selector("s", parse("has(app)"))
    index.update_item("pod", {"app": "web"})
    index.flush()
    index.delete_item("pod")
    index.update_item("pod", {"app": "web"})
    index.update_selector("s", parse("has(x)"))
    index.update_selector("s", parse("has(app)"))
    index.update_item("brief", {"app": "x"})
    index.delete_item("brief")
    assert told(index) == {}


def test_labels_are_inherited_in_list_order_and_own_ones_win(index):
    index.update_selector("1", parse("a == '1'"))
    index.update_selector("2", parse("a == '2'"))
    index.update_selector("own", parse("a == 'own'"))
    index.update_parent("p1", {"a": "1"})
    index.update_parent("p2", {"a": "2"})
    index.update_item("12", {}, ["p1", "p2"])
    index.update_item("21", {}, ["p2", "p1"])
    index.update_item("own", {"a": "own"}, ["p1"])
    index.update_item("none", {}, ["unknown"])
    assert told(index) == {"1": (["12"], []), "2": (["21"], []), "own": (["own"], [])}
    index.delete_parent("p1")
    assert told(index) == {"1": ([], ["12"]), "2": (["12"], [])}
    index.update_parent("p2", {"b": "2"})
    assert told(index) == {"2": ([], ["12", "21"])}


def test_a_parent_may_come_after_its_children(index):
    index.update_selector("s", parse("has(a)"))
    index.update_item("pod", {}, ["late"])
    assert told(index) == {}
    index.update_parent("late", {"a": ""})
    assert told(index) == {"s": (["pod"], [])}


def test_ids_with_the_same_selector_share_it_and_are_told_each(index):
    index.update_item("pod", {"a": "1"})
    index.update_selector("s", parse("a=='1'"))
    index.flush()
    index.update_selector("t", parse("(a == '1')"))
    assert told(index) == {"t": (["pod"], [])}
    assert index.dump()["selectors"] == 1
    index.delete_selector("s")
    assert told(index) == {"s": ([], ["pod"])}
    assert list(index.members("t")) == ["pod"]


def test_a_selector_that_changes_gives_the_difference_only(index):
    for name, labels in (("ab", {"a": "", "b": ""}), ("a", {"a": ""}), ("b", {"b": ""})):
        index.update_item(name, labels)
    index.update_selector("s", parse("has(a)"))
    index.flush()
    index.update_selector("s", parse("has(b)"))
    assert told(index) == {"s": (["b"], ["a"])}


def test_a_selector_that_changes_with_the_items_gives_the_difference_to_what_was_told(index):
    index.update_item("x", {"a": ""})
    index.update_item("y", {"a": ""})
    index.update_selector("s", parse("has(a)"))
    index.flush()
    index.update_selector("s", parse("has(b)"))
    index.update_item("x", {"b": ""})
    index.update_item("y", {})
    assert told(index) == {"s": ([], ["y"])}


def test_what_ended_can_be_listed_until_the_next_flush_though_its_place_is_free(index):
    index.update_selector("s", parse("all()"))
    index.update_item("old", {})
    index.flush()
    index.delete_item("old")
    deltas = index.flush()
    index.update_item("new", {})
    assert [sorted(delta.stopped) for delta in deltas] == [["old"]]
    assert told(index) == {"s": (["new"], [])}
    index.delete_item("new")
    index.flush()
    index.update_item("newer", {})
    index.flush()
    assert (index.ordinal("newer"), index.universe()) == (0, 1)


def test_negations_match_items_without_the_label(index):
    index.update_selector("ne", parse("a != 'x'"))
    index.update_selector("not", parse("!has(a)"))
    index.update_item("bare", {})
    index.update_item("x", {"a": "x"})
    index.update_item("y", {"a": "y"})
    assert told(index) == {"ne": (["bare", "y"], []), "not": (["bare"], [])}


def test_a_selector_of_nothing_matches_nothing(index):
    index.update_item("pod", {"a": "x"})
    for text in ("a in {}", "!all()", "a == 'x' && !all()"):
        index.update_selector(text, parse(text))
    assert told(index) == {}
    index.update_selector("all", parse("a not in {}"))
    assert told(index) == {"all": (["pod"], [])}


def test_only_named_labels_are_kept(index):
    for n in range(100):
        index.update_item(f"pod{n}", {"app": "web", "unique": str(n)})
    index.update_selector("s", parse("app == 'web'"))
    index.flush()
    assert index.dump()["named_labels"] == 1
    assert index.members("s").ordinals() == set(range(100)) or len(index.members("s")) == 100
    index.delete_selector("s")
    index.flush()
    assert index.dump()["named_labels"] == 0
    assert index.dump()["selectors"] == 0


def test_a_label_asked_for_by_has_gets_values_when_a_selector_compares_them(index):
    index.update_item("pod", {"a": "x"})
    index.update_selector("has", parse("has(a)"))
    index.flush()
    index.update_selector("equal", parse("a == 'x'"))
    assert told(index) == {"equal": (["pod"], [])}


def test_members_and_selectors_of(index):
    index.update_selector("a", parse("has(a)"))
    index.update_selector("all", parse("all()"))
    index.update_item("pod", {"a": ""})
    index.update_item("bare", {})
    index.flush()
    members = index.members("a")
    assert (len(members), list(members), "pod" in members) == (1, ["pod"], True)
    assert "bare" not in members
    assert "nobody" not in members
    assert bool(members)
    assert sorted(index.selectors_of("pod")) == ["a", "all"]
    assert index.selectors_of("bare") == ["all"]
    assert index.selectors_of("nobody") == []
    assert not index.members("unknown")


@pytest.mark.parametrize("many", [3, 2000])
def test_many_items_at_once(index, many):
    """Both the one-by-one and the bulk way, loaded, changed and emptied."""
    index.update_selector("even", parse("parity == 'even'"))
    index.update_selector("not-odd", parse("parity != 'odd'"))
    for n in range(many):
        index.update_item(str(n), {"parity": "odd" if n % 2 else "even"})
    even = sorted(str(n) for n in range(0, many, 2))
    assert told(index) == {"even": (even, []), "not-odd": (even, [])}
    for n in range(many):
        index.update_item(str(n), {"parity": "even" if n % 2 else "odd"})
    odd = sorted(str(n) for n in range(1, many, 2))
    assert told(index) == {"even": (odd, even), "not-odd": (odd, even)}
    for n in range(many):
        index.delete_item(str(n))
    assert told(index) == {"even": ([], odd), "not-odd": ([], odd)}
