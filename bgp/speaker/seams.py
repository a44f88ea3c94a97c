"""Where ExaBGP 5.0.15 and we are sewn together. The only module that knows its inside.

Layer: edge. Used by bgp.speaker.engine. tests/unit/bgp/speaker/test_seams.py names every symbol
this file relies on, with a hash of its source: it says what to read again after an upgrade.

ExaBGP keeps: TCP, MD5, GTSM, OPEN and capabilities, timers, KEEPALIVE, NOTIFICATION, collisions,
the configuration language, the reactor loop. Ours are three seams:
  processes      `exabgp.reactor.loop.Processes` -> Hooks: callbacks instead of helper processes;
                 `received()` is called once per turn of the loop (our work happens there), `fds`
                 are polled by the loop (one: our own epoll set);
  UPDATE in/out  `exabgp.reactor.peer.Protocol` -> SessionProtocol: UPDATEs go to the RIB undecoded
                 and come from its logs; everything else is left to the stock code;
  adj-rib-out    `neighbor.rib` -> NeighborRib: tells Peer whether there is output.
Smaller ones: `Reactor` -> SparingReactor (who gets a turn); `.loop.Peer` -> RestartingPeer (RFC
4724 4.2: a new connection replaces the established session of a peer that restarts); `.loop.Signal`
-> NoSignals (signals are the daemon's); `reactor.configuration` -> Neighbors (parsed apart, so that
a broken file cannot poison the next reload); the `log` methods (exabgp_log).

Why each exists: bgp reference 1, 2 and 4.2; the traps are listed in bgp/DESIGN.md.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from exabgp.bgp.fsm import FSM
from exabgp.bgp.message import _NOP, KeepAlive, Notify
from exabgp.bgp.message.open.capability import Capability
from exabgp.configuration.configuration import Configuration
from exabgp.configuration.neighbor.api import ParseAPI
from exabgp.environment import getenv
from exabgp.protocol.ip import IP
from exabgp.reactor import loop as reactor_loop
from exabgp.reactor import peer as reactor_peer
from exabgp.reactor.api.processes import Processes
from exabgp.reactor.interrupt import Signal
from exabgp.reactor.loop import Reactor
from exabgp.reactor.network.error import LostConnection, NetworkError
from exabgp.reactor.network.tcp import set_minimum_ttl
from exabgp.reactor.peer import Peer
from exabgp.reactor.protocol import _UPDATE
from exabgp.reactor.protocol import Protocol as StockProtocol

from bgp.rib.nlri import FAMILIES, Family, family_of, pack_address
from bgp.rib.peer import GracefulRestart, Session
from bgp.speaker import exabgp_log
from bgp.speaker.decode import decoder
from bgp.speaker.wire import RECEIVE_BYTES, Outbox, split_stream
from libcalico.errors import ConfigError, WireError
from libcalico.runtime import log

LOG = log.get("exabgp")

EXABGP_VERSION = "5.0.15"
# Loop turns of 100 ms when nothing happens: a tenth of the idle CPU of the default (measured).
_REACTOR_SPEED = 10.0
_TICK_S = 0.25  # timers count in whole seconds
_TCP_SYNCNT = 7
_SYN_RETRIES = 3  # gives up after 15 s instead of 127
_RETRY_FIRST_S, _RETRY_MOST_S = 1.0, 5.0
# Two connections may cross when a session starts; a peer does not restart that soon.
_NOT_A_COLLISION_AFTER_S = 5.0
_KEEPALIVE = KeepAlive()
_ADMINISTRATIVE_SHUTDOWN, _PEER_DECONFIGURED, _OTHER_CONFIGURATION_CHANGE = 2, 3, 6
# Reasons Peer gives for a session's end in which nobody said NOTIFICATION (RFC 4724 4.2).
# (an empty reason is an exception in the stock code: the connection is just closed).
_SILENT_ENDS = ("closing connection", "graceful restarted", "stop, message")


class Driver(Protocol):
    """What the sewn-in parts call: bgp.speaker.engine.Speaker."""

    def fileno(self) -> int: ...

    def turn(self) -> None:
        """Once per turn of the reactor's loop."""
        ...

    def opened(self, link: SessionProtocol, session: Session) -> bool:
        """A session is established; False when we do not know the peer (any more)."""
        ...

    def receive(self, link: SessionProtocol, body: bytes) -> None:
        """One UPDATE. Errors: WireError."""
        ...

    def refresh(self, address: str, family: Family, *, enhanced: bool) -> None: ...

    def has_output(self, address: str) -> bool: ...

    def take(self, link: SessionProtocol) -> list[bytes]:
        """The next messages for this peer; [] for none."""
        ...

    def blocked(self, link: SessionProtocol, fd: int) -> None:
        """Its socket takes no more: wake the loop when it does."""
        ...

    def closed(self, link: SessionProtocol, reason: str, *, silent: bool) -> None: ...


