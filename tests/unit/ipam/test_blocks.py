"""ipam.blocks: the rules of datamodel §2.1 and §2.6 on one block."""

from __future__ import annotations

import json
from ipaddress import ip_address

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.blocks import BlockDraft, Holder
from ipam.errors import BadHandle, MalformedBlock
from ipam.requests import WINDOWS_RESERVED, Release
from ipam.reservations import Reservations
from libcalico.errors import AlreadyExists, BadSequenceNumber
from libcalico.model import codec
from libcalico.model.ipam import AllocationAttribute, Block
from libcalico.model.keys import BlockKey

NOW = 1_787_476_801.5
NS = 1_787_476_801_123_456_789
POD = Holder("k8s-pod-network.7f3e", {"namespace": "prod", "node": "worker-1", "pod": "web-0"})
OTHER = Holder("k8s-pod-network.1111", {"namespace": "prod", "node": "worker-1", "pod": "web-1"})

CIDRS = pytest.mark.parametrize("cidr", ["10.10.3.64/29", "fd00:10::40/125"])


def fresh(cidr: str = "10.10.3.64/29") -> BlockDraft:
    return BlockDraft(blocks.new_block(cidr, NS))


def stored(draft: BlockDraft) -> Block:
    block = draft.finish()
    assert blocks.problems_of(block) == ()
    return block


def with_pod(count: int = 1, holder: Holder = POD) -> Block:
    draft = fresh()
    draft.assign(count, holder)
    return stored(draft)


def release_of(block: Block, ordinal: int, **terms: object) -> Release:
    return Release(address=BlockDraft(block).address(ordinal), **terms)  # type: ignore[arg-type]


# ---- new ---------------------------------------------------------------------------------------


@CIDRS
def test_a_new_block_is_stored_as_calico_stores_it(cidr: str):
    block = replace(blocks.new_block(cidr, NS), affinity="host:worker-1")
    assert json.loads(codec.encode(block)) == {
        "cidr": cidr,
        "affinity": "host:worker-1",
        "allocations": [None] * 8,
        "unallocated": list(range(8)),
        "attributes": None,  # null in a brand-new block (§0.10)
        "sequenceNumber": NS,
        "sequenceNumberForAllocation": {},
        "deleted": False,
    }


@pytest.mark.parametrize(
    ("cidr", "size"),
    [("10.0.0.0/20", 4096), ("10.0.0.0/26", 64), ("10.0.0.1/32", 1), ("10.0.0.2/31", 2),
     ("fd00::/116", 4096), ("fd00::/122", 64), ("fd00::1/128", 1)],
)  # fmt: skip
def test_every_allowed_block_size_works_to_the_last_address(cidr: str, size: int):
    draft = fresh(cidr)
    assert draft.assign(size + 1, POD) == tuple(range(size))
    assert draft.assign(1, POD) == ()
    assert stored(draft).unallocated == ()


def test_windows_keeps_the_first_three_and_the_last_address_and_the_block_is_still_empty():
    block = blocks.new_block("10.0.0.0/28", NS, WINDOWS_RESERVED)
    assert block.allocations == (0, 0, 0, *[None] * 12, 0)
    assert block.unallocated == tuple(range(3, 15))
    assert block.attributes == (
        AllocationAttribute(
            handle_id="windows-reserved-ipam-handle", secondary={"note": "windows host rsvd"}
        ),
    )
    assert blocks.is_empty(block)
    assert blocks.problems_of(block) == ()


# ---- assign ------------------------------------------------------------------------------------


@CIDRS
def test_assignments_take_the_front_of_unallocated_and_share_one_attribute(cidr: str):
    draft = fresh(cidr)
    assert draft.assign(2, POD) == (0, 1)
    block = stored(draft)
    assert block.allocations[:3] == (0, 0, None)
    assert block.attributes == (POD.as_attribute(),)


def test_an_assignment_carries_the_number_the_block_had_before_the_write():
    block = with_pod(2)
    assert block.sequence_number_for_allocation == {"0": NS, "1": NS}
    assert block.sequence_number == NS + 1
    draft = BlockDraft(block)
    draft.assign(1, OTHER)
    assert stored(draft).sequence_number_for_allocation["2"] == NS + 1


