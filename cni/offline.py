"""Pods while the datastore is away: ADD from the node's reserve, and the reckoning afterwards.

Layer: edge. Hosted by felix beside the agent; off unless felix' parameter says otherwise, except
that what a journal of earlier times holds is always reckoned up.

    ADD ─► is the datastore there? ─yes─► as always
                  └no─► the same steps (cni.add), with stand-ins: addresses out of the reserve, the
                        record into the journal, no confirmation
    later: mark begun ─► addresses from reserve to handle ─► record by compare and swap ─► confirm
           ─► the entry goes

  F1  the answer is given when route and policy are in the kernel and the journal is on the disk;
  F2  what is handed out is held by this node in the datastore already (`ipam.reserve`): nobody else
      can get it, whatever they do to pools and blocks. If somebody took it away all the same, by
      hand, the pod loses its network rather than have an address of somebody else's;
  F3  a journalled endpoint is pinned before the first in-sync: a felix that starts anew does not
      take a running pod's network away;
  F4  nothing of an entry that is not marked begun can be in the datastore: its DEL gives the
      addresses back to the reserve at once. After the mark a DEL goes the long way (cni.delete, the
      queue), and what is left in the reserve is found by the next refill;
  F5  one entry is reckoned up, replayed or deleted at a time, by whoever holds the queue's lock; a
      DEL without felix queues itself and takes the entry out, and wins (`_finish` looks again);
  F6  the record of a container that came later is never overwritten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from cni.add import AddOperation
from cni.addresses import Addresses
from cni.delete import DeleteOperation
from cni.endpoints import EndpointStore
from cni.gc import GcOperation
from cni.hostnames import HostNames
from cni.journal import Journal, OfflinePod
from cni.offline_parts import (
    GuardedProgrammer,
    OfflineAddresses,
    OfflineProgrammer,
    OfflineStore,
)
from cni.ports import EndpointProgrammer
from cni.queue import AWAY, DeleteQueue, delete_of
from cni.reserve import NodeReserve
from cni.skel import CniError, Code, Request
from cni.wirer import Wirer
from ipam.batch import BlockMissing
from ipam.client import IpamClient
from ipam.errors import NotReserved
from libcalico.errors import SuiteError, Transient
from libcalico.model.keys import ResourceKey
from libcalico.net import Address, parse_cidr_or_ip
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff, Throttle
from libcalico.runtime.clock import SYSTEM, Clock, wait_for_event

LOG = log.get(__name__)
_FIRST_S, _LIMIT_S = 0.5, 10.0
_LOOK_AGAIN_S = 10.0
_REFILL_PERIOD_S = 600.0
_ENTRY_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 3.0
_LOG_PERIOD_S = 300.0


Op = TypeVar("Op", DeleteOperation, GcOperation)


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    """`reserve`: addresses set aside for each family."""

    is_enabled: bool = False
    reserve: int = 16


@dataclass(frozen=True, slots=True)
class OfflineTools:
    """What it works with; the real ones, shared with the agent."""

    journal: Journal
    queue: DeleteQueue
    store: EndpointStore
    addresses: Addresses
    ipam: IpamClient
    programmer: EndpointProgrammer


class OfflinePods:
    """`start()` before the first in-sync, `run()` until cancelled."""

    def __init__(
        self,
        tools: OfflineTools,
        node: str,
        settings: Callable[[], OfflineSettings],
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._tools, self._settings, self._clock = tools, settings, clock
        self.journal = tools.journal
        self.reserve = NodeReserve(tools.ipam, node)
        self._refilled_at: float | None = None
        self._changed = asyncio.Event()
        self._throttle = Throttle(_LOG_PERIOD_S)

    # ---- requests ------------------------------------------------------------------------------

    async def is_cut_off(self) -> bool:
        """Whether an ADD should do without the datastore: it does not answer. One that answers and
        refuses us is no reason: somebody may want this node to stop."""
        return self._settings().is_enabled and not await self._is_reachable()

    def add(self, request: Request, names: HostNames, lib_dir: Path, wirer: Wirer) -> AddOperation:
        """An ADD that does without."""
        addresses, store = self._stand_ins(request)
        programmer = OfflineProgrammer(self._tools.programmer)
        queue = self._tools.queue
        return AddOperation(programmer, store, addresses, names, lib_dir, queue, wirer)

    async def settle(self, request: Request) -> None:
        """Before an ordinary ADD of a journalled attachment, which would not find its record.

        Errors: CniError code 11 when it cannot be recorded now."""
        entry = await self._journalled(request)
        if entry is None:
            return
        try:
            async with self._tools.queue.lock, asyncio.timeout(_ENTRY_TIMEOUT_S):
                if await asyncio.to_thread(self.journal.holds, entry):
                    await self._reckon(entry)
        except (*AWAY, SuiteError) as err:
            said = "the pod was made offline and is not recorded yet"
            raise CniError(Code.TRY_AGAIN_LATER, said, str(err)) from err

    async def _journalled(self, request: Request) -> OfflinePod | None:
        if self.journal.is_empty():
            return None
        return await asyncio.to_thread(self.journal.of_attachment, *_attachment(request))

    async def store_of(self, request: Request) -> EndpointStore:
        """Where the endpoint of an attachment is to be looked for."""
        if await self._journalled(request) is None:
            return self._tools.store
        return self._stand_ins(request)[1]

    def _stand_ins(self, request: Request) -> tuple[OfflineAddresses, OfflineStore]:
        tools = self._tools
        addresses = OfflineAddresses(
            tools.addresses, tools.ipam.source, self.reserve, tools.journal, request
        )
        store = OfflineStore(tools.store, tools.journal, addresses, on_change=self._changed.set)
        return addresses, store

    async def delete(self, request: Request, usual: DeleteOperation) -> None:
        """A DEL, of a pod made offline or of any other. Errors: as DeleteOperation.run."""
        usual = self.guarded(usual)
        if await self._journalled(request) is None:
            await usual.run(request)
            return
        async with self._tools.queue.lock:
            entry = await self._journalled(request)
            if entry is None:
                await usual.run(request)
                return
            await self._retract(entry)
            if entry.is_begun:
                await usual.run(request)
            else:
                # F4: wire, route, policy and another plugin's addresses; nobody else knows of it.
                addresses, store = self._stand_ins(request)
                await replace(usual, store=store, addresses=addresses, queue=None).run(request)
            await asyncio.to_thread(self.journal.remove, entry)
            self._give_back(entry)

    def guarded(self, usual: Op) -> Op:
        """The same operation, which leaves the endpoints of journalled pods their network (D1)."""
        programmer = GuardedProgrammer(self._tools.programmer, self.journal)
        return replace(usual, programmer=programmer, is_taken=self._is_taken)

    def _is_taken(self, key: ResourceKey, container_id: str) -> bool:
        """Whether another container has the endpoint, its wire's name included."""
        youngest = self.journal.youngest(key)
        return youngest is not None and youngest.container_id != container_id

    def _give_back(self, entry: OfflinePod, *, is_recorded: bool = False) -> None:
        is_safe = not (entry.is_begun or is_recorded)
        self.reserve.put_back(entry.holder, is_safe=is_safe)
        if not is_safe:
            self._refilled_at = None
        self._changed.set()

    async def _retract(self, entry: OfflinePod) -> None:
        """Unless another container has the endpoint by now."""
        youngest = await asyncio.to_thread(self.journal.youngest, entry.workload_key)
        if youngest is not None and youngest.file_name == entry.file_name:
            await self._tools.programmer.retract(entry.workload_key)

    # ---- the reckoning -------------------------------------------------------------------------

    def start(self) -> None:
        """F3. Blocking, short."""
        for entry in self.journal.entries():
            if self._tools.queue.holds(entry):
                self.journal.remove(entry)  # deleted since, by a process that died then
                continue
            self.reserve.note_taken(entry.holder, _addresses(entry))
            try:
                endpoint = entry.workload_endpoint()
            except SuiteError as err:
                LOG.warning("a journalled pod cannot be read", container=entry.container_id,
                            error=err)  # fmt: skip
                self.journal.set_aside(entry)
                continue
            self._tools.programmer.remember(entry.workload_key, endpoint)

    async def run(self) -> None:
        backoff = Backoff(_FIRST_S, _LIMIT_S)
        while True:
            self._changed.clear()
            if await self.run_pass():
                backoff.reset()
                await self._wait()
            else:
                await self._clock.sleep(backoff.next_s())

    async def run_pass(self) -> bool:
        """Reckon up, then refill. False: something is left to do."""
        try:
            entries = await asyncio.to_thread(self.journal.entries)
            if not entries and not self._must_refill():
                return True
            if not (await self._is_reachable() and await self._tools.store.is_datastore_ready()):
                return False
            left = 0
            for entry in entries:
                left += not await self._try(entry)
            await self._refill()
        except AWAY as err:
            self._say("offline pods wait for the datastore", err)
            return False
        return not left

    async def _try(self, entry: OfflinePod) -> bool:
        """Errors: one of AWAY."""
        try:
            async with self._tools.queue.lock, asyncio.timeout(_ENTRY_TIMEOUT_S):
                if await asyncio.to_thread(self.journal.holds, entry):
                    await self._reckon(entry)
        except AWAY:
            raise
        except (SuiteError, OSError) as err:
            self._say("an offline pod cannot be recorded yet", err)
            return False
        return True

    async def _reckon(self, entry: OfflinePod) -> None:
        tools, key = self._tools, entry.workload_key
        if await asyncio.to_thread(tools.queue.holds, entry):
            await self._finish(entry)
            return
        entry = await asyncio.to_thread(self.journal.begin, entry)
        try:
            for address in _addresses(entry):
                node = entry.attributes.get("node", "")
                await tools.ipam.reserves.hand_over(
                    address, node, entry.handle_id, entry.attributes
                )
        except (NotReserved, BlockMissing) as err:
            await self._lose(entry, err)
            return
        revision = await self._record(entry)
        youngest = await asyncio.to_thread(self.journal.youngest, key)
        is_youngest = youngest is None or youngest.file_name == entry.file_name
        if revision is not None and is_youngest:
            await tools.programmer.confirm(key, revision)
        LOG.info("a pod made offline is recorded", endpoint=key.name)
        await self._finish(entry)

    async def _record(self, entry: OfflinePod) -> int | None:
        """F6. The revision the endpoint stands at; None: it is another container's."""
        store = self._tools.store
        stored = await store.read(entry.workload_key)
        if stored is not None and stored.container_id == entry.container_id:
            return stored.revision  # by an attempt whose answer was lost, or that died
        if stored is None or stored.container_id in entry.replaces:
            return await store.save(entry.workload_endpoint(), stored)
        LOG.info("a later container has the endpoint", endpoint=entry.endpoint,
                 container=entry.container_id)  # fmt: skip
        return None

    async def _finish(self, entry: OfflinePod) -> None:
        """F5."""
        if not await asyncio.to_thread(self.journal.holds, entry):
            left = delete_of(entry, time.time())
            await self._tools.queue.put(left)
        await asyncio.to_thread(self.journal.remove, entry)
        self._give_back(entry, is_recorded=True)

    async def _lose(self, entry: OfflinePod, why: SuiteError) -> None:
        """F2. The entry is kept beside for a person; the pod's DEL works as any."""
        LOG.error("a pod made offline lost its address and is cut off",
                  endpoint=entry.endpoint, error=why)  # fmt: skip
        await self._retract(entry)
        await asyncio.to_thread(self.journal.set_aside, entry)
        self._give_back(entry, is_recorded=True)

    # ---- the reserve ---------------------------------------------------------------------------

    def _must_refill(self) -> bool:
        """Now and then, and whenever something has changed; once, when it is to be given up."""
        last = self._refilled_at
        if last is None:
            return True
        settings, now = self._settings(), self._clock.monotonic()
        return settings.is_enabled and now - last >= _REFILL_PERIOD_S

    async def _refill(self) -> None:
        if not self._must_refill():
            return
        settings = self._settings()
        if settings.is_enabled:
            await self.reserve.refill(settings.reserve)
        elif self.journal.count():
            return  # not before its last pod is recorded
        else:
            await self.reserve.give_up()
        self._refilled_at = self._clock.monotonic()

    # ---- inside --------------------------------------------------------------------------------

    async def _is_reachable(self) -> bool:
        """False when nobody answers within a moment."""
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await self._tools.store.probe()
        except (Transient, TimeoutError):
            return False
        except SuiteError:
            return True
        return True

    def _say(self, event: str, err: BaseException) -> None:
        if self._throttle.allows(self._clock.monotonic()):
            LOG.warning(event, error=err)

    async def _wait(self) -> None:
        await wait_for_event(self._changed, _LOOK_AGAIN_S, self._clock)

    def dump(self) -> dict[str, object]:
        return {"pods": self.journal.count(), "reserve": self.reserve.count()}


def _attachment(request: Request) -> tuple[str, str, str]:
    return request.network, request.container_id, request.ifname


def _addresses(entry: OfflinePod) -> list[Address]:
    return [parse_cidr_or_ip(text).network_address for text in entry.addresses]
