"""A second writer that keeps Calico's protocol to the letter: one key at a time, in Calico's order.

For tests of what happens when both write one datastore. It is slow and forgetful on purpose: every
step is a call of its own, and it may be stopped between any two (`crash_at`), leaving what a dead
Calico process leaves: pending affinities, handles that over-count, affinities in pendingDeletion.

Sources: datamodel §2.4, §2.6; no code is shared with ipam.client (ipam.blocks computes the values).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from ipaddress import ip_network

from msgspec.structs import replace

from ipam import blocks
from ipam.blocks import BlockDraft, Holder
from ipam.handles import decrement, increment
from libcalico.datastore.api import Datastore
from libcalico.errors import AlreadyExists, NotFound, RevisionConflict
from libcalico.model import codec
from libcalico.model.ipam import Block, BlockAffinity, Handle
from libcalico.model.keys import BlockAffinityKey, BlockKey, HandleKey, path_of
from libcalico.net import Address


class Crashed(Exception):
    """The process died here."""


@dataclass(slots=True)
class _Read:
    value: object
    revision: int


class CalicoWriter:
    """One Calico process of one host, with one pool of blocks of one size."""

    def __init__(self, store: Datastore, host: str, pool: str, block_size: int) -> None:
        self.store = store
        self.host = host
        self.blocks = [str(n) for n in ip_network(pool).subnets(new_prefix=block_size)]
        self.crash_at: int | None = None
        self.steps = 0

    # ---- assigning -----------------------------------------------------------------------------

    async def assign(self, handle_id: str) -> Address | None:
        """AutoAssign of one address; None when every block is full."""
        for cidr in await self._candidates():
            for _ in range(100):
                try:
                    return await self._assign_from(cidr, handle_id)
                except RevisionConflict:
                    continue
                except NotFound:
                    break
        return None

    async def _candidates(self) -> list[str]:
        """Own blocks first, then new ones; then everybody's, which is borrowing."""
        own = []
        for cidr in self.blocks:
            if await self._get(self._affinity(cidr)) and await self._own(cidr):
                own.append(cidr)
        if not own:
            for cidr in self.blocks:
                if await self._get(BlockKey(cidr)) is None and await self._own(cidr):
                    own.append(cidr)
                    break
        return [*own, *(cidr for cidr in self.blocks if cidr not in own)]

    async def _own(self, cidr: str) -> bool:
        """Pending affinity, block, confirmed affinity (§2.4)."""
        for _ in range(100):
            try:
                return await self._claim(cidr)
            except (RevisionConflict, NotFound):
                continue
        return False

    async def _claim(self, cidr: str) -> bool:
        affinity = await self._pending(cidr)
        fresh = replace(
            blocks.new_block(cidr, time.time_ns()),
            affinity=f"host:{self.host}",
            affinity_claim_time=blocks.format_time(time.time()),
        )
        found = await self._get(BlockKey(cidr))
        if found is None:
            try:
                await self._create(BlockKey(cidr), fresh)
            except AlreadyExists:
                found = await self._get(BlockKey(cidr))
        if found is not None:
            assert isinstance(found.value, Block)
            if found.value.affinity != fresh.affinity:
                await self._delete(self._affinity(cidr), affinity.revision)
                return False
            if isinstance(affinity.value, BlockAffinity) and affinity.value.state == "pending":
                await self._update(BlockKey(cidr), blocks.bumped(found.value), found.revision)
        try:
            confirmed = BlockAffinity(state="confirmed")
            await self._update(self._affinity(cidr), confirmed, affinity.revision)
        except RevisionConflict:
            now = await self._get(self._affinity(cidr))
            if now is None or now.value != BlockAffinity(state="confirmed"):
                raise
        return True

    async def _pending(self, cidr: str) -> _Read:
        key, pending = self._affinity(cidr), BlockAffinity(state="pending")
        try:
            return _Read(pending, await self._create(key, pending))
        except AlreadyExists:
            found = await self._get(key)
            if found is None:
                raise RevisionConflict(path_of(key)) from None
            if found.value == BlockAffinity(state="confirmed"):
                return found
            return _Read(pending, await self._update(key, pending, found.revision))

    async def _assign_from(self, cidr: str, handle_id: str) -> Address:
        found = await self._get(BlockKey(cidr))
        if found is None:
            raise NotFound(cidr)
        assert isinstance(found.value, Block)
        draft = BlockDraft(found.value)
        draft.collect(time.time(), 0)
        ordinals = draft.assign(1, Holder(handle_id, {"node": self.host}))
        if not ordinals:
            raise NotFound(cidr)
        await self._count(handle_id, cidr, 1)
        try:
            await self._update(BlockKey(cidr), draft.finish(), found.revision)
        except (RevisionConflict, NotFound):
            await self._count(handle_id, cidr, -1)
            raise
        return draft.address(ordinals[0])

    # ---- releasing -----------------------------------------------------------------------------

    async def release(self, handle_id: str) -> None:
        """ReleaseByHandle."""
        handle = await self._get(HandleKey(handle_id))
        if handle is None:
            return
        assert isinstance(handle.value, Handle)
        for cidr in handle.value.block:
            for _ in range(100):
                try:
                    await self._release_from(cidr, handle_id)
                except RevisionConflict:
                    continue
                break

    async def _release_from(self, cidr: str, handle_id: str) -> None:
        found = await self._get(BlockKey(cidr))
        if found is None:
            return
        assert isinstance(found.value, Block)
        draft = BlockDraft(found.value)
        released = draft.release_handle(handle_id, time.time(), 0)
        if not released:
            return
        after = draft.finish()
        if after.affinity is None and blocks.is_empty(after):
            await self._delete(BlockKey(cidr), found.revision)
        else:
            await self._update(BlockKey(cidr), after, found.revision)
        await self._count(handle_id, cidr, -len(released))

    async def release_affinity(self, cidr: str) -> None:
        """pendingDeletion, then the block, then the key (§2.6), whatever is in the block."""
        key = self._affinity(cidr)
        affinity, found = await self._get(key), await self._get(BlockKey(cidr))
        if affinity is None or found is None:
            return
        assert isinstance(found.value, Block)
        if found.value.affinity != f"host:{self.host}":
            await self._delete(key, affinity.revision)
            return
        going = BlockAffinity(state="pendingDeletion")
        revision = await self._update(key, going, affinity.revision)
        if blocks.is_empty(found.value):
            await self._delete(BlockKey(cidr), found.revision)
        else:
            without = blocks.without_affinity(found.value)
            await self._update(BlockKey(cidr), without, found.revision)
        await self._delete(key, revision)

    # ---- one key at a time ---------------------------------------------------------------------

    async def _count(self, handle_id: str, cidr: str, by: int) -> None:
        key = HandleKey(handle_id)
        for _ in range(100):
            found = await self._get(key)
            before = found.value if found else None
            assert before is None or isinstance(before, Handle)
            try:
                if by > 0:
                    after: Handle | None = increment(before, handle_id, cidr, by)
                else:
                    after = decrement(before, handle_id, cidr, -by)
                if found is None:
                    assert after is not None
                    await self._create(key, after)
                elif after is None:
                    await self._delete(key, found.revision)
                else:
                    await self._update(key, after, found.revision)
                return
            except (RevisionConflict, AlreadyExists, NotFound):
                continue

    def _affinity(self, cidr: str) -> BlockAffinityKey:
        return BlockAffinityKey(self.host, cidr)

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise Crashed

    async def _get(self, key: BlockKey | BlockAffinityKey | HandleKey) -> _Read | None:
        kv = await self.store.get(path_of(key))
        if kv is None:
            return None
        return _Read(codec.decode(key, kv.value, kv.mod_revision), kv.mod_revision)

    async def _create(self, key: BlockKey | BlockAffinityKey | HandleKey, value: object) -> int:
        self._step()
        return await self.store.create(path_of(key), codec.encode(value))  # type: ignore[arg-type]

    async def _update(
        self, key: BlockKey | BlockAffinityKey | HandleKey, value: object, revision: int
    ) -> int:
        self._step()
        raw = codec.encode(value)  # type: ignore[arg-type]
        return await self.store.update(path_of(key), raw, revision)

    async def _delete(self, key: BlockKey | BlockAffinityKey | HandleKey, revision: int) -> None:
        self._step()
        await self.store.delete(path_of(key), mod_revision=revision)
