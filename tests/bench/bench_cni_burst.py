"""CNI: a hundred pods that start at once, and end at once.

`cni-add-100`, `cni-del-100`          pods per second, on a node of a lab (real etcd, calico-node,
                                      policy in the kernel) with the executable install-cni made.
`cni-add-100-p99`, `cni-del-100-p99`  the time of the slowest but one of them.
All beside Debian's `ptp` with `host-local` in the same namespace and the same run, taken in turns;
the median of the rounds. The processes are started by one program inside the node, so what is
measured includes starting them, for both.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from dataclasses import dataclass, field
from typing import Any

from deploy.lab import shell
from deploy.lab.cluster import Cluster, destroy, up
from deploy.lab.topology import Options
from tests.bench.bench_cni import REFERENCE_PLUGINS, Plugin, clients, reference

NAMES = ("cni-add-100", "cni-add-100-p99", "cni-del-100", "cni-del-100-p99")
PODS, ROUNDS = 100, 5
RATE_LIMIT_RATIO, P99_LIMIT_RATIO = 2.0, 0.7
BASELINE = "ptp + host-local (Debian), same namespace"


@dataclass(slots=True)
class Taken:
    """By verb: pods per second and the 99th percentile in ms, one of each per round."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {"ADD": [], "DEL": []})
    p99_ms: dict[str, list[float]] = field(default_factory=lambda: {"ADD": [], "DEL": []})

    def note(self, verb: str, spans: list[tuple[float, float]]) -> None:
        whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
        self.rates[verb].append(len(spans) / whole)
        times = [(end - begin) * 1000 for begin, end in spans]
        self.p99_ms[verb].append(statistics.quantiles(times, n=100)[-1])


def run() -> list[dict[str, Any]]:
    if not (REFERENCE_PLUGINS / "ptp").exists():
        raise RuntimeError(f"{REFERENCE_PLUGINS}/ptp is missing: no baseline")
    cluster = up("bench", Options(nodes=1))
    try:
        plugins = (clients(cluster)[0], reference(cluster))
        taken = (Taken(), Taken())
        for number in range(ROUNDS):
            for plugin, into in zip(plugins, taken, strict=True):
                _round(cluster, plugin, number, into)
    finally:
        destroy("bench")
    ours, theirs = taken
    entries = []
    for verb, name in (("ADD", "cni-add-100"), ("DEL", "cni-del-100")):
        entries.append(_entry(name, "pods/s", ours.rates[verb], theirs.rates[verb]))
        entries.append(_entry(f"{name}-p99", "ms", ours.p99_ms[verb], theirs.p99_ms[verb]))
    return entries


def _round(cluster: Cluster, plugin: Plugin, number: int, into: Taken) -> None:
    pods = [f"brn-bench-p-{os.getpid()}x{number}x{i}" for i in range(PODS)]
    try:
        for pod in pods:
            shell.ip(None, "netns", "add", pod)
        for verb in ("ADD", "DEL"):
            into.note(verb, _all_at_once(cluster, plugin, verb, pods))
    finally:
        for pod in pods:
            shell.ip(None, "netns", "delete", pod)


def _all_at_once(
    cluster: Cluster, plugin: Plugin, verb: str, pods: list[str]
) -> list[tuple[float, float]]:
    program, path, conf = plugin
    node = cluster.topology.node("node1")
    jobs = [
        {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": pod,
            "CNI_NETNS": f"/run/netns/{pod}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": path,
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}",
        }
        for pod in pods
    ]
    order = json.dumps({"program": str(program), "conf": json.dumps(conf), "jobs": jobs}).encode()
    starter = [sys.executable, "-c", _IN_NODE]
    environ = cluster.environment(node)
    done = shell.run(starter, namespace=node.namespace, env=environ, stdin=order)
    return [(begin, end) for begin, end in json.loads(done.stdout)]


_IN_NODE = """
import json, os, subprocess, sys, tempfile, time
order = json.load(sys.stdin)
conf = tempfile.TemporaryFile()
conf.write(order["conf"].encode())
conf.flush()
began, running, ended = {}, {}, {}
for number, job in enumerate(order["jobs"]):
    stdin = open(f"/proc/self/fd/{conf.fileno()}", "rb")
    out = tempfile.TemporaryFile()
    began[number] = time.perf_counter()
    child = subprocess.Popen([order["program"]], env={**os.environ, **job}, stdin=stdin, stdout=out)
    stdin.close()
    running[child.pid] = number, child, out
while running:
    pid, status = os.wait()
    number, child, out = running.pop(pid)
    child.returncode = status
    ended[number] = time.perf_counter()
    if status:
        out.seek(0)
        sys.exit(out.read().decode())
json.dump([(began[n], ended[n]) for n in sorted(began)], sys.stdout)
"""


def _entry(name: str, unit: str, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    value, base = statistics.median(ours), statistics.median(theirs)
    is_rate = unit == "pods/s"
    limit = RATE_LIMIT_RATIO if is_rate else P99_LIMIT_RATIO
    ratio = value / base
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "baseline": BASELINE,
        "baseline_value": base,
        "ratio": ratio,
        "limit": limit,
        "ok": ratio >= limit if is_rate else ratio <= limit,
        "spread": f"{_range(ours)}, theirs {_range(theirs)}",
        "note": "the ratio at least" if is_rate else "limit is the ratio",
    }


def _range(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"
