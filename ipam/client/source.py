"""Where IPAM learns of pools, nodes, reservations and its own settings.

Layer: ipam edge (contract). felix and the CNI agent serve these from what their syncer holds, so
that an ADD costs no list; calicoctl and the controllers read them (`DatastoreSource`).

  S1  what a source says may be a moment old: every write of IPAM compares block and affinity, and a
      pool is disabled half a second before its affinities are released (datamodel §2.6);
  S2  `pools` come in name order, disabled ones included (releases need them).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ipam.client.fanout import first_of
from ipam.pools import Pool, from_resource
from ipam.reservations import NONE_RESERVED, Reservations
from libcalico.datastore.api import Datastore, KeyValue
from libcalico.errors import DecodeError, NotFound
from libcalico.model import codec
from libcalico.model.ipam import MISSING_IPAM_CONFIG, IpamConfig
from libcalico.model.ippool import IPPool, IPReservation
from libcalico.model.keys import (
    IpamConfigKey,
    ResourceKey,
    identifier,
    parse,
    path_of,
    prefix_of,
)
from libcalico.model.node import Node
from libcalico.net import AddressError
from libcalico.runtime import log

LOG = log.get(__name__)
T = TypeVar("T", IPPool, IPReservation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What holds for one request. `pools` in name order, disabled ones included (S2)."""

    pools: Sequence[Pool] = ()
    reservations: Reservations = NONE_RESERVED
    config: IpamConfig = MISSING_IPAM_CONFIG


class Source(Protocol):
    """See the module docstring. Both may raise DatastoreUnavailable."""

    async def facts(self) -> Facts: ...

    async def node_labels(self, node: str) -> Mapping[str, str]:
        """Errors: NotFound(Node(<name>)): nothing is assigned to a host without a Node object."""
        ...


@dataclass(slots=True)
class FixedSource:
    """Values somebody else keeps up to date: a syncer's cache, or a test."""

    current: Facts = field(default_factory=Facts)
    labels_by_node: dict[str, Mapping[str, str]] = field(default_factory=dict)

    async def facts(self) -> Facts:
        return self.current

    async def node_labels(self, node: str) -> Mapping[str, str]:
        if node not in self.labels_by_node:
            raise NotFound(identifier(ResourceKey("Node", node)))
        return self.labels_by_node[node]


class DatastoreSource:
    """Reads everything each time it is asked."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore

    async def facts(self) -> Facts:
        try:
            async with asyncio.TaskGroup() as group:
                pools = group.create_task(self._pools())
                reservations = group.create_task(self._reservations())
                config = group.create_task(self._config())
        except BaseExceptionGroup as failures:
            raise first_of(failures) from failures
        return Facts(
            pools=pools.result(), reservations=reservations.result(), config=config.result()
        )

    async def _pools(self) -> Sequence[Pool]:
        """A pool that cannot be read is left out, with a warning."""
        found: list[Pool] = []
        for kv in (await self._datastore.list(prefix_of("IPPool"))).kvs:
            pool = _pool(kv)
            if pool is not None:
                found.append(pool)
        return found

    async def node_labels(self, node: str) -> Mapping[str, str]:
        key = ResourceKey("Node", node)
        kv = await self._datastore.get(path_of(key))
        if kv is None:
            raise NotFound(identifier(key))
        return codec.decode_as(Node, key, kv.value, kv.mod_revision).metadata.labels

    async def _reservations(self) -> Reservations:
        cidrs: list[str] = []
        for kv in (await self._datastore.list(prefix_of("IPReservation"))).kvs:
            reservation = _decode(kv, IPReservation)
            if reservation is not None:
                cidrs += reservation.spec.reserved_cidrs
        return Reservations.of(cidrs)

    async def _config(self) -> IpamConfig:
        kv = await self._datastore.get(path_of(IpamConfigKey()))
        if kv is None:
            return MISSING_IPAM_CONFIG  # in memory only: reading never writes it (§2.2)
        return codec.decode_as(IpamConfig, IpamConfigKey(), kv.value, kv.mod_revision)


def _pool(kv: KeyValue) -> Pool | None:
    resource = _decode(kv, IPPool)
    if resource is None:
        return None
    try:
        return from_resource(resource)
    except AddressError as err:
        LOG.warning("pool ignored", key=kv.key, error=err)
        return None


def _decode(kv: KeyValue, kind: type[T]) -> T | None:
    key = parse(kv.key)
    if key is None:
        return None
    try:
        return codec.decode_as(kind, key, kv.value, kv.mod_revision)
    except DecodeError as err:
        LOG.warning("object skipped", key=kv.key, error=err)
        return None
