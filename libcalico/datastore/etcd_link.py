"""Connections to etcd's members: channels, certificates, tokens, and which member to ask.

Layer: datastore edge. Used by `etcd` (unary calls) and `etcd_watch` (streams).

  I1  a call goes to the member that answered last; when it fails there the next one is asked;
  I2  a write is sent to a second member only when it certainly did not reach the first (D5): no
      connection came about, or etcd refused it before proposing it;
  I3  changed certificate files are taken over by new calls; streams keep the connection they have,
      and the old channel is closed when its last stream ended;
  I4  an expired token is renewed once per call, by one task for all.

gRPC keeps its own health per channel: keepalive pings (30 s, 10 s) find a dead peer, also under a
stream. Our own failover replaces gRPC's name resolution over several addresses, because only we
know which calls may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

# C core writes its connection troubles to stderr on its own; we report them once, in our words.
# Both variables are read when grpc is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import grpc.aio
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from libcalico.datastore.etcd_errors import Failure, Outcome, classify
from libcalico.datastore.tls import Signature, TlsConfig, TlsMaterial
from libcalico.errors import ConfigError, DatastoreUnavailable, Unauthorized
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff
from libcalico.runtime.clock import SYSTEM, Clock

LOG = log.get(__name__)

_CERTIFICATE_CHECK_PERIOD_S = 1.0
_KEEPALIVE_TIME_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_RECONNECT_FIRST_MS = 200
_RECONNECT_LIMIT_MS = 3_000
Metadata = tuple[tuple[str, str], ...]
# Without this a member cut off from its cluster would go on answering reads and feeding watches.
_REQUIRE_LEADER: Metadata = (("hasleader", "true"),)


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """Everything a client needs to know. Endpoints are URLs or host:port (then without TLS)."""

    endpoints: tuple[str, ...]
    username: str = ""
    password: str = field(default="", repr=False)
    tls: TlsConfig = field(default_factory=TlsConfig, repr=False)
    dial_timeout_s: float = 10.0
    # One attempt at one member, and all attempts of a call that may be repeated.
    attempt_timeout_s: float = 5.0
    call_budget_s: float = 10.0
    write_timeout_s: float = 10.0
    # A watch that says nothing for so long is asked for a sign of life, and given up without one.
    watch_idle_s: float = 30.0
    watch_ping_timeout_s: float = 10.0


class Link:
    """One channel to one member, and the stubs on it."""

    __slots__ = ("_channel", "_retired", "_users", "auth", "kv", "lease", "name", "watch")

    def __init__(self, endpoint: str, material: TlsMaterial | None, dial_timeout_s: float) -> None:
        scheme, _, rest = endpoint.rpartition("://")
        target = rest.rstrip("/")
        options = _channel_options(dial_timeout_s)
        if scheme == "https":
            found = material or TlsMaterial(None, None, None)
            credentials = grpc.ssl_channel_credentials(found.ca, found.key, found.certificate)
            self._channel = grpc.aio.secure_channel(target, credentials, options=options)
        else:
            self._channel = grpc.aio.insecure_channel(target, options=options)
        self.name = endpoint
        self.kv = rpc_pb2_grpc.KVStub(self._channel)
        self.lease = rpc_pb2_grpc.LeaseStub(self._channel)
        self.watch = rpc_pb2_grpc.WatchStub(self._channel)
        self.auth = rpc_pb2_grpc.AuthStub(self._channel)
        self._users = 0
        self._retired = False

    async def wait_connected(self, timeout_s: float) -> None:
        """Return when the channel is up or has failed (the next call then says why).

        Errors: Failure(NOT_SENT) when neither happened in time, as with a host that drops packets.
        """
        state = self._channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while state in (
                    grpc.ChannelConnectivity.IDLE,
                    grpc.ChannelConnectivity.CONNECTING,
                ):
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError as err:
            reason = f"etcd at {self.name}: no connection within {timeout_s:g} s"
            raise Failure(Outcome.NOT_SENT, DatastoreUnavailable(reason)) from err

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """The channel stays open inside the block, even when it is retired meanwhile."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._retired and self._users == 0:
                await self._channel.close()

    @property
    def is_in_use(self) -> bool:
        return self._users > 0

    async def retire(self, *, now: bool) -> None:
        """Close as soon as nobody uses the channel, or right away."""
        self._retired = True
        if now or self._users == 0:
            await self._channel.close()


