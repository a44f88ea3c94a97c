"""Stand-ins for an ADD (or its DEL) that does without the datastore: what cni.add asks of IPAM, of
the endpoint store and of felix.

Layer: edge. Made by cni.offline, for one request each; its page says what they promise together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cni.addresses import Addresses, Foresee, is_delegated, named_pools
from cni.endpoints import EndpointStore, Succession
from cni.facts import InterfaceNames, NamesOf, Stored
from cni.identity import Workload
from cni.journal import Journal, OfflinePod, holder_of
from cni.netconf import CALICO_IPAM, NetConf
from cni.ports import EndpointProgrammer, HostSettings
from cni.reserve import NodeReserve
from cni.skel import CniError, Code, Request
from cni.spool import SpoolRefused
from cni.threads import in_thread
from ipam import pools
from ipam.client.source import Source
from ipam.client.sticky import Bound
from ipam.requests import WORKLOAD
from libcalico.model import WorkloadEndpoint
from libcalico.model.codec import encode
from libcalico.model.keys import ResourceKey
from libcalico.model.names import cni_handle_id


class OfflineProgrammer:
    """felix, but nothing is confirmed: the pin stands until the record is written."""

    def __init__(self, real: EndpointProgrammer) -> None:
        self._real = real

    def settings(self) -> HostSettings:
        return self._real.settings()

    def is_ready(self) -> bool:
        return self._real.is_ready()

    def trouble(self) -> str:
        return self._real.trouble()

    async def program(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        await self._real.program(key, endpoint)

    def remember(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        self._real.remember(key, endpoint)

    async def confirm(self, key: ResourceKey, revision: int) -> None:
        return

    async def settled(self, key: ResourceKey) -> None:
        """What felix knows is all there is: if it lacks policies, the pod stays closed."""
        return

    async def retract(self, key: ResourceKey) -> None:
        await self._real.retract(key)

    def endpoint_in_dataplane(self, key: ResourceKey) -> bool:
        return self._real.endpoint_in_dataplane(key)


class GuardedProgrammer(OfflineProgrammer):
    """felix, for the DEL of a container: the endpoint of a journalled one stands, whose record the
    datastore does not show yet (D1)."""

    def __init__(self, real: EndpointProgrammer, journal: Journal) -> None:
        super().__init__(real)
        self._journal = journal

    async def confirm(self, key: ResourceKey, revision: int) -> None:
        await self._real.confirm(key, revision)

    async def settled(self, key: ResourceKey) -> None:
        await self._real.settled(key)

    async def retract(self, key: ResourceKey) -> None:
        if self._journal.youngest(key) is None:
            await self._real.retract(key)


class OfflineAddresses:
    """AddressManager that gives from the reserve. Another plugin's addresses need no datastore."""

    def __init__(
        self,
        real: Addresses,
        source: Source,
        reserve: NodeReserve,
        journal: Journal,
        request: Request,
    ) -> None:
        self._real, self._source, self._reserve = real, source, reserve
        self._journal, self._request = journal, request
        self.network = request.network
        #: Of this request, for the journal.
        self.attributes: Mapping[str, str] = {}
        self.taken: tuple[str, ...] = ()
        self.is_ours = False

    async def assign(
        self,
        request: Request,
        conf: NetConf,
        workload: Workload,
        foresee: Foresee | None = None,
    ) -> tuple[str, ...]:
        """Nothing is foreseen: the reserve answers at once."""
        if conf.ipam.type != CALICO_IPAM or conf.pod.addresses_no_ipam:
            return await self._real.assign(request, conf, workload)
        if workload.ids.node != self._reserve.node:
            raise _refused(f"the reserve is {self._reserve.node}'s, the pod {workload.ids.node}'s")
        if conf.addresses:
            raise _refused("a pod cannot get a particular address")
        usable = [
            await self._usable(workload, version, named)
            for version, is_wanted, named in (
                (4, conf.ipam.assign_ipv4, conf.ipam.ipv4_pools),
                (6, conf.ipam.assign_ipv6, conf.ipam.ipv6_pools),
            )
            if is_wanted
        ]
        found = self._reserve.take(holder_of(workload.handle_id, workload.ifname), usable)
        if found is None:
            raise _refused("the offline reserve has no address left for this pod")
        self.is_ours = True
        self.attributes = self._real.attributes(request, workload)
        self.taken = tuple(map(str, found))
        return self.taken

    async def claim(self, request: Request, conf: NetConf, workload: Workload) -> Bound:
        """Errors: always CniError code 11: another node may use the claim at this moment."""
        raise _refused("a pod cannot get its sticky address")

    async def _usable(
        self, workload: Workload, version: int, named: tuple[str, ...]
    ) -> tuple[pools.Pool, ...]:
        """As an automatic request would choose, from what felix knew last."""
        known = (await self._source.facts()).pools
        query = pools.PoolQuery(
            version=version,
            host=workload.ids.node,
            use=WORKLOAD,
            node_labels=await self._source.node_labels(workload.ids.node),
            explicit=named_pools(named, known, version),
        )
        return pools.select(known, query).usable

    async def release(self, request: Request, conf: NetConf, handle_id: str) -> None:
        if is_delegated(conf):
            await self._real.release(request, conf, handle_id)
        await self.release_handle(handle_id)

    async def release_handle(self, handle_id: str) -> None:
        """The last step of whatever undoes this request's attachment: the entry and its addresses
        go together. Errors: CniError code 11."""
        of = self._request
        if handle_id != cni_handle_id(of.network, of.container_id):
            return
        entry = self._journal.of_attachment(of.network, of.container_id, of.ifname)
        if entry is not None:
            if entry.is_begun:
                raise _refused("the container's former pod is being recorded")
            await in_thread(partial(self._journal.remove, entry))
        self._reserve.put_back(holder_of(handle_id, of.ifname), is_safe=True)

    async def release_but(self, handle_id: str, kept: Sequence[str]) -> None:
        await self._real.release_but(handle_id, kept)

    async def held(self, handle_id: str) -> tuple[str, ...]:
        return ()

    async def handles(self, network: str, node: str) -> tuple[str, ...]:
        return ()

    async def ask(self, request: Request, conf: NetConf, verb: str) -> None:
        await self._real.ask(request, conf, verb)

    async def shortage(self, conf: NetConf) -> str:
        return ""


