"""STATUS: could an ADD of this network be done now?

Layer: edge. Used by cni.agent. Source: CNI SPEC 1.1.0 "STATUS". Error 50: no ADD can be done; 51:
besides, what is connected already may have lost its network or its policy's newest state. Another
IPAM plugin is asked as well, its error is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass

from cni import delegate, netconf
from cni.addresses import AddressManager
from cni.endpoints import EndpointStore
from cni.netconf import CALICO_IPAM, NetConf
from cni.ports import EndpointProgrammer
from cni.skel import CniError, Code, Request
from libcalico.errors import SuiteError


@dataclass(frozen=True, slots=True)
class StatusOperation:
    programmer: EndpointProgrammer
    store: EndpointStore
    addresses: AddressManager

    async def run(self, request: Request) -> None:
        """Errors: CniError 50 or 51, or the delegate's own."""
        conf = netconf.parse(request)
        trouble = self.programmer.trouble()
        if trouble:
            raise CniError(Code.LIMITED_CONNECTIVITY, trouble)
        if not self.programmer.is_ready():
            raise _unavailable("felix is not in sync with the datastore yet")
        try:
            is_ready, shortage = await self._ask(conf)
        except SuiteError as err:
            raise _unavailable(str(err)) from err
        if not is_ready:
            raise _unavailable("the datastore is locked: ClusterInformation is not ready")
        if shortage:
            raise _unavailable(shortage)
        if conf.ipam.type and conf.ipam.type != CALICO_IPAM:
            try:
                delegate.find(conf.ipam.type, request.path)
            except CniError as err:
                raise _unavailable(err.msg) from err
        await self.addresses.ask(request, conf, "STATUS")

    async def _ask(self, conf: NetConf) -> tuple[bool, str]:
        return await self.store.is_datastore_ready(), await self.addresses.shortage(conf)


def _unavailable(said: str) -> CniError:
    return CniError(Code.PLUGIN_NOT_AVAILABLE, said)
