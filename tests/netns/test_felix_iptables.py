"""`calico-felix` as a process with iptables as its dataplane, and from one to another and back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from libcalico.model import Rule
from tests.support import calc
from tests.support.felix import basics, workload
from tests.support.felix_node import (
    IPTABLES,
    A,
    B,
    FelixNode,
    skip_unless_possible,
)
from tests.support.netns import NamespaceSet, eventually

DENY = calc.np("no", selector="app == 'b'", ingress=(Rule(action="Deny"),), types=("Ingress",))
BOTH, NEITHER = (True, True), (False, False)


@pytest.fixture
def node(netns: NamespaceSet, tmp_path: Path) -> FelixNode:
    skip_unless_possible()
    made = FelixNode(netns, tmp_path)
    made.store(*basics(), workload("a", *A), workload("b", *B, labels={"app": "b"}))
    return made


def saved(node: FelixNode) -> str:
    """All of ours that iptables and ipset hold, without what counts packets."""
    text = node.ns.run("iptables-nft-save") + node.ns.run("ip6tables-nft-save")
    lines = [line for line in text.splitlines() if "cali" in line and not line.startswith(":")]
    return "\n".join([*lines, *node.ns.run("ipset", "list", "-n").splitlines()])


def test_pods_reach_each_other_a_policy_stops_them_and_the_dataplane_is_changed(node):
    node.start(**IPTABLES)
    node.wait_ready()
    assert eventually(lambda: node.reach() == BOTH)
    assert "cali40wl-sources" in saved(node)
    node.store(DENY)
    assert eventually(lambda: node.reach() == NEITHER)
    assert node.stop() == 0
    assert node.reach() == NEITHER, "a felix that ended leaves policy in place"
    before = saved(node)
    node.start(**IPTABLES)
    node.wait_ready()
    assert saved(node) == before
    assert node.stop() == 0
    node.start()
    node.wait_ready()
    assert eventually(lambda: saved(node) == "")
    assert node.reach() == NEITHER, "nftables has taken over"
    assert node.stop() == 0
    node.start(**IPTABLES)
    node.wait_ready()
    assert eventually(lambda: "table inet calico" not in node.ns.run("nft", "list", "tables"))
    assert node.reach() == NEITHER
    node.erase(DENY)
    assert eventually(lambda: node.reach() == BOTH)


def test_appended_hooks_stand_last_and_are_restored_at_the_next_refresh(node):
    """ChainInsertMode append; nobody tells felix that its hooks were removed."""

    def forward() -> list[str]:
        return node.ns.run("iptables-nft", "-S", "FORWARD").splitlines()[1:]

    node.ns.run("iptables-nft", "-A", "FORWARD", "-s", "203.0.113.9", "-j", "ACCEPT")
    node.store(DENY)
    node.start(
        **IPTABLES,
        FELIX_CHAININSERTMODE="append",
        FELIX_IPTABLESREFRESHINTERVAL="1",
        FELIX_IPTABLESPOSTWRITECHECKINTERVALSECS="3600",
    )
    node.wait_ready()
    first, *ours = forward()
    assert "203.0.113.9" in first
    assert ours
    assert all("cali" in rule for rule in ours)
    assert eventually(lambda: node.reach() == NEITHER)
    node.ns.run("iptables-nft", "-F", "FORWARD")
    assert eventually(lambda: forward() == ours)
    assert node.reach() == NEITHER


def test_a_missing_tool_ends_felix_with_one_clear_line(node, tmp_path: Path):
    tools = tmp_path / "bin"
    tools.mkdir()
    tables = [f"{ip}-{verb}" for ip in ("iptables", "ip6tables") for verb in ("save", "restore")]
    for name in ("nsenter", *tables):  # all but ipset
        (tools / name).symlink_to(str(shutil.which(name)))
    node.start(**IPTABLES, PATH=str(tools))
    assert node.wait_exit() != 0
    assert "run ipset failed with errno 2: not installed" in node.log()
    assert "Traceback" not in node.log()
