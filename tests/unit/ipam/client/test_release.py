"""Releasing through IpamClient: datamodel §2.6, and reading who holds an address."""

from __future__ import annotations

import asyncio
import contextlib
from ipaddress import ip_address

import pytest

from ipam import pools
from ipam.client import IpamClient
from ipam.errors import AddressInCooldown, AddressUnassigned, BadHandle
from ipam.requests import Release
from libcalico.errors import BadSequenceNumber, DatastoreUnavailable, NotFound
from libcalico.model import codec
from libcalico.model.ipam import Handle, IpamConfig
from libcalico.model.keys import BlockKey, HandleKey, path_of
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore
from tests.support.faulty import Fault, FaultyDatastore, nth
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

KNOWN = source(pool("a", "10.0.0.0/24", 30), pool("b", "fd00::/112", 124))
COOLING = IpamConfig(auto_allocate_blocks=True, ip_cooldown_seconds=30)


@pytest.fixture
def store() -> MemoryDatastore:
    return MemoryDatastore()


@pytest.fixture(autouse=True)
async def _sound(store: MemoryDatastore):  # type: ignore[no-untyped-def]
    yield
    assert await audited(store) == []
    await consistent(store)


async def assigned(ipam: IpamClient, name: str, count: int = 1) -> list[Release]:
    got = await ipam.auto_assign(ask(name, v4=count))
    return [Release(address=address.ip) for address in got.addresses]


# ---- by address --------------------------------------------------------------------------------


async def test_addresses_of_several_blocks_and_families_are_released_at_once(
    store: MemoryDatastore,
):
    ipam = client(store, KNOWN)
    got = await ipam.auto_assign(ask("x", v4=6, v6=2))
    released = await ipam.release_ips(Release(address=a.ip) for a in got.addresses)
    assert {r.address for r in released.released} == {a.ip for a in got.addresses}
    assert released.failed == released.unallocated == ()
    assert await held(store) == {}
    assert await all_handles(store) == {}


