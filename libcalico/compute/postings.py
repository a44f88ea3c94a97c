"""Who has which label: for every label that some selector names, the ordinals that carry it.

Layer: pure, above compute.ordinals and libcalico.selector. User: compute.labelindex, which owns
the ordinals and tells the changes.

Only labels that are named cost anything; of those only asked for by has(), no values are kept.
A selector over all items is algebra on bitmaps: one big-int operation an operator, whatever the
number of items.

Invariants:
  P1  `everyone` is the bitmap of live ordinals; every posting is a subset of it;
  P2  a label's presence is the union of its values' postings (where values are kept);
  P3  no empty posting is kept.

Source: design.md 4.1 (bitmaps for selectors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from libcalico.compute import ordinals as ordinal_sets
from libcalico.compute.ordinals import Ordinals
from libcalico.selector import Clause, Selector, Term, ast

Labels = Mapping[str, str]

# At most this many candidates (plus one in 10,000 items) are looked at one by one.
_ONE_BY_ONE = 16
_ONE_BY_ONE_SHARE = 10_000

_NO_LABELS: Labels = {}


@dataclass(slots=True)
class _Label:
    """The postings of one label. `by_value` is None while only has() asks for it."""

    present: Ordinals = field(default_factory=set)
    by_value: dict[str, Ordinals] | None = None


class Moves:
    """The label changes of one batch of items: who enters and who leaves which posting."""

    __slots__ = ("appeared", "count", "entered", "left", "vanished", "was_born", "was_lost")

    def __init__(self) -> None:
        self.count = 0
        # label -> value -> ordinals; and label -> ordinals that had, or now have, no value of it.
        self.entered: dict[str, dict[str, list[int]]] = {}
        self.left: dict[str, dict[str, list[int]]] = {}
        self.appeared: dict[str, list[int]] = {}
        self.vanished: dict[str, list[int]] = {}
        self.was_born: list[int] = []
        self.was_lost: list[int] = []

    def record(self, ordinal: int, old: Labels | None, new: Labels | None) -> None:
        """One item's named labels before and after; None where it does not exist."""
        self.count += 1
        if old is None:
            self.was_born.append(ordinal)
        if new is None:
            self.was_lost.append(ordinal)
        before, after = old or _NO_LABELS, new or _NO_LABELS
        for label, value in after.items():
            held = before.get(label)
            if held == value:
                continue
            _append(self.entered, label, value, ordinal)
            if held is None:
                self.appeared.setdefault(label, []).append(ordinal)
        for label, value in before.items():
            held = after.get(label)
            if held == value:
                continue
            _append(self.left, label, value, ordinal)
            if held is None:
                self.vanished.setdefault(label, []).append(ordinal)


def _append(where: dict[str, dict[str, list[int]]], label: str, value: str, ordinal: int) -> None:
    by_value = where.get(label)
    if by_value is None:
        by_value = where[label] = {}
    held = by_value.get(value)
    if held is None:
        by_value[value] = [ordinal]
    else:
        held.append(ordinal)


