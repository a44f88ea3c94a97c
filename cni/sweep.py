"""The sweep: attachments of this node whose container is gone without a DEL, as after a reboot.

Layer: edge. Run by felix beside the agent. It finds and proves; what is proven goes into the queue
of DELs, and cni.replay does the rest, whatever happens to us or to the datastore.

  S1  garbage is an endpoint that our ADD made on this node (it notes network and namespace), whose
      interface the host does not have and whose namespace is gone (cni.sandbox). Both: a pod whose
      namespace we cannot see has its interface, and one that lost its interface its namespace;
  S2  it must be so for the grace period, and again while the attachment's requests are locked out
      and the endpoint has been read anew: no ADD or DEL of it is in flight then;
  S3  an endpoint whose interface name an ADD is about to use (the pod's next container) is left to
      that ADD, which takes it over;
  S4  nothing is looked at before felix is in sync and filtering, nor while the datastore is locked;
      time in which we could not look does not count as grace;
  S5  at most `MAX_AT_ONCE` go in one round; rounds are spread at random.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from cni import sandbox, veth
from cni.agent import Agent
from cni.delete import left_of_stale
from cni.endpoints import NETWORK_ANNOTATION, SANDBOX_ANNOTATION, EndpointStore
from cni.facts import Stored
from cni.ports import EndpointProgrammer
from cni.queue import AWAY, DeleteQueue
from libcalico.errors import SuiteError
from libcalico.model.keys import ResourceKey
from libcalico.runtime import log
from libcalico.runtime.backoff import Throttle
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)
MAX_AT_ONCE = 256
# How often it is asked whether the sweep has been switched on.
_OFF_S = 60.0


@dataclass(frozen=True, slots=True)
class SweepTerms:
    """Seconds. `interval_s` 0: no sweep."""

    interval_s: float
    grace_s: float


@dataclass(frozen=True, slots=True)
class SweepParts:
    """What the sweep works with. `terms` is asked before each round, `boot_id` once; `host_names`
    gives the host's interfaces (in a thread)."""

    agent: Agent
    store: EndpointStore
    programmer: EndpointProgrammer
    queue: DeleteQueue
    clock: Clock
    terms: Callable[[], SweepTerms]
    boot_id: Callable[[], str] = sandbox.boot_id
    host_names: Callable[[], set[str]] = veth.host_names


class Sweeper:
    """`run()` until cancelled."""

    def __init__(self, parts: SweepParts) -> None:
        self._parts = parts
        self._boot_id = parts.boot_id()
        # Since when (monotonic) an endpoint's container is gone; by key and revision.
        self._since: dict[tuple[ResourceKey, int], float] = {}
        self._has_looked = False
        self._throttle = Throttle()
        self.swept = 0

    async def run(self) -> None:
        while True:
            await self._parts.clock.sleep(self._pause_s())
            if self._parts.terms().interval_s <= 0:
                self._since.clear()
                continue
            try:
                await self.sweep()
            except (*AWAY, SuiteError) as err:
                self._since.clear()  # S4
                if self._throttle.allows(self._parts.clock.monotonic()):
                    LOG.warning("no sweep of stale endpoints", error=err)

    async def sweep(self) -> int:
        """One round; returns how many attachments were handed to the queue. Errors: one of AWAY,
        QueueRefused, ProgrammingFailed."""
        parts = self._parts
        if not parts.programmer.is_ready() or not await parts.store.is_datastore_ready():
            self._since.clear()
            return 0
        now, grace_s = parts.clock.monotonic(), parts.terms().grace_s
        node = parts.programmer.settings().node_name
        suspects = {
            (stored.key, stored.revision): stored
            for stored in await self._gone(await parts.store.on_node(node))
        }
        self._since = {which: self._since.get(which, now) for which in suspects}
        self._has_looked = True
        ripe = [suspects[w] for w, since in self._since.items() if now - since >= grace_s]
        count = 0
        for stored in ripe[:MAX_AT_ONCE]:
            count += await self._take(stored)
        self.swept += count
        return count

    async def _gone(self, known: list[Stored]) -> list[Stored]:
        """S1."""
        ours = [stored for stored in known if _is_ours(stored)]

        def look() -> list[Stored]:
            present = self._parts.host_names() if ours else set()
            return [
                stored
                for stored in ours
                if stored.endpoint.spec.interface_name not in present
                and sandbox.is_gone(_noted(stored, SANDBOX_ANNOTATION), self._boot_id)
            ]

        return await asyncio.to_thread(look)

    async def _take(self, stored: Stored) -> bool:
        """S2, S3."""
        spec = stored.endpoint.spec
        async with self._parts.agent.held((stored.container_id, spec.endpoint or "")):
            if self._parts.agent.is_wiring(spec.interface_name or ""):
                return False
            found = await self._parts.store.read(stored.key)
            is_same = found is not None and found.revision == stored.revision
            if not is_same or not await self._gone([stored]):
                return False
            await self._parts.queue.put(left_of_stale(stored))
        LOG.info("stale endpoint swept", endpoint=stored.key.name, container=stored.container_id)
        return True

    def _pause_s(self) -> float:
        terms = self._parts.terms()
        if terms.interval_s <= 0:
            return _OFF_S
        # While there are suspects, or before the first round, the next look decides.
        is_waiting = bool(self._since) or not self._has_looked
        longest = min(terms.interval_s, max(terms.grace_s, 1.0)) if is_waiting else terms.interval_s
        return longest * random.uniform(0.75, 1.25)

    def dump(self) -> dict[str, object]:
        return {"suspects": [key.name for key, _ in self._since], "swept": self.swept}


def _is_ours(stored: Stored) -> bool:
    has_notes = _noted(stored, NETWORK_ANNOTATION) and _noted(stored, SANDBOX_ANNOTATION)
    return bool(stored.container_id and has_notes and stored.endpoint.spec.interface_name)


def _noted(stored: Stored, name: str) -> str:
    return stored.endpoint.metadata.annotations.get(name, "")
