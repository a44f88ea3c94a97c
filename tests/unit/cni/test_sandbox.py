"""cni.sandbox: what is noted of a namespace, and when it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni import sandbox


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "name with space"
    path.touch()
    return path


def test_what_is_where_it_was_is_not_gone(place: Path):
    text = sandbox.note(str(place))
    assert text.startswith(sandbox.boot_id())
    assert not sandbox.is_gone(text, sandbox.boot_id())


def test_after_a_reboot_it_is_gone_whatever_is_at_its_path(place: Path):
    assert sandbox.is_gone(sandbox.note(str(place)), "another-boot")


def test_it_is_gone_when_nothing_or_something_else_is_at_its_path(place: Path):
    text = sandbox.note(str(place))
    place.rename(place.with_suffix(".old"))
    assert sandbox.is_gone(text, sandbox.boot_id())
    place.touch()
    assert sandbox.is_gone(text, sandbox.boot_id())


def test_a_path_below_a_file_is_gone_and_one_that_cannot_be_asked_is_not(place: Path):
    boot = sandbox.boot_id()
    assert sandbox.is_gone(f"{boot} 1:2 {place}/below", boot)
    assert not sandbox.is_gone(f"{boot} 1:2 {'x' * 5000}", boot)  # name too long


@pytest.mark.parametrize("text", ["", "boot", "boot 1:2", "boot  /run", "  "])
def test_what_is_no_note_proves_nothing(text: str):
    assert not sandbox.is_gone(text, "other")


def test_without_a_boot_id_nothing_is_gone(place: Path):
    assert not sandbox.is_gone("boot 1:2 /nonexistent", "")


def test_of_what_does_not_exist_nothing_is_noted(tmp_path: Path):
    assert sandbox.note(str(tmp_path / "none")) == ""
    assert sandbox.note("with\0null") == ""
