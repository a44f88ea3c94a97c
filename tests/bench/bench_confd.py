"""How soon a change in etcd is in force with 100 peers, and what rendering a large mesh costs.

Layer: tooling. `confd-change` is a node added to etcd until the running BIRD has its session (etcd,
confd as a process, check, rename, reload); the baseline is `bird -p`, the check alone, of the same
file. `confd-mesh-1000` is one pass in memory, context and both texts of a node among 1,000; the
baseline is plain string formatting of as many bytes in as many neighbours.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confd.birdc import Control
from confd.context import NodeIdentity, build
from confd.daemon import shipped
from confd.render import Renderer
from confd.view import DatastoreView
from libcalico.model import Node
from libcalico.model.codec import encode
from libcalico.model.keys import key_of, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import NodeBGPSpec, NodeSpec
from libcalico.syncer.api import SyncStatus, Update
from libcalico.testing.etcd import EtcdCluster
from tests.support.netns import Namespace, NamespaceSet, eventually

NAMES = {"confd-change", "confd-mesh-1000"}
ROOT = Path(__file__).parents[2]
PEERS, MESH, CHANGES, PASSES = 100, 1000, 5, 5
CHANGE_LIMIT_S, MESH_LIMIT_S = 1.0, 0.5
Entry = dict[str, Any]


def run(only: set[str]) -> list[Entry]:
    measures = {"confd-change": change, "confd-mesh-1000": mesh}
    return [measure() for name, measure in measures.items() if not only or name in only]


def address(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def node(number: int) -> Node:
    bgp = NodeBGPSpec(ipv4_address=f"{address(number)}/8")
    return Node(metadata=ObjectMeta(name=f"n{number}"), spec=NodeSpec(bgp=bgp))


def entry(name: str, found: list[float], limit_s: float, baseline: str, beside: float) -> Entry:
    value = statistics.median(found)
    return {
        "name": name,
        "value": value,
        "unit": "s",
        "baseline": baseline,
        "baseline_value": beside,
        "ratio": value / beside,
        "limit": limit_s,
        "ok": value <= limit_s,
        "spread": [min(found), max(found)],
        "note": "the limit is in seconds",
    }


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# -- one change


def change() -> Entry:
    with (
        NamespaceSet() as netns,
        tempfile.TemporaryDirectory() as place,
        EtcdCluster(Path(place) / "etcd") as cluster,
    ):
        for number in range(1, PEERS + 2):
            put(cluster, number)
        return _change(netns.make("bird"), Path(place), cluster)


def put(cluster: EtcdCluster, number: int) -> None:
    resource = node(number)
    cluster.ctl("put", path_of(key_of(resource)), encode(resource).decode())


def _change(namespace: Namespace, place: Path, cluster: EtcdCluster) -> Entry:
    file, sock = place / "run/bgp/bird.cfg", place / "run/bird.ctl"
    environ = {
        "PATH": os.environ["PATH"] + ":/usr/sbin",
        "PYTHONPATH": str(ROOT),
        "ETCD_ENDPOINTS": cluster.endpoints[0],
        "NODENAME": "n1",
        "CALICO_BGP_ENGINE": "bird",
        "CALICO_RUN_DIR": str(place / "run"),
        "CALICO_LOG_DIR": str(place),
    }
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    confd = subprocess.Popen([sys.executable, "-m", "confd.daemon"], env=environ, **quiet)  # type: ignore[call-overload]
    try:
        assert eventually(file.exists, timeout_s=30)
        namespace.spawn("bird", "-f", "-c", str(file), "-s", str(sock), **quiet)
        assert eventually(sock.exists, timeout_s=30)
        control = Control(str(sock))
        found = [
            timed(lambda n=number: _in_force(cluster, control, n))
            for number in range(PEERS + 2, PEERS + 2 + CHANGES)
        ]
        control.close()
    finally:
        confd.terminate()
        confd.wait(timeout=30)
    check = ["bird", "-p", "-c", str(file)]
    beside = [timed(lambda: subprocess.run(check, check=True, env=environ)) for _ in range(CHANGES)]
    return entry(
        "confd-change", found, CHANGE_LIMIT_S, "bird -p of the file", statistics.median(beside)
    )


def _in_force(cluster: EtcdCluster, control: Control, number: int) -> None:
    put(cluster, number)
    name = f"Mesh_{address(number).replace('.', '_')}"
    assert eventually(lambda: name in control.ask("show protocols")[1], timeout_s=30)


# -- a large mesh


def mesh() -> Entry:
    view = DatastoreView()
    resources = [node(number) for number in range(1, MESH + 1)]
    view.on_updates([Update(key_of(resource), resource, 1) for resource in resources])
    view.on_status(SyncStatus.IN_SYNC)
    renderer = Renderer(shipped("exabgp") / "templates")
    texts: list[str] = []

    def render() -> None:
        context = build(view, NodeIdentity("n1"), lambda _name, _key: None)
        assert context is not None
        rendered: dict[str, str] = {}
        variables = {"bgp": context, "speaker": context.speaker, "rendered": rendered}
        for source in ("exabgp.conf.j2", "speaker.json.j2"):
            rendered[source] = renderer.render(source, variables)
        texts[:] = rendered.values()

    found = [timed(render) for _ in range(PASSES)]
    piece = "".join(texts).replace("{", "{{").replace("}", "}}")
    piece = "{address} " + piece[: len(piece) // (MESH - 1)].rstrip("{}")

    def plain() -> None:
        assert "".join(piece.format(address=address(n)) for n in range(1, MESH))

    beside = statistics.median(timed(plain) for _ in range(PASSES))
    return entry("confd-mesh-1000", found, MESH_LIMIT_S, "str.format of the same bytes", beside)
