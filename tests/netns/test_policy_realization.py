"""`calicoctl get -o wide` says on how many nodes a policy is in force: real felix, real etcd."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from libcalico.model import Rule
from tests.support import calc
from tests.support.felix import basics, workload
from tests.support.felix_node import (
    ETCD,
    IPTABLES,
    ROOT,
    A,
    B,
    FelixNode,
    skip_unless_possible,
)
from tests.support.netns import NamespaceSet, eventually

DENY = calc.np("no", selector="app == 'b'", ingress=(Rule(action="Deny"),), types=("Ingress",))
NOBODYS = calc.gnp("of-nobody", selector="app == 'nobody'")
FROM_SET = calc.np(
    "from-set",
    selector="app == 'b'",
    ingress=(calc.rule(source={"selector": "has(friend)"}),),
    types=("Ingress",),
)
FRIENDS = calc.netset("friends", "198.51.100.0/24", labels={"friend": "yes"})
QUICK_LEASE = {"FELIX_REPORTINGINTERVALSECS": "1", "FELIX_REPORTINGTTLSECS": "3"}


@pytest.fixture
def node(netns: NamespaceSet, tmp_path: Path) -> FelixNode:
    skip_unless_possible()
    made = FelixNode(netns, tmp_path)
    made.store(*basics(), workload("a", *A), workload("b", *B, labels={"app": "b"}))
    return made


def shown(node: FelixNode, kind: str, name: str) -> str:
    """The last column of the policy's row."""
    text = node.ns.run(
        *("env", f"ETCD_ENDPOINTS={ETCD}", "DATASTORE_TYPE=etcdv3", f"PYTHONPATH={ROOT}"),
        *(sys.executable, "-m", "calicoctl.main", "get", kind, "-A", "-o", "wide"),
    )
    heading, *rows = text.splitlines()
    column = heading.index("REALIZED")
    (row,) = [row for row in rows if name in row.split()]
    return row[column:].rstrip()


def sets(node: FelixNode) -> set[str]:
    return set(node.ns.run("ipset", "list", "-n").split())


def take_name(node: FelixNode, name: str) -> tuple[str, ...]:
    """Somebody else has a set of this name and of another type, in use: the kernel gives us none.
    Returns the rule that uses it."""
    node.ns.run("ipset", "create", name, "hash:ip")
    rule = ("INPUT", "-m", "set", "--match-set", name, "src")
    node.ns.run("iptables-nft", "-A", *rule)
    return rule


def test_a_policy_is_realized_refused_and_not_counted_any_more(node):
    node.store(DENY, FRIENDS)
    node.start(**IPTABLES, **QUICK_LEASE)
    node.wait_ready()
    assert eventually(lambda: shown(node, "np", "no") == "1/1"), shown(node, "np", "no")
    node.store(NOBODYS)
    assert eventually(lambda: shown(node, "gnp", "of-nobody") == "1/1")
    before = sets(node)
    node.store(FROM_SET)
    assert eventually(lambda: shown(node, "np", "from-set") == "1/1")
    (name,) = [name for name in sets(node) - before if name.startswith("cali40")]
    node.erase(FROM_SET)
    assert eventually(lambda: sets(node) == before)
    rule = take_name(node, name)
    node.store(FROM_SET)
    assert eventually(lambda: "here: refused: set " in shown(node, "np", "from-set")), node.log()
    assert shown(node, "np", "from-set").startswith("0/1 (")
    assert shown(node, "np", "no") == "1/1", "the refusal is its own"
    node.ns.run("iptables-nft", "-D", *rule)
    node.send(signal.SIGHUP)
    assert eventually(lambda: shown(node, "np", "from-set") == "1/1"), node.log()
    node.stop(signal.SIGKILL)
    assert shown(node, "np", "no") == "1/1", "its rules stand"
    assert eventually(lambda: shown(node, "np", "no") == "0/0", timeout_s=20)


def test_a_node_whose_felix_hangs_is_behind(node):
    node.start()
    node.wait_ready()
    node.store(DENY)
    assert eventually(lambda: shown(node, "np", "no") == "1/1")
    node.send(signal.SIGSTOP)
    try:
        node.store(calc.np("later", selector="app == 'b'", types=("Ingress",)))
        assert shown(node, "np", "later").startswith("0/1 (here: behind, at revision ")
        assert shown(node, "np", "no") == "1/1"
    finally:
        node.send(signal.SIGCONT)
    assert eventually(lambda: shown(node, "np", "later") == "1/1")