class Connection:
    """All members of one etcd cluster, seen as one."""

    def __init__(self, config: EtcdConfig, *, clock: Clock = SYSTEM) -> None:
        if not config.endpoints:
            raise ConfigError("etcd", "etcdEndpoints", "no etcd endpoints specified")
        self._config = config
        self._clock = clock
        self._links: dict[str, Link] = {}
        # Each client starts at a member of its own choice, else all would sit on the first.
        self._order = list(config.endpoints)
        random.shuffle(self._order)
        self._certificates = _Certificates(config.tls, clock)
        self._tokens = _Tokens(config.username, config.password)
        self._retiring: set[Link] = set()
        self._closed = False

    @property
    def config(self) -> EtcdConfig:
        return self._config

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def clock(self) -> Clock:
        return self._clock

    async def read(self, method: Callable[[Link], Any], request: Any) -> Any:
        """A call that may be repeated anywhere, within the configured budget."""
        return await self._call(method, request, is_write=False)

    async def write(self, method: Callable[[Link], Any], request: Any) -> Any:
        """A call that must not be applied twice (I2)."""
        return await self._call(method, request, is_write=True)

    @contextlib.asynccontextmanager
    async def stream(self, method: Callable[[Link], Any]) -> AsyncIterator[tuple[Any, str]]:
        """Open a bidirectional stream at a member that is reachable; yields (call, endpoint).

        Errors: Failure. Leaving the block cancels the stream.
        """
        link = await self._reachable_link()
        async with link.held():
            call = method(link)(metadata=await self._metadata(link))
            try:
                yield call, link.name
            finally:
                call.cancel()

    def blame(self, endpoint: str) -> None:
        """Something went wrong there: ask the others first."""
        if endpoint in self._order:
            self._order.remove(endpoint)
            self._order.append(endpoint)

    def forget_token(self) -> None:
        self._tokens.forget()

    @property
    def has_user(self) -> bool:
        return self._tokens.is_wanted

    async def close(self) -> None:
        self._closed = True
        for link in (*self._links.values(), *self._retiring):
            await link.retire(now=True)
        self._links.clear()
        self._retiring.clear()

    # ---- inside --------------------------------------------------------------------------------

    async def _call(self, method: Callable[[Link], Any], request: Any, *, is_write: bool) -> Any:
        give_up_at = self._clock.monotonic() + self._config.call_budget_s
        backoff = Backoff(0.05, 1.0)
        while True:
            failures = []
            for endpoint in tuple(self._order):
                try:
                    return await self._attempt(endpoint, method, request, is_write=is_write)
                except Failure as failure:
                    self._raise_if_final(failure, is_write=is_write)
                    self.blame(endpoint)
                    failures.append(failure)
            # Nobody listens anywhere: say so at once. A cluster electing a leader is worth a wait.
            all_unreachable = all(found.outcome is Outcome.NOT_SENT for found in failures)
            if all_unreachable or self._clock.monotonic() >= give_up_at:
                raise _combined(failures)
            await self._clock.sleep(backoff.next_s())

    def _raise_if_final(self, failure: Failure, *, is_write: bool) -> None:
        if failure.outcome in (Outcome.FINAL, Outcome.BAD_TOKEN):
            raise failure.error from failure
        if is_write and failure.outcome is Outcome.UNKNOWN:
            reason = f"the answer to a write was lost, it may have been applied: {failure.error}"
            raise DatastoreUnavailable(reason) from failure

    async def _attempt(
        self, endpoint: str, method: Callable[[Link], Any], request: Any, *, is_write: bool
    ) -> Any:
        """One call at one member, with a second one after renewing the token (I4)."""
        timeout_s = self._config.write_timeout_s if is_write else self._config.attempt_timeout_s
        link = await self._link(endpoint)
        async with link.held():
            await link.wait_connected(self._connect_timeout_s())
            metadata = await self._metadata(link)
            try:
                return await _invoke(method(link), request, timeout_s, metadata, endpoint)
            except Failure as failure:
                if failure.outcome is not Outcome.BAD_TOKEN or not self._tokens.is_wanted:
                    raise
            self._tokens.forget(metadata)
            metadata = await self._metadata(link)
            return await _invoke(method(link), request, timeout_s, metadata, endpoint)

    async def _reachable_link(self) -> Link:
        failures = []
        for endpoint in tuple(self._order):
            link = await self._link(endpoint)
            try:
                await link.wait_connected(self._connect_timeout_s())
            except Failure as failure:
                self.blame(endpoint)
                failures.append(failure)
            else:
                return link
        raise Failure(Outcome.NOT_SENT, _combined(failures))

    def _connect_timeout_s(self) -> float:
        """With somewhere else to go, do not wait long for a host that drops packets."""
        return self._config.dial_timeout_s / (1 if len(self._order) == 1 else 4)

    async def _link(self, endpoint: str) -> Link:
        if self._closed:
            error = DatastoreUnavailable("the datastore client is closed")
            raise Failure(Outcome.FINAL, error)
        if self._certificates.have_changed():
            LOG.info("etcd certificates changed, connecting anew")
            await self._retire_all()
        link = self._links.get(endpoint)
        if link is None:
            link = Link(endpoint, self._certificates.material(), self._config.dial_timeout_s)
            self._links[endpoint] = link
        return link

    async def _retire_all(self) -> None:
        links, self._links = self._links, {}
        self._retiring = {link for link in self._retiring if link.is_in_use} | set(links.values())
        for link in links.values():
            await link.retire(now=False)

    async def _metadata(self, link: Link) -> Metadata:
        token = await self._tokens.get(link, self._config.attempt_timeout_s)
        return (*_REQUIRE_LEADER, ("token", token)) if token else _REQUIRE_LEADER


