"""controllers.leader: one at a time, whatever the datastore does."""

from __future__ import annotations

import asyncio

import pytest

from controllers.leader import LEADER_KEY, Leadership
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

TTL_S = 15


class Instance:
    """A leadership that runs; `at_work` while its work does."""

    def __init__(self, store: MemoryDatastore, clock: FakeClock, name: str) -> None:
        self.leadership = Leadership(store, name, ttl_s=TTL_S, clock=clock)
        self.at_work = False
        self.terms = 0
        self.task = asyncio.ensure_future(self.leadership.run(self._work))

    async def _work(self) -> None:
        self.at_work, self.terms = True, self.terms + 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.at_work = False

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryDatastore:
    return MemoryDatastore(now=clock.monotonic)


async def test_the_second_waits_while_the_first_lives(store: MemoryDatastore, clock: FakeClock):
    one = Instance(store, clock, "one")
    await clock.advance(1)
    two = Instance(store, clock, "two")
    await clock.advance(10 * TTL_S)
    assert (one.at_work, two.at_work, one.terms) == (True, False, 1)
    assert two.leadership.leader == "one"
    await one.stop()
    await clock.advance(3)  # given back: no lease to wait for
    assert two.at_work
    await two.stop()
    assert await store.get(LEADER_KEY) is None


async def test_a_dead_leaders_lease_runs_out(store: MemoryDatastore, clock: FakeClock):
    lease = await store.grant_lease(TTL_S)
    await store.create(LEADER_KEY, b'{"holder": "dead"}', lease=lease)
    two = Instance(store, clock, "two")
    await clock.advance(TTL_S - 1)
    assert not two.at_work
    await clock.advance(4)
    assert two.at_work
    await two.stop()


async def test_a_leader_that_cannot_refresh_stops_before_its_lease_is_over(
    store: MemoryDatastore, clock: FakeClock
):
    one = Instance(store, clock, "one")
    await clock.advance(1)
    store.partition()
    await clock.advance(TTL_S + 1)
    assert (one.at_work, one.leadership.is_leader) == (False, False)
    store.heal()
    await clock.advance(TTL_S)
    assert (one.at_work, one.terms) == (True, 2)
    await one.stop()


async def test_a_short_outage_costs_nothing(store: MemoryDatastore, clock: FakeClock):
    one = Instance(store, clock, "one")
    await clock.advance(1)
    store.partition()
    await clock.advance(TTL_S / 2)
    store.heal()
    await clock.advance(10 * TTL_S)
    assert (one.at_work, one.terms) == (True, 1)
    await one.stop()


async def test_a_lease_that_somebody_took_away_ends_the_term(
    store: MemoryDatastore, clock: FakeClock
):
    one = Instance(store, clock, "one")
    await clock.advance(1)
    kv = await store.get(LEADER_KEY)
    assert kv is not None
    store.expire_lease(kv.lease)
    await store.create(LEADER_KEY, b"what is this")
    await clock.advance(TTL_S)
    assert not one.at_work
    assert one.leadership.leader == "unknown"
    await one.stop()


async def test_a_key_whose_creation_was_not_answered_is_recognised(
    store: MemoryDatastore, clock: FakeClock
):
    store.lose_answer_next(operations=["create"])
    one = Instance(store, clock, "one")
    await clock.advance(5)
    assert one.at_work
    await clock.advance(3 * TTL_S)
    assert one.terms == 1
    await one.stop()


async def test_work_that_fails_ends_the_run(store: MemoryDatastore, clock: FakeClock):
    async def work() -> None:
        raise ValueError("broken")

    leadership = Leadership(store, "one", ttl_s=TTL_S, clock=clock)
    with pytest.raises(ValueError, match="broken"):
        await leadership.run(work)
    assert await store.get(LEADER_KEY) is None
