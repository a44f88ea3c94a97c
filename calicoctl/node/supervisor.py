"""Run the node's daemons as child processes: start, watch, restart, stop.

Layer: edge (processes). Used by calicoctl.node.main.

  P1  a daemon that ends is started again: at once after exit 129 ("my configuration changed"), else
      after a wait that grows to 30 s and is reset once it has run for a minute. One that says 129
      again and again within a moment waits like the others: it would take the machine with it;
      Nothing is started before the file that it `awaits`: a daemon that cannot do without would
      end, and be waited for longer and longer;
  P2  a child never outlives us, however we end: the kernel signals it (PR_SET_PDEATHSIG);
  P3  stop is SIGTERM to all at once, SIGKILL to what is left after the grace time; every child is
      reaped;
  P4  SIGHUP and SIGUSR1 are passed on to every child; one that has not come to handling them yet
      ignores them, it is not ended by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from libcalico.errors import RestartRequired
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff

LOG = log.get(__name__)
FIRST_WAIT_S, LONGEST_WAIT_S, STABLE_AFTER_S = 0.5, 30.0, 60.0
# A restart at the daemon's own wish is immediate when it has run at least this long.
MOMENT_S = 2.0
# More than a daemon gives its own tasks (libcalico.runtime.supervise): it says which did not end.
GRACE_S = 15.0
# How often a file that a daemon needs is looked for.
LOOK_S = 0.1
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Daemon:
    """`command` is run with `environ` as it is, not before the file `awaits` exists."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    awaits: Path | None = None


@dataclass(slots=True)
class _Child:
    daemon: Daemon
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_WAIT_S, LONGEST_WAIT_S))
    process: asyncio.subprocess.Process | None = None
    starts: int = 0


class Supervisor:
    """`run()` until `stop()`; one task per daemon inside one TaskGroup."""

    def __init__(self, daemons: Sequence[Daemon], *, grace_s: float = GRACE_S) -> None:
        self._children = [_Child(daemon) for daemon in daemons]
        self._stopping = asyncio.Event()
        self._grace_s = grace_s

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            keepers = [
                group.create_task(self._keep_running(child), name=child.daemon.name)
                for child in self._children
            ]
            await self._stopping.wait()
            self.send_signal(signal.SIGTERM)
            _, late = await asyncio.wait(keepers, timeout=self._grace_s)
            if late:
                names = ", ".join(sorted(task.get_name() for task in late))
                LOG.warning("killing what did not end in time", name=names)
                self.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        self._stopping.set()

    def send_signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None and child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(number)

    def dump(self) -> dict[str, object]:
        return {
            child.daemon.name: {
                "pid": child.process.pid if child.process else None,
                "starts": child.starts,
            }
            for child in self._children
        }

    async def _keep_running(self, child: _Child) -> None:
        loop = asyncio.get_running_loop()
        await self._wait_for(child.daemon.awaits)
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._run_once(child)
            if self._stopping.is_set():
                return
            if loop.time() - began >= STABLE_AFTER_S:
                child.backoff.reset()
            ran_s = loop.time() - began
            at_once = code == RestartRequired.exit_code and (child.starts == 1 or ran_s > MOMENT_S)
            wait_s = 0.0 if at_once else child.backoff.next_s()
            LOG.warning("daemon ended", name=child.daemon.name, reason=_why(code), wait_s=wait_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()

    async def _wait_for(self, path: Path | None) -> None:
        while not (_is_there(path) or self._stopping.is_set()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()

    async def _run_once(self, child: _Child) -> int | None:
        daemon = child.daemon
        try:
            child.process = await asyncio.create_subprocess_exec(
                *daemon.command,
                env=dict(daemon.environ),
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=_die_with(os.getpid()),
            )
        except OSError as err:
            LOG.error("daemon does not start", name=daemon.name, error=err)
            return None
        child.starts += 1
        LOG.info("daemon started", name=daemon.name, pid=child.process.pid)
        if self._stopping.is_set():
            child.process.terminate()  # it was being started while the others were told to stop
        return await child.process.wait()


def _is_there(path: Path | None) -> bool:
    return path is None or path.exists()


def _die_with(parent: int) -> Callable[[], None]:
    """What runs in the child between fork and exec (P2, P4)."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        for number in (signal.SIGHUP, signal.SIGUSR1):  # P4: stays so over exec
            signal.signal(number, signal.SIG_IGN)
        if os.getppid() != parent:  # it died before we asked to be told
            os._exit(1)

    return prepare


def _why(code: int | None) -> str:
    if code is None:
        return "could not be started"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
