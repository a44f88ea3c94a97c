"""Processes on as many hosts race for the last blocks, while writes fail and etcd loses its leader.

IPAM_RACERS sets the number of processes (the issue's figure is 50; the default suits two cores).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ipam import leaks
from ipam.client import IpamClient
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.errors import NotFound
from libcalico.net import parse_ip
from libcalico.testing.etcd import EtcdCluster
from tests.support.ipam import all_blocks, all_handles, audited, consistent, held, pool, source

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
RACERS = int(os.environ.get("IPAM_RACERS", "8"))
# Sixteen blocks of eight addresses, six of them reserved: ten blocks to race for.
POOL, BLOCK_SIZE, RESERVED = "10.0.0.0/25", 29, ["10.0.0.80/28", "10.0.0.96/27"]
WRITES_BETWEEN_LOSSES = 60
WAIT_S = 60.0


async def racer(cluster: EtcdCluster, host: str, seed: int) -> dict[str, object]:
    order = {
        "what": "race", "endpoints": cluster.endpoints, "host": host, "seed": seed,
        "pool": POOL, "block_size": BLOCK_SIZE, "reserved": RESERVED,
        "faults": 0.3, "steps": 60, "release": 0.8,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.ipam_racer", json.dumps(order),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    found: dict[str, object] = json.loads(out)
    return found


async def lose_the_leader(cluster: EtcdCluster, times: int) -> None:
    """Each time some writes went through: kill it, and bring it back when more went through
    without it."""
    store = EtcdDatastore(EtcdConfig(cluster.endpoints))
    try:
        for _ in range(times):
            await writes_go_on(store)
            member = await asyncio.to_thread(cluster.leader)
            await asyncio.to_thread(member.kill)
            await writes_go_on(store)
            member.start()
            await asyncio.to_thread(member.wait_ready)
    finally:
        await store.close()


async def writes_go_on(store: EtcdDatastore) -> None:
    """Until others have written a while."""
    start = (await store.list("/calico/none/")).revision
    watch = store.watch("/calico/", start + 1)
    async with asyncio.timeout(WAIT_S), contextlib.aclosing(watch) as batches:
        async for batch in batches:
            if batch.revision >= start + WRITES_BETWEEN_LOSSES:
                return


async def test_a_race_with_failing_writes_and_lost_leaders_ends_clean(
    etcd_cluster_factory: Callable[..., EtcdCluster],
):
    cluster = etcd_cluster_factory(size=3)
    hosts = [f"n{i}" for i in range(RACERS)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(racer(cluster, host, i)) for i, host in enumerate(hosts)]
        group.create_task(lose_the_leader(cluster, 2))
    reports = [task.result() for task in tasks]

    store = EtcdDatastore(EtcdConfig(cluster.endpoints))
    try:
        assert await audited(store) == []
        await consistent(store)
        believed = {
            parse_ip(address): f"net.{name}"
            for report in reports
            for name, address in report["holds"].items()  # type: ignore[attr-defined]
        }
        assert len(believed) == sum(len(report["holds"]) for report in reports)  # type: ignore[arg-type]
        actual = await held(store)
        assert {a: actual.get(a) for a in believed} == believed

        ipam = IpamClient(store, source(pool("a", POOL, BLOCK_SIZE), nodes=hosts))
        for report in reports:
            for name in report["unsure"]:  # type: ignore[attr-defined]
                with contextlib.suppress(NotFound):
                    await ipam.release_by_handle(f"net.{name}")
        owners = {address: ("racer",) for address in believed}
        standing = leaks.classify((await all_blocks(store)).values(), owners)
        leaked = [a.as_release() for a in standing if a.standing is leaks.Standing.LEAKED]
        (await ipam.release_ips(leaked)).raise_failed()
        assert await held(store) == believed
        assert set(await all_handles(store)) == set(believed.values())
        assert await audited(store) == []
    finally:
        await store.close()
