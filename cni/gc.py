"""GC: remove what this network holds on this node for attachments the runtime does not know.

Layer: edge. Used by cni.agent. Source: CNI SPEC 1.1.0 "GC". The list's absence means the runtime
did not say (libcni passes nil): then nothing is known to be garbage and nothing is removed. One
attachment that cannot be removed never stops the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cni import netconf
from cni.addresses import AddressManager
from cni.delete import DeleteOperation
from cni.endpoints import EndpointStore
from cni.facts import Stored
from cni.identity import CNI, DEFAULT_NAMESPACE, KUBERNETES
from cni.ports import EndpointProgrammer
from cni.skel import CniError, Code, Request
from libcalico.errors import SuiteError
from libcalico.model.names import cni_handle_id
from libcalico.runtime import log

LOG = log.get(__name__)
VALID = "cni.dev/valid-attachments"


@dataclass(frozen=True, slots=True)
class GcOperation:
    programmer: EndpointProgrammer
    store: EndpointStore
    addresses: AddressManager

    async def run(self, request: Request) -> None:
        """Errors: CniError 100 naming what could not be removed; 7 for a list of the wrong form."""
        valid = valid_attachments(request.config)
        if valid is None:
            return
        conf = netconf.parse(request)
        settings = self.programmer.settings()
        failures = []
        for stored in await self.store.on_node(settings.node_name):
            attachment = (stored.container_id, stored.endpoint.spec.endpoint or "")
            if attachment in valid or not await self._is_ours(conf.name, stored):
                continue
            try:
                await self._delete(request, stored)
            except SuiteError as err:
                failures.append(f"{stored.key.name}: {err}")
        valid_containers = {container for container, _ in valid}
        for handle in await self.addresses.handles(conf.name, settings.node_name):
            if handle.removeprefix(f"{conf.name}.") not in valid_containers:
                LOG.info("releasing leaked addresses", handle=handle)
                await self.addresses.release(request, conf, handle)
        if failures:
            raise CniError(Code.NETWORKING_FAILED, "; ".join(failures))

    async def _is_ours(self, network: str, stored: Stored) -> bool:
        """An endpoint belongs to the network whose IPAM handle holds its addresses."""
        return bool(await self.addresses.held(cni_handle_id(network, stored.container_id)))

    async def _delete(self, request: Request, stored: Stored) -> None:
        settings = self.programmer.settings()
        spec = stored.endpoint.spec
        args = {}
        if spec.orchestrator == KUBERNETES:
            args = {"K8S_POD_NAME": spec.pod or "", "K8S_POD_NAMESPACE": stored.key.namespace}
        elif spec.orchestrator != CNI or stored.key.namespace != DEFAULT_NAMESPACE:
            return
        LOG.info("removing a garbage attachment", endpoint=stored.key.name)
        gone = replace(
            request,
            container_id=stored.container_id,
            ifname=spec.endpoint or "",
            netns="",
            args=args,
        )
        operation = DeleteOperation(
            self.store,
            self.addresses,
            settings.node_name,
            settings.interface_prefix,
            self.programmer,
        )
        await operation.run(gone)


def valid_attachments(config: Mapping[str, object]) -> set[tuple[str, str]] | None:
    """(container id, interface) pairs; None when the runtime gave no list."""
    listed = config.get(VALID)
    if listed is None:
        return None
    if not isinstance(listed, list):
        raise CniError(Code.INVALID_CONFIG, f"{VALID}: must be a list", repr(listed))
    found = set()
    for entry in listed:
        if not isinstance(entry, Mapping):
            raise CniError(Code.INVALID_CONFIG, f"{VALID}: must hold objects", repr(entry))
        found.add((str(entry.get("containerID", "")), str(entry.get("ifname", ""))))
    return found
