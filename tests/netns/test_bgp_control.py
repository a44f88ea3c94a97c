"""bgp.control on a real unix socket, driven by the event loop's turns."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from bgp.control import CLIENTS_AT_MOST, IDLE_S, REQUEST_BYTES, ControlServer
from bgp.eventloop import EventLoop

BIG = "x" * 3_000_000


@pytest.fixture
def events() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


@pytest.fixture
def server(events: EventLoop, tmp_path: Path) -> Iterator[ControlServer]:
    commands = {"echo": lambda request: {"said": request.get("say")}, "big": lambda _: {"big": BIG}}
    made = ControlServer(tmp_path / "control.sock", events, commands)
    yield made
    made.close()


@pytest.fixture
def client(server: ControlServer, events: EventLoop, tmp_path: Path) -> Iterator[socket.socket]:
    with connect(tmp_path) as sock:
        events.run_ready()
        yield sock


def connect(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(tmp_path / "control.sock"))
    sock.setblocking(False)
    return sock


def read_line(events: EventLoop, sock: socket.socket) -> dict[str, object]:
    data = b""
    for _ in range(10_000):
        events.run_ready()
        try:
            data += sock.recv(1 << 20)
        except BlockingIOError:
            continue
        if data.endswith(b"\n"):
            return json.loads(data)
    raise AssertionError("no answer")


def is_closed(events: EventLoop, sock: socket.socket) -> bool:
    events.run_ready()
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_questions_and_answers(events: EventLoop, client: socket.socket):
    client.send(b'{"command": "echo", "say": 1}\n')
    assert read_line(events, client) == {"said": 1}
    client.send(b'{"command": "ec')
    events.run_ready()
    client.send(b'ho", "say": 2}\n{"command": "echo", "say": 3}\n')
    first = read_line(events, client)
    assert first == {"said": 2}
    assert read_line(events, client) == {"said": 3}


def test_an_answer_larger_than_the_socket_takes_turns(events: EventLoop, client: socket.socket):
    client.send(b'{"command": "big"}\n')
    assert read_line(events, client) == {"big": BIG}
    client.send(b'{"command": "nonsense"}\n')
    assert "unknown command" in str(read_line(events, client)["error"])


def test_only_we_may_ask(server: ControlServer, tmp_path: Path):
    assert stat.S_IMODE(os.stat(tmp_path / "control.sock").st_mode) == 0o600


def test_what_a_former_process_left_is_replaced(events: EventLoop, tmp_path: Path):
    (tmp_path / "control.sock").touch()
    made = ControlServer(tmp_path / "control.sock", events, {})
    made.close()
    assert not (tmp_path / "control.sock").exists()


def test_a_request_without_end_is_cut_off(events: EventLoop, client: socket.socket):
    for _ in range(REQUEST_BYTES // 1000 + 2):
        if is_closed(events, client):
            return
        client.send(b"x" * 1000)
    assert is_closed(events, client)


def test_clients_that_go_away_are_forgotten(server: ControlServer, events, tmp_path: Path):
    for _ in range(3 * CLIENTS_AT_MOST):
        sock = connect(tmp_path)
        events.run_ready()
        sock.send(b'{"command": "big"}\n')
        sock.close()
        events.run_ready()
        events.run_ready()
    with connect(tmp_path) as sock:
        sock.send(b'{"command": "echo"}\n')
        assert read_line(events, sock) == {"said": None}


def test_too_many_clients_are_turned_away_and_idle_ones_dropped(
    server: ControlServer, events: EventLoop, tmp_path: Path
):
    clients = []
    for _ in range(CLIENTS_AT_MOST):
        clients.append(connect(tmp_path))
        events.run_ready()
    late = connect(tmp_path)
    assert is_closed(events, late)
    assert not is_closed(events, clients[0])
    server.tick(100.0)
    server.tick(100.0 + IDLE_S)
    assert not is_closed(events, clients[0])
    server.tick(101.0 + IDLE_S)
    assert all(is_closed(events, sock) for sock in clients)
    for sock in (*clients, late):
        sock.close()
