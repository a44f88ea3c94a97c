"""One block of addresses: new, assign, release, cooldown, and what must be true of it.

Layer: ipam, pure (time is an argument). Used by `ipam.batch` (which applies many requests to one
`BlockDraft`), `ipam.affinity`, `ipam.leaks` and calicoctl's `ipam check`.

  B1  every ordinal is either assigned (`allocations[i]` is not None) or exactly once in
      `unallocated`; every index points into `attributes`; every attribute is pointed to;
  B2  `unallocated` is first in, first out: an address rests as long as possible before reuse;
  B3  an assignment records the sequence number the block had BEFORE the write that made it, and
      every write raises the block's number by one: (address, sequence) names one assignment;
  B4  a released address first points to an attribute that holds only `releasedAt`; the collection
      pass, run whenever a block is read, moves it to the tail of `unallocated` after the cooldown;
  B5  a refused operation leaves the draft as it was.

Source: datamodel §2.1, §2.4, §2.6; Calico libcalico-go/lib/ipam/ipam_block.go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from ipam import reserve
from ipam.errors import AddressInCooldown, BadHandle, ClaimGone, MalformedBlock, NotReserved
from ipam.requests import (
    NO_ATTRIBUTES,
    WINDOWS_RESERVED_HANDLE,
    Assignment,
    HostReserved,
    Release,
)
from ipam.reservations import NONE_RESERVED, Reservations
from libcalico.errors import AlreadyExists, BadSequenceNumber
from libcalico.model.ipam import AllocationAttribute, Block
from libcalico.model.names import normal_handle_id
from libcalico.net import Address, Network, address_of, parse_cidr

#: The network of a block's canonical CIDR text. Remembered: it is asked for all the time.
network_of_block = lru_cache(maxsize=16_384)(parse_cidr)

UNUSED_ATTRIBUTE = "an attribute is not used by any allocation"


def format_time(now: float) -> str:
    """RFC 3339, UTC, whole seconds: what metav1.Time stores."""
    return datetime.fromtimestamp(math.floor(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> float | None:
    """Seconds since the epoch; None when there is no time or it cannot be read."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def new_block(cidr: str, first_sequence: int, reserved: HostReserved | None = None) -> Block:
    """A block nobody owns. `first_sequence` is the time in nanoseconds (§0.11): a block made again
    in the same place never repeats a sequence number."""
    network = network_of_block(cidr)
    size: int = 1 << (network.max_prefixlen - network.prefixlen)
    start = reserved.start_of_block if reserved else 0
    end = size - (reserved.end_of_block if reserved else 0)
    attributes = None
    if reserved is not None:
        note = {"note": reserved.note}
        attributes = (AllocationAttribute(handle_id=reserved.handle_id, secondary=note),)
    return Block(
        cidr=cidr,
        allocations=tuple(None if start <= i < end else 0 for i in range(size)),
        unallocated=tuple(range(start, end)),
        attributes=attributes,
        sequence_number=first_sequence,
    )


def bumped(block: Block) -> Block:
    """The same block, written again."""
    return msgspec.structs.replace(block, sequence_number=block.sequence_number + 1)


def without_affinity(block: Block) -> Block:
    """The block after its owner gave it up while addresses are in use."""
    return msgspec.structs.replace(bumped(block), affinity=None, affinity_claim_time=None)


def is_empty(block: Block) -> bool:
    """Whether nothing but reserved addresses is assigned. Cooling addresses count as used."""
    kept = {
        index
        for index, attribute in enumerate(block.attributes or ())
        if attribute.handle_id and attribute.handle_id.lower() == WINDOWS_RESERVED_HANDLE
    }
    return all(index is None or index in kept for index in block.allocations)


def problems_of(block: Block, now: float = math.inf) -> tuple[str, ...]:
    """Everything that contradicts B1, and times of release that lie in the future of `now`."""
    network = network_of_block(block.cidr)
    size = 1 << (network.max_prefixlen - network.prefixlen)
    attributes = block.attributes or ()
    used = {index for index in block.allocations if index is not None}
    found = []
    if len(block.allocations) != size:
        found.append(f"{len(block.allocations)} allocations for {size} addresses")
    if any(not 0 <= index < len(attributes) for index in used):
        found.append("an allocation points to an attribute that does not exist")
    if len(used) < len(attributes):
        found.append(UNUSED_ATTRIBUTE)
    for attribute in attributes:
        released_at = attribute.released_at
        if released_at is not None and (parse_time(released_at) or -math.inf) > now:
            found.append(f"released in the future: {attribute.released_at}")
    return tuple(found) + _problems_of_unallocated(block, size)