def test_an_equal_attribute_is_found_and_another_one_appended():
    draft = BlockDraft(with_pod())
    draft.assign(1, POD)
    draft.assign(1, OTHER)
    draft.assign(1, Holder("k8s-pod-network.7f3e", {"pod": "web-9"}))  # same handle, other owner
    block = stored(draft)
    assert block.allocations[:4] == (0, 0, 1, 2)
    assert block.attributes is not None
    assert len(block.attributes) == 3


def test_without_handle_and_attributes_the_entry_is_empty():
    block = with_pod(1, Holder())
    assert json.loads(codec.encode(block))["attributes"] == [{}]


def test_reserved_addresses_are_skipped_and_keep_their_place():
    draft = fresh()
    reserved = Reservations.of(["10.10.3.64/31", "10.10.3.67"])
    assert draft.count_free(reserved) == 5
    assert draft.assign(2, POD, reserved) == (2, 4)
    assert stored(draft).unallocated == (0, 1, 3, 5, 6, 7)


def test_a_reservation_takes_nothing_back():
    block = with_pod(2)
    draft = BlockDraft(block)
    draft.assign(1, OTHER, Reservations.of(["10.10.3.64/29"]))
    assert not draft.changed


def test_one_address_is_taken_out_of_the_middle():
    draft = fresh()
    assert draft.assign_one(ip_address("10.10.3.68"), POD) == 4
    block = stored(draft)
    assert block.unallocated == (0, 1, 2, 3, 5, 6, 7)
    assert block.sequence_number_for_allocation == {"4": NS}


def test_an_assigned_address_is_refused_with_calicos_text():
    draft = BlockDraft(with_pod())
    with pytest.raises(AlreadyExists) as refused:
        draft.assign_one(ip_address("10.10.3.64"), OTHER)
    assert str(refused.value) == (
        "resource already exists: 10.10.3.64 with error: Address already assigned in block"
    )
    assert not draft.changed


def test_a_cooling_address_cannot_be_assigned():
    draft = BlockDraft(with_pod())
    draft.release([Release(address=ip_address("10.10.3.64"))], NOW, 30)
    with pytest.raises(AlreadyExists):
        draft.assign_one(ip_address("10.10.3.64"), OTHER)


# ---- release and cooldown ----------------------------------------------------------------------


def test_without_cooldown_the_written_block_shows_the_address_free_at_the_tail():
    draft = BlockDraft(with_pod(2))
    draft.release([release_of(with_pod(2), 0)], NOW, 0)
    block = stored(draft)
    assert block.allocations[0] is None
    assert block.unallocated == (2, 3, 4, 5, 6, 7, 0)
    assert block.sequence_number_for_allocation == {"1": NS}


@pytest.mark.parametrize("now", [NOW, float(int(NOW))])
def test_without_cooldown_a_release_on_the_full_second_frees_as_well(now: float):
    block = with_pod()
    draft = BlockDraft(block)
    draft.release([release_of(block, 0)], now, 0)
    assert stored(draft).allocations == (None,) * 8


def test_the_last_attribute_gone_leaves_an_empty_list_not_null():
    block = with_pod()
    draft = BlockDraft(block)
    draft.release([release_of(block, 0)], NOW, 0)
    assert json.loads(codec.encode(stored(draft)))["attributes"] == []


def test_a_released_address_first_points_to_an_entry_that_holds_only_the_time():
    block = with_pod(2)
    draft = BlockDraft(block)
    draft.release([release_of(block, 0)], NOW, 30)
    after = stored(draft)
    assert json.loads(codec.encode(after))["attributes"][1] == {
        "releasedAt": "2026-08-23T09:20:01Z"
    }
    assert after.allocations[:2] == (1, 0)
    assert 0 not in after.unallocated
    assert after.sequence_number_for_allocation["0"] == block.sequence_number  # §2.6.2
    assert blocks.is_cooling(after, ip_address("10.10.3.64"))
    assert blocks.assignment_of(after, ip_address("10.10.3.64")) is None


@pytest.mark.parametrize(
    ("age_s", "cooldown_s", "freed"),
    [(29, 30, False), (30, 30, False), (31, 30, True), (0, -1, True), (1, 0, True), (0, 0, False)],
)
def test_collection_frees_what_was_released_strictly_before_the_cooldown(
    age_s: float, cooldown_s: float, freed: bool
):
    released_at = float(int(NOW))
    block = with_pod()
    draft = BlockDraft(block)
    draft.release([release_of(block, 0)], released_at, 3600)
    later = BlockDraft(stored(draft))
    later.collect(released_at + age_s, cooldown_s)
    assert (stored(later).allocations[0] is None) is freed


