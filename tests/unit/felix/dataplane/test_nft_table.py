"""felix.dataplane.nft_table over the fake nf_tables: convergence, restarts, refusals."""

from __future__ import annotations

import errno

import pytest

from felix.dataplane.nft_table import NftTable, RefusedObject
from felix.intent import PolicyRemove, SetDelta, SetRemove, SetUpdate, WorkloadEndpointRemove
from felix.kernel.nft import NftKernel
from felix.rules.chain import DROP, BaseHook, Chain, Field, Hook, Lookup, Rule
from felix.rules.sets import net_element, net_set
from libcalico.compute.rules import Action, EntityMatch, SetKind
from libcalico.errors import ProgrammingFailed
from libcalico.testing.fakenft import FakeNft, Packet
from tests.support.nft import (
    ALLOW,
    DENY,
    FakeNode,
    allow_all_profile,
    policy,
    policy_key,
    rule,
    tier,
    workload,
    workload_key,
)

A, B = "10.65.0.2", "10.65.0.3"
NEW_CHAIN, NEW_RULE, NEW_SET, NEW_ELEMENT, DELETE_ELEMENT = 3, 6, 9, 12, 14
INTENTS = (
    SetUpdate("s:friends", SetKind.NET, frozenset({f"{B}/32"})),
    policy("friends", [rule(source=EntityMatch(sets=("s:friends",)))], [ALLOW]),
    policy("closed", [DENY], [DENY]),
    allow_all_profile(),
    workload("a", "cali1", f"{A}/32", "fd00::2/128", tiers=(tier("friends"),)),
    workload("b", "cali2", f"{B}/32", "fd00::3/128"),
)


@pytest.fixture
async def node() -> FakeNode:
    made = FakeNode()
    await made.push(*INTENTS)
    return made


def into_a(node: FakeNode, src: str = B, iif: str = "cali2") -> str:
    return node.fake.forward(Packet(src, A), iif, "cali1")


# ------------------------------------------------------------------------------ convergence


async def test_one_apply_is_one_transaction_after_the_table_exists(node: FakeNode):
    before = node.fake.commits
    result = await node.push(
        policy("more", [ALLOW]), workload("c", "cali3", "10.65.0.4/32", tiers=(tier("more"),))
    )
    assert node.fake.commits == before + 1
    assert result.written
    assert not result.failed


async def test_nothing_is_written_when_nothing_changed(node: FakeNode):
    before = node.fake.commits
    for _ in range(2):
        result = await node.push(*INTENTS)
        assert (result.written, result.deleted) == (0, 0)
    assert node.fake.commits == before


async def test_a_fresh_process_that_wants_the_same_writes_nothing(node: FakeNode):
    before = node.fake.commits
    fresh = node.restarted()
    result = await fresh.push(*INTENTS)
    assert (result.written, result.deleted, fresh.fake.commits) == (0, 0, before)


async def test_a_fresh_process_removes_what_nobody_wants_any_more(node: FakeNode):
    fresh = node.restarted()
    await fresh.push(*INTENTS[:-2], INTENTS[-1])
    assert not any(name.startswith("policy-in-friends") for name in fresh.chain_names())
    assert into_a(fresh, "198.51.100.7", "eth0") == "drop"
    assert fresh.fake.forward(Packet("198.51.100.7", B), "eth0", "cali2") == "accept"


async def test_a_fresh_process_corrects_what_is_wrong_and_keeps_the_rest(node: FakeNode):
    handles = _rule_handles(node)
    changed = policy("friends", [DENY], [ALLOW])
    fresh = node.restarted()
    await fresh.push(INTENTS[0], changed, *INTENTS[2:])
    assert into_a(fresh) == "drop"
    after = _rule_handles(fresh)
    name = fresh.chain_named("policy-in-friends")
    assert after[name] != handles[name]
    assert {n: h for n, h in after.items() if n != name} == {
        n: h for n, h in handles.items() if n != name
    }


def _rule_handles(node: FakeNode) -> dict[str, list[int]]:
    (table,) = node.fake.tables.values()
    return {name: [r.handle for r in chain.rules] for name, chain in table.chains.items()}


async def test_everything_goes_when_nothing_is_wanted(node: FakeNode):
    before = node.chain_names()
    await node.push(
        WorkloadEndpointRemove(workload_key("a")), WorkloadEndpointRemove(workload_key("b"))
    )
    await node.push(PolicyRemove(policy_key("friends")), SetRemove("s:friends"))
    left = before & node.chain_names()
    assert not any(name.startswith(("endpoint", "tier", "policy", "profile")) for name in left)
    assert into_a(node) == "drop"


async def test_set_deltas_are_deltas_on_the_wire(node: FakeNode):
    node.fake.messages_seen.clear()
    await node.push(SetDelta("s:friends", frozenset({"10.65.0.9/32"}), frozenset()))
    assert node.fake.messages_seen == [(NEW_ELEMENT, "set-s.friends-4")]
    assert into_a(node, "10.65.0.9", "eth0") == "accept"


# ---------------------------------------------------------------------------------- resync


