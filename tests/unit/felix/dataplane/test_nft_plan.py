"""felix.dataplane.nft_plan: the order of a transaction, and nothing in it that need not be."""

from __future__ import annotations

from dataclasses import replace

from felix.dataplane.nft_plan import Limits, Plan, plan
from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddEntries,
    AddSet,
    AddTable,
    ChainImage,
    ClearChain,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    WriteRules,
)
from felix.dataplane.nft_wanted import WantedRuleset, shape_of
from felix.rules.chain import (
    ACCEPT,
    DROP,
    IFNAME,
    BaseHook,
    Chain,
    Dispatch,
    Field,
    Hook,
    Lookup,
    Rule,
    goto,
)
from felix.rules.sets import MapValue, SetSpec, ip_port_set, net_set

MAP = SetSpec("m", (IFNAME,), verdicts=True)
NETS = net_set("s", 4)
BASE = Chain("base", (Rule((), (Dispatch((Field.IIFNAME,), "m"),)),), BaseHook(Hook.FORWARD, 0))


def leaf(name: str, action=ACCEPT) -> Chain:
    return Chain(name, (Rule((Lookup((Field.IP4_SADDR,), "s"),), (action,)),))


def make() -> WantedRuleset:
    wanted = WantedRuleset()
    wanted.want_set(MAP)
    wanted.want_set(NETS)
    wanted.replace_members("s", {b"a" * 8, b"b" * 8})
    wanted.want_chain(BASE)
    wanted.want_chain(leaf("c"))
    wanted.want_entry("m", b"k" * 16, MapValue(goto("c")))
    return wanted


def programmed() -> WantedRuleset:
    wanted = make()
    for made in plan(wanted, Limits(), has_table=True):
        made.confirm(wanted)
    return wanted


def one(wanted: WantedRuleset, limits: Limits | None = None) -> Plan:
    (made,) = plan(wanted, limits or Limits(), has_table=True)
    return made


def kinds(made: Plan) -> list[type]:
    return [type(op) for op in made.ops]


def test_a_first_load_creates_referents_before_what_refers():
    assert kinds(one(make())) == [
        AddSet, AddSet, AddElements, AddChain, AddChain, WriteRules, WriteRules, AddEntries,
    ]  # fmt: skip


def test_a_missing_table_comes_first():
    first, _rest = plan(make(), Limits(), has_table=False)
    assert kinds(first) == [AddTable]


def test_nothing_is_planned_when_nothing_differs():
    assert list(plan(programmed(), Limits(), has_table=True)) == []


def test_a_changed_chain_is_cleared_and_written_in_place():
    wanted = programmed()
    wanted.want_chain(leaf("c", DROP))
    made = one(wanted)
    assert kinds(made) == [ClearChain, WriteRules]


def test_a_new_workload_is_one_entry():
    wanted = programmed()
    wanted.want_entry("m", b"l" * 16, MapValue(goto("c")))
    assert kinds(one(wanted)) == [AddEntries]


def test_a_changed_entry_is_deleted_before_it_is_added():
    wanted = programmed()
    wanted.want_entry("m", b"k" * 16, MapValue(DROP))
    # The chain it led to goes too, in between: after nothing leads there.
    assert kinds(one(wanted)) == [ClearChain, DeleteElements, DeleteChain, AddEntries]


def test_a_set_goes_after_the_rules_that_used_it():
    wanted = programmed()
    wanted.want_entry("m", b"k" * 16, None)
    wanted.drop_chain("c")
    wanted.drop_set("s")
    assert kinds(one(wanted)) == [ClearChain, DeleteElements, DeleteSet, DeleteChain]


def test_a_map_goes_before_the_chains_its_entries_lead_to():
    wanted = programmed()
    wanted.want_chain(replace(BASE, rules=()))
    wanted.drop_chain("c")
    wanted.drop_set("m")
    made = one(wanted)
    deleted = [op.name for op in made.ops if isinstance(op, DeleteSet | DeleteChain)]
    assert deleted == ["m", "s", "c"], "s had no other user"


def test_members_are_deltas_deletions_first():
    wanted = programmed()
    wanted.change_members("s", {b"c" * 8}, {b"a" * 8})
    deleting, adding = one(wanted).ops
    assert deleting == DeleteElements(NETS, (b"a" * 8,))
    assert adding == AddElements(NETS, (b"c" * 8,))


