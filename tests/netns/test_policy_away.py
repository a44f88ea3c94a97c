"""Policies deleted while the datastore is away stand until felix is in sync again, and go then:
`calico-felix` as a process on a real kernel and a real etcd, with either dataplane."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from felix.rules.ipt_names import chain_name
from felix.rules.names import policy_chain
from libcalico.model import NetworkPolicy, Rule, StagedGlobalNetworkPolicy
from libcalico.model.keys import prefix_of
from tests.support import calc
from tests.support.calc import rule
from tests.support.felix import basics, workload
from tests.support.felix_node import (
    ETCD,
    ETCD_TOO,
    IPTABLES,
    A,
    B,
    FelixNode,
    skip_unless_possible,
)
from tests.support.netns import NamespaceSet, eventually
from tests.support.probes import Place, ping

BOTH, NEITHER = (True, True), (False, False)
DATAPLANES = {"nftables": {}, "iptables": IPTABLES}


# With a set of its own: nobody who matters is in it, and then everybody is denied.
GONE = calc.np(
    "gone",
    selector="app == 'b'",
    ingress=(rule(source={"selector": "role == 'somebody'"}), Rule(action="Deny")),
    types=("Ingress",),
)
KEPT = calc.np("kept", selector="app == 'a'", egress=(rule(),), types=("Egress",))
# What takes long to list: more than `ENOUGH_BYTES`. It selects nobody.
MUCH = [
    calc.sgnp(
        f"much-{n}",
        selector="role == 'nobody'",
        ingress=(rule(source={"nets": [f"10.{n}.{m // 256}.{m % 256}/32" for m in range(4000)]}),),
    )
    for n in range(5)
]
ENOUGH_BYTES = 200_000


@pytest.fixture
def node(netns: NamespaceSet, tmp_path: Path) -> FelixNode:
    skip_unless_possible()
    made = FelixNode(netns, tmp_path)
    pods = (workload("a", *A, labels={"app": "a"}), workload("b", *B, labels={"app": "b"}))
    made.store(*basics(), *pods, KEPT)
    return made


def programmed(node: FelixNode) -> str:
    """All tables but that of `a_datastore_that_says_little`, with their handles, and all ipsets."""
    listed = node.ns.run("nft", "-s", "-a", "list", "ruleset")
    tables = re.split(r"^(?=table )", listed, flags=re.MULTILINE)
    ours = "".join(table for table in tables if not table.startswith("table inet slow"))
    ours = re.sub(r"counter packets \d+ bytes \d+ ", "", ours)
    return ours + "".join(sorted(node.ns.run("ipset", "save").splitlines(keepends=True)))


def names(node: FelixNode) -> set[str]:
    """Of chains and sets."""
    return set(re.findall(r"^(?:\tchain|\tset|\tmap|create) (\S+)", programmed(node), re.MULTILINE))


def chain_of(node: FelixNode, direction: str, policy: str) -> str:
    """A policy's rules in the kernel, with their handles; "" when it is not there."""
    name = policy_chain(direction, NetworkPolicy.kind, "prod", policy)
    either = f"{re.escape(name)}|{re.escape(chain_name(name))}"
    found = re.findall(
        rf"^\tchain (?:{either}) .*?^\t}}", programmed(node), re.DOTALL | re.MULTILINE
    )
    return "".join(found)


@contextmanager
def a_datastore_that_says_little(node: FelixNode) -> Iterator[None]:
    """Felix gets so many bytes of it, and no more until the end of the `with`."""
    little = f"ip saddr 127.0.0.2 tcp sport 2379 quota over {ENOUGH_BYTES} bytes counter drop"
    chain = "chain inet slow out { type filter hook output priority 0; }"
    node.ns.run("nft", f"add table inet slow; add {chain}; add rule inet slow out {little}")
    yield
    node.ns.run("nft", "delete table inet slow")


def has_said_all(node: FelixNode) -> bool:
    """Whether felix has had all that it gets."""
    listed = node.ns.run("nft", "list", "table", "inet", "slow")
    found = re.search(r"counter packets (\d+)", listed)
    return found is not None and int(found[1]) > 0


