"""felix.dataplane.ipt_table over the fake tools: what is written, what is not, and refusals."""

from __future__ import annotations

import pytest

from felix.dataplane.ipt_table import IptOptions
from felix.endpoint_programmer import policy_problem, policy_remains
from felix.intent import (
    Intent,
    PoolUpdate,
    ProfileUpdate,
    SetDelta,
    SetRemove,
    SetUpdate,
    WorkloadEndpointRemove,
)
from libcalico.compute.rules import EntityMatch, SetKind
from libcalico.testing.fakenft_vm import Packet
from tests.support.iptables import FakeIptNode
from tests.support.nft import (
    ALLOW,
    PROFILE,
    allow_all_profile,
    policy,
    rule,
    tier,
    workload,
    workload_key,
)

A, B = "10.65.0.2", "10.65.0.3"
FOREIGN = "-s 192.0.2.1/32 -j ACCEPT"
TO_A = Packet("8.8.8.8", A, dport=80)
TO_B = Packet("8.8.8.8", B, dport=80)


def pods() -> list[Intent]:
    """Pod a under policy "web" (port 80), pod b under policy "other" (everything)."""
    return [
        allow_all_profile(),
        policy("web", [rule(ports=(80,))]),
        policy("other", [rule()], [rule()]),
        workload("a", "cali1", f"{A}/32", tiers=[tier("web")]),
        workload("b", "cali2", f"{B}/32", tiers=[tier("other")]),
    ]


@pytest.fixture
def node() -> FakeIptNode:
    return FakeIptNode()


def into(node: FakeIptNode, packet: Packet) -> str:
    return node.fake.forward(packet, "eth0", "cali1" if packet.dst == A else "cali2")


def tables_of(script: str) -> list[str]:
    return [line[1:] for line in script.splitlines() if line.startswith("*")]


async def test_policy_is_enforced_and_then_nothing_is_said(node):
    await node.push(*pods())
    assert into(node, TO_A) == "accept"
    assert into(node, Packet("8.8.8.8", A, dport=81)) == "drop"
    node.fake.scripts.clear()
    node.fake.calls.clear()
    result = await node.push()
    assert (result.written, result.deleted, result.failed) == (0, 0, 0)
    assert (node.fake.scripts, node.fake.calls) == ([], [])


async def test_a_successor_reads_everything_and_writes_nothing(node):
    await node.push(*pods())
    node.fake.scripts.clear()
    node.fake.calls.clear()
    after = node.restarted()
    result = await after.push(*pods())
    assert (result.written, result.deleted, node.fake.scripts) == (0, 0, [])
    assert len([call for call in node.fake.calls if "-t" in call]) == 8


async def test_an_edited_policy_is_one_chain_in_one_table_of_each_family(node):
    await node.push(*pods())
    node.fake.scripts.clear()
    await node.push(policy("web", [rule(ports=(81,))]))
    assert [tables_of(script) for script in node.fake.scripts] == [["filter"], ["filter"]]
    assert all(script.count(":cali-") == 1 for script in node.fake.scripts)
    assert into(node, TO_A) == "drop"
    assert into(node, Packet("8.8.8.8", A, dport=81)) == "accept"


async def test_sets_come_before_the_rules_that_use_them_and_go_after(node):
    uses = policy("web", [rule(source=EntityMatch(sets=("s:x",)))])
    await node.push(*pods(), SetUpdate("s:x", SetKind.NET, frozenset({"8.8.8.8/32"})), uses)
    assert into(node, TO_A) == "accept"
    await node.push(SetDelta("s:x", frozenset({"9.9.9.9/32"}), frozenset({"8.8.8.8/32"})))
    assert into(node, TO_A) == "drop"
    node.fake.scripts.clear()
    await node.push(policy("web", [rule()]), SetRemove("s:x"))
    assert "cali40s:x" not in node.fake.sets
    assert node.fake.scripts[-1].splitlines() == ["destroy cali40s:x", "destroy cali60s:x"]


