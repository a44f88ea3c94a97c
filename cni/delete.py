"""DEL: everything of one attachment goes, whatever is left of it; gone already is success.

Layer: edge. Used by cni.agent, and by cni.standalone when felix is down (no programmer then: felix
removes route and policy by itself once it is back and sees the endpoint gone).

  D1  an endpoint that another container has taken over is left alone, its wire as well;
  D2  the wire is gone before the addresses are free: nobody gets an address that still answers;
  D3  with the datastore away the local part is done all the same, then the runtime is told to try
      again (code 11): it will, and the rest is done then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cni import netconf, veth
from cni.addresses import AddressManager
from cni.endpoints import EndpointStore
from cni.facts import Stored
from cni.identity import identify
from cni.ports import EndpointProgrammer
from cni.skel import CniError, Code, Request
from libcalico.errors import Transient
from libcalico.runtime import log

LOG = log.get(__name__)


@dataclass(frozen=True, slots=True)
class DeleteOperation:
    """`programmer` None: felix is not running, only the datastore and the wire are dealt with."""

    store: EndpointStore
    addresses: AddressManager
    node_name: str
    interface_prefix: str
    programmer: EndpointProgrammer | None = None

    async def run(self, request: Request) -> None:
        """Errors: CniError code 11 when something has to be tried again."""
        conf = netconf.parse(request)
        workload = identify(request, conf, node=self.node_name, prefix=self.interface_prefix)
        problem: Transient | None = None
        mine: list[Stored] = []
        try:
            known = await self.store.find(workload)
            mine = [
                stored
                for stored in known
                if stored.key == workload.key and stored.container_id == request.container_id
            ]
            await self._forget(mine)
        except Transient as err:
            problem = err
        is_gone = await asyncio.to_thread(veth.delete_in_pod, request.netns, request.ifname)
        if not is_gone:
            for stored in mine:
                name = stored.endpoint.spec.interface_name
                if name:
                    await asyncio.to_thread(veth.delete_on_host, name)
        if problem is None:
            try:
                await self.addresses.release(request, conf, workload.handle_id)
            except Transient as err:
                problem = err
        if problem is not None:
            raise CniError(Code.TRY_AGAIN_LATER, "the datastore is away", str(problem))
        LOG.info("pod disconnected", endpoint=workload.key.name, known=len(mine))

    async def _forget(self, mine: list[Stored]) -> None:
        for stored in mine:
            await self.store.delete(stored)
            if self.programmer is not None:
                await self.programmer.retract(stored.key)
