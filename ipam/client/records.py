"""IPAM's records in the datastore, typed: reads, and transactions that compare.

Layer: ipam edge. Used by the other modules of `ipam.client` only.

Values that do not parse raise DecodeError where one record was asked for, and are skipped, with a
warning, where many were listed: one bad object never stops the others.
Source: datamodel §1.2, §1.6, §2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from ipam.affinity import Owner, Versioned
from ipam.blocks import network_of_block
from libcalico.datastore.api import Compare, Datastore, Delete, KeyValue, Put, TxnResult
from libcalico.errors import DecodeError
from libcalico.model import codec
from libcalico.model.ipam import AllocationAttribute, Block, BlockAffinity, Handle
from libcalico.model.keys import (
    HANDLES_PREFIX,
    BlockAffinityKey,
    BlockKey,
    HandleKey,
    Key,
    affinities_prefix,
    blocks_prefix,
    parse,
    path_of,
)
from libcalico.model.meta import Model
from libcalico.net import Network
from libcalico.runtime import log

LOG = log.get(__name__)
M = TypeVar("M", bound=Model)
K = TypeVar("K", BlockKey, BlockAffinityKey, HandleKey)

_TYPE_BY_KEY: dict[type[Key], type[Model]] = {
    BlockKey: Block,
    BlockAffinityKey: BlockAffinity,
    HandleKey: Handle,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One record of a transaction: it must stand at `mod_revision` (0: not exist). `after` None
    deletes it; `keep` only compares."""

    key: Key
    mod_revision: int
    after: Model | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """`found`: the records as they are, in the order of the changes, when nothing was written."""

    succeeded: bool
    revision: int
    found: tuple[KeyValue | None, ...] = ()


@dataclass(slots=True)
class _Listed(Generic[K, M]):
    """What is stored below a prefix, in key order."""

    readable: list[tuple[K, Versioned[M]]] = field(default_factory=list)
    unreadable: list[K] = field(default_factory=list)


class Records:
    """Typed access to one datastore. Counts its round trips, for metrics and benchmarks."""

    def __init__(self, datastore: Datastore) -> None:
        self.datastore = datastore
        self.reads = 0
        self.transactions = 0
        self.conflicts = 0

    async def block(self, cidr: str) -> Versioned[Block]:
        return await self._get(BlockKey(cidr), Block)

    async def handle(self, handle_id: str) -> Versioned[Handle]:
        return await self._get(HandleKey(handle_id), Handle)

    async def affinity(self, owner: Owner, cidr: str) -> Versioned[BlockAffinity]:
        return await self._get(owner.key(cidr), BlockAffinity)

    async def affinities(self, owner: Owner, version: int) -> dict[str, Versioned[BlockAffinity]]:
        """By block CIDR, in key order."""
        prefix = affinities_prefix(owner.host, version, owner.type)
        found: dict[str, Versioned[BlockAffinity]] = {}
        for key, record in (await self._list(prefix, BlockAffinityKey, BlockAffinity)).readable:
            found[key.cidr] = record
        return found

    async def affinities_under(
        self, prefix: str
    ) -> list[tuple[BlockAffinityKey, Versioned[BlockAffinity]]]:
        """Affinities of all owners of one type."""
        return (await self._list(prefix, BlockAffinityKey, BlockAffinity)).readable

    async def blocks(self, version: int) -> dict[str, Versioned[Block]]:
        """Every block of a family, by CIDR, in key order."""
        return (await self.stored_blocks(version))[0]

    async def stored_blocks(self, version: int) -> tuple[dict[str, Versioned[Block]], list[str]]:
        """As `blocks`, and the CIDRs of those that do not parse."""
        listed = await self._list(blocks_prefix(version), BlockKey, Block)
        found = {key.cidr: record for key, record in listed.readable}
        return found, [key.cidr for key in listed.unreadable]

    async def block_cidrs(self, version: int) -> list[Network]:
        """As `blocks`, without the values."""
        self.reads += 1
        listed = await self.datastore.list(blocks_prefix(version), keys_only=True)
        keys = (parse(kv.key) for kv in listed.kvs)
        return [network_of_block(key.cidr) for key in keys if isinstance(key, BlockKey)]

    async def handles(self) -> dict[str, Versioned[Handle]]:
        """Every handle by its id."""
        listed = await self._list(HANDLES_PREFIX, HandleKey, Handle)
        return {key.handle_id: record for key, record in listed.readable}

    async def commit(self, changes: Sequence[Change]) -> Committed:
        """All changes in one transaction, or none. Errors: DatastoreUnavailable (outcome open)."""
        self.transactions += 1
        compares = [Compare(path_of(change.key), change.mod_revision) for change in changes]
        result: TxnResult = await self.datastore.txn(compares, _operations(changes))
        self.conflicts += not result.succeeded
        return Committed(result.succeeded, result.revision, result.found)

    async def _get(self, key: Key, kind: type[M]) -> Versioned[M]:
        self.reads += 1
        return versioned(key, await self.datastore.get(path_of(key)), kind)

    async def _list(self, prefix: str, key_type: type[K], kind: type[M]) -> _Listed[K, M]:
        self.reads += 1
        found: _Listed[K, M] = _Listed()
        for kv in (await self.datastore.list(prefix)).kvs:
            key = parse(kv.key)
            if not isinstance(key, key_type):
                continue
            try:
                found.readable.append((key, versioned(key, kv, kind)))
            except DecodeError as err:
                found.unreadable.append(key)
                LOG.warning("ipam record skipped", key=kv.key, error=err)
        return found


