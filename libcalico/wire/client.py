"""The client's side of one connection to typha: what may come when.

Layer: pure (bytes in, messages and bytes out). Used by `libcalico.syncer.typha` and load tools.

    new ─hello─► greeting ─WELCOME─► waiting ─SNAPSHOT─► listing ─SNAPSHOT_END─► following
                                                                              DELTAS…

STATUS and PING come at any time after WELCOME, GOODBYE at any time. In a stream of steps DELTAS and
GROUPS come while listing too, and STEP_END while following. What comes out of turn is a WireError:
the caller closes the connection and says why.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from libcalico.errors import WireError
from libcalico.wire import messages
from libcalico.wire.framing import FrameReader, Packer
from libcalico.wire.messages import (
    Deltas,
    Goodbye,
    Groups,
    Hello,
    Message,
    Page,
    Ping,
    Pong,
    Snapshot,
    SnapshotEnd,
    Status,
    StepEnd,
    Welcome,
)


class Phase(enum.Enum):
    GREETING = "greeting"
    WAITING = "waiting"
    LISTING = "listing"
    FOLLOWING = "following"
    ENDED = "ended"


_ALLOWED: dict[type[Message], frozenset[Phase]] = {
    Welcome: frozenset({Phase.GREETING}),
    Status: frozenset({Phase.WAITING, Phase.LISTING, Phase.FOLLOWING}),
    Ping: frozenset({Phase.WAITING, Phase.LISTING, Phase.FOLLOWING}),
    Snapshot: frozenset({Phase.WAITING}),
    Page: frozenset({Phase.LISTING}),
    SnapshotEnd: frozenset({Phase.LISTING}),
    Deltas: frozenset({Phase.FOLLOWING}),
    Goodbye: frozenset(set(Phase) - {Phase.ENDED}),
}
_ALLOWED_IN_STEPS = _ALLOWED | {
    Deltas: frozenset({Phase.LISTING, Phase.FOLLOWING}),
    Groups: frozenset({Phase.LISTING, Phase.FOLLOWING}),
    StepEnd: frozenset({Phase.FOLLOWING}),
}
_NEXT: dict[type[Message], Phase] = {
    Welcome: Phase.WAITING,
    Snapshot: Phase.LISTING,
    SnapshotEnd: Phase.FOLLOWING,
    Goodbye: Phase.ENDED,
}


class ClientProtocol:
    """One connection, from HELLO to its end. `in_steps`: of a stream that comes in steps."""

    def __init__(self, hello: Hello, *, in_steps: bool = False) -> None:
        self.phase = Phase.GREETING
        self.welcome: Welcome | None = None
        self._hello = hello
        self._allowed = _ALLOWED_IN_STEPS if in_steps else _ALLOWED
        self._reader = FrameReader()
        self._packer = Packer()
        self._out = bytearray()
        self._say(hello)

    def data_to_send(self) -> bytes:
        """What is to be written now; empty when nothing is."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def receive(self, data: bytes) -> Iterator[Message]:
        """The messages that `data` completes, in order. Errors: WireError."""
        for frame in self._reader.receive(data):
            message = messages.decode(frame)
            if message is not None:
                self._take(message)
                yield message

    @property
    def is_at_boundary(self) -> bool:
        """Whether no part of a frame waits for its rest."""
        return self._reader.buffered_bytes == 0

    def _take(self, message: Message) -> None:
        found = type(message)
        if self.phase not in self._allowed.get(found, ()):
            raise WireError(f"{messages.kind_of(message).name} in the phase {self.phase.value}")
        if isinstance(message, Welcome):
            self._welcomed(message)
        elif isinstance(message, Ping):
            self._say(Pong(message.number))
        self.phase = _NEXT.get(found, self.phase)

    def _welcomed(self, welcome: Welcome) -> None:
        hello = self._hello
        if not hello.lowest_version <= welcome.version <= hello.highest_version:
            raise WireError(f"the server chose protocol version {welcome.version}")
        if welcome.compression not in (*hello.compressions, messages.NO_COMPRESSION):
            raise WireError(f"the server chose the compression {welcome.compression!r}")
        self._reader.may_be_compressed = welcome.compression != messages.NO_COMPRESSION
        self.welcome = welcome

    def _say(self, message: Message) -> None:
        self._out += self._packer.frame(messages.kind_of(message), messages.encode(message))
