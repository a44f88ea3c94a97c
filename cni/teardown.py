"""The end of wires: found from the pod's side or by the host's name, removed many at once.

Layer: edge (raw netlink; blocking, a few milliseconds: call it from a thread). Used by cni.wirer
and cni.wirer_process.

  T1  what is no wire of ours is left alone and counts as gone: another plugin's interface, and
      every interface of the host's own namespace;
  T2  from the pod's side no other pod's wire can be hit: a late DEL never sees its successor's;
  T3  a removal is over when the link does not exist for anybody any more, on either side. The
      kernel's answer comes some 20 ms later: it waits for readers of structures that nobody can
      reach, and a thread of our own sits that out;
  T4  removals that come while one runs are done together, as one group of links: the kernel waits
      once for all of them, not for each. Every batch has a group of its own, so that what a killed
      process left in one is not removed by the next.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from cni import sandbox
from cni.skel import CniError, Code
from cni.veth import HOST_MAC, IFINDEX_GONE, find
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import (
    Link,
    LinkChange,
    NetlinkSocket,
    Request,
    change_link,
    delete_group,
    delete_link,
    get_link,
    get_netnsid,
    list_links,
)

_LOOK_AGAIN_S = 0.0005


@dataclass(frozen=True, slots=True)
class End:
    """One end of a wire: of this name in a pod's namespace, or on the host (`netns` None)."""

    ifname: str
    netns: str | None = None


def delete_in_pod(netns: str, ifname: str) -> bool:
    """Remove the wire of this interface of a pod. False when namespace or interface are gone
    already, or not ours (T1). Errors: CniError 100."""
    return _only(delete_all([End(ifname, netns)]))


def delete_on_host(host_name: str) -> bool:
    """Remove the pair from the host's side. False when it is gone already. Errors: CniError 100."""
    return _only(delete_all([End(host_name)]))


def _only(found: Sequence[bool | CniError]) -> bool:
    (outcome,) = found
    if isinstance(outcome, CniError):
        raise outcome
    return outcome


def delete_all(ends: Sequence[End]) -> list[bool | CniError]:
    """As `delete_in_pod` and `delete_on_host`, for many at once (T4), each with its own outcome.

    Errors: CniError 100, when nothing can be done at all."""
    outcomes: list[bool | CniError] = []
    removals: dict[int, _Removal] = {}
    here = sandbox.identity_here()
    try:
        with NetlinkSocket() as host:
            for index, end in enumerate(ends):
                ifindex, outcome = _looked_up(host, end, here)
                outcomes.append(outcome)
                if ifindex:
                    removals[index] = _Removal(ifindex)
        _together(here).remove(list(removals.values()))
    except ProgrammingFailed as err:
        raise _failed(err) from err
    for index, removal in removals.items():
        outcomes[index] = True if removal.error is None else _failed(removal.error)
    return outcomes


def _looked_up(
    host: NetlinkSocket, end: End, here: sandbox.Identity
) -> tuple[int, bool | CniError]:
    """The number of the host's end, 0 for none; and what is the outcome then."""
    try:
        if end.netns is None:
            near = find(host, end.ifname)
        else:
            near = _near_end_of(host, end.netns, end.ifname, here)
    except ProgrammingFailed as err:
        return 0, _failed(err)
    return (0 if near is None else near.ifindex), False


def _failed(err: ProgrammingFailed) -> CniError:
    return CniError(Code.NETWORKING_FAILED, "failed to delete the interface", str(err))


def _near_end_of(
    host: NetlinkSocket, netns: str, ifname: str, here: sandbox.Identity
) -> Link | None:
    try:
        netns_fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        if sandbox.identity(os.fstat(netns_fd)) == here:
            return None
        return _near_end(host, netns_fd, ifname)
    finally:
        os.close(netns_fd)


def _near_end(host: NetlinkSocket, netns_fd: int, ifname: str) -> Link | None:
    """The host's end of a wire of ours; None when there is none (T1). Both ends must name each
    other: an index alone means something else in every namespace."""
    netnsid = _netnsid(host, netns_fd)
    if netnsid < 0:
        return None
    try:
        far = host.query_one(get_link(ifname, netnsid=netnsid))
    except ProgrammingFailed as err:
        if err.errno in (errno.ENOENT, *IFINDEX_GONE):
            return None
        raise
    near = find(host, far.peer_ifindex) if far.kind == "veth" else None
    if near is None or near.mac != HOST_MAC:
        return None
    return near if (near.peer_netnsid, near.peer_ifindex) == (netnsid, far.ifindex) else None


