"""docs/policy-rules.md: the rows of the data model about policy name tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_page_of_policy_rows_names_tests_there_are():
    page = (ROOT / "docs/policy-rules.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) > 100
    texts = {path: (ROOT / "tests" / path).read_text() for path, _ in named}
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"def (test_)?{name}\(", texts[path])
    ]
    assert missing == []


def test_every_line_of_its_tables_names_a_test():
    page = (ROOT / "docs/policy-rules.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    rows = [line for line in rows if line not in ("|---|---|", "| row | test |")]
    assert [line for line in rows if "::" not in line] == []
