"""The CNI agent: serves the executables over a unix socket inside felix.

Layer: edge. Hosted by felix.daemon, which gives it an EndpointProgrammer (cni.ports). One task per
connection.

  G1  requests for one attachment (container, interface) run one after the other; different ones
      run at once; those of calico-ipam for one container, whose interfaces share an IPAM handle;
  G2  a client that closes its socket was killed by its runtime: its request is cancelled, which
      rolls it back (A2), and a DEL that follows in the same millisecond waits for that;
  G3  only root, or the user felix runs as, is served (peer credentials; the socket is 0600);
  G4  whatever happens the client gets an answer in CNI's form: no traceback ever reaches a runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cni import skel, veth
from cni.add import AddOperation
from cni.addresses import AddressManager
from cni.check import CheckOperation
from cni.delete import DeleteOperation
from cni.endpoints import EndpointStore
from cni.gc import GcOperation
from cni.hostnames import HostNames
from cni.ipam_plugin import IpamPlugin
from cni.offline import OfflinePods
from cni.ports import EndpointProgrammer
from cni.replay import Replayer
from cni.results import Result
from cni.skel import Answer, CniError, Code, Invocation, Request, Verb
from cni.status import StatusOperation
from cni.threads import to_the_end
from cni.wire import RequestReader, pack_answer
from cni.wirer import ThreadWirer, Wirer
from libcalico.errors import (
    AlreadyExists,
    Conflict,
    Exhausted,
    InvalidInput,
    NotFound,
    ProgrammingFailed,
    Stale,
    SuiteError,
    Transient,
    Unauthorized,
)
from libcalico.runtime import log, paths, unixsocket

LOG = log.get(__name__)
_UCRED = struct.Struct("=iII")
IPAM_PLUGIN = "calico-ipam"


@dataclass(frozen=True, slots=True)
class WhileAway:
    """What is done while the datastore is away. `replayer` keeps what a DEL could not tell it
    (None: such a DEL is refused), `offline` makes pods without it (None: such an ADD is refused).
    """

    replayer: Replayer | None = None
    offline: OfflinePods | None = None


@dataclass(frozen=True, slots=True)
class OnNode:
    """What is the node's: where felix keeps its files (None: CALICO_LIB_DIR), who makes wires."""

    lib_dir: Path | None = None
    wirer: Wirer = field(default_factory=ThreadWirer)


