"""Tell systemd that the service is ready, alive or stopping (sd_notify(3)), without libsystemd.

Layer: runtime edge. Without NOTIFY_SOCKET in the environment every call does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from libcalico.runtime import log

LOG = log.get(__name__)


class Notifier:
    """Messages to the service manager."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._watchdog_usec = environ.get("WATCHDOG_USEC", "")
        self._watchdog_pid = environ.get("WATCHDOG_PID", "")

    @property
    def is_wanted(self) -> bool:
        return bool(self._address)

    @property
    def watchdog_interval_s(self) -> float | None:
        """How often `alive` must be said: half of what the manager allows. None: never."""
        if not self._watchdog_usec.isdigit() or not self.is_wanted:
            return None
        if self._watchdog_pid not in ("", str(os.getpid())):
            return None  # meant for another process of the service
        return int(self._watchdog_usec) / 1e6 / 2

    def ready(self, status: str = "") -> None:
        self._send("READY=1" + (f"\nSTATUS={status}" if status else ""))

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        self._send("RELOADING=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # "@name" is an abstract socket, written with a leading zero byte (unix(7)).
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.sendto(message.encode(), address)
        except OSError as err:
            # The manager may be gone or in another namespace; the service goes on without it.
            LOG.debug("service manager not reached", error=str(err))
