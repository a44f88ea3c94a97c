"""Run the node's daemons as child processes: start, watch, restart, stop.

Layer: edge (processes). Used by calicoctl.node.main.

  P1  a daemon that ends is started again: at once after exit 129 ("my configuration changed"), else
      after a wait that grows to 30 s and is reset once it has run for a minute;
  P2  a child never outlives us, however we end: the kernel signals it (PR_SET_PDEATHSIG);
  P3  stop is SIGTERM to all at once, SIGKILL to what is left after the grace time; every child is
      reaped;
  P4  SIGHUP and SIGUSR1 are passed on to every child.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libcalico.errors import RestartRequired
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff

LOG = log.get(__name__)
FIRST_WAIT_S, LONGEST_WAIT_S, STABLE_AFTER_S = 0.5, 30.0, 60.0
GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Daemon:
    """`command` is run with `environ` as it is."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(slots=True)
class _Child:
    daemon: Daemon
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_WAIT_S, LONGEST_WAIT_S))
    process: asyncio.subprocess.Process | None = None
    starts: int = 0


class Supervisor:
    """`run()` until `stop()`; one task per daemon inside one TaskGroup."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self._children = [_Child(daemon) for daemon in daemons]
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(self._keep_running(child), name=child.daemon.name)
            group.create_task(self._end_all(), name="stop")

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
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._run_once(child)
            if self._stopping.is_set():
                return
            if loop.time() - began >= STABLE_AFTER_S:
                child.backoff.reset()
            wait_s = 0.0 if code == RestartRequired.exit_code else child.backoff.next_s()
            LOG.warning("daemon ended", name=child.daemon.name, reason=_why(code), wait_s=wait_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()

    async def _run_once(self, child: _Child) -> int | None:
        daemon = child.daemon
        try:
            child.process = await asyncio.create_subprocess_exec(
                *daemon.command,
                env=dict(daemon.environ),
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=_die_with_parent,
            )
        except OSError as err:
            LOG.error("daemon does not start", name=daemon.name, error=err)
            return None
        child.starts += 1
        LOG.info("daemon started", name=daemon.name, pid=child.process.pid)
        return await child.process.wait()

    async def _end_all(self) -> None:
        await self._stopping.wait()
        self.send_signal(signal.SIGTERM)
        running = [c.process for c in self._children if c.process is not None]
        try:
            async with asyncio.timeout(GRACE_S):
                await asyncio.gather(*(process.wait() for process in running))
        except TimeoutError:
            LOG.warning("killing what did not end in time", grace_s=GRACE_S)
            self.send_signal(signal.SIGKILL)
            await asyncio.gather(*(process.wait() for process in running))


def _die_with_parent() -> None:
    """Runs in the child between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _why(code: int | None) -> str:
    if code is None:
        return "could not be started"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
