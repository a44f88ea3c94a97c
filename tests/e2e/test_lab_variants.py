"""The lab's other shapes: dual stack, and route reflectors instead of the mesh."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from deploy.lab import cluster, pods, shell
from deploy.lab.cluster import Cluster
from deploy.lab.topology import Options
from tests.e2e.conftest import running_lab

VARIANTS = {
    "dual-stack": Options(nodes=2, ipv6=True),
    "reflectors": Options(nodes=3, rr=True),
}


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from running_lab("e2ev", VARIANTS[request.param])


def test_every_pod_reaches_every_other(variant):
    for index, node in enumerate(variant.topology.workers):
        pods.add(variant, f"p{index}", node=node.name)
    everyone = list(variant.state.pods.values())
    families = 2 if variant.state.options.ipv6 else 1
    assert all(len(pod.ips) == families for pod in everyone)
    for source, target in itertools.permutations(everyone, 2):
        for address in target.ips:
            assert shell.wait_until(
                lambda s=source.name, a=address: pods.can_ping(variant, s, a), timeout_s=15
            ), f"{source.name} -> {target.name} {address}"


def test_every_node_has_exactly_the_sessions_of_its_shape(variant):
    # Full mesh: every other node, in both families. Reflectors: workers know rr1 and rr2 alone.
    for node in variant.topology.nodes:
        assert set(variant.peers(node.name)) == variant.expected_peers(node)


def test_down_leaves_nothing_behind():
    cluster.destroy("e2ed")
    made = cluster.up("e2ed", Options(nodes=1))
    pods.add(made, "p", node="node1")
    processes = list(made.state.processes.values())
    daemons = made.daemon_pids("node1")
    assert daemons
    cluster.destroy("e2ed")
    assert not any(ns.startswith("brn-e2ed-") for ns in shell.namespaces())
    assert not any(shell.is_running(process) for process in processes)
    assert not any(shell.start_time(pid) for pid in daemons)
    assert not made.state.directory.exists()
