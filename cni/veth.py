"""The wire between host and pod: a veth pair, the pod's addresses and its two routes.

Layer: edge (raw netlink through libcalico.netlink; blocking, a millisecond or a few, so call it
from a thread). Used by cni.agent and cni.standalone.
Source: Calico cni-plugin/pkg/dataplane/linux; the batching is measured in reference/cni.md 3.

  W1  the pod's end is made directly in its namespace: it is never visible, or nameable, elsewhere;
  W2  duplicate address detection is off before a link comes up, on both sides: the addresses are
      ours by IPAM, and a pod must not wait a second for its IPv6 address;
  W3  a veth of the same name on the host that has our MAC belongs to a dead endpoint (cni.hostnames
      keeps the names of the living) and is replaced; any other interface of that name, there or in
      the pod, is somebody else's: it stays, and is named in the error;
  W4  failure half way removes the pair again.
Its end is cni.teardown's.
The host side's other sysctls (proxy_arp, forwarding, rp_filter) are felix's: they are policy of
the node, kept right for as long as the endpoint lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from cni import sandbox
from cni.skel import CniError, Code
from libcalico.errors import ProgrammingFailed
from libcalico.netlink import (
    SCOPE_LINK,
    Link,
    LinkChange,
    NetlinkSocket,
    NextHop,
    Route,
    VethEnd,
    add_route,
    change_link,
    create_veth,
    delete_link,
    get_link,
    list_links,
    resolve_route,
    run_in_namespace,
    set_address,
)
from libcalico.netlink import Request as NetlinkRequest

HOST_MAC = "ee:ee:ee:ee:ee:ee"
GATEWAY_V4 = "169.254.1.1"
# The link-local address that follows from HOST_MAC (RFC 4291 appendix A).
GATEWAY_V6 = "fe80::ecee:eeff:feee:eeee"
DEFAULT_MTU = 1500
# Addresses of nobody (RFC 5737, RFC 3849): the kernel is asked where it would send them.
_SOMEWHERE = ("203.0.113.1", "2001:db8:ffff::1")
LOOPBACK = 1
PROC_SYS_NET = Path("/proc/sys/net")
IFINDEX_GONE = (errno.ENODEV, errno.ENXIO)
_NS_GET_NSTYPE = 0xB703  # linux/nsfs.h
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class PodWire:
    """What to make. `addresses` are plain ("10.65.0.1", "fd65::1"); `mac` "" leaves it random;
    `mtu_bytes` 0 takes the uplink's. `routes` are the destinations the pod reaches through us."""

    host_name: str
    pod_name: str
    netns: str
    addresses: tuple[str, ...]
    mtu_bytes: int = 0
    mac: str = ""
    routes: tuple[str, ...] = ("0.0.0.0/0", "::/0")
    allow_ip_forwarding: bool = False
    num_queues: int = 1

    @property
    def has_ipv4(self) -> bool:
        return any(":" not in address for address in self.addresses)

    @property
    def has_ipv6(self) -> bool:
        return any(":" in address for address in self.addresses)


@dataclass(frozen=True, slots=True)
class MadeWire:
    mac: str
    mtu_bytes: int


def create(wire: PodWire) -> MadeWire:
    """Make pair, addresses and routes. Errors: CniError (8 for the namespace, else 100)."""
    with Wiring(wire) as wiring:
        return wiring.complete(wire.addresses)


