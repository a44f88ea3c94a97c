"""`calico-ipam`: our IPAM for other plugins (bridge, macvlan, ipvlan) that delegate to it.

Layer: edge. Used by cni.agent; its DEL also by cni.standalone. The result has no interfaces, as the
specification asks of an IPAM plugin; addresses are /32 and /128, as Calico's plugin gives them.

  I1  ADD gives every address that is asked for or none, and only in this node's name;
  I2  DEL lets go whatever the rest of the configuration says: the handle follows from the network's
      name and the container alone;
  I3  GC does nothing: which addresses are valid only the plugin knows that has them from us.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from cni import netconf, nodefiles
from cni.addresses import AddressManager
from cni.delete import PATIENCE_S, put_off
from cni.endpoints import EndpointStore
from cni.identity import identify
from cni.netconf import CALICO_IPAM, NetConf
from cni.ports import EndpointProgrammer
from cni.queue import AWAY, UNREADABLE, DeleteQueue, QueuedDelete
from cni.results import IPConfig, Result
from cni.skel import CniError, Code, Request, Verb
from cni.threads import to_the_end
from cni.veth import host_cidr
from libcalico.errors import DatastoreUnavailable, SuiteError
from libcalico.model.names import cni_handle_id
from libcalico.runtime import log

LOG = log.get(__name__)
_LOCKED = "the datastore is locked: ClusterInformation is not ready"
_NOT_IN_SYNC = "felix is not in sync with the datastore yet"


@dataclass(frozen=True, slots=True)
class IpamPlugin:
    """One request. ADD assigns, DEL releases (or queues that, D3), CHECK and STATUS tell whether
    that would work. Its requests run one after the other for each container: they share a handle.
    """

    addresses: AddressManager
    store: EndpointStore
    programmer: EndpointProgrammer
    queue: DeleteQueue | None = None

    async def run(self, request: Request) -> Result | None:
        """Errors: CniError, or a SuiteError the agent translates."""
        if request.verb is Verb.DEL:
            await delete(request, self.store, self.addresses, self.queue)
            return None
        conf = netconf.parse(request)
        # By whatever name it was found: who executes this has chosen it.
        conf = replace(conf, ipam=replace(conf.ipam, type=CALICO_IPAM))
        match request.verb:
            case Verb.ADD:
                found = await self._add(request, conf)
                return Result(ips=tuple(IPConfig(host_cidr(address)) for address in found))
            case Verb.CHECK:
                handle_id = cni_handle_id(request.network, request.container_id)
                if not await self.addresses.held(handle_id):
                    raise CniError(Code.NETWORKING_FAILED, f"no address is held by {handle_id}")
            case Verb.STATUS:
                await self._check_status(conf)
        return None

    async def _add(self, request: Request, conf: NetConf) -> tuple[str, ...]:
        if conf.ipam.sticky:
            said = "ipam.sticky: the pods of other plugins have no endpoint to hold a claim"
            raise CniError(Code.INVALID_CONFIG, said)
        settings = self.programmer.settings()
        nodefiles.check_node_name(conf.node, settings.node_name)
        workload = identify(
            request, conf, node=settings.node_name, prefix=settings.interface_prefix
        )
        if not self.programmer.is_ready():
            raise CniError(Code.TRY_AGAIN_LATER, _NOT_IN_SYNC)
        if not await self.store.is_datastore_ready():
            raise CniError(Code.TRY_AGAIN_LATER, _LOCKED)
        # Another interface of the container, or an ADD that was answered before: these stay.
        before = await self.addresses.held(workload.handle_id)
        try:
            return await self.addresses.assign(request, conf, workload)
        except BaseException:
            await to_the_end(self._give_back(workload.handle_id, before))
            raise

    async def _give_back(self, handle_id: str, before: tuple[str, ...]) -> None:
        try:
            await self.addresses.release_but(handle_id, before)
        except SuiteError as err:
            # The DEL that follows a failed ADD releases the handle.
            LOG.warning("could not undo a failed ADD", handle=handle_id, error=err)

    async def _check_status(self, conf: NetConf) -> None:
        try:
            shortage = await self._shortage(conf)
        except SuiteError as err:
            raise CniError(Code.PLUGIN_NOT_AVAILABLE, str(err)) from err
        if shortage:
            raise CniError(Code.PLUGIN_NOT_AVAILABLE, shortage)

    async def _shortage(self, conf: NetConf) -> str:
        if not self.programmer.is_ready():
            return _NOT_IN_SYNC
        if not await self.store.is_datastore_ready():
            return _LOCKED
        return await self.addresses.shortage(conf)


async def delete(
    request: Request,
    store: EndpointStore,
    addresses: AddressManager,
    queue: DeleteQueue | None,
) -> None:
    """I2. Errors: CniError code 11 when it can be neither done nor queued."""
    handle_id = cni_handle_id(request.network, request.container_id)
    try:
        async with asyncio.timeout(PATIENCE_S):
            if not await store.is_datastore_ready():
                raise DatastoreUnavailable("the datastore is locked")
            await addresses.release_handle(handle_id)
    except (*AWAY, *UNREADABLE) as err:
        left = QueuedDelete(
            network=request.network,
            container_id=request.container_id,
            ifname=request.ifname,
            namespace="",
            endpoint="",
            handle_id=handle_id,
            queued_at=time.time(),
        )
        await put_off(queue, left, err)
