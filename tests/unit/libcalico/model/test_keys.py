"""Keys <-> paths: the layout of datamodel §1.1 and §1.6."""

from __future__ import annotations

import pytest

from libcalico.errors import InvalidInput
from libcalico.model import IPPool, NetworkPolicy, ObjectMeta, keys
from libcalico.model.keys import (
    BlockAffinityKey,
    BlockKey,
    FelixLastReportedKey,
    FelixStatusKey,
    HandleKey,
    HostEndpointStatusKey,
    IpamConfigKey,
    IpamHostKey,
    Key,
    NeutronElectionKey,
    PolicyRealizationKey,
    ResourceKey,
    SubnetKey,
    WorkloadEndpointStatusKey,
)

RESOURCES = "/calico/resources/v3/projectcalico.org/"

EXAMPLES: list[tuple[Key, str]] = [
    (ResourceKey("IPPool", "default-ipv4-ippool"), RESOURCES + "ippools/default-ipv4-ippool"),
    (
        ResourceKey("FelixConfiguration", "node.worker-1"),
        RESOURCES + "felixconfigurations/node.worker-1",
    ),
    (
        ResourceKey("NetworkPolicy", "allow-web", "prod"),
        RESOURCES + "networkpolicies/prod/allow-web",
    ),
    (
        ResourceKey("NetworkPolicy", "knp.default.np1", "prod"),
        RESOURCES + "networkpolicies/prod/knp.default.np1",
    ),
    (
        ResourceKey("WorkloadEndpoint", "worker--1-k8s-web--0-eth0", "prod"),
        RESOURCES + "workloadendpoints/prod/worker--1-k8s-web--0-eth0",
    ),
    (ResourceKey("Profile", "ksa.prod.builder"), RESOURCES + "profiles/ksa.prod.builder"),
    (ResourceKey("Tier", "odd%2fname"), RESOURCES + "tiers/odd%2fname"),
    (BlockKey("10.10.0.0/26"), "/calico/ipam/v2/assignment/ipv4/block/10.10.0.0-26"),
    (BlockKey("fd00:10::/122"), "/calico/ipam/v2/assignment/ipv6/block/fd00:10::-122"),
    (
        BlockAffinityKey("worker-1", "10.10.0.0/26"),
        "/calico/ipam/v2/host/worker-1/ipv4/block/10.10.0.0-26",
    ),
    (
        BlockAffinityKey("load-balancer", "fd00:10::/122", "virtual"),
        "/calico/ipam/v2/virtual/load-balancer/ipv6/block/fd00:10::-122",
    ),
    (HandleKey("k8s-pod-network.7f3e"), "/calico/ipam/v2/handle/k8s-pod-network.7f3e"),
    (IpamConfigKey(), "/calico/ipam/v2/config"),
    (IpamHostKey("worker-1"), "/calico/ipam/v2/host/worker-1"),
    (FelixStatusKey("worker-1"), "/calico/felix/v2/no-region/host/worker-1/status"),
    (FelixStatusKey("w", "eu"), "/calico/felix/v2/region-eu/host/w/status"),
    (
        PolicyRealizationKey("w", "eu"),
        keys.POLICY_REALIZATION_PREFIX + "region-eu/host/w",
    ),
    (
        FelixLastReportedKey("worker-1"),
        "/calico/felix/v2/no-region/host/worker-1/last_reported_status",
    ),
    (
        WorkloadEndpointStatusKey("w", "k8s", "prod/web-0", "eth0"),
        "/calico/felix/v2/no-region/host/w/workload/k8s/prod%2fweb-0/endpoint/eth0",
    ),
    (
        WorkloadEndpointStatusKey("w", "k8s", "a%2fb/c", "e", "r"),
        "/calico/felix/v2/region-r/host/w/workload/k8s/a%252fb%2fc/endpoint/e",
    ),
    (HostEndpointStatusKey("w", "eth0"), "/calico/felix/v1/host/w/endpoint/eth0"),
    (SubnetKey("s1"), "/calico/dhcp/v2/no-region/subnet/s1"),
    (NeutronElectionKey("eu"), "/calico/openstack/v2/region-eu/neutron_election"),
]


