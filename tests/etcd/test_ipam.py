"""IPAM on a real etcd: what it stores, what it costs, and blocks of the largest size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from ipaddress import ip_address

import pytest

from ipam.client import DatastoreSource, IpamClient
from ipam.requests import Release
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.testing.etcd import EtcdCluster
from tests.support.faulty import Fault, FaultyDatastore
from tests.support.ipam import all_blocks, ask, audited, client, consistent, held, pool, source

pytestmark = pytest.mark.etcd
RESOURCES = "/calico/resources/v3/projectcalico.org"


@pytest.fixture
async def store(etcd: EtcdCluster) -> AsyncIterator[EtcdDatastore]:
    found = EtcdDatastore(EtcdConfig(etcd.endpoints))
    start = (await found.list("/calico/")).revision
    yield found
    assert await audited(found, start + 1) == []
    await consistent(found)
    await found.close()


async def test_pools_and_nodes_are_read_and_blocks_stored_as_etcdctl_shows_them(
    store: EtcdDatastore, etcd: EtcdCluster
):
    await store.put(
        f"{RESOURCES}/ippools/a",
        b'{"kind":"IPPool","metadata":{"name":"a"},"spec":{"cidr":"10.0.0.0/30","blockSize":30}}',
    )
    await store.put(f"{RESOURCES}/nodes/n1", b'{"kind":"Node","metadata":{"name":"n1"},"spec":{}}')
    ipam = IpamClient(store, DatastoreSource(store))
    await ipam.auto_assign(ask("x"))

    def shown(key: str) -> dict[str, object]:
        text = etcd.ctl("get", key, "--print-value-only")
        found: dict[str, object] = json.loads(text)
        return found

    block = shown("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30")
    sequence = block.pop("sequenceNumber")
    assert isinstance(sequence, int)
    assert block.pop("affinity_claim_time")
    assert block == {
        "cidr": "10.0.0.0/30",
        "affinity": "host:n1",
        "allocations": [0, None, None, None],
        "unallocated": [1, 2, 3],
        "attributes": [{"handle_id": "net.x", "secondary": {"node": "n1", "pod": "x"}}],
        "sequenceNumberForAllocation": {"0": sequence - 1},
        "deleted": False,
    }
    assert shown("/calico/ipam/v2/host/n1/ipv4/block/10.0.0.0-30") == {
        "state": "confirmed", "deleted": False,
    }  # fmt: skip
    assert shown("/calico/ipam/v2/handle/net.x") == {
        "block": {"10.0.0.0/30": 1}, "deleted": False,
    }  # fmt: skip


def counted(store: EtcdDatastore) -> FaultyDatastore:
    """Nothing fails; every call to etcd is counted."""
    return FaultyDatastore(store, lambda *_: Fault.OK)


async def test_a_block_of_64_with_64_owners_costs_one_round_trip_for_each_change(
    store: EtcdDatastore,
):
    etcd = counted(store)
    ipam = client(etcd, source(pool("a", "10.0.0.0/26")))  # type: ignore[arg-type]
    await ipam.auto_assign(ask("p0"))
    assigns, releases = [], []
    for i in range(1, 64):
        before = etcd.calls
        await ipam.auto_assign(ask(f"p{i}"))
        assigns.append(etcd.calls - before)
    assert len(await held(store)) == 64
    for i in range(64):
        before = etcd.calls
        await ipam.release_by_handle(f"net.p{i}")
        releases.append(etcd.calls - before)
    assert await held(store) == {}
    assert assigns == [1] * 63
    assert releases == [1] * 64
    assert ipam.records.conflicts == 0


async def test_who_has_not_seen_a_handle_before_releases_it_with_two_round_trips_more(
    store: EtcdDatastore,
):
    """A DEL after a restart: handle, block, and the write."""
    known = source(pool("a", "10.0.0.0/26"))
    await client(store, known).auto_assign(ask("x"))
    etcd = counted(store)
    await client(etcd, known).release_by_handle("net.x")  # type: ignore[arg-type]
    assert etcd.calls == 3
    assert await held(store) == {}


async def test_a_hundred_requests_at_once_share_writes(store: EtcdDatastore):
    ipam = client(store, source(pool("a", "10.0.0.0/16"), pool("b", "fd00::/112")))
    got = await asyncio.gather(*(ipam.auto_assign(ask(f"p{i}", v6=1)) for i in range(100)))
    assert len({a.ip for one in got for a in one.addresses}) == 200
    assert ipam.records.transactions < 60
    await asyncio.gather(*(ipam.release_by_handle(f"net.p{i}") for i in range(100)))
    assert await held(store) == {}


async def test_two_hundred_and_fifty_addresses_cost_three_transactions_a_block_at_most(
    store: EtcdDatastore,
):
    operations: list[str] = []

    def note(_: int, operation: str) -> Fault:
        operations.append(operation)
        return Fault.OK

    etcd = FaultyDatastore(store, note)
    ipam = client(etcd, source(pool("a", "10.0.0.0/16")))  # type: ignore[arg-type]
    got = await ipam.auto_assign(ask("x", v4=250))
    assert len({a.ip for a in got.addresses}) == 250
    count = len(await all_blocks(store))
    assert count == 4
    assert operations.count("txn") <= 3 * count
    operations.clear()
    await ipam.release_by_handle("net.x")
    assert operations.count("txn") <= 3 * count


async def test_a_block_of_4096_addresses_with_an_owner_each(store: EtcdDatastore):
    """Sizes: a value of several hundred kilobytes, more handles than one transaction takes."""
    ipam = client(store, source(pool("a", "10.0.0.0/20", 20)))
    await ipam.auto_assign(ask("bulk", v4=3800))
    await asyncio.gather(*(ipam.auto_assign(ask(f"p{i}")) for i in range(296)))
    assert len(await held(store)) == 4096
    full = await client(store, source(pool("a", "10.0.0.0/20", 20))).auto_assign(ask("over"))
    assert full.addresses == ()
    single = [a for a, handle in (await held(store)).items() if handle != "net.bulk"]
    released = await ipam.release_ips(Release(address=address) for address in single)
    assert len(released.released) == 296
    await ipam.release_by_handle("net.bulk")
    assert await held(store) == {}


async def test_one_address_wanted_by_many_processes_goes_to_one(store: EtcdDatastore):
    known = source(pool("a", "10.0.0.0/24", 30), nodes=[f"n{i}" for i in range(20)])
    clients = [client(store, known) for _ in range(20)]
    got = await asyncio.gather(
        *(c.auto_assign(ask(f"p{i}", f"n{i}", v4=4)) for i, c in enumerate(clients))
    )
    assert len({a.ip for one in got for a in one.addresses}) == 80
    assert ip_address("10.0.0.0") not in {None}
