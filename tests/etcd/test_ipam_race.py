"""Fifty hosts race for the last ten blocks, while writes fail and etcd loses its leader.

The hosts are spread over RACERS processes, each host with a connection and a client of its own;
IPAM_RACERS=50 gives every host a process (the default suits two cores). What they leave is given
back by the product's collector alone: no test knows which outcomes were lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ipam.client import IpamClient
from ipam.garbage import Terms
from libcalico.datastore.api import Datastore
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.model.keys import HOST_AFFINITIES_PREFIX
from libcalico.net import parse_ip
from libcalico.runtime.clock import SystemClock
from libcalico.testing.etcd import EtcdCluster
from tests.support.garbage import endpoint, initialised, put
from tests.support.ipam import all_blocks, all_handles, audited, consistent, held, pool

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
RACERS = int(os.environ.get("IPAM_RACERS", "10"))
HOSTS = [f"n{i}" for i in range(50)]
# These never come back after the race: their Node objects are removed and no endpoint names them.
DEAD, ALIVE = HOSTS[::5], [host for number, host in enumerate(HOSTS) if number % 5]
# Sixteen blocks of eight addresses, six of them reserved: ten blocks to race for.
POOL, BLOCK_SIZE, RESERVED = "10.0.0.0/25", 29, ["10.0.0.80/28", "10.0.0.96/27"]
WRITES_BETWEEN_LOSSES = 60
WAIT_S = 60.0
TERMS = Terms(grace_s=900.0)


class LaterClock(SystemClock):
    """Time can be made to pass."""

    later_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later_s


async def racer(cluster: EtcdCluster, hosts: Sequence[str], seed: int) -> list[dict[str, Any]]:
    order = {
        "what": "race", "endpoints": cluster.endpoints, "hosts": hosts, "seed": seed,
        "pool": POOL, "block_size": BLOCK_SIZE, "reserved": RESERVED,
        "faults": 0.3, "steps": 20, "release": 0.8,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.ipam_racer", json.dumps(order),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    found: list[dict[str, Any]] = json.loads(out)
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


async def collect(store: Datastore) -> None:
    """As calico-kube-controllers: look, and look again after the grace period, until a pass finds
    nothing to do."""
    clock = LaterClock()
    collector = IpamClient(store, clock=clock).collector()
    for _ in range(10):
        report = await collector.run_pass(TERMS)
        assert not report.failed
        if clock.later_s and not report.freed.total():
            return
        clock.later_s += TERMS.grace_s
    raise AssertionError("the collector never came to an end")


async def test_a_race_with_failing_writes_and_lost_leaders_ends_clean(
    etcd_cluster_factory: Callable[..., EtcdCluster],
):
    cluster = etcd_cluster_factory(size=3)
    async with asyncio.TaskGroup() as group:
        shares = [HOSTS[i::RACERS] for i in range(RACERS)]
        tasks = [group.create_task(racer(cluster, s, 50 * i)) for i, s in enumerate(shares)]
        group.create_task(lose_the_leader(cluster, 2))
    reports = {report["host"]: report for task in tasks for report in task.result()}
    assert sorted(reports) == sorted(HOSTS)

    store = EtcdDatastore(EtcdConfig(cluster.endpoints))
    try:
        assert await audited(store) == []
        await consistent(store)
        believed = {
            parse_ip(address): f"net.{name}"
            for report in reports.values()
            for name, address in report["holds"].items()
        }
        assert len(believed) == sum(len(report["holds"]) for report in reports.values())
        actual = await held(store)
        assert {a: actual.get(a) for a in believed} == believed
        await it_is_cleaned_up(store, reports)
    finally:
        await store.close()


async def it_is_cleaned_up(store: Datastore, reports: dict[str, dict[str, Any]]) -> None:
    """Every other pod of a living host has an endpoint; everything else is garbage, and goes: lost
    answers, pods that died half way, dead hosts."""
    await initialised(store, [pool("a", POOL, BLOCK_SIZE)], ALIVE)
    living = {}
    for host in ALIVE:
        for name, address in list(reports[host]["holds"].items())[::2]:
            await put(store, endpoint(name, host, f"{address}/32"))
            living[parse_ip(address)] = f"net.{name}"
    assert 0 < len(living) < len(await held(store))
    await collect(store)
    assert await held(store) == living
    assert set(await all_handles(store)) == set(living.values())
    owners = [block.host for block in (await all_blocks(store)).values()]
    assert not set(owners) & set(DEAD)
    listed = await store.list(HOST_AFFINITIES_PREFIX, keys_only=True)
    assert not {
        kv.key.removeprefix(HOST_AFFINITIES_PREFIX).split("/")[0] for kv in listed.kvs
    } & set(DEAD)
    assert await audited(store) == []
    await consistent(store)
