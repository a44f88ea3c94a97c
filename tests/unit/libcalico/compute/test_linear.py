"""libcalico.compute.linear: the oracle itself, so that it is not wrong in the same way."""

from __future__ import annotations

from libcalico.compute.linear import LinearDelta, LinearIndex
from libcalico.selector import parse


def test_it_tells_differences_only():
    index: LinearIndex[str, str] = LinearIndex()
    index.update_selector("s", parse("has(a)"))
    index.update_item("pod", {"a": ""})
    assert index.flush() == [LinearDelta("s", frozenset({"pod"}), frozenset())]
    assert index.flush() == []
    assert index.members("s") == {"pod"}
    assert index.selectors_of("pod") == ["s"]
    index.delete_selector("s")
    assert index.flush() == [LinearDelta("s", frozenset(), frozenset({"pod"}))]
    index.delete_item("pod")
    assert index.selectors_of("pod") == []


def test_inheritance():
    index: LinearIndex[str, str] = LinearIndex()
    index.update_parent("p", {"a": "p", "b": "p"})
    index.update_parent("q", {"b": "q", "c": "q"})
    index.update_item("pod", {"a": "own"}, ["p", "q", "unknown"])
    assert index.labels_of("pod") == {"a": "own", "b": "p", "c": "q"}