class _Certificates:
    """The material in force; looks at the files at most once a second."""

    def __init__(self, config: TlsConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._signature: Signature | None = None
        self._material: TlsMaterial | None = None
        self._checked_at = clock.monotonic()
        self._complained_about: Signature | None = None

    def material(self) -> TlsMaterial:
        if self._material is None:
            self._signature = self._config.signature()
            self._material = self._config.load()
        return self._material

    def have_changed(self) -> bool:
        """True once per change that is complete: certificate and key fit and can be read."""
        now = self._clock.monotonic()
        if self._material is None or now - self._checked_at < _CERTIFICATE_CHECK_PERIOD_S:
            return False
        self._checked_at = now
        signature = self._config.signature()
        if signature == self._signature:
            return False
        try:
            material = self._config.load()
        except ConfigError as err:
            if signature != self._complained_about:
                LOG.warning("etcd certificates cannot be used yet, keeping the old", error=str(err))
                self._complained_about = signature
            return False
        self._signature, self._material = signature, material
        return True


class _Tokens:
    """The user's token: fetched when first needed, again when etcd no longer knows it."""

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password
        self._token: str | None = None
        self._lock = asyncio.Lock()

    @property
    def is_wanted(self) -> bool:
        return bool(self._username)

    def forget(self, used: Metadata | None = None) -> None:
        """Drop the token, unless somebody renewed it since `used` was made."""
        if used is None or self._token is None or ("token", self._token) in used:
            self._token = None

    async def get(self, link: Link, timeout_s: float) -> str:
        if not self.is_wanted or self._token is not None:
            return self._token or ""
        async with self._lock:
            if self._token is None:
                self._token = await self._authenticate(link, timeout_s)
            return self._token

    async def _authenticate(self, link: Link, timeout_s: float) -> str:
        request = rpc_pb2.AuthenticateRequest(name=self._username, password=self._password)
        try:
            answer = await _invoke(link.auth.Authenticate, request, timeout_s, (), link.name)
        except Failure as failure:
            if "authentication is not enabled" in str(failure.error):
                return ""  # as Calico's client does: a user is configured before etcd asks for one
            if isinstance(failure.error, Unauthorized):
                raise Failure(Outcome.FINAL, failure.error) from failure
            if failure.outcome is Outcome.UNKNOWN:
                # Logging in changes nothing: the call it was for has not been sent.
                raise Failure(Outcome.NOT_APPLIED, failure.error) from failure
            raise
        return str(answer.token)


async def _invoke(
    method: Any, request: Any, timeout_s: float, metadata: Metadata, endpoint: str
) -> Any:
    """One gRPC call; every gRPC error leaves as a Failure."""
    try:
        return await method(request, timeout=timeout_s, metadata=metadata)
    except grpc.aio.AioRpcError as err:
        raise classify(err.code(), err.details() or "", endpoint=endpoint) from err
    except grpc.aio.UsageError as err:  # the channel had been closed
        error = DatastoreUnavailable(f"etcd at {endpoint}: {err}")
        raise Failure(Outcome.NOT_SENT, error) from err
    except asyncio.CancelledError as err:
        if is_being_cancelled():
            raise
        # grpc.aio cancels its calls when a channel closes; that must not look like our own end.
        error = DatastoreUnavailable(f"etcd at {endpoint}: the connection was closed")
        raise Failure(Outcome.UNKNOWN, error) from err


def is_being_cancelled() -> bool:
    """Does a CancelledError in hand concern the running task, or only the call it waited for?"""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _combined(failures: list[Failure]) -> DatastoreUnavailable:
    """One sentence about every member that was asked, without repetitions."""
    return DatastoreUnavailable("; ".join(dict.fromkeys(str(f.error) for f in failures)))


def _channel_options(dial_timeout_s: float) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_FIRST_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_LIMIT_MS),
        # C core's name for the time one connection attempt may take.
        ("grpc.min_reconnect_backoff_ms", int(dial_timeout_s * 1000)),
        # etcd is addressed directly, as by its own client; and retired channels share nothing.
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
