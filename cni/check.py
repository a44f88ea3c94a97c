"""CHECK: is the attachment still what ADD answered? Wire, addresses, routes, policy, record.

Layer: edge. Used by cni.agent. Calico's CHECK prints OK whatever it finds; this one looks.
Source: CNI SPEC 1.1.0 "CHECK": everything in prevResult must be there, and what the plugin knows
besides (its endpoint in the datastore, its policy in the kernel) must agree with it.

  K1  all that is wrong is named, in one error;
  K2  what another plugin of the list changed by its purpose is not wrong (cni.wirecheck);
  K3  the kernel is given a moment: a notification may be on its way.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cni import netconf, results, wirecheck
from cni.addresses import AddressManager
from cni.endpoints import EndpointStore
from cni.facts import Stored
from cni.identity import identify
from cni.netconf import NetConf
from cni.ports import EndpointProgrammer
from cni.results import Result
from cni.skel import CniError, Code, Request
from cni.veth import PodWire
from libcalico.runtime.clock import SYSTEM, Clock

# K3: before the second and the third look.
_WAITS_S = (0.05, 0.2)


@dataclass(frozen=True, slots=True)
class CheckOperation:
    programmer: EndpointProgrammer
    store: EndpointStore
    addresses: AddressManager
    clock: Clock = SYSTEM

    async def run(self, request: Request) -> None:
        """Errors: CniError 7 without prevResult, 100 naming everything that is wrong."""
        conf = netconf.parse(request)
        if conf.prev_result is None:
            raise CniError(Code.INVALID_CONFIG, "prevResult: required for CHECK")
        answered = results.parse(conf.prev_result)
        settings = self.programmer.settings()
        workload = identify(
            request, conf, node=settings.node_name, prefix=settings.interface_prefix
        )
        await self.addresses.ask(request, conf, "CHECK")
        stored = await self.store.read(workload.key)
        if stored is None or stored.container_id != request.container_id:
            raise CniError(
                Code.NETWORKING_FAILED, f"no endpoint {workload.key.name} of this container"
            )
        record = _record_problems(stored, answered, request, settings.node_name)
        for wait_s in (*_WAITS_S, None):
            problems = record + await self._kernel_problems(request, conf, stored, answered)
            if not problems:
                return
            if wait_s is not None:
                await self.clock.sleep(wait_s)
        raise CniError(Code.NETWORKING_FAILED, "; ".join(problems))

    async def _kernel_problems(
        self, request: Request, conf: NetConf, stored: Stored, answered: Result
    ) -> list[str]:
        spec = stored.endpoint.spec
        wire = PodWire(
            host_name=spec.interface_name or "",
            pod_name=request.ifname,
            netns=request.netns,
            addresses=tuple(network.partition("/")[0] for network in spec.ip_networks),
            routes=conf.routes,
        )

        def look() -> list[str]:
            return [
                *wirecheck.wire(wire).problems,
                *wirecheck.forwarding(wire),
                *wirecheck.result(answered, request.netns, request.ifname),
            ]

        problems = await asyncio.to_thread(look)
        if not self.programmer.endpoint_in_dataplane(stored.key):
            problems.append("route or policy of the endpoint is not programmed")
        return list(dict.fromkeys(problems))


def _record_problems(
    stored: Stored, answered: Result, request: Request, node_name: str
) -> list[str]:
    """Where the stored endpoint and the answer of ADD disagree."""
    spec = stored.endpoint.spec
    name = stored.key.name
    problems = []
    if spec.node != node_name:
        problems.append(f"endpoint {name} says it is on node {spec.node}, not {node_name}")
    promised = {
        ip.address.partition("/")[0]
        for ip in answered.ips
        if ip.interface is None or answered.interfaces[ip.interface].name == request.ifname
    }
    recorded = {network.partition("/")[0] for network in spec.ip_networks}
    for address in sorted(promised - recorded):
        problems.append(f"address {address} of prevResult is not in endpoint {name}")
    for address in sorted(recorded - promised):
        problems.append(f"address {address} of endpoint {name} is not in prevResult")
    hosts = {entry.name for entry in answered.interfaces if not entry.sandbox}
    if hosts and spec.interface_name not in hosts:
        problems.append(f"interface {spec.interface_name} of {name} is not in prevResult")
    return problems
