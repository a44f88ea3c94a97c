"""ipam.client.collector: each step of a collection, overtaken or not."""

from __future__ import annotations

import dataclasses
from ipaddress import ip_network

import pytest
from msgspec.structs import replace

from ipam.affinity import Owner
from ipam.client.collector import GIVE_UP, Collector, Report, Stopped
from ipam.client.fanout import AT_ONCE
from ipam.client.records import encoded
from ipam.garbage import Terms
from libcalico.errors import DatastoreUnavailable
from libcalico.model.ipam import AllocationAttribute, Block, Handle
from libcalico.model.keys import BlockKey, FelixStatusKey, HandleKey, path_of
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore
from tests.support import garbage
from tests.support.garbage import connected, initialised, leave_behind, stored
from tests.support.ipam import (
    all_blocks,
    all_handles,
    ask,
    audited,
    client,
    consistent,
    held,
    pool,
    source,
)

POOL = pool("a", "10.0.0.0/24", 29)
KNOWN = source(POOL, nodes=["n1", "n2"])
TERMS = Terms(100.0)


@pytest.fixture
def store() -> MemoryDatastore:
    return MemoryDatastore()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
async def _sound(store: MemoryDatastore):  # type: ignore[no-untyped-def]
    await initialised(store, [POOL], ["n1", "n2"])
    yield
    assert [v for v in await audited(store) if v.kind != "unreadable"] == []


def collector(store: MemoryDatastore, clock: FakeClock, may_write: bool = True) -> Collector:
    return client(store, KNOWN, clock).collector(lambda: may_write)  # type: ignore[arg-type]


async def after_grace(store: MemoryDatastore, clock: FakeClock) -> Report:
    """The second pass of a fresh collector."""
    fresh = collector(store, clock)
    await fresh.run_pass(TERMS)
    await clock.advance(100.0)
    return await fresh.run_pass(TERMS)


async def blocks_of(store: MemoryDatastore) -> set[str]:
    return set(await all_blocks(store))


async def rewrite(store: MemoryDatastore, cidr: str, **changes: object) -> None:
    block = (await all_blocks(store))[cidr]
    number = block.sequence_number + 1
    changed = replace(block, sequence_number=number, **changes)  # type: ignore[arg-type]
    await store.put(path_of(BlockKey(cidr)), encoded(changed))


async def test_what_is_in_use_is_never_touched(store: MemoryDatastore, clock: FakeClock):
    await connected(client(store, KNOWN), store, "web", "n1")
    before = (await store.list("/calico/")).kvs
    report = await after_grace(store, clock)
    assert (report.freed.total(), report.failed.total()) == (0, 0)
    assert (await store.list("/calico/")).kvs == before


async def test_a_leak_goes_with_its_handle(store: MemoryDatastore, clock: FakeClock):
    ipam = client(store, KNOWN)
    kept = await connected(ipam, store, "web", "n1")
    dead = (await ipam.auto_assign(ask("dead"))).addresses[0].ip
    report = await after_grace(store, clock)
    assert [a.address for a in report.released] == [dead]
    assert {str(a) for a in await held(store)} == {kept}
    assert set(await all_handles(store)) == {"net.web"}
    await consistent(store)


async def test_an_endpoint_made_after_the_look_saves_its_address(
    store: MemoryDatastore, clock: FakeClock
):
    """J3."""
    got = (await client(store, KNOWN).auto_assign(ask("slow"))).addresses[0].ip
    late = garbage.endpoint("slow", "n1", f"{got}/32")
    fresh = collector(store, clock)
    await fresh.run_pass(TERMS)
    await clock.advance(100.0)
    reads = "/calico/resources/v3/projectcalico.org/workloadendpoints/"
    store.before_next(lambda: None, prefix=reads)  # the look
    store.before_next(lambda: store.seed(stored(late)), prefix=reads)  # the look right before
    report = await fresh.run_pass(TERMS)
    assert [str(a.address) for a in report.plan.leaks] == [str(got)]
    assert report.released == []
    assert set(await held(store)) == {got}


