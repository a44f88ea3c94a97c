"""felix.config_inert: parameters without effect have none; all others have one."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import cni
import felix
from felix.config import SCHEMA, FelixConfig
from felix.config_inert import FACTS, InertParams

INERT = {item.name for item in dataclasses.fields(InertParams)}
LIVE = {item.name for item in dataclasses.fields(FelixConfig)} - INERT
ROWS = [row for row in SCHEMA.params if row.attribute in INERT]
# They act by what their parsers refuse.
REFUSING = {"datastore_type": "kubernetes"}


def _identifier(node: ast.expr) -> str:
    """`config` in config, self._config, self._config() and live.config."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _reads(source: str) -> set[str]:
    """Attributes that are read of something called a configuration."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and _identifier(node.value).endswith("config")
    }


def all_reads() -> dict[str, set[str]]:
    sources = [p for package in (felix, cni) for p in Path(package.__file__).parent.rglob("*.py")]
    return {path.name: _reads(path.read_text()) for path in sources}


def test_no_restart_for_what_changes_nothing():
    assert [row.name for row in ROWS if row.restart] == []
    assert len(ROWS) == len(INERT) > 130
    assert FACTS < INERT


def test_nothing_in_felix_reads_an_inert_parameter():
    """What starts to act on one moves its row to felix/config.py first."""
    readers = [f"{name}: {read & INERT}" for name, read in all_reads().items() if read & INERT]
    assert readers == []


def test_everything_else_is_read_somewhere():
    """A parameter that silently does nothing is a lie: its row belongs into config_inert.py."""
    read = set().union(*all_reads().values())
    assert sorted(LIVE - read - REFUSING.keys()) == []


def test_the_scan_sees_reads_and_nothing_else():
    source = "config.a; self._config().b; local.live.config.c; spec.d; self.config = 1; config_of.e"
    assert _reads(source) == {"a", "b", "c"}


@pytest.mark.parametrize(("attribute", "word"), REFUSING.items())
def test_what_cannot_be_honoured_is_refused(attribute, word):
    (row,) = [row for row in SCHEMA.params if row.attribute == attribute]
    with pytest.raises(ValueError, match="only etcdv3"):
        row.parse(word)
    assert row.parse(str(row.default).upper()) == row.default


FREE_TEXT = {row.name for row in ROWS if row.default == ""} | {
    "DataplaneDriver",
    "MetadataAddr",
    "TyphaK8sNamespace",
    "LogFilePath",
    "DebugHost",
}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.name not in FREE_TEXT], ids=lambda row: row.name
)
def test_each_is_still_checked(row):
    """A bad value is refused by name, though a good one would do nothing."""
    with pytest.raises(ValueError):  # noqa: PT011 - every parser has its own words
        row.parse("(((")
