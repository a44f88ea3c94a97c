"""Truth tables with real packets: a node whose kernel has our rules, and a wire to every place.

A place is a network namespace with one interface and no address: whole packets are put on its
wire, and what comes out of the others is looked at; nobody answers. Neighbours are known for good,
so nothing is ever asked or queued. The node itself is a place, too: it sends by raw sockets, and a
table of its own behind all filtering of input collects what it was let have, and drops it.

When has a packet that did not come been dropped? One thread sends, on one CPU, and the kernel hands
packets from one veth to the next in the order of that CPU's queue. Whatever was sent before a mark
has therefore come one veth further when the mark is there; two marks, one after the other, are
behind both veths of the way. No case waits.

    wire = TruthWire(netns)
    reader = nft_reader(wire)
    await reader.enforce(intents)
    assert reader.passed(CASES) == expected
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from felix.intent import Intent
from felix.kernel.iptables import CommandRunner, Variant
from felix.kernel.nft import NftKernel
from felix.rules.settings import HostAction, RuleSettings
from libcalico import net
from libcalico.netlink import Neighbour, device_route, replace_route, set_neighbour
from tests.support.injection import mac_of, number_of, wire
from tests.support.iptables import IptNode, with_settings
from tests.support.netns import Namespace, NamespaceSet, add_addresses, connect
from tests.support.nft import Node
from tests.support.truth_table import CASES, FAMILIES, HOST, PLACES, Case, Place

_ETH_P_ALL, _MARK = 0x0003, 0x88B5  # the latter: IEEE 802 local experimental
_SOL_PACKET, _PACKET_IGNORE_OUTGOING, _SO_RCVBUFFORCE = 263, 23, 33
_BUFFER = 8 << 20
_PATIENCE_S = 30.0
# Far less than what waits for one CPU at most (net.core.netdev_max_backlog is 1000).
_BURST = 200
_HOPS = 2
_ETHERTYPE = {4: 0x0800, 6: 0x86DD}
_WHOLE_PACKETS = socket.IPPROTO_RAW
_TABLE = f"""
table inet truth {{
  set host4 {{ typeof ip saddr . ip id; flags dynamic; size 65535; }}
  set host6 {{ typeof ip6 saddr . ip6 flowlabel; flags dynamic; size 65535; }}
  chain input {{
    type filter hook input priority 500;
    ip daddr {HOST.addresses[4]} add @host4 {{ ip saddr . ip id }} drop
    ip6 daddr {HOST.addresses[6]} add @host6 {{ ip6 saddr . ip6 flowlabel }} drop
  }}
}}
"""

Seen = tuple[int, net.Address, net.Address]


class TruthWire:
    """The node and its wires. `node` is its namespace."""

    def __init__(self, netns: NamespaceSet) -> None:
        self.node = netns.make("node")
        for scope in ("all", "default"):
            self.node.sysctl(f"net/ipv4/conf/{scope}/rp_filter", "0")
        self.node.sysctl("net/ipv4/ip_forward", "1")
        self.node.sysctl("net/ipv6/conf/all/forwarding", "1")
        ends = [_End(self.node, netns.make(one.name), one) for one in PLACES if one is not HOST]
        self._marked = ends[0]
        self._ends: dict[str, _End | _Host] = {end.name: end for end in ends}
        self._ends[HOST.name] = _Host(self.node)
        self._marks = 0

    def passed(self, table: Iterable[Case]) -> set[int]:
        """Send them, as new connections; the numbers of those that reached their target."""
        self.node.run("conntrack", "-F")
        for end in self._ends.values():
            end.forget()
        cases = list(table)
        with _on_one_cpu():
            for first in range(0, len(cases), _BURST):
                burst = cases[first : first + _BURST]
                for case in burst:
                    self._ends[case.source.name].send(case)
                for _ in range(_HOPS):
                    self._wait_for_a_mark()
                for end in self._ends.values():
                    end.collect()
        for end in self._ends.values():
            end.finish()
        return {case.number for case in cases if self._has_come(case)}

    def _has_come(self, case: Case) -> bool:
        packet = case.packet
        came = self._ends[case.target.name].came
        return (case.number, packet.source, packet.destination) in came

    def _wait_for_a_mark(self) -> None:
        self._marks += 1
        end = self._marked
        end.send_mark(self._marks)
        while end.mark < self._marks:
            ready, _, _ = select.select([end.socket], [], [], _PATIENCE_S)
            assert ready, "the mark did not come"
            end.collect()

    def close(self) -> None:
        for end in self._ends.values():
            end.close()


class _End:
    """One place: its namespace, and what has come out of its wire."""

    def __init__(self, node: Namespace, namespace: Namespace, place: Place) -> None:
        self.name = place.name
        connect(node, place.ifname, namespace, "eth0")
        near, far = mac_of(node, place.ifname), mac_of(namespace, "eth0")
        ifindex = node.link(place.ifname).ifindex
        for family in FAMILIES:
            address = place.addresses[family]
            bits = 32 if family == 4 else 128
            node.socket.execute(
                replace_route(device_route(f"{address}/{bits}", ifindex, protocol=3)),
                set_neighbour(Neighbour(ifindex, address, far.hex(":"))),
            )
        self.socket = namespace.call(lambda: _packet_socket("eth0"))
        self._mark_socket = node.call(lambda: _packet_socket(place.ifname))
        self._to_node, self._to_place = near + far, far + near
        self.came: set[Seen] = set()
        self.mark = 0

    def send(self, case: Case) -> None:
        ethertype = struct.pack(">H", _ETHERTYPE[case.packet.version])
        self.socket.send(self._to_node + ethertype + _on_the_wire()[case.number])

    def send_mark(self, number: int) -> None:
        """Straight from the node's end of the wire: no filter sees it."""
        self._mark_socket.send(self._to_place + struct.pack(">HI", _MARK, number) + bytes(50))

    def forget(self) -> None:
        self.came.clear()

    def finish(self) -> None:
        """All has been collected."""

    def collect(self) -> None:
        """Everything there is."""
        while True:
            try:
                frame = self.socket.recv(2048)
            except BlockingIOError:
                return
            if struct.unpack_from(">H", frame, 12) == (_MARK,):
                (self.mark,) = struct.unpack_from(">I", frame, 14)
            else:
                self.came.add(number_of(frame[14:]))

    def close(self) -> None:
        self.socket.close()
        self._mark_socket.close()


