"""One file with everything a process knows: state dumps on request.

Layer: runtime edge. Every stateful object has a `dump()` and is registered under a name; SIGUSR1
(see `supervise`) writes them all into one JSON file in the log directory, for people and tests to
read.

  B1  one object that cannot be dumped costs its own entry, not the file;
  B2  files are written for root only (0600) and renamed into place; the oldest of more than
      `KEEP` are removed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from libcalico.errors import ConfigError
from libcalico.runtime import log
from libcalico.runtime.files import replace_file

LOG = log.get(__name__)
KEEP = 8

Dump = Callable[[], object]


class Dumps:
    """The dump functions of one process."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._dumps: dict[str, Dump] = {}
        self._written = 0

    def register(self, name: str, dump: Dump) -> None:
        """A second registration under a name replaces the first."""
        self._dumps[name] = dump

    def unregister(self, name: str) -> None:
        self._dumps.pop(name, None)

    def collect(self) -> dict[str, object]:
        out: dict[str, object] = {
            "process": self._process,
            "pid": os.getpid(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        for name, dump in self._dumps.items():
            try:
                # Through JSON and back here, so that an object that does not serialise is caught
                # as its own fault (B1).
                out[name] = json.loads(json.dumps(dump(), default=str))
            except Exception as err:  # noqa: BLE001
                LOG.warning("state dump incomplete", key=name, error=repr(err))
                out[name] = {"error": repr(err)}
        return out

    def write(self, directory: Path) -> Path:
        """Errors: ConfigError when the directory cannot be written to."""
        self._written += 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{self._process}-{os.getpid()}-{stamp}-{self._written:03}.json"
        path = directory / name
        text = json.dumps(self.collect(), indent=1)
        try:
            replace_file(path, text.encode(), 0o600, is_durable=False)
            self._remove_old(directory)
        except OSError as err:
            raise ConfigError(str(directory), "state dump", err.strerror or str(err)) from err
        return path

    def _remove_old(self, directory: Path) -> None:
        found = sorted(directory.glob(f"{self._process}-*-*.json"), key=lambda p: p.stat().st_mtime)
        for path in found[:-KEEP]:
            path.unlink(missing_ok=True)