def reach(node: FelixNode) -> tuple[bool, bool]:
    """Can pod a reach pod b, over IPv4 and IPv6?"""
    a, b = (
        Place(pod, *(net.split("/")[0] for net in nets)) for pod, nets in ((node.a, A), (node.b, B))
    )
    return ping(a, b, family=4), ping(a, b, family=6)


def dump(node: FelixNode) -> dict[str, Any]:
    """What felix says of itself."""

    def written() -> set[Path]:
        return set((node.directory / "log").glob("calico-felix-*.json"))

    before = written()
    node.signal(signal.SIGUSR1)
    assert eventually(lambda: bool(written() - before))
    (path,) = written() - before
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def cycles(node: FelixNode) -> int:
    return int(dump(node)["dataplane"]["cycles"])


def has_listed(node: FelixNode, kind: str) -> bool:
    syncer = dump(node).get("syncer", {"ranges": []})
    found = {one["prefix"]: one["position"] for one in syncer["ranges"]}
    return bool(found.get(prefix_of(kind)))


class Denied:
    """Felix runs, and a policy stands between the pods."""

    def __init__(self, node: FelixNode, **environ: str) -> None:
        self._node = node
        self._environ = {"ETCD_ENDPOINTS": ETCD_TOO, **environ}
        self.start()
        node.wait_ready()
        assert eventually(lambda: reach(node) == BOTH)
        self._without, self._kept = names(node), chain_of(node, "out", "kept")
        assert self._kept
        node.store(GONE)
        assert eventually(lambda: reach(node) == NEITHER)
        assert chain_of(node, "in", "gone")
        assert len(names(node) - self._without) > 2, "a chain, lists of policies, sets"
        self._programmed = programmed(node)

    def start(self) -> None:
        self._node.start(**self._environ)

    def delete(self) -> None:
        """No watch can tell: only its absence from the list does. Something comes after it: an etcd
        before 3.5.16 loses a deletion at the very revision that is compacted, and does not say so
        to a watch that goes on from there (etcd issue 18089)."""
        self._node.erase(GONE)
        self._node.ns.run("etcdctl", "put", "/after", "it")
        answer: dict[str, Any] = json.loads(self._node.ns.run("etcdctl", "get", "/", "-w", "json"))
        self._node.ns.run("etcdctl", "compact", str(answer["header"]["revision"]))

    def stands(self) -> bool:
        return programmed(self._node) == self._programmed and reach(self._node) == NEITHER

    def is_gone(self) -> bool:
        """With all that it needed, and nothing else."""
        kept = chain_of(self._node, "out", "kept") == self._kept  # with its handles
        return kept and names(self._node) == self._without and reach(self._node) == BOTH


def test_a_policy_deleted_while_felix_is_cut_off_stands_until_it_is_in_sync_again(node):
    denied = Denied(node)
    node.stop_etcd()
    node.start_etcd(ETCD)
    denied.delete()
    assert eventually(lambda: "watch interrupted" in node.log())
    done = cycles(node)
    node.signal(signal.SIGHUP)  # it looks at the kernel, and would put right what is not
    assert eventually(lambda: cycles(node) > done)
    assert denied.stands()
    node.stop_etcd()
    node.start_etcd()
    assert eventually(denied.is_gone)


@pytest.mark.parametrize("dataplane", DATAPLANES)
def test_a_policy_deleted_while_felix_is_dead_stands_until_all_is_listed(node, dataplane):
    node.store(*MUCH)
    denied = Denied(node, **DATAPLANES[dataplane])
    assert node.stop(signal.SIGKILL) != 0
    denied.delete()
    with a_datastore_that_says_little(node):
        denied.start()
        assert eventually(lambda: node.log().count('"felix starts"') == 2)
        # In which order answers come is the datastore's business; the long one is not among them.
        assert eventually(lambda: has_said_all(node))
        assert not has_listed(node, StagedGlobalNetworkPolicy.kind)
        assert not node.is_ready()
        assert denied.stands()
    node.wait_ready()
    assert denied.is_gone()
