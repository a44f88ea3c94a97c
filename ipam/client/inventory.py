"""Reading everything `ipam check` looks at, as it was at one revision.

Layer: ipam edge. Used by calicoctl; `ipam.check` judges what comes of it.

Nothing that is stored stops the reading: what does not parse is handed on by name.
Source: datamodel §6.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from ipam.check import Inventory, StoredHandle, Unreadable
from ipam.client.pages import Pages, whole
from ipam.client.records import versioned
from libcalico.datastore.api import Datastore, KeyValue
from libcalico.errors import DatastoreUnavailable, DecodeError, NotFound, WatchExpired
from libcalico.model import codec
from libcalico.model.cluster import ClusterInformation
from libcalico.model.endpoints import WorkloadEndpoint
from libcalico.model.ipam import Block, Handle
from libcalico.model.ippool import IPPool
from libcalico.model.keys import (
    BLOCKS_PREFIX,
    HANDLES_PREFIX,
    BlockKey,
    HandleKey,
    Key,
    ResourceKey,
    identifier,
    path_of,
    prefix_of,
)
from libcalico.model.meta import Model, Resource
from libcalico.model.node import Node
from libcalico.net import AddressError, Network, parse_cidr

M = TypeVar("M", bound=Model)
R = TypeVar("R", bound=Resource)
CLUSTER_INFORMATION = ResourceKey("ClusterInformation", "default")


async def read_inventory(datastore: Datastore) -> Inventory:
    """Errors: NotFound (no ClusterInformation), DecodeError (of it), DatastoreUnavailable."""
    try:
        return await whole(lambda: _read(datastore))
    except WatchExpired as err:
        said = "reading IPAM was overtaken by compaction every time"
        raise DatastoreUnavailable(said) from err


async def _read(datastore: Datastore) -> Inventory:
    kv = await datastore.get(path_of(CLUSTER_INFORMATION))
    if kv is None:
        raise NotFound(identifier(CLUSTER_INFORMATION))
    # An empty list costs nothing and says where the store stands.
    revision = (await datastore.list(path_of(CLUSTER_INFORMATION), keys_only=True)).revision
    return await _Reader(Pages(datastore, revision)).inventory()


@dataclass(slots=True)
class _Reader:
    """One snapshot."""

    pages: Pages
    unreadable: list[Unreadable] = field(default_factory=list)

    async def inventory(self) -> Inventory:
        pages = self.pages
        kv = await pages.datastore.get(path_of(CLUSTER_INFORMATION), revision=pages.revision)
        if kv is None:
            raise NotFound(identifier(CLUSTER_INFORMATION))
        key = CLUSTER_INFORMATION
        cluster = codec.decode_as(ClusterInformation, key, kv.value, kv.mod_revision)
        return Inventory(
            cluster=cluster,
            blocks=await self._blocks(),
            pools=await self._pools(),
            nodes=await self._resources(Node),
            endpoints=await self._resources(WorkloadEndpoint),
            handles=await self._handles(),
            unreadable=self.unreadable,
        )

    async def _blocks(self) -> list[Block]:
        found: list[Block] = []
        async for key, kv in self.pages.objects(BLOCKS_PREFIX):
            if not isinstance(key, BlockKey):
                self.unreadable.append(Unreadable("Block", kv.key, "its key names no block"))
                continue
            block = self._decoded(key, kv, Block, key.cidr)
            if block is not None:
                found.append(block)
        return found

    async def _pools(self) -> list[Network]:
        found: list[Network] = []
        for pool in await self._resources(IPPool):
            if pool.spec.disabled:
                continue
            try:
                found.append(parse_cidr(pool.spec.cidr))
            except AddressError as err:
                name = f"IPPool({pool.metadata.name})"
                self.unreadable.append(Unreadable("IPPool", name, str(err)))
        return found

    async def _handles(self) -> dict[str, StoredHandle]:
        found: dict[str, StoredHandle] = {}
        async for key, kv in self.pages.objects(HANDLES_PREFIX):
            if not isinstance(key, HandleKey):
                self.unreadable.append(Unreadable("Handle", kv.key, "its key names no handle"))
                continue
            handle = self._decoded(key, kv, Handle, identifier(key))
            if handle is not None:
                found[key.handle_id] = StoredHandle(handle, kv.mod_revision)
        return found

    async def _resources(self, kind: type[R]) -> list[R]:
        found: list[R] = []
        async for key, kv in self.pages.objects(prefix_of(kind.kind)):
            if key is None:
                reason = f"its key names no {kind.kind}"
                self.unreadable.append(Unreadable(kind.kind, kv.key, reason))
                continue
            resource = self._decoded(key, kv, kind, identifier(key))
            if resource is not None:
                found.append(resource)
        return found

    def _decoded(self, key: Key, kv: KeyValue, kind: type[M], name: str) -> M | None:
        try:
            return versioned(key, kv, kind).value
        except DecodeError as err:
            shown = " ".join(err.reason.split())
            kind_name = key.kind if isinstance(key, ResourceKey) else kind.__name__
            self.unreadable.append(Unreadable(kind_name, name, shown))
            return None
