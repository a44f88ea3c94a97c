"""What typha and its clients say to each other, and the bytes of it (msgpack arrays in frames).

Layer: pure, above `wire.framing`. Used by `wire.client`, `wire.server` and typha's fan-out.

  M1  every message is an array of fixed order. A receiver takes the default for what an older peer
      leaves out at the end, and skips what a newer one adds there;
  M2  a frame of an unknown kind is skipped: a newer peer may have something to say that we need not
      understand (what must be understood comes with a new protocol version);
  M3  decoding raises WireError and nothing else.

Values travel as they are stored: bytes of the datastore, not decoded by typha.
"""

from __future__ import annotations

import enum
from typing import TypeVar

import msgspec

from libcalico.errors import WireError
from libcalico.wire.framing import Frame

MAGIC = "brindle-typha"
#: Protocol versions this code speaks.
LOWEST_VERSION, HIGHEST_VERSION = 1, 1
ZSTD, NO_COMPRESSION = "zstd", "none"
#: A client's messages are small; a server refuses more by the length of the frame.
MAX_CLIENT_FRAME_BYTES = 64 * 1024

#: path, value as stored (None: does not exist), mod revision (of a delete: the delete's).
Change = tuple[str, bytes | None, int]
Item = tuple[str, bytes, int]
#: id, members added, members removed, whole (what was added is all there is), gone.
GroupChange = tuple[str, list[str], list[str], bool, bool]


class Kind(enum.IntEnum):
    """The kind byte of a frame. Below 16 the client says it, from 16 on the server."""

    HELLO = 1
    PONG = 2
    WELCOME = 16
    STATUS = 17
    SNAPSHOT = 18
    PAGE = 19
    SNAPSHOT_END = 20
    DELTAS = 21
    PING = 22
    GOODBYE = 23
    GROUPS = 24
    STEP_END = 25


class Reason(enum.Enum):
    """Why a server ends a connection; `text` of the Goodbye says it for people."""

    PROTOCOL = "protocol"  # what was received makes no sense
    VERSION = "version"  # no protocol version in common
    STREAM = "stream"  # a stream that this server does not have
    BEHIND = "behind"  # the server knows less than the client has seen already
    FULL = "full"  # no room
    FELL_BEHIND = "fell-behind"  # the client reads too slowly
    SILENT = "silent"  # no answer to pings
    MOVE = "move"  # balance: another server has more room
    SHUTDOWN = "shutdown"


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The client's first message. `positions`: revision up to which it has seen each prefix of the
    stream, empty for a client that knows nothing; `moved_s_ago`: seconds since a server asked it to
    move, negative for never."""

    magic: str
    lowest_version: int
    highest_version: int
    stream: str
    node: str
    software: str = ""
    compressions: list[str] = []
    positions: dict[str, int] = {}
    moved_s_ago: float = -1.0


class Pong(msgspec.Struct, array_like=True, frozen=True):
    number: int = 0


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The server's first message. The client may count on a frame every `ping_interval_s`."""

    version: int
    software: str = ""
    server: str = ""
    compression: str = NO_COMPRESSION
    ping_interval_s: float = 10.0


class Status(msgspec.Struct, array_like=True, frozen=True):
    """Of the server's own synchronisation: a `SyncStatus` value."""

    status: str


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """Pages follow, then SnapshotEnd. With `is_reset` revisions the client knows mean nothing any
    more (the datastore was restored from a backup)."""

    count: int = 0
    is_reset: bool = False


class Page(msgspec.Struct, array_like=True, frozen=True):
    items: list[Item]


class SnapshotEnd(msgspec.Struct, array_like=True, frozen=True):
    """Everything that exists at `positions` (prefix: revision) has been said."""

    positions: dict[str, int] = {}


class Deltas(msgspec.Struct, array_like=True, frozen=True):
    """Changes in order; a path occurs once."""

    changes: list[Change]


class Ping(msgspec.Struct, array_like=True, frozen=True):
    number: int = 0


class Goodbye(msgspec.Struct, array_like=True, frozen=True):
    """The last message of a server. `reason` is a `Reason` value, or one of a newer server; with
    `retry_after_s` the client keeps away from this server so long, as far as there is another;
    `instead` (host:port) is the one with most room."""

    reason: str
    text: str = ""
    retry_after_s: float = 0.0
    instead: str = ""


class Groups(msgspec.Struct, array_like=True, frozen=True):
    """Address groups that came, went, or whose members did; in order."""

    changes: list[GroupChange]


class StepEnd(msgspec.Struct, array_like=True, frozen=True):
    """What came since the step before belongs together. `positions`: those (prefix: revision) that
    moved."""

    positions: dict[str, int] = {}


Message = (
    Hello | Pong | Welcome | Status | Snapshot | Page | SnapshotEnd | Deltas | Ping | Goodbye
    | Groups | StepEnd
)  # fmt: skip
_CLASSES: dict[Kind, type[Message]] = {
    Kind.HELLO: Hello,
    Kind.PONG: Pong,
    Kind.WELCOME: Welcome,
    Kind.STATUS: Status,
    Kind.SNAPSHOT: Snapshot,
    Kind.PAGE: Page,
    Kind.SNAPSHOT_END: SnapshotEnd,
    Kind.DELTAS: Deltas,
    Kind.PING: Ping,
    Kind.GOODBYE: Goodbye,
    Kind.GROUPS: Groups,
    Kind.STEP_END: StepEnd,
}
_KIND_BY_CLASS = {found: kind for kind, found in _CLASSES.items()}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {kind: msgspec.msgpack.Decoder(found) for kind, found in _CLASSES.items()}
M = TypeVar("M", bound=Message)


def kind_of(message: Message) -> Kind:
    return _KIND_BY_CLASS[type(message)]


def encode(message: Message) -> bytes:
    """The payload of its frame."""
    return _ENCODER.encode(message)


def decode(frame: Frame) -> Message | None:
    """None for a kind that we do not know (M2). Errors: WireError."""
    try:
        kind = Kind(frame.kind)
    except ValueError:
        return None
    try:
        return _DECODERS[kind].decode(frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise WireError(f"{kind.name} does not parse: {err}") from err
