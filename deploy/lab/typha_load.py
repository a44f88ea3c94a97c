"""`typha-load`: many clients of one typha, and changes whose way to the last of them is timed.

Layer: tooling. Used by tests/bench/bench_typha.py too. Plain TCP only.

The clients live in a few processes, and each is a real one on the wire: it greets, unpacks its
snapshot, keeps the order of the protocol and answers pings. Only one thing is done once for all
clients of a process: what a piece of bytes says is remembered, as all are sent the same ones.

A change carries the time (CLOCK_MONOTONIC, one for all processes of a machine) at which its write
began; its lag ends when the last client has it. Who was sent how much is counted: a change that
did not come to every client is `missing`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import re
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from libcalico.datastore.api import Datastore
from libcalico.datastore.config import connect, for_daemon
from libcalico.errors import SuiteError, WireError
from libcalico.model.keys import prefix_of
from libcalico.syncer.streams import FELIX
from libcalico.wire.client import ClientProtocol, Phase
from libcalico.wire.messages import (
    HIGHEST_VERSION,
    LOWEST_VERSION,
    MAGIC,
    ZSTD,
    Deltas,
    Goodbye,
    Hello,
    Page,
)

PREFIX = prefix_of("GlobalNetworkSet")
#: Of a value that `stamped` made.
STAMP = re.compile(rb'"typha-load/at":"(\d+)"')
# Pieces that are remembered: each of 1,000 clients reads within a moment of the others.
_REMEMBERED = 64
_CONNECT_AT_A_TIME = 50
_READ_BYTES = 256 * 1024
# What has come within so long is read in one go; it counts as lag.
_GATHER_S = 0.002
_READY_S = 120.0
# How long the last changes may take before they are missing.
_LAST_S = 10.0


def stamped(name: str) -> bytes:
    """A network set without members that says when it was written."""
    body = {
        "kind": "GlobalNetworkSet",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "annotations": {"typha-load/at": str(time.monotonic_ns())}},
        "spec": {"nets": []},
    }
    return json.dumps(body, separators=(",", ":")).encode()


@dataclass(slots=True)
class Piece:
    """Bytes that clients got, the stamps in them, how many clients got them and when the last."""

    stamps: tuple[int, ...]
    count: int = 0
    last_ns: int = 0


@dataclass(slots=True)
class Tally:
    """What the clients of one process got."""

    pieces: list[Piece] = field(default_factory=list)
    known: dict[bytes, Piece] = field(default_factory=dict)
    wire_bytes: int = 0
    raw_bytes: int = 0
    items: int = 0
    following: int = 0
    lost: int = 0
    errors: list[str] = field(default_factory=list)
    followed_ns: int = 0
    #: Stamped changes, each as often as a client got it.
    delivered: int = 0

    def got(self, piece: Piece) -> None:
        piece.count += 1
        self.delivered += len(piece.stamps)
        piece.last_ns = time.monotonic_ns()

    def remember(self, data: bytes, piece: Piece) -> None:
        self.pieces.append(piece)
        self.known[data] = piece
        if len(self.known) > _REMEMBERED:
            del self.known[next(iter(self.known))]

    def result(self) -> dict[str, Any]:
        changes: dict[int, list[int]] = {}
        for piece in self.pieces:
            for stamp in piece.stamps:
                found = changes.setdefault(stamp, [0, 0])
                found[0] += piece.count
                found[1] = max(found[1], piece.last_ns)
        return {
            "changes": list(changes.items()),
            "wire_bytes": self.wire_bytes,
            "raw_bytes": self.raw_bytes,
            "items": self.items,
            "lost": self.lost,
            "errors": self.errors[:5],
            "followed_ns": self.followed_ns,
        }


class LoadClient:
    """One connection."""

    __slots__ = ("_is_counted", "_is_whole", "_protocol", "_tally", "socket")

    def __init__(self, number: int, tally: Tally, connection: socket.socket) -> None:
        self._protocol = ClientProtocol(
            Hello(
                MAGIC, LOWEST_VERSION, HIGHEST_VERSION, FELIX, f"load-{number}",
                "typha-load", [ZSTD],
            )
        )  # fmt: skip
        self._tally = tally
        self._is_whole, self._is_counted = False, False
        self.socket = connection
        connection.sendall(self._protocol.data_to_send())

    def received(self, data: bytes) -> None:
        """Errors: WireError."""
        tally = self._tally
        tally.wire_bytes += len(data)
        if self._is_whole:
            piece = tally.known.get(data)
            if piece is not None:
                tally.got(piece)
                return
        start = 0
        # Frame by frame, as long as this client waits for no rest of one.
        while self._is_whole and start < len(data):
            end = start + 4 + int.from_bytes(data[start : start + 4], "big")
            frame = data[start:end]
            piece = tally.known.get(frame)
            if piece is None:
                self._read(frame)
            else:
                tally.got(piece)
            start = end
        if start < len(data):
            self._read(data[start:])

    def _read(self, data: bytes) -> None:
        tally, protocol = self._tally, self._protocol
        was_whole, is_only_deltas = self._is_whole, protocol.phase is Phase.FOLLOWING
        stamps: list[int] = []
        for message in protocol.receive(data):
            is_only_deltas = is_only_deltas and isinstance(message, Deltas)
            if isinstance(message, Deltas):
                for _, value, _ in message.changes:
                    stamps += map(int, STAMP.findall(value or b""))
            elif isinstance(message, Page):
                tally.items += len(message.items)
                tally.raw_bytes += sum(len(item[1]) for item in message.items)
            elif isinstance(message, Goodbye):
                tally.errors.append(f"goodbye: {message.reason}: {message.text}")
        if protocol.phase is Phase.FOLLOWING and not is_only_deltas:
            self._follow()
        self._is_whole = protocol.phase is Phase.FOLLOWING and protocol.is_at_boundary
        piece = Piece(tuple(stamps))
        tally.got(piece)
        if is_only_deltas and was_whole and self._is_whole:
            tally.remember(data, piece)
        elif stamps:
            tally.pieces.append(piece)
        reply = protocol.data_to_send()
        if reply:
            self.socket.sendall(reply)

    def _follow(self) -> None:
        """The first time: the snapshot is whole."""
        if not self._is_counted:
            self._is_counted = True
            self._tally.following += 1
            self._tally.followed_ns = time.monotonic_ns()


# ---- one process -------------------------------------------------------------------------------


class LoadLoop:
    """The clients of one process and its standard input, without more between them and the kernel
    than must be: what a client costs here is missing to the typha on the same cores."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._epoll = select.epoll()
        self._clients: dict[int, LoadClient] = {}
        self._epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        self.said: str | None = None
        # Allocating this much for every read costs ten times the read.
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)

    def connect(self, number: int, host: str, port: int) -> None:
        """Errors: OSError."""
        connection = socket.create_connection((host, port), _READY_S)
        client = LoadClient(number, self._tally, connection)
        self._clients[connection.fileno()] = client
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    def turn(self) -> None:
        """Read whatever has come, and wait a moment for it."""
        found = self._epoll.poll(0.05)
        if found:
            # A thousand nodes have a thousand cores. Here each message would wake this process.
            time.sleep(_GATHER_S)
            found = self._epoll.poll(0)
        for fd, _ in found:
            client = self._clients.get(fd)
            if client is None:
                self.said = sys.stdin.readline()
                self._epoll.unregister(fd)
                continue
            try:
                length = client.socket.recv_into(self._buffer)
                if length:
                    client.received(bytes(self._view[:length]))
                    continue
            except (OSError, WireError) as err:
                self._tally.errors.append(str(err))
            self._tally.lost += 1
            self._epoll.unregister(fd)
            del self._clients[fd]
            client.socket.close()


