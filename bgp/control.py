"""The control socket: one JSON request line in, one JSON answer line out.

Layer: edge. Made by bgp.daemon; `calicoctl node status` and people with socat are the clients.
0600 and owned by us: whoever can open it may ask. Nothing can be changed through it.

Bounds: 16 clients, 64 KB a request, IDLE_S without finishing one; a client beyond them is dropped.
A client may send several requests, one after the other.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bgp.eventloop import EventLoop
from libcalico.errors import SuiteError, ValidationError
from libcalico.runtime import log, unixsocket

LOG = log.get(__name__)

CLIENTS_AT_MOST = 16
REQUEST_BYTES = 64 << 10
IDLE_S = 30.0
Request = Mapping[str, Any]
Command = Callable[[Request], dict[str, Any]]


class ControlServer:
    """Listens at `path`; `commands` by name. Everything happens in the event loop's turns."""

    def __init__(self, path: Path, events: EventLoop, commands: Mapping[str, Command]) -> None:
        """Errors: OSError."""
        self._path = path
        self._events = events
        self._commands = commands
        self._clients: dict[int, _Client] = {}
        self._listener = unixsocket.bind(path)
        self._listener.listen(CLIENTS_AT_MOST)
        self._listener.setblocking(False)
        events.on_readable(self._listener, self._accept)

    def close(self) -> None:
        for client in list(self._clients.values()):
            self.drop(client)
        self._events.forget(self._listener)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def tick(self, now: float) -> None:
        """Drop clients that neither finish a request nor read their answer."""
        for client in list(self._clients.values()):
            if client.is_overdue(now):
                self.drop(client)

    def answer(self, line: bytes) -> dict[str, Any]:
        return answer(self._commands, line)

    def drop(self, client: _Client) -> None:
        self._events.forget(client.sock)
        self._clients.pop(client.sock.fileno(), None)
        client.sock.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as err:
            LOG.debug("control client went away", reason=err)
            return
        if len(self._clients) >= CLIENTS_AT_MOST:
            sock.close()
            return
        sock.setblocking(False)
        client = self._clients[sock.fileno()] = _Client(sock, self)
        self._events.on_readable(sock, client.read)

    def watch(self, client: _Client) -> None:
        """Reads only while nothing is to be written: a client that does not read cannot pile up."""
        if client.unsent:
            self._events.on_writable(client.sock, client.write)
        else:
            self._events.on_readable(client.sock, client.read)


class _Client:
    """One connection. `since` is the first tick that saw it waiting."""

    def __init__(self, sock: socket.socket, server: ControlServer) -> None:
        self.sock = sock
        self.unsent = b""
        self._server = server
        self._unread = b""
        self._since: float | None = None

    def is_overdue(self, now: float) -> bool:
        if self._since is None:
            self._since = now
        return now - self._since > IDLE_S

    def read(self) -> None:
        try:
            data = self.sock.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._unread += data
        if not data or len(self._unread) > REQUEST_BYTES:
            self._server.drop(self)
            return
        self._serve()

    def write(self) -> None:
        try:
            sent = self.sock.send(self.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._server.drop(self)
            return
        self.unsent = self.unsent[sent:]
        if not self.unsent:
            self._since = None
            self._serve()

    def _serve(self) -> None:
        line, newline, rest = self._unread.partition(b"\n")
        if newline:
            self._unread = rest
            self._since = None
            self.unsent = json.dumps(self._server.answer(line)).encode() + b"\n"
        self._server.watch(self)


def answer(commands: Mapping[str, Command], line: bytes) -> dict[str, Any]:
    """One request. Never raises for what a client can get wrong."""
    try:
        request = json.loads(line)
    except ValueError as err:
        return {"error": f"not JSON: {err}"}
    if not isinstance(request, dict):
        return {"error": "a request is a JSON object"}
    command = commands.get(str(request.get("command")))
    if command is None:
        known = ", ".join(sorted(commands))
        return {"error": f"unknown command {request.get('command')!r}, known are: {known}"}
    try:
        return command(request)
    except SuiteError as err:
        return {"error": str(err)}


def required(request: Request, name: str) -> str:
    """A member that must be there. Errors: ValidationError."""
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise ValidationError.of(name, value, "required")
    return value
