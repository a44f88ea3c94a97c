"""ipam.batch: many requests, one write of block and handles."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.affinity import Owner, Versioned
from ipam.batch import (
    LATER,
    Assigned,
    AssignMany,
    AssignOne,
    Attempt,
    BlockMissing,
    Done,
    Moment,
    Operation,
    Plan,
    Refused,
    ReleaseHandle,
    ReleaseMany,
    Result,
    plan,
)
from ipam.blocks import BlockDraft, Holder, ReleaseEffect
from ipam.errors import HandleLimitReached
from ipam.requests import Release
from libcalico.errors import AffinityLost, AlreadyExists, BadSequenceNumber
from libcalico.model.ipam import Block, Handle

CIDR, SEQ = "10.10.3.64/30", 100
ME, OTHER = Owner("worker-1"), Owner("worker-2")
MOMENT = Moment(1_787_476_801.5, 0)


def holder(name: str) -> Holder:
    return Holder(f"net.{name}", {"pod": name})


def block(*held: str, affinity: str | None = str(ME)) -> Block:
    draft = BlockDraft(blocks.new_block(CIDR, SEQ - 1))
    for name in held:
        draft.assign(1, holder(name))
    return replace(draft.finish(), affinity=affinity)


def many(name: str, count: int = 1, **more: object) -> AssignMany:
    terms: dict[str, object] = {"owner": ME, "must_own": True, **more}
    return AssignMany(count=count, holder=holder(name), **terms)  # type: ignore[arg-type]


def one(address: str, name: str = "a", **more: object) -> AssignOne:
    terms: dict[str, object] = {"owner": ME, "must_own": False, **more}
    return AssignOne(address=ip_address(address), holder=holder(name), **terms)  # type: ignore[arg-type]


def release(ordinal: int, **more: object) -> ReleaseMany:
    address = ip_address("10.10.3.64") + ordinal
    return ReleaseMany((Release(address=address, **more),))  # type: ignore[arg-type]


def known(**counts: int) -> dict[str, Versioned[Handle]]:
    return {f"net.{n}": Versioned(Handle(block={CIDR: c}), 5) for n, c in counts.items()}


def run(stored: Block | None, *operations: Operation, handles: object = None) -> Plan:
    attempts = [Attempt(operation) for operation in operations]
    return plan(CIDR, stored, attempts, handles or {}, MOMENT)  # type: ignore[arg-type]


def ordinals(result: Result) -> tuple[int, ...]:
    assert isinstance(result, Done)
    assert isinstance(result.value, Assigned)
    return result.value.ordinals


def error(result: Result) -> Exception:
    assert isinstance(result, Refused)
    return result.error


# ---- one write for many ------------------------------------------------------------------------


def test_several_requests_share_one_write_and_each_has_its_own_addresses_and_handle():
    made = run(block(), many("a"), many("b", 2), many("c"))
    assert [ordinals(result) for result in made.results] == [(0,), (1, 2), (3,)]
    assert made.block_after is not None
    assert made.block_after.sequence_number == SEQ + 1
    assert made.handles_after == {
        "net.a": Handle(block={CIDR: 1}),
        "net.b": Handle(block={CIDR: 2}),
        "net.c": Handle(block={CIDR: 1}),
    }
    assert blocks.problems_of(made.block_after) == ()


def test_a_handle_counts_what_was_got_not_what_was_asked_for():
    made = run(block("x", "y"), many("a", 4))
    assert ordinals(made.results[0]) == (2, 3)
    assert made.handles_after == {"net.a": Handle(block={CIDR: 2})}


def test_a_known_handle_is_counted_up():
    before = Versioned(Handle(block={"10.10.9.0/30": 1}), 5)
    made = run(block(), many("a"), many("a"), handles={"net.a": before})
    assert made.handles_after == {"net.a": Handle(block={"10.10.9.0/30": 1, CIDR: 2})}


def test_a_full_block_gives_nothing_and_writes_nothing():
    made = run(block("a", "b", "c", "d"), many("e"))
    assert made.results == [Done(Assigned())]
    assert not made.writes


def test_a_refused_request_leaves_no_trace():
    made = run(
        block("x"), many("a"), one("10.10.3.64", "b"), release(0, sequence_number=3),
        handles=known(x=1),
    )  # fmt: skip
    assert isinstance(error(made.results[1]), AlreadyExists)
    assert isinstance(error(made.results[2]), BadSequenceNumber)
    alone = run(block("x"), many("a"), handles=known(x=1))
    assert made.block_after == alone.block_after
    assert made.handles_after == alone.handles_after


def test_no_write_moves_an_address_from_one_holder_to_another():
    """W1: of a full block, what is released in a write is assigned in the next one only."""
    full = block("a", "b", "c", "d")
    made = run(full, release(1), many("e"), handles=known(b=1))
    assert made.results[1] is LATER
    assert made.block_after is not None
    assert made.block_after.allocations[1] is None
    then = run(made.block_after, many("e"))
    assert ordinals(then.results[0]) == (1,)


def test_assignments_go_before_releases_but_results_keep_their_order():
    made = run(block("a"), release(0), many("b"), handles=known(a=1))
    assert ordinals(made.results[1]) == (1,)
    assert isinstance(made.results[0], Done)
    assert isinstance(made.results[0].value, ReleaseEffect)


# ---- affinity ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("affinity", "text"),
    [
        (str(OTHER), "Block affinity (host:worker-2) does not match provided (worker-1:host)"),
        (None, "Attempt to assign from block 10.10.3.64/30 with no affinity"),
    ],
)
def test_an_automatic_request_that_must_own_the_block_is_refused(affinity: str | None, text: str):
    made = run(block(affinity=affinity), many("a"))
    assert isinstance(error(made.results[0]), AffinityLost)
    assert str(error(made.results[0])) == text
    assert ordinals(run(block(affinity=affinity), many("a", must_own=False)).results[0]) == (0,)


def test_one_address_of_anothers_block_is_refused_under_strict_affinity_only():
    stored = block(affinity=str(OTHER))
    made = run(stored, one("10.10.3.66", must_own=True))
    assert str(error(made.results[0])) == "Block host affinity does not match"
    assert ordinals(run(stored, one("10.10.3.66")).results[0]) == (2,)
    nobodys = run(block(affinity=None), one("10.10.3.66", must_own=True))
    assert str(error(nobodys.results[0])) == (
        "Attempt to assign from block 10.10.3.64/30 with no affinity"
    )


# ---- releases ----------------------------------------------------------------------------------


def test_a_release_counts_its_handle_down_and_deletes_it_at_zero():
    made = run(block("a", "b"), release(0), handles=known(a=1))
    assert made.handles_after == {"net.a": None}
    assert run(block("a", "a"), release(0), handles=known(a=2)).handles_after == {
        "net.a": Handle(block={CIDR: 1})
    }


def test_a_handle_that_was_not_read_is_asked_for():
    made = run(block("a"), release(0))
    assert made.unread == {"net.a"}


def test_a_handle_that_does_not_fit_is_left_alone_and_the_address_is_free():
    made = run(block("a"), release(0), handles={"net.a": Versioned()})
    assert [str(mismatch) for mismatch in made.mismatches] == [
        "Tried to decrement block 10.10.3.64/30 by 1 but it isn't linked to handle net.a"
    ]
    assert made.handles_after == {}
    assert made.writes


@pytest.mark.parametrize("operation", [release(0), ReleaseHandle("net.a")])
def test_the_last_address_of_a_block_without_affinity_takes_the_block_along(operation: Operation):
    made = run(block("a", affinity=None), operation, handles=known(a=1))
    assert made.writes
    assert made.block_after is None


def test_an_affine_block_stays_when_it_is_empty():
    made = run(block("a"), release(0), handles=known(a=1))
    assert made.block_after is not None


def test_a_cooling_block_without_affinity_stays():
    attempts = [Attempt(release(0))]
    made = plan(CIDR, block("a", affinity=None), attempts, known(a=1), Moment(1e9, 30))
    assert made.block_after is not None


def test_release_by_handle_tells_what_it_released():
    made = run(block("a", "b", "a"), ReleaseHandle("net.a"), handles=known(a=2))
    (result,) = made.results
    assert isinstance(result, Done)
    assert isinstance(result.value, ReleaseEffect)
    assert [ordinal for ordinal, _, _ in result.value.released] == [0, 2]
    assert made.handles_after == {"net.a": None}


def test_assign_and_release_of_one_handle_in_one_write_cancel_out():
    made = run(block("a"), many("a"), release(0), handles=known(a=1))
    assert made.handles_after == {}
    assert made.writes


# ---- no block ----------------------------------------------------------------------------------


def test_without_a_block_everything_is_free_and_nothing_can_be_assigned():
    made = run(None, many("a"), one("10.10.3.65"), release(1), ReleaseHandle("net.a"))
    assert isinstance(error(made.results[0]), BlockMissing)
    assert isinstance(error(made.results[1]), BlockMissing)
    assert made.results[2] == Done(ReleaseEffect(unallocated=(ip_address("10.10.3.65"),)))
    assert made.results[3] == Done(ReleaseEffect())
    assert not made.writes


# ---- limits ------------------------------------------------------------------------------------


def test_a_limited_handle_is_refused_before_anything_is_taken():
    made = run(block("a"), many("a", max_alloc=1), handles=known(a=1))
    assert isinstance(error(made.results[0]), HandleLimitReached)
    assert not made.writes
    single = run(block("a"), one("10.10.3.65", max_alloc=1), handles=known(a=1))
    assert isinstance(error(single.results[0]), HandleLimitReached)


# ---- lost answers (W3) -------------------------------------------------------------------------


def written(before: Block, operation: Operation, **handles: int) -> tuple[Block | None, Done]:
    made = run(before, operation, handles=known(**handles))
    (result,) = made.results
    assert isinstance(result, Done)
    return made.block_after, result


@pytest.mark.parametrize("operation", [many("a", 2), one("10.10.3.64"), one("10.10.3.67")])
def test_an_assignment_whose_answer_was_lost_is_recognised_and_not_done_again(
    operation: Operation,
):
    after, lost = written(block(), operation)
    attempt = Attempt(operation, (lost.value,))
    made = plan(CIDR, after, [attempt], known(a=2), MOMENT)
    assert made.results == [Done(lost.value, recognised=True)]
    assert not made.writes


def test_an_assignment_that_never_arrived_is_done():
    _, lost = written(block(), many("a"))
    made = plan(CIDR, block(), [Attempt(many("a"), (lost.value,))], {}, MOMENT)
    assert made.writes
    assert ordinals(made.results[0]) == (0,)


def test_the_same_ordinal_of_another_holder_is_not_taken_for_ours():
    _, lost = written(block(), many("a"))
    after, _ = written(block(), many("b"))
    made = plan(CIDR, after, [Attempt(many("a"), (lost.value,))], {}, MOMENT)
    assert ordinals(made.results[0]) == (1,)


def test_an_earlier_assignment_of_the_same_holder_is_not_taken_for_this_one():
    stored = block("a")  # at a lower sequence number
    _, lost = written(block(), many("a"))
    made = plan(CIDR, stored, [Attempt(many("a"), (lost.value,))], known(a=1), MOMENT)
    assert ordinals(made.results[0]) == (1,)


def test_a_request_without_a_handle_is_never_recognised():
    operation = AssignMany(count=1, holder=Holder(), owner=ME, must_own=True)
    after, lost = written(block(), operation)
    made = plan(CIDR, after, [Attempt(operation, (lost.value,))], {}, MOMENT)
    assert ordinals(made.results[0]) == (1,)


@pytest.mark.parametrize("operation", [release(0), release(0, sequence_number=SEQ - 1),
                                       ReleaseHandle("net.a")])  # fmt: skip
def test_a_release_whose_answer_was_lost_is_recognised(operation: Operation):
    after, lost = written(block("a"), operation, a=1)
    made = plan(CIDR, after, [Attempt(operation, (lost.value,))], {}, MOMENT)
    assert made.results == [Done(lost.value, recognised=True)]
    assert not made.writes


def test_a_lost_release_is_recognised_though_somebody_has_the_address_by_now():
    operation = release(0, sequence_number=SEQ - 1)
    after, lost = written(block("a", "b", "c", "d"), operation, a=1)
    assert after is not None
    reused, _ = written(after, many("e"))
    made = plan(CIDR, reused, [Attempt(operation, (lost.value,))], known(e=1), MOMENT)
    assert made.results == [Done(lost.value, recognised=True)]
    assert not made.writes


def test_a_release_that_never_arrived_is_done():
    stored = block("a", "b")
    _, lost = written(stored, release(0), a=1)
    made = plan(CIDR, stored, [Attempt(release(0), (lost.value,))], known(a=1), MOMENT)
    assert made.writes


@pytest.mark.parametrize("operation", [release(0), ReleaseHandle("net.a")])
def test_a_lost_release_that_took_the_block_along_is_recognised(operation: Operation):
    after, lost = written(block("a", affinity=None), operation, a=1)
    assert after is None
    made = plan(CIDR, None, [Attempt(operation, (lost.value,))], {}, MOMENT)
    assert made.results == [Done(lost.value)]
