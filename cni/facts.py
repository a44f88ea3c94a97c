"""What an ADD needs to know of the cluster, kept by the syncer so that no ADD has to ask for it.

Layer: pure (a SyncSink). Fed by felix.daemon with the updates felix sees anyway; read by cni.add
(through EndpointStore) and by IPAM (it is an `ipam.client.source.Source`).

  F1  a fact may be a moment old; whatever is written on its strength is compared and swapped;
  F2  before the first in-sync there are no facts: `Transient`, which CNI turns into "try again";
  F3  derived values (pools, reservations) are computed once per change, not once per ADD;
  F4  the node's own endpoints are known with the agent's writes already in them: an echo of the
      datastore that is older than such a write changes nothing; where a write's outcome is unknown
      (its answer was lost) the endpoint is uncertain, and is read before anything is concluded.
Fed with: WorkloadEndpoint, IPPool, IPReservation, Node, Profile, ClusterInformation, and the IPAM
configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ipam.client.source import Facts
from ipam.pools import Pool, from_resource
from ipam.reservations import Reservations
from libcalico.errors import DatastoreUnavailable, NotFound
from libcalico.model import ClusterInformation, IPPool, IPReservation, Node, WorkloadEndpoint
from libcalico.model.ipam import MISSING_IPAM_CONFIG, IpamConfig
from libcalico.model.keys import IpamConfigKey, Key, ResourceKey, identifier
from libcalico.net import AddressError
from libcalico.syncer.api import SyncStatus, Update

V = TypeVar("V")
_KINDS = frozenset({"IPPool", "IPReservation", "Node", "Profile", "ClusterInformation"})
# What a pool's Struct costs to parse is nothing; what matters is not to do it per ADD.
_DERIVED_FROM = frozenset({"IPPool", "IPReservation"})


@dataclass(frozen=True, slots=True)
class Stored:
    """One endpoint as it stands in the datastore."""

    key: ResourceKey
    endpoint: WorkloadEndpoint
    revision: int

    @property
    def container_id(self) -> str:
        return self.endpoint.spec.container_id or ""


class InterfaceNames(Protocol):
    """Which endpoints of a node have which interface."""

    def has_other(self, name: str, key: ResourceKey) -> bool:
        """Whether an endpoint other than `key` has an interface of this name on the host."""
        ...


class NamesOf:
    """The interface names of some endpoints."""

    def __init__(self, endpoints: Iterable[Stored] = ()) -> None:
        self._keys_by_name: dict[str, set[ResourceKey]] = {}
        for stored in endpoints:
            self.add(stored)

    def add(self, stored: Stored) -> None:
        name = stored.endpoint.spec.interface_name or ""
        self._keys_by_name.setdefault(name, set()).add(stored.key)

    def discard(self, stored: Stored) -> None:
        name = stored.endpoint.spec.interface_name or ""
        keys = self._keys_by_name.get(name, set())
        keys.discard(stored.key)
        if not keys:
            self._keys_by_name.pop(name, None)

    def has_other(self, name: str, key: ResourceKey) -> bool:
        keys = self._keys_by_name.get(name)
        return bool(keys) and keys != {key}


class LocalEndpoints:
    """The endpoints of one node, from the syncer and from the agent's own writes (F4)."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._stored_by_key: dict[ResourceKey, Stored] = {}
        #: Kept, because every ADD asks and a node has hundreds of endpoints.
        self.names = NamesOf()
        # Endpoints we deleted, with the revision that was deleted, until the delete is echoed.
        self._deleted: dict[ResourceKey, int] = {}
        self._uncertain: set[ResourceKey] = set()

    def on_update(self, key: ResourceKey, value: object | None, revision: int) -> None:
        known = self._stored_by_key.get(key)
        if not isinstance(value, WorkloadEndpoint) or value.spec.node != self._node:
            self._deleted.pop(key, None)
            if known is not None and known.revision <= revision:
                self._drop(key)
            return
        is_old = revision <= self._deleted.get(key, 0)
        if not is_old and (known is None or known.revision <= revision):
            self._keep(Stored(key, value, revision))

    def _keep(self, stored: Stored) -> None:
        self._drop(stored.key)
        self._stored_by_key[stored.key] = stored
        self.names.add(stored)

    def _drop(self, key: ResourceKey) -> None:
        before = self._stored_by_key.pop(key, None)
        if before is not None:
            self.names.discard(before)

    def note_written(self, stored: Stored) -> None:
        self._keep(stored)

    def note_deleted(self, stored: Stored) -> None:
        self._drop(stored.key)
        self._deleted[stored.key] = stored.revision

    def note_uncertain(self, key: ResourceKey) -> None:
        self._uncertain.add(key)

    def is_uncertain(self, key: ResourceKey) -> bool:
        return key in self._uncertain

    def note_read(self, key: ResourceKey) -> None:
        """The datastore has been asked: what a lost write left is known to the caller."""
        self._uncertain.discard(key)

    def under(self, namespace: str, name_prefix: str) -> list[Stored]:
        """Those whose name begins so. A node has hundreds: looking at each costs microseconds."""
        return [
            stored
            for key, stored in self._stored_by_key.items()
            if key.namespace == namespace and key.name.startswith(name_prefix)
        ]

    def all(self) -> list[Stored]:
        return list(self._stored_by_key.values())


