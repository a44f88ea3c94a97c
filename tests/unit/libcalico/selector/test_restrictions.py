"""libcalico.selector.restrictions: what labels a match needs, and what a verdict depends on."""

from __future__ import annotations

import pytest

from libcalico.selector import Term, parse


def terms(*pairs: tuple[str, str | None]) -> frozenset[Term]:
    return frozenset(pairs)


ROWS = [
    ("all()", []),
    ("!all()", [terms()]),
    ("a == 'x'", [terms(("a", "x"))]),
    ("a != 'x'", []),
    ("!(a != 'x')", [terms(("a", "x"))]),
    ("a in {'x', 'y'}", [terms(("a", "x"), ("a", "y"))]),
    ("a in {}", [terms()]),
    ("!(a not in {'x'})", [terms(("a", "x"))]),
    ("a not in {'x'}", []),
    ("has(a)", [terms(("a", None))]),
    ("!has(a)", []),
    ("a contains 'x'", [terms(("a", None))]),
    ("!(a starts with 'x')", []),
    ("a == 'x' && has(b)", [terms(("a", "x")), terms(("b", None))]),
    ("a == 'x' && b != 'y'", [terms(("a", "x"))]),
    ("a == 'x' || b == 'y'", [terms(("a", "x"), ("b", "y"))]),
    ("a == 'x' || b != 'y'", []),
    # Of each side of an "or", the narrower clause: a value before has().
    ("(has(c) && a == 'x') || b == 'y'", [terms(("a", "x"), ("b", "y"))]),
    ("!(a != 'x' || !has(b))", [terms(("a", "x")), terms(("b", None))]),
    ("!(a != 'x' && b != 'y')", [terms(("a", "x"), ("b", "y"))]),
    ("a == 'x' && a == 'x'", [terms(("a", "x"))]),
    ("a == 'x' || !all()", [terms(("a", "x"))]),
]


@pytest.mark.parametrize(("text", "clauses"), ROWS)
def test_clauses(text, clauses):
    assert list(parse(text).restrictions()) == clauses


def test_atoms_by_kind():
    atoms = parse("a == '1' || !(a in {'2'} && has(b)) || c != '3' || b contains 'x'").atoms()
    assert atoms.equal == {"a": {"1", "2"}, "c": {"3"}}
    assert atoms.present == {"b"}
    assert atoms.substring == {"b"}
    assert atoms.labels() == {"a", "b", "c"}
    assert atoms.valued_labels() == {"a", "b", "c"}


def test_membership_in_nothing_depends_on_nothing():
    assert parse("a in {} || b not in {}").atoms().labels() == frozenset()


def test_has_needs_no_values():
    assert parse("has(a)").atoms().valued_labels() == frozenset()
