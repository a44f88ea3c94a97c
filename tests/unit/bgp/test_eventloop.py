"""bgp.eventloop: callbacks for descriptors, and a way to end the wait."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from bgp.eventloop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


def is_ready(loop: EventLoop) -> bool:
    return bool(select.select([loop.fileno()], [], [], 0)[0])


def test_waking_makes_the_set_readable_once(loop: EventLoop):
    assert not is_ready(loop)
    loop.wake()
    loop.wake()
    assert is_ready(loop)
    loop.run_ready()
    assert not is_ready(loop)


def test_readable_and_writable(loop: EventLoop):
    reader, writer = os.pipe()
    seen: list[str] = []
    loop.on_readable(reader, lambda: seen.append(os.read(reader, 10).decode()))
    loop.run_ready()
    assert seen == []
    os.write(writer, b"x")
    assert is_ready(loop)
    loop.run_ready()
    assert seen == ["x"]
    loop.on_writable(writer, lambda: seen.append("room"))
    loop.run_ready()
    assert seen == ["x", "room"]
    loop.forget(writer)
    loop.forget(writer)
    loop.run_ready()
    assert seen == ["x", "room"]
    os.close(reader)
    os.close(writer)


def test_a_descriptor_that_was_closed_and_reused_is_watched_anew(loop: EventLoop):
    reader, writer = os.pipe()
    loop.on_readable(reader, lambda: None)
    os.close(reader)
    os.close(writer)
    reader, writer = os.pipe()  # the same numbers again
    seen: list[int] = []
    loop.on_readable(reader, lambda: seen.append(1))
    os.write(writer, b"x")
    loop.run_ready()
    assert seen == [1]
    os.close(reader)
    os.close(writer)
