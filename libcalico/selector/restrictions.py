"""What a selector needs of labels: the terms it can be indexed by.

Layer: pure, above selector.ast. Users: Selector.restrictions() and .atoms(), hence compute.

`clauses` over-approximates: labels that match satisfy at least one term of every clause; labels
that satisfy all clauses need not match. An empty clause cannot be satisfied: the selector matches
nothing. No clause at all: anything may match.

`atoms` are the elementary comparisons. A change of labels can change the verdict only if it changes
the outcome of an atom; this holds for negated ones too.

Source: the idea is Calico's label restrictions (libcalico-go/lib/selector/parser/ast.go
`LabelRestrictions`), which keeps one restriction a label; clauses keep alternatives across labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from libcalico.selector import ast

# (label, value): `label == value`, or `has(label)` when value is None. Plain, as there are many.
Term = tuple[str, str | None]
Clause = frozenset[Term]

_NEVER: tuple[Clause, ...] = (frozenset(),)
_ANYTHING: tuple[Clause, ...] = ()


class Atoms(NamedTuple):
    """`equal`: label -> values compared with; `present`: labels asked for by has();
    `substring`: labels whose whole value matters."""

    equal: Mapping[str, frozenset[str]]
    present: frozenset[str]
    substring: frozenset[str]

    def labels(self) -> frozenset[str]:
        """Every label that matters."""
        return self.present.union(self.equal, self.substring)

    def valued_labels(self) -> frozenset[str]:
        """The labels whose values matter, not just their presence."""
        return self.substring.union(self.equal)


_NO_LABELS: frozenset[str] = frozenset()


def clauses(node: ast.Node) -> tuple[Clause, ...]:
    return tuple(dict.fromkeys(_required(node, True)))


def atoms(node: ast.Node) -> Atoms:
    equal: dict[str, frozenset[str]] = {}
    present: set[str] = set()
    substring: set[str] = set()
    todo: list[ast.Node] = [node]
    while todo:
        match todo.pop():
            case ast.Equal(label, value) | ast.NotEqual(label, value):
                equal[label] = equal.get(label, _NO_LABELS) | {value}
            case ast.In(label, values) | ast.NotIn(label, values):
                if values:
                    equal[label] = equal.get(label, _NO_LABELS) | values
            case ast.Has(label):
                present.add(label)
            case ast.Contains(label) | ast.StartsWith(label) | ast.EndsWith(label):
                substring.add(label)
            case ast.Not(operand):
                todo.append(operand)
            case ast.And(operands) | ast.Or(operands):
                todo.extend(operands)
    return Atoms(equal, frozenset(present), frozenset(substring))


def _required(node: ast.Node, wanted: bool) -> tuple[Clause, ...]:
    """The clauses that must hold for `node` to evaluate to `wanted`."""
    match node:
        case ast.Not(operand):
            return _required(operand, not wanted)
        case ast.And(operands):
            return _conjunction(operands, wanted) if wanted else _disjunction(operands, wanted)
        case ast.Or(operands):
            return _disjunction(operands, wanted) if wanted else _conjunction(operands, wanted)
        case ast.Equal(label, value):
            return _one_of({(label, value)}) if wanted else _ANYTHING
        case ast.NotEqual(label, value):
            return _ANYTHING if wanted else _one_of({(label, value)})
        case ast.In(label, values):
            return _one_of({(label, value) for value in values}) if wanted else _ANYTHING
        case ast.NotIn(label, values):
            return _ANYTHING if wanted else _one_of({(label, value) for value in values})
        case ast.Has(label) | ast.Contains(label) | ast.StartsWith(label) | ast.EndsWith(label):
            return _one_of({(label, None)}) if wanted else _ANYTHING
        case ast.All() | ast.Global():
            return _ANYTHING if wanted else _NEVER


def _one_of(terms: set[Term]) -> tuple[Clause, ...]:
    return (frozenset(terms),)


def _conjunction(operands: tuple[ast.Node, ...], wanted: bool) -> tuple[Clause, ...]:
    needed: list[Clause] = []
    for operand in operands:
        needed.extend(_required(operand, wanted))
    return tuple(needed)


def _disjunction(operands: tuple[ast.Node, ...], wanted: bool) -> tuple[Clause, ...]:
    """One clause out of the best clause of every operand; an unrestricted operand frees all."""
    union: set[Term] = set()
    for operand in operands:
        needed = _required(operand, wanted)
        if not needed:
            return _ANYTHING
        best: Clause = min(needed, key=_breadth)
        union |= best
    return (frozenset(union),)


def _breadth(clause: Clause) -> tuple[int, int]:
    """Fewer has() terms first, then fewer terms: a value is shared by fewer endpoints."""
    return sum(value is None for _, value in clause), len(clause)
