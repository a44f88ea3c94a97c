"""GC: remove what this network holds on this node for attachments the runtime does not know.

Layer: edge. Used by cni.agent. Source: CNI SPEC 1.1.0 "GC". The list's absence means the runtime
did not say (libcni passes nil): then nothing is known to be garbage and nothing is removed. One
attachment that cannot be removed never stops the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from cni import netconf
from cni.addresses import AddressManager
from cni.delete import DeleteOperation
from cni.endpoints import NETWORK_ANNOTATION, EndpointStore
from cni.facts import Stored
from cni.identity import CNI, KUBERNETES
from cni.netconf import CALICO_IPAM
from cni.ports import EndpointProgrammer
from cni.skel import CniError, Code, Request
from cni.wirer import ThreadWirer, Wirer
from libcalico.errors import SuiteError
from libcalico.model.keys import ResourceKey
from libcalico.model.names import cni_handle_id
from libcalico.runtime import log

LOG = log.get(__name__)
VALID = "cni.dev/valid-attachments"


@dataclass(frozen=True, slots=True)
class GcOperation:
    """`is_taken` as in cni.delete."""

    programmer: EndpointProgrammer
    store: EndpointStore
    addresses: AddressManager
    is_taken: Callable[[ResourceKey, str], bool] = lambda key, container_id: False
    wirer: Wirer = field(default_factory=ThreadWirer)

    async def run(self, request: Request) -> None:
        """Errors: CniError 100 naming what could not be removed; 7 for a list of the wrong form."""
        valid = valid_attachments(request.config)
        if valid is None:
            return
        conf = netconf.parse(request)
        settings = self.programmer.settings()
        failures: list[str] = []
        for stored in await self.store.on_node(settings.node_name):
            attachment = (stored.container_id, stored.endpoint.spec.endpoint or "")
            if attachment in valid or not await self._is_ours(conf.name, stored):
                continue
            async with _collecting(failures, stored.key.name):
                await self._delete(request, stored)
        valid_containers = {container for container, _ in valid}
        if conf.ipam.type == CALICO_IPAM:
            for handle in await self.addresses.handles(conf.name, settings.node_name):
                if handle.removeprefix(f"{conf.name}.") in valid_containers:
                    continue
                LOG.info("releasing leaked addresses", handle=handle)
                async with _collecting(failures, handle):
                    await self.addresses.release(request, conf, handle)
        async with _collecting(failures, f"IPAM plugin {conf.ipam.type}"):
            await self.addresses.ask(request, conf, "GC")
        if failures:
            raise CniError(Code.NETWORKING_FAILED, "; ".join(failures))

    async def _is_ours(self, network: str, stored: Stored) -> bool:
        """What ADD noted; an endpoint of Calico's plugin, which notes nothing, belongs to the
        network whose IPAM handle holds its addresses."""
        noted = stored.endpoint.metadata.annotations.get(NETWORK_ANNOTATION)
        if noted is not None:
            return noted == network
        return bool(await self.addresses.held(cni_handle_id(network, stored.container_id)))

    async def _delete(self, request: Request, stored: Stored) -> None:
        settings = self.programmer.settings()
        spec = stored.endpoint.spec
        args = {}
        if spec.orchestrator == KUBERNETES:
            args = {"K8S_POD_NAME": spec.pod or "", "K8S_POD_NAMESPACE": stored.key.namespace}
        elif spec.orchestrator != CNI:
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
            is_taken=self.is_taken,
            wirer=self.wirer,
        )
        await operation.run(gone)


@asynccontextmanager
async def _collecting(failures: list[str], what: str) -> AsyncIterator[None]:
    try:
        yield
    except SuiteError as err:
        failures.append(f"{what}: {err}")


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
        pair = (entry.get("containerID"), entry.get("ifname"))
        if not all(isinstance(part, str) and part for part in pair):
            # A list that is misread would make garbage of what is valid.
            raise CniError(
                Code.INVALID_CONFIG, f"{VALID}: an entry needs containerID and ifname", repr(entry)
            )
        found.add((str(pair[0]), str(pair[1])))
    return found
