"""A thousand ADDs and five hundred DELs that come too late, of containers whose pod lives on in a
new one: real etcd, IPAM and wires.

felix's part is played by a recording programmer (its own tests show routes and policy), and the
agent is called in process: fifteen hundred executions of the client would show nothing more. Fifty
namespaces serve a thousand attachments, twenty interfaces in each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cni.skel import Invocation
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.net import parse_ip
from libcalico.testing.etcd import EtcdCluster
from tests.support.cni import CONF, NODE, AgentNode, Site, agent_node, cluster
from tests.support.ipam import all_handles, audited, consistent, held
from tests.support.netns import Namespace, NamespaceSet

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]
PODS, NAMESPACES, AT_ONCE = 500, 25, 8
ENDPOINTS = "/calico/resources/v3/projectcalico.org/workloadendpoints/"


@pytest.fixture
async def store(etcd: EtcdCluster) -> AsyncIterator[EtcdDatastore]:
    found = EtcdDatastore(EtcdConfig(etcd.endpoints))
    yield found
    await found.close()


async def ask(
    agent: AgentNode, verb: str, pod: int, container: str, netns: str
) -> dict[str, object]:
    environ = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": netns,
        "CNI_IFNAME": ifname(pod),
        "CNI_PATH": str(agent.bin_dir),
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=p{pod}",
    }
    answer = await agent.agent.answer(Invocation("calico", environ, json.dumps(CONF).encode()))
    assert answer.exit_code == 0, answer.stdout
    found: dict[str, object] = json.loads(answer.stdout) if answer.stdout else {}
    return found


def ifname(pod: int) -> str:
    return f"eth{pod // NAMESPACES}"


async def replaced(
    agent: AgentNode, pod: int, old: Namespace, new: Namespace
) -> tuple[dict[str, object], list[str]]:
    """A pod whose container is replaced, and the late DEL of the old one: with its namespace, with
    none, and with one that is gone. Returns the answer to the new one, and its addresses."""
    await ask(agent, "ADD", pod, f"old-{pod}", old.path)
    result = await ask(agent, "ADD", pod, f"new-{pod}", new.path)
    late = (old.path, "", "/run/netns/brn-no-such-namespace")[pod % 3]
    await ask(agent, "DEL", pod, f"old-{pod}", late)
    return result, [ip["address"].partition("/")[0] for ip in result["ips"]]  # type: ignore[attr-defined]


def inside(pod: Namespace) -> dict[str, set[str]]:
    """Addresses by interface."""
    shown = json.loads(pod.run("ip", "-j", "addr"))
    return {
        link["ifname"]: {a["local"] for a in link["addr_info"] if a["scope"] == "global"}
        for link in shown
        if link["ifname"].startswith("eth")
    }


async def test_late_dels_of_old_containers_never_touch_the_new_ones(
    node: Namespace, netns: NamespaceSet, tmp_path: Path, store: EtcdDatastore
):
    start = (await store.list("/calico/")).revision
    for key, value in cluster(NODE, v4="10.65.0.0/21").items():
        await store.put(key, value)
    old = [netns.make(f"old{i}") for i in range(NAMESPACES)]
    new = [netns.make(f"new{i}") for i in range(NAMESPACES)]
    answers: dict[int, tuple[dict[str, object], list[str]]] = {}
    async with agent_node(node, tmp_path, site=Site(datastore=store)) as agent:
        permits = asyncio.Semaphore(AT_ONCE)

        async def one(pod: int) -> None:
            async with permits:
                there = pod % NAMESPACES
                answers[pod] = await replaced(agent, pod, old[there], new[there])

        async with asyncio.TaskGroup() as group:
            for pod in range(PODS):
                group.create_task(one(pod))
        assert agent.agent.dump()["answered"] == 3 * PODS
        programmed = {e.spec.container_id for e in agent.programmer.programmed.values()}
    living = {f"new-{pod}" for pod in range(PODS)}
    assert programmed == living

    stored = [json.loads(kv.value)["spec"] for kv in (await store.list(ENDPOINTS)).kvs]
    assert {spec["containerID"] for spec in stored} == living
    recorded = {spec["containerID"]: spec["ipNetworks"] for spec in stored}
    told = {pod: [ip["address"] for ip in answers[pod][0]["ips"]] for pod in answers}  # type: ignore[attr-defined]
    assert recorded == {f"new-{pod}": networks for pod, networks in told.items()}
    expected = {
        parse_ip(address): f"net.new-{pod}" for pod in answers for address in answers[pod][1]
    }
    assert len(expected) == 2 * PODS
    assert await held(store) == expected
    assert set(await all_handles(store)) == set(expected.values())
    the_wires_are_those_of_the_living(node, new, {pod: told[pod] for pod in told})
    assert await audited(store, start + 1) == []
    await consistent(store)


def the_wires_are_those_of_the_living(
    node: Namespace, namespaces: list[Namespace], told: dict[int, list[str]]
) -> None:
    for there, namespace in enumerate(namespaces):
        assert inside(namespace) == {
            ifname(pod): {network.partition("/")[0] for network in told[pod]}
            for pod in range(there, PODS, NAMESPACES)
        }
    shown = node.run("ip", "-o", "link")
    assert shown.count(": cali") == PODS
