"""Fixtures of the tests with a foreign BGP speaker: a switch with nodes on it, always removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.base import Fabric
from tests.support.netns import NamespaceSet, why_unavailable

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.peers)
            item.add_marker(pytest.mark.netns)


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    """Nodes on one switch; needs root, veth, bridge and bird."""
    reason = why_unavailable("veth", "bridge")
    if not reason and shutil.which("bird") is None:
        reason = "no bird"
    if reason:
        pytest.skip(reason)
    with NamespaceSet() as netns:
        made = Fabric(netns, tmp_path)
        yield made
        made.close()