@cache
def _on_the_wire() -> dict[int, bytes]:
    return {case.number: wire(case.packet, case.number) for case in CASES}


class _Host:
    """The node itself, `came`: what its filters of input let through."""

    def __init__(self, node: Namespace) -> None:
        self._node = node
        add_addresses(node, "lo", f"{HOST.addresses[4]}/32", f"{HOST.addresses[6]}/128")
        node.run("nft", _TABLE)
        self._sockets = {
            4: node.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, _WHOLE_PACKETS)),
            6: node.call(lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, _WHOLE_PACKETS)),
        }
        self.came: set[Seen] = set()

    def send(self, case: Case) -> None:
        packet = _on_the_wire()[case.number]
        with suppress(PermissionError):  # what a filter of output says to the sender
            target = (str(case.packet.destination), 0)
            self._sockets[case.packet.version].sendto(packet, target)

    def forget(self) -> None:
        self.came.clear()
        for family in FAMILIES:
            self._node.run("nft", "flush", "set", "inet", "truth", f"host{family}")

    def collect(self) -> None:
        """The table does."""

    def finish(self) -> None:
        listed = json.loads(self._node.run("nft", "-j", "list", "table", "inet", "truth"))
        for found in (item["set"] for item in listed["nftables"] if "set" in item):
            for source, number in (item["concat"] for item in found.get("elem", [])):
                family = int(found["name"][-1])
                target = net.parse_ip(HOST.addresses[family])
                self.came.add((number, net.parse_ip(source), target))

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()


def _packet_socket(ifname: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    made.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    made.setblocking(False)
    made.bind((ifname, _ETH_P_ALL))
    return made


@contextmanager
def _on_one_cpu() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class KernelReader:
    """Real packets through rules that the real drivers wrote."""

    def __init__(self, name: str, wire: TruthWire, node: Node | IptNode) -> None:
        self.name, self._wire, self._node = name, wire, node

    async def enforce(self, intents: Iterable[Intent]) -> None:
        result = await self._node.push(*intents)
        assert (result.failed, result.deferred) == (0, 0), result.error

    def passed(self, table: Iterable[Case]) -> set[int]:
        return self._wire.passed(table)

    def close(self) -> None:
        self._wire.close()
        if isinstance(self._node, Node):
            self._node.kernel.close()


def nft_reader(netns: NamespaceSet) -> KernelReader:
    wire = TruthWire(netns)
    settings = RuleSettings(endpoint_to_host=HostAction.ACCEPT)
    node = Node(NftKernel.in_namespace(wire.node.path), settings)
    return KernelReader("packets through nftables", wire, node)


def iptables_reader(netns: NamespaceSet, variant: Variant) -> KernelReader:
    wire = TruthWire(netns)
    runner = CommandRunner("nsenter", f"--net={wire.node.path}")
    settings = with_settings(endpoint_to_host=HostAction.ACCEPT)
    node = IptNode(runner, settings, variant=variant)
    return KernelReader(f"packets through iptables ({variant.value})", wire, node)
