"""`calico-ipam`: our IPAM for other plugins (bridge, macvlan, ipvlan) that delegate to it.

Layer: edge. Used by cni.agent and cni.standalone. The result has no interfaces, as the
specification asks of an IPAM plugin; addresses are /32 and /128, as Calico's plugin gives them.
"""

from __future__ import annotations

from cni import netconf
from cni.addresses import AddressManager
from cni.delete import left_of, put_off
from cni.identity import identify
from cni.ports import EndpointProgrammer
from cni.queue import AWAY, DeleteQueue
from cni.results import IPConfig, Result
from cni.skel import CniError, Code, Request, Verb
from cni.veth import host_cidr


class IpamPlugin:
    """One request. ADD assigns, DEL releases (or queues that, D3), CHECK and STATUS tell whether
    that would work."""

    def __init__(
        self,
        addresses: AddressManager,
        programmer: EndpointProgrammer,
        queue: DeleteQueue | None = None,
    ) -> None:
        self._addresses = addresses
        self._programmer = programmer
        self._queue = queue

    async def run(self, request: Request) -> Result | None:
        conf = netconf.parse(request)
        if request.verb is Verb.STATUS or request.verb is Verb.GC:
            if not self._programmer.is_ready():
                raise CniError(Code.PLUGIN_NOT_AVAILABLE, "felix is not in sync yet")
            return None
        settings = self._programmer.settings()
        workload = identify(
            request, conf, node=settings.node_name, prefix=settings.interface_prefix
        )
        if request.verb is Verb.ADD:
            if conf.ipam.sticky:
                said = "ipam.sticky: the pods of other plugins have no endpoint to hold a claim"
                raise CniError(Code.INVALID_CONFIG, said)
            found = await self._addresses.assign(request, conf, workload)
            return Result(ips=tuple(IPConfig(host_cidr(address)) for address in found))
        if request.verb is Verb.DEL:
            try:
                await self._addresses.release(request, conf, workload.handle_id)
            except AWAY as err:
                left = left_of(workload, conf, has_endpoint=False)
                await put_off(self._queue, left, err)
            return None
        held = await self._addresses.held(workload.handle_id)
        if not held:
            raise CniError(Code.NETWORKING_FAILED, f"no address is held by {workload.handle_id}")
        return None