def _work(host: str, port: int, first: int, count: int) -> None:
    """Connect, say when all follow; told how many changes there were, say what came of them."""
    tally = Tally()
    loop = LoadLoop(tally)
    gc.disable()  # nothing here goes in circles, and its turns are not typha's lag
    began = time.monotonic_ns()
    for number in range(first, first + count):
        loop.connect(number, host, port)
        if number % _CONNECT_AT_A_TIME == 0:
            loop.turn()
    until = time.monotonic() + _READY_S
    while tally.following < count and not tally.lost:
        if time.monotonic() > until:
            raise TimeoutError
        loop.turn()
    print(json.dumps({"began_ns": began, "following": tally.following}), flush=True)
    while loop.said is None:
        loop.turn()
    expected = int(loop.said or 0) * count
    until = time.monotonic() + _LAST_S
    while tally.delivered < expected and time.monotonic() < until:
        loop.turn()
    print(json.dumps(tally.result()), flush=True)


class Workers:
    """The processes of the clients."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []
        self.began_ns = 0
        self.clients = 0

    async def start(self, host: str, port: int, clients: int, processes: int) -> None:
        """Returns when all follow. Errors: RuntimeError."""
        self.clients = clients
        first = 0
        for index in range(processes):
            count = clients // processes + (index < clients % processes)
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "deploy.lab.typha_load", "--worker",
                    json.dumps([host, port, first, count]),
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                    limit=2**26,
                )
            )  # fmt: skip
            first += count
        said = [await self._line(process) for process in self._processes]
        self.began_ns = min(item["began_ns"] for item in said)
        following = sum(item["following"] for item in said)
        if following < clients:
            raise RuntimeError(f"{following} of {clients} clients could join")

    async def stop(self, written: int, *, since_ns: int = 0) -> dict[str, Any]:
        """What came of so many changes, of all processes together; lags in seconds, of changes
        since then."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"%d\n" % written)
        return self._joined([await self._line(process) for process in self._processes], since_ns)

    async def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @staticmethod
    async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError("a process of clients died")
        found: dict[str, Any] = json.loads(line)
        return found

    def _joined(self, results: Sequence[dict[str, Any]], since_ns: int) -> dict[str, Any]:
        changes: dict[int, list[int]] = {}
        for result in results:
            for stamp, (count, last) in result["changes"]:
                found = changes.setdefault(stamp, [0, 0])
                found[0] += count
                found[1] = max(found[1], last)
        changes = {stamp: found for stamp, found in changes.items() if stamp >= since_ns}
        lags = sorted((last - stamp) / 1e9 for stamp, (_, last) in changes.items())
        return {
            "clients": self.clients,
            "changes": len(changes),
            "missing": sum(count != self.clients for count, _ in changes.values()),
            "lag_p50_s": percentile(lags, 0.5),
            "lag_p99_s": percentile(lags, 0.99),
            "lag_max_s": lags[-1] if lags else 0.0,
            "joined_s": (max(item["followed_ns"] for item in results) - self.began_ns) / 1e9,
            "errors": [error for item in results for error in item["errors"]],
            **{
                name: sum(item[name] for item in results)
                for name in ("wire_bytes", "raw_bytes", "items", "lost")
            },
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of an ordered list; 0 of an empty one."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


# ---- changes -----------------------------------------------------------------------------------


async def write_changes(datastore: Datastore, rate: float, seconds: float) -> list[str]:
    """`rate` new network sets a second, evenly. Returns their paths."""
    paths: list[str] = []
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            name = f"typha-load-{os.getpid()}-{number}"
            paths.append(PREFIX + name)
            tasks.create_task(datastore.put(paths[-1], stamped(name)))
    return paths


async def _load(arguments: argparse.Namespace) -> dict[str, Any]:
    host, _, port = arguments.typha.rpartition(":")
    workers = Workers()
    paths: list[str] = []
    datastore = connect(for_daemon(os.environ)) if arguments.rate else None
    try:
        await workers.start(host.strip("[]"), int(port), arguments.clients, arguments.processes)
        if datastore is None:
            await asyncio.sleep(arguments.seconds)
        else:
            paths = await write_changes(datastore, arguments.rate, arguments.seconds)
        return await workers.stop(len(paths))
    finally:
        await workers.close()
        if datastore is not None:
            for path in paths:
                await datastore.delete(path)
            await datastore.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="typha-load", description=__doc__.splitlines()[0])
    parser.add_argument("typha", nargs="?", default="127.0.0.1:5473", help="host:port")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--rate", type=float, default=0.0,
        help="changes a second, written to the datastore of the environment and deleted again",
    )  # fmt: skip
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        _work(*json.loads(arguments.worker))
        return 0
    try:
        result = asyncio.run(_load(arguments))
    except (SuiteError, OSError, RuntimeError, ValueError) as err:
        sys.stderr.write(f"typha-load: {err}\n")
        return 1
    print(json.dumps(result, indent=1))
    return 1 if result["missing"] or result["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
