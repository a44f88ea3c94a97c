"""A felix that dies, or loses its CNI client, at a chosen point of an ADD or a DEL.

    python -m tests.support.cni_mortal        one line on stdin: a new felix; its pid is answered

Started once; each felix is forked from it, because importing costs more than running. Nothing in
the product knows of it: the container id says what is to happen, and the edges of the real daemon
(datastore, netlink, felix's programmer) are wrapped to count. `Plan` is the container id:

    ADD-felix-7     at the 7th crossing of an edge during the ADD of this container felix is killed
    DEL-client-3    at the 3rd of its DEL the client is killed
    DEL-both-3      both, as when the machine loses its power

Crossings are counted before and after each call, so a call that took effect and one that did not
are different points. The count is written to CALICO_LOG_DIR/<container id> when all went well.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import socket
import struct
import sys
import threading
import time
from asyncio import StreamWriter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cni import agent
from cni.skel import Answer, Invocation
from felix import daemon
from felix.endpoint_programmer import FelixProgrammer
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.netlink import NetlinkSocket

SEAMS: dict[type, tuple[str, ...]] = {
    EtcdDatastore: ("get", "list", "txn", "put", "create", "update", "delete"),
    NetlinkSocket: ("transact_messages", "query"),
    FelixProgrammer: ("program", "confirm", "retract"),
}
DEATH_S = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    verb: str
    who: str
    at: int

    @classmethod
    def of(cls, container: str) -> Plan:
        verb, who, at = container.split("-")
        return cls(verb, who, int(at))

    def __str__(self) -> str:
        return f"{self.verb}-{self.who}-{self.at}"


class Watcher:
    """Counts crossings while a request runs that is told to be watched, and kills at the chosen."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._lock = threading.Lock()
        self._count = 0
        self.client = 0
        self.is_dying = False

    def begin(self, plan: Plan) -> None:
        self._plan, self._count = plan, 0

    def end(self) -> int:
        self._plan = None
        return self._count

    def crossed(self) -> None:
        with self._lock:
            if self._plan is None:
                return
            self._count += 1
            if self._count == self._plan.at:
                self._kill(self._plan.who)

    def _kill(self, who: str) -> None:
        # Said first: we may be in a thread, and the event loop sees the client go.
        self.is_dying = who in ("felix", "both")
        if who in ("client", "both"):
            os.kill(self.client, signal.SIGKILL)
            deadline = time.monotonic() + DEATH_S
            while not self.is_dying and _is_running(self.client) and time.monotonic() < deadline:
                time.sleep(0.001)
        if self.is_dying:
            os.kill(os.getpid(), signal.SIGKILL)


def _is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def watch_edges(watcher: Watcher) -> None:
    for owner, names in SEAMS.items():
        for name in names:
            setattr(owner, name, _counted(watcher, getattr(owner, name)))
    watch_requests(watcher)


def _counted(watcher: Watcher, call: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def later(*args: Any, **more: Any) -> Any:
            watcher.crossed()
            answer = await call(*args, **more)
            watcher.crossed()
            return answer

        return later

    @functools.wraps(call)
    def now(*args: Any, **more: Any) -> Any:
        watcher.crossed()
        answer = call(*args, **more)
        watcher.crossed()
        return answer

    return now


def watch_requests(watcher: Watcher) -> None:
    answer, is_trusted = agent.Agent.answer, agent._is_trusted

    async def watched(self: agent.Agent, invocation: Invocation) -> Answer:
        container = invocation.environ["CNI_CONTAINERID"]
        plan = Plan.of(container)
        if invocation.environ["CNI_COMMAND"] != plan.verb:
            return await answer(self, invocation)
        watcher.begin(plan)
        try:
            return await answer(self, invocation)
        finally:
            count = watcher.end()
            if not watcher.is_dying:
                (Path(os.environ["CALICO_LOG_DIR"]) / container).write_text(str(count))

    def trusted(writer: StreamWriter) -> bool:
        link: socket.socket = writer.get_extra_info("socket")
        packed = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        watcher.client = struct.unpack("=iII", packed)[0]
        return is_trusted(writer)

    agent.Agent.answer = watched  # type: ignore[method-assign]
    agent._is_trusted = trusted


def main() -> None:
    watch_edges(Watcher())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead leave no trace
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            os._exit(daemon.main([]))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