class NoSignals(Signal):  # type: ignore[misc]
    """Stands in for exabgp's Signal, which would install handlers of its own: signals are the
    daemon's. What we set in `received` is all there is."""

    def rearm(self) -> None:
        self.received = self.NONE
        self.number = 0


class Hooks(Processes):  # type: ignore[misc]  # exabgp is untyped
    """Stands in for helper processes. `driver` is set by `make_reactor`."""

    driver: Driver

    def __init__(self) -> None:
        super().__init__()
        self.fds = [self.driver.fileno()]

    def start(self, configuration: object, restart: bool = False) -> None:
        """There is no process to start."""

    def terminate(self) -> None:
        """Nor to end."""

    def broken(self, neighbor: object) -> bool:
        return False

    def received(self) -> Iterator[tuple[str, str]]:
        self.driver.turn()
        return iter(())

    def up(self, neighbor: object) -> None:
        """SessionProtocol notices by itself, with the first read."""

    def connected(self, neighbor: object) -> None:
        """Said even when the connection was refused: not to be trusted."""

    def down(self, neighbor: Any, reason: str) -> None:
        for link in SessionProtocol.live_links():
            if link.peer.neighbor is neighbor:
                link.end(reason)


class SessionProtocol(StockProtocol):  # type: ignore[misc]
    """One connection. Stock until the session is established, then UPDATEs bypass the stock code.

    `_live` holds the established ones; a link leaves it exactly once, in `end`."""

    driver: Driver
    _live: dict[int, SessionProtocol] = {}  # noqa: RUF012  # one registry per process, as exabgp's

    def __init__(self, peer: Any) -> None:
        super().__init__(peer)
        self.outbox = Outbox()
        self._unread = b""
        self._polled = -1
        self._is_open = False
        self._is_busy = False

    @classmethod
    def live_links(cls) -> list[SessionProtocol]:
        return list(cls._live.values())

    @property
    def address(self) -> str:
        return str(self.neighbor["peer-address"])

    # -- connecting

    def connect(self) -> Iterator[bool]:
        """Stock, but paced: it would try again at every turn of the loop."""
        delay_s = _RETRY_FIRST_S
        for connected in super().connect():
            if connected:
                yield True
                return
            again_at = time.monotonic() + delay_s
            delay_s = min(delay_s + 1.0, _RETRY_MOST_S)
            io = self.connection.io
            if io is not None:
                io.setsockopt(socket.IPPROTO_TCP, _TCP_SYNCNT, _SYN_RETRIES)
            while _is_connecting(io):
                yield False
            while not _is_connected(io) and time.monotonic() < again_at:
                yield False

    def accept(self, incoming: Any) -> SessionProtocol:
        """Stock does not check the TTL of accepted connections on shared listeners (RFC 5082)."""
        accepted: SessionProtocol = super().accept(incoming)
        minimum = self.neighbor["incoming-ttl"]
        if minimum:
            try:
                set_minimum_ttl(incoming.io, incoming.afi, incoming.peer, minimum)
            except NetworkError as err:
                LOG.error("cannot check the TTL, connection refused", peer=self.address, reason=err)
                incoming.close()
        return accepted

    def fd(self) -> int:
        found: int = super().fd()
        if found != -1:
            self._polled = found
        return found

    # -- the session

    def _open(self) -> None:
        session = negotiated_session(self.negotiated, self.connection.io)
        self._is_open = True
        self._live[id(self)] = self
        self.connection.io.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # From here on the stock reader gets its bytes from our buffer.
        self.connection._reader = self._read_buffered
        if not self.driver.opened(self, session):
            raise Notify(6, _PEER_DECONFIGURED)

    def end(self, reason: str) -> None:
        """The session is over (called from wherever it is noticed first)."""
        if self._is_open:
            self._is_open = False
            del self._live[id(self)]
            silent = not reason or reason.startswith(_SILENT_ENDS)
            self.driver.closed(self, reason, silent=silent)

    def close(self, reason: str = "protocol closed, reason unspecified") -> None:
        self.end(reason)
        if self._polled != -1:
            # The loop would poll the dead descriptor for ever, and slow down for it.
            poller, fd, self._polled = self.peer.reactor._poller, self._polled, -1
            try:
                poller.unregister(fd)
            except KeyError:
                LOG.debug("descriptor was never polled", fd=fd)
        super().close(reason)

    def cease(self, subcode: int) -> None:
        """Say NOTIFICATION Cease before the stock code hangs up silently.

        With graceful restart it never says goodbye, and a peer we removed would keep our routes."""
        if not self._is_open:
            return
        self.outbox.splice(Notify(6, subcode, b"").message())
        try:
            self.outbox.send(self.connection.io)
        except OSError as err:
            LOG.debug("goodbye did not get out", peer=self.address, reason=err)

    def reset(self) -> None:
        """End this session and start over, in the peer's next turn."""
        self.peer.teardown(_OTHER_CONFIGURATION_CHANGE)

    @property
    def restarts_gracefully(self) -> bool:
        received = self.negotiated.received_open
        return bool(
            received
            and received.capabilities.announced(Capability.CODE.GRACEFUL_RESTART)
            and self.neighbor["capability"]["graceful-restart"]
        )

    def needs_turn(self, readable: Collection[int]) -> bool:
        """Whether there is anything to do before the next tick of the timers."""
        if not self._is_open or self._is_busy or self._polled in readable:
            return True
        return self.driver.has_output(self.address)

    # -- in

    def read_message(self) -> Iterator[Any]:
        if self.peer.fsm != FSM.ESTABLISHED:
            yield from super().read_message()
            return
        if not self._is_open:
            self._open()
        self._is_busy = False
        self._receive()
        batch = split_stream(self._unread, self.connection.msg_size)
        self._unread = batch.rest
        for body in batch.updates:
            try:
                self.driver.receive(self, body)
            except WireError as err:
                raise Notify(err.code, err.subcode, err.data) from err
        stats = self.peer.stats
        stats["receive-update"] += len(batch.updates)
        stats["receive-keepalive"] += batch.keepalives
        self._is_busy = batch.needs_stock
        if batch.updates:
            yield _UPDATE
        elif batch.keepalives:
            yield _KEEPALIVE
        elif batch.needs_stock:
            yield from super().read_message()
        else:
            yield _NOP

    def _receive(self) -> None:
        connection = self.connection
        if connection is None or connection.io is None:
            raise LostConnection("the connection is closed")
        try:
            data = connection.io.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as err:
            raise LostConnection(f"issue reading on the socket: {err}") from err
        if not data:
            raise LostConnection("the TCP connection was closed by the remote end")
        self._unread += data

    def _read_buffered(self, number: int) -> Iterator[bytes]:
        """In place of Connection._reader; the caller made sure the message is complete."""
        data, self._unread = self._unread[:number], self._unread[number:]
        yield data

    # -- out

    def write(self, message: Any, negotiated: Any = None) -> Iterator[bool]:
        """Stock would write into the middle of an UPDATE that is half out."""
        if not self._is_open:
            yield from super().write(message, negotiated)
            return
        raw = message.message(negotiated)
        self.peer.stats["send-" + message.CODE.short(message.ID)] += 1
        self.outbox.splice(raw)
        try:
            self._send()
        except LostConnection as err:
            # Raised here, stock would report it as our NOTIFICATION, and a peer that restarts
            # would lose its routes. The next read meets the same error and says it right.
            LOG.debug("connection lost while writing", peer=self.address, reason=err)
        yield True

    def new_update(self, include_withdraw: bool) -> Iterator[Any]:
        """One step per turn: as much as the socket takes."""
        self._transmit()
        yield _UPDATE

    def push(self) -> None:
        """The same between two turns, right after the RIB was flushed."""
        try:
            self._transmit()
        except LostConnection as err:
            # Reading meets the same error in a moment, where the stock code expects it.
            LOG.debug("connection lost while writing", peer=self.address, reason=err)

    def _transmit(self) -> None:
        while self._send():
            messages = self.driver.take(self)
            if not messages:
                return
            self.peer.stats["send-update"] += len(messages)
            self.outbox.fill(messages)

    def _send(self) -> bool:
        io = self.connection.io if self.connection is not None else None
        if io is None:
            raise LostConnection("the connection is closed")
        try:
            is_out = self.outbox.send(io)
        except OSError as err:
            raise LostConnection(f"problem writing to the network: {err}") from err
        if not is_out:
            self.driver.blocked(self, io.fileno())
        return is_out


