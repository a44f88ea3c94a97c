"""Network namespaces for tests: made with unique names, always removed, also after a crash.

Used by tests/netns, tests/peers, tests/component and the benchmarks that need a kernel.

A name is `brn-t<pid>x<n>-<label>`: the pid of the process that made it. Every first use of a
process reaps what dead processes left behind (and what is older than an hour); names of any other
shape (the lab's, a colleague's) are never touched.

    with NamespaceSet() as netns:
        node = netns.make("node")
        pod = wire_workload(node, netns.make("pod"), "cali1", "10.65.0.2/32", "fd00::2/128")
        assert can_ping(node, "10.65.0.2")

Uses `nsenter --net`, not `ip netns exec`: the latter remounts /sys.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from libcalico.errors import ProgrammingFailed
from libcalico.netlink import (
    Link,
    LinkChange,
    NetlinkSocket,
    NextHop,
    Route,
    VethEnd,
    change_link,
    create_link,
    create_veth,
    device_route,
    get_link,
    replace_route,
    run_in_namespace,
    set_address,
)

T = TypeVar("T")

_NETNS_DIR = Path("/run/netns")
_NAME = re.compile(r"^brn-t(\d+)x\d+-")
_STALE_AFTER_S = 3600.0
_numbers = itertools.count(1)

HOST_MAC = "ee:ee:ee:ee:ee:ee"
GATEWAY_V4 = "169.254.1.1"
GATEWAY_V6 = "fe80::ecee:eeff:feee:eeee"


class Namespace:
    """One network namespace. Made by NamespaceSet, which also removes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = str(_NETNS_DIR / name)
        self._children: list[subprocess.Popen[bytes]] = []
        _run("ip", "netns", "add", name)
        self._socket: NetlinkSocket | None = None

    @property
    def socket(self) -> NetlinkSocket:
        """A request socket that lives in this namespace."""
        if self._socket is None:
            self._socket = NetlinkSocket.in_namespace(self.path)
        return self._socket

    def run(self, *argv: str, timeout_s: float = 20.0) -> str:
        """Run a command inside; returns its stdout, raises CalledProcessError with its stderr."""
        return _run("nsenter", f"--net={self.path}", *argv, timeout_s=timeout_s)

    def succeeds(self, *argv: str, timeout_s: float = 20.0) -> bool:
        command = ["nsenter", f"--net={self.path}", *argv]
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
        return done.returncode == 0

    def spawn(self, *argv: str, **options: object) -> subprocess.Popen[bytes]:
        """Start a process inside; it is killed with the namespace."""
        command = ["nsenter", f"--net={self.path}", *argv]
        child: subprocess.Popen[bytes] = subprocess.Popen(command, **options)  # type: ignore[call-overload]
        self._children.append(child)
        return child

    def call(self, work: Callable[[], T]) -> T:
        """Run Python code of this process inside, in a thread of its own."""
        return run_in_namespace(self.path, work)

    def sysctl(self, name: str, value: str | None = None) -> str:
        """Read, or write and read back, /proc/sys/<name> of this namespace ("net/ipv4/…")."""
        path = Path("/proc/sys") / name

        def work() -> str:
            if value is not None:
                path.write_text(value)
            return path.read_text().strip()

        return self.call(work)

    def link(self, name: str) -> Link:
        return self.socket.query_one(get_link(name))

    def remove(self) -> None:
        for child in self._children:
            with suppress(ProcessLookupError):
                child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    stream.close()
        if self._socket is not None:
            self._socket.close()
        _remove(self.name)


class NamespaceSet:
    """Makes namespaces and removes them all at the end of the `with`."""

    def __init__(self) -> None:
        reap_stale()
        self._made: list[Namespace] = []

    def make(self, label: str = "ns") -> Namespace:
        name = f"brn-t{os.getpid()}x{next(_numbers)}-{label}"
        made = Namespace(name)
        self._made.append(made)
        made.socket.execute(change_link("lo", LinkChange(is_up=True)))
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for namespace in reversed(self._made):
            namespace.remove()
        self._made.clear()


