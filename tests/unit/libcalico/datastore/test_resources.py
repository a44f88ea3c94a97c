"""libcalico.datastore.resources on the datastore in memory: what is stored, refused and kept."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from msgspec.structs import replace

from libcalico.datastore.resources import ChangeType, ResourceClient
from libcalico.errors import (
    AlreadyExists,
    DatastoreUnavailable,
    DecodeError,
    InvalidInput,
    NotFound,
    NotSupported,
    RevisionConflict,
    SuiteError,
    Unauthorized,
    ValidationError,
    WatchExpired,
)
from libcalico.model import (
    BGPPeer,
    BGPPeerSpec,
    ClusterInformation,
    GlobalNetworkPolicy,
    GlobalNetworkPolicySpec,
    IPPool,
    IPPoolSpec,
    NetworkPolicy,
    NetworkPolicySpec,
    NetworkSet,
    NetworkSetSpec,
    Node,
    Profile,
    Tier,
    TierSpec,
    WorkloadEndpoint,
    WorkloadEndpointSpec,
)
from libcalico.model.kinds import KIND_BY_NAME
from libcalico.model.meta import ObjectMeta, Resource
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

ROOT = "/calico/resources/v3/projectcalico.org/"
UID = uuid.UUID(int=7)


@pytest.fixture
def store() -> MemoryDatastore:
    return MemoryDatastore()


@pytest.fixture
def client(store: MemoryDatastore) -> ResourceClient:
    return ResourceClient(store, clock=FakeClock(wall=1_700_000_000.9), new_uid=lambda: UID)


@pytest.fixture
async def ready(client: ResourceClient) -> ResourceClient:
    """A client of an initialised datastore: the built-in tiers are there."""
    await client.ensure_initialized()
    return client


def stored(store: MemoryDatastore, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.contents()[ROOT + path])
    return found


def pool(name: str = "p", cidr: str = "10.10.0.0/16", **spec: Any) -> IPPool:
    return IPPool(metadata=ObjectMeta(name=name), spec=IPPoolSpec(cidr=cidr, **spec))


def node(name: str = "n1", **metadata: Any) -> Node:
    return Node(metadata=ObjectMeta(name=name, **metadata))


def policy(name: str = "web", tier: str | None = None, **spec: Any) -> NetworkPolicy:
    metadata = ObjectMeta(name=name, namespace="prod")
    return NetworkPolicy(metadata=metadata, spec=NetworkPolicySpec(tier=tier, **spec))


# ---- create ------------------------------------------------------------------------------------


async def test_create_stores_the_envelope_that_calico_stores(
    client: ResourceClient, store: MemoryDatastore
):
    created = await client.create(pool(cidr="FD00:10::/64"))
    assert stored(store, "ippools/p") == {
        "kind": "IPPool",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": "p",
            "uid": str(UID),
            "creationTimestamp": "2023-11-14T22:13:20Z",
        },
        "spec": {
            "cidr": "fd00:10::/64",
            "vxlanMode": "Never",
            "ipipMode": "Never",
            "blockSize": 122,
            "nodeSelector": "all()",
            "allowedUses": ["Workload", "Tunnel"],
            "assignmentMode": "Automatic",
        },
    }
    assert created.metadata.resource_version == str(store.revision)
    assert created == await client.get(IPPool, "p")


async def test_create_keeps_identity_and_birthday_that_were_given(client: ResourceClient):
    given = node(uid="mine", creation_timestamp="2020-01-01T00:00:00Z")
    created = await client.create(given)
    assert (created.metadata.uid, created.metadata.creation_timestamp) == (
        "mine",
        "2020-01-01T00:00:00Z",
    )


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        (node(""), "Metadata.Name = '' (field must be set for a Create request)"),
        (
            node("", generate_name="n-"),
            "Metadata.Name = '' (field must be set for a Create request"
            " (GenerateName is not supported))",
        ),
        (
            node("n1", resource_version="5"),
            "Metadata.ResourceVersion = '5' (field must not be set for a Create request)",
        ),
        (
            NetworkSet(metadata=ObjectMeta(name="s"), spec=NetworkSetSpec(nets=("10.0.0.0/8",))),
            "Metadata.Namespace = '' (namespace is not specified on namespaced resource)",
        ),
    ],
)
async def test_create_refuses_wrong_bookkeeping(
    client: ResourceClient, store: MemoryDatastore, resource: Resource, text: str
):
    with pytest.raises(ValidationError) as caught:
        await client.create(resource)
    assert str(caught.value) == f"error with field {text}"
    assert store.contents() == {}


async def test_create_refuses_what_does_not_validate_and_writes_nothing(
    client: ResourceClient, store: MemoryDatastore
):
    with pytest.raises(ValidationError):
        await client.create(pool(cidr="10.10.0.1/16"))
    assert store.contents() == {}


async def test_create_of_what_exists_names_it(client: ResourceClient):
    await client.create(node())
    with pytest.raises(AlreadyExists) as caught:
        await client.create(node())
    assert str(caught.value) == "resource already exists: Node(n1) with error: <nil>"


async def test_a_lost_answer_is_not_hidden(client: ResourceClient, store: MemoryDatastore):
    store.lose_answer_next(operations=["create"])
    with pytest.raises(DatastoreUnavailable):
        await client.create(node())
    assert (await client.get(Node, "n1")).metadata.name == "n1"


@pytest.mark.parametrize(
    "kind", ["ClusterInformation", "IPAMConfiguration", "KubeControllersConfiguration"]
)
async def test_kinds_with_one_object_are_named_default(client: ResourceClient, kind: str):
    struct: Any = KIND_BY_NAME[kind].resource
    with pytest.raises(ValidationError, match='with a name other than "default"'):
        await client.create(struct(metadata=ObjectMeta(name="other")))
    await client.create(struct(metadata=ObjectMeta(name="default")))


async def test_an_endpoint_gets_its_name_from_its_identity(client: ResourceClient):
    spec = WorkloadEndpointSpec(
        orchestrator="k8s", node="worker-1", pod="web-0", endpoint="eth0", interface_name="cali1"
    )
    created = await client.create(
        WorkloadEndpoint(metadata=ObjectMeta(namespace="prod"), spec=spec)
    )
    assert created.metadata.name == "worker--1-k8s-web--0-eth0"
    assert (await client.get(WorkloadEndpoint, created.metadata.name, "prod")) == created


# ---- update ------------------------------------------------------------------------------------


async def test_update_replaces_what_was_read(client: ResourceClient):
    created = await client.create(node())
    changed = replace(created, metadata=replace(created.metadata, labels={"rack": "1"}))
    updated = await client.update(changed)
    assert updated.metadata.labels == {"rack": "1"}
    assert int(updated.metadata.resource_version or 0) > int(created.metadata.resource_version or 0)
    assert await client.get(Node, "n1") == updated


async def test_update_at_an_old_revision_conflicts(client: ResourceClient):
    created = await client.create(node())
    await client.update(created)
    with pytest.raises(RevisionConflict) as caught:
        await client.update(created)
    assert str(caught.value) == "update conflict: Node(n1)"


async def test_a_write_between_our_read_and_ours_conflicts_too(
    client: ResourceClient, store: MemoryDatastore
):
    created = await client.create(node())

    other = {ROOT + "nodes/n1": b'{"kind":"Node"}'}
    store.before_next(lambda: store.seed(other), operations=["update"])
    with pytest.raises(RevisionConflict, match=r"Node\(n1\)"):
        await client.update(created)
    assert store.contents() == other


async def test_update_of_what_is_gone_is_not_found(client: ResourceClient):
    created = await client.create(node())
    await client.delete(Node, "n1")
    with pytest.raises(NotFound) as caught:
        await client.update(created)
    assert str(caught.value) == "resource does not exist: Node(n1) with error: <nil>"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"resource_version": None}, "Metadata.ResourceVersion"),
        ({"uid": None}, "Metadata.UID"),
        ({"creation_timestamp": None}, "Metadata.CreationTimestamp"),
    ],
)
async def test_update_needs_the_bookkeeping_it_read(
    client: ResourceClient, change: dict[str, None], field: str
):
    created = await client.create(node())
    bare = replace(created, metadata=replace(created.metadata, **change))
    with pytest.raises(ValidationError) as caught:
        await client.update(bare)
    expected = f"error with field {field} = '' (field must be set for an Update request)"
    assert str(caught.value) == expected


async def test_update_keeps_the_members_of_a_newer_writer(
    client: ResourceClient, store: MemoryDatastore
):
    raw = {
        "kind": "Node",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "n1", "uid": "u", "creationTimestamp": "2020-01-01T00:00:00Z",
                     "fromTheFuture": {"a": 1}},
        "spec": {"bgp": {"ipv4Address": "192.0.2.1/24", "quantum": True}, "more": [1, 2]},
        "status": {},
    }  # fmt: skip
    store.seed({ROOT + "nodes/n1": json.dumps(raw).encode()})
    found = await client.get(Node, "n1")
    await client.update(replace(found, metadata=replace(found.metadata, labels={"a": "b"})))
    after = stored(store, "nodes/n1")
    assert after["metadata"].pop("labels") == {"a": "b"}
    assert after == raw


async def test_an_object_that_does_not_parse_can_be_replaced(
    client: ResourceClient, store: MemoryDatastore
):
    store.seed({ROOT + "nodes/n1": b"broken"})
    revision = str(store.revision)
    fixed = node(uid="u", creation_timestamp="2020-01-01T00:00:00Z", resource_version=revision)
    await client.update(fixed)
    assert (await client.get(Node, "n1")).metadata.uid == "u"


async def test_a_pool_keeps_its_network_and_block_size(client: ResourceClient):
    created = await client.create(pool())
    for spec, text in (
        (replace(created.spec, cidr="10.11.0.0/16"), "IPPool CIDR cannot be modified"),
        (replace(created.spec, block_size=27), "IPPool BlockSize cannot be modified"),
    ):
        with pytest.raises(ValidationError, match=text):
            await client.update(replace(created, spec=spec))


# ---- apply -------------------------------------------------------------------------------------


async def test_apply_creates_then_updates_and_keeps_identity(client: ResourceClient):
    first = await client.apply(pool())
    second = await client.apply(
        replace(pool(nat_outgoing=True), metadata=ObjectMeta(name="p", labels={"a": "b"}))
    )
    assert second.spec.nat_outgoing
    assert second.metadata.labels == {"a": "b"}
    assert second.metadata.uid == first.metadata.uid
    assert second.metadata.creation_timestamp == first.metadata.creation_timestamp


async def test_apply_survives_lost_races_a_bounded_number_of_times(
    client: ResourceClient, store: MemoryDatastore
):
    await client.create(node())
    conflict = RevisionConflict("somebody was quicker")
    store.fail_next(3, operations=["update"], error=conflict)
    assert (await client.apply(node(labels={"a": "b"}))).metadata.labels == {"a": "b"}
    store.fail_next(1000, operations=["update"], error=conflict)
    with pytest.raises(RevisionConflict):
        await client.apply(node(labels={"a": "c"}))


# ---- delete ------------------------------------------------------------------------------------


async def test_delete_returns_the_object_and_checks_the_revision(client: ResourceClient):
    created = await client.create(node())
    revision = int(created.metadata.resource_version or 0)
    with pytest.raises(RevisionConflict, match=r"Node\(n1\)"):
        await client.delete(Node, "n1", revision=revision - 1)
    assert await client.delete(Node, "n1", revision=revision) == created
    with pytest.raises(NotFound, match=r"Node\(n1\)"):
        await client.delete("Node", "n1")


async def test_an_object_that_does_not_parse_can_be_deleted(
    client: ResourceClient, store: MemoryDatastore
):
    store.seed({ROOT + "nodes/n1": b"broken"})
    assert await client.delete(Node, "n1") is None
    assert store.contents() == {}


# ---- policies and tiers ------------------------------------------------------------------------


async def test_a_policy_is_stored_under_its_name_with_tier_label_and_name_annotation(
    ready: ResourceClient, store: MemoryDatastore
):
    created = await ready.create(policy())
    after = stored(store, "networkpolicies/prod/web")
    assert after["metadata"]["labels"] == {"projectcalico.org/tier": "default"}
    assert after["metadata"]["annotations"] == {"projectcalico.org/metadata": '{"name":"web"}'}
    assert (after["spec"]["tier"], after["spec"]["types"]) == ("default", ["Ingress"])
    assert created.metadata.annotations == {}
    assert (await ready.get(NetworkPolicy, "web", "prod")).metadata.annotations == {}


async def test_a_policy_needs_its_tier(client: ResourceClient, store: MemoryDatastore):
    with pytest.raises(NotFound) as caught:
        await client.create(policy(tier="security"))
    assert str(caught.value) == "resource does not exist: Tier(security) with error: <nil>"
    assert store.contents() == {}
    await client.create(Tier(metadata=ObjectMeta(name="security"), spec=TierSpec(order=5)))
    await client.create(policy(tier="security"))


async def test_a_policy_under_an_old_key_is_listed_by_its_name_only(
    ready: ResourceClient, store: MemoryDatastore
):
    old = {"kind": "NetworkPolicy", "metadata": {"name": "default.old", "namespace": "prod"}}
    store.seed({ROOT + "networkpolicies/prod/default.old": json.dumps(old).encode()})
    assert [found.metadata.name for found in await ready.list(NetworkPolicy, "prod")] == ["old"]
    for name in ("old", "default.old"):
        with pytest.raises(NotFound):
            await ready.get(NetworkPolicy, name, "prod")


async def test_a_tier_in_use_cannot_be_deleted(ready: ResourceClient):
    await ready.create(Tier(metadata=ObjectMeta(name="security"), spec=TierSpec(order=5)))
    spec = GlobalNetworkPolicySpec(tier="security")
    await ready.create(GlobalNetworkPolicy(metadata=ObjectMeta(name="g"), spec=spec))
    with pytest.raises(NotSupported) as caught:
        await ready.delete(Tier, "security")
    assert str(caught.value) == (
        "operation delete is not supported on security: Cannot delete a non-empty tier"
    )
    await ready.delete(GlobalNetworkPolicy, "g")
    await ready.delete(Tier, "security")


@pytest.mark.parametrize("name", ["default", "kube-admin", "kube-baseline"])
async def test_built_in_tiers_stay(ready: ResourceClient, name: str):
    with pytest.raises(NotSupported) as caught:
        await ready.delete(Tier, name)
    expected = f"operation Delete is not supported on {name}: Cannot delete {name} tier"
    assert str(caught.value) == expected
    assert (await ready.get(Tier, name)).metadata.name == name


# ---- profile, pools, peers ---------------------------------------------------------------------


async def test_the_default_allow_profile_is_always_there_and_never_stored(
    client: ResourceClient, store: MemoryDatastore
):
    found = await client.get(Profile, "projectcalico-default-allow")
    assert found.metadata.resource_version == "1"
    await client.create(Profile(metadata=ObjectMeta(name="kns.prod")))
    names = [profile.metadata.name for profile in await client.list(Profile)]
    assert names == ["kns.prod", "projectcalico-default-allow"]
    assert ROOT + "profiles/projectcalico-default-allow" not in store.contents()
    for call in (client.create(found), client.update(found), client.delete(Profile, names[1])):
        with pytest.raises((AlreadyExists, NotSupported)):
            await call


async def test_pools_do_not_overlap(client: ResourceClient):
    await client.create(pool("a", "10.10.0.0/16"))
    with pytest.raises(ValidationError) as caught:
        await client.create(pool("b", "10.10.128.0/17"))
    assert "IPPool(b) CIDR overlaps with IPPool(a) CIDR 10.10.0.0/16" in str(caught.value)
    await client.create(pool("c", "10.11.0.0/16"))
    await client.create(pool("d", "fd00::/64"))


async def test_a_pool_does_not_cover_blocks_of_another_size(
    client: ResourceClient, store: MemoryDatastore
):
    store.seed({"/calico/ipam/v2/assignment/ipv4/block/10.10.0.0-27": b"{}"})
    with pytest.raises(ValidationError, match="blocksSize conflicts with existing allocations"):
        await client.create(pool())
    await client.create(pool(block_size=27))


async def test_a_pool_read_has_defaults_that_its_writer_left_out(
    client: ResourceClient, store: MemoryDatastore
):
    raw = {"kind": "IPPool", "metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/16"}}
    store.seed({ROOT + "ippools/p": json.dumps(raw).encode()})
    for found in (await client.get(IPPool, "p"), *(await client.list(IPPool))):
        assert (found.spec.block_size, found.spec.node_selector) == (26, "all()")


async def test_the_filters_of_a_peer_exist(client: ResourceClient, store: MemoryDatastore):
    spec = BGPPeerSpec(peer_ip="192.0.2.1", as_number=64512, filters=("f1", "f2"))
    peer = BGPPeer(metadata=ObjectMeta(name="x"), spec=spec)
    store.seed({ROOT + "bgpfilters/f1": b'{"kind":"BGPFilter"}'})
    with pytest.raises(ValidationError, match="not found"):
        await client.create(peer)
    store.seed({ROOT + "bgpfilters/f2": b'{"kind":"BGPFilter"}'})
    created = await client.create(peer)
    store.erase(ROOT + "bgpfilters/f2")
    with pytest.raises(ValidationError, match="not found"):
        await client.update(created)


# ---- reading -----------------------------------------------------------------------------------


async def test_get_of_what_is_absent_or_broken(client: ResourceClient, store: MemoryDatastore):
    with pytest.raises(NotFound) as caught:
        await client.get("Node", "n1")
    assert str(caught.value) == "resource does not exist: Node(n1) with error: <nil>"
    store.seed({ROOT + "nodes/n1": b"broken"})
    with pytest.raises(DecodeError):
        await client.get("Node", "n1")
    with pytest.raises(ValidationError, match=r"Metadata\.Namespace"):
        await client.get(NetworkPolicy, "web")


async def test_get_at_an_old_revision(client: ResourceClient):
    first = await client.create(node())
    await client.update(replace(first, metadata=replace(first.metadata, labels={"a": "b"})))
    revision = int(first.metadata.resource_version or 0)
    assert await client.get(Node, "n1", revision=revision) == first


async def test_lists_are_of_one_kind_one_namespace_one_name(
    ready: ResourceClient, store: MemoryDatastore
):
    def a_set(namespace: str, name: str) -> NetworkSet:
        metadata = ObjectMeta(name=name, namespace=namespace)
        return NetworkSet(metadata=metadata, spec=NetworkSetSpec(nets=("10.0.0.0/8",)))

    for namespace, name in (("a", "one"), ("a", "two"), ("ab", "one"), ("b", "other")):
        await ready.create(a_set(namespace, name))
    store.page_keys = 2

    async def listed(namespace: str = "", **options: Any) -> list[str]:
        found = await ready.list(NetworkSet, namespace, **options)
        return [f"{item.metadata.namespace}/{item.metadata.name}" for item in found]

    assert await listed() == ["a/one", "a/two", "ab/one", "b/other"]
    assert await listed("a") == ["a/one", "a/two"]
    assert await listed("a", name="one") == ["a/one"]
    assert await listed(name="one") == ["a/one", "ab/one"]
    assert await listed(name="o", is_prefix=True) == ["a/one", "ab/one", "b/other"]
    assert await listed("nowhere") == []
    assert (await ready.list(NetworkSet)).revision == store.revision


async def test_a_list_skips_what_does_not_parse(
    client: ResourceClient, store: MemoryDatastore, caplog: pytest.LogCaptureFixture
):
    await client.create(node())
    store.seed({ROOT + "nodes/broken": b"{", ROOT + "nodes/too/deep": b"{}"})
    assert [found.metadata.name for found in await client.list("Node")] == ["n1"]
    assert len(caplog.records) == 1


async def test_an_unknown_kind_is_refused(client: ResourceClient):
    for call in (client.get("Nod", "x"), client.list("Nod"), client.delete("Nod", "x")):
        with pytest.raises(InvalidInput, match="resource type 'Nod' is not supported"):
            await call


async def test_a_watch_from_nothing_begins_with_what_is_there(
    client: ResourceClient, store: MemoryDatastore
):
    first = await client.create(node())
    changes = client.watch(Node)
    seen = [await anext(changes)]
    changed = await client.update(first)
    await client.create(node("n2"))
    store.seed({ROOT + "nodes/bad": b"{"})
    await client.delete(Node, "n1")
    seen += [await anext(changes) for _ in range(4)]
    await changes.aclose()
    assert [(change.type, change.key.name) for change in seen] == [
        (ChangeType.ADDED, "n1"),
        (ChangeType.MODIFIED, "n1"),
        (ChangeType.ADDED, "n2"),
        (ChangeType.ERROR, "bad"),
        (ChangeType.DELETED, "n1"),
    ]
    assert (seen[1].object, seen[1].previous) == (changed, first)
    assert (seen[4].object, seen[4].previous) == (None, changed)
    assert seen[3].error is not None


async def test_a_watch_from_a_revision_begins_behind_it(client: ResourceClient):
    first = await client.create(node())
    await client.create(node("n2"))
    changes = client.watch("Node", revision=int(first.metadata.resource_version or 0))
    assert (await anext(changes)).key.name == "n2"
    await changes.aclose()


async def test_a_watch_of_one_name_sees_only_that(client: ResourceClient):
    await client.create(node())
    changes = client.watch("Node", name="n2")
    await client.create(node("n2"))
    assert (await anext(changes)).key.name == "n2"
    await changes.aclose()


async def test_a_watch_behind_a_compaction_expires(client: ResourceClient, store: MemoryDatastore):
    first = await client.create(node())
    for name in ("n2", "n3"):
        await client.create(node(name))
    store.compact()
    with pytest.raises(WatchExpired):
        await anext(client.watch("Node", revision=int(first.metadata.resource_version or 0)))


# ---- initialisation ----------------------------------------------------------------------------


async def test_initialisation_makes_the_cluster_information_and_three_tiers(
    client: ResourceClient, store: MemoryDatastore
):
    await client.ensure_initialized(calico_version="v3.32.0", cluster_type="brindle,bgp")
    assert stored(store, "clusterinformations/default")["spec"] == {
        "clusterGUID": UID.hex,
        "clusterType": "brindle,bgp",
        "calicoVersion": "v3.32.0",
        "datastoreReady": True,
    }
    tiers = {tier.metadata.name: tier.spec for tier in await client.list(Tier)}
    assert {name: (spec.order, spec.default_action) for name, spec in tiers.items()} == {
        "default": (1_000_000, "Deny"),
        "kube-admin": (1_000, "Pass"),
        "kube-baseline": (10_000_000, "Pass"),
    }


async def test_initialising_again_writes_nothing(client: ResourceClient, store: MemoryDatastore):
    await client.ensure_initialized(cluster_type="a")
    revision = store.revision
    await client.ensure_initialized(cluster_type="a")
    await client.ensure_initialized()
    assert store.revision == revision


async def test_initialising_merges_types_and_leaves_a_lock_alone(
    client: ResourceClient, store: MemoryDatastore
):
    raw = {"kind": "ClusterInformation", "metadata": {"name": "default", "uid": "u",
           "creationTimestamp": "2020-01-01T00:00:00Z"},
           "spec": {"clusterType": "k8s", "datastoreReady": False}}  # fmt: skip
    store.seed({ROOT + "clusterinformations/default": json.dumps(raw).encode()})
    await client.ensure_initialized(calico_version="v2", cluster_type="bgp,k8s")
    spec = (await client.get(ClusterInformation, "default")).spec
    assert (spec.cluster_type, spec.calico_version) == ("k8s,bgp", "v2")
    assert spec.datastore_ready is False
    assert spec.cluster_guid == UID.hex


async def test_initialising_survives_a_race_for_the_first_write(
    client: ResourceClient, store: MemoryDatastore
):
    path = ROOT + "clusterinformations/"
    store.fail_next(prefix=path, operations=["create"], error=AlreadyExists("x"))
    await client.ensure_initialized()
    assert (await client.get(ClusterInformation, "default")).spec.cluster_guid == UID.hex


@pytest.mark.parametrize("error", [Unauthorized("permission denied"), DatastoreUnavailable("x")])
async def test_initialising_does_what_it_can_and_raises_the_first_error(
    client: ResourceClient, store: MemoryDatastore, error: SuiteError
):
    store.fail_next(prefix=ROOT + "clusterinformations/", error=error)
    with pytest.raises(type(error)):
        await client.ensure_initialized()
    assert len(await client.list(Tier)) == 3
