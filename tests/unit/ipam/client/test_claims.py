"""ipam.client.claims: affinity key and block in one transaction, against any interference."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.affinity import CONFIRMED, Owner
from ipam.blocks import BlockDraft, Holder
from ipam.client import claims as claims_module
from ipam.client.claims import Claims
from ipam.client.hosts import Hosts
from ipam.client.lane import Context, Lanes
from ipam.client.records import Records
from ipam.errors import RetriesExhausted
from libcalico.datastore.api import Datastore
from libcalico.errors import AffinityLost, BlockNotEmpty, DatastoreUnavailable, NotFound
from libcalico.model import codec
from libcalico.model.ipam import Block, BlockAffinity
from libcalico.model.keys import BlockKey, path_of
from libcalico.testing.datastore import MemoryDatastore
from tests.support.faulty import Fault, FaultyDatastore, nth
from tests.support.ipam import ImpatientClock, all_blocks, audited, consistent

CIDR = "10.0.0.0/28"
ME, OTHER = Owner("n1"), Owner("n2")
BLOCK, MINE, THEIRS = path_of(BlockKey(CIDR)), path_of(ME.key(CIDR)), path_of(OTHER.key(CIDR))


def claims(store: Datastore) -> Claims:
    records = Records(store)
    return Claims(Lanes(Context(records, ImpatientClock())), Hosts(records, ImpatientClock()))


def block(owner: Owner | None = ME, used: int = 0) -> bytes:
    draft = BlockDraft(blocks.new_block(CIDR, 5))
    draft.assign(used, Holder(None, {"pod": "x"}))
    text = None if owner is None else str(owner)
    return codec.encode(replace(draft.finish(), affinity=text))


def state(store: MemoryDatastore, path: str = MINE) -> str | None:
    raw = store.contents(path).get(path)
    return None if raw is None else json.loads(raw)["state"]


async def stored(store: MemoryDatastore) -> Block:
    return (await all_blocks(store))[CIDR]


async def test_a_claim_of_a_new_block_is_one_round_trip():
    store = MemoryDatastore()
    owned = await claims(store).claim(ME, CIDR)
    assert owned is not None
    assert [operation for operation, _ in store.calls] == ["txn"]
    assert (state(store), (await stored(store)).affinity) == ("confirmed", "host:n1")
    assert owned.guard.mod_revision == store.revision
    await consistent(store)


async def test_a_block_that_is_ours_already_is_simply_used():
    store = MemoryDatastore()
    await claims(store).claim(ME, CIDR)
    revision = store.revision
    owned = await claims(store).claim(ME, CIDR)
    assert owned is not None
    assert store.revision == revision


@pytest.mark.parametrize("key", [None, "pending", "confirmed", "pendingDeletion"])
async def test_a_block_of_another_is_left_and_our_key_deleted(key: str | None):
    store = MemoryDatastore()
    store.seed({BLOCK: block(OTHER), THEIRS: codec.encode(CONFIRMED)})
    if key is not None:
        store.seed({MINE: codec.encode(BlockAffinity(state=key))})
    before = store.contents(BLOCK)
    assert await claims(store).claim(ME, CIDR) is None
    assert state(store) is None
    assert state(store, THEIRS) == "confirmed"
    assert store.contents(BLOCK) == before


async def test_many_hosts_claim_one_block_and_one_gets_it():
    store = MemoryDatastore()
    owners = [Owner(f"n{i}") for i in range(20)]
    got = await asyncio.gather(*(claims(store).claim(owner, CIDR) for owner in owners))
    (winner,) = [owner for owner, owned in zip(owners, got, strict=True) if owned]
    assert (await stored(store)).affinity == str(winner)
    assert list(store.contents("/calico/ipam/v2/host/")) == [path_of(winner.key(CIDR))]
    assert await audited(store) == []


async def test_two_processes_of_one_host_both_get_the_block():
    store = MemoryDatastore()
    got = await asyncio.gather(*(claims(store).claim(ME, CIDR) for _ in range(5)))
    assert all(got)
    await consistent(store)


async def test_confirming_makes_nothing_when_the_key_is_gone():
    store = MemoryDatastore()
    assert await claims(store).confirm(ME, CIDR) is None
    store.seed({BLOCK: block(None, used=1)})
    assert await claims(store).confirm(ME, CIDR) is None
    assert store.contents("/calico/ipam/v2/host/") == {}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
async def test_a_claim_survives_a_fault_of_any_call(number: int, fault: Fault):
    store = MemoryDatastore()
    faulty = FaultyDatastore(store, nth(number, fault))
    assert await claims(faulty).claim(ME, CIDR) is not None  # type: ignore[arg-type]
    assert state(store) == "confirmed"
    await consistent(store)


async def test_a_claim_gives_up_when_the_datastore_stays_away():
    store = MemoryDatastore()
    store.partition()
    with pytest.raises(DatastoreUnavailable):
        await claims(store).claim(ME, CIDR)


async def test_a_block_made_again_never_repeats_a_sequence_number():
    store = MemoryDatastore()
    ours = claims(store)
    numbers = []
    for _ in range(3):
        owned = await ours.claim(ME, CIDR)
        assert owned is not None
        numbers.append(owned.block.sequence_number)
        await ours.release(ME, CIDR, must_be_empty=True)
    assert numbers == sorted(set(numbers))


# ---- releasing ---------------------------------------------------------------------------------


async def test_an_empty_block_goes_with_its_key_in_one_revision():
    store = MemoryDatastore()
    ours = claims(store)
    await ours.claim(ME, CIDR)
    revision = store.revision
    await ours.release(ME, CIDR, must_be_empty=True)
    assert store.contents() == {}
    assert store.revision == revision + 1


async def test_a_block_in_use_loses_its_owner_and_stays():
    store = MemoryDatastore()
    store.seed({BLOCK: block(used=2), MINE: codec.encode(CONFIRMED)})
    await claims(store).release(ME, CIDR, must_be_empty=False)
    after = await stored(store)
    assert after.affinity is None
    assert after.affinity_claim_time is None
    assert after.sequence_number == 7
    assert state(store) is None


async def test_a_block_in_use_is_refused_when_it_must_be_empty():
    store = MemoryDatastore()
    store.seed({BLOCK: block(used=2), MINE: codec.encode(CONFIRMED)})
    with pytest.raises(BlockNotEmpty):
        await claims(store).release(ME, CIDR, must_be_empty=True)
    assert state(store) == "confirmed"


async def test_a_stale_key_is_deleted_and_the_conflict_told():
    store = MemoryDatastore()
    store.seed({BLOCK: block(OTHER), MINE: codec.encode(CONFIRMED)})
    with pytest.raises(AffinityLost):
        await claims(store).release(ME, CIDR, must_be_empty=False)
    assert state(store) is None
    assert (await stored(store)).affinity == "host:n2"


async def test_no_affinity_is_not_found():
    with pytest.raises(NotFound):
        await claims(MemoryDatastore()).release(ME, CIDR, must_be_empty=False)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
async def test_a_release_survives_a_fault_of_any_call(number: int, fault: Fault):
    store = MemoryDatastore()
    await claims(store).claim(ME, CIDR)
    ours = claims(FaultyDatastore(store, nth(number, fault)))  # type: ignore[arg-type]
    try:
        await ours.release(ME, CIDR, must_be_empty=True)
    except DatastoreUnavailable:
        assert number <= 2  # a read: nothing was written, the caller asks again
        await ours.release(ME, CIDR, must_be_empty=True)
    assert store.contents() == {}


async def test_an_assignment_between_read_and_write_keeps_the_block():
    """Somebody assigns while we look: the compare fails and the block is not empty any more."""
    store = MemoryDatastore()
    await claims(store).claim(ME, CIDR)

    class Interfering(FaultyDatastore):
        async def txn(self, compares, operations):  # type: ignore[no-untyped-def, override]
            if self.inner.contents(BLOCK)[BLOCK] != block(used=1):  # type: ignore[attr-defined]
                store.seed({BLOCK: block(used=1)})
            return await self.inner.txn(compares, operations)

    with pytest.raises(BlockNotEmpty):
        await claims(Interfering(store, lambda *_: Fault.OK)).release(  # type: ignore[arg-type]
            ME, CIDR, must_be_empty=True
        )
    assert state(store) == "confirmed"


async def test_a_block_that_vanishes_while_we_give_way_is_claimed_after_all():
    store = MemoryDatastore()
    store.seed({BLOCK: block(OTHER), MINE: codec.encode(BlockAffinity(state="pending"))})

    class Interfering(FaultyDatastore):
        async def txn(self, compares, operations):  # type: ignore[no-untyped-def, override]
            self.calls += 1
            if self.calls == 2:
                await store.delete(BLOCK)
            return await self.inner.txn(compares, operations)

    owned = await claims(Interfering(store, lambda *_: Fault.OK)).claim(ME, CIDR)  # type: ignore[arg-type]
    assert owned is not None
    await consistent(store)


async def test_a_reclaim_takes_only_the_block_that_was_looked_at():
    store = MemoryDatastore()
    store.seed({BLOCK: block(OTHER), THEIRS: codec.encode(CONFIRMED)})
    seen = await stored(store)
    store.seed({BLOCK: codec.encode(blocks.bumped(seen))})
    with pytest.raises(AffinityLost):
        await claims(store).reclaim(seen)
    assert await claims(store).reclaim(await stored(store))
    assert store.contents() == {}


async def test_a_reclaim_leaves_owners_of_a_kind_it_does_not_know_alone():
    store = MemoryDatastore()
    strange = replace(blocks.new_block(CIDR, 1), affinity="cloud:x")
    store.seed({BLOCK: codec.encode(strange)})
    assert not await claims(store).reclaim(strange)
    assert await stored(store) == strange


async def test_loops_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claims_module, "MAX_CONFLICTS", 7)
    store = MemoryDatastore()

    class AlwaysFirst(FaultyDatastore):
        async def txn(self, compares, operations):  # type: ignore[no-untyped-def, override]
            self.calls += 1
            store.seed({MINE: codec.encode(BlockAffinity(state="pending"))})
            return await self.inner.txn(compares, operations)

    faulty = AlwaysFirst(store, lambda *_: Fault.OK)
    with pytest.raises(RetriesExhausted):
        await claims(faulty).claim(ME, CIDR)  # type: ignore[arg-type]
    assert faulty.calls == 7
