"""How long a forbidden packet still passes after the policy that forbids it was written.

`policy-drop`  from the start of the write to etcd to the first packet that is dropped, p99; beside
               a person who runs `nft` with one rule that drops the same packets.

One node: etcd, felix as a process, 100 pods with interfaces, and 250 policies that select all of
them, two rules each. A probe is sent from one pod to another every millisecond, one way only, so
that each is a new connection to policy. Then a policy that denies ingress to all pods is created,
left for a moment, deleted; 100 times, at any phase of the probes.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libcalico.model import Rule
from libcalico.model.codec import encode
from libcalico.model.keys import path_of
from libcalico.netlink import VethEnd, create_veth
from tests.support import calc
from tests.support.calc import Object, rule
from tests.support.felix import basics, workload
from tests.support.felix_node import A, B, FelixNode
from tests.support.netns import HOST_MAC, NamespaceSet, eventually, why_unavailable

NAMES = ("policy-drop",)
PODS, POLICIES, CHANGES, BY_HAND = 100, 250, 100, 30
LIMIT_MS = 50.0
PORT = "5000"
_STAMP = struct.Struct("=Id")
_HELD_S, _WITHIN_S = 0.1, 2.0

DENY = calc.np(
    "forbids", selector="all()", ingress=(Rule(action="Deny"),), types=("Ingress",), order=1
)

# Both write (sequence number, monotonic time) of each packet to a file, as they send and receive.
_SEND = """
import socket, struct, sys, time
out, stamp = open(sys.argv[3], "wb", 0), struct.Struct("=Id")
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], int(sys.argv[2])))
due, n = time.monotonic(), 0
while True:
    s.send(struct.pack("=I", n))
    out.write(stamp.pack(n, time.monotonic()))
    n += 1
    due = max(due + 0.001, time.monotonic() - 0.01)
    time.sleep(max(0.0, due - time.monotonic()))
"""
_RECEIVE = """
import socket, struct, sys, time
out, stamp = open(sys.argv[3], "wb", 0), struct.Struct("=Id")
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
while True:
    out.write(stamp.pack(struct.unpack("=I", s.recv(64))[0], time.monotonic()))