def connect(one: Namespace, one_name: str, other: Namespace, other_name: str) -> None:
    """A veth between two namespaces, both ends up."""
    fd = os.open(other.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        one.socket.execute(create_veth(VethEnd(one_name), VethEnd(other_name, netns_fd=fd)))
    finally:
        os.close(fd)
    other.socket.execute(change_link(other_name, LinkChange(is_up=True)))


def add_bridge(namespace: Namespace, name: str) -> Link:
    """A bridge, up. Also a stand-in for a dummy device, which test kernels lack."""
    namespace.socket.execute(create_link(name, "bridge"))
    namespace.socket.execute(change_link(name, LinkChange(is_up=True)))
    return namespace.link(name)


def add_addresses(namespace: Namespace, ifname: str, *cidrs: str) -> None:
    ifindex = namespace.link(ifname).ifindex
    namespace.socket.execute(*(set_address(ifindex, cidr) for cidr in cidrs))


def add_uplink(node: Namespace, *, address: str = "192.0.2.1/24") -> None:
    """What makes 169.254.1.1 answer on workload interfaces: a default route out of another one."""
    connect(node, "up0", node, "up1")
    add_addresses(node, "up0", address)
    ifindex = node.link("up0").ifindex
    hop = (NextHop(ifindex, "192.0.2.254", is_onlink=True),)
    node.socket.execute(replace_route(Route("0.0.0.0/0", hop)))


def wire_workload(node: Namespace, pod: Namespace, ifname: str, *cidrs: str) -> Namespace:
    """What the CNI plugin does: veth, addresses and default routes in the pod. No host route, no
    host sysctls: those are felix's."""
    pod.sysctl("net/ipv6/conf/default/accept_dad", "0")
    fd = os.open(pod.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        near, far = VethEnd(ifname, HOST_MAC), VethEnd("eth0", netns_fd=fd)
        node.sysctl("net/ipv6/conf/default/accept_dad", "0")
        node.socket.execute(create_veth(near, far))
    finally:
        os.close(fd)
    eth0 = pod.link("eth0").ifindex
    requests = [change_link(eth0, LinkChange(is_up=True))]
    requests += [set_address(eth0, cidr) for cidr in cidrs]
    if any(":" not in cidr for cidr in cidrs):
        requests.append(replace_route(device_route(f"{GATEWAY_V4}/32", eth0, protocol=3)))
        requests.append(replace_route(Route("0.0.0.0/0", (NextHop(eth0, GATEWAY_V4),))))
    if any(":" in cidr for cidr in cidrs):
        requests.append(replace_route(Route("::/0", (NextHop(eth0, GATEWAY_V6),))))
    pod.socket.execute(*requests)
    return pod


def can_ping(namespace: Namespace, address: str, *, timeout_s: float = 1.0) -> bool:
    family = "-6" if ":" in address else "-4"
    wait = str(max(1, round(timeout_s)))
    return namespace.succeeds("ping", family, "-n", "-c", "1", "-W", wait, address)


def eventually(
    check: Callable[[], bool], *, timeout_s: float = 20.0, interval_s: float = 0.02
) -> bool:
    """Poll until `check` is true; False when it never was before the deadline."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True


def why_unavailable(*needs: str) -> str:
    """Empty when we are root and the kernel has every need ("veth", "bridge", "vxlan", "nft");
    else the reason to skip. REQUIRE=veth,… in the environment turns a skip into a failure."""
    reason = "" if os.geteuid() == 0 else "needs root"
    for need in needs:
        if not reason and not _is_available(need):
            reason = f"the kernel has no {need}"
    required = os.environ.get("REQUIRE", "").split(",")
    if reason and any(need in required for need in needs):
        raise RuntimeError(f"REQUIRE={os.environ['REQUIRE']}, but {reason}")
    return reason


_availability: dict[str, bool] = {}


def _is_available(need: str) -> bool:
    if need not in _availability:
        with NamespaceSet() as netns:
            probe = netns.make("probe")
            if need == "nft":
                _availability[need] = probe.succeeds("nft", "add table inet probe")
            else:
                _availability[need] = _can_create(probe, need)
    return _availability[need]


def _can_create(probe: Namespace, kind: str) -> bool:
    if kind == "vxlan":
        return probe.succeeds("ip", "link", "add", "p0", "type", "vxlan", "id", "1", "dstport", "1")
    try:
        probe.socket.execute(create_link("p0", kind))
    except ProgrammingFailed:
        return False
    return True


_reaped = False


def reap_stale() -> None:
    """Remove namespaces of our shape whose maker is dead, or that are older than an hour."""
    global _reaped
    if _reaped or not _NETNS_DIR.is_dir():
        return
    _reaped = True
    for entry in _NETNS_DIR.iterdir():
        match = _NAME.match(entry.name)
        if match and int(match[1]) != os.getpid() and _is_stale(entry, int(match[1])):
            _remove(entry.name)


def _is_stale(entry: Path, maker: int) -> bool:
    if not Path(f"/proc/{maker}").exists():
        return True
    with suppress(FileNotFoundError):
        return time.time() - entry.stat().st_mtime > _STALE_AFTER_S
    return False


def _remove(name: str) -> None:
    """Kill what still runs inside, then remove. Processes there are ours: the namespace is."""
    listed = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, timeout=20, check=False
    )
    for pid in listed.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)


def _run(*argv: str, timeout_s: float = 20.0) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, argv, done.stdout, done.stderr)
    return done.stdout
