"""Who has which label: for every label that some selector names, the ordinals that carry it.

Layer: pure, above compute.ordinals and libcalico.selector. User: compute.labelindex, which owns
the ordinals and tells the changes.

Only labels that are named cost anything; of those only asked for by has(), no values are kept.
A selector over all items is algebra on bitmaps: one big-int operation an operator, whatever the
number of items.

Invariants:
  P1  `everyone` is the bitmap of live ordinals; every posting is a subset of it;
  P2  where a label's values are kept, its presence is their union, put together on demand;
  P3  no empty posting is kept.

Source: design.md 4.1 (bitmaps for selectors).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set

from libcalico.compute import ordinals as ordinal_sets
from libcalico.compute.ordinals import Ordinals
from libcalico.selector import Clause, Selector, Term, ast

Labels = Mapping[str, str]

_NO_LABELS: Labels = {}
_NO_MOVES: Mapping[str, list[int]] = {}
_NOBODY: set[int] = set()
_NO_POSTINGS: Mapping[str, Ordinals] = {}
# So many bitmaps may be remembered; then all are forgotten.
_REMEMBERED = 256


class _Label:
    """The postings of one label: by value, or only who has it (`by_value` None) while nothing but
    has() asks for it."""

    __slots__ = ("_present", "by_value")

    def __init__(self, *, with_values: bool) -> None:
        self.by_value: dict[str, Ordinals] | None = {} if with_values else None
        # None: to be put together from the values when asked for.
        self._present: Ordinals | None = None if with_values else set()

    def present(self, universe: int) -> Ordinals:
        if self._present is None:
            everyone = _union((self.by_value or {}).values(), universe)
            self._present = ordinal_sets.of_bits(everyone, universe)
        return self._present

    def apply(
        self,
        left: Mapping[str, list[int]],
        entered: Mapping[str, list[int]],
        universe: int,
    ) -> None:
        """Who no longer has a value, then who has it now: a change of value is both."""
        if self.by_value is None:
            held = self.present(universe)
            for gone in left.values():
                held = ordinal_sets.with_removed(held, gone, universe)
            for added in entered.values():
                held = ordinal_sets.with_added(held, added, universe)
            self._present = held
            return
        self._present = None
        for value, gone in left.items():
            rest = ordinal_sets.with_removed(self.by_value[value], gone, universe)
            if rest:
                self.by_value[value] = rest
            else:
                del self.by_value[value]
        for value, added in entered.items():
            before = self.by_value.get(value)
            self.by_value[value] = ordinal_sets.with_added(
                set() if before is None else before, added, universe
            )


class Moves:
    """The label changes of one batch of items: label -> value -> who got it, who lost it."""

    __slots__ = ("count", "entered", "left", "was_born", "was_lost")

    def __init__(self) -> None:
        self.count = 0
        self.entered: _Moved = defaultdict(_by_value)
        self.left: _Moved = defaultdict(_by_value)
        self.was_born: list[int] = []
        self.was_lost: list[int] = []

    def record(self, ordinal: int, old: Labels | None, new: Labels | None) -> None:
        """One item's named labels before and after; None where it does not exist."""
        self.count += 1
        if old is None:
            self.was_born.append(ordinal)
            for label, value in (new or _NO_LABELS).items():
                self.entered[label][value].append(ordinal)
            return
        if new is None:
            self.was_lost.append(ordinal)
            new = _NO_LABELS
        for label, value in new.items():
            if old.get(label) != value:
                self.entered[label][value].append(ordinal)
        for label, value in old.items():
            if new.get(label) != value:
                self.left[label][value].append(ordinal)

    def labels(self) -> Set[str]:
        return self.entered.keys() | self.left.keys()


_Moved = defaultdict[str, defaultdict[str, list[int]]]


def _by_value() -> defaultdict[str, list[int]]:
    return defaultdict(list)


def _union(parts: Iterable[Ordinals], universe: int) -> int:
    """Few sets become one bitmap, bitmaps are or-ed."""
    bits = 0
    few: list[int] = []
    for part in parts:
        if isinstance(part, int):
            bits |= part
        else:
            few.extend(part)
    return bits | ordinal_sets.bits_of(few, universe) if few else bits