def versioned(key: Key, kv: KeyValue | None, kind: type[M]) -> Versioned[M]:
    """Errors: DecodeError, also for a block that says it is another one than its key: everything
    counts its addresses from what it says."""
    if kv is None:
        return Versioned()
    value = codec.decode_as(kind, key, kv.value, kv.mod_revision)
    if isinstance(value, Block) and isinstance(key, BlockKey) and value.cidr != key.cidr:
        raise DecodeError(kv.key, kv.value, f"cidr is {value.cidr!r}, its key says {key.cidr}")
    return Versioned(value, kv.mod_revision)


class _StoredBlock(msgspec.Struct, kw_only=True):
    """A block in the order and with the members it is stored with."""

    cidr: str
    affinity: str | None
    affinity_claim_time: str | msgspec.UnsetType
    allocations: tuple[int | None, ...]
    unallocated: tuple[int, ...]
    attributes: tuple[AllocationAttribute, ...] | None
    sequence_number: int = msgspec.field(name="sequenceNumber")
    numbers: dict[str, int] = msgspec.field(name="sequenceNumberForAllocation")
    deleted: bool


_BLOCKS = msgspec.json.Encoder(order="deterministic")


def encoded(record: Model) -> bytes:
    """`codec.encode`, with a short cut for blocks: they are written all the time, and the general
    way costs more than everything else an assignment does. A test holds the two equal."""
    if not isinstance(record, Block):
        return codec.encode(record)
    stored = _StoredBlock(
        cidr=record.cidr,
        affinity=record.affinity,
        affinity_claim_time=record.affinity_claim_time or msgspec.UNSET,
        allocations=record.allocations,
        unallocated=record.unallocated,
        attributes=record.attributes,
        sequence_number=record.sequence_number,
        numbers=record.sequence_number_for_allocation,
        deleted=record.deleted,
    )
    return _BLOCKS.encode(stored)


def _operations(changes: Iterable[Change]) -> list[Put | Delete]:
    operations: list[Put | Delete] = []
    for change in changes:
        if change.after is not None:
            operations.append(Put(path_of(change.key), encoded(change.after)))
        elif not change.keep and change.mod_revision:
            operations.append(Delete(path_of(change.key)))
    return operations
