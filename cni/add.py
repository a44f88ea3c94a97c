"""ADD: addresses, wire, then policy and record; and all of it undone when any step fails.

Layer: edge. Used by cni.agent. The steps and their order are cni.ports'. Each step that leaves
something behind pushes what undoes it on a stack; success clears the stack.

  A1  the answer is given only when route and policy are in the kernel and the endpoint is stored;
  A2  a failed, refused or aborted ADD leaves no address, interface, endpoint or policy behind; a
      sticky claim stays, it is the pod's and not the container's;
  A3  a repeated ADD of the same container and interface answers what the first one did;
  A4  a new container of the same pod takes the endpoint over; its predecessor's late DEL finds the
      container id changed and leaves it alone. One that gets a sticky address ends, in the write
      that records it, every other endpoint that still has it, on whatever node.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cni import (
    hostlocal,
    netconf,
    nodefiles,
    readiness,
    results,
    sandbox,
    veth,
    wirecheck,
)
from cni.addresses import AddressManager, Foresee
from cni.delete import left_of_stale
from cni.endpoints import (
    NETWORK_ANNOTATION,
    SANDBOX_ANNOTATION,
    EndpointStore,
    Succession,
    build,
)
from cni.facts import Stored
from cni.hostnames import HostNames
from cni.identity import Workload, identify
from cni.netconf import NetConf
from cni.pending import PendingWire
from cni.ports import EndpointProgrammer, HostSettings
from cni.queue import DeleteQueue, QueueRefused
from cni.results import Interface, IPConfig, Result, RouteConfig
from cni.skel import CniError, Code, Request
from cni.threads import both, to_the_end
from cni.veth import HOST_MAC, PodWire, host_cidr
from cni.wirer import ThreadWirer, Wirer
from libcalico.errors import AlreadyExists, Conflict, NotFound, SuiteError
from libcalico.model import WorkloadEndpoint
from libcalico.model.names import cni_handle_id
from libcalico.runtime import log

LOG = log.get(__name__)
Undo = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is written of an attachment; `existing` is the endpoint it takes over, if there is;
    `succession` those it ends, of former users of its sticky addresses."""

    workload: Workload
    endpoint: WorkloadEndpoint
    existing: Stored | None
    succession: Succession | None


@dataclass(frozen=True, slots=True)
class Asked:
    """One ADD: the request (its configuration as a delegate is to see it), parsed, and whose."""

    request: Request
    conf: NetConf
    workload: Workload
    existing: Stored | None = None


