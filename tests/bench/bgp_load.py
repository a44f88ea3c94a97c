"""A load generator for route reflectors: many minimal BGP clients in one epoll loop.

It opens N sessions, releases M prefixes per client at once and stops the clock when every client
holds all the others' prefixes (counted by size: all prefixes of a run are equally long).
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from bgp.rib.attributes import PathAttributes, encode
from bgp.rib.nlri import IPV4, IPV6, Family
from bgp.rib.update import (
    HEADER_BYTES,
    KEEPALIVE,
    UPDATE,
    end_of_rib,
    message,
    pack_announce,
    pack_withdraw,
)

OPEN, NOTIFICATION = 1, 3
AS = 64512
HOLD_S = 180
_READ = 1 << 18


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run is like. `per_update` caps the prefixes in one UPDATE (0: full messages)."""

    clients: int
    prefixes: int
    family: Family = IPV4
    per_update: int = 0

    def nlris(self, client: int) -> list[bytes]:
        first = client * self.prefixes
        if self.family is IPV4:
            base = int(ip_address("20.0.0.0"))
            return [
                b"\x1a" + struct.pack("!I", base + (first + n) * 64) for n in range(self.prefixes)
            ]
        base = int(ip_address("fd20::")) >> 6
        numbers = (((base + first + n) << 6).to_bytes(16, "big") for n in range(self.prefixes))
        return [b"\x7a" + number for number in numbers]

    @property
    def nlri_bytes(self) -> int:
        return 5 if self.family is IPV4 else 17


def updates(shape: Shape, nlris: Sequence[bytes], address: str) -> bytes:
    hop = ip_address(address).packed
    attributes = PathAttributes(next_hop=hop, local_pref=100)
    if shape.family is IPV4:
        section, reach = encode(attributes, asn4=True, with_next_hop=True), b""
    else:
        reach = ip_address("fd88::1:0").packed[:-4] + hop
        section = encode(attributes, asn4=True, with_next_hop=False)
    size = shape.per_update or len(nlris)
    parts = [
        data
        for start in range(0, len(nlris), size)
        for data, _ in pack_announce(shape.family, section, reach, nlris[start : start + size])
    ]
    return b"".join(parts)


def open_message(address: str, family: Family) -> bytes:
    multiprotocol = struct.pack("!BBHBB", 1, 4, family.afi, 0, family.safi)
    capabilities = multiprotocol + bytes([2, 0]) + struct.pack("!BBI", 65, 4, AS)
    parameters = bytes([2, len(capabilities)]) + capabilities
    head = struct.pack("!BHH", 4, AS, HOLD_S) + ip_address(address).packed
    return message(OPEN, head + bytes([len(parameters)]) + parameters)


@dataclass(slots=True, eq=False)
class Client:
    address: str
    sock: socket.socket
    unread: bytes = b""
    unsent: bytearray = field(default_factory=bytearray)
    is_up: bool = False
    received: int = 0
    withdrawn: int = 0
    messages: int = 0


