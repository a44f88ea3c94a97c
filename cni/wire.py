"""The few bytes between the CNI client and the agent: one request, one answer, then close.

Layer: pure (sans-I/O). Used by cni.agent; the client (cni.client_source) writes the same by hand,
because it may import nothing. All integers are 4 bytes, big endian.

    request   b"BRN1" | len(plugin) plugin | len(environ) environ | len(stdin) stdin
    answer    exit code | len(stdout) stdout | len(stderr) stderr
environ is "NAME=VALUE" joined by NUL bytes, CNI_* variables only. A client that closes before the
answer has been killed by its runtime: the request is aborted and rolled back.
"""

from __future__ import annotations

from cni.skel import Answer, Invocation
from libcalico.errors import WireError

MAGIC = b"BRN1"
# A network configuration is kilobytes; a megabyte allows for a very long prevResult.
MAX_PART_BYTES = 1 << 20


class RequestReader:
    """Feed it bytes; `take()` gives the invocation once it is complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive_data(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> Invocation | None:
        """Errors: WireError for a foreign or oversized request, or trailing bytes."""
        buffer = self._buffer
        if not MAGIC.startswith(bytes(buffer[: len(MAGIC)])):
            raise WireError("not a CNI client's request")
        at, parts = len(MAGIC), []
        for _ in range(3):
            if len(buffer) < at + 4:
                return None
            size = int.from_bytes(buffer[at : at + 4], "big")
            if size > MAX_PART_BYTES:
                raise WireError(f"request part of {size} bytes is too large")
            at += 4 + size
            if len(buffer) < at:
                return None
            parts.append(bytes(buffer[at - size : at]))
        if len(buffer) > at:
            raise WireError("bytes after the request")
        plugin, environ, stdin = parts
        return Invocation(plugin.decode(errors="replace"), parse_environ(environ), stdin)


def parse_environ(block: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if entry)
    # surrogateescape: a path in CNI_NETNS may hold any byte and must come out as it went in.
    return {
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, _, value in pairs
    }


def pack_request(invocation: Invocation) -> bytes:
    environ = "\0".join(f"{name}={value}" for name, value in invocation.environ.items())
    parts = (invocation.plugin.encode(), environ.encode("utf-8", "surrogateescape"))
    return MAGIC + b"".join(map(_sized, (*parts, invocation.stdin)))


def pack_answer(answer: Answer) -> bytes:
    return answer.exit_code.to_bytes(4, "big") + _sized(answer.stdout) + _sized(answer.stderr)


def parse_answer(data: bytes) -> Answer:
    """Errors: WireError when it is cut short."""
    at, parts = 4, []
    for _ in range(2):
        size = int.from_bytes(data[at : at + 4], "big")
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if len(data) != at or at < 12:
        raise WireError("the agent's answer is cut short")
    return Answer(int.from_bytes(data[:4], "big"), parts[0], parts[1])


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
