"""The syncer of the spans stream: of the datastore what concerns this node, and address groups.

Layer: syncer edge, but for `StepState`, which is pure. Used by felix in the place of `TyphaSyncer`.

  Z1  what came in one step is said at once, in one turn of the loop: groups first, then objects,
      then positions. The same for a snapshot, which replaces what was known: of it only what is
      different is said, vanished objects as deletes, vanished groups as gone. (Groups of a snapshot
      are said whole; who keeps members finds what differs);
  Z2  the stream is in the order of its server, and has no "largest revision wins": a policy may
      leave this node and come back as it was. Never back in time holds by connections: a server is
      told the positions we have, and does not answer with less (T2 of `syncer.typha`);
  Z3  a value that does not parse is delivered as absent, with its error (S4 of `syncer.api`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from libcalico.errors import DecodeError, InvalidInput
from libcalico.model import codec
from libcalico.model.keys import parse
from libcalico.runtime import log
from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.syncer.api import GroupChange, SpansSink, SyncStatus, Update
from libcalico.syncer.streams import SPANS, prefixes_of
from libcalico.syncer.typha import TyphaOptions, TyphaSyncer
from libcalico.syncer.typhas import Finder
from libcalico.wire import messages
from libcalico.wire.messages import Change, Groups, Item, Message, Snapshot, StepEnd

LOG = log.get(__name__)


@dataclass(slots=True)
class Step:
    """What is to be said at once."""

    groups: list[GroupChange] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)


class StepState:
    """What was said, and what has come since and waits for the end of its step."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._groups: set[str] = set()
        self._changes: dict[str, Change] = {}
        self._group_changes: dict[str, _Gathered] = {}
        self._is_listing = False
        self.positions: dict[str, int] = {}

    def begin_snapshot(self, *, is_reset: bool) -> None:
        """With `is_reset` known revisions may stand for other values now."""
        self.drop()
        self._is_listing = True
        if is_reset:
            self._known = dict.fromkeys(self._known, -1)
            self.positions = {}

    def drop(self) -> None:
        """Forget the step that has not ended: its connection has."""
        self._is_listing = False
        self._changes, self._group_changes = {}, {}

    def on_changes(self, changes: Iterable[Change | Item]) -> None:
        for change in changes:
            self._changes[change[0]] = change

    def on_groups(self, changes: Iterable[messages.GroupChange]) -> None:
        for group_id, added, removed, whole, gone in changes:
            held = self._group_changes.get(group_id)
            if held is None or whole or gone:
                held = self._group_changes[group_id] = _Gathered(whole=whole, gone=gone)
            held.take(added, removed)

    def end(self, positions: Mapping[str, int]) -> Step:
        """The step is complete."""
        changes, gathered, was_listing = self._changes, self._group_changes, self._is_listing
        self.drop()
        for prefix, at in positions.items():
            self.positions[prefix] = max(at, self.positions.get(prefix, 0))
        step = Step(positions=dict(positions))
        for group_id, held in gathered.items():
            if held.gone:
                if group_id in self._groups:
                    step.groups.append(GroupChange(group_id, gone=True))
            else:
                step.groups.append(held.as_change(group_id))
        if was_listing:
            self._end_listing(changes, gathered, step)
        for item in gathered.items():
            self._groups.discard(item[0]) if item[1].gone else self._groups.add(item[0])
        for change in changes.values():
            self._deliver(change, step.updates)
        return step

    def dump(self) -> dict[str, object]:
        return {
            "known": len(self._known),
            "groups": len(self._groups),
            "waiting": len(self._changes) + len(self._group_changes),
        }

    def _end_listing(
        self, changes: dict[str, Change], gathered: Collection[str], step: Step
    ) -> None:
        """Everything that is not in a snapshot is gone."""
        for group_id in self._groups.difference(gathered):
            step.groups.append(GroupChange(group_id, gone=True))
        self._groups.intersection_update(gathered)
        for path in self._known.keys() - changes.keys():
            changes[path] = (path, None, _position_of(path, self.positions))

    def _deliver(self, change: Change, updates: list[Update]) -> None:
        path, value, revision = change
        if value is None:
            if self._known.pop(path, None) is not None:
                key = parse(path)
                if key is not None:
                    updates.append(Update(key, None, revision))
            return
        if self._known.get(path) == revision:
            return
        key = parse(path)
        if key is None:
            return
        try:
            updates.append(Update(key, codec.decode(key, value, revision), revision))
        except DecodeError as err:
            updates.append(Update(key, None, revision, err))
        except InvalidInput:
            return  # one of the layout's keys whose values nobody here reads
        self._known[path] = revision


@dataclass(slots=True)
class _Gathered:
    """What a step says of one group."""

    whole: bool
    gone: bool
    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)

    def take(self, added: Iterable[str], removed: Iterable[str]) -> None:
        self.added.update(added)
        self.added.difference_update(removed)
        self.removed.update(removed)
        self.removed.difference_update(added)

    def as_change(self, group_id: str) -> GroupChange:
        removed = frozenset() if self.whole else frozenset(self.removed)
        return GroupChange(group_id, frozenset(self.added), removed, self.whole)


class SpansSyncer(TyphaSyncer):
    """Follows the spans stream into a sink. `run` once."""

    in_steps = True

    def __init__(
        self, finder: Finder, sink: SpansSink, options: TyphaOptions, *, clock: Clock = SYSTEM
    ) -> None:
        """`options.stream` must be streams.SPANS."""
        super().__init__(finder, prefixes_of(SPANS), sink, options, clock=clock)
        self._spans_sink = sink
        self._state = StepState()

    def dump(self) -> dict[str, object]:
        return super().dump() | {"ranges": [], "steps": self._state.dump()}

    def _take_more(self, message: Message) -> None:
        match message:
            case Groups(changes):
                self._state.on_groups(changes)
            case StepEnd(positions):
                self._end(positions)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self._say(SyncStatus.RESYNC)
        if snapshot.is_reset:
            LOG.warning("typha says that the datastore was restored: everything is taken anew")
        self._state.begin_snapshot(is_reset=snapshot.is_reset)

    def _on_page(self, items: list[Item]) -> None:
        self._state.on_changes(items)

    def _on_deltas(self, changes: list[Change]) -> None:
        self._state.on_changes(changes)

    def _on_snapshot_end(self, positions: dict[str, int]) -> None:
        self._end(positions)
        self._say(SyncStatus.IN_SYNC)

    def _seen_positions(self) -> dict[str, int]:
        return dict(self._state.positions)

    def _end(self, positions: Mapping[str, int]) -> None:
        step = self._state.end(positions)
        if step.groups:
            self._spans_sink.on_groups(step.groups)
        self._deliver(step.updates)
        if step.positions:
            self._spans_sink.on_positions(step.positions)


def _position_of(path: str, positions: Mapping[str, int]) -> int:
    return max((at for prefix, at in positions.items() if path.startswith(prefix)), default=0)
