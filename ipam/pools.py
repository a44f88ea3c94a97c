"""Which pools a request may use, and which blocks of them, in which order.

Layer: ipam, pure. Used by `ipam.client`, calicoctl and felix (which fills `Pool`s from its cache).

  P1  selection depends on its arguments only; pools come in name order and stay in it;
  P2  a pool's blocks are walked from a place that depends on pool and host, wrapping once: hosts
      that start together look for their first block in different places;
  P3  the i-th block of a pool is computed, never listed, and a free one is found by skipping whole
      intervals: a /48 with 2^74 blocks costs no more than a /24.

Source: datamodel §2.3, §2.4, §1.5; Calico libcalico-go/lib/ipam/{ipam.go,pools.go},
clientv3/ippool.go (read defaults).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ipam.errors import NoPools, PoolRefused, UseRequired
from ipam.requests import NO_ATTRIBUTES, TUNNEL, WORKLOAD, HostReserved
from ipam.reservations import Interval, Reservations, interval_of, merged
from libcalico.errors import ValidationError
from libcalico.model.ippool import IPPool
from libcalico.net import Address, AddressError, Network, network_of, overlap, parse_cidr
from libcalico.selector import parse as parse_selector

DEFAULT_BLOCK_SIZE = {4: 26, 6: 122}
AUTOMATIC = "Automatic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """An IPPool with Calico's read defaults applied and its CIDR parsed."""

    name: str
    cidr: Network
    block_size: int
    enabled: bool = True
    node_selector: str = ""
    namespace_selector: str = ""
    allowed_uses: tuple[str, ...] = (WORKLOAD, TUNNEL)
    assignment_mode: str = AUTOMATIC

    @property
    def version(self) -> int:
        return self.cidr.version

    @property
    def selects_every_node(self) -> bool:
        return self.node_selector in ("", "all()")

    def selects_node(self, labels: Mapping[str, str]) -> bool:
        """Errors: SelectorSyntaxError."""
        return _matches(self.node_selector, labels)

    def selects_namespace(self, labels: Mapping[str, str] | None) -> bool:
        """Without namespace context the selector sees no labels. Errors: SelectorSyntaxError."""
        return _matches(self.namespace_selector, NO_ATTRIBUTES if labels is None else labels)


def _matches(selector: str, labels: Mapping[str, str]) -> bool:
    return not selector or parse_selector(selector).evaluate(labels)


def from_resource(resource: IPPool) -> Pool:
    """Errors: AddressError when the CIDR does not parse."""
    spec, metadata = resource.spec, resource.metadata
    cidr = parse_cidr(spec.cidr)
    conditions = resource.status.conditions if resource.status else ()
    refused = any(c.type == "Allocatable" and c.status == "False" for c in conditions)
    return Pool(
        name=metadata.name,
        cidr=cidr,
        block_size=spec.block_size or DEFAULT_BLOCK_SIZE[cidr.version],
        enabled=not (spec.disabled or metadata.deletion_timestamp or refused),
        node_selector=spec.node_selector or "",
        namespace_selector=spec.namespace_selector or "",
        allowed_uses=spec.allowed_uses or (WORKLOAD, TUNNEL),
        assignment_mode=spec.assignment_mode or AUTOMATIC,
    )


# ---- selection (§2.3) ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQuery:
    """One automatic request, for one family. `node_labels` are those of the Node object."""

    version: int
    host: str
    use: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] | None = None
    explicit: tuple[Network, ...] = ()
    reserved: HostReserved | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """`usable` serve the request; `selecting` chose this node; `enabled` are all of the family."""

    usable: tuple[Pool, ...]
    selecting: tuple[Pool, ...]
    enabled: tuple[Pool, ...]


def max_prefix_len(version: int, reserved: HostReserved | None) -> int:
    """The smallest block that leaves room beside what the host reserves in it."""
    bits = 32 if version == 4 else 128
    return bits - reserved.count.bit_length() if reserved else bits


def select(pools: Iterable[Pool], query: PoolQuery) -> Selection:
    """Errors: UseRequired, NoPools, PoolRefused, SelectorSyntaxError (a pool's own)."""
    if not query.use:
        raise UseRequired
    enabled = tuple(pool for pool in pools if pool.enabled and pool.version == query.version)
    longest = max_prefix_len(query.version, query.reserved)
    qualified = {pool.cidr: pool for pool in enabled if pool.block_size <= longest}
    if not qualified:
        raise NoPools("cannot find a qualified ippool")
    if query.explicit:
        selecting = tuple(_requested(qualified, cidr) for cidr in query.explicit)
    else:
        selecting = tuple(pool for pool in qualified.values() if _selects(pool, query))
    if not selecting:
        raise NoPools(f"no configured Calico pools for node {query.host}")
    usable = tuple(pool for pool in selecting if query.use in pool.allowed_uses)
    if not usable:
        raise NoPools(
            f"cannot find a qualified ippool, no pools match the required use ({query.use})"
        )
    return Selection(usable, selecting, enabled)


def _requested(qualified: Mapping[Network, Pool], cidr: Network) -> Pool:
    if cidr not in qualified:
        raise PoolRefused(f"the given pool ({cidr}) does not exist, or is not enabled")
    return qualified[cidr]


