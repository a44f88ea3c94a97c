"""cni.endpoints: what a DEL finds when somebody else wrote the endpoint since it was read."""

from __future__ import annotations

import pytest

from cni.endpoints import EndpointStore
from cni.facts import Stored
from libcalico.errors import NotFound
from libcalico.model import WorkloadEndpoint
from libcalico.model.codec import encode
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.keys import ResourceKey, path_of
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