def test_a_time_of_release_that_cannot_be_read_does_not_hold_the_address_for_ever():
    block = replace(with_pod(), attributes=(AllocationAttribute(released_at="yesterday, I think"),))
    draft = BlockDraft(block)
    draft.collect(NOW, 1000)
    assert stored(draft).allocations[0] is None


def test_collection_drops_unused_attributes_and_compacts_the_indices():
    block = replace(
        with_pod(), attributes=(OTHER.as_attribute(), POD.as_attribute(), OTHER.as_attribute()),
        allocations=(1, *[None] * 7),
    )  # fmt: skip
    draft = BlockDraft(block)
    draft.collect(NOW, 0)
    after = stored(draft)
    assert after.attributes == (POD.as_attribute(),)
    assert after.allocations[0] == 0


def test_collection_alone_is_no_reason_to_write():
    block = with_pod()
    draft = BlockDraft(block)
    draft.release([release_of(block, 0)], NOW, 30)
    later = BlockDraft(stored(draft))
    later.collect(NOW + 60, 30)
    assert not later.changed


def test_releases_count_by_handle_and_duplicates_count_once():
    draft = BlockDraft(with_pod(2))
    draft.assign(1, OTHER)
    block = stored(draft)
    draft = BlockDraft(block)
    requests = [release_of(block, ordinal) for ordinal in (0, 1, 1, 2, 5)]
    effect = draft.release(requests, NOW, 0)
    assert effect.counts == {POD.handle_id: 2, OTHER.handle_id: 1}
    assert effect.unallocated == (ip_address("10.10.3.69"),)


def test_a_cooling_address_is_reported_as_unallocated():
    block = with_pod()
    draft = BlockDraft(block)
    draft.release([release_of(block, 0)], NOW, 30)
    again = BlockDraft(stored(draft))
    effect = again.release([release_of(block, 0)], NOW + 1, 30)
    assert effect.released == ()
    assert effect.unallocated == (ip_address("10.10.3.64"),)


@pytest.mark.parametrize(("ordinal", "stored_number"), [(0, NS), (5, 0)])
def test_a_sequence_number_that_has_moved_refuses_the_whole_request(
    ordinal: int, stored_number: int
):
    block = with_pod(2)
    draft = BlockDraft(block)
    requests = [release_of(block, 1), release_of(block, ordinal, sequence_number=7)]
    with pytest.raises(BadSequenceNumber) as refused:
        draft.release(requests, NOW, 0)
    assert (refused.value.given, refused.value.stored) == (7, stored_number)
    assert str(refused.value) == f"update conflict: 10.10.3.{64 + ordinal}"
    assert not draft.changed


def test_a_handle_that_does_not_hold_the_address_refuses_the_whole_request():
    block = with_pod(2)
    draft = BlockDraft(block)
    with pytest.raises(BadHandle) as refused:
        draft.release([release_of(block, 0), release_of(block, 1, handle_id="x.y")], NOW, 0)
    assert (refused.value.given, refused.value.stored) == ("x.y", POD.handle_id)
    assert not draft.changed


def test_the_right_handle_and_number_release():
    block = with_pod()
    draft = BlockDraft(block)
    terms = {"handle_id": POD.handle_id, "sequence_number": NS}
    assert draft.release([release_of(block, 0, **terms)], NOW, 0).counts == {POD.handle_id: 1}


def test_a_handle_is_compared_up_to_the_first_carriage_return():
    block = with_pod(1, Holder("old.handle\r\neth0", {}))
    assert blocks.addresses_of(block, "old.handle") == (ip_address("10.10.3.64"),)
    draft = BlockDraft(block)
    effect = draft.release([release_of(block, 0, handle_id="old.handle")], NOW, 0)
    assert effect.counts == {"old.handle": 1}
    assert len(BlockDraft(block).release_handle("old.handle\rwhatever", NOW, 0)) == 1


