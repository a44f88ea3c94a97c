"""Everything a garbage collection looks at, read page by page at one revision.

Layer: ipam edge. Used by `ipam.client.collector`. What cannot be read is said once per text and
kept apart: it proves nothing (`ipam.garbage` Q1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ipam import blocks, garbage
from ipam.affinity import Versioned
from ipam.blocks import network_of_block
from ipam.client.pages import Pages, whole
from ipam.client.said import Said
from ipam.client.source import Facts, Source
from ipam.garbage import Snapshot
from libcalico.datastore.api import Datastore, KeyValue
from libcalico.errors import DecodeError, InvalidInput, SuiteError
from libcalico.model import codec
from libcalico.model.endpoints import WorkloadEndpoint
from libcalico.model.ipam import Block, Handle
from libcalico.model.keys import (
    HANDLES_PREFIX,
    HOST_AFFINITIES_PREFIX,
    BlockAffinityKey,
    BlockKey,
    FelixStatusKey,
    HandleKey,
    IpamHostKey,
    Key,
    ResourceKey,
    blocks_prefix,
    parse,
    prefix_of,
)
from libcalico.model.meta import Model
from libcalico.model.names import parse_endpoint_name
from libcalico.model.node import Node
from libcalico.net import Address, AddressError

M = TypeVar("M", bound=Model)
FELIX_PREFIX = "/calico/felix/v2/"


class SnapshotReader:
    """Reads snapshots. One per collector: it remembers what it has complained about, and the
    `facts` of the last one."""

    def __init__(self, datastore: Datastore, source: Source, said: Said) -> None:
        self._datastore, self._source, self._said = datastore, source, said
        self.facts = Facts()

    async def read(self) -> Snapshot:
        """Errors: DatastoreUnavailable, Unauthorized, WatchExpired (compacted again and again)."""
        return await whole(self._read, lambda err: self._said.say("snapshot", err))

    async def named(self) -> set[Address]:
        """The addresses that endpoints have at this moment."""
        found: set[Address] = set()
        pages = Pages(self._datastore, 0)
        async for key, kv in pages.objects(prefix_of(WorkloadEndpoint.kind)):
            endpoint = None if key is None else self._decoded(key, kv, WorkloadEndpoint)
            if endpoint is not None:
                found |= garbage.named_addresses([endpoint])
        return found

    async def _read(self) -> Snapshot:
        facts = self.facts = await self._source.facts()
        first = [page async for page in self._datastore.list_pages(prefix_of(Node.kind))]
        at = first[0].revision
        nodes: dict[str, Node | None] = {}
        for kv in (kv for page in first for kv in page.kvs):
            key = parse(kv.key)
            if isinstance(key, ResourceKey):
                nodes[key.name] = self._decoded(key, kv, Node)
        pages = Pages(self._datastore, at)
        sound, malformed = await self._blocks(pages)
        affinities, markers = await self._hosts(pages)
        endpoints, unreadable_on = await self._endpoints(pages)
        return Snapshot(
            revision=at,
            blocks=sound,
            malformed=malformed,
            affinities=affinities,
            markers=markers,
            handles=await self._handles(pages),
            endpoints=endpoints,
            unreadable_on=unreadable_on,
            nodes=nodes,
            alive=await self._alive(pages),
            pools=facts.pools,
            cooldown_s=facts.config.ip_cooldown_seconds,
        )

    async def _blocks(self, pages: Pages) -> tuple[dict[str, Versioned[Block]], frozenset[str]]:
        sound: dict[str, Versioned[Block]] = {}
        malformed: set[str] = set()
        for version in (4, 6):
            async for key, kv in pages.objects(blocks_prefix(version)):
                if not isinstance(key, BlockKey):
                    continue
                block = self._decoded(key, kv, Block, _refuse_malformed)
                if block is None or block.cidr != key.cidr:
                    malformed.add(key.cidr)
                else:
                    sound[key.cidr] = Versioned(block, kv.mod_revision)
        return sound, frozenset(malformed)

    async def _hosts(self, pages: Pages) -> tuple[frozenset[BlockAffinityKey], frozenset[str]]:
        """Affinity keys whatever their value, and hosts with a legacy marker."""
        affinities: set[BlockAffinityKey] = set()
        markers: set[str] = set()
        async for key, _ in pages.objects(HOST_AFFINITIES_PREFIX, keys_only=True):
            if isinstance(key, BlockAffinityKey):
                affinities.add(key)
            elif isinstance(key, IpamHostKey):
                markers.add(key.host)
        return frozenset(affinities), frozenset(markers)

    async def _handles(self, pages: Pages) -> dict[str, Versioned[Handle]]:
        found: dict[str, Versioned[Handle]] = {}
        async for key, kv in pages.objects(HANDLES_PREFIX):
            if isinstance(key, HandleKey):
                handle = self._decoded(key, kv, Handle)
                if handle is not None:
                    found[key.handle_id] = Versioned(handle, kv.mod_revision)
        return found

    async def _endpoints(
        self, pages: Pages
    ) -> tuple[dict[ResourceKey, Versioned[WorkloadEndpoint]], frozenset[str]]:
        found: dict[ResourceKey, Versioned[WorkloadEndpoint]] = {}
        unreadable_on: set[str] = set()
        async for key, kv in pages.objects(prefix_of(WorkloadEndpoint.kind)):
            if not isinstance(key, ResourceKey):
                continue
            endpoint = self._decoded(key, kv, WorkloadEndpoint)
            if endpoint is None:
                unreadable_on.add(_node_of(key))
            else:
                found[key] = Versioned(endpoint, kv.mod_revision)
        return found, frozenset(unreadable_on)

    async def _alive(self, pages: Pages) -> frozenset[str]:
        """Nodes whose felix has a report with a lease."""
        keys = [key async for key, _ in pages.objects(FELIX_PREFIX, keys_only=True)]
        return frozenset(key.host for key in keys if isinstance(key, FelixStatusKey))

    def _decoded(
        self, key: Key, kv: KeyValue, kind: type[M], check: Callable[[M], None] | None = None
    ) -> M | None:
        """None for what cannot be read."""
        try:
            value = codec.decode_as(kind, key, kv.value, kv.mod_revision)
            if check is not None:
                check(value)
        except (DecodeError, InvalidInput) as err:
            self._said.say(kv.key, err)
            return None
        self._said.recovered(kv.key)
        return value


def _refuse_malformed(block: Block) -> None:
    """Errors: InvalidInput."""
    try:
        network_of_block(block.cidr)
    except AddressError as err:
        raise InvalidInput(f"cidr: {err}") from err
    blocks.check_usable(block)


def _node_of(key: ResourceKey) -> str:
    try:
        return parse_endpoint_name(key.name).node
    except SuiteError:
        return ""
