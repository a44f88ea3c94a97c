"""Forwarding from pod to pod through a node whose policy has 10,000 entries.

`forward-10k`      packets of one connection that both sides have spoken on.
`forward-10k-new`  every packet the first of a connection of its own.

One node with felix's rules, written by the real managers and driver, and three pods: `sender`,
`governed` and `open`. The policy of `governed` has 10,000 rules of networks and ports that fit
nothing sent here, then one rule that allows a set of 10,000 networks, the sender's among them.
"Without policy" is `open`: the same node, rules and sender, a pod that no policy selects and
whose profile allows all.

Whole frames are put on the sender's wire by sendmmsg on one CPU, which does all the work of the
way in its turn: the sender's cost is in both figures, and makes their ratio milder than that of
the rules alone. The clock stops when the pod's interface has received every packet; a packet lost
fails the benchmark. Rounds take turns, and who begins does too. Connections are forgotten before
each.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from felix.intent import Intent, PolicyUpdate, SetDelta, SetUpdate
from felix.kernel.nft import NftKernel
from libcalico import net
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, PortRange, SetKind
from libcalico.netlink import Neighbour, device_route, replace_route, set_neighbour
from libcalico.policy.packet import UDP, Packet
from tests.support.injection import mac_of, wire
from tests.support.netns import Namespace, NamespaceSet, connect, eventually, why_unavailable
from tests.support.nft import Node, allow_all_profile, policy_key, tier, workload

NAMES = ("forward-10k", "forward-10k-new")
ENTRIES, PACKETS, ROUNDS = 10_000, 100_000, 9
LIMIT = 0.95
BASELINE = "same node, a pod without policy"
_BATCH, _PROBES = 256, 100
# 2 destination ports with 50,000 source ports each.
_SOURCE_PORTS, _FIRST_SOURCE_PORT, _FIRST_PORT = 50_000, 10_000, 9_000
_PORTS_AT = 14 + 20
_SET = "s:bench"


def run(only: set[str]) -> list[dict[str, Any]]:
    reason = why_unavailable("veth", "nft")
    if reason:
        raise RuntimeError(f"forward-10k cannot run: {reason}")
    wanted = [name for name in NAMES if not only or name in only]
    with NamespaceSet() as netns, _on_one_cpu():
        bench = _Bench(netns)
        try:
            asyncio.run(bench.enforce())
            return [bench.measure(name) for name in wanted]
        finally:
            bench.close()


# ------------------------------------------------------------------------------------ the policy


def policy() -> PolicyUpdate:
    """Rules of values only, none of which fits the sender; then the set it is in."""
    rules = [
        CompiledRule(
            Action.ALLOW,
            index,
            ip_version=4,
            protocol=UDP,
            source=EntityMatch(
                nets=(f"172.{16 + (index >> 12)}.{index >> 4 & 255}.{index & 15}/32",)
            ),
            destination=EntityMatch(ports=(PortRange(1000 + index, 1000 + index),)),
        )
        for index in range(ENTRIES)
    ]
    rules.append(CompiledRule(Action.ALLOW, ENTRIES, source=EntityMatch(sets=(_SET,))))
    return PolicyUpdate(policy_key("bench"), "default", tuple(rules), ())


def others() -> frozenset[str]:
    """All members but the sender, with gaps, so that none can be merged."""
    numbers = (0x0A000000 + 2 * number for number in range(ENTRIES - 1))
    return frozenset(".".join(map(str, n.to_bytes(4, "big"))) + "/32" for n in numbers)


# --------------------------------------------------------------------------------- node and pods


class _Pod:
    """A namespace with one wire to the node and no address: it answers nothing by itself."""

    def __init__(self, node: Namespace, netns: NamespaceSet, name: str, address: str) -> None:
        self.name, self.address, self.ifname = name, address, f"cali{name}"
        self.namespace = netns.make(name)
        # Else the kernel's own packets would be counted, too.
        self.namespace.sysctl("net/ipv6/conf/default/disable_ipv6", "1")
        connect(node, self.ifname, self.namespace, "eth0")
        near, far = mac_of(node, self.ifname), mac_of(self.namespace, "eth0")
        ifindex = node.link(self.ifname).ifindex
        node.socket.execute(
            replace_route(device_route(f"{address}/32", ifindex, protocol=3)),
            set_neighbour(Neighbour(ifindex, address, far.hex(":"))),
        )
        self.socket = self.namespace.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        self.socket.bind(("eth0", 0))  # sends only
        self._to_node = near + far + struct.pack(">H", 0x0800)

    def frame(self, target: _Pod, source_port: int, port: int) -> bytes:
        ends = net.parse_ip(self.address), net.parse_ip(target.address)
        packet = Packet(*ends, UDP, source_port=source_port, destination_port=port)
        return self._to_node + wire(packet, 1)

    def received(self) -> int:
        """Packets that came out of the wire so far."""
        text = self.namespace.call(Path("/proc/thread-self/net/dev").read_text)
        (line,) = [line for line in text.splitlines() if line.strip().startswith("eth0:")]
        return int(line.split(":")[1].split()[1])


class _Bench:
    def __init__(self, netns: NamespaceSet) -> None:
        self._netns = netns.make("node")
        for scope in ("all", "default"):
            self._netns.sysctl(f"net/ipv4/conf/{scope}/rp_filter", "0")
        self._netns.sysctl("net/ipv4/ip_forward", "1")
        self._netns.sysctl("net/ipv6/conf/default/disable_ipv6", "1")
        self._sender = _Pod(self._netns, netns, "sender", "10.200.0.1")
        self._governed = _Pod(self._netns, netns, "governed", "10.200.0.2")
        self._open = _Pod(self._netns, netns, "open", "10.200.0.3")
        self._node = Node(NftKernel.in_namespace(self._netns.path))

    def close(self) -> None:
        self._node.kernel.close()
        for pod in (self._sender, self._governed, self._open):
            pod.socket.close()

    async def enforce(self) -> None:
        """Write the rules, and see that the policy decides: the sender is let in as a member."""
        tiers = {self._governed: (tier(ingress=["bench"]),)}
        endpoints = [
            workload(pod.name, pod.ifname, f"{pod.address}/32", tiers=tiers.get(pod, ()))
            for pod in (self._sender, self._governed, self._open)
        ]
        members = SetUpdate(_SET, SetKind.NET, others())
        await self._push(members, policy(), allow_all_profile(), *endpoints)
        self._expect_let_in(0)
        sender = frozenset({f"{self._sender.address}/32"})
        await self._push(SetDelta(_SET, sender, frozenset()))
        self._expect_let_in(_PROBES)

    async def _push(self, *intents: Intent) -> None:
        result = await self._node.push(*intents)
        if result.failed or result.deferred:
            raise RuntimeError(result.error)

    def _expect_let_in(self, wanted: int) -> None:
        before = self._governed.received()
        messages = self._one_connection(self._governed, _PROBES)
        messages.send(self._sender.socket.fileno())
        # One CPU's queue keeps the order: when `open` has the later ones, these are done with.
        self._send(self._open, self._one_connection(self._open, _PROBES))
        found = self._governed.received() - before
        if found != wanted:
            raise RuntimeError(f"the policy let {found} of {_PROBES} packets in, not {wanted}")

    # ------------------------------------------------------------------------------- measuring

    def measure(self, name: str) -> dict[str, Any]:
        is_new = name.endswith("-new")
        prepare = self._many_connections if is_new else self._one_connection
        messages = {pod: prepare(pod, PACKETS) for pod in (self._governed, self._open)}
        rates: dict[_Pod, list[float]] = {pod: [] for pod in messages}
        for number in range(ROUNDS):
            for pod in sorted(messages, key=lambda pod: (pod is self._open) == (number % 2 == 0)):
                self._netns.run("conntrack", "-F")
                if not is_new:
                    self._speak(pod)
                rates[pod].append(PACKETS / self._send(pod, messages[pod]))
                self._check_connections(PACKETS if is_new else 1)
        return _entry(name, rates[self._governed], rates[self._open])

    def _speak(self, pod: _Pod) -> None:
        """A packet there and one back: from now on the connection is established."""
        self._send(pod, self._one_connection(pod, 1))
        before = self._sender.received()
        pod.socket.send(pod.frame(self._sender, _FIRST_PORT, _FIRST_SOURCE_PORT))
        _wait(lambda: self._sender.received() == before + 1, "the answer")
        listed = self._netns.run("conntrack", "-L", "-p", "udp")
        if pod.address not in listed or "UNREPLIED" in listed:
            raise RuntimeError(f"no established connection: {listed!r}")

    def _check_connections(self, wanted: int) -> None:
        found = int(self._netns.run("conntrack", "-C"))
        if found != wanted:
            raise RuntimeError(f"{found} connections, not {wanted}")

    def _send(self, pod: _Pod, messages: _Messages) -> float:
        """Seconds until the pod has received them all."""
        wanted = pod.received() + messages.count
        began = time.perf_counter()
        messages.send(self._sender.socket.fileno())
        _wait(lambda: pod.received() >= wanted, f"all packets to {pod.name}")
        return time.perf_counter() - began

    def _one_connection(self, pod: _Pod, count: int) -> _Messages:
        frame = self._sender.frame(pod, _FIRST_SOURCE_PORT, _FIRST_PORT)
        return _Messages(bytearray(frame * count), len(frame))

    def _many_connections(self, pod: _Pod, count: int) -> _Messages:
        frame = self._sender.frame(pod, _FIRST_SOURCE_PORT, _FIRST_PORT)
        frames = bytearray(frame * count)
        for number in range(count):
            port, source_port = divmod(number, _SOURCE_PORTS)
            at = number * len(frame) + _PORTS_AT
            # Without a checksum (RFC 768: zero), which the ports would change.
            ports = _FIRST_SOURCE_PORT + source_port, _FIRST_PORT + port
            struct.pack_into(">HHHH", frames, at, *ports, len(frame) - _PORTS_AT, 0)
        return _Messages(frames, len(frame))


def _wait(check: Callable[[], bool], what: str) -> None:
    if not eventually(check, timeout_s=10.0, interval_s=0.0005):
        raise RuntimeError(f"{what}: did not come within 10 s")


@contextmanager
def _on_one_cpu() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _entry(name: str, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    value, base = statistics.median(ours), statistics.median(theirs)
    ratio = value / base
    return {
        "name": name,
        "value": value,
        "unit": "packets/s",
        "baseline": BASELINE,
        "baseline_value": base,
        "ratio": ratio,
        "limit": LIMIT,
        "ok": ratio >= LIMIT,
        "spread": [min(ours), max(ours), min(theirs), max(theirs)],
        "note": "the ratio at least",
    }


# ------------------------------------------------------------------------------- sendmmsg(2)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("sent", ctypes.c_uint),
    )


_sendmmsg = ctypes.CDLL(None, use_errno=True).sendmmsg


class _Messages:
    """Frames of one size, ready to be sent."""

    def __init__(self, frames: bytearray, size: int) -> None:
        self.count = len(frames) // size
        self._frames = (ctypes.c_char * len(frames)).from_buffer(frames)
        first = ctypes.addressof(self._frames)
        self._vectors = (_IoVec * self.count)(
            *((first + number * size, size) for number in range(self.count))
        )
        vector, step = ctypes.addressof(self._vectors), ctypes.sizeof(_IoVec)
        self._messages = (_Message * self.count)(
            *((None, 0, vector + number * step, 1) for number in range(self.count))
        )

    def send(self, fd: int) -> None:
        """All of them; the socket blocks while too many are on their way."""
        sent = 0
        while sent < self.count:
            at = ctypes.byref(self._messages, sent * ctypes.sizeof(_Message))
            done = _sendmmsg(fd, at, min(_BATCH, self.count - sent), 0)
            if done < 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            sent += done