class Load:
    """The clients of one run. Made inside the namespace they live in."""

    def __init__(self, shape: Shape, server: str, first: str) -> None:
        self.shape = shape
        self._selector = selectors.DefaultSelector()
        base = int(ip_address(first))
        self.clients = [
            self._connect(str(ip_address(base + n)), server) for n in range(shape.clients)
        ]

    def _connect(self, address: str, server: str) -> Client:
        sock = socket.create_connection((server, 179), timeout=20, source_address=(address, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        client = Client(address, sock)
        self._selector.register(sock, selectors.EVENT_READ, client)
        self._send(client, open_message(address, self.shape.family))
        return client

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()
        self._selector.close()

    def establish(self, timeout_s: float = 60.0) -> None:
        self.run(lambda: all(client.is_up for client in self.clients), timeout_s)

    def release(self, timeout_s: float = 120.0) -> float:
        """Everybody announces at once; seconds until everybody holds everything."""
        shape = self.shape
        payloads = [
            updates(shape, shape.nlris(n), client.address) + end_of_rib(shape.family)
            for n, client in enumerate(self.clients)
        ]
        wanted = (shape.clients - 1) * shape.prefixes
        started = time.perf_counter()
        for client, payload in zip(self.clients, payloads, strict=True):
            self._send(client, payload)
        self.run(lambda: all(c.received >= wanted for c in self.clients), timeout_s)
        return time.perf_counter() - started

    def flap(self, times: int) -> list[float]:
        """One new prefix at a time from the first client; seconds until all others have it."""
        shape, source = self.shape, self.clients[0]
        took = []
        for n in range(times):
            nlri = Shape(1, 1, shape.family).nlris(200_000 + n)[0]
            before = {client: client.received for client in self.clients[1:]}
            time.sleep(0.02)
            started = time.perf_counter()
            self._send(source, updates(shape, [nlri], source.address))
            self.run(lambda b=before: all(c.received > b[c] for c in b), 30.0)
            took.append(time.perf_counter() - started)
            gone = {client: client.withdrawn for client in self.clients[1:]}
            self._send(source, pack_withdraw(shape.family, [nlri])[0][0])
            self.run(lambda g=gone: all(c.withdrawn > g[c] for c in g), 30.0)
        return took

    def lose_first(self, prefixes: int) -> float:
        """The first client dies; seconds until all others have been told of its prefixes."""
        dead, others = self.clients[0], self.clients[1:]
        before = {client: client.withdrawn for client in others}
        self._selector.unregister(dead.sock)
        started = time.perf_counter()
        dead.sock.close()
        self.run(lambda: all(c.withdrawn - before[c] >= prefixes for c in others), 60.0)
        return time.perf_counter() - started

    def announce_from_first(self, nlris: list[bytes]) -> None:
        """And wait until the others have them."""
        before = {client: client.received for client in self.clients[1:]}
        source = self.clients[0]
        self._send(source, updates(self.shape, nlris, source.address))
        self.run(lambda: all(c.received - before[c] >= len(nlris) for c in before), 60.0)

    def run(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Errors: TimeoutError with how far everybody got."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                counts = sorted(client.received for client in self.clients)
                up = sum(client.is_up for client in self.clients)
                raise TimeoutError(f"{up} sessions, received {counts[0]} to {counts[-1]}")
            self.step(0.2)

    def step(self, timeout_s: float) -> None:
        """Serve whoever is ready."""
        for key, events in self._selector.select(timeout_s):
            client: Client = key.data
            if events & selectors.EVENT_WRITE:
                self._send(client, b"")
            if events & selectors.EVENT_READ:
                self._read(client)

    def _send(self, client: Client, data: bytes) -> None:
        client.unsent += data
        try:
            sent = client.sock.send(client.unsent)
        except BlockingIOError:
            sent = 0
        del client.unsent[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        self._selector.modify(client.sock, wanted, client)

    def _read(self, client: Client) -> None:
        try:
            data = client.sock.recv(_READ)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError(f"{client.address} was disconnected")
        data = client.unread + data
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            length = data[at + 16] << 8 | data[at + 17]
            if size - at < length:
                break
            self._count(client, data, at, length)
            at += length
        client.unread = data[at:]

    def _count(self, client: Client, data: bytes, at: int, length: int) -> None:
        kind = data[at + 18]
        if kind == UPDATE:
            client.messages += 1
            self._count_update(client, data, at + HEADER_BYTES, at + length)
        elif kind == OPEN:
            self._send(client, message(KEEPALIVE, b""))
        elif kind == KEEPALIVE:
            client.is_up = True
        elif kind == NOTIFICATION:
            raise ConnectionError(f"{client.address}: NOTIFICATION {data[at + 19 : at + 21]!r}")

    def _count_update(self, client: Client, data: bytes, at: int, end: int) -> None:
        withdrawn = data[at] << 8 | data[at + 1]
        section = at + 4 + withdrawn
        attributes = data[section - 2] << 8 | data[section - 1]
        size = self.shape.nlri_bytes
        if self.shape.family is IPV6:
            self._count_mp(client, data, section, section + attributes)
            return
        client.received += (end - section - attributes) // size
        client.withdrawn += withdrawn // size

    def _count_mp(self, client: Client, data: bytes, at: int, end: int) -> None:
        while at < end:
            flags, code = data[at], data[at + 1]
            wide = bool(flags & 0x10)
            length = (data[at + 2] << 8 | data[at + 3]) if wide else data[at + 2]
            value = at + (4 if wide else 3)
            if code == 14:
                hop = data[value + 3]
                client.received += (length - 5 - hop) // self.shape.nlri_bytes
            elif code == 15:
                client.withdrawn += (length - 3) // self.shape.nlri_bytes
            at = value + length
