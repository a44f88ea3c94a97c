"""Where a route came from (Source) and one way to a prefix (Path).

Layer: pure. Paths are interned: all prefixes a peer announces with the same attributes share one
Path, so what depends on the attributes alone (rank, filters, encodings) is computed once and kept
on the Path. Compared by identity. `cache` belongs to one generation of the configuration.

Source: RFC 4271 9.1.2.2; the order is the one of bgp reference 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bgp.rib.attributes import (
    DEFAULT_LOCAL_PREF,
    PathAttributes,
    as_path_length,
    neighbour_as,
)


class Source:
    """A peer as best-path selection and reflection see it, or this node itself."""

    __slots__ = (
        "address",
        "is_client",
        "is_ibgp",
        "is_local",
        "local_as",
        "name",
        "order",
        "remote_as",
        "router_id",
    )

    def __init__(self, name: str, address: bytes, *, local_as: int, remote_as: int) -> None:
        self.name = name
        self.address = address
        self.local_as = local_as
        self.remote_as = remote_as
        self.is_local = not address
        self.is_ibgp = local_as == remote_as
        self.is_client = False
        self.router_id = bytes(4)
        self.order = (len(address), address)

    def __repr__(self) -> str:
        return f"<{self.name}>"


LOCAL = Source("local", b"", local_as=0, remote_as=0)


@dataclass(frozen=True, slots=True)
class LocalRoute:
    """A route of this node's own: `kind` is block, workload or service.

    `metric` is the kernel's (0 means normal); a lower one than normal marks a workload that
    migrates here and is advertised although its block is (Calico: elevated priority)."""

    kind: str
    metric: int = 0
    interface: str = ""
    blackhole: bool = False


# rank: lower is better. (0 for our blocks and services, -local_pref, 0 for our own, AS path length,
# origin): a workload that migrates away is announced elsewhere with an elevated priority, and then
# that path beats the one of the workload still here.
Rank = tuple[int, int, int, int, int]
# tie: (originator or router id, cluster list length, peer address)
Tie = tuple[bytes, int, tuple[int, bytes]]


class Path:
    """One way to some prefixes. `ineligible` says why it may never be used ("" when it may)."""

    __slots__ = (
        "__weakref__",
        "alone",
        "attributes",
        "cache",
        "generation",
        "ineligible",
        "is_external",
        "local",
        "med",
        "neighbour_as",
        "rank",
        "source",
        "tie",
    )

    def __init__(
        self,
        source: Source,
        attributes: PathAttributes,
        *,
        ineligible: str = "",
        local: LocalRoute | None = None,
    ) -> None:
        self.source = source
        self.attributes = attributes
        self.ineligible = ineligible
        self.local = local
        preference = attributes.local_pref
        if preference is None:
            preference = DEFAULT_LOCAL_PREF
        length = as_path_length(attributes.as_path)
        is_configured = local is not None and local.kind != "workload"
        is_learned = int(local is None)
        origin = attributes.origin
        self.rank: Rank = (int(not is_configured), -preference, is_learned, length, origin)
        self.med = attributes.med or 0
        self.neighbour_as = neighbour_as(attributes.as_path)
        self.is_external = not source.is_ibgp
        router_id = attributes.originator_id or source.router_id
        self.tie: Tie = (router_id, len(attributes.cluster_list), source.order)
        self.alone: tuple[Path, ...] = (self,)
        self.generation: object = None
        self.cache: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"Path({self.source.name}, {self.attributes})"

    @property
    def next_hop(self) -> bytes:
        return self.attributes.next_hop
