"""cni.endpoints: what a DEL finds when somebody else wrote the endpoint since it was read."""

from __future__ import annotations

import pytest

from cni.endpoints import EndpointStore, Succession
from cni.facts import Stored
from ipam.client.lane import Guard
from libcalico.errors import AlreadyExists, NotFound, RevisionConflict
from libcalico.model import WorkloadEndpoint
from libcalico.model.codec import encode
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.keys import HandleKey, ResourceKey, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.testing.datastore import MemoryDatastore

KEY = ResourceKey("WorkloadEndpoint", "n-k8s-web-eth0", "prod")
PATH = path_of(KEY)


def endpoint(container: str, **labels: str) -> WorkloadEndpoint:
    return WorkloadEndpoint(
        metadata=ObjectMeta(name=KEY.name, namespace="prod", labels=labels),
        spec=WorkloadEndpointSpec(node="n", container_id=container),
    )


@pytest.fixture
def datastore() -> MemoryDatastore:
    return MemoryDatastore()


async def stored(datastore: MemoryDatastore, container: str) -> Stored:
    value = endpoint(container)
    return Stored(KEY, value, await datastore.create(PATH, encode(value)))


async def test_an_endpoint_that_is_gone_already_was_deleted(datastore):
    mine = await stored(datastore, "c1")
    await datastore.delete(PATH)
    await EndpointStore(datastore).delete(mine)
    with pytest.raises(NotFound):
        await datastore.delete(PATH)


async def test_an_endpoint_another_container_took_over_since_it_was_read_stays(datastore):
    mine = await stored(datastore, "c1")
    theirs = encode(endpoint("c2"))
    await datastore.put(PATH, theirs)
    await EndpointStore(datastore).delete(mine)
    assert datastore.contents()[PATH] == theirs


async def test_an_endpoint_somebody_labelled_since_it_was_read_is_deleted(datastore):
    mine = await stored(datastore, "c1")
    await datastore.put(PATH, encode(endpoint("c1", theirs="yes")))
    await EndpointStore(datastore).delete(mine)
    assert PATH not in datastore.contents()


async def test_an_endpoint_that_goes_while_it_is_looked_at_again_was_deleted(datastore):
    mine = await stored(datastore, "c1")
    await datastore.put(PATH, encode(endpoint("c1", theirs="yes")))
    datastore.before_next(lambda: datastore.erase(PATH), operations=["get"])
    await EndpointStore(datastore).delete(mine)
    assert PATH not in datastore.contents()


# ---- sticky claims: the record that ends its predecessors ----------------------------------------

OLD_KEY = ResourceKey("WorkloadEndpoint", "other-k8s-web-eth0", "prod")
HANDLE = HandleKey("sticky:net:prod:web:eth0")


async def predecessor(datastore: MemoryDatastore) -> Stored:
    spec = WorkloadEndpointSpec(node="other", container_id="c0", ip_networks=("10.0.0.5/32",))
    value = WorkloadEndpoint(metadata=ObjectMeta(name=OLD_KEY.name, namespace="prod"), spec=spec)
    return Stored(OLD_KEY, value, await datastore.create(path_of(OLD_KEY), encode(value)))


async def fence(datastore: MemoryDatastore) -> Guard:
    return Guard(HANDLE, await datastore.create(path_of(HANDLE), b"{}"))


async def test_predecessors_are_those_that_have_the_address_now(datastore):
    old, store = await predecessor(datastore), EndpointStore(datastore)
    (found,) = await store.having(KEY, ["10.0.0.5", "fd00::1"])
    assert (found.key, found.revision) == (OLD_KEY, old.revision)
    assert await store.having(KEY, ["10.0.0.50"]) == ()
    assert await store.having(OLD_KEY, ["10.0.0.5"]) == ()


@pytest.mark.parametrize("is_existing", [True, False])
async def test_a_predecessor_goes_in_the_write_that_records_its_successor(datastore, is_existing):
    existing = await stored(datastore, "c1") if is_existing else None
    succession = Succession(await fence(datastore), (await predecessor(datastore),))
    revision = await EndpointStore(datastore).save(endpoint("c2"), existing, succession)
    assert revision == datastore.revision
    assert path_of(OLD_KEY) not in datastore.contents()
    found = await EndpointStore(datastore).read(KEY)
    assert found is not None
    assert (found.container_id, found.revision) == ("c2", revision)


@pytest.mark.parametrize("changed", [path_of(HANDLE), path_of(OLD_KEY), PATH])
@pytest.mark.parametrize("is_existing", [True, False])
async def test_whatever_changed_since_keeps_the_successor_out(datastore, is_existing, changed):
    existing = await stored(datastore, "c1") if is_existing else None
    succession = Succession(await fence(datastore), (await predecessor(datastore),))
    value = datastore.contents().get(changed, encode(endpoint("c3")))
    await datastore.put(changed, value)
    before = datastore.contents()
    with pytest.raises(AlreadyExists if changed == PATH and not is_existing else RevisionConflict):
        await EndpointStore(datastore).save(endpoint("c2"), existing, succession)
    assert datastore.contents() == before


async def test_a_successor_repairs_what_does_not_parse(datastore):
    await datastore.create(PATH, b"not json")
    await EndpointStore(datastore).save(endpoint("c2"), None, Succession(await fence(datastore)))
    found = await EndpointStore(datastore).read(KEY)
    assert found is not None
    assert found.container_id == "c2"
