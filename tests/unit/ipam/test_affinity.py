"""ipam.affinity: every meeting of an affinity key and a block (datamodel §2.4, §2.6)."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from ipam import affinity, blocks
from ipam.affinity import Claim, ClaimStep, Owner, Pair, Versioned, plan_claim, plan_release
from ipam.blocks import BlockDraft, Holder
from ipam.requests import WINDOWS_RESERVED
from libcalico.errors import AffinityLost, BlockNotEmpty, NotFound
from libcalico.model import codec
from libcalico.model.ipam import Block, BlockAffinity
from libcalico.model.keys import path_of

CIDR, NOW = "10.10.3.64/28", 1_787_476_801.9
ME, OTHER = Owner("worker-1"), Owner("worker-2")
CLAIM = Claim(ME, CIDR, NOW, 77)


def block(owner: Owner | None = ME, used: int = 0, claimed_at: str | None = None) -> Block:
    made = blocks.new_block(CIDR, 5)
    if used:
        draft = BlockDraft(made)
        draft.assign(used, Holder("h", {}))
        made = draft.finish()
    text = None if owner is None else str(owner)
    return replace(made, affinity=text, affinity_claim_time=claimed_at)


def pair(state: str | None, stored: Block | None) -> Pair:
    found = Versioned() if state is None else Versioned(BlockAffinity(state=state), 7)
    return Pair(found, Versioned(stored, 0 if stored is None else 9))


def test_owners_and_keys_are_written_as_calico_writes_them():
    assert str(ME) == "host:worker-1"
    assert path_of(ME.key(CIDR)) == "/calico/ipam/v2/host/worker-1/ipv4/block/10.10.3.64-28"
    assert str(affinity.LOAD_BALANCER) == "virtual:load-balancer"
    assert path_of(affinity.LOAD_BALANCER.key("fd00::/122")) == (
        "/calico/ipam/v2/virtual/load-balancer/ipv6/block/fd00::-122"
    )
    assert json.loads(codec.encode(affinity.CONFIRMED)) == {"state": "confirmed", "deleted": False}


@pytest.mark.parametrize(
    ("text", "owner"),
    [("host:worker-1", ME), ("virtual:load-balancer", affinity.LOAD_BALANCER), (None, None),
     ("worker-1", None), ("host:", None), ("cloud:x", None), ("host:a:b", Owner("a:b"))],
)  # fmt: skip
def test_the_owner_is_read_from_the_block(text: str | None, owner: Owner | None):
    assert affinity.owner_of(replace(block(), affinity=text)) == owner


@pytest.mark.parametrize(
    ("state", "confirmed"),
    [("confirmed", True), ("", True), ("pending", False), ("pendingDeletion", False)],
)
def test_an_empty_state_is_an_old_confirmed_one(state: str, confirmed: bool):
    assert affinity.is_confirmed(BlockAffinity(state=state)) is confirmed
    assert not affinity.is_confirmed(None)


# ---- claim -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, "pending", "pendingDeletion", "confirmed", ""])
def test_a_missing_block_is_made_whatever_the_key_says(state: str | None):
    plan = plan_claim(CLAIM, pair(state, None))
    assert plan.step is ClaimStep.WRITE
    assert plan.block == replace(
        blocks.new_block(CIDR, 77),
        affinity="host:worker-1",
        affinity_claim_time="2026-08-23T09:20:01Z",
    )


@pytest.mark.parametrize("state", ["confirmed", ""])
def test_our_confirmed_block_is_used_as_it_is(state: str):
    assert plan_claim(CLAIM, pair(state, block())).step is ClaimStep.USE


@pytest.mark.parametrize("state", [None, "pending", "pendingDeletion"])
def test_an_unconfirmed_affinity_is_confirmed_with_a_rewrite_of_the_block(state: str | None):
    plan = plan_claim(CLAIM, pair(state, block(used=2)))
    assert plan.step is ClaimStep.WRITE
    assert plan.block == replace(block(used=2), sequence_number=7)


@pytest.mark.parametrize("state", [None, "pending", "confirmed", "pendingDeletion"])
@pytest.mark.parametrize("owner", [OTHER, None, affinity.LOAD_BALANCER])
def test_a_block_of_another_is_lost_whatever_our_key_says(state: str | None, owner: Owner | None):
    assert plan_claim(CLAIM, pair(state, block(owner))).step is ClaimStep.LOST


def test_a_windows_block_keeps_its_reserved_addresses():
    plan = plan_claim(Claim(ME, CIDR, NOW, 77, WINDOWS_RESERVED), pair(None, None))
    assert plan.block is not None
    assert plan.block.unallocated == tuple(range(3, 15))


# ---- release -----------------------------------------------------------------------------------


def test_an_empty_block_goes_with_its_affinity():
    plan = plan_release(ME, pair("confirmed", block()), must_be_empty=True)
    assert (plan.block_after, plan.error, plan.drop_affinity) == (None, None, True)


def test_a_block_in_use_stays_without_an_owner():
    plan = plan_release(ME, pair("confirmed", block(used=1)), must_be_empty=False)
    assert plan.error is None
    assert plan.block_after == replace(
        block(used=1), affinity=None, affinity_claim_time=None, sequence_number=7
    )


def test_a_block_in_use_is_kept_when_it_must_be_empty():
    plan = plan_release(ME, pair("confirmed", block(used=1)), must_be_empty=True)
    assert isinstance(plan.error, BlockNotEmpty)
    assert not plan.drop_affinity


def test_a_stale_affinity_is_deleted_and_the_block_of_another_left_alone():
    plan = plan_release(ME, pair("confirmed", block(OTHER)), must_be_empty=False)
    assert isinstance(plan.error, AffinityLost)
    assert plan.drop_affinity


def test_a_block_that_has_no_owner_already_is_finished_off():
    """Calico died between clearing the block and deleting the key."""
    plan = plan_release(ME, pair("pendingDeletion", block(None, used=1)), must_be_empty=False)
    assert plan.error is None
    assert plan.drop_affinity


def test_an_affinity_without_a_block_is_deleted():
    plan = plan_release(ME, pair("confirmed", None), must_be_empty=True)
    assert (plan.error, plan.drop_affinity) == (None, True)


def test_no_affinity_is_not_found_and_nothing_is_written():
    plan = plan_release(ME, pair(None, block()), must_be_empty=False)
    assert isinstance(plan.error, NotFound)
    assert not plan.drop_affinity


def test_a_block_that_changed_since_it_was_read_is_not_taken():
    stored = pair("confirmed", block())
    plan = plan_release(ME, stored, must_be_empty=True, sequence_number=4)
    assert str(plan.error) == "IPAM block updated since we last read it"
    assert not plan.drop_affinity
    assert plan_release(ME, stored, must_be_empty=True, sequence_number=5).error is None


@pytest.mark.parametrize(
    ("claimed_at", "used", "expected"),
    [("2026-08-23T09:20:00Z", 0, False), ("2026-08-23T09:19:01Z", 0, True), (None, 0, True),
     ("2026-08-23T09:00:00Z", 1, False)],
)  # fmt: skip
def test_an_empty_block_may_be_reclaimed_after_a_minute(
    claimed_at: str | None, used: int, expected: bool
):
    assert affinity.may_reclaim(block(OTHER, used, claimed_at), NOW) is expected
