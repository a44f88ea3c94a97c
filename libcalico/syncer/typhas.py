"""Which typhas there are: addresses as configured, DNS, and their registration in the datastore.

Layer: syncer edge. Used by `libcalico.syncer.typha` (who to ask) and typha (who else serves).

An operator writes a comma-separated list (FELIX_TYPHAADDR):

    typha-1:5473, 10.0.0.7:5473     TLS; a name stands for all addresses that DNS gives for it
    tcp://10.0.0.7:5473             without TLS, because it was said so
    etcd://                         all that have registered; etcd+tcp:// without TLS

A typha registers below SERVERS_PREFIX with a lease: one that dies is gone with its lease.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from libcalico.datastore.api import Datastore
from libcalico.errors import SuiteError, Transient
from libcalico.runtime import log

LOG = log.get(__name__)
#: Outside of Calico's tree: a Calico component must not stumble over it.
SERVERS_PREFIX = "/brindle/typha/v1/servers/"
DEFAULT_PORT = 5473
_REGISTRY = "etcd"
_MAX_PORT = 65535


class ServerRecord(msgspec.Struct, frozen=True):
    """The value of one registration (JSON). `clients` and `limit` are numbers of connections."""

    address: str
    port: int
    clients: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """One entry of the configured list. `host` "" means: those registered in the datastore."""

    host: str
    port: int
    is_tls: bool


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address to connect to."""

    address: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


class NoTypha(Transient):
    """None is known at the moment."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"no typha to connect to: {self.why}"


def parse_targets(raw: str) -> tuple[Target, ...]:
    """Errors: ValueError with the reason."""
    return tuple(_target(part.strip()) for part in raw.split(",") if part.strip())


def _target(text: str) -> Target:
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme in (_REGISTRY, f"{_REGISTRY}+tcp"):
        if rest:
            raise ValueError(f"{text!r}: nothing follows {scheme}://")
        return Target("", 0, is_tls=scheme == _REGISTRY)
    if scheme not in ("", "tcp", "tls"):
        raise ValueError(f"{text!r}: the scheme is none of tls, tcp, {_REGISTRY}, {_REGISTRY}+tcp")
    host, port = _host_and_port(rest)
    if not host:
        raise ValueError(f"{text!r} names no host")
    return Target(host, port, is_tls=scheme != "tcp")


def _host_and_port(text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, _, tail = text[1:].partition("]")
        port = tail.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not port:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdigit()) or not 0 < int(port) <= _MAX_PORT:
        raise ValueError(f"{text!r}: the port is not a number from 1 to {_MAX_PORT}")
    return host, int(port)


class Finder:
    """Turns targets into endpoints, anew each time: DNS and registrations change."""

    def __init__(self, targets: Sequence[Target], datastore: Datastore | None = None) -> None:
        if datastore is None and any(not target.host for target in targets):
            raise ValueError("a registration needs a datastore to look into")
        self._targets = tuple(targets)
        self._datastore = datastore

    async def endpoints(self) -> list[Endpoint]:
        """In random order, so that clients spread. Errors: NoTypha."""
        found: dict[Endpoint, None] = {}
        faults = []
        for target in self._targets:
            try:
                found.update(dict.fromkeys(await self._resolve(target)))
            except (OSError, SuiteError, UnicodeError) as err:
                faults.append(f"{target.host or 'registrations'}: {err}")
        if not found:
            raise NoTypha("; ".join(faults) or "none has registered")
        spread = list(found)
        random.shuffle(spread)
        return spread

    async def _resolve(self, target: Target) -> Iterable[Endpoint]:
        if not target.host:
            assert self._datastore is not None
            servers = await registered(self._datastore)
            return [Endpoint(item.address, item.port, target.is_tls) for item in servers.values()]
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        return [Endpoint(str(info[4][0]), target.port, target.is_tls) for info in infos]


async def registered(datastore: Datastore) -> dict[str, ServerRecord]:
    """Name of a server: what it says of itself. A record that does not parse is left out."""
    servers = {}
    for kv in (await datastore.list(SERVERS_PREFIX)).kvs:
        try:
            servers[kv.key.removeprefix(SERVERS_PREFIX)] = decode_record(kv.value)
        except msgspec.DecodeError as err:
            LOG.warning("the registration of a typha does not parse", key=kv.key, error=str(err))
    return servers


def encode_record(record: ServerRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_record(value: bytes) -> ServerRecord:
    """Errors: msgspec.DecodeError."""
    return msgspec.json.decode(value, type=ServerRecord)
