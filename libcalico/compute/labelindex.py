"""LabelIndex: which items (endpoints, network sets) does every selector match, incrementally.

Layer: pure, above compute.items, .postings and .interest. Users: compute.members, felix.calc.

    update_item ──┐                    ┌─ postings: who has which label   (many: bitmap algebra)
    update_parent ├─► remembered ─flush┤                                                 ├─► deltas
    update_selector┘                   └─ interest: who could care        (few: evaluation)

An item's labels are its own plus those of its parents (profiles) in list order; its own label
wins, then the first parent's. A parent that is not known contributes nothing.

Invariants:
  L1  after flush() the matches of every selector are exactly the items whose labels it matches;
      they depend on the items, parents and selectors present, not on how they came to be;
  L2  a delta is net: what started was not reported as matching before, what stopped was;
  L3  selectors with the same canonical text are evaluated once, however many ids carry them;
  L4  the ordinal of an item that ended is not used again before the next flush, so that a
      consumer may iterate the deltas until then;
  L5  a label that no selector names costs no time and no memory beyond the caller's mapping.

Source: Calico felix/labelindex (InheritIndex: the contract); the bitmaps are ours, design.md 4.1.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from libcalico.compute import ordinals as ordinal_sets
from libcalico.compute.interest import Entry, Interest
from libcalico.compute.items import MANY_CHANGES, Batch, Change, ItemTable
from libcalico.compute.ordinals import Ordinals
from libcalico.compute.postings import Labels, Moves, Postings
from libcalico.selector import Selector

I = TypeVar("I", bound=Hashable)  # noqa: E741
S = TypeVar("S", bound=Hashable)
C = TypeVar("C")

# Rough costs in microseconds, to choose between evaluation per item and algebra per selector.
_ITEM_COST = 30
_SELECTOR_COST = 5
_SELECTOR_COST_SHARE = 10_000  # one more for so many ordinals
# So few changed items are always looked at one by one, without adding up what they touch.
_HANDFUL = 4


class Matches(Collection[I]):
    """The items behind a set of ordinals; iterated lazily. Valid until the index's next flush."""

    __slots__ = ("_items", "_ordinals")

    def __init__(self, ordinals: Ordinals, items: ItemTable[I]) -> None:
        self._ordinals = ordinals
        self._items = items

    def __len__(self) -> int:
        return ordinal_sets.size(self._ordinals)

    def __bool__(self) -> bool:
        return bool(self._ordinals)

    def __iter__(self) -> Iterator[I]:
        return cast("Iterator[I]", ordinal_sets.pick(self._ordinals, self._items.ids))

    def __contains__(self, item_id: object) -> bool:
        """Whether a living item is among them; one that just ended is found by iterating only."""
        ordinal = self._items.ordinal_of.get(cast("I", item_id))
        return ordinal is not None and ordinal_sets.contains(self._ordinals, ordinal)

    def ordinals(self) -> Ordinals:
        """For the owner of columns by ordinal (compute.members). Not to be changed."""
        return self._ordinals

    def pick(self, column: Sequence[C]) -> Iterator[C]:
        """The cells of these items in a column by ordinal (compute.members)."""
        return ordinal_sets.pick(self._ordinals, column)

    def __repr__(self) -> str:
        return f"Matches({sorted(map(repr, self))})"


@dataclass(frozen=True, slots=True)
class MatchDelta(Generic[S, I]):
    """What changed for one selector id since the flush before. One of the two may be empty."""

    selector_id: S
    started: Matches[I]
    stopped: Matches[I]


@dataclass(frozen=True, slots=True)
class _Shift:
    """What one flush changed in the matches of one entry."""

    started: Ordinals
    stopped: Ordinals


