"""The bytes of one established session: messages out of a stream, messages into a socket.

Layer: edge, but without any socket of its own (`Outbox.send` is given one). Used by seams.

Invariants:
  I1  the stream never carries a message inside another: what must go out at once (KEEPALIVE,
      NOTIFICATION) is spliced in at the next boundary, however little of a long queue is sent;
  I2  an Outbox holds what was taken from the RIB last (bounded by that take) and spliced messages.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from bgp.rib.update import HEADER_BYTES, KEEPALIVE, MARKER, UPDATE

RECEIVE_BYTES = 256 << 10


class Batch(NamedTuple):
    """What the front of a stream holds. `needs_stock`: the next message is not for us (an OPEN, a
    NOTIFICATION, a refresh, or a bad header): ExaBGP judges it."""

    updates: list[bytes]
    keepalives: int
    rest: bytes
    needs_stock: bool


def split_stream(data: bytes, max_message: int) -> Batch:
    """Take the complete UPDATEs and KEEPALIVEs off the front, in order."""
    updates: list[bytes] = []
    keepalives = 0
    at, size = 0, len(data)
    needs_stock = False
    while size - at >= HEADER_BYTES:
        length = (data[at + 16] << 8) | data[at + 17]
        kind = data[at + 18]
        if data[at : at + 16] != MARKER or not HEADER_BYTES <= length <= max_message:
            needs_stock = True
            break
        if size - at < length:
            break
        if kind == UPDATE and length >= HEADER_BYTES + 4:
            updates.append(data[at + HEADER_BYTES : at + length])
        elif kind == KEEPALIVE and length == HEADER_BYTES:
            keepalives += 1
        else:
            needs_stock = True
            break
        at += length
    return Batch(updates, keepalives, data[at:] if at else data, needs_stock)


class Outbox:
    """What is to be written to one socket. `lead` bytes at its start end a message begun before."""

    __slots__ = ("_at", "_data", "_lead")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._lead = 0

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def fill(self, messages: list[bytes]) -> None:
        """The next messages; only when everything before is out."""
        assert self.is_empty, "send first"
        self._data = b"".join(messages)
        self._at = self._lead = 0

    def splice(self, message: bytes) -> None:
        """Send this one as soon as the message under way is finished (I1)."""
        if self.is_empty:
            self.fill([message])
            return
        boundary = self._boundary()
        tail = self._data[self._at : boundary]
        self._data = tail + message + self._data[boundary:]
        self._at, self._lead = 0, len(tail)

    def send(self, sock: socket.socket) -> bool:
        """Write what the socket takes; True when nothing is left. Errors: OSError."""
        view = memoryview(self._data)
        while self._at < len(view):
            try:
                self._at += sock.send(view[self._at :])
            except BlockingIOError:
                return False
        self._data = b""
        self._at = self._lead = 0
        return True

    def _boundary(self) -> int:
        """Where the message that `_at` is in (or at the start of) began or ends."""
        position = self._lead
        while position < self._at:
            position += (self._data[position + 16] << 8) | self._data[position + 17]
        return position
