"""One process of the IPAM race on a real etcd; started by test_ipam_race.py and the benchmark.

    python -m tests.support.ipam_racer '{"endpoints": [...], "hosts": ["n1"], ...}'

Plays its hosts at once, each with a connection and an IPAM client of its own: assigns and releases
as told, with a share of its transactions refused or applied without an answer. Then prints what
each host holds and how many outcomes it does not know, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

from ipam.client import IpamClient
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.errors import NotFound, SuiteError
from tests.support.faulty import Fault, FaultyDatastore, Script
from tests.support.ipam import ask, pool, source


def failing(rng: random.Random, share: float) -> Script:
    def script(_: int, operation: str) -> Fault:
        if operation != "txn" or rng.random() >= share:
            return Fault.OK
        return Fault.LOSE if rng.random() < 0.5 else Fault.REFUSE

    return script


async def race(order: Mapping[str, Any]) -> list[dict[str, Any]]:
    hosts = enumerate(order["hosts"], order["seed"])
    return list(await asyncio.gather(*(race_one(order, host, seed) for seed, host in hosts)))


async def race_one(order: Mapping[str, Any], host: str, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    store = EtcdDatastore(EtcdConfig(tuple(order["endpoints"])))
    faulty = FaultyDatastore(store, failing(rng, order["faults"]))
    p = pool("a", order["pool"], order["block_size"])
    known = source(p, nodes=[host], reserved=order["reserved"])
    ipam = IpamClient(faulty, known)  # type: ignore[arg-type]
    holds: dict[str, str] = {}
    unsure = 0
    for step in range(order["steps"]):
        name = f"{host}-{step}"
        try:
            got = await ipam.auto_assign(ask(name, host))
            if got.addresses:
                holds[name] = str(got.addresses[0].ip)
        except SuiteError:
            unsure += 1
        if holds and rng.random() < order["release"]:
            victim = rng.choice(sorted(holds))
            del holds[victim]
            try:
                await ipam.release_by_handle(f"net.{victim}")
            except NotFound:
                pass
            except SuiteError:
                unsure += 1
    await store.close()
    return {"host": host, "holds": holds, "unsure": unsure, "counts": ipam.dump()}


async def write(order: Mapping[str, Any]) -> dict[str, Any]:
    """The benchmark's writer: `steps` addresses, `at_once` requests under way at a time."""
    store = EtcdDatastore(EtcdConfig(tuple(order["endpoints"])))
    known = source(pool("a", order["pool"], order["block_size"]), nodes=[order["host"]])
    ipam = IpamClient(store, known)
    await ipam.auto_assign(ask(f"{order['host']}-warm", order["host"]))
    numbers = iter(range(order["steps"]))
    delay = order["start_at"] - time.time()
    if delay > 0:
        await asyncio.sleep(delay)
    started = time.time()

    async def worker() -> None:
        for number in numbers:
            name = f"{order['host']}-{number}"
            got = await ipam.auto_assign(ask(name, order["host"], max_blocks_per_host=1000))
            assert len(got.addresses) == 1

    async with asyncio.TaskGroup() as group:
        for _ in range(order["at_once"]):
            group.create_task(worker())
    finished = time.time()
    await store.close()
    counts = ipam.dump()
    return {"started": started, "finished": finished, "counts": counts}


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    with contextlib.suppress(KeyboardInterrupt):
        print(json.dumps(asyncio.run({"race": race, "write": write}[told["what"]](told))))
