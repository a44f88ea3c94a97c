"""A flow of pings that runs across a fault: did any packet get lost?

flow = Flow(spawn, directory)     # spawn(command, stdout) starts it where it should run
... the fault, and what mends it ...
assert flow.lost() == 0
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tests.support.netns import eventually

# What a gap must be looked for in, before the fault and after it; 10 ms between two packets.
_AROUND = 50
_PATIENCE_S = 30.0
Spawn = Callable[[list[str], BinaryIO], "subprocess.Popen[bytes]"]


class Flow:
    """Runs from the start until `lost`, however long the fault takes."""

    def __init__(self, spawn: Spawn, directory: Path, address: str) -> None:
        self._path = directory / "flow"
        with self._path.open("wb") as out:
            self._process = spawn(["ping", "-n", "-i", "0.01", "-W", "2", address], out)
        self._wait_answers(_AROUND)

    def answered(self) -> int:
        return self._path.read_bytes().count(b" bytes from ")

    def _wait_answers(self, more: int) -> None:
        wanted = self.answered() + more
        went_on = eventually(lambda: self.answered() >= wanted, timeout_s=_PATIENCE_S)
        assert went_on, f"the flow stands still: {self._path.read_text()[-300:]}"

    def lost(self) -> int:
        """End it, when it has gone on for a while, and count what did not come back."""
        self._wait_answers(_AROUND)
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=20)
        text = self._path.read_text()
        match = re.search(r"(\d+) packets transmitted, (\d+) received", text)
        assert match, text[-300:]
        # The last request may be on its way when ping is told to stop.
        return max(int(match[1]) - int(match[2]) - 1, 0)