def _problems_of_unallocated(block: Block, size: int) -> tuple[str, ...]:
    free = block.unallocated
    found = []
    if any(not 0 <= ordinal < size for ordinal in free):
        found.append("an unallocated ordinal is out of range")
    if len(set(free)) != len(free):
        found.append("an ordinal is unallocated twice")
    assigned = {i for i, index in enumerate(block.allocations) if index is not None}
    if assigned.intersection(free):
        found.append("an ordinal is both allocated and unallocated")
    if len(assigned) + len(free) != size:
        found.append(f"{len(assigned)} allocated and {len(free)} unallocated of {size}")
    return tuple(found)


def dangers_of(block: Block) -> tuple[str, ...]:
    """The problems that make it possible to hand out an address twice. An attribute that nobody
    uses is only untidy: the next collection drops it."""
    return tuple(problem for problem in problems_of(block) if problem != UNUSED_ATTRIBUTE)


def check_usable(block: Block) -> None:
    """Errors: MalformedBlock when nothing may be assigned from or released into the block."""
    dangers = dangers_of(block)
    if dangers:
        raise MalformedBlock(block.cidr, dangers)


@dataclass(frozen=True, slots=True)
class Holder:
    """On whose behalf addresses are assigned."""

    handle_id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def as_attribute(self) -> AllocationAttribute:
        return AllocationAttribute(handle_id=self.handle_id, secondary=dict(self.attributes))


# An ordinal with who holds it: the attribute and the sequence number of the assignment.
Held = tuple[int, AllocationAttribute | None, int]