async def test_what_is_free_or_unheard_of_is_reported_as_unallocated(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    (one,) = await assigned(ipam, "x")
    unknown = [Release(address=ip_address(a)) for a in ("10.0.0.77", "10.9.9.9", "fd99::1")]
    released = await ipam.release_ips([one, *unknown])
    assert released.released == (one,)
    assert set(released.unallocated) == {r.address for r in unknown}
    assert (await ipam.release_ips([one])).unallocated == (one.address,)


async def test_an_address_of_a_disabled_pool_is_released(store: MemoryDatastore):
    requests = await assigned(client(store, KNOWN), "x")
    disabled = source(pool("a", "10.0.0.0/24", 30, enabled=False))
    assert (await client(store, disabled).release_ips(requests)).released == tuple(requests)


async def test_an_address_of_a_pool_that_is_gone_is_found_by_its_block(store: MemoryDatastore):
    requests = await assigned(client(store, KNOWN), "x")
    assert (await client(store, source()).release_ips(requests)).released == tuple(requests)


async def test_a_wrong_handle_or_number_refuses_that_block_and_no_other(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    first, *_, last = await assigned(ipam, "x", 5)
    for bad, error in (
        (Release(address=first.address, handle_id="net.y"), BadHandle),
        (Release(address=first.address, sequence_number=1), BadSequenceNumber),
    ):
        outcome = await ipam.release_ips([bad, last])
        assert [type(failure.error) for failure in outcome.failed] == [error]
        assert first.address in await held(store)
    assert last.address not in await held(store)


async def test_the_number_of_an_earlier_assignment_does_not_release_the_later_one(
    store: MemoryDatastore,
):
    """What a collector saw before the address changed hands (§2.6.1)."""
    one_address = source(pool("a", "10.0.0.0/32", 32))
    ipam = client(store, one_address)
    await ipam.auto_assign(ask("old"))
    seen = await ipam.assignment(ip_address("10.0.0.0"))
    await ipam.release_by_handle("net.old")
    await ipam.auto_assign(ask("new"))
    stale = Release(address=seen.address, sequence_number=seen.sequence_number)
    outcome = await ipam.release_ips([stale])
    with pytest.raises(BadSequenceNumber):
        outcome.raise_failed()
    assert await held(store) == {ip_address("10.0.0.0"): "net.new"}


async def test_the_last_address_of_an_orphaned_block_takes_the_block_along(
    store: MemoryDatastore,
):
    ipam = client(store, KNOWN)
    requests = await assigned(ipam, "x", 2)
    await ipam.affinities.release_pool(KNOWN.current.pools[0].cidr)
    assert [block.affinity for block in (await all_blocks(store)).values()] == [None]
    await ipam.release_ips(requests[:1])
    assert len(await all_blocks(store)) == 1
    await ipam.release_ips(requests[1:])
    assert await all_blocks(store) == {}


async def test_a_handle_that_over_counts_is_only_logged(
    store: MemoryDatastore, caplog: pytest.LogCaptureFixture
):
    ipam = client(store, KNOWN)
    (one,) = await assigned(ipam, "x")
    await store.delete(path_of(HandleKey("net.x")))
    assert (await ipam.release_ips([one])).released == (one,)
    assert "ipam handle not decremented" in caplog.text


async def test_an_empty_block_of_a_pool_that_no_longer_selects_its_node_goes_back(
    store: MemoryDatastore,
):
    p = pool("a", "10.0.0.0/24", 30, node_selector="zone == 'a'")
    before = source(p, nodes={"n1": {"zone": "a"}})
    requests = await assigned(client(store, before), "x")
    after = source(p, nodes={"n1": {"zone": "b"}})
    await client(store, after).release_ips(requests)
    assert await all_blocks(store) == {}
    assert store.contents("/calico/ipam/v2/host/") == {}


@pytest.mark.parametrize("nodes", [{}, {"n1": {"zone": "a"}}])
async def test_a_block_stays_when_its_pool_selects_the_node_or_the_node_is_unknown(
    store: MemoryDatastore, nodes: dict[str, dict[str, str]]
):
    p = pool("a", "10.0.0.0/24", 30, node_selector="zone == 'a'")
    requests = await assigned(client(store, source(p, nodes={"n1": {"zone": "a"}})), "x")
    await client(store, source(p, nodes=nodes)).release_ips(requests)
    assert len(await all_blocks(store)) == 1


async def test_a_malformed_block_does_not_stop_the_others():
    broken = MemoryDatastore()
    ipam = client(broken, KNOWN)
    requests = await assigned(ipam, "x", 5)
    victim = str(pools.block_of(KNOWN.current.pools[0], requests[0].address))
    broken.seed({path_of(BlockKey(victim)): b"{}"})
    outcome = await client(broken, KNOWN).release_ips(requests)
    assert len(outcome.failed) == 4
    assert outcome.released == (requests[4],)


# ---- by handle ---------------------------------------------------------------------------------


async def test_a_handle_is_released_in_all_its_blocks(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    got = await ipam.auto_assign(ask("x", v4=6, v6=1))
    await ipam.auto_assign(ask("y"))
    assert set(await ipam.release_by_handle("net.x")) == {a.ip for a in got.addresses}
    assert list((await held(store)).values()) == ["net.y"]
    assert list(await all_handles(store)) == ["net.y"]


async def test_a_handle_nobody_knows_is_not_found(store: MemoryDatastore):
    with pytest.raises(NotFound) as refused:
        await client(store, KNOWN).release_by_handle("net.x")
    assert str(refused.value) == (
        "resource does not exist: IPAMHandleKey(id=net.x) with error: <nil>"
    )


async def test_a_second_release_is_not_found_and_harmless(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    await assigned(ipam, "x")
    await ipam.release_by_handle("net.x")
    with pytest.raises(NotFound):
        await ipam.release_by_handle("net.x")


async def test_a_handle_is_released_by_a_process_that_knows_nothing(store: MemoryDatastore):
    await assigned(client(store, KNOWN), "x", 5)
    assert len(await client(store, KNOWN).release_by_handle("net.x")) == 5
    assert await held(store) == {}


async def test_what_another_process_added_to_the_handle_is_released_as_well(
    store: MemoryDatastore,
):
    ipam = client(store, KNOWN)
    await assigned(ipam, "x")
    await client(store, KNOWN).auto_assign(ask("x", v4=5, v6=1))
    assert len(await ipam.release_by_handle("net.x")) == 7
    assert await held(store) == {}
    assert await all_handles(store) == {}


async def test_a_remembered_handle_that_another_process_released_is_no_error(
    store: MemoryDatastore,
):
    ipam = client(store, KNOWN)
    await assigned(ipam, "x")
    await client(store, KNOWN).release_by_handle("net.x")
    await client(store, KNOWN).auto_assign(ask("y"))
    assert await ipam.release_by_handle("net.x") == ()
    assert list((await held(store)).values()) == ["net.y"]


async def test_a_remembered_handle_that_lives_in_another_block_by_now_is_found_there(
    store: MemoryDatastore,
):
    ipam = client(store, KNOWN)
    await assigned(ipam, "x")
    other = client(store, KNOWN)
    await other.release_by_handle("net.x")
    full = await other.auto_assign(ask("y", v4=4))
    await other.auto_assign(ask("x"))
    # The block is seen as it is now, the handle still as it was.
    await ipam.release_ips([Release(address=full.addresses[0].ip)])
    assert len(await ipam.release_by_handle("net.x")) == 1
    assert set((await held(store)).values()) == {"net.y"}


async def test_a_handle_that_counts_more_than_there_is_ends():
    """Calico counts before it assigns (§0.13): nothing to release, and the count stays as it was
    for its writer, who may be about to assign."""
    over = MemoryDatastore()
    ipam = client(over, KNOWN)
    await assigned(ipam, "y")
    (cidr,) = await all_blocks(over)
    for blocks in ({cidr: 2}, {"10.0.0.200/30": 1}):
        over.seed({path_of(HandleKey("net.x")): codec.encode(Handle(block=blocks))})
        assert await client(over, KNOWN).release_by_handle("net.x") == ()
        assert (await all_handles(over))["net.x"].block == blocks


async def test_releases_of_many_handles_share_writes(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24", 26)))
    for i in range(60):
        await assigned(ipam, f"p{i}")
    store.calls.clear()
    await asyncio.gather(*(ipam.release_by_handle(f"net.p{i}") for i in range(60)))
    operations = [operation for operation, _ in store.calls]
    assert operations.count("txn") <= 3
    assert await held(store) == {}


async def test_a_cold_release_by_handle_costs_two_reads_and_one_write(store: MemoryDatastore):
    await assigned(client(store, KNOWN), "x")
    store.calls.clear()
    await client(store, KNOWN).release_by_handle("net.x")
    assert [operation for operation, _ in store.calls] == ["get", "get", "txn"]


@pytest.mark.parametrize("failing", range(1, 10))
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
async def test_every_call_of_a_release_may_fail_once(
    store: MemoryDatastore, failing: int, fault: Fault
):
    await client(store, KNOWN).auto_assign(ask("x", v4=5, v6=1))
    faulty = FaultyDatastore(store, nth(failing, fault))
    ipam = client(faulty, KNOWN)  # type: ignore[arg-type]
    try:
        assert len(await ipam.release_by_handle("net.x")) == 6
    except DatastoreUnavailable:
        with contextlib.suppress(NotFound):  # as a runtime would, once more
            await ipam.release_by_handle("net.x")
    assert await held(store) == {}
    assert await all_handles(store) == {}


# ---- cooldown ----------------------------------------------------------------------------------


async def test_a_cooling_address_is_not_given_out_again_too_soon(store: MemoryDatastore):
    clock = FakeClock()
    known = source(pool("a", "10.0.0.0/32", 32), config=COOLING)
    ipam = client(store, known, clock)
    await ipam.auto_assign(ask("x"))
    await ipam.release_by_handle("net.x")
    address = ip_address("10.0.0.0")
    with pytest.raises(AddressInCooldown) as refused:
        await ipam.assignment(address)
    assert str(refused.value) == "address 10.0.0.0 is in cooldown"
    assert (await ipam.release_ips([Release(address=address)])).unallocated == (address,)
    assert (await ipam.auto_assign(ask("y"))).addresses == ()
    await clock.advance(31.5)
    assert len((await ipam.auto_assign(ask("y"))).addresses) == 1


# ---- looking -----------------------------------------------------------------------------------


async def test_an_assignment_can_be_looked_up(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    (one,) = await assigned(ipam, "x")
    found = await ipam.assignment(one.address)
    assert (found.handle_id, dict(found.attributes)) == ("net.x", {"node": "n1", "pod": "x"})
    assert found.sequence_number > 0
    assert await ipam.ips_by_handle("net.x") == (one.address,)


async def test_an_address_nobody_holds_is_not_found(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    (one,) = await assigned(ipam, "x")
    with pytest.raises(NotFound, match="No valid IPPool"):
        await ipam.assignment(ip_address("10.9.9.9"))
    free = ip_address(int(one.address) ^ 1)
    with pytest.raises(AddressUnassigned):
        await ipam.assignment(free)
    elsewhere = ip_address(int(one.address) ^ 0x40)
    with pytest.raises(NotFound, match="BlockKey"):
        await ipam.assignment(elsewhere)


async def test_the_use_of_the_pools_is_added_up(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    await ipam.auto_assign(ask("x", v4=5, v6=1))
    a, b, orphans = await ipam.utilization()
    assert (a.in_use, a.capacity, b.in_use, orphans.blocks) == (5, 256, 1, ())
    (only,) = await ipam.utilization(["fd00::/112"])
    assert only.name == "b"
