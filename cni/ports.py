"""What the CNI agent needs from the felix that hosts it.

Layer: contract between `cni.agent` (which implements the CNI verbs) and `felix.daemon` (which
provides these). cni never imports felix; felix imports cni.

Life of an ADD, and who owns which step:
  1  agent    parse, validate, find or allocate addresses (ipam), make the veth pair
  2  felix    `remember`, then `program(key, endpoint)`: the endpoint goes straight into the calc
              graph, so that its policy is on its way while the wire is made; the call returns when
              the route AND the policy of the endpoint are in the kernel, and no connections of an
              earlier owner of its addresses
  2' agent    meanwhile writes the WorkloadEndpoint to the datastore
  3  agent    answers the runtime, when both are done and the endpoint is `settled`
  Any failure after 1 undoes in reverse: the record, `retract(key)`, veth, addresses.

P1  until the datastore's echo of the written WorkloadEndpoint arrives, the programmed endpoint
    stands; a syncer re-list that does not show it yet must not remove it. `confirm(key, revision)`
    ends that protection as soon as the syncer has reached `revision`;
P2  `retract` returns when the kernel no longer carries the endpoint's route and policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from libcalico.model import WorkloadEndpoint
from libcalico.model.keys import ResourceKey


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Node facts the agent needs; read at each request, because configuration may change.

    `mtu_bytes` 0 means: take the uplink's. `interface_prefix` is felix's first InterfacePrefix."""

    node_name: str
    interface_prefix: str
    mtu_bytes: int
    ipv6_support: bool
    device_route_protocol: int = 3


class EndpointProgrammer(Protocol):
    """felix's side of an ADD and a DEL."""

    def settings(self) -> HostSettings: ...

    def is_ready(self) -> bool:
        """False until the first in-sync and apply: ADD answers "try again later" (code 11)."""
        ...

    def trouble(self) -> str:
        """Why endpoints that exist may not have what they should in the kernel; "" when all is
        well, and before the first apply (a restart takes nothing from them)."""
        ...

    def remember(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        """This endpoint is, or is about to be, though the datastore does not show it. It stands
        (P1) until it is confirmed or retracted; nobody waits for the kernel."""
        ...

    async def program(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        """Errors: ProgrammingFailed (the kernel refused), Transient (not in sync in time)."""
        ...

    async def confirm(self, key: ResourceKey, revision: int) -> None: ...

    async def settled(self, key: ResourceKey) -> None:
        """After `confirm`: returns when all policy that governs the endpoint is in the kernel. That
        is so at once, but where felix is told only what concerns its node: then it waits for that.

        Errors: ProgrammingFailed (not in time, or the kernel refused)."""
        ...

    async def retract(self, key: ResourceKey) -> None: ...

    def endpoint_in_dataplane(self, key: ResourceKey) -> bool:
        """For CHECK: the endpoint's route and policy are programmed and clean."""
        ...
