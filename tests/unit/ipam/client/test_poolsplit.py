"""ipam.client.poolsplit: one transaction, or several that may be repeated (datamodel §6.8)."""

from __future__ import annotations

import json

import pytest

from ipam.client.poolsplit import PARTS_AT_ONCE, split_pool
from ipam.split import SplitRefused
from libcalico.errors import AlreadyExists, DatastoreUnavailable, NotFound, RevisionConflict
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

POOLS = "/calico/resources/v3/projectcalico.org/ippools/"


def stored(name: str, cidr: str, **spec: object) -> bytes:
    return json.dumps({
        "kind": "IPPool", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "uid": "old", "creationTimestamp": "2020-01-01T00:00:00Z"},
        "spec": {"cidr": cidr, "blockSize": 29, **spec},
    }).encode()  # fmt: skip


@pytest.fixture
def store() -> MemoryDatastore:
    made = MemoryDatastore()
    made.seed({POOLS + "p": stored("p", "10.0.0.0/16", fromTheFuture={"x": 1})})
    return made


async def test_6_8_the_parts_come_and_the_pool_goes_in_one_write(store: MemoryDatastore):
    before = store.revision
    made = await split_pool(store, "p", 2, clock=FakeClock())
    assert [pool.spec.cidr for pool in made] == ["10.0.0.0/17", "10.0.128.0/17"]
    assert store.revision == before + 1
    assert sorted(store.contents(POOLS)) == [POOLS + "split-p-0", POOLS + "split-p-1"]
    shown = [json.loads(value) for value in store.contents(POOLS).values()]
    assert all(pool["spec"]["fromTheFuture"] == {"x": 1} for pool in shown)
    assert len({pool["metadata"]["uid"] for pool in shown} | {"old"}) == 3
    assert all(pool["metadata"]["creationTimestamp"] > "2020-01-02" for pool in shown)


async def test_more_parts_than_a_transaction_takes_come_before_the_pool_goes(
    store: MemoryDatastore,
):
    present: list[bool] = []
    for _ in range(2):
        store.before_next(
            lambda: present.append(POOLS + "p" in store.contents()), operations=["txn"]
        )
    await split_pool(store, "p", 128)
    assert present == [True, True]
    assert len(store.contents(POOLS)) == 128
    assert PARTS_AT_ONCE < 128


async def test_what_broke_off_may_be_repeated(store: MemoryDatastore):
    store.fail_next(operations=["txn"], after=1)
    with pytest.raises(DatastoreUnavailable):
        await split_pool(store, "p", 128)
    halfway = store.contents(POOLS)
    assert len(halfway) == PARTS_AT_ONCE + 1
    await split_pool(store, "p", 128)
    assert len(store.contents(POOLS)) == 128
    assert halfway.items() - store.contents(POOLS).items() == {(POOLS + "p", halfway[POOLS + "p"])}


@pytest.mark.parametrize("value", [stored("split-p-1", "10.0.0.0/17"), b"{]"])
async def test_a_foreign_pool_of_a_parts_name_stops_all(store: MemoryDatastore, value: bytes):
    store.seed({POOLS + "split-p-1": value})
    before = store.contents()
    with pytest.raises(AlreadyExists, match=r"IPPool\(split-p-1\)"):
        await split_pool(store, "p", 2)
    assert store.contents() == before


async def test_a_pool_written_meanwhile_is_left_as_it_is(store: MemoryDatastore):
    store.before_next(
        lambda: store.seed({POOLS + "p": stored("p", "10.0.0.0/16", disabled=True)}),
        operations=["txn"],
    )
    with pytest.raises(RevisionConflict):
        await split_pool(store, "p", 2)
    assert list(store.contents(POOLS)) == [POOLS + "p"]


async def test_parts_smaller_than_a_block_and_absent_pools_write_nothing(store: MemoryDatastore):
    store.seed({POOLS + "small": stored("small", "10.1.0.0/28")})
    before = store.revision
    with pytest.raises(SplitRefused) as caught:
        await split_pool(store, "small", 4)
    assert str(caught.value).startswith(
        "error using unsafe create to make split pool with cidr 10.1.0.0/30: "
    )
    with pytest.raises(NotFound):
        await split_pool(store, "q", 2)
    assert store.revision == before