async def test_a_workload_that_goes_leaves_nothing(node):
    await node.push(*pods())
    before = {name: set(chains) for name, chains in node.fake.tables.items()}
    await node.push(
        policy("third", [rule()]),
        workload("c", "cali3", "10.65.0.4/32", tiers=[tier("third")]),
    )
    await node.push(WorkloadEndpointRemove(workload_key("c")))
    assert {name: set(chains) for name, chains in node.fake.tables.items()} == before
    assert "10.65.0.4,cali3" not in node.fake.sets["cali40wl-sources"].members


async def test_rules_of_others_stay_in_their_order_and_ours_comes_first(node):
    forward = node.fake.table("filter")["FORWARD"]
    forward += [FOREIGN, "-j DROP"]
    await node.push(*pods())
    forward = node.fake.table("filter")["FORWARD"]
    assert forward[1:] == [FOREIGN, "-j DROP"]
    forward.insert(0, "-j LOG")
    node.table.queue_resync("test")
    await node.push()
    forward = node.fake.table("filter")["FORWARD"]
    assert forward[0].endswith("-j cali-FORWARD")
    assert forward[1:] == ["-j LOG", FOREIGN, "-j DROP"]


async def test_a_kernel_without_ipv6_gets_nothing_of_it():
    node = FakeIptNode(options=IptOptions(versions=(4,)))
    result = await node.push(*pods(), SetUpdate("s:x", SetKind.NET, frozenset({"fd00::/8"})))
    assert result.failed == 0
    assert {version for _variant, version, _table in node.fake.tables} == {4}
    assert not any(name.startswith("cali6") for name in node.fake.sets)
    assert not any(call[0].startswith("ip6tables") for call in node.fake.calls)


async def test_append_mode_puts_ours_last():
    node = FakeIptNode(options=IptOptions(appends=True))
    node.fake.table("filter")["FORWARD"].append(FOREIGN)
    await node.push(*pods())
    forward = node.fake.table("filter")["FORWARD"]
    assert forward[0] == FOREIGN
    assert forward[1].endswith("-j cali-FORWARD")


async def test_what_others_destroy_is_restored_and_a_write_is_looked_at_again(node):
    await node.push(*pods())
    table = node.fake.table("filter")
    table["FORWARD"].clear()
    chain = next(name for name in table if name.startswith("cali-pi-"))
    table[chain].insert(0, "-j ACCEPT")
    assert into(node, Packet("8.8.8.8", A, dport=81)) == "accept"
    await node.clock.advance(5.0)
    result = await node.push()
    assert result.written == 2
    assert into(node, Packet("8.8.8.8", A, dport=81)) == "drop"


async def test_somebody_was_faster_between_reading_and_writing(node):
    await node.push(*pods())
    forward = node.fake.table("filter")["FORWARD"]
    forward.insert(0, FOREIGN)
    node.table.queue_resync("test")

    def others_delete_our_hook() -> None:
        table = node.fake.table("filter")
        table["FORWARD"] = [rule for rule in table["FORWARD"] if "cali-" not in rule]

    node.fake.before_next_restore(others_delete_our_hook)
    result = await node.push()
    assert result.failed == 0
    rules = node.fake.table("filter")["FORWARD"]
    assert [rule.endswith("-j cali-FORWARD") for rule in rules] == [True, False]
    assert rules[1] == FOREIGN


@pytest.mark.parametrize("at_commit", [False, True])
async def test_a_refused_rule_closes_its_policy_and_nothing_else(node, at_commit):
    await node.push(*pods())
    node.fake.refuse("--dports 666", at_commit=at_commit)
    bad = policy("web", [rule(), rule(ports=(666,))])
    result = await node.push(bad, policy("other", [rule(ports=(80,))]))
    assert (result.failed, result.deferred) == (0, 1)
    assert "policy-in-web" in result.error
    assert into(node, TO_A) == "drop"
    assert into(node, TO_B) == "accept"
    assert into(node, Packet("8.8.8.8", B, dport=81)) == "drop"
    assert "cali-trial" not in node.fake.table("filter")
    assert list(node.table.refused) == [next(iter(node.table.refused))]


