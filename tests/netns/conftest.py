"""Fixtures of the tests that need a real kernel: namespaces that are always removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cni_node import CniNode
from tests.support.netns import Namespace, NamespaceSet, why_unavailable

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.netns)


@pytest.fixture
def netns() -> Iterator[NamespaceSet]:
    """A maker of namespaces; needs root and veth."""
    reason = why_unavailable("veth")
    if reason:
        pytest.skip(reason)
    with NamespaceSet() as made:
        yield made


@pytest.fixture
def node(netns: NamespaceSet) -> Namespace:
    return netns.make("node")


@pytest.fixture
def cni_node(netns: NamespaceSet, tmp_path: Path) -> CniNode:
    """A node of the test's own; felix is not running yet."""
    reason = why_unavailable("nft")
    if not reason and shutil.which("etcd") is None:
        reason = "etcd is not installed"
    if reason:
        pytest.skip(reason)
    return CniNode(netns, tmp_path)
