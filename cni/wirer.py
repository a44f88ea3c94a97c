"""Who makes and removes wires for the agent: threads, or a process of its own.

Layer: edge. Used by cni.agent. The work is cni.veth's and cni.teardown's; this is about where it is
done. A thread that works with the kernel gives the interpreter up and wants it back some thirty
times for one wire, and waits each time for whatever the event loop is computing: a wire that takes
0.7 ms takes 4 ms beside it, and slows it down. So felix has a process for it
(cni.wirer_process), asked over a socket that nobody else has.

  K1  an order that was sent is waited for, however often its caller is cancelled: what was made
      must be undone, and then has to be known;
  K2  the process is in the network namespace of the executor's threads, as they are themselves
      where this is used without one;
  K3  it ends when its socket does, so it does not outlive us whatever happens; it is started again
      when it has ended. Orders on their way then fail with code 11, outcome unknown;
  K4  the orders of one turn of the loop go together, and so do their reports: with a hundred pods
      at once every switch between the two processes costs as much as a wire.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import Protocol

from cni import teardown, veth
from cni.skel import CniError, Code
from cni.threads import in_thread, to_the_end
from cni.veth import MadeWire, PodWire
from cni.wirer_wire import (
    MAX_TOGETHER,
    MESSAGE_BYTES,
    Order,
    Report,
    Verb,
    decode_reports,
    encode_orders,
)
from libcalico.runtime import log

LOG = log.get(__name__)
_END_PATIENCE_S = 5.0
_NOT_FOR_IT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wirer(Protocol):
    """Errors of all but start and stop: CniError."""

    async def start(self) -> None:
        """Be ready. The first order does it too."""
        ...

    async def stop(self) -> None:
        """When nothing is on its way any more."""
        ...

    async def attempt(self, wire: PodWire) -> MadeWire | None:
        """As `veth.attempt`."""
        ...

    async def make(self, wire: PodWire) -> MadeWire:
        """As `veth.create`."""
        ...

    async def delete_in_pod(self, netns: str, ifname: str) -> bool:
        """As `teardown.delete_in_pod`."""
        ...

    async def delete_on_host(self, name: str) -> bool:
        """As `teardown.delete_on_host`."""
        ...


class WirerEnded(CniError):
    """The process ended before it had answered: done or not, nobody knows."""

    def __init__(self) -> None:
        super().__init__(Code.TRY_AGAIN_LATER, "the process that makes wires has ended")


class ThreadWirer:
    """A thread of the loop's executor for each."""

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    async def attempt(self, wire: PodWire) -> MadeWire | None:
        return await in_thread(partial(veth.attempt, wire))

    async def make(self, wire: PodWire) -> MadeWire:
        return await in_thread(partial(veth.create, wire))

    async def delete_in_pod(self, netns: str, ifname: str) -> bool:
        return await in_thread(partial(teardown.delete_in_pod, netns, ifname))

    async def delete_on_host(self, name: str) -> bool:
        return await in_thread(partial(teardown.delete_on_host, name))


class ProcessWirer:
    """See the module."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._starting: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._reports: dict[int, asyncio.Future[Report]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        # Of this turn of the loop; then what did not fit into the socket's buffer.
        self._orders: list[Order] = []
        self._unsent: collections.deque[bytes] = collections.deque()

    async def attempt(self, wire: PodWire) -> MadeWire | None:
        return (await self._ask(Verb.ATTEMPT, wire)).made

    async def make(self, wire: PodWire) -> MadeWire:
        made = (await self._ask(Verb.MAKE, wire)).made
        assert made is not None
        return made

    async def delete_in_pod(self, netns: str, ifname: str) -> bool:
        return (await self._ask(Verb.DELETE_IN_POD, netns=netns, name=ifname)).is_done

    async def delete_on_host(self, name: str) -> bool:
        return (await self._ask(Verb.DELETE_ON_HOST, name=name)).is_done

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return 0 if self._process is None else self._process.pid

    async def start(self) -> None:
        """Errors: OSError."""
        if self._socket is not None:
            return
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)

    async def stop(self) -> None:
        self._disconnect()
        if self._ending:
            await asyncio.wait(self._ending)

    # ---- inside --------------------------------------------------------------------------------

    async def _start(self) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # In a thread of the executor, for its namespace (K2).
                self._process = await in_thread(partial(_spawn, theirs.fileno()))
            ours.setblocking(False)
            self._socket = ours
            asyncio.get_running_loop().add_reader(ours.fileno(), self._read)
            LOG.info("wires are made by a process of its own", pid=self._process.pid)
        finally:
            self._starting = None

    async def _ask(
        self, verb: Verb, wire: PodWire | None = None, *, netns: str = "", name: str = ""
    ) -> Report:
        try:
            await self.start()
        except OSError as err:
            raise CniError(
                Code.TRY_AGAIN_LATER, "the process that makes wires cannot be started", str(err)
            ) from err
        number = next(self._numbers)
        report: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._reports[number] = report
        if not self._orders:
            asyncio.get_running_loop().call_soon(self._send)
        self._orders.append(Order.of(number, verb, wire, netns=netns, name=name))
        answer = await to_the_end(report)  # K1
        if answer.refusal is not None:
            raise answer.refusal.to_error()
        return answer

    def _send(self) -> None:
        """K4."""
        orders, self._orders = self._orders, []
        is_blocked = bool(self._unsent)
        for start in range(0, len(orders), MAX_TOGETHER):
            self._unsent.append(encode_orders(orders[start : start + MAX_TOGETHER]))
        if not is_blocked:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._socket is None:
            return
        loop, handle = asyncio.get_running_loop(), self._socket.fileno()
        while self._unsent:
            try:
                self._socket.send(self._unsent[0])
            except BlockingIOError:
                loop.add_writer(handle, self._send_waiting)
                return
            except OSError:
                self._disconnect()
                return
            self._unsent.popleft()
        loop.remove_writer(handle)

    def _read(self) -> None:
        assert self._socket is not None
        while True:
            try:
                data = self._socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                LOG.warning("the process that makes wires has ended", count=len(self._reports))
                self._disconnect()
                return
            for report in decode_reports(data):
                waiting = self._reports.pop(report.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(report)

    def _disconnect(self) -> None:
        """K3."""
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())
            self._socket.close()
        if self._process is not None:
            ending = asyncio.ensure_future(in_thread(partial(_see_it_end, self._process)))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        self._socket = self._process = None
        self._orders.clear()
        self._unsent.clear()
        lost, self._reports = self._reports, {}
        for waiting in lost.values():
            if not waiting.done():
                waiting.set_exception(WirerEnded())


def _see_it_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_PATIENCE_S)
    except subprocess.TimeoutExpired:
        LOG.warning("the process that makes wires does not end, killing it", pid=process.pid)
        process.kill()
        process.wait()


def _spawn(handle: int) -> subprocess.Popen[bytes]:
    """Runs in a thread, whose blocked signals the process has from its first moment (L2)."""
    # -P: nothing is imported from wherever felix happens to have been started.
    command = [sys.executable, "-P", "-m", "cni.wirer_process", str(handle)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_IT)
    try:
        return subprocess.Popen(
            command, pass_fds=(handle,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
