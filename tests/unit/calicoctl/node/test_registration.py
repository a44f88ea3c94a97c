"""calicoctl.node.registration: the Node object, default pools and initial objects."""

from __future__ import annotations

import asyncio
import json

import pytest

from calicoctl.node.autodetect import HostInterface
from calicoctl.node.main import choose_addresses
from calicoctl.node.registration import (
    Addresses,
    DuplicateAddress,
    Registrar,
    default_pool,
    merged_node,
)
from calicoctl.node.settings import PoolChoice, load
from libcalico.errors import ConfigError, ValidationError
from libcalico.model import ClusterInformation, IPPool, Node
from libcalico.model.cluster import ClusterInformationSpec
from libcalico.model.codec import decode, encode
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import ResourceKey, key_of, parse, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import NodeAddress, NodeBGPSpec, NodeSpec
from libcalico.net import parse_interface
from libcalico.testing.datastore import MemoryDatastore

V4, V6 = parse_interface("192.0.2.11/24"), parse_interface("2001:db8::b/64")
BOTH = Addresses(V4, V6)


def settings(name: str = "a", **environ: str):
    return load({"IP6": "autodetect", **environ}, name)


def stored(datastore: MemoryDatastore, kind: str) -> dict[str, object]:
    found = {}
    for path, value in datastore.contents().items():
        key = parse(path)
        if isinstance(key, ResourceKey) and key.kind == kind:
            found[key.name] = decode(key, value, 1)
    return found


async def start(datastore: MemoryDatastore, name: str, found: Addresses, **environ: str) -> None:
    registrar = Registrar(datastore, settings(name, **environ), version="v1.2.3")
    await registrar.initialise()
    await registrar.register(found)
    await registrar.ensure_pools([V4])


async def test_a_first_start_makes_everything():
    datastore = MemoryDatastore()
    await start(datastore, "a", BOTH, CALICO_IPV4POOL_CIDR="10.65.0.0/16", CALICO_K8S_NODE_REF="k")
    information = stored(datastore, "ClusterInformation")["default"]
    assert information.spec.datastore_ready
    assert len(information.spec.cluster_guid) == 32
    assert information.spec.calico_version == "v1.2.3"
    assert set(stored(datastore, "Tier")) == {"default", "kube-admin", "kube-baseline"}
    assert stored(datastore, "FelixConfiguration")["default"].spec.reporting_interval == "0s"
    node = stored(datastore, "Node")["a"]
    assert (node.spec.bgp.ipv4_address, node.spec.bgp.ipv6_address) == (str(V4), str(V6))
    assert node.spec.addresses == (
        NodeAddress(address=str(V4), type="CalicoNodeIP"),
        NodeAddress(address=str(V6), type="CalicoNodeIP"),
    )
    assert node.spec.orch_refs[0].node_name == "k"
    assert node.metadata.uid
    pools = stored(datastore, "IPPool")
    assert pools["default-ipv4-ippool"].spec.cidr == "10.65.0.0/16"
    assert pools["default-ipv4-ippool"].spec.nat_outgoing
    assert pools["default-ipv4-ippool"].spec.block_size == 26
    assert pools["default-ipv6-ippool"].spec.cidr.startswith("fd")
    assert pools["default-ipv6-ippool"].spec.cidr.endswith("/48")


async def test_a_second_start_writes_nothing():
    datastore = MemoryDatastore()
    await start(datastore, "a", BOTH)
    before = datastore.revision
    await start(datastore, "a", BOTH)
    assert datastore.revision == before


async def test_what_others_wrote_into_the_node_stays():
    datastore = MemoryDatastore()
    theirs = Node(
        metadata=ObjectMeta(name="a", labels={"rack": "7"}, uid="u"),
        spec=NodeSpec(
            bgp=NodeBGPSpec(ipv4_address="192.0.2.99/24", route_reflector_cluster_id="1.0.0.1"),
            addresses=(NodeAddress(address="192.0.2.11", type="InternalIP"),),
        ),
    )
    datastore.seed({path_of(key_of(theirs)): encode(theirs)})
    await start(datastore, "a", BOTH)
    node = stored(datastore, "Node")["a"]
    assert node.metadata.labels == {"rack": "7"}
    assert node.spec.bgp.route_reflector_cluster_id == "1.0.0.1"
    assert node.spec.bgp.ipv4_address == str(V4)
    assert [entry.type for entry in node.spec.addresses] == [
        "CalicoNodeIP",
        "CalicoNodeIP",
        "InternalIP",
    ]


