"""The syncer that stands on typha: the same stream as from the datastore, over one connection.

Layer: syncer edge. `wire.client` decides what may come, `syncer.reconcile` what is said. Used by
felix and confd in the place of `WatchSyncer`.

  T1  a new connection begins with a snapshot; only differences to what was said before are said
      again, vanished keys once as deletes: a lost connection or a restarted typha changes nothing;
  T2  never back in time: the server is told what we have seen, and does not answer with less; of a
      key the largest revision wins (reconcile I6). Only a server that says that the datastore was
      restored from a backup is believed unseen;
  T3  while no typha answers nothing is said to the sink: it keeps what it has (W2 of the watcher).
      One log line a minute says so. There is no silent fall-back to the datastore;
  T4  a server that says nothing for `read_timeout_s` is left; servers are tried in random order,
      one that asked us to move is not asked again before it said;
  T5  the sink is called synchronously, from the loop that runs us.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from libcalico.datastore.api import EventType, KeyValue, ListResult, WatchBatch, WatchEvent
from libcalico.datastore.peer_tls import PeerTls
from libcalico.errors import ConfigError, SuiteError, Transient, WireError
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff, Throttle
from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.runtime.version import VERSION
from libcalico.syncer.api import SyncSink, SyncStatus, Update
from libcalico.syncer.reconcile import RangeState
from libcalico.syncer.streams import covers, prefixes_of
from libcalico.syncer.typhas import Endpoint, Finder, NoTypha
from libcalico.wire.client import ClientProtocol
from libcalico.wire.messages import (
    HIGHEST_VERSION,
    LOWEST_VERSION,
    MAGIC,
    NO_COMPRESSION,
    ZSTD,
    Change,
    Deltas,
    Goodbye,
    Hello,
    Item,
    Message,
    Page,
    Reason,
    Snapshot,
    SnapshotEnd,
    Status,
    Welcome,
)

LOG = log.get(__name__)
_READ_BYTES = 256 * 1024
_LOG_PERIOD_S = 60.0
_ABSENT = b""


@dataclass(frozen=True, slots=True)
class TyphaOptions:
    """What to ask a typha for, and how. `tls` None: only targets that say tcp:// can be reached."""

    stream: str
    node: str
    tls: PeerTls | None = None
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    write_timeout_s: float = 10.0
    retry_first_s: float = 0.2
    retry_limit_s: float = 5.0
    compressions: tuple[str, ...] = (ZSTD, NO_COMPRESSION)


class ConnectionLost(Transient):
    """One connection has ended; `why` is for people."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why


@dataclass(slots=True)
class TyphaStats:
    """Counters since start, for metrics and dumps. `missed` is there for whoever shows a
    WatchSyncer's and is always zero: typha compares."""

    updates: int = 0
    connections: int = 0
    bad_values: int = 0
    moves: int = 0
    missed: int = 0


