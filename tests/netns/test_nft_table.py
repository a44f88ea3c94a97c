"""The nft driver on a real kernel: restarts, strangers, large sets."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable

import pytest

from felix.intent import Intent, SetDelta, SetUpdate, WorkloadEndpointRemove
from felix.kernel.nft import NftKernel
from libcalico.compute.rules import EntityMatch, SetKind
from tests.support.netns import Namespace, NamespaceSet, why_unavailable
from tests.support.nft import (
    ALLOW,
    DENY,
    Node,
    allow_all_profile,
    from_nets,
    policy,
    rule,
    tier,
    workload,
    workload_key,
)

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("nft")), reason=why)

INTENTS: tuple[Intent, ...] = (
    SetUpdate("s:friends", SetKind.NET, frozenset({"10.65.0.3/32", "fd00::3/128"})),
    policy("friends", [rule(source=EntityMatch(sets=("s:friends",)))], [ALLOW]),
    policy("many", [rule(source=from_nets(f"10.{n}.0.0/16")) for n in range(30)], [DENY]),
    allow_all_profile(),
    workload("a", "cali1", "10.65.0.2/32", "fd00::2/128", tiers=(tier("friends", "many"),)),
    workload("b", "cali2", "10.65.0.3/32", "fd00::3/128"),
)


class Rig:
    """A namespace and the node's dataplane in it."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.node = Node(NftKernel.in_namespace(namespace.path))

    async def restart(self, intents: Iterable[Intent] = INTENTS) -> None:
        self.node.kernel.close()
        self.node = Node(NftKernel.in_namespace(self.namespace.path))
        await self.node.push(*intents)

    def nft(self, *words: str) -> str:
        return self.namespace.run("nft", *words)

    def listing(self) -> str:
        """Our table with handles: the same text means that nothing was touched."""
        return self.nft("-a", "list", "table", "inet", "calico")

    async def generation(self) -> int:
        return await self.node.kernel.generation()


@pytest.fixture
async def rig(netns: NamespaceSet):
    made = Rig(netns.make("node"))
    await made.node.push(*INTENTS)
    yield made
    made.node.kernel.close()


async def test_a_second_apply_writes_nothing(rig: Rig):
    before = await rig.generation()
    for _ in range(2):
        rig.node.table.queue_resync("refresh")
        result = await rig.node.push(*INTENTS)
        assert (result.written, result.deleted) == (0, 0)
    assert await rig.generation() == before


async def test_a_fresh_process_touches_nothing_that_is_right(rig: Rig):
    listing, generation = rig.listing(), await rig.generation()
    await rig.restart()
    assert rig.listing() == listing
    assert await rig.generation() == generation


async def test_a_fresh_process_keeps_the_handles_of_what_did_not_change(rig: Rig):
    before = _handles_by_chain(rig)
    changed = [policy("friends", [DENY], [ALLOW]) if n == 1 else i for n, i in enumerate(INTENTS)]
    await rig.restart(changed)
    after = _handles_by_chain(rig)
    different = {name for name in before if before[name] != after[name]}
    assert len(different) == 1
    assert different.pop().startswith("policy-in-friends")


def _handles_by_chain(rig: Rig) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    chain = ""
    for line in rig.listing().splitlines():
        name = re.match(r"\tchain (\S+) \{", line)
        chain = name[1] if name else chain
        if chain:  # sets are listed before the first chain
            found.setdefault(chain, []).extend(re.findall(r"# handle (\d+)", line))
    return found


async def test_orphans_of_an_earlier_process_go(rig: Rig):
    rig.nft("add", "chain", "inet", "calico", "leftover")
    rig.nft("add rule inet calico leftover drop")
    rig.nft("add set inet calico leftset { type ipv4_addr; }")
    await rig.restart()
    assert "left" not in rig.listing()


FOREIGN = """
table inet foreign {
    set s {
        type ipv4_addr
        flags interval
        elements = { 10.0.0.0/8 }
    }
    chain c {
        type filter hook forward priority 0; policy accept;
        ip saddr @s counter drop
    }
}
table ip calico {
    chain c {
        type filter hook forward priority 0; policy accept;
        counter accept
    }
}
"""


async def test_tables_of_others_are_never_touched(rig: Rig, tmp_path):
    file = tmp_path / "foreign.nft"
    file.write_text(FOREIGN)
    rig.nft("-f", str(file))
    tables = (("inet", "foreign"), ("ip", "calico"))
    before = [rig.nft("-a", "list", "table", *table) for table in tables]
    await rig.node.push(policy("friends", [DENY]), workload("c", "cali3", "10.65.0.4/32"))
    await rig.restart()
    rig.nft("delete", "table", "inet", "calico")
    rig.node.table.queue_resync("gone")
    await rig.node.push()
    assert [rig.nft("-a", "list", "table", *table) for table in tables] == before


