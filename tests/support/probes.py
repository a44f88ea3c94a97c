"""Packets between namespaces: whether they get there, and back.

A closed port answers with a reset, so "refused" means that the packet got through both ways, and
silence means that it was dropped.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from tests.support.netns import Namespace

SILENCE_S = 0.4


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace and its addresses."""

    namespace: Namespace
    v4: str
    v6: str

    def address(self, family: int) -> str:
        return self.v4 if family == 4 else self.v6


def tcp(source: Place, target: Place, port: int = 80, *, family: int, timeout_s=SILENCE_S) -> bool:
    """Whether a connection attempt is answered at all."""

    def attempt() -> bool:
        with family_socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(timeout_s)
            try:
                client.connect((target.address(family), port))
            except ConnectionRefusedError:
                return True
            except TimeoutError:
                return False
            return True

    return source.namespace.call(attempt)


def udp(source: Place, target: Place, port: int = 53, *, family: int) -> bool:
    """Whether a datagram to a closed port comes back as an ICMP error (related to it)."""

    def attempt() -> bool:
        with family_socket(family, socket.SOCK_DGRAM) as client:
            client.settimeout(SILENCE_S)
            client.connect((target.address(family), port))
            try:
                client.send(b"x")
                client.recv(10)
            except ConnectionRefusedError:
                return True
            except (TimeoutError, PermissionError):  # denied on its way out
                return False
            return True

    return source.namespace.call(attempt)


def ping(source: Place, target: Place, *, family: int) -> bool:
    command = ("ping", f"-{family}", "-n", "-c", "1", "-W", "0.4", target.address(family))
    return source.namespace.succeeds(*command)


def family_socket(family: int, kind: int) -> socket.socket:
    return socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, kind)


def listen(place: Place, port: int, *, family: int) -> socket.socket:
    def make() -> socket.socket:
        server = family_socket(family, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.settimeout(5)
        server.bind((place.address(family), port))
        server.listen()
        return server

    return place.namespace.call(make)


def dial(source: Place, target: Place, port: int, *, family: int) -> socket.socket:
    def make() -> socket.socket:
        client = family_socket(family, socket.SOCK_STREAM)
        client.settimeout(2)
        try:
            client.connect((target.address(family), port))
        except OSError:
            client.close()
            raise
        return client

    return source.namespace.call(make)