class Wiring:
    """One wire in two steps: the first takes no address, so it can be done while IPAM is asked.

    After it the pod's namespace need not be entered again: a socket bound to it is kept. Blocking;
    not for two threads at once. `is_made`: there is a pair of ours, to be removed by the caller."""

    def __init__(self, wire: PodWire, *, expects_ipv6: bool = False) -> None:
        self._wire = wire
        self._prepares_ipv6 = expects_ipv6 or wire.has_ipv6
        self._inside: _Inside | None = None
        self._mtu_bytes = wire.mtu_bytes
        self.is_made = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        if self._inside is not None:
            self._inside.socket.close()

    def prepare(self) -> None:
        """Make the pair, unless the host's name is taken (W3): that is replaced by `complete`, once
        it is sure that this pod will have addresses. Errors: CniError."""
        with _in_netns(self._wire) as netns_fd, NetlinkSocket() as host:
            if find(host, self._wire.host_name) is None:
                self._make_pair(host, netns_fd)

    def complete(self, addresses: tuple[str, ...]) -> MadeWire:
        """Everything else. Errors: CniError."""
        wire = replace(self._wire, addresses=addresses)
        with _in_netns(wire) as netns_fd, NetlinkSocket() as host:
            inside = self._inside or self._make_pair(host, netns_fd)
            with self._removed_on_failure(host):
                if wire.has_ipv6 and not self._prepares_ipv6:
                    run_in_namespace(netns_fd, lambda: _allow_ipv6(wire))
                _bring_host_up(host, wire)
                _configure_pod(inside, wire)
        return MadeWire(inside.link.mac, self._mtu_bytes)

    def _make_pair(self, host: NetlinkSocket, netns_fd: int) -> _Inside:
        self._mtu_bytes = self._mtu_bytes or uplink_mtu(host)
        _create_pair(host, self._wire, netns_fd, self._mtu_bytes)
        self.is_made = True
        with self._removed_on_failure(host):
            self._inside = run_in_namespace(netns_fd, self._look_inside)
        return self._inside

    def _look_inside(self) -> _Inside:
        """Runs in the pod's namespace."""
        wire = self._wire
        _sysctl("ipv4/ip_forward", _forwarding(wire))
        if self._prepares_ipv6:
            _allow_ipv6(wire)
        pod = NetlinkSocket()
        try:
            return _Inside(pod, pod.query_one(get_link(wire.pod_name)))
        except BaseException:
            pod.close()
            raise

    @contextlib.contextmanager
    def _removed_on_failure(self, host: NetlinkSocket) -> Iterator[None]:
        """W4."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(ProgrammingFailed):
                host.execute(delete_link(self._wire.host_name))
            self.is_made = False
            raise


@dataclass(frozen=True, slots=True)
class _Inside:
    """The pod's end, and a socket bound to its namespace."""

    socket: NetlinkSocket
    link: Link


@contextlib.contextmanager
def _in_netns(wire: PodWire) -> Iterator[int]:
    """The pod's namespace as an fd; what the kernel refuses meanwhile in CNI's words."""
    netns_fd = _opened(wire.netns)
    try:
        yield netns_fd
    except ProgrammingFailed as err:
        raise CniError(
            Code.NETWORKING_FAILED, "error setting up the pod's interface", str(err)
        ) from err
    finally:
        os.close(netns_fd)


def check_netns(netns: str) -> None:
    """Errors: CniError 8 when there is no network namespace of that name."""
    os.close(_opened(netns))


def _opened(netns: str) -> int:
    """Errors: CniError 8."""
    try:
        netns_fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as err:
        raise CniError(
            Code.INVALID_NETNS, f"failed to open netns {netns!r}: {err.strerror}"
        ) from err
    try:
        # ioctl_ns(2): what is no namespace at all does not know the question.
        is_netns = fcntl.ioctl(netns_fd, _NS_GET_NSTYPE) == _CLONE_NEWNET
    except OSError:
        is_netns = False
    if not is_netns:
        os.close(netns_fd)
        raise CniError(Code.INVALID_NETNS, f"CNI_NETNS: {netns!r} is not a network namespace")
    return netns_fd


def _create_pair(host: NetlinkSocket, wire: PodWire, netns_fd: int, mtu_bytes: int) -> None:
    near = VethEnd(wire.host_name, mac=HOST_MAC, mtu_bytes=mtu_bytes, num_queues=wire.num_queues)
    far = VethEnd(
        wire.pod_name,
        mac=wire.mac,
        mtu_bytes=mtu_bytes,
        netns_fd=netns_fd,
        num_queues=wire.num_queues,
    )
    request = create_veth(near, far, near_is_up=False)
    refused = _refused(host, request)
    if refused is not None and not _make_room(host, wire):
        # Nobody has the host's name, and the kernel may have taken it away just now: ask again.
        refused = _refused(host, request)
        if refused is not None and not _make_room(host, wire):
            raise CniError(
                Code.NETWORKING_FAILED,
                f"container veth name ({wire.pod_name}) already exists in {wire.netns}",
            ) from refused
    if refused is not None:
        host.execute(request)


def _refused(host: NetlinkSocket, request: NetlinkRequest) -> ProgrammingFailed | None:
    """Send it; the error when one of the two names is taken. Errors: any other."""
    try:
        host.execute(request)
    except ProgrammingFailed as err:
        if err.errno != errno.EEXIST:
            raise
        return err
    return None


