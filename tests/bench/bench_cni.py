"""CNI: start of the executable, and one whole ADD with address, route and policy in place.

`cni-exec`        exec of the Python client to the first byte on the agent's socket, beside
                  `python3 -c pass` of the same interpreter.
`cni-add`         one ADD on a node of a lab (real etcd, calico-node) with the executable that
                  install-cni made here: the C client where there is a compiler.
`cni-del`         the DEL of the same pods.
`cni-add-python`  ADD with the Python client, which machines without a compiler run.
All stand beside Debian's `ptp` with `host-local` in the same namespace and the same run; p50 of
50, one at a time, taken in turns so that all see the same machine.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cni import install
from deploy.lab import shell
from deploy.lab.cluster import Cluster, destroy, up
from deploy.lab.topology import Options

NAMES = ("cni-exec", "cni-add", "cni-del", "cni-add-python")
RUNS = 50
EXEC_LIMIT_MS = 25.0
# The Python client costs a start of Python; the C client is what is installed with a compiler.
LIMIT_RATIO, PYTHON_LIMIT_RATIO = 0.8, 1.5
REFERENCE_PLUGINS = Path("/usr/lib/cni")
CONF: dict[str, Any] = {"cniVersion": "1.0.0", "name": "bench"}


def run(only: set[str]) -> list[dict[str, Any]]:
    wanted = only or set(NAMES)
    entries = []
    if "cni-exec" in wanted:
        entries.append(exec_to_first_byte())
    if wanted & {"cni-add", "cni-del", "cni-add-python"}:
        entries += one_pod()
    return entries


# --- cni-exec -------------------------------------------------------------------------------------


def exec_to_first_byte() -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="brn-bench-"))
    try:
        place = folder / "cni.sock"
        (folder / "calico").write_bytes(install.render_client(place, "", lib_dir=folder))
        (folder / "calico").chmod(0o755)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(place))
            listener.listen(8)
            ours = _repeat(lambda: _first_byte(folder / "calico", listener))
        interpreter = install.base_python()
        command = [interpreter, "-c", "pass"]
        floor = _repeat(lambda: _wall(lambda: subprocess.run(command, check=True)))
    finally:
        shutil.rmtree(folder)
    return _entry("cni-exec", ours, "python3 -c pass", floor, limit=EXEC_LIMIT_MS, is_absolute=True)


def _first_byte(client: Path, listener: socket.socket) -> float:
    arrived: list[float] = []

    def serve() -> None:
        link, _ = listener.accept()
        with link:
            link.recv(1)
            arrived.append(time.perf_counter())

    thread = threading.Thread(target=serve)
    thread.start()
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0"}
    began = time.perf_counter()
    subprocess.run([client], env=environ, input=b"{}", capture_output=True, check=False)
    thread.join()
    return arrived[0] - began


# --- cni-add --------------------------------------------------------------------------------------


def one_pod() -> list[dict[str, Any]]:
    if not (REFERENCE_PLUGINS / "ptp").exists():
        raise RuntimeError(f"{REFERENCE_PLUGINS}/ptp is missing: no baseline")
    cluster = up("bench", Options(nodes=1))
    try:
        installed, python = clients(cluster)
        plugins = (installed, python, reference(cluster))
        taken: list[list[tuple[float, float]]] = [[], [], []]
        for _ in range(RUNS):
            for plugin, times in zip(plugins, taken, strict=True):
                times.append(_timed_pod(cluster, plugin))
    finally:
        destroy("bench")
    baseline = "ptp + host-local (Debian), same namespace"
    adds, dels = ([[pair[which] for pair in times] for times in taken] for which in (0, 1))
    return [
        _entry(name, ours, baseline, theirs, limit=limit, is_absolute=False)
        for name, ours, theirs, limit in (
            ("cni-add", adds[0], adds[2], LIMIT_RATIO),
            ("cni-del", dels[0], dels[2], LIMIT_RATIO),
            ("cni-add-python", adds[1], adds[2], PYTHON_LIMIT_RATIO),
        )
    ]


Plugin = tuple[Path, str, dict[str, Any]]


def clients(cluster: Cluster) -> tuple[Plugin, Plugin]:
    """The installed executable, and the Python client (the same file without a compiler)."""
    home = cluster.state.node_directory("node1")
    conf = {**CONF, "type": "calico", "ipam": {"type": "calico-ipam"}}
    installed = home / "cni/bin/calico"
    behind = home / "lib/cni-client/calico"
    python = behind if behind.exists() else installed
    path = str(home / "cni/bin")
    return (installed, path, conf), (python, path, conf)


def reference(cluster: Cluster) -> Plugin:
    data = str(cluster.state.directory / "host-local")
    ipam = {"type": "host-local", "subnet": "10.99.0.0/16", "dataDir": data}
    conf = {**CONF, "name": "reference", "type": "ptp", "ipam": ipam}
    return REFERENCE_PLUGINS / "ptp", str(REFERENCE_PLUGINS), conf


def _timed_pod(cluster: Cluster, plugin: Plugin) -> tuple[float, float]:
    """ADD and DEL of one pod, in seconds."""
    program, path, conf = plugin
    node = cluster.topology.node("node1")
    container = uuid.uuid4().hex
    pod = f"brn-bench-p-{container[:8]}"
    shell.ip(None, "netns", "add", pod)
    environ = cluster.environment(node) | {
        "CNI_CONTAINERID": container,
        "CNI_NETNS": f"/run/netns/{pod}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": path,
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p{container[:8]}",
    }
    stdin = json.dumps(conf).encode()
    # Without nsenter in the measurement: the plugin is started inside the node already.
    starter = [sys.executable, "-c", _IN_NODE, str(program)]
    try:
        add, delete = (
            shell.run(
                starter,
                namespace=node.namespace,
                env=environ | {"CNI_COMMAND": verb},
                stdin=stdin,
            )
            for verb in ("ADD", "DEL")
        )
        return float(add.stdout), float(delete.stdout)
    finally:
        shell.ip(None, "netns", "delete", pod)


_IN_NODE = """
import subprocess, sys, time
stdin = sys.stdin.buffer.read()
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], input=stdin, capture_output=True)
took = time.perf_counter() - began
if done.returncode:
    sys.exit(done.stdout.decode() + done.stderr.decode())
print(took)
"""


# --- both -----------------------------------------------------------------------------------------


def _repeat(measure: Callable[[], float]) -> list[float]:
    measure()
    return [measure() for _ in range(RUNS)]


def _wall(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _entry(
    name: str,
    ours: list[float],
    baseline: str,
    theirs: list[float],
    *,
    limit: float,
    is_absolute: bool,
) -> dict[str, Any]:
    value, base = statistics.median(ours) * 1000, statistics.median(theirs) * 1000
    ratio = value / base
    quartiles = statistics.quantiles(ours, n=10)
    return {
        "name": name,
        "value": value,
        "unit": "ms",
        "baseline": baseline,
        "baseline_value": base,
        "ratio": ratio,
        "limit": limit,
        "ok": (value if is_absolute else ratio) <= limit,
        "spread": f"p10 {quartiles[0] * 1000:.1f}, p90 {quartiles[-1] * 1000:.1f} ms",
        "note": "limit in ms" if is_absolute else "limit is the ratio",
    }
