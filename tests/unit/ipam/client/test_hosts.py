"""ipam.client.hosts: what is remembered of a host's affinities, and for how long."""

from __future__ import annotations

from ipam.affinity import CONFIRMED, Owner, Versioned
from ipam.client.hosts import MAX_AGE_S, Hosts
from ipam.client.records import Records
from libcalico.model.keys import path_of
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

N1 = Owner("n1")
PENDING = b'{"state":"pending"}'


def seeded(*cidrs: str) -> MemoryDatastore:
    store = MemoryDatastore()
    store.seed({path_of(N1.key(cidr)): PENDING for cidr in cidrs})
    store.seed({path_of(Owner("n11").key("10.0.0.0/28")): PENDING})
    return store


async def test_affinities_are_read_once_a_minute():
    store, clock = seeded("10.0.0.0/28"), FakeClock()
    hosts = Hosts(Records(store), clock)
    assert list((await hosts.holdings(N1, 4)).affinities) == ["10.0.0.0/28"]
    store.seed({path_of(N1.key("10.0.0.16/28")): PENDING})
    await clock.advance(MAX_AGE_S - 1)
    assert len((await hosts.holdings(N1, 4)).affinities) == 1
    await clock.advance(1)
    assert len((await hosts.holdings(N1, 4)).affinities) == 2


async def test_what_is_old_for_this_request_is_read_again():
    store, clock = seeded(), FakeClock()
    hosts = Hosts(Records(store), clock)
    before = await hosts.holdings(N1, 4)
    assert await hosts.younger(N1, 4, clock.monotonic()) is before
    await clock.advance(1)
    assert await hosts.younger(N1, 4, clock.monotonic()) is not before


async def test_families_are_kept_apart():
    store = seeded("10.0.0.0/28", "fd00::/124")
    hosts = Hosts(Records(store), FakeClock())
    assert list((await hosts.holdings(N1, 4)).affinities) == ["10.0.0.0/28"]
    assert list((await hosts.holdings(N1, 6)).affinities) == ["fd00::/124"]


async def test_our_own_writes_are_noted():
    hosts = Hosts(Records(seeded("10.0.0.0/28")), FakeClock())
    hosts.note(N1, "10.0.0.0/28", Versioned(CONFIRMED, 9))  # not read yet: nothing to correct
    await hosts.holdings(N1, 4)
    hosts.note(N1, "10.0.0.32/28", Versioned(CONFIRMED, 9))
    hosts.note(N1, "10.0.0.0/28", Versioned())
    hosts.note(N1, "10.0.0.64/28", Versioned())
    known = (await hosts.holdings(N1, 4)).affinities
    assert known == {"10.0.0.32/28": Versioned(CONFIRMED, 9)}