def test_release_by_handle_takes_everything_of_the_handle_and_nothing_else():
    draft = BlockDraft(with_pod(2))
    draft.assign(1, OTHER)
    draft = BlockDraft(stored(draft))
    assert [ordinal for ordinal, _, _ in draft.release_handle(str(POD.handle_id), NOW, 0)] == [0, 1]
    after = stored(draft)
    assert after.attributes == (OTHER.as_attribute(),)
    assert after.unallocated == (3, 4, 5, 6, 7, 0, 1)


def test_release_by_handle_leaves_the_sequence_entries_while_cooling():
    block = with_pod()
    draft = BlockDraft(block)
    draft.release_handle(str(POD.handle_id), NOW, 30)
    assert stored(draft).sequence_number_for_allocation == {"0": NS}


def reopened(block: Block, now: float, cooldown: float) -> BlockDraft:
    """As the next process reads it."""
    raw = codec.encode(block)
    draft = BlockDraft(codec.decode_as(Block, BlockKey(block.cidr), raw, 1))
    draft.collect(now, cooldown)
    return draft


def one_cooling_one_held(cidr: str) -> tuple[Block, float]:
    """Ordinal 0 was released with a cooldown of 5 s, which is 0 since then, all within a second;
    1 is held by the same handle. And that moment."""
    now = float(int(NOW))
    draft = fresh(cidr)
    draft.assign(1, POD)
    draft = reopened(stored(draft), now, 5)
    draft.release_handle(POD.handle_id or "", now, 5)
    draft = reopened(stored(draft), now, 0)
    assert draft.assign(1, POD) == (1,)
    return stored(draft), now


@CIDRS
def test_a_release_also_frees_what_earlier_releases_left_cooling_once_the_cooldown_is_gone(
    cidr: str,
):
    """§2.6: the pass after a release looks at every released attribute, not only at its own."""
    block, now = one_cooling_one_held(cidr)
    draft = reopened(block, now, 0)
    assert [o for o, _, _ in draft.release_handle(POD.handle_id or "", now, 0)] == [1]
    block = stored(draft)
    assert block.unallocated == (2, 3, 4, 5, 6, 7, 0, 1)
    assert block.attributes == ()
    assert block.sequence_number_for_allocation == {}


@CIDRS
def test_releasing_by_a_handle_again_and_again_touches_nothing_that_is_cooling(cidr: str):
    block, now = one_cooling_one_held(cidr)
    draft = reopened(block, now, 0)
    draft.release_handle(POD.handle_id or "", now, 0)
    block = stored(draft)
    for _ in range(3):
        draft = reopened(block, now, 0)
        assert draft.release_handle(POD.handle_id or "", now, 0) == ()
        assert not draft.changed
    assert draft.assign_one(draft.address(0), POD) == 0
    assert stored(draft).unallocated == (2, 3, 4, 5, 6, 7, 1)


@CIDRS
def test_what_a_reader_collected_but_did_not_write_is_still_cooling_for_the_next(cidr: str):
    """Two releases, 5 first; a reader between them frees 5 for itself only. The one that writes
    frees both in the order of the ordinals; a longer cooldown set meanwhile holds for both."""
    draft = fresh(cidr)
    draft.assign(6, POD)
    draft.release([Release(address=draft.address(5))], NOW, 5)
    draft.release([Release(address=draft.address(3))], NOW + 2, 5)
    block = stored(draft)
    assert not reopened(block, NOW + 6, 5).changed
    assert reopened(block, NOW + 6, 5).assign(4, OTHER) == (6, 7, 5)
    assert reopened(block, NOW + 6, 30).assign(4, OTHER) == (6, 7)
    assert reopened(block, NOW + 9, 5).assign(4, OTHER) == (6, 7, 3, 5)


def test_cooling_addresses_count_as_used():
    block = with_pod()
    draft = BlockDraft(block)
    draft.release([release_of(block, 0)], NOW, 30)
    assert not blocks.is_empty(stored(draft))


# ---- what a block may look like ----------------------------------------------------------------


