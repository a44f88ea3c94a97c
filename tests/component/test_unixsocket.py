"""libcalico.runtime.unixsocket with real sockets: modes, left-over files, slow and silent peers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libcalico.runtime.unixsocket import BadAnswer, NoAnswer, ask, bind

REQUEST = {"command": "peers"}


@contextlib.contextmanager
def serving(path: Path, serve: Callable[[socket.socket, bytes], None]) -> Iterator[None]:
    """One connection: `serve(link, request line)`."""
    listener = bind(path)
    listener.listen(1)
    listener.settimeout(10)

    def work() -> None:
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError):
            serve(link, link.recv(65536))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        listener.close()


def test_a_socket_is_only_the_owners_and_replaces_a_left_over_one(tmp_path: Path):
    path = tmp_path / "run/a.sock"
    bind(path).close()
    assert path.exists()
    again = bind(path)
    assert path.stat().st_mode & 0o777 == 0o600
    again.close()


def test_a_place_that_cannot_be_bound_is_an_error_and_leaks_nothing(tmp_path: Path):
    with pytest.raises(OSError, match=r"too long"):
        bind(tmp_path / ("x" * 200))


def test_a_question_gets_its_answer_also_in_parts(tmp_path: Path):
    seen = []

    def serve(link: socket.socket, line: bytes) -> None:
        seen.append(line)
        link.sendall(b'{"peers": ')
        link.sendall(b"[1]}\n")

    path = tmp_path / "s"
    with serving(path, serve):
        assert ask(path, REQUEST, 5) == {"peers": [1]}
    assert seen == [b'{"command": "peers"}\n']


@pytest.mark.parametrize("answer", [b"oops\n", b"[1]\n", b'{"peers": '])
def test_an_answer_that_is_none_is_a_fault_of_the_other_side(tmp_path: Path, answer: bytes):
    path = tmp_path / "s"
    with serving(path, lambda link, line: link.sendall(answer)), pytest.raises(BadAnswer):
        ask(path, REQUEST, 5)


def test_one_that_closes_without_a_word_is_no_answer(tmp_path: Path):
    path = tmp_path / "s"
    with serving(path, lambda link, line: None), pytest.raises(NoAnswer, match="without an answer"):
        ask(path, REQUEST, 5)


def test_nobody_there_is_no_answer(tmp_path: Path):
    path = tmp_path / "s"
    with pytest.raises(NoAnswer, match=r"No such file"):
        ask(path, REQUEST, 5)
    bind(path).close()
    with pytest.raises(NoAnswer, match=r"refused"):
        ask(path, REQUEST, 5)


def test_one_that_drips_does_not_hold_us_beyond_the_deadline(tmp_path: Path):
    enough = threading.Event()

    def drip(link: socket.socket, line: bytes) -> None:
        while not enough.wait(0.05):
            link.sendall(b" ")

    path = tmp_path / "s"
    with serving(path, drip):
        began = time.monotonic()
        try:
            with pytest.raises(NoAnswer, match=r"within 0.3 s"):
                ask(path, REQUEST, 0.3)
            assert time.monotonic() - began < 3
        finally:
            enough.set()


def test_an_endless_answer_is_not_collected_for_ever(tmp_path: Path):
    def flood(link: socket.socket, line: bytes) -> None:
        while True:
            link.sendall(b" " * 65536)

    path = tmp_path / "s"
    with serving(path, flood), pytest.raises(BadAnswer):
        ask(path, REQUEST, 20)