async def test_addresses_without_handle_and_attributes_are_reported_and_stay(
    store: MemoryDatastore, clock: FakeClock
):
    await client(store, KNOWN).auto_assign(dataclasses.replace(ask(None), attributes={}))
    report = await after_grace(store, clock)
    assert [a.standing.value for a in report.plan.allocations] == ["unknown owner"]
    assert len(await held(store)) == 1


async def test_a_vanished_node_leaves_nothing(store: MemoryDatastore, clock: FakeClock):
    kept = (await store.list("/calico/ipam/")).kvs
    await leave_behind(store, POOL, ["gone"], pods=2)
    await collector(store, clock).run_pass(TERMS)
    assert (await store.list("/calico/ipam/")).kvs == kept


async def test_a_node_whose_felix_reports_keeps_everything(
    store: MemoryDatastore, clock: FakeClock
):
    await leave_behind(store, POOL, ["alive"], pods=2)
    before = (await store.list("/calico/ipam/")).kvs
    await store.put(path_of(FelixStatusKey("alive")), b"{}")
    await collector(store, clock).run_pass(TERMS)
    assert (await store.list("/calico/ipam/")).kvs == before


async def test_an_unreadable_endpoint_is_said_once_and_protects_its_node(
    store: MemoryDatastore, clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    ipam = client(store, KNOWN)
    await connected(ipam, store, "web", "n1")
    other = await connected(ipam, store, "web", "n2")
    await store.put(path_of(garbage.endpoint_key("web", "n1")), b"{")
    await store.delete(path_of(garbage.endpoint_key("web", "n2")))
    report = await after_grace(store, clock)
    assert [str(a.address) for a in report.released] == [other]
    said = [r for r in caplog.records if "left as it is" in r.message]
    assert len(said) == 1


async def test_an_affinity_in_any_state_and_a_block_without_a_key_go_with_their_node(
    store: MemoryDatastore, clock: FakeClock
):
    await leave_behind(store, pool("a", "10.0.0.0/24", 29), ["gone", "lost"], pods=1)
    by_host = {block.host: cidr for cidr, block in (await all_blocks(store)).items()}
    await store.delete(path_of(Owner("lost").key(by_host["lost"])))
    pending = path_of(Owner("gone").key("10.0.0.128/29"))
    await store.put(pending, b'{"state":"pendingDeletion"}')
    unreadable = path_of(Owner("gone").key("10.0.0.136/29"))
    await store.put(unreadable, b"[]")
    report = await collector(store, clock).run_pass(TERMS)
    left = [kv.key for kv in (await store.list("/calico/ipam/v2/")).kvs]
    assert left == [unreadable]  # what it is for is not known: said, and counted
    assert report.failed["affinity"] == 1


async def test_a_block_with_addresses_of_others_stays_without_an_owner(
    store: MemoryDatastore, clock: FakeClock
):
    small = pool("a", "10.0.0.0/29", 29)
    await leave_behind(store, small, ["gone"], pods=1)
    borrower = client(store, source(small, nodes=["n1"]))
    address = await connected(borrower, store, "web", "n1")
    await collector(store, clock).run_pass(TERMS)
    block = (await all_blocks(store))["10.0.0.0/29"]
    assert block.affinity is None
    assert {str(a) for a in await held(store)} == {address}
    await borrower.release_by_handle("net.web")
    assert await all_blocks(store) == {}


async def test_left_endpoints_go_after_the_grace_period_with_their_addresses(
    store: MemoryDatastore, clock: FakeClock
):
    ipam = client(store, source(POOL, nodes=["gone"]))
    await connected(ipam, store, "old", "gone")
    fresh = collector(store, clock)
    await fresh.run_pass(TERMS)
    assert len(await held(store)) == 1
    await clock.advance(100.0)
    report = await fresh.run_pass(TERMS)
    assert report.freed["endpoint"] == 1
    assert await store.get(path_of(garbage.endpoint_key("old", "gone"))) is None
    assert (await store.list("/calico/ipam/")).kvs == ()


async def test_a_left_endpoint_of_a_node_that_comes_back_stays(
    store: MemoryDatastore, clock: FakeClock
):
    await connected(client(store, source(POOL, nodes=["gone"])), store, "old", "gone")
    fresh = collector(store, clock)
    await fresh.run_pass(TERMS)
    await clock.advance(100.0)
    back = garbage.node("gone")
    store.before_next(lambda: store.seed(stored(back)), operations=["txn"])
    report = await fresh.run_pass(TERMS)
    assert (report.freed["endpoint"], report.overtaken["endpoint"]) == (0, 1)
    assert len(await held(store)) == 1


async def test_surplus_and_ownerless_blocks_go_and_rested_addresses_are_freed(
    store: MemoryDatastore, clock: FakeClock
):
    ipam = client(store, KNOWN)
    await ipam.affinities.claim(ip_network("10.0.0.0/27"), Owner("n1"))
    await store.delete(path_of(Owner("n1").key("10.0.0.8/29")))
    await rewrite(store, "10.0.0.8/29", affinity=None)
    report = await after_grace(store, clock)
    assert report.freed["block"] == 3
    assert await blocks_of(store) == {"10.0.0.0/29"}
    cooling = AllocationAttribute(released_at="2020-01-01T00:00:00Z")
    block: Block = (await all_blocks(store))["10.0.0.0/29"]
    allocations = (0, *block.allocations[1:])
    await rewrite(
        store, block.cidr, allocations=allocations, unallocated=(1, 2, 3, 4, 5, 6, 7),
        attributes=(cooling,),
    )  # fmt: skip
    await after_grace(store, clock)
    assert (await all_blocks(store))["10.0.0.0/29"].unallocated == (1, 2, 3, 4, 5, 6, 7, 0)
    await consistent(store)


async def test_an_idle_handle_goes_unless_it_was_written_since(
    store: MemoryDatastore, clock: FakeClock
):
    path = path_of(HandleKey("net.idle"))
    await store.put(path, encoded(Handle(block={"10.0.0.0/29": 1})))
    fresh = collector(store, clock)
    await fresh.run_pass(TERMS)
    await clock.advance(100.0)
    store.before_next(
        lambda: store.seed({path: encoded(Handle(block={"10.0.0.0/29": 2}))}), operations=["txn"]
    )
    report = await fresh.run_pass(TERMS)
    assert (report.freed["handle"], report.overtaken["handle"]) == (0, 1)
    await clock.advance(100.0)
    await fresh.run_pass(TERMS)
    await clock.advance(100.0)
    assert (await fresh.run_pass(TERMS)).freed["handle"] == 1
    assert await store.get(path) is None


async def test_who_may_not_write_stops_before_the_first_step(
    store: MemoryDatastore, clock: FakeClock
):
    await leave_behind(store, POOL, ["gone"], pods=1)
    before = (await store.list("/calico/")).kvs
    with pytest.raises(Stopped):
        await collector(store, clock, may_write=False).run_pass(TERMS)
    assert (await store.list("/calico/")).kvs == before


async def test_a_datastore_that_is_away_ends_the_pass(store: MemoryDatastore, clock: FakeClock):
    nodes = [f"gone-{i}" for i in range(30)]
    await leave_behind(store, pool("a", "10.0.0.0/16", 29), nodes, pods=1)
    impatient = client(store, source(pool("a", "10.0.0.0/16", 29), nodes=["n1"]))
    steps = 0

    def may_write() -> bool:
        nonlocal steps
        steps += 1
        return True

    failures = 5 * GIVE_UP * 2  # a lane tries five times
    store.fail_next(failures, operations=["txn"])
    with pytest.raises(DatastoreUnavailable):
        await impatient.collector(may_write).run_pass(TERMS)
    assert steps < GIVE_UP + 2 * AT_ONCE
