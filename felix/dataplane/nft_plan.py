"""From the difference between wanted and programmed to one transaction, in an order that works.

Layer: felix.dataplane, pure. Used by nft_table.

The order, and why (the kernel checks every message against what the ones before it left):

    clear     rules of every chain that is rewritten or goes      nothing refers to doomed things
    entries   of maps that change or go                           any more
    sets      that go, then chains that go                        a map that goes leads to chains
    sets      that come, their members; deltas of others          before the rules that use them
    chains    that come, empty                                    so rules may refer in any order
    rules     of every chain that is rewritten
    entries   of maps that come                                   after the chains they lead to

  L1  what is right is not mentioned: no operation for it, whatever else the transaction holds;
  L2  deletions of elements come before additions to the same set: an interval may be replaced by
      others that overlap it;
  L3  a transaction holds at most `limit` elements; what is more comes in transactions of its own
      before it, set by set, and rules that use a new set come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddEntries,
    AddSet,
    AddTable,
    ChainImage,
    ClearChain,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    Op,
    WriteRules,
)
from felix.dataplane.nft_wanted import WantedRuleset, shape_of
from felix.rules.chain import Chain
from felix.rules.sets import MapValue, SetSpec

T = TypeVar("T")

TABLE_COMMENT = "Brindle: do not edit, changes are undone"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One step of a set's members: deletions, then additions."""

    name: str
    added: tuple[bytes, ...]
    deleted: tuple[bytes, ...]


@dataclass(slots=True)
class Plan:
    """One transaction, and what is true once the kernel has taken it."""

    ops: list[Op] = field(default_factory=list)
    chains: dict[str, ChainImage | None] = field(default_factory=dict)
    deleted_sets: list[str] = field(default_factory=list)
    created_sets: dict[str, SetSpec] = field(default_factory=dict)
    members: list[MemberChange] = field(default_factory=list)
    entries: list[tuple[str, bytes, MapValue | None]] = field(default_factory=list)

    def confirm(self, wanted: WantedRuleset) -> None:
        for name, image in self.chains.items():
            wanted.chains.confirm(name, image)
        for set_name in self.deleted_sets:
            wanted.sets.confirm(set_name, None)
            wanted.on_set_deleted(set_name)
        for set_name, spec in self.created_sets.items():
            wanted.sets.confirm(set_name, spec)
        for change in self.members:
            wanted.confirm_members(change.name, set(change.added), set(change.deleted))
        for map_name, key, value in self.entries:
            entries = wanted.entries.get(map_name)
            if entries is not None:
                entries.confirm(key, value)


@dataclass(frozen=True, slots=True)
class Limits:
    """`elements` per transaction; `skipped` are elements the kernel refused: (set, element)."""

    elements: int = 200_000
    single: bool = False
    skipped: frozenset[tuple[str, bytes]] = frozenset()


def plan(wanted: WantedRuleset, limits: Limits, *, has_table: bool) -> Iterator[Plan]:
    """The transactions that are needed, the last one first made when the others are confirmed."""
    wanted.settle()
    planner = _Planner(wanted, limits)
    if not has_table:
        yield Plan([AddTable(TABLE_COMMENT)])
    yield from planner.preload()
    final = planner.transaction()
    if final.ops:
        yield final


