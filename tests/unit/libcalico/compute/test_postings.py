"""libcalico.compute.postings: bitmap algebra gives what evaluation gives."""

from __future__ import annotations

import pytest

from libcalico.compute import ordinals
from libcalico.compute.postings import Moves, Postings
from libcalico.selector import parse

ITEMS = {
    n: {"n": str(n), "parity": "odd" if n % 2 else "even"}
    | ({"third": "x"} if n % 3 == 0 else {})
    | ({"half": "low"} if n < 250 else {})
    for n in range(500)
}
SELECTORS = [
    "all()",
    "!all()",
    "parity == 'odd'",
    "parity != 'odd'",
    "parity in {'odd', 'even'}",
    "parity in {}",
    "parity not in {'odd'}",
    "has(third)",
    "!has(third)",
    "n == '7'",
    "n != '7'",
    "n contains '4'",
    "n starts with '1'",
    "n ends with '9' && parity == 'odd'",
    "third contains ''",
    "has(third) && parity == 'even' && n != '6'",
    "has(third) || n == '7'",
    "!(has(third) || parity == 'odd')",
    "n in {'1', '2', '3'} && parity == 'odd'",
    # A candidate behind the end of a bitmap.
    "n == '499' && half == 'low'",
    "n == '499' && half != 'low' && !has(half)",
    "n in {'249', '250'} && has(half)",
]


def filled() -> Postings:
    postings = Postings()
    for label in ("n", "parity", "third", "half"):
        postings.name(label, with_values=True)
    moves = Moves()
    for ordinal, labels in ITEMS.items():
        moves.record(ordinal, None, labels)
    postings.apply(moves, len(ITEMS))
    return postings


@pytest.mark.parametrize("text", SELECTORS)
def test_a_selector(text):
    postings, selector = filled(), parse(text)
    wanted = {ordinal for ordinal, labels in ITEMS.items() if selector.evaluate(labels)}
    assert set(ordinals.iterate(postings.match(selector, ITEMS.__getitem__))) == wanted
    postings.check(ITEMS)


def test_where_one_of_few_is_needed_only_those_are_looked_at():
    looked_at = []

    def labels_of(ordinal: int):
        looked_at.append(ordinal)
        return ITEMS[ordinal]

    few = parse("n in {'7', '8', '9'} && parity == 'odd' && parity starts with 'o'")
    assert filled().match(few, labels_of) == {7, 9}
    assert set(looked_at) == {7, 8, 9}


def test_what_leaves_is_forgotten():
    postings, moves = filled(), Moves()
    for ordinal, labels in ITEMS.items():
        moves.record(ordinal, labels, None)
    postings.apply(moves, len(ITEMS))
    assert postings.everyone == 0
    postings.check({})


def test_a_label_only_asked_for_by_has_keeps_no_values():
    postings, moves = Postings(), Moves()
    postings.name("n", with_values=False)
    moves.record(0, None, {"n": "0"})
    postings.apply(moves, 1)
    assert postings.keeps("n", with_values=False)
    assert not postings.keeps("n", with_values=True)
    assert postings.match(parse("has(n)"), lambda _: {"n": "0"}) == {0}
    postings.check({0: {"n": "0"}})