class LabelIndex(Generic[I, S]):
    """See the module, and compute/__init__.py for the calls."""

    def __init__(self) -> None:
        self._interest: Interest[S] = Interest()
        self._items: ItemTable[I] = ItemTable(self._interest.named)
        self._postings = Postings()
        self._entries: dict[str, Entry[S]] = {}  # by canonical text
        self._entry_of: dict[S, Entry[S]] = {}
        self._pending: Batch[I] = Batch()
        self._pending_selectors: dict[S, Selector | None] = {}

    # -- state in ---------------------------------------------------------------------------

    def update_item(self, item_id: I, labels: Labels, parents: Sequence[str] = ()) -> None:
        """Set an item. `labels` is kept, not copied: never change it afterwards."""
        self._pending.item_labels[item_id] = labels
        self._pending.item_parents[item_id] = tuple(parents)

    def delete_item(self, item_id: I) -> None:
        self._pending.item_labels[item_id] = None

    def update_parent(self, name: str, labels: Labels) -> None:
        """Set what a parent hands down. Kept, not copied, like an item's labels."""
        self._pending.parents[name] = labels

    def delete_parent(self, name: str) -> None:
        self._pending.parents[name] = None

    def update_selector(self, selector_id: S, selector: Selector) -> None:
        self._pending_selectors[selector_id] = selector

    def delete_selector(self, selector_id: S) -> None:
        """Everything it matched is reported as stopped by the next flush."""
        self._pending_selectors[selector_id] = None

    # -- questions, as of the last flush ----------------------------------------------------

    def members(self, selector_id: S) -> Matches[I]:
        entry = self._entry_of.get(selector_id)
        return Matches(entry.matches if entry else set(), self._items)

    def selectors_of(self, item_id: I) -> list[S]:
        ordinal = self._items.ordinal_of.get(item_id)
        if ordinal is None:
            return []
        return [
            selector_id
            for entry in self._interest.reachable(self._items.labels_of(ordinal))
            if ordinal_sets.contains(entry.matches, ordinal)
            for selector_id in entry.subscribers
        ]

    def ordinal(self, item_id: I) -> int | None:
        """The item's small integer, for columns kept beside the index; stable while it lives."""
        return self._items.ordinal_of.get(item_id)

    def universe(self) -> int:
        """One more than the highest ordinal given out so far."""
        return self._items.universe()

    # -- deltas out -------------------------------------------------------------------------

    def flush(self) -> list[MatchDelta[S, I]]:
        """Take over everything since the last flush; the net changes, in no promised order."""
        self._items.recycle()
        selectors, self._pending_selectors = self._pending_selectors, {}
        batch, self._pending = self._pending, Batch()
        fresh = self._register(selectors)
        moves, changes = self._items.apply(batch)
        self._postings.apply(moves, self._items.universe())
        shifts = self._reevaluate(moves, changes, fresh)
        for entry in fresh:
            entry.matches = self._postings.match(entry.selector, self._items.labels_of)
        deltas = self._shifted(shifts, selectors) + self._switched(shifts, selectors)
        self._subscribe(selectors)
        return deltas

    # -- selectors --------------------------------------------------------------------------

    def _register(self, selectors: Mapping[S, Selector | None]) -> set[Entry[S]]:
        """Make entries for selectors not seen before, and postings for the labels they name."""
        fresh: set[Entry[S]] = set()
        unkept: dict[str, bool] = {}
        for selector in selectors.values():
            if selector is None or selector.canonical in self._entries:
                continue
            entry: Entry[S] = Entry(selector)
            self._entries[selector.canonical] = entry
            fresh.add(entry)
            atoms = self._interest.add(entry)
            valued = atoms.valued_labels()
            for label in atoms.labels():
                if not self._postings.keeps(label, with_values=label in valued):
                    unkept[label] = unkept.get(label, False) or label in valued
        self._keep(unkept)
        return fresh

    def _keep(self, labels: Mapping[str, bool]) -> None:
        if not labels:
            return
        for label, with_values in labels.items():
            self._postings.name(label, with_values=with_values)
        self._items.rename()
        self._postings.apply(self._items.fill(labels.keys()), self._items.universe())

    def _subscribe(self, selectors: Mapping[S, Selector | None]) -> None:
        """Move the ids to their new entries; drop entries and labels nobody wants any more."""
        left: set[Entry[S]] = set()
        for selector_id, selector in selectors.items():
            old = self._entry_of.pop(selector_id, None)
            if old is not None:
                del old.subscribers[selector_id]
                left.add(old)
            if selector is not None:
                entry = self._entries[selector.canonical]
                entry.subscribers[selector_id] = None
                self._entry_of[selector_id] = entry
        unnamed: list[str] = []
        for entry in left:
            if not entry.subscribers:
                del self._entries[entry.selector.canonical]
                unnamed += self._interest.remove(entry)
        for label in unnamed:
            self._postings.forget(label)
        if unnamed:
            self._items.rename()

    # -- matches ----------------------------------------------------------------------------

    def _reevaluate(
        self, moves: Moves, changes: Sequence[Change], fresh: Collection[Entry[S]]
    ) -> dict[Entry[S], _Shift]:
        """Bring the matches of the entries that existed before up to date."""
        if moves.count <= _HANDFUL:
            return self._shift_by_item(changes, fresh)
        touched = self._touched(moves)
        touched.difference_update(fresh)
        each = _SELECTOR_COST + self._items.universe() // _SELECTOR_COST_SHARE
        if moves.count < MANY_CHANGES and moves.count * _ITEM_COST < len(touched) * each:
            return self._shift_by_item(changes, fresh)
        return self._shift_by_selector(touched)

    def _touched(self, moves: Moves) -> set[Entry[S]]:
        """The entries whose matches a batch can change."""
        touched: set[Entry[S]] = set()
        for way in (moves.entered, moves.left):
            for label, by_value in way.items():
                touched.update(*self._interest.flipped_by_values(label, by_value.keys()))
        for label in moves.labels():
            touched |= self._interest.flipped_by_presence(label)
        if moves.was_born or moves.was_lost:
            touched |= self._interest.flipped_by_existence()
        return touched

    def _shift_by_selector(self, touched: Collection[Entry[S]]) -> dict[Entry[S], _Shift]:
        shifts = {}
        universe = self._items.universe()
        for entry in touched:
            old = entry.matches
            new = self._postings.match(entry.selector, self._items.labels_of)
            if new != old:
                entry.matches = new
                started = ordinal_sets.difference(new, old, universe)
                stopped = ordinal_sets.difference(old, new, universe)
                if started or stopped:
                    shifts[entry] = _Shift(started, stopped)
        return shifts

    def _shift_by_item(
        self, changes: Sequence[Change], fresh: Collection[Entry[S]]
    ) -> dict[Entry[S], _Shift]:
        started: dict[Entry[S], list[int]] = {}
        stopped: dict[Entry[S], list[int]] = {}
        for ordinal, old, new in changes:
            for entry in self._interest.concerned(old, new):
                if entry in fresh:
                    continue
                was = ordinal_sets.contains(entry.matches, ordinal)
                now = new is not None and entry.selector.evaluate(new)
                if was != now:
                    (started if now else stopped).setdefault(entry, []).append(ordinal)
        universe = self._items.universe()
        for entry, ordinals in started.items():
            entry.matches = ordinal_sets.with_added(entry.matches, ordinals, universe)
        for entry, ordinals in stopped.items():
            entry.matches = ordinal_sets.with_removed(entry.matches, ordinals, universe)
        return {
            entry: _Shift(set(started.get(entry, ())), set(stopped.get(entry, ())))
            for entry in started.keys() | stopped.keys()
        }

    # -- deltas -----------------------------------------------------------------------------

    def _shifted(
        self, shifts: Mapping[Entry[S], _Shift], selectors: Mapping[S, Selector | None]
    ) -> list[MatchDelta[S, I]]:
        """The deltas of ids that kept their selector."""
        return [
            MatchDelta(
                selector_id,
                Matches(shift.started, self._items),
                Matches(shift.stopped, self._items),
            )
            for entry, shift in shifts.items()
            for selector_id in entry.subscribers
            if selector_id not in selectors or selectors[selector_id] == entry.selector
        ]

    def _switched(
        self, shifts: Mapping[Entry[S], _Shift], selectors: Mapping[S, Selector | None]
    ) -> list[MatchDelta[S, I]]:
        """The deltas of ids that are new, changed their selector, or went."""
        deltas = []
        universe = self._items.universe()
        for selector_id, selector in selectors.items():
            entry = self._entries[selector.canonical] if selector is not None else None
            old_entry = self._entry_of.get(selector_id)
            if entry is old_entry:
                continue
            old = _before(old_entry, shifts, universe) if old_entry else set()
            new = entry.matches if entry else set()
            started = ordinal_sets.difference(new, old, universe) if old else new
            stopped = ordinal_sets.difference(old, new, universe) if old and new else old
            if started or stopped:
                deltas.append(self._delta(selector_id, started, stopped))
        return deltas

    def _delta(self, selector_id: S, started: Ordinals, stopped: Ordinals) -> MatchDelta[S, I]:
        items = self._items
        return MatchDelta(selector_id, Matches(started, items), Matches(stopped, items))

    def check(self) -> None:
        """The invariants, slowly: for tests."""
        self._items.check()
        self._interest.check(self._entries.values())
        assert set(self._entry_of.values()) == set(self._entries.values())
        for selector_id, entry in self._entry_of.items():
            assert selector_id in entry.subscribers
        living = self._items.ordinal_of.values()
        assert self._postings.everyone == ordinal_sets.bits_of(living, self.universe())
        self._postings.check({ordinal: self._items.labels_of(ordinal) for ordinal in living})
        for canonical, entry in self._entries.items():
            assert entry.selector.canonical == canonical
            right = {o for o in living if entry.selector.evaluate(self._items.labels_of(o))}
            assert set(ordinal_sets.iterate(entry.matches)) == right, "L1"

    def dump(self) -> dict[str, object]:
        """State for the debug endpoint: counts."""
        return {
            "items": len(self._items.ordinal_of),
            "selector_ids": len(self._entry_of),
            "selectors": len(self._entries),
            "named_labels": len(self._interest.named),
        }


def _before(entry: Entry[S], shifts: Mapping[Entry[S], _Shift], universe: int) -> Ordinals:
    """An entry's matches as they were before this flush."""
    shift = shifts.get(entry)
    if shift is None:
        return entry.matches
    kept = ordinal_sets.difference(entry.matches, shift.started, universe)
    return ordinal_sets.union(kept, shift.stopped, universe)
