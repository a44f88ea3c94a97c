"""The contracts inside the dataplane: what a manager, a driver and a listener are.

Layer: felix.dataplane. Everything in this folder is one of
  manager   turns intents of one concern into wanted state; pushes it into drivers; no I/O;
  driver    reconciles one kernel table with its wanted state through a port (*_table.py);
  listener  wants to know about the node's interfaces.
`loop.Dataplane` owns the order: all intents -> all managers -> drivers, first to last.

A driver's promises (house rule 10.5):
  V1  apply() reads back first when a resync is queued, and then touches only what is wrong;
  V2  a failed write stays dirty and is counted in the result, the others go on;
  V3  the loop never calls apply() before the InSync intent, so what is ours and not wanted may go
      at the first apply: the wanted state is complete by then;
  V4  it recognises its own objects with an empty memory (see `ownership`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from felix.intent import Intent


class Manager(Protocol):
    """`on_intent` only remembers; `complete_deferred_work` pushes wanted state into drivers."""

    def on_intent(self, intent: Intent) -> None: ...

    def complete_deferred_work(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What one apply did. `failed` items are dirty still: the loop tries again with backoff.

    `deferred` items wait for something that will wake the loop by itself (a link, a grace period
    that ends in `retry_after_s`): no failure, no backoff."""

    written: int = 0
    deleted: int = 0
    failed: int = 0
    deferred: int = 0
    retry_after_s: float | None = None
    error: str = ""

    def merged(self, other: ApplyResult) -> ApplyResult:
        waits = [w for w in (self.retry_after_s, other.retry_after_s) if w is not None]
        return ApplyResult(
            self.written + other.written,
            self.deleted + other.deleted,
            self.failed + other.failed,
            self.deferred + other.deferred,
            min(waits, default=None),
            self.error or other.error,
        )


NOTHING_DONE = ApplyResult()


class Driver(Protocol):
    """Reconciles one kernel table. `name` appears in logs, metrics and dumps."""

    @property
    def name(self) -> str: ...

    def queue_resync(self, reason: str) -> None: ...

    async def apply(self) -> ApplyResult: ...

    def dump(self) -> dict[str, object]: ...


@dataclass(frozen=True, slots=True)
class InterfaceState:
    """One interface of the node. `is_up` is the administrator's wish, `is_running` adds carrier.

    `addresses` carry no prefix length; both families, sorted. `mtu_bytes` 0 is not known."""

    name: str
    ifindex: int
    is_up: bool
    is_running: bool
    addresses: tuple[str, ...] = ()
    mtu_bytes: int = 0


class InterfaceListener(Protocol):
    """Told of every interface at first, then of changes, before the next apply."""

    def on_interface(self, name: str, state: InterfaceState | None) -> None:
        """None: there is no interface of that name (any more)."""
        ...
