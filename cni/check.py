"""CHECK: is the attachment still what ADD answered? Wire, addresses, routes, policy, record.

Layer: edge. Used by cni.agent. Calico's CHECK prints OK whatever it finds; this one looks.
Source: CNI SPEC 1.1.0 "CHECK": everything in prevResult must be there, and what the plugin knows
besides (its endpoint in the datastore, its policy in the kernel) must agree with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cni import netconf, results, veth
from cni.endpoints import EndpointStore
from cni.identity import identify
from cni.ports import EndpointProgrammer
from cni.skel import CniError, Code, Request
from cni.veth import PodWire


@dataclass(frozen=True, slots=True)
class CheckOperation:
    programmer: EndpointProgrammer
    store: EndpointStore

    async def run(self, request: Request) -> None:
        """Errors: CniError 7 without prevResult, 100 naming everything that is wrong."""
        conf = netconf.parse(request)
        if conf.prev_result is None:
            raise CniError(Code.INVALID_CONFIG, "prevResult: required for CHECK")
        expected = results.parse(conf.prev_result)
        settings = self.programmer.settings()
        workload = identify(
            request, conf, node=settings.node_name, prefix=settings.interface_prefix
        )
        known = await self.store.find(workload)
        stored = next((s for s in known if s.key == workload.key), None)
        if stored is None or stored.container_id != request.container_id:
            raise CniError(
                Code.NETWORKING_FAILED, f"no endpoint {workload.key.name} of this container"
            )
        spec = stored.endpoint.spec
        addresses = tuple(network.partition("/")[0] for network in spec.ip_networks)
        wire = PodWire(
            host_name=spec.interface_name or workload.interface,
            pod_name=request.ifname,
            netns=request.netns,
            addresses=addresses,
            routes=() if conf.default_routes else None,
        )
        problems = list(await asyncio.to_thread(veth.check, wire))
        promised = {
            ip.address.partition("/")[0]
            for ip in expected.ips
            if ip.interface is None or expected.interfaces[ip.interface].name == request.ifname
        }
        for address in sorted(promised - set(addresses)):
            problems.append(f"address {address} of prevResult is not the endpoint's")
        if not self.programmer.endpoint_in_dataplane(stored.key):
            problems.append("route or policy of the endpoint is not programmed")
        if problems:
            raise CniError(Code.NETWORKING_FAILED, "; ".join(problems))
