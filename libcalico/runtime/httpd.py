"""A very small HTTP server for health and metrics: GET a path, get a page.

Layer: runtime edge. Used by `health` and `metrics`. For nothing else: no bodies, no keep-alive,
no routing beyond exact paths. Bounds: 8 KiB of request, 5 s to send it, 64 connections at a time
(more are closed at once, so that a scanner cannot hold memory).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from libcalico.errors import ConfigError
from libcalico.runtime import log

LOG = log.get(__name__)

MAX_REQUEST_BYTES = 8 * 1024
_REQUEST_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 64
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
            503: "Service Unavailable"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """What a page may want to know. Header names are lower case."""

    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Page = Callable[[Request], Response]


class HttpServer:
    """Serves `pages` (exact path: function) on every address of `host`."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._pages = pages
        self._tls = tls
        self._open = 0
        self._servers: list[asyncio.Server] = []

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports in use; of interest when 0 was asked for."""
        return tuple(s.getsockname()[1] for server in self._servers for s in server.sockets)

    async def start(self) -> None:
        """Errors: ConfigError when no address of the host can be used."""
        reasons = []
        for address in await self._addresses():
            try:
                server = await asyncio.start_server(
                    self._serve, address, self._port, ssl=self._tls, limit=MAX_REQUEST_BYTES
                )
            except OSError as err:  # ::1 where IPv6 is off, say; one address is enough
                reasons.append(f"{address}: {err.strerror or err}")
            else:
                self._servers.append(server)
        if not self._servers:
            raise ConfigError("http", f"{self._host}:{self._port}", "; ".join(reasons))

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()
        self._servers.clear()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.stop()

    async def _addresses(self) -> tuple[str, ...]:
        if not self._host:
            return ("0.0.0.0", "::")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as err:
            raise ConfigError("http", "host", str(err), self._host) from err
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MAX_CONNECTIONS:
                async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(answer(self._pages, head))
                    await writer.drain()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            LOG.debug("http request not completed")
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()


def answer(pages: Mapping[str, Page], head: bytes) -> bytes:
    """To one request, whose head ends with an empty line; for servers with a loop of their own."""
    request, method = _parse(head)
    if request is None:
        response = Response(400, b"bad request\n")
    elif method not in ("GET", "HEAD"):
        response = Response(405, b"only GET\n")
    else:
        page = pages.get(request.path)
        response = Response(404, b"not found\n") if page is None else page(request)
    header = (
        f"HTTP/1.1 {response.status} {_REASONS.get(response.status, '')}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    return header if method == "HEAD" else header + response.body


def _parse(head: bytes) -> tuple[Request | None, str]:
    """Request line and headers; None when it is not HTTP."""
    try:
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, version = first.split(" ")
        pairs = [line.split(":", 1) for line in lines]
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
    except ValueError:
        return None, ""
    if not version.startswith("HTTP/1."):
        return None, method
    return Request(target.partition("?")[0], headers), method
