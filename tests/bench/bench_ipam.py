"""`ipam-writers` and `ipam-batch`: addresses from a real etcd, beside the same round trips raw.

`ipam-writers`: ten processes on ten hosts take 1,000 addresses each from one etcd; first one
request at a time in each process, then eight (as a busy CNI agent). The baseline is the physical
floor: as many processes doing one transaction per address with values of the same size, nothing
computed. An agent with requests waiting may pass it, because they share writes.
`ipam-batch`: 250 addresses for one request, its transactions per block; and the time of it all.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ipam import blocks
from ipam.blocks import BlockDraft, Holder
from ipam.client import IpamClient
from libcalico.datastore.api import Compare, Put
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.model import codec
from libcalico.model.ipam import Handle
from libcalico.testing.etcd import EtcdCluster, EtcdOptions
from tests.support.ipam import ask, pool, source

NAMES = ("ipam-writers", "ipam-batch")
WRITERS, ADDRESSES, RUNS = 10, 1000, 3
POOL, BLOCK = "10.0.0.0/12", "10.0.0.0/26"
ROOT = Path(__file__).resolve().parents[2]
# Processes start together after this; it covers starting ten interpreters on two cores.
HEAD_START_S = 8.0
Entry = dict[str, Any]


def run(only: set[str]) -> list[Entry]:
    place = Path(tempfile.mkdtemp(prefix="brn-bench-", dir=_memory_or_tmp()))
    options = EtcdOptions(heartbeat_ms=500, election_ms=5000)
    entries: list[Entry] = []
    try:
        with EtcdCluster(place / "etcd", options=options) as cluster:
            if not only or NAMES[0] in only:
                entries += _writers(cluster)
            if not only or NAMES[1] in only:
                entries += asyncio.run(_batch(cluster))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return entries


def _memory_or_tmp() -> str | None:
    """The figure is etcd's and ours, not the disk's."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# ---- writers -----------------------------------------------------------------------------------


def _writers(cluster: EtcdCluster) -> list[Entry]:
    entries = []
    for at_once in (1, 8):
        ours, raw, retries = [], [], []
        for _ in range(RUNS):
            rate, conflicts = _together(cluster, "write", at_once)
            ours.append(rate)
            retries.append(conflicts)
            raw.append(_together(cluster, "raw", at_once)[0])
        note = f"{at_once} request(s) at a time in each of {WRITERS} processes"
        baseline = "one raw transaction per address, same processes, same sizes"
        entries.append(_entry(NAMES[0], "addr/s", ours, raw, baseline, note))
        value = statistics.median(retries)
        entries.append({
            **_entry(NAMES[0], "retries", retries, [0.0], "no conflict at all", note),
            "ratio": None, "limit": 1.5, "ok": value <= 1.5,
        })  # fmt: skip
    return entries


def _together(cluster: EtcdCluster, what: str, at_once: int) -> tuple[float, float]:
    """Addresses (or raw transactions) per second of all, and conflicts per address."""
    cluster.ctl("del", "", "--from-key")
    start_at = time.time() + HEAD_START_S
    processes = [_start(cluster, what, at_once, number, start_at) for number in range(WRITERS)]
    reports = [_finish(process) for process in processes]
    began = min(report["started"] for report in reports)
    if began > start_at + 0.5:
        raise RuntimeError("the writers did not start together")
    ended = max(report["finished"] for report in reports)
    total = WRITERS * ADDRESSES
    return total / (ended - began), sum(r["counts"]["conflicts"] for r in reports) / total


def _start(
    cluster: EtcdCluster, what: str, at_once: int, number: int, start_at: float
) -> subprocess.Popen[str]:
    order = {
        "what": what, "endpoints": cluster.endpoints, "host": f"host-{number}", "pool": POOL,
        "block_size": 26, "steps": ADDRESSES, "at_once": at_once, "start_at": start_at,
    }  # fmt: skip
    module = "tests.support.ipam_racer" if what == "write" else f"{__package__}.bench_ipam"
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(order)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=180)
    if process.returncode:
        raise RuntimeError(f"a writer failed:\n{err[-3000:]}")
    report: dict[str, Any] = json.loads(out)
    return report


