"""`python -m confd.birdc SOCKET FILE`: make a running BIRD 2 take FILE, and see that it has.

Layer: edge (BIRD's control socket). The reload command of `bird_set/conf.d/10-bird.toml`. Speaks
the socket's own protocol, as birdc does: its answers have numbers, birdc's have not.

Exit 0: in force, or nobody listens (BIRD reads the file when it starts). Exit 1, one line on
stderr: refused, or not taken within TAKEN_WITHIN_S.
Source: BIRD doc/reply_codes.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence

from libcalico.errors import InvalidInput

TAKEN_WITHIN_S = 30.0
POLL_S = 0.02
RECONFIGURED, IN_PROGRESS, UP_AND_RUNNING = 3, 4, 13


class Refused(InvalidInput):
    """BIRD did not take it. `said` is its own answer."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said

    def __str__(self) -> str:
        return f"BIRD did not take the configuration: {self.said}"


class Control:
    """One connection. Each answer is lines `NNNN-text`, the last one `NNNN text`."""

    def __init__(self, path: str) -> None:
        """Errors: OSError when nobody listens."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TAKEN_WITHIN_S)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("r", encoding="utf-8", errors="replace")
        self._answer()  # the greeting

    def ask(self, command: str) -> tuple[int, str]:
        """The last line's number, and all text on one line. Errors: OSError."""
        self._socket.sendall(command.encode() + b"\n")
        return self._answer()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _answer(self) -> tuple[int, str]:
        said = []
        for line in self._lines:
            is_numbered = line[:4].isdigit()
            said.append(line[5:].strip() if is_numbered else line.strip())
            if is_numbered and line[4:5] == " ":
                return int(line[:4]), "; ".join(said)
        raise ConnectionResetError("BIRD closed its control socket")


def configure(socket_path: str, file: str) -> bool:
    """Whether BIRD has taken it; False when nobody listens. Errors: Refused, OSError."""
    try:
        control = Control(socket_path)
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    try:
        code, said = control.ask(f'configure "{file}"')
        if code not in (RECONFIGURED, IN_PROGRESS):
            raise Refused(said)
        deadline = time.monotonic() + TAKEN_WITHIN_S
        while True:
            code, said = control.ask("show status")
            if code == UP_AND_RUNNING and "in progress" not in said:
                return True
            if time.monotonic() > deadline:
                raise Refused(said)
            time.sleep(POLL_S)
    finally:
        control.close()


def main(arguments: Sequence[str]) -> int:
    socket_path, file = arguments
    try:
        configure(socket_path, file)
    except (Refused, OSError) as err:
        print(err, file=sys.stderr)  # noqa: T201 - confd logs it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