@dataclass(frozen=True, slots=True)
class AddOperation:
    """What ADD works with; one per agent. `names` are shared by all requests, `lib_dir` is where
    the node's files are."""

    programmer: EndpointProgrammer
    store: EndpointStore
    addresses: AddressManager
    names: HostNames
    lib_dir: Path
    queue: DeleteQueue | None = None
    wirer: Wirer = field(default_factory=ThreadWirer)

    async def run(self, request: Request) -> Result:
        """Errors: CniError, or a SuiteError the agent translates."""
        asked, settings = await self._asked(request)
        # One after the other: felix knows nearly always, and tasks cost more than its answers.
        if not await self.store.is_datastore_ready():
            raise CniError(
                Code.TRY_AGAIN_LATER, "the datastore is locked: ClusterInformation is not ready"
            )
        known = await self.store.find(asked.workload)
        names = await self.store.names_on(settings.node_name)
        await self.store.ensure_profile(asked.workload, asked.conf)
        existing = next((stored for stored in known if stored.key == asked.workload.key), None)
        asked = replace(asked, existing=existing)
        if existing is not None and existing.container_id == asked.workload.container_id:
            before = await self._repeated(asked, existing)
            if before is not None:
                return before
        await readiness.wait(asked.conf.node.readiness_gates)
        with self.names.claimed(asked.workload, names) as workload:
            result = await self._connect(replace(asked, workload=workload), settings)
        await self._forget_stale(asked)
        return _merged(asked.conf, result)

    async def _forget_stale(self, asked: Asked) -> None:
        """The container that had the endpoint before died without a DEL, as by a reboot, and now
        nothing names its addresses any more: what its DEL would have released is queued."""
        old = asked.existing
        if self.queue is None or old is None or old.container_id == asked.workload.container_id:
            return
        notes = old.endpoint.metadata.annotations
        if not old.container_id or not notes.get(NETWORK_ANNOTATION):
            return
        if sandbox.is_gone(notes.get(SANDBOX_ANNOTATION, ""), sandbox.boot_id()):
            try:
                await self.queue.put(left_of_stale(old, has_endpoint=False))
            except QueueRefused as err:
                LOG.warning(
                    "addresses left to the collector", container=old.container_id, error=err
                )

    async def _asked(self, request: Request) -> tuple[Asked, HostSettings]:
        """Everything that can be said before anything is looked up."""
        conf = netconf.parse(request)
        settings = self.programmer.settings()
        workload = identify(
            request, conf, node=settings.node_name, prefix=settings.interface_prefix
        )
        if conf.features.ip_addrs_no_ipam and not workload.is_kubernetes:
            raise CniError(
                Code.INVALID_CONFIG,
                "requested feature is not supported for this runtime: ip_addrs_no_ipam",
            )
        if conf.prev_result is not None:
            # Merged at the end, when it is too late to refuse it.
            results.parse(conf.prev_result)
        if not self.programmer.is_ready():
            raise CniError(Code.TRY_AGAIN_LATER, "felix is not in sync with the datastore yet")
        nodefiles.check_node_name(conf.node, settings.node_name)
        mtu_bytes = nodefiles.pod_mtu(conf.node, self.lib_dir, settings.mtu_bytes)
        for problem in conf.pod.qos_problems:
            LOG.warning("a limit of the pod is not as written", problem=problem)
        if hostlocal.needs_pod_cidrs(request.config):
            cidrs = await self.store.pod_cidrs(settings.node_name)
            request = hostlocal.with_pod_cidrs(request, cidrs, settings.node_name)
        return Asked(request, conf, workload), replace(settings, mtu_bytes=mtu_bytes)

    async def _repeated(self, asked: Asked, existing: Stored) -> Result | None:
        """A3. None when the wire is not there any more: the container got a new namespace."""
        request, conf = asked.request, asked.conf
        spec = existing.endpoint.spec
        addresses = tuple(network.partition("/")[0] for network in spec.ip_networks)
        wire = PodWire(
            host_name=spec.interface_name or "",
            pod_name=request.ifname,
            netns=request.netns,
            addresses=addresses,
            routes=conf.routes,
        )
        seen = await asyncio.to_thread(wirecheck.wire, wire)
        if seen.problems or seen.host_end is None:
            # A wrong path says nothing about the pod: it keeps what it has.
            veth.check_netns(request.netns)
            await self.addresses.release(request, conf, asked.workload.handle_id)
            return None
        await self.programmer.program(existing.key, existing.endpoint)
        await self.programmer.confirm(existing.key, existing.revision)
        await self.programmer.settled(existing.key)
        answer = _result(
            conf, wire, veth.MadeWire(mac=spec.mac or "", mtu_bytes=seen.host_end.mtu_bytes)
        )
        return _merged(conf, answer)

    async def _connect(self, asked: Asked, settings: HostSettings) -> Result:
        request, conf, workload = asked.request, asked.conf, asked.workload
        undo: list[Undo] = []
        wire = PodWire(
            host_name=workload.interface,
            pod_name=workload.ifname,
            netns=request.netns,
            addresses=(),
            mtu_bytes=settings.mtu_bytes,
            # Ours to choose, so that the record need not wait for the kernel's choice.
            mac=conf.mac or random_mac(),
            routes=conf.routes,
            allow_ip_forwarding=conf.allow_ip_forwarding,
            num_queues=conf.node.num_queues,
        )
        pending = PendingWire(wire, self.wirer)
        try:
            await self._free_the_wanted(asked)
            # Pushed before the attempt: an assignment whose answer was lost must be undone as well.
            undo.append(lambda: self.addresses.release(request, conf, workload.handle_id))
            undo.append(pending.undo)
            assigned, succession = await self._assign(asked, pending.foresee)
            wire = replace(wire, addresses=assigned)
            endpoint = build(
                workload,
                conf,
                addresses=assigned,
                mac=wire.mac,
                sandbox=sandbox.note(request.netns),
            )
            undo.append(lambda: self.programmer.retract(workload.key))
            undo.append(lambda: self._forget(workload))
            recorded = Recorded(workload, endpoint, asked.existing, succession)
            made = await self._make(pending, wire, recorded)
        except (AlreadyExists, Conflict, NotFound) as err:
            await to_the_end(_undo_all(undo, workload))
            said = "another request for the same pod came first"
            if isinstance(err, NotFound):
                said = "something the pod needs is gone from the datastore"
            raise CniError(Code.TRY_AGAIN_LATER, said, str(err)) from err
        except BaseException:
            await to_the_end(_undo_all(undo, workload))
            raise
        LOG.info(
            "pod connected",
            endpoint=workload.key.name,
            ifname=workload.interface,
            addresses=" ".join(assigned),
        )
        return _result(conf, wire, made)

    async def _assign(
        self, asked: Asked, foresee: Foresee
    ) -> tuple[tuple[str, ...], Succession | None]:
        """Sticky ones stay the pod's whatever becomes of this ADD (A2)."""
        request, conf, workload = asked.request, asked.conf, asked.workload
        if not conf.ipam.sticky:
            return await self.addresses.assign(request, conf, workload, foresee), None
        bound = await self.addresses.claim(request, conf, workload)
        addresses = tuple(map(str, bound.addresses))
        # After the claim: whoever is not recorded by now, never will be.
        predecessors = await self.store.having(workload.key, addresses)
        return addresses, Succession(bound.fence, predecessors)

    async def _free_the_wanted(self, asked: Asked) -> None:
        """A pod with a fixed address that starts anew, its old container's DEL still to come: the
        address is taken from the old one, which has lost its endpoint anyway (A4)."""
        old = asked.existing
        if not asked.conf.addresses or old is None:
            return
        if old.container_id != asked.workload.container_id:
            handle_id = cni_handle_id(asked.request.network, old.container_id)
            await self.addresses.release(asked.request, asked.conf, handle_id)

    async def _make(self, pending: PendingWire, wire: PodWire, recorded: Recorded) -> veth.MadeWire:
        """The rest of the wire, then policy, and the record meanwhile: the datastore's answer is
        waited for last."""
        key, succession = recorded.workload.key, recorded.succession

        async def in_kernel() -> veth.MadeWire:
            made = await pending.make(wire.addresses)
            await self.programmer.program(key, recorded.endpoint)
            return made

        saving = self.store.save(recorded.endpoint, recorded.existing, succession)
        if recorded.existing is None and succession is None:
            # Nobody has name or address before: policy may be there before the wire.
            self.programmer.remember(key, recorded.endpoint)
        if succession is not None and succession.predecessors:
            # One after the other: the kernel has one route for an address.
            revision = await saving
            for stored in succession.predecessors:
                if stored.endpoint.spec.node == recorded.workload.ids.node:
                    await self.programmer.retract(stored.key)
            made = await in_kernel()
        else:
            made, revision = await both(in_kernel(), saving)
        await self.programmer.confirm(key, revision)
        await self.programmer.settled(key)
        return made

    async def _forget(self, workload: Workload) -> None:
        """Remove the record of this container, if it came to one."""
        for stored in await self.store.find(workload):
            if stored.key == workload.key and stored.container_id == workload.container_id:
                await self.store.delete(stored)


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


def _result(conf: NetConf, wire: PodWire, made: veth.MadeWire) -> Result:
    host = Interface(wire.host_name, HOST_MAC, mtu_bytes=made.mtu_bytes)
    pod = Interface(wire.pod_name, made.mac, wire.netns, made.mtu_bytes)
    ips = tuple(IPConfig(host_cidr(address), interface=1) for address in wire.addresses)
    # As Calico: routes of the configuration are told, the usual default routes are not.
    routes = tuple(RouteConfig(dst) for dst in conf.ipam.routes)
    return Result((host, pod), ips, routes)


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
