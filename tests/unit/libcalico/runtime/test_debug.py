"""libcalico.runtime.debug: everything in one file, whatever one object does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libcalico.errors import ConfigError
from libcalico.runtime.debug import KEEP, Dumps


def test_all_dumps_go_into_one_file_that_only_root_reads(tmp_path: Path):
    dumps = Dumps("calico-felix")
    dumps.register("routes", lambda: {"wanted": 3, "dirty": ["10.0.0.1/32"]})
    path = dumps.write(tmp_path / "log")
    content = json.loads(path.read_text())
    assert content["process"] == "calico-felix"
    assert content["routes"] == {"wanted": 3, "dirty": ["10.0.0.1/32"]}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in (tmp_path / "log").iterdir()] == [path.name]


def test_one_that_fails_costs_only_its_own_entry():
    dumps = Dumps("x")
    dumps.register("good", lambda: 1)
    dumps.register("bad", lambda: 1 // 0)
    loop: list[object] = []
    loop.append(loop)
    dumps.register("circular", lambda: loop)
    dumps.register("object", lambda: {"path": Path("/a")})
    content = dumps.collect()
    assert content["good"] == 1
    assert "ZeroDivisionError" in str(content["bad"])
    assert "error" in content["circular"]  # type: ignore[operator]
    assert content["object"] == {"path": "/a"}


def test_old_files_are_removed(tmp_path: Path):
    dumps = Dumps("x")
    paths = [dumps.write(tmp_path) for _ in range(KEEP + 3)]
    assert sorted(tmp_path.iterdir()) == sorted(paths[-KEEP:])


def test_an_unregistered_object_is_not_asked():
    dumps = Dumps("x")
    dumps.register("gone", lambda: 1)
    dumps.unregister("gone")
    assert "gone" not in dumps.collect()


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state dump"):
        Dumps("x").write(tmp_path / "file" / "log")
