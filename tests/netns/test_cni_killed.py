"""Felix and the CNI client die at every point of ADD and DEL; then the machine reboots.

What dies is real: the installed client, calico-felix on a real etcd and kernel
(tests.support.cni_mortal kills from inside, at the n-th crossing of an edge). What cleans up is the
product's as well: felix's sweep and calico-kube-controllers. No DEL ever comes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libcalico.model.keys import ResourceKey, path_of
from tests.support.cni_mortal import Plan
from tests.support.cni_node import ETCD, NODE, ROOT, CniNode
from tests.support.netns import Namespace, NamespaceSet, eventually

pytestmark = pytest.mark.timeout(300)
# Nothing is swept before the reboot, and no lease says after it that the node is alive.
QUIET = {
    "FELIX_STALEENDPOINTSWEEPINTERVALSECS": "0",
    "FELIX_REPORTINGINTERVALSECS": "0",
    "FELIX_PROMETHEUSMETRICSENABLED": "false",
}
SWEEP = QUIET | {
    "FELIX_STALEENDPOINTSWEEPINTERVALSECS": "1",
    "FELIX_STALEENDPOINTGRACESECS": "1",
}
COLLECT = {
    "ETCD_ENDPOINTS": ETCD,
    "DATASTORE_TYPE": "etcdv3",
    "HEALTH_ENABLED": "false",
    "PROMETHEUS_METRICS_PORT": "0",
    "LEAK_GRACE_PERIOD": "1s",
    "RECONCILER_PERIOD": "1s",
    "LEADER_LEASE_SECONDS": "2",
}
WAIT_S = 90.0
# How often each is killed, spread over the crossings that there are.
KILLS = {
    ("ADD", "felix"): 30,
    ("ADD", "client"): 12,
    ("DEL", "both"): 12,
    ("DEL", "felix"): 4,
    ("DEL", "client"): 4,
}


class Mortal:
    """Felixes that die as planned, each started when the last one is dead."""

    def __init__(self, node: CniNode, netns: NamespaceSet) -> None:
        self.node, self._netns = node, netns
        self._pods: list[Namespace] = []
        self._pid = 0
        self._done = node.directory / "log"
        self._done.mkdir()
        node.set_environment(**QUIET)
        with (node.directory / "felix.log").open("ab") as log:
            self._mother = node.ns.spawn(
                *(sys.executable, "-m", "tests.support.cni_mortal"),
                env=os.environ | node.environ, cwd=ROOT, stderr=log,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip

    def _start(self) -> None:
        if self._is_alive():
            return
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.write(b"\n")
        self._mother.stdin.flush()
        self._pid = int(self._mother.stdout.readline())
        self.node.wait_ready()

    def _is_alive(self) -> bool:
        return self._pid > 0 and Path(f"/proc/{self._pid}").exists()

    def _kill(self) -> None:
        if self._is_alive():
            os.kill(self._pid, signal.SIGKILL)
        assert eventually(lambda: not self._is_alive(), timeout_s=WAIT_S)

    def run(self, plan: Plan) -> bool:
        """An ADD, and the DEL if that is the plan's; whether somebody died of it. Returns when
        felix is dead or has finished, which with a dead client means: rolled back."""
        self._start()
        pod = self._netns.make("pod")
        self._pods.append(pod)
        name = str(plan).lower()
        code, result = self.node.call("ADD", str(plan), pod.path, name)
        if plan.verb == "DEL":
            assert code == 0, (plan, result, self.node.log()[-3000:])
            code, result = self.node.call("DEL", str(plan), pod.path, name)
        finished = self._done / str(plan)
        ended = eventually(lambda: finished.exists() or not self._is_alive(), timeout_s=WAIT_S)
        assert ended, self.node.log()
        return code == -signal.SIGKILL or not finished.exists()

    def crossings(self, plan: Plan) -> int:
        """How many there are when nobody dies."""
        assert not self.run(plan)
        return int((self._done / str(plan)).read_text())

    def measured(self) -> dict[tuple[str, str], int]:
        """By verb and victim: the client's felix has served others before, the other has not."""
        self.run(Plan("ADD", "nobody", 0))  # the first one claims blocks besides
        found: dict[tuple[str, str], int] = {}
        for verb in ("ADD", "DEL"):
            self._kill()
            cold = self.crossings(Plan(verb, "nobody", 1))
            warm = self.crossings(Plan(verb, "nobody", 2))
            found |= {(verb, "felix"): cold, (verb, "both"): cold, (verb, "client"): warm}
        return found

    def reboot(self) -> None:
        """No process and no namespace of before, nothing in the kernel, /run empty."""
        self._kill()
        self._mother.kill()
        for pod in self._pods:
            pod.remove()
        ns = self.node.ns
        for line in ns.run("ip", "-o", "link").splitlines():
            name = line.split()[1].partition("@")[0].rstrip(":")
            if name.startswith("cali"):
                ns.succeeds("ip", "link", "del", name)  # its pod's end may have gone meanwhile
        assert eventually(lambda: ": cali" not in ns.run("ip", "-o", "link"), timeout_s=WAIT_S)
        ns.run("nft", "flush", "ruleset")
        shutil.rmtree(self.node.directory / "run")


