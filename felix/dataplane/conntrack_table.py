"""Makes the kernel forget the connections of addresses that lost their workload.

Layer: felix.dataplane. Fed by endpoint_mgr; the last stage of the cycle; a task of its own does the
work through ConntrackPort.

Otherwise the next owner of an address would inherit established connections, and with them packets
that policy never saw. Why a task and not the stage itself: reading the connection table costs ten
milliseconds and more whatever is in it, and no pod that starts should wait for that, but for one
that has such an address (C3).

  C1  an address is due only after the stages that took its route away, so that no packet of the old
      workload can set the connection up again;
  C2  what failed is tried again with backoff, together with what has come since;
  C3  the next owner is not told that it may begin (endpoint_programmer) before its addresses are
      forgotten. So whatever is deleted late is its predecessor's, never its own.

Works from changes of wanted state, so it has no read-back: what a dead process left undone ends
with its conntrack timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from felix.dataplane.ports import ConntrackPort
from libcalico.errors import SuiteError
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff
from libcalico.runtime.clock import Clock, wait_for_event

LOG = log.get(__name__)
_RETRY_FIRST_S, _RETRY_LIMIT_S = 0.1, 10.0


class ConntrackTable:
    """Addresses whose connections are to be forgotten, all in one go. A Driver for the loop."""

    name = "conntrack"

    def __init__(self, port: ConntrackPort, *, clock: Clock) -> None:
        self._port, self._clock = port, clock
        # Sets that keep their order. An address may be asked for again while it is being forgotten.
        self._pending: dict[str, None] = {}
        self._due: dict[str, None] = {}
        self._running: dict[str, None] = {}
        self._wake = asyncio.Event()
        #: Of the round that is running, or comes next; set when it is over.
        self._round = asyncio.Event()
        self._refusal = ""

    def forget(self, address: str) -> None:
        self._pending[address] = None

    def queue_resync(self, reason: str) -> None:
        """There is nothing to read back."""

    async def apply(self) -> ApplyResult:
        """Routes that had to go are gone (C1)."""
        if self._pending:
            self._due |= self._pending
            self._pending.clear()
            self._wake.set()
        return NOTHING_DONE

    async def run(self) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_LIMIT_S)
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._running, self._due = self._due, {}
            try:
                count = await self._port.forget_addresses(tuple(self._running))
            except SuiteError as err:
                LOG.warning("connections not forgotten", count=len(self._running), error=str(err))
                self._due = self._running | self._due
                self._wake.set()
                self._end_round(str(err))
                await self._clock.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._end_round("")
            if count:
                LOG.info("connections forgotten", count=count)

    def _end_round(self, refusal: str) -> None:
        self._running, self._refusal = {}, refusal
        over, self._round = self._round, asyncio.Event()
        over.set()

    async def forgotten(self, addresses: Collection[str], patience_s: float) -> str:
        """Wait until none of these is left to be forgotten (C3). Returns why one is, when patience
        has come to an end; "" when all is well, at once when nothing was to be done."""
        deadline = self._clock.monotonic() + patience_s
        while self._is_left(addresses):
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return self._refusal or "the kernel has not finished"
            await wait_for_event(self._round, left_s, self._clock)
        return ""

    def _is_left(self, addresses: Collection[str]) -> bool:
        places = (self._pending, self._due, self._running)
        return any(address in place for place in places if place for address in addresses)

    def dump(self) -> dict[str, object]:
        return {"pending": list(self._pending), "due": [*self._running, *self._due]}
