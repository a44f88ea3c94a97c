"""felix.config_inert: parameters without effect have none, and do not ask for a restart."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import felix
from felix.config import SCHEMA
from felix.config_inert import InertParams

INERT = {item.name for item in dataclasses.fields(InertParams)}
ROWS = [row for row in SCHEMA.params if row.attribute in INERT]


def test_no_restart_for_what_changes_nothing():
    assert [row.name for row in ROWS if row.restart] == []
    assert len(ROWS) == len(INERT) > 80


def test_nothing_in_felix_reads_an_inert_parameter():
    """What starts to act on one moves its row to felix/config.py first."""
    readers = []
    for path in Path(felix.__file__).parent.rglob("*.py"):
        words = set(re.findall(r"\.([a-z_0-9]+)", path.read_text()))
        if path.name != "config_inert.py":
            readers += [f"{path.name}: {name}" for name in sorted(words & INERT)]
    assert readers == []


FREE_TEXT = {row.name for row in ROWS if row.default == ""} | {"DataplaneDriver", "MetadataAddr"}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.name not in FREE_TEXT], ids=lambda row: row.name
)
def test_each_is_still_checked(row):
    """A bad value is refused by name, though a good one would do nothing."""
    with pytest.raises(ValueError):  # noqa: PT011 - every parser has its own words
        row.parse("(((")
