"""The items of a label index: their ordinals, own labels, parents and effective labels.

Layer: pure, above compute.postings. User: compute.labelindex.

Invariants:
  T1  an item keeps its ordinal while it lives; a dead item's ordinal is given out again only
      after recycle(), which the index calls at the start of the *next* flush (L4);
  T2  `labels_of` is restricted to the named labels: own labels first, then parents in list order;
  T3  `_children` lists exactly the living items of every parent that has any.

Source: Calico felix/labelindex (label inheritance); reference/datamodel.md 3.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from libcalico.compute.postings import Labels, Moves

I = TypeVar("I", bound=Hashable)  # noqa: E741

_NO_LABELS: Labels = {}


# From so many moves on, a caller must work from them: the list of changes may be incomplete.
MANY_CHANGES = 1000

Change = tuple[int, Labels | None, Labels | None]


class Batch(Generic[I]):
    """What was asked for since the last flush; None deletes.

    Two maps and not one of pairs: 250,000 pairs would be so many more objects for the collector.
    """

    __slots__ = ("item_labels", "item_parents", "parents")

    def __init__(self) -> None:
        self.item_labels: dict[I, Labels | None] = {}
        self.item_parents: dict[I, tuple[str, ...]] = {}
        self.parents: dict[str, Labels | None] = {}


class ItemTable(Generic[I]):
    """Columns by ordinal. `named` is the index's live view of the labels that matter."""

    def __init__(self, named: Container[str]) -> None:
        self._named = named
        self.ids: list[I | None] = []
        self.ordinal_of: dict[I, int] = {}
        self._own: list[Labels] = []
        self._parents: list[tuple[str, ...]] = []
        self._free: list[int] = []
        self._dead: list[int] = []
        self._children: defaultdict[str, set[int]] = defaultdict(set)
        self._parent_labels: dict[str, Labels] = {}
        # The named part of every parent's labels, where it is not empty.
        self._inherited: dict[str, Labels] = {}

    def universe(self) -> int:
        return len(self.ids)

    def labels_of(self, ordinal: int) -> Labels:
        return effective(self._own[ordinal], self._parents[ordinal], self._named, self._inherited)

    def recycle(self) -> None:
        """Make the ordinals of items that died in the last flush usable again (T1)."""
        for ordinal in self._dead:
            self.ids[ordinal] = None
        self._free.extend(self._dead)
        self._dead = []

    def rename(self) -> None:
        """The set of named labels changed: work out again what parents hand down."""
        self._inherited = {}
        for name in self._parent_labels:
            self._hand_down(name)

    def fill(self, labels: Collection[str]) -> Moves:
        """The entries of labels newly named, as if all living items had just got them."""
        moves = Moves()
        inherited = {
            name: {label: value for label, value in given.items() if label in labels}
            for name, given in self._inherited.items()
        }
        for ordinal in self.ordinal_of.values():
            own, parents = self._own[ordinal], self._parents[ordinal]
            found = effective(own, parents, labels, inherited)
            if found:
                moves.record(ordinal, _NO_LABELS, found)
        return moves

    def apply(self, batch: Batch[I]) -> tuple[Moves, list[Change]]:
        """Take over a batch.

        Shape: the moves of all items, and the changes one by one; the latter without the newborn
        when these are MANY_CHANGES: holding the labels of 250,000 would cost 100 MB.
        """
        newborn, changed = self._sorted_out(batch)
        before = self._labels_before(changed, batch.parents)
        for name, labels in batch.parents.items():
            self._set_parent(name, labels)
        moves = Moves()
        changes: list[Change] = []
        for item_id in changed:
            given = batch.item_labels[item_id]
            if given is None:
                self._bury(item_id)
            else:
                self._place(self.ordinal_of[item_id], given, batch.item_parents[item_id])
        if len(newborn) < MANY_CHANGES:
            self._bear_each(newborn, batch, moves, changes)
        else:
            self._bear_many(newborn, batch, moves)
        dead = set(self._dead)
        for ordinal, old in before.items():
            new = None if ordinal in dead else self.labels_of(ordinal)
            if old != new:
                moves.record(ordinal, old, new)
                changes.append((ordinal, old, new))
        return moves, changes

    def _sorted_out(self, batch: Batch[I]) -> tuple[list[I], list[I]]:
        """The items that are new, and the living ones that a request changes."""
        newborn, changed = [], []
        for item_id, labels in batch.item_labels.items():
            ordinal = self.ordinal_of.get(item_id)
            if ordinal is None:
                if labels is not None:
                    newborn.append(item_id)
            elif labels is None or (
                labels != self._own[ordinal]
                or batch.item_parents[item_id] != self._parents[ordinal]
            ):
                changed.append(item_id)
        return newborn, changed

    def _bear_each(
        self, newborn: Sequence[I], batch: Batch[I], moves: Moves, changes: list[Change]
    ) -> None:
        for ordinal in self._admit(newborn, batch):
            labels = self.labels_of(ordinal)
            moves.record(ordinal, None, labels)
            changes.append((ordinal, None, labels))

    def _bear_many(self, newborn: Sequence[I], batch: Batch[I], moves: Moves) -> None:
        """As above without a word of each: the start of a large cluster spends its time here."""
        named, entered = self._named, moves.entered
        # Most items share their parents with others.
        handed_down: dict[tuple[str, ...], Labels] = {}
        ordinals = self._admit(newborn, batch)
        for ordinal in ordinals:
            own, parents = self._own[ordinal], self._parents[ordinal]
            for label, value in own.items():
                if label in named:
                    entered[label][value].append(ordinal)
            handed = handed_down.get(parents)
            if handed is None:
                handed = effective(_NO_LABELS, parents, named, self._inherited)
                handed_down[parents] = handed
            for label, value in handed.items():
                if label not in own:
                    entered[label][value].append(ordinal)
        moves.was_born.extend(ordinals)
        moves.count += len(ordinals)

    def _labels_before(
        self, items: Iterable[I], parents: Mapping[str, Labels | None]
    ) -> dict[int, Labels]:
        """The present labels of every living item that a batch can change."""
        touched = {self.ordinal_of[item_id] for item_id in items if item_id in self.ordinal_of}
        for name, labels in parents.items():
            if self._named_part(labels) != self._inherited.get(name, _NO_LABELS):
                touched.update(self._children.get(name, ()))
        return {ordinal: self.labels_of(ordinal) for ordinal in touched}

    def _named_part(self, labels: Labels | None) -> Labels:
        if not labels:
            return _NO_LABELS
        return {label: labels[label] for label in labels if label in self._named}

    def _set_parent(self, name: str, labels: Labels | None) -> None:
        if labels is None:
            self._parent_labels.pop(name, None)
            self._inherited.pop(name, None)
            return
        self._parent_labels[name] = labels
        self._hand_down(name)

    def _hand_down(self, name: str) -> None:
        part = self._named_part(self._parent_labels[name])
        if part:
            self._inherited[name] = part
        else:
            self._inherited.pop(name, None)

    def _admit(self, newborn: Sequence[I], batch: Batch[I]) -> list[int]:
        """Give every newborn item its ordinal and fill its columns; the ordinals in that order."""
        reused = [self._free.pop() for _ in range(min(len(self._free), len(newborn)))]
        for ordinal, item_id in zip(reused, newborn, strict=False):
            self.ids[ordinal] = item_id
            self._own[ordinal] = batch.item_labels[item_id] or _NO_LABELS
            self._parents[ordinal] = batch.item_parents[item_id]
        appended = newborn[len(reused) :]
        ordinals = [*reused, *range(len(self.ids), len(self.ids) + len(appended))]
        self.ids.extend(appended)
        self._own.extend(batch.item_labels[item_id] or _NO_LABELS for item_id in appended)
        self._parents.extend(batch.item_parents[item_id] for item_id in appended)
        self.ordinal_of.update(zip(newborn, ordinals, strict=True))
        for ordinal in ordinals:
            for name in self._parents[ordinal]:
                self._children[name].add(ordinal)
        return ordinals

    def _bury(self, item_id: I) -> None:
        ordinal = self.ordinal_of.pop(item_id)
        self._place(ordinal, _NO_LABELS, ())
        self._dead.append(ordinal)

    def _place(self, ordinal: int, labels: Labels, parents: tuple[str, ...]) -> None:
        self._own[ordinal] = labels
        old = self._parents[ordinal]
        if old == parents:
            return
        self._parents[ordinal] = parents
        for name in old:
            held = self._children[name]
            held.discard(ordinal)
            if not held and name not in parents:
                del self._children[name]
        for name in parents:
            self._children[name].add(ordinal)

    def check(self) -> None:
        """T1 to T3."""
        living = {ordinal: item_id for item_id, ordinal in self.ordinal_of.items()}
        assert len(living) == len(self.ordinal_of)
        assert living.keys() | set(self._free) | set(self._dead) == set(range(len(self.ids)))
        assert len(living) + len(self._free) + len(self._dead) == len(self.ids)
        assert all(self.ids[ordinal] == item_id for ordinal, item_id in living.items())
        children: dict[str, set[int]] = {}
        for ordinal in living:
            for name in self._parents[ordinal]:
                children.setdefault(name, set()).add(ordinal)
        assert children == self._children
        for name, labels in self._parent_labels.items():
            assert self._inherited.get(name, _NO_LABELS) == self._named_part(labels)
        assert self._inherited.keys() <= self._parent_labels.keys()


def effective(
    own: Labels, parents: Iterable[str], named: Container[str], inherited: Mapping[str, Labels]
) -> Labels:
    """The named labels of an item: its own first, then what its parents hand down, in order."""
    found = {label: value for label, value in own.items() if label in named}
    for name in parents:
        given = inherited.get(name)
        if given:
            for label, value in given.items():
                found.setdefault(label, value)
    return found