class TyphaSyncer:
    """Follows prefixes of one stream into a sink. `run` once."""

    #: Whether the stream comes in steps (syncer.spans).
    in_steps = False

    def __init__(
        self,
        finder: Finder,
        prefixes: Sequence[str],
        sink: SyncSink,
        options: TyphaOptions,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        strange = [prefix for prefix in prefixes if not covers(options.stream, prefix)]
        if strange:
            raise ValueError(f"the stream {options.stream} does not carry {strange[0]}")
        self._finder, self._stream, self._sink = finder, options.stream, sink
        self._options, self._clock = options, clock
        self._ranges = tuple(RangeState(prefix, never_goes_back=True) for prefix in prefixes)
        #: Revision up to which each prefix of the stream was seen (T2).
        self._positions: dict[str, int] = {}
        self._status: SyncStatus | None = None
        self._throttle = Throttle(_LOG_PERIOD_S)
        self._avoid: dict[Endpoint, float] = {}
        self._moved_at: float | None = None
        self._server = ""
        #: The server that the last Goodbye named.
        self._named = ""
        self.stats = TyphaStats()

    @property
    def status(self) -> SyncStatus:
        return self._status or SyncStatus.WAIT_FOR_DATASTORE

    async def run(self) -> None:
        self._say(SyncStatus.WAIT_FOR_DATASTORE)
        backoff = Backoff(self._options.retry_first_s, self._options.retry_limit_s)
        while True:
            try:
                await self._try_each(backoff)
            except NoTypha as err:
                self._report_away(err)
            await self._clock.sleep(backoff.next_s())

    def dump(self) -> dict[str, object]:
        return {
            "status": self.status.value,
            "server": self._server,
            "stats": {name: getattr(self.stats, name) for name in TyphaStats.__slots__},
            "ranges": [item.dump() for item in self._ranges],
        }

    # ---- connections ---------------------------------------------------------------------------

    async def _try_each(self, backoff: Backoff) -> None:
        """One round over all servers. Errors: NoTypha."""
        now = self._clock.monotonic()
        self._avoid = {item: until for item, until in self._avoid.items() if until > now}
        endpoints = await self._finder.endpoints()
        while endpoints:
            endpoint = min(endpoints, key=self._reluctance)
            endpoints.remove(endpoint)
            try:
                await self._follow(endpoint, backoff)
            except (ConnectionLost, SuiteError) as err:
                why = err.reason if isinstance(err, WireError) else str(err)
                self._report_away(ConnectionLost(f"typha {endpoint}: {why}"))
            finally:
                self._server = ""

    def _reluctance(self, endpoint: Endpoint) -> float:
        """Who was named first; who asked us to stay away last: better than nobody."""
        if str(endpoint) == self._named:
            return -1.0
        return self._avoid.get(endpoint, 0.0)

    async def _follow(self, endpoint: Endpoint, backoff: Backoff) -> None:
        """One connection until it ends. Errors: ConnectionLost, WireError, WrongPeer."""
        reader, writer = await self._connect(endpoint)
        try:
            protocol = ClientProtocol(self._hello(), in_steps=self.in_steps)
            while True:
                await self._send(writer, protocol.data_to_send())
                data = await self._read(reader)
                for message in protocol.receive(data):
                    self._take(message, endpoint, backoff)
                # A full buffer gives without waiting: the others have their turn all the same.
                await asyncio.sleep(0)
        finally:
            # Nothing is owed to the server: what it has sent on is of no use any more.
            writer.transport.abort()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await writer.wait_closed()

    async def _connect(
        self, endpoint: Endpoint
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = self._context(endpoint)
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                reader, writer = await asyncio.open_connection(
                    endpoint.address, endpoint.port, ssl=context, limit=_READ_BYTES
                )
        except TimeoutError as err:
            raise ConnectionLost("does not answer") from err
        except ssl.SSLError as err:
            raise ConnectionLost(f"TLS: {err.reason or err}") from err
        except OSError as err:
            raise ConnectionLost(err.strerror or str(err)) from err
        if context is not None and self._options.tls is not None:
            try:
                self._options.tls.peer.check(writer.get_extra_info("peercert"))
            except SuiteError:
                writer.transport.abort()
                raise
        return reader, writer

    def _context(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        if not endpoint.is_tls:
            return None
        tls = self._options.tls
        if tls is None:
            raise ConnectionLost("no certificates are configured, and tcp:// was not said")
        try:
            if tls.renewed():
                LOG.info("certificates for typha renewed")
        except ConfigError as err:
            LOG.error("the certificates for typha stay as they were", error=str(err))
        return tls.context

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not data:
            return
        try:
            writer.write(data)
            async with asyncio.timeout(self._options.write_timeout_s):
                await writer.drain()
        except TimeoutError as err:
            raise ConnectionLost("takes nothing any more") from err
        except OSError as err:
            raise ConnectionLost(err.strerror or str(err)) from err

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self._options.read_timeout_s):
                data = await reader.read(_READ_BYTES)
        except TimeoutError as err:
            raise ConnectionLost(f"silent for {self._options.read_timeout_s:g} s") from err
        except ssl.SSLError as err:
            # With TLS 1.3 the server's verdict on our certificate comes after the handshake.
            raise ConnectionLost(f"TLS: {err.reason or err}") from err
        except OSError as err:
            raise ConnectionLost(err.strerror or str(err)) from err
        if not data:
            raise ConnectionLost("the server closed the connection")
        return data

    def _hello(self) -> Hello:
        moved_at = self._moved_at
        return Hello(
            MAGIC,
            LOWEST_VERSION,
            HIGHEST_VERSION,
            self._stream,
            self._options.node,
            software=VERSION,
            compressions=list(self._options.compressions),
            positions=self._seen_positions(),
            moved_s_ago=-1.0 if moved_at is None else self._clock.monotonic() - moved_at,
        )

    # ---- messages ------------------------------------------------------------------------------

    def _take(self, message: Message, endpoint: Endpoint, backoff: Backoff) -> None:
        match message:
            case Page(items):
                self._on_page(items)
            case Deltas(changes):
                self._on_deltas(changes)
            case Snapshot():
                self._on_snapshot(message)
            case SnapshotEnd(positions):
                self._on_snapshot_end(positions)
                backoff.reset()
            case Welcome():
                self.stats.connections += 1
                self._server, self._named = str(endpoint), ""
                self._throttle.reset()
                LOG.info("connected to typha", endpoint=str(endpoint), reason=message.software)
            case Status(status):
                LOG.debug("status of typha", reason=status)
            case Goodbye():
                self._on_goodbye(message, endpoint)
            case _:
                self._take_more(message)

    def _take_more(self, message: Message) -> None:
        """What only streams in steps have; `wire.client` lets none of it come here."""

    def _seen_positions(self) -> dict[str, int]:
        return dict(self._positions)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self._say(SyncStatus.RESYNC)
        for item in self._ranges:
            if snapshot.is_reset:
                item.distrust()
            item.begin_list()
        if snapshot.is_reset:
            LOG.warning("typha says that the datastore was restored: everything is taken anew")
            self._positions = {}

    def _on_page(self, items: list[Item]) -> None:
        for state, found in _by_range(self._ranges, items):
            kvs = (KeyValue(path, value or _ABSENT, revision) for path, value, revision in found)
            self._deliver(state.on_page(ListResult(tuple(kvs), 0)))

    def _on_snapshot_end(self, positions: dict[str, int]) -> None:
        for prefix, revision in positions.items():
            self._positions[prefix] = max(revision, self._positions.get(prefix, 0))
        for state in self._ranges:
            self._deliver(state.end_list(_position_of(state.prefix, positions)))
        self._say(SyncStatus.IN_SYNC)

    def _on_deltas(self, changes: list[Change]) -> None:
        for path, _, revision in changes:
            self._reached(path, revision)
        for state, found in _by_range(self._ranges, changes):
            events = tuple(_event(*change) for change in found)
            last = max(event.kv.mod_revision for event in events)
            self._deliver(state.on_batch(WatchBatch(events, last)))

    def _reached(self, path: str, revision: int) -> None:
        """`revision` of `path` was seen, and so was all before it below the same prefix."""
        for prefix in prefixes_of(self._stream):
            if path.startswith(prefix):
                if revision > self._positions.get(prefix, 0):
                    self._positions[prefix] = revision
                return

    def _on_goodbye(self, goodbye: Goodbye, endpoint: Endpoint) -> None:
        now = self._clock.monotonic()
        if goodbye.retry_after_s > 0:
            self._avoid[endpoint] = now + goodbye.retry_after_s
        self._named = goodbye.instead
        if goodbye.reason == Reason.MOVE.value:
            self._moved_at = now
            self.stats.moves += 1
        raise ConnectionLost(f"it said goodbye ({goodbye.reason}): {goodbye.text}")

    # ---- what the sink hears -------------------------------------------------------------------

    def _deliver(self, updates: Sequence[Update]) -> None:
        if not updates:
            return
        for update in updates:
            if update.error is not None:
                self.stats.bad_values += 1
                LOG.warning("a stored value does not parse, treated as absent",
                            key=update.error.key, revision=update.revision,
                            error=update.error.reason)  # fmt: skip
        self.stats.updates += len(updates)
        self._sink.on_updates(updates)

    def _say(self, status: SyncStatus) -> None:
        if status is not self._status:
            self._status = status
            self._sink.on_status(status)

    def _report_away(self, err: Exception) -> None:
        if self._throttle.allows(self._clock.monotonic()):
            LOG.warning("waiting for typha", error=str(err))


def _by_range(
    ranges: Sequence[RangeState], changes: Sequence[Change | Item]
) -> list[tuple[RangeState, list[Change]]]:
    """Runs of neighbours of one range, in order; what no range wants is left out."""
    runs: list[tuple[RangeState, list[Change]]] = []
    state: RangeState | None = None
    for change in changes:
        path = change[0]
        if state is None or not path.startswith(state.prefix):
            state = next((item for item in ranges if path.startswith(item.prefix)), None)
            if state is None:
                continue
            runs.append((state, []))
        elif not runs or runs[-1][0] is not state:
            runs.append((state, []))
        runs[-1][1].append(change)
    return runs


def _position_of(prefix: str, positions: dict[str, int]) -> int:
    """Of the stream's prefix that covers ours."""
    return max((at for wide, at in positions.items() if prefix.startswith(wide)), default=0)


def _event(path: str, value: bytes | None, revision: int) -> WatchEvent:
    if value is None:
        return WatchEvent(EventType.DELETE, KeyValue(path, _ABSENT, revision))
    return WatchEvent(EventType.PUT, KeyValue(path, value, revision))
