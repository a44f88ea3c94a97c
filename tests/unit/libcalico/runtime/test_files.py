"""libcalico.runtime.files: whole files, right modes, nothing touched without need."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from libcalico.runtime import files
from libcalico.runtime.files import replace_file


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_file_has_its_folder_content_and_mode(tmp_path: Path):
    path = tmp_path / "a/b/file"
    assert replace_file(path, b"one", 0o600)
    assert (path.read_bytes(), mode_of(path)) == (b"one", 0o600)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_what_is_right_is_not_touched_and_a_wrong_mode_is_mended(tmp_path: Path):
    path = tmp_path / "file"
    replace_file(path, b"one", 0o644)
    before = path.stat()
    assert not replace_file(path, b"one", 0o644)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not replace_file(path, b"one", 0o600)
    assert (path.stat().st_ino, mode_of(path)) == (before.st_ino, 0o600)


def test_a_reader_that_has_the_old_file_open_keeps_it_whole(tmp_path: Path):
    path = tmp_path / "file"
    replace_file(path, b"old text", 0o644)
    with path.open("rb") as reader:
        assert replace_file(path, b"new", 0o644)
        assert reader.read() == b"old text"
    assert path.read_bytes() == b"new"


def test_a_failure_leaves_the_old_file_and_no_scratch_file(tmp_path: Path):
    path = tmp_path / "file"
    path.mkdir()
    (path / "occupied").touch()  # a rename over a folder that is not empty fails
    with pytest.raises(OSError, match=r"directory"):
        replace_file(path, b"new", 0o644)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_is_replaced_and_what_it_points_to_is_not(tmp_path: Path):
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_bytes(b"same")
    path.symlink_to(target)
    assert replace_file(path, b"same", 0o600)
    assert not path.is_symlink()
    assert mode_of(target) != 0o600


def test_a_new_file_does_not_inherit_the_mode_of_what_was_there(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o666)
    files.write_new(path, b"secret", 0o600)
    assert (path.read_bytes(), mode_of(path)) == (b"secret", 0o600)


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_durable_file_and_its_name_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_durable: bool
):
    path, synced = tmp_path / "file", []

    def recorded(handle: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((place == tmp_path, path.exists()))

    monkeypatch.setattr(os, "fsync", recorded)
    assert replace_file(path, b"one", 0o644, is_durable=is_durable)
    # The text before it has its name, then the folder that holds the name.
    assert synced == ([(False, False), (True, True)] if is_durable else [])
    assert path.read_bytes() == b"one"


def test_a_folder_that_takes_no_files_is_an_error():
    with pytest.raises(FileNotFoundError):
        replace_file(Path("/proc/brn-no-such-file"), b"x", 0o644)


def test_a_scratch_file_that_a_dead_process_left_is_passed_over(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(files, "_numbers", itertools.count(1))
    left = tmp_path / f".file.{os.getpid()}-1.tmp"
    left.write_text("")
    assert replace_file(tmp_path / "file", b"x", 0o644)
    assert (tmp_path / "file").read_bytes() == b"x"
    assert left.exists()
