"""felix is killed again and again while 510 flows run, policy changes and a pod comes and goes:
nothing forbidden passes, nothing allowed is lost, and what does not change is not touched.

A third of the kills come at a chosen write (tests.support.felix_mortal), a third at a random moment
of the first half second, a third when all is done.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from felix.rules.ipt_names import chain_name
from felix.rules.names import policy_chain
from libcalico.model import Rule
from libcalico.model.codec import encode
from libcalico.model.keys import path_of
from tests.support import calc, traffic
from tests.support.calc import Object, rule
from tests.support.felix import basics, workload
from tests.support.felix_mortal import MortalFelix
from tests.support.felix_node import (
    IPTABLES,
    A,
    B,
    FelixNode,
    skip_unless_possible,
)
from tests.support.netns import Namespace, NamespaceSet, eventually, wire_workload

C = ("10.65.0.3/32", "fd00:65::3/128")
TO_B, TO_C = ("10.65.0.2", "fd00:65::2"), ("10.65.0.3", "fd00:65::3")
# Ports of pod b: a may use these, c that one; nobody the others.
OPEN, ALWAYS_NEW, CONNECTED, ASKED, OPEN_TO_C = 5000, 5001, 5002, 5003, 5010
CLOSED, UNASKED, NOT_FOR_C = 5020, 5021, 5022
EDITED, PASSING = 6000, 20_000
ALLOWED = [
    *(f"udp,{to},{OPEN},100" for to in TO_B),
    *(f"tcp,{to},{CONNECTED},25" for to in TO_B),
    *(f"new,{to},{ALWAYS_NEW},5" for to in TO_B),
]
FORBIDDEN = [*(f"new,{to},{CLOSED},50" for to in TO_B), *(f"syn,{to},{UNASKED},25" for to in TO_B)]
FORBIDDEN_FROM_C = [f"new,{to},{NOT_FOR_C},40" for to in TO_B]
FORBIDDEN_TO_C = [f"new,{to},{OPEN},10" for to in TO_C]
FORBIDDEN_ALL = [*FORBIDDEN, *FORBIDDEN_FROM_C, *FORBIDDEN_TO_C]
LEAST_PACKETS = 50  # of each flow
ARRIVAL_S = 1.0


def allow(name: str, protocol: str, *ports: int, source: str = "app == 'a'", **spec: Any) -> Object:
    one = rule(protocol=protocol, source={"selector": source}, destination={"ports": ports})
    return calc.np(name, selector="app == 'b'", ingress=(one,), types=("Ingress",), **spec)


def deny(name: str, selector: str) -> Object:
    no = Rule(action="Deny")
    return calc.np(name, selector=selector, ingress=(no,), types=("Ingress",), order=99)


IS_C = "app in {'c', 'd'}"
STABLE = (
    allow("stable-udp", "UDP", OPEN, ALWAYS_NEW, NOT_FOR_C, ASKED, order=10),
    allow("stable-tcp", "TCP", CONNECTED, order=10),
    allow("stable-c", "UDP", OPEN_TO_C, source=IS_C, order=10),
    deny("stable-deny", "app == 'b'"),
)
DENY_C = deny("deny-c", IS_C)  # in the kernel while c is known


class Cluster:
    """A node with pods a, b and, wired all the time but known only now and then, c."""

    def __init__(self, netns: NamespaceSet, directory: Path) -> None:
        self.node = FelixNode(netns, directory)
        self.c = netns.make("c")
        wire_workload(self.node.ns, self.c, "calic", *C)
        self.node.store(
            *basics(),
            workload("a", *A, labels={"app": "a"}),
            workload("b", *B, labels={"app": "b"}),
            *STABLE,
            DENY_C,
        )


@pytest.fixture
def cluster(netns: NamespaceSet, tmp_path: Path) -> Cluster:
    skip_unless_possible()
    return Cluster(netns, tmp_path)


# ---------------------------------------------------------------------------------------- traffic


class End:
    """One end of the traffic (tests.support.traffic), in a pod."""

    def __init__(self, directory: Path, pod: Namespace, verb: str, *streams: str) -> None:
        self._out = directory / f"{verb}-{pod.name}.json"
        argv = (sys.executable, traffic.__file__, verb, str(self._out), *streams)
        self._process: subprocess.Popen[bytes] = pod.spawn(*argv)
        assert eventually(self._out.with_suffix(".ready").exists)

    def finish(self) -> dict[str, Any]:
        """What it counted. Its sockets stay."""
        self._process.terminate()
        assert eventually(self._out.exists), "it has ended too early"
        counted: dict[str, Any] = json.loads(self._out.read_text())
        return counted


@dataclass
class Counted:
    sent: dict[str, list[int]] = field(default_factory=dict)
    came: dict[str, list[int]] = field(default_factory=dict)
    dropped: int = 0
    # Segments of the connections, from a and from b: (left one pod, came to the other).
    segments: list[tuple[int, int]] = field(default_factory=list)

    def verdict(self) -> dict[str, Any]:
        """What went wrong; empty is good."""
        assert min(min(packets) for packets in self.sent.values()) >= LEAST_PACKETS
        assert min(left for left, _ in self.segments) >= LEAST_PACKETS
        lost = {
            stream: [a - b for a, b in zip(self.sent[stream], self.came[stream], strict=True)]
            for stream in ALLOWED
            if self.sent[stream] != self.came[stream]
        }
        passed = {one: sum(self.came[one]) for one in FORBIDDEN_ALL if sum(self.came[one])}
        segments = [pair for pair in self.segments if pair[0] != pair[1]]
        found = {"lost": lost, "passed": passed, "segments": segments, "dropped": self.dropped}
        return {what: value for what, value in found.items() if value}


SEGMENTS = """
table inet seen {
  counter left { }
  counter came { }
  chain leaving { type filter hook postrouting priority 300; tcp %s %d counter name "left"; }
  chain coming { type filter hook prerouting priority -400; tcp %s %d counter name "came"; }
}
"""


def segments(pod: Namespace) -> tuple[int, int]:
    listed = json.loads(pod.run("nft", "-j", "list", "counters"))["nftables"]
    found = {item["counter"]["name"]: item["counter"]["packets"] for item in listed[1:]}
    return found["left"], found["came"]


@contextmanager
def flows(cluster: Cluster) -> Iterator[Counted]:
    """Traffic while the body runs; what was sent and what came, afterwards.

    TCP mends what is lost: of connections every segment is counted at both ends."""
    node, directory = cluster.node, cluster.node.directory
    node.a.run("nft", SEGMENTS % ("dport", CONNECTED, "sport", CONNECTED))
    node.b.run("nft", SEGMENTS % ("sport", CONNECTED, "dport", CONNECTED))
    at_b = End(directory, node.b, "receive", *ALLOWED, *FORBIDDEN, *FORBIDDEN_FROM_C)
    at_c = End(directory, cluster.c, "receive", *FORBIDDEN_TO_C)
    of_a = End(directory, node.a, "send", *ALLOWED, *FORBIDDEN, *FORBIDDEN_TO_C)
    of_c = End(directory, cluster.c, "send", *FORBIDDEN_FROM_C)
    counted = Counted()
    yield counted
    for ends, packets in (((of_a, of_c), counted.sent), ((at_b, at_c), counted.came)):
        for end in ends:
            for stream, found in end.finish().items():
                packets[stream] = found["packets"]
                counted.dropped += found["dropped"]

    def both_ways() -> list[tuple[int, int]]:
        (from_a, to_a), (from_b, to_b) = segments(node.a), segments(node.b)
        return [(from_a, to_b), (from_b, to_a)]

    # A last acknowledgement may be on its way.
    eventually(lambda: all(left == came for left, came in both_ways()), timeout_s=ARRIVAL_S)
    counted.segments = both_ways()


def reaches(node: FelixNode, port: int) -> bool:
    """Whether a packet of a new flow from a to b arrives."""
    listener, speaker = (
        pod.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for pod in (node.b, node.a)
    )
    with listener, speaker:
        listener.bind((TO_B[0], port))
        listener.settimeout(ARRIVAL_S)
        speaker.sendto(b"hello", (TO_B[0], port))
        try:
            return listener.recv(64) == b"hello"
        except TimeoutError:
            return False


# ----------------------------------------------------------------------------------------- change


class Churn:
    """Policies of pod b come, change and go, pod c comes with other labels and goes, all the time:
    so that kills hit felix at work."""

    def __init__(self, node: FelixNode) -> None:
        self._etcd = http.client.HTTPConnection("127.0.0.1", 2379)
        self._etcd.sock = node.ns.call(lambda: socket.create_connection(("127.0.0.1", 2379)))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0

    @property
    def last(self) -> int:
        """The port that is open now, and was closed the round before."""
        return EDITED + self.rounds

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._etcd.close()

    def _run(self) -> None:
        while not self._stop.wait(0.03):
            self.rounds += 1
            number = self.rounds
            self._put(allow("edited", "UDP", self.last, order=10))
            passing = allow(
                f"comes-{number % 3}", "UDP", PASSING + number, source=IS_C, order=number % 5
            )
            c = workload("c", *C, labels={"app": "cd"[number % 2]})
            for one, is_there in ((passing, number % 2), (c, number % 3)):
                (self._put if is_there else self._delete)(one)

    def _put(self, one: Object) -> None:
        self._ask("put", key=path_of(one[0]).encode(), value=encode(one[1]))

    def _delete(self, one: Object) -> None:
        self._ask("deleterange", key=path_of(one[0]).encode())

    def _ask(self, verb: str, **members: bytes) -> None:
        texts = {name: base64.b64encode(value).decode() for name, value in members.items()}
        self._etcd.request("POST", f"/v3/kv/{verb}", json.dumps(texts))
        answer = self._etcd.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()


def kills(node: FelixNode, felix: MortalFelix, times: int) -> None:
    moments = random.Random(7)
    for number in range(times):
        if number % 3 == 0:
            felix.begin(moments.randint(1, 20))
            felix.wait_dead()
            continue
        felix.begin()
        if number % 3 == 1:
            sleep(moments.uniform(0.0, 0.5))
        else:
            node.wait_ready()
            assert reaches(node, ASKED), "a new flow, after a restart"
        felix.kill()
    felix.begin()
    node.wait_ready()


# ---------------------------------------------------------------------------------------- handles

Handles = dict[tuple[str, ...], list[int]]
# What moves with the policies and the pod that do. Lists of policies are chains of their own.
MOVING = ("edited", "comes", "deny-c", "tier-in-", "endpoint-in-", "endpoint-out-")
MOVING_IPTABLES = ("cali-ti-", "cali-tw-", "cali-fw-", "dispatch", "cali-pi-")


def nft_handles(node: FelixNode) -> Handles:
    found = listed(node, "table", "inet", "calico")
    return {key: of for key, of in found.items() if not any(word in key[-1] for word in MOVING)}


def iptables_handles(node: FelixNode) -> Handles:
    kinds = (policy_chain("in", key.kind, key.namespace, key.name) for key, _ in STABLE)
    still = set(map(chain_name, kinds))
    found = listed(node, "ruleset")
    return {
        key: of
        for key, of in found.items()
        if key[-1] in still or not any(word in key[-1] for word in MOVING_IPTABLES)
    }


def listed(node: FelixNode, *what: str) -> Handles:
    """Chains with their rules, sets and maps: the handles of each."""
    found: Handles = {}
    for item in json.loads(node.ns.run("nft", "-j", "-a", "list", *what))["nftables"]:
        for kind, name in (("chain", "name"), ("rule", "chain"), ("set", "name"), ("map", "name")):
            if kind in item:
                one = item[kind]
                key = (one["family"], one["table"], one[name])
                found.setdefault(key, []).append(one["handle"])
    return found


# ------------------------------------------------------------------------------------------ tests


def test_fifty_kills_under_500_flows_let_nothing_through_and_lose_nothing(cluster):
    node, felix = cluster.node, MortalFelix(cluster.node)
    felix.begin()
    node.wait_ready()
    before = nft_handles(node)
    assert sum("stable" in name for _, _, name in before) == len(STABLE)
    with flows(cluster) as counted, Churn(node) as churn:
        felix.kill()
        kills(node, felix, 50)
    assert counted.verdict() == {}
    assert nft_handles(node) == before
    assert eventually(lambda: f"dport {churn.last}" in node.ruleset())
    assert reaches(node, churn.last), "what was allowed meanwhile"
    assert not reaches(node, churn.last - 1), "and is no more"


def test_fifty_kills_with_iptables_let_nothing_through_and_lose_nothing(cluster):
    node, felix = cluster.node, MortalFelix(cluster.node, **IPTABLES)
    felix.begin()
    node.wait_ready()
    before = iptables_handles(node)
    assert sum("-pi-" in name for _, _, name in before) == 2 * len(STABLE)
    with flows(cluster) as counted, Churn(node) as churn:
        felix.kill()
        kills(node, felix, 50)
    assert counted.verdict() == {}
    assert iptables_handles(node) == before
    assert eventually(lambda: reaches(node, churn.last))
    assert not reaches(node, churn.last - 1)