async def test_it_is_tried_again_and_opens_when_the_kernel_takes_it(node):
    node.fake.refuse("--dports 80")
    result = await node.push(*pods())
    assert result.deferred == 1
    assert into(node, TO_A) == "drop"
    node.fake.scripts.clear()
    await node.push()
    assert node.fake.scripts == [], "not before its time"
    node.fake.allow()
    await node.clock.advance(1.0)
    result = await node.push()
    assert (result.deferred, into(node, TO_A)) == (0, "accept")
    assert node.table.refused == {}


async def test_a_policy_that_is_edited_is_tried_at_once(node):
    node.fake.refuse("--dports 80")
    await node.push(*pods())
    await node.push(policy("web", [rule(ports=(81,))]))
    assert into(node, Packet("8.8.8.8", A, dport=81)) == "accept"


async def test_several_refused_policies_are_found_among_many_by_trials(node):
    names = [f"p{number}" for number in range(20)]
    policies = [policy(name, [rule(ports=(1000 + at,))]) for at, name in enumerate(names)]
    for port in (1003, 1016):
        node.fake.refuse(f"--dports {port}", at_commit=True)
    everything = workload("a", "cali1", f"{A}/32", tiers=[tier(*names)])
    result = await node.push(allow_all_profile(), *policies, everything)
    assert (result.failed, result.deferred) == (0, 2)
    # A closed policy drops whatever reaches it.
    assert into(node, Packet("8.8.8.8", A, dport=1002)) == "accept"
    assert into(node, Packet("8.8.8.8", A, dport=1005)) == "drop"


async def test_a_refused_set_closes_the_policies_that_use_it(node):
    node.fake.refuse("add cali40s:x")
    uses = policy("web", [rule(source=EntityMatch(sets=("s:x",)))])
    members = SetUpdate("s:x", SetKind.NET, frozenset({"8.8.8.8/32"}))
    result = await node.push(*pods(), members, uses)
    assert (result.failed, result.deferred) == (0, 1)
    assert into(node, TO_A) == "drop"
    assert into(node, TO_B) == "accept"
    node.fake.allow()
    node.table.queue_resync("test")
    await node.push()
    assert into(node, TO_A) == "accept"


async def test_a_refused_address_closes_one_workload(node):
    node.fake.refuse(f"{A},cali1")
    result = await node.push(*pods())
    assert (result.failed, result.deferred) == (0, 1)
    assert node.fake.forward(Packet(A, "8.8.8.8"), "cali1", "eth0") == "drop"
    assert node.fake.forward(Packet(B, "8.8.8.8"), "cali2", "eth0") == "accept"


async def test_a_set_of_another_type_in_use_is_closed_destroyed_and_opened_again(node):
    uses = policy("web", [rule(source=EntityMatch(sets=("s:x",)))])
    await node.push(*pods(), SetUpdate("s:x", SetKind.NET, frozenset({"8.8.8.8/32"})), uses)
    node.fake.sets["cali40s:x"].type = "hash:ip"
    node.table.queue_resync("test")
    result = await node.push()
    assert (result.deferred, into(node, TO_A)) == (1, "drop")
    await node.clock.advance(1.0)
    result = await node.push()
    assert (result.deferred, into(node, TO_A)) == (0, "accept")


async def test_a_set_that_others_use_stays_and_is_never_stale(node):
    uses = policy("web", [rule(source=EntityMatch(sets=("s:x",)))])
    members = SetUpdate("s:x", SetKind.NET, frozenset({"8.8.8.8/32"}))
    await node.push(*pods(), members, uses)
    node.fake.table("nat")["OUTPUT"].append("-m set --match-set cali40s:x src -j ACCEPT")
    result = await node.push(policy("web", [rule(ports=(1,))]), SetRemove("s:x"))
    assert result.failed == 0
    assert "cali40s:x" in node.fake.sets
    await node.push(SetUpdate("s:x", SetKind.NET, frozenset({"9.9.9.9/32"})), uses)
    assert node.fake.sets["cali40s:x"].members == {"9.9.9.9"}


async def test_a_held_lock_is_a_failure_that_loses_nothing(node):
    await node.push(*pods())
    node.fake.locked_calls = 1
    result = await node.push(policy("web", [rule(ports=(81,))]))
    assert result.failed == 1
    assert node.table.refused == {}
    assert into(node, TO_A) == "accept", "the old rules stand"
    result = await node.push()
    assert result.failed == 0
    assert into(node, Packet("8.8.8.8", A, dport=81)) == "accept"


