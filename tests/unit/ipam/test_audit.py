"""ipam.audit: each kind of violation is found, and a clean history is clean."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.audit import Auditor, Event, Looked, audit
from ipam.blocks import BlockDraft, Holder
from libcalico.datastore.api import KeyValue
from libcalico.model import codec
from libcalico.model.ipam import Block, BlockAffinity
from libcalico.model.keys import BlockAffinityKey, BlockKey, HandleKey, Key, path_of

CIDR = "10.0.0.0/30"


def block(*names: str | None, cidr: str = CIDR, sequence: int = 10, **change: object) -> Block:
    draft = BlockDraft(blocks.new_block(cidr, sequence - 1))
    for name in names:
        draft.assign(1, Holder(name, {"pod": str(name)}))
    made = replace(draft.finish(), affinity="host:n1")
    return replace(made, **change) if change else made


def put(revision: int, key: Key, value: object) -> Event:
    return Event(revision, path_of(key), codec.encode(value))  # type: ignore[arg-type]


def stored(revision: int, value: Block) -> Event:
    return put(revision, BlockKey(value.cidr), value)


def affinity(revision: int, host: str, state: str, cidr: str = CIDR) -> Event:
    return put(revision, BlockAffinityKey(host, cidr), BlockAffinity(state=state))


def kinds(*events: Event) -> list[str]:
    return [violation.kind for violation in audit(events)]


def test_assign_release_assign_is_clean():
    assert kinds(
        affinity(1, "n1", "pending"), stored(2, block(sequence=1)), affinity(3, "n1", "confirmed"),
        stored(4, block("a", sequence=2)), stored(5, block(sequence=3)),
        stored(6, block("b", sequence=4)),
    ) == []  # fmt: skip


def test_an_address_that_changes_hands_in_one_write_is_found():
    found = audit([stored(1, block("a", sequence=1)), stored(2, block("b", sequence=2))])
    assert [str(v) for v in found] == ["revision 2: handover: 10.0.0.0: from a to b in one write"]


def test_holders_without_a_handle_are_told_apart_by_their_attributes():
    one = BlockDraft(blocks.new_block(CIDR, 1))
    one.assign(1, Holder(None, {"pod": "a"}))
    other = BlockDraft(blocks.new_block(CIDR, 2))
    other.assign(1, Holder(None, {"pod": "b"}))
    assert kinds(stored(1, one.finish()), stored(2, other.finish())) == ["handover"]


def test_other_attributes_of_the_same_handle_are_no_change_of_hands():
    one, other = BlockDraft(blocks.new_block(CIDR, 1)), BlockDraft(blocks.new_block(CIDR, 2))
    one.assign(1, Holder("vm", {"pod": "a"}))
    other.assign(1, Holder("vm", {"pod": "b"}))
    assert kinds(stored(1, one.finish()), stored(2, other.finish())) == []


def test_by_way_of_cooldown_is_no_handover():
    draft = BlockDraft(block("a", sequence=5))
    draft.release_handle("a", 1e9, 60)
    cooling = draft.finish()
    assert kinds(stored(1, block("a", sequence=5)), stored(2, cooling),
                 stored(3, block("b", sequence=9))) == []  # fmt: skip


def test_one_address_in_two_blocks_is_found_and_named():
    found = audit([
        stored(1, block("a")), stored(2, block("b", cidr="10.0.0.0/29")),
    ])  # fmt: skip
    assert [(v.kind, v.subject) for v in found] == [("overlap", "10.0.0.0")]
    assert "a in 10.0.0.0/30" in found[0].detail


def test_a_transaction_is_judged_as_a_whole():
    """Moving a block's addresses into another block in one revision is no overlap."""
    assert kinds(
        stored(1, block("a")),
        stored(2, block("a", cidr="10.0.0.0/29")), Event(2, path_of(BlockKey(CIDR)), None),
    ) == []  # fmt: skip


def test_two_confirmed_owners_are_found():
    found = audit([stored(1, block()), affinity(2, "n1", "confirmed"), affinity(3, "n2", "")])
    assert [(v.revision, v.kind) for v in found] == [(3, "owners"), (3, "owners")]
    assert found[0].detail == "confirmed for host:n1, host:n2"


@pytest.mark.parametrize("state", ["pending", "pendingDeletion"])
def test_an_unconfirmed_second_owner_is_part_of_the_protocol(state: str):
    assert kinds(stored(1, block()), affinity(2, "n1", "confirmed"), affinity(3, "n2", state)) == []


def test_a_confirmed_affinity_of_a_block_that_says_otherwise_is_found():
    assert kinds(affinity(1, "n1", "confirmed")) == ["owners"]
    assert kinds(stored(1, block(affinity=None)), affinity(2, "n1", "confirmed")) == ["owners"]
    assert kinds(stored(1, block()), affinity(2, "n1", "confirmed"),
                 Event(3, path_of(BlockKey(CIDR)), None)) == ["owners"]  # fmt: skip


def test_a_block_that_contradicts_itself_is_found():
    assert kinds(stored(1, block("a", unallocated=(0, 1, 2, 3)))) == ["block", "block"]


@pytest.mark.parametrize(("second", "expected"), [(10, ["sequence"]), (9, ["sequence"]), (11, [])])
def test_a_write_that_does_not_raise_the_number_is_found(second: int, expected: list[str]):
    assert kinds(stored(1, block()), stored(2, block(sequence=second))) == expected


