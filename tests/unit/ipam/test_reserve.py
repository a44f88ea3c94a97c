"""ipam.reserve and what blocks, batches, audit, leaks and garbage make of it."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from ipam import audit, blocks, leaks, reserve
from ipam.affinity import Versioned
from ipam.audit import Event
from ipam.batch import Attempt, Done, HandOver, Moment, Refused, plan
from ipam.blocks import BlockDraft, Holder
from ipam.client.records import encoded
from ipam.errors import AddressInCooldown, NotReserved
from ipam.garbage import GarbageFinder, Snapshot, Terms
from ipam.requests import Release
from libcalico.model.ipam import AllocationAttribute, Block, Handle
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import Node

CIDR = "10.0.0.0/30"
FIRST = ip_address("10.0.0.0")
POD = Holder("net.c1", {"node": "n1", "pod": "web"})
RESERVE = Holder(reserve.handle_of("n1"), reserve.attributes_of("n1"))
NOW = Moment(1000.0, 0.0)


def block_with(*holders: Holder) -> Block:
    draft = BlockDraft(blocks.new_block(CIDR, 7))
    for holder in holders:
        draft.assign(1, holder)
    return draft.finish()


def hand_over(block: Block, *, node: str = "n1", holder: Holder = POD, handles=None):
    known = (
        {RESERVE.handle_id: Versioned(Handle(block={CIDR: 2}), 5)} if handles is None else handles
    )
    operation = HandOver(address=FIRST, node=node, holder=holder)
    return plan(CIDR, block, [Attempt(operation)], known, NOW)


def attribute(handle_id: str | None, **secondary: str) -> AllocationAttribute:
    return AllocationAttribute(handle_id=handle_id, secondary=secondary)


@pytest.mark.parametrize(
    "other",
    [
        attribute("offline-reserve-n1", node="n1"),
        attribute("offline-reserve-n2", node="n1", type=reserve.RESERVE_TYPE),
        attribute("net.c1", node="n1", type=reserve.RESERVE_TYPE),
        attribute(None, node="n1", type=reserve.RESERVE_TYPE),
        attribute("offline-reserve-n1", type=reserve.RESERVE_TYPE),
    ],
)
def test_a_reserve_is_known_by_handle_type_and_node_together(other):
    assert reserve.node_of(RESERVE.as_attribute()) == "n1"
    assert reserve.node_of(other) is None


def test_the_reserve_goes_to_a_pod_of_the_node_in_one_write_with_both_handles():
    before = block_with(RESERVE, RESERVE)
    made = hand_over(before)
    (result,) = made.results
    assert isinstance(result, Done)
    assert result.wrote
    after = made.block_after
    assert after is not None
    assert blocks.addresses_of(after, "net.c1") == (FIRST,)
    assert after.sequence_number_for_allocation["0"] == before.sequence_number
    assert made.handles_after == {
        "net.c1": Handle(block={CIDR: 1}),
        RESERVE.handle_id: Handle(block={CIDR: 1}),
    }
    assert blocks.problems_of(after) == ()


def test_the_last_one_leaves_no_attribute_and_no_handle_behind():
    made = hand_over(
        block_with(RESERVE), handles={RESERVE.handle_id: Versioned(Handle(block={CIDR: 1}), 5)}
    )
    assert made.block_after is not None
    assert blocks.problems_of(made.block_after) == ()
    assert made.handles_after[RESERVE.handle_id] is None


def test_done_already_is_success_and_writes_nothing():
    made = hand_over(block_with(POD))
    (result,) = made.results
    assert isinstance(result, Done)
    assert not result.wrote
    assert not made.writes


def test_an_unread_reserve_handle_is_read_first():
    assert hand_over(block_with(RESERVE), handles={}).unread == {RESERVE.handle_id}


def test_a_free_address_is_simply_assigned():
    made = hand_over(block_with(), handles={})
    assert made.block_after is not None
    assert blocks.addresses_of(made.block_after, "net.c1") == (FIRST,)
    assert set(made.handles_after) == {"net.c1"}


@pytest.mark.parametrize(
    ("held_by", "node", "holder"),
    [
        (Holder("net.other", {"node": "n1"}), "n1", POD),
        (RESERVE, "n2", Holder("net.c1", {"node": "n2"})),
        (RESERVE, "n1", Holder("net.c1", {"node": "n2"})),
        (RESERVE, "n1", Holder("net.c1", {})),
    ],
)
def test_what_is_not_the_nodes_own_is_refused_without_a_trace(held_by, node, holder):
    made = hand_over(block_with(held_by), node=node, holder=holder)
    (result,) = made.results
    assert isinstance(result, Refused)
    assert isinstance(result.error, NotReserved)
    assert not made.writes


def test_a_cooling_address_is_refused():
    draft = BlockDraft(block_with(RESERVE))
    draft.release([Release(address=FIRST)], 1000.0, 3600.0)
    with pytest.raises(AddressInCooldown):
        BlockDraft(draft.finish()).hand_over(FIRST, "n1", POD)


def history(*states: Block) -> list[str]:
    key = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30"
    events = [Event(i + 1, key, encoded(block)) for i, block in enumerate(states)]
    return [violation.kind for violation in audit.audit(events)]


def moved(before: Block, holder: Holder) -> Block:
    """One write that changes the holder, whoever it was."""
    draft = BlockDraft(before)
    draft._record((0,), holder)
    draft._compact()
    return draft.finish()


def test_the_audit_takes_a_reserve_for_its_nodes_own_and_nobody_elses():
    before = block_with(RESERVE)
    assert history(before, moved(before, POD)) == []
    assert history(before, moved(before, Holder("net.c2", {"node": "n2"}))) == ["handover"]
    assert history(before, moved(before, Holder(None, {"node": "n1"}))) == ["handover"]
    other = Holder("offline-reserve-n2", reserve.attributes_of("n2"))
    assert history(before, moved(before, other)) == ["handover"]


def test_the_way_back_is_a_change_of_hands():
    before = block_with(POD)
    assert history(before, moved(before, RESERVE)) == ["handover"]


def test_a_reserve_is_in_use_while_its_node_lives():
    stored = [block_with(RESERVE)]
    for living in (None, {"n1"}):
        (found,) = leaks.classify(stored, {}, living)
        assert found.standing is leaks.Standing.IN_USE
        assert found.owners == ("OfflineReserve(n1)",)
    (found,) = leaks.classify(stored, {}, {"n2"})
    assert found.standing is leaks.Standing.LEAKED


@pytest.mark.parametrize("is_there", [True, False])
def test_the_collector_takes_the_reserve_of_a_vanished_node_only(is_there):
    nodes = {"n1": Node(metadata=ObjectMeta(name="n1"))} if is_there else {}
    seen = Snapshot(blocks={CIDR: Versioned(block_with(RESERVE), 3)}, nodes=nodes)
    finder, terms = GarbageFinder(), Terms(grace_s=10.0)
    for now in (0.0, 1000.0):
        found = finder.find(seen, terms, now=now, wall=now)
    assert [a.address for a in found.gone.get("n1", ())] == ([] if is_there else [FIRST])
    assert list(found.leaks) == []
