"""Many requests, one block write: what a batch of requests makes of a block and its handles.

Layer: ipam, pure. Used by `ipam.client.lane`, which collects the requests that wait for one block,
writes the plan in one transaction (block and handles together) and shares out the results.

  W1  assignments go first, releases after them: no single write moves an address from one holder to
      another, so every change of hands is visible in the datastore's history (`ipam.audit` relies
      on it). A node's own reserve is its pods' beforehand and goes to them in one write (O2);
  W2  a refused request leaves no trace in the plan; the others are served;
  W3  a request whose answer was lost is first looked for in the block as it is now, and only done
      again when it is not there. What identifies it: the sequence number the block had before that
      write (B3) with the handle and attributes. Two requests with equal handle and attributes are
      the same request for this purpose; one without a handle is never recognised;
  W4  nothing is decided about a handle that has not been read, except that an unknown handle of an
      assignment is taken to be new: the transaction compares, a wrong guess costs one round trip.

Source: datamodel §2.4-2.6; Calico writes handle and block one after the other, the result is equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ipam import blocks, handles, reserve
from ipam.affinity import Owner, Versioned
from ipam.blocks import BlockDraft, Held, Holder, ReleaseEffect
from ipam.errors import HandleMismatch
from ipam.requests import Release
from ipam.reservations import NONE_RESERVED, Reservations
from libcalico.errors import AffinityLost, NotFound, SuiteError
from libcalico.model.ipam import Block, Handle
from libcalico.model.names import normal_handle_id
from libcalico.net import Address


class BlockMissing(NotFound):
    """The block does not exist (any more): claim one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignMany:
    """Up to `count` addresses. `must_own`: only while the block is affine to `owner`."""

    count: int
    holder: Holder
    owner: Owner
    must_own: bool
    reservations: Reservations = NONE_RESERVED
    max_alloc: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignOne:
    """One particular address. `must_own` as above (strict affinity)."""

    address: Address
    holder: Holder
    owner: Owner
    must_own: bool
    max_alloc: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """One address from the offline reserve of `node` to a holder of that node (ipam.reserve)."""

    address: Address
    node: str
    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebind:
    """A holder's own address, under new attributes (ipam.sticky T3). The handle is written as well,
    though it stays the same. `must_own` as above."""

    address: Address
    holder: Holder
    owner: Owner
    must_own: bool


@dataclass(frozen=True, slots=True)
class ReleaseMany:
    requests: tuple[Release, ...]


@dataclass(frozen=True, slots=True)
class ReleaseHandle:
    handle_id: str


Operation = AssignMany | AssignOne | HandOver | Rebind | ReleaseMany | ReleaseHandle


@dataclass(frozen=True, slots=True)
class Assigned:
    """Addresses of one assignment; empty when the block has none to give."""

    ordinals: tuple[int, ...] = ()
    sequence_number: int = 0


Value = Assigned | ReleaseEffect


@dataclass(frozen=True, slots=True)
class Done:
    """`wrote`: the result stands only if the plan is written. Otherwise it is a mere observation,
    worth as much as the block's view is fresh. `recognised`: an earlier write did it (W3)."""

    value: Value
    wrote: bool = False
    recognised: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    error: SuiteError


class Later:
    """The block is full, but this very write frees addresses: ask again after it (W1)."""


