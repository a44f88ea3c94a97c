"""typha as a process of its own, on a real etcd: many that join, and changes to many.

`typha-snapshot`: 200,000 workload endpoints to 11 clients that join at once, from the first
connection to the last snapshot unpacked, beside 11 clients that list the same keys from etcd.
Both sides unpack the bytes and keep nothing, in two processes. One client joined before, so typha
has made its frames: what that costs once is not in the figure.

`typha-fanout-1000`: 1,000 clients and 100 changes a second; from before the write to when the last
client has it. The baseline is 1,000 watches on etcd, at the rate BASELINE_RATE: two processes of
Python cannot read more from gRPC, so the figures that compare are those per change.
BENCH_TYPHA_SECONDS=60 is the whole of it, the default shorter.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from deploy.lab import typha_load
from deploy.lab.typha_load import Workers, percentile, write_changes
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_keys import prefix_range
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.model.keys import prefix_of
from libcalico.testing.etcd import EtcdCluster, EtcdOptions
from tests.bench.bench_endpoints_list import count_by_pages, endpoint_as_written, memory_or_tmp

SNAPSHOT, FANOUT = "typha-snapshot", "typha-fanout-1000"
NAMES = (SNAPSHOT, FANOUT)
ENDPOINTS, JOINING = 200_000, 11
CLIENTS, RATE, BASELINE_RATE = 1_000, 100.0, 5.0
SECONDS = float(os.environ.get("BENCH_TYPHA_SECONDS", "15"))
PREFIX = prefix_of("WorkloadEndpoint")
TOP = Path(__file__).parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")


def run(only: set[str]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for name, measure in ((SNAPSHOT, _snapshot), (FANOUT, _fanout)):
        if only and name not in only:
            continue
        place = Path(tempfile.mkdtemp(prefix="brn-bench-", dir=memory_or_tmp()))
        options = EtcdOptions(heartbeat_ms=500, election_ms=5000)
        try:
            with EtcdCluster(place / "etcd", options=options) as cluster:
                entries += asyncio.run(measure(cluster.endpoints[0], place))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return entries


@dataclass(frozen=True)
class Daemon:
    port: int
    pid: int

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_kb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1000


@asynccontextmanager
async def _typha(endpoint: str, place: Path) -> AsyncIterator[Daemon]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    environ = {
        **os.environ, "ETCD_ENDPOINTS": endpoint, "DATASTORE_TYPE": "etcdv3",
        "CALICO_RUN_DIR": str(place), "TYPHA_SERVERHOST": "127.0.0.1",
        "TYPHA_SERVERPORT": str(port), "TYPHA_ALLOWPLAINTEXT": "true",
        "TYPHA_HEALTHENABLED": "false", "TYPHA_SHUTDOWNTIMEOUTSECS": "0",
        "TYPHA_LOGSEVERITYSCREEN": "error", "TYPHA_REGISTRATIONENABLED": "false",
        "TYPHA_MAXCONNECTIONSLOWERLIMIT": str(CLIENTS + 10),
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "typha.daemon"], env=environ, cwd=TOP)  # noqa: ASYNC220 - started, not waited for
    try:
        # One that joins is answered when typha has seen the whole datastore.
        async with asyncio.timeout(120):
            while not await asyncio.to_thread(_listens, port):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)
        first = Workers()
        try:
            await first.start("127.0.0.1", port, 1, 1)
        finally:
            await first.close()
        yield Daemon(port, process.pid)
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def _entry(name: str, unit: str, value: float, than: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "unit": unit, "value": value, "baseline_value": than,
        "ratio": value / max(than, 1e-9), "limit": None, "ok": None, **more,
    }  # fmt: skip


# ---- many that join ----------------------------------------------------------------------------


async def _snapshot(endpoint: str, place: Path) -> list[dict[str, Any]]:
    store = EtcdDatastore(EtcdConfig((endpoint,)))
    for start in range(0, ENDPOINTS, 800):
        batches = range(start, min(start + 800, ENDPOINTS), 100)
        await asyncio.gather(
            *(store.txn([], [endpoint_as_written(n) for n in range(b, b + 100)]) for b in batches)
        )
    await store.close()
    async with _typha(endpoint, place) as daemon:
        workers = Workers()
        try:
            before_s = daemon.cpu_s()
            await workers.start("127.0.0.1", daemon.port, JOINING, 2)
            cpu_s = daemon.cpu_s() - before_s
            result = await workers.stop(0)
        finally:
            await workers.close()
    if result["items"] != ENDPOINTS * JOINING or result["errors"]:
        raise RuntimeError(f"not everything came: {result}")
    direct_s = await _direct_lists(endpoint)
    joined_s = result["joined_s"]
    share = result["raw_bytes"] / result["wire_bytes"]
    note = f"limit: 1/5 of the baseline; typha took {cpu_s:.2f} s of CPU"
    baseline = f"{JOINING} clients list the same keys from etcd directly"
    return [
        _entry(SNAPSHOT, "s", joined_s, direct_s, baseline=baseline, note=note, limit=direct_s / 5,
               ok=joined_s * 5 <= direct_s),
        _entry(SNAPSHOT, "MB", result["wire_bytes"] / 1e6, result["raw_bytes"] / 1e6,
               baseline="the values as they are stored", note=f"1/{share:.1f}, limit 1/8",
               limit=result["raw_bytes"] / 8e6, ok=share >= 8),
    ]  # fmt: skip


async def _direct_lists(endpoint: str) -> float:
    """Of JOINING clients in two processes, from their common start to the last one's end."""
    counts = (JOINING // 2, JOINING - JOINING // 2)
    return max(await asyncio.gather(*(_other("list", endpoint, str(n)) for n in counts)))


async def _other(*arguments: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, *arguments, stdout=asyncio.subprocess.PIPE, limit=2**26
    )
    try:
        async with asyncio.timeout(300):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    if process.returncode:
        raise RuntimeError(f"{arguments} failed")
    return json.loads(out)


async def _list(endpoint: str, clients: str) -> float:
    began = time.monotonic()
    await asyncio.gather(*(_list_one(endpoint) for _ in range(int(clients))))
    return time.monotonic() - began


async def _list_one(endpoint: str) -> None:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(endpoint.removeprefix("http://"), options) as channel:
        get = rpc_pb2_grpc.KVStub(channel).Range
        count = await count_by_pages(get, PREFIX)
        if count != ENDPOINTS:
            raise RuntimeError(f"listed {count}")


# ---- changes to many ---------------------------------------------------------------------------


async def _fanout(endpoint: str, place: Path) -> list[dict[str, Any]]:
    store = EtcdDatastore(EtcdConfig((endpoint,)))
    try:
        async with _typha(endpoint, place) as daemon:
            workers = Workers()
            try:
                before_kb = daemon.resident_kb()
                await workers.start("127.0.0.1", daemon.port, CLIENTS, 2)
                warm = await write_changes(
                    store, RATE, 2.0
                )  # nobody's first change is measured below
                kb = (daemon.resident_kb() - before_kb) / CLIENTS
                before_s, began = daemon.cpu_s(), time.monotonic()
                measured_from = time.monotonic_ns()
                paths = await write_changes(store, RATE, SECONDS)
                cores = (daemon.cpu_s() - before_s) / (time.monotonic() - began)
                result = await workers.stop(len(warm) + len(paths), since_ns=measured_from)
            finally:
                await workers.close()
        direct = await _watched(endpoint, store)
    finally:
        await store.close()
    if result["missing"] or result["lost"] or result["changes"] != int(RATE * SECONDS):
        raise RuntimeError(f"not everything came: {result}")
    p99_ms, direct_ms = result["lag_p99_s"] * 1000, direct["p99_s"] * 1000
    watches = f"{CLIENTS} watches on etcd, {BASELINE_RATE:g} changes/s"
    note = (
        f"{RATE:g} changes/s for {SECONDS:g} s; median {result['lag_p50_s'] * 1000:.1f} ms,"
        f" {kb:.1f} kB per client (limit 40)"
    )
    return [
        _entry(FANOUT, "ms p99", p99_ms, direct_ms, baseline=watches, note=note, limit=50.0,
               ok=p99_ms <= 50 and kb <= 40),
        _entry(FANOUT, "cores", cores, direct["cpu_per_change_s"] * RATE, limit=1.0, ok=cores <= 1,
               baseline="etcd's for as many changes to as many watches, from those at its rate"),
    ]  # fmt: skip


async def _watched(endpoint: str, store: EtcdDatastore) -> dict[str, float]:
    """The baseline: etcd's CPU per change and the lags."""
    pid = _etcd_pid(endpoint)
    server = Daemon(0, pid)
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", __spec__.name, "watch", endpoint, str(CLIENTS // 2),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            await asyncio.wait_for(process.stdout.readline(), 60)
        before_s = server.cpu_s()
        count = len(await write_changes(store, BASELINE_RATE, 5.0))
        await asyncio.sleep(1.0)
        cpu_s = server.cpu_s() - before_s
        ended = await asyncio.gather(*(process.communicate(b"") for process in processes))
        found = [json.loads(out) for out, _ in ended]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
    last: dict[str, int] = {}
    for part in found:
        for stamp, at in part.items():
            last[stamp] = max(last.get(stamp, 0), at)
    if len(last) != count:
        raise RuntimeError(f"{len(last)} of {count} changes were seen")
    lags = sorted((at - int(stamp)) / 1e9 for stamp, at in last.items())
    return {"p99_s": percentile(lags, 0.99), "cpu_per_change_s": cpu_s / count}


def _etcd_pid(endpoint: str) -> int:
    """The process that listens there."""
    port = f":{int(endpoint.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inode = next(row[9] for row in rows if row[1].endswith(port) and row[3] == "0A")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == f"socket:[{inode}]":
                return int(link.parts[2])
        except OSError:
            continue
    raise RuntimeError(f"nobody listens at {endpoint}")


async def _watch(endpoint: str, clients: str) -> dict[int, int]:
    seen: dict[int, int] = {}
    options = [("grpc.use_local_subchannel_pool", 1)]
    first, end = prefix_range(typha_load.PREFIX)
    create = rpc_pb2.WatchCreateRequest(key=first, range_end=end)
    started = 0
    all_started = asyncio.Event()

    async def one(channel: grpc.aio.Channel) -> None:
        nonlocal started
        call = rpc_pb2_grpc.WatchStub(channel).Watch()
        await call.write(rpc_pb2.WatchRequest(create_request=create))
        while True:
            response = await call.read()
            if response.created:
                started += 1
                if started == int(clients):
                    all_started.set()
            for event in response.events:
                for stamp in typha_load.STAMP.findall(event.kv.value):
                    seen[int(stamp)] = time.monotonic_ns()

    # A connection takes so many streams that fifty of ours are no limit of it.
    channels = [
        grpc.aio.insecure_channel(endpoint.removeprefix("http://"), options)
        for _ in range(-(-int(clients) // 50))
    ]
    tasks = [asyncio.create_task(one(channels[n // 50])) for n in range(int(clients))]
    await all_started.wait()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"list": _list, "watch": _watch}[sys.argv[1]](*sys.argv[2:]))))
