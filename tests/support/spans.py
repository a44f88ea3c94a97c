"""A typha that computes spans and a felix behind it, joined by the bytes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from felix.calc import CalcGraph
from felix.intent import Intent
from felix.testing.dataplane import Contents, FakeDataplane
from libcalico.model.keys import ResourceKey
from libcalico.model.validation import validate_stored
from libcalico.syncer.api import SyncStatus
from libcalico.syncer.spans import Step, StepState
from libcalico.wire import messages
from libcalico.wire.framing import FrameReader, Packer
from libcalico.wire.messages import (
    Deltas,
    Groups,
    Kind,
    Page,
    Snapshot,
    SnapshotEnd,
    StepEnd,
    Welcome,
)
from typha.spans_fanout import SpansCursor, SpansFanout
from typha.spans_feed import SpansFeed

PREFIX = "/calico/"


class SpansServer:
    """The pure half of a typha in spans mode. `position` is the revision it has come to."""

    def __init__(self) -> None:
        self.problems: list[tuple[ResourceKey, str]] = []
        self.feed = SpansFeed(validate_stored, lambda key, why: self.problems.append((key, why)))
        self.position = 0
        self.fanout = SpansFanout(self.feed, lambda: {PREFIX: self.position})
        self.bytes_sent = 0

    def change(self, path: str, value: bytes | None, revision: int) -> None:
        self.fanout.on_change(PREFIX, path, value, revision)
        self.position = max(self.position, revision)

    def cut(self, now: float = 0.0) -> None:
        while not self.fanout.digest():
            pass
        self.fanout.cut(now)


class SpansNode:
    """A client and its graph; everything it is told goes through frames."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.graph = CalcGraph(node, validate=validate_stored, in_spans=True)
        self.dataplane = FakeDataplane()
        self.state = StepState()
        self.steps: list[Step] = []
        self._server: SpansServer | None = None
        self._cursor: SpansCursor | None = None
        self._listing: Iterator[bytes] | None = None
        self._reader = FrameReader()

    @property
    def contents(self) -> Contents:
        return self.dataplane.contents()

    @property
    def cursor(self) -> SpansCursor:
        assert self._cursor is not None
        return self._cursor

    def connect(self, server: SpansServer, *, is_reset: bool = False) -> None:
        """A new connection; its snapshot has not been read yet."""
        self.disconnect()
        self._server, self._reader = server, FrameReader()
        self._reader.may_be_compressed = True
        self._cursor = server.fanout.join(self.node, is_compressed=True)
        count, self._listing = server.fanout.snapshot_frames(self._cursor)
        self._receive(_frame(Kind.SNAPSHOT, Snapshot(count, is_reset)))

    def disconnect(self) -> None:
        if self._server is not None and self._cursor is not None:
            self._server.fanout.leave(self._cursor)
        self._server = self._cursor = self._listing = None

    def read(self, frames: int = 1 << 30) -> None:
        """Take at most so many frames of a snapshot, else the next step."""
        assert self._server is not None
        while self._listing is not None and frames > 0:
            frames -= 1
            frame = next(self._listing, None)
            if frame is None:
                self._listing = None
            else:
                self._receive(frame)
        if self._listing is None:
            for frame in self._server.fanout.next_frames(self.cursor):
                self._receive(frame)

    def flush(self) -> list[Intent]:
        intents = self.graph.flush()
        self.dataplane.apply(intents)
        self.graph.check()
        return intents

    def _receive(self, data: bytes) -> None:
        assert self._server is not None
        self._server.bytes_sent += len(data)
        for frame in self._reader.receive(data):
            match messages.decode(frame):
                case Snapshot(_, is_reset):
                    self.graph.on_status(SyncStatus.RESYNC)
                    self.state.begin_snapshot(is_reset=is_reset)
                case Page(items):
                    self.state.on_changes(items)
                case Deltas(changes):
                    self.state.on_changes(changes)
                case Groups(changes):
                    self.state.on_groups(changes)
                case StepEnd(positions):
                    self._take(positions)
                case SnapshotEnd(positions):
                    self._take(positions)
                    self.graph.on_status(SyncStatus.IN_SYNC)
                case other:
                    raise AssertionError(f"out of place: {other}")

    def _take(self, positions: Mapping[str, int]) -> None:
        step = self.state.end(positions)
        self.steps.append(step)
        if step.groups:
            self.graph.on_groups(step.groups)
        self.graph.on_updates(step.updates)


def _frame(kind: Kind, message: Snapshot | Welcome) -> bytes:
    return Packer().frame(kind, messages.encode(message))