class Agent:
    """`serve()` until cancelled. `addresses` and `store` share felix's datastore connection."""

    def __init__(
        self,
        programmer: EndpointProgrammer,
        store: EndpointStore,
        addresses: AddressManager,
        away: WhileAway | None = None,
        on_node: OnNode | None = None,
    ) -> None:
        away = away or WhileAway()
        self._offline, self._replayer = away.offline, away.replayer
        self._queue = None if away.replayer is None else away.replayer.queue
        self._programmer = programmer
        self._store = store
        self._addresses = addresses
        self._names = HostNames()
        on_node = on_node or OnNode()
        self._lib_dir, self._wirer = on_node.lib_dir or paths.lib_dir(), on_node.wirer
        self._locks = AttachmentLocks()
        self._conversations: set[_Conversation] = set()
        self.answered = 0
        self.failed = 0

    async def serve(self, path: Path) -> None:
        """Bind `path` (replacing a socket a killed felix left) and serve until cancelled."""
        listener = unixsocket.bind(path)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Conversation(self.answer, self._conversations), sock=listener, backlog=512
        )
        LOG.info("CNI agent is listening", path=path)
        try:
            await self._wirer.start()
            async with server:
                await server.serve_forever()
        finally:
            ending = [conversation.end() for conversation in tuple(self._conversations)]
            await to_the_end(self._end(ending))
            _unlink(path)

    async def _end(self, conversations: list[Coroutine[object, object, None]]) -> None:
        """What is on its way is rolled back, and needs its wires removed for that."""
        await asyncio.gather(*conversations, return_exceptions=True)
        await self._wirer.stop()

    async def answer(self, invocation: Invocation) -> Answer:
        """One invocation to its answer. Never raises but CancelledError."""
        if invocation.environ.get("CNI_COMMAND") == Verb.VERSION.value:
            return skel.version_answer(invocation.stdin)
        try:
            answer = await self._dispatch(skel.parse(invocation))
        except CniError as err:
            answer = self._refused(invocation, err)
        except SuiteError as err:
            answer = self._refused(invocation, translate(err))
        except Exception as err:
            LOG.error("CNI request failed unexpectedly", exc_info=True)
            unexpected = CniError(Code.INTERNAL, f"{type(err).__name__}: {err}")
            answer = self._refused(invocation, unexpected)
        self.answered += 1
        return answer

    def _refused(self, invocation: Invocation, error: CniError) -> Answer:
        self.failed += 1
        LOG.warning(
            "CNI request refused",
            command=invocation.environ.get("CNI_COMMAND"),
            container=invocation.environ.get("CNI_CONTAINERID"),
            code=error.code,
            error=error,
        )
        return skel.failure(error, skel.error_version(invocation.stdin))

    async def _dispatch(self, request: Request) -> Answer:
        if request.plugin == IPAM_PLUGIN:
            run = IpamPlugin(self._addresses, self._store, self._programmer, self._queue).run
            attachment = (request.container_id, "")
        else:
            run = self._run_calico
            attachment = (request.container_id, request.ifname)
        if request.verb in (Verb.STATUS, Verb.GC):
            return await _finished(run, request)
        # Our own namespace is the host's, whatever CNI_NETNS_OVERRIDE says of the executable's: a
        # pod's addresses and routes there would cut the node off.
        is_own = veth.is_own_namespace(request.netns)
        if is_own and request.verb is not Verb.DEL:
            raise _own_namespace()
        async with self._locks.held(attachment):
            if request.verb is Verb.ADD and self._replayer is not None:
                await self._replayer.settle(request.network, request.container_id)
            answer = await _finished(run, request)
        if is_own:
            # As the reference does: what DEL can release is released first.
            raise _own_namespace()
        return answer

    async def _run_calico(self, request: Request) -> Result | None:
        match request.verb:
            case Verb.ADD:
                return await (await self._adding(request)).run(request)
            case Verb.DEL:
                await self._delete(request)
            case Verb.CHECK:
                store = self._store
                if self._offline is not None:
                    store = await self._offline.store_of(request)
                await CheckOperation(self._programmer, store, self._addresses).run(request)
            case Verb.GC:
                await self._collecting().run(request)
            case Verb.STATUS:
                await StatusOperation(self._programmer, self._store, self._addresses).run(request)
        return None

    def held(self, attachment: tuple[str, str]) -> AbstractAsyncContextManager[None]:
        """While it is held no request of this attachment (container, interface) runs (G1)."""
        return self._locks.held(attachment)

    def is_wiring(self, host_name: str) -> bool:
        """Whether an ADD is about to use a name of the host's end."""
        return self._names.is_claimed(host_name)

    async def _adding(self, request: Request) -> AddOperation:
        if self._offline is not None:
            if await self._offline.is_cut_off():
                return self._offline.add(request, self._names, self._lib_dir, self._wirer)
            await self._offline.settle(request)
        return AddOperation(
            self._programmer,
            self._store,
            self._addresses,
            self._names,
            self._lib_dir,
            self._queue,
            self._wirer,
        )

    def _collecting(self) -> GcOperation:
        operation = GcOperation(self._programmer, self._store, self._addresses, wirer=self._wirer)
        return operation if self._offline is None else self._offline.guarded(operation)

    async def _delete(self, request: Request) -> None:
        settings = self._programmer.settings()
        usual = DeleteOperation(
            self._store,
            self._addresses,
            settings.node_name,
            settings.interface_prefix,
            self._programmer,
            self._queue,
            wirer=self._wirer,
        )
        if self._offline is None:
            await usual.run(request)
        else:
            await self._offline.delete(request, usual)

    def dump(self) -> dict[str, object]:
        return {
            "connections": len(self._conversations),
            "answered": self.answered,
            "failed": self.failed,
            "busy_attachments": self._locks.busy(),
            "waiting": self._locks.waiting(),
        }


def _own_namespace() -> CniError:
    return CniError(Code.INVALID_NETNS, "plugin's netns and netns from CNI_NETNS are the same")


