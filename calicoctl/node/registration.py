"""Make the datastore know this node: initial objects, default pools, the Node object.

Layer: pure decisions, and one writer (`Registrar`) around them. Used by calicoctl.node.main.
Source: Calico node/pkg/lifecycle/startup and clientv3 EnsureInitialized (datamodel 0.8, 1.5, 5.7).

  R1  what exists is kept: initial objects and pools are only ever created, the Node is merged;
  R2  two nodes never register one address: the second is refused with the first one's name;
  R3  every write is create-only or compare-and-swap, in a bounded loop: a hundred nodes may start
      at once;
  R4  running it again with nothing changed writes nothing.
ClusterInformation.calicoVersion is ours to set only where Brindle initialised the datastore: in a
cluster that Calico runs, its calicoctl would otherwise refuse to work.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TypeVar

import msgspec

from calicoctl.node.settings import NodeSettings, PoolChoice
from libcalico.datastore.api import Datastore
from libcalico.errors import AlreadyExists, Fatal, InvalidInput, NotFound, RevisionConflict
from libcalico.model import (
    ClusterInformation,
    FelixConfiguration,
    IPPool,
    Node,
)
from libcalico.model.codec import decode, encode
from libcalico.model.defaults import (
    initial_cluster_information,
    initial_tiers,
    updated_cluster_information,
    with_defaults,
)
from libcalico.model.felix_config import FelixConfigurationSpec
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import ResourceKey, key_of, parse, path_of, prefix_of
from libcalico.model.meta import ObjectMeta, Resource
from libcalico.model.node import NodeAddress, NodeBGPSpec, NodeSpec, OrchRef
from libcalico.net import Interface, Network
from libcalico.runtime import log

LOG = log.get(__name__)
R = TypeVar("R", bound=Resource)
MAX_ATTEMPTS = 10
CLUSTER_TYPE = "brindle"
POOL_NAME = {4: "default-ipv4-ippool", 6: "default-ipv6-ippool"}
PREFERRED_V4 = IPv4Network("192.168.0.0/16")
_FALLBACKS_V4 = tuple(IPv4Network(f"172.{second}.0.0/16") for second in range(16, 32))
_NODE_ADDRESS_TYPE = "CalicoNodeIP"


class DuplicateAddress(Fatal):
    """Another node is registered with our address (R2)."""

    def __init__(self, node: str, address: str) -> None:
        super().__init__(node, address)
        self.node, self.address = node, address

    def __str__(self) -> str:
        version = 6 if ":" in self.address else 4
        return (
            f"Calico node '{self.node}' is already using the IPv{version} address {self.address}: "
            "give one of them another address, or delete the old Node object"
        )


@dataclass(frozen=True, slots=True)
class Addresses:
    """What was found for this node; None: no address of that family."""

    ipv4: Interface | None = None
    ipv6: Interface | None = None


def merged_node(existing: Node | None, settings: NodeSettings, found: Addresses) -> Node:
    """The Node object as it should be: what others put there stays (labels, tunnel addresses,
    route reflector cluster id), what start-up decides is set."""
    node = existing or Node(metadata=ObjectMeta(name=settings.node_name))
    spec = node.spec
    ours = tuple(
        NodeAddress(address=str(address), type=_NODE_ADDRESS_TYPE)
        for address in (found.ipv4, found.ipv6)
        if address is not None
    )
    others = tuple(entry for entry in spec.addresses if entry.type != _NODE_ADDRESS_TYPE)
    return msgspec.structs.replace(
        node,
        spec=msgspec.structs.replace(
            spec,
            bgp=_bgp(spec, settings, found),
            addresses=ours + others,
            orch_refs=_orch_refs(spec.orch_refs, settings.k8s_node_ref),
        ),
    )


def _bgp(spec: NodeSpec, settings: NodeSettings, found: Addresses) -> NodeBGPSpec | None:
    if settings.backend == "none":
        return spec.bgp
    return msgspec.structs.replace(
        spec.bgp or NodeBGPSpec(),
        as_number=settings.as_number or (spec.bgp.as_number if spec.bgp else None),
        ipv4_address=str(found.ipv4) if found.ipv4 else None,
        ipv6_address=str(found.ipv6) if found.ipv6 else None,
    )


def _orch_refs(present: tuple[OrchRef, ...], k8s_node: str) -> tuple[OrchRef, ...]:
    wanted = OrchRef(node_name=k8s_node, orchestrator="k8s")
    return present if not k8s_node or wanted in present else (*present, wanted)


def stored_address(node: Node | None, version: int) -> str:
    """The address the Node object has already, "" for none."""
    bgp = node.spec.bgp if node else None
    if bgp is None:
        return ""
    return (bgp.ipv4_address if version == 4 else bgp.ipv6_address) or ""


def find_duplicate(nodes: Iterable[Node], name: str, found: Addresses) -> tuple[str, str] | None:
    """(node, address) of another node that has one of our addresses."""
    ours = {str(address.ip) for address in (found.ipv4, found.ipv6) if address}
    for node in nodes:
        if node.metadata.name == name:
            continue
        for version in (4, 6):
            address = stored_address(node, version).partition("/")[0]
            if address in ours:
                return node.metadata.name, address
    return None


def default_pool(
    choice: PoolChoice, host_addresses: Sequence[Interface], random_bytes: Callable[[int], bytes]
) -> IPPool:
    """The pool that is made when there is none at all (datamodel 5.7)."""
    cidr = choice.cidr or (
        _free_v4(host_addresses) if choice.version == 4 else _unique_local(random_bytes)
    )
    spec = IPPoolSpec(
        cidr=str(cidr),
        block_size=choice.block_size,
        ipip_mode=choice.ipip_mode,
        vxlan_mode=choice.vxlan_mode,
        nat_outgoing=choice.nat_outgoing,
        node_selector=choice.node_selector,
        disable_bgp_export=choice.disable_bgp_export,
    )
    return IPPool(metadata=ObjectMeta(name=POOL_NAME[choice.version]), spec=spec)


def _free_v4(host_addresses: Sequence[Interface]) -> Network:
    """192.168.0.0/16, unless a host address lies in it: then the first free 172.16-31/16."""
    for candidate in (PREFERRED_V4, *_FALLBACKS_V4):
        if not any(a.version == 4 and a.ip in candidate for a in host_addresses):
            return candidate
    return PREFERRED_V4


def _unique_local(random_bytes: Callable[[int], bytes]) -> Network:
    """A random /48 of fd00::/8 (RFC 4193)."""
    prefix = b"\xfd" + random_bytes(5) + bytes(10)
    found = ip_network((prefix, 48))
    assert isinstance(found, IPv6Network)
    return found


class Registrar:
    """Writes what the functions above decide. `version` is ours, for ClusterInformation."""

    def __init__(self, datastore: Datastore, settings: NodeSettings, *, version: str) -> None:
        self._datastore = datastore
        self._settings = settings
        self._version = version

    async def initialise(self) -> None:
        """ClusterInformation, the three tiers and FelixConfiguration `default`."""
        await self._cluster_information()
        for tier in initial_tiers():
            await self._create(tier)
        spec = FelixConfigurationSpec(reporting_interval="0s", log_severity_screen="Info")
        await self._create(FelixConfiguration(metadata=ObjectMeta(name="default"), spec=spec))

    async def _cluster_information(self) -> None:
        types = ",".join(filter(None, (self._settings.cluster_type, CLUSTER_TYPE)))
        fresh = initial_cluster_information(
            uuid.uuid4().hex, calico_version=self._version, cluster_type=types
        )
        if await self._create(fresh):
            return

        def update(stored: ClusterInformation) -> ClusterInformation:
            is_ours = CLUSTER_TYPE in (stored.spec.cluster_type or "").split(",")
            version = self._version if is_ours or not stored.spec.calico_version else ""
            return updated_cluster_information(
                stored,
                cluster_guid=uuid.uuid4().hex,
                calico_version=version,
                cluster_type=types if is_ours else self._settings.cluster_type,
            )

        await self._modify(ClusterInformation, "default", update)

    async def node(self) -> Node | None:
        return await self._get(Node, self._settings.node_name)

    async def register(self, found: Addresses) -> Node:
        """Create or update the Node object. Errors: DuplicateAddress."""
        if self._settings.check_duplicates:
            duplicate = find_duplicate(await self._list(Node), self._settings.node_name, found)
            if duplicate is not None:
                raise DuplicateAddress(*duplicate)
        await self._create(merged_node(None, self._settings, found))
        return await self._modify(
            Node, self._settings.node_name, lambda node: merged_node(node, self._settings, found)
        )

    async def ensure_pools(self, host_addresses: Sequence[Interface]) -> list[IPPool]:
        """The default pools, of each family that has no pool at all. Returns what was made."""
        present = {6 if ":" in pool.spec.cidr else 4 for pool in await self._list(IPPool)}
        made = []
        for choice in self._settings.pools:
            if not choice.is_wanted or choice.version in present:
                continue
            pool = default_pool(choice, host_addresses, secrets.token_bytes)
            if await self._create(pool):
                LOG.info("default pool made", name=pool.metadata.name, cidr=pool.spec.cidr)
                made.append(pool)
        return made

    # --- datastore ----------------------------------------------------------------------------

    async def _create(self, resource: Resource) -> bool:
        """False when it exists already."""
        metadata: ObjectMeta = getattr(resource, "metadata")  # noqa: B009 - every kind has it
        stamped = msgspec.structs.replace(
            metadata,
            uid=str(uuid.uuid4()),
            creation_timestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        complete = with_defaults(msgspec.structs.replace(resource, metadata=stamped))
        try:
            await self._datastore.create(path_of(key_of(complete)), encode(complete))
        except AlreadyExists:
            return False
        return True

    async def _get(self, kind: type[R], name: str) -> R | None:
        key = ResourceKey(kind.kind, name)
        found = await self._datastore.get(path_of(key))
        if found is None:
            return None
        resource = decode(key, found.value, found.mod_revision)
        assert isinstance(resource, kind)
        return resource

    async def _list(self, kind: type[R]) -> list[R]:
        """Objects that do not parse are left out: they are nobody's address and no pool."""
        found = []
        for kv in (await self._datastore.list(prefix_of(kind.kind))).kvs:
            key = parse(kv.key)
            if key is None:
                continue
            try:
                resource = decode(key, kv.value, kv.mod_revision)
            except InvalidInput as err:
                LOG.warning("object skipped", key=kv.key, error=err)
                continue
            assert isinstance(resource, kind)
            found.append(resource)
        return found

    async def _modify(self, kind: type[R], name: str, change: Callable[[R], R]) -> R:
        """Read, change, compare and swap; nothing is written when nothing changes (R4)."""
        key = ResourceKey(kind.kind, name)
        for _ in range(MAX_ATTEMPTS):
            stored = await self._get(kind, name)
            if stored is None:
                raise NotFound(f"{kind.kind}({name})")
            wanted = change(stored)
            if wanted == stored:
                return stored
            revision = int(getattr(stored, "metadata").resource_version)  # noqa: B009
            try:
                await self._datastore.update(path_of(key), encode(wanted), revision)
            except RevisionConflict:
                continue
            return wanted
        raise RevisionConflict(f"{kind.kind}({name})")


def environment_for_daemons(settings: NodeSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """What the supervised daemons run with: ours, with the node name that start-up settled on."""
    return {**environ, "NODENAME": settings.node_name}
