"""Claiming blocks for a host and giving them up: compare-and-swap around `ipam.affinity`'s plans.

Layer: ipam edge. Used by `ipam.client.assign`, `.release` and `.affinities`.

Affinity key and block are written in one transaction, so a crash leaves both or neither (A1). Lost
answers need no special care: the pair is read again and the plan made for what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipam import blocks
from ipam.affinity import (
    CONFIRMED,
    Claim,
    ClaimPlan,
    ClaimStep,
    Owner,
    Pair,
    Versioned,
    owner_of,
    plan_claim,
    plan_release,
)
from ipam.client.hosts import Hosts
from ipam.client.lane import Guard, Lanes
from ipam.client.records import Change, Records, versioned
from ipam.errors import RetriesExhausted
from ipam.requests import HostReserved
from libcalico.datastore.api import KeyValue
from libcalico.errors import AffinityLost, DatastoreUnavailable
from libcalico.model.ipam import Block, BlockAffinity
from libcalico.model.keys import BlockKey
from libcalico.runtime import log
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)
MAX_CONFLICTS = 100
MAX_FAILURES = 5


@dataclass(frozen=True, slots=True)
class Owned:
    """A block that is the owner's, and the guard that proves it at the next write."""

    block: Block
    guard: Guard


class Claims:
    """Claims and releases of block affinities."""

    def __init__(self, lanes: Lanes, hosts: Hosts) -> None:
        self._lanes = lanes
        self._records: Records = lanes.context.records
        self._clock: Clock = lanes.context.clock
        self._hosts = hosts
        self._last_sequence = 0

    # ---- claiming ------------------------------------------------------------------------------

    async def claim(
        self, owner: Owner, cidr: str, reserved: HostReserved | None = None
    ) -> Owned | None:
        """Make the block `owner`'s, creating it if need be. None: it belongs to another."""
        # The guess that neither key exists saves the reads; a wrong one is answered with the truth.
        return await self._claim(owner, cidr, Pair(), reserved)

    async def confirm(
        self, owner: Owner, cidr: str, reserved: HostReserved | None = None
    ) -> Owned | None:
        """As `claim`, for an affinity key that was there a moment ago: where it is gone meanwhile
        (a pool is being deleted) nothing is created. None as well when it was stale; then the key
        has been deleted."""
        pair = await self._read(owner, cidr)
        if pair.affinity.value is None:
            self._hosts.note(owner, cidr, Versioned())
            return None
        return await self._claim(owner, cidr, pair, reserved)

    async def _claim(
        self, owner: Owner, cidr: str, pair: Pair, reserved: HostReserved | None
    ) -> Owned | None:
        failures = 0
        for _ in range(MAX_CONFLICTS):
            claim = Claim(owner, cidr, self._clock.wall(), self._next_sequence(), reserved)
            plan = plan_claim(claim, pair)
            if plan.step is ClaimStep.USE:
                return self._owned(owner, cidr, pair)
            try:
                written = await self._perform(owner, cidr, pair, plan)
            except DatastoreUnavailable:
                failures += 1
                if failures >= MAX_FAILURES:
                    raise
                await self._lanes.context.pause(failures)
                written = await self._read(owner, cidr)
            if plan.step is ClaimStep.LOST and written is None:
                self._hosts.note(owner, cidr, Versioned())
                return None
            assert written is not None
            pair = written
        raise RetriesExhausted

    async def _perform(self, owner: Owner, cidr: str, pair: Pair, plan: ClaimPlan) -> Pair | None:
        """One write. The pair as it is afterwards; None: the block is another's, and no affinity
        of ours is left."""
        if plan.step is ClaimStep.LOST and pair.affinity.value is None:
            return None
        if plan.step is ClaimStep.LOST:
            changes = [_drop(owner, cidr, pair), _kept_block(cidr, pair)]
        else:
            changes = [
                Change(owner.key(cidr), pair.affinity.mod_revision, CONFIRMED),
                Change(BlockKey(cidr), pair.block.mod_revision, plan.block),
            ]
        committed = await self._records.commit(changes)
        if not committed.succeeded:
            return _pair(owner, cidr, committed.found)
        if plan.step is ClaimStep.LOST:
            LOG.info("stale block affinity deleted", cidr=cidr, node=owner.host)
            return None
        LOG.info("block claimed", cidr=cidr, node=owner.host)
        revision = committed.revision
        return Pair(Versioned(CONFIRMED, revision), Versioned(plan.block, revision))

    def _owned(self, owner: Owner, cidr: str, pair: Pair) -> Owned:
        assert pair.block.value is not None
        self._hosts.note(owner, cidr, pair.affinity)
        self._lanes.of(cidr).see(pair.block)
        return Owned(pair.block.value, Guard(owner.key(cidr), pair.affinity.mod_revision))

    def _next_sequence(self) -> int:
        """Nanoseconds since the epoch, and never twice the same (§0.11)."""
        self._last_sequence = max(self._last_sequence + 1, int(self._clock.wall() * 1e9))
        return self._last_sequence

    # ---- giving up -----------------------------------------------------------------------------

    async def release(
        self,
        owner: Owner,
        cidr: str,
        *,
        must_be_empty: bool,
        sequence_number: int | None = None,
    ) -> None:
        """End an affinity. Errors: NotFound (there is none), AffinityLost (the block is another's,
        or has changed since `sequence_number`), BlockNotEmpty."""
        pair = await self._read(owner, cidr)
        failures = 0
        for _ in range(MAX_CONFLICTS):
            plan = plan_release(
                owner, pair, must_be_empty=must_be_empty, sequence_number=sequence_number
            )
            if plan.error is not None and not plan.drop_affinity:
                raise plan.error
            kept = plan.error is not None
            block = _kept_block(cidr, pair) if kept else _block(cidr, pair, plan.block_after)
            try:
                committed = await self._records.commit([_drop(owner, cidr, pair), block])
            except DatastoreUnavailable:
                failures += 1
                if failures >= MAX_FAILURES:
                    raise
                await self._lanes.context.pause(failures)
                pair = await self._read(owner, cidr)
                if pair.affinity.value is None:
                    return self._forget(owner, cidr)
                continue
            if committed.succeeded:
                self._forget(owner, cidr)
                if plan.error is not None:
                    raise plan.error
                LOG.info("block affinity released", cidr=cidr, node=owner.host)
                return None
            pair = _pair(owner, cidr, committed.found)
        raise RetriesExhausted

    async def reclaim(self, block: Block) -> bool:
        """Take an empty block from whoever owns it, unless it has changed since it was read. The
        caller has looked at its age (`may_reclaim`)."""
        owner = owner_of(block)
        if owner is not None:
            await self.release(
                owner,
                block.cidr,
                must_be_empty=True,
                sequence_number=block.sequence_number,
            )
            return True
        if block.affinity is not None:
            return False  # owned by a kind of owner we do not know
        now = await self._records.block(block.cidr)
        if now.value != block:
            return False
        deleted = await self._records.commit([_block(block.cidr, Pair(block=now), None)])
        self._lanes.forget_view(block.cidr)
        return deleted.succeeded

    async def disown(self, owner: Owner, cidr: str) -> None:
        """End the ownership of a block whose affinity key is missing: an empty one is deleted,
        another stays without an owner. Errors: AffinityLost when it is not so (any more)."""
        pair = await self._read(owner, cidr)
        block = pair.block.value
        if pair.affinity.value is not None or block is None or block.affinity != str(owner):
            raise AffinityLost(f"block {cidr} is not one of {owner} without a key")
        after = None if blocks.is_empty(block) else blocks.without_affinity(block)
        absent = Change(owner.key(cidr), 0, keep=True)
        if not (await self._records.commit([absent, _block(cidr, pair, after)])).succeeded:
            raise AffinityLost(f"block {cidr} was written meanwhile")
        self._forget(owner, cidr)
        LOG.info("block without an affinity key given back", cidr=cidr, node=owner.host)

    def _forget(self, owner: Owner, cidr: str) -> None:
        self._hosts.note(owner, cidr, Versioned())
        self._lanes.forget_view(cidr)

    async def _read(self, owner: Owner, cidr: str) -> Pair:
        # The block first: an affinity that vanishes in between is seen as gone, and one that
        # appears makes the compare fail.
        block = await self._records.block(cidr)
        return Pair(await self._records.affinity(owner, cidr), block)


def _drop(owner: Owner, cidr: str, pair: Pair) -> Change:
    return Change(owner.key(cidr), pair.affinity.mod_revision)


def _block(cidr: str, pair: Pair, after: Block | None) -> Change:
    return Change(BlockKey(cidr), pair.block.mod_revision, after)


def _kept_block(cidr: str, pair: Pair) -> Change:
    return Change(BlockKey(cidr), pair.block.mod_revision, keep=True)


def _pair(owner: Owner, cidr: str, found: Sequence[KeyValue | None]) -> Pair:
    affinity, block = found
    return Pair(
        versioned(owner.key(cidr), affinity, BlockAffinity),
        versioned(BlockKey(cidr), block, Block),
    )
