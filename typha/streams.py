"""From the datastore to the fan-outs: one watch for all streams, values as they are stored.

Layer: typha. A SyncSink; `source` wires it to a WatchSyncer. Pure but for the callback.

  D1  each prefix of the datastore is followed once, whatever number of streams it belongs to, and
      its bytes are kept once;
  D2  nothing is sent to anybody before the first IN_SYNC; a later re-list changes nothing for
      clients but what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from libcalico.model.keys import Key, path_of
from libcalico.syncer.api import SyncStatus, Update
from libcalico.syncer.streams import FELIX, SPANS, STREAMS, prefixes_of
from typha.fanout import Fanout, Limits
from typha.spans_fanout import SpansFanout


def as_stored(key: Key, value: bytes, revision: int) -> bytes:
    """The decoder of typha's syncer: none."""
    return value


class Distributor:
    """SyncSink that fills one Fanout per stream, and the spans' feed where there is one."""

    def __init__(
        self,
        limits: Limits,
        on_change: Callable[[], None],
        *,
        streams: Mapping[str, Sequence[str]] = STREAMS,
    ) -> None:
        self.fanouts = {name: Fanout(limits) for name in streams}
        self.prefixes = tuple(dict.fromkeys(p for found in streams.values() for p in found))
        self._prefixes_by_stream = {name: tuple(found) for name, found in streams.items()}
        self._targets = {
            prefix: [self.fanouts[name] for name, found in streams.items() if prefix in found]
            for prefix in self.prefixes
        }
        #: Set by whoever computes spans.
        self.spans: SpansFanout | None = None
        self._spans_prefixes = frozenset(streams.get(FELIX, ()))
        self._on_change = on_change
        self.status = SyncStatus.WAIT_FOR_DATASTORE
        self.has_been_in_sync = False

    def on_updates(self, updates: Sequence[Update]) -> None:
        prefix = self.prefixes[0]
        for update in updates:
            path = path_of(update.key)
            if not path.startswith(prefix):
                prefix = next(item for item in self.prefixes if path.startswith(item))
            value = update.value if isinstance(update.value, bytes) else None
            change = ((path, value, update.revision),)
            for fanout in self._targets[prefix]:
                fanout.on_changes(change)
            if self.spans is not None and prefix in self._spans_prefixes:
                self.spans.on_change(prefix, *change[0])
        self._on_change()

    def on_status(self, status: SyncStatus) -> None:
        self.status = status
        if status is SyncStatus.IN_SYNC:
            self.has_been_in_sync = True
        self._on_change()

    def serves(self, stream: str) -> bool:
        return stream in self.fanouts or (stream == SPANS and self.spans is not None)

    def positions_of(self, stream: str, positions: Mapping[str, int]) -> dict[str, int]:
        """The part of a syncer's positions that belongs to a stream."""
        return {prefix: positions.get(prefix, 0) for prefix in self._prefixes(stream)}

    def _prefixes(self, stream: str) -> tuple[str, ...]:
        return prefixes_of(SPANS) if stream == SPANS else self._prefixes_by_stream[stream]
