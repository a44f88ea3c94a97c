"""libcalico.selector: any text parses or is refused; canonical text is a fixed point."""

from __future__ import annotations

import copy

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from libcalico.errors import SelectorSyntaxError
from libcalico.model import EntityRule
from libcalico.selector import Selector, Term, ast, parse, scope
from libcalico.selector.parser import tokenize

WORDS = r"""a b in not has all has( all( global( ( ) { } , == != = ! & && | || ' " 'x' "y" contains
starts with ends notin startswith é -/._"""
PIECES = st.sampled_from([*WORDS.split(), " ", "\t", "\n"])
SOUP = st.lists(PIECES, max_size=30).map(" ".join) | st.lists(PIECES, max_size=30).map("".join)

LABELS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["", "x", "y", "xy"])
LEAVES = st.one_of(
    st.builds(ast.Equal, LABELS, VALUES),
    st.builds(ast.NotEqual, LABELS, VALUES),
    st.builds(ast.Contains, LABELS, VALUES),
    st.builds(ast.StartsWith, LABELS, VALUES),
    st.builds(ast.EndsWith, LABELS, VALUES),
    st.builds(ast.In, LABELS, st.frozensets(VALUES)),
    st.builds(ast.NotIn, LABELS, st.frozensets(VALUES)),
    st.builds(ast.Has, LABELS),
    st.builds(ast.All),
    st.builds(ast.Global),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(ast.negate),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(ast.And),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(ast.Or),
    ),
    max_leaves=12,
)
LABEL_MAPS = st.dictionaries(LABELS, VALUES)

# Machines differ; what is tested here is not speed.
UNTIMED = settings(deadline=None)


@UNTIMED
@given(SOUP)
@example("!" * 5000)
@example("(" * 5000)
@example("!(" * 5000 + "all()")
def test_token_soup_parses_or_is_refused_with_a_position_inside_it(text):
    selector = parsed_or_refused(text)
    if selector is not None:
        assert parse(selector.canonical).canonical == selector.canonical
        assert parse(selector.canonical).uid == selector.uid


@UNTIMED
@given(st.text())
def test_any_text_parses_or_is_refused(text):
    parsed_or_refused(text)


def parsed_or_refused(text: str) -> Selector | None:
    refusal = None
    try:
        return parse(text)
    except SelectorSyntaxError as err:
        refusal = err
    assert 0 <= refusal.position <= len(text)
    assert refusal.reason
    return None


@UNTIMED
@given(TREES)
def test_canonical_text_gives_the_same_tree_back(tree):
    assert parse(tree.text()).root == tree
    assert parse(tree.text()).canonical == tree.text()


@UNTIMED
@given(TREES, LABEL_MAPS)
def test_labels_that_match_satisfy_every_clause(tree, labels):
    selector = parse(tree.text())
    held: set[Term] = {*labels.items(), *((label, None) for label in labels)}
    if selector.evaluate(labels):
        assert all(clause & held for clause in selector.restrictions())


@UNTIMED
@given(TREES, LABEL_MAPS, LABEL_MAPS)
def test_a_verdict_changes_only_with_the_outcome_of_an_atom(tree, before, after):
    selector = parse(tree.text())
    atoms = selector.atoms()

    def outcomes(labels):
        return (
            {(k, v): labels.get(k) == v for k, values in atoms.equal.items() for v in values},
            {k: k in labels for k in atoms.present},
            {k: labels.get(k) for k in atoms.substring},
        )

    if outcomes(before) == outcomes(after):
        assert selector.evaluate(before) == selector.evaluate(after)


@UNTIMED
@given(TREES, LABEL_MAPS)
def test_a_prefix_moves_with_the_labels(tree, labels):
    moved = {"pcns." + label: value for label, value in labels.items()}
    assert tree.prefixed("pcns.").evaluate(moved) == tree.evaluate(labels)


@UNTIMED
@given(TREES)
def test_nodes_are_values(tree):
    assert copy.deepcopy(tree) == tree
    assert hash(copy.deepcopy(tree)) == hash(tree)


@UNTIMED
@given(SOUP)
def test_tokens_come_in_order(text):
    try:
        positions = [token.position for token in tokenize(text)]
    except SelectorSyntaxError:
        return
    assert positions == sorted(positions)


@UNTIMED
@given(TREES)
def test_a_rule_of_a_namespace_is_what_its_text_in_parentheses_says(tree):
    plain = EntityRule(selector=tree.text())
    text = scope.entity_selector(plain, "ns")
    assert scope.entity_selectors(plain, "ns").positive == parse(text)
    assert scope.entity_selectors(plain, "ns").positive.root == parse(text).root


@pytest.mark.parametrize("text", [" ", "a ==", "a == 'x') || (b == 'x'"])
def test_what_is_no_selector_is_refused_in_a_namespace_too(text):
    with pytest.raises(SelectorSyntaxError):
        scope.entity_selectors(EntityRule(selector=text), "ns")
