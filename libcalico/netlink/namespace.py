"""Do something inside another network namespace, without leaving our own.

Layer: bottom edge. Used by NetlinkSocket.in_namespace, cni (pod sysctls), tests and the lab.

setns(2) moves one *thread*. A worker thread goes there itself and comes back in `finally`; should
the kernel ever refuse to let it back, the process ends at once, so no other code of the process
can run in the wrong namespace. The main thread never leaves: a short-lived thread goes for it.
A socket made inside stays bound to that namespace; /proc/sys/net shows the namespace of the thread
that opens it.
os.setns exists from Python 3.12 on; ctypes works on 3.11 too.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from libcalico.errors import ProgrammingFailed

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def run_in_namespace(where: str | int, work: Callable[[], T]) -> T:
    """Run `work` in the namespace at a path ("/run/netns/x", "/proc/7/ns/net") or behind an fd.

    Blocks until it is done (~0.1 ms beside the work, less in a worker thread). Errors:
    ProgrammingFailed when the namespace cannot be entered; whatever `work` raises."""
    if isinstance(where, int):
        return _run(where, str(where), work)
    try:
        target = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as err:
        raise ProgrammingFailed("open namespace", where, err.errno or 0, str(err)) from err
    try:
        return _run(target, where, work)
    finally:
        os.close(target)


def _run(target: int, name: str, work: Callable[[], T]) -> T:
    visit = _Visit(target, name, work)
    if threading.current_thread() is not threading.main_thread():
        visit.run()
        return visit.outcome()
    thread = threading.Thread(target=visit.run, name="netns-visit", daemon=True)
    thread.start()
    thread.join()
    return visit.outcome()


class _Visit(Generic[T]):
    """One stay in a namespace; carries the result or the exception back."""

    def __init__(self, target: int, name: str, work: Callable[[], T]) -> None:
        self._target, self._name, self._work = target, name, work
        self._result: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set_namespace(self._target, self._name)
                try:
                    self._result.append(self._work())
                finally:
                    _go_home(home)
            finally:
                os.close(home)
        except BaseException as err:  # noqa: BLE001  carried to the caller's thread, raised there
            self._error = err

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]


def _go_home(home: int) -> None:
    try:
        _set_namespace(home, "home")
    except ProgrammingFailed as err:
        # Never seen; but a thread that programs another namespace than its own must not exist.
        os.write(2, f"cannot return to the own network namespace: {err}\n".encode())
        os._exit(70)


def _set_namespace(fd: int, name: str) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise ProgrammingFailed("enter namespace", name, number, os.strerror(number))
