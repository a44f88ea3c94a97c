"""Which assignments somebody uses, and which were left behind.

Layer: ipam, pure. Used by calicoctl (`ipam check`) and by the controller that collects garbage.

  K1  in use is what a workload endpoint, a node (tunnels) or a service names;
  K2  an assignment nobody names is a leak only after it has been seen so, with the same sequence
      number, for a grace period: between an ADD's assignment and its endpoint lies a moment, and a
      release by sequence number can then hit no later assignment;
  K3  an assignment without handle and attributes was made by hand: its owner is unknown, and it is
      reported, never collected;
  K4  a node's offline reserve is in use while the node exists, and garbage afterwards;
  K5  a sticky claim (ipam.sticky) is in use until somebody releases it, endpoint, node or not.

Source: datamodel §6.9; Calico kube-controllers/pkg/controllers/node/ipam*.go, calicoctl ipam check.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ipam import reserve, sticky
from ipam.blocks import network_of_block
from ipam.requests import NO_ATTRIBUTES, WINDOWS_RESERVED_HANDLE, Release
from libcalico.model.endpoints import WorkloadEndpoint
from libcalico.model.ipam import AllocationAttribute, Block
from libcalico.model.names import normal_handle_id
from libcalico.model.node import Node
from libcalico.net import Address, AddressError, address_of, parse_cidr_or_ip


class Standing(enum.Enum):
    """How an assignment stands."""

    IN_USE = "in use"
    LEAKED = "leaked"
    COOLING = "cooling down"
    RESERVED = "reserved by the host"
    UNKNOWN = "unknown owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One assigned address. `host`: who the block is affine to; `attribute` None: the block points
    to one that does not exist; `owners`: who names the address (K1)."""

    address: Address
    block: str
    host: str | None
    standing: Standing
    attribute: AllocationAttribute | None
    sequence_number: int = 0
    owners: tuple[str, ...] = ()

    @property
    def handle_id(self) -> str | None:
        stored = None if self.attribute is None else self.attribute.handle_id
        return None if stored is None else normal_handle_id(stored)

    @property
    def attributes(self) -> Mapping[str, str]:
        return NO_ATTRIBUTES if self.attribute is None else self.attribute.secondary

    @property
    def node(self) -> str | None:
        return self.attributes.get("node")

    @property
    def borrowed(self) -> bool:
        """Its node is not the block's owner, which may be nobody."""
        return bool(self.node) and self.node != self.host

    @property
    def is_shared(self) -> bool:
        """A second party holds it too (live migration)."""
        return self.attribute is not None and bool(self.attribute.alternate_owner_attrs)

    def as_release(self) -> Release:
        """Releases this assignment and no later one."""
        return Release(
            address=self.address,
            handle_id=self.handle_id or "",
            sequence_number=self.sequence_number,
        )


Owners = Mapping[Address, tuple[str, ...]]


def owners_of(
    endpoints: Iterable[WorkloadEndpoint], nodes: Iterable[Node], others: Owners | None = None
) -> dict[Address, tuple[str, ...]]:
    """Who names which address. Endpoints of nodes that do not exist are no evidence. `others`:
    what only the caller knows of, such as service load balancer addresses."""
    found = {address: list(names) for address, names in (others or {}).items()}
    present = {node.metadata.name: node for node in nodes}
    for endpoint in endpoints:
        if endpoint.spec.node in present:
            name = f"{endpoint.metadata.namespace}/{endpoint.metadata.name}"
            for address in addresses_in(endpoint.spec.ip_networks):
                found.setdefault(address, []).append(f"Workload({name})")
    for node in present.values():
        for address in addresses_in(tunnel_addresses(node)):
            found.setdefault(address, []).append(f"Node({node.metadata.name})")
    return {address: tuple(names) for address, names in found.items()}


def tunnel_addresses(node: Node) -> tuple[str, ...]:
    """Every address the node took for its tunnels, of both families."""
    spec = node.spec
    texts = [spec.ipv4_vxlan_tunnel_addr, spec.ipv6_vxlan_tunnel_addr]
    if spec.bgp is not None:
        texts.append(spec.bgp.ipv4_ipip_tunnel_addr)
    if spec.wireguard is not None:
        texts += [spec.wireguard.interface_ipv4_address, spec.wireguard.interface_ipv6_address]
    return tuple(text for text in texts if text)