async def test_a_resync_without_foreign_changes_reads_nothing(node: FakeNode):
    node.fake.messages_seen.clear()
    requests: list[int] = []
    send = node.fake.send

    def watch(data: bytes) -> None:
        requests.append(data[4])
        send(data)

    node.fake.send = watch  # type: ignore[method-assign]
    node.table.queue_resync("refresh")
    await node.push()
    assert requests == [16]  # NFT_MSG_GETGEN


@pytest.mark.parametrize("vandal", ["rule", "chain", "element", "table", "entry"])
async def test_what_another_program_broke_is_repaired(node: FakeNode, vandal: str):
    (table,) = node.fake.tables.values()
    name = node.chain_named("policy-in-friends")
    if vandal == "rule":
        chain = table.chains[name]
        table.chains[name] = type(chain)(name, chain.rules[1:], handle=chain.handle)
    elif vandal == "chain":
        table.chains["intruder"] = type(table.chains[name])("intruder", ())
    elif vandal == "element":
        table.sets["set-s.friends-4"].elements.clear()
    elif vandal == "entry":
        table.sets["dispatch-ingress"].elements.clear()
    else:
        node.fake.tables.clear()
    node.fake.touch()
    node.table.queue_resync("refresh")
    await node.push()
    assert into_a(node) == "accept"
    assert "intruder" not in node.chain_names()
    before = node.fake.commits
    node.table.queue_resync("refresh")
    await node.push()
    assert node.fake.commits == before


async def test_other_tables_are_not_seen(node: FakeNode):
    (ours,) = node.fake.tables.values()
    foreign = ours.draft()
    node.fake.tables[1, "other"] = foreign
    node.fake.tables[2, "calico"] = foreign
    node.fake.touch()
    node.table.queue_resync("refresh")
    result = await node.push()
    assert (result.written, result.deleted) == (0, 0)
    assert node.fake.tables[1, "other"] is not None
    assert set(node.fake.tables) == {(1, "calico"), (1, "other"), (2, "calico")}


async def test_a_set_of_a_strange_shape_is_replaced(node: FakeNode):
    (table,) = node.fake.tables.values()
    strange = table.sets["set-s.friends-4"]
    strange.key_type, strange.key_length, strange.flags = 13, 2, 0
    strange.elements.clear()
    node.fake.touch()
    node.table.queue_resync("refresh")
    await node.push()
    assert table.sets.keys() == node.fake.tables[1, "calico"].sets.keys()
    assert into_a(node) == "accept"


# ---------------------------------------------------------------------------------- refusals


async def test_a_refused_chain_is_closed_and_the_others_go_on(node: FakeNode):
    name = node.chain_named("policy-in-friends")
    node.fake.refuse(NEW_RULE, name, after=1)  # the drop in its place is one rule
    result = await node.push(
        policy("friends", [rule(protocol=6), rule(protocol=17)], [ALLOW]),
        workload("c", "cali3", "10.65.0.4/32"),
    )
    assert result.deferred == 1
    assert not result.failed
    assert into_a(node) == "drop"
    assert node.fake.forward(Packet("10.65.0.4", B), "cali3", "cali2") == "accept"
    assert node.table.dump()["refused"] == {f"chain {name}": "Cannot allocate memory"}


async def test_a_refused_set_closes_its_users_only(node: FakeNode):
    node.fake.refuse(NEW_SET, "set-s.new-4")
    result = await node.push(
        SetUpdate("s:new", SetKind.NET, frozenset({f"{A}/32"})),
        policy("new", [rule(Action.DENY, source=EntityMatch(sets=("s:new",))), ALLOW]),
        workload("b", "cali2", f"{B}/32", tiers=(tier(ingress=["new"]),)),
    )
    assert result.deferred == 1
    assert node.fake.forward(Packet(A, B), "cali1", "cali2") == "drop"
    assert into_a(node) == "accept"


async def test_refused_members_of_a_known_set_close_its_users(node: FakeNode):
    node.fake.refuse(NEW_ELEMENT, "set-s.friends-4", errno.ENFILE)
    await node.push(SetDelta("s:friends", frozenset({"10.65.0.9/32"}), frozenset()))
    assert into_a(node) == "drop"
    node.fake.allow()
    await node.clock.advance(2)
    assert (await node.push()).deferred == 0
    assert into_a(node) == "accept"
    assert into_a(node, "10.65.0.9", "eth0") == "accept"


async def test_one_refused_dispatch_entry_closes_one_workload(node: FakeNode):
    node.fake.refuse_element("dispatch-ingress", b"cali4")
    result = await node.push(
        workload("c", "cali3", "10.65.0.4/32"), workload("d", "cali4", "10.65.0.5/32")
    )
    assert result.deferred == 1
    assert node.fake.forward(Packet(A, "10.65.0.4"), "cali1", "cali3") == "accept"
    assert node.fake.forward(Packet(A, "10.65.0.5"), "cali1", "cali4") == "drop"


NEWCOMERS = (
    SetUpdate("s:new", SetKind.NET, frozenset()),
    policy("new", [rule(source=EntityMatch(sets=("s:new",)))]),
    workload("b", "cali2", f"{B}/32", tiers=(tier(ingress=["new"]),)),
)