class SparingReactor(Reactor):  # type: ignore[misc]
    """Gives a turn only to peers with something to do, and to all of them every tick.

    Stock walks through all peers whenever one of them has something to say."""

    def __init__(self, configuration: Neighbors) -> None:
        super().__init__(configuration)
        self._readable: set[int] = set()
        self._tick_at = 0.0

    def _wait_for_io(self, sleeptime: int) -> Iterator[int]:
        self._readable = set(super()._wait_for_io(sleeptime))
        yield from self._readable

    def active_peers(self) -> set[str]:
        active: set[str] = super().active_peers()
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            return active
        return {key for key in active if self._needs_turn(self._peers[key])}

    def _needs_turn(self, peer: Any) -> bool:
        link = peer.proto
        is_told = peer._teardown is not None or peer._neighbor is not None
        return link is None or is_told or link.needs_turn(self._readable)


class RestartingPeer(Peer):  # type: ignore[misc]
    """RFC 4724 4.2: who restarts comes back before we noticed that it had gone."""

    def handle_connection(self, connection: Any) -> Any:
        link = self.proto
        is_old = time.time() - self.stats["complete"] > _NOT_A_COLLISION_AFTER_S
        if (
            self.fsm == FSM.ESTABLISHED
            and not self.stopping()
            and is_old
            and link.restarts_gracefully
        ):
            LOG.info("peer connects again, its old session is over", peer=link.address)
            self._reset("closing connection", "the peer opened a new one")
        return super().handle_connection(connection)


