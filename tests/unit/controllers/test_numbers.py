"""controllers.numbers: Calico's metric names, per pool and node."""

from __future__ import annotations

from prometheus_client import generate_latest

from controllers.numbers import GcNumbers
from ipam.client import IpamClient
from ipam.garbage import Terms
from libcalico.runtime.metrics import Metrics
from libcalico.testing.datastore import MemoryDatastore
from tests.support.garbage import connected, initialised, leave_behind
from tests.support.ipam import ask, client, pool, source

POOL = pool("a", "10.0.0.0/24", 29)


async def page(store: MemoryDatastore, *, forget: bool = False) -> dict[str, float]:
    metrics = Metrics(process=False)
    numbers = GcNumbers(metrics)
    numbers.on_report(await IpamClient(store).collector().run_pass(Terms(100.0)), 0.5)
    if forget:
        numbers.clear()
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#")
    }


async def test_what_is_there_and_what_was_reclaimed():
    store = MemoryDatastore()
    await initialised(store, [POOL], ["n1", "n2"])
    ipam = client(store, source(POOL, nodes=["n1", "n2"]))
    await connected(ipam, store, "web", "n1")
    await ipam.auto_assign(ask("dead", "n1"))
    await leave_behind(store, POOL, ["gone"], pods=1)
    shown = await page(store)
    assert shown['ipam_allocations_in_use{ippool="a",node="n1"}'] == 2
    assert shown['ipam_allocations_in_use{ippool="a",node="n2"}'] == 0
    assert shown['ipam_allocations_gc_candidates{ippool="a",node="n1"}'] == 1
    assert shown['ipam_allocations_gc_candidates{ippool="a",node="gone"}'] == 3
    assert shown['ipam_allocations_gc_reclamations{ippool="a",node="gone"}'] == 3
    assert shown['ipam_blocks{ippool="a",node="n1"}'] == 1
    assert shown['ipam_allocations_per_node{node="gone"}'] == 3
    assert shown['ipam_ippool_size{ippool="a"}'] == 256
    assert shown['ipam_gc_freed_total{kind="address"}'] == 3
    assert shown["ipam_malformed_blocks"] == 0


async def test_an_instance_that_does_not_lead_shows_no_gauges():
    store = MemoryDatastore()
    await initialised(store, [POOL], ["n1"])
    shown = await page(store, forget=True)
    assert not [name for name in shown if name.startswith("ipam_allocations")]
