"""The wire between host and pod: a veth pair, the pod's addresses and its two routes.

Layer: edge (raw netlink through libcalico.netlink; blocking, a millisecond or a few, so call it
from a thread). Used by cni.wirer and cni.wirer_process.
Source: Calico cni-plugin/pkg/dataplane/linux; the batching is measured in reference/cni.md 3.

  W1  the pod's end is made directly in its namespace: it is never visible, or nameable, elsewhere;
  W2  duplicate address detection is off before a link comes up, on both sides: the addresses are
      ours by IPAM, and a pod must not wait a second for its IPv6 address;
  W3  a veth of the same name on the host that has our MAC belongs to a dead endpoint (cni.hostnames
      keeps the names of the living) and is replaced; any other interface of that name, there or in
      the pod, is somebody else's: it stays, and is named in the error;
  W4  failure half way removes the pair again;
  W5  nothing outside the pod's namespace depends on its addresses: a wire that was made with others
      than the pod got in the end did no harm, and is made again.
Its end is cni.teardown's.
The host side's other sysctls (proxy_arp, forwarding, rp_filter) are felix's: they are policy of
the node, kept right for as long as the endpoint lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    with _in_netns(wire) as netns_fd, NetlinkSocket() as host:
        return _make(host, wire, netns_fd)


def attempt(wire: PodWire) -> MadeWire | None:
    """As `create`, unless the host's name is taken: then nothing is done, and None returned. For a
    pod that is not yet sure to have these addresses (W5): it must not cost a predecessor its wire
    (W3)."""
    with _in_netns(wire) as netns_fd, NetlinkSocket() as host:
        if find(host, wire.host_name) is not None:
            return None
        return _make(host, wire, netns_fd)


def _make(host: NetlinkSocket, wire: PodWire, netns_fd: int) -> MadeWire:
    mtu_bytes = wire.mtu_bytes or uplink_mtu(host)
    _create_pair(host, wire, netns_fd, mtu_bytes)
    try:
        if wire.has_ipv6:
            _bring_host_up(host, wire)
        mac = run_in_namespace(netns_fd, lambda: _finish_inside(wire))
    except BaseException:
        with contextlib.suppress(ProgrammingFailed):
            host.execute(delete_link(wire.host_name))  # W4
        raise
    return MadeWire(mac, mtu_bytes)


def _finish_inside(wire: PodWire) -> str:
    """Runs in the pod's namespace. Returns the MAC of the pod's end."""
    _sysctl("ipv4/ip_forward", _forwarding(wire))
    if wire.has_ipv6:
        _allow_ipv6(wire)
    with NetlinkSocket() as pod:
        ifindex, mac = _pod_end(pod, wire)
        _configure_pod(pod, ifindex, wire)
    return mac


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
        # Without waiting: it could be a pipe, which nobody may ever open for writing.
        netns_fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
    request = create_veth(near, far, near_is_up=not wire.has_ipv6)  # W2
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


def _pod_end(pod: NetlinkSocket, wire: PodWire) -> tuple[int, str]:
    """Number and MAC of the pod's end. A MAC that was asked for need not be read back."""
    if wire.mac:
        with contextlib.suppress(OSError):
            return socket.if_nametoindex(wire.pod_name), wire.mac
    link = pod.query_one(get_link(wire.pod_name))
    return link.ifindex, link.mac


def _configure_pod(pod: NetlinkSocket, ifindex: int, wire: PodWire) -> None:
    requests: list[NetlinkRequest] = [
        change_link(LOOPBACK, LinkChange(is_up=True)),
        change_link(ifindex, LinkChange(is_up=True)),
    ]
    requests += [set_address(ifindex, host_cidr(a)) for a in wire.addresses]
    routes = [add_route(route) for route in pod_routes(wire, ifindex)]
    failures = pod.transact([*requests, *routes])
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
