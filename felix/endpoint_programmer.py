"""What felix does for the CNI agent: an endpoint goes in, and comes back when it is in the kernel.

Layer: felix.daemon. Implements cni.ports.EndpointProgrammer (the contract, with P1 and P2).

    program ─► calc graph: pin ─► intents ─► one cycle of the dataplane ─► policy? route? settings?
               connections forgotten?
    retract ─► calc graph: retract ─► intents ─► one cycle ─► gone?

Many requests at once share a cycle. A cycle that leaves something undone is followed by a few more,
a little apart (a busy kernel, a link whose notification is on its way); then the kernel's last word
becomes the error.

  X1  nothing waits for the datastore's echo (P1: the calc graph keeps the pin until it has come);
  X2  when `program` returns, packets to and from the workload meet its policy: the driver confirms
      only what the kernel acknowledged, and no connection of an earlier owner of its addresses is
      left, by which packets would pass policy by. Nor is one to be forgotten later: that could be
      the workload's own;
  X3  a `program` that fails or is cancelled leaves the pin: the agent retracts, always;
  X4  behind the spans stream an endpoint that this node pins stays closed until the stream has
      shown it: policies that select it may not have been here before. `settled` waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from cni.ports import HostSettings
from felix.calc.graph import CalcGraph
from felix.config import FelixConfig
from felix.dataplane.conntrack_table import ConntrackTable
from felix.dataplane.endpoint_mgr import EndpointManager
from felix.dataplane.loop import Dataplane
from felix.dataplane.nft_wanted import WantedRuleset
from felix.rules.chain import ifname_bytes
from felix.rules.dispatch import EGRESS_MAP, INGRESS_MAP
from libcalico.errors import ProgrammingFailed, Transient, ValidationError
from libcalico.model import WorkloadEndpoint
from libcalico.model.keys import ResourceKey
from libcalico.runtime import log
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)

# Waits before the second, third, … look: about a second in all, well inside a runtime's patience.
_WAITS_S = (0.02, 0.05, 0.1, 0.25, 0.5)
# For an address that has just changed hands: usually ten milliseconds.
_FORGET_PATIENCE_S = 5.0
# For our own write to come back by way of typha: usually tens of milliseconds.
_ECHO_PATIENCE_S = 10.0


def policy_problem(wanted: WantedRuleset, ifname: str) -> str:
    """Why packets of this interface do not meet their policy yet; "" when they do.

    A chain that the kernel refused is in place all the same, closed."""
    key = ifname_bytes(ifname)
    for spec in (EGRESS_MAP, INGRESS_MAP):
        entries = wanted.entries[spec.name]
        if entries.wanted(key) is None:
            return f"no policy is wanted for interface {ifname}"
        if entries.is_dirty(key):
            return f"the policy of interface {ifname} is not in the kernel"
    return ""


def policy_remains(wanted: WantedRuleset, ifname: str) -> bool:
    """True while the kernel still holds policy that nobody wants for this interface."""
    key = ifname_bytes(ifname)
    entries = (wanted.entries[spec.name] for spec in (EGRESS_MAP, INGRESS_MAP))
    return any(e.wanted(key) is None and e.programmed(key) is not None for e in entries)


@dataclass(frozen=True, slots=True)
class ProgrammerParts:
    """What it works with. `publish` hands the graph's intents to the dataplane; `mtu_bytes` is the
    MTU of the node's uplinks, 0 when none is known (the CNI agent then asks the kernel)."""

    graph: CalcGraph
    dataplane: Dataplane
    endpoints: EndpointManager
    conntrack: ConntrackTable
    ruleset: WantedRuleset
    publish: Callable[[], None]
    mtu_bytes: Callable[[], int]


