"""Cutting a pool into equal smaller ones.

Layer: ipam, pure. Used by calicoctl (`ipam split`) through `ipam.client.poolsplit`.

The parts have the old pool's settings, labels and annotations; its blocks and affinities are not
looked at: a block lies in one part or another, and goes on as it is.
Source: datamodel §6.8; Calico calicoctl/calicoctl/commands/ipam/split.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from libcalico.errors import InvalidInput
from libcalico.model.ippool import IPPool
from libcalico.model.meta import ObjectMeta
from libcalico.net import AddressError, network_of, parse_cidr

#: More pools than this at once is a slip of the finger (and a list that does not end, in IPv6).
MAX_PARTS = 4096
# What of a pool's name fits between "split-" and "-" into the longest name there may be.
_ROOM_FOR_NAME = 253 - len("split--")


class SplitRefused(InvalidInput):
    """Nothing is written. The reason is the whole text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identity and birthday of a new pool."""

    uid: str
    creation_timestamp: str


def cidrs(cidr: str, parts: int) -> tuple[str, ...]:
    """The range in `parts` equal ranges, in order. Errors: SplitRefused."""
    prefix = f"error splitting the CIDR {cidr} into {parts} CIDRs: "
    if parts < 2 or parts & (parts - 1):
        raise SplitRefused(f"{prefix}number to split CIDR into is not a valid power of 2: {parts}")
    try:
        network = parse_cidr(cidr)
    except AddressError as err:
        raise SplitRefused(
            f"{prefix}error reading CIDR {cidr} before attempting to split it"
        ) from err
    prefix_len = network.prefixlen + parts.bit_length() - 1
    if prefix_len > network.max_prefixlen:
        raise SplitRefused(
            f"{prefix}the CIDR {cidr} is not large enough to be split into {parts} parts"
        )
    if parts > MAX_PARTS:
        raise SplitRefused(f"{prefix}{MAX_PARTS} parts is the most at once")
    base, size = int(network.network_address), 1 << (network.max_prefixlen - prefix_len)
    return tuple(
        str(network_of(network.version, base + i * size, prefix_len)) for i in range(parts)
    )


def names(pool: str, parts: int) -> tuple[str, ...]:
    """split-<pool>-<i>; a long name is cut so that the longest still fits."""
    return tuple(f"split-{pool[: _ROOM_FOR_NAME - len(str(i))]}-{i}" for i in range(parts))


def children(pool: IPPool, parts: int, stamps: Iterable[Stamp]) -> tuple[IPPool, ...]:
    """The pools to make of one; one stamp for each. Errors: SplitRefused."""
    metadata = pool.metadata
    return tuple(
        replace(
            pool,
            metadata=ObjectMeta(
                name=name,
                uid=stamp.uid,
                creation_timestamp=stamp.creation_timestamp,
                labels=metadata.labels,
                annotations=metadata.annotations,
            ),
            spec=replace(pool.spec, cidr=cidr),
            status=None,
        )
        for name, cidr, stamp in zip(
            names(metadata.name, parts), cidrs(pool.spec.cidr, parts), stamps, strict=True
        )
    )
