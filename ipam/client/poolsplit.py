"""Replacing a pool by its parts, with the datastore locked.

Layer: ipam edge. Used by calicoctl (`ipam split`).

  X1  nothing is written before everything is known to be right;
  X2  the parts come and the old pool goes in one transaction, so that nobody ever sees a block
      without a pool, or two pools over one. Only more parts than a transaction takes come in
      several, the old pool with the last: nobody assigns meanwhile, for the datastore is locked;
  X3  it may be repeated: parts that are there already, as they would be made, are left alone.

Calico disables the old pool, creates the parts and deletes it; what is stored at the end is the
same, but a pool that was disabled stays so in its parts.
Source: datamodel §6.8.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from ipam.split import SplitRefused, Stamp, children
from libcalico.datastore.api import Compare, Datastore, Delete, Put
from libcalico.errors import AlreadyExists, DecodeError, NotFound, RevisionConflict, ValidationError
from libcalico.model import codec, validation
from libcalico.model.ippool import IPPool
from libcalico.model.keys import ResourceKey, identifier, key_of, path_of
from libcalico.model.tolerant import Unknown
from libcalico.runtime.clock import SYSTEM, Clock

# etcd takes 128 operations, the delete is one of them.
PARTS_AT_ONCE = 100


async def split_pool(
    datastore: Datastore,
    name: str,
    parts: int,
    *,
    clock: Clock = SYSTEM,
    new_uid: Callable[[], uuid.UUID] = uuid.uuid4,
) -> tuple[IPPool, ...]:
    """Returns the parts. Errors: SplitRefused, AlreadyExists (a foreign pool has a part's name),
    NotFound, DecodeError, RevisionConflict (the pool was written meanwhile)."""
    key = ResourceKey("IPPool", name)
    kv = await datastore.get(path_of(key))
    if kv is None:
        raise NotFound(identifier(key))
    pool, unknown = codec.decode_preserving(key, kv.value, kv.mod_revision)
    assert isinstance(pool, IPPool)
    now = datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made = children(pool, parts, (Stamp(str(new_uid()), now) for _ in range(parts)))
    for child in made:
        _check(child)
    missing = [child for child in made if not await _is_there(datastore, child)]
    end = max(0, len(missing) - 1) // PARTS_AT_ONCE * PARTS_AT_ONCE
    for start in range(0, end, PARTS_AT_ONCE):
        await _create(datastore, missing[start : start + PARTS_AT_ONCE], unknown)
    await _create(datastore, missing[end:], unknown, Compare(path_of(key), kv.mod_revision))
    return made


def _check(child: IPPool) -> None:
    try:
        validation.validate(child)
    except ValidationError as err:
        raise SplitRefused(
            f"error using unsafe create to make split pool with cidr {child.spec.cidr}: {err}"
        ) from err


async def _is_there(datastore: Datastore, child: IPPool) -> bool:
    """X3. Errors: AlreadyExists."""
    key = key_of(child)
    kv = await datastore.get(path_of(key))
    if kv is None:
        return False
    try:
        stored = codec.decode_as(IPPool, key, kv.value, kv.mod_revision)
    except DecodeError as err:
        raise AlreadyExists(identifier(key), err) from err
    if stored.spec != child.spec:
        raise AlreadyExists(identifier(key))
    return True


async def _create(
    datastore: Datastore,
    missing: list[IPPool],
    unknown: Unknown,
    old: Compare | None = None,
) -> None:
    """Pools that must not exist; with `old` that pool goes, when it is as it was."""
    compares = [Compare(path_of(key_of(child)), 0) for child in missing]
    puts: list[Put | Delete] = [
        Put(path_of(key_of(child)), codec.encode(child, unknown=unknown)) for child in missing
    ]
    if old is not None:
        compares.append(old)
        puts.append(Delete(old.key))
    result = await datastore.txn(compares, puts)
    if result.succeeded:
        return
    for child, found in zip(missing, result.found, strict=False):
        if found is not None:
            raise AlreadyExists(identifier(key_of(child)))
    raise RevisionConflict(old.key if old is not None else "IPPool")
