"""Containers of a few identities come and go on four nodes at once, over a store that fails: at no
revision do two endpoints have one address, and no identity ever gets a second one.

Every run is a seed. An ADD is what cni.add does of it in the datastore: claim, look for
predecessors, record; an ADD whose outcome is unknown is left as it is, as by a node that died.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from dataclasses import dataclass

import pytest

from cni.endpoints import EndpointStore, Succession
from cni.facts import Stored
from ipam.cascade import delete_node
from ipam.client import IpamClient
from ipam.requests import WORKLOAD, AutoAssign
from ipam.sticky import Identity
from libcalico.errors import NotFound, SuiteError
from libcalico.model import WorkloadEndpoint
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.keys import ResourceKey
from libcalico.model.meta import ObjectMeta
from libcalico.testing.datastore import MemoryDatastore
from tests.support.faulty import Fault, FaultyDatastore
from tests.support.ipam import audited, client, consistent, held, pool, source

HOSTS = ["n1", "n2", "n3", "n4"]
PODS = [Identity("net", "prod", f"web-{i}", "eth0") for i in range(3)]
SEEDS = pytest.mark.parametrize("seed", range(int(os.environ.get("IPAM_SEEDS", "12"))))


class Slow(FaultyDatastore):
    """Calls take turns, and some fail."""

    def __init__(self, inner: MemoryDatastore, rng: random.Random, share: float) -> None:
        super().__init__(inner, self._fault)
        self._rng, self._share = rng, share

    def _fault(self, _: int, operation: str) -> Fault:
        if self._rng.random() >= self._share:
            return Fault.OK
        return Fault.LOSE if operation == "txn" and self._rng.random() < 0.5 else Fault.REFUSE

    async def _call(self, operation, call):
        # Now and then one is overtaken by all others.
        for _ in range(self._rng.choice((0, 1, 2, 60))):
            await asyncio.sleep(0)
        return await super()._call(operation, call)


@dataclass
class Node:
    """One node's agent, as far as the datastore is concerned."""

    host: str
    ipam: IpamClient
    store: EndpointStore
    rng: random.Random
    #: Addresses of the ADDs that succeeded, by handle.
    answered: dict[str, set[str]]

    async def run(self, steps: int) -> None:
        for step in range(steps):
            pod = self.rng.choice(PODS)
            try:
                if self.rng.random() < 0.3:
                    await self.delete(pod)
                else:
                    await self.add(pod, f"{self.host}-{step}")
            except SuiteError:
                continue

    def key(self, pod: Identity) -> ResourceKey:
        return ResourceKey("WorkloadEndpoint", f"{self.host}-k8s-{pod.name}-eth0", "prod")

    async def read(self, pod: Identity) -> Stored | None:
        return await self.store.read(self.key(pod))

    async def add(self, pod: Identity, container: str) -> None:
        existing = await self.read(pod)
        bound = await self.ipam.claims.bind(
            AutoAssign(
                host=self.host, use=WORKLOAD, handle_id=pod.handle_id,
                attributes=pod.attributes(self.host, container), num_v4=1, num_v6=1,
            )
        )  # fmt: skip
        addresses = tuple(map(str, bound.addresses))
        predecessors = await self.store.having(self.key(pod), addresses)
        spec = WorkloadEndpointSpec(
            node=self.host, container_id=container, orchestrator="k8s",
            ip_networks=tuple(f"{a}/{128 if ':' in a else 32}" for a in addresses),
        )  # fmt: skip
        endpoint = WorkloadEndpoint(
            metadata=ObjectMeta(name=self.key(pod).name, namespace="prod"), spec=spec
        )
        await self.store.save(endpoint, existing, Succession(bound.fence, predecessors))
        self.answered[pod.handle_id].update(addresses)

    async def delete(self, pod: Identity) -> None:
        existing = await self.read(pod)
        if existing is not None:
            await self.store.delete(existing)


@SEEDS
async def test_containers_that_come_and_go_on_four_nodes_at_once(seed: int):
    rng, store = random.Random(seed), MemoryDatastore()
    known = source(pool("a", "10.0.0.0/28", 30), pool("b", "fd00::/120", 126), nodes=HOSTS)
    answered: dict[str, set[str]] = defaultdict(set)
    nodes = []
    for host in HOSTS:
        slow = Slow(store, random.Random(rng.random()), 0.1)
        ipam = client(slow, known)  # type: ignore[arg-type]
        endpoints = EndpointStore(slow)  # type: ignore[arg-type]
        nodes.append(Node(host, ipam, endpoints, random.Random(rng.random()), answered))
    # Two requests at once of each node.
    await asyncio.gather(*(node.run(12) for node in nodes for _ in range(2)))
    assert sum(map(len, answered.values())) > 0
    assert all(len(addresses) <= 2 for addresses in answered.values())
    for host in HOSTS:
        with pytest.raises(NotFound):
            await delete_node(client(store, known), host)
    holders = await held(store)
    assert set(holders.values()) <= {pod.handle_id for pod in PODS}
    for handle_id, addresses in answered.items():
        assert {str(a) for a, holder in holders.items() if holder == handle_id} == addresses
    assert await audited(store) == []
    await consistent(store)
