"""Unix sockets of our daemons: make one that only its owner reaches, ask one a question.

Layer: runtime edge. The servers are cni.agent and bgp.control; calicoctl and the lab ask.

  S1  a socket is 0600 from its first moment: it is bound under a umask, not changed afterwards;
  S2  a socket that a killed process left is replaced;
  S3  `ask` ends by its deadline, however slowly the other side drips.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libcalico.errors import InvalidInput, Transient

ANSWER_BYTES = 64 << 20


class NoAnswer(Transient):
    """Nobody listens there, or not within the time."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class BadAnswer(InvalidInput):
    """What listens there does not speak our language."""

    def __init__(self, path: Path, received: bytes) -> None:
        super().__init__(path, received)
        self.path, self.received = path, received

    def __str__(self) -> str:
        return f"{self.path} gave an unexpected answer: {self.received[:200]!r}"


def bind(path: Path) -> socket.socket:
    """A bound stream socket, not listening yet (S1, S2). Errors: OSError.

    The umask is the process's: call it before threads that make files are started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def ask(path: Path, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """One JSON line there, one JSON object back. Errors: NoAnswer, BadAnswer."""
    deadline = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(timeout_s)
            link.connect(str(path))
            link.sendall(json.dumps(request).encode() + b"\n")
            received = _line(link, deadline)
    except TimeoutError as err:
        raise NoAnswer(path, f"no answer within {timeout_s:g} s") from err
    except OSError as err:
        raise NoAnswer(path, err.strerror or str(err)) from err
    if not received:
        raise NoAnswer(path, "closed without an answer")
    try:
        answer = json.loads(received)
    except ValueError as err:
        raise BadAnswer(path, received) from err
    if not isinstance(answer, dict):
        raise BadAnswer(path, received)
    return answer


def _line(link: socket.socket, deadline: float) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n") and len(received) < ANSWER_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        link.settimeout(left_s)
        part = link.recv(65536)
        if not part:
            break
        received += part
    return bytes(received)
