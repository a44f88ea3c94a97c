"""libcalico.model.validation_datastore: what must hold at the moment of writing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from libcalico.errors import AlreadyExists, NotFound, NotSupported, ValidationError
from libcalico.model import (
    BGPPeer,
    BGPPeerSpec,
    IPPool,
    IPPoolSpec,
    NetworkPolicy,
    NetworkPolicySpec,
    ObjectMeta,
    Tier,
)
from libcalico.model.validation import (
    validate_create_metadata,
    validate_peer_filters,
    validate_policy_tier,
    validate_pool_blocks,
    validate_pool_overlap,
    validate_profile_write,
    validate_tier_delete,
    validate_update,
    validate_update_metadata,
)


def pool(name: str = "a", cidr: str = "10.0.0.0/16", **spec) -> IPPool:
    return IPPool(metadata=ObjectMeta(name=name), spec=IPPoolSpec(cidr=cidr, **spec))


def details(err: pytest.ExceptionInfo[ValidationError]) -> list[str]:
    return [error.detail() for error in err.value.errors]


CREATES = [
    (ObjectMeta(name="x"), []),
    (ObjectMeta(), ["Metadata.Name = '' (field must be set for a Create request)"]),
    (
        ObjectMeta(generate_name="x-"),
        [
            "Metadata.Name = '' (field must be set for a Create request (GenerateName is not"
            " supported))"
        ],
    ),
    (
        ObjectMeta(name="x", resource_version="5"),
        ["Metadata.ResourceVersion = '5' (field must not be set for a Create request)"],
    ),
]


@pytest.mark.parametrize(("metadata", "expected"), CREATES)
def test_metadata_of_a_create(metadata, expected):
    if not expected:
        validate_create_metadata(Tier(metadata=metadata))
        return
    with pytest.raises(ValidationError) as err:
        validate_create_metadata(Tier(metadata=metadata))
    assert details(err) == expected


def test_a_namespaced_kind_needs_a_namespace():
    policy = NetworkPolicy(metadata=ObjectMeta(name="x"))
    with pytest.raises(ValidationError) as err:
        validate_create_metadata(policy)
    assert details(err) == [
        "Metadata.Namespace = '' (namespace is not specified on namespaced resource)"
    ]
    validate_create_metadata(replace(policy, metadata=ObjectMeta(name="x", namespace="n")))


def test_metadata_of_an_update():
    good = ObjectMeta(
        name="x", uid="u", resource_version="7", creation_timestamp="2026-01-01T00:00:00Z"
    )
    validate_update_metadata(Tier(metadata=good))
    with pytest.raises(ValidationError) as err:
        validate_update_metadata(Tier(metadata=ObjectMeta(name="x")))
    assert details(err) == [
        "Metadata.ResourceVersion = '' (field must be set for an Update request)",
        "Metadata.CreationTimestamp = '' (field must be set for an Update request)",
        "Metadata.UID = '' (field must be set for an Update request)",
    ]
    with pytest.raises(ValidationError) as err:
        validate_update_metadata(Tier(metadata=replace(good, resource_version="latest")))
    assert details(err) == ["ResourceVersion = 'latest'"]


UPDATES = [
    (pool(), pool(nat_outgoing=True), []),
    (
        pool(),
        pool(cidr="10.1.0.0/16"),
        ["IPPool.Spec.CIDR = '10.1.0.0/16' (IPPool CIDR cannot be modified)"],
    ),
    # Rewriting a CIDR in its canonical form is no change; the other way round it is.
    (pool(cidr="fd00:0::/48"), pool(cidr="fd00::/48"), []),
    (
        pool(cidr="fd00::/48"),
        pool(cidr="fd00:0::/48"),
        ["IPPool.Spec.CIDR = 'fd00:0::/48' (IPPool CIDR cannot be modified)"],
    ),
    (pool(), pool(block_size=26), []),
    (
        pool(block_size=26),
        pool(block_size=27),
        ["IPPool.Spec.BlockSize = '27' (IPPool BlockSize cannot be modified)"],
    ),
    (pool(cidr="fd00::/48"), pool(cidr="fd00::/48", block_size=122), []),
    (
        pool(allowed_uses=("LoadBalancer",)),
        pool(allowed_uses=("Workload", "Tunnel")),
        [
            "IPPool.Spec.AllowedUses = '[Workload Tunnel]' (IPPool allowed use cannot be changed"
            " from LoadBalacer to Workload or Tunnel)"
        ],
    ),
    (pool(allowed_uses=("Workload",)), pool(allowed_uses=("LoadBalancer",)), []),
]


@pytest.mark.parametrize(("old", "new", "expected"), UPDATES)
def test_members_of_a_pool_that_cannot_change(old, new, expected):
    if not expected:
        validate_update(old, new)
        return
    with pytest.raises(ValidationError) as err:
        validate_update(old, new)
    assert details(err) == expected


def test_pools_do_not_overlap():
    others = [pool("b", "10.0.128.0/17"), pool("c", "fd00::/48"), pool("a", "10.0.0.0/16")]
    with pytest.raises(ValidationError) as err:
        validate_pool_overlap(pool("a"), others)
    assert details(err) == [
        "IPPool.Spec.CIDR = '10.0.0.0/16' (IPPool(a) CIDR overlaps with IPPool(b) CIDR"
        " 10.0.128.0/17)"
    ]
    validate_pool_overlap(pool("a"), others[1:])


def test_blocks_inside_a_new_pool_have_its_size():
    blocks = ["10.0.0.0/26", "10.1.0.0/28", "fd00::/122"]
    validate_pool_blocks(pool(), blocks)
    with pytest.raises(ValidationError) as err:
        validate_pool_blocks(pool(block_size=28), blocks)
    assert details(err) == [
        "IPPool.Spec.BlockSize = '28' (IPPool blocksSize conflicts with existing allocations that"
        " use a different blockSize)"
    ]


def test_the_filters_of_a_peer_exist():
    peer = BGPPeer(metadata=ObjectMeta(name="p"), spec=BGPPeerSpec(filters=("a", "b")))
    validate_peer_filters(peer, {"a", "b"})
    with pytest.raises(ValidationError, match=r"BGPFilter\(s\) not found") as err:
        validate_peer_filters(peer, {"a"})
    assert err.value.errors[0].value == ("b",)


def test_the_tier_of_a_policy_exists():
    policy = NetworkPolicy(spec=NetworkPolicySpec(tier="mine"))
    validate_policy_tier(policy, {"mine"})
    with pytest.raises(NotFound, match=r"resource does not exist: Tier\(mine\)"):
        validate_policy_tier(policy, {"default"})
    validate_policy_tier(NetworkPolicy(), {"default"})


@pytest.mark.parametrize("name", ["default", "kube-admin", "kube-baseline"])
def test_built_in_tiers_stay(name):
    with pytest.raises(NotSupported) as err:
        validate_tier_delete(name, policies=0)
    assert str(err.value) == (
        f"operation Delete is not supported on {name}: Cannot delete {name} tier"
    )


def test_a_tier_with_policies_stays():
    validate_tier_delete("mine", policies=0)
    with pytest.raises(NotSupported) as err:
        validate_tier_delete("mine", policies=1)
    assert str(err.value) == (
        "operation delete is not supported on mine: Cannot delete a non-empty tier"
    )


def test_the_synthetic_profile_is_not_written():
    validate_profile_write("Create", "kns.prod")
    with pytest.raises(AlreadyExists, match="default provided by Calico"):
        validate_profile_write("Create", "projectcalico-default-allow")
    for operation in ("Update", "Delete"):
        with pytest.raises(NotSupported, match=f"operation {operation} is not supported"):
            validate_profile_write(operation, "projectcalico-default-allow")