class NeighborRib:
    """Stands in for exabgp's RIB of one neighbour: no routes, only whether there is output."""

    driver: Driver

    def __init__(self, address: str) -> None:
        self._address = address
        self.incoming = self
        self.outgoing = self

    def pending(self) -> bool:
        return self.driver.has_output(self._address)

    def resend(self, enhanced: bool, family: tuple[int, int] | None = None) -> None:
        """A ROUTE-REFRESH came in."""
        for wanted in FAMILIES:
            if family is None or wanted.code == (int(family[0]), int(family[1])):
                self.driver.refresh(self._address, wanted, enhanced=enhanced)

    def reset(self) -> None:
        """Called when a session ends: the link tells the RIB itself."""

    def clear(self) -> None:
        """Called before a session starts."""

    def uncache(self) -> None:
        """Called when a peer is removed."""

    def replace_restart(self, previous: object, current: object) -> None:
        """Routes of the configuration file: there are none."""

    replace_reload = replace_restart

    def update_cache(self, change: object) -> None:
        """Adj-rib-in of the stock code."""

    def cached_changes(self, families: object = None) -> Iterator[object]:
        return iter(())

    queued_changes = cached_changes


class Neighbors:
    """A configuration that is parsed already: `reload` has nothing left that could fail."""

    def __init__(self, neighbors: dict[str, Any]) -> None:
        self.neighbors = neighbors
        self.processes: dict[str, Any] = {}
        self.error = ""

    def reload(self) -> bool:
        return True

    def addresses(self) -> set[str]:
        return {str(neighbor["peer-address"]) for neighbor in self.neighbors.values()}


