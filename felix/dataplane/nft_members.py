"""What one plain set should hold and what still has to be said to the kernel for that.

Layer: felix.dataplane, pure. Used by nft_table.

A delta tracker for keys without values, cheap for sets of 250,000: it stores what is wanted and the
two differences; what is programmed is what is wanted, less what is to be added, and what is to be
deleted.

  B1  `to_add` is a part of `wanted`; `to_delete` has nothing in common with it;
  B2  every operation costs as much as its argument is long, not as the set is.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet


class MemberTracker:
    """Elements are bytes (felix.rules.sets)."""

    __slots__ = ("to_add", "to_delete", "wanted")

    def __init__(self) -> None:
        self.wanted: set[bytes] = set()
        self.to_add: set[bytes] = set()
        self.to_delete: set[bytes] = set()

    @property
    def is_dirty(self) -> bool:
        return bool(self.to_add or self.to_delete)

    def change(self, added: AbstractSet[bytes], removed: AbstractSet[bytes]) -> None:
        """Want `added`, no longer want `removed`. An element in both is wanted."""
        gone = (removed - added) & self.wanted
        self.wanted -= gone
        self.to_delete |= gone - self.to_add
        self.to_add -= gone
        new = added - self.wanted
        self.wanted |= new
        self.to_add |= new - self.to_delete
        self.to_delete -= new

    def replace(self, elements: AbstractSet[bytes]) -> None:
        """Want exactly these."""
        if not self.wanted and not self.to_delete:  # a set that comes: nothing to compare with
            self.wanted, self.to_add = set(elements), set(elements)
            return
        self.change(elements - self.wanted, self.wanted - elements)

    def confirm(self, added: AbstractSet[bytes], deleted: AbstractSet[bytes]) -> None:
        """Record what the kernel took over."""
        self.to_add -= added
        self.to_delete -= deleted
        # Wishes may have changed while the write was under way.
        self.to_delete |= added - self.wanted
        self.to_add |= deleted & self.wanted

    def resync(self, observed: AbstractSet[bytes]) -> None:
        """Replace the programmed view."""
        self.to_add = self.wanted - observed
        self.to_delete = set(observed - self.wanted)

    def programmed(self) -> set[bytes]:
        return (self.wanted - self.to_add) | self.to_delete

    def check(self) -> None:
        assert self.to_add <= self.wanted, "B1"
        assert not self.to_delete & self.wanted, "B1"
