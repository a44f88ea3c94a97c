"""tests.support.netns: what a crashed run left behind goes, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support import netns as support
from tests.support.netns import NamespaceSet, eventually


def _add(name: str) -> None:
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=20)


def _delete(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


def _exists(name: str) -> bool:
    return Path("/run/netns", name).exists()


def test_namespaces_of_dead_processes_are_reaped_with_what_runs_in_them(netns, monkeypatch):
    dead = subprocess.Popen(["true"])
    dead.wait()
    stale, alive = f"brn-t{dead.pid}x1-crashed", f"brn-t{os.getppid()}x1-colleague"
    other = f"brn-lab-{os.getpid()}"
    for name in (stale, alive, other):
        _add(name)
    sleeper = subprocess.Popen(["nsenter", f"--net=/run/netns/{stale}", "sleep", "600"])
    try:
        # nsenter is a moment outside still; the reaper rightly leaves alone what runs outside.
        inside = Path(f"/run/netns/{stale}")
        assert eventually(lambda: Path(f"/proc/{sleeper.pid}/ns/net").samefile(inside))
        monkeypatch.setattr(support, "_reaped", False)
        with NamespaceSet():
            pass
        assert not _exists(stale)
        assert _exists(alive)
        assert _exists(other), "another shape is somebody else's"
        assert sleeper.wait(timeout=10) == -9
    finally:
        sleeper.kill()
        sleeper.wait()
        for name in (stale, alive, other):
            _delete(name)


def test_a_set_removes_its_namespaces_and_processes_also_after_a_failure(netns):
    made = None
    child = None
    try:
        with NamespaceSet() as second:
            made = second.make("x")
            child = made.spawn("sleep", "600")
            raise RuntimeError("the test failed")
    except RuntimeError:
        pass
    assert made is not None
    assert child is not None
    assert not _exists(made.name)
    assert child.returncode == -9
