"""Checks at the moment of writing: bookkeeping metadata, immutable members, other objects.

Layer: libcalico.model, pure. Users: whatever writes v3 objects (calicoctl, node start-up, cni,
controllers). They read the other objects; here is only what must hold between them.

Source: reference/datamodel.md 1.3, 1.7, 4.4, 4.5; Calico LCG/clientv3/{resources,ippool,bgppeer,
networkpolicy,tier,profile}.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from libcalico import net
from libcalico.errors import AlreadyExists, FieldError, NotFound, NotSupported, ValidationError
from libcalico.model.bgp import BGPPeer
from libcalico.model.defaults import BUILT_IN_TIERS, DEFAULT_BLOCK_SIZE, DEFAULT_TIER
from libcalico.model.ippool import IPPool
from libcalico.model.kinds import KIND_BY_NAME
from libcalico.model.meta import ObjectMeta, Resource
from libcalico.model.names import DEFAULT_ALLOW_PROFILE
from libcalico.model.validation_tags import cidr_of

_FOR_CREATE = "field must be set for a Create request"
_NOT_FOR_CREATE = "field must not be set for a Create request"
_FOR_UPDATE = "field must be set for an Update request"


def validate_create_metadata(resource: Resource) -> None:
    """What a new object must and must not carry. Errors: ValidationError."""
    metadata = resource.metadata
    errors = []
    if not metadata.name:
        hint = " (GenerateName is not supported)" if metadata.generate_name else ""
        errors.append(FieldError("Metadata.Name", metadata.name, _FOR_CREATE + hint))
    if metadata.resource_version:
        field = "Metadata.ResourceVersion"
        errors.append(FieldError(field, metadata.resource_version, _NOT_FOR_CREATE))
    _raise(errors + _namespace_problems(resource))


def validate_update_metadata(resource: Resource) -> None:
    """What an object to be replaced must carry, as it was read. Errors: ValidationError."""
    metadata = resource.metadata
    errors = [
        FieldError(field, value or "", _FOR_UPDATE)
        for field, value in (
            ("Metadata.ResourceVersion", metadata.resource_version),
            ("Metadata.CreationTimestamp", metadata.creation_timestamp),
            ("Metadata.UID", metadata.uid),
        )
        if not value
    ]
    _raise(errors + _namespace_problems(resource) + _revision_problems(metadata))


def validate_update(old: Resource, new: Resource) -> None:
    """Members that cannot change once written. Errors: ValidationError."""
    if not isinstance(old, IPPool) or not isinstance(new, IPPool):
        return
    errors = []
    if not _same_network(old.spec.cidr, new.spec.cidr):
        errors.append(
            FieldError("IPPool.Spec.CIDR", new.spec.cidr, "IPPool CIDR cannot be modified")
        )
    if "LoadBalancer" in old.spec.allowed_uses and set(new.spec.allowed_uses) - {"LoadBalancer"}:
        # The spelling is Calico's.
        reason = "IPPool allowed use cannot be changed from LoadBalacer to Workload or Tunnel"
        errors.append(FieldError("IPPool.Spec.AllowedUses", new.spec.allowed_uses, reason))
    if _block_size(old) != _block_size(new):
        reason = "IPPool BlockSize cannot be modified"
        errors.append(FieldError("IPPool.Spec.BlockSize", new.spec.block_size, reason))
    _raise(errors)


def validate_pool_overlap(pool: IPPool, others: Iterable[IPPool]) -> None:
    """On create: no two pools share an address. Errors: ValidationError."""
    network = cidr_of(pool.spec.cidr)
    errors = []
    for other in others:
        theirs = cidr_of(other.spec.cidr)
        if other.metadata.name == pool.metadata.name or network is None or theirs is None:
            continue
        if net.overlap(network, theirs):
            reason = (
                f"IPPool({pool.metadata.name}) CIDR overlaps with"
                f" IPPool({other.metadata.name}) CIDR {other.spec.cidr}"
            )
            errors.append(FieldError("IPPool.Spec.CIDR", pool.spec.cidr, reason))
    _raise(errors)


def validate_pool_blocks(pool: IPPool, block_cidrs: Iterable[str]) -> None:
    """On create: no block inside the pool has another size. Errors: ValidationError."""
    network = cidr_of(pool.spec.cidr)
    if network is None:
        return
    size = _block_size(pool)
    for text in block_cidrs:
        block = cidr_of(text)
        if block is not None and block.prefixlen != size and net.overlap(block, network):
            reason = (
                "IPPool blocksSize conflicts with existing allocations that use a different"
                " blockSize"
            )
            raise ValidationError.of("IPPool.Spec.BlockSize", size, reason)


def validate_peer_filters(peer: BGPPeer, known_filters: Collection[str]) -> None:
    """On create and update: the filters a peer names exist. Errors: ValidationError."""
    missing = tuple(name for name in peer.spec.filters if name not in known_filters)
    if missing:
        raise ValidationError.of("BGPPeer.Spec.Filters", missing, "BGPFilter(s) not found")


def validate_policy_tier(policy: Any, known_tiers: Collection[str]) -> None:
    """On create: the tier of a (staged) policy exists. Errors: NotFound."""
    tier = policy.spec.tier or DEFAULT_TIER
    if tier not in known_tiers:
        raise NotFound(f"Tier({tier})")


def validate_tier_delete(name: str, *, policies: int) -> None:
    """Built-in tiers stay, and so do tiers that policies refer to. Errors: NotSupported."""
    if name in BUILT_IN_TIERS:
        raise NotSupported("Delete", name, f"Cannot delete {name} tier")
    if policies:
        raise NotSupported("delete", name, "Cannot delete a non-empty tier")


def validate_profile_write(operation: str, name: str) -> None:
    """The synthetic profile cannot be written. `operation`: Create, Update or Delete.

    Errors: AlreadyExists, NotSupported.
    """
    if name != DEFAULT_ALLOW_PROFILE:
        return
    identifier = f"Profile({name})"
    reason = f'The profile "{name}" is default provided by Calico'
    if operation == "Create":
        raise AlreadyExists(identifier, f"profile {name} already exists. {reason}")
    raise NotSupported(operation, identifier, reason)


def _raise(errors: list[FieldError]) -> None:
    if errors:
        raise ValidationError(*errors)


def _namespace_problems(resource: Resource) -> list[FieldError]:
    info = KIND_BY_NAME.get(resource.kind)
    if info is None or not info.namespaced or resource.metadata.namespace:
        return []
    reason = "namespace is not specified on namespaced resource"
    return [FieldError("Metadata.Namespace", "", reason)]


def _revision_problems(metadata: ObjectMeta) -> list[FieldError]:
    revision = metadata.resource_version
    if not revision or (revision.isascii() and revision.isdigit()):
        return []
    return [FieldError("ResourceVersion", revision)]


def _same_network(old: str, new: str) -> bool:
    """Equal text, or the new one is the canonical text of the same network."""
    network = cidr_of(new)
    return old == new or (network is not None and cidr_of(old) == network and new == str(network))


def _block_size(pool: IPPool) -> int:
    version = 6 if ":" in pool.spec.cidr else 4
    return pool.spec.block_size or DEFAULT_BLOCK_SIZE[version]