def _selects(pool: Pool, query: PoolQuery) -> bool:
    return (
        pool.assignment_mode == AUTOMATIC
        and pool.selects_node(query.node_labels)
        and pool.selects_namespace(query.namespace_labels)
    )


def resolve(entries: Iterable[str], pools: Sequence[Pool], version: int) -> tuple[Network, ...]:
    """Pool names or CIDRs, as users write them, to CIDRs: a name first, as Calico does.

    Errors: PoolRefused."""
    cidr_by_name = {pool.name: pool.cidr for pool in pools}
    found: list[Network] = []
    for entry in entries:
        try:
            cidr = cidr_by_name.get(entry) or parse_cidr(entry)
        except AddressError as err:
            said = f'"{entry}" is neither the name of an IP pool nor a CIDR'
            raise PoolRefused(said) from err
        if cidr.version != version:
            raise PoolRefused(f'"{entry}" isn\'t a IPv{version} address')
        found.append(cidr)
    return tuple(found)


def pool_of(pools: Iterable[Pool], address: Address) -> Pool | None:
    """The first pool that contains an address."""
    return next((p for p in pools if p.version == address.version and address in p.cidr), None)


def contains(pools: Iterable[Pool], block: Network) -> bool:
    return pool_of(pools, block.network_address) is not None


def check_block_size(pool: Pool, existing: Iterable[Network]) -> None:
    """A new pool must not lie over blocks of another size (§2.4). Errors: ValidationError."""
    for block in existing:
        if block.prefixlen != pool.block_size and overlap(block, pool.cidr):
            raise ValidationError.of(
                "IPPool.Spec.BlockSize",
                pool.block_size,
                "IPPool blocksSize conflicts with existing allocations that use a different "
                "blockSize",
            )


# ---- blocks of a pool (P2, P3) -------------------------------------------------------------------


def block_count(pool: Pool) -> int:
    return 1 << max(pool.block_size - pool.cidr.prefixlen, 0)


def block_at(pool: Pool, index: int) -> Network:
    """The `index`-th block, 0 <= index < block_count(pool)."""
    base, shift = int(pool.cidr.network_address), pool.cidr.max_prefixlen - pool.block_size
    return network_of(pool.version, base + (index << shift), pool.block_size)


def block_of(pool: Pool, address: Address) -> Network:
    """The block an address belongs to."""
    return network_of(pool.version, int(address), pool.block_size)


def block_index(pool: Pool, address: int) -> int:
    """The number of the block that holds an address (as an integer) of the pool."""
    return (address - int(pool.cidr.network_address)) >> (pool.cidr.max_prefixlen - pool.block_size)


def start_index(pool: Pool, host: str) -> int:
    """Where `host` starts its walk through the pool (P2)."""
    digest = hashlib.sha256(f"{host}\0{pool.cidr}".encode()).digest()
    return int.from_bytes(digest[:16], "big") % block_count(pool)


def walk(pool: Pool, host: str) -> Iterator[Network]:
    """Every block once, from the host's own start. Only for pools of a size one can walk."""
    start, count = start_index(pool, host), block_count(pool)
    return (block_at(pool, (start + step) % count) for step in range(count))


def in_walk_order(pool: Pool, host: str, blocks: Iterable[Network]) -> list[Network]:
    """Those of `blocks` that lie in the pool, in the order `walk` would come across them."""
    start, count = start_index(pool, host), block_count(pool)
    inside = [block for block in blocks if overlap(block, pool.cidr)]
    return sorted(inside, key=lambda b: (block_index(pool, int(b.network_address)) - start) % count)


def first_free(
    pool: Pool, host: str, taken: Iterable[Network], reservations: Reservations
) -> Network | None:
    """The first block of the walk that does not exist and is not wholly reserved (P3)."""
    count = block_count(pool)
    closed = merged(
        [
            *_indices_touched(pool, taken),
            *_indices_covered(pool, reservations.within(pool.cidr)),
        ]
    )
    start = start_index(pool, host)
    for index in (start, 0):
        gap = _first_gap(closed, index)
        if gap < count:
            return block_at(pool, gap)
    return None


def _indices_touched(pool: Pool, blocks: Iterable[Network]) -> Iterator[Interval]:
    """Blocks of another size (an older pool's) close every index they touch."""
    lowest, highest = interval_of(pool.cidr)
    for block in blocks:
        first, last = interval_of(block)
        if block.version == pool.version and first <= highest and last >= lowest:
            yield block_index(pool, max(first, lowest)), block_index(pool, min(last, highest))


def _indices_covered(pool: Pool, intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Reserved addresses close the blocks they cover entirely."""
    base, shift = int(pool.cidr.network_address), pool.cidr.max_prefixlen - pool.block_size
    for first, last in intervals:
        low = -((base - first) >> shift)  # rounded up
        high = ((last + 1 - base) >> shift) - 1
        if low <= high:
            yield low, high


def _first_gap(closed: Sequence[Interval], index: int) -> int:
    for first, last in closed:
        if first <= index <= last:
            return last + 1  # merged intervals never touch, so this is outside the next one
    return index