def test_two_endpoints_with_one_address_are_found():
    def endpoint(revision: int, name: str, cidr: str | None) -> Event:
        key = f"/calico/resources/v3/projectcalico.org/workloadendpoints/prod/{name}"
        raw = f'{{"kind":"WorkloadEndpoint","metadata":{{"name":"{name}","namespace":"prod"}},' \
              f'"spec":{{"node":"n1","ipNetworks":["{cidr}"]}}}}'  # fmt: skip
        return Event(revision, key, None if cidr is None else raw.encode())

    assert kinds(endpoint(1, "a", "10.0.0.1/32"), endpoint(2, "b", "10.0.0.1")) == ["endpoints"]
    assert kinds(endpoint(1, "a", "10.0.0.1/32"), endpoint(2, "a", "10.0.0.2/32"),
                 endpoint(3, "b", "10.0.0.1/32")) == []  # fmt: skip
    assert kinds(endpoint(1, "a", "10.0.0.1/32"), endpoint(2, "a", None),
                 endpoint(3, "b", "10.0.0.1/32")) == []  # fmt: skip


def test_what_cannot_be_read_is_reported_and_the_rest_audited():
    found = audit([
        Event(1, path_of(BlockKey(CIDR)), b"{]"),
        Event(1, path_of(HandleKey("h")), b"not looked at"),
        Event(1, "/calico/other", b"x"),
        affinity(2, "n1", "confirmed"),
    ])  # fmt: skip
    assert [v.kind for v in found] == ["unreadable", "owners"]


def test_a_snapshot_is_a_place_to_start_from():
    auditor = Auditor()
    kv = KeyValue(path_of(BlockKey(CIDR)), codec.encode(block("a", sequence=5)), 40)
    assert auditor.load([kv], 40) == []
    assert auditor.settle(40) == []
    assert [v.kind for v in auditor.apply([stored(41, block("b", sequence=6))])] == ["handover"]
    assert auditor.looked() == Looked(revisions=1, blocks=1, addresses=1)


def test_a_snapshot_in_pages_is_judged_when_it_is_complete():
    """The affinity of a block is on an earlier page than the block."""
    auditor = Auditor()
    pages = [affinity(0, "n1", "confirmed"), stored(0, block("a"))]
    for event in pages:
        assert auditor.load([KeyValue(event.key, event.value or b"", 7)], 9) == []
    assert auditor.settle(9) == []
    lonely = Auditor()
    lonely.load([KeyValue(pages[0].key, pages[0].value or b"", 7)], 9)
    assert [str(v) for v in lonely.settle(9)] == [
        "revision 9: owners: 10.0.0.0/30: confirmed for host:n1, the block says None"
    ]


def test_what_stays_wrong_is_said_once_and_again_when_it_comes_back():
    wide = block("b", cidr="10.0.0.0/29", sequence=1)
    found = audit([
        stored(1, block("a", sequence=1)), stored(2, wide),
        stored(3, replace(wide, sequence_number=5)), stored(4, block("a", sequence=2)),
        stored(5, block(sequence=3)), stored(6, block("a", sequence=4)),
    ])  # fmt: skip
    assert [(v.revision, v.kind, v.subject) for v in found] == [
        (2, "overlap", "10.0.0.0"), (6, "overlap", "10.0.0.0"),
    ]  # fmt: skip


def test_a_malformed_block_is_named_once_and_again_after_it_was_mended():
    bad = {"unallocated": (0, 1, 2, 3)}
    found = audit([
        stored(1, block("a", sequence=1, **bad)), stored(2, block("a", sequence=2, **bad)),
        stored(3, block("a", sequence=3)), stored(4, block("a", sequence=4, **bad)),
    ])  # fmt: skip
    assert [v.revision for v in found] == [1, 1, 4, 4]


def test_a_block_that_is_another_than_its_key_says_is_unreadable():
    event = put(1, BlockKey("10.0.0.4/30"), block("a"))
    assert [v.kind for v in audit([event])] == ["unreadable"]


def test_an_endpoint_that_becomes_unreadable_still_has_what_it_had():
    def endpoint(revision: int, name: str, text: str) -> Event:
        key = f"/calico/resources/v3/projectcalico.org/workloadendpoints/prod/{name}"
        raw = f'{{"kind":"WorkloadEndpoint","metadata":{{"name":"{name}"}},' \
              f'"spec":{{"node":"n1","ipNetworks":["{text}"]}}}}'  # fmt: skip
        return Event(revision, key, raw.encode())

    assert kinds(endpoint(1, "a", "10.0.0.1"), endpoint(2, "a", "rubbish"),
                 endpoint(3, "b", "10.0.0.1")) == ["unreadable", "endpoints"]  # fmt: skip


def test_only_the_present_is_kept():
    """Everything given back leaves nothing behind but what was counted."""
    auditor = Auditor()
    auditor.apply([
        affinity(1, "n1", "confirmed"), stored(1, block("a", sequence=1)),
        stored(2, block(sequence=2)),
        Event(3, path_of(BlockKey(CIDR)), None),
        Event(3, path_of(BlockAffinityKey("n1", CIDR)), None),
    ])  # fmt: skip
    assert auditor.looked() == Looked(revisions=3, blocks=1, addresses=1)
    kept = [auditor._blocks, auditor._affinities, auditor._holders, auditor._shared]
    kept += [auditor._wrong, auditor._touched]
    assert not any(kept)
