"""ipam.client.inventory: everything of one revision, and what cannot be read by name."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from ipam import blocks
from ipam.check import StoredHandle, Unreadable
from ipam.client.inventory import read_inventory
from libcalico.errors import DatastoreUnavailable, NotFound
from libcalico.model import codec
from libcalico.model.ipam import Handle
from libcalico.model.keys import BlockKey, HandleKey, path_of
from libcalico.testing.datastore import MemoryDatastore

V3 = "/calico/resources/v3/projectcalico.org"
CLUSTER = b'{"kind":"ClusterInformation","metadata":{"name":"default"},"spec":{"clusterGUID":"ab"}}'
BLOCK = blocks.new_block("10.0.0.0/29", 5)
V6_BLOCK = blocks.new_block("fd00::/125", 5)


def endpoint(name: str, address: str) -> bytes:
    return (
        f'{{"kind":"WorkloadEndpoint","metadata":{{"name":"{name}","namespace":"prod"}},'
        f'"spec":{{"node":"n1","ipNetworks":["{address}"]}}}}'.encode()
    )


def pool(name: str, rest: str) -> bytes:
    return f'{{"kind":"IPPool","metadata":{{"name":"{name}"}},"spec":{{"cidr":{rest}}}}}'.encode()


@pytest.fixture
def store() -> MemoryDatastore:
    made = MemoryDatastore()
    made.seed({
        f"{V3}/clusterinformations/default": CLUSTER,
        f"{V3}/ippools/a": pool("a", '"10.0.0.0/24"'),
        f"{V3}/ippools/off": pool("off", '"10.1.0.0/24","disabled":true'),
        f"{V3}/nodes/n1": b'{"kind":"Node","metadata":{"name":"n1"},"spec":{}}',
        f"{V3}/workloadendpoints/prod/a": endpoint("a", "10.0.0.1/32"),
        path_of(BlockKey("10.0.0.0/29")): codec.encode(BLOCK),
        path_of(BlockKey("fd00::/125")): codec.encode(V6_BLOCK),
        path_of(HandleKey("h")): codec.encode(Handle(block={"10.0.0.0/29": 1})),
    })  # fmt: skip
    return made


async def test_everything_is_read_page_by_page_and_handles_with_their_revision(
    store: MemoryDatastore,
):
    store.page_keys = 1
    read = await read_inventory(store)
    assert (read.cluster.spec.cluster_guid, read.cluster.metadata.resource_version) == ("ab", "2")
    assert list(read.blocks) == [BLOCK, V6_BLOCK]
    assert list(read.pools) == [ip_network("10.0.0.0/24")], "disabled pools are not active"
    assert [node.metadata.name for node in read.nodes] == ["n1"]
    assert [e.spec.ip_networks for e in read.endpoints] == [("10.0.0.1/32",)]
    assert read.handles == {"h": StoredHandle(Handle(block={"10.0.0.0/29": 1}), store.revision)}
    assert list(read.unreadable) == []


async def test_what_is_written_meanwhile_is_not_seen_half(store: MemoryDatastore):
    """An address assigned while we list: neither the block nor the endpoint shows it."""
    key = path_of(BlockKey("10.0.0.8/29"))
    other = codec.encode(blocks.new_block("10.0.0.8/29", 5))
    later = {key: other, f"{V3}/workloadendpoints/prod/b": endpoint("b", "10.0.0.9")}
    store.before_next(
        lambda: store.seed(later),
        operations=["list"], prefix="/calico/ipam/v2/assignment/",
    )  # fmt: skip
    read = await read_inventory(store)
    assert len(read.blocks) == 2
    assert len(read.endpoints) == 1
    assert key in store.contents()


async def test_a_compaction_in_between_starts_again(store: MemoryDatastore):
    def compact() -> None:
        store.seed({f"{V3}/workloadendpoints/prod/b": endpoint("b", "10.0.0.2")})
        store.compact()

    store.before_next(compact, operations=["list"], prefix=f"{V3}/nodes/")
    assert len((await read_inventory(store)).endpoints) == 2
    for _ in range(3):
        store.before_next(compact, operations=["list"], prefix=f"{V3}/nodes/")
    with pytest.raises(DatastoreUnavailable):
        await read_inventory(store)


async def test_what_cannot_be_read_is_named_and_the_rest_is_there(store: MemoryDatastore):
    store.seed({
        path_of(BlockKey("10.0.0.16/29")): b"{]",
        path_of(BlockKey("10.0.0.24/29")): codec.encode(BLOCK),
        "/calico/ipam/v2/assignment/ipv4/block/rubbish": b"{}",
        path_of(HandleKey("bad")): b"{]",
        f"{V3}/ippools/bad": pool("bad", '"x"'),
        f"{V3}/nodes/bad": b"[]",
        f"{V3}/workloadendpoints/prod/bad": b"{\n",
        f"{V3}/workloadendpoints/bad": b"{}",
    })  # fmt: skip
    read = await read_inventory(store)
    assert sorted((item.kind, item.name) for item in read.unreadable) == [
        ("Block", "/calico/ipam/v2/assignment/ipv4/block/rubbish"),
        ("Block", "10.0.0.16/29"), ("Block", "10.0.0.24/29"),
        ("Handle", "IPAMHandleKey(id=bad)"), ("IPPool", "IPPool(bad)"), ("Node", "Node(bad)"),
        ("WorkloadEndpoint", f"{V3}/workloadendpoints/bad"),
        ("WorkloadEndpoint", "WorkloadEndpoint(prod/bad)"),
    ]  # fmt: skip
    assert all("\n" not in str(item) for item in read.unreadable)
    assert (len(read.blocks), len(read.nodes), len(read.endpoints)) == (2, 1, 1)
    assert isinstance(read.unreadable_of("Node")[0], Unreadable)


async def test_a_datastore_that_was_never_initialised_is_said(store: MemoryDatastore):
    store.erase(f"{V3}/clusterinformations/default")
    with pytest.raises(NotFound, match=r"ClusterInformation\(default\)"):
        await read_inventory(store)
