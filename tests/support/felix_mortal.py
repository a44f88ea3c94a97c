"""A felix that is killed at a chosen crossing of its way into the kernel.

    python -m tests.support.felix_mortal    a number on stdin: a new felix; its pid is answered

Started once; each felix is forked from it, because importing costs more than running: a felix that
is killed by the clock is nearly always killed while it imports. Nothing in the product knows of it.
Each write (a transaction of nf_tables, a batch of routes, settings, a script for iptables or ipset)
is crossed when it begins and when it has been done, a tool also when it has just been started. At
the crossing whose number was given felix kills itself; never when it was 0.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from felix import daemon
from felix.kernel.iptables import CommandRunner
from felix.kernel.nfnetlink import NfnetlinkSocket
from felix.kernel.sysctl import ProcSysctl
from libcalico.netlink import NetlinkSocket
from tests.support.felix_node import ROOT, FelixNode
from tests.support.netns import eventually

DEATH_S = 20.0


class MortalFelix:
    """One felix after the other on a node. `begin` needs the last one dead."""

    def __init__(self, node: FelixNode, **environ: str) -> None:
        self._mother = node.spawn(
            *(sys.executable, "-m", "tests.support.felix_mortal"),
            environ=environ,
            cwd=str(ROOT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._pid = 0

    def begin(self, at: int = 0) -> None:
        assert not self.is_alive()
        stdin, stdout = self._mother.stdin, self._mother.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{at}\n".encode())
        stdin.flush()
        self._pid = int(stdout.readline())

    def is_alive(self) -> bool:
        return self._pid > 0 and Path(f"/proc/{self._pid}").exists()

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self.wait_dead()

    def wait_dead(self) -> None:
        assert eventually(lambda: not self.is_alive(), timeout_s=DEATH_S, interval_s=0.002)


class _Crossings:
    def __init__(self, last: int) -> None:
        self._left = last

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*args: Any, **more: Any) -> Any:
            self.count()
            answer = call(*args, **more)
            self.count()
            return answer

        return counted

    def around_restores(self, call: Callable[..., Any]) -> Callable[..., Any]:
        counted = self.around(call)

        @functools.wraps(call)
        def chosen(runner: CommandRunner, argv: Any, stdin: str, timeout_s: float) -> Any:
            return (counted if stdin else call)(runner, argv, stdin, timeout_s)

        return chosen

    def after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*args: Any, **more: Any) -> Any:
            call(*args, **more)
            self.count()

        return counted


def _watch(crossings: _Crossings) -> None:
    seams: tuple[tuple[Any, str], ...] = (
        (NfnetlinkSocket, "transact"),
        (NetlinkSocket, "transact_messages"),
        (ProcSysctl, "_write_all"),
    )
    for owner, name in seams:
        setattr(owner, name, crossings.around(getattr(owner, name)))
    runner, popen = CommandRunner, subprocess.Popen
    runner.__call__ = crossings.around_restores(runner.__call__)  # type: ignore[method-assign]
    popen.__init__ = crossings.after(popen.__init__)  # type: ignore[method-assign]


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead leave no trace
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)
            _watch(_Crossings(int(line)))
            os._exit(daemon.main([]))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
