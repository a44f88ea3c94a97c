"""Driver that makes the kernel forget connections of addresses that lost their workload.

Layer: felix.dataplane. Fed by endpoint_mgr; runs after the route tables, so that no packet of the
old workload can set the connection up again. Otherwise the next owner of the address would inherit
established connections, and with them packets that policy never saw.

Works from changes of wanted state, so it has no read-back: what a dead process left undone is the
business of policy (a connection outlives its pod by its conntrack timeout only).
"""

from __future__ import annotations

from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from felix.dataplane.ports import ConntrackPort
from libcalico.errors import SuiteError
from libcalico.runtime import log

LOG = log.get(__name__)


class ConntrackTable:
    """Addresses whose connections are to be forgotten, all in one go; a failure is tried again."""

    name = "conntrack"

    def __init__(self, port: ConntrackPort) -> None:
        self._port = port
        self._pending: dict[str, None] = {}  # a set that keeps its order

    def forget(self, address: str) -> None:
        self._pending[address] = None

    def queue_resync(self, reason: str) -> None:
        """Nothing to read back."""

    async def apply(self) -> ApplyResult:
        if not self._pending:
            return NOTHING_DONE
        addresses = tuple(self._pending)
        try:
            deleted = await self._port.forget_addresses(addresses)
        except SuiteError as err:
            LOG.warning("connections not forgotten", count=len(addresses), error=str(err))
            return ApplyResult(failed=len(addresses), error=str(err))
        for address in addresses:
            del self._pending[address]
        return ApplyResult(deleted=deleted)

    def dump(self) -> dict[str, object]:
        return {"pending": list(self._pending)}
