"""ipam.client.lane: shared writes, fresh observations, lost answers, cancelled leaders."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.affinity import CONFIRMED, Owner, Versioned
from ipam.batch import Assigned, AssignMany, AssignOne, BlockMissing, ReleaseHandle, ReleaseMany
from ipam.blocks import BlockDraft, Holder, ReleaseEffect
from ipam.client import lane as lane_module
from ipam.client.lane import Context, Guard, GuardLost, Lane, Lanes, Served, Terms
from ipam.client.records import Records
from ipam.errors import HandleLimitReached, MalformedBlock, RetriesExhausted
from ipam.requests import Release
from libcalico.errors import AlreadyExists, DatastoreUnavailable
from libcalico.model import codec
from libcalico.model.ipam import Handle
from libcalico.model.keys import BlockKey, HandleKey, path_of
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore
from tests.support.ipam import ImpatientClock, all_blocks, all_handles, audited, consistent, held

CIDR = "10.0.0.0/28"
ME = Owner("n1")
PATH, AFFINITY = path_of(BlockKey(CIDR)), path_of(ME.key(CIDR))
TERMS = Terms()


def seeded(*, affinity: str | None = "host:n1", cidr: str = CIDR) -> MemoryDatastore:
    store = MemoryDatastore()
    block = replace(blocks.new_block(cidr, 100), affinity=affinity)
    key = path_of(ME.key(cidr))
    store.seed({path_of(BlockKey(cidr)): codec.encode(block), key: codec.encode(CONFIRMED)})
    return store


def lanes(store: MemoryDatastore) -> Lanes:
    return Lanes(Context(Records(store), ImpatientClock()))


def assign(name: str | None, count: int = 1, **more: object) -> AssignMany:
    handle_id = None if name is None else f"net.{name}"
    holder = Holder(handle_id, {"pod": str(name)})
    terms: dict[str, object] = {"owner": ME, "must_own": True, **more}
    return AssignMany(count=count, holder=holder, **terms)  # type: ignore[arg-type]


def free(ordinal: int, **terms: object) -> ReleaseMany:
    address = ip_address("10.0.0.0") + ordinal
    return ReleaseMany((Release(address=address, **terms),))  # type: ignore[arg-type]


def ordinals(served: Served) -> tuple[int, ...]:
    assert isinstance(served.value, Assigned)
    return served.value.ordinals


def writes(store: MemoryDatastore) -> int:
    return sum(operation == "txn" for operation, _ in store.calls)


async def other_process(store: MemoryDatastore, *names: str) -> None:
    for name in names:
        await lanes(store).of(CIDR).submit(assign(name), TERMS)


# ---- shared writes -----------------------------------------------------------------------------


async def test_requests_that_wait_together_share_one_write():
    store = seeded()
    lane = lanes(store).of(CIDR)
    served = await asyncio.gather(*(lane.submit(assign(f"p{i}"), TERMS) for i in range(10)))
    assert sorted(o for one in served for o in ordinals(one)) == list(range(10))
    assert [operation for operation, _ in store.calls][:3].count("txn") == writes(store) <= 2
    await consistent(store)


async def test_the_common_case_costs_one_round_trip_each_for_assign_and_release():
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("warm"), TERMS)
    store.calls.clear()
    await lane.submit(assign("a"), TERMS)
    assert [operation for operation, _ in store.calls] == ["txn"]
    store.calls.clear()
    await lane.submit(ReleaseHandle("net.a"), TERMS)
    assert [operation for operation, _ in store.calls] == ["txn"]
    assert await all_handles(store) == {"net.warm": Handle(block={CIDR: 1})}


async def test_block_and_handle_are_stored_by_one_transaction():
    store = seeded()
    await lanes(store).of(CIDR).submit(assign("a"), TERMS)
    block = await store.get(PATH)
    handle = await store.get(path_of(HandleKey("net.a")))
    assert block is not None
    assert handle is not None
    assert block.mod_revision == handle.mod_revision


async def test_more_requests_than_fit_are_served_by_several_writes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lane_module, "MAX_BATCH", 3)
    store = seeded()
    lane = lanes(store).of(CIDR)
    served = await asyncio.gather(*(lane.submit(assign(f"p{i}"), TERMS) for i in range(8)))
    assert len({o for one in served for o in ordinals(one)}) == 8
    await consistent(store)


async def test_one_that_is_refused_does_not_disturb_the_others():
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a"), TERMS)
    one = AssignOne(
        address=ip_address("10.0.0.0"), holder=Holder("net.x", {}), owner=ME, must_own=False
    )
    results = await asyncio.gather(
        lane.submit(assign("b"), TERMS), lane.submit(one, TERMS), lane.submit(assign("c"), TERMS),
        return_exceptions=True,
    )  # fmt: skip
    assert isinstance(results[1], AlreadyExists)
    assert set((await held(store)).values()) == {"net.a", "net.b", "net.c"}
    await consistent(store)


async def test_a_full_block_serves_those_that_wait_as_soon_as_addresses_come_free():
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a", 16), TERMS)
    results = await asyncio.gather(lane.submit(free(5), TERMS), lane.submit(assign("b"), TERMS))
    assert ordinals(results[1]) == (5,)
    assert await audited(store) == []


# ---- other writers -----------------------------------------------------------------------------


async def test_a_remembered_view_that_is_old_costs_one_conflict_and_no_read():
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a"), TERMS)
    await other_process(store, "x")
    store.calls.clear()
    assert ordinals(await lane.submit(assign("b"), TERMS)) == (2,)
    assert [operation for operation, _ in store.calls] == ["txn", "txn"]
    await consistent(store)


async def test_a_handle_that_exists_already_is_counted_up():
    store = seeded()
    await other_process(store, "a")
    await lanes(store).of(CIDR).submit(assign("a"), TERMS)
    assert await all_handles(store) == {"net.a": Handle(block={CIDR: 2})}


async def test_a_remembered_handle_that_is_old_costs_a_conflict_and_nothing_is_lost():
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a"), TERMS)
    await other_process(store, "a")
    await lane.submit(assign("a"), TERMS)
    assert await all_handles(store) == {"net.a": Handle(block={CIDR: 3})}


@pytest.mark.parametrize("operation", [free(0), ReleaseHandle("net.x")])
async def test_nothing_to_release_is_said_from_a_fresh_view_only(operation: ReleaseMany):
    """L2: what another process assigned meanwhile is found and released."""
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(free(0), TERMS)  # now the lane remembers an empty block
    await other_process(store, "x")
    served = await lane.submit(operation, TERMS)
    assert isinstance(served.value, ReleaseEffect)
    assert [ordinal for ordinal, _, _ in served.value.released] == [0]
    await consistent(store)


async def test_full_is_said_from_a_fresh_view_unless_waived():
    store = seeded()
    ours = lanes(store)
    lane = ours.of(CIDR)
    await lane.submit(assign("a", 16), TERMS)
    await lanes(store).of(CIDR).submit(free(7), TERMS)
    store.calls.clear()
    assert ordinals(await lane.submit(assign("b"), Terms(remembered_ok=True))) == ()
    assert not store.calls
    assert ours.is_known_full(CIDR)
    assert ordinals(await lane.submit(assign("b"), TERMS)) == (7,)


async def test_a_limit_is_enforced_by_the_handle_as_it_is_now():
    store = seeded()
    ours = lanes(store)
    await ours.of(CIDR).submit(assign("vm", max_alloc=1), TERMS)
    with pytest.raises(HandleLimitReached):
        await ours.of(CIDR).submit(assign("vm", max_alloc=1), TERMS)
    await lanes(store).of(CIDR).submit(ReleaseHandle("net.vm"), TERMS)
    assert ordinals(await ours.of(CIDR).submit(assign("vm", max_alloc=1), TERMS)) == (1,)
    with pytest.raises(HandleLimitReached):
        await lanes(store).of(CIDR).submit(assign("vm", max_alloc=1), TERMS)


async def test_others_who_always_write_first_end_the_loop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lane_module, "_BACKOFF_STEP_S", 0.0)
    store = seeded()

    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a"), TERMS)
    original = store.txn

    async def always_late(*args: object) -> object:
        block = (await all_blocks(store))[CIDR]
        store.seed({PATH: codec.encode(blocks.bumped(block))})
        return await original(*args)  # type: ignore[arg-type]

    store.txn = always_late  # type: ignore[method-assign, assignment]
    with pytest.raises(RetriesExhausted) as given_up:
        await lane.submit(assign("b"), TERMS)
    assert str(given_up.value) == "Max retries hit - excessive concurrent IPAM requests"
    assert writes(store) == 1 + lane_module.MAX_CONFLICTS
    store.txn = original  # type: ignore[method-assign]
    assert ordinals(await lane.submit(assign("c"), TERMS)) == (1,)


# ---- guards ------------------------------------------------------------------------------------


async def guard_of(store: MemoryDatastore) -> Guard:
    kv = await store.get(AFFINITY)
    assert kv is not None
    return Guard(ME.key(CIDR), kv.mod_revision)


async def test_an_assignment_is_written_only_while_the_affinity_key_stands():
    store = seeded()
    terms = Terms(guard=await guard_of(store))
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a"), terms)
    store.seed({AFFINITY: b'{"state":"pendingDeletion"}'})
    before = (await all_blocks(store))[CIDR]
    with pytest.raises(GuardLost):
        await lane.submit(assign("b"), terms)
    assert (await all_blocks(store))[CIDR] == before


async def test_a_lost_guard_is_no_matter_to_those_without():
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a"), TERMS)
    old = Terms(guard=await guard_of(store))
    store.seed({AFFINITY: b'{"state":"pending"}'})
    results = await asyncio.gather(
        lane.submit(free(0), TERMS), lane.submit(assign("b"), old), return_exceptions=True
    )
    assert isinstance(results[0], Served)
    assert isinstance(results[1], GuardLost)
    assert await held(store) == {}
    await consistent(store)


# ---- the datastore fails -----------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["get", "txn"])
async def test_a_refused_call_is_tried_again(operation: str):
    store = seeded()
    store.fail_next(2, operations=[operation])
    assert ordinals(await lanes(store).of(CIDR).submit(assign("a"), TERMS)) == (0,)
    await consistent(store)


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_write_whose_answer_is_lost_is_recognised(lost: int):
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("warm"), TERMS)
    store.lose_answer_next(lost, operations=["txn"])
    results = await asyncio.gather(*(lane.submit(assign(f"p{i}"), TERMS) for i in range(5)))
    assert sorted(o for one in results for o in ordinals(one)) == [1, 2, 3, 4, 5]
    assert len(await held(store)) == 6
    await consistent(store)
    assert await audited(store) == []


@pytest.mark.parametrize("operation", [free(0, handle_id="net.a"), ReleaseHandle("net.a")])
async def test_a_release_whose_answer_is_lost_is_recognised(operation: ReleaseMany):
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a"), TERMS)
    store.lose_answer_next(operations=["txn"])
    served = await lane.submit(operation, TERMS)
    assert isinstance(served.value, ReleaseEffect)
    assert len(served.value.released) == 1
    assert await held(store) == {}
    await consistent(store)


async def test_a_request_without_handle_whose_answer_was_lost_never_shares_an_address():
    store = seeded()
    lane = lanes(store).of(CIDR)
    store.lose_answer_next(operations=["txn"])
    served = await lane.submit(assign(None), TERMS)
    assert ordinals(served) == (1,)  # the first stays behind for the collector


async def test_a_datastore_that_stays_away_is_reported_and_the_lane_works_afterwards():
    store = seeded()
    lane = lanes(store).of(CIDR)
    store.partition()
    with pytest.raises(DatastoreUnavailable):
        await lane.submit(assign("a"), TERMS)
    assert lane.is_idle
    store.heal()
    assert ordinals(await lane.submit(assign("a"), TERMS)) == (0,)


async def test_a_malformed_block_refuses_everything_and_is_not_written():
    store = seeded()
    store.seed({PATH: b'{"cidr":"10.0.0.0/28","allocations":[null],"unallocated":[0,1]}'})
    revision = store.revision
    for operation in (assign("a"), free(0), ReleaseHandle("net.a")):
        with pytest.raises(MalformedBlock):
            await lanes(store).of(CIDR).submit(operation, TERMS)
    assert store.revision == revision


async def test_a_block_that_is_gone_is_missing_for_assignments_only():
    store = MemoryDatastore()
    with pytest.raises(BlockMissing):
        await lanes(store).of(CIDR).submit(assign("a"), TERMS)
    served = await lanes(store).of(CIDR).submit(free(0), TERMS)
    assert served.block is None


# ---- cancelled requests ------------------------------------------------------------------------


async def until_waiting(store: MemoryDatastore, lane: Lane) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("applied", [False, True])
async def test_a_cancelled_leader_hands_the_others_on(applied: bool):
    """Three requests are in the write that is cut off; the other two get one address each."""
    store = seeded()
    lane = lanes(store).of(CIDR)
    store.stall()  # the first one leads alone; behind it the batch gathers
    tasks = [asyncio.create_task(lane.submit(assign(f"p{i}"), TERMS)) for i in range(4)]
    await until_waiting(store, lane)
    original, number = store.txn, 0

    async def second_is_cut_off(*args: object) -> object:
        nonlocal number
        number += 1
        if number == 2 and not applied:
            await asyncio.Event().wait()
        answer = await original(*args)  # type: ignore[arg-type]
        if number == 2:
            await asyncio.Event().wait()
        return answer

    store.txn = second_is_cut_off  # type: ignore[method-assign, assignment]
    store.resume()
    await until_waiting(store, lane)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    given = [o for one in (results[0], *results[2:]) for o in ordinals(one)]  # type: ignore[arg-type]
    assert len(set(given)) == 3
    for name in ("net.p0", "net.p2", "net.p3"):
        assert list((await held(store)).values()).count(name) == 1
    await consistent(store)
    assert lane.is_idle


async def test_a_cancelled_follower_is_forgotten():
    store = seeded()
    lane = lanes(store).of(CIDR)
    store.stall()
    tasks = [asyncio.create_task(lane.submit(assign(f"p{i}"), TERMS)) for i in range(3)]
    await until_waiting(store, lane)
    tasks[2].cancel()
    await until_waiting(store, lane)
    store.resume()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert set((await held(store)).values()) == {"net.p0", "net.p1"}
    assert lane.is_idle


async def test_who_is_cancelled_just_when_it_is_his_turn_passes_the_turn_on():
    store = seeded()

    class Unlucky(Lane):
        victim: asyncio.Task[Served] | None = None

        def _wake_next(self) -> None:
            super()._wake_next()
            if self.victim is not None:
                self.victim.cancel()

    lane = Unlucky(CIDR, Context(Records(store), ImpatientClock()))
    store.stall()
    tasks = [asyncio.create_task(lane.submit(assign(f"p{i}"), TERMS)) for i in range(3)]
    await until_waiting(store, lane)
    lane.victim = tasks[1]
    store.resume()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[1].cancelled()
    assert set((await held(store)).values()) == {"net.p0", "net.p2"}
    assert lane.is_idle


# ---- cooldown, many handles, bounds ------------------------------------------------------------


async def test_the_cooldown_is_kept_and_then_over():
    store, clock = seeded(), FakeClock()
    ours = Lanes(Context(Records(store), clock))
    terms = Terms(cooldown_s=30)
    await ours.of(CIDR).submit(assign("a", 16), terms)
    await ours.of(CIDR).submit(ReleaseHandle("net.a"), terms)
    assert ordinals(await ours.of(CIDR).submit(assign("b"), terms)) == ()
    await clock.advance(31.5)
    assert ordinals(await ours.of(CIDR).submit(assign("b"), terms)) == (0,)


async def test_more_handles_than_a_transaction_takes_are_all_counted_down(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(lane_module, "MAX_HANDLES", 4)
    store = seeded()
    lane = lanes(store).of(CIDR)
    for i in range(10):
        await lane.submit(assign(f"p{i}"), TERMS)
    requests = tuple(Release(address=ip_address("10.0.0.0") + i) for i in range(10))
    await lane.submit(ReleaseMany(requests), TERMS)
    assert await held(store) == {}
    await consistent(store)


async def test_three_hundred_handles_of_one_block_are_released():
    cidr = "10.0.0.0/20"
    store = seeded(cidr=cidr)
    draft = BlockDraft((await all_blocks(store))[cidr])
    for i in range(300):
        draft.assign(1, Holder(f"net.p{i}", {}))
    store.seed({path_of(BlockKey(cidr)): codec.encode(draft.finish())})
    store.seed({
        path_of(HandleKey(f"net.p{i}")): codec.encode(Handle(block={cidr: 1})) for i in range(300)
    })  # fmt: skip
    requests = tuple(Release(address=ip_address("10.0.0.0") + i) for i in range(300))
    await lanes(store).of(cidr).submit(ReleaseMany(requests), TERMS)
    await consistent(store)
    assert await all_handles(store) == {}


async def test_idle_lanes_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lane_module, "MAX_LANES", 10)
    ours = lanes(seeded())
    for i in range(50):
        ours.of(f"10.0.{i}.0/28")
    assert len(ours._lanes) <= 10


async def test_remembered_handles_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lane_module, "MAX_REMEMBERED_HANDLES", 3)
    ours = lanes(seeded())
    for i in range(6):
        await ours.of(CIDR).submit(assign(f"p{i}"), TERMS)
    assert sorted(ours.context.handles) == ["net.p3", "net.p4", "net.p5"]


async def test_a_view_read_elsewhere_is_taken_only_if_it_is_newer_and_sound():
    store = seeded()
    lane = lanes(store).of(CIDR)
    await lane.submit(assign("a"), TERMS)
    view = lane.view
    assert view is not None
    assert view.value is not None
    lane.see(Versioned(view.value, 1))
    assert lane.view is view
    lane.see(Versioned(replace(view.value, allocations=()), 99))
    assert lane.view is view
    newer = Versioned(view.value, 99)
    lane.see(newer)
    assert lane.view is newer
