"""Assigning addresses through IpamClient: the rules of datamodel §2.3-2.5, each by name."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace as changed

from ipam import blocks, pools
from ipam.affinity import CONFIRMED, Owner
from ipam.client import FixedSource, IpamClient, lane
from ipam.errors import (
    BlockNotFound,
    HandleLimitReached,
    NoPools,
    PoolRefused,
    RetriesExhausted,
    UseRequired,
)
from ipam.requests import (
    LOAD_BALANCER_USE,
    TUNNEL,
    WINDOWS_RESERVED,
    WORKLOAD,
    AssignIP,
    Release,
)
from libcalico.errors import (
    AffinityLost,
    AlreadyExists,
    BlockLimitReached,
    DatastoreUnavailable,
    NotFound,
)
from libcalico.model import codec
from libcalico.model.ipam import BlockAffinity, IpamConfig
from libcalico.model.keys import BlockAffinityKey, BlockKey, path_of
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore
from tests.support.faulty import Fault, FaultyDatastore, nth
from tests.support.ipam import all_blocks, ask, audited, client, consistent, held, pool, source

STRICT = IpamConfig(strict_affinity=True, auto_allocate_blocks=True)
FAMILIES = pytest.mark.parametrize(
    ("cidr", "block_size", "v4", "v6"), [("10.0.0.0/24", 28, 1, 0), ("fd00::/120", 124, 0, 1)]
)


def affinity_path(host: str, cidr: str) -> str:
    return path_of(BlockAffinityKey(host, cidr))


def affinities(store: MemoryDatastore) -> dict[str, str]:
    """host/block -> state, of the host affinities."""
    found = {}
    for key, value in store.contents("/calico/ipam/v2/host/").items():
        parts = key.split("/")
        found[f"{parts[5]} {parts[8]}"] = json.loads(value)["state"]
    return found


def addresses(assigned: object) -> list[str]:
    return [str(address) for address in assigned.addresses]  # type: ignore[attr-defined]


@pytest.fixture
def store() -> MemoryDatastore:
    return MemoryDatastore()


@pytest.fixture(autouse=True)
async def _sound(store: MemoryDatastore):  # type: ignore[no-untyped-def]
    """Whatever a test does: nobody ever held an address twice, and the records agree."""
    yield
    assert await audited(store) == []
    await consistent(store)


# ---- the first block ---------------------------------------------------------------------------


@FAMILIES
async def test_the_first_address_claims_a_block_and_carries_its_prefix(
    store: MemoryDatastore, cidr: str, block_size: int, v4: int, v6: int
):
    p = pool("a", cidr, block_size)
    got = await client(store, source(p)).auto_assign(ask("x", v4=v4, v6=v6))
    start = pools.block_at(p, pools.start_index(p, "n1"))
    assert addresses(got) == [f"{start.network_address}/{block_size}"]
    assert affinities(store) == {f"n1 {str(start).replace('/', '-')}": "confirmed"}
    (block,) = (await all_blocks(store)).values()
    assert block.affinity == "host:n1"
    assert block.affinity_claim_time is not None


async def test_what_is_stored_is_calicos_form_member_for_member(store: MemoryDatastore):
    clock = FakeClock(wall=1_787_476_801.25)
    await client(store, source(pool("a", "10.0.0.0/30", 30)), clock).auto_assign(ask("x"))
    stored = {key: json.loads(value) for key, value in store.contents().items()}
    sequence = int(1_787_476_801.25 * 1e9)
    assert stored == {
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30": {
            "cidr": "10.0.0.0/30",
            "affinity": "host:n1",
            "affinity_claim_time": "2026-08-23T09:20:01Z",
            "allocations": [0, None, None, None],
            "unallocated": [1, 2, 3],
            "attributes": [{"handle_id": "net.x", "secondary": {"node": "n1", "pod": "x"}}],
            "sequenceNumber": sequence + 1,
            "sequenceNumberForAllocation": {"0": sequence},
            "deleted": False,
        },
        "/calico/ipam/v2/host/n1/ipv4/block/10.0.0.0-30": {"state": "confirmed", "deleted": False},
        "/calico/ipam/v2/handle/net.x": {"block": {"10.0.0.0/30": 1}, "deleted": False},
    }


async def test_a_dual_stack_request_gets_one_of_each_under_one_handle(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24"), pool("b", "fd00::/112")))
    got = await ipam.auto_assign(ask("x", v4=1, v6=1))
    assert [address.version for address in got.addresses] == [4, 6]
    assert len(await ipam.ips_by_handle("net.x")) == 2


async def test_a_host_without_a_node_object_gets_nothing(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24"), nodes=[]))
    with pytest.raises(NotFound) as refused:
        await ipam.auto_assign(ask("x"))
    assert str(refused.value) == "resource does not exist: Node(n1) with error: <nil>"
    assert store.contents() == {}


async def test_the_intended_use_is_mandatory(store: MemoryDatastore):
    with pytest.raises(UseRequired):
        await client(store, source(pool("a", "10.0.0.0/24"))).auto_assign(ask("x", use=""))


async def test_a_load_balancer_address_is_affine_to_nobodys_host(store: MemoryDatastore):
    uses = (LOAD_BALANCER_USE,)
    ipam = client(store, source(pool("lb", "10.0.0.0/24", allowed_uses=uses), nodes=[]))
    await ipam.auto_assign(ask("x", "load-balancer", use=LOAD_BALANCER_USE))
    (block,) = (await all_blocks(store)).values()
    assert block.affinity == "virtual:load-balancer"
    (key,) = store.contents("/calico/ipam/v2/virtual/")
    assert key.startswith("/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.")


# ---- own blocks --------------------------------------------------------------------------------


async def test_assignments_stay_in_the_hosts_block_until_it_is_full(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24", 30)))
    got = [await ipam.auto_assign(ask(f"p{i}")) for i in range(5)]
    assert len({address.network for one in got[:4] for address in one.addresses}) == 1
    assert len(await all_blocks(store)) == 2


async def test_a_fresh_process_goes_on_with_the_blocks_the_host_has(store: MemoryDatastore):
    known = source(pool("a", "10.0.0.0/24", 30))
    first = await client(store, known).auto_assign(ask("a"))
    second = await client(store, known).auto_assign(ask("b"))
    assert first.addresses[0].network == second.addresses[0].network
    assert len(await all_blocks(store)) == 1


async def test_two_hosts_have_blocks_of_their_own(store: MemoryDatastore):
    known = source(pool("a", "10.0.0.0/24", 28))
    one = await client(store, known).auto_assign(ask("a", "n1"))
    other = await client(store, known).auto_assign(ask("b", "n2"))
    assert one.addresses[0].network != other.addresses[0].network


async def test_concurrent_requests_of_a_host_do_not_claim_a_block_each(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/16")))
    got = await asyncio.gather(*(ipam.auto_assign(ask(f"p{i}")) for i in range(100)))
    assert len({address for one in got for address in one.addresses}) == 100
    operations = [operation for operation, _ in store.calls]
    # Two blocks: for each one list of the taken ones and one claim; and few writes that fill them.
    assert operations.count("txn") <= 2 + 8
    assert operations.count("list") + operations.count("get") <= 100 + 8
    assert len(await all_blocks(store)) == 2


async def test_requests_behind_one_that_looks_for_a_block_find_the_block_it_got(
    store: MemoryDatastore,
):
    ipam = client(store, source(pool("a", "10.0.0.0/16")))
    await ipam.auto_assign(ask("first", v4=64))
    store.calls.clear()
    await asyncio.gather(*(ipam.auto_assign(ask(f"p{i}")) for i in range(30)))
    assert [operation for operation, _ in store.calls].count("list") <= 2


async def test_a_hundred_hosts_start_at_once_and_each_gets_a_block(store: MemoryDatastore):
    hosts = [f"n{i}" for i in range(100)]
    known = source(pool("a", "10.0.0.0/16"), nodes=hosts)
    clients = {host: client(store, known) for host in hosts}
    await asyncio.gather(*(clients[host].auto_assign(ask(host, host)) for host in hosts))
    stored = await all_blocks(store)
    assert sorted(block.host or "" for block in stored.values()) == sorted(hosts)
    assert sum(ipam.records.conflicts for ipam in clients.values()) < 25


async def test_an_address_somebody_else_freed_is_found_before_a_new_block_is_claimed(
    store: MemoryDatastore,
):
    known = source(pool("a", "10.0.0.0/24", 30))
    ipam = client(store, known)
    got = await ipam.auto_assign(ask("a", v4=4))
    other = client(store, known)
    await other.release_ips([Release(address=got.addresses[2].ip)])
    again = await ipam.auto_assign(ask("b"))
    assert again.addresses == (got.addresses[2],)
    assert len(await all_blocks(store)) == 1


async def test_a_wholly_reserved_own_block_is_passed_over(store: MemoryDatastore):
    p = pool("a", "10.0.0.0/24", 30)
    got = await client(store, source(p)).auto_assign(ask("a"))
    reserved = [str(got.addresses[0].network)]
    again = await client(store, source(p, reserved=reserved)).auto_assign(ask("b"))
    assert again.addresses[0].network != got.addresses[0].network


async def test_reserved_addresses_are_not_given_out(store: MemoryDatastore):
    p = pool("a", "10.0.0.0/29", 29)
    ipam = client(store, source(p, reserved=["10.0.0.0/30", "10.0.0.6"]))
    got = await ipam.auto_assign(ask("x", v4=8))
    assert [str(address.ip) for address in got.addresses] == ["10.0.0.4", "10.0.0.5", "10.0.0.7"]


@pytest.mark.parametrize("state", ["pending", "pendingDeletion"])
async def test_an_affinity_that_was_left_unconfirmed_is_finished_with_a_rewrite_of_the_block(
    store: MemoryDatastore, state: str
):
    known = source(pool("a", "10.0.0.0/30", 30))
    await client(store, known).auto_assign(ask("a"))
    key = affinity_path("n1", "10.0.0.0/30")
    store.seed({key: codec.encode(BlockAffinity(state=state))})
    before = (await all_blocks(store))["10.0.0.0/30"].sequence_number
    got = await client(store, known).auto_assign(ask("b"))
    assert addresses(got) == ["10.0.0.1/30"]
    assert affinities(store) == {"n1 10.0.0.0-30": "confirmed"}
    # One write to confirm, one to assign: whoever read the block before is defeated.
    assert (await all_blocks(store))["10.0.0.0/30"].sequence_number == before + 2


@pytest.mark.parametrize("value", [b"", b"{}", b'{"state":""}'])
async def test_an_old_affinity_with_an_empty_value_is_a_confirmed_one(
    store: MemoryDatastore, value: bytes
):
    known = source(pool("a", "10.0.0.0/30", 30))
    await client(store, known).auto_assign(ask("a"))
    store.seed({affinity_path("n1", "10.0.0.0/30"): value})
    got = await client(store, known).auto_assign(ask("b"))
    assert addresses(got) == ["10.0.0.1/30"]
    assert store.contents(affinity_path("n1", "10.0.0.0/30")) == {
        affinity_path("n1", "10.0.0.0/30"): value
    }


@pytest.mark.parametrize("state", ["pending", "pendingDeletion"])
async def test_an_unfinished_affinity_without_a_block_gets_its_block(
    store: MemoryDatastore, state: str
):
    store.seed({affinity_path("n1", "10.0.0.4/30"): codec.encode(BlockAffinity(state=state))})
    got = await client(store, source(pool("a", "10.0.0.0/24", 30))).auto_assign(ask("a"))
    assert addresses(got) == ["10.0.0.4/30"]
    assert affinities(store) == {"n1 10.0.0.4-30": "confirmed"}


async def test_a_stale_affinity_is_deleted_and_the_next_block_used(store: MemoryDatastore):
    block = changed(blocks.new_block("10.0.0.0/30", 5), affinity="host:n2")
    store.seed({
        affinity_path("n1", "10.0.0.0/30"): codec.encode(BlockAffinity(state="pending")),
        path_of(BlockKey("10.0.0.0/30")): codec.encode(block),
    })  # fmt: skip
    got = await client(store, source(pool("a", "10.0.0.0/29", 30))).auto_assign(ask("a"))
    assert addresses(got) == ["10.0.0.4/30"]
    assert affinities(store) == {"n1 10.0.0.4-30": "confirmed"}
    assert (await all_blocks(store))["10.0.0.0/30"] == block


async def test_a_confirmed_affinity_of_a_block_that_is_anothers_is_stale_as_well():
    wrong = MemoryDatastore()
    block = changed(blocks.new_block("10.0.0.0/30", 5), affinity="host:n2")
    wrong.seed({
        affinity_path("n1", "10.0.0.0/30"): codec.encode(CONFIRMED),
        path_of(BlockKey("10.0.0.0/30")): codec.encode(block),
    })  # fmt: skip
    got = await client(wrong, source(pool("a", "10.0.0.0/29", 30))).auto_assign(ask("a"))
    assert addresses(got) == ["10.0.0.4/30"]
    assert affinities(wrong) == {"n1 10.0.0.4-30": "confirmed"}


async def test_an_affinity_released_behind_our_back_is_not_made_again(store: MemoryDatastore):
    """A pool is being deleted: what we remember of its blocks must not bring them back."""
    known = source(pool("a", "10.0.0.0/30", 30), pool("b", "10.0.1.0/30", 30))
    ipam = client(store, known)
    await ipam.auto_assign(ask("a"))
    other = client(store, known)
    await other.release_by_handle("net.a")
    await other.affinities.release_pool(ip_network("10.0.0.0/30"))
    known.current = replace(known.current, pools=(known.current.pools[1],))
    got = await ipam.auto_assign(ask("b"))
    assert addresses(got) == ["10.0.1.0/30"]
    assert list(await all_blocks(store)) == ["10.0.1.0/30"]


async def test_a_malformed_own_block_is_passed_over_with_a_message():
    broken = MemoryDatastore()
    broken.seed({
        affinity_path("n1", "10.0.0.0/30"): codec.encode(CONFIRMED),
        path_of(BlockKey("10.0.0.0/30")): b'{"cidr":"10.0.0.0/30","affinity":"host:n1"}',
    })  # fmt: skip
    got = await client(broken, source(pool("a", "10.0.0.0/29", 30))).auto_assign(ask("a"))
    assert addresses(got) == ["10.0.0.4/30"]
    assert got.v4 is not None
    assert got.v4.messages == ("Failed to assign IPs in newly allocated block",)


async def test_blocks_of_the_other_pools_are_not_used(store: MemoryDatastore):
    a, b = pool("a", "10.0.0.0/24", 30), pool("b", "10.0.1.0/24", 30)
    ipam = client(store, source(a, b))
    await ipam.auto_assign(ask("x", pools_v4=(b.cidr,)))
    got = await ipam.auto_assign(ask("y", pools_v4=(a.cidr,)))
    assert got.addresses[0].ip in a.cidr


async def test_an_empty_block_of_a_pool_that_no_longer_selects_the_node_goes_back(
    store: MemoryDatastore,
):
    a = pool("a", "10.0.0.0/24", 30, node_selector="zone == 'a'")
    b = pool("b", "10.0.1.0/24", 30)
    before = source(a, nodes={"n1": {"zone": "a"}})
    ipam = client(store, before)
    await ipam.auto_assign(ask("x", v4=5))  # two blocks
    await ipam.release_ips([Release(address=a) for a in await ipam.ips_by_handle("net.x")][:4])
    assert len(await all_blocks(store)) == 2
    after = source(a, b, nodes={"n1": {"zone": "b"}})
    got = await client(store, after).auto_assign(ask("y"))
    assert got.addresses[0].ip in b.cidr
    kept = {cidr: block.affinity for cidr, block in (await all_blocks(store)).items()}
    assert len(kept) == 2  # the one in use stays ours, the empty one is gone
    assert set(kept.values()) == {"host:n1"}


async def test_a_block_in_use_of_a_pool_that_no_longer_selects_the_node_costs_one_look(
    store: MemoryDatastore,
):
    a = pool("a", "10.0.0.0/24", 30, node_selector="zone == 'a'")
    b = pool("b", "10.0.1.0/24", 30)
    await client(store, source(a, nodes={"n1": {"zone": "a"}})).auto_assign(ask("x"))
    ipam = client(store, source(a, b, nodes={"n1": {"zone": "b"}}))
    await ipam.auto_assign(ask("y"))
    store.calls.clear()
    await ipam.auto_assign(ask("z"))
    assert [operation for operation, _ in store.calls] == ["txn"]


async def test_an_empty_block_of_a_pool_this_request_does_not_use_is_kept(store: MemoryDatastore):
    a, b = pool("a", "10.0.0.0/24", 30), pool("b", "10.0.1.0/24", 30)
    ipam = client(store, source(a, b))
    await ipam.affinities.claim(ip_network("10.0.1.0/30"), Owner("n1"))
    await client(store, source(a, b)).auto_assign(ask("x", pools_v4=(a.cidr,)))
    assert "10.0.1.0/30" in await all_blocks(store)


# ---- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configured", "asked", "limit"),
    [(0, 0, 20), (3, 0, 3), (0, 2, 2), (3, 2, 2), (2, 5, 2)],
)
async def test_the_number_of_blocks_a_host_may_have(
    store: MemoryDatastore, configured: int, asked: int, limit: int
):
    config = IpamConfig(
        strict_affinity=configured > 0, auto_allocate_blocks=True, max_blocks_per_host=configured
    )
    ipam = client(store, source(pool("a", "10.0.0.0/24", 32), config=config))
    for i in range(limit):
        await ipam.auto_assign(ask(f"p{i}", max_blocks_per_host=asked))
    with pytest.raises(BlockLimitReached) as refused:
        await ipam.auto_assign(ask("over", max_blocks_per_host=asked))
    assert refused.value.limit == limit
    assert str(refused.value) == (
        f"cannot allocate new block due to per host block limit: {limit} in pools: [10.0.0.0/24]"
    )
    assert len(await all_blocks(store)) == limit


async def test_a_request_that_hits_the_limit_halfway_gives_back_what_it_got(
    store: MemoryDatastore,
):
    ipam = client(store, source(pool("a", "10.0.0.0/24", 30)))
    with pytest.raises(BlockLimitReached):
        await ipam.auto_assign(ask("x", v4=12, max_blocks_per_host=2))
    assert await held(store) == {}


async def test_blocks_in_other_pools_do_not_count(store: MemoryDatastore):
    a, b = pool("a", "10.0.0.0/24", 32), pool("b", "10.0.1.0/24", 32)
    ipam = client(store, source(a, b))
    await ipam.auto_assign(ask("x", max_blocks_per_host=1, pools_v4=(a.cidr,)))
    await ipam.auto_assign(ask("y", max_blocks_per_host=1, pools_v4=(b.cidr,)))


async def test_without_automatic_blocks_none_is_made(store: MemoryDatastore):
    config = IpamConfig(strict_affinity=True)  # as a stored {"strict_affinity":true}
    known = source(pool("a", "10.0.0.0/24", 30), config=config)
    ipam = client(store, known)
    with pytest.raises(BlockNotFound) as refused:
        await ipam.auto_assign(ask("x"))
    assert str(refused.value) == "failed to find or claim a block"
    await ipam.affinities.claim(ip_network("10.0.0.8/30"), Owner("n1"))
    assert addresses(await ipam.auto_assign(ask("x"))) == ["10.0.0.8/30"]


async def test_a_limited_handle_keeps_to_its_limit(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24"), pool("b", "fd00::/112")))
    await ipam.auto_assign(ask("vm", v4=1, v6=1, max_alloc=1))
    with pytest.raises(HandleLimitReached):
        await ipam.auto_assign(ask("vm", max_alloc=1))
    assert len(await held(store)) == 2


# ---- full pools: reclaiming and borrowing ------------------------------------------------------


async def test_without_a_free_block_addresses_are_borrowed_from_another_host(
    store: MemoryDatastore,
):
    known = source(pool("a", "10.0.0.0/29", 29))
    await client(store, known).auto_assign(ask("a", "n1"))
    got = await client(store, known).auto_assign(ask("b", "n2"))
    assert addresses(got) == ["10.0.0.1/29"]
    assert affinities(store) == {"n1 10.0.0.0-29": "confirmed"}
    (block,) = (await all_blocks(store)).values()
    assert block.affinity == "host:n1"


async def test_strict_affinity_forbids_borrowing_and_says_so(store: MemoryDatastore):
    known = source(pool("a", "10.0.0.0/29", 29), config=STRICT)
    await client(store, known).auto_assign(ask("a", "n1"))
    got = await client(store, known).auto_assign(ask("b", "n2"))
    assert str(got.partial_error()) == (
        "Assigned 0 out of 1 requested IPv4 addresses; "
        "No more free affine blocks and strict affinity enabled: pools [10.0.0.0/29]"
    )


async def test_a_full_pool_is_named(store: MemoryDatastore):
    known = source(pool("a", "10.0.0.0/30", 31), pool("b", "10.0.1.0/31", 31))
    await client(store, known).auto_assign(ask("a", "n1", v4=6))
    got = await client(store, known).auto_assign(ask("b", "n2"))
    assert str(got.partial_error()) == (
        "Assigned 0 out of 1 requested IPv4 addresses; "
        "No IPs available in pools: [10.0.0.0/30 10.0.1.0/31]"
    )


async def test_fewer_than_asked_for_is_no_error_and_the_rest_is_kept(store: MemoryDatastore):
    got = await client(store, source(pool("a", "10.0.0.0/30", 30))).auto_assign(ask("a", v4=6))
    assert len(got.addresses) == 4
    assert len(await held(store)) == 4


async def test_a_request_takes_from_several_pools_in_name_order(store: MemoryDatastore):
    known = source(pool("a", "10.0.0.0/31", 31), pool("b", "10.0.1.0/31", 31))
    got = await client(store, known).auto_assign(ask("x", v4=4))
    assert addresses(got) == ["10.0.0.0/31", "10.0.0.1/31", "10.0.1.0/31", "10.0.1.1/31"]


async def test_an_empty_block_of_another_host_is_reclaimed_after_a_minute(store: MemoryDatastore):
    clock = FakeClock()
    known = source(pool("a", "10.0.0.0/30", 30))
    first = client(store, known, clock)
    await first.auto_assign(ask("a", "n1"))
    await first.release_by_handle("net.a")
    await clock.advance(30)
    young = await client(store, known, clock).auto_assign(ask("b", "n2"))
    assert affinities(store) == {"n1 10.0.0.0-30": "confirmed"}  # borrowed, too young to take
    await first.release_by_handle("net.b")
    await clock.advance(31)
    old = await client(store, known, clock).auto_assign(ask("c", "n2"))
    assert affinities(store) == {"n2 10.0.0.0-30": "confirmed"}
    assert len(young.addresses) == len(old.addresses) == 1


async def test_a_block_in_use_is_never_reclaimed(store: MemoryDatastore):
    clock = FakeClock()
    known = source(pool("a", "10.0.0.0/30", 30), config=STRICT)
    await client(store, known, clock).auto_assign(ask("a", "n1"))
    await clock.advance(3600)
    got = await client(store, known, clock).auto_assign(ask("b", "n2"))
    assert got.addresses == ()


async def test_the_host_that_lost_its_block_notices(store: MemoryDatastore):
    clock = FakeClock()
    known = source(pool("a", "10.0.0.0/29", 30))
    first = client(store, known, clock)
    got = await first.auto_assign(ask("a", "n1"))
    await first.release_by_handle("net.a")
    await clock.advance(61)
    await client(store, known, clock).auto_assign(ask("b", "n2", v4=5))
    assert affinities(store) == {"n2 10.0.0.0-30": "confirmed", "n2 10.0.0.4-30": "confirmed"}
    again = await first.auto_assign(ask("c", "n1"))
    assert len(again.addresses) == 1
    assert affinities(store) == {"n2 10.0.0.0-30": "confirmed", "n2 10.0.0.4-30": "confirmed"}
    assert got.addresses


async def test_an_empty_block_without_owner_is_taken_over(store: MemoryDatastore):
    """Calico leaves none, but an interrupted one of another writer must not be lost for ever."""
    store.seed({path_of(BlockKey("10.0.0.0/30")): codec.encode(blocks.new_block("10.0.0.0/30", 1))})
    known = source(pool("a", "10.0.0.0/30", 30), config=STRICT)
    got = await client(store, known).auto_assign(ask("a"))
    assert len(got.addresses) == 1
    assert affinities(store) == {"n1 10.0.0.0-30": "confirmed"}


async def test_an_own_block_whose_affinity_key_is_lost_is_adopted_when_blocks_run_out(
    store: MemoryDatastore,
):
    block = changed(blocks.new_block("10.0.0.0/30", 5), affinity="host:n1")
    store.seed({path_of(BlockKey("10.0.0.0/30")): codec.encode(block)})
    got = await client(store, source(pool("a", "10.0.0.0/30", 30), config=STRICT)).auto_assign(
        ask("a")
    )
    assert addresses(got) == ["10.0.0.0/30"]
    assert affinities(store) == {"n1 10.0.0.0-30": "confirmed"}


async def test_borrowing_goes_on_after_a_block_that_fails():
    broken = MemoryDatastore()
    known = source(pool("a", "10.0.0.0/29", 30))
    await client(broken, known).auto_assign(ask("a", "n1", v4=5))
    stored = await all_blocks(broken)
    victim = min(stored, key=lambda cidr: len(stored[cidr].unallocated))
    broken.seed({path_of(BlockKey(victim)): b'{"cidr":"%s"}' % victim.encode()})
    got = await client(broken, known).auto_assign(ask("b", "n2"))
    assert len(got.addresses) == 1


async def test_a_malformed_block_of_a_full_pool_is_passed_over():
    broken = MemoryDatastore()
    raw = {"cidr": "10.0.0.0/30", "affinity": "host:n2", "allocations": [5, 6, None, None],
           "unallocated": [2, 3], "attributes": [{"handle_id": "x"}]}  # fmt: skip
    broken.seed({path_of(BlockKey("10.0.0.0/30")): json.dumps(raw).encode()})
    got = await client(broken, source(pool("a", "10.0.0.0/30", 30))).auto_assign(ask("b"))
    assert got.addresses == ()
    assert json.loads(broken.contents()[path_of(BlockKey("10.0.0.0/30"))]) == raw


# ---- one particular address (§2.5) -------------------------------------------------------------


def one(address: str, name: str = "x", host: str = "n1", **more: object) -> AssignIP:
    return AssignIP(
        address=ip_address(address), host=host, handle_id=f"net.{name}",
        attributes={"pod": name}, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("address", "expected"), [("10.0.0.9", "10.0.0.9/30"), ("fd00::19", "fd00::19/124")]
)
async def test_a_given_address_is_assigned_and_its_block_claimed(
    store: MemoryDatastore, address: str, expected: str
):
    ipam = client(store, source(pool("a", "10.0.0.0/24", 30), pool("b", "fd00::/112", 124)))
    assert await ipam.assign_ip(one(address)) == ip_interface(expected)
    assert list((await held(store)).values()) == ["net.x"]
    assert list(affinities(store).values()) == ["confirmed"]
    assert await ipam.ips_by_handle("net.x") == (ip_address(address),)


async def test_an_address_that_is_held_is_refused(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24", 30)))
    await ipam.assign_ip(one("10.0.0.9"))
    with pytest.raises(AlreadyExists) as refused:
        await ipam.assign_ip(one("10.0.0.9", "y"))
    assert str(refused.value) == (
        "resource already exists: 10.0.0.9 with error: Address already assigned in block"
    )


async def test_the_block_limit_does_not_hold_for_a_given_address(store: MemoryDatastore):
    config = IpamConfig(strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=1)
    ipam = client(store, source(pool("a", "10.0.0.0/24", 32), config=config))
    await ipam.assign_ip(one("10.0.0.1"))
    await ipam.assign_ip(one("10.0.0.2", "y"))
    assert len(await all_blocks(store)) == 2


async def test_selectors_do_not_matter_for_a_given_address_but_the_use_does(
    store: MemoryDatastore,
):
    p = pool("a", "10.0.0.0/24", node_selector="has(nothing)", allowed_uses=(TUNNEL,))
    ipam = client(store, source(p))
    with pytest.raises(PoolRefused) as refused:
        await ipam.assign_ip(one("10.0.0.9", use=WORKLOAD))
    assert str(refused.value) == (
        'IP address 10.0.0.9 is in IP pool "a", which is not allowed for use "Workload" '
        "(allowedUses: [Tunnel])"
    )
    await ipam.assign_ip(one("10.0.0.9"))


@pytest.mark.parametrize("address", ["10.9.9.9", "10.0.1.1", "fd00::1"])
async def test_an_address_outside_every_enabled_pool_is_refused(
    store: MemoryDatastore, address: str
):
    known = source(pool("a", "10.0.0.0/24"), pool("b", "10.0.1.0/24", enabled=False))
    with pytest.raises(PoolRefused) as refused:
        await client(store, known).assign_ip(one(address))
    assert str(refused.value) == "The provided IP address is not in a configured pool\n"


async def test_strict_affinity_refuses_an_address_of_anothers_block(store: MemoryDatastore):
    p = pool("a", "10.0.0.0/24", 30)
    await client(store, source(p)).assign_ip(one("10.0.0.9", host="n2"))
    with pytest.raises(AffinityLost, match=r"^Block host affinity does not match$"):
        await client(store, source(p, config=STRICT)).assign_ip(one("10.0.0.10", "y"))
    await client(store, source(p)).assign_ip(one("10.0.0.10", "y"))


async def test_two_hosts_that_want_one_address_of_a_new_block_at_once(store: MemoryDatastore):
    known = source(pool("a", "10.0.0.0/24", 30))
    results = await asyncio.gather(
        client(store, known).assign_ip(one("10.0.0.9", "a", "n1")),
        client(store, known).assign_ip(one("10.0.0.9", "b", "n2")),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["AlreadyExists", "IPv4Interface"]
    assert len(affinities(store)) == 1


# ---- failures ----------------------------------------------------------------------------------


async def test_if_the_second_family_fails_the_first_is_given_back(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24")))
    with pytest.raises(NoPools):
        await ipam.auto_assign(ask("x", v4=1, v6=1))
    assert await held(store) == {}


@pytest.mark.parametrize("failing", range(1, 14))
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
async def test_every_call_of_a_request_may_fail_once(
    store: MemoryDatastore, failing: int, fault: Fault
):
    """It succeeds nevertheless, or leaves nothing that its handle does not find."""
    known = source(pool("a", "10.0.0.0/24", 30), pool("b", "fd00::/112", 124))
    faulty = FaultyDatastore(store, nth(failing, fault))
    try:
        got = await client(faulty, known).auto_assign(ask("x", v4=5, v6=1))  # type: ignore[arg-type]
    except DatastoreUnavailable:
        await client(store, known).auto_assign(ask("x"))  # as a runtime would, then
        await client(store, known).release_by_handle("net.x")
        assert await held(store) == {}
    else:
        assert len(got.addresses) == 6
        assert len(await held(store)) == 6


async def test_a_datastore_that_is_away_is_said_at_once(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24")))
    store.partition()
    with pytest.raises(DatastoreUnavailable):
        await ipam.auto_assign(ask("x"))
    store.heal()


# ---- Windows, ensure_blocks --------------------------------------------------------------------


async def test_a_windows_host_reserves_addresses_in_its_blocks(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/29", 29), config=STRICT))
    got = await ipam.auto_assign(ask("x", v4=8, reserved_v4=WINDOWS_RESERVED))
    assert [str(address.ip) for address in got.addresses] == [f"10.0.0.{i}" for i in (3, 4, 5, 6)]
    assert "HostReservedAttr: windows-reserved-ipam-handle" in str(got.partial_error())


async def test_a_block_is_ensured_once(store: MemoryDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/24", 29), pool("b", "fd00::/112")))
    request = ask(None, v4=0, reserved_v4=WINDOWS_RESERVED)
    first = await ipam.affinities.ensure_blocks(request)
    assert await ipam.affinities.ensure_blocks(request) == first
    assert first[0] is not None
    assert first[1] is None
    assert len(await all_blocks(store)) == 1


# ---- bounds ------------------------------------------------------------------------------------


async def test_hosts_that_always_take_the_block_we_want_end_the_search(
    store: MemoryDatastore, monkeypatch: pytest.MonkeyPatch
):
    ipam = client(store, source(pool("a", "10.0.0.0/16")))

    async def lost(*args: object) -> None:
        return None

    claims = ipam._assigner._parts.claims
    monkeypatch.setattr(claims, "claim", lost)
    with pytest.raises(RetriesExhausted):
        await ipam.auto_assign(ask("x"))


async def test_an_own_block_that_others_always_write_first_is_tried_once(
    store: MemoryDatastore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lane, "MAX_CONFLICTS", 3)
    ipam = client(store, source(pool("a", "10.0.0.0/24", 30)))
    first = await ipam.auto_assign(ask("x"))
    busy = path_of(BlockKey(str(first.addresses[0].network)))

    writes = 0

    class Busy(FaultyDatastore):
        async def txn(self, compares, operations):  # type: ignore[no-untyped-def, override]
            nonlocal writes
            writes += 1
            if compares[0].key == busy:
                block = (await all_blocks(store))[str(first.addresses[0].network)]
                store.seed({busy: codec.encode(blocks.bumped(block))})
            return await self.inner.txn(compares, operations)

    faulty = Busy(store, lambda *_: Fault.OK)
    got = await client(faulty, ipam.source).auto_assign(ask("y"))  # type: ignore[arg-type]
    assert got.addresses[0].network != first.addresses[0].network
    assert got.v4 is not None
    assert got.v4.messages == ("Failed to assign IPs in newly allocated block",)
    assert writes == 3 + 2


def test_sources_can_be_exchanged_at_run_time():
    known = source(pool("a", "10.0.0.0/24"))
    ipam = IpamClient(MemoryDatastore(), known)
    assert isinstance(ipam.source, FixedSource)
