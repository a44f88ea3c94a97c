"""The server: accepts clients, greets them, and writes the frames that the fan-out made.

Layer: typha edge. `wire.server` reads a client, `fanout` says what it gets, `balance` how many
there may be. One loop; a client costs a transport, a follower and no task.

  S1  a client gets a snapshot of its stream, then every change behind it, in order (fanout B2);
  S2  a client that does not read is not written to: what waits for it are its transport's buffer
      (HIGH_WATER_BYTES and one frame) and its place in the log, which has a bound of its own. It
      delays nobody;
  S3  a client that knows more than we do is not answered with less: our syncer is asked to confirm
      where the datastore is; if we are behind it waits for CATCH_UP_S, then it is told to go to
      another server. If the datastore itself is older, it was restored: the snapshot says so;
  S4  whatever a client sends costs its own connection, with a reason in the Goodbye and the log;
  S5  a client of the spans stream gets steps (spans_fanout); what changed without anything for
      it is told once a second at most, by its revision;
  S6  going down, the goodbyes are spread over the shutdown time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol, cast

from libcalico.datastore.peer_tls import PeerTls
from libcalico.errors import ConfigError, SuiteError, Transient, Unauthorized, WireError
from libcalico.runtime import log
from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.runtime.version import VERSION
from libcalico.syncer.streams import SPANS
from libcalico.syncer.typhas import ServerRecord
from libcalico.wire import messages
from libcalico.wire.framing import Packer
from libcalico.wire.messages import (
    Goodbye,
    Hello,
    Message,
    Ping,
    Reason,
    Snapshot,
    SnapshotEnd,
    Welcome,
)
from libcalico.wire.server import Refused, ServerProtocol, Terms, agree
from typha.balance import may_move
from typha.config import TyphaConfig
from typha.fanout import Fanout, Follower, SharedSnapshot
from typha.spans_fanout import SpansFanout, SpansFollower
from typha.streams import Distributor

LOG = log.get(__name__)
#: What may wait in a client's transport before we stop writing to it.
HIGH_WATER_BYTES = 256 * 1024
CATCH_UP_S = 10.0
_CATCH_UP_STEP_S = 0.2
_BACKLOG = 1024
_PAGES_AT_A_TIME = 16
_POSITIONS_S = 1.0
_FULL_RETRY_S = 30.0
_MOVE_RETRY_S = 60.0


@dataclass(slots=True)
class ServerStats:
    """Counters since start. `ended` by reason (a `Reason` value, or "client" when it left)."""

    accepted: int = 0
    snapshots: int = 0
    snapshots_made: int = 0
    crumbs: int = 0
    bytes_sent: int = 0
    ended: Counter[str] = field(default_factory=Counter)


class Position(Protocol):
    """What the server asks the syncer behind the streams (`WatchSyncer` satisfies it)."""

    def positions(self) -> dict[str, int]: ...

    async def confirm(self, prefixes: Collection[str]) -> int: ...


class Client(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_deadline",
        "_protocol",
        "_server",
        "connected_at",
        "follower",
        "heard_at",
        "hello",
        "is_closed",
        "is_paused",
        "pages",
        "peer",
        "terms",
        "transport",
    )  # fmt: skip

    def __init__(self, server: TyphaServer, now: float) -> None:
        self._server = server
        self._protocol = ServerProtocol()
        self._deadline: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.hello: Hello | None = None
        self.terms: Terms | None = None
        self.follower: Follower | SpansFollower | None = None
        self.pages: Iterator[bytes] | None = None
        self.connected_at = self.heard_at = now
        self.is_paused = self.is_closed = False

    @property
    def is_compressed(self) -> bool:
        return self.terms is not None and self.terms.is_compressed

    # ---- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self.peer = _shown(transport.get_extra_info("peername"))
        self._deadline = asyncio.get_running_loop().call_later(
            self._server.config.server_handshake_timeout_s, self._on_deadline
        )
        self._server.on_connected(self)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._server.clock.monotonic()
        try:
            for message in self._protocol.receive(data):
                if isinstance(message, Hello):
                    self._on_hello(message)
        except Refused as err:
            self.end(err.why, err.reason)
        except WireError as err:
            self.end(Reason.PROTOCOL, err.reason)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        if not self.is_closed:
            self.is_closed = True
            self._server.on_ended(self, "client")

    # ---- ours ----------------------------------------------------------------------------------

    def send(self, message: Message, packer: Packer) -> None:
        self.write(packer.frame(messages.kind_of(message), messages.encode(message)))

    def write(self, frame: bytes) -> None:
        if self.transport is not None and not self.is_closed:
            self._server.stats.bytes_sent += len(frame)
            self.transport.write(frame)

    def begin(
        self,
        fanout: Fanout,
        snapshot: SharedSnapshot,
        now: float,
        packer: Packer,
        *,
        is_reset: bool,
    ) -> None:
        """The snapshot, then what came after it (S1)."""
        self.send(Snapshot(snapshot.pages.count, is_reset), packer)
        end = packer.frame(
            messages.Kind.SNAPSHOT_END, messages.encode(SnapshotEnd(snapshot.positions))
        )
        self.pages = iter((*snapshot.pages.frames, end))
        cursor = fanout.cursor_at(snapshot, now, is_compressed=self.is_compressed)
        self.follower = Follower(fanout, cursor)
        self.pump()

    def begin_steps(self, spans: SpansFanout, packer: Packer, *, is_reset: bool) -> None:
        """What concerns its node, then every change of that (S5)."""
        assert self.hello is not None
        cursor = spans.join(self.hello.node, is_compressed=self.is_compressed)
        count, self.pages = spans.snapshot_frames(cursor)
        self.send(Snapshot(count, is_reset), packer)
        self.follower = SpansFollower(spans, cursor)
        self.pump()

    def pump(self) -> None:
        """Write until there is nothing more, or the client takes no more (S2)."""
        follower = self.follower
        if follower is None:
            return
        now = self._server.clock.monotonic()
        while not self.is_paused and not self.is_closed and follower.is_settled:
            if self.pages is not None:
                frame = next(self.pages, None)
                if frame is None:
                    self.pages = None
                else:
                    self.write(frame)
                continue
            try:
                frames = follower.next_frames(now)
            except SuiteError as err:
                self.end(Reason.FELL_BEHIND, str(err))
                return
            if not frames:
                return
            for frame in frames:
                self.write(frame)
            if not follower.has_news:  # as a rule: then nobody need be asked again
                return

    def end(self, why: Reason, text: str, *, retry_after_s: float = 0.0, instead: str = "") -> None:
        """Say goodbye and close (S4)."""
        if self.is_closed or self.transport is None:
            return
        goodbye = Goodbye(why.value, text, retry_after_s, instead)
        self.send(goodbye, self._server.packer)
        self.is_closed = True
        self._forget_deadline()
        if self.is_paused:
            self.transport.abort()  # it would not read the goodbye either
        else:
            self.transport.close()
        self._server.on_ended(self, why.value)
        LOG.info("a client is left", peer=self.peer, reason=why.value, error=text)

    def _on_hello(self, hello: Hello) -> None:
        self.terms = agree(hello)
        if not self._server.distributor.serves(hello.stream):
            raise Refused(Reason.STREAM, f"there is no stream {hello.stream[:40]!r} here")
        self.hello = hello
        self._forget_deadline()
        server = self._server
        welcome = Welcome(
            self.terms.version,
            software=VERSION,
            server=server.name,
            compression=self.terms.compression,
            ping_interval_s=server.config.server_ping_interval_s,
        )
        self.send(welcome, server.packer)
        server.on_greeted(self)

    def _on_deadline(self) -> None:
        self.end(Reason.SILENT, "no greeting in time")

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class TyphaServer:
    """All clients of one typha. `run` serves until it is cancelled."""

    def __init__(
        self,
        config: TyphaConfig,
        distributor: Distributor,
        source: Position,
        *,
        tls: PeerTls | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.config, self.distributor, self.clock = config, distributor, clock
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self.packer = Packer()
        self.stats = ServerStats()
        self.clients: set[Client] = set()
        self.limit = config.max_connections_upper_limit
        self.port = 0
        self._source, self._tls = source, tls
        self._joining: dict[str, list[Client]] = {}
        self._wake_joins = asyncio.Event()
        self._cut_at = 0.0
        self._cut_timer: asyncio.TimerHandle | None = None
        #: Clients have news that the next cut will not find by itself.
        self._owes = False
        self._handshakes: set[asyncio.Task[None]] = set()
        self._ping = 0
        self.is_listening = asyncio.Event()

    # ---- changes -------------------------------------------------------------------------------

    def on_change(self) -> None:
        """The streams have news: send them soon, but not more often than the batching age."""
        self._wake_joins.set()
        if self._cut_timer is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time(), self._cut_at + self.config.server_min_batching_age_s)
            self._cut_timer = loop.call_at(at, self._cut)

    def _cut(self) -> None:
        self._cut_timer = None
        loop = asyncio.get_running_loop()
        spans = self.distributor.spans
        is_digested = spans is None or spans.digest()
        if not is_digested:
            self._owes = True
            self._cut_timer = loop.call_later(0, self._cut)  # others have their turn first
        if not self.distributor.has_been_in_sync:
            return
        now = self.clock.monotonic()
        grown, self._owes = self._owes and is_digested, self._owes and not is_digested
        for fanout in self.distributor.fanouts.values():
            if fanout.cut(now):
                grown = True
                self.stats.crumbs += 1
        if spans is not None and is_digested and spans.cut(now):
            grown = True
        if not grown:
            return
        self._cut_at = loop.time()
        for client in tuple(self.clients):  # one that is too far behind leaves
            follower = client.follower
            if follower is not None and (follower.has_news or client.pages is not None):
                client.pump()

    # ---- clients come and go -------------------------------------------------------------------

    def on_connected(self, client: Client) -> None:
        self.stats.accepted += 1
        self.clients.add(client)
        if self._tls is not None and client.transport is not None:
            try:
                self._tls.peer.check(client.transport.get_extra_info("peercert"))
            except SuiteError as err:
                client.end(Reason.PROTOCOL, str(err))
                return
        if len(self.clients) > self.limit:
            text = f"there is room for {self.limit} clients"
            client.end(Reason.FULL, text, retry_after_s=_FULL_RETRY_S)

    def on_greeted(self, client: Client) -> None:
        assert client.hello is not None
        LOG.debug("a client joins", peer=client.peer, node=client.hello.node)
        self._joining.setdefault(client.hello.stream, []).append(client)
        self._wake_joins.set()

    def on_ended(self, client: Client, why: str) -> None:
        self.clients.discard(client)
        self.stats.ended[why] += 1
        follower, client.follower = client.follower, None
        if isinstance(follower, SpansFollower):
            follower.fanout.leave(follower.cursor)

    # ---- tasks ---------------------------------------------------------------------------------

    async def run(self) -> None:
        listeners = self._listen()
        try:
            async with asyncio.TaskGroup() as tasks:
                for listener in listeners:
                    tasks.create_task(self._accept(listener))
                tasks.create_task(self._join_for_ever())
                tasks.create_task(self._look_after())
                tasks.create_task(self._tell_positions())
                self.is_listening.set()
        finally:
            self.is_listening.clear()
            for listener in listeners:
                listener.close()
            await self._leave()

    def _listen(self) -> list[socket.socket]:
        """Errors: ConfigError when the address cannot be had."""
        host, port = self.config.server_host, self.config.server_port
        try:
            is_dual = not host and socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if is_dual or ":" in host else socket.AF_INET
            listener = socket.create_server(
                (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual
            )
        except OSError as err:
            raise ConfigError("environment", "ServerPort", err.strerror or str(err), port) from err
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        LOG.info(
            "serving", endpoint=f"{host or '*'}:{self.port}", reason="TLS" if self._tls else "plain"
        )
        return [listener]

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as err:
                # Out of descriptors: those who wait are served when others have left.
                LOG.warning("a client could not be accepted", error=err.strerror or str(err))
                await self.clock.sleep(1.0)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._adopt(connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _adopt(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = self.config.server_handshake_timeout_s
        now = self.clock.monotonic()
        try:
            context = None if self._tls is None else self._tls.context
            await loop.connect_accepted_socket(
                lambda: Client(self, now),
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else timeout_s,
            )
        except (OSError, ssl.SSLError) as err:
            LOG.info("a client is left", reason="tls", error=str(err))
            self.stats.ended["tls"] += 1
            connection.close()

    async def _join_for_ever(self) -> None:
        while True:
            await self._wake_joins.wait()
            self._wake_joins.clear()
            if not self.distributor.has_been_in_sync:
                continue
            joining, self._joining = self._joining, {}
            for stream, clients in joining.items():
                await self._join(stream, [item for item in clients if not item.is_closed])

    async def _join(self, stream: str, clients: list[Client]) -> None:
        is_reset = await self._see_to_those_ahead(stream, clients)
        if stream == SPANS:
            await self._join_spans(clients, is_reset)
            return
        for is_compressed in (True, False):
            found = [
                client
                for client in clients
                if client.is_compressed is is_compressed and not client.is_closed
            ]
            if not found:
                continue
            snapshot = await self._snapshot(stream, is_compressed)
            now = self.clock.monotonic()
            for client in found:
                self.stats.snapshots += 1
                fanout = self.distributor.fanouts[stream]
                client.begin(fanout, snapshot, now, self.packer, is_reset=client in is_reset)

    async def _join_spans(self, clients: list[Client], is_reset: set[Client]) -> None:
        spans = self.distributor.spans
        assert spans is not None
        while not spans.digest():  # noqa: ASYNC110 - it works, it does not wait
            await asyncio.sleep(0)
        # A cut marks what is news to the others: they get it with the next one.
        if spans.cut(self.clock.monotonic()):
            self._owes = True
            self.on_change()
        for client in clients:
            if not client.is_closed:
                self.stats.snapshots += 1
                client.begin_steps(spans, self.packer, is_reset=client in is_reset)

    async def _tell_positions(self) -> None:
        """S5."""
        spans = self.distributor.spans
        while spans is not None:
            await self.clock.sleep(_POSITIONS_S)
            if not self.distributor.has_been_in_sync or not spans.digest():
                continue
            if spans.cut(self.clock.monotonic()):
                self._owes = True
                self.on_change()
                continue
            for client in list(self.clients):
                follower = client.follower
                if (
                    isinstance(follower, SpansFollower)
                    and client.pages is None
                    and not client.is_paused
                    and not follower.has_news
                    and follower.cursor.told is not spans.changed
                ):
                    client.write(spans.position_frame(follower.cursor))

    async def _snapshot(self, stream: str, is_compressed: bool) -> SharedSnapshot:
        fanout = self.distributor.fanouts[stream]
        shared = fanout.shared_snapshot(is_compressed=is_compressed)
        if shared is not None:
            return shared
        while fanout.cache.dirty_pages(is_compressed=is_compressed) > _PAGES_AT_A_TIME:
            fanout.cache.make_frames(_PAGES_AT_A_TIME, is_compressed=is_compressed)
            await asyncio.sleep(0)
        positions = self.distributor.positions_of(stream, self._source.positions())
        self.stats.snapshots_made += 1
        now = self.clock.monotonic()
        return fanout.take_snapshot(positions, now, is_compressed=is_compressed)

    # ---- clients that know more than we do (S3) ------------------------------------------------

    async def _see_to_those_ahead(self, stream: str, clients: list[Client]) -> set[Client]:
        """Wait for, or send away, those that are ahead of us; returns those whose knowledge is of a
        datastore that was restored since."""
        deadline = self.clock.monotonic() + CATCH_UP_S
        while True:
            ahead = {client: self._ahead(stream, client) for client in clients}
            ahead = {client: prefixes for client, prefixes in ahead.items() if prefixes}
            if not ahead:
                return set()
            try:
                revision = await self._source.confirm(set().union(*ahead.values()))
            except (Transient, Unauthorized) as err:
                LOG.warning("a client knows more than this server", error=str(err))
            else:
                restored = {item for item in ahead if self._claimed(item, ahead[item]) > revision}
                if restored and restored == ahead.keys():
                    return restored
            if self.clock.monotonic() >= deadline:
                break
            await self.clock.sleep(_CATCH_UP_STEP_S)
        for client in ahead:
            if self._ahead(stream, client):
                client.end(
                    Reason.BEHIND, "this server has not seen what you have seen", retry_after_s=5.0
                )
        return set()

    def _ahead(self, stream: str, client: Client) -> set[str]:
        """Prefixes of which the client has seen more than we."""
        assert client.hello is not None
        ours = self.distributor.positions_of(stream, self._source.positions())
        claims = client.hello.positions
        return {prefix for prefix, at in ours.items() if claims.get(prefix, 0) > at}

    @staticmethod
    def _claimed(client: Client, prefixes: set[str]) -> int:
        assert client.hello is not None
        return max(client.hello.positions[prefix] for prefix in prefixes)

    # ---- looking after clients -----------------------------------------------------------------

    async def _look_after(self) -> None:
        """Pings, silent and slow clients, certificates, and crumbs nobody needs any more."""
        interval_s = self.config.server_ping_interval_s
        while True:
            await self.clock.sleep(interval_s)
            self._renew_certificates()
            self._ping += 1
            ping = self.packer.frame(messages.Kind.PING, messages.encode(Ping(self._ping)))
            now = self.clock.monotonic()
            for client in list(self.clients):
                self._look_at(client, ping, now)
            for fanout in self.distributor.fanouts.values():
                fanout.trim(
                    client.follower.cursor
                    for client in self.clients
                    if isinstance(client.follower, Follower) and client.follower.fanout is fanout
                )

    def _look_at(self, client: Client, ping: bytes, now: float) -> None:
        config = self.config
        if client.hello is None:
            return  # the handshake has a deadline of its own
        if now - client.heard_at > config.server_pong_timeout_s:
            client.end(Reason.SILENT, f"silent for {now - client.heard_at:.0f} s")
        elif client.follower is not None and client.follower.has_fallen_behind(
            now,
            grace_s=config.server_fall_behind_grace_s if client.pages is not None else 0.0,
        ):
            client.end(Reason.FELL_BEHIND, "it takes changes too slowly")
        elif not client.is_paused:
            client.write(ping)

    def _renew_certificates(self) -> None:
        if self._tls is None:
            return
        try:
            if self._tls.renewed():
                LOG.info("certificates renewed")
        except ConfigError as err:
            LOG.error("the certificates stay as they were", error=str(err))

    def move_one(self, to: ServerRecord) -> bool:
        """Ask one client that may move to go to another server."""
        now = self.clock.monotonic()
        for client in self.clients:
            if client.hello is None or client.follower is None or client.pages is not None:
                continue
            if may_move(client.hello.moved_s_ago, now - client.connected_at):
                host = f"[{to.address}]" if ":" in to.address else to.address
                client.end(
                    Reason.MOVE,
                    "another server has more room",
                    retry_after_s=_MOVE_RETRY_S,
                    instead=f"{host}:{to.port}",
                )
                return True
        return False

    def max_lag_s(self) -> float:
        """Of the client furthest behind."""
        now = self.clock.monotonic()
        return max((item.follower.lag_s(now) for item in self.clients if item.follower), default=0)

    @staticmethod
    def end_reasons() -> tuple[str, ...]:
        """The keys of `stats.ended`."""
        return ("client", "tls", *(reason.value for reason in Reason))

    async def _leave(self) -> None:
        """S6."""
        clients = list(self.clients)
        pause_s = self.config.shutdown_timeout_s / max(1, len(clients))
        with contextlib.suppress(asyncio.CancelledError):
            for client in clients:
                client.end(Reason.SHUTDOWN, "this server goes down", retry_after_s=5.0)
                await self.clock.sleep(pause_s)
        for client in list(self.clients):
            client.end(Reason.SHUTDOWN, "this server goes down", retry_after_s=5.0)

    def dump(self) -> dict[str, object]:
        now = self.clock.monotonic()
        return {
            "clients": [_described(client, now) for client in self.clients],
            "limit": self.limit,
            "stats": {name: getattr(self.stats, name) for name in ServerStats.__slots__},
            "streams": {name: item.dump() for name, item in self.distributor.fanouts.items()},
            "spans": None if self.distributor.spans is None else self.distributor.spans.dump(),
        }


def _described(client: Client, now: float) -> dict[str, object]:
    hello, follower = client.hello, client.follower
    return {
        "peer": client.peer,
        "node": "" if hello is None else hello.node,
        "stream": "" if hello is None else hello.stream,
        "software": "" if hello is None else hello.software,
        "connected_s": round(now - client.connected_at, 1),
        "lag_s": 0.0 if follower is None else round(follower.lag_s(now), 3),
        "is_in_snapshot": client.pages is not None,
    }


def _shown(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
