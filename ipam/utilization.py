"""How full the pools are: the numbers of `calicoctl ipam show`.

Layer: ipam, pure. Used by `ipam.client` and calicoctl.
Source: datamodel §2.7, §6.8; Calico libcalico-go/lib/ipam/ipam.go GetUtilization.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ipam.blocks import network_of_block
from ipam.pools import Pool
from ipam.reservations import Reservations
from libcalico.model.ipam import Block
from libcalico.net import Network, overlap, sort_key

ORPHANS = "orphaned allocation blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUse:
    """One block. Cooling addresses count as in use; `reserved` ones may be in use as well."""

    cidr: Network
    affinity: str | None
    capacity: int
    in_use: int
    reserved: int
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """One pool, or (`cidr` None) the blocks that lie in none: those have no totals."""

    name: str
    cidr: Network | None
    capacity: int = 0
    in_use: int = 0
    reserved: int = 0
    available: int = 0
    blocks: tuple[BlockUse, ...] = ()


def utilization(
    pools: Sequence[Pool],
    blocks: Iterable[Block],
    reservations: Reservations,
    wanted: Collection[str] = (),
) -> tuple[PoolUse, ...]:
    """`wanted`: pool names or CIDRs; empty means all pools and the orphans."""
    selected = [p for p in pools if not wanted or p.name in wanted or str(p.cidr) in wanted]
    blocks_by_pool: dict[str, list[BlockUse]] = {pool.name: [] for pool in selected}
    orphans: list[BlockUse] = []
    for block in blocks:
        use = block_use(block, reservations)
        home = next((pool for pool in selected if overlap(use.cidr, pool.cidr)), None)
        (blocks_by_pool[home.name] if home else orphans).append(use)
    result = [_pool_use(pool, blocks_by_pool[pool.name], reservations) for pool in selected]
    if not wanted:
        result.append(PoolUse(name=ORPHANS, cidr=None, blocks=_sorted(orphans)))
    return tuple(result)


def block_use(block: Block, reservations: Reservations) -> BlockUse:
    cidr = network_of_block(block.cidr)
    capacity = 1 << (cidr.max_prefixlen - cidr.prefixlen)
    base = int(cidr.network_address)
    available = len(block.unallocated)
    reserved = reservations.count_in(cidr)
    if reserved:
        available = sum(
            not reservations.contains(cidr.version, base + o) for o in block.unallocated
        )
    return BlockUse(
        cidr=cidr,
        affinity=block.affinity,
        capacity=capacity,
        in_use=capacity - len(block.unallocated),
        reserved=reserved,
        available=available,
    )


def _pool_use(pool: Pool, blocks: Sequence[BlockUse], reservations: Reservations) -> PoolUse:
    reserved = reservations.count_in(pool.cidr)
    reserved_in_blocks = sum(block.reserved for block in blocks)
    in_blocks = sum(block.capacity for block in blocks)
    outside = pool.cidr.num_addresses - in_blocks - (reserved - reserved_in_blocks)
    return PoolUse(
        name=pool.name,
        cidr=pool.cidr,
        capacity=pool.cidr.num_addresses,
        in_use=sum(block.in_use for block in blocks),
        reserved=reserved,
        available=sum(block.available for block in blocks) + max(outside, 0),
        blocks=_sorted(blocks),
    )


def _sorted(blocks: Iterable[BlockUse]) -> tuple[BlockUse, ...]:
    return tuple(sorted(blocks, key=lambda block: sort_key(block.cidr)))