async def _raw(order: dict[str, Any]) -> dict[str, Any]:
    """The floor: as many transactions of the same shape, of values computed beforehand."""
    store = EtcdDatastore(EtcdConfig(tuple(order["endpoints"])))
    host, at_once = order["host"], order["at_once"]
    block, handle = _half_full_block(), codec.encode(Handle(block={BLOCK: 1}))
    revisions = [await store.put(f"/calico/raw/{host}/{lane}", block) for lane in range(at_once)]
    numbers = iter(range(order["steps"]))
    await asyncio.sleep(max(order["start_at"] - time.time(), 0))
    started = time.time()

    async def worker(lane: int) -> None:
        key = f"/calico/raw/{host}/{lane}"
        for number in numbers:
            handle_key = f"/calico/raw-handle/{host}/{number}"
            compares = [Compare(key, revisions[lane]), Compare(handle_key, 0)]
            done = await store.txn(compares, [Put(key, block), Put(handle_key, handle)])
            assert done.succeeded
            revisions[lane] = done.revision

    async with asyncio.TaskGroup() as group:
        for lane in range(at_once):
            group.create_task(worker(lane))
    finished = time.time()
    await store.close()
    return {"started": started, "finished": finished, "counts": {"conflicts": 0}}


def _half_full_block() -> bytes:
    """An average block of the run: half of it assigned, an owner for each address."""
    draft = BlockDraft(blocks.new_block(BLOCK, time.time_ns()))
    for number in range(32):
        attributes = {"node": "host-0", "pod": f"host-0-{number}"}
        draft.assign(1, Holder(f"net.host-0-{number}", attributes))
    return codec.encode(draft.finish())


# ---- batch -------------------------------------------------------------------------------------


async def _batch(cluster: EtcdCluster) -> list[Entry]:
    store = EtcdDatastore(EtcdConfig(cluster.endpoints))
    times, raw_times, per_block = [], [], []
    for number in range(15):
        await asyncio.to_thread(cluster.ctl, "del", "", "--from-key")
        ipam = IpamClient(store, source(pool("a", POOL, 26)))
        began = time.perf_counter()
        got = await ipam.auto_assign(ask(f"batch-{number}", v4=250))
        times.append((time.perf_counter() - began) * 1000)
        assert len(got.addresses) == 250
        per_block.append(ipam.records.transactions / len(await ipam.blocks()))
        round_trips = ipam.records.transactions + ipam.records.reads
        raw_times.append(await _raw_round_trips(store, round_trips))
    await store.close()
    note = "transactions of a request for 250 addresses, per block of 64"
    count = _entry(NAMES[1], "txn/block", per_block, [1.0], "one write per block", note)
    baseline = "as many raw transactions, one after the other"
    return [
        {**count, "limit": 3, "ok": count["value"] <= 3},
        _entry(NAMES[1], "ms", times, raw_times, baseline, "the whole request, blocks claimed"),
    ]


async def _raw_round_trips(store: EtcdDatastore, count: int) -> float:
    block = _half_full_block()
    began = time.perf_counter()
    for number in range(count):
        await store.txn(
            [Compare(f"/calico/raw/{number}", 0)], [Put(f"/calico/raw/{number}", block)]
        )
    return (time.perf_counter() - began) * 1000


def _entry(name: str, unit: str, ours: list[float], raw: list[float], *words: str) -> Entry:
    value, baseline = statistics.median(ours), statistics.median(raw)
    return {
        "name": name, "value": value, "unit": unit, "baseline": words[0],
        "baseline_value": baseline, "ratio": value / baseline if baseline else None,
        "limit": None, "ok": None, "spread": [min(ours), max(ours)], "note": words[1],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_raw(json.loads(sys.argv[1])))))