def _netnsid(host: NetlinkSocket, netns_fd: int) -> int:
    """-1: no namespace any more (what is left of an unmounted one), or no link leads there."""
    try:
        found = host.query_one(get_netnsid(netns_fd))
        if found < 0:
            # A namespace gets its id when a link that leads there is shown.
            host.query(list_links(kind="veth"))
            found = host.query_one(get_netnsid(netns_fd))
    except ProgrammingFailed as err:
        if err.errno in (errno.EINVAL, errno.EBADF, errno.ENOENT):
            return -1
        raise
    return found


# ---- together ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Removal:
    ifindex: int
    error: ProgrammingFailed | None = None


@dataclass(slots=True, eq=False)
class _Turn:
    """The removals of one caller, who waits until they are done or he is to lead."""

    removals: Sequence[_Removal]
    is_decided: threading.Event = field(default_factory=threading.Event)
    is_leading: bool = False


class _Together:
    """The removals of one namespace (T4). Who finds nobody leading leads: it takes all that wait,
    removes them in one go, and hands on to the first who came meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Turn] = []
        self._is_led = False
        self._groups = itertools.count(random.SystemRandom().randrange(1 << 24, 1 << 30))

    def remove(self, removals: Sequence[_Removal]) -> None:
        """Each removal has its error afterwards. Errors: ProgrammingFailed."""
        if not removals:
            return
        mine = _Turn(removals)
        with self._lock:
            self._waiting.append(mine)
            mine.is_leading, self._is_led = not self._is_led, True
        if not mine.is_leading:
            mine.is_decided.wait()
        if mine.is_leading:
            self._lead()

    def _lead(self) -> None:
        with self._lock:
            turns, self._waiting = self._waiting, []
            group = next(self._groups)
        batch = [removal for turn in turns for removal in turn.removals]
        try:
            _remove(batch, group)
        except ProgrammingFailed as err:
            for removal in batch:
                removal.error = err
        finally:
            self._hand_on()
            for turn in turns:
                turn.is_decided.set()

    def _hand_on(self) -> None:
        with self._lock:
            self._is_led = bool(self._waiting)
            if self._waiting:
                self._waiting[0].is_leading = True
                self._waiting[0].is_decided.set()


def _remove(batch: Sequence[_Removal], group: int) -> None:
    with NetlinkSocket() as watcher:
        deletion = _Deletion(_request(watcher, batch, group))
        deletion.start()
        for removal in batch:
            while deletion.is_alive() and find(watcher, removal.ifindex) is not None:
                deletion.join(_LOOK_AGAIN_S)
    if deletion.error is not None and deletion.error.errno not in IFINDEX_GONE:
        for removal in batch:
            removal.error = deletion.error


def _request(sock: NetlinkSocket, batch: Sequence[_Removal], group: int) -> Request:
    if len(batch) == 1:
        return delete_link(batch[0].ifindex)
    changes = [change_link(removal.ifindex, LinkChange(group=group)) for removal in batch]
    for failure in sock.transact(changes).values():
        if failure.errno not in IFINDEX_GONE:
            raise failure
    return delete_group(group)


class _Deletion(threading.Thread):
    """Sends the deletion and sits out the kernel's answer (T3)."""

    def __init__(self, request: Request) -> None:
        super().__init__(name="veth-deletion", daemon=True)
        self._request = request
        self._socket = NetlinkSocket()  # here: bound to the creator's namespace
        self.error: ProgrammingFailed | None = None

    def run(self) -> None:
        with self._socket:
            try:
                self._socket.execute(self._request)
            except ProgrammingFailed as err:
                self.error = err


_by_namespace: dict[sandbox.Identity, _Together] = {}
_by_namespace_lock = threading.Lock()


def _together(here: sandbox.Identity) -> _Together:
    """One for each namespace that this process removes wires in: felix has one."""
    with _by_namespace_lock:
        return _by_namespace.setdefault(here, _Together())
