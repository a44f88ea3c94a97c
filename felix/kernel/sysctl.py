"""Kernel settings as files below /proc/sys.

Layer: felix.kernel (edge). Implements SysctlPort. A value that is right already is not written:
some writes cost more than they look (ip_forward resets every interface), and a container may see
/proc/sys read-only with everything already as it should be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from felix.dataplane.ports import Sysctl
from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed

PROC_SYS = Path("/proc/sys")


class ProcSysctl:
    """SysctlPort over a directory (a test may give another than /proc/sys)."""

    def __init__(self, worker: KernelWorker, root: Path = PROC_SYS) -> None:
        self._worker, self._root = worker, root

    async def write_sysctls(self, wanted: Sequence[Sysctl]) -> Mapping[int, ProgrammingFailed]:
        return await self._worker.run(lambda: self._write_all(wanted), items=len(wanted))

    def _write_all(self, wanted: Sequence[Sysctl]) -> dict[int, ProgrammingFailed]:
        refused = {}
        for index, sysctl in enumerate(wanted):
            try:
                self._write(sysctl)
            except OSError as err:
                number = err.errno or 0
                refused[index] = ProgrammingFailed(
                    "set", sysctl.path, number, f"{sysctl.value}: {os.strerror(number)}"
                )
        return refused

    def _write(self, sysctl: Sysctl) -> None:
        # os.open and not Path.write_text: no truncation flag, one write(2), a third of the time.
        path = self._root / sysctl.path
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            present = os.read(descriptor, 256)
        finally:
            os.close(descriptor)
        if present.strip() == sysctl.value.encode():
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, sysctl.value.encode())
        finally:
            os.close(descriptor)
