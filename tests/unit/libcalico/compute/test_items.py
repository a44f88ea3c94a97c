"""libcalico.compute.items: ordinals, inheritance, batches."""

from __future__ import annotations

from libcalico.compute import items
from libcalico.compute.items import Batch, ItemTable, effective


def batch(
    items: dict[str, tuple[dict[str, str], tuple[str, ...]] | None],
    **parents: dict[str, str] | None,
) -> Batch[str]:
    made: Batch[str] = Batch()
    made.item_labels = {name: item and item[0] for name, item in items.items()}
    made.item_parents = {name: item[1] for name, item in items.items() if item}
    made.parents = parents
    return made


def table(*named: str) -> ItemTable[str]:
    return ItemTable(set(named))


def test_an_ordinal_is_used_again_only_after_recycling():
    items_: ItemTable[str] = table("a")
    items_.apply(batch({"x": ({}, ()), "y": ({}, ())}))
    items_.apply(batch({"x": None, "z": ({}, ())}))
    assert items_.ordinal_of == {"y": 1, "z": 2}
    assert items_.ids[0] == "x"
    items_.recycle()
    assert items_.ids[0] is None
    items_.apply(batch({"w": ({}, ())}))
    assert items_.ordinal_of["w"] == 0
    items_.check()


def test_a_change_is_told_in_named_labels_only():
    items_ = table("a")
    moves, changes = items_.apply(batch({"x": ({"a": "1", "b": "2"}, ())}))
    assert changes == [(0, None, {"a": "1"})]
    assert moves.entered == {"a": {"1": [0]}}
    moves, changes = items_.apply(batch({"x": ({"a": "1", "b": "3"}, ())}))
    assert changes == []
    assert moves.count == 0
    moves, changes = items_.apply(batch({"x": ({"a": "2"}, ())}))
    assert changes == [(0, {"a": "1"}, {"a": "2"})]
    assert (moves.entered, moves.left) == ({"a": {"2": [0]}}, {"a": {"1": [0]}})
    items_.check()


def test_a_parent_moves_its_children_but_not_those_that_have_the_label_themselves():
    items_ = table("a")
    items_.apply(batch({"x": ({}, ("p",)), "y": ({"a": "own"}, ("p",))}, p={"a": "1"}))
    _, changes = items_.apply(batch({}, p={"a": "2", "b": "3"}))
    assert changes == [(0, {"a": "1"}, {"a": "2"})]
    _, changes = items_.apply(batch({}, p=None))
    assert changes == [(0, {"a": "2"}, {})]
    items_.check()


def test_many_newborn_are_in_the_moves_only(monkeypatch):
    monkeypatch.setattr(items, "MANY_CHANGES", 5)
    items_ = table("a", "b")
    newborn = {str(n): ({"a": "own"} if n % 2 else {}, ("p", "q")) for n in range(5)}
    moves, changes = items_.apply(batch(newborn, p={"a": "p"}, q={"a": "q", "b": "q"}))
    assert changes == []
    assert (moves.count, moves.was_born) == (5, [0, 1, 2, 3, 4])
    assert moves.entered == {
        "a": {"own": [1, 3], "p": [0, 2, 4]},
        "b": {"q": [0, 1, 2, 3, 4]},
    }
    items_.check()


def test_effective_labels():
    inherited = {"p": {"a": "p", "b": "p"}, "q": {"b": "q", "c": "q"}}
    own = {"a": "own", "z": "unnamed"}
    assert effective(own, ("p", "lost", "q"), {"a", "b", "c"}, inherited) == {
        "a": "own",
        "b": "p",
        "c": "q",
    }