class Postings:
    """See the module. `universe` is one more than the highest ordinal ever given out."""

    def __init__(self) -> None:
        self._labels: dict[str, _Label] = {}
        self.everyone = 0
        self.universe = 0

    def name(self, label: str, *, with_values: bool) -> None:
        """Begin to keep a label, or its values too. Empty: the caller applies what items have."""
        self._labels[label] = _Label(by_value={} if with_values else None)

    def forget(self, label: str) -> None:
        self._labels.pop(label, None)

    def keeps(self, label: str, *, with_values: bool) -> bool:
        kept = self._labels.get(label)
        return kept is not None and (not with_values or kept.by_value is not None)

    def apply(self, moves: Moves, universe: int) -> None:
        """Take over one batch. `universe` includes the ordinals of the newborn."""
        self.universe = universe
        if moves.was_born:
            self.everyone |= ordinal_sets.bits_of(moves.was_born, universe)
        if moves.was_lost:
            self.everyone &= ~ordinal_sets.bits_of(moves.was_lost, universe)
        for label, ordinals in moves.appeared.items():
            kept = self._labels[label]
            kept.present = ordinal_sets.with_added(kept.present, ordinals, universe)
        for label, ordinals in moves.vanished.items():
            kept = self._labels[label]
            kept.present = ordinal_sets.with_removed(kept.present, ordinals, universe)
        for label, by_value in moves.left.items():
            self._take(label, by_value)
        for label, by_value in moves.entered.items():
            self._put(label, by_value)

    def _put(self, label: str, ordinals_by_value: Mapping[str, list[int]]) -> None:
        by_value = self._labels[label].by_value
        if by_value is None:
            return
        for value, added in ordinals_by_value.items():
            held = by_value.get(value, None)
            by_value[value] = ordinal_sets.with_added(
                set() if held is None else held, added, self.universe
            )

    def _take(self, label: str, ordinals_by_value: Mapping[str, list[int]]) -> None:
        by_value = self._labels[label].by_value
        if by_value is None:
            return
        for value, gone in ordinals_by_value.items():
            left = ordinal_sets.with_removed(by_value[value], gone, self.universe)
            if left:
                by_value[value] = left
            else:
                del by_value[value]

    def match(self, selector: Selector, labels_of: Callable[[int], Labels]) -> Ordinals:
        """The ordinals a selector matches. `labels_of`: the named labels of one ordinal."""
        best: Clause | None = None
        fewest = self.universe + 1
        for clause in selector.restrictions():
            reach = sum(map(self._reach, clause))
            if reach < fewest:
                best, fewest = clause, reach
        if best is not None and fewest <= _ONE_BY_ONE + self.universe // _ONE_BY_ONE_SHARE:
            candidates = {ordinal for term in best for ordinal in self._term(term)}
            return {o for o in candidates if selector.evaluate(labels_of(o))}
        return ordinal_sets.of_bits(self._bits(selector.root), self.universe)

    def _posting(self, term: Term) -> Ordinals | None:
        kept = self._labels[term.label]
        if term.value is None:
            return kept.present
        return kept.by_value.get(term.value) if kept.by_value is not None else None

    def _reach(self, term: Term) -> int:
        posting = self._posting(term)
        return 0 if posting is None else ordinal_sets.size(posting)

    def _term(self, term: Term) -> Iterable[int]:
        posting = self._posting(term)
        return () if posting is None else ordinal_sets.iterate(posting)

    def _bits(self, node: ast.Node) -> int:
        match node:
            case ast.And(operands):
                return self._intersection(operands)
            case ast.Or(operands):
                return self._union(operands)
            case ast.Not(operand):
                return self.everyone ^ self._bits(operand)
            case _:
                return self._leaf_bits(node)

    def _leaf_bits(self, leaf: ast.Leaf) -> int:
        match leaf:
            case ast.Equal(label, value):
                return self._any_of(label, (value,))
            case ast.NotEqual(label, value):
                return self.everyone ^ self._any_of(label, (value,))
            case ast.In(label, values):
                return self._any_of(label, values)
            case ast.NotIn(label, values):
                return self.everyone ^ self._any_of(label, values)
            case ast.Has(label):
                return ordinal_sets.to_bits(self._labels[label].present, self.universe)
            case ast.Contains() | ast.StartsWith() | ast.EndsWith():
                known = self._labels[leaf.label].by_value or {}
                return self._any_of(leaf.label, [v for v in known if leaf.accepts(v)])
            case ast.All() | ast.Global():
                return self.everyone

    def _any_of(self, label: str, values: Iterable[str]) -> int:
        """The union of some values' postings: few sets become one bitmap, bitmaps are or-ed."""
        kept = self._labels.get(label)  # None: `in {}` names a label without needing it
        by_value = (kept.by_value if kept else None) or {}
        bits = 0
        few: list[int] = []
        for value in values:
            posting = by_value.get(value)
            if isinstance(posting, int):
                bits |= posting
            elif posting is not None:
                few.extend(posting)
        return bits | ordinal_sets.bits_of(few, self.universe) if few else bits

    def _intersection(self, operands: tuple[ast.Node, ...]) -> int:
        bits = self.everyone
        for operand in operands:
            bits &= self._bits(operand)
            if not bits:
                break
        return bits

    def _union(self, operands: tuple[ast.Node, ...]) -> int:
        bits = 0
        for operand in operands:
            bits |= self._bits(operand)
        return bits

    def check(self, labels_by_ordinal: Mapping[int, Labels]) -> None:
        """P1 to P3, against what every living item should have. For tests."""
        assert self.everyone == ordinal_sets.bits_of(labels_by_ordinal, self.universe)
        for label, kept in self._labels.items():
            having = {o: held[label] for o, held in labels_by_ordinal.items() if label in held}
            assert set(ordinal_sets.iterate(kept.present)) == having.keys(), label
            if kept.by_value is None:
                continue
            assert kept.by_value.keys() == set(having.values()), label
            for value, posting in kept.by_value.items():
                right = {o for o, held in having.items() if held == value}
                assert set(ordinal_sets.iterate(posting)) == right, (label, value)
