"""Replay of queued DELs, once the datastore is back.

Layer: edge. Run by felix beside the agent; asked by the agent before an ADD.

  R1  an endpoint is deleted only while it is still of the queued container, by compare and swap;
      one that a later ADD took over is left alone, as by a late DEL (D1). Addresses are released by
      the handle of that container, which no other one has;
  R2  an ADD of a container with queued DELs does those first: after it nothing is left in the queue
      that could take away what it makes;
  R3  an entry goes when endpoint and addresses are dealt with. Every step may be repeated, so it
      does not matter where the process died;
  R4  an entry that cannot be finished waits for the next pass; the others go on. While the
      datastore is away one entry is tried per pass, with growing pauses;
  R5  no interface is touched: the wire went when the DEL was answered, and the name may be a new
      pod's by now.
"""

from __future__ import annotations

import asyncio

from cni.addresses import AddressManager
from cni.endpoints import EndpointStore
from cni.ports import EndpointProgrammer
from cni.queue import AWAY, DeleteQueue, QueuedDelete
from cni.skel import CniError, Code
from libcalico.errors import SuiteError
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff, Throttle
from libcalico.runtime.clock import SYSTEM, Clock, wait_for_event

LOG = log.get(__name__)
_FIRST_S, _LIMIT_S = 0.5, 10.0
# Another process may have queued something while felix did not answer.
_LOOK_AGAIN_S = 10.0
_ENTRY_TIMEOUT_S = 60.0
_LOG_PERIOD_S = 300.0


class Replayer:
    """`run()` until cancelled; `settle()` before an ADD."""

    def __init__(
        self,
        queue: DeleteQueue,
        store: EndpointStore,
        addresses: AddressManager,
        programmer: EndpointProgrammer,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self.queue = queue
        self._store, self._addresses, self._programmer = store, addresses, programmer
        self._clock = clock
        self._away_throttle = Throttle(_LOG_PERIOD_S)
        self._entry_throttle = Throttle(_LOG_PERIOD_S)
        self.replayed = 0

    async def run(self) -> None:
        backoff = Backoff(_FIRST_S, _LIMIT_S)
        while True:
            self.queue.changed.clear()
            if await self.replay_all():
                await self._clock.sleep(backoff.next_s())
            else:
                backoff.reset()
                await self._wait_for_entries()

    async def replay_all(self) -> int:
        """One pass; returns how many entries are left."""
        entries = await asyncio.to_thread(self.queue.entries)
        if not entries:
            return 0
        finished = 0
        try:
            if not await self._store.is_datastore_ready():
                return len(entries)
            for entry in entries:
                finished += await self._try(entry)
        except AWAY as err:
            if self._away_throttle.allows(self._clock.monotonic()):
                LOG.warning("queued DELs wait for the datastore", count=len(entries), error=err)
        if finished:
            self._away_throttle.reset()
            LOG.info("queued DELs done", count=finished)
        return len(entries) - finished

    async def settle(self, network: str, container_id: str) -> None:
        """R2. Errors: CniError code 11 when it cannot be done now."""
        if self.queue.is_empty():
            return
        for entry in await asyncio.to_thread(self.queue.of_container, network, container_id):
            try:
                await self._replay(entry)
            except (*AWAY, SuiteError) as err:
                said = "an earlier DEL of this container still waits for the datastore"
                raise CniError(Code.TRY_AGAIN_LATER, said, str(err)) from err

    async def _try(self, entry: QueuedDelete) -> bool:
        """Errors: one of AWAY. Anything else concerns this entry alone (R4)."""
        try:
            await self._replay(entry)
        except AWAY:
            raise
        except (SuiteError, OSError) as err:
            if self._entry_throttle.allows(self._clock.monotonic()):
                LOG.warning(
                    "a queued DEL cannot be finished yet", container=entry.container_id, error=err
                )
            return False
        return True

    async def _replay(self, entry: QueuedDelete) -> None:
        async with self.queue.lock, asyncio.timeout(_ENTRY_TIMEOUT_S):
            # Somebody may have done it since the folder was read, and an ADD come after him (R2).
            if not await asyncio.to_thread(self.queue.holds, entry):
                return
            await self._forget(entry)
            if entry.handle_id:
                await self._addresses.release_handle(entry.handle_id)
            await asyncio.to_thread(self.queue.remove, entry)
        self.replayed += 1

    async def _forget(self, entry: QueuedDelete) -> None:
        """R1."""
        stored = None if entry.key is None else await self._store.read(entry.key)
        if stored is None or stored.container_id != entry.container_id:
            return
        if await self._store.delete(stored):
            await self._programmer.retract(stored.key)

    async def _wait_for_entries(self) -> None:
        await wait_for_event(self.queue.changed, _LOOK_AGAIN_S, self._clock)

    def dump(self) -> dict[str, object]:
        return {"queued": self.queue.count(), "replayed": self.replayed}
