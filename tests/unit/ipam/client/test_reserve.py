"""ipam.client.reserve: filling, handing over, giving up; with answers lost at every step."""

from __future__ import annotations

import pytest

from ipam.errors import NotReserved
from ipam.requests import WORKLOAD, AssignIP, Release
from libcalico.testing.datastore import MemoryDatastore
from tests.support.faulty import Fault, FaultyDatastore, nth
from tests.support.ipam import audited, client, consistent, held, pool, source

POD = {"node": "n1", "pod": "web"}
POOLS = (pool("a", "10.0.0.0/24"), pool("b", "fd00::/112"))


@pytest.fixture
async def store():
    found = MemoryDatastore()
    yield found
    assert await audited(found) == []
    await consistent(found)


async def test_a_reserve_is_filled_looked_at_and_given_up(store):
    ipam = client(store, source(*POOLS))
    assert await ipam.reserves.held("n1") == ()
    four = await ipam.reserves.add("n1", 4, 3)
    six = await ipam.reserves.add("n1", 6, 2)
    assert set(await ipam.reserves.held("n1")) == {*four, *six}
    assert (len(four), len(six)) == (3, 2)
    await ipam.reserves.release("n1", four[:1])
    assert set(await ipam.reserves.held("n1")) == {*four[1:], *six}
    await ipam.reserves.release_all("n1")
    await ipam.reserves.release_all("n1")
    assert await held(store) == {}


async def test_what_became_a_pods_is_not_released_with_the_reserve(store):
    ipam = client(store, source(*POOLS))
    first, second = await ipam.reserves.add("n1", 4, 2)
    await ipam.reserves.hand_over(first, "n1", "net.c1", POD)
    await ipam.reserves.release("n1", [first])
    await ipam.reserves.release_all("n1")
    assert await held(store) == {first: "net.c1"}
    assert second not in await held(store)


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
@pytest.mark.parametrize("call", range(1, 6))
async def test_a_hand_over_survives_a_fault_at_any_call(store, call, fault):
    (address,) = await client(store, source(*POOLS)).reserves.add("n1", 4, 1)
    faulty = FaultyDatastore(store, nth(call, fault))
    await client(faulty, source(*POOLS)).reserves.hand_over(address, "n1", "net.c1", POD)
    assert await held(store) == {address: "net.c1"}
    # A process that died before it knew does it again.
    await client(store, source(*POOLS)).reserves.hand_over(address, "n1", "net.c1", POD)
    assert await held(store) == {address: "net.c1"}


async def test_the_pool_may_be_gone_and_the_block_given_up(store):
    ipam = client(store, source(*POOLS))
    (address,) = await ipam.reserves.add("n1", 4, 1)
    await ipam.affinities.release_pool(POOLS[0].cidr)
    later = client(store, source(POOLS[1]))
    await later.reserves.hand_over(address, "n1", "net.c1", POD)
    assert await held(store) == {address: "net.c1"}
    await later.release_by_handle("net.c1")
    assert await held(store) == {}


async def test_an_address_taken_away_by_hand_is_not_taken_back(store):
    ipam = client(store, source(*POOLS))
    (address,) = await ipam.reserves.add("n1", 4, 1)
    await ipam.release_ips([Release(address=address)])
    await ipam.assign_ip(
        AssignIP(address=address, host="n2", use=WORKLOAD, handle_id="net.x", attributes={})
    )
    with pytest.raises(NotReserved, match=r"net\.x holds it"):
        await client(store, source(*POOLS)).reserves.hand_over(address, "n1", "net.c1", POD)
    assert await held(store) == {address: "net.x"}
