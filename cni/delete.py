"""DEL: everything of one attachment goes, whatever is left of it; gone already is success.

Layer: edge. Used by cni.agent, and by cni.standalone when felix is down (no programmer then: felix
removes route and policy by itself once it is back and sees the endpoint gone).

  D1  an endpoint that another container has taken over is left alone, its wire as well;
  D2  the wire is gone before the addresses are free: nobody gets an address that still answers;
  D3  with the datastore away, locked or refusing us the local part is done all the same: wire,
      route, policy, and another IPAM plugin's DEL. The rest is queued on disk (cni.queue) and the
      runtime gets its success; what cannot be queued is answered with code 11: it tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cni import netconf
from cni.addresses import AddressManager, is_delegated
from cni.endpoints import NETWORK_ANNOTATION, EndpointStore
from cni.facts import Stored
from cni.identity import Workload, identify
from cni.netconf import NetConf
from cni.ports import EndpointProgrammer
from cni.queue import AWAY, UNREADABLE, DeleteQueue, QueuedDelete, QueueRefused
from cni.skel import CniError, Code, Request
from cni.threads import both
from cni.wirer import ThreadWirer, Wirer
from libcalico.errors import DatastoreUnavailable
from libcalico.model.keys import ResourceKey
from libcalico.model.names import cni_handle_id
from libcalico.runtime import log

LOG = log.get(__name__)
# For each of the two parts. A runtime waits for minutes, but not for ever; a datastore that drops
# packets costs ten seconds a call.
PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class DeleteOperation:
    """`programmer` None: felix is not running, only the datastore and the wire are dealt with.
    `queue` None: with the datastore away the runtime has to try again. `is_taken(key, container)`:
    another container has the endpoint, though the datastore does not say so yet (D1)."""

    store: EndpointStore
    addresses: AddressManager
    node_name: str
    interface_prefix: str
    programmer: EndpointProgrammer | None = None
    queue: DeleteQueue | None = None
    is_taken: Callable[[ResourceKey, str], bool] = lambda key, container_id: False
    wirer: Wirer = field(default_factory=ThreadWirer)

    async def run(self, request: Request) -> None:
        """Errors: CniError code 11 when something has to be tried again."""
        conf = netconf.parse_for_delete(request)
        workload = identify(request, conf, node=self.node_name, prefix=self.interface_prefix)
        # From inside the pod only this container's wire can be hit, whoever owns the record: so
        # the kernel need not wait for the datastore.
        (mine, problem), is_unwired = await both(
            self._forget_or_retract(workload),
            self.wirer.delete_in_pod(request.netns, request.ifname),
        )
        if not is_unwired:
            await self._unwire_on_host(mine)
        if is_delegated(conf):
            await self.addresses.release(request, conf, workload.handle_id)
        elif problem is None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self.addresses.release(request, conf, workload.handle_id)
            except (*AWAY, *UNREADABLE) as err:
                problem = err
        if problem is not None:
            await put_off(self.queue, left_of(workload, conf), problem)
            return
        LOG.info("pod disconnected", endpoint=workload.key.name, known=len(mine))

    async def _forget_or_retract(self, workload: Workload) -> tuple[list[Stored], Exception | None]:
        """What was this container's, and why its record is still in the datastore (D3)."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._forget(workload), None
        except AWAY as err:
            mine = self._of_this_container(workload, self.store.recall(workload))
            await self._retract(mine)
            return mine, err

    async def _forget(self, workload: Workload) -> list[Stored]:
        """Delete the record, then route and policy. Returns what was this container's."""
        if not await self.store.is_datastore_ready():
            raise DatastoreUnavailable("the datastore is locked")
        mine = self._of_this_container(workload, await self.store.find(workload))
        for stored in mine:
            if await self.store.delete(stored):
                await self._retract([stored])
        return mine

    def _of_this_container(self, workload: Workload, known: list[Stored]) -> list[Stored]:
        return [
            stored
            for stored in known
            if stored.key == workload.key and stored.container_id == workload.container_id
        ]

    async def _retract(self, mine: list[Stored]) -> None:
        for stored in mine:
            if self.programmer is not None:
                await self.programmer.retract(stored.key)

    async def _unwire_on_host(self, mine: list[Stored]) -> None:
        """Without the pod's namespace the record is what names the wire."""
        for stored in mine:
            name = stored.endpoint.spec.interface_name
            if name and not self.is_taken(stored.key, stored.container_id):
                await self.wirer.delete_on_host(name)


def left_of(workload: Workload, conf: NetConf, *, has_endpoint: bool = True) -> QueuedDelete:
    """What of a DEL the datastore has yet to hear."""
    return QueuedDelete(
        network=conf.name,
        container_id=workload.container_id,
        ifname=workload.ifname,
        namespace=workload.key.namespace,
        endpoint=workload.key.name if has_endpoint else "",
        handle_id="" if is_delegated(conf) else workload.handle_id,
        queued_at=time.time(),
    )


def left_of_stale(stored: Stored, *, has_endpoint: bool = True) -> QueuedDelete:
    """What a DEL would have done that never came (cni.sweep). The addresses go by their handle;
    those of another IPAM plugin have none with us and stay for its own DEL and GC."""
    network = stored.endpoint.metadata.annotations[NETWORK_ANNOTATION]
    return QueuedDelete(
        network=network,
        container_id=stored.container_id,
        ifname=stored.endpoint.spec.endpoint or "",
        namespace=stored.key.namespace,
        endpoint=stored.key.name if has_endpoint else "",
        handle_id=cni_handle_id(network, stored.container_id),
        queued_at=time.time(),
    )


async def put_off(queue: DeleteQueue | None, left: QueuedDelete, problem: Exception) -> None:
    """D3. Errors: CniError code 11 when it cannot be queued."""
    reason = str(problem) or "it did not answer in time"
    if queue is None:
        raise CniError(Code.TRY_AGAIN_LATER, _said(problem), reason) from problem
    try:
        await queue.put(left)
    except QueueRefused as err:
        said = f"{_said(problem)} and the DEL cannot be queued"
        raise CniError(Code.TRY_AGAIN_LATER, said, f"{err}; {reason}") from err
    LOG.warning("DEL queued until the datastore is back", container=left.container_id, error=reason)


def _said(problem: Exception) -> str:
    return "an object is unreadable" if isinstance(problem, UNREADABLE) else "the datastore is away"
