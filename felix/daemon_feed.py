"""From the syncer to the dataplane: updates into the calc graph, its intents out.

Layer: felix.daemon. The syncer calls it synchronously; one task hands on what has gathered, so a
burst of updates becomes one flush and one cycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from felix.calc.graph import CalcGraph
from felix.intent import Intent
from libcalico.runtime import log
from libcalico.runtime.clock import Clock, wait_for_event
from libcalico.syncer.api import GroupChange, SyncSink, SyncStatus, Update

LOG = log.get(__name__)

# A quiet feed still reports that it is alive.
_IDLE_S = 10.0


class FanOut:
    """One stream of the syncer to several sinks, in order."""

    def __init__(self, *sinks: SyncSink) -> None:
        self._sinks = sinks

    def on_updates(self, updates: Sequence[Update]) -> None:
        for sink in self._sinks:
            sink.on_updates(updates)

    def on_status(self, status: SyncStatus) -> None:
        for sink in self._sinks:
            sink.on_status(status)


class SpansFanOut(FanOut):
    """The same of the spans stream: `on_groups` goes to the graph, positions to who reports."""

    def __init__(
        self,
        feed: GraphFeed,
        on_positions: Callable[[Mapping[str, int]], None],
        *others: SyncSink,
    ) -> None:
        super().__init__(*others, feed)
        self._feed, self._positions = feed, on_positions

    def on_groups(self, changes: Sequence[GroupChange]) -> None:
        self._feed.on_groups(changes)

    def on_positions(self, positions: Mapping[str, int]) -> None:
        self._positions(positions)
        self._feed.wake()


class GraphFeed:
    """SyncSink that owns the calc graph's task."""

    def __init__(
        self,
        graph: CalcGraph,
        deliver: Callable[[Sequence[Intent]], None],
        *,
        clock: Clock,
        is_alive: Callable[[], None],
    ) -> None:
        self._graph, self._deliver, self._clock = graph, deliver, clock
        self._is_alive = is_alive
        self._wake = asyncio.Event()
        self.status = SyncStatus.WAIT_FOR_DATASTORE
        self._said_problems: dict[str, str] = {}

    def on_updates(self, updates: Sequence[Update]) -> None:
        self._graph.on_updates(updates)
        self._wake.set()

    def on_groups(self, changes: Sequence[GroupChange]) -> None:
        self._graph.on_groups(changes)
        self._wake.set()

    def wake(self) -> None:
        """Somebody waits for the next flush."""
        self._wake.set()

    def on_status(self, status: SyncStatus) -> None:
        if status is not self.status:
            LOG.info("datastore status", reason=status.value)
        self.status = status
        self._graph.on_status(status)
        self._wake.set()

    def publish(self) -> None:
        """Hand over what the graph has to say, now."""
        self._deliver(self._graph.flush())

    async def run(self) -> None:
        while True:
            self._is_alive()
            await wait_for_event(self._wake, _IDLE_S, self._clock)
            self._wake.clear()
            self.publish()
            self._warn_of_problems()

    def _warn_of_problems(self) -> None:
        """Each object once per reason (one bad object never stops the others)."""
        problems = {str(key): why for key, why in self._graph.problems.items()}
        for name, why in problems.items():
            if self._said_problems.get(name) != why:
                LOG.warning("an invalid object is ignored", key=name, error=why)
        notices = {str(key): why for key, why in self._graph.notices.items()}
        for name, why in notices.items():
            if self._said_problems.get(name) != why:
                LOG.warning("an object is not in force as a whole", key=name, reason=why)
        self._said_problems = problems | notices
