"""Sets of small integers in two forms: a plain `set` while few, one big-int bitmap when many.

Layer: pure, the bottom of libcalico.compute. Users: postings (who has a label), labelindex (who
matches a selector).

A bitmap costs universe/7.5 bytes however few its bits, and a set costs about 60 bytes a member; so
10,000 selectors that each match a handful of 100,000 endpoints must not be bitmaps (130 MB), and
one that matches half of them must be. `universe` is one more than the highest ordinal in use.

Invariants:
  O1  a function that changes a set may do so in place and returns what to keep: always store the
      result, never keep the argument;
  O2  a set turns into a bitmap where that is the smaller form; a bitmap that loses members stays
      one until it is empty, and one just computed until half of that: listing it costs time too.

Source: design.md 4.1; the two forms are those of roaring bitmaps, with one container.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Ordinals = set[int] | int

_DENSE_FLOOR = 32
_DENSE_SHIFT = 9
# Above this many members, one string of digits parses faster than bit by bit.
_DIGITS_FLOOR = 4000
_TRUTHY = bytes.maketrans(b"01", b"\x00\x01")


def bits_of(ordinals: Iterable[int], universe: int) -> int:
    """The bitmap of these ordinals."""
    members = ordinals if isinstance(ordinals, Sequence | set) else list(ordinals)
    if len(members) >= _DIGITS_FLOOR:
        digits = bytearray(b"0") * universe
        top = universe - 1
        for ordinal in members:
            digits[top - ordinal] = 0x31
        return int(digits, 2)
    held = bytearray((universe >> 3) + 1)
    for ordinal in members:
        held[ordinal >> 3] |= 1 << (ordinal & 7)
    return int.from_bytes(held, "little")


def to_bits(ordinals: Ordinals, universe: int) -> int:
    return ordinals if isinstance(ordinals, int) else bits_of(ordinals, universe)


def of_bits(bits: int, universe: int) -> Ordinals:
    """The form that suits a bitmap just computed. Near the border it stays as it is (O2)."""
    if bits.bit_count() > sparse_limit(universe) // 2:
        return bits
    return set(_listed(bits))


def with_added(ordinals: Ordinals, added: Sequence[int], universe: int) -> Ordinals:
    if isinstance(ordinals, int):
        if len(added) == 1:
            return ordinals | 1 << added[0]
        return ordinals | bits_of(added, universe)
    ordinals.update(added)
    return bits_of(ordinals, universe) if len(ordinals) > sparse_limit(universe) else ordinals


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
    return iter(ordinals) if isinstance(ordinals, set) else iter(_listed(ordinals))


def _listed(bits: int) -> list[int]:
    """Word by word: most words of the bitmaps that are listed are empty."""
    count = (bits.bit_length() + 63) // 64
    words = memoryview(bits.to_bytes(count * 8, sys.byteorder)).cast("Q")
    if sys.byteorder == "big":
        words = words[::-1]
    members = []
    for index in itertools.compress(range(count), words):
        word, base = words[index], (index << 6) - 1
        while word:
            lowest = word & -word
            members.append(base + lowest.bit_length())
            word ^= lowest
    return members


def pick(ordinals: Ordinals, column: Sequence[T]) -> Iterator[T]:
    """`column[ordinal]` of every member: the fast way through many."""
    if isinstance(ordinals, set):
        return map(column.__getitem__, ordinals)
    if ordinals.bit_count() << 4 < ordinals.bit_length():
        return map(column.__getitem__, _listed(ordinals))
    return itertools.compress(column, bin(ordinals)[:1:-1].encode("ascii").translate(_TRUTHY))


def octets(bits: int) -> bytes:
    """A bitmap as bytes: ordinal o is bit o & 7 of byte o >> 3. Nothing behind the last bit."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def sparse_limit(universe: int) -> int:
    """The most members a set of this universe may have."""
    return max(_DENSE_FLOOR, universe >> _DENSE_SHIFT)
