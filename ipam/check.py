"""What `calicoctl ipam check` finds: IPAM's records against everything that uses addresses.

Layer: ipam, pure. Used by calicoctl (`ipam check`); `ipam.client.inventory` reads what it needs.

  F1  all of it is of one revision, so that nothing looks leaked because it was listed too early;
  F2  an address is in use when a workload endpoint, a node (tunnels of both families; Calico
      forgets those of IPv6) or Windows has it; what is not, nor cooling down, is left behind;
  F3  addresses of services are taken to be in use: only a Kubernetes API knows, and there is none;
  F4  what cannot be read is named and counted, and the rest is checked. When it is an endpoint or a
      node, no report may be made of the result: what only that one uses would look left behind.

Source: datamodel §6.9; Calico calicoctl/calicoctl/commands/ipam/check.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ipam import blocks, leaks
from ipam.blocks import network_of_block
from ipam.leaks import Allocation, HandleFindings, Standing
from libcalico.model.cluster import ClusterInformation
from libcalico.model.endpoints import WorkloadEndpoint
from libcalico.model.ipam import LOAD_BALANCER_AFFINITY, Block, Handle
from libcalico.model.node import Node
from libcalico.net import Address, AddressError, Network, address_of, parse_cidr_or_ip

WINDOWS_OWNER = "Reserved for Windows"
_LEFT_BEHIND = (Standing.LEAKED, Standing.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that says nothing (F4). `kind` as in the v3 API, or Block or Handle; `name` is what
    an operator looks for."""

    kind: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} cannot be read: {self.reason}"


@dataclass(frozen=True, slots=True)
class StoredHandle:
    """A handle and where it stands; the revision names this version of it for ever."""

    handle: Handle
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything that is looked at (F1), in key order. `pools`: ranges of those that are not
    disabled; `handles` by their id."""

    cluster: ClusterInformation
    blocks: Sequence[Block] = ()
    pools: Sequence[Network] = ()
    nodes: Sequence[Node] = ()
    endpoints: Sequence[WorkloadEndpoint] = ()
    handles: Mapping[str, StoredHandle]
    unreadable: Sequence[Unreadable] = ()

    def unreadable_of(self, *kinds: str) -> list[Unreadable]:
        return [item for item in self.unreadable if item.kind in kinds]


@dataclass(frozen=True, slots=True)
class Use:
    """Somebody has an address."""

    address: Address
    owner: str


@dataclass(frozen=True)
class Findings:
    """The result; `now` in seconds since the epoch. Everything is in order of address or name."""

    inventory: Inventory
    tunnels: Sequence[Use]
    workloads: Sequence[Use]
    services: Sequence[Use]
    allocations: Sequence[Allocation]
    unreadable: Sequence[Unreadable]
    now: float

    @cached_property
    def users(self) -> dict[Address, list[str]]:
        """What nodes and workloads have."""
        found: dict[Address, list[str]] = {}
        for use in (*self.tunnels, *self.workloads):
            found.setdefault(use.address, []).append(use.owner)
        return dict(sorted(found.items(), key=lambda item: _order(item[0])))

    @cached_property
    def by_address(self) -> dict[Address, list[Allocation]]:
        """More than one for an address only when blocks overlap."""
        found: dict[Address, list[Allocation]] = {}
        for allocation in self.allocations:
            found.setdefault(allocation.address, []).append(allocation)
        return dict(sorted(found.items(), key=lambda item: _order(item[0])))

    @cached_property
    def leaked(self) -> dict[Address, list[Allocation]]:
        """Allocated, and nobody has it (F2)."""
        return {
            address: held
            for address, held in self.by_address.items()
            if all(allocation.standing in _LEFT_BEHIND for allocation in held)
        }

    @cached_property
    def unallocated(self) -> dict[Address, list[str]]:
        """In use, in an active pool, and free as far as IPAM knows."""
        return {a: owners for a, owners in self._unknown_to_ipam if self._in_active_pool(a)}

    @cached_property
    def outside(self) -> dict[Address, list[str]]:
        """In use, and in no active pool."""
        return {a: owners for a, owners in self._unknown_to_ipam if not self._in_active_pool(a)}

    @property
    def _unknown_to_ipam(self) -> Iterator[tuple[Address, list[str]]]:
        return ((a, owners) for a, owners in self.users.items() if a not in self.by_address)

    def _in_active_pool(self, address: Address) -> bool:
        return any(address in pool for pool in self.inventory.pools)

    @cached_property
    def nodes_by_allocations(self) -> list[tuple[str, int]]:
        """Most first. What names no node counts for its block's owner, "" when there is none."""
        counted = Counter(node_of(allocation) for allocation in self.allocations)
        return sorted(counted.items(), key=lambda item: (-item[1], item[0]))

    @cached_property
    def handles(self) -> HandleFindings:
        """A handle that counts addresses of a block that cannot be read is none without matches."""
        found = leaks.check_handles(self.inventory.blocks, self.inventory.handles)
        broken = {item.name for item in self.inventory.unreadable_of("Block")}
        names = self.inventory.handles
        idle = tuple(id_ for id_ in found.idle if not broken & names[id_].handle.block.keys())
        return HandleFindings(idle, found.missing, len(names) - len(idle))

    @cached_property
    def invalid(self) -> dict[str, str]:
        """Why a block is invalid, by its CIDR (or its key, when that holds none)."""
        found = {item.name: item.reason for item in self.inventory.unreadable_of("Block")}
        for block in self.inventory.blocks:
            problems = blocks.problems_of(block, self.now)
            if problems:
                found[block.cidr] = "; ".join(problems)
        return found

    @property
    def problems(self) -> int:
        """Missing handles are not counted (§6.9); what cannot be read is."""
        others = [item for item in self.unreadable if item.kind != "Block"]
        addresses = len(self.leaked) + len(self.outside) + len(self.unallocated)
        return addresses + len(self.handles.idle) + len(self.invalid) + len(others)

    @property
    def hidden_users(self) -> list[Unreadable]:
        """Why no report may be made of this (F4)."""
        return [item for item in self.unreadable if item.kind in ("Node", "WorkloadEndpoint")]


