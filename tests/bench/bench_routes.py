"""10,000 routes into the kernel: felix's route table against `ip -batch`, in one namespace.

`routes-10k` is the whole way a route goes in felix, from "these are wanted" to the kernel's
acknowledgement: RouteTable (decision, tracker) and KernelRoutes (encoding, netlink). The baseline
writes the same routes with `ip -batch`, reading its file included. Median of several runs, each on
an empty table; program start-up of `ip` (about 2 ms) is in its time, as it is in its users'.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from felix.dataplane.manager import InterfaceState
from felix.dataplane.ownership import RouteOwnership
from felix.dataplane.route_table import RouteClass, RouteTable, RouteTarget
from felix.kernel.netlink import KernelRoutes
from felix.kernel.worker import KernelWorker
from libcalico.netlink import AF_INET, NetlinkSocket, RouteFilter, list_routes
from libcalico.runtime.clock import SYSTEM
from tests.support.netns import Namespace, NamespaceSet, connect, why_unavailable

NAMES = ("routes-10k",)
COUNT = 10_000
RUNS = 7
LIMIT = 3.0
_PROTOCOL = 80


def destinations() -> list[str]:
    return [f"20.{n >> 8 & 255}.{n & 255}.0/26" for n in range(COUNT)]


def run() -> list[dict[str, object]]:
    reason = why_unavailable("veth")
    if reason:
        raise RuntimeError(f"routes-10k cannot run: {reason}")
    with NamespaceSet() as netns:
        node, other = netns.make("bench"), netns.make("peer")
        connect(node, "eth0", other, "eth0")
        ours, theirs, again = [], [], []
        for _ in range(RUNS):
            written, repeated = asyncio.run(_through_the_route_table(node))
            ours.append(written)
            again.append(repeated)
            _flush(node)
            theirs.append(_through_ip(node))
            _flush(node)
    value, baseline = statistics.median(ours), statistics.median(theirs)
    spread = f"{min(ours) * 1e3:.0f}-{max(ours) * 1e3:.0f} ms of {RUNS}"
    note = f"{spread}; read back, nothing to do: {statistics.median(again) * 1e3:.0f} ms"
    return [
        {
            "name": "routes-10k",
            "value": value,
            "unit": "s",
            "baseline": "ip -batch, route replace",
            "baseline_value": baseline,
            "ratio": value / baseline,
            "limit": LIMIT,
            "ok": value / baseline <= LIMIT,
            "spread": spread,
            "note": note,
        }
    ]


async def _through_the_route_table(node: Namespace) -> tuple[float, float]:
    """Seconds to write everything, and to find everything right by reading it back."""
    worker = KernelWorker()
    with NetlinkSocket.in_namespace(node.path) as socket:
        table = RouteTable(
            KernelRoutes(worker, socket), AF_INET, ownership=RouteOwnership(), clock=SYSTEM
        )
        ifindex = node.link("eth0").ifindex
        table.on_interface("eth0", InterfaceState("eth0", ifindex, True, True))
        await table.apply()  # the first reading: an empty table
        wanted = destinations()
        begin = time.perf_counter()
        targets = [RouteTarget(dst, 1024, _PROTOCOL) for dst in wanted]
        table.set_routes(RouteClass.NO_ENCAP, "eth0", targets)
        result = await table.apply()
        took_s = time.perf_counter() - begin
        assert (result.written, result.failed) == (COUNT, 0), result
        assert len(socket.query(list_routes(AF_INET, RouteFilter(protocol=_PROTOCOL)))) == COUNT
        begin = time.perf_counter()
        table.queue_resync("bench")
        result = await table.apply()
        again_s = time.perf_counter() - begin
        assert (result.written, result.deleted, result.failed) == (0, 0, 0), result
    worker.close()
    return took_s, again_s


def _through_ip(node: Namespace) -> float:
    with TemporaryDirectory(prefix="brn-bench-") as folder:
        batch = Path(folder) / "batch"
        lines = (f"route replace {dst} dev eth0 proto 80 metric 1024" for dst in destinations())
        batch.write_text("\n".join(lines) + "\n")
        begin = time.perf_counter()
        node.run("ip", "-batch", str(batch), timeout_s=60)
        took_s = time.perf_counter() - begin
    found = node.socket.query(list_routes(AF_INET, RouteFilter(protocol=_PROTOCOL)))
    assert len(found) == COUNT, "the baseline did its work"
    return took_s


def _flush(node: Namespace) -> None:
    node.run("ip", "route", "flush", "proto", str(_PROTOCOL), timeout_s=60)
