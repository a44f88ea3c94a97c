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

import ipaddress
import json
import socket
import struct

from libcalico import net
from libcalico.policy.packet import ICMP, ICMPV6, SCTP, TCP, UDP, UDPLITE, Packet
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


def number_of(packet: bytes) -> tuple[int, net.Address, net.Address]:
    """The number of a packet as `wire` made it, and its two addresses."""
    if packet[0] >> 4 == 6:
        (first,) = struct.unpack_from(">I", packet)
        ends = packet[8:24], packet[24:40]
        return first & 0xFFFFF, ipaddress.IPv6Address(ends[0]), ipaddress.IPv6Address(ends[1])
    (number,) = struct.unpack_from(">H", packet, 4)
    ends = packet[12:16], packet[16:20]
    return number, ipaddress.IPv4Address(ends[0]), ipaddress.IPv4Address(ends[1])


def _transport(packet: Packet) -> bytes:
    if packet.protocol in (ICMP, ICMPV6):
        body = struct.pack(">BBHHH", packet.icmp_type, packet.icmp_code, 0, 1, 1) + bytes(16)
        if packet.protocol == ICMP:
            return body[:2] + struct.pack(">H", _checksum(body)) + body[4:]
        return _with_checksum(packet, body, 2)
    if packet.source_port is None:
        return bytes(20)
    ports = struct.pack(">HH", packet.source_port, packet.destination_port)
    if packet.protocol == TCP:
        syn = struct.pack(">IIBBHHH", 1, 0, 0x50, 0x02, 1024, 0, 0)
        return _with_checksum(packet, ports + syn, 16)
    if packet.protocol == SCTP:
        return _initiation(ports)
    assert packet.protocol in (UDP, UDPLITE)
    # The length is the checksum's coverage in UDP-Lite (RFC 3828 3.1): all of it, too.
    return _with_checksum(packet, ports + struct.pack(">HH", 12, 0) + b"data", 6)


def _initiation(ports: bytes) -> bytes:
    """RFC 9260 3.3.2, and 6.8 for the checksum; the tag of the header is zero."""
    chunk = struct.pack(">BBHIIHHI", 1, 0, 20, 1, 65536, 1, 1, 1)
    checksum = struct.pack("<I", _crc32c(ports + bytes(8) + chunk))
    return ports + bytes(4) + checksum + chunk


def _crc32c(data: bytes) -> int:
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def _with_checksum(packet: Packet, body: bytes, at: int) -> bytes:
    """RFC 9293 3.1, RFC 8200 8.1: over a pseudo header, too. In that of UDP-Lite Linux's conntrack
    has the number of UDP, and takes what RFC 3828 asks for as invalid (seen with 6.18)."""
    ends = packet.source.packed + packet.destination.packed
    protocol = UDP if packet.protocol == UDPLITE else packet.protocol
    total = _checksum(ends + struct.pack(">II", len(body), protocol) + body)
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
