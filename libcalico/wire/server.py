"""The server's side of one connection: the greeting, and the little that a client says after it.

Layer: pure. Used by `typha.server`, which sends the rest as frames made once for all clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from libcalico.errors import WireError
from libcalico.wire import messages
from libcalico.wire.framing import FrameReader
from libcalico.wire.messages import (
    HIGHEST_VERSION,
    LOWEST_VERSION,
    MAGIC,
    MAX_CLIENT_FRAME_BYTES,
    NO_COMPRESSION,
    ZSTD,
    Hello,
    Message,
    Pong,
    Reason,
)

COMPRESSIONS = (ZSTD, NO_COMPRESSION)


@dataclass(frozen=True, slots=True)
class Terms:
    """What both sides can do."""

    version: int
    compression: str

    @property
    def is_compressed(self) -> bool:
        return self.compression != NO_COMPRESSION


class Refused(WireError):
    """The greeting cannot be answered; `why` goes into the Goodbye."""

    def __init__(self, why: Reason, reason: str) -> None:
        super().__init__(reason)
        self.why = why


def agree(hello: Hello) -> Terms:
    """The newest version and the first of the client's compressions that both know; a client whose
    compressions are all unknown is served without. Errors: Refused."""
    if hello.magic != MAGIC:
        raise Refused(Reason.PROTOCOL, f"this is no {MAGIC} client")
    version = min(HIGHEST_VERSION, hello.highest_version)
    if version < max(LOWEST_VERSION, hello.lowest_version):
        raise Refused(
            Reason.VERSION,
            f"versions {hello.lowest_version} to {hello.highest_version} are offered,"
            f" {LOWEST_VERSION} to {HIGHEST_VERSION} are served here",
        )
    known = [name for name in hello.compressions if name in COMPRESSIONS]
    return Terms(version, known[0] if known else NO_COMPRESSION)


class ServerProtocol:
    """Reads one client: Hello first, then Pongs."""

    __slots__ = ("_reader", "hello")

    def __init__(self) -> None:
        self.hello: Hello | None = None
        self._reader = FrameReader(max_frame_bytes=MAX_CLIENT_FRAME_BYTES)

    def receive(self, data: bytes) -> Iterator[Hello | Pong]:
        """Errors: WireError."""
        for frame in self._reader.receive(data):
            message = messages.decode(frame)
            if message is not None:
                yield self._taken(message)

    def _taken(self, message: Message) -> Hello | Pong:
        if self.hello is None and isinstance(message, Hello):
            self.hello = message
            return message
        if self.hello is not None and isinstance(message, Pong):
            return message
        raise WireError(f"{messages.kind_of(message).name} from a client")