async def _finished(run: Callable[[Request], Awaitable[Result | None]], request: Request) -> Answer:
    result = await run(request)
    return skel.success(None if result is None else result.to_json(request.version))


def translate(error: SuiteError) -> CniError:
    """The suite's error classes in CNI's codes."""
    if isinstance(error, Transient | Unauthorized):
        return CniError(
            Code.TRY_AGAIN_LATER, "the datastore or the kernel did not answer", str(error)
        )
    if isinstance(error, NotFound):
        said = "something the pod needs is gone from the datastore"
        return CniError(Code.TRY_AGAIN_LATER, said, str(error))
    if isinstance(error, AlreadyExists | Conflict | Stale):
        said = "another request was quicker, or the address is taken"
        return CniError(Code.TRY_AGAIN_LATER, said, str(error))
    if isinstance(error, InvalidInput):
        return CniError(Code.INVALID_CONFIG, str(error))
    if isinstance(error, Exhausted):
        return CniError(Code.NETWORKING_FAILED, str(error))
    if isinstance(error, ProgrammingFailed):
        return CniError(Code.IO_FAILURE, str(error))
    return CniError(Code.INTERNAL, str(error))


class AttachmentLocks:
    """One lock per attachment in use (G1); a lock goes when nobody holds or awaits it, so there
    are never more than open connections."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def held(self, attachment: tuple[str, str]) -> AsyncIterator[None]:
        lock, users = self._entries.get(attachment, (asyncio.Lock(), 0))
        self._entries[attachment] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._entries[attachment]
            if users == 1:
                del self._entries[attachment]
            else:
                self._entries[attachment] = (lock, users - 1)

    def busy(self) -> int:
        return len(self._entries)

    def waiting(self) -> int:
        """Requests that wait for another one of their attachment."""
        return sum(users - 1 for _, users in self._entries.values())


class _Conversation(asyncio.Protocol):
    """One client: its request, its answer. Registered in `known` until its work has ended.

    A protocol and not a pair of streams: those cost a pod that starts three tasks more."""

    def __init__(
        self, answer: Callable[[Invocation], Awaitable[Answer]], known: set[_Conversation]
    ) -> None:
        self._answer, self._known = answer, known
        self._received = RequestReader()
        self._invocation: Invocation | None = None
        self._work: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport | None = None
        self._is_cancelled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if _is_trusted(transport):
            self._known.add(self)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._invocation is not None:
            self._hang_up()  # the client had said everything
            return
        try:
            self._received.receive_data(data)
            self._invocation = self._received.take()
        except SuiteError as err:
            LOG.warning("CNI connection ended", error=err)
            self._close()
            return
        if self._invocation is not None:
            self._work = asyncio.ensure_future(self._answer(self._invocation))
            self._work.add_done_callback(self._on_answer)

    def eof_received(self) -> None:
        self._hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        """The client is gone (G2)."""
        if self._work is None:
            self._close()
        elif not self._work.done() and self._invocation is not None and not self._is_cancelled:
            self._is_cancelled = True
            LOG.warning(
                "CNI client went away, rolling back",
                command=self._invocation.environ.get("CNI_COMMAND"),
                container=self._invocation.environ.get("CNI_CONTAINERID"),
            )
            self._work.cancel()

    async def end(self) -> None:
        """Cancel the request and wait until it is rolled back."""
        if self._work is None:
            self._close()
        else:
            if not self._is_cancelled:
                self._is_cancelled = True
                self._work.cancel()
            await asyncio.wait({self._work})

    def _on_answer(self, work: asyncio.Future[Answer]) -> None:
        assert self._transport is not None
        if not work.cancelled():
            self._transport.write(pack_answer(work.result()))
        self._close()

    def _close(self) -> None:
        self._known.discard(self)
        if self._transport is not None:
            self._transport.close()


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _is_trusted(transport: asyncio.BaseTransport) -> bool:
    link = transport.get_extra_info("socket")
    packed = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(packed)
    if uid in (0, os.geteuid()):
        return True
    LOG.warning("CNI client refused", pid=pid, uid=uid)
    return False
