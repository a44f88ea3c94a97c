"""The node controller, of which there is the IPAM garbage collection: a pass every period.

Layer: controllers, edge. Run by controllers.daemon while this instance leads; everything that
decides is in `ipam.garbage`.

  F1  settings and the datastore's lock are read before each pass; nothing is collected while
      ClusterInformation says that the datastore is locked, or is missing;
  F2  a datastore that is away costs one line a minute; the next try comes soon;
  F3  suspects are remembered by one leader only: after a change of leaders the grace period of
      every leak begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from controllers.config import ControllersConfig, is_enabled, layer_of
from controllers.numbers import GcNumbers
from ipam.client import IpamClient
from ipam.client.collector import Collector, Report
from ipam.leaks import Standing
from libcalico.datastore.api import Datastore
from libcalico.errors import Conflict, DecodeError, Transient, Unauthorized
from libcalico.model import ClusterInformation, codec
from libcalico.model.cluster import KubeControllersConfiguration
from libcalico.model.keys import ResourceKey, path_of
from libcalico.model.meta import Resource
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff, Throttle
from libcalico.runtime.clock import Clock
from libcalico.runtime.config import LiveConfig

LOG = log.get(__name__)
R = TypeVar("R", bound=Resource)
_RETRY_FIRST_S, _RETRY_LIMIT_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What the controller works with. `on_pass(ready, detail)` goes to health."""

    datastore: Datastore
    live: LiveConfig[ControllersConfig]
    numbers: GcNumbers
    clock: Clock
    may_write: Callable[[], bool]
    on_pass: Callable[[bool, str], None]


class NodeController:
    """One term of office: a new one starts with an empty memory (F3)."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._ipam = IpamClient(parts.datastore, clock=parts.clock)
        self._collector: Collector = self._ipam.collector(parts.may_write)
        self._throttle = Throttle()
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_LIMIT_S)
        self._idle_because = ""

    async def run(self) -> None:
        """Until cancelled. Errors: RestartRequired when a setting needs a new process."""
        try:
            while True:
                await self._parts.clock.sleep(await self._turn())
        finally:
            self._parts.numbers.clear()

    async def _turn(self) -> float:
        """One pass; returns how long to wait."""
        parts = self._parts
        try:
            why_not = await self._refresh()
            if why_not:
                self._stay_idle(why_not)
            else:
                await self._collect()
        except (Transient, Unauthorized, Conflict) as err:
            parts.numbers.on_failure()
            parts.on_pass(False, str(err))
            if self._throttle.allows(parts.clock.monotonic()):
                LOG.warning("no garbage collection, the datastore is away", error=err)
            return min(self._backoff.next_s(), parts.live.config.period_s)
        self._backoff.reset()
        return parts.live.config.period_s

    async def _refresh(self) -> str:
        """F1: why nothing is to be done, if so."""
        live = self._parts.live
        stored = await self._read(KubeControllersConfiguration)
        live.set_layer(layer_of(stored)).raise_if_restart()
        log.set_level(live.config.log_level)
        cluster = await self._read(ClusterInformation)
        if cluster is None:
            return "the datastore is not initialised: there is no ClusterInformation"
        if not cluster.spec.datastore_ready:
            return "the datastore is locked (datastoreReady is false)"
        if not is_enabled(live):
            return "KubeControllersConfiguration has no node controller"
        return ""

    async def _read(self, kind: type[R]) -> R | None:
        key = ResourceKey(kind.kind, "default")
        kv = await self._parts.datastore.get(path_of(key))
        if kv is None:
            return None
        try:
            return codec.decode_as(kind, key, kv.value, kv.mod_revision)
        except DecodeError as err:
            LOG.warning("a stored value does not parse, treated as absent", key=kv.key, error=err)
            return None

    def _stay_idle(self, reason: str) -> None:
        self._parts.on_pass(True, reason)
        if reason != self._idle_because:
            LOG.warning("no garbage collection", reason=reason)
        self._idle_because = reason

    async def _collect(self) -> None:
        parts = self._parts
        self._idle_because = ""
        started_at = parts.clock.monotonic()
        report = await self._collector.run_pass(parts.live.config.terms)
        took_s = parts.clock.monotonic() - started_at
        parts.numbers.on_report(report, took_s)
        parts.on_pass(True, f"{len(report.plan.candidates)} addresses look leaked")
        _tell(report, took_s)

    def dump(self) -> dict[str, object]:
        return {"collector": self._collector.dump(), "ipam": self._ipam.dump()}


def _tell(report: Report, took_s: float) -> None:
    """One line for a pass that did or failed something."""
    unknown = sum(a.standing is Standing.UNKNOWN for a in report.plan.allocations)
    counts = {f"{kind}_freed": count for kind, count in report.freed.items() if count}
    failed = sum(report.failed.values())
    said = LOG.info if counts or failed else LOG.debug
    said(
        "garbage collected",
        **counts,
        failed=failed,
        overtaken=sum(report.overtaken.values()),
        vanished_nodes=len(report.plan.vanished),
        unknown_owner=unknown,
        malformed_blocks=len(report.seen.malformed),
        took_ms=round(took_s * 1000),
    )
