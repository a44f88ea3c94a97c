"""ipam.client.source: pools, reservations, settings and nodes as read from the datastore."""

from __future__ import annotations

import pytest

from ipam.client import DatastoreSource
from libcalico.errors import DatastoreUnavailable, NotFound
from libcalico.model.ipam import MISSING_IPAM_CONFIG, IpamConfig
from libcalico.testing.datastore import MemoryDatastore

PREFIX = "/calico/resources/v3/projectcalico.org/"


def resource(kind: str, plural: str, name: str, body: str) -> dict[str, bytes]:
    raw = f'{{"kind":"{kind}","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}}'
    return {f"{PREFIX}{plural}/{name}": f"{raw},{body}}}".encode()}


async def test_everything_is_read_and_one_bad_object_does_not_stop_the_others():
    store = MemoryDatastore()
    for objects in (
        resource("IPPool", "ippools", "b", '"spec":{"cidr":"10.1.0.0/16","disabled":true}'),
        resource("IPPool", "ippools", "a", '"spec":{"cidr":"10.0.0.0/16"}'),
        resource("IPPool", "ippools", "bad", '"spec":{"cidr":"all of it"}'),
        resource("IPPool", "ippools", "worse", '"spec":{"cidr":[1]}'),
        resource(
            "IPReservation", "ipreservations", "r", '"spec":{"reservedCIDRs":["10.0.0.0/30"]}'
        ),
        {"/calico/ipam/v2/config": b'{"strict_affinity":true}'},
    ):
        store.seed(objects)
    facts = await DatastoreSource(store).facts()
    assert [(p.name, p.enabled) for p in facts.pools] == [("a", True), ("b", False)]
    assert facts.reservations.contains(4, 0x0A000003)
    assert facts.config == IpamConfig(strict_affinity=True)


async def test_an_empty_store_has_defaults():
    facts = await DatastoreSource(MemoryDatastore()).facts()
    assert facts.pools == []
    assert facts.config == MISSING_IPAM_CONFIG


async def test_labels_of_a_node():
    store = MemoryDatastore()
    raw = b'{"kind":"Node","metadata":{"name":"n1","labels":{"zone":"a"}},"spec":{}}'
    store.seed({f"{PREFIX}nodes/n1": raw})
    assert await DatastoreSource(store).node_labels("n1") == {"zone": "a"}
    with pytest.raises(NotFound) as refused:
        await DatastoreSource(store).node_labels("n2")
    assert str(refused.value) == "resource does not exist: Node(n2) with error: <nil>"


async def test_a_datastore_that_is_away_is_one_error():
    store = MemoryDatastore()
    store.partition()
    with pytest.raises(DatastoreUnavailable):
        await DatastoreSource(store).facts()
