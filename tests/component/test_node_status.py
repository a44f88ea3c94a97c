"""`calicoctl node status` asking a speaker: an answer, nobody, and somebody who talks nonsense."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from calicoctl.commands.node import ask_speaker
from calicoctl.results import CommandFailed
from libcalico.runtime import unixsocket


@pytest.fixture
def speaker(tmp_path: Path):
    """Answers one request with the given bytes."""
    threads: list[threading.Thread] = []

    def make(answer: bytes) -> Path:
        path = tmp_path / "control.sock"
        listener = unixsocket.bind(path)
        listener.listen(1)
        listener.settimeout(10)

        def serve() -> None:
            with listener:
                link, _ = listener.accept()
                with link:
                    assert link.recv(65536) == b'{"command": "peers"}\n'
                    link.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return path

    yield make
    for thread in threads:
        thread.join()


Speaker = Callable[[bytes], Path]


def test_the_sessions_of_a_speaker_that_runs(speaker: Speaker):
    assert ask_speaker(speaker(b'{"peers": [{"address": "192.0.2.1"}]}\n')) == [
        {"address": "192.0.2.1"}
    ]


def test_a_speaker_that_does_not_run_or_is_just_ending(speaker: Speaker, tmp_path: Path):
    assert ask_speaker(tmp_path / "nothing.sock") is None
    assert ask_speaker(speaker(b"")) is None


@pytest.mark.parametrize("answer", [b"nonsense\n", b"[]\n", b'{"error": "unknown command"}\n'])
def test_an_unexpected_answer_is_shown(speaker: Speaker, answer: bytes):
    with pytest.raises(CommandFailed, match="unexpected answer"):
        ask_speaker(speaker(answer))
