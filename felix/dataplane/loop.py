"""The cycle: kernel events and intents in, managers, then drivers in order, again and again.

Layer: felix.dataplane. Built by the daemon, which runs `run()` and `watch_kernel()` as tasks.

    events ──► link monitor ──► listeners ─┐
    intents ─► managers ───────────────────┴─► wanted state ─► filter ─► settings ─► routes ─► …
                                                              stages, in this order

Filter rules come before routes, so no packet is routed to a workload whose policy is not in place;
on removal the dispatch entry goes first and what still arrives is dropped.

Invariants:
  D1  nothing is written before the InSync intent;
  D2  one cycle at a time; a cycle takes everything that had arrived when it began;
  D3  a stage that fails does not stop the later ones, except that a failing *vital* stage (the
      filter) stops them: without policy no route;
  D4  failed items are retried with backoff; other cycles are not delayed by it;
  D5  a vital stage that keeps failing ends the process (DataplaneStuck): fail closed;
  D6  cycles are bounded in rate, except for those that somebody waits for (`flush`); all who wait
      share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from felix.dataplane.link_monitor import LinkMonitor
from felix.dataplane.manager import NOTHING_DONE, ApplyResult, Driver, Manager
from felix.dataplane.ports import EventPort
from felix.dataplane.route_table import RouteTable
from felix.intent import InSync, Intent
from libcalico.errors import DataplaneStuck, SuiteError
from libcalico.netlink import AddressEvent, LinkEvent, Overrun, RouteEvent
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff
from libcalico.runtime.clock import Clock, wait_for_event

LOG = log.get(__name__)

_RETRY_FIRST_S, _RETRY_LIMIT_S = 0.1, 10.0
# A burst of cycles is free, then this many a second: two programs that fight over a route must not
# take a whole processor. Nobody who waits for a cycle is held up by it.
_BURST_CYCLES, _CYCLES_PER_S = 20.0, 50.0
_STUCK_AFTER_S = 60.0
_IDLE_S = 10.0  # an idle loop still proves that it is alive


@dataclass(frozen=True, slots=True)
class Stage:
    """One driver in the order of writing. `refresh_s` 0: never read back without a reason."""

    driver: Driver
    refresh_s: float = 0.0
    is_vital: bool = False


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle did, for metrics, health and status.

    `waited_s`: since the oldest intent it took in had arrived; None when there was none."""

    took_s: float
    results: tuple[tuple[str, ApplyResult], ...]
    is_filtering: bool
    waited_s: float | None = None

    @property
    def total(self) -> ApplyResult:
        merged = NOTHING_DONE
        for _, result in self.results:
            merged = merged.merged(result)
        return merged


Observer = Callable[[CycleReport], None]


@dataclass(frozen=True, slots=True)
class DataplaneParts:
    """Everything the loop drives."""

    managers: Sequence[Manager]
    stages: Sequence[Stage]
    links: LinkMonitor
    events: EventPort
    route_tables: Sequence[RouteTable] = ()
    link_refresh_s: float = 0.0
    # Deliberate self-harm, to prove that the watchdog sees a hang (FelixConfiguration debug*).
    hang_after_s: float = 0.0
    apply_delay_s: float = 0.0


@dataclass(slots=True)
class _Schedule:
    """When the next cycle is due for a reason other than a wake-up."""

    refresh_at: dict[str, float] = field(default_factory=dict)
    retry_at: float | None = None
    deferred_at: float | None = None

    def next_at(self) -> float | None:
        times = [*self.refresh_at.values(), self.retry_at, self.deferred_at]
        return min((at for at in times if at is not None), default=None)


