"""Sticky addresses as a runtime sees them: two nodes, real wires, real etcd; all of it audited.

The nodes share a network namespace (their interface prefixes differ), so that one process can run
both agents; their pods do not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ipam.cascade import delete_node
from ipam.requests import Release
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.model import WorkloadEndpoint
from libcalico.model.codec import decode
from libcalico.model.keys import ResourceKey, parse, path_of, prefix_of
from libcalico.net import parse_ip
from libcalico.testing.etcd import EtcdCluster
from tests.support.cni import CONF, AgentNode, Site, agent_node, cluster
from tests.support.ipam import audited, consistent, held
from tests.support.netns import Namespace, NamespaceSet

pytestmark = pytest.mark.etcd
POD_ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0"
HANDLE = "sticky:net:prod:web-0:eth0"


def annotated(**annotations: str) -> dict[str, Any]:
    named = {f"cni.projectcalico.org/{name}": text for name, text in annotations.items()}
    return {**CONF, "runtimeConfig": {"io.kubernetes.cri.pod-annotations": named}}


STICKY = annotated(stickyIPs="true")
STICKY_IPAM = {**CONF, "ipam": {**CONF["ipam"], "sticky": True}}


class Two:
    """Nodes `one` and `two` of one cluster, and pods to connect."""

    def __init__(self, one: AgentNode, two: AgentNode, netns: NamespaceSet, store: Any) -> None:
        self.one, self.two, self.store = one, two, store
        self._netns = netns
        self._pods: dict[str, Namespace] = {}

    def pod(self, container: str) -> Namespace:
        if container not in self._pods:
            self._pods[container] = self._netns.make(container)
        return self._pods[container]

    async def run(
        self,
        verb: str,
        agent: AgentNode,
        container: str,
        conf: dict[str, Any] = STICKY,
        **more: str,
    ) -> tuple[int, dict[str, Any]]:
        environ = {"CNI_ARGS": POD_ARGS, **more}
        return await agent.call(
            verb,
            conf=conf,
            CNI_CONTAINERID=container,
            CNI_NETNS=self.pod(container).path,
            **environ,
        )

    async def add(self, agent: AgentNode, container: str, **more: Any) -> list[str]:
        """The addresses of an ADD that succeeds."""
        code, result = await self.run("ADD", agent, container, **more)
        assert code == 0, result
        return [ip["address"].partition("/")[0] for ip in result["ips"]]

    async def delete(self, agent: AgentNode, container: str, **more: Any) -> None:
        assert (await self.run("DEL", agent, container, **more))[0] == 0

    async def endpoints(self) -> dict[str, str]:
        """Container by endpoint name."""
        listed = (await self.store.list(prefix_of("WorkloadEndpoint"))).kvs
        found = {}
        for kv in listed:
            endpoint = decode(parse(kv.key), kv.value, kv.mod_revision)
            assert isinstance(endpoint, WorkloadEndpoint)
            found[endpoint.metadata.name] = endpoint.spec.container_id or ""
        return found

    def is_wired(self, container: str) -> bool:
        return "eth0" in self.pod(container).run("ip", "-o", "link")


@pytest.fixture
def world(node: Namespace, netns: NamespaceSet, etcd: EtcdCluster, tmp_path: Path):
    @asynccontextmanager
    async def made() -> AsyncIterator[Two]:
        store = EtcdDatastore(EtcdConfig(etcd.endpoints))
        for path, value in cluster("node-1", "node-2").items():
            await store.create(path, value)
        start = (await store.list("/calico/")).revision
        async with AsyncExitStack() as stack:
            agents = []
            for name, prefix in (("node-1", "cali"), ("node-2", "tap")):
                folder = tmp_path / name
                folder.mkdir()
                site = Site(name, prefix, store)
                agents.append(await stack.enter_async_context(agent_node(node, folder, site=site)))
            yield Two(*agents, netns, store)
        assert await audited(store, start + 1) == []
        await consistent(store)
        await store.close()

    return made


async def claimed(two: Two) -> set[str]:
    return {str(a) for a, handle in (await held(two.store)).items() if handle == HANDLE}


async def test_del_keeps_the_address_and_the_next_add_elsewhere_gets_it(world):
    async with world() as nodes:
        first = await nodes.add(nodes.one, "c1")
        await nodes.delete(nodes.one, "c1")
        assert await nodes.endpoints() == {}
        assert not nodes.is_wired("c1")
        assert nodes.one.programmer.programmed == {}
        assert await claimed(nodes) == set(first)
        assert await nodes.add(nodes.two, "c2") == first
        assert await nodes.endpoints() == {"node--2-k8s-web--0-eth0": "c2"}
        assert await held(nodes.store) == dict.fromkeys(map(parse_ip, first), HANDLE)


@pytest.mark.parametrize("same_node", [True, False])
async def test_a_new_container_takes_over_and_the_late_del_touches_nothing(world, same_node):
    async with world() as nodes:
        first = await nodes.add(nodes.one, "c1")
        home = nodes.one if same_node else nodes.two
        assert await nodes.add(home, "c2") == first
        after = await nodes.endpoints()
        assert list(after.values()) == ["c2"]
        await nodes.delete(nodes.one, "c1")
        assert await nodes.endpoints() == after
        assert await claimed(nodes) == set(first)
        assert nodes.is_wired("c2")
        assert not nodes.is_wired("c1")
        (programmed,) = home.programmer.programmed.values()
        assert programmed.spec.container_id == "c2"


async def test_two_adds_at_once_on_two_nodes_end_with_one_endpoint_and_one_address(world):
    async with world() as nodes:
        outcomes = await asyncio.gather(
            nodes.run("ADD", nodes.one, "c1"), nodes.run("ADD", nodes.two, "c2")
        )
        assert {code for code, _ in outcomes} <= {0, 1}
        assert {result["code"] for code, result in outcomes if code} <= {11}
        assert len(await nodes.endpoints()) == 1
        got = await nodes.add(nodes.two, "c3")
        assert await claimed(nodes) == set(got)
        for code, result in outcomes:
            assert code or [ip["address"].partition("/")[0] for ip in result["ips"]] == got


async def test_a_repeated_add_answers_the_same(world):
    async with world() as nodes:
        first = await nodes.run("ADD", nodes.one, "c1")
        assert await nodes.run("ADD", nodes.one, "c1") == first


async def test_a_failed_add_leaves_the_claim_and_nothing_else(world):
    async with world() as nodes:
        nodes.one.programmer.refuse_next = True
        code, _ = await nodes.run("ADD", nodes.one, "c1")
        assert code != 0
        assert await nodes.endpoints() == {}
        assert not nodes.is_wired("c1")
        kept = await claimed(nodes)
        assert kept == set(await nodes.add(nodes.two, "c2"))


async def test_a_claim_survives_the_deletion_of_its_node(world):
    async with world() as nodes:
        first = await nodes.add(nodes.one, "c1")
        await delete_node(nodes.two.ipam, "node-1")
        assert await claimed(nodes) == set(first)
        assert await nodes.endpoints() == {}
        assert await nodes.add(nodes.two, "c2") == first


async def test_a_pool_that_does_not_allow_it_is_an_error_that_names_all(world):
    async with world() as nodes:
        first = await nodes.add(nodes.one, "c1")
        await nodes.delete(nodes.one, "c1")
        path = path_of(ResourceKey("IPPool", "v4"))
        kv = await nodes.store.get(path)
        pool = json.loads(kv.value)
        pool["spec"]["nodeSelector"] = "kubernetes.io/hostname == 'node-1'"
        await nodes.store.update(path, json.dumps(pool).encode(), kv.mod_revision)
        code, error = await nodes.run("ADD", nodes.two, "c2")
        assert code != 0
        for part in (first[0], '"v4"', "node-2", "nodeSelector"):
            assert part in error["msg"] + error.get("details", "")
        assert await claimed(nodes) == set(first)
        assert await nodes.endpoints() == {}


async def test_gc_removes_endpoints_and_leaves_claims(world):
    async with world() as nodes:
        first = await nodes.add(nodes.one, "c1")
        conf = {**STICKY, "cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
        code, error = await nodes.one.call("GC", conf=conf)
        assert code == 0, error
        assert await nodes.endpoints() == {}
        assert await claimed(nodes) == set(first)
        code, error = await nodes.one.call("GC", conf=conf)
        assert code == 0, error
        assert await claimed(nodes) == set(first)


async def test_a_wanted_address_is_claimed(world):
    async with world() as nodes:
        conf = annotated(stickyIPs="true", ipAddrs='["10.65.0.77"]')
        assert await nodes.add(nodes.one, "c1", conf=conf) == ["10.65.0.77"]
        await nodes.delete(nodes.one, "c1", conf=conf)
        assert await nodes.add(nodes.two, "c2", conf=conf) == ["10.65.0.77"]


async def test_a_released_claim_is_gone(world):
    async with world() as nodes:
        first = await nodes.add(nodes.one, "c1")
        await nodes.delete(nodes.one, "c1")
        await nodes.one.ipam.release_ips([Release(address=parse_ip(a)) for a in first])
        assert await held(nodes.store) == {}


# ---- without annotations, and without Kubernetes -------------------------------------------------


async def test_the_configuration_makes_all_pods_sticky_but_those_that_refuse(world):
    async with world() as nodes:
        first = await nodes.add(nodes.one, "c1", conf=STICKY_IPAM)
        assert await claimed(nodes) == set(first)
        refusing = {**STICKY_IPAM, "runtimeConfig": annotated(stickyIPs="false")["runtimeConfig"]}
        other = await nodes.add(nodes.two, "c2", conf=refusing)
        assert not set(other) & set(first)


async def test_without_kubernetes_the_pods_name_is_the_identity(world):
    async with world() as nodes:
        named = {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=db_1"}
        first = await nodes.add(nodes.one, "c1", conf=STICKY_IPAM, **named)
        # No DEL in between, and the endpoint of this runtime is named after the container.
        assert await nodes.add(nodes.one, "c2", conf=STICKY_IPAM, **named) == first
        assert list((await nodes.endpoints()).values()) == ["c2"]
        (programmed,) = nodes.one.programmer.programmed.values()
        assert programmed.spec.container_id == "c2"
        await nodes.delete(nodes.one, "c1", conf=STICKY_IPAM, **named)
        assert nodes.is_wired("c2")
        assert await nodes.add(nodes.two, "c3", conf=STICKY_IPAM, **named) == first
        assert {str(a) for a in await held(nodes.store)} == set(first)


@pytest.mark.parametrize(
    ("conf", "environ", "code", "said"),
    [
        (STICKY_IPAM, {"CNI_ARGS": "IgnoreUnknown=1"}, 7, "a container id is no identity"),
        (STICKY_IPAM, {"CNI_ARGS": "K8S_POD_NAME=a:b"}, 4, "K8S_POD_NAME: not a valid name"),
        (annotated(stickyIPs="yes"), {}, 7, "annotation cni.projectcalico.org/stickyIPs"),
        ({**CONF, "ipam": {"type": "host-local", "sticky": True}}, {}, 7, "host-local"),
        ({**CONF, "ipam": {"type": "calico-ipam", "sticky": 3}}, {}, 7, "ipam.sticky"),
    ],
)
async def test_what_cannot_be_sticky_is_refused(world, conf, environ, code, said):
    async with world() as nodes:
        exit_code, error = await nodes.run("ADD", nodes.one, "c1", conf=conf, **environ)
        assert (exit_code, error["code"]) == (1, code), error
        assert said in error["msg"]
        assert await held(nodes.store) == {}


async def test_another_plugins_pods_cannot_be_sticky(world):
    async with world() as nodes:
        code, error = await nodes.run("ADD", nodes.one, "c1", STICKY_IPAM, plugin="calico-ipam")
        assert (code, error["code"]) == (1, 7)
        assert await held(nodes.store) == {}