@pytest.mark.parametrize("found", [Addresses(V4), Addresses(None, V6)])
async def test_another_nodes_address_is_refused_and_the_node_named(found):
    datastore = MemoryDatastore()
    await start(datastore, "a", BOTH)
    with pytest.raises(DuplicateAddress, match="Calico node 'a' is already using"):
        await start(datastore, "b", found)
    assert set(stored(datastore, "Node")) == {"a"}
    before = datastore.revision
    with pytest.raises(DuplicateAddress):
        await Registrar(datastore, settings("b"), version="v1").register(found)
    assert datastore.revision == before, "refused before anything is written"
    await start(datastore, "b", found, DISABLE_NODE_IP_CHECK="true")
    assert set(stored(datastore, "Node")) == {"a", "b"}


async def test_a_hundred_nodes_may_start_at_once():
    datastore = MemoryDatastore()
    addresses = [Addresses(parse_interface(f"192.0.2.{i}/24")) for i in range(1, 101)]
    await asyncio.gather(*(start(datastore, f"n{i}", a) for i, a in enumerate(addresses)))
    assert len(stored(datastore, "Node")) == 100
    assert len(stored(datastore, "IPPool")) == 2
    assert len(stored(datastore, "ClusterInformation")) == 1


async def test_a_cluster_that_calico_runs_keeps_its_version():
    datastore = MemoryDatastore()
    theirs = ClusterInformation(
        metadata=ObjectMeta(name="default"),
        spec=ClusterInformationSpec(
            cluster_guid="f" * 32, calico_version="v3.32.0", cluster_type="k8s,bgp"
        ),
    )
    datastore.seed({path_of(key_of(theirs)): encode(theirs)})
    await start(datastore, "a", BOTH)
    spec = stored(datastore, "ClusterInformation")["default"].spec
    assert (spec.calico_version, spec.cluster_type) == ("v3.32.0", "k8s,bgp")
    assert spec.datastore_ready


async def test_a_pool_of_a_family_keeps_the_default_pool_of_it_away():
    datastore = MemoryDatastore()
    mine = IPPool(metadata=ObjectMeta(name="mine"), spec=IPPoolSpec(cidr="10.1.0.0/16"))
    datastore.seed({path_of(key_of(mine)): encode(mine)})
    await start(datastore, "a", BOTH)
    assert set(stored(datastore, "IPPool")) == {"mine", "default-ipv6-ippool"}


def test_the_default_range_avoids_the_hosts_own():
    choice = PoolChoice(4)
    assert default_pool(choice, [V4], bytes).spec.cidr == "192.168.0.0/16"
    busy = [parse_interface("192.168.7.1/24"), parse_interface("172.16.0.1/24")]
    assert default_pool(choice, busy, bytes).spec.cidr == "172.17.0.0/16"
    six = default_pool(PoolChoice(6, nat_outgoing=False), [], lambda count: b"\x01" * count)
    assert six.spec.cidr == "fd01:101:101::/48"


HOST = [HostInterface("eth0", (V4, V6))]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Addresses(V4, V6)),
        ({"IP": "none", "IP6": "none"}, Addresses(V4, V6)),
        ({"IP": "autodetect"}, Addresses(V4, V6)),
        ({"IP": "198.51.100.1/24"}, Addresses(parse_interface("198.51.100.1/24"), V6)),
    ],
)
def test_an_address_that_was_stored_is_replaced_but_never_taken_away(environ, expected):
    existing = merged_node(None, settings(), BOTH)
    assert choose_addresses(load(environ, "a"), existing, []) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Addresses(V4)),
        ({"IP6": "autodetect"}, BOTH),
        ({"IP": "none", "IP6": "autodetect"}, Addresses(None, V6)),
        ({"IP": "192.0.2.11"}, Addresses(V4)),
        ({"CALICO_NETWORKING_BACKEND": "none"}, Addresses()),
        ({"CALICO_NETWORKING_BACKEND": "vxlan"}, Addresses(V4)),
    ],
)
def test_a_new_node_takes_the_addresses_that_were_asked_for(environ, expected):
    assert choose_addresses(load(environ, "a"), None, HOST) == expected


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, "no IPv4 address"),
        ({"IP": "none"}, "no IPv4 or IPv6 addresses configured or detected"),
        ({"IP": "192.0.2.1/24", "IP6": "autodetect"}, "no IPv6 address"),
    ],
)
def test_a_node_that_carries_routes_needs_an_address(environ, text):
    with pytest.raises(ConfigError, match=text):
        choose_addresses(load(environ, "a"), None, [])


