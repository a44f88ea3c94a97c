"""ADD: addresses, wire, then policy and record; and all of it undone when any step fails.

Layer: edge. Used by cni.agent. The steps and their order are cni.ports'. Each step that leaves
something behind pushes what undoes it on a stack; success clears the stack.

  A1  the answer is given only when route and policy are in the kernel and the endpoint is stored;
  A2  a failed, refused or aborted ADD leaves no address, interface, endpoint or policy behind;
  A3  a repeated ADD of the same container and interface answers what the first one did;
  A4  a new container of the same pod takes the endpoint over; its predecessor's late DEL finds the
      container id changed and leaves it alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from cni import netconf, results, veth
from cni.addresses import AddressManager
from cni.endpoints import EndpointStore, build
from cni.facts import Stored
from cni.identity import Workload, identify
from cni.netconf import NetConf
from cni.ports import EndpointProgrammer, HostSettings
from cni.results import Interface, IPConfig, Result
from cni.skel import CniError, Code, Request
from cni.threads import both, in_thread
from cni.veth import HOST_MAC, PodWire, host_cidr
from libcalico.errors import AlreadyExists, Conflict, NotFound, SuiteError
from libcalico.model import WorkloadEndpoint
from libcalico.runtime import log

LOG = log.get(__name__)
Undo = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is written of an attachment; `existing` is the endpoint it takes over, if there is."""

    workload: Workload
    endpoint: WorkloadEndpoint
    existing: Stored | None


@dataclass(frozen=True, slots=True)
class AddOperation:
    """What ADD works with; one per agent, no state of its own."""

    programmer: EndpointProgrammer
    store: EndpointStore
    addresses: AddressManager

    async def run(self, request: Request) -> Result:
        """Errors: CniError, or a SuiteError the agent translates."""
        conf = netconf.parse(request)
        settings = self.programmer.settings()
        workload = identify(
            request, conf, node=settings.node_name, prefix=settings.interface_prefix
        )
        if veth.is_own_namespace(request.netns):
            raise CniError(
                Code.INVALID_NETNS, "plugin's netns and netns from CNI_NETNS are the same"
            )
        if not self.programmer.is_ready():
            raise CniError(Code.TRY_AGAIN_LATER, "felix is not in sync with the datastore yet")
        ready, known, _ = await asyncio.gather(
            self.store.is_datastore_ready(),
            self.store.find(workload),
            self.store.ensure_profile(workload, conf),
        )
        if not ready:
            raise CniError(
                Code.TRY_AGAIN_LATER, "the datastore is locked: ClusterInformation is not ready"
            )
        workload = _with_free_interface(workload, known)
        existing = next((stored for stored in known if stored.key == workload.key), None)
        if existing is not None and existing.container_id == workload.container_id:
            before = await self._repeated(request, conf, existing)
            if before is not None:
                return before
        result = await self._connect(request, conf, workload, existing=existing, settings=settings)
        return _merged(conf, result)

    async def _repeated(self, request: Request, conf: NetConf, existing: Stored) -> Result | None:
        """A3. None when the wire is not there any more: the container got a new namespace."""
        spec = existing.endpoint.spec
        addresses = tuple(network.partition("/")[0] for network in spec.ip_networks)
        wire = PodWire(
            host_name=spec.interface_name or "",
            pod_name=request.ifname,
            netns=request.netns,
            addresses=addresses,
            routes=() if conf.default_routes else None,
        )
        if await asyncio.to_thread(veth.check, wire):
            await self.addresses.release(request, conf, existing_handle(request))
            return None
        await self.programmer.program(existing.key, existing.endpoint)
        await self.programmer.confirm(existing.key, existing.revision)
        return _merged(conf, _result(wire, mac=spec.mac or "", mtu_bytes=conf.mtu_bytes))

    async def _connect(
        self,
        request: Request,
        conf: NetConf,
        workload: Workload,
        *,
        existing: Stored | None,
        settings: HostSettings,
    ) -> Result:
        undo: list[Undo] = []
        wire = PodWire(
            host_name=workload.interface,
            pod_name=workload.ifname,
            netns=request.netns,
            addresses=(),
            mtu_bytes=conf.mtu_bytes or settings.mtu_bytes,
            # Ours to choose, so that the record need not wait for the kernel's choice.
            mac=conf.mac or random_mac(),
            routes=() if conf.default_routes else None,
            allow_ip_forwarding=conf.allow_ip_forwarding,
        )
        # Only a wire that we made is ours to remove: the name may be somebody else's interface.
        wired: list[PodWire] = []
        try:
            # Pushed before the attempt: an assignment whose answer was lost must be undone as well.
            undo.append(lambda: self.addresses.release(request, conf, workload.handle_id))
            undo.append(lambda: in_thread(lambda: _unwire(wired)))
            mtu_bytes, assigned = await both(
                in_thread(lambda: _prepared(wire, wired)),
                self.addresses.assign(request, conf, workload),
            )
            wire = replace(wire, addresses=assigned, mtu_bytes=mtu_bytes or wire.mtu_bytes)
            endpoint = build(workload, conf, addresses=assigned, mac=wire.mac)
            undo.append(lambda: self.programmer.retract(workload.key))
            undo.append(lambda: self._forget(workload))
            made = await self._make(wire, wired, Recorded(workload, endpoint, existing))
        except (AlreadyExists, Conflict, NotFound) as err:
            await _undo_all(undo, workload)
            said = "another request for the same pod came first"
            if isinstance(err, NotFound):
                said = "something the pod needs is gone from the datastore"
            raise CniError(Code.TRY_AGAIN_LATER, said, str(err)) from err
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(_undo_all(undo, workload)))
            raise
        LOG.info(
            "pod connected",
            endpoint=workload.key.name,
            ifname=workload.interface,
            addresses=" ".join(assigned),
        )
        return _result(wire, mac=made.mac, mtu_bytes=made.mtu_bytes)

    async def _make(self, wire: PodWire, wired: list[PodWire], recorded: Recorded) -> veth.MadeWire:
        """The rest of the wire, then policy, and the record meanwhile: the datastore's answer is
        waited for last."""
        key = recorded.workload.key

        async def in_kernel() -> veth.MadeWire:
            made = await in_thread(lambda: _created(wire, wired))
            await self.programmer.program(key, recorded.endpoint)
            return made

        made, revision = await both(
            in_kernel(), self.store.save(recorded.endpoint, recorded.existing)
        )
        await self.programmer.confirm(key, revision)
        return made

    async def _forget(self, workload: Workload) -> None:
        """Remove the record of this container, if it came to one."""
        for stored in await self.store.find(workload):
            if stored.key == workload.key and stored.container_id == workload.container_id:
                await self.store.delete(stored)


