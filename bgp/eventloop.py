"""Our own file descriptors, nested into ExaBGP's reactor loop as one epoll set.

Layer: edge. Made by bgp.daemon; used by the speaker, the kernel side and the control socket.

ExaBGP's reactor is a loop of its own (and runs `asyncio.run` inside), so ours cannot be asyncio's
in the same thread. It polls the epoll set's descriptor, which is readable when anything in the set
is, and calls `run_ready` once per turn. One thread, no locks: a callback sees a consistent RIB.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from typing import Protocol

Callback = Callable[[], None]


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class EventLoop:
    """Callbacks for readable and writable descriptors; `wake` ends the wait of this turn."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, self._drain_wake)

    def fileno(self) -> int:
        return self._selector.fileno()

    def close(self) -> None:
        self._selector.close()
        os.close(self._wake_fd)

    def wake(self) -> None:
        """Come back at once: there is more to do."""
        os.eventfd_write(self._wake_fd, 1)

    def on_readable(self, what: HasFileno | int, callback: Callback) -> None:
        self._watch(what, selectors.EVENT_READ, callback)

    def on_writable(self, what: HasFileno | int, callback: Callback) -> None:
        self._watch(what, selectors.EVENT_WRITE, callback)

    def forget(self, what: HasFileno | int) -> None:
        """Before the descriptor is closed. Unknown ones are fine."""
        if _fd(what) in self._selector.get_map():
            self._selector.unregister(what)

    def run_ready(self) -> None:
        """Call what is ready, without waiting."""
        for key, _ in self._selector.select(0):
            key.data()

    def _watch(self, what: HasFileno | int, events: int, callback: Callback) -> None:
        # A descriptor that was closed unannounced and reused: the kernel has dropped the old entry.
        self.forget(what)
        self._selector.register(what, events, callback)

    def _drain_wake(self) -> None:
        os.eventfd_read(self._wake_fd)


def _fd(what: HasFileno | int) -> int:
    return what if isinstance(what, int) else what.fileno()
