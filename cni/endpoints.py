"""WorkloadEndpoints and profiles as the CNI plugin writes them: built here, stored by CAS.

Layer: edge (datastore). Used by cni.agent and cni.standalone. The shapes are datamodel 1.9 and 5.6;
only what the plugin itself may set is set, and an update keeps what others have added.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from cni.facts import ClusterFacts, InterfaceNames, NamesOf, Stored
from cni.identity import KUBERNETES, Workload
from cni.netconf import NetConf
from cni.pod_annotations import PREFIX
from cni.skel import CniError, Code
from cni.veth import host_cidr
from ipam.client.lane import Guard
from ipam.leaks import addresses_in
from libcalico.datastore.api import Compare, Datastore, Delete, KeyValue, Put
from libcalico.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    RevisionConflict,
    Transient,
)
from libcalico.model import ClusterInformation, Node, Profile, WorkloadEndpoint
from libcalico.model.codec import decode, decode_preserving, encode
from libcalico.model.endpoints import IPNAT, WorkloadEndpointSpec
from libcalico.model.keys import ResourceKey, identifier, parse, path_of, prefix_of
from libcalico.model.meta import (
    NAMESPACE_LABEL,
    ORCHESTRATOR_LABEL,
    SERVICE_ACCOUNT_LABEL,
    ObjectMeta,
)
from libcalico.model.names import namespace_profile_name, service_account_profile_name
from libcalico.model.policy import EntityRule, ProfileSpec, Rule

MAX_ATTEMPTS = 5
# Which CNI network an attachment is of: GC asks, and nothing else in the datastore tells when
# another plugin gives the addresses.
NETWORK_ANNOTATION = f"{PREFIX}network"
# The network namespace it is in (cni.sandbox): the sweep asks.
SANDBOX_ANNOTATION = f"{PREFIX}sandbox"
DEFAULT_SERVICE_ACCOUNT = "default"


def profiles_of(workload: Workload, conf: NetConf) -> tuple[str, ...]:
    """Kubernetes' profiles when Kubernetes decides policy, else the one named after the network."""
    if workload.is_kubernetes and conf.is_kubernetes_policy:
        namespace = workload.key.namespace
        account = service_account_profile_name(namespace, DEFAULT_SERVICE_ACCOUNT)
        return (namespace_profile_name(namespace), account)
    return (conf.name,)


def build(
    workload: Workload,
    conf: NetConf,
    *,
    addresses: tuple[str, ...],
    mac: str,
    sandbox: str = "",
) -> WorkloadEndpoint:
    """The endpoint of a new wire. `mac` is the pod side's, `sandbox` what is noted of the pod's
    namespace."""
    labels = {
        **conf.labels,
        NAMESPACE_LABEL: workload.key.namespace,
        ORCHESTRATOR_LABEL: workload.ids.orchestrator,
    }
    account = None
    if workload.is_kubernetes:
        labels[SERVICE_ACCOUNT_LABEL] = account = DEFAULT_SERVICE_ACCOUNT
    spec = WorkloadEndpointSpec(
        orchestrator=workload.ids.orchestrator,
        node=workload.ids.node,
        container_id=workload.container_id,
        pod=workload.ids.pod or None,
        endpoint=workload.ifname,
        service_account_name=account,
        ip_networks=tuple(host_cidr(address) for address in addresses),
        profiles=profiles_of(workload, conf),
        interface_name=workload.interface,
        mac=mac,
        ip_nats=_nats(conf, addresses),
        allow_spoofed_source_prefixes=conf.pod.allowed_source_prefixes,
        qos_controls=conf.pod.qos,
    )
    metadata = ObjectMeta(
        name=workload.key.name,
        namespace=workload.key.namespace,
        labels=labels,
        annotations={NETWORK_ANNOTATION: conf.name, SANDBOX_ANNOTATION: sandbox},
    )
    return WorkloadEndpoint(metadata=metadata, spec=spec)


