"""ipam.garbage: what is garbage in a snapshot, and when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ipam import blocks
from ipam.affinity import Owner, Versioned
from ipam.blocks import BlockDraft, Holder
from ipam.garbage import GarbageFinder, Plan, Snapshot, Suspects, Terms
from libcalico.model.endpoints import WorkloadEndpoint
from libcalico.model.ipam import AllocationAttribute, Block, Handle
from libcalico.model.keys import BlockAffinityKey, key_of
from libcalico.model.node import Node
from tests.support.garbage import endpoint, node
from tests.support.ipam import pool

CIDR, OTHER = "10.0.0.0/29", "10.0.0.8/29"
POOL = pool("a", "10.0.0.0/24", 29)
TERMS = Terms(100.0)
TUNNEL = Holder("ipip-tunnel-addr-n1", {"node": "n1", "type": "ipipTunnelAddress"})
WALL = 2e9


def pod(name: str, on: str = "n1", **attributes: str) -> Holder:
    return Holder(f"net.{name}", {"pod": name, "node": on, **attributes})


def block(*holders: Holder, cidr: str = CIDR, affinity: str | None = "host:n1") -> Block:
    draft = BlockDraft(blocks.new_block(cidr, 100))
    for holder in holders:
        draft.assign(1, holder)
    return replace(draft.finish(), affinity=affinity)


def seen(
    *stored: Block,
    nodes: tuple[str, ...] = ("n1",),
    endpoints: tuple[WorkloadEndpoint, ...] = (),
    **more: object,
) -> Snapshot:
    present: dict[str, Node | None] = {name: node(name) for name in nodes}
    return Snapshot(
        blocks={b.cidr: Versioned(b, 7) for b in stored},
        nodes=present,
        endpoints={key_of(e): Versioned(e, 9) for e in endpoints},
        pools=(POOL,),
        **more,  # type: ignore[arg-type]
    )


def look(finder: GarbageFinder, snapshot: Snapshot, now: float = 0.0, terms: Terms = TERMS) -> Plan:
    return finder.find(snapshot, terms, now=now, wall=WALL)


def ripe(snapshot: Snapshot, terms: Terms = TERMS) -> Plan:
    """What is garbage in a state that has lasted for the grace period."""
    finder = GarbageFinder()
    look(finder, snapshot, 0.0, terms)
    return look(finder, snapshot, 100.0, terms)


def leaked(plan: Plan) -> list[str]:
    return [str(allocation.address) for allocation in plan.leaks]


def gone(plan: Plan) -> dict[str, list[str]]:
    return {name: [str(a.address) for a in many] for name, many in plan.gone.items()}


def test_a_suspect_is_ripe_after_the_grace_period_in_the_same_state():
    suspects: Suspects[str] = Suspects()
    assert suspects.ripe(["a"], 0, 10) == set()
    assert suspects.ripe(["a", "b"], 10, 10) == {"a"}
    assert suspects.ripe(["b"], 11, 10) == set()
    assert suspects.ripe(["a", "b"], 20, 10) == {"b"}  # a was forgotten in between


# ---- addresses of living nodes ---------------------------------------------------------------


def test_an_address_nobody_names_is_a_leak_after_the_grace_period():
    snapshot = seen(block(pod("a"), pod("b")), endpoints=(endpoint("a", "n1", "10.0.0.0/32"),))
    finder = GarbageFinder()
    first = look(finder, snapshot)
    assert (leaked(first), [str(a.address) for a in first.candidates]) == ([], ["10.0.0.1"])
    assert leaked(look(finder, snapshot, 99.9)) == []
    assert leaked(look(finder, snapshot, 100.0)) == ["10.0.0.1"]


def test_without_a_grace_period_no_address_of_a_living_node_is_collected():
    plan = ripe(seen(block(pod("a")), block(cidr=OTHER)), Terms(0.0))
    assert (plan.leaks, plan.surplus) == ([], [])


@pytest.mark.parametrize(
    "holder",
    [
        Holder("h", {}),
        Holder(None, {}),
        Holder("h", {"pod": "x"}),
        pod("vm", **{"vmi-name": "v"}),
        Holder("lb", {"node": "n1", "service": "s"}),
        Holder("lb", {"node": "n1", "type": "loadBalancer"}),
        TUNNEL,
        pod("bridged", plugin="calico-ipam"),
    ],
)
def test_what_has_an_owner_we_cannot_see_is_never_collected(holder: Holder):
    assert leaked(ripe(seen(block(holder)))) == []


def test_an_address_in_a_live_migration_is_not_collected():
    stored = block(pod("a"))
    shared = AllocationAttribute(
        handle_id="net.a", secondary={"node": "n1"}, alternate_owner_attrs={"node": "n2"}
    )
    assert leaked(ripe(seen(replace(stored, attributes=(shared,))))) == []


def test_the_second_address_of_a_handle_in_use_stays():
    stored = block(pod("a"), pod("a"))
    used = endpoint("a", "n1", "10.0.0.0/32")
    assert leaked(ripe(seen(stored, endpoints=(used,)))) == []
    assert leaked(ripe(seen(stored))) == ["10.0.0.0", "10.0.0.1"]


def test_a_node_with_an_unreadable_endpoint_or_node_object_keeps_its_addresses():
    stored = block(pod("a"))
    assert leaked(ripe(seen(stored, unreadable_on=frozenset({"n1"})))) == []
    unreadable = Snapshot(blocks={CIDR: Versioned(stored, 7)}, nodes={"n1": None})
    plan = ripe(unreadable)
    assert (leaked(plan), plan.vanished) == ([], frozenset())


# ---- vanished nodes --------------------------------------------------------------------------


def test_a_vanished_node_loses_addresses_tunnels_and_blocks_at_once():
    key = BlockAffinityKey("n1", OTHER)
    snapshot = seen(
        block(pod("a"), TUNNEL), nodes=("n2",), affinities=frozenset({key}),
        markers=frozenset({"n1", "n2"}),
    )  # fmt: skip
    plan = look(GarbageFinder(), snapshot)
    assert plan.vanished == {"n1"}
    assert gone(plan) == {"n1": ["10.0.0.0", "10.0.0.1"]}
    # One has a key without a block, the other a block without a key.
    assert plan.owned == [(Owner("n1"), CIDR), (Owner("n1"), OTHER)]
    assert plan.markers == ["n1"]


def test_without_a_grace_period_vanished_nodes_are_cleaned_up():
    assert gone(look(GarbageFinder(), seen(block(pod("a")), nodes=()), terms=Terms(0.0)))


def test_a_node_whose_felix_reports_has_not_vanished():
    snapshot = seen(block(pod("a")), nodes=(), alive=frozenset({"n1"}))
    finder = GarbageFinder()
    plan = look(finder, snapshot)
    assert (gone(plan), plan.owned, plan.vanished) == ({}, [], frozenset())
    assert leaked(look(finder, snapshot, 100.0)) == ["10.0.0.0"]  # by the common rule


def test_endpoints_hold_a_node_up_for_the_grace_period_and_keep_their_addresses():
    left = endpoint("a", "n1", "10.0.0.0/32")
    snapshot = seen(block(pod("a"), pod("b")), nodes=(), endpoints=(left,))
    finder = GarbageFinder()
    plan = look(finder, snapshot)
    assert (plan.vanished, gone(plan), plan.endpoints) == (frozenset(), {}, {})
    plan = look(finder, snapshot, 100.0)
    assert plan.endpoints == {"n1": [key_of(left)]}
    assert gone(plan) == {"n1": ["10.0.0.0", "10.0.0.1"]}


def test_endpoints_that_others_made_are_not_deleted_for_want_of_a_node():
    foreign = endpoint("a", "n1", "10.0.0.0/32", orchestrator="openstack")
    plan = ripe(seen(block(pod("a")), nodes=(), endpoints=(foreign,)))
    assert (plan.endpoints, gone(plan), leaked(plan)) == ({}, {}, [])


def test_an_address_that_an_endpoint_of_another_node_has_by_now_stays():
    moved = endpoint("a", "n2", "10.0.0.0/32")
    plan = look(GarbageFinder(), seen(block(pod("a")), nodes=("n2",), endpoints=(moved,)))
    assert (plan.vanished, gone(plan)) == ({"n1"}, {})


def test_a_malformed_block_of_a_vanished_node_is_left_alone():
    key = BlockAffinityKey("n1", OTHER)
    snapshot = seen(nodes=(), affinities=frozenset({key}), malformed=frozenset({OTHER}))
    assert look(GarbageFinder(), snapshot).owned == []


# ---- blocks and handles ----------------------------------------------------------------------


def test_a_node_keeps_as_many_empty_blocks_of_a_pool_as_it_may():
    stored = [block(cidr=cidr) for cidr in (CIDR, OTHER, "10.0.0.16/29")]
    # The last in key order go: a node assigns from the first that has room.
    assert {b.cidr for b in ripe(seen(*stored)).surplus} == {OTHER, "10.0.0.16/29"}
    assert len(ripe(seen(*stored), Terms(100.0, 2)).surplus) == 1
    assert len(ripe(seen(*stored), Terms(100.0, 0)).surplus) == 3


def test_a_used_block_counts_and_an_empty_one_of_no_pool_always_goes():
    used, orphan = block(pod("a")), block(cidr="192.0.2.0/29")
    alive = endpoint("a", "n1", "10.0.0.0/32")
    plan = ripe(seen(used, block(cidr=OTHER), orphan, endpoints=(alive,)))
    assert {b.cidr for b in plan.surplus} == {OTHER, orphan.cidr}


def test_a_block_that_is_written_begins_its_grace_period_anew():
    finder = GarbageFinder()
    first = block(cidr=OTHER)
    used, written = block(pod("a")), blocks.bumped(first)
    look(finder, seen(used, first), 0.0)
    assert look(finder, seen(used, written), 100.0).surplus == []
    assert look(finder, seen(used, written), 200.0).surplus == [written]


def test_empty_blocks_of_nobody_go_and_those_of_load_balancers_stay():
    stored = seen(block(affinity=None), block(cidr=OTHER, affinity="virtual:load-balancer"))
    plan = ripe(stored)
    assert (plan.ownerless, plan.surplus) == ([CIDR], [])


def test_addresses_that_have_rested_keep_no_block():
    cooling = AllocationAttribute(released_at="2026-01-01T00:00:00Z")
    owned = replace(block(pod("a")), attributes=(cooling,))
    ownerless = replace(block(pod("a"), cidr=OTHER, affinity=None), attributes=(cooling,))
    plan = ripe(seen(owned, ownerless))
    assert (plan.cooled, plan.ownerless, plan.surplus) == ([CIDR], [OTHER], [])
    still = ripe(seen(owned, ownerless, cooldown_s=1e9))
    assert (still.cooled, still.ownerless) == ([], [])


def test_a_handle_that_holds_nothing_goes_by_the_revision_it_was_suspected_at():
    handles = {
        "net.a": Versioned(Handle(block={CIDR: 1}), 3),
        "net.idle": Versioned(Handle(block={CIDR: 1}), 4),
        "net.malformed": Versioned(Handle(block={OTHER: 1}), 5),
    }
    finder = GarbageFinder()
    stored, broken = block(pod("a")), frozenset({OTHER})
    assert look(finder, seen(stored, handles=handles, malformed=broken)).handles == []
    plan = look(finder, seen(stored, handles=handles, malformed=broken), 100.0)
    assert plan.handles == [("net.idle", 4)]
    touched = handles | {"net.idle": Versioned(Handle(block={CIDR: 1}), 6)}
    assert look(finder, seen(stored, handles=touched, malformed=broken), 101.0).handles == []


def test_dump_counts_suspects():
    finder = GarbageFinder()
    look(finder, seen(block(pod("a"))))
    assert finder.dump()["leaks"] == {"10.0.0.0#100": 0.0}