def test_the_sample_of_the_data_model_reads_and_means_what_it_says():
    raw = json.dumps({
        "cidr": "10.10.3.64/29", "affinity": "host:worker-1",
        "affinity_claim_time": "2026-08-22T09:20:01Z",
        "allocations": [0, 1, None, 2, None, None, None, None],
        "unallocated": [2, 4, 5, 6, 7],
        "attributes": [
            {"handle_id": "ipip-tunnel-addr-worker-1",
             "secondary": {"node": "worker-1", "type": "ipipTunnelAddress"}},
            {"handle_id": "k8s-pod-network.7f3e", "secondary": {"pod": "web-0"}},
            {"releasedAt": "2026-08-22T09:30:00Z"},
        ],
        "sequenceNumber": 1787476801123456793,
        "sequenceNumberForAllocation": {
            "0": 1787476801123456789, "1": 1787476801123456790, "3": 1787476801123456792},
        "deleted": False,
    }).encode()  # fmt: skip
    block = codec.decode_as(Block, BlockKey("10.10.3.64/29"), raw, 1)
    assert blocks.problems_of(block) == ()
    found = blocks.assignment_of(block, ip_address("10.10.3.65"))
    assert found is not None
    assert (found.handle_id, found.sequence_number) == (
        "k8s-pod-network.7f3e", 1787476801123456790,
    )  # fmt: skip
    assert blocks.is_cooling(block, ip_address("10.10.3.67"))
    assert json.loads(codec.encode(block)) == json.loads(raw)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"allocations": (0, *[None] * 6)}, "7 allocations for 8 addresses"),
        ({"allocations": (1, *[None] * 7)}, "points to an attribute that does not exist"),
        ({"unallocated": (1, 2, 3, 4, 5, 6, 6)}, "unallocated twice"),
        ({"unallocated": (0, 1, 2, 3, 4, 5, 6, 7)}, "both allocated and unallocated"),
        ({"unallocated": (1, 2, 3, 4, 5, 6, 9)}, "out of range"),
        ({"unallocated": (1, 2, 3)}, "1 allocated and 3 unallocated of 8"),
    ],
)
def test_a_block_that_contradicts_itself_is_refused(change: dict[str, object], problem: str):
    block = replace(with_pod(), **change)
    assert any(problem in text for text in blocks.problems_of(block))
    with pytest.raises(MalformedBlock, match=r"IPAM block 10\.10\.3\.64/29 is malformed"):
        blocks.check_usable(block)


def test_an_unused_attribute_is_reported_but_does_no_harm():
    block = replace(with_pod(), attributes=(POD.as_attribute(), OTHER.as_attribute()))
    assert blocks.problems_of(block) == (blocks.UNUSED_ATTRIBUTE,)
    blocks.check_usable(block)


def test_a_release_in_the_future_is_reported():
    block = replace(
        with_pod(), attributes=(AllocationAttribute(released_at="2199-01-01T00:00:00Z"),)
    )
    assert blocks.problems_of(block, NOW) == ("released in the future: 2199-01-01T00:00:00Z",)


def test_an_old_block_without_sequence_numbers_is_released_with_number_zero():
    block = replace(with_pod(), sequence_number_for_allocation={}, sequence_number=0)
    draft = BlockDraft(block)
    assert draft.release([release_of(block, 0, sequence_number=0)], NOW, 0).counts
    assert stored(draft).sequence_number == 1


def test_the_deprecated_host_affinity_is_never_written():
    block = replace(with_pod(), host_affinity="worker-1")
    assert b"hostAffinity" not in codec.encode(BlockDraft(block).finish())


def test_losing_the_affinity_drops_the_claim_time_and_counts_as_a_write():
    block = replace(
        with_pod(), affinity="host:worker-1", affinity_claim_time="2026-08-22T09:20:01Z"
    )
    after = blocks.without_affinity(block)
    assert (after.affinity, after.affinity_claim_time) == (None, None)
    assert after.sequence_number == block.sequence_number + 1
    assert b'"affinity":null' in codec.encode(after)
    assert b"affinity_claim_time" not in codec.encode(after)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-08-22T09:30:00Z", 1787391000.0), ("2026-08-22T11:30:00+02:00", 1787391000.0),
     ("", None), (None, None), ("soon", None)],
)  # fmt: skip
def test_times_are_read(text: str | None, seconds: float | None):
    assert blocks.parse_time(text) == seconds


def test_an_address_of_another_block_is_the_callers_mistake():
    with pytest.raises(ValueError, match=r"IP 10\.0\.0\.1 not in block"):
        fresh().ordinal(ip_address("10.0.0.1"))
