"""ipam.client.records and its small neighbours: typed reads, transactions, fan-out."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.affinity import CONFIRMED, LOAD_BALANCER, Owner, Versioned
from ipam.client.fanout import AT_ONCE, for_each
from ipam.client.records import Change, Records, encoded
from ipam.client.settle import count_down, read_handles
from libcalico.errors import DatastoreUnavailable, DecodeError
from libcalico.model import codec
from libcalico.model.ipam import AllocationAttribute, Block, Handle
from libcalico.model.keys import BlockKey, HandleKey, path_of
from libcalico.testing.datastore import MemoryDatastore

CIDR = "10.0.0.0/28"
BLOCK = blocks.new_block(CIDR, 5)


async def test_a_transaction_writes_deletes_and_keeps_or_does_nothing():
    store = MemoryDatastore()
    records = Records(store)
    handle = Handle(block={CIDR: 1})
    first = await records.commit(
        [Change(BlockKey(CIDR), 0, BLOCK), Change(HandleKey("h"), 0, handle)]
    )
    assert first.succeeded
    assert await records.block(CIDR) == Versioned(BLOCK, first.revision)
    refused = await records.commit(
        [Change(BlockKey(CIDR), 0, BLOCK), Change(HandleKey("h"), first.revision)]
    )
    assert not refused.succeeded
    assert [kv.mod_revision for kv in refused.found if kv] == [first.revision] * 2
    done = await records.commit([
        Change(BlockKey(CIDR), first.revision, keep=True),
        Change(HandleKey("h"), first.revision),
        Change(HandleKey("absent"), 0),
    ])  # fmt: skip
    assert done.succeeded
    assert await records.handle("h") == Versioned()
    assert (records.transactions, records.conflicts) == (3, 1)


@pytest.mark.parametrize(
    "block",
    [
        BLOCK,
        replace(BLOCK, affinity="host:n1", affinity_claim_time="2026-08-22T09:20:01Z"),
        replace(BLOCK, attributes=(), host_affinity="n1", deleted=True),
        replace(
            BLOCK,
            allocations=(0, 1, 2, *[None] * 13),
            attributes=(
                AllocationAttribute(handle_id="h", secondary={"b": "<&>", "a": "\u2028"}),
                AllocationAttribute(alternate_owner_attrs={"pod": "y"}),
                AllocationAttribute(released_at="2026-08-22T09:30:00Z"),
            ),
            sequence_number=2**63 + 7,
            sequence_number_for_allocation={"10": 3, "2": 2, "0": 2**63},
        ),
    ],
)
def test_the_short_cut_for_blocks_writes_what_the_codec_writes(block: Block):
    assert encoded(block) == codec.encode(block)


async def test_lists_skip_what_cannot_be_read_and_single_reads_raise(
    caplog: pytest.LogCaptureFixture,
):
    store = MemoryDatastore()
    store.seed({
        path_of(BlockKey(CIDR)): codec.encode(BLOCK),
        path_of(BlockKey("10.0.0.16/28")): b"{]",
        "/calico/ipam/v2/assignment/ipv4/block/not-a-cidr": b"{}",
        path_of(BlockKey("fd00::/124")): codec.encode(blocks.new_block("fd00::/124", 1)),
    })  # fmt: skip
    records = Records(store)
    assert list(await records.blocks(4)) == [CIDR]
    assert [str(cidr) for cidr in await records.block_cidrs(4)] == [CIDR, "10.0.0.16/28"]
    assert "ipam record skipped" in caplog.text
    with pytest.raises(DecodeError):
        await records.block("10.0.0.16/28")


async def test_affinities_of_one_owner_and_of_all():
    store = MemoryDatastore()
    owners = [Owner("n1"), Owner("n10"), LOAD_BALANCER]
    store.seed({path_of(owner.key(CIDR)): codec.encode(CONFIRMED) for owner in owners})
    records = Records(store)
    assert list(await records.affinities(Owner("n1"), 4)) == [CIDR]
    assert len(await records.affinities_under("/calico/ipam/v2/host/")) == 2
    assert list(await records.affinities(LOAD_BALANCER, 4)) == [CIDR]


async def test_a_handle_is_counted_down_against_other_writers():
    store = MemoryDatastore()
    records = Records(store)
    store.seed({path_of(HandleKey("h")): codec.encode(Handle(block={CIDR: 9}))})
    await asyncio.gather(*(count_down(records, "h", CIDR, 2) for _ in range(4)))
    assert (await records.handle("h")).value == Handle(block={CIDR: 1})
    await count_down(records, "h", CIDR, 5)  # does not fit: logged, left alone
    assert (await records.handle("h")).value == Handle(block={CIDR: 1})
    await count_down(records, "h", CIDR, 1)
    assert await records.handle("h") == Versioned()
    store.partition()
    await count_down(records, "h", CIDR, 1)  # logged as well


async def test_several_handles_are_read_missing_ones_included():
    store = MemoryDatastore()
    store.seed({path_of(HandleKey("h")): codec.encode(Handle(block={CIDR: 9}))})
    found = await read_handles(Records(store), ["h", "g"])
    assert found["g"] == Versioned()
    assert found["h"].value == Handle(block={CIDR: 9})


async def test_no_more_than_so_many_calls_are_under_way():
    running = most = 0

    async def call(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return item * item

    assert await for_each(call, range(50)) == [item * item for item in range(50)]
    assert most == AT_ONCE
    assert await for_each(call, []) == []


async def test_the_first_failure_is_raised_as_itself_and_stops_the_rest():
    finished = []

    async def call(item: int) -> None:
        if item == 1:
            raise DatastoreUnavailable("away")
        await asyncio.sleep(3600)
        finished.append(item)

    with pytest.raises(DatastoreUnavailable, match="away"):
        await for_each(call, range(5))
    assert finished == []


@pytest.mark.parametrize("cidr", ["10.0.0.16/28", "rubbish", ""])
async def test_a_block_that_is_another_than_its_key_says_is_not_believed(cidr: str):
    store = MemoryDatastore()
    await store.put(path_of(BlockKey(CIDR)), codec.encode(replace(BLOCK, cidr=cidr)))
    with pytest.raises(DecodeError, match=r"its key says 10\.0\.0\.0/28"):
        await Records(store).block(CIDR)
    assert await Records(store).blocks(4) == {}