LATER = Later()
Result = Done | Refused | Later


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request with the results of earlier writes of it whose answer was lost."""

    operation: Operation
    unsure: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """`now` in seconds since the epoch."""

    now: float
    cooldown_s: float


@dataclass(slots=True)
class Plan:
    """What to write. Nothing at all when `writes` is False.

    `block_after` None deletes the block. `handles_after`: changed handles, None deletes.
    `unread`: handles that must be read before the plan can be made; then it is not to be used."""

    results: list[Result]
    writes: bool = False
    block_after: Block | None = None
    handles_after: dict[str, Handle | None] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    mismatches: list[HandleMismatch] = field(default_factory=list)


def plan(
    cidr: str,
    block: Block | None,
    attempts: Sequence[Attempt],
    known: Mapping[str, Versioned[Handle]],
    moment: Moment,
) -> Plan:
    """Serve all requests from one state of the block. Order of results is that of `attempts`."""
    if block is None:
        return Plan([_without_block(cidr, attempt) for attempt in attempts])
    return _Batch(block, known, moment).run(attempts)


def _without_block(cidr: str, attempt: Attempt) -> Result:
    match attempt.operation:
        case ReleaseMany(requests):
            done = attempt.unsure[-1] if attempt.unsure else None
            free = tuple(dict.fromkeys(request.address for request in requests))
            return Done(done or ReleaseEffect(unallocated=free))
        case ReleaseHandle():
            return Done(attempt.unsure[-1] if attempt.unsure else ReleaseEffect())
        case _:
            return Refused(BlockMissing(f"BlockKey(cidr={cidr})"))


class _Batch:
    """One run over one block."""

    def __init__(
        self, block: Block, known: Mapping[str, Versioned[Handle]], moment: Moment
    ) -> None:
        self._block = block
        self._draft = BlockDraft(block)
        self._known = known
        self._moment = moment
        self._handles: dict[str, Handle | None] = {}
        # Handles that are written whatever is in them.
        self._rewritten: set[str] = set()
        self._plan = Plan([])
        self._released = False

    @cached_property
    def _stored(self) -> BlockDraft:
        """The block as it was, to look for lost answers in."""
        return BlockDraft(self._block)

    def run(self, attempts: Sequence[Attempt]) -> Plan:
        self._draft.collect(self._moment.now, self._moment.cooldown_s)
        results: dict[int, Result] = {}
        for index in sorted(range(len(attempts)), key=lambda i: _is_release(attempts[i])):
            results[index] = self._serve(attempts[index])
        if self._released:
            results = {i: LATER if _found_nothing(r) else r for i, r in results.items()}
        self._plan.results = [results[index] for index in range(len(attempts))]
        self._finish()
        return self._plan

    def _finish(self) -> None:
        plan = self._plan
        plan.writes = self._draft.changed
        if not plan.writes:
            return
        after = self._draft.finish()
        gone = self._released and after.affinity is None and blocks.is_empty(after)
        plan.block_after = None if gone else after
        plan.handles_after = {
            handle_id: handle
            for handle_id, handle in self._handles.items()
            if handle != self._read(handle_id) or handle_id in self._rewritten
        }

    def _serve(self, attempt: Attempt) -> Result:
        try:
            match attempt.operation:
                case AssignMany() as operation:
                    return self._recognise(attempt, operation.holder) or self._many(operation)
                case AssignOne() as operation:
                    return self._recognise(attempt, operation.holder) or self._one(operation)
                case HandOver() as operation:
                    return self._recognise(attempt, operation.holder) or self._hand_over(operation)
                case Rebind() as operation:
                    return self._recognise(attempt, operation.holder) or self._rebind(operation)
                case ReleaseMany(requests):
                    return self._release(attempt, requests)
                case ReleaseHandle(handle_id):
                    return self._release_handle(attempt, handle_id)
        except SuiteError as err:
            return Refused(err)

    # ---- assignments ---------------------------------------------------------------------------

    def _recognise(self, attempt: Attempt, holder: Holder) -> Done | None:
        """W3."""
        if holder.handle_id is None:
            return None
        for value in attempt.unsure:
            if isinstance(value, Assigned) and self._stored.holds(
                value.ordinals, holder, value.sequence_number
            ):
                return Done(value, recognised=True)
        return None

    def _many(self, operation: AssignMany) -> Result:
        self._check_owner(operation.owner, operation.must_own)
        handle_id, count = operation.holder.handle_id, operation.count
        if handle_id is not None:
            self._count(handle_id, count, operation.max_alloc)  # raises before anything changes
        ordinals = self._draft.assign(count, operation.holder, operation.reservations)
        if not ordinals:
            return Done(Assigned())
        if handle_id is not None:
            self._handles[handle_id] = self._count(handle_id, len(ordinals), 0)
        return Done(Assigned(ordinals, self._block.sequence_number), wrote=True)

    def _one(self, operation: AssignOne) -> Result:
        affinity = self._block.affinity
        if operation.must_own and affinity is not None and affinity != str(operation.owner):
            raise AffinityLost("Block host affinity does not match")
        self._check_owner(operation.owner, operation.must_own)
        handle_id = operation.holder.handle_id
        counted = handle_id and self._count(handle_id, 1, operation.max_alloc)
        ordinal = self._draft.assign_one(operation.address, operation.holder)
        if handle_id and counted:
            self._handles[handle_id] = counted
        return Done(Assigned((ordinal,), self._block.sequence_number), wrote=True)

    def _hand_over(self, operation: HandOver) -> Result:
        handle_id = operation.holder.handle_id
        assert handle_id is not None
        ordinal = self._draft.ordinal(operation.address)
        ((_, attribute, number),) = self._draft.held([ordinal])
        if attribute == operation.holder.as_attribute():
            # By an earlier attempt, perhaps of a process that has died since.
            return Done(Assigned((ordinal,), number))
        counted = self._count(handle_id, 1, 0)
        self._draft.hand_over(operation.address, operation.node, operation.holder)
        self._handles[handle_id] = counted
        if attribute is not None:
            self._discount(normal_handle_id(reserve.handle_of(operation.node)), 1)
        return Done(Assigned((ordinal,), self._block.sequence_number), wrote=True)

    def _rebind(self, operation: Rebind) -> Result:
        handle_id = operation.holder.handle_id
        assert handle_id is not None
        self._check_owner(operation.owner, operation.must_own)
        ordinal = self._draft.rebind(operation.address, operation.holder)
        current = self._current(handle_id)
        is_counted = current is not None and self._block.cidr in current.block
        self._handles[handle_id] = current if is_counted else self._count(handle_id, 1, 0)
        self._rewritten.add(handle_id)
        return Done(Assigned((ordinal,), self._block.sequence_number), wrote=True)

    def _check_owner(self, owner: Owner, must_own: bool) -> None:
        affinity = self._block.affinity
        if not must_own or affinity == str(owner):
            return
        if affinity is None:
            raise AffinityLost(f"Attempt to assign from block {self._block.cidr} with no affinity")
        # Calico prints the provided one the other way round.
        raise AffinityLost(
            f"Block affinity ({affinity}) does not match provided ({owner.host}:{owner.type})"
        )

    # ---- releases ------------------------------------------------------------------------------

    def _release(self, attempt: Attempt, requests: Sequence[Release]) -> Result:
        for value in attempt.unsure:
            if isinstance(value, ReleaseEffect) and self._is_gone(value.released):
                return Done(value, recognised=True)
        effect = self._draft.release(requests, self._moment.now, self._moment.cooldown_s)
        return self._account(effect)

    def _release_handle(self, attempt: Attempt, handle_id: str) -> Result:
        now, cooldown_s = self._moment.now, self._moment.cooldown_s
        released = self._draft.release_handle(handle_id, now, cooldown_s)
        if not released and attempt.unsure:
            return Done(attempt.unsure[-1], recognised=True)
        counts = {normal_handle_id(handle_id): len(released)} if released else {}
        return self._account(ReleaseEffect(released, counts=counts))

    def _account(self, effect: ReleaseEffect) -> Done:
        if not effect.released:
            return Done(effect)
        self._released = True
        for handle_id, count in effect.counts.items():
            self._discount(handle_id, count)
        return Done(effect, wrote=True)

    def _is_gone(self, released: Sequence[Held]) -> bool:
        """Whether none of these assignments exists any more."""
        now = self._stored.held(ordinal for ordinal, _, _ in released)
        return not set(map(_identity, released)) & set(map(_identity, now))

    # ---- handles -------------------------------------------------------------------------------

    def _read(self, handle_id: str) -> Handle | None:
        known = self._known.get(handle_id)
        return None if known is None else known.value

    def _current(self, handle_id: str) -> Handle | None:
        return self._handles.get(handle_id, self._read(handle_id))

    def _count(self, handle_id: str, count: int, max_alloc: int) -> Handle:
        current = self._current(handle_id)
        return handles.increment(current, handle_id, self._block.cidr, count, max_alloc=max_alloc)

    def _discount(self, handle_id: str, count: int) -> None:
        if handle_id not in self._known and handle_id not in self._handles:
            self._plan.unread.add(handle_id)
            return
        try:
            self._handles[handle_id] = handles.decrement(
                self._current(handle_id), handle_id, self._block.cidr, count
            )
        except HandleMismatch as err:
            self._plan.mismatches.append(err)


def _is_release(attempt: Attempt) -> bool:
    return isinstance(attempt.operation, ReleaseMany | ReleaseHandle)


def _found_nothing(result: Result) -> bool:
    return isinstance(result, Done) and result.value == Assigned()


def _identity(held: Held) -> tuple[int, str | None, int]:
    ordinal, attribute, sequence_number = held
    return ordinal, attribute.handle_id if attribute else None, sequence_number
