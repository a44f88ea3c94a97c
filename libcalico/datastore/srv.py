"""Find etcd's endpoints by DNS SRV records (`etcdDiscoverySrv`).

Layer: datastore edge; one UDP question to the resolvers of /etc/resolv.conf. The standard library
cannot ask for SRV records, and a DNS package for one rarely used option is not worth its weight:
the message format is RFC 1035, the record RFC 2782.

As etcd's client does, `_etcd-client-ssl._tcp.<domain>` gives https endpoints and
`_etcd-client._tcp.<domain>` http ones; both are used when both exist.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from libcalico.errors import ConfigError, WireError

_SRV, _IN, _RECURSE = 33, 1, 0x0100
_TIMEOUT_S = 3.0
_MAX_ANSWER_BYTES = 4096
_MAX_JUMPS = 32
_SERVICES = (("etcd-client-ssl", "https"), ("etcd-client", "http"))


@dataclass(frozen=True, slots=True)
class SrvRecord:
    priority: int
    weight: int
    port: int
    target: str


def discover(
    domain: str, *, resolv_conf: Path = Path("/etc/resolv.conf"), port: int = 53
) -> tuple[str, ...]:
    """Endpoints in order of priority. Errors: ConfigError when there are none."""
    servers = _name_servers(resolv_conf)
    endpoints: list[str] = []
    for service, scheme in _SERVICES:
        records = _ask(servers, f"_{service}._tcp.{domain}", port)
        ordered = sorted(records, key=lambda record: (record.priority, -record.weight))
        endpoints += [f"{scheme}://{record.target}:{record.port}" for record in ordered]
    if not endpoints:
        reason = f"failed to discover etcd endpoints through SRV discovery: no records of {domain}"
        raise ConfigError("etcd", "etcdDiscoverySrv", reason)
    return tuple(endpoints)


def encode_question(name: str, identifier: int) -> bytes:
    header = struct.pack(">HHHHHH", identifier, _RECURSE, 1, 0, 0, 0)
    labels = b"".join(
        bytes([len(part)]) + part for part in name.rstrip(".").encode("idna").split(b".")
    )
    return header + labels + b"\0" + struct.pack(">HH", _SRV, _IN)


def decode_answer(data: bytes, identifier: int) -> tuple[SrvRecord, ...]:
    """The SRV records of an answer; none for a name that does not exist. Errors: WireError."""
    try:
        found, flags, questions, answers = struct.unpack_from(">HHHH", data)
        if found != identifier or not flags & 0x8000:
            raise WireError("not the answer to our question")
        if flags & 0x000F:
            return ()
        position = 12
        for _ in range(questions):
            position = _name(data, position)[1] + 4
        return tuple(_records(data, position, answers))
    except (struct.error, IndexError, UnicodeDecodeError) as err:
        raise WireError(f"malformed DNS answer: {err}") from err


def _records(data: bytes, position: int, count: int) -> Iterator[SrvRecord]:
    for _ in range(count):
        _, position = _name(data, position)
        kind, _, _, length = struct.unpack_from(">HHIH", data, position)
        position += 10
        if kind == _SRV:
            priority, weight, port = struct.unpack_from(">HHH", data, position)
            target, _ = _name(data, position + 6)
            yield SrvRecord(priority, weight, port, target)
        position += length


def _name(data: bytes, position: int) -> tuple[str, int]:
    """A name (following compression pointers) and the position behind it (RFC 1035 4.1.4)."""
    labels: list[str] = []
    end = 0
    for _ in range(_MAX_JUMPS):
        length = data[position]
        if length >= 0xC0:
            end = end or position + 2
            position = struct.unpack_from(">H", data, position)[0] & 0x3FFF
        elif length:
            labels.append(data[position + 1 : position + 1 + length].decode("ascii"))
            position += 1 + length
        else:
            return ".".join(labels), end or position + 1
    raise WireError("a name in the DNS answer does not end")


def _ask(servers: tuple[str, ...], name: str, port: int) -> tuple[SrvRecord, ...]:
    identifier = secrets.randbelow(0x10000)
    for server in servers:
        family = socket.AF_INET6 if ":" in server else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_TIMEOUT_S)
            try:
                sock.connect((server, port))
                sock.send(encode_question(name, identifier))
                return decode_answer(sock.recv(_MAX_ANSWER_BYTES), identifier)
            except (OSError, WireError):
                continue  # the next server may answer; when none does the caller says so
    return ()


def _name_servers(resolv_conf: Path) -> tuple[str, ...]:
    try:
        lines = resolv_conf.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ("127.0.0.1",)
    found = [
        line.split()[1] for line in lines if line.startswith("nameserver ") and line.split()[1:]
    ]
    return tuple(found) or ("127.0.0.1",)