def _make_room(host: NetlinkSocket, wire: PodWire) -> bool:
    """Remove what has the host's name (W3): the host's end of an endpoint that died with its
    namespace still referenced somewhere. False when nothing has it. Errors: CniError for what is
    no pod's."""
    stale = find(host, wire.host_name)
    if stale is None:
        return False
    if stale.kind != "veth" or stale.mac != HOST_MAC:
        raise CniError(
            Code.NETWORKING_FAILED,
            f"host interface {wire.host_name} already exists and is no pod's"
            f" (kind {stale.kind or 'unknown'}, MAC {stale.mac}): it is left alone",
        )
    try:
        host.execute(delete_link(wire.host_name))
    except ProgrammingFailed as err:
        # The kernel may be taking it away at this very moment.
        if err.errno not in IFINDEX_GONE:
            raise
    return True


def find(sock: NetlinkSocket, which: str | int) -> Link | None:
    try:
        return sock.query_one(get_link(which))
    except ProgrammingFailed as err:
        if err.errno in (errno.ENOENT, *IFINDEX_GONE):
            return None
        raise


def _bring_host_up(host: NetlinkSocket, wire: PodWire) -> None:
    if wire.has_ipv6:
        _sysctl(f"ipv6/conf/{wire.host_name}/disable_ipv6", "0")
        _sysctl(f"ipv6/conf/{wire.host_name}/accept_dad", "0")
    host.execute(change_link(wire.host_name, LinkChange(is_up=True)))


def _forwarding(wire: PodWire) -> str:
    return "1" if wire.allow_ip_forwarding else "0"


def _allow_ipv6(wire: PodWire) -> None:
    """Runs in the pod's namespace, before its interface is up (W2)."""
    for name in ("all", "default", "lo", wire.pod_name):
        _sysctl(f"ipv6/conf/{name}/disable_ipv6", "0")
    _sysctl(f"ipv6/conf/{wire.pod_name}/accept_dad", "0")
    _sysctl("ipv6/conf/all/forwarding", _forwarding(wire))


def _configure_pod(inside: _Inside, wire: PodWire) -> None:
    ifindex = inside.link.ifindex
    requests: list[NetlinkRequest] = [
        change_link(LOOPBACK, LinkChange(is_up=True)),
        change_link(ifindex, LinkChange(is_up=True)),
    ]
    requests += [set_address(ifindex, host_cidr(a)) for a in wire.addresses]
    routes = [add_route(route) for route in pod_routes(wire, ifindex)]
    failures = inside.socket.transact([*requests, *routes])
    # A second network of the pod finds the gateway and default route of the first; then its own
    # default, whose gateway is on the other interface, is unreachable and not wanted.
    is_second = any(failure.errno == errno.EEXIST for failure in failures.values())
    for index, failure in failures.items():
        tolerated = (errno.EEXIST, errno.ENETUNREACH) if is_second else ()
        if index < len(requests) or failure.errno not in tolerated:
            raise failure


def pod_routes(wire: PodWire, ifindex: int) -> list[Route]:
    routes: list[Route] = []
    for version, gateway, has in ((4, GATEWAY_V4, wire.has_ipv4), (6, GATEWAY_V6, wire.has_ipv6)):
        if not has:
            continue
        if version == 4:
            routes.append(Route(host_cidr(gateway), (NextHop(ifindex),), scope=SCOPE_LINK))
        wanted = [dst for dst in wire.routes if (":" in dst) == (version == 6)]
        routes += [Route(dst, (NextHop(ifindex, gateway),)) for dst in wanted]
    return routes


def host_cidr(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"


def uplink_mtu(host: NetlinkSocket) -> int:
    """The MTU of the interface that carries the default route (the smaller, when the families
    differ); 1500 when there is none. Asks for one route each: a dump could be a whole table."""
    indexes = set()
    for somewhere in _SOMEWHERE:
        with contextlib.suppress(ProgrammingFailed):
            route = host.query_one(resolve_route(somewhere))
            indexes |= {hop.ifindex for hop in route.nexthops}
    sizes = [host.query_one(get_link(index)).mtu_bytes for index in indexes - {0, LOOPBACK}]
    return min(sizes, default=DEFAULT_MTU)


def host_names() -> set[str]:
    """Names of all interfaces of the host. Errors: ProgrammingFailed."""
    with NetlinkSocket() as host:
        return {link.name for link in host.query(list_links())}


def is_own_namespace(netns: str) -> bool:
    """Whether CNI_NETNS is the namespace the calling thread (the host side) lives in."""
    try:
        return sandbox.identity(os.stat(netns)) == sandbox.identity_here()
    except OSError:
        return False


def _sysctl(name: str, value: str) -> None:
    """Write below /proc/sys/net of the calling thread's namespace, unless it says so already."""
    path = PROC_SYS_NET / name
    try:
        if path.read_text().strip() != value:
            path.write_text(value)
    except OSError as err:
        raise ProgrammingFailed("set sysctl", name, err.errno or 0, value) from err
