"""What the dataplane needs from the kernel, as Protocols. (nftables: see nft_port.)

Layer: felix.dataplane (the contract). Implemented by felix.kernel; the fakes that refuse what the
kernel refuses are in libcalico.testing.kernel.

  P1  a port never decides: it writes what it is told and says what was refused;
  P2  refusals are per item (ProgrammingFailed by index), so that one never stops the others; an
      exception means that the outcome of the whole call is unknown and the driver reads back;
  P3  deleting what is not there is no failure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from libcalico.errors import ProgrammingFailed
from libcalico.netlink import Address, Event, IngressFilter, Link, Qdisc, Route, TokenBucket
from libcalico.policy.packet import Packet


@dataclass(frozen=True, slots=True)
class RouteWrite:
    """Replace, or delete, exactly this route."""

    route: Route
    is_delete: bool = False


class RoutePort(Protocol):
    async def list_routes(self, family: int, skip_protocols: frozenset[int]) -> list[Route]:
        """The main table, without the routes of the given protocols."""
        ...

    async def write_routes(self, writes: Sequence[RouteWrite]) -> Mapping[int, ProgrammingFailed]:
        """In order. Returns the refused ones by index (P2, P3)."""
        ...


class LinkPort(Protocol):
    async def list_links(self) -> list[Link]: ...

    async def list_addresses(self) -> list[Address]: ...


class EventPort(Protocol):
    """Notifications of links, addresses and routes, without those our own writes caused.

    The kernel queues them before the call that caused them returns: whoever reads everything at
    the start of an apply knows of every change made before."""

    async def wait(self) -> None:
        """Until there is something to read."""
        ...

    def read(self) -> list[Event]:
        """What has arrived by now, possibly nothing. Errors: ProgrammingFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Sysctl:
    """One kernel setting: `path` below /proc/sys, e.g. "net/ipv4/conf/cali1/proxy_arp"."""

    path: str
    value: str


class SysctlPort(Protocol):
    async def write_sysctls(self, wanted: Sequence[Sysctl]) -> Mapping[int, ProgrammingFailed]:
        """Write those that differ. ENOENT when the path does not exist (no such interface, or a
        kernel without IPv6). Refused ones by index."""
        ...


ShapingOperation = Literal[
    "set bucket", "clear bucket", "add ifb", "delete ifb", "redirect", "clear redirect"
]


@dataclass(frozen=True, slots=True)
class ShapingWrite:
    """One step of traffic control on the interface `ifname`.

    set bucket      make `bucket` its root qdisc, or change ours; EEXIST when there is another's
    clear bucket    delete its root qdisc if it has our handle
    add ifb         make `ifname` an ifb of `mtu_bytes` unless it exists, and bring it up
    delete ifb      delete the interface
    redirect        what comes in goes through `target` first; replaces a redirection of ours
    clear redirect  no more; `is_whole`: the ingress qdisc goes too"""

    operation: ShapingOperation
    ifname: str
    bucket: TokenBucket | None = None
    target: str = ""
    mtu_bytes: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ShapingImage:
    """All of the namespace: links, qdiscs, and the filters of those that have an ingress hook."""

    links: tuple[Link, ...]
    qdiscs: tuple[Qdisc, ...]
    filters: tuple[IngressFilter, ...]


class ShapingPort(Protocol):
    async def read_shaping(self) -> ShapingImage:
        """Errors: ProgrammingFailed, DumpInterrupted."""
        ...

    async def write_shaping(
        self, chains: Sequence[Sequence[ShapingWrite]]
    ) -> Mapping[int, ProgrammingFailed]:
        """Each chain in order; a refused step ends its chain. Refused chains by index (P2, P3)."""
        ...


@dataclass(frozen=True, slots=True)
class TrackedConnection:
    """One entry of the connection table.

    `packet`: the connection's first packet as policy saw it, which stands after the translation of
    destinations and before that of sources. `original` names the connection (its tuple, as the
    kernel writes it), `master` the one that it is related to, if any. `handle` is the port's."""

    packet: Packet
    original: bytes
    master: bytes = b""
    handle: object = None


class ConntrackPort(Protocol):
    async def forget_addresses(self, addresses: Sequence[str]) -> int:
        """Delete every connection from or to any of them, original or translated; returns how many.

        Errors: ProgrammingFailed, DumpInterrupted; then some may be left, and asking again is
        harmless."""
        ...

    async def list_connections(self, addresses: Collection[str]) -> list[TrackedConnection]:
        """Every connection from or to any of them, original or translated.

        Errors: ProgrammingFailed, DumpInterrupted."""
        ...

    async def delete_connections(self, connections: Sequence[TrackedConnection]) -> int:
        """Delete exactly these; returns how many there still were. Errors: ProgrammingFailed."""
        ...
