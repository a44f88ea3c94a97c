"""`endpoints-list-100k`: 100,000 WorkloadEndpoints listed from a real etcd and decoded.

Time and resident memory of the typed client (`ResourceClient.list`), beside the same keys listed
raw: the same stubs and pages, values neither copied nor decoded nor kept. Each run is a process of
its own, so that memory is its own; the two take turns. What etcdctl takes is in the note.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from libcalico.datastore.api import Put
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_keys import prefix_range
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.datastore.resources import ResourceClient
from libcalico.model import WorkloadEndpoint
from libcalico.model.keys import prefix_of
from libcalico.testing.etcd import EtcdCluster, EtcdOptions

NAMES = ("endpoints-list-100k",)
COUNT = 100_000
RUNS = 3
PREFIX = prefix_of("WorkloadEndpoint")
HERE = Path(__file__)
Get = Callable[[Any], Awaitable[Any]]  # KVStub.Range


def run() -> list[dict[str, Any]]:
    place = Path(tempfile.mkdtemp(prefix="brn-bench-", dir=memory_or_tmp()))
    # No election of a lone member because this process kept the machine busy for a second.
    options = EtcdOptions(heartbeat_ms=500, election_ms=5000)
    try:
        with EtcdCluster(place / "etcd", options=options) as cluster:
            asyncio.run(_fill(cluster.endpoints))
            return _measure(cluster.endpoints[0])
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _measure(endpoint: str) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, float]]] = {"decoded": [], "raw": []}
    for _ in range(RUNS):
        for way, results in found.items():
            results.append(_in_own_process(way, endpoint))
    note = f"etcdctl get -w protobuf: {_etcdctl_s(endpoint):.2f} s"
    return [
        _entry("s", found, "seconds", note),
        _entry("MiB", found, "grown_mib", "resident memory grown while listing"),
    ]


def _entry(
    unit: str, found: dict[str, list[dict[str, float]]], figure: str, note: str
) -> dict[str, Any]:
    ours = [result[figure] for result in found["decoded"]]
    value = statistics.median(ours)
    baseline = statistics.median(result[figure] for result in found["raw"])
    return {
        "name": NAMES[0],
        "value": value,
        "unit": unit,
        "baseline": "the same keys listed raw with the same stubs, nothing decoded or kept",
        "baseline_value": baseline,
        "ratio": value / max(baseline, 1e-9),
        "limit": None,
        "ok": None,
        "spread": [min(ours), max(ours)],
        "note": note,
    }


def _in_own_process(way: str, endpoint: str) -> dict[str, float]:
    command = [sys.executable, "-m", f"{__package__}.{HERE.stem}", way, endpoint]
    done = subprocess.run(
        command, cwd=HERE.parents[2], capture_output=True, timeout=120, check=False, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{way} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    if result["count"] != COUNT:
        raise RuntimeError(f"{way} saw {result['count']} of {COUNT} endpoints")
    return result


def _etcdctl_s(endpoint: str) -> float:
    command = ["etcdctl", "--endpoints", endpoint, "get", "--prefix", PREFIX, "-w", "protobuf"]
    began = time.perf_counter()
    subprocess.run(
        command, stdout=subprocess.DEVNULL, check=True, timeout=120,
        env={"PATH": os.environ["PATH"], "ETCDCTL_API": "3"},
    )  # fmt: skip
    return time.perf_counter() - began


async def _fill(endpoints: tuple[str, ...]) -> None:
    store = EtcdDatastore(EtcdConfig(endpoints))
    batch = 100
    for start in range(0, COUNT, batch * 8):
        await asyncio.gather(
            *(
                store.txn(
                    [], [endpoint_as_written(number) for number in range(first, first + batch)]
                )
                for first in range(start, min(start + batch * 8, COUNT), batch)
            )
        )
    await store.close()


def endpoint_as_written(number: int) -> Put:
    """As the CNI plugin writes it."""
    namespace, pod, node = f"ns-{number % 200}", f"web-{number}", f"node-{number % 1000}"
    name = f"{node.replace('-', '--')}-k8s-{pod.replace('-', '--')}-eth0"
    value = {
        "kind": "WorkloadEndpoint",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": name,
            "generateName": "web-",
            "namespace": namespace,
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "creationTimestamp": "2026-08-22T09:15:00Z",
            "labels": {
                "app": f"app-{number % 50}",
                "tier": "web",
                "projectcalico.org/namespace": namespace,
                "projectcalico.org/orchestrator": "k8s",
                "projectcalico.org/serviceaccount": "default",
            },
        },
        "spec": {
            "orchestrator": "k8s",
            "node": node,
            "containerID": f"{number:064x}",
            "pod": pod,
            "endpoint": "eth0",
            "serviceAccountName": "default",
            "ipNetworks": [f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/32"],
            "profiles": [f"kns.{namespace}", f"ksa.{namespace}.default"],
            "interfaceName": f"cali{number:011x}",
            "mac": "ee:ee:ee:ee:ee:ee",
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""}
            ],
        },
    }
    return Put(f"{PREFIX}{namespace}/{name}", json.dumps(value, separators=(",", ":")).encode())


# --- one run, in a process of its own ---


async def _one_run(way: str, endpoint: str) -> dict[str, float]:
    return await (_decoded(endpoint) if way == "decoded" else _raw(endpoint))


async def _decoded(endpoint: str) -> dict[str, float]:
    store = EtcdDatastore(EtcdConfig((endpoint,)))
    await store.get("/warm")  # the connection is not what is measured
    gc.collect()
    before, began = _resident_mib(), time.perf_counter()
    endpoints = await ResourceClient(store).list(WorkloadEndpoint)
    seconds, grown = time.perf_counter() - began, _resident_mib() - before
    assert endpoints.items[0].spec.profiles
    await store.close()
    return {"seconds": seconds, "grown_mib": grown, "count": len(endpoints)}


async def _raw(endpoint: str) -> dict[str, float]:
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(endpoint.removeprefix("http://"), options) as channel:
        get = rpc_pb2_grpc.KVStub(channel).Range
        await get(rpc_pb2.RangeRequest(key=b"/warm"))
        gc.collect()
        before, began = _resident_mib(), time.perf_counter()
        count = await count_by_pages(get, PREFIX)
        seconds, grown = time.perf_counter() - began, _resident_mib() - before
    return {"seconds": seconds, "grown_mib": grown, "count": count}


async def count_by_pages(get: Get, prefix: str) -> int:
    """The bare listing of one revision: pages of 5,000 asked for, counted and dropped."""
    first, end = prefix_range(prefix)
    count, revision, more = 0, 0, True
    while more:
        page = await get(
            rpc_pb2.RangeRequest(key=first, range_end=end, limit=5_000, revision=revision)
        )
        count, more, revision = count + len(page.kvs), page.more, page.header.revision
        first = page.kvs[-1].key + b"\0"
    return count


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_or_tmp() -> str:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_one_run(*sys.argv[1:]))))
