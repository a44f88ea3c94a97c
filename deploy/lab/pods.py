"""Pods of the lab, wired as a container runtime would: by executing the CNI plugins.

Layer: edge. `add` and `delete` do what libcni does with a network configuration list: every
plugin in order (reverse on delete), `name`, `cniVersion` and `prevResult` injected, the result of
one handed to the next. Labels travel in `args.cni.labels`, the CNI convention for them.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.lab import shell
from deploy.lab.cluster import Cluster
from deploy.lab.shell import LabError, ip
from deploy.lab.state import Pod

Json = dict[str, Any]
# A DNS label, as Kubernetes wants it; the length leaves room for the namespace's "brn-<lab>-p-".
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def add(
    cluster: Cluster,
    name: str,
    *,
    node: str,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
) -> Pod:
    """Make the pod's network namespace and run CNI ADD. On failure nothing of the pod is left."""
    if not _NAME.fullmatch(name):
        raise LabError(f"pod {name!r}: lower-case letters, digits and '-' between, at most 40")
    if name in cluster.state.pods:
        raise LabError(f"pod {name!r} exists already")
    cluster.topology.node(node)
    pod = Pod(name, node, uuid.uuid4().hex, namespace, labels or {})
    netns = cluster.topology.pod_namespace(name)
    cluster.state.pods[name] = pod
    cluster.state.save()
    ip(None, "netns", "add", netns)
    try:
        result = run_cni(cluster, pod, "ADD")
    except LabError:
        # What the runtime does: a DEL whose own failure must not hide the ADD's.
        with suppress(LabError):
            run_cni(cluster, pod, "DEL")
        _forget(cluster, name)
        raise
    pod.ips = [entry["address"].partition("/")[0] for entry in result.get("ips", ())]
    cluster.state.save()
    return pod


def delete(cluster: Cluster, name: str) -> None:
    """CNI DEL, then the namespace. Deleting what is half there works."""
    pod = cluster.state.pods.get(name)
    if pod is None:
        raise LabError(f"no pod {name!r}")
    cluster.stop(f"http-{name}")
    run_cni(cluster, pod, "DEL")
    _forget(cluster, name)


def _forget(cluster: Cluster, name: str) -> None:
    ip(None, "netns", "delete", cluster.topology.pod_namespace(name), check=False)
    del cluster.state.pods[name]
    cluster.state.save()


def serve_http(cluster: Cluster, name: str, port: int = 80) -> None:
    """A small web server in the pod, answering with the pod's name."""
    root = cluster.state.directory / "www" / name
    root.mkdir(parents=True, exist_ok=True)
    (root / "index.html").write_text(f"hello from {name}\n")
    command = ["python3", "-m", "http.server", str(port), "--bind", "::"]
    cluster.start(
        f"http-{name}",
        [*command, "--directory", str(root)],
        namespace=cluster.topology.pod_namespace(name),
        log=f"www/{name}.log",
    )
    probe = ["curl", "-s", "-o", "/dev/null", "--max-time", "1", f"http://127.0.0.1:{port}/"]
    netns = cluster.topology.pod_namespace(name)

    def answers() -> bool:
        return shell.run(probe, namespace=netns, check=False).returncode == 0

    if not shell.wait_until(answers, timeout_s=20, every_s=0.1):
        raise LabError(f"the web server of pod {name} does not answer itself")


def can_ping(cluster: Cluster, source: str, address: str, *, wait_s: int = 2) -> bool:
    command = ["ping", "-c", "1", "-W", str(wait_s), address]
    netns = cluster.topology.pod_namespace(source)
    return shell.run(command, namespace=netns, check=False).returncode == 0


def can_http(cluster: Cluster, source: str, address: str, *, wait_s: int = 2) -> bool:
    command = ["curl", "-s", "-f", "-o", "/dev/null", "--max-time", str(wait_s), url(address)]
    netns = cluster.topology.pod_namespace(source)
    return shell.run(command, namespace=netns, check=False).returncode == 0


def url(address: str) -> str:
    """The pod's web page; an IPv6 address goes into brackets."""
    return f"http://[{address}]/" if ":" in address else f"http://{address}/"


def run_cni(cluster: Cluster, pod: Pod, verb: str) -> Json:
    """Run one verb over the node's configuration list. Returns the last result (empty for DEL)."""
    home = cluster.state.node_directory(pod.node)
    conf = _conflist(home / "cni/net.d")
    plugins = list(conf["plugins"])
    previous: Json = {}
    for plugin in plugins if verb == "ADD" else reversed(plugins):
        stdin = plugin | {"cniVersion": conf["cniVersion"], "name": conf["name"]}
        labels = [{"key": key, "value": value} for key, value in pod.labels.items()]
        stdin["args"] = {"cni": {"labels": labels}}
        if previous:
            stdin["prevResult"] = previous
        previous = _execute(cluster, pod, verb, stdin) or previous
    return previous


def _conflist(directory: Path) -> Json:
    files = sorted(directory.glob("*.conflist"))
    if not files:
        raise LabError(f"no CNI configuration in {directory}; is calico-node install-cni done?")
    loaded: Json = json.loads(files[0].read_text())
    return loaded


def _execute(cluster: Cluster, pod: Pod, verb: str, stdin: Json) -> Json:
    home = cluster.state.node_directory(pod.node)
    node = cluster.topology.node(pod.node)
    path = f"{home / 'cni/bin'}:/usr/lib/cni"
    program = next(
        (d for d in path.split(":") if os.access(Path(d) / stdin["type"], os.X_OK)), None
    )
    if program is None:
        raise LabError(f"CNI plugin {stdin['type']!r} not found in {path}")
    netns = shell.NETNS_DIR / cluster.topology.pod_namespace(pod.name)
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={pod.namespace};K8S_POD_NAME={pod.name}"
    # A runtime gives its plugins nothing but this.
    env = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": pod.container_id,
        "CNI_NETNS": str(netns) if netns.exists() else "",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": path,
        "CNI_ARGS": args,
    }
    done = shell.run(
        [str(Path(program) / stdin["type"])],
        namespace=node.namespace,
        env=env,
        stdin=json.dumps(stdin).encode(),
        check=False,
    )
    if done.returncode:
        said = (done.stdout or done.stderr).decode(errors="replace").strip()
        raise LabError(f"CNI {verb} of pod {pod.name} failed: {said}")
    answer: Json = json.loads(done.stdout) if done.stdout.strip() else {}
    return answer