def parse_neighbors(text: str, own_addresses: dict[Family, str]) -> Neighbors:
    """Read exabgp.conf with a fresh parser. Errors: ConfigError; nothing else is touched.

    `own_addresses` is the source of neighbours without local-address, for passive connections."""
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return Neighbors({})  # stock calls a file without sections an error
    configuration = Configuration([text], text=True)
    # Only set for files; `run` in a process section (which we ignore) looks at it.
    configuration.tokeniser.iterate.fname = "exabgp.conf"
    if not configuration.reload():
        reason = " ".join(str(configuration.error).split())
        raise ConfigError("exabgp.conf", "configuration", reason or "does not parse")
    for neighbor in configuration.neighbors.values():
        _adapt(neighbor, own_addresses)
    return Neighbors(configuration.neighbors)


def _adapt(neighbor: Any, own_addresses: dict[Family, str]) -> None:
    """What our sessions need, whatever was rendered. The same for every load, so that unchanged
    neighbours still compare equal."""
    address = str(neighbor["peer-address"])
    families = [f for f in neighbor.families() if family_of(int(f[0]), int(f[1])) is not None]
    if not families:
        raise ConfigError("exabgp.conf", address, "no family that we route")
    if neighbor.range_size > 1 or neighbor["capability"]["multi-session"]:
        raise ConfigError("exabgp.conf", address, "ranges and multi-session are not supported")
    if neighbor.changes:
        LOG.warning("static routes of exabgp.conf are ignored", peer=address)
        neighbor.changes = []
    neighbor._families = families
    neighbor._addpath = []
    neighbor["adj-rib-in"] = False
    neighbor["adj-rib-out"] = True
    neighbor["manual-eor"] = True  # End-of-RIB is the RIB's to say, not the session's
    neighbor["rate-limit"] = 0
    neighbor["capability"].update({"add-path": 0, "operational": False, "route-refresh": True})
    neighbor.api = ParseAPI.flatten({})
    neighbor.api["neighbor-changes"] = ["rib"]
    neighbor.rib.uncache()
    neighbor.rib = NeighborRib(address)
    if neighbor.auto_discovery and neighbor["local-address"] is None:
        for family, own in own_addresses.items():
            if family.afi == int(neighbor["peer-address"].afi):
                neighbor["local-address"] = IP.create(own)


def make_reactor(driver: Driver, neighbors: Neighbors, *, listen: Sequence[str], port: int) -> Any:
    """Sew everything in and build the reactor; `run_reactor` runs it."""
    exabgp_log.install()
    _set_environment(listen, port)
    for part in (Hooks, SessionProtocol, NeighborRib):
        part.driver = driver
    reactor_loop.Signal = NoSignals
    reactor_loop.Processes = Hooks
    reactor_loop.Peer = RestartingPeer
    reactor_peer.Protocol = SessionProtocol
    return SparingReactor(neighbors)


def run_reactor(reactor: Any) -> int:
    """Until `stop`; returns the exit code (not 0: could not listen, among others)."""
    return int(reactor.run())


def replace_neighbors(reactor: Any, neighbors: Neighbors) -> None:
    """Reload: unchanged neighbours keep their session. Errors: ConfigError if it did not take."""
    before = reactor.configuration.neighbors
    for name, neighbor in neighbors.neighbors.items():
        # Peer compares the routes of the two, and expects the pair as the stock reload leaves it.
        neighbor.previous = before.get(name)
    wanted = neighbors.addresses()
    for link in SessionProtocol.live_links():
        if link.address not in wanted:
            link.cease(_PEER_DECONFIGURED)
    reactor.configuration = neighbors
    if not reactor.reload():
        raise ConfigError("exabgp.conf", "configuration", "the reload was refused")
    missing = neighbors.neighbors.keys() - {
        name for name, peer in reactor._peers.items() if not peer.stopping()
    }
    if missing:
        raise ConfigError("exabgp.conf", "configuration", f"not taken: {', '.join(missing)}")


