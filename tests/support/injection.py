"""Packets of any source put on a wire, and which of them a node let through, told by its kernel.

Each packet carries a number (IPv4 identification, IPv6 flow label). A table of the node's own
collects the numbers that come in, and those that come out behind all filtering of input and
forward; nothing the node would answer leaves it, so that no packet is taken for a part of a
connection.

    watch = Watch(node)
    injector = Injector(near, "eth0", mac_of(node, "eth0"))
    injector.send(wire(packet, 7))
    assert eventually(lambda: 7 in watch.came())
    assert 7 in watch.passed()
"""

from __future__ import annotations

import json
import socket
import struct

from libcalico.policy.packet import ICMP, ICMPV6, TCP, UDP, Packet
from tests.support.netns import Namespace

_ETHERTYPE = {4: 0x0800, 6: 0x86DD}
# What conntrack takes for the first packet of a connection, or leaves untracked.
_KNOWN_ICMP = {(ICMP, 8), (ICMPV6, 128), (ICMPV6, 135)}
_TABLE = """
table inet watch {
  set came4 { typeof ip id; flags dynamic; size 65535; }
  set came6 { typeof ip6 flowlabel; flags dynamic; size 65535; }
  set passed4 { typeof ip id; flags dynamic; size 65535; }
  set passed6 { typeof ip6 flowlabel; flags dynamic; size 65535; }
  chain came {
    type filter hook prerouting priority -500;
    meta nfproto ipv4 add @came4 { ip id }
    meta nfproto ipv6 add @came6 { ip6 flowlabel }
  }
  chain passed {
    meta nfproto ipv4 add @passed4 { ip id }
    meta nfproto ipv6 add @passed6 { ip6 flowlabel }
    drop
  }
  chain input { type filter hook input priority 500; goto passed; }
  chain forward { type filter hook forward priority 500; goto passed; }
  chain output { type filter hook output priority -500; drop; }
}
"""


def is_sendable(packet: Packet) -> bool:
    """Whether a single packet like this is new to conntrack, and well formed."""
    if packet.protocol in (ICMP, ICMPV6):
        return (packet.protocol, packet.icmp_type) in _KNOWN_ICMP and packet.icmp_code == 0
    return packet.protocol in (TCP, UDP)


def wire(packet: Packet, number: int) -> bytes:
    """The packet from its IP header on; `number` is in 1..65535."""
    body = _transport(packet)
    ends = packet.source.packed + packet.destination.packed
    if packet.version == 6:
        head = struct.pack(">IHBB", 0x60000000 | number, len(body), packet.protocol, 255)
        return head + ends + body
    fields = (0x45, 0, 20 + len(body), number, 0, 64, packet.protocol)
    checksum = _checksum(struct.pack(">BBHHHBBH", *fields, 0) + ends)
    return struct.pack(">BBHHHBBH", *fields, checksum) + ends + body


def _transport(packet: Packet) -> bytes:
    if packet.protocol == TCP:
        ports = struct.pack(">HH", packet.source_port, packet.destination_port)
        syn = struct.pack(">IIBBHHH", 1, 0, 0x50, 0x02, 1024, 0, 0)
        return _with_checksum(packet, ports + syn, 16)
    if packet.protocol == UDP:
        head = struct.pack(">HHHH", packet.source_port, packet.destination_port, 12, 0)
        return _with_checksum(packet, head + b"data", 6)
    body = struct.pack(">BBHHH", packet.icmp_type, packet.icmp_code, 0, 1, 1) + bytes(16)
    if packet.protocol == ICMP:
        return body[:2] + struct.pack(">H", _checksum(body)) + body[4:]
    return _with_checksum(packet, body, 2)


def _with_checksum(packet: Packet, body: bytes, at: int) -> bytes:
    """RFC 9293 3.1, RFC 8200 8.1: over a pseudo header, too."""
    ends = packet.source.packed + packet.destination.packed
    total = _checksum(ends + struct.pack(">II", len(body), packet.protocol) + body)
    return body[:at] + struct.pack(">H", total or 0xFFFF) + body[at + 2 :]


def _checksum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def mac_of(namespace: Namespace, ifname: str) -> bytes:
    (link,) = json.loads(namespace.run("ip", "-j", "link", "show", ifname))
    return bytes.fromhex(link["address"].replace(":", ""))


class Injector:
    """Sends whole packets by one interface of a namespace to one neighbour."""

    def __init__(self, namespace: Namespace, ifname: str, neighbour: bytes) -> None:
        self._addresses = neighbour + mac_of(namespace, ifname)

        def make() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            made.bind((ifname, 0))
            return made

        self._socket = namespace.call(make)

    def send(self, packet: bytes) -> None:
        ethertype = struct.pack(">H", _ETHERTYPE[packet[0] >> 4])
        self._socket.send(self._addresses + ethertype + packet)

    def close(self) -> None:
        self._socket.close()


class Watch:
    """The table that collects. One a namespace; `flush ruleset` takes it away."""

    def __init__(self, node: Namespace) -> None:
        self._node = node
        node.run("nft", _TABLE)

    def came(self) -> set[int]:
        return self._numbers("came")

    def passed(self) -> set[int]:
        return self._numbers("passed")

    def _numbers(self, prefix: str) -> set[int]:
        listed = json.loads(self._node.run("nft", "-j", "list", "table", "inet", "watch"))
        sets = [item["set"] for item in listed["nftables"] if "set" in item]
        wanted = [found for found in sets if found["name"].startswith(prefix)]
        return {number for found in wanted for number in found.get("elem", [])}
