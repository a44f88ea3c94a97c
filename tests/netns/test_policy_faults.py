"""Faults and sizes that policy has to survive, through the graph and nftables on a real kernel."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from felix.calc import CalcGraph
from felix.kernel.nft import NftKernel
from libcalico.syncer.api import SyncStatus, Update
from tests.netns import test_nft_packets as packets
from tests.support import calc
from tests.support.calc import Object, rule
from tests.support.netns import Namespace, NamespaceSet, eventually, why_unavailable
from tests.support.nft import Node
from tests.support.probes import Place, tcp

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "nft")), reason=why)

MANY, FEW_RULES = 10_000, 50
ALLOWING = calc.profile("kns.prod", ingress=(rule(),), egress=(rule(),))


class Felix:
    """The graph of node "here" and its nftables in a namespace, fed from memory."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.node = Node(NftKernel.in_namespace(namespace.path))
        self._graph = CalcGraph(calc.HERE)
        self._graph.on_status(SyncStatus.IN_SYNC)
        self._revision = 0

    async def store(self, *objects: Object) -> None:
        await self._change((key, value) for key, value in objects)

    async def erase(self, *objects: Object) -> None:
        await self._change((key, None) for key, _ in objects)

    async def _change(self, changes: Iterable[tuple[object, object]]) -> None:
        self._revision += 1
        self._graph.on_updates([Update(k, v, self._revision) for k, v in changes])  # type: ignore[arg-type]
        await self.apply()

    async def apply(self) -> None:
        result = await self.node.push(*self._graph.flush())
        assert (result.failed, result.deferred) == (0, 0), result.error

    def rules(self) -> int:
        """How many rules the kernel has, of whatever table."""
        listed = json.loads(self.namespace.run("nft", "-j", "list", "ruleset"))["nftables"]
        return sum("rule" in item for item in listed)

    def listing(self) -> list[str]:
        """What the kernel has in our table: without handles, and in no order of creation."""
        return blocks(self.namespace.run("nft", "list", "table", "inet", "calico"))

    def policy_chains(self) -> list[str]:
        return sorted(re.findall(r"chain (policy-\S+) \{", "\n".join(self.listing())))


def blocks(listed: str) -> list[str]:
    """Chains and sets of a listing, each with its lines in their order."""
    return sorted(re.findall(r"^\t\w+ \S+ \{\n.*?^\t\}$", listed, re.DOTALL | re.MULTILINE))


@pytest.fixture
def start(netns: NamespaceSet):
    """Starts a `Felix` in a namespace given or new."""
    started: list[Felix] = []

    def make(namespace: Namespace | None = None) -> Felix:
        started.append(Felix(namespace or netns.make("node")))
        return started[-1]

    yield make
    for felix in started:
        felix.node.kernel.close()


# --------------------------------------------------------------------------------- many policies


async def test_ten_thousand_policies_and_no_local_endpoint_are_few_rules(start):
    felix = start()
    allow = rule(source={"selector": "has(role)"}, destination={"nets": ("10.0.0.0/8",)})
    fields = {"ingress": (allow,), "types": ("Ingress",)}
    await felix.store(
        ALLOWING,
        *(calc.np(f"p{n}", selector=f"app == 'a{n % 100}'", **fields) for n in range(MANY)),
        *(
            calc.wep(f"w{n}", f"10.9.0.{n}/32", node=calc.ELSEWHERE, labels={"app": f"a{n}"})
            for n in range(100)
        ),
    )
    assert 0 < felix.rules() < FEW_RULES
    assert felix.policy_chains() == []
    local = calc.wep("a", "10.65.0.2/32", labels={"app": "a7"}, profiles=("kns.prod",))
    await felix.store(local)
    assert len(felix.policy_chains()) == MANY // 100, "the policies that select it, and no other"
    assert felix.rules() > FEW_RULES
    await felix.erase(local)
    assert felix.rules() < FEW_RULES
    assert felix.policy_chains() == []


# ----------------------------------------------------------------------------------- other people


OTHERS = """
add table inet other
add chain inet other theirs { type filter hook forward priority 0; policy accept; }
add rule inet other theirs ip saddr 192.0.2.99 counter accept comment "first"
"""
# Priority 0 is that of our own forward chain. Every round adds a rule that stays, six that come
# and go, and a table that comes and goes. The removals are one transaction: the `nft` command waits
# some 20 ms for the kernel after each that removes something.
ROUNDS = r"""
number=0
while [ ! -e "$1/stop" ]; do
    number=$((number + 1))
    nft insert rule inet other theirs counter comment "kept-$number" || exit 1
    removals="delete table ip brief"
    for _ in 1 2 3 4 5 6; do
        said=$(nft -a -e insert rule inet other theirs counter comment passing) || exit 1
        handle=$(echo "$said" | sed -n 's/.*# handle \([0-9]*\)$/\1/p')
        removals="$removals; delete rule inet other theirs handle $handle"
    done
    nft "add table ip brief; add chain ip brief c; add rule ip brief c drop" || exit 1
    nft "$removals" || exit 1
    echo "$number" >>"$1/rounds"
done
"""
LEAST_ROUNDS = 50


