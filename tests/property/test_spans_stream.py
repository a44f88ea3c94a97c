"""A felix behind the spans stream has the same policy as one that follows the whole cluster.

Whole histories: objects come, change, become invalid and go; the client stalls, reads a snapshot in
pieces while the cluster changes, and goes from server to server. When it has read everything, what
its graph has handed out to the (fake, promise-checking) dataplane is what a graph with the full
stream has: address sets and their members, rules, endpoints, pools, hosts.
"""

from __future__ import annotations

import random

import pytest

from libcalico.errors import DecodeError
from libcalico.model import codec
from libcalico.model.keys import ResourceKey, parse, path_of
from libcalico.model.kubernetes import KubernetesEndpointSlice
from libcalico.model.validation import validate_stored
from libcalico.syncer.api import Update
from tests.support.calc import HERE, Rig
from tests.support.calc_random import Maker
from tests.support.spans import SpansNode, SpansServer

HISTORIES, PARTS, STEPS = 1000, 10, 9
BAD = (b"", b"{", b"[]", b'{"kind":"NetworkPolicy","spec":{"selector":"a =="}}')


class Cluster:
    """One store, two typhas, a felix with the full stream and one behind spans."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stored: dict[str, tuple[bytes, int]] = {}
        self.revision = 0
        self.servers = (SpansServer(), SpansServer())
        self.full = Rig(validate=validate_stored)
        self.node = SpansNode(HERE)
        self.connect(0)

    def connect(self, number: int) -> None:
        self.node.connect(self.servers[number])

    def write(self, key: ResourceKey, value: bytes | None) -> None:
        self.revision += 1
        path = path_of(key)
        if value is None:
            self.stored.pop(path, None)
        else:
            self.stored[path] = value, self.revision
        self.full.graph.on_updates([self.decoded(key, value)])
        for server in self.servers:
            server.change(path, value, self.revision)

    def decoded(self, key: ResourceKey, value: bytes | None) -> Update:
        if value is None:
            return Update(key, None, self.revision)
        try:
            return Update(key, codec.decode(key, value, self.revision), self.revision)
        except DecodeError as err:
            return Update(key, None, self.revision, err)

    def churn(self) -> None:
        """Some objects of another cluster are written, some of ours go, some become rubbish."""
        rnd = self.random
        found = Maker(rnd.randrange(1 << 30)).cluster()
        for key, resource in found.items():
            if rnd.random() > 0.6:
                continue
            if isinstance(resource, KubernetesEndpointSlice):  # not in etcd, the same for both
                update = Update(key, resource, self.revision)
                self.full.graph.on_updates([update])
                self.node.graph.on_updates([update])
            else:
                self.write(key, rnd.choice(BAD) if rnd.random() < 0.05 else codec.encode(resource))
        for path in rnd.sample(sorted(self.stored), len(self.stored) // 6):
            key = parse(path)
            assert isinstance(key, ResourceKey)
            self.write(key, None)

    def step(self) -> None:
        rnd = self.random
        if rnd.random() < 0.2:
            self.connect(rnd.randrange(2))
        if rnd.random() < 0.7:
            self.churn()
        for server in self.servers:
            server.cut()
        if rnd.random() < 0.7:
            self.node.read(rnd.choice((1, 2, 1 << 30)))
            self.node.flush()

    def settle(self) -> None:
        for server in self.servers:
            server.cut()
        self.node.read()
        self.node.read()
        self.node.flush()
        self.full.flush()


@pytest.mark.parametrize("part", range(PARTS))
def test_the_same_policy_as_with_the_full_stream(part: int) -> None:
    for seed in range(part, HISTORIES, PARTS):
        cluster = Cluster(seed)
        for _ in range(cluster.random.randrange(2, STEPS)):
            cluster.step()
        cluster.settle()
        assert cluster.node.contents == cluster.full.contents, seed
        assert _policies(cluster.node.graph.problems) == _policies(cluster.full.graph.problems)
        assert (
            cluster.node.state.positions == {"/calico/": cluster.revision} or not cluster.revision
        )


def _policies(problems: object) -> list[str]:
    return sorted(str(key) for key in problems if "olicy" in key.kind)  # type: ignore[attr-defined]