@dataclass(frozen=True, slots=True)
class ReleaseEffect:
    """`released` shows the holders before. `counts`: addresses released by handle id (as compared;
    addresses without a handle are not counted)."""

    released: tuple[Held, ...] = ()
    unallocated: tuple[Address, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


class BlockDraft:
    """A working copy of one block. `finish()` gives the block to write."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.network: Network = network_of_block(block.cidr)
        self._base = int(self.network.network_address)
        self._allocations = list(block.allocations)
        self._free = list(block.unallocated)
        self._attributes = list(block.attributes or ())
        self._sequences = dict(block.sequence_number_for_allocation)
        self.changed = False

    # ---- looking -------------------------------------------------------------------------------

    @property
    def affinity(self) -> str | None:
        return self._block.affinity

    def address(self, ordinal: int) -> Address:
        return address_of(self.network.version, self._base + ordinal)

    def ordinal(self, address: Address) -> int:
        """Errors: ValueError when the address is not in this block (the caller's mistake)."""
        if address not in self.network:
            raise ValueError(f"IP {address} not in block {self._block.cidr}")
        return int(address) - self._base

    def count_free(self, reservations: Reservations = NONE_RESERVED) -> int:
        """Addresses that an automatic request could get."""
        if not reservations.overlaps(self.network):
            return len(self._free)
        return sum(not self._is_reserved(ordinal, reservations) for ordinal in self._free)

    def holds(self, ordinals: Iterable[int], holder: Holder, sequence_number: int) -> bool:
        """Whether exactly this assignment is recorded: how a lost answer is recognised (B3)."""
        wanted = holder.as_attribute()
        return all(
            self._attribute_of(ordinal) == wanted
            and self._sequences.get(str(ordinal)) == sequence_number
            for ordinal in ordinals
        )

    def held(self, ordinals: Iterable[int]) -> tuple[Held, ...]:
        return tuple((o, self._attribute_of(o), self._sequences.get(str(o), 0)) for o in ordinals)

    # ---- changing ------------------------------------------------------------------------------

    def collect(self, now: float, cooldown_s: float) -> None:
        """Free what has rested long enough; drop attributes nobody points to (B4)."""
        rested = {
            index
            for index, attribute in enumerate(self._attributes)
            if attribute.released_at is not None and _is_over(attribute, now, cooldown_s)
        }
        if rested:
            for ordinal, index in enumerate(self._allocations):
                if index in rested:
                    self._free_ordinal(ordinal)
        self._compact()

    def assign(
        self, count: int, holder: Holder, reservations: Reservations = NONE_RESERVED
    ) -> tuple[int, ...]:
        """Take up to `count` free ordinals, longest idle first; reserved ones keep their place."""
        if reservations.overlaps(self.network):
            free = [o for o in self._free if not self._is_reserved(o, reservations)]
        else:
            free = self._free
        taken = tuple(free[:count])
        if taken:
            chosen = set(taken)
            self._free = [ordinal for ordinal in self._free if ordinal not in chosen]
            self._record(taken, holder)
        return taken

    def assign_one(self, address: Address, holder: Holder) -> int:
        """Errors: AlreadyExists when somebody holds it, or held it until a moment ago (B4)."""
        ordinal = self.ordinal(address)
        if self._allocations[ordinal] is not None:
            raise AlreadyExists(str(address), "Address already assigned in block")
        self._free.remove(ordinal)
        self._record((ordinal,), holder)
        return ordinal

    def hand_over(self, address: Address, node: str, holder: Holder) -> int:
        """From the reserve of a node to a holder of that node; an address that is free, to him as
        well. Errors: NotReserved, AddressInCooldown."""
        ordinal = self.ordinal(address)
        before = self._attribute_of(ordinal)
        if before is None:
            return self.assign_one(address, holder)
        if before.released_at is not None:
            raise AddressInCooldown(str(address))
        if reserve.node_of(before) != node or not reserve.is_handover(
            before, holder.as_attribute()
        ):
            raise NotReserved(str(address), node, before.handle_id or "somebody")
        self._record((ordinal,), holder)
        self._compact()
        return ordinal

    def rebind(self, address: Address, holder: Holder) -> int:
        """The same handle's holder describes himself anew. Errors: ClaimGone when the handle does
        not hold the address."""
        ordinal = self.ordinal(address)
        before = self._attribute_of(ordinal)
        wanted = normal_handle_id(holder.handle_id or "")
        if before is None or normal_handle_id(before.handle_id or "") != wanted:
            raise ClaimGone(str(address), wanted)
        self._record((ordinal,), holder)
        self._compact()
        return ordinal

    def release(self, requests: Sequence[Release], now: float, cooldown_s: float) -> ReleaseEffect:
        """All or nothing. Errors: BadSequenceNumber, BadHandle (B5)."""
        released: list[int] = []
        unallocated: list[Address] = []
        counts: dict[str, int] = {}
        for request in {request.address: request for request in requests}.values():
            ordinal = self.ordinal(request.address)
            self._check_sequence(ordinal, request)
            attribute = self._attribute_of(ordinal)
            if attribute is None or attribute.released_at is not None:
                unallocated.append(request.address)
                continue
            handle_id = normal_handle_id(attribute.handle_id or "")
            if request.handle_id and normal_handle_id(request.handle_id) != handle_id:
                raise BadHandle(str(request.address), request.handle_id, handle_id)
            released.append(ordinal)
            if handle_id:
                counts[handle_id] = counts.get(handle_id, 0) + 1
        effect = ReleaseEffect(self.held(released), tuple(unallocated), counts)
        for ordinal in released:
            self._sequences[str(ordinal)] = self._block.sequence_number
        self._cool(released, now, cooldown_s)
        return effect

    def release_handle(self, handle_id: str, now: float, cooldown_s: float) -> tuple[Held, ...]:
        """Everything the handle holds here. Their sequence entries stay as they are (§2.6)."""
        wanted = normal_handle_id(handle_id)
        mine = {
            index
            for index, attribute in enumerate(self._attributes)
            if attribute.handle_id is not None and normal_handle_id(attribute.handle_id) == wanted
        }
        released = [o for o, index in enumerate(self._allocations) if index in mine]
        before = self.held(released)
        self._cool(released, now, cooldown_s)
        return before

    def finish(self) -> Block:
        """The block to write: one sequence number on, whatever was done to it (B3)."""
        return msgspec.structs.replace(
            self._block,
            allocations=tuple(self._allocations),
            unallocated=tuple(self._free),
            attributes=tuple(self._attributes),
            sequence_number=self._block.sequence_number + 1,
            sequence_number_for_allocation=self._sequences,
            host_affinity=None,
        )

    # ---- inside --------------------------------------------------------------------------------

    def _attribute_of(self, ordinal: int) -> AllocationAttribute | None:
        index = self._allocations[ordinal]
        return None if index is None else self._attributes[index]

    def _is_reserved(self, ordinal: int, reservations: Reservations) -> bool:
        return reservations.contains(self.network.version, self._base + ordinal)

    def _check_sequence(self, ordinal: int, request: Release) -> None:
        stored = self._sequences.get(str(ordinal), 0)
        if request.sequence_number is not None and request.sequence_number != stored:
            raise BadSequenceNumber(str(request.address), request.sequence_number, stored)

    def _record(self, ordinals: Sequence[int], holder: Holder) -> None:
        index = self._find_or_add(holder.as_attribute())
        for ordinal in ordinals:
            self._allocations[ordinal] = index
            self._sequences[str(ordinal)] = self._block.sequence_number
        self.changed = True

    def _find_or_add(self, attribute: AllocationAttribute) -> int:
        if attribute in self._attributes:
            return self._attributes.index(attribute)
        self._attributes.append(attribute)
        return len(self._attributes) - 1

    def _cool(self, ordinals: Sequence[int], now: float, cooldown_s: float) -> None:
        if not ordinals:
            return
        index = len(self._attributes)
        self._attributes.append(AllocationAttribute(released_at=format_time(now)))
        for ordinal in ordinals:
            self._allocations[ordinal] = index
        self.changed = True
        # The second pass runs a moment later than the first: with no cooldown what was released
        # just now is free at once, even when `now` is a whole second.
        self.collect(math.nextafter(now, math.inf), cooldown_s)

    def _free_ordinal(self, ordinal: int) -> None:
        self._allocations[ordinal] = None
        self._free.append(ordinal)
        self._sequences.pop(str(ordinal), None)

    def _compact(self) -> None:
        used = {index for index in self._allocations if index is not None}
        if len(used) == len(self._attributes):
            return
        kept = sorted(used)
        position = {old: new for new, old in enumerate(kept)}
        self._attributes = [self._attributes[index] for index in kept]
        self._allocations = [None if i is None else position[i] for i in self._allocations]


def _is_over(attribute: AllocationAttribute, now: float, cooldown_s: float) -> bool:
    released_at = parse_time(attribute.released_at)
    if cooldown_s < 0 or released_at is None:
        return True
    return released_at < now - cooldown_s


def assignment_of(block: Block, address: Address) -> Assignment | None:
    """Who holds an address; None when nobody does. Look for `released_at` with `is_cooling`."""
    ordinal = BlockDraft(block).ordinal(address)
    attribute = block.attribute_of(ordinal)
    if attribute is None or attribute.released_at is not None:
        return None
    return Assignment(
        address=address,
        handle_id=None if attribute.handle_id is None else normal_handle_id(attribute.handle_id),
        attributes=attribute.secondary or NO_ATTRIBUTES,
        alternate_attributes=attribute.alternate_owner_attrs or NO_ATTRIBUTES,
        sequence_number=block.sequence_number_for_allocation.get(str(ordinal), 0),
    )


def is_cooling(block: Block, address: Address) -> bool:
    attribute = block.attribute_of(BlockDraft(block).ordinal(address))
    return attribute is not None and attribute.released_at is not None


def addresses_of(block: Block, handle_id: str) -> tuple[Address, ...]:
    """What a handle holds in a block, ascending."""
    network, wanted = network_of_block(block.cidr), normal_handle_id(handle_id)
    base = int(network.network_address)
    mine = {
        index
        for index, attribute in enumerate(block.attributes or ())
        if attribute.handle_id is not None and normal_handle_id(attribute.handle_id) == wanted
    }
    return tuple(
        address_of(network.version, base + ordinal)
        for ordinal, index in enumerate(block.allocations)
        if index in mine
    )
