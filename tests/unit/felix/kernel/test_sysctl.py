"""felix.kernel.sysctl on a directory of plain files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from felix.dataplane.ports import Sysctl
from felix.kernel.sysctl import ProcSysctl
from felix.kernel.worker import KernelWorker


@pytest.fixture
async def port(tmp_path: Path):
    worker = KernelWorker()
    yield ProcSysctl(worker, tmp_path)
    worker.close()


def put(root: Path, path: str, value: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(value)
    return file


async def test_what_differs_is_written_and_what_is_right_is_not(port, tmp_path):
    right, wrong = put(tmp_path, "net/right", "1\n"), put(tmp_path, "net/wrong", "0")
    os.utime(right, (1, 1))
    wanted = [Sysctl("net/right", "1"), Sysctl("net/wrong", "1")]
    assert await port.write_sysctls(wanted) == {}
    assert wrong.read_text() == "1"
    assert right.stat().st_mtime == 1, "not written"


async def test_a_missing_file_is_refused_and_the_others_are_written(port, tmp_path):
    other = put(tmp_path, "net/other", "0")
    wanted = [Sysctl("net/missing", "1"), Sysctl("net/other", "1")]
    refused = await port.write_sysctls(wanted)
    assert (list(refused), refused[0].errno, refused[0].key) == ([0], errno.ENOENT, "net/missing")
    assert other.read_text() == "1"
