"""The frame of every daemon: one event loop, one TaskGroup, signals, exit codes.

Layer: runtime edge. A daemon's main is

    def main() -> int:
        return supervise.run("calico-felix", start)

    async def start(process: Process) -> None:
        process.spawn("syncer", syncer.run)
        process.spawn("metrics", server.run, restart=Restart.ON_FAILURE)
        process.dumps.register("syncer", syncer.dump)
        process.on_reload(reload_certificates)

  U1  SIGTERM and SIGINT stop all tasks and end with 0; a second one ends at once. SIGHUP calls the
      reload functions, SIGUSR1 writes a state dump into the log directory;
  U2  a task that raises ends the process, unless it was spawned with Restart.ON_FAILURE: then it is
      logged and started again with growing waits. A task that returns is done;
  U3  exit codes: 0 stopped, 129 RestartRequired, 1 anything else. A SuiteError gives one line on
      stderr, anything unexpected a traceback in the log;
  U4  tasks that do not end `GRACE_S` after they were told to are named in the log, and the process
      ends without them;
  U5  a Fatal error ends the process whatever the restart policy.

This is the one place that catches Exception (house rule 10.11).
"""

from __future__ import annotations

import asyncio
import enum
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import FrameType
from typing import NoReturn

from libcalico.errors import Fatal, RestartRequired, SuiteError
from libcalico.runtime import log, paths
from libcalico.runtime.backoff import Backoff
from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.runtime.debug import Dumps
from libcalico.runtime.notify import Notifier

LOG = log.get(__name__)
GRACE_S = 10.0
# A signal to a whole group of processes comes twice: from whoever sent it, and from our supervisor,
# who passes it on. That is one request, not somebody who loses patience.
_SAME_REQUEST_S = 1.0
_RESTART_FIRST_S = 0.5
_RESTART_LIMIT_S = 30.0
# A task that ran this long before it failed starts over with a short wait.
_HEALTHY_S = 60.0

Start = Callable[["Process"], Awaitable[None]]
Work = Callable[[], Awaitable[object]]


class Restart(enum.Enum):
    """What happens when a task raises."""

    NEVER = "never"  # the process ends with it
    ON_FAILURE = "on-failure"


