"""Makes the kernel forget the connections of addresses that lost their workload.

Layer: felix.dataplane. Fed by endpoint_mgr; the loop says when a cycle is over; a task of its own
does the work through ConntrackPort.

Otherwise the next owner of an address would inherit established connections, and with them packets
that policy never saw. Why a task and not a stage of the cycle: reading the connection table costs
ten milliseconds and more whatever is in it, and no pod that starts should wait for that.

  C1  an address is due only after the cycle that took its route away, so that no packet of the old
      workload can set the connection up again;
  C2  what failed is tried again with backoff, together with what has come since.

Works from changes of wanted state, so it has no read-back: what a dead process left undone ends
with its conntrack timeout.
"""

from __future__ import annotations

import asyncio

from felix.dataplane.ports import ConntrackPort
from libcalico.errors import SuiteError
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)
_RETRY_FIRST_S, _RETRY_LIMIT_S = 0.1, 10.0


class ConntrackTable:
    """Addresses whose connections are to be forgotten, all in one go."""

    def __init__(self, port: ConntrackPort, *, clock: Clock) -> None:
        self._port, self._clock = port, clock
        # Sets that keep their order.
        self._pending: dict[str, None] = {}
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()

    def forget(self, address: str) -> None:
        self._pending[address] = None

    def on_cycle(self) -> None:
        """Routes that had to go are gone (C1)."""
        if self._pending:
            self._due |= self._pending
            self._pending.clear()
            self._wake.set()

    async def run(self) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_LIMIT_S)
        while True:
            await self._wake.wait()
            self._wake.clear()
            addresses = tuple(self._due)
            try:
                count = await self._port.forget_addresses(addresses)
            except SuiteError as err:
                LOG.warning("connections not forgotten", count=len(addresses), error=str(err))
                self._wake.set()
                await self._clock.sleep(backoff.next_s())
                continue
            backoff.reset()
            for address in addresses:
                self._due.pop(address, None)
            if count:
                LOG.info("connections forgotten", count=count)

    def dump(self) -> dict[str, object]:
        return {"pending": list(self._pending), "due": list(self._due)}