async def test_the_table_comes_back_when_somebody_flushes_everything(rig: Rig):
    before = re.sub(r"handle \d+", "", rig.listing())
    rig.nft("flush", "ruleset")
    rig.node.table.queue_resync("refresh")
    await rig.node.push()
    assert sorted(re.sub(r"handle \d+", "", rig.listing()).splitlines()) == sorted(
        before.splitlines()
    )


async def test_others_at_work_lose_nothing_and_do_not_stop_us(rig: Rig):
    rig.nft("add table inet foreign; add chain inet foreign c")
    loop = "i=0; while [ $i -lt 150 ]; do nft add rule inet foreign c counter; i=$((i+1)); done"
    busy = rig.namespace.spawn("sh", "-c", loop)
    number = 0
    while busy.poll() is None:
        number += 1
        rig.node.table.queue_resync("refresh")
        changed = policy("friends", [DENY] * (1 + number % 3), [ALLOW])
        result = await rig.node.push(changed)
        assert not result.failed, result.error
        await asyncio.sleep(0)
    assert busy.wait() == 0
    assert rig.nft("list", "chain", "inet", "foreign", "c").count("counter") == 150
    assert number > 10
    expected = await rig.node.kernel.read()
    assert expected.chains.keys() == {n for n, _c in rig.node.table.wanted.chains.wanted_items()}


def members_listed(rig: Rig) -> int:
    listed = rig.nft("list", "set", "inet", "calico", "set-s.friends-4")
    return len(re.findall(r"[ ]10\.\d+\.\d+\.\d+", listed))


def members(count: int) -> frozenset[str]:
    return frozenset(f"10.{n >> 15}.{n >> 7 & 255}.{(n & 127) * 2}/32" for n in range(count))


async def test_ten_thousand_members_come_shrink_and_go(rig: Rig):
    before = await rig.generation()
    await rig.node.push(SetUpdate("s:friends", SetKind.NET, members(10_000)))
    assert await rig.generation() == before + 1, "one transaction"
    assert members_listed(rig) == 10_000
    gone = frozenset(sorted(members(10_000))[:9_990])
    await rig.node.push(SetDelta("s:friends", frozenset(), gone))
    assert members_listed(rig) == 10
    await rig.restart((SetUpdate("s:friends", SetKind.NET, members(10_000)), *INTENTS[1:]))
    image = await rig.node.kernel.read()
    assert len(image.elements["set-s.friends-4"]) == 10_000
    generation = await rig.generation()
    await rig.restart((SetUpdate("s:friends", SetKind.NET, members(10_000)), *INTENTS[1:]))
    assert await rig.generation() == generation


async def test_a_set_of_250_000_members_grows_and_shrinks(rig: Rig):
    """More than we put into one transaction: the members come and go in two."""
    few, many = members(10), members(250_010) - members(10)

    async def kernel_has() -> int:
        return len((await rig.node.kernel.read()).elements["set-s.friends-4"])

    await rig.node.push(SetUpdate("s:friends", SetKind.NET, few))
    before = await rig.generation()
    assert (await rig.node.push(SetDelta("s:friends", many, frozenset()))).failed == 0
    assert await rig.generation() == before + 2
    assert await kernel_has() == 250_010
    assert (await rig.node.push(SetDelta("s:friends", frozenset(), many))).failed == 0
    assert await kernel_has() == members_listed(rig) == 10


async def test_nets_that_contain_each_other_change_places(rig: Rig):
    async def holds(*nets: str) -> bool:
        listed = rig.nft("list", "set", "inet", "calico", "set-s.friends-4")
        return all(net in listed for net in nets) and members_listed(rig) == len(nets)

    wide, inner = "10.9.0.0/24", ("10.9.0.1", "10.9.0.7")
    await rig.node.push(
        SetUpdate("s:friends", SetKind.NET, frozenset({wide, *(f"{i}/32" for i in inner)}))
    )
    assert await holds(wide)
    await rig.node.push(SetDelta("s:friends", frozenset(), frozenset({wide})))
    assert await holds(*inner)
    await rig.node.push(SetDelta("s:friends", frozenset({wide}), frozenset()))
    assert await holds(wide)


async def test_workloads_leave_no_trace(rig: Rig):
    await rig.node.push(
        WorkloadEndpointRemove(workload_key("a")), WorkloadEndpointRemove(workload_key("b"))
    )
    listing = rig.listing()
    assert "cali1" not in listing
    assert "endpoint-" not in listing
    assert "tier-" not in listing


async def test_closing_in_the_middle_of_a_commit_is_all_or_nothing(rig: Rig):
    big = SetUpdate("s:friends", SetKind.NET, members(30_000))
    task = asyncio.create_task(rig.node.push(big))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    image = await rig.node.kernel.read()
    assert len(image.elements["set-s.friends-4"]) in (1, 30_000)
    await rig.node.push()
    assert len((await rig.node.kernel.read()).elements["set-s.friends-4"]) == 30_000