async def test_a_missing_tool_is_said_in_one_line(node):
    node.fake.missing.add("ipset")
    result = await node.push(*pods())
    assert result.failed == 1
    assert result.error == "run ipset failed with errno 2: not installed"


async def test_a_big_set_grows_and_shrinks_by_deltas():
    node = FakeIptNode(options=IptOptions(max_members=100))
    uses = policy("web", [rule(source=EntityMatch(sets=("s:x",)))])
    few = frozenset(f"10.1.0.{n}/32" for n in range(50))
    many = few | frozenset(f"10.2.0.{n}/32" for n in range(200))
    await node.push(*pods(), SetUpdate("s:x", SetKind.NET, few), uses)
    await node.push(SetDelta("s:x", many - few, frozenset()))
    assert len(node.fake.sets["cali40s:x"].members) == 250
    assert node.fake.sets["cali40s:x"].maxelem == 500
    node.fake.scripts.clear()
    await node.push(SetDelta("s:x", frozenset(), many - few))
    assert len(node.fake.sets["cali40s:x"].members) == 50
    (script,) = node.fake.scripts
    assert script.count("del ") == 200


async def test_a_chain_of_ours_that_others_lead_to_does_not_stop_us(node):
    await node.push(*pods())
    chain = next(name for name in node.fake.table("filter") if name.startswith("cali-pi-"))
    node.fake.table("filter")["MINE"] = [f"-j {chain}"]
    result = await node.push(
        WorkloadEndpointRemove(workload_key("a")), WorkloadEndpointRemove(workload_key("b"))
    )
    assert result.failed == 0
    assert node.fake.table("filter")[chain] == []
    assert node.fake.table("filter")["MINE"] == [f"-j {chain}"]


async def test_a_refused_deletion_does_not_stop_us_either(node):
    await node.push(*pods())
    chain = next(name for name in node.fake.table("filter") if name.startswith("cali-pi-"))
    node.fake.refuse(f"-X {chain}")
    result = await node.push(
        WorkloadEndpointRemove(workload_key("a")), WorkloadEndpointRemove(workload_key("b"))
    )
    assert (result.failed, result.deferred) == (0, 0)
    left = [name for name in node.fake.table("filter") if name.startswith("cali-pi-")]
    assert left == [chain]
    node.fake.scripts.clear()
    await node.push()
    assert node.fake.scripts == [], "it is tried again after a reading, not before"
    node.fake.allow()
    node.table.queue_resync("test")
    await node.push()
    assert chain not in node.fake.table("filter")


async def test_a_pods_start_waits_until_its_rules_are_written(node):
    """What the CNI agent asks (endpoint_programmer)."""
    node.tell(*pods())
    assert "is not in the kernel" in policy_problem(node.table.wanted, "cali1")
    node.fake.locked_calls = 1
    await node.push()
    assert "is not in the kernel" in policy_problem(node.table.wanted, "cali1")
    await node.push()
    assert policy_problem(node.table.wanted, "cali1") == ""
    node.tell(WorkloadEndpointRemove(workload_key("a")))
    assert policy_remains(node.table.wanted, "cali1")
    await node.push()
    assert not policy_remains(node.table.wanted, "cali1")


async def test_pools_are_translated_only_where_they_leave(node):
    pool = PoolUpdate("10.65.0.0/16", nat_outgoing=True, ipip_mode="Never", vxlan_mode="Never")
    await node.push(*pods(), pool)
    assert node.fake.forward(Packet(B, "8.8.8.8"), "cali2", "eth0") == "accept"
    assert node.fake.effects == ["MASQUERADE"]
    assert node.fake.forward(Packet(B, A, dport=80), "cali2", "cali1") == "accept"
    assert node.fake.effects == []


async def test_a_new_profile_rule_reaches_both_families(node):
    await node.push(*pods(), ProfileUpdate(PROFILE, (), (ALLOW,)))
    assert {key[1] for key, chains in node.fake.tables.items() if "cali-FORWARD" in chains} == {
        4,
        6,
    }
    assert node.table.dump()["refused"] == {}