class Dataplane:
    """See the module docstring."""

    def __init__(self, parts: DataplaneParts, *, clock: Clock) -> None:
        self._parts, self._clock = parts, clock
        self._observers: list[Observer] = []
        self._is_in_sync = False
        self._cycles = 0
        self._wake = asyncio.Event()
        self._waiters: list[asyncio.Future[CycleReport]] = []
        self._is_awaited = asyncio.Event()
        self._schedule = _Schedule()
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_LIMIT_S)
        self._tokens, self._tokens_at = _BURST_CYCLES, clock.monotonic()
        self._vital_failing_since: float | None = None
        self._started_at = clock.monotonic()
        self._oldest_intent_at: float | None = None
        self._has_ended = False

    @property
    def is_in_sync(self) -> bool:
        """The datastore's whole state has been handed over."""
        return self._is_in_sync

    @property
    def has_applied(self) -> bool:
        return self._cycles > 0

    @property
    def is_filter_failing(self) -> bool:
        """The kernel refuses the newest rules; what it had before stands."""
        return self._vital_failing_since is not None

    def add_observer(self, observer: Observer) -> None:
        """Called soon after every cycle. Must be cheap and not raise."""
        self._observers.append(observer)

    def on_intents(self, intents: Sequence[Intent]) -> None:
        for intent in intents:
            if isinstance(intent, InSync):
                self._is_in_sync = True
            for manager in self._parts.managers:
                manager.on_intent(intent)
        if intents:
            if self._oldest_intent_at is None:
                self._oldest_intent_at = self._clock.monotonic()
            self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def queue_resync(self, reason: str) -> None:
        """Read everything back at the next cycle (SIGHUP, a person who asks)."""
        self._parts.links.queue_relist(reason)
        for stage in self._parts.stages:
            stage.driver.queue_resync(reason)
        self._wake.set()

    async def flush(self) -> CycleReport:
        """Wait for a whole cycle that begins after this call. Only after InSync (D1).

        Errors: DataplaneStuck when the loop ends meanwhile, or has ended: when everything ends,
        what is rolled back must not wait for what has gone already."""
        if self._has_ended:
            raise DataplaneStuck("the dataplane loop has ended")
        waiter: asyncio.Future[CycleReport] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._is_awaited.set()
        self._wake.set()
        return await waiter

    # -------------------------------------------------------------------------------- tasks

    async def watch_kernel(self) -> None:
        """Take notifications as they come, so that the kernel's buffer does not fill up."""
        while True:
            await self._parts.events.wait()
            if self._take_events():
                self._wake.set()

    async def run(self) -> None:
        """The apply task. Errors: DataplaneStuck (D5)."""
        self._has_ended = False
        try:
            while True:
                await self._wait_for_work()
                if self._is_in_sync:
                    await self._throttle()
                    self._wake.clear()
                    await self.apply()
                else:
                    self._wake.clear()
        finally:
            self._has_ended = True
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_exception(DataplaneStuck("the dataplane loop has ended"))
                    waiter.exception()  # nobody may be waiting any more
            self._waiters.clear()

    async def apply(self) -> CycleReport:
        """One cycle, now."""
        began_at = self._clock.monotonic()
        waiters, self._waiters = self._waiters, []
        self._is_awaited.clear()
        try:
            report = await self._cycle(began_at)
        except BaseException:
            self._waiters = waiters + self._waiters  # answered when run() ends
            raise
        self._cycles += 1
        self._plan_next(report)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(report)
        # After those who waited have gone on: writing a status file takes as long as a route.
        asyncio.get_running_loop().call_soon(self._observe, report)
        return report

    def _observe(self, report: CycleReport) -> None:
        for observer in self._observers:
            observer(report)
        self._log(report)

    async def _cycle(self, began_at: float) -> CycleReport:
        await self._simulate_trouble(began_at)
        self._queue_due_refreshes(began_at)
        self._take_events()
        link_result = await self._refresh_links()
        oldest_at, self._oldest_intent_at = self._oldest_intent_at, None
        for manager in self._parts.managers:
            manager.complete_deferred_work()
        results: list[tuple[str, ApplyResult]] = [("links", link_result)]
        is_filtering = True
        for stage in self._parts.stages:
            if not is_filtering:
                break  # D3
            result = await stage.driver.apply()
            results.append((stage.driver.name, result))
            if stage.is_vital and result.failed:
                is_filtering = False
        self._check_vital(is_filtering)
        now = self._clock.monotonic()
        waited_s = None if oldest_at is None else now - oldest_at
        return CycleReport(now - began_at, tuple(results), is_filtering, waited_s)

    # ------------------------------------------------------------------------------- events

    def _take_events(self) -> bool:
        """Distribute what the kernel has said. True when that makes work for a cycle: not for the
        routes and statistics of others that come with every interface."""
        try:
            events = self._parts.events.read()
        except SuiteError as err:
            LOG.warning("kernel notifications could not be read", error=str(err))
            self.queue_resync("notifications could not be read")
            return True
        makes_work = False
        for event in events:
            if isinstance(event, LinkEvent):
                makes_work |= self._parts.links.on_link_event(event)
            elif isinstance(event, AddressEvent):
                makes_work |= self._parts.links.on_address_event(event)
            elif isinstance(event, RouteEvent):
                for table in self._parts.route_tables:
                    makes_work |= table.on_route_event(event)
            elif isinstance(event, Overrun):
                makes_work = True
                LOG.warning("kernel notifications were lost")
                self._parts.links.queue_relist("notifications were lost")
                for table in self._parts.route_tables:
                    table.queue_resync("notifications were lost")
        return makes_work

    async def _refresh_links(self) -> ApplyResult:
        try:
            await self._parts.links.refresh()
        except SuiteError as err:
            LOG.warning("interfaces could not be listed", error=str(err))
            return ApplyResult(failed=1, error=str(err))
        return NOTHING_DONE

    # ----------------------------------------------------------------------------- schedule

    def _queue_due_refreshes(self, now: float) -> None:
        due = [name for name, at in self._schedule.refresh_at.items() if at <= now]
        for name in due:
            del self._schedule.refresh_at[name]
        for stage in self._parts.stages:
            if stage.driver.name in due:
                stage.driver.queue_resync("periodic")
        if "links" in due:
            self._parts.links.queue_relist("periodic")

    def _plan_next(self, report: CycleReport) -> None:
        now = self._clock.monotonic()
        intervals = {stage.driver.name: stage.refresh_s for stage in self._parts.stages}
        intervals["links"] = self._parts.link_refresh_s
        for name, interval_s in intervals.items():
            if interval_s > 0:
                self._schedule.refresh_at.setdefault(name, now + interval_s)
        total = report.total
        if total.failed:
            self._schedule.retry_at = now + self._backoff.next_s()
        else:
            self._schedule.retry_at = None
            self._backoff.reset()
        wait_s = total.retry_after_s
        self._schedule.deferred_at = None if wait_s is None else now + wait_s

    async def _wait_for_work(self) -> None:
        """Until somebody wakes us or something is due; a while at most, to be seen alive."""
        next_at = self._schedule.next_at() if self._is_in_sync else None
        wait_s = _IDLE_S
        if next_at is not None:
            wait_s = min(wait_s, max(0.0, next_at - self._clock.monotonic()))
        if self._wake.is_set() or wait_s == 0:
            await asyncio.sleep(0)
            return
        await wait_for_event(self._wake, wait_s, self._clock)

    async def _throttle(self) -> None:
        """D6: a token for each cycle; they come back at a steady rate."""
        while not self._waiters:
            now = self._clock.monotonic()
            earned = (now - self._tokens_at) * _CYCLES_PER_S
            self._tokens = min(_BURST_CYCLES, self._tokens + earned)
            self._tokens_at = now
            if self._tokens >= 1:
                self._tokens -= 1
                return
            # A whole token's time: a fraction may round to nothing and be asked for for ever.
            await wait_for_event(self._is_awaited, 1 / _CYCLES_PER_S, self._clock)

    def _check_vital(self, is_filtering: bool) -> None:
        """D5."""
        now = self._clock.monotonic()
        if is_filtering:
            self._vital_failing_since = None
            return
        if self._vital_failing_since is None:
            self._vital_failing_since = now
        elif now - self._vital_failing_since > _STUCK_AFTER_S:
            raise DataplaneStuck(f"filter rules could not be written for {_STUCK_AFTER_S:.0f} s")

    async def _simulate_trouble(self, now: float) -> None:
        if self._parts.hang_after_s and now - self._started_at > self._parts.hang_after_s:
            LOG.warning("simulating a hang of the dataplane, as configured")
            await asyncio.get_running_loop().create_future()
        if self._parts.apply_delay_s:
            await self._clock.sleep(self._parts.apply_delay_s)

    def _log(self, report: CycleReport) -> None:
        total = report.total
        if not (total.written or total.deleted or total.failed):
            return
        details: dict[str, object] = {
            f"{name}_{word}": count
            for name, result in report.results
            for word, count in (("written", result.written), ("deleted", result.deleted))
            if count
        }
        if total.failed:
            details |= {"failed": total.failed, "error": total.error}
        took_ms = round(report.took_s * 1000, 1)
        LOG.info("dataplane applied", took_ms=took_ms, **details)

    def dump(self) -> dict[str, object]:
        return {
            "in_sync": self._is_in_sync,
            "cycles": self._cycles,
            "links": self._parts.links.dump(),
            "drivers": {stage.driver.name: stage.driver.dump() for stage in self._parts.stages},
        }