"""


def run() -> list[dict[str, Any]]:
    reason = why_unavailable("veth", "nft")
    if reason:
        raise RuntimeError(f"policy-drop cannot run: {reason}")
    with tempfile.TemporaryDirectory(prefix="brn-bench-") as directory, NamespaceSet() as netns:
        bench = _Bench(FelixNode(netns, Path(directory)))
        return [bench.measure()]


class _Bench:
    def __init__(self, node: FelixNode) -> None:
        self._node = node
        self._sent, self._came = node.directory / "sent", node.directory / "came"
        self._etcd = node.ns.call(self._connect)

    @staticmethod
    def _connect() -> http.client.HTTPConnection:
        made = http.client.HTTPConnection("127.0.0.1", 2379, timeout=10)
        made.connect()
        return made

    def measure(self) -> dict[str, Any]:
        self._fill()
        self._node.start()
        self._node.wait_ready()
        self._probe()
        chosen = random.Random(3)
        ours, theirs = [], []
        for _ in range(BY_HAND):
            theirs.append(self._once(chosen, self._drop_by_hand, self._pass_by_hand))
        for _ in range(CHANGES):
            ours.append(self._once(chosen, lambda: self._put(DENY), lambda: self._delete(DENY)))
        self._sender.kill()
        self._node.stop()
        return _entry(ours, theirs)

    def _fill(self) -> None:
        node = self._node
        for number in range(2, PODS):
            near, far = VethEnd(f"cali{number}", HOST_MAC), VethEnd(f"p{number}")
            node.ns.socket.execute(create_veth(near, far))
        allow = (
            rule(protocol="UDP", source={"selector": "app == 'a'"}, destination={"ports": (5000,)}),
            rule(protocol="TCP", source={"selector": "has(app)"}, destination={"ports": (80, 443)}),
        )
        self._put(
            *basics(),
            workload("a", *A, labels={"app": "a"}),
            workload("b", *B, labels={"app": "b"}),
            *(workload(f"{n}", f"10.65.1.{n}/32", labels={"app": "c"}) for n in range(2, PODS)),
            *(
                calc.np(f"p{n}", selector="all()", ingress=allow, types=("Ingress",), order=100 + n)
                for n in range(POLICIES)
            ),
        )

    def _probe(self) -> None:
        python, where = (sys.executable, "-c"), ("10.65.0.2", PORT)
        b = self._node.b
        b.spawn(*python, _RECEIVE, *where, str(self._came))
        if not eventually(lambda: f":{PORT} " in b.run("ss", "-uln")):
            raise RuntimeError("nobody listens")
        self._sender = self._node.a.spawn(*python, _SEND, *where, str(self._sent))
        self._await_passing()

    def _once(
        self, chosen: random.Random, forbid: Callable[[], None], allow: Callable[[], None]
    ) -> float:
        """Milliseconds from the beginning of `forbid` to the first probe after the last that came:
        one that is lost by chance while others still pass ends nothing."""
        time.sleep(_HELD_S + chosen.uniform(0.0, 0.02))
        began = time.monotonic()
        forbid()
        time.sleep(_HELD_S)
        sent, came = self._numbers(self._sent), self._numbers(self._came)
        deadline = began + _WITHIN_S
        while max(came) >= max(sent) - 20:  # still passing
            if time.monotonic() > deadline:
                raise RuntimeError("the policy did not stop the probes")
            time.sleep(_HELD_S)
            sent, came = self._numbers(self._sent), self._numbers(self._came)
        last = max(came)
        lost = min(at for number, at in sent.items() if at > began and number > last)
        allow()
        self._await_passing()
        return (lost - began) * 1000

    def _await_passing(self) -> None:
        before = self._came.stat().st_size if self._came.exists() else 0
        wanted = before + 20 * _STAMP.size
        if not eventually(lambda: self._came.exists() and self._came.stat().st_size > wanted):
            raise RuntimeError(f"the probes do not pass: {self._node.log()[-500:]}")

    @staticmethod
    def _numbers(path: Path) -> dict[int, float]:
        """The last 2,000 packets."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size // _STAMP.size * _STAMP.size
            file.seek(max(0, size - 2000 * _STAMP.size))
            return dict(_STAMP.iter_unpack(file.read(size - file.tell())))

    # ------------------------------------------------------------------------------- both ways

    def _put(self, *objects: Object) -> None:
        for key, value in objects:
            self._ask("put", key=path_of(key), value=encode(value).decode())

    def _delete(self, *objects: Object) -> None:
        for key, _ in objects:
            self._ask("deleterange", key=path_of(key))

    def _ask(self, verb: str, **texts: str) -> None:
        body = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        self._etcd.request("POST", f"/v3/kv/{verb}", json.dumps(body))
        answer = self._etcd.getresponse()
        text = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"etcd: {text!r}")

    def _drop_by_hand(self) -> None:
        text = (
            "add table inet hand; add chain inet hand f { type filter hook forward priority 5; }; "
            "add rule inet hand f ip daddr 10.65.0.2 drop"
        )
        self._node.ns.run("nft", text)

    def _pass_by_hand(self) -> None:
        self._node.ns.run("nft", "delete table inet hand")


def _entry(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    p99, by_hand = statistics.quantiles(ours, n=100)[98], statistics.median(theirs)
    return {
        "name": "policy-drop",
        "value": p99,
        "unit": "ms p99",
        "baseline": "the nft command by hand, median",
        "baseline_value": by_hand,
        "ratio": p99 / by_hand,
        "limit": LIMIT_MS,
        "ok": p99 <= LIMIT_MS,
        "spread": [min(ours), statistics.median(ours), max(ours)],
        "note": f"limit in ms; median {statistics.median(ours):.1f} ms, most {max(ours):.1f}",
    }