def _nats(conf: NetConf, addresses: tuple[str, ...]) -> tuple[IPNAT, ...]:
    """Each floating address leads to the pod's own of the same family. Errors: CniError."""
    own = {":" in address: address for address in addresses}
    nats = []
    for external in conf.pod.floating_ips:
        internal = own.get(":" in external)
        if internal is None:
            raise CniError(
                Code.INVALID_CONFIG,
                f"annotation {PREFIX}floatingIPs: the pod has no address for {external}",
            )
        nats.append(IPNAT(internal_ip=internal, external_ip=external))
    return tuple(nats)


# What a request decides; the other members of a spec are other people's.
_OURS = (
    "orchestrator",
    "node",
    "container_id",
    "pod",
    "endpoint",
    "service_account_name",
    "ip_networks",
    "profiles",
    "interface_name",
    "mac",
)


def merged(stored: WorkloadEndpoint, made: WorkloadEndpoint, now: str) -> WorkloadEndpoint:
    """The stored endpoint with the new attachment in it. A NAT of an address that is gone goes too:
    readers refuse an endpoint with one, and the pod would have no policy."""
    before = stored.metadata
    metadata = replace(
        before,
        labels={**before.labels, **made.metadata.labels},
        annotations={**before.annotations, **made.metadata.annotations},
        uid=before.uid or str(uuid.uuid4()),
        creation_timestamp=before.creation_timestamp or now,
    )
    addresses = {network.partition("/")[0] for network in made.spec.ip_networks}
    old, new = stored.spec, made.spec
    kept = tuple(nat for nat in old.ip_nats if nat.internal_ip in addresses)
    spec = replace(
        old,
        **{name: getattr(new, name) for name in _OURS},
        ip_nats=new.ip_nats or kept,
        allow_spoofed_source_prefixes=(
            new.allow_spoofed_source_prefixes or old.allow_spoofed_source_prefixes
        ),
        qos_controls=new.qos_controls or old.qos_controls,
    )
    return replace(stored, metadata=metadata, spec=spec)


@dataclass(frozen=True, slots=True)
class Succession:
    """An endpoint that gets a sticky claim: `fence` must stand when it is written, and in the same
    transaction the `predecessors` go, the endpoints that have the address until then."""

    fence: Guard
    predecessors: tuple[Stored, ...] = ()


