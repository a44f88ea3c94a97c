"""libcalico.datastore.srv against a name server on loopback."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from libcalico.datastore.srv import discover
from libcalico.errors import ConfigError

KNOWN = ((20, 2379, "b.example.org"), (10, 2379, "a.example.org"))


def answer(question: bytes, *targets: tuple[int, int, str]) -> bytes:
    identifier = question[:2]
    records = b""
    for priority, port, target in targets:
        name = b"".join(bytes([len(part)]) + part.encode() for part in target.split("."))
        data = struct.pack(">HHH", priority, 0, port) + name + b"\0"
        records += b"\xc0\x0c" + struct.pack(">HHIH", 33, 1, 60, len(data)) + data
    flags = b"\x81\x80" if targets else b"\x81\x83"
    counts = struct.pack(">HHHH", 1, len(targets), 0, 0)
    return identifier + flags + counts + question[12:] + records


@contextlib.contextmanager
def name_server() -> Iterator[int]:
    """Knows two plain etcd servers of example.org and nothing with TLS."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(10)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    question, sender = sock.recvfrom(512)
                    if question == b"stop":
                        return
                    is_known = b"\x0c_etcd-client\x04" in question and b"\x03org" in question
                    sock.sendto(answer(question, *(KNOWN if is_known else ())), sender)

        thread = threading.Thread(target=serve)
        thread.start()
        port = sock.getsockname()[1]
        try:
            yield port
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stopper:
                stopper.sendto(b"stop", ("127.0.0.1", port))
            thread.join()


def test_endpoints_come_from_srv_records_in_order_of_priority(tmp_path: Path):
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("# comment\nsearch x\nnameserver 127.0.0.1\n")
    with name_server() as port:
        found = discover("example.org", resolv_conf=resolv_conf, port=port)
        assert found == ("http://a.example.org:2379", "http://b.example.org:2379")
        with pytest.raises(ConfigError, match=r"no records of example\.net"):
            discover("example.net", resolv_conf=resolv_conf, port=port)
