"""Make the datastore know this node: initial objects, default pools, the Node object.

Layer: pure decisions, and one writer (`Registrar`) around them. Used by calicoctl.node.main.
Source: Calico node/pkg/lifecycle/startup and clientv3 EnsureInitialized (datamodel 0.8, 1.5, 5.7).

  R1  what exists is kept: initial objects and pools are only ever created, the Node is merged;
  R2  two nodes never register one address: the second is refused with the first one's name, also
      when both look before either has written;
  R3  every write is create-only or compare-and-swap, in a bounded loop: a hundred nodes may start
      at once;
  R4  running it again with nothing changed writes nothing; members of the Node object that we do
      not know survive.
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

import msgspec

from calicoctl.node.settings import NodeSettings, PoolChoice
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import ConnectionConfig, to_environment
from libcalico.datastore.resources import ResourceClient
from libcalico.errors import AlreadyExists, Fatal, NotFound, RevisionConflict
from libcalico.model import (
    ClusterInformation,
    FelixConfiguration,
    IPPool,
    Node,
)
from libcalico.model.felix_config import FelixConfigurationSpec
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.meta import ObjectMeta, Resource
from libcalico.model.node import NodeAddress, NodeBGPSpec, NodeSpec, OrchRef
from libcalico.net import Interface, Network
from libcalico.runtime import log

LOG = log.get(__name__)
MAX_ATTEMPTS = 10
CLUSTER_TYPE = "brindle"
POOL_NAME = {4: "default-ipv4-ippool", 6: "default-ipv6-ippool"}
PREFERRED_V4 = IPv4Network("192.168.0.0/16")
_FALLBACKS_V4 = tuple(IPv4Network(f"172.{second}.0.0/16") for second in range(16, 32))
SERVICE_VARIABLES = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
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
    orch_refs = _orch_refs(spec.orch_refs, settings.k8s_node_ref)
    if settings.backend == "none":
        # Policy only: how the node is reached is somebody else's business.
        return msgspec.structs.replace(
            node, spec=msgspec.structs.replace(spec, orch_refs=orch_refs)
        )
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
            orch_refs=orch_refs,
        ),
    )


def _bgp(spec: NodeSpec, settings: NodeSettings, found: Addresses) -> NodeBGPSpec:
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


def new_addresses(existing: Node | None, found: Addresses) -> Addresses:
    """Those of our addresses that the Node object does not have yet."""

    def unless_stored(address: Interface | None, version: int) -> Interface | None:
        stored = stored_address(existing, version).partition("/")[0]
        return None if address is None or str(address.ip) == stored else address

    return Addresses(unless_stored(found.ipv4, 4), unless_stored(found.ipv6, 6))


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


def completed(node: Node) -> Node:
    """A Node by another writer may lack what the library asks for on an update."""
    metadata = node.metadata
    complete = msgspec.structs.replace(
        metadata,
        uid=metadata.uid or str(uuid.uuid4()),
        creation_timestamp=metadata.creation_timestamp
        or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return msgspec.structs.replace(node, metadata=complete)


class Registrar:
    """Writes what the functions above decide. `version` is ours, for ClusterInformation."""

    def __init__(self, datastore: Datastore, settings: NodeSettings, *, version: str) -> None:
        self._client = ResourceClient(datastore)
        self._settings = settings
        self._version = version

    async def initialise(self) -> None:
        """ClusterInformation, the three tiers and FelixConfiguration `default`."""
        types = ",".join(filter(None, (self._settings.cluster_type, CLUSTER_TYPE)))
        version = self._version
        found = await self._client.list(ClusterInformation, name="default")
        for stored in found:
            if CLUSTER_TYPE not in (stored.spec.cluster_type or "").split(","):
                types = self._settings.cluster_type
                version = "" if stored.spec.calico_version else version
        await self._client.ensure_initialized(calico_version=version, cluster_type=types)
        spec = FelixConfigurationSpec(reporting_interval="0s", log_severity_screen="Info")
        await self._create(FelixConfiguration(metadata=ObjectMeta(name="default"), spec=spec))

    async def node(self) -> Node | None:
        try:
            return await self._client.get(Node, self._settings.node_name)
        except NotFound:
            return None

    async def register(self, found: Addresses) -> Node:
        """Create or update the Node object. Errors: DuplicateAddress."""
        for _ in range(MAX_ATTEMPTS):
            existing = await self.node()
            wanted = merged_node(existing, self._settings, found)
            if existing == wanted:
                return wanted
            await self._refuse_duplicates(existing, found)
            try:
                written = await self._write(existing, wanted)
            except (AlreadyExists, NotFound, RevisionConflict):
                continue  # somebody wrote to our Node: look again
            await self._settle_race(existing, written, found)
            return written
        raise RevisionConflict(f"Node({self._settings.node_name})")

    async def ensure_pools(self, host_addresses: Sequence[Interface]) -> list[IPPool]:
        """The default pools, of each family that has no pool at all. Returns what was made."""
        present = {6 if ":" in pool.spec.cidr else 4 for pool in await self._client.list(IPPool)}
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
        try:
            await self._client.create(resource)
        except AlreadyExists:
            return False
        return True

    async def _write(self, existing: Node | None, wanted: Node) -> Node:
        if existing is None:
            return await self._client.create(wanted)
        return await self._client.update(completed(wanted))

    async def _refuse_duplicates(self, existing: Node | None, found: Addresses) -> None:
        """Only for an address that is new to us: a running node is not to be kept from restarting
        by another's object that came later (as in Calico)."""
        new = new_addresses(existing, found)
        if not self._settings.check_duplicates or new == Addresses():
            return
        duplicate = find_duplicate(await self._client.list(Node), self._settings.node_name, new)
        if duplicate is not None:
            raise DuplicateAddress(*duplicate)

    async def _settle_race(self, existing: Node | None, written: Node, found: Addresses) -> None:
        """Two nodes may have looked at the same time and both written: the later one gives way."""
        new = new_addresses(existing, found)
        if not self._settings.check_duplicates or new == Addresses():
            return
        ours = int(written.metadata.resource_version or 0)
        earlier = [
            node
            for node in await self._client.list(Node)
            if int(node.metadata.resource_version or 0) < ours
        ]
        duplicate = find_duplicate(earlier, self._settings.node_name, new)
        if duplicate is None:
            return
        if existing is None:
            await self._client.delete(Node, written.metadata.name, revision=ours)
        else:
            undone = msgspec.structs.replace(existing, metadata=written.metadata)
            await self._client.update(undone)
        raise DuplicateAddress(*duplicate)


def environment_for_daemons(
    settings: NodeSettings, connection: ConnectionConfig, environ: Mapping[str, str]
) -> dict[str, str]:
    """What the supervised daemons run with: ours, with the node name and the datastore connection
    that start-up settled on. The service manager's variables are ours alone: a child that said
    READY or fed the watchdog would speak for the whole service."""
    ours = {**to_environment(connection, environ), "NODENAME": settings.node_name}
    return {name: value for name, value in ours.items() if name not in SERVICE_VARIABLES}
