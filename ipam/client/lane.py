"""One lane per block: requests that wait for the same block share one write.

Layer: ipam edge. Used by `ipam.client.assign` and `.release`; decisions are `ipam.batch`'s.

Whoever finds the lane free leads: he takes everything that waits, plans it (pure), and writes block
and handles in one transaction that compares them all. Meanwhile others queue, and the next of them
leads the next batch. There is no background task, so nothing outlives its caller.

  L1  what was written is what was planned from exactly the compared revisions;
  L2  a result that wrote nothing (full, already free, refused) is given only from a view read after
      the request came in; a remembered view serves writes, where the compare proves it;
  L3  after a lost answer the block is read again and the request looked for in it (W3) before it
      is done again; when it cannot be read the caller gets DatastoreUnavailable, outcome unknown,
      and must release by handle;
  L4  a cancelled leader hands the requests of others back to the queue, marked as perhaps done;
  L5  every loop is bounded: 100 conflicts as Calico, a handful of failures of the datastore.

Bounds: requests of a batch MAX_BATCH, handles of a transaction MAX_HANDLES (etcd takes 128
operations), idle lanes and remembered handles by `Lanes`.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field

from ipam import batch, blocks
from ipam.affinity import Versioned
from ipam.batch import LATER, Attempt, Done, Moment, Operation, Plan, Refused, Result, Value
from ipam.client.records import Change, Records, versioned
from ipam.client.settle import count_down, read_handles
from ipam.errors import HandleLimitReached, RetriesExhausted
from libcalico.datastore.api import KeyValue
from libcalico.errors import AffinityLost, DatastoreUnavailable, SuiteError
from libcalico.model.ipam import Block, Handle
from libcalico.model.keys import BlockKey, HandleKey, Key
from libcalico.runtime import log
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)

MAX_CONFLICTS = 100
MAX_FAILURES = 5
MAX_BATCH = 64
MAX_HANDLES = 100
MAX_LANES = 1024
MAX_REMEMBERED_HANDLES = 10_000
# After this many lost races in a row we wait a little, at random, so that somebody gets through.
_PATIENT_CONFLICTS = 3
_BACKOFF_STEP_S = 0.002
_BACKOFF_MAX_S = 0.1
_FAILURE_PAUSE_S = 0.1


class GuardLost(AffinityLost):
    """The affinity key a request relied on was written since: look again."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A key that must still stand as it was read when the block is written: an affinity (A3), or
    with `mod_revision` 0 a Node that must not exist."""

    key: Key
    mod_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a request is to be served. `remembered_ok` waives L2 for a block found full. `planned` is
    told the result just before each attempt to write it: it stands only if that succeeds."""

    cooldown_s: float = 0.0
    guard: Guard | None = None
    remembered_ok: bool = False
    planned: Callable[[Value], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Served:
    """A result, and the block as it was then (None: there is none)."""

    value: Value
    block: Block | None


@dataclass(slots=True, eq=False)
class _Ticket:
    """One waiting request. `seen_fresh`: the lane's view is younger than the request (L2)."""

    operation: Operation
    terms: Terms
    unsure: tuple[Value, ...] = ()
    seen_fresh: bool = False
    outcome: Served | SuiteError | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class HandleMemory(MutableMapping[str, Versioned[Handle]]):
    """The handles last seen, bounded. A wrong memory only costs a conflict."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Versioned[Handle]] = OrderedDict()

    def __getitem__(self, handle_id: str) -> Versioned[Handle]:
        return self._known[handle_id]

    def __setitem__(self, handle_id: str, record: Versioned[Handle]) -> None:
        self._known[handle_id] = record
        self._known.move_to_end(handle_id)
        if len(self._known) > MAX_REMEMBERED_HANDLES:
            self._known.popitem(last=False)

    def __delitem__(self, handle_id: str) -> None:
        del self._known[handle_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass(slots=True)
class Context:
    """What all lanes share."""

    records: Records
    clock: Clock
    handles: HandleMemory = field(default_factory=HandleMemory)
    random: random.Random = field(default_factory=random.Random)

    async def pause(self, failures: int) -> None:
        """After the datastore failed: long enough, all in all, for an election of its leader."""
        limit = _FAILURE_PAUSE_S * 2 ** (failures - 1)
        await self.clock.sleep(self.random.uniform(limit / 2, limit))


class Lane:
    """All our requests for one block go through here."""

    def __init__(self, cidr: str, context: Context) -> None:
        self.cidr = cidr
        self.context = context
        self._is_led = False
        self._waiting: list[_Ticket] = []
        #: The block as last seen or written, and when (monotonic); None: not known.
        self.view: Versioned[Block] | None = None
        self.seen_at = 0.0
        self.seen_full = False

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._is_led

    def see(self, view: Versioned[Block]) -> None:
        """Somebody read the block anyway. An older view than ours is no news."""
        if view.value is None or blocks.dangers_of(view.value):
            return
        if self.view is None or view.mod_revision >= self.view.mod_revision:
            self.know(view)

    def know(self, view: Versioned[Block]) -> None:
        """The block is like this in the datastore now."""
        self.view = view
        self.seen_at = self.context.clock.monotonic()
        block = view.value
        self.seen_full = block is not None and not block.unallocated and not _is_cooling(block)

    async def submit(self, operation: Operation, terms: Terms) -> Served:
        """Errors: what the operation may raise; GuardLost, BlockMissing, MalformedBlock,
        RetriesExhausted, DatastoreUnavailable (outcome unknown, L3)."""
        ticket = _Ticket(operation, terms)
        self._waiting.append(ticket)
        try:
            while ticket.outcome is None:
                if self._is_led:
                    ticket.wake.clear()
                    await ticket.wake.wait()
                else:
                    await self._lead()
        finally:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self._wake_next()
        if isinstance(ticket.outcome, SuiteError):
            raise ticket.outcome
        return ticket.outcome

    async def _lead(self) -> None:
        """Serve what waits, or as much of it as fits in one transaction."""
        self._is_led = True
        tickets = self._waiting[:MAX_BATCH]
        del self._waiting[: len(tickets)]
        try:
            await _Round(self, tickets).run()
        finally:
            self._is_led = False
            # L4: without an outcome are those whose leader was cancelled.
            self._waiting[:0] = [ticket for ticket in tickets if ticket.outcome is None]
            for ticket in tickets:
                ticket.wake.set()
            self._wake_next()

    def _wake_next(self) -> None:
        """Whenever nobody leads, somebody who waits is on his way to."""
        if self._waiting and not self._is_led:
            self._waiting[0].wake.set()


class _Round:
    """One batch on its way into the datastore."""

    def __init__(self, lane: Lane, tickets: list[_Ticket]) -> None:
        self._lane = lane
        self._context = lane.context
        self._tickets = tickets
        self._conflicts = 0
        self._failures = 0
        # Handles read since the batch came in (L2 holds for them as well).
        self._current_handles: set[str] = set()
        self._base: Versioned[Block] = Versioned()

    async def run(self) -> None:
        try:
            while self._open():
                await self._attempt()
        except SuiteError as err:
            # Of the datastore, or of a block that is no use: everybody's answer.
            for ticket in self._open():
                ticket.outcome = err

    def _open(self) -> list[_Ticket]:
        return [ticket for ticket in self._tickets if ticket.outcome is None]

    async def _attempt(self) -> None:
        """One look, and one write if that is what it takes. Errors: SuiteError, for all."""
        tickets = self._open()
        try:
            plan = await self._plan(tickets)
            if plan is not None:
                await self._write(plan, tickets)
        except DatastoreUnavailable as err:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise
            LOG.warning("ipam retries after a datastore failure", cidr=self._lane.cidr, error=err)
            await self._context.pause(self._failures)

    # ---- planning ------------------------------------------------------------------------------

    async def _plan(self, tickets: Sequence[_Ticket]) -> Plan | None:
        """A plan that is worth writing. None: there is none, or look again."""
        context = self._context
        self._base = await self._view()
        block = self._base.value
        moment = Moment(context.clock.wall(), tickets[0].terms.cooldown_s)
        attempts = [Attempt(ticket.operation, ticket.unsure) for ticket in tickets]
        plan = batch.plan(self._lane.cidr, block, attempts, context.handles, moment)
        doubtful = plan.unread | (_contradicting(plan) - self._current_handles)
        if doubtful:
            context.handles.update(await read_handles(context.records, doubtful))
            self._current_handles |= doubtful
            return None
        all_answered = self._answer_observations(tickets, plan)
        if plan.writes:
            return plan
        if not all_answered:
            self._lane.view = None
        return None

    async def _view(self) -> Versioned[Block]:
        """Errors: MalformedBlock, DecodeError."""
        lane = self._lane
        if lane.view is None:
            self._see(await self._context.records.block(lane.cidr))
        assert lane.view is not None
        return lane.view

    def _see(self, view: Versioned[Block]) -> None:
        """The block as it is in the datastore now. Errors: MalformedBlock."""
        self._lane.view = None
        if view.value is not None:
            blocks.check_usable(view.value)
        self._know(view)

    def _know(self, view: Versioned[Block]) -> None:
        """As `_see`, for what we wrote ourselves."""
        self._lane.know(view)
        for ticket in self._tickets:
            ticket.seen_fresh = True

    def _answer_observations(self, tickets: Sequence[_Ticket], plan: Plan) -> bool:
        """Answer what needs no write. False when some of that needs a fresher view (L2)."""
        complete = True
        block = self._base.value
        for ticket, result in zip(tickets, plan.results, strict=True):
            if not _is_observation(result):
                continue
            waived = ticket.terms.remembered_ok and isinstance(result, Done)
            if ticket.seen_fresh or waived:
                ticket.outcome = _outcome(result, block)
            else:
                complete = False
        return complete

    # ---- writing -------------------------------------------------------------------------------

    async def _write(self, plan: Plan, tickets: Sequence[_Ticket]) -> None:
        cidr, handles = self._lane.cidr, self._context.handles
        changes = [
            Change(BlockKey(cidr), self._base.mod_revision, plan.block_after),
            *(Change(g.key, g.mod_revision, keep=True) for g in _guards(tickets, plan)),
        ]
        together = list(plan.handles_after.items())[:MAX_HANDLES]
        for handle_id, handle in together:
            known = handles.get(handle_id, Versioned())
            changes.append(Change(HandleKey(handle_id), known.mod_revision, handle))
        _tell_planned(tickets, plan)
        try:
            committed = await self._context.records.commit(changes)
        except (DatastoreUnavailable, asyncio.CancelledError):
            self._become_unsure(plan, tickets)
            raise
        if committed.succeeded:
            self._succeed(plan, tickets, committed.revision)
            await self._settle_later(plan)
        else:
            await self._lose(changes, committed.found)

    def _become_unsure(self, plan: Plan, tickets: Sequence[_Ticket]) -> None:
        """L3, L4: it may be written or not. (What we remember of its handles may be wrong now; that
        costs a conflict, no more.)"""
        self._lane.view = None
        for ticket, result in zip(tickets, plan.results, strict=True):
            if isinstance(result, Done) and result.wrote:
                ticket.unsure += (result.value,)

    def _succeed(self, plan: Plan, tickets: Sequence[_Ticket], revision: int) -> None:
        for handle_id, handle in list(plan.handles_after.items())[:MAX_HANDLES]:
            gone = handle is None
            self._context.handles[handle_id] = Versioned(handle, 0 if gone else revision)
        for mismatch in plan.mismatches:
            LOG.warning("ipam handle not decremented", key=mismatch.handle_id, error=mismatch)
        after = plan.block_after
        self._know(Versioned(after, revision) if after is not None else Versioned())
        for ticket, result in zip(tickets, plan.results, strict=True):
            if isinstance(result, Done) and result.wrote:
                ticket.outcome = Served(result.value, after)

    async def _settle_later(self, plan: Plan) -> None:
        """A release of very many handles: the rest is counted down after the block, as Calico
        does for all. Nothing of an assignment is ever among them: those come first."""
        cidr, context = self._lane.cidr, self._context
        for handle_id, after in list(plan.handles_after.items())[MAX_HANDLES:]:
            before = context.handles.pop(handle_id, Versioned()).value
            kept = after.block.get(cidr, 0) if after is not None else 0
            counted = before.block.get(cidr, 0) if before is not None else 0
            await count_down(context.records, handle_id, cidr, counted - kept)

    async def _lose(self, changes: Sequence[Change], found: Sequence[KeyValue | None]) -> None:
        """Somebody wrote first. The answer shows everything as it is: no need to read again."""
        lost: set[Guard] = set()
        for change, kv in zip(changes, found, strict=True):
            key = change.key
            if isinstance(key, HandleKey):
                self._context.handles[key.handle_id] = versioned(key, kv, Handle)
            elif isinstance(key, BlockKey):
                self._see(versioned(key, kv, Block))
            elif (kv.mod_revision if kv else 0) != change.mod_revision:
                lost.add(Guard(key, change.mod_revision))
        for ticket in self._open():
            if ticket.terms.guard in lost:
                ticket.outcome = GuardLost(f"what guards block {self._lane.cidr} has changed")
        self._conflicts += 1
        if self._conflicts >= MAX_CONFLICTS:
            raise RetriesExhausted
        await self._be_patient()

    async def _be_patient(self) -> None:
        excess = self._conflicts - _PATIENT_CONFLICTS
        if excess > 0:
            limit = min(_BACKOFF_STEP_S * 2**excess, _BACKOFF_MAX_S)
            await self._context.clock.sleep(self._context.random.uniform(0, limit))


class Lanes:
    """The lanes in use. Idle ones are forgotten, oldest first, when there are too many."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lanes: OrderedDict[str, Lane] = OrderedDict()

    def of(self, cidr: str) -> Lane:
        lane = self._lanes.get(cidr)
        if lane is None:
            self._forget_some()
            lane = self._lanes[cidr] = Lane(cidr, self.context)
        self._lanes.move_to_end(cidr)
        return lane

    def is_known_full(self, cidr: str, since: float = 0.0) -> bool:
        """Whether the block had no address to give when last seen, at `since` or later."""
        lane = self._lanes.get(cidr)
        if lane is None or lane.view is None:
            return False
        return lane.seen_full and lane.seen_at >= since

    def forget_view(self, cidr: str) -> None:
        """The block was written by other means."""
        if cidr in self._lanes:
            self._lanes[cidr].view = None

    def _forget_some(self) -> None:
        if len(self._lanes) >= MAX_LANES:
            for cidr in [cidr for cidr, lane in self._lanes.items() if lane.is_idle][:64]:
                del self._lanes[cidr]

    def dump(self) -> dict[str, object]:
        """State for the debug endpoint."""
        known = {cidr: lane.view.mod_revision for cidr, lane in self._lanes.items() if lane.view}
        return {"lanes": known, "handles": len(self.context.handles)}


def _is_cooling(block: Block) -> bool:
    """Whether an address may come free just because time passes."""
    return any(attribute.released_at is not None for attribute in block.attributes or ())


def _tell_planned(tickets: Sequence[_Ticket], plan: Plan) -> None:
    for ticket, result in zip(tickets, plan.results, strict=True):
        told = ticket.terms.planned
        if told is not None and isinstance(result, Done) and result.wrote:
            told(result.value)


def _guards(tickets: Sequence[_Ticket], plan: Plan) -> set[Guard]:
    """The guards of those whose result is about to be written."""
    return {
        ticket.terms.guard
        for ticket, result in zip(tickets, plan.results, strict=True)
        if ticket.terms.guard is not None and isinstance(result, Done) and result.wrote
    }


def _contradicting(plan: Plan) -> set[str]:
    """Handles that, as we remember them, refuse something."""
    limits = [r.error for r in plan.results if isinstance(r, Refused)]
    refusing = {error.handle_id for error in limits if isinstance(error, HandleLimitReached)}
    return refusing | {mismatch.handle_id for mismatch in plan.mismatches}


def _is_observation(result: Result) -> bool:
    return result is not LATER and not (isinstance(result, Done) and result.wrote)


def _outcome(result: Result, block: Block | None) -> Served | SuiteError:
    if isinstance(result, Refused):
        return result.error
    assert isinstance(result, Done)
    return Served(result.value, block)