@contextmanager
def somebody_else(namespace: Namespace, directory: Path) -> Iterator[Callable[[], int]]:
    """Works on rules of its own until the end of the `with`. Tells how many rounds it has done."""
    rounds = directory / "rounds"
    rounds.touch()
    with (directory / "said").open("wb") as said:
        process = namespace.spawn("sh", "-c", ROUNDS, "sh", str(directory), stderr=said)

    def done() -> int:
        assert process.poll() is None, (directory / "said").read_text()
        return rounds.read_text().count("\n")

    try:
        yield done
    finally:
        (directory / "stop").touch()
        code = process.wait(timeout=20)
    assert (code, (directory / "said").read_text()) == (0, "")


def only(port: int, *, to: str = "b", source: str = "app == 'a'") -> Object:
    """One policy that lets in one port from whom `source` selects."""
    allow = rule(protocol="TCP", source={"selector": source}, destination={"ports": (port,)})
    return calc.np("only", selector=f"app == '{to}'", types=("Ingress",), ingress=(allow,))


def pod(name: str, number: int, *, app: str = "") -> Object:
    labels, nets = {"app": app or name}, packets.POD_NETS[name]
    return calc.wep(
        name, *nets, labels=labels, interface_name=f"cali{number}", profiles=("kns.prod",)
    )


PODS = (ALLOWING, pod("a", 1), pod("b", 2))


async def test_rules_of_others_come_and_go_during_our_applies_and_none_is_lost(
    start, tmp_path: Path
):
    felix = start()
    namespace = felix.namespace
    for line in OTHERS.strip().splitlines():
        namespace.run("nft", line)
    await felix.store(*PODS, only(80))
    with somebody_else(namespace, tmp_path) as rounds_done:
        for number in range(LEAST_ROUNDS):
            # At their pace, for they wait for the kernel longer than we do.
            assert await asyncio.to_thread(eventually, lambda least=number: rounds_done() > least)
            felix.node.table.queue_resync("refresh")
            await felix.store(only(81 + number), pod("a", 1, app="ac"[number % 2]))
    count = (tmp_path / "rounds").read_text().count("\n")
    theirs = re.findall(r'comment "(\S+)"', namespace.run("nft", "list", "table", "inet", "other"))
    assert theirs == [*(f"kept-{n}" for n in range(count, 0, -1)), "first"]
    await felix.store(only(443), pod("a", 1))
    fresh = start()
    await fresh.store(*PODS, only(443))
    assert felix.listing() == fresh.listing(), "ours is whole"


# -------------------------------------------------------------------------------- edits in place


@pytest.fixture(scope="module")
def world() -> Iterator[packets.World]:
    with NamespaceSet() as netns:
        yield packets.build(netns)


Edit = tuple[Object, dict[tuple[str, str, int], bool]]
A_TO_B, B_TO_A = ("a", "b"), ("b", "a")
# Each: the one policy as it is now, and who reaches whom at which port.
EDITS: tuple[Edit, ...] = (
    (only(80), {(*A_TO_B, 80): True, (*A_TO_B, 443): False, (*B_TO_A, 443): True}),
    (only(443), {(*A_TO_B, 80): False, (*A_TO_B, 443): True, (*B_TO_A, 443): True}),
    (only(443, source="app == 'z'"), {(*A_TO_B, 443): False, (*B_TO_A, 443): True}),
    (only(443, source="app in {'a', 'b'}"), {(*A_TO_B, 443): True, (*A_TO_B, 80): False}),
    (
        only(443, to="a", source="app == 'b'"),
        {(*A_TO_B, 80): True, (*B_TO_A, 443): True, (*B_TO_A, 80): False},
    ),
)


@pytest.mark.parametrize("family", packets.FAMILIES)
async def test_edits_of_one_policy_converge_to_what_a_fresh_load_is(
    start, world: packets.World, family: int
):
    namespace = world.node.namespace
    namespace.run("nft", "flush", "ruleset")
    felix = start(namespace)
    places: dict[str, Place] = {"a": world.a, "b": world.b}
    await felix.store(*PODS)
    names = set()
    for policy, verdicts in EDITS:
        await felix.store(policy)
        found = {
            (source, target, port): tcp(places[source], places[target], port, family=family)
            for source, target, port in verdicts
        }
        assert found == verdicts
        names.update(felix.policy_chains())
        fresh = start()
        await fresh.store(*PODS, policy)
        assert felix.listing() == fresh.listing()
    assert len(names) == 1, "always the same chain"
