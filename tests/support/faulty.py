"""A datastore in front of a datastore, which fails as its script says.

`FaultyDatastore(inner, script)`: before every call `script(number, operation)` (numbers from 1)
answers OK, REFUSE (the call never reaches the store) or LOSE (it takes effect, the answer does not
come). Reads that are lost are simply refused.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from libcalico.datastore.api import (
    Compare,
    Datastore,
    Delete,
    KeyValue,
    ListResult,
    Put,
    TxnResult,
)
from libcalico.errors import DatastoreUnavailable


class Fault(enum.Enum):
    OK = "ok"
    REFUSE = "refuse"
    LOSE = "lose"


Script = Callable[[int, str], Fault]
R = TypeVar("R")


class FaultyDatastore:
    """The calls IPAM makes; anything else goes straight to `inner`."""

    def __init__(self, inner: Datastore, script: Script) -> None:
        self.inner = inner
        self.calls = 0
        self._script = script

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def get(self, key: str, *, revision: int = 0) -> KeyValue | None:
        return await self._call("get", lambda: self.inner.get(key, revision=revision))

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> ListResult:
        return await self._call(
            "list", lambda: self.inner.list(prefix, revision=revision, keys_only=keys_only)
        )

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> TxnResult:
        return await self._call("txn", lambda: self.inner.txn(compares, operations))

    async def _call(self, operation: str, call: Callable[[], Awaitable[R]]) -> R:
        self.calls += 1
        fault = self._script(self.calls, operation)
        if fault is Fault.REFUSE:
            raise DatastoreUnavailable(f"scripted refusal of {operation}")
        answer = await call()
        if fault is Fault.LOSE:
            raise DatastoreUnavailable(f"scripted loss of the answer to {operation}")
        return answer


def nth(number: int, fault: Fault) -> Script:
    """Only the `number`-th call fails."""
    return lambda call, _: fault if call == number else Fault.OK
