"""nftables: sets and rulesets into the kernel, beside the `nft` command doing the same.

`set-10k`     one address set of 10,000 members: from the intent to the kernel, beside `nft -f`.
`nft-full`    2,000 sets of 100 members and 2,000 policies of 10 rules, everything that hangs on
              included: from intents to the kernel, beside `nft -f` of the same rules one by one.
`nft-full-same`  the same times beside `nft -f` of the very ruleset we write, folded as it is; the
              note says how much of ours passed in the kernel, which no encoder can save.
`nft-member`  on that node: one member of a set changes, p99; beside `nft add element`.
`nft-chain`   on that node: one policy of 10 rules is replaced, p99; beside `nft -f` of the chain.
`nft-chain-unfolded`  the same on a node whose rules allow and deny in turns, so that none can be
              folded into one: beside the kernel alone, the same bytes sent again. At every change
              of a rule it checks all rules of the table, so this one grows with the table.

Both sides work in namespaces of their own, in turns.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from felix.dataplane.nft_port import ClearChain, WriteRules
from felix.intent import Intent, PolicyUpdate, SetDelta, SetRemove, SetUpdate
from felix.kernel.nfnetlink import NfnetlinkSocket, SocketTransport
from felix.kernel.nft import NftKernel
from felix.kernel.nft_codec import NFPROTO_INET, BatchEncoder
from felix.rules.chain import Chain
from felix.rules.names import policy_chain
from felix.rules.render_nft import Ruleset, rule_text, script
from felix.rules.settings import RuleSettings
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, PortRange, SetKind
from tests.bench.collector import settled
from tests.support.netns import Namespace, NamespaceSet
from tests.support.nft import Node, allow_all_profile, policy_key, tier, workload

FULL_NAMES = ("nft-full", "nft-full-same", "nft-member", "nft-chain")
NAMES = ("set-10k", *FULL_NAMES, "nft-chain-unfolded")
MEMBERS, ROUNDS = 10_000, 7
SETS, SET_MEMBERS, RULES, PER_WORKLOAD, FULL_ROUNDS = 2_000, 100, 10, 20, 3
CHANGES, COMMANDS, SETTLE_S = 300, 30, 1.0
RATIO_LIMIT, CHANGE_LIMIT_MS, UNFOLDED_LIMIT = 1.0, 3.0, 1.5


def run(only: set[str]) -> list[dict[str, Any]]:
    with settled():
        return _measured(only or set(NAMES))


def _measured(wanted: set[str]) -> list[dict[str, Any]]:
    entries = []
    with NamespaceSet() as netns:
        ours, theirs = netns.make("ours"), netns.make("theirs")
        if "set-10k" in wanted:
            entries.append(asyncio.run(set_of_10k(ours, theirs)))
        if wanted & set(FULL_NAMES):
            entries += asyncio.run(full_node(ours, theirs))
        if "nft-chain-unfolded" in wanted:
            ours.run("nft", "flush", "ruleset")
            entries.append(asyncio.run(unfolded(ours)))
    return entries


class TimedTransport(SocketTransport):
    """Adds up the time inside send(2), in which the kernel carries a transaction out."""

    kernel_ms = 0.0

    def send(self, data: bytes) -> None:
        began = time.perf_counter()
        super().send(data)
        self.kernel_ms += (time.perf_counter() - began) * 1000


@contextmanager
def node_in(namespace: Namespace) -> Iterator[Node]:
    kernel = NftKernel.in_namespace(namespace.path)
    try:
        yield Node(kernel)
    finally:
        kernel.close()


# -------------------------------------------------------------------------------------- set-10k


def addresses(count: int, first: int = 0) -> frozenset[str]:
    """Addresses with gaps, so that no tool can merge them."""
    numbers = (0x0A000000 + 2 * number for number in range(first, first + count))
    return frozenset(".".join(map(str, n.to_bytes(4, "big"))) + "/32" for n in numbers)


async def set_of_10k(ours: Namespace, theirs: Namespace) -> dict[str, Any]:
    members = addresses(MEMBERS)
    update = SetUpdate("s:bench", SetKind.NET, members)
    text = "table inet calico {\n set bench {\n type ipv4_addr\n flags interval\n elements = { "
    text += ", ".join(sorted(members)) + " }\n }\n}\n"
    ours_ms, theirs_ms = [], []
    # A set is programmed with what uses it: a policy of a workload.
    users = [
        allow_all_profile(),
        PolicyUpdate(policy_key("bench"), "default", (rule_from("s:bench"),), ()),
        workload("w", "cali0", "10.200.0.1/32", tiers=(tier(ingress=["bench"]),)),
    ]
    with node_in(ours) as node, _file(text) as path:
        await push(node, *users)
        for _ in range(ROUNDS):
            ours_ms.append(await _milliseconds(lambda: push(node, update)))
            listed = await node.kernel.read()
            if len(listed.elements["set-s.bench-4"]) != MEMBERS:
                raise RuntimeError("the set is not in the kernel")
            await push(node, SetRemove("s:bench"))
            theirs_ms.append(await _milliseconds(lambda: _nft(theirs, "-f", path)))
            theirs.run("nft", "flush", "ruleset")
    return _entry("set-10k", ours_ms, theirs_ms, "nft -f of the same set", limit=RATIO_LIMIT)


def rule_from(set_id: str) -> CompiledRule:
    return CompiledRule(Action.ALLOW, 0, source=EntityMatch(sets=(set_id,)))


async def push(node: Node, *intents: Intent) -> None:
    """What the loop does, without the checks that tests add."""
    for intent in intents:
        for manager in node.managers:
            manager.on_intent(intent)
    for manager in node.managers:
        manager.complete_deferred_work()
    result = await node.table.apply()
    if result.failed or result.deferred:
        raise RuntimeError(result.error)


# ------------------------------------------------------------------------------------ nft-full


def policy_of(number: int, revision: int = 0, *, folds: bool = True) -> PolicyUpdate:
    source = EntityMatch(sets=(f"s:{number}",))
    rules = tuple(
        CompiledRule(
            Action.ALLOW if folds or index % 2 else Action.DENY,
            index,
            ip_version=4,
            protocol=6,
            source=source,
            destination=EntityMatch(ports=(PortRange(1000 + index, 1000 + index + revision),)),
        )
        for index in range(RULES)
    )
    return PolicyUpdate(policy_key(f"p{number}"), "default", rules, ())


def full_load(*, folds: bool = True) -> list[Intent]:
    intents: list[Intent] = [
        SetUpdate(f"s:{number}", SetKind.NET, addresses(SET_MEMBERS, number * SET_MEMBERS))
        for number in range(SETS)
    ]
    intents += [policy_of(number, folds=folds) for number in range(SETS)]
    intents.append(allow_all_profile())
    for first in range(0, SETS, PER_WORKLOAD):
        names = [f"p{number}" for number in range(first, first + PER_WORKLOAD)]
        interface, address = f"cali{first}", f"10.200.{first >> 8}.{first & 255}/32"
        intents.append(workload(f"w{first}", interface, address, tiers=(tier(ingress=names),)))
    return intents


async def full_node(ours: Namespace, theirs: Namespace) -> list[dict[str, Any]]:
    intents = full_load()
    ours_ms, kernel_ms, theirs_ms, folded_ms = [], [], [], []
    with node_in(ours) as node:
        ruleset = _ruleset(node, intents)
        one_by_one = _ruleset(Node(node.kernel, RuleSettings(folds=False)), intents)
    with _file(script(ruleset)) as folded, _file(script(one_by_one)) as path:
        for _ in range(FULL_ROUNDS):
            await _flush(ours)
            transport = TimedTransport.in_namespace(ours.path)
            with closing(NftKernel(transport)) as kernel:
                node = Node(kernel)
                ours_ms.append(await _milliseconds(lambda node=node: push(node, *intents)))
            kernel_ms.append(transport.kernel_ms)
            for times, text in ((theirs_ms, path), (folded_ms, folded)):
                await _flush(theirs)
                times.append(await _milliseconds(lambda text=text: _nft(theirs, "-f", text)))
    entries = [
        _entry("nft-full", ours_ms, theirs_ms, "nft -f, a rule each", limit=RATIO_LIMIT),
        _entry("nft-full-same", ours_ms, folded_ms, "nft -f of our rules", limit=RATIO_LIMIT),
    ]
    entries[-1]["note"] = f"the kernel alone {statistics.median(kernel_ms):.0f} ms"
    with node_in(ours) as node:
        await push(node, *intents)  # a restart: finds everything in place
        entries.append(await member_changes(node, theirs))
        entries.append(await chain_changes(node, theirs, ruleset))
    return entries


def _ruleset(node: Node, intents: list[Intent]) -> Ruleset:
    node.tell(*intents)
    return node.table.wanted.ruleset()


async def member_changes(node: Node, theirs: Namespace) -> dict[str, Any]:
    ours_ms, theirs_ms = [], []
    for number in range(CHANGES):
        member = frozenset({f"172.16.{number >> 8}.{number & 255}/32"})
        delta = SetDelta(f"s:{number}", member, frozenset())
        ours_ms.append(await _milliseconds(lambda delta=delta: push(node, delta)))
    for number in range(COMMANDS):
        words = (
            "add",
            "element",
            "inet",
            "calico",
            f"set-s.{number}-4",
            f"{{ 172.16.0.{number} }}",
        )
        theirs_ms.append(await _milliseconds(lambda words=words: _nft(theirs, *words)))
    return _change_entry("nft-member", ours_ms, theirs_ms, "the nft command, one element")


async def chain_changes(node: Node, theirs: Namespace, ruleset: Ruleset) -> dict[str, Any]:
    ours_ms, theirs_ms = [], []
    for number in range(CHANGES):
        changed = policy_of(number % SETS, revision=1 + number)
        ours_ms.append(await _milliseconds(lambda changed=changed: push(node, changed)))
    chains = [chain for chain in ruleset.chains if chain.name.startswith("policy-in-p")]
    for chain in chains[:COMMANDS]:
        lines = [f"flush chain inet calico {chain.name}"]
        lines += [f"add rule inet calico {chain.name} {rule_text(rule)}" for rule in chain.rules]
        with _file("\n".join(lines) + "\n") as path:
            theirs_ms.append(await _milliseconds(lambda path=path: _nft(theirs, "-f", path)))
    return _change_entry("nft-chain", ours_ms, theirs_ms, "the nft command, one chain")


async def unfolded(ours: Namespace) -> dict[str, Any]:
    """The kernel's own time is that of a chain written once more as it is."""
    ours_ms, kernel_ms = [], []
    raw = NfnetlinkSocket(SocketTransport.in_namespace(ours.path), family=NFPROTO_INET)
    with closing(raw), node_in(ours) as node:
        await push(node, *full_load(folds=False))
        chains = {chain.name: chain for chain in node.table.wanted.ruleset().chains}
        for number in range(CHANGES):
            changed = policy_of(number % SETS, revision=1 + number, folds=False)
            ours_ms.append(await _milliseconds(lambda changed=changed: push(node, changed)))
            key = changed.key
            again = chains[policy_chain("in", key.kind, key.namespace, key.name)]
            kernel_ms.append(_written_again(raw, again))
    p99, floor = (statistics.quantiles(each, n=100)[98] for each in (ours_ms, kernel_ms))
    return {
        "name": "nft-chain-unfolded",
        "value": p99,
        "unit": "ms p99",
        "baseline": "the kernel alone, p99",
        "baseline_value": floor,
        "ratio": p99 / floor,
        "limit": UNFOLDED_LIMIT,
        "ok": p99 <= UNFOLDED_LIMIT * floor,
        "note": f"median {statistics.median(ours_ms):.2f} ms, {statistics.median(kernel_ms):.2f}",
    }