async def test_a_policy_only_node_leaves_bgp_and_addresses_alone():
    datastore = MemoryDatastore()
    await start(datastore, "a", BOTH)
    environ = {"CALICO_NETWORKING_BACKEND": "none", "CALICO_K8S_NODE_REF": "k"}
    await start(datastore, "a", Addresses(), **environ)
    node = stored(datastore, "Node")["a"]
    assert (node.spec.bgp.ipv4_address, node.spec.bgp.ipv6_address) == (str(V4), str(V6))
    assert len(node.spec.addresses) == 2
    assert node.spec.orch_refs[0].node_name == "k"


async def test_a_running_node_restarts_although_another_took_its_address_later():
    datastore = MemoryDatastore()
    await start(datastore, "a", BOTH)
    await start(datastore, "b", BOTH, DISABLE_NODE_IP_CHECK="true")
    await start(datastore, "a", BOTH, CALICO_K8S_NODE_REF="k")
    assert stored(datastore, "Node")["a"].spec.orch_refs


async def test_of_two_nodes_that_start_at_once_with_one_address_one_is_refused():
    datastore = MemoryDatastore()
    for name in ("a", "b"):
        await Registrar(datastore, settings(name), version="v1").initialise()
    ours = Registrar(datastore, settings("a"), version="v1")
    theirs = Registrar(datastore, settings("b"), version="v1")
    # b registers completely between a's look at the others and a's write.
    path = path_of(ResourceKey("Node", "a"))
    written = asyncio.Event()

    async def other() -> None:
        await theirs.register(BOTH)
        written.set()

    async with asyncio.TaskGroup() as tasks:
        datastore.slow_next(0.05, operations=["create"], prefix=path)
        tasks.create_task(other())
        with pytest.raises(DuplicateAddress, match="Calico node 'b' is already using"):
            await ours.register(BOTH)
        await written.wait()
    assert set(stored(datastore, "Node")) == {"b"}


async def test_members_of_a_newer_writer_survive_a_start():
    datastore = MemoryDatastore()
    await start(datastore, "a", BOTH)
    path = path_of(ResourceKey("Node", "a"))
    raw = json.loads(datastore.contents()[path])
    raw["spec"]["fromTheFuture"] = {"a": 1}
    datastore.seed({path: json.dumps(raw).encode()})
    await start(datastore, "a", Addresses(parse_interface("192.0.2.12/24"), V6))
    after = json.loads(datastore.contents()[path])
    assert after["spec"]["fromTheFuture"] == {"a": 1}
    assert after["spec"]["bgp"]["ipv4Address"] == "192.0.2.12/24"


async def test_a_write_by_somebody_else_in_between_is_merged():
    datastore = MemoryDatastore()
    await start(datastore, "a", Addresses(V4))
    path = path_of(ResourceKey("Node", "a"))
    raw = json.loads(datastore.contents()[path])
    raw["metadata"]["labels"] = {"rack": "7"}
    theirs = {path: json.dumps(raw).encode()}
    datastore.before_next(lambda: datastore.seed(theirs), operations=["update"], prefix=path)
    await start(datastore, "a", BOTH)
    node = stored(datastore, "Node")["a"]
    assert node.metadata.labels == {"rack": "7"}
    assert node.spec.bgp.ipv6_address == str(V6)


async def test_a_pool_too_small_for_its_blocks_is_refused():
    with pytest.raises(ValidationError, match="too small"):
        await start(MemoryDatastore(), "a", BOTH, CALICO_IPV4POOL_CIDR="10.0.0.0/28")
