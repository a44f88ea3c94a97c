"""felix is killed again and again while 500 flows run and policy changes: nothing forbidden passes,
nothing allowed is lost, and what does not change is not touched."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from libcalico.model import Rule
from tests.support import calc, traffic
from tests.support.calc import Object, rule
from tests.support.felix import basics, workload
from tests.support.felix_node import A, B, FelixNode
from tests.support.netns import NamespaceSet, eventually, why_unavailable

FLOWS = 250  # allowed ones, and as many forbidden
OPEN, CLOSED, NEW = 5000, 5001, 6000
ARRIVAL_S = 1.0
IPTABLES = {"FELIX_NFTABLESMODE": "Disabled", "FELIX_IPTABLESBACKEND": "nft"}


def allow(name: str, *ports: int, order: float = 10) -> Object:
    one = rule(protocol="UDP", source={"selector": "app == 'a'"}, destination={"ports": ports})
    return calc.np(name, selector="app == 'b'", ingress=(one,), types=("Ingress",), order=order)


STABLE = allow("stable", OPEN)
DENY = calc.np(
    "z-deny", selector="app == 'b'", ingress=(Rule(action="Deny"),), types=("Ingress",), order=99
)


@pytest.fixture
def node(netns: NamespaceSet, tmp_path: Path) -> FelixNode:
    reason = why_unavailable("nft")
    if not reason and shutil.which("etcd") is None:
        reason = "etcd is not installed"
    if reason:
        pytest.skip(reason)
    made = FelixNode(netns, tmp_path)
    made.store(
        *basics(),
        workload("a", *A, labels={"app": "a"}),
        workload("b", *B, labels={"app": "b"}),
        STABLE,
        DENY,
    )
    return made


@dataclass
class Packets:
    """What either end of the traffic counted (tests.support.traffic)."""

    allowed: list[int] = field(default_factory=list)
    forbidden: int = 0
    dropped: int = 0


@dataclass
class Counted:
    sent: Packets = field(default_factory=Packets)
    came: Packets = field(default_factory=Packets)


@contextmanager
def flows(node: FelixNode) -> Iterator[Counted]:
    """Traffic from pod a to pod b while the body runs; what was sent and what came, afterwards."""
    program = [sys.executable, traffic.__file__]
    sent, came = node.directory / "sent.json", node.directory / "came.json"
    address, ports = "10.65.0.2", (str(OPEN), str(CLOSED))
    receiver = node.b.spawn(*program, "receive", address, *ports, str(came))
    assert eventually(came.with_suffix(".ready").exists, timeout_s=20)
    sender = node.a.spawn(*program, "send", address, *ports, str(FLOWS), str(sent))
    counted = Counted()
    try:
        yield counted
    finally:
        for process in (sender, receiver):
            process.terminate()
            assert process.wait(timeout=20) == 0
            time.sleep(0.2)  # what is on its way arrives
    counted.sent, counted.came = (Packets(**json.loads(p.read_text())) for p in (sent, came))


class Churn:
    """Policies of pod b come, change and go all the time, so that kills hit felix at work."""

    def __init__(self, node: FelixNode) -> None:
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.last = NEW

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            self.last = NEW + number
            self._node.store(allow("edited", self.last))
            passing = allow(f"comes-{number % 3}", 7000 + number, order=number % 5)
            if number % 2:
                self._node.store(passing)
            else:
                self._node.erase(allow(f"comes-{(number + 1) % 3}", 1))
            self._stop.wait(0.05)


def kills(node: FelixNode, times: int, longest_s: float, **environ: str) -> None:
    """At any moment of its life: while it starts, while it writes its first state, and later."""
    moments = random.Random(7)
    for number in range(times):
        node.start(**environ)
        if number % 5 == 0:
            node.wait_ready()
        time.sleep(moments.uniform(0.0, longest_s))
        node.stop(signal.SIGKILL)
    node.start(**environ)
    node.wait_ready()


def reaches(node: FelixNode, port: int) -> bool:
    """Whether a packet of a new flow arrives."""
    listener, speaker = (
        pod.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for pod in (node.b, node.a)
    )
    with listener, speaker:
        listener.bind(("10.65.0.2", port))
        listener.settimeout(ARRIVAL_S)
        speaker.sendto(b"hello", ("10.65.0.2", port))
        try:
            return listener.recv(64) == b"hello"
        except TimeoutError:
            return False


def handles(node: FelixNode) -> dict[str, list[int]]:
    """The chains that nothing here changes: their own handles and those of their rules."""
    listed = json.loads(node.ns.run("nft", "-j", "-a", "list", "table", "inet", "calico"))
    found: dict[str, list[int]] = {}
    for item in listed["nftables"]:
        for kind, key in (("chain", "name"), ("rule", "chain")):
            if kind in item and _is_still(item[kind][key]):
                found.setdefault(item[kind][key], []).append(item[kind]["handle"])
    return found


def _is_still(chain: str) -> bool:
    moving = ("edited", "comes", "tier-in-", "endpoint-in-")
    return not any(word in chain for word in moving)


def verdict(counted: Counted) -> tuple[int, int, int]:
    """What must be: nothing forbidden came, all that was allowed did, and no buffer lied."""
    sent, came = counted.sent, counted.came
    assert min(sent.allowed) > 50
    assert sent.forbidden > 50 * FLOWS
    lost = sum(a - b for a, b in zip(sent.allowed, came.allowed, strict=True))
    return came.forbidden, lost, came.dropped


def test_fifty_kills_under_500_flows_let_nothing_through_and_lose_nothing(node):
    node.start()
    node.wait_ready()
    before = handles(node)
    assert any("stable" in chain for chain in before)
    with flows(node) as counted, Churn(node) as churn:
        node.stop(signal.SIGKILL)
        kills(node, 50, 1.2)
    assert verdict(counted) == (0, 0, 0)
    assert handles(node) == before
    assert eventually(lambda: f"dport {churn.last}" in node.ruleset(), timeout_s=20)
    assert reaches(node, churn.last), "what was allowed meanwhile"
    assert not reaches(node, churn.last - 1), "and is no more"


def test_ten_kills_with_iptables_let_nothing_through_and_lose_nothing(node):
    node.start(**IPTABLES)
    node.wait_ready()
    with flows(node) as counted, Churn(node) as churn:
        node.stop(signal.SIGKILL)
        kills(node, 10, 2.0, **IPTABLES)
    assert verdict(counted) == (0, 0, 0)
    assert eventually(lambda: reaches(node, churn.last), timeout_s=20)
    assert not reaches(node, churn.last - 1)