def test_a_chain_with_another_hook_is_made_anew():
    wanted = programmed()
    moved = Chain("base", BASE.rules, BaseHook(Hook.FORWARD, 7))
    wanted.want_chain(moved)
    assert kinds(one(wanted)) == [ClearChain, DeleteChain, AddChain, WriteRules]


def test_a_set_of_another_shape_is_replaced_under_its_users():
    wanted = programmed()
    other = ip_port_set("s", 4)
    wanted.sets.confirm("s", shape_of(other))
    made = one(wanted)
    assert kinds(made) == [ClearChain, DeleteSet, AddSet, AddElements, WriteRules]
    assert made.ops[3] == AddElements(NETS, (b"a" * 8, b"b" * 8))


def test_a_map_of_another_shape_takes_its_entries_along():
    wanted = programmed()
    wanted.sets.confirm("m", shape_of(NETS))
    assert kinds(one(wanted)) == [ClearChain, DeleteSet, AddSet, WriteRules, AddEntries]


def test_rules_somebody_else_changed_are_cleared_first():
    wanted = programmed()
    wanted.chains.confirm("c", ChainImage(None, None))
    assert kinds(one(wanted)) == [ClearChain, WriteRules]


def test_a_chain_somebody_emptied_is_only_written():
    wanted = programmed()
    wanted.chains.confirm("c", ChainImage(None, b""))
    assert kinds(one(wanted)) == [WriteRules]


def test_single_takes_groups_apart():
    wanted = programmed()
    wanted.change_members("s", {b"c" * 8, b"d" * 8}, set())
    assert kinds(one(wanted, Limits(single=True))) == [AddElements, AddElements]


def test_refused_elements_are_left_out():
    wanted = programmed()
    wanted.change_members("s", {b"c" * 8, b"d" * 8}, set())
    limits = Limits(skipped=frozenset({("s", b"c" * 8)}))
    assert one(wanted, limits).ops == [AddElements(NETS, (b"d" * 8,))]


def test_a_large_set_comes_in_pieces_before_the_rules_that_use_it():
    wanted = make()
    wanted.replace_members("s", {bytes([n]) * 8 for n in range(25)})
    plans = []
    for made in plan(wanted, Limits(elements=10), has_table=True):
        assert sum(len(c.added) for c in made.members) <= 10
        plans.append(kinds(made))
        made.confirm(wanted)
    assert plans[0] == [AddSet]
    assert plans[1:4] == [[AddElements]] * 3
    assert AddElements not in plans[4]
    assert WriteRules in plans[4]
    assert not list(plan(wanted, Limits(elements=10), has_table=True))


def test_only_as_many_sets_are_loaded_ahead_as_needed():
    wanted = make()
    wanted.want_set(net_set("t", 4))
    also = Rule((Lookup((Field.IP4_DADDR,), "t"),), (ACCEPT,))
    wanted.want_chain(Chain("c", (*leaf("c").rules, also)))
    wanted.replace_members("t", {bytes([n]) * 8 for n in range(9)})
    plans = []
    for made in plan(wanted, Limits(elements=10), has_table=True):
        plans.append([c.name for c in made.members])
        made.confirm(wanted)
    assert plans == [[], ["t"], ["s"]]


def test_a_plan_confirms_what_it_did_and_nothing_else():
    wanted = make()
    made = one(wanted)
    wanted.want_chain(leaf("c", DROP))  # while the write is under way
    made.confirm(wanted)
    wanted.check()
    assert kinds(one(wanted)) == [ClearChain, WriteRules]


def test_a_set_dropped_and_wanted_again_is_changed_not_doubled():
    wanted = programmed()
    wanted.drop_set("s")
    wanted.want_set(NETS)
    wanted.replace_members("s", {b"b" * 8, b"c" * 8})
    deleting, adding = one(wanted).ops
    assert deleting == DeleteElements(NETS, (b"a" * 8,))
    assert adding == AddElements(NETS, (b"c" * 8,))


def test_a_replaced_set_holds_only_what_is_wanted():
    wanted = programmed()
    wanted.sets.confirm("s", shape_of(ip_port_set("s", 4)))
    wanted.resync_members("s", {b"z" * 8})
    made = one(wanted)
    assert DeleteElements not in kinds(made)
    made.confirm(wanted)
    assert list(plan(wanted, Limits(), has_table=True)) == []