def check(inventory: Inventory, now: float) -> Findings:
    """Never fails: what cannot be read is in the result."""
    unreadable = list(inventory.unreadable)
    tunnels: list[Use] = []
    for node in inventory.nodes:
        name = f"Node({node.metadata.name})"
        tunnels += _uses("Node", name, leaks.tunnel_addresses(node), unreadable)
    workloads: list[Use] = []
    for endpoint in inventory.endpoints:
        name = f"Workload({endpoint.metadata.namespace}/{endpoint.metadata.name})"
        workloads += _uses("WorkloadEndpoint", name, endpoint.spec.ip_networks, unreadable)
    services = list(_services(inventory.blocks))
    owners: dict[Address, tuple[str, ...]] = {}
    for use in (*tunnels, *workloads, *services):
        owners[use.address] = (*owners.get(use.address, ()), use.owner)
    return Findings(
        inventory=inventory,
        tunnels=tunnels,
        workloads=workloads,
        services=services,
        allocations=leaks.classify(inventory.blocks, owners, _living(inventory)),
        unreadable=unreadable,
        now=now,
    )


def _living(inventory: Inventory) -> set[str] | None:
    """Nodes that exist: their offline reserves are in use. None when one cannot be read."""
    if inventory.unreadable_of("Node"):
        return None
    return {node.metadata.name for node in inventory.nodes}


def node_of(allocation: Allocation) -> str:
    """Where an allocation belongs: the node it names, else the block's."""
    return allocation.node or allocation.host or ""


def in_use(allocation: Allocation) -> bool:
    """Nobody may release it. Cooling addresses are not in use, and released already."""
    return allocation.standing in (Standing.IN_USE, Standing.RESERVED)


def owners_of(allocation: Allocation) -> tuple[str, ...]:
    if allocation.standing is Standing.RESERVED:
        return (*allocation.owners, WINDOWS_OWNER)
    return allocation.owners


def _uses(kind: str, owner: str, texts: Iterable[str], unreadable: list[Unreadable]) -> list[Use]:
    found: list[Use] = []
    for text in texts:
        try:
            found.append(Use(parse_cidr_or_ip(text).network_address, owner))
        except AddressError as err:
            unreadable.append(Unreadable(kind, owner, str(err)))
    return found


def _services(stored: Iterable[Block]) -> Iterator[Use]:
    """F3: in the load balancer controller's blocks, or with the attribute only it writes."""
    for block in stored:
        network = network_of_block(block.cidr)
        is_controllers = block.affinity == LOAD_BALANCER_AFFINITY
        for ordinal in range(len(block.allocations)):
            attribute = block.attribute_of(ordinal)
            if attribute is None or attribute.released_at is not None:
                continue
            service = attribute.secondary.get("service", "")
            if service or is_controllers:
                address = address_of(network.version, int(network.network_address) + ordinal)
                yield Use(address, f"Service({attribute.secondary.get('namespace', '')}/{service})")


def _order(address: Address) -> tuple[int, int]:
    return address.version, int(address)
