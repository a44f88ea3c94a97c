"""One family's routes: candidates per prefix, what was selected, and the groups that are told.

Layer: pure. Used by bgp.rib.rib only.

Writers (`put`, `drop`) only note that a prefix is dirty; `flush` decides once per prefix, however
often it changed in between. That coalescing is what keeps a burst of single-prefix UPDATEs cheap.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from bgp.rib.adj_rib_out import Group
from bgp.rib.export import GroupKey
from bgp.rib.nlri import Family, Nlri
from bgp.rib.path import Path
from bgp.rib.policy import FamilyPolicy
from bgp.rib.selection import select

_NO_PATHS: tuple[Path, ...] = ()


class Change(NamedTuple):
    """The selected paths of a prefix are now these (best first; none: it is gone)."""

    family: Family
    nlri: Nlri
    paths: tuple[Path, ...]


class Table:
    """See the module. `restage` holds groups whose rules changed: they look at every prefix."""

    __slots__ = ("candidates", "dirty", "family", "groups", "policy", "restage", "selected")

    def __init__(self, family: Family, policy: FamilyPolicy) -> None:
        self.family = family
        self.policy = policy
        self.candidates: dict[Nlri, tuple[Path, ...]] = {}
        self.selected: dict[Nlri, tuple[Path, ...]] = {}
        self.dirty: dict[Nlri, None] = {}
        self.groups: dict[GroupKey, Group] = {}
        self.restage: set[Group] = set()

    def put(self, nlri: Nlri, path: Path) -> None:
        """`path` is now its source's candidate."""
        present = self.candidates.get(nlri)
        if present is None or (len(present) == 1 and present[0].source is path.source):
            self.candidates[nlri] = path.alone
        else:
            others = tuple(p for p in present if p.source is not path.source)
            self.candidates[nlri] = (*others, path)
        self.dirty[nlri] = None

    def drop(self, nlri: Nlri, source: object) -> None:
        """`source` has no candidate any more; nothing happens if it had none."""
        present = self.candidates.get(nlri)
        if present is None:
            return
        others = tuple(path for path in present if path.source is not source)
        if len(others) == len(present):
            return
        if others:
            self.candidates[nlri] = others
        else:
            del self.candidates[nlri]
        self.dirty[nlri] = None

    def touch_next_hop(self, next_hop: bytes) -> None:
        """Its reachability changed."""
        for nlri, paths in self.candidates.items():
            if any(path.attributes.next_hop == next_hop for path in paths):
                self.dirty[nlri] = None

    def group(self, key: GroupKey) -> Group:
        """The group of this key, made and filled when it is new."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key)
            for nlri, paths in self.selected.items():
                self._stage(group, nlri, paths)
            group.commit()
        return group

    def drop_empty_groups(self) -> None:
        for key in [key for key, group in self.groups.items() if not group.streams]:
            self.restage.discard(self.groups.pop(key))

    def use_policy(self, policy: FamilyPolicy) -> None:
        self.policy = policy
        self.restage.update(self.groups.values())

    def flush(self, unreachable: Collection[bytes], changes: list[Change]) -> bool:
        """Returns whether any group has something new to tell."""
        for group in self.restage:
            for nlri, paths in self.selected.items():
                if nlri not in self.dirty:
                    self._stage(group, nlri, paths)
        if self.dirty:
            self._flush_dirty(unreachable, changes)
        self.restage.clear()
        return any([group.commit() for group in self.groups.values()])

    def _flush_dirty(self, unreachable: Collection[bytes], changes: list[Change]) -> None:
        family, candidates, selected = self.family, self.candidates, self.selected
        groups = list(self.groups.values())
        for nlri in self.dirty:
            paths = candidates.get(nlri)
            after = _NO_PATHS if paths is None else select(paths, unreachable)
            before = selected.get(nlri, _NO_PATHS)
            if after == before:
                for group in self.restage:
                    self._stage(group, nlri, after)
                continue
            if after:
                selected[nlri] = after
            else:
                del selected[nlri]
            changes.append(Change(family, nlri, after))
            for group in groups:
                self._stage(group, nlri, after)
        self.dirty.clear()

    def _stage(self, group: Group, nlri: Nlri, paths: tuple[Path, ...]) -> None:
        if paths:
            mask = self.policy.classifier.classify(nlri)
            group.stage(nlri, group.exporter.export(self.policy, paths[0], mask))
        else:
            group.stage(nlri, None)

    def check(self, unreachable: Collection[bytes]) -> None:
        assert not self.dirty, "flush first"
        for nlri, paths in self.candidates.items():
            assert len({path.source for path in paths}) == len(paths) > 0
            assert all(not path.ineligible for path in paths)
            assert self.selected.get(nlri, ()) == select(paths, unreachable)
        assert self.selected.keys() <= self.candidates.keys()
        for group in self.groups.values():
            assert group.streams, "a group without peers"
            group.check()