class ClusterFacts:
    """The facts of one node's agent."""

    def __init__(self, node: str) -> None:
        self.local = LocalEndpoints(node)
        self._pools: dict[str, IPPool] = {}
        self._reservations: dict[str, IPReservation] = {}
        self._nodes: dict[str, Node] = {}
        self._profiles: set[str] = set()
        self._config: IpamConfig = MISSING_IPAM_CONFIG
        self._is_datastore_ready = False
        self._in_sync = False
        self._derived: Facts | None = None

    # --- fed ----------------------------------------------------------------------------------

    def on_updates(self, updates: Sequence[Update]) -> None:
        for update in updates:
            key = update.key
            if isinstance(key, ResourceKey) and key.kind == "WorkloadEndpoint":
                self.local.on_update(key, update.value, update.revision)
            else:
                self._on_update(key, update.value)

    def on_status(self, status: SyncStatus) -> None:
        self._in_sync = self._in_sync or status is SyncStatus.IN_SYNC

    def _on_update(self, key: Key, value: object | None) -> None:
        if isinstance(key, IpamConfigKey):
            self._config = value if isinstance(value, IpamConfig) else MISSING_IPAM_CONFIG
            self._derived = None
        elif isinstance(key, ResourceKey) and key.kind in _KINDS:
            self._on_resource(key, value)

    def _on_resource(self, key: ResourceKey, value: object | None) -> None:
        if key.kind in _DERIVED_FROM:
            self._derived = None
        match key.kind:
            case "IPPool":
                _put(self._pools, key.name, value, IPPool)
            case "IPReservation":
                _put(self._reservations, key.name, value, IPReservation)
            case "Node":
                _put(self._nodes, key.name, value, Node)
            case "Profile":
                (self._profiles.discard if value is None else self._profiles.add)(key.name)
            case "ClusterInformation" if key.name == "default":
                ready = isinstance(value, ClusterInformation) and value.spec.datastore_ready
                self._is_datastore_ready = bool(ready)

    # --- read ---------------------------------------------------------------------------------

    @property
    def in_sync(self) -> bool:
        return self._in_sync

    def is_datastore_ready(self) -> bool:
        """False while the datastore is locked, or before ClusterInformation was seen."""
        return self._is_datastore_ready

    def has_profile(self, name: str) -> bool:
        return name in self._profiles

    async def facts(self) -> Facts:
        """ipam.client.source.Source."""
        self._require_sync()
        if self._derived is None:
            self._derived = self._derive()
        return self._derived

    async def node_labels(self, node: str) -> Mapping[str, str]:
        """ipam.client.source.Source. Errors: NotFound when the node is not registered."""
        self._require_sync()
        if node not in self._nodes:
            raise NotFound(identifier(ResourceKey("Node", node)))
        return self._nodes[node].metadata.labels

    def _require_sync(self) -> None:
        if not self._in_sync:
            raise DatastoreUnavailable("not in sync with the datastore yet")

    def _derive(self) -> Facts:
        pools: list[Pool] = []
        for name in sorted(self._pools):
            try:
                pools.append(from_resource(self._pools[name]))
            except AddressError:
                # Reported as invalid by felix's validation filter; for IPAM it does not exist.
                continue
        cidrs = [cidr for r in self._reservations.values() for cidr in r.spec.reserved_cidrs]
        return Facts(pools=tuple(pools), reservations=Reservations.of(cidrs), config=self._config)


def _put(table: dict[str, V], name: str, value: object | None, kind: type[V]) -> None:
    if isinstance(value, kind):
        table[name] = value
    else:
        table.pop(name, None)
