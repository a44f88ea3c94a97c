"""felix.daemon_mtu: when the file is there, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from felix.daemon_mtu import MtuFile
from felix.dataplane.loop import CycleReport
from libcalico.errors import ConfigError

CYCLE, NOT_YET = CycleReport(0.0, (), True), CycleReport(0.0, (), False)


class World:
    def __init__(self, directory: Path, *, is_required: bool = False) -> None:
        self.path = directory / "lib" / "mtu"
        self.mtu_bytes = 1450
        self.stopped: list[ConfigError] = []
        self.file = MtuFile(
            self.path,
            lambda: self.mtu_bytes,
            is_required=is_required,
            on_missing=self.stopped.append,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_file_follows_the_uplinks(world):
    world.file.on_cycle(NOT_YET)
    assert not world.path.exists(), "the interfaces may not be known yet"
    world.file.on_cycle(CYCLE)
    assert world.path.read_text() == "1450\n"
    world.mtu_bytes = 9000
    world.file.on_cycle(CYCLE)
    assert world.path.read_text() == "9000\n"
    assert [path.name for path in world.path.parent.iterdir()] == ["mtu"]
    world.mtu_bytes = 0
    world.file.on_cycle(CYCLE)
    assert not world.path.exists()
    assert world.stopped == []


def test_it_is_not_written_again_when_nothing_changed(world):
    world.file.on_cycle(CYCLE)
    world.path.unlink()
    world.file.on_cycle(CYCLE)
    assert not world.path.exists()


def test_a_write_that_fails_is_tried_again(world):
    world.path.parent.write_text("in the way")
    world.file.on_cycle(CYCLE)
    world.path.parent.unlink()
    world.file.on_cycle(CYCLE)
    assert world.path.read_text() == "1450\n"


def test_a_required_file_that_cannot_be_there_ends_the_process(tmp_path):
    world = World(tmp_path, is_required=True)
    world.mtu_bytes = 0
    world.file.on_cycle(CYCLE)
    (error,) = world.stopped
    assert "RequireMTUFile" in str(error)
    assert "no interface matches MTUIfacePattern" in str(error)


def test_a_required_file_that_was_there_may_go(tmp_path):
    world = World(tmp_path, is_required=True)
    world.file.on_cycle(CYCLE)
    world.mtu_bytes = 0
    world.file.on_cycle(CYCLE)
    assert world.stopped == []