def _refused(reason: str) -> CniError:
    return CniError(Code.TRY_AGAIN_LATER, f"the datastore is away: {reason}")


class OfflineStore(EndpointStore):
    """The journal, over what felix knew last. Nothing here asks the datastore."""

    def __init__(
        self,
        real: EndpointStore,
        journal: Journal,
        addresses: OfflineAddresses,
        *,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(real.datastore, real.facts)
        self._journal, self._addresses, self._on_change = journal, addresses, on_change

    async def is_datastore_ready(self) -> bool:
        """It was, when felix came in sync."""
        return True

    async def find(self, workload: Workload) -> list[Stored]:
        return self.recall(workload)

    def recall(self, workload: Workload) -> list[Stored]:
        found = {stored.key: stored for stored in super().recall(workload)}
        found |= {s.key: s for s in self._journalled() if workload.is_same_workload(s.key.name)}
        return [s for s in found.values() if s.key.namespace == workload.key.namespace]

    async def read(self, key: ResourceKey) -> Stored | None:
        return next((s for s in reversed(self._journalled()) if s.key == key), None)

    async def on_node(self, node: str) -> list[Stored]:
        known = [] if self.facts is None else self.facts.local.all()
        return [*known, *self._journalled()]

    async def names_on(self, node: str) -> InterfaceNames:
        return NamesOf(await self.on_node(node))

    async def ensure_profile(self, workload: Workload, conf: NetConf) -> None:
        """Errors: CniError code 11 when the network's profile would have to be made."""
        if workload.is_kubernetes and conf.is_kubernetes_policy:
            return
        if self.facts is None or not self.facts.has_profile(conf.name):
            raise _refused(f"the profile of network {conf.name} is not there yet")

    async def save(
        self,
        endpoint: WorkloadEndpoint,
        existing: Stored | None,
        succession: Succession | None = None,
    ) -> int:
        """On the disk when this returns. Errors: CniError code 11."""
        entry = self._entry(endpoint, existing)
        try:
            await in_thread(partial(self._journal.write, entry))
        except SpoolRefused as err:
            raise _refused(str(err)) from err
        self._on_change()
        return 0

    def _entry(self, endpoint: WorkloadEndpoint, existing: Stored | None) -> OfflinePod:
        metadata, spec, of = endpoint.metadata, endpoint.spec, self._addresses
        container = spec.container_id or ""
        replaces: tuple[str, ...] = ()
        if existing is not None:
            before = self._journal.youngest(existing.key)
            replaces = (*(before.replaces if before else ()), existing.container_id)
        return OfflinePod(
            network=of.network,
            container_id=container,
            ifname=spec.endpoint or "",
            namespace=metadata.namespace,
            endpoint=metadata.name,
            handle_id=cni_handle_id(of.network, container) if of.is_ours else "",
            queued_at=time.time(),
            addresses=of.taken,
            attributes=of.attributes,
            record=encode(endpoint).decode(),
            replaces=replaces,
        )

    async def delete(self, stored: Stored) -> bool:
        """The entry goes last, with its addresses (OfflineAddresses.release_handle)."""
        return True

    def _journalled(self) -> list[Stored]:
        """The youngest last."""
        return [
            Stored(entry.workload_key, entry.workload_endpoint(), 0)
            for entry in self._journal.entries()
        ]
