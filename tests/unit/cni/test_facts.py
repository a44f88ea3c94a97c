"""cni.facts: what an ADD is told without asking the datastore."""

from __future__ import annotations

import pytest

from cni.facts import ClusterFacts, LocalEndpoints, Stored
from libcalico.errors import DatastoreUnavailable, NotFound
from libcalico.model import ClusterInformation, IPPool, Node, Profile, WorkloadEndpoint
from libcalico.model.cluster import ClusterInformationSpec
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.ipam import MISSING_IPAM_CONFIG, IpamConfig
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import IpamConfigKey, ResourceKey, key_of
from libcalico.model.meta import ObjectMeta
from libcalico.syncer.api import SyncStatus, Update

KEY = ResourceKey("WorkloadEndpoint", "n-k8s-web-eth0", "prod")


def endpoint(container: str, node: str = "n") -> WorkloadEndpoint:
    spec = WorkloadEndpointSpec(node=node, container_id=container)
    return WorkloadEndpoint(metadata=ObjectMeta(name=KEY.name, namespace="prod"), spec=spec)


def held(local: LocalEndpoints) -> list[tuple[str, int]]:
    return [(stored.container_id, stored.revision) for stored in local.under("prod", "n-k8s-web-")]


def test_an_echo_older_than_our_write_changes_nothing():
    local = LocalEndpoints("n")
    local.on_update(KEY, endpoint("c1"), 5)
    local.note_written(Stored(KEY, endpoint("c2"), 9))
    local.on_update(KEY, endpoint("c1"), 5)
    local.on_update(KEY, None, 7)
    assert held(local) == [("c2", 9)]
    local.on_update(KEY, endpoint("c2"), 9)
    local.on_update(KEY, endpoint("c3"), 12)
    assert held(local) == [("c3", 12)]


def test_what_we_deleted_does_not_come_back_with_a_late_echo():
    local = LocalEndpoints("n")
    written = Stored(KEY, endpoint("c1"), 9)
    local.note_written(written)
    local.note_deleted(written)
    local.on_update(KEY, endpoint("c1"), 9)
    assert held(local) == []
    local.on_update(KEY, None, 10)
    local.on_update(KEY, endpoint("c2"), 11)
    assert held(local) == [("c2", 11)]


def test_a_new_endpoint_under_a_deleted_name_is_taken_before_the_deletes_echo():
    local = LocalEndpoints("n")
    local.note_written(Stored(KEY, endpoint("c1"), 9))
    local.note_deleted(Stored(KEY, endpoint("c1"), 9))
    local.note_written(Stored(KEY, endpoint("c2"), 11))
    local.on_update(KEY, None, 10)
    assert held(local) == [("c2", 11)]


def test_endpoints_of_other_nodes_are_not_kept():
    local = LocalEndpoints("n")
    local.on_update(KEY, endpoint("c1", node="other"), 5)
    assert local.all() == []
    local.on_update(KEY, endpoint("c1"), 6)
    local.on_update(KEY, endpoint("c1", node="other"), 7)
    assert local.all() == []


def test_an_uncertain_endpoint_is_one_until_it_was_read():
    local = LocalEndpoints("n")
    local.note_uncertain(KEY)
    assert local.is_uncertain(KEY)
    local.note_read(KEY)
    assert not local.is_uncertain(KEY)


def update(resource) -> Update:
    return Update(key_of(resource), resource, 1)


async def test_there_are_no_facts_before_in_sync():
    facts = ClusterFacts("n")
    facts.on_updates([update(Node(metadata=ObjectMeta(name="n", labels={"a": "b"})))])
    with pytest.raises(DatastoreUnavailable):
        await facts.facts()
    facts.on_status(SyncStatus.IN_SYNC)
    assert await facts.node_labels("n") == {"a": "b"}
    with pytest.raises(NotFound):
        await facts.node_labels("m")


async def test_facts_follow_the_updates():
    facts = ClusterFacts("n")
    facts.on_status(SyncStatus.IN_SYNC)
    assert (await facts.facts()).config == MISSING_IPAM_CONFIG
    pool = IPPool(metadata=ObjectMeta(name="p"), spec=IPPoolSpec(cidr="10.0.0.0/16"))
    bad = IPPool(metadata=ObjectMeta(name="q"), spec=IPPoolSpec(cidr="nonsense"))
    ready = ClusterInformation(
        metadata=ObjectMeta(name="default"), spec=ClusterInformationSpec(datastore_ready=True)
    )
    profile = Profile(metadata=ObjectMeta(name="net"))
    config = Update(IpamConfigKey(), IpamConfig(strict_affinity=True), 1)
    facts.on_updates([update(pool), update(bad), update(ready), update(profile), config])
    assert [p.name for p in (await facts.facts()).pools] == ["p"]
    assert (await facts.facts()).config.strict_affinity
    assert facts.is_datastore_ready()
    stray = ResourceKey("ClusterInformation", "stray")
    facts.on_updates(
        [
            Update(stray, None, 2),
            Update(stray, ClusterInformation(metadata=ObjectMeta(name="stray")), 3),
        ]
    )
    assert facts.is_datastore_ready(), "only the one named default counts"
    assert facts.has_profile("net")
    facts.on_updates([Update(key, None, 2) for key in (*map(key_of, (pool, ready, profile)),)])
    assert (await facts.facts()).pools == ()
    assert not facts.is_datastore_ready()
    assert not facts.has_profile("net")
