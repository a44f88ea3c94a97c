"""What of the IPAM data is garbage: one snapshot of the datastore in, a plan out.

Layer: ipam, pure. Used by `ipam.client.collector`, which performs the plan; every step of it is
compared against what was seen here, so a plan that is overtaken does nothing.

  Q1  what cannot be read proves nothing: the addresses of a node with an unreadable endpoint, or
      whose Node is unreadable, stay; so does a malformed block, and a handle that names one;
  Q2  a node has vanished when it has no Node object, felix does not report it alive and no endpoint
      of it is left. Its addresses, tunnels included, go at once and its blocks with them. Left
      endpoints hold it up for the grace period: then those the CNI plugin made are garbage too;
  Q3  everything else has to look like garbage, unchanged, for the grace period; without one
      (`grace_s` 0) only vanished nodes are cleaned up;
  Q4  only addresses of workloads and tunnels are collected. Load balancer and virtual machine
      addresses have owners that are not in this datastore, and what has no node attribute was made
      by hand. A tunnel's address, or one of an offline reserve, goes only with its node, which
      finds it again by handle; so does one that another CNI plugin got from calico-ipam, whose pods
      have no endpoint. A sticky claim is in use, whatever happens to its node (K5);
  Q5  addresses of one handle go together: while one of them is in use none goes;
  Q6  an empty block goes when its node has more than `min_blocks` in that pool, one whose pool is
      gone always.

Source: Calico kube-controllers/pkg/controllers/node/ipam.go, ipam_handle_gc.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ipam import blocks, leaks, pools, sticky
from ipam.affinity import HOST, Owner, Versioned, owner_of
from ipam.blocks import BlockDraft, network_of_block
from ipam.handles import Tunnel
from ipam.leaks import Allocation, LeakTracker, Standing
from ipam.pools import Pool
from ipam.requests import PLUGIN_ATTRIBUTE
from ipam.reserve import RESERVE_TYPE
from libcalico.model.endpoints import WorkloadEndpoint
from libcalico.model.ipam import Block, Handle
from libcalico.model.keys import BlockAffinityKey, ResourceKey
from libcalico.model.node import Node
from libcalico.net import Address

K = TypeVar("K", bound=Hashable)
# Addresses a node holds for itself.
NODES_OWN_TYPES = frozenset({RESERVE_TYPE, *(tunnel.value for tunnel in Tunnel)})
# Attributes of addresses whose owner only Kubernetes knows (datamodel §2.1).
FOREIGN_ATTRIBUTES = frozenset({"service", "vmi-name", "vmi-uid", "vm-uid", "vmim-uid", "note"})
# Endpoints of these orchestrators are made by the CNI plugin, on a host that has a Node.
OUR_ORCHESTRATORS = frozenset({"k8s", "cni"})
# Addresses released in one pass at most (as Calico); the next pass goes on.
MAX_LEAKS = 10_000


@dataclass(frozen=True, slots=True)
class Terms:
    """How patient a collection is. Seconds; `grace_s` 0: see Q3."""

    grace_s: float = 900.0
    min_blocks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One revision of the datastore. `nodes`: None for a Node that cannot be read. `alive`: nodes
    whose felix reports. `malformed`: CIDRs of blocks that cannot be read or contradict themselves.
    `markers`: hosts with a legacy marker."""

    revision: int = 0
    blocks: Mapping[str, Versioned[Block]] = field(default_factory=dict)
    malformed: frozenset[str] = frozenset()
    affinities: frozenset[BlockAffinityKey] = frozenset()
    handles: Mapping[str, Versioned[Handle]] = field(default_factory=dict)
    endpoints: Mapping[ResourceKey, Versioned[WorkloadEndpoint]] = field(default_factory=dict)
    unreadable_on: frozenset[str] = frozenset()
    nodes: Mapping[str, Node | None] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()
    markers: frozenset[str] = frozenset()
    pools: Sequence[Pool] = ()
    cooldown_s: float = 0.0

    def readable_blocks(self) -> Iterator[Block]:
        for record in self.blocks.values():
            if record.value is not None:
                yield record.value

    def endpoints_by_node(self) -> dict[str, list[ResourceKey]]:
        found: dict[str, list[ResourceKey]] = {}
        for key, record in self.endpoints.items():
            if record.value is not None:
                found.setdefault(record.value.spec.node or "", []).append(key)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do. `endpoints` and `gone` by vanished node; `owned`: affinities (and blocks) of
    vanished nodes; `surplus`: empty blocks of living ones; `ownerless`: empty blocks of nobody;
    `cooled`: blocks whose last addresses have rested; `handles`: id and revision.

    `allocations` and `candidates` (suspected, not ripe) are for reports."""

    vanished: frozenset[str] = frozenset()
    endpoints: Mapping[str, Sequence[ResourceKey]] = field(default_factory=dict)
    gone: Mapping[str, Sequence[Allocation]] = field(default_factory=dict)
    leaks: Sequence[Allocation] = ()
    owned: Sequence[tuple[Owner, str]] = ()
    markers: Sequence[str] = ()
    surplus: Sequence[Block] = ()
    ownerless: Sequence[str] = ()
    cooled: Sequence[str] = ()
    handles: Sequence[tuple[str, int]] = ()
    allocations: Sequence[Allocation] = ()
    candidates: Sequence[Allocation] = ()


class Suspects(Generic[K]):
    """Since when something looks like garbage, in the very state its key names."""

    def __init__(self) -> None:
        self._since: dict[K, float] = {}

    def ripe(self, keys: Iterable[K], now: float, grace_s: float) -> set[K]:
        """Hand in all suspects each time: others are forgotten."""
        self._since = {key: self._since.get(key, now) for key in keys}
        if grace_s <= 0:
            return set()
        return {key for key, since in self._since.items() if now - since >= grace_s}

    def __len__(self) -> int:
        return len(self._since)


class GarbageFinder:
    """Remembers suspects from one snapshot to the next; `now` monotonic, `wall` epoch seconds."""

    def __init__(self) -> None:
        self._leaks = LeakTracker(0.0)
        self._absent: Suspects[str] = Suspects()
        self._empty: Suspects[tuple[str, int]] = Suspects()
        self._idle: Suspects[tuple[str, int]] = Suspects()

    def find(self, seen: Snapshot, terms: Terms, *, now: float, wall: float) -> Plan:
        """One look."""
        by_node = seen.endpoints_by_node()
        vanished = self._vanished(seen, by_node, terms, now)
        living = _mentioned(seen) - vanished
        allocations = leaks.classify(seen.readable_blocks(), _owners(seen, vanished), living)
        gone, suspected = _sorted_out(seen, allocations, vanished)
        self._leaks.grace_s = terms.grace_s
        ripe = self._leaks.observe(suspected, now) if terms.grace_s > 0 else []
        surplus, ownerless, cooled = self._empty_blocks(seen, terms, now, wall)
        return Plan(
            vanished=vanished,
            endpoints={node: by_node[node] for node in sorted(vanished) if node in by_node},
            gone=gone,
            leaks=ripe[:MAX_LEAKS],
            owned=_owned_by(seen, vanished),
            markers=sorted(seen.markers & vanished),
            surplus=surplus,
            ownerless=ownerless,
            cooled=cooled,
            handles=self._idle_handles(seen, terms, now),
            allocations=allocations,
            candidates=suspected,
        )

    def _vanished(
        self,
        seen: Snapshot,
        by_node: Mapping[str, Sequence[ResourceKey]],
        terms: Terms,
        now: float,
    ) -> frozenset[str]:
        """Q2."""
        absent = _mentioned(seen) - seen.nodes.keys() - seen.alive - seen.unreadable_on
        held_up = {node for node in absent if node in by_node}
        ripe = self._absent.ripe(held_up, now, terms.grace_s)
        dead = {node for node in ripe if _all_ours(seen, by_node[node])}
        return frozenset(absent - held_up | dead)

    def _empty_blocks(
        self, seen: Snapshot, terms: Terms, now: float, wall: float
    ) -> tuple[list[Block], list[str], list[str]]:
        """Q6: surplus, ownerless, cooled."""
        empty = [block for block in seen.readable_blocks() if _is_empty_soon(seen, block, wall)]
        keys = {(block.cidr, block.sequence_number) for block in empty}
        ripe = self._empty.ripe(keys, now, terms.grace_s)
        idle = [block for block in empty if (block.cidr, block.sequence_number) in ripe]
        ownerless = [block.cidr for block in idle if block.affinity is None]
        owned = [block for block in idle if block.host in seen.nodes]
        cooled = [block.cidr for block in owned if not blocks.is_empty(block)]
        really = [block for block in owned if blocks.is_empty(block)]
        return _surplus(seen, really, terms.min_blocks), ownerless, cooled

    def _idle_handles(self, seen: Snapshot, terms: Terms, now: float) -> list[tuple[str, int]]:
        known = {name: record.value for name, record in seen.handles.items() if record.value}
        idle = set(leaks.check_handles(seen.readable_blocks(), known).idle)
        suspected = {
            (name, seen.handles[name].mod_revision)
            for name, handle in known.items()
            if name in idle and not seen.malformed & handle.block.keys()
        }
        return sorted(self._idle.ripe(suspected, now, terms.grace_s))

    def dump(self) -> dict[str, object]:
        """Suspects, and since when."""
        return {
            "leaks": self._leaks.dump(),
            "absent_nodes": len(self._absent),
            "empty_blocks": len(self._empty),
            "idle_handles": len(self._idle),
        }


def named_addresses(endpoints: Iterable[WorkloadEndpoint]) -> set[Address]:
    """Every address that an endpoint has, whatever its node."""
    return {a for e in endpoints for a in leaks.addresses_in(e.spec.ip_networks)}


def _mentioned(seen: Snapshot) -> set[str]:
    """Every host that something of IPAM, or an endpoint of ours, belongs to."""
    hosts = {key.host for key in seen.affinities} | seen.markers
    for block in seen.readable_blocks():
        hosts.add(block.host or "")
        for attribute in block.attributes or ():
            # A claim names the node that used it last, and outlives it (K5).
            if sticky.claim_of(attribute) is None:
                hosts.add(attribute.secondary.get("node", ""))
    hosts |= seen.endpoints_by_node().keys()
    return hosts - {""}


def _all_ours(seen: Snapshot, keys: Iterable[ResourceKey]) -> bool:
    """Whether the CNI plugin made these: others may live on hosts that need no Node."""
    found = (seen.endpoints[key].value for key in keys)
    return all(e is not None and e.spec.orchestrator in OUR_ORCHESTRATORS for e in found)


def _owners(seen: Snapshot, vanished: frozenset[str]) -> leaks.Owners:
    """Endpoints count whether their Node exists or not, except those of vanished nodes."""
    endpoints = [record.value for record in seen.endpoints.values() if record.value is not None]
    others: dict[Address, tuple[str, ...]] = {}
    for endpoint in endpoints:
        if endpoint.spec.node not in seen.nodes and endpoint.spec.node not in vanished:
            for address in leaks.addresses_in(endpoint.spec.ip_networks):
                others[address] = (f"WorkloadEndpoint({endpoint.metadata.name})",)
    nodes = [node for node in seen.nodes.values() if node is not None]
    return leaks.owners_of(endpoints, nodes, others)


def _sorted_out(
    seen: Snapshot, allocations: Sequence[Allocation], vanished: frozenset[str]
) -> tuple[dict[str, list[Allocation]], list[Allocation]]:
    """What goes with a vanished node, and what is suspected elsewhere (Q1, Q4, Q5)."""
    doubtful = seen.unreadable_on | {name for name, node in seen.nodes.items() if node is None}
    in_use = {a.handle_id for a in allocations if a.standing is Standing.IN_USE} - {None}
    gone: dict[str, list[Allocation]] = {}
    suspected: list[Allocation] = []
    for allocation in allocations:
        node = allocation.node or ""
        if not is_collectable(allocation) or node in doubtful or allocation.handle_id in in_use:
            continue
        if node in vanished:
            gone.setdefault(node, []).append(allocation)
        elif not {"type", PLUGIN_ATTRIBUTE} & allocation.attributes.keys():
            suspected.append(allocation)
    return gone, suspected


def is_collectable(allocation: Allocation) -> bool:
    """Q4."""
    attributes = allocation.attributes
    if allocation.standing is not Standing.LEAKED or not attributes.get("node"):
        return False
    if allocation.is_shared or FOREIGN_ATTRIBUTES & attributes.keys():
        return False
    return attributes.get("type") in NODES_OWN_TYPES or "type" not in attributes


def _owned_by(seen: Snapshot, vanished: frozenset[str]) -> list[tuple[Owner, str]]:
    """Affinities in any state, and blocks whose affinity key is missing."""
    found = {(key.host, key.cidr) for key in seen.affinities if key.host in vanished}
    for block in seen.readable_blocks():
        if block.host is not None and block.host in vanished:
            found.add((block.host, block.cidr))
    return [(Owner(host), cidr) for host, cidr in sorted(found) if cidr not in seen.malformed]


def _is_empty_soon(seen: Snapshot, block: Block, wall: float) -> bool:
    """Empty, or nothing in it but addresses that have rested long enough (B4)."""
    owner = owner_of(block)
    if block.affinity is not None and (owner is None or owner.type != HOST):
        return False
    if blocks.is_empty(block):
        return True
    draft = BlockDraft(block)
    draft.collect(wall, seen.cooldown_s)
    return blocks.is_empty(draft.finish())


def _surplus(seen: Snapshot, idle: Iterable[Block], min_blocks: int) -> list[Block]:
    """Last in key order first: a node assigns from the first that has room."""

    def place(block: Block) -> tuple[str, str | None]:
        pool = pools.pool_of(seen.pools, network_of_block(block.cidr).network_address)
        return block.host or "", None if pool is None else pool.name

    left = Counter(place(block) for block in seen.readable_blocks() if block.host)
    found: list[Block] = []
    for block in sorted(idle, key=lambda block: block.cidr, reverse=True):
        where = place(block)
        if where[1] is None or left[where] > min_blocks:
            left[where] -= 1
            found.append(block)
    return found
