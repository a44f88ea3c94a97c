"""Garbage for tests of the collector: nodes that are gone, and the daemon that cleans up.

`leave_behind` makes what a node leaves when its Node object is removed by hand: blocks, addresses
with handles, a tunnel address, the legacy marker. `controllers_process` is the real daemon.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from ipam.client import IpamClient
from ipam.handles import Tunnel
from ipam.pools import Pool
from libcalico.datastore.api import Datastore
from libcalico.model import WorkloadEndpoint
from libcalico.model.codec import encode
from libcalico.model.defaults import initial_cluster_information, with_defaults
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.ippool import IPPool, IPPoolSpec
from libcalico.model.keys import IpamHostKey, ResourceKey, key_of, path_of
from libcalico.model.meta import ObjectMeta, Resource
from libcalico.model.names import EndpointIds, endpoint_name
from libcalico.model.node import Node, NodeSpec
from libcalico.testing.etcd import EtcdCluster
from tests.support.ipam import ask, client, source

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 16


def stored(resource: Resource) -> dict[str, bytes]:
    """Key and value."""
    return {path_of(key_of(resource)): encode(with_defaults(resource))}


async def put(store: Datastore, resource: Resource) -> None:
    for key, value in stored(resource).items():
        await store.put(key, value)


async def initialised(store: Datastore, pools: Iterable[Pool], nodes: Iterable[str]) -> None:
    """ClusterInformation, pools and Node objects."""
    await put(store, initial_cluster_information("0" * 32))
    for pool in pools:
        spec = IPPoolSpec(cidr=str(pool.cidr), block_size=pool.block_size)
        await put(store, IPPool(metadata=ObjectMeta(name=pool.name), spec=spec))
    for name in nodes:
        await put(store, node(name))


def node(name: str) -> Node:
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec())


def endpoint(name: str, on: str, *addresses: str, orchestrator: str = "k8s") -> WorkloadEndpoint:
    ids = EndpointIds(node=on, orchestrator=orchestrator, pod=name, endpoint="eth0")
    if orchestrator != "k8s":
        ids = EndpointIds(node=on, orchestrator=orchestrator, workload=name, endpoint="eth0")
    spec = WorkloadEndpointSpec(
        orchestrator=orchestrator, node=on, pod=name if orchestrator == "k8s" else None,
        workload=None if orchestrator == "k8s" else name, container_id=name, endpoint="eth0",
        ip_networks=addresses, interface_name=f"cali{name[:11]}",
    )  # fmt: skip
    return WorkloadEndpoint(metadata=ObjectMeta(name=endpoint_name(ids), namespace="ns"), spec=spec)


def endpoint_key(name: str, on: str) -> ResourceKey:
    return key_of(endpoint(name, on))


async def connected(ipam: IpamClient, store: Datastore, name: str, on: str) -> str:
    """A pod with an address and an endpoint; returns the address."""
    got = await ipam.auto_assign(ask(name, on))
    address = str(got.addresses[0].ip)
    await put(store, endpoint(name, on, f"{address}/32"))
    return address


async def leave_behind(store: Datastore, pool: Pool, nodes: Iterable[str], *, pods: int) -> None:
    """What these nodes held, without their Node objects."""
    names = list(nodes)
    ipam = client(store, source(pool, nodes=names))
    permits = asyncio.Semaphore(AT_ONCE)

    async def leave(name: str) -> None:
        async with permits:
            await ipam.auto_assign(ask(f"{name}-bulk", name, v4=pods))
            await ipam.auto_assign(ask(f"{name}-one", name))
            await ipam.tunnels.address(Tunnel.IPIP, name, [pool.cidr])
            await store.put(path_of(IpamHostKey(name)), b"")

    await asyncio.gather(*map(leave, names))


@asynccontextmanager
async def controllers_process(
    cluster: EtcdCluster, **environ: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Killed at the end, if it still runs."""
    settings = {
        "ETCD_ENDPOINTS": ",".join(cluster.endpoints),
        "DATASTORE_TYPE": "etcdv3",
        "HEALTH_ENABLED": "false",
        "PROMETHEUS_METRICS_PORT": "0",
        "RECONCILER_PERIOD": "1h",
        "LEADER_LEASE_SECONDS": "2",
        **environ,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controllers.daemon", cwd=ROOT, env={**os.environ, **settings},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def holder(value: bytes) -> str:
    found: str = json.loads(value)["holder"]
    return found