def addresses_in(texts: Iterable[str]) -> Iterator[Address]:
    """The addresses of an endpoint's networks."""
    for text in texts:
        try:
            yield parse_cidr_or_ip(text).network_address
        except AddressError:
            continue  # a malformed address proves nothing


def classify(
    blocks: Iterable[Block], owners: Owners, living: Collection[str] | None = None
) -> list[Allocation]:
    """Every assignment of every block, in block order. `living`: the nodes that exist; None when
    the caller does not know, and then no reserve is called a leak (K4)."""
    return [
        _allocation(block, ordinal, _Evidence(owners, living))
        for block in blocks
        for ordinal, index in enumerate(block.allocations)
        if index is not None
    ]


@dataclass(frozen=True, slots=True)
class _Evidence:
    owners: Owners
    living: Collection[str] | None

    def of(self, address: Address, attribute: AllocationAttribute | None) -> tuple[str, ...]:
        """Who uses an address."""
        named = self.owners.get(address, ())
        claim = sticky.claim_of(attribute)
        if claim is not None:
            return (*named, f"StickyClaim({claim})")
        node = None if attribute is None else reserve.node_of(attribute)
        if node is None or not (self.living is None or node in self.living):
            return named
        return (*named, f"OfflineReserve({node})")


def _allocation(block: Block, ordinal: int, evidence: _Evidence) -> Allocation:
    network = network_of_block(block.cidr)
    address = address_of(network.version, int(network.network_address) + ordinal)
    attribute = block.attribute_of(ordinal)
    named = evidence.of(address, attribute)
    return Allocation(
        address=address,
        block=block.cidr,
        host=block.host,
        standing=_standing(attribute, named),
        attribute=attribute,
        sequence_number=block.sequence_number_for_allocation.get(str(ordinal), 0),
        owners=named,
    )


def _standing(attribute: AllocationAttribute | None, named: Sequence[str]) -> Standing:
    if attribute is None:
        return Standing.IN_USE if named else Standing.UNKNOWN
    if attribute.released_at is not None:
        return Standing.COOLING
    if (attribute.handle_id or "").lower() == WINDOWS_RESERVED_HANDLE:
        return Standing.RESERVED
    if named:
        return Standing.IN_USE
    known = attribute.handle_id or attribute.secondary or attribute.alternate_owner_attrs
    return Standing.LEAKED if known else Standing.UNKNOWN


@dataclass(frozen=True, slots=True)
class HandleFindings:
    """`idle` count addresses that no block holds for them; `missing` hold some without a record."""

    idle: tuple[str, ...]
    missing: tuple[str, ...]
    matched: int


def check_handles(blocks: Iterable[Block], handles: Collection[str]) -> HandleFindings:
    """Compare the handles' ids with what the blocks say. `idle` are ids as given."""
    held = {
        normal_handle_id(attribute.handle_id)
        for block in blocks
        for attribute in block.attributes or ()
        if attribute.handle_id and attribute.handle_id.lower() != WINDOWS_RESERVED_HANDLE
    }
    idle = tuple(sorted(id_ for id_ in handles if normal_handle_id(id_) not in held))
    return HandleFindings(
        idle=idle,
        missing=tuple(sorted(held - {normal_handle_id(handle_id) for handle_id in handles})),
        matched=len(handles) - len(idle),
    )


class LeakTracker:
    """Remembers since when an assignment looks leaked (K2). `now` in monotonic seconds."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._since: dict[tuple[Address, int], float] = {}

    def observe(self, allocations: Iterable[Allocation], now: float) -> list[Allocation]:
        """Leaks older than the grace period. Hand in all allocations each time: what is missing or
        in use again is forgotten."""
        leaked = {
            (allocation.address, allocation.sequence_number): allocation
            for allocation in allocations
            if allocation.standing is Standing.LEAKED
        }
        self._since = {key: self._since.get(key, now) for key in leaked}
        return [a for key, a in leaked.items() if now - self._since[key] >= self.grace_s]

    def dump(self) -> dict[str, object]:
        """Suspects and since when."""
        return {f"{address}#{number}": at for (address, number), at in self._since.items()}
