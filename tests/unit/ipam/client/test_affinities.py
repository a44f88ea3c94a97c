"""IpamClient.affinities: ranges, hosts and pools as a whole (datamodel §2.6)."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from ipam.affinity import LOAD_BALANCER, Owner
from ipam.errors import PoolRefused
from ipam.requests import LOAD_BALANCER_USE
from libcalico.errors import BlockNotEmpty
from libcalico.model.keys import BlockKey, IpamHostKey, path_of
from libcalico.testing.datastore import MemoryDatastore
from tests.support.ipam import all_blocks, ask, audited, client, consistent, held, pool, source

N1, N2 = Owner("n1"), Owner("n2")
KNOWN = source(pool("a", "10.0.0.0/24", 28), pool("b", "fd00::/120", 124))


@pytest.fixture
def store() -> MemoryDatastore:
    return MemoryDatastore()


@pytest.fixture(autouse=True)
async def _sound(store: MemoryDatastore):  # type: ignore[no-untyped-def]
    yield
    assert await audited(store) == []
    await consistent(store)


@pytest.mark.parametrize(
    ("cidr", "count"), [("10.0.0.0/26", 4), ("10.0.0.16/28", 1), ("fd00::/122", 4)]
)
async def test_every_block_of_a_range_is_claimed(store: MemoryDatastore, cidr: str, count: int):
    claimed = await client(store, KNOWN).affinities.claim(ip_network(cidr), N1)
    assert len(claimed.claimed) == count
    assert claimed.failed == ()
    assert {block.affinity for block in (await all_blocks(store)).values()} == {"host:n1"}


async def test_blocks_of_others_are_told(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    await ipam.affinities.claim(ip_network("10.0.0.16/28"), N2)
    claimed = await ipam.affinities.claim(ip_network("10.0.0.0/27"), N1)
    assert claimed.claimed == (ip_network("10.0.0.0/28"),)
    assert claimed.failed == (ip_network("10.0.0.16/28"),)


@pytest.mark.parametrize(
    ("cidr", "text"),
    [
        ("10.9.0.0/28", "The requested CIDR (10.9.0.0/28) is not within any configured pools."),
        ("10.0.0.0/29", "The requested CIDR (10.0.0.0/29) is smaller than the minimum."),
    ],
)
async def test_a_range_must_lie_in_a_pool_and_hold_a_block(
    store: MemoryDatastore, cidr: str, text: str
):
    affinities = client(store, KNOWN).affinities
    for call in (
        affinities.claim(ip_network(cidr), N1),
        affinities.release(ip_network(cidr), N1, must_be_empty=False),
    ):
        with pytest.raises(PoolRefused) as refused:
            await call
        assert str(refused.value) == text


async def test_a_range_is_released_and_blocks_of_others_stay(store: MemoryDatastore):
    affinities = client(store, KNOWN).affinities
    await affinities.claim(ip_network("10.0.0.0/28"), N1)
    await affinities.claim(ip_network("10.0.0.16/28"), N2)
    await affinities.release(ip_network("10.0.0.0/24"), N1, must_be_empty=True)
    assert list(await all_blocks(store)) == ["10.0.0.16/28"]


async def test_a_hosts_blocks_are_released_and_one_in_use_does_not_stop_the_others(
    store: MemoryDatastore,
):
    ipam = client(store, KNOWN)
    await ipam.auto_assign(ask("x"))
    await ipam.affinities.claim(ip_network("10.0.0.0/26"), N1)
    await ipam.affinities.claim(ip_network("fd00::/124"), N1)
    with pytest.raises(BlockNotEmpty):
        await ipam.affinities.release_host(N1, must_be_empty=True)
    assert [block.affinity for block in (await all_blocks(store)).values()] == ["host:n1"]
    await ipam.affinities.release_host(N1, must_be_empty=False)
    assert [block.affinity for block in (await all_blocks(store)).values()] == [None]
    assert len(await held(store)) == 1


async def test_a_pools_affinities_are_released_of_every_host_but_virtual_ones(
    store: MemoryDatastore,
):
    uses = ("Workload", LOAD_BALANCER_USE)
    ipam = client(store, source(pool("a", "10.0.0.0/24", 28, allowed_uses=uses),
                                pool("c", "10.0.1.0/24", 28)))  # fmt: skip
    await ipam.auto_assign(ask("x", "n1"))
    await ipam.auto_assign(ask("y", "n2"))
    await ipam.auto_assign(ask("lb", LOAD_BALANCER.host, use=LOAD_BALANCER_USE))
    await ipam.affinities.claim(ip_network("10.0.1.0/28"), N1)
    await ipam.affinities.release_pool(ip_network("10.0.0.0/24"))
    kept = sorted(str(block.affinity) for block in (await all_blocks(store)).values())
    assert kept == ["None", "None", "host:n1", "virtual:load-balancer"]


async def test_the_owner_of_one_block_gives_it_up(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    await ipam.affinities.claim(ip_network("10.0.0.0/28"), N1)
    (block,) = (await all_blocks(store)).values()
    await ipam.affinities.release_block(block, must_be_empty=True)
    await ipam.affinities.release_block(block, must_be_empty=True)  # gone already: fine
    assert await all_blocks(store) == {}


async def test_removing_a_host_takes_its_legacy_marker_along(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    await ipam.auto_assign(ask("x"))
    store.seed({path_of(IpamHostKey("n1")): b""})
    await ipam.affinities.remove_host("n1")
    assert store.contents("/calico/ipam/v2/host/") == {}
    assert len(await held(store)) == 1
    await ipam.affinities.remove_host("n1")


async def test_an_affinity_without_a_block_is_cleared_away(store: MemoryDatastore):
    ipam = client(store, KNOWN)
    await ipam.affinities.claim(ip_network("10.0.0.0/28"), N1)
    await store.delete(path_of(N1.key("10.0.0.0/28")))
    await store.delete(path_of(BlockKey("10.0.0.0/28")))
    store.seed({path_of(N1.key("10.0.0.0/28")): b'{"state":"pending"}'})
    await ipam.affinities.release_host(N1, must_be_empty=False)
    assert store.contents("/calico/ipam/") == {}