def stop(reactor: Any) -> None:
    """End the loop after this turn. Peers that restart gracefully see a silent end and keep our
    routes; the others are told."""
    for link in SessionProtocol.live_links():
        if not link.restarts_gracefully:
            link.cease(_ADMINISTRATIVE_SHUTDOWN)
    reactor.signal.received = Signal.SHUTDOWN


def peer_states(reactor: Any) -> dict[str, tuple[str, float, int]]:
    """Address -> (state of the FSM, wall time since when, negotiated or configured hold time)."""
    found: dict[str, tuple[str, float, int]] = {}
    for peer in reactor._peers.values():
        neighbor, stats = peer.neighbor, peer.stats
        hold_time = int(neighbor["hold-time"])
        if peer.fsm == FSM.ESTABLISHED and peer.proto is not None:
            hold_time = int(peer.proto.negotiated.holdtime)
        since = stats["complete"] or stats["reset"]
        found[str(neighbor["peer-address"])] = (peer.fsm.name(), float(since), hold_time)
    return found


def listening_descriptors(reactor: Any) -> list[int]:
    """The listening sockets: the loop itself looks at them only once per turn."""
    listener = reactor.listener
    return [sock.fileno() for sock in listener._sockets] if listener is not None else []


def negotiated_session(negotiated: Any, io: socket.socket) -> Session:
    """What the RIB needs to know of an established session."""
    found = (family_of(int(afi), int(safi)) for afi, safi in negotiated.families)
    families = tuple(family for family in found if family is not None)
    local = io.getsockname()[0].partition("%")[0]
    extended = any(
        (int(afi), int(safi), int(hop)) == (1, 1, 2) for afi, safi, hop in negotiated.nexthop
    )
    return Session(
        families=families,
        router_id=bytes(negotiated.received_open.router_id.pack()),
        local_address=pack_address(local),
        decode=decoder(asn4=bool(negotiated.asn4)),
        asn4=bool(negotiated.asn4),
        extended_next_hop=extended,
        restart=_graceful_restart(negotiated),
    )


def _graceful_restart(negotiated: Any) -> GracefulRestart | None:
    code = Capability.CODE.GRACEFUL_RESTART
    theirs = negotiated.received_open.capabilities.get(code)
    if theirs is None or not negotiated.sent_open.capabilities.announced(code):
        return None
    families = {
        family: bool(flags & theirs.FORWARDING_STATE)
        for (afi, safi), flags in theirs.items()
        if (family := family_of(int(afi), int(safi))) is not None
    }
    return GracefulRestart(
        restart_time_s=int(theirs.restart_time),
        families=frozenset(families),
        forwarding=frozenset(family for family, kept in families.items() if kept),
        is_restarting=bool(theirs.restart_flag & theirs.RESTART_STATE),
    )


def _set_environment(listen: Sequence[str], port: int) -> None:
    """Everything that could come from an exabgp.env or the environment is set here."""
    env = getenv()
    env.daemon.user, env.daemon.drop, env.daemon.daemonize = "root", False, False
    env.daemon.pid, env.daemon.umask = "", 0o077
    env.tcp.bind = [IP.create(address) for address in listen]
    env.tcp.port, env.tcp.attempts, env.tcp.once, env.tcp.delay = port, 0, False, 0
    env.bgp.passive = False
    env.cache.attributes = True
    env.api.cli, env.api.ack, env.api.respawn, env.api.terminate = False, False, False, False
    env.reactor.speed = _REACTOR_SPEED
    env.log.enable, env.log.all, env.log.destination = True, False, "stderr"
    env.log.level = "WARNING"
    env.debug.defensive, env.debug.configuration = False, False


def _is_connecting(io: socket.socket | None) -> bool:
    """Neither connected nor failed yet."""
    if io is None or io.fileno() == -1:
        return False
    poller = select.poll()
    poller.register(io, select.POLLOUT | select.POLLERR | select.POLLHUP)
    return not poller.poll(0)


def _is_connected(io: socket.socket | None) -> bool:
    if io is None or io.fileno() == -1:
        return False
    try:
        io.getpeername()
    except OSError:
        return False
    return True
