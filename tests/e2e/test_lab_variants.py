"""The lab's other shapes: dual stack, and route reflectors instead of the mesh."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy.lab import cluster, pods, shell
from deploy.lab.cluster import Cluster
from deploy.lab.shell import LabError
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


@pytest.fixture(scope="module")
def commanded() -> Iterator[Cluster]:
    """A lab changed by `lab` commands, each its own process."""
    yield from running_lab("e2ec", Options(nodes=1))


def lab_command(*argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "deploy.lab", "--name", "e2ec", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_commands_at_the_same_time_forget_no_pod(commanded):
    names = [f"c{index}" for index in range(4)]
    running = [lab_command("pod", "add", name, "--node", "node1") for name in names]
    assert [process.communicate()[1] for process in running] == [""] * 4
    state = cluster.attach("e2ec").state
    assert sorted(state.pods) == names
    assert len({pod.ips[0] for pod in state.pods.values()}) == 4


@pytest.mark.parametrize("name", ["", "../up", "A", "-a", "a-", "a" * 41])
def test_a_pod_name_that_is_none_makes_nothing(commanded, name):
    before = shell.namespaces()
    process = lab_command("pod", "add", "--node", "node1", "--", name)
    said = process.communicate()[1]
    assert process.returncode == 1
    assert said == f"lab: pod {name!r}: lower-case letters, digits and '-' between, at most 40\n"
    assert shell.namespaces() == before


def test_a_failed_add_says_why_and_leaves_nothing(commanded):
    conflist = next((commanded.state.node_directory("node1") / "cni/net.d").glob("*.conflist"))
    good = conflist.read_text()
    conflist.write_text(good.replace('"type": "calico-ipam"', '"type": "calico-ipam-not-there"'))
    assert conflist.read_text() != good
    before = shell.namespaces()
    try:
        lab = cluster.attach("e2ec")
        with pytest.raises(
            LabError, match=r"(?s)CNI ADD of pod failing failed: .*calico-ipam-not-"
        ):
            pods.add(lab, "failing", node="node1")
    finally:
        conflist.write_text(good)
    assert shell.namespaces() == before
    assert "failing" not in cluster.attach("e2ec").state.pods