@pytest.fixture
def node(cni_node: CniNode) -> CniNode:
    return cni_node


def plans(crossings: dict[tuple[str, str], int]) -> Iterator[Plan]:
    for (verb, who), count in KILLS.items():
        for number in range(count):
            yield Plan(verb, who, 1 + number * crossings[verb, who] // count)


def blocks(node: CniNode) -> dict[str, list[int | None]]:
    """What each block has assigned."""
    found = {}
    for key in node.keys("/ipam/v2/assignment/"):
        value = json.loads(node.ns.run("etcdctl", "get", key, "--print-value-only"))
        found[value["cidr"]] = [index for index in value["allocations"] if index is not None]
    return found


def test_whoever_dies_at_whatever_point_nothing_is_lost_after_a_reboot(
    node: CniNode, netns: NamespaceSet
):
    mortal = Mortal(node, netns)
    planned = list(plans(mortal.measured()))
    died = [plan for plan in planned if mortal.run(plan)]
    assert len(set(died)) >= 40, (planned, died)
    mortal.reboot()
    assert node.endpoints()
    assert node.handles()

    node.start_felix(**SWEEP)
    node.wait_ready()
    with (node.directory / "controllers.log").open("ab") as log:
        command = (sys.executable, "-m", "controllers.daemon")
        node.ns.spawn(*command, env=os.environ | COLLECT, cwd=ROOT, stderr=log)

    def is_clean() -> bool:
        """Every address is free, and the node keeps one block of each family."""
        left = node.keys("/workloadendpoints/") + node.keys("/ipam/v2/handle/")
        is_free = list(blocks(node).values()) == [[], []]
        return not left and is_free and len(node.keys(f"/ipam/v2/host/{NODE}/")) == 2

    clean = eventually(is_clean, timeout_s=WAIT_S, interval_s=0.2)
    assert clean, (node.keys("/ipam/v2/"), node.endpoints(), node.log())
    assert node.queued() == 0
    assert node.violations() == []
    the_node_goes_as_well(node)


def the_node_goes_as_well(node: CniNode) -> None:
    """Without its Node nothing of it stays in IPAM."""
    node.kill_felix()
    node.ns.run("etcdctl", "del", path_of(ResourceKey("Node", NODE)))
    gone = eventually(lambda: node.keys("/ipam/v2/") == [], timeout_s=WAIT_S, interval_s=0.2)
    assert gone, node.keys("/ipam/v2/")
    assert node.violations() == []


def test_a_felix_that_is_told_to_stop_while_pods_start_rolls_back_and_ends(cni_node, netns):
    """Whatever it was doing for them; nothing waits for a part of felix that has ended before."""
    node = cni_node
    node.start_felix(**QUIET)
    node.wait_ready()
    for round_ in range(3):
        pods = [netns.make(f"stop{round_}x{i}") for i in range(20)]
        calls = [
            node.start_call("ADD", f"s{round_}x{i}", pod.path, pod=f"s{round_}x{i}")
            for i, pod in enumerate(pods)
        ]
        assert eventually(lambda: node.handles() != set())
        node.stop_felix()
        codes = [call.wait(timeout=30) for call in calls]
        assert "tasks did not end in time" not in node.log()
        made = node.endpoints()
        assert len(made) >= codes.count(0)
        node.start_felix(**QUIET)
        node.wait_ready()
        for i, pod in enumerate(pods):
            name = f"s{round_}x{i}"
            assert node.call("DEL", name, pod.path, pod=name)[0] == 0
        assert eventually(lambda: node.leftovers() == []), node.leftovers()
    node.stop_felix()