class EndpointStore:
    """Reads and writes of one request. `facts` None (no syncer here) reads what it would know;
    `now` gives UTC, for creation time stamps."""

    def __init__(
        self,
        datastore: Datastore,
        facts: ClusterFacts | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._datastore = datastore
        self._facts = facts
        self._now = now or (lambda: datetime.now(UTC))

    @property
    def datastore(self) -> Datastore:
        return self._datastore

    @property
    def facts(self) -> ClusterFacts | None:
        return self._facts

    async def probe(self) -> None:
        """Ask for anything. Errors: DatastoreUnavailable, Unauthorized, ConfigError."""
        await self._datastore.get(path_of(ResourceKey("ClusterInformation", "default")))

    async def is_datastore_ready(self) -> bool:
        """False while ClusterInformation says the datastore is locked (or nothing set it up)."""
        if self._facts is not None and self._facts.in_sync:
            return self._facts.is_datastore_ready()
        key = ResourceKey("ClusterInformation", "default")
        found = await self._datastore.get(path_of(key))
        if found is None:
            return False
        information = decode(key, found.value, found.mod_revision)
        assert isinstance(information, ClusterInformation)
        return bool(information.spec.datastore_ready)

    async def find(self, workload: Workload) -> list[Stored]:
        """Every endpoint of the workload, from what felix knows of its own node if it does."""
        local = self._facts.local if self._facts is not None and self._facts.in_sync else None
        if local is not None and not local.is_uncertain(workload.key):
            found = local.under(workload.key.namespace, workload.name_prefix)
        else:
            prefix = prefix_of("WorkloadEndpoint", workload.key.namespace) + workload.name_prefix
            found = await self._list(prefix)
            if local is not None:
                local.note_read(workload.key)
        return [stored for stored in found if workload.is_same_workload(stored.key.name)]

    def recall(self, workload: Workload) -> list[Stored]:
        """As `find`, from memory alone and without promise: for what is done while nobody can be
        asked. Empty when felix is not running."""
        if self._facts is None:
            return []
        found = self._facts.local.under(workload.key.namespace, workload.name_prefix)
        return [stored for stored in found if workload.is_same_workload(stored.key.name)]

    async def read(self, key: ResourceKey) -> Stored | None:
        """One endpoint as it stands in the datastore; what does not parse is none of ours."""
        found = await self._datastore.get(path_of(key))
        return None if found is None else _stored(key, found)

    async def on_node(self, node: str) -> list[Stored]:
        """Every endpoint that says it is on the node; for GC."""
        if self._facts is not None and self._facts.in_sync:
            return self._facts.local.all()
        listed = await self._list(prefix_of("WorkloadEndpoint"))
        return [stored for stored in listed if stored.endpoint.spec.node == node]

    async def names_on(self, node: str) -> InterfaceNames:
        """Which interfaces the endpoints of the node have."""
        if self._facts is not None and self._facts.in_sync:
            return self._facts.local.names
        return NamesOf(await self.on_node(node))

    async def pod_cidrs(self, node: str) -> tuple[str, ...]:
        """The pod networks Kubernetes gave to the node (Node.status); empty when none is known."""
        key = ResourceKey("Node", node)
        found = await self._datastore.get(path_of(key))
        if found is None:
            return ()
        resource = decode(key, found.value, found.mod_revision)
        assert isinstance(resource, Node)
        return resource.status.pod_cidrs

    async def _list(self, prefix: str) -> list[Stored]:
        """A value that does not parse is left out: it cannot be one this plugin wrote, and it must
        not keep a pod from starting or ending."""
        found = []
        for kv in (await self._datastore.list(prefix)).kvs:
            key = parse(kv.key)
            if isinstance(key, ResourceKey) and (stored := _stored(key, kv)) is not None:
                found.append(stored)
        return found

    async def having(self, key: ResourceKey, addresses: Sequence[str]) -> tuple[Stored, ...]:
        """The other endpoints of the namespace that have one of the addresses, as the datastore
        has them now. Reads the namespace: for sticky claims only."""
        wanted = set(addresses_in(addresses))
        listed = await self._list(prefix_of("WorkloadEndpoint", key.namespace))
        return tuple(
            stored
            for stored in listed
            if stored.key != key and wanted & set(addresses_in(stored.endpoint.spec.ip_networks))
        )

    async def save(
        self,
        endpoint: WorkloadEndpoint,
        existing: Stored | None,
        succession: Succession | None = None,
    ) -> int:
        """Create, or take `existing` over: what the request sets is set, everything else that
        somebody put there stays. Returns the mod revision. Errors: AlreadyExists, NotFound,
        RevisionConflict: somebody else wrote the endpoint since it was read, or the claim."""
        metadata = endpoint.metadata
        key = ResourceKey("WorkloadEndpoint", metadata.name, metadata.namespace)
        try:
            if existing is None:
                complete, revision = await self._create(key, endpoint, succession)
            else:
                complete, revision = await self._take_over(key, endpoint, existing, succession)
        except (Transient, asyncio.CancelledError):
            # It may have been written all the same.
            if self._facts is not None:
                self._facts.local.note_uncertain(key)
            raise
        if self._facts is not None:
            self._facts.local.note_written(Stored(key, complete, revision))
            for predecessor in succession.predecessors if succession else ():
                self._facts.local.note_deleted(predecessor)
        return revision

    async def _create(
        self, key: ResourceKey, endpoint: WorkloadEndpoint, succession: Succession | None
    ) -> tuple[WorkloadEndpoint, int]:
        metadata = replace(
            endpoint.metadata, uid=str(uuid.uuid4()), creation_timestamp=self._stamp()
        )
        complete = replace(endpoint, metadata=metadata)
        path, value = path_of(key), encode(complete)
        try:
            return complete, await self._write(path, value, 0, succession)
        except AlreadyExists:
            # What does not parse is nobody's (see _list): it is repaired by writing it anew.
            found = await self._datastore.get(path)
            if found is None or _stored(key, found) is not None:
                raise
            revision = await self._write(path, value, found.mod_revision, succession)
            return complete, revision

    async def _take_over(
        self,
        key: ResourceKey,
        endpoint: WorkloadEndpoint,
        existing: Stored,
        succession: Succession | None,
    ) -> tuple[WorkloadEndpoint, int]:
        """Read again, because only the stored bytes have the members we do not know."""
        found = await self._datastore.get(path_of(key))
        if found is None:
            raise NotFound(identifier(key))
        if found.mod_revision != existing.revision:
            raise RevisionConflict(identifier(key), existing.revision, found.mod_revision)
        stored, unknown = decode_preserving(key, found.value, found.mod_revision)
        assert isinstance(stored, WorkloadEndpoint)
        complete = merged(stored, endpoint, self._stamp())
        value = encode(complete, unknown=unknown)
        return complete, await self._write(path_of(key), value, existing.revision, succession)

    async def _write(
        self, path: str, value: bytes, revision: int, succession: Succession | None
    ) -> int:
        """`revision` 0 creates. Errors: AlreadyExists, NotFound, RevisionConflict."""
        if succession is None:
            if revision:
                return await self._datastore.update(path, value, revision)
            return await self._datastore.create(path, value)
        fence, old = succession.fence, succession.predecessors
        compares = [
            Compare(path, revision),
            Compare(path_of(fence.key), fence.mod_revision),
            *(Compare(path_of(stored.key), stored.revision) for stored in old),
        ]
        gone = [Delete(path_of(stored.key)) for stored in old]
        result = await self._datastore.txn(compares, [*gone, Put(path, value)])
        if result.succeeded:
            return result.revision
        is_known = result.found[0] is not None
        if is_known and not revision:
            raise AlreadyExists(path)
        raise RevisionConflict(path, revision)

    async def delete(self, stored: Stored) -> bool:
        """Delete it unless another container has taken it over meanwhile (False). Gone is fine."""
        is_gone = await self._delete(stored)
        if is_gone and self._facts is not None:
            self._facts.local.note_deleted(stored)
        return is_gone

    async def _delete(self, stored: Stored) -> bool:
        path = path_of(stored.key)
        revision = stored.revision
        for _ in range(MAX_ATTEMPTS):
            try:
                await self._datastore.delete(path, mod_revision=revision)
            except NotFound:
                return True
            except RevisionConflict:
                found = await self._datastore.get(path)
                if found is None:
                    return True
                now = _stored(stored.key, found)
                if now is None or now.container_id != stored.container_id:
                    return False
                revision = found.mod_revision
            else:
                return True
        raise RevisionConflict(f"WorkloadEndpoint({stored.key.namespace}/{stored.key.name})")

    async def ensure_profile(self, workload: Workload, conf: NetConf) -> None:
        """The profile named after the network, made once and never updated (datamodel 5.6)."""
        if workload.is_kubernetes and conf.is_kubernetes_policy:
            return
        if self._facts is not None and self._facts.has_profile(conf.name):
            return
        path = path_of(ResourceKey("Profile", conf.name))
        if await self._datastore.get(path) is not None:
            return
        peer = EntityRule(selector=f"has({conf.name})")
        allowed = Rule(action="Allow")
        if workload.ids.orchestrator != KUBERNETES:
            allowed = Rule(action="Allow", source=peer)
        spec = ProfileSpec(
            ingress=(allowed,), egress=(Rule(action="Allow"),), labels_to_apply={conf.name: ""}
        )
        metadata = ObjectMeta(
            name=conf.name, uid=str(uuid.uuid4()), creation_timestamp=self._stamp()
        )
        try:
            await self._datastore.create(path, encode(Profile(metadata=metadata, spec=spec)))
        except AlreadyExists:
            # Another pod of the network starts at this very moment.
            return

    def _stamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _stored(key: ResourceKey, kv: KeyValue) -> Stored | None:
    """None for a value that does not parse: it cannot be one this plugin wrote."""
    try:
        endpoint = decode(key, kv.value, kv.mod_revision)
    except InvalidInput:
        return None
    assert isinstance(endpoint, WorkloadEndpoint)
    return Stored(key, endpoint, kv.mod_revision)
