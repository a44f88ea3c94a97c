"""One packet, as policy sees it.

Layer: pure. Users: policy.matching, policy.evaluate, tests.

Source: reference/datamodel.md 5.1, 5.2.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from libcalico import net

ICMP, TCP, UDP, ICMPV6, SCTP, UDPLITE = 1, 6, 17, 58, 132, 136
IPIP = 4
# Neighbour and listener discovery of a workload towards its host (datamodel 7.11).
ICMPV6_TO_HOST = frozenset({130, 131, 132, 133, 135, 136})
# What no policy of a host endpoint stops, either way: without these messages a host has no
# neighbour and no router (RFC 4890 4.4.1), and no failsafe port could be reached over IPv6.
ICMPV6_OF_HOST = ICMPV6_TO_HOST | {134, 143}


class Direction(enum.Enum):
    """From the endpoint's point of view."""

    INGRESS = "Ingress"
    EGRESS = "Egress"


@dataclass(frozen=True, slots=True)
class Packet:
    """The first packet of a connection. Ports of protocols without ports, and the ICMP fields of
    anything else, are None."""

    source: net.Address
    destination: net.Address
    protocol: int
    source_port: int | None = None
    destination_port: int | None = None
    icmp_type: int | None = None
    icmp_code: int | None = None

    def __post_init__(self) -> None:
        assert self.source.version == self.destination.version, "a packet has one IP version"

    @property
    def version(self) -> int:
        return self.source.version

    @classmethod
    def tcp(cls, source: str, destination: str, port: int, *, source_port: int = 40000) -> Packet:
        return cls(net.parse_ip(source), net.parse_ip(destination), TCP, source_port, port)

    @classmethod
    def udp(cls, source: str, destination: str, port: int, *, source_port: int = 40000) -> Packet:
        return cls(net.parse_ip(source), net.parse_ip(destination), UDP, source_port, port)

    @classmethod
    def icmp(cls, source: str, destination: str, type_: int, *, code: int = 0) -> Packet:
        """ICMP or ICMPv6, by the family of the addresses."""
        first, second = net.parse_ip(source), net.parse_ip(destination)
        protocol = ICMP if first.version == 4 else ICMPV6
        return cls(first, second, protocol, icmp_type=type_, icmp_code=code)