@pytest.mark.parametrize(("key", "path"), EXAMPLES)
def test_a_key_and_its_path_lead_to_each_other(key: Key, path: str) -> None:
    assert keys.path_of(key) == path
    assert keys.parse(path) == key


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/calico",
        "/calico/",
        RESOURCES,
        RESOURCES + "ippools",
        RESOURCES + "ippools/",
        RESOURCES + "ippools/a/b",
        RESOURCES + "networkpolicies/only-one-segment",
        RESOURCES + "networkpolicies/a/b/c",
        RESOURCES + "networkpolicies//b",
        RESOURCES + "nosuchkinds/a",
        RESOURCES + "IPPools/a",
        "calico/ipam/v2/config",
        "/calico/ipam/v2/config/x",
        "/calico/ipam/v2/assignment/ipv4/block/10.10.0.0",
        "/calico/ipam/v2/assignment/ipv4/block/10.10.0.1-26",
        "/calico/ipam/v2/assignment/ipv4/block/x-26",
        "/calico/ipam/v2/assignment/ipv4/block/fd00:10::-122",
        "/calico/ipam/v2/assignment/ipv6/block/10.10.0.0-26",
        "/calico/ipam/v2/assignment/ipv6/block/FD00:10::-122",
        "/calico/ipam/v2/handle/a/b",
        "/calico/ipam/v2/elsewhere/h/ipv4/block/10.0.0.0-26",
        "/calico/felix/v2/nowhere/host/h/status",
        "/calico/v1/Ready",
    ],
)
def test_a_path_that_is_not_ours_is_none(path: str) -> None:
    assert keys.parse(path) is None


@pytest.mark.parametrize(
    ("kind", "namespace", "prefix"),
    [
        ("IPPool", None, RESOURCES + "ippools/"),
        ("NetworkPolicy", None, RESOURCES + "networkpolicies/"),
        ("NetworkPolicy", "prod", RESOURCES + "networkpolicies/prod/"),
    ],
)
def test_a_prefix_ends_with_a_slash(kind: str, namespace: str | None, prefix: str) -> None:
    assert keys.prefix_of(kind, namespace) == prefix


def test_prefixes_of_ipam_data() -> None:
    block = keys.path_of(BlockKey("fd00:10::/122"))
    assert block.startswith(keys.blocks_prefix(6))
    affinity = keys.path_of(BlockAffinityKey("h", "10.0.0.0/26"))
    assert affinity.startswith(keys.affinities_prefix("h", 4))
    assert affinity.startswith(keys.HOST_AFFINITIES_PREFIX)
    virtual = keys.path_of(BlockAffinityKey("load-balancer", "10.0.0.0/26", "virtual"))
    assert virtual.startswith(keys.affinities_prefix("load-balancer", 4, "virtual"))
    assert virtual.startswith(keys.VIRTUAL_AFFINITIES_PREFIX)
    assert keys.path_of(HandleKey("h")).startswith(keys.HANDLES_PREFIX)


def test_scope_and_kind_are_checked_when_a_path_is_made() -> None:
    with pytest.raises(InvalidInput, match="needs a namespace"):
        keys.path_of(ResourceKey("NetworkPolicy", "a"))
    with pytest.raises(InvalidInput, match="not namespaced"):
        keys.path_of(ResourceKey("IPPool", "a", "ns"))
    with pytest.raises(InvalidInput, match="not namespaced"):
        keys.prefix_of("IPPool", "ns")
    for use in (lambda: keys.path_of(ResourceKey("Pod", "a")), lambda: keys.prefix_of("Pod")):
        with pytest.raises(keys.UnknownKind, match="resource type 'Pod' is not supported"):
            use()
    with pytest.raises(InvalidInput, match="no datastore path"):
        keys.path_of(BlockAffinityKey("h", "10.0.0.0/26", "imaginary"))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (ResourceKey("IPPool", "a"), "IPPool(a)"),
        (ResourceKey("NetworkPolicy", "a", "ns"), "NetworkPolicy(ns/a)"),
        (BlockKey("10.0.0.0/26"), "BlockKey(cidr=10.0.0.0/26)"),
        (
            BlockAffinityKey("h", "10.0.0.0/26"),
            "BlockAffinityKey(cidr=10.0.0.0/26, host=h, affinityType=host)",
        ),
        (HandleKey("x"), "IPAMHandleKey(id=x)"),
        (IpamConfigKey(), "IPAMConfigKey()"),
        (HostEndpointStatusKey("h", "e"), "HostEndpointStatusKey(h, e)"),
    ],
)
def test_identifiers_are_what_errors_show(key: Key, text: str) -> None:
    assert keys.identifier(key) == text


def test_the_key_of_a_resource() -> None:
    assert keys.key_of(IPPool(metadata=ObjectMeta(name="a"))) == ResourceKey("IPPool", "a")
    policy = NetworkPolicy(metadata=ObjectMeta(name="a", namespace="ns"))
    assert keys.key_of(policy) == ResourceKey("NetworkPolicy", "a", "ns")


def test_keys_of_different_types_differ_and_keys_are_hashable() -> None:
    assert len({HandleKey("x"), IpamHostKey("x"), BlockKey("x"), HandleKey("x")}) == 3
    assert sorted([ResourceKey("Tier", "b"), ResourceKey("IPPool", "z"), ResourceKey("Tier", "a")])[
        0
    ] == ResourceKey("IPPool", "z")