def existing_handle(request: Request) -> str:
    return f"{request.network}.{request.container_id}"


def _prepared(wire: PodWire, wired: list[PodWire]) -> int:
    """`wired` gets the wire when it is made, also when nobody waits for it any more."""
    mtu_bytes = veth.prepare(wire)
    if mtu_bytes:
        wired.append(wire)
    return mtu_bytes


def _created(wire: PodWire, wired: list[PodWire]) -> veth.MadeWire:
    made = veth.create(wire, is_prepared=bool(wired))
    if not wired:
        wired.append(wire)
    return made


def _unwire(wired: list[PodWire]) -> None:
    for wire in wired:
        veth.delete_in_pod(wire.netns, wire.pod_name)


def random_mac() -> str:
    """Locally administered, unicast (IEEE 802: the two low bits of the first octet)."""
    octets = bytearray(os.urandom(6))
    octets[0] = octets[0] & 0xFC | 0x02
    return octets.hex(":")


async def _undo_all(undo: list[Undo], workload: Workload) -> None:
    """Last first; one step that fails does not keep the others from being undone."""
    for step in reversed(undo):
        try:
            await step()
        except SuiteError as err:
            LOG.warning("could not undo a failed ADD", endpoint=workload.key.name, error=err)


def _with_free_interface(workload: Workload, known: list[Stored]) -> Workload:
    """A second interface of the same workload needs another host name than the first: there the
    rule of datamodel 1.7 gives one name to both."""
    taken = {s.endpoint.spec.interface_name for s in known if s.key != workload.key}
    if workload.interface not in taken:
        return workload
    seed = f"{workload.key.namespace}.{workload.key.name}"
    digest = hashlib.sha1(seed.encode(), usedforsecurity=False).hexdigest()
    prefix = workload.interface[:-11]
    return replace(workload, interface=prefix + digest[:11])


def _result(wire: PodWire, *, mac: str, mtu_bytes: int) -> Result:
    host = Interface(wire.host_name, HOST_MAC, mtu_bytes=mtu_bytes)
    pod = Interface(wire.pod_name, mac, wire.netns, mtu_bytes)
    ips = tuple(IPConfig(host_cidr(address), interface=1) for address in wire.addresses)
    return Result((host, pod), ips)


def _merged(conf: NetConf, result: Result) -> Result:
    """Chained behind another plugin: what it made stays in the result, before ours."""
    if conf.prev_result is None:
        return replace(result, dns=conf.dns)
    before = results.parse(conf.prev_result)
    shift = len(before.interfaces)
    moved = tuple(replace(ip, interface=(ip.interface or 0) + shift) for ip in result.ips)
    return Result(
        before.interfaces + result.interfaces,
        before.ips + moved,
        before.routes + result.routes,
        conf.dns or before.dns,
    )
