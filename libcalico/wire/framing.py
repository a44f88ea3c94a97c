"""Frames: a length, a kind, a payload that may be compressed.

Layer: pure. Used by `wire.messages`.

     0               4      5
    +---------------+------+--------------------------+
    | length, u32 BE| kind | payload (length - 1)     |    kind bit 0x80: payload is one zstd frame
    +---------------+------+--------------------------+

  F1  `receive` takes bytes cut anywhere and gives whole frames in order;
  F2  a frame is refused by its length alone, before any of it is kept (MAX_FRAME_BYTES), and a
      compressed one by the size it declares, before it is unpacked (MAX_PAYLOAD_BYTES): no peer
      makes us hold more than that;
  F3  nothing but WireError comes out, whatever the bytes; after one the reader is of no more use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from libcalico.errors import WireError

_LENGTH_BYTES, HEADER_BYTES = 4, 5
#: What a peer may send in one frame, header and compressed payload.
MAX_FRAME_BYTES = 4 * 1024 * 1024
#: What a payload may be when it is unpacked. The sender cuts pages far below.
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
COMPRESSED = 0x80
# Below this a zstd frame is rarely smaller than what it holds.
_WORTH_BYTES = 128
_LEVEL = 3


class Frame(NamedTuple):
    """One message as bytes; `payload` is unpacked."""

    kind: int
    payload: bytes


class Packer:
    """Makes frames. One per thread: a zstd context is not shared."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)

    def frame(self, kind: int, payload: bytes, *, compress: bool = False) -> bytes:
        if compress and len(payload) >= _WORTH_BYTES:
            packed = self._zstd.compress(payload)
            if len(packed) < len(payload):
                return _joined(kind | COMPRESSED, packed)
        return _joined(kind, payload)


class FrameReader:
    """Bytes to frames. `may_be_compressed` is set once both sides have agreed to it; a side that
    only ever gets small messages says so with `max_frame_bytes`."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.may_be_compressed = False
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._zstd: zstandard.ZstdDecompressor | None = None

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def receive(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes. Errors: WireError.

        To be exhausted before the next call; bytes of a frame not taken yet stay for it.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH_BYTES:
                length = int.from_bytes(self._buffer[start : start + _LENGTH_BYTES], "big")
                if not 1 <= length <= self._max_frame_bytes:
                    raise WireError(f"a frame of {length} bytes")
                end = start + _LENGTH_BYTES + length
                if end > len(self._buffer):
                    break
                kind = self._buffer[start + _LENGTH_BYTES]
                payload = bytes(self._buffer[start + HEADER_BYTES : end])
                start = end
                yield self._frame(kind, payload)
        finally:
            # Once per call: cutting the front of the buffer moves all behind it.
            del self._buffer[:start]

    def _frame(self, kind: int, payload: bytes) -> Frame:
        if not kind & COMPRESSED:
            return Frame(kind, payload)
        if not self.may_be_compressed:
            raise WireError("a compressed frame, and none was agreed on")
        return Frame(kind & ~COMPRESSED, self._unpacked(payload))

    def _unpacked(self, payload: bytes) -> bytes:
        try:
            size = zstandard.frame_content_size(payload)
            if not 0 <= size <= MAX_PAYLOAD_BYTES:
                raise WireError(f"a compressed frame declares {size} bytes")
            if self._zstd is None:
                self._zstd = zstandard.ZstdDecompressor()
            unpacked: bytes = self._zstd.decompress(payload, allow_extra_data=False)
            return unpacked
        except zstandard.ZstdError as err:
            raise WireError(f"a compressed frame does not unpack: {err}") from err


def _joined(kind: int, payload: bytes) -> bytes:
    return (len(payload) + 1).to_bytes(4, "big") + bytes((kind,)) + payload
