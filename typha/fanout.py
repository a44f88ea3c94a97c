"""Who has been sent what: breadcrumbs of one stream, and one cursor per client.

Layer: typha, pure (no I/O, no clock: time is an argument, seconds). Used by `server`.

    updates ─► pending ─cut─► crumb 41  42  43  44  (changes; frames made once per compression)
                                     ▲           ▲
                              cursor of a slow   cursor of all the others

  B1  a crumb is made once and the same bytes go to every client; a path occurs once in a crumb;
  B2  a client starts with a snapshot made at a crumb, and goes on behind that crumb: nothing is
      lost and nothing said twice in between;
  B3  a client further behind than COALESCE_CRUMBS gets what it missed as one merged run: it costs
      the last state of what changed, however often it changed;
  B4  crumbs are kept as long as a client needs them, but not beyond `max_log_bytes`: who is behind
      what was dropped has fallen behind and is to be disconnected. The same for a client that has
      not moved for `max_fall_behind_s` while there was something for it;
  B5  a snapshot is shared by all that join while the crumbs since it are few (SHARE_CRUMBS, or less
      changes than an eighth of the items): a thousand clients that join cost one snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from libcalico.errors import SuiteError
from libcalico.wire import messages
from libcalico.wire.framing import Packer
from libcalico.wire.messages import Change, Deltas, Kind
from typha.cache import SnapshotFrames, StreamCache, merged

COALESCE_CRUMBS = 8
SHARE_CHANGES = 1024
#: A frame of changes is cut at about this many bytes of values.
FRAME_BYTES = 1024 * 1024
FRAME_CHANGES = 4096
# What a change costs in the log beside its value.
_OVERHEAD_BYTES = 200


@dataclass(slots=True)
class Crumb:
    """Changes that go out together. `number` counts from 1 without gaps."""

    number: int
    made_at: float
    changes: tuple[Change, ...]
    log_bytes: int
    frames: dict[bool, tuple[bytes, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SharedSnapshot:
    """Pages as of crumb `number`, with the positions (prefix: revision) they show."""

    pages: SnapshotFrames
    number: int
    positions: dict[str, int]


@dataclass(slots=True)
class Cursor:
    """How far one client is: it has been sent all up to crumb `number`. `behind_since` is when it
    last was up to date or moved, for B4."""

    number: int
    is_compressed: bool
    moved_at: float


class FellBehind(SuiteError):
    """The crumbs a client needs are gone (B4)."""

    def __str__(self) -> str:
        return "it has not taken what was sent for too long"


@dataclass(frozen=True, slots=True)
class Limits:
    max_fall_behind_s: float = 300.0
    max_log_bytes: int = 64 * 1024 * 1024


class Fanout:
    """One stream: state, log and snapshots."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.cache = StreamCache()
        self._limits = limits or Limits()
        self._pending: dict[str, Change] = {}
        self._crumbs: deque[Crumb] = deque()
        self._last_number = 0
        self._log_bytes = 0
        self._snapshots: dict[bool, SharedSnapshot] = {}
        self._changes_since: dict[bool, int] = {}
        self._merged: dict[tuple[int, int, bool], tuple[bytes, ...]] = {}
        self._packer = Packer()

    # ---- what comes in -------------------------------------------------------------------------

    def on_changes(self, changes: Iterable[Change]) -> None:
        for change in self.cache.apply(changes):
            self._pending[change[0]] = change

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def cut(self, now: float) -> bool:
        """Make a crumb of what is pending; whether there was anything (B1)."""
        if not self._pending:
            return False
        changes = tuple(self._pending.values())
        self._pending = {}
        self._last_number += 1
        log_bytes = sum(_size(change) for change in changes)
        self._crumbs.append(Crumb(self._last_number, now, changes, log_bytes))
        self._log_bytes += log_bytes
        for is_compressed in self._changes_since:
            self._changes_since[is_compressed] += len(changes)
        self._merged.clear()
        return True

    def trim(self, cursors: Iterable[Cursor]) -> None:
        """Drop the crumbs that nobody needs, and the oldest beyond the limit (B4)."""
        self._snapshots = {
            key: item for key, item in self._snapshots.items() if self._may_share(key)
        }
        needed = min((cursor.number for cursor in cursors), default=self._last_number)
        for snapshot in self._snapshots.values():
            needed = min(needed, snapshot.number)
        while self._crumbs and (
            self._crumbs[0].number <= needed or self._log_bytes > self._limits.max_log_bytes
        ):
            self._log_bytes -= self._crumbs.popleft().log_bytes

    # ---- clients -------------------------------------------------------------------------------

    def shared_snapshot(self, *, is_compressed: bool) -> SharedSnapshot | None:
        """The last one, while it may still be shared (B5)."""
        return self._snapshots[is_compressed] if self._may_share(is_compressed) else None

    def take_snapshot(
        self, positions: dict[str, int], now: float, *, is_compressed: bool
    ) -> SharedSnapshot:
        """A new one, of now."""
        self.cut(now)
        pages = self.cache.snapshot(is_compressed=is_compressed)
        made = SharedSnapshot(pages, self._last_number, dict(positions))
        self._snapshots[is_compressed] = made
        self._changes_since[is_compressed] = 0
        return made

    def cursor_at(self, snapshot: SharedSnapshot, now: float, *, is_compressed: bool) -> Cursor:
        return Cursor(snapshot.number, is_compressed, now)

    def next_frames(self, cursor: Cursor, now: float) -> tuple[bytes, ...]:
        """What comes next for a client, and move its cursor; nothing when it is up to date.
        Errors: FellBehind."""
        behind = self._last_number - cursor.number
        if behind == 0:
            cursor.moved_at = now
            return ()
        if cursor.number < self._tail:
            raise FellBehind
        if behind > COALESCE_CRUMBS:
            frames = self._merged_frames(cursor)
            cursor.number = self._last_number
        else:
            frames = self._frames_of(self._crumb(cursor.number + 1), cursor.is_compressed)
            cursor.number += 1
        cursor.moved_at = now
        return frames

    def lag_s(self, cursor: Cursor, now: float) -> float:
        """Age of the oldest crumb the client has not been sent."""
        if cursor.number >= self._last_number:
            return 0.0
        if cursor.number < self._tail:
            return max(0.0, now - cursor.moved_at)
        return max(0.0, now - self._crumb(cursor.number + 1).made_at)

    def has_fallen_behind(self, cursor: Cursor, now: float, *, grace_s: float = 0.0) -> bool:
        """B4. `grace_s`: more time, for a client that is still taking its snapshot."""
        if cursor.number >= self._last_number:
            return False
        limit_s = self._limits.max_fall_behind_s + grace_s
        return cursor.number < self._tail or self.lag_s(cursor, now) > limit_s

    @property
    def last_number(self) -> int:
        return self._last_number

    def dump(self) -> dict[str, object]:
        return {
            "items": len(self.cache),
            "value_bytes": self.cache.value_bytes,
            "crumb": self._last_number,
            "crumbs_kept": len(self._crumbs),
            "log_bytes": self._log_bytes,
            "pending": len(self._pending),
        }

    # ---- frames --------------------------------------------------------------------------------

    def _may_share(self, is_compressed: bool) -> bool:
        found = self._snapshots.get(is_compressed)
        if found is None or found.number < self._tail:
            return False
        return self._changes_since[is_compressed] <= max(SHARE_CHANGES, len(self.cache) // 8)

    @property
    def _tail(self) -> int:
        """The lowest cursor that can still be served."""
        return self._crumbs[0].number - 1 if self._crumbs else self._last_number

    def _crumb(self, number: int) -> Crumb:
        return self._crumbs[number - self._crumbs[0].number]

    def _frames_of(self, crumb: Crumb, is_compressed: bool) -> tuple[bytes, ...]:
        frames = crumb.frames.get(is_compressed)
        if frames is None:
            frames = crumb.frames[is_compressed] = self._frames(crumb.changes, is_compressed)
        return frames

    def _merged_frames(self, cursor: Cursor) -> tuple[bytes, ...]:
        """B3; shared by all that are equally far behind, until the next crumb."""
        key = (cursor.number, self._last_number, cursor.is_compressed)
        frames = self._merged.get(key)
        if frames is None:
            start = cursor.number + 1 - self._crumbs[0].number
            missed = [self._crumbs[index].changes for index in range(start, len(self._crumbs))]
            frames = self._frames(merged(missed), cursor.is_compressed)
            self._merged[key] = frames
        return frames

    def _frames(self, changes: Sequence[Change], is_compressed: bool) -> tuple[bytes, ...]:
        return tuple(
            self._packer.frame(Kind.DELTAS, messages.encode(Deltas(part)), compress=is_compressed)
            for part in _parts(changes)
        )


@dataclass(slots=True)
class Follower:
    """One client's side, as the server asks it."""

    fanout: Fanout
    cursor: Cursor

    @property
    def is_settled(self) -> bool:
        return True

    @property
    def has_news(self) -> bool:
        return self.cursor.number < self.fanout.last_number

    def next_frames(self, now: float) -> tuple[bytes, ...]:
        """Errors: FellBehind."""
        return self.fanout.next_frames(self.cursor, now)

    def lag_s(self, now: float) -> float:
        return self.fanout.lag_s(self.cursor, now)

    def has_fallen_behind(self, now: float, *, grace_s: float = 0.0) -> bool:
        return self.fanout.has_fallen_behind(self.cursor, now, grace_s=grace_s)


def _parts(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Cut so that no frame becomes too large for its receiver."""
    part: list[Change] = []
    size = 0
    for change in changes:
        part.append(change)
        size += _size(change)
        if size >= FRAME_BYTES or len(part) >= FRAME_CHANGES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _size(change: Change) -> int:
    return len(change[1] or b"") + _OVERHEAD_BYTES
