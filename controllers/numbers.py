"""The numbers of the IPAM garbage collection for Prometheus, under Calico's names.

Layer: controllers, edge. The gauges are those of the last collection of this instance; an instance
that does not lead shows none.

Source: Calico kube-controllers/pkg/controllers/node/ipam.go, ipam_handle_gc.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import Gauge

from ipam import pools
from ipam.blocks import network_of_block
from ipam.client.collector import HANDLE, Report
from ipam.garbage import Snapshot
from ipam.leaks import Allocation, Standing
from libcalico.net import parse_cidr
from libcalico.runtime.metrics import Metrics

NO_POOL, NO_NODE, NO_AFFINITY = "no_ippool", "unknown_node", "no_affinity"
Place = tuple[str, str]  # pool, node


class GcNumbers:
    """`on_report` after each collection, `clear` when another instance leads."""

    def __init__(self, metrics: Metrics) -> None:
        place = ["ippool", "node"]
        self._in_use = metrics.gauge("ipam_allocations_in_use", "IPs allocated.", place)
        self._borrowed = metrics.gauge(
            "ipam_allocations_borrowed", "IPs from a block affine to another node.", place
        )
        self._blocks = metrics.gauge("ipam_blocks", "IPAM blocks.", place)
        self._candidates = metrics.gauge(
            "ipam_allocations_gc_candidates", "IPs that look leaked, or just did.", place
        )
        # A gauge that only goes up: the client library gives every counter the suffix _total,
        # which Calico's name does not have.
        self._reclaimed = metrics.gauge(
            "ipam_allocations_gc_reclamations", "IPs reclaimed over time.", place
        )
        self._pool_size = metrics.gauge("ipam_ippool_size", "Addresses of the pool.", ["ippool"])
        self._per_node = metrics.gauge("ipam_allocations_per_node", "IPs allocated.", ["node"])
        self._borrowed_per_node = metrics.gauge(
            "ipam_allocations_borrowed_per_node", "IPs from other nodes' blocks.", ["node"]
        )
        self._blocks_per_node = metrics.gauge("ipam_blocks_per_node", "IPAM blocks.", ["node"])
        self._handle_repairs = metrics.counter(
            "ipam_handle_gc_repairs", "Repairs of handles.", ["action"]
        )
        self._malformed = metrics.gauge("ipam_malformed_blocks", "Blocks left as they are.")
        self._passes = metrics.counter("ipam_gc_passes", "Collections, by outcome.", ["outcome"])
        self._freed = metrics.counter("ipam_gc_freed", "Objects given back.", ["kind"])
        self._overtaken = metrics.counter("ipam_gc_overtaken", "Steps others undid.", ["kind"])
        self._failed = metrics.counter("ipam_gc_failures", "Steps that failed.", ["kind"])
        self._took = metrics.latency("ipam_gc_duration_seconds", "Time of one collection.")

    def on_report(self, report: Report, took_s: float) -> None:
        self._passes.labels("complete").inc()
        self._took.observe(took_s)
        for counter, counts in (
            (self._freed, report.freed),
            (self._overtaken, report.overtaken),
            (self._failed, report.failed),
        ):
            for kind, count in counts.items():
                counter.labels(kind).inc(count)
        self._handle_repairs.labels("delete").inc(report.freed[HANDLE])
        for place, count in _by_place(report.seen, report.released).items():
            self._reclaimed.labels(*place).inc(count)
        self._show(report)

    def on_failure(self) -> None:
        self._passes.labels("failed").inc()

    def clear(self) -> None:
        for gauge in (
            self._in_use,
            self._borrowed,
            self._blocks,
            self._candidates,
            self._pool_size,
            self._per_node,
            self._borrowed_per_node,
            self._blocks_per_node,
        ):
            gauge.clear()

    def _show(self, report: Report) -> None:
        """What there was when this collection began."""
        self.clear()
        seen, plan = report.seen, report.plan
        held = [a for a in plan.allocations if a.standing is not Standing.COOLING]
        borrowed = [a for a in held if a.borrowed]
        _set(self._in_use, _with_zeros(seen, _by_place(seen, held)))
        _set(self._borrowed, _with_zeros(seen, _by_place(seen, borrowed)))
        suspected = [*plan.candidates, *(a for many in plan.gone.values() for a in many)]
        _set(self._candidates, _with_zeros(seen, _by_place(seen, suspected)))
        blocks = Counter(
            (_pool_of(seen, block.cidr), block.host or NO_AFFINITY)
            for block in seen.readable_blocks()
        )
        _set(self._blocks, blocks)
        _set(self._per_node, _by_node(_by_place(seen, held)))
        _set(self._borrowed_per_node, _by_node(_by_place(seen, borrowed)))
        _set(self._blocks_per_node, _by_node(blocks))
        for pool in seen.pools:
            self._pool_size.labels(pool.name).set(parse_cidr(str(pool.cidr)).num_addresses)
        self._malformed.set(len(seen.malformed))


def _by_place(seen: Snapshot, allocations: Iterable[Allocation]) -> Counter[Place]:
    return Counter((_pool_of(seen, a.block), a.node or NO_NODE) for a in allocations)


def _pool_of(seen: Snapshot, block: str) -> str:
    pool = pools.pool_of(seen.pools, network_of_block(block).network_address)
    return NO_POOL if pool is None else pool.name


def _with_zeros(seen: Snapshot, counts: Counter[Place]) -> Counter[Place]:
    """Nodes that have none of a pool are said to have none (as Calico)."""
    for pool in seen.pools:
        for node in seen.nodes:
            counts[pool.name, node] += 0
    return counts


def _by_node(counts: Mapping[Place, int]) -> Counter[tuple[str]]:
    found: Counter[tuple[str]] = Counter()
    for (_, node), count in counts.items():
        found[(node,)] += count
    return found


def _set(gauge: Gauge, counts: Mapping[Place, int] | Mapping[tuple[str], int]) -> None:
    for labels, count in counts.items():
        gauge.labels(*labels).set(count)
