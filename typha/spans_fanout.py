"""Who of the spans stream has been sent what: for each client the places where it must look again.

Layer: typha, pure (no I/O, no clock: time is an argument, seconds). Used by `server`, which asks a
follower for frames as it asks those of the full streams (`fanout.Follower`).

    changes ─► SpansFeed ─cut─► dirty paths and groups of each client ─drain─► one step
                                                                   present values, looked up

  SO1 what is kept for a client are the names of what it has and of what changed for it and, of
      groups, the members that came and went. What changed is never more than what its node is to
      have, what the client has, and _SLACK (`SpansCursor.cost`), however long it reads nothing and
      however much comes and goes;
  SO2 a drain is one step: all that changed for the client, as of the last cut. Its last frame is a
      STEP_END with the positions; a client applies a step as a whole, so order within it is free;
  SO3 a snapshot is sent in pieces while changes go on. What changed meanwhile follows in it, and
      the last piece, with SNAPSHOT_END, is made at once: what the client then has is the state of
      one cut;
  SO4 a cut waits until all that has come in is digested: positions are never ahead of the state;
  SO5 a snapshot ends with the positions of the watch. A step tells, of each prefix, the revision of
      its last change: who follows learns of nothing while nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from libcalico.wire import messages
from libcalico.wire.framing import Packer
from libcalico.wire.messages import (
    Change,
    Deltas,
    GroupChange,
    Groups,
    Item,
    Kind,
    Page,
    SnapshotEnd,
    StepEnd,
)
from typha.fanout import FRAME_BYTES, FRAME_CHANGES
from typha.spans import GroupId, MemberDelta, Node
from typha.spans_feed import FeedChanges, SpansFeed

#: Objects that are decoded at a time, before others have their turn.
DIGEST = 500
_MEMBERS_A_FRAME = 20_000
_NAME_BYTES = 60
# A client's names are looked through when they are more than twice what it has, and this.
_SLACK = 1024
_T = TypeVar("_T", bound=tuple[str, bytes | None, int])


@dataclass(slots=True)
class _Net:
    """Members that came and went since the client was told; disjoint."""

    added: set[str]
    removed: set[str]

    def merge(self, delta: MemberDelta) -> None:
        back, gone = delta.added & self.removed, delta.removed & self.added
        self.removed -= back
        self.added -= gone
        self.added |= delta.added - back
        self.removed |= delta.removed - gone

    def __len__(self) -> int:
        return len(self.added) + len(self.removed)


@dataclass(slots=True)
class SpansCursor:
    """One client. `groups`: None means the group as a whole, or its end. `has_paths`, `has_groups`:
    what it was sent and has not lost again."""

    node: Node
    is_compressed: bool
    paths: dict[str, None] = field(default_factory=dict)
    groups: dict[GroupId, _Net | None] = field(default_factory=dict)
    has_paths: set[str] = field(default_factory=set)
    has_groups: set[GroupId] = field(default_factory=set)
    #: The last changes it was told of.
    told: Mapping[str, int] = field(default_factory=dict)
    dirty_since: float | None = None

    @property
    def is_dirty(self) -> bool:
        return self.dirty_since is not None

    @property
    def cost(self) -> int:
        """Names and members held for it (SO1)."""
        nets = (1 if net is None else 1 + len(net) for net in self.groups.values())
        return len(self.paths) + sum(nets)


class SpansFanout:
    """All clients of the spans stream. `positions` is asked for what the feed has been given."""

    def __init__(
        self,
        feed: SpansFeed,
        positions: Callable[[], dict[str, int]],
        *,
        max_fall_behind_s: float = 300.0,
    ) -> None:
        self.feed = feed
        #: Where the watch was at the last cut, and the last change of each prefix.
        self.positions: dict[str, int] = {}
        self.changed: dict[str, int] = {}
        self._changing: dict[str, int] = {}
        self._ask_positions = positions
        self._max_fall_behind_s = max_fall_behind_s
        self._cursors: dict[Node, list[SpansCursor]] = {}
        self._packer = Packer()
        self.cuts = 0

    # ---- what comes in -------------------------------------------------------------------------

    def on_change(self, prefix: str, path: str, value: bytes | None, revision: int) -> None:
        self._changing[prefix] = max(revision, self._changing.get(prefix, 0))
        self.feed.on_change(path, value, revision)

    def digest(self) -> bool:
        """A slice of the work; whether nothing is left."""
        return self.feed.digest(DIGEST)

    def cut(self, now: float) -> bool:
        """Mark what changed, for those it concerns; whether there was anything (SO4)."""
        if self.feed.has_pending:
            return False
        self.positions = self._ask_positions()
        if self._changing:
            self.changed = {**self.changed, **self._changing}
            self._changing = {}
        if self.feed.is_settled:
            return False
        changes = self.feed.flush()
        if not changes:
            return False
        self.cuts += 1
        self._mark(changes, now)
        return True

    def _mark(self, changes: FeedChanges, now: float) -> None:
        for path, nodes in changes.paths.items():
            for cursor in self._of(nodes):
                cursor.paths[path] = None
                _dirty(cursor, now)
                self._prune(cursor)
        for group_id, delta, nodes in changes.members:
            for cursor in self._of(nodes):
                self._note_members(cursor, group_id, delta)
                _dirty(cursor, now)
        for group_id, nodes in changes.groups:
            for cursor in self._of(nodes):
                cursor.groups[group_id] = None
                _dirty(cursor, now)
                self._prune(cursor)

    def _note_members(self, cursor: SpansCursor, group_id: GroupId, delta: MemberDelta) -> None:
        net = cursor.groups.get(group_id)
        if net is not None:
            net.merge(delta)
        elif group_id not in cursor.groups:
            net = cursor.groups[group_id] = _Net(set(delta.added), set(delta.removed))
        if net is not None and len(net) > max(16, len(self.feed.members(group_id))):
            cursor.groups[group_id] = None

    def _prune(self, cursor: SpansCursor) -> None:
        """Forget what came and went again without the client having been told (SO1)."""
        if len(cursor.paths) > 2 * len(cursor.has_paths) + _SLACK:
            cursor.paths = {
                path: None
                for path in cursor.paths
                if path in cursor.has_paths or self.feed.on_node(path, cursor.node) is not None
            }
        if len(cursor.groups) > 2 * len(cursor.has_groups) + _SLACK:
            cursor.groups = {
                group_id: net
                for group_id, net in cursor.groups.items()
                if group_id in cursor.has_groups or self.feed.is_on(group_id, cursor.node)
            }

    def _of(self, nodes: Iterable[Node] | None) -> Iterator[SpansCursor]:
        """The clients on these nodes; None: all."""
        if nodes is None:
            for cursors in self._cursors.values():
                yield from cursors
            return
        for node in nodes:
            yield from self._cursors.get(node, ())

    # ---- clients -------------------------------------------------------------------------------

    def join(self, node: Node, *, is_compressed: bool) -> SpansCursor:
        """A client that knows nothing; its snapshot is `snapshot_frames`."""
        cursor = SpansCursor(node, is_compressed)
        self._cursors.setdefault(node, []).append(cursor)
        return cursor

    def leave(self, cursor: SpansCursor) -> None:
        cursors = self._cursors[cursor.node]
        cursors[:] = [item for item in cursors if item is not cursor]
        if not cursors:
            del self._cursors[cursor.node]

    def snapshot_frames(self, cursor: SpansCursor) -> tuple[int, Iterator[bytes]]:
        """(how many objects there are, the frames behind SNAPSHOT), made as they are asked for."""
        paths = self.feed.paths_on(cursor.node)
        groups = self.feed.groups_on(cursor.node)
        return len(paths), self._snapshot(cursor, paths, groups)

    def _snapshot(
        self, cursor: SpansCursor, paths: list[str], groups: list[GroupId]
    ) -> Iterator[bytes]:
        for start in range(0, len(paths), FRAME_CHANGES):
            found = (
                (path, self.feed.on_node(path, cursor.node))
                for path in paths[start : start + FRAME_CHANGES]
            )
            items: list[Item] = [(p, s.value, s.revision) for p, s in found if s is not None]
            cursor.has_paths.update(path for path, _, _ in items)
            for part in _cut(items):
                yield self._frame(Kind.PAGE, messages.encode(Page(part)), cursor)
        for group_id in groups:
            if self.feed.is_on(group_id, cursor.node):
                cursor.has_groups.add(group_id)
                # What came and went before is in it; what comes and goes from here on is not.
                cursor.groups.pop(group_id, None)
                for change in _whole(group_id, self.feed.members(group_id)):
                    yield self._frame(Kind.GROUPS, messages.encode(Groups([change])), cursor)
        end = messages.encode(SnapshotEnd(dict(self.positions)))
        cursor.told = self.changed
        # At once (SO3).
        yield b"".join((*self._drained(cursor), self._frame(Kind.SNAPSHOT_END, end, cursor)))

    def next_frames(self, cursor: SpansCursor) -> tuple[bytes, ...]:
        """The next step of a client; nothing when it is up to date."""
        if not cursor.is_dirty:
            return ()
        return (*self._drained(cursor), self.position_frame(cursor))

    def position_frame(self, cursor: SpansCursor) -> bytes:
        """STEP_END: what of the last changes the client has not been told (SO5)."""
        told = cursor.told
        news = {prefix: at for prefix, at in self.changed.items() if told.get(prefix) != at}
        cursor.told = self.changed
        return self._frame(Kind.STEP_END, messages.encode(StepEnd(news)), cursor)

    def lag_s(self, cursor: SpansCursor, now: float) -> float:
        return 0.0 if cursor.dirty_since is None else max(0.0, now - cursor.dirty_since)

    def has_fallen_behind(self, cursor: SpansCursor, now: float, *, grace_s: float = 0.0) -> bool:
        """A client that has not taken anything for so long is of no use to its node."""
        return self.lag_s(cursor, now) > self._max_fall_behind_s + grace_s

    def dump(self) -> dict[str, object]:
        cursors = [cursor for found in self._cursors.values() for cursor in found]
        return {
            "clients": len(cursors),
            "cuts": self.cuts,
            "held_for_clients": sum(cursor.cost for cursor in cursors),
            "feed": self.feed.dump(),
        }

    # ---- frames --------------------------------------------------------------------------------

    def _drained(self, cursor: SpansCursor) -> Iterator[bytes]:
        paths, cursor.paths = cursor.paths, {}
        groups, cursor.groups = cursor.groups, {}
        cursor.dirty_since = None
        for part in _cut(list(self._changes(cursor, paths))):
            yield self._frame(Kind.DELTAS, messages.encode(Deltas(part)), cursor)
        batch: list[GroupChange] = []
        size = 0
        for group_id, net in groups.items():
            for change in self._group_changes(cursor, group_id, net):
                batch.append(change)
                size += len(change[1]) + len(change[2]) + 1
                if size >= _MEMBERS_A_FRAME:
                    yield self._frame(Kind.GROUPS, messages.encode(Groups(batch)), cursor)
                    batch, size = [], 0
        if batch:
            yield self._frame(Kind.GROUPS, messages.encode(Groups(batch)), cursor)

    def _changes(self, cursor: SpansCursor, paths: Iterable[str]) -> Iterator[Change]:
        for path in paths:
            stored = self.feed.on_node(path, cursor.node)
            if stored is not None:
                cursor.has_paths.add(path)
                yield path, stored.value, stored.revision
            elif path in cursor.has_paths:
                cursor.has_paths.discard(path)
                yield path, None, self._position_of(path)

    def _position_of(self, path: str) -> int:
        """Up to which revision it is known that there is nothing."""
        return max(
            (at for prefix, at in self.positions.items() if path.startswith(prefix)), default=0
        )

    def _group_changes(
        self, cursor: SpansCursor, group_id: GroupId, net: _Net | None
    ) -> list[GroupChange]:
        had = group_id in cursor.has_groups
        if not self.feed.is_on(group_id, cursor.node):
            cursor.has_groups.discard(group_id)
            return [(group_id, [], [], False, True)] if had else []
        cursor.has_groups.add(group_id)
        if net is None or not had:
            return _whole(group_id, self.feed.members(group_id))
        return [(group_id, list(net.added), list(net.removed), False, False)] if net else []

    def _frame(self, kind: Kind, payload: bytes, cursor: SpansCursor) -> bytes:
        return self._packer.frame(kind, payload, compress=cursor.is_compressed)


@dataclass(slots=True)
class SpansFollower:
    """One client's side, as the server asks it."""

    fanout: SpansFanout
    cursor: SpansCursor

    @property
    def is_settled(self) -> bool:
        """Whether questions have an answer now: not while changes are half taken over."""
        return self.fanout.feed.is_settled

    @property
    def has_news(self) -> bool:
        return self.cursor.is_dirty

    def next_frames(self, now: float) -> tuple[bytes, ...]:
        return self.fanout.next_frames(self.cursor)

    def lag_s(self, now: float) -> float:
        return self.fanout.lag_s(self.cursor, now)

    def has_fallen_behind(self, now: float, *, grace_s: float = 0.0) -> bool:
        return self.fanout.has_fallen_behind(self.cursor, now, grace_s=grace_s)


def _dirty(cursor: SpansCursor, now: float) -> None:
    if cursor.dirty_since is None:
        cursor.dirty_since = now


def _whole(group_id: GroupId, members: frozenset[str]) -> list[GroupChange]:
    """All members; in pieces when they are many: the first says that the group begins anew."""
    found = list(members)
    changes: list[GroupChange] = [(group_id, found[:_MEMBERS_A_FRAME], [], True, False)]
    changes += [
        (group_id, found[start : start + _MEMBERS_A_FRAME], [], False, False)
        for start in range(_MEMBERS_A_FRAME, len(found), _MEMBERS_A_FRAME)
    ]
    return changes


def _cut(changes: list[_T]) -> Iterator[list[_T]]:
    """So that no frame becomes too large for its receiver."""
    part: list[_T] = []
    size = 0
    for change in changes:
        part.append(change)
        size += len(change[1] or b"") + len(change[0]) + _NAME_BYTES
        if size >= FRAME_BYTES or len(part) >= FRAME_CHANGES:
            yield part
            part, size = [], 0
    if part:
        yield part