async def test_a_refused_object_is_tried_again_with_growing_pauses(node: FakeNode):
    node.fake.refuse(NEW_SET, "set-s.new-4")
    result = await node.push(*NEWCOMERS)
    waits = []
    for _ in range(8):
        assert result.retry_after_s is not None
        waits.append(result.retry_after_s)
        await node.clock.advance(result.retry_after_s)
        result = await node.push()
        assert result.deferred == 1
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    before = node.fake.commits
    assert (await node.push()).deferred == 1
    assert node.fake.commits == before
    node.fake.allow()
    await node.clock.advance(60)
    result = await node.push()
    assert (result.deferred, result.retry_after_s) == (0, None)
    assert "set-s.new-4" in node.fake.tables[1, "calico"].sets


async def test_a_refused_object_is_tried_at_once_when_it_changes(node: FakeNode):
    node.fake.refuse(NEW_SET, "set-s.new-4")
    assert (await node.push(*NEWCOMERS)).deferred == 1
    node.fake.allow()
    result = await node.push(SetUpdate("s:new", SetKind.NET, frozenset({f"{A}/32"})))
    assert result.deferred == 0


async def test_a_refused_object_is_tried_at_once_when_asked_to_look(node: FakeNode):
    node.fake.refuse(NEW_SET, "set-s.new-4")
    assert (await node.push(*NEWCOMERS)).deferred == 1
    node.fake.allow()
    node.table.queue_resync("a person asked")
    assert (await node.push()).deferred == 0


async def test_a_refusal_from_a_wrong_picture_is_cured_by_looking(node: FakeNode):
    (table,) = node.fake.tables.values()
    table.sets["set-s.friends-4"].elements.clear()  # nobody told us
    result = await node.push(SetDelta("s:friends", frozenset(), frozenset({f"{B}/32"})))
    assert (result.deferred, result.failed) == (0, 0)
    assert into_a(node) == "drop"


# ------------------------------------------------------------------------ races and failures


async def test_a_change_by_others_between_reading_and_writing_is_noticed():
    node = FakeNode()
    node.fake.before_next_batch(node.fake.touch)
    result = await node.push(*INTENTS)
    assert not result.failed
    assert into_a(node) == "accept"


async def test_others_who_never_stop_changing_their_tables_do_not_stop_us():
    node = FakeNode()
    node.fake.touch_before_every_batch = True
    result = await node.push(*INTENTS)
    assert not result.failed
    assert into_a(node) == "accept"


async def test_a_lost_answer_leads_to_a_reading_before_the_next_write(node: FakeNode):
    receive = node.fake.receive

    def fail() -> bytes:
        raise ProgrammingFailed("nfnetlink receive", "", errno.ENOBUFS)

    node.fake.receive = fail  # type: ignore[method-assign]
    closed = [DENY, rule(source=EntityMatch(sets=("s:friends",)))]
    result = await node.push(policy("friends", closed, [ALLOW]))
    assert result.failed == 1
    node.fake.receive = receive  # type: ignore[method-assign]
    before = node.fake.commits
    result = await node.push()
    assert not result.failed
    assert node.fake.commits == before, "it had been written: nothing to do"
    assert into_a(node) == "drop"


async def test_a_change_by_others_beside_our_own_write_is_looked_for(node: FakeNode):
    """Their commit and ours both moved the generation: ours alone would have moved it by one."""

    def break_something() -> None:
        (table,) = node.fake.tables.values()
        table.sets["dispatch-ingress"].elements.clear()
        node.fake.touch()

    node.fake.before_next_batch(break_something)
    await node.push(policy("friends", [ALLOW], [ALLOW]))
    assert into_a(node) == "drop"
    node.table.queue_resync("refresh")
    await node.push()
    assert into_a(node) == "accept"


async def test_a_batch_refused_as_a_whole_fails_the_apply(node: FakeNode):
    node.fake.refuse_batches(errno.ENOMEM)
    result = await node.push(policy("friends", [DENY], [ALLOW]))
    assert result.failed == 1
    assert "memory" in result.error
    node.fake.allow()
    assert not (await node.push()).failed
    assert into_a(node) == "drop"


async def test_large_sets_are_spread_over_transactions():
    fake = FakeNft()
    table = NftTable(NftKernel(fake), max_elements=100)
    table.wanted.want_set(net_set("s", 4))
    user = Rule((Lookup((Field.IP4_SADDR,), "s"),), (DROP,))
    table.wanted.want_chain(Chain("base", (user,), BaseHook(Hook.INPUT, 0)))
    members = {net_element(4, number * 2, 32) for number in range(1000)}
    table.wanted.replace_members("s", members)
    result = await table.apply()
    assert result.written == 1002
    assert fake.commits == 1 + 1 + 10 + 1, "table, set, pieces, and then the rule that uses it"
    assert len(fake.tables[1, "calico"].sets["s"].elements) == 2000
    assert (await table.apply()).written == 0


def test_a_refused_object_says_what_it_is():
    assert str(RefusedObject("set", "s")) == "set s"
    assert str(RefusedObject("entry", "m", b"\1\2")) == "entry m element 0102"