class FelixProgrammer:
    """cni.ports.EndpointProgrammer."""

    def __init__(
        self, parts: ProgrammerParts, node: str, config: Callable[[], FelixConfig], *, clock: Clock
    ) -> None:
        self._parts, self._node, self._config, self._clock = parts, node, config, clock
        self._is_publishing = False
        self._echoes: dict[ResourceKey, list[asyncio.Future[None]]] = {}

    def settings(self) -> HostSettings:
        config = self._config()
        return HostSettings(
            node_name=self._node,
            interface_prefix=config.interface_prefixes[0],
            mtu_bytes=self._parts.mtu_bytes(),
            ipv6_support=config.ipv6_support,
            device_route_protocol=config.device_route_protocol,
        )

    def is_ready(self) -> bool:
        return self._parts.dataplane.is_in_sync and self._parts.dataplane.has_applied

    def trouble(self) -> str:
        if self._parts.dataplane.is_filter_failing:
            return "the kernel refuses felix's rules: policy is older than the datastore's"
        return ""

    def remember(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        self._parts.graph.pin(key, endpoint)
        self._publish_soon()

    def _publish_soon(self) -> None:
        """Once for all who ask in one turn of the event loop."""
        if not self._is_publishing:
            self._is_publishing = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._is_publishing = False
        self._parts.publish()

    async def program(self, key: ResourceKey, endpoint: WorkloadEndpoint) -> None:
        """Errors: Transient, ValidationError (felix would ignore it), ProgrammingFailed."""
        if not self.is_ready():
            raise Transient("felix is not in sync with the datastore yet")
        if self._parts.graph.pinned(key) is not endpoint:
            self._parts.graph.pin(key, endpoint)
        self._parts.publish()
        refusal = self._parts.graph.refusal_of(key)
        if refusal is not None:
            raise ValidationError.of("WorkloadEndpoint", key.name, refusal)
        problem = await self._settled(lambda: self._problem(key))
        if not problem:
            addresses = self._parts.endpoints.addresses_of(key)
            problem = await self._parts.conntrack.forgotten(addresses, _FORGET_PATIENCE_S)
        if problem:
            raise ProgrammingFailed("program endpoint", key.name, 0, problem)

    async def confirm(self, key: ResourceKey, revision: int) -> None:
        self._parts.graph.confirm(key, revision)
        self._publish_soon()

    async def settled(self, key: ResourceKey) -> None:
        """Errors: ProgrammingFailed."""
        if self._parts.graph.is_settled(key):
            return
        echo: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._echoes.setdefault(key, []).append(echo)
        try:
            async with asyncio.timeout(_ECHO_PATIENCE_S):
                await echo
        except TimeoutError:
            problem = f"typha has not told its policy within {_ECHO_PATIENCE_S:g} s: it is closed"
            raise ProgrammingFailed("settle endpoint", key.name, 0, problem) from None
        finally:
            waiting = self._echoes.get(key, [])
            if echo in waiting:
                waiting.remove(echo)
            if not waiting:
                self._echoes.pop(key, None)
        problem = await self._settled(lambda: self._problem(key))
        if problem:
            raise ProgrammingFailed("settle endpoint", key.name, 0, problem)

    def on_published(self) -> None:
        """The graph's news are with the dataplane: who waits for an echo may go on."""
        for key in [key for key in self._echoes if self._parts.graph.is_settled(key)]:
            for echo in self._echoes.pop(key):
                if not echo.done():
                    echo.set_result(None)

    async def retract(self, key: ResourceKey) -> None:
        """Before in-sync the kernel is not touched, and there is nothing to wait for."""
        endpoints = self._parts.endpoints
        nets = endpoints.nets_of(key)
        present = endpoints.endpoint(key)
        ifname = "" if present is None else present.interface
        self._parts.graph.retract(key)
        self._parts.publish()
        if not self.is_ready():
            return
        problem = await self._settled(lambda: self._remains(key, nets, ifname))
        if problem:
            raise ProgrammingFailed("retract endpoint", key.name, 0, problem)

    def endpoint_in_dataplane(self, key: ResourceKey) -> bool:
        return self._problem(key) == ""

    def _problem(self, key: ResourceKey) -> str:
        endpoint = self._parts.endpoints.endpoint(key)
        if endpoint is None:
            return "the endpoint is not known to the dataplane"
        return policy_problem(self._parts.ruleset, endpoint.interface) or (
            self._parts.endpoints.problem(key)
        )

    def _remains(self, key: ResourceKey, nets: frozenset[str], ifname: str) -> str:
        if not self._parts.endpoints.is_gone(key, nets):
            return "its routes are still in the kernel"
        if ifname and policy_remains(self._parts.ruleset, ifname):
            return f"the policy of interface {ifname} is still in the kernel"
        return ""

    async def _settled(self, problem: Callable[[], str]) -> str:
        """Let cycles pass until there is no problem; returns the one that is left."""
        for wait_s in (*_WAITS_S, None):
            report = await self._parts.dataplane.flush()
            left = problem()
            if not left:
                return ""
            if wait_s is None:
                detail = report.total.error
                return f"{left} ({detail})" if detail and detail not in left else left
            LOG.debug("endpoint not settled yet", reason=left)
            await self._clock.sleep(wait_s)
        raise AssertionError("the loop above returns")
