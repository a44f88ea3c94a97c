"""The lab as a fixture: real etcd, calico-node on every node, pods through the CNI plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.lab import cluster, pods
from deploy.lab.cluster import Cluster
from deploy.lab.topology import Options

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(300))


def running_lab(name: str, options: Options) -> Iterator[Cluster]:
    """Up, then down whatever happens; remains of a crashed run are removed first."""
    if os.geteuid() != 0:
        pytest.skip("the lab makes network namespaces and needs root")
    cluster.destroy(name)
    try:
        yield cluster.up(name, options)
    finally:
        cluster.destroy(name)


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    """Three nodes, IPv4, full mesh: the one `make lab` makes."""
    yield from running_lab("e2e", Options())


@pytest.fixture
def web(lab: Cluster) -> Iterator[str]:
    """A web server on node1 and clients on node2 and node3; gone again after the test."""
    wanted = (
        ("web", "node1", {"app": "web"}),
        ("frontend", "node2", {"role": "frontend"}),
        ("other", "node3", {"role": "other"}),
    )
    try:
        for name, node, labels in wanted:
            pods.add(lab, name, node=node, labels=labels)
        pods.serve_http(lab, "web")
        yield lab.state.pods["web"].ips[0]
    finally:
        for name, _, _ in wanted:
            if name in lab.state.pods:
                pods.delete(lab, name)
