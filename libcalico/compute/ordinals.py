"""Sets of small integers in two forms: a plain `set` while few, one big-int bitmap when many.

Layer: pure, the bottom of libcalico.compute. Users: postings (who has a label), labelindex (who
matches a selector).

A bitmap costs universe/7.5 bytes however few its bits, and a set costs about 50 bytes a member; so
10,000 selectors that each match a handful of 100,000 endpoints must not be bitmaps (130 MB), and
one that matches half of them must be. `universe` is one more than the highest ordinal in use.

Invariants:
  O1  a function that changes a set may do so in place and returns what to keep: always store the
      result, never keep the argument;
  O2  dense once `universe` makes a bitmap the smaller form (plus slack); a bitmap that loses
      members stays one until it is empty, so that a set near the border does not flap.

Source: design.md 4.1; the two forms are those of roaring bitmaps, with one container.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Ordinals = set[int] | int

_DENSE_FLOOR = 32
_DENSE_SHIFT = 8
# Above this many members, one string of digits parses faster than bit by bit.
_DIGITS_FLOOR = 4000
_TRUTHY = bytes.maketrans(b"01", b"\x00\x01")
_BUSY_BYTES = re.compile(rb"[^\x00]")
_BITS_OF_BYTE = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


def bits_of(ordinals: Iterable[int], universe: int) -> int:
    """The bitmap of these ordinals."""
    members = ordinals if isinstance(ordinals, Sequence | set) else list(ordinals)
    if len(members) >= _DIGITS_FLOOR:
        digits = bytearray(b"0") * universe
        top = universe - 1
        for ordinal in members:
            digits[top - ordinal] = 0x31
        return int(digits, 2)
    octets = bytearray((universe >> 3) + 1)
    for ordinal in members:
        octets[ordinal >> 3] |= 1 << (ordinal & 7)
    return int.from_bytes(octets, "little")


def to_bits(ordinals: Ordinals, universe: int) -> int:
    return ordinals if isinstance(ordinals, int) else bits_of(ordinals, universe)


def of_bits(bits: int, universe: int) -> Ordinals:
    """The form that suits a bitmap just computed."""
    if bits.bit_count() > _limit(universe):
        return bits
    return set(iterate(bits))


def with_added(ordinals: Ordinals, added: Sequence[int], universe: int) -> Ordinals:
    if isinstance(ordinals, int):
        if len(added) == 1:
            return ordinals | 1 << added[0]
        return ordinals | bits_of(added, universe)
    ordinals.update(added)
    return bits_of(ordinals, universe) if len(ordinals) > _limit(universe) else ordinals


def with_removed(ordinals: Ordinals, removed: Sequence[int], universe: int) -> Ordinals:
    if isinstance(ordinals, set):
        ordinals.difference_update(removed)
        return ordinals
    left = ordinals & ~(1 << removed[0] if len(removed) == 1 else bits_of(removed, universe))
    return left or set()


def contains(ordinals: Ordinals, ordinal: int) -> bool:
    if isinstance(ordinals, int):
        return bool(ordinals >> ordinal & 1)
    return ordinal in ordinals


def size(ordinals: Ordinals) -> int:
    return ordinals.bit_count() if isinstance(ordinals, int) else len(ordinals)


def difference(left: Ordinals, right: Ordinals, universe: int) -> Ordinals:
    """A new set: what is in `left` and not in `right`."""
    if isinstance(left, set):
        if isinstance(right, set):
            return left - right
        return {ordinal for ordinal in left if not right >> ordinal & 1}
    return of_bits(left & ~to_bits(right, universe), universe)


def union(left: Ordinals, right: Ordinals, universe: int) -> Ordinals:
    """A new set: what is in either."""
    if isinstance(left, set) and isinstance(right, set):
        return with_added(left | right, (), universe)
    return of_bits(to_bits(left, universe) | to_bits(right, universe), universe)


def iterate(ordinals: Ordinals) -> Iterator[int]:
    """The members; ascending for a bitmap, in no order for a set."""
    if isinstance(ordinals, set):
        yield from ordinals
        return
    octets = ordinals.to_bytes((ordinals.bit_length() + 7) // 8, "little")
    for busy in _BUSY_BYTES.finditer(octets):
        base = busy.start() << 3
        for bit in _BITS_OF_BYTE[octets[busy.start()]]:
            yield base + bit


def pick(ordinals: Ordinals, column: Sequence[T]) -> Iterator[T]:
    """`column[ordinal]` of every member: the fast way through many."""
    if isinstance(ordinals, set):
        return map(column.__getitem__, ordinals)
    if ordinals.bit_count() << 4 < ordinals.bit_length():
        return map(column.__getitem__, iterate(ordinals))
    return itertools.compress(column, bin(ordinals)[:1:-1].encode("ascii").translate(_TRUTHY))


def _limit(universe: int) -> int:
    return max(_DENSE_FLOOR, universe >> _DENSE_SHIFT)
