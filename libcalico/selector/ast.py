"""The expression tree of a selector: evaluation, canonical text, label prefixes.

Layer: pure, the bottom of libcalico.selector. Users: selector.parser builds these nodes;
selector.restrictions and compute (bitmaps over labels) read them.

Invariants:
  A1  nodes are immutable, and `text()` of a parsed tree parses back to an equal tree;
  A2  a negation never stands directly under a negation (`negate` collapses the pair).

An absent label makes `!=` and `not in` true and every other comparison false; the empty string is
a value like any other. `global()` is true of everything here: it only means something where
scope.py rewrites it.

Methods that recurse use plain loops: one Python frame a level (see parser.MAX_DEPTH). Structs and
not dataclasses because a large cluster holds a million nodes: they are made five times faster, and
the garbage collector need not look at them (no cycles: a node exists after its operands).

Source: Calico libcalico-go/lib/selector/parser (canonical text); reference/datamodel.md 3.3.
A2 differs from Calico on purpose: `!(!has(a))` prints `!!has(a)` there, which parses to `has(a)`,
so that one selector would have two ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from msgspec import Struct

Labels = Mapping[str, str]


class _Comparison(Struct, frozen=True, gc=False):
    """A label, an operator and one string."""

    label: str
    value: str
    operator: ClassVar[str] = ""

    def text(self) -> str:
        return f"{self.label} {self.operator} {_quote(self.value)}"

    def prefixed(self, prefix: str) -> Self:
        return type(self)(prefix + self.label, self.value)


class Equal(_Comparison, frozen=True, gc=False):
    operator: ClassVar[str] = "=="

    def evaluate(self, labels: Labels) -> bool:
        return labels.get(self.label) == self.value


class NotEqual(_Comparison, frozen=True, gc=False):
    operator: ClassVar[str] = "!="

    def evaluate(self, labels: Labels) -> bool:
        return labels.get(self.label) != self.value


class Contains(_Comparison, frozen=True, gc=False):
    operator: ClassVar[str] = "contains"

    def accepts(self, found: str) -> bool:
        return self.value in found

    def evaluate(self, labels: Labels) -> bool:
        found = labels.get(self.label)
        return found is not None and self.value in found


class StartsWith(_Comparison, frozen=True, gc=False):
    operator: ClassVar[str] = "starts with"

    def accepts(self, found: str) -> bool:
        return found.startswith(self.value)

    def evaluate(self, labels: Labels) -> bool:
        found = labels.get(self.label)
        return found is not None and found.startswith(self.value)


class EndsWith(_Comparison, frozen=True, gc=False):
    operator: ClassVar[str] = "ends with"

    def accepts(self, found: str) -> bool:
        return found.endswith(self.value)

    def evaluate(self, labels: Labels) -> bool:
        found = labels.get(self.label)
        return found is not None and found.endswith(self.value)


class _Membership(Struct, frozen=True, gc=False):
    """A label, an operator and a set of strings."""

    label: str
    values: frozenset[str]
    operator: ClassVar[str] = ""

    def text(self) -> str:
        members = ", ".join(map(_quote, sorted(self.values)))
        return f"{self.label} {self.operator} {{{members}}}"

    def prefixed(self, prefix: str) -> Self:
        return type(self)(prefix + self.label, self.values)


class In(_Membership, frozen=True, gc=False):
    """The empty set matches nothing."""

    operator: ClassVar[str] = "in"

    def evaluate(self, labels: Labels) -> bool:
        return labels.get(self.label) in self.values


class NotIn(_Membership, frozen=True, gc=False):
    """True without the label; the empty set matches everything."""

    operator: ClassVar[str] = "not in"

    def evaluate(self, labels: Labels) -> bool:
        return labels.get(self.label) not in self.values


class Has(Struct, frozen=True, gc=False):
    label: str

    def evaluate(self, labels: Labels) -> bool:
        return self.label in labels

    def text(self) -> str:
        return f"has({self.label})"

    def prefixed(self, prefix: str) -> Has:
        return Has(prefix + self.label)


class _Everything(Struct, frozen=True, gc=False):
    """A node without a label, true of everything."""

    name: ClassVar[str] = ""

    def evaluate(self, labels: Labels) -> bool:
        return True

    def text(self) -> str:
        return self.name

    def prefixed(self, prefix: str) -> Self:
        return self


class All(_Everything, frozen=True, gc=False):
    name: ClassVar[str] = "all()"


class Global(_Everything, frozen=True, gc=False):
    name: ClassVar[str] = "global()"


class Not(Struct, frozen=True, gc=False):
    operand: Node

    def evaluate(self, labels: Labels) -> bool:
        return not self.operand.evaluate(labels)

    def text(self) -> str:
        return "!" + self.operand.text()

    def prefixed(self, prefix: str) -> Not:
        return Not(self.operand.prefixed(prefix))


class And(Struct, frozen=True, gc=False):
    operands: tuple[Node, ...]

    def evaluate(self, labels: Labels) -> bool:
        for operand in self.operands:  # noqa: SIM110
            if not operand.evaluate(labels):
                return False
        return True

    def text(self) -> str:
        return _joined(self.operands, " && ")

    def prefixed(self, prefix: str) -> And:
        return And(_all_prefixed(self.operands, prefix))


class Or(Struct, frozen=True, gc=False):
    operands: tuple[Node, ...]

    def evaluate(self, labels: Labels) -> bool:
        for operand in self.operands:  # noqa: SIM110
            if operand.evaluate(labels):
                return True
        return False

    def text(self) -> str:
        return _joined(self.operands, " || ")

    def prefixed(self, prefix: str) -> Or:
        return Or(_all_prefixed(self.operands, prefix))


Substring = Contains | StartsWith | EndsWith
Leaf = Equal | NotEqual | Substring | In | NotIn | Has | All | Global
Node = Leaf | Not | And | Or


def negate(node: Node) -> Node:
    """`!node`, without ever stacking two negations (A2)."""
    return node.operand if isinstance(node, Not) else Not(node)


def _quote(value: str) -> str:
    """Double quotes unless the value holds one. No literal can hold both kinds: no escapes."""
    mark = "'" if '"' in value else '"'
    return f"{mark}{value}{mark}"


def _joined(operands: tuple[Node, ...], operator: str) -> str:
    texts = []
    for operand in operands:
        texts.append(operand.text())
    return "(" + operator.join(texts) + ")"


def _all_prefixed(operands: tuple[Node, ...], prefix: str) -> tuple[Node, ...]:
    renamed = []
    for operand in operands:
        renamed.append(operand.prefixed(prefix))
    return tuple(renamed)