class Process:
    """A running daemon: its tasks, dumps and reload functions."""

    def __init__(
        self,
        name: str,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM,
        grace_s: float = GRACE_S,
    ) -> None:
        self.name = name
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self.clock = clock
        self.dumps = Dumps(name)
        self.notifier = Notifier(self.environ)
        self._grace_s = grace_s
        self._reloads: list[Callable[[], None]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._stop_asked_at = 0.0
        self._failure: BaseException | None = None
        self._restarts: dict[str, int] = {}
        self.dumps.register("tasks", self._dump_tasks)

    def spawn(self, name: str, work: Work, *, restart: Restart = Restart.NEVER) -> None:
        """Run `work` as a task of this process. Names are unique among running tasks."""
        if self._group is None:
            raise RuntimeError("spawn belongs inside the daemon's start function or its tasks")
        running = self._tasks.get(name)
        if running is not None and not running.done():
            raise ValueError(f"a task named {name!r} is running already")
        self._tasks[name] = self._group.create_task(self._keep(name, work, restart), name=name)

    def cancel(self, name: str) -> None:
        """Stop one task, if it runs."""
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()

    def on_reload(self, function: Callable[[], None]) -> None:
        """Called on SIGHUP, in order of registration; an error in one is logged."""
        self._reloads.append(function)

    def stop(self, failure: BaseException | None = None) -> None:
        """End the process; the first failure decides the exit code."""
        if self._failure is None:
            self._failure = failure
        self._stopping.set()

    async def run(self, start: Start) -> int:
        """Until somebody stops it; returns the exit code."""
        self._install_signals()
        try:
            async with asyncio.TaskGroup() as self._group:
                self.spawn("start", lambda: start(self))
                watchdog_s = self.notifier.watchdog_interval_s
                if watchdog_s is not None:
                    self.spawn("watchdog", lambda: self._feed_watchdog(watchdog_s))
                await self._stopping.wait()
                await self._end_tasks()
        finally:
            self._remove_signals()
        return self._exit_code()

    # ---- signals -------------------------------------------------------------------------------

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_stop_signal, "SIGTERM")
        loop.add_signal_handler(signal.SIGINT, self._on_stop_signal, "SIGINT")
        loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)
        loop.add_signal_handler(signal.SIGUSR1, self.write_dump)

    def _remove_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            loop.remove_signal_handler(number)

    def _on_stop_signal(self, name: str) -> None:
        now = self.clock.monotonic()
        if not self._stopping.is_set():
            self._stop_asked_at = now
            LOG.info("stopping", reason=name)
            self.stop()
        elif now - self._stop_asked_at >= _SAME_REQUEST_S:
            LOG.warning("stopped again, ending at once", reason=name)
            _leave(1)

    def _on_reload_signal(self) -> None:
        LOG.info("reloading", reason="SIGHUP")
        for function in self._reloads:
            try:
                function()
            except Exception:
                LOG.error("reload failed", exc_info=True)

    def write_dump(self) -> None:
        """A state dump into the log directory."""
        try:
            path = self.dumps.write(paths.log_dir(self.environ))
        except SuiteError as err:
            LOG.warning("state dump not written", error=str(err))
        else:
            LOG.info("state dump written", path=str(path))

    # ---- tasks ---------------------------------------------------------------------------------

    async def _keep(self, name: str, work: Work, restart: Restart) -> None:
        """Run one task, again if that is its policy; its last failure stops the process."""
        backoff = Backoff(_RESTART_FIRST_S, _RESTART_LIMIT_S)
        while True:
            started_at = self.clock.monotonic()
            try:
                await work()
            except asyncio.CancelledError as err:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                failure: BaseException = err  # somebody else's cancellation, escaped: a fault
            except BaseExceptionGroup as group:
                failure = _first_leaf(group)
            except Exception as err:  # noqa: BLE001
                failure = err
            else:
                return
            if restart is Restart.NEVER or isinstance(failure, Fatal):
                LOG.debug("task ended the process", key=name)
                self.stop(failure)
                return
            if self.clock.monotonic() - started_at > _HEALTHY_S:
                backoff.reset()
            wait_s = backoff.next_s()
            self._restarts[name] = self._restarts.get(name, 0) + 1
            self._log_failure(name, failure, wait_s)
            await self.clock.sleep(wait_s)

    def _log_failure(self, name: str, failure: BaseException, wait_s: float) -> None:
        expected = isinstance(failure, SuiteError)
        LOG.error(
            "task failed, starting it again",
            exc_info=None if expected else failure,
            key=name,
            error=str(failure) or repr(failure),
            wait_s=round(wait_s, 1),
        )

    async def _end_tasks(self) -> None:
        self.notifier.stopping()
        pending = {task for task in self._tasks.values() if not task.done()}
        for task in pending:
            task.cancel()
        if pending:
            _, stuck = await asyncio.wait(pending, timeout=self._grace_s)
            if stuck:
                names = ", ".join(sorted(task.get_name() for task in stuck))
                LOG.error("tasks did not end in time, ending without them", key=names)
                self._report_failure()
                _leave(self._exit_code() or 1)

    async def _feed_watchdog(self, interval_s: float) -> None:
        while True:
            self.notifier.alive()
            await self.clock.sleep(interval_s)

    def _exit_code(self) -> int:
        if isinstance(self._failure, RestartRequired):
            return RestartRequired.exit_code
        return 0 if self._failure is None else 1

    def _report_failure(self) -> None:
        """U3: one line for what we know, a traceback for what we do not."""
        failure = self._failure
        if failure is None:
            return
        if isinstance(failure, SuiteError):
            _say(f"{self.name}: {failure}")
        else:
            LOG.error("unexpected failure", exc_info=failure, error=repr(failure))

    def _dump_tasks(self) -> dict[str, object]:
        return {
            name: {
                "state": "done" if task.done() else "running",
                "restarts": self._restarts.get(name, 0),
            }
            for name, task in self._tasks.items()
        }


def run(name: str, start: Start, *, environ: Mapping[str, str] | None = None) -> int:
    """Run a daemon in its own event loop; returns the exit code. Logging must be set up before."""

    async def whole_life() -> int:
        process = Process(name, environ=environ)
        code = await process.run(start)
        process._report_failure()
        return code

    # Until the loop's handlers stand, and after they are gone, SIGTERM must not be a traceback.
    previous = signal.signal(signal.SIGTERM, _early_stop)
    try:
        return asyncio.run(whole_life())
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, previous)


def _early_stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The most telling failure of a nested TaskGroup: a SuiteError if there is one."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        item = pending.pop(0)
        if isinstance(item, BaseExceptionGroup):
            pending.extend(item.exceptions)
        else:
            leaves.append(item)
    fatal = [leaf for leaf in leaves if isinstance(leaf, Fatal)]
    ours = [leaf for leaf in leaves if isinstance(leaf, SuiteError)]
    return (fatal or ours or leaves)[0]


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _leave(code: int) -> NoReturn:
    """End now: tasks that ignore cancellation would keep the loop for ever."""
    sys.stderr.flush()
    os._exit(code)