class Postings:
    """See the module. `universe` is one more than the highest ordinal ever given out."""

    def __init__(self) -> None:
        self._labels: dict[str, _Label] = {}
        # Bitmaps of nodes that look through many values; good until the next batch.
        self._remembered: dict[ast.Leaf, int] = {}
        self._octets: dict[Term, bytes] = {}
        self.everyone = 0
        self.universe = 0

    def name(self, label: str, *, with_values: bool) -> None:
        """Begin to keep a label, or its values too. Empty: the caller applies what items have."""
        self._labels[label] = _Label(with_values=with_values)

    def forget(self, label: str) -> None:
        self._labels.pop(label, None)

    def keeps(self, label: str, *, with_values: bool) -> bool:
        kept = self._labels.get(label)
        return kept is not None and (not with_values or kept.by_value is not None)

    def apply(self, moves: Moves, universe: int) -> None:
        """Take over one batch. `universe` includes the ordinals of the newborn."""
        self.universe = universe
        self._remembered.clear()
        self._octets.clear()
        if moves.was_born:
            self.everyone |= ordinal_sets.bits_of(moves.was_born, universe)
        if moves.was_lost:
            self.everyone &= ~ordinal_sets.bits_of(moves.was_lost, universe)
        for label in moves.labels():
            left = moves.left.get(label, _NO_MOVES)
            self._labels[label].apply(left, moves.entered.get(label, _NO_MOVES), universe)

    def match(self, selector: Selector, labels_of: Callable[[int], Labels]) -> Ordinals:
        """The ordinals a selector matches. `labels_of`: the named labels of one ordinal.

        Where the selector needs one of a few items, only those are looked at; otherwise it is
        worked out for all at once.
        """
        candidates = self._candidates(selector)
        if candidates is None:
            return ordinal_sets.of_bits(self._bits(selector.root), self.universe)
        return self._among(selector.root, candidates, labels_of)

    def _candidates(self, selector: Selector) -> set[int] | None:
        """A set of few ordinals that holds all matches, not to be changed; None without one."""
        best: Clause | None = None
        fewest = ordinal_sets.sparse_limit(self.universe) + 1
        for clause in selector.restrictions():
            reach = 0
            for label, value in clause:
                posting = self._posting(label, value)
                if isinstance(posting, int):
                    break  # a bitmap has many
                reach += len(posting)
            else:
                if reach < fewest:
                    best, fewest = clause, reach
        if best is None:
            return None
        parts = [self._posting(label, value) for label, value in best]
        if len(parts) == 1 and isinstance(parts[0], set):
            return parts[0]
        return {ordinal for part in parts for ordinal in ordinal_sets.iterate(part)}

    def _posting(self, label: str, value: str | None) -> Ordinals:
        """Who has the value, or the label at all when `value` is None."""
        kept = self._labels[label]
        if value is None or kept.by_value is None:
            return kept.present(self.universe)
        return kept.by_value.get(value, _NOBODY)

    def _among(
        self, node: ast.Node, candidates: set[int], labels_of: Callable[[int], Labels]
    ) -> set[int]:
        """Those of a few candidates that `node` is true of, as a new set."""
        match node:
            case ast.Equal(label, value):
                return self._both(candidates, label, value)
            case ast.And(operands):
                for operand in operands:
                    candidates = self._among(operand, candidates, labels_of)
                return candidates
            case ast.Has(label):
                return self._both(candidates, label, None)
            case ast.NotEqual(label, value):
                return candidates - self._both(candidates, label, value)
            case ast.Or(operands):
                parts = [self._among(operand, candidates, labels_of) for operand in operands]
                return set().union(*parts)
            case ast.Not(operand):
                return candidates - self._among(operand, candidates, labels_of)
            case _:
                return {o for o in candidates if node.evaluate(labels_of(o))}

    def _both(self, candidates: set[int], label: str, value: str | None) -> set[int]:
        posting = self._posting(label, value)
        if isinstance(posting, set):
            return candidates & posting
        octets = self._octets.get((label, value))
        if octets is None:
            # One conversion, then a byte a candidate: shifting would copy the bitmap every time.
            if len(self._octets) >= _REMEMBERED:
                self._octets.clear()
            octets = self._octets[label, value] = ordinal_sets.octets(posting)
        end = len(octets) << 3
        return {o for o in candidates if o < end and octets[o >> 3] >> (o & 7) & 1}

    def _bits(self, node: ast.Node) -> int:
        match node:
            case ast.And(operands):
                return self._intersection(operands)
            case ast.Or(operands):
                bits = 0
                for operand in operands:
                    bits |= self._bits(operand)
                return bits
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
                present = self._labels[label].present(self.universe)
                return ordinal_sets.to_bits(present, self.universe)
            case ast.Contains() | ast.StartsWith() | ast.EndsWith():
                return self._substring_bits(leaf)
            case ast.All() | ast.Global():
                return self.everyone

    def _substring_bits(self, leaf: ast.Substring) -> int:
        bits = self._remembered.get(leaf)
        if bits is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            known = self._labels[leaf.label].by_value or {}
            bits = self._any_of(leaf.label, [value for value in known if leaf.accepts(value)])
            self._remembered[leaf] = bits
        return bits

    def _any_of(self, label: str, values: Iterable[str]) -> int:
        kept = self._labels.get(label)  # None: `in {}` names a label without needing it
        by_value = (kept.by_value if kept else None) or _NO_POSTINGS
        return _union([by_value[value] for value in values if value in by_value], self.universe)

    def _intersection(self, operands: tuple[ast.Node, ...]) -> int:
        bits = self._bits(operands[0])
        for operand in operands[1:]:
            if not bits:
                break
            bits &= self._bits(operand)
        return bits

    def check(self, labels_by_ordinal: Mapping[int, Labels]) -> None:
        """P1 to P3, against what every living item should have. For tests."""
        assert self.everyone == ordinal_sets.bits_of(labels_by_ordinal, self.universe)
        for label, kept in self._labels.items():
            having = {o: held[label] for o, held in labels_by_ordinal.items() if label in held}
            present = kept.present(self.universe)
            assert set(ordinal_sets.iterate(present)) == having.keys(), label
            if kept.by_value is None:
                continue
            assert kept.by_value.keys() == set(having.values()), label
            for value, posting in kept.by_value.items():
                right = {o for o, held in having.items() if held == value}
                assert set(ordinal_sets.iterate(posting)) == right, (label, value)
