"""The file `mtu`: what the uplinks of this node allow, for CNI plugins and people.

Layer: felix.daemon. Looked at after every cycle of the dataplane, when all interfaces are known.

  F1  the file holds the MTU in decimal and is replaced as a whole; it is not there while no MTU is
      known;
  F2  with RequireMTUFile a first cycle that leaves no file ends the process.

Source: Calico felix/dataplane/linux/int_dataplane.go (writeMTUFile).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from felix.dataplane.loop import CycleReport
from libcalico.errors import ConfigError
from libcalico.runtime import log
from libcalico.runtime.files import replace_file

LOG = log.get(__name__)


class MtuFile:
    def __init__(
        self,
        path: Path,
        mtu_bytes: Callable[[], int],
        *,
        is_required: bool,
        on_missing: Callable[[ConfigError], None],
    ) -> None:
        self._path, self._mtu_bytes = path, mtu_bytes
        self._is_required, self._on_missing = is_required, on_missing
        self._written: int | None = None
        self._problem = ""

    def on_cycle(self, report: CycleReport) -> None:
        mtu_bytes = self._mtu_bytes()
        if not report.is_filtering or mtu_bytes == self._written:
            return
        problem = self._write(mtu_bytes) if mtu_bytes else self._remove()
        if problem and self._is_required and self._written is None:
            self._on_missing(ConfigError("RequireMTUFile", str(self._path), problem))  # F2
        if not problem:
            LOG.info("MTU of the uplinks", mtu=mtu_bytes, path=str(self._path))
        elif problem != self._problem:
            LOG.warning("no MTU for workloads", path=str(self._path), error=problem)
        self._problem = problem
        if not problem or not mtu_bytes:
            self._written = mtu_bytes  # else the next cycle tries again

    def _write(self, mtu_bytes: int) -> str:
        """F1. Returns what went wrong."""
        try:
            replace_file(self._path, f"{mtu_bytes}\n".encode(), 0o644, is_durable=False)
        except OSError as err:
            return str(err)
        return ""

    def _remove(self) -> str:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as err:
            LOG.warning("old MTU not removed", path=str(self._path), error=str(err))
        return "no interface matches MTUIfacePattern"