class _Planner:
    """Makes one plan. Reads the wanted ruleset, never changes it."""

    def __init__(self, wanted: WantedRuleset, limits: Limits) -> None:
        self._wanted = wanted
        self._limits = limits

    # ---------------------------------------------------------------------------- large sets

    def preload(self) -> Iterator[Plan]:
        """L3: the largest sets on their own, until the rest fits into one transaction."""
        members = self._wanted.members
        pending = {
            name: len(members[name].to_add) + len(members[name].to_delete)
            for name in self._wanted.dirty_members
            if self._may_change(name) and not self._is_replaced(name)
        }
        total = sum(pending.values())
        for name in sorted(pending, key=lambda name: (-pending[name], name)):
            if total <= self._limits.elements:
                return
            total -= pending[name]
            if self._wanted.sets.programmed(name) is None:
                spec = self._wanted.spec(name)
                yield Plan([AddSet(spec)], created_sets={name: shape_of(spec)})
            for change in self._pieces(name, self._limits.elements):
                yield Plan(self._member_ops(change), members=[change])

    def _is_replaced(self, name: str) -> bool:
        """Whether the kernel's set has another shape: only a whole transaction can replace it."""
        programmed = self._wanted.sets.programmed(name)
        return programmed is not None and self._wanted.sets.is_dirty(name)

    def _pieces(self, name: str, limit: int) -> Iterator[MemberChange]:
        tracker = self._wanted.members[name]
        deleted, added = sorted(tracker.to_delete), sorted(tracker.to_add)
        for start in range(0, len(deleted), limit):
            yield MemberChange(name, (), tuple(deleted[start : start + limit]))
        for start in range(0, len(added), limit):
            yield MemberChange(name, tuple(added[start : start + limit]), ())

    # --------------------------------------------------------------------- the transaction

    def transaction(self) -> Plan:
        made = Plan()
        replaced, doomed, created = self._set_changes()
        rewritten = self._rewritten(replaced)
        doomed_chains = sorted(self._doomed_chains(rewritten))
        self._clear(made, rewritten, doomed_chains)
        old_entries, new_entries = self._entry_changes(doomed | replaced)
        self._delete_entries(made, old_entries)
        for name in sorted(doomed | replaced):
            made.ops.append(DeleteSet(name))
            made.deleted_sets.append(name)
        for name in doomed_chains:
            made.ops.append(DeleteChain(name))
            made.chains[name] = None
        self._create_sets(made, sorted(created | replaced))
        self._change_members(made, replaced)
        self._write_chains(made, rewritten)
        self._add_entries(made, new_entries)
        return made

    def _set_changes(self) -> tuple[set[str], set[str], set[str]]:
        """(sets of another shape, sets that go, sets that come)."""
        sets = self._wanted.sets
        updates = {name for name in sets.pending_updates() if not self._is_out(name)}
        replaced = {name for name in updates if sets.programmed(name) is not None}
        doomed = {name for name in sets.pending_deletions() if not self._is_out(name)}
        return replaced, doomed, updates - replaced

    def _is_out(self, name: str) -> bool:
        return self._wanted.is_refused_set(name)

    def _may_change(self, name: str) -> bool:
        """Members of a set that goes go with it; a refused one is left alone."""
        return self._wanted.is_wanted_set(name) and not self._is_out(name)

    def _rewritten(self, replaced: set[str]) -> dict[str, Chain]:
        """Chains whose rules are written: changed ones, and users of replaced sets."""
        names = set(self._wanted.chains.pending_updates())
        if replaced:
            names |= self._wanted.users_of_sets(replaced)
        return {name: self._wanted.effective[name] for name in sorted(names)}

    def _doomed_chains(self, rewritten: dict[str, Chain]) -> set[str]:
        """Chains that go, and those that hang elsewhere than wanted (a hook cannot be moved)."""
        chains = self._wanted.chains
        doomed = {
            name for name in chains.pending_deletions() if not self._wanted.is_refused_chain(name)
        }
        for name, chain in rewritten.items():
            programmed = chains.programmed(name)
            if programmed is not None and programmed.base != chain.base:
                doomed.add(name)
        return doomed

    def _clear(self, made: Plan, rewritten: dict[str, Chain], doomed: Sequence[str]) -> None:
        for name in sorted({*rewritten, *doomed}):
            programmed = self._wanted.chains.programmed(name)
            if programmed is not None and programmed.digest != b"":
                made.ops.append(ClearChain(name))

    def _entry_changes(
        self, gone: set[str]
    ) -> tuple[dict[str, list[bytes]], dict[str, list[tuple[bytes, MapValue]]]]:
        """(keys to delete, entries to add) by map. Maps in `gone` take their entries along."""
        old: dict[str, list[bytes]] = {}
        new: dict[str, list[tuple[bytes, MapValue]]] = {}
        for name, tracker in self._wanted.entries.items():
            if (tracker.in_sync() and name not in gone) or not self._may_change(name):
                continue
            is_new = name in gone
            pending = dict(tracker.wanted_items()) if is_new else tracker.pending_updates()
            skipped = self._limits.skipped
            updates = {k: value for k, value in pending.items() if (name, k) not in skipped}
            if not is_new:
                stale = {key for key in updates if tracker.programmed(key) is not None}
                keys = sorted(stale | tracker.pending_deletions())
                if keys:
                    old[name] = keys
            if updates:
                new[name] = sorted(updates.items(), key=lambda item: item[0])
        return old, new

    def _delete_entries(self, made: Plan, old: dict[str, list[bytes]]) -> None:
        for name, keys in old.items():
            spec = self._wanted.spec(name)
            made.ops += [DeleteElements(spec, part) for part in self._parts(keys)]
            made.entries += [(name, key, None) for key in keys]

    def _add_entries(self, made: Plan, new: dict[str, list[tuple[bytes, MapValue]]]) -> None:
        for name, entries in new.items():
            spec = self._wanted.spec(name)
            made.ops += [AddEntries(spec, part) for part in self._parts(entries)]
            made.entries += [(name, key, value) for key, value in entries]

    def _parts(self, items: Sequence[T]) -> Iterable[Sequence[T]]:
        """All at once, or one by one to find out which the kernel does not want."""
        return [[item] for item in items] if self._limits.single else [items]

    def _create_sets(self, made: Plan, names: Iterable[str]) -> None:
        for name in names:
            spec = self._wanted.spec(name)
            made.ops.append(AddSet(spec))
            made.created_sets[name] = shape_of(spec)

    def _change_members(self, made: Plan, replaced: set[str]) -> None:
        plain_sets = self._wanted.members.keys()
        for name in sorted(self._wanted.dirty_members | (replaced & plain_sets)):
            if self._may_change(name):
                change = self._member_change(name, is_new=name in replaced)
                made.members.append(change)
                made.ops += self._member_ops(change)

    def _member_change(self, name: str, *, is_new: bool) -> MemberChange:
        tracker = self._wanted.members[name]
        added = tracker.wanted if is_new else tracker.to_add
        deleted = () if is_new else tracker.to_delete
        skipped = self._limits.skipped
        if skipped:
            added = {element for element in added if (name, element) not in skipped}
        return MemberChange(name, tuple(sorted(added)), tuple(sorted(deleted)))

    def _member_ops(self, change: MemberChange) -> list[Op]:
        spec = self._wanted.spec(change.name)
        ops: list[Op] = []
        if change.deleted:
            ops += [DeleteElements(spec, part) for part in self._parts(change.deleted)]
        if change.added:
            ops += [AddElements(spec, part) for part in self._parts(change.added)]
        return ops

    def _write_chains(self, made: Plan, rewritten: dict[str, Chain]) -> None:
        for name, chain in rewritten.items():
            programmed = self._wanted.chains.programmed(name)
            if programmed is None or programmed.base != chain.base:
                made.ops.append(AddChain(name, chain.base, chain.comment))
        for name, chain in rewritten.items():
            image = self._wanted.chains.wanted(name)
            assert image is not None, "a rewritten chain is wanted"
            if chain.rules:
                made.ops.append(WriteRules(chain, image.digest or b""))
            made.chains[name] = image