def _written_again(raw: NfnetlinkSocket, chain: Chain) -> float:
    """Milliseconds in the kernel."""
    encoder = BatchEncoder()
    ops = (ClearChain(chain.name), WriteRules(chain, bytes(16)))
    messages = [message for op in ops for message in encoder.messages(op)]
    began = time.perf_counter()
    if refused := raw.transact(messages):
        raise RuntimeError(str(refused))
    return (time.perf_counter() - began) * 1000


# ------------------------------------------------------------------------------------ measuring


async def _nft(namespace: Namespace, *words: str) -> None:
    await asyncio.to_thread(namespace.run, "nft", *words)


async def _flush(namespace: Namespace) -> None:
    """The kernel frees what was there later, by itself: it gets the time to."""
    await _nft(namespace, "flush", "ruleset")
    await asyncio.sleep(SETTLE_S)


async def _milliseconds(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


@contextmanager
def _file(text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="brn-bench-") as folder:
        path = Path(folder) / "ruleset.nft"
        path.write_text(text)
        yield str(path)


def _entry(
    name: str, ours: list[float], theirs: list[float], baseline: str, *, limit: float
) -> dict[str, Any]:
    value, base = statistics.median(ours), statistics.median(theirs)
    ratio = value / base
    return {
        "name": name,
        "value": value,
        "unit": "ms",
        "baseline": baseline,
        "baseline_value": base,
        "ratio": ratio,
        "limit": limit,
        "ok": ratio <= limit,
        "spread": [min(ours), max(ours), min(theirs), max(theirs)],
    }


def _change_entry(
    name: str, ours: list[float], theirs: list[float], baseline: str
) -> dict[str, Any]:
    """p99 against an absolute limit; the baseline is the command's median."""
    p99, base = statistics.quantiles(ours, n=100)[98], statistics.median(theirs)
    return {
        "name": name,
        "value": p99,
        "unit": "ms p99",
        "baseline": baseline,
        "baseline_value": base,
        "ratio": p99 / base,
        "limit": CHANGE_LIMIT_MS,
        "ok": p99 <= CHANGE_LIMIT_MS,
        "spread": [min(ours), statistics.median(ours), max(ours)],
        "note": f"limit in ms; median {statistics.median(ours):.2f} ms",
    }
