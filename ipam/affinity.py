"""Who owns a block: the affinity key beside the block's own record, and how the two are kept equal.

Layer: ipam, pure. Used by `ipam.client.claims` (which performs the plans) and by whoever reads a
block's `affinity`.

The truth is in the block: its `affinity` says who may assign from it freely. The affinity key is
the index by host, and the lock word of Calico's three-step protocol, which writes it before and
after the block:

    (none) ─ claim ─► pending ─ block written ─► confirmed ─ release ─► pendingDeletion ─► (none)

We write key and block in ONE transaction that compares the revisions of both, so `pending` and
`pendingDeletion` are never seen on our behalf; what is stored at the end is the same. Calico's own
intermediate states are met after its crashes and in its races, and every plan below handles them.

  A1  a plan compares both keys, always: it can only apply to exactly the state it was made for;
  A2  a block with another owner is never written; at most our own stale affinity key is deleted;
  A3  an affinity that was not confirmed becomes so only together with a write of its block, so that
      whoever read the block before loses his compare-and-swap;
  A4  an empty state is an old confirmed one.

Source: datamodel §2.2, §2.4, §2.6; Calico libcalico-go/lib/ipam/ipam_block_reader_writer.go.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ipam import blocks
from ipam.requests import HostReserved
from libcalico.errors import AffinityLost, BlockNotEmpty, NotFound, SuiteError
from libcalico.model.ipam import AFFINITY_CONFIRMED, Block, BlockAffinity
from libcalico.model.keys import BlockAffinityKey

HOST = "host"
VIRTUAL = "virtual"
LOAD_BALANCER_HOST = "load-balancer"
# A block younger than this is not taken from its owner, who may be about to use it (§2.4).
RECLAIM_MIN_AGE_S = 60.0

CONFIRMED = BlockAffinity(state=AFFINITY_CONFIRMED)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value as read; `mod_revision` 0 with value None means: the key does not exist."""

    value: T | None = None
    mod_revision: int = 0


@dataclass(frozen=True, slots=True)
class Owner:
    """Calico's AffinityConfig. `str()` is what a block stores: "host:<node>"."""

    host: str
    type: str = HOST

    def __str__(self) -> str:
        return f"{self.type}:{self.host}"

    def key(self, cidr: str) -> BlockAffinityKey:
        return BlockAffinityKey(self.host, cidr, self.type)


LOAD_BALANCER = Owner(LOAD_BALANCER_HOST, VIRTUAL)


def owner_of(block: Block) -> Owner | None:
    """The owner a block records, None without (or with one nobody can read)."""
    kind, separator, host = (block.affinity or "").partition(":")
    if not separator or kind not in (HOST, VIRTUAL) or not host:
        return None
    return Owner(host, kind)


def is_confirmed(affinity: BlockAffinity | None) -> bool:
    return affinity is not None and affinity.effective_state == AFFINITY_CONFIRMED


@dataclass(frozen=True, slots=True)
class Pair:
    """The two keys of one block as read: the owner's affinity and the block."""

    affinity: Versioned[BlockAffinity] = Versioned()
    block: Versioned[Block] = Versioned()


class ClaimStep(enum.Enum):
    """What a claim has to do next."""

    USE = "use"  # ours already, confirmed
    WRITE = "write"  # write both, then it is ours
    LOST = "lost"  # somebody else's; if an affinity of ours exists, delete it


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """WRITE: `block` and a confirmed affinity are to be written. LOST: see `ClaimStep`."""

    step: ClaimStep
    block: Block | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claimed block is made of. `now` in seconds since the epoch (it is stored)."""

    owner: Owner
    cidr: str
    now: float
    first_sequence: int
    reserved: HostReserved | None = None


def plan_claim(claim: Claim, pair: Pair) -> ClaimPlan:
    """Make `claim.owner` the owner of the block, or find that it belongs to another."""
    block = pair.block.value
    if block is None:
        return ClaimPlan(ClaimStep.WRITE, new_claimed_block(claim))
    if block.affinity != str(claim.owner):
        return ClaimPlan(ClaimStep.LOST)
    if is_confirmed(pair.affinity.value):
        return ClaimPlan(ClaimStep.USE, block)
    # A3: the rewrite defeats whoever is half way through taking the block from us.
    return ClaimPlan(ClaimStep.WRITE, blocks.bumped(block))


def new_claimed_block(claim: Claim) -> Block:
    fresh = blocks.new_block(claim.cidr, claim.first_sequence, claim.reserved)
    return msgspec.structs.replace(
        fresh, affinity=str(claim.owner), affinity_claim_time=blocks.format_time(claim.now)
    )


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """`block_after` None: delete the block. `error`: nothing of the block may be written; with
    `drop_affinity` the owner's stale key goes before the error is raised."""

    block_after: Block | None = None
    error: SuiteError | None = None
    drop_affinity: bool = True


def plan_release(
    owner: Owner, pair: Pair, *, must_be_empty: bool, sequence_number: int | None = None
) -> ReleasePlan:
    """End `owner`'s affinity: an empty block is deleted, another one stays without an owner."""
    block = pair.block.value
    if pair.affinity.value is None:
        return ReleasePlan(error=NotFound(str(owner)), drop_affinity=False)
    if block is None:
        return ReleasePlan()  # nothing to own: the key is all there is to delete
    if sequence_number is not None and sequence_number != block.sequence_number:
        error = AffinityLost("IPAM block updated since we last read it")
        return ReleasePlan(error=error, drop_affinity=False)
    if block.affinity is not None and block.affinity != str(owner):
        return ReleasePlan(error=AffinityLost(f"block {block.cidr} belongs to {block.affinity}"))
    if blocks.is_empty(block):
        return ReleasePlan()
    if must_be_empty:
        return ReleasePlan(
            error=BlockNotEmpty(f"block {block.cidr} is not empty"), drop_affinity=False
        )
    return ReleasePlan(block_after=blocks.without_affinity(block))


def may_reclaim(block: Block, now: float) -> bool:
    """Whether another host may take this empty block. No claim time counts as old."""
    claimed_at = blocks.parse_time(block.affinity_claim_time)
    return blocks.is_empty(block) and (claimed_at is None or now - claimed_at >= RECLAIM_MIN_AGE_S)
