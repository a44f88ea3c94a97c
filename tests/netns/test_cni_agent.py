"""The CNI plugin as a runtime runs it: the installed client, the agent, real wires, our IPAM.

felix is played by a recording programmer, the datastore is in memory so that it can fail when told.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from cni import install, veth, wirecheck
from cni.addresses import Addresses
from cni.veth import HOST_MAC
from ipam.garbage import Terms
from libcalico.errors import AlreadyExists, PoolExhausted
from libcalico.model import Profile, ProfileSpec, WorkloadEndpoint
from libcalico.model.codec import encode
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.ipam import IpamConfig
from libcalico.model.keys import ResourceKey
from libcalico.model.meta import ObjectMeta
from libcalico.model.names import k8s_interface_name
from tests.support.cni import CONF, AgentNode, agent_node
from tests.support.netns import Namespace, NamespaceSet

POD_ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web"
ENDPOINTS = "/calico/resources/v3/projectcalico.org/workloadendpoints/"
POD_KEY = ResourceKey("WorkloadEndpoint", "node--1-k8s-web-eth0", "prod")


@pytest.fixture(params=["python", "c"], autouse=True)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both executables pass the same tests; a machine without a compiler has only the first."""
    if request.param == "c" and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        monkeypatch.setenv("CALICO_CNI_CLIENT", "python")
    else:
        monkeypatch.setenv("CALICO_CNI_CLIENT", request.param)
    return request.param


@pytest.fixture
def pod(netns: NamespaceSet) -> Namespace:
    return netns.make("pod")


async def until(condition) -> None:
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came true")


async def add(agent: AgentNode, pod: Namespace, **arguments):
    arguments = {"CNI_ARGS": POD_ARGS, **arguments}
    return await agent.call("ADD", CNI_NETNS=pod.path, **arguments)


@pytest.mark.parametrize("with_facts", [True, False])
async def test_an_add_wires_records_and_answers(node, pod, tmp_path, with_facts):
    async with agent_node(node, tmp_path, with_facts=with_facts) as agent:
        code, result = await add(agent, pod)
        assert code == 0, result
        host, inside = result["interfaces"]
        assert (host["mac"], inside["name"], inside["sandbox"]) == (
            "ee:ee:ee:ee:ee:ee",
            "eth0",
            pod.path,
        )
        addresses = [ip["address"] for ip in result["ips"]]
        assert [a.rpartition("/")[2] for a in addresses] == ["32", "128"]
        shown = json.loads(pod.run("ip", "-j", "addr", "show", "eth0"))[0]
        found = {f"{a['local']}/{a['prefixlen']}": a for a in shown["addr_info"]}
        assert set(addresses) <= set(found)
        # Tentative addresses would cost every pod a second: duplicate detection is off.
        assert not any(found[address].get("tentative") for address in addresses)
        assert shown["mtu"] == 1450
        assert "default via 169.254.1.1 dev eth0" in pod.run("ip", "route")
        assert "default via fe80::ecee:eeff:feee:eeee" in pod.run("ip", "-6", "route")
        assert "fe80::ecee:eeff:feee:eeee" in node.run("ip", "-6", "addr", "show", host["name"])
        endpoint = agent.programmer.programmed[POD_KEY]
        assert list(endpoint.spec.ip_networks) == addresses
        assert endpoint.spec.interface_name == host["name"]
        assert endpoint.spec.mac == inside["mac"]
        assert agent.programmer.confirmed[POD_KEY] == agent.datastore.revision
        assert "/calico/resources/v3/projectcalico.org/profiles/net" in agent.datastore.contents()


async def test_the_profile_of_a_network_that_is_there_stays_as_it_is(node, pod, tmp_path):
    path = "/calico/resources/v3/projectcalico.org/profiles/net"
    theirs = encode(Profile(metadata=ObjectMeta(name="net"), spec=ProfileSpec()))
    async with agent_node(node, tmp_path) as agent:
        await agent.datastore.put(path, theirs)
        assert (await add(agent, pod))[0] == 0
        assert agent.datastore.contents()[path] == theirs


async def test_a_del_leaves_nothing_and_may_be_repeated(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        assert (await add(agent, pod))[0] == 0
        for _ in range(2):
            code, _ = await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
            assert code == 0
            assert agent.leftovers() == []
        assert "eth0" not in pod.run("ip", "-o", "link")


async def test_a_del_before_any_add_succeeds(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        assert (await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS))[0] == 0
        assert (await agent.call("DEL", CNI_NETNS="", CNI_ARGS=POD_ARGS))[0] == 0


# The last is what stays of a namespace that was unmounted: the file it was mounted on.
@pytest.mark.parametrize("netns_given", ["", "/run/netns/brn-no-such-namespace", "/etc/hostname"])
async def test_a_del_with_a_vanished_namespace_succeeds(node, pod, tmp_path, netns_given):
    async with agent_node(node, tmp_path) as agent:
        assert (await add(agent, pod))[0] == 0
        code, _ = await agent.call("DEL", CNI_NETNS=netns_given, CNI_ARGS=POD_ARGS)
        assert code == 0
        assert agent.leftovers() == []


async def test_a_late_del_does_not_touch_the_pods_new_container(node, netns, tmp_path):
    old, new = netns.make("old"), netns.make("new")
    async with agent_node(node, tmp_path) as agent:
        assert (await add(agent, old, CNI_CONTAINERID="c1"))[0] == 0
        _, result = await add(agent, new, CNI_CONTAINERID="c2")
        code, _ = await agent.call(
            "DEL", CNI_NETNS=old.path, CNI_ARGS=POD_ARGS, CNI_CONTAINERID="c1"
        )
        assert code == 0
        endpoint = agent.programmer.programmed[POD_KEY]
        assert endpoint.spec.container_id == "c2"
        assert [ip["address"] for ip in result["ips"]] == list(endpoint.spec.ip_networks)
        assert "eth0" in new.run("ip", "-o", "link")
        assert result["interfaces"][0]["name"] in node.run("ip", "-o", "link")
        held = [k for k in agent.datastore.contents() if "/handle/" in k]
        assert held == ["/calico/ipam/v2/handle/net.c2"]


async def test_taking_an_endpoint_over_keeps_what_others_put_there(node, netns, tmp_path):
    old, new = netns.make("old"), netns.make("new")
    path = f"{ENDPOINTS}prod/{POD_KEY.name}"
    async with agent_node(node, tmp_path) as agent:
        assert (await add(agent, old, CNI_CONTAINERID="c1"))[0] == 0
        stored = json.loads(agent.datastore.contents()[path])
        gone = stored["spec"]["ipNetworks"][0].partition("/")[0]
        stored["spec"] |= {
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "hostPort": 0, "hostIP": ""}],
            "allowedIps": ["10.9.9.9"],
            "ipNATs": [{"internalIP": gone, "externalIP": "203.0.113.7"}],
        }
        stored["metadata"]["labels"]["theirs"] = "kept"
        await agent.datastore.put(path, json.dumps(stored).encode())
        # The agent hears of it through its syncer; until then it would be a conflict, tried again.
        for _ in range(100):
            code, answer = await add(agent, new, CNI_CONTAINERID="c2")
            if code == 0:
                break
            assert answer["code"] == 11
        after = json.loads(agent.datastore.contents()[path])
        assert after["spec"]["containerID"] == "c2"
        assert after["spec"]["ports"] == stored["spec"]["ports"]
        assert after["spec"]["allowedIps"] == ["10.9.9.9"]
        assert "ipNATs" not in after["spec"], "its address went with the old container"
        assert after["metadata"]["labels"]["theirs"] == "kept"
        assert after["metadata"]["uid"] == stored["metadata"]["uid"]


async def test_a_repeated_add_answers_the_same(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        first = await add(agent, pod)
        again = await add(agent, pod)
        assert again[0] == 0
        assert first[1]["ips"] == again[1]["ips"]


async def test_a_container_that_got_a_new_namespace_is_wired_anew(node, netns, tmp_path):
    # podman restart: the same container id, another namespace, no DEL seen in between.
    before, after = netns.make("before"), netns.make("after")
    async with agent_node(node, tmp_path) as agent:
        assert (await add(agent, before))[0] == 0
        before.remove()
        code, result = await add(agent, after)
        assert code == 0, result
        assert "eth0" in after.run("ip", "-o", "link")
        assert len([k for k in agent.datastore.contents() if "/handle/" in k]) == 1


def test_an_interface_that_went_since_it_was_found_has_no_addresses(node):
    assert wirecheck._addresses(node.socket, 9999) == set()


@pytest.mark.parametrize(
    "failing",
    ["program", "wire", "half a wire", "half a replaced wire", "record", "late record"],
)
async def test_an_add_that_fails_half_way_leaves_nothing(node, pod, tmp_path, failing):
    conf = CONF
    if "half" in failing:
        # The pair can be made; IPv6 cannot be on a link of fewer than 1280 bytes.
        conf = {**CONF, "mtu": 1000}
    async with agent_node(node, tmp_path) as agent:
        if failing == "program":
            agent.programmer.refuse_next = True
            agent.datastore.slow_next(0.2, operations=["create"], prefix=ENDPOINTS)
        elif failing == "wire":
            pod.run("ip", "link", "add", "eth0", "type", "bridge")
        elif failing == "half a replaced wire":
            dead = k8s_interface_name("prod", "web", prefix="cali")
            ours = ("address", HOST_MAC, "type", "veth", "peer", "name", "gone")
            node.run("ip", "link", "add", dead, *ours)
        elif "record" in failing:
            agent.datastore.fail_next(operations=["create"], prefix=ENDPOINTS)
        if failing == "late record":
            agent.datastore.slow_next(0.2, operations=["create"], prefix=ENDPOINTS)
        code, error = await add(agent, pod, conf=conf)
        assert code == 1
        assert error["code"] in (5, 11, 100)
        assert error["cniVersion"] == "1.0.0"
        assert agent.leftovers() == []


async def test_an_undo_that_fails_does_not_keep_the_others_from_being_done(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        agent.programmer.refuse_next = agent.programmer.refuse_retract = True
        code, error = await add(agent, pod)
        assert (code, error["code"]) == (1, 5)
        assert agent.leftovers() == []


@pytest.mark.parametrize("told", [("10.65.0.99", "fd65::99"), ("10.65.0.99",)])
async def test_a_wire_begun_with_addresses_the_pod_did_not_get_is_made_again(
    node, pod, tmp_path, monkeypatch, told
):
    """As when another writer took the foreseen address first."""
    assign = Addresses.assign

    async def misled(self, request, conf, workload, foresee=None):
        foresee(told)
        await until(lambda: told[0] in pod.run("ip", "addr", "show"))
        return await assign(self, request, conf, workload, foresee)

    monkeypatch.setattr(Addresses, "assign", misled)
    async with agent_node(node, tmp_path) as agent:
        code, result = await add(agent, pod)
        assert code == 0, result
        shown = pod.run("ip", "addr", "show", "eth0")
        assert told[0] not in shown
        assert all(ip["address"] in shown for ip in result["ips"])
        assert (await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS))[0] == 0
        assert agent.leftovers() == []


async def test_a_wire_begun_for_a_pod_that_gets_no_address_is_gone(
    node, pod, tmp_path, monkeypatch
):
    async def refused(self, request, conf, workload, foresee=None):
        foresee(("10.65.0.99",))
        await until(lambda: "10.65.0.99" in pod.run("ip", "addr", "show"))
        raise PoolExhausted((), "no address after all")

    monkeypatch.setattr(Addresses, "assign", refused)
    async with agent_node(node, tmp_path) as agent:
        code, error = await add(agent, pod)
        assert (code, error["code"]) == (1, 100)
        assert agent.leftovers() == []
        assert "eth0" not in pod.run("ip", "link")


async def test_the_wire_is_begun_before_the_address_is_certain(node, pod, tmp_path):
    """With an own block that is known: the write is held, and the wire is there."""
    async with agent_node(node, tmp_path) as agent:
        assert (await add(agent, pod))[0] == 0
        assert (await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS))[0] == 0
        agent.datastore.slow_next(30, operations=["txn"], prefix="/calico/ipam/")
        v4_only = {**CONF, "ipam": {"type": "calico-ipam"}}
        process = await agent.start("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=v4_only)
        await until(lambda: "169.254.1.1" in pod.run("ip", "route"))
        assert agent.programmer.programmed == {}, "nothing outside the pod knows of it"
        process.kill()
        await process.wait()
        await until(lambda: agent.leftovers() == [])


async def test_policy_is_on_its_way_while_the_wire_is_made(node, pod, tmp_path, monkeypatch):
    begun, may_go_on, attempt = threading.Event(), threading.Event(), veth.attempt

    def held(wire):
        begun.set()
        may_go_on.wait(20)
        return attempt(wire)

    monkeypatch.setattr(veth, "attempt", held)
    async with agent_node(node, tmp_path) as agent:
        adding = asyncio.ensure_future(add(agent, pod))
        await until(begun.is_set)
        await until(lambda: POD_KEY in agent.programmer.programmed)
        assert not agent.programmer.entered.is_set(), "nobody waits for the kernel yet"
        may_go_on.set()
        assert (await adding)[0] == 0


async def test_an_add_that_loses_a_race_leaves_the_winners_endpoint_alone(node, pod, tmp_path):
    path = f"{ENDPOINTS}prod/{POD_KEY.name}"
    winner = WorkloadEndpoint(
        metadata=ObjectMeta(name=POD_KEY.name, namespace="prod"),
        spec=WorkloadEndpointSpec(node="node-1", container_id="c2", interface_name="caliother"),
    )
    async with agent_node(node, tmp_path) as agent:
        store = agent.datastore
        store.hold_watches()
        store.before_next(
            lambda: store.seed({path: encode(winner)}), operations=["create"], prefix=ENDPOINTS
        )
        code, error = await add(agent, pod, CNI_CONTAINERID="c1")
        assert (code, error["code"]) == (1, 11)
        assert "came first" in error["msg"]
        assert agent.leftovers() == [path], "the winner's record, nothing of the loser's"
        assert store.contents()[path] == encode(winner)


@pytest.mark.parametrize("with_facts", [True, False])
async def test_an_endpoint_that_does_not_parse_keeps_no_pod_from_starting(
    node, pod, tmp_path, with_facts
):
    path = f"{ENDPOINTS}prod/{POD_KEY.name}"
    async with agent_node(node, tmp_path, with_facts=with_facts) as agent:
        agent.datastore.seed({path: b'{"spec": ['})
        code, result = await add(agent, pod)
        assert code == 0, result
        stored = json.loads(agent.datastore.contents()[path])
        assert stored["spec"]["containerID"] == "c1"
        assert (await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS))[0] == 0
        assert agent.leftovers() == []


async def test_a_failed_add_leaves_other_peoples_interfaces_alone(node, pod, tmp_path):
    pod.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "foo")
    async with agent_node(node, tmp_path) as agent:
        code, error = await add(agent, pod)
        assert (code, error["code"]) == (1, 100)
        assert "already exists" in error["msg"] + error.get("details", "")
        shown = pod.run("ip", "-o", "link")
        assert "eth0@" in shown
        assert "foo@" in shown
        assert agent.leftovers() == []


async def test_a_second_network_of_a_pod_keeps_the_first_ones_default_route(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        plain = {"CNI_ARGS": "IgnoreUnknown=1"}
        assert (await add(agent, pod, **plain))[0] == 0
        code, result = await add(
            agent, pod, CNI_IFNAME="eth1", conf={**CONF, "name": "net2"}, **plain
        )
        assert code == 0, result
        assert "default via 169.254.1.1 dev eth0" in pod.run("ip", "route")
        names = [entry["name"] for entry in result["interfaces"]]
        assert names[1] == "eth1"
        specs = [endpoint.spec for endpoint in agent.programmer.programmed.values()]
        assert len({spec.interface_name for spec in specs}) == 2
        assert {spec.endpoint: spec.profiles for spec in specs} == {
            "eth0": ("net",),
            "eth1": ("net2",),
        }
        code, _ = await agent.call(
            "DEL", CNI_NETNS=pod.path, CNI_IFNAME="eth1", conf={**CONF, "name": "net2"}, **plain
        )
        assert code == 0
        assert [e.spec.endpoint for e in agent.programmer.programmed.values()] == ["eth0"]
        held = [k for k in agent.datastore.contents() if "/handle/" in k]
        assert held == ["/calico/ipam/v2/handle/net.c1"]


async def test_a_record_whose_answer_was_lost_is_cleaned_by_the_following_del(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        agent.datastore.lose_answer_next(operations=["create"], prefix=ENDPOINTS)
        code, error = await add(agent, pod)
        assert (code, error["code"]) == (1, 11)
        assert (await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS))[0] == 0
        assert agent.leftovers() == []


async def test_a_killed_client_is_rolled_back_before_the_del_that_follows(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        agent.programmer.hold = asyncio.Event()
        process = await agent.start("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
        await agent.programmer.entered.wait()
        process.kill()
        await process.wait()
        code, _ = await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
        assert code == 0
        assert agent.leftovers() == []


@pytest.mark.parametrize("killed", ["at work", "while it is rolled back", "after a lost race"])
async def test_a_del_waits_until_a_killed_add_is_rolled_back(node, pod, tmp_path, killed):
    async with agent_node(node, tmp_path) as agent:
        programmer = agent.programmer
        programmer.hold_retract = asyncio.Event()
        if killed == "at work":
            programmer.hold = asyncio.Event()
        elif killed == "after a lost race":
            agent.datastore.fail_next(
                operations=["create"], prefix=ENDPOINTS, error=AlreadyExists("another one")
            )
        else:
            programmer.refuse_next = True
        process = await agent.start("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
        await (programmer.entered if killed == "at work" else programmer.retracting).wait()
        process.kill()
        await process.wait()
        await programmer.retracting.wait()
        deleting = asyncio.ensure_future(agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS))
        await until(lambda: agent.agent.dump()["waiting"] or programmer.log.count("settings") > 1)
        programmer.hold_retract.set()
        assert (await deleting)[0] == 0
        del_began = programmer.log.index("settings", 1)
        assert "retracted" in programmer.log[:del_began], programmer.log
        assert agent.leftovers() == []


async def test_a_wire_on_its_way_is_waited_for_before_it_is_undone(
    node, pod, tmp_path, monkeypatch
):
    begun, may_go_on, attempt = threading.Event(), threading.Event(), veth.attempt

    def held(wire):
        begun.set()
        may_go_on.wait(20)
        return attempt(wire)

    monkeypatch.setattr(veth, "attempt", held)
    async with agent_node(node, tmp_path) as agent:
        programmer = agent.programmer
        process = await agent.start("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
        await until(begun.is_set)
        process.kill()
        await process.wait()
        deleting = asyncio.ensure_future(agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS))
        await until(lambda: agent.agent.dump()["waiting"] or programmer.log.count("settings") > 1)
        programmer.log.append("the kernel goes on")
        may_go_on.set()
        assert (await deleting)[0] == 0
        assert programmer.log[:2] == ["settings", "the kernel goes on"]
        assert agent.leftovers() == []


async def test_an_agent_that_is_stopped_rolls_back_what_it_was_doing(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        agent.programmer.hold = asyncio.Event()
        process = await agent.start("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
        await agent.programmer.entered.wait()
    assert agent.leftovers() == []
    await process.communicate()


async def test_an_add_before_in_sync_is_told_to_try_again(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        agent.programmer.ready = False
        code, error = await add(agent, pod)
        assert (code, error["code"]) == (1, 11)
        status = {**CONF, "cniVersion": "1.1.0"}
        code, error = await agent.call("STATUS", conf=status)
        assert (code, error["code"]) == (1, 50)
        agent.programmer.ready = True
        assert (await agent.call("STATUS", conf=status)) == (0, {})


async def test_check_finds_what_is_wrong(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        _, result = await add(agent, pod)
        conf = {**CONF, "prevResult": result}
        check = {"CNI_NETNS": pod.path, "CNI_ARGS": POD_ARGS, "conf": conf}
        assert await agent.call("CHECK", **check) == (0, {})
        pod.run("ip", "route", "del", "default")
        pod.run("ip", "addr", "flush", "dev", "eth0", "scope", "global")
        agent.programmer.programmed.clear()
        code, error = await agent.call("CHECK", **check)
        assert code == 1
        for part in ("route 0.0.0.0/0", "address 10.65.0", "not programmed"):
            assert part in error["msg"]
        code, error = await agent.call("CHECK", **{**check, "conf": CONF})
        assert error["code"] == 7


async def test_gc_removes_only_what_is_not_valid(node, netns, tmp_path):
    keep, lose = netns.make("keep"), netns.make("lose")
    async with agent_node(node, tmp_path) as agent:
        plain = "IgnoreUnknown=1"
        for container, where in (("c1", keep), ("c2", lose)):
            code, _ = await add(agent, where, CNI_CONTAINERID=container, CNI_ARGS=plain)
            assert code == 0
        conf = {**CONF, "cniVersion": "1.1.0"}
        assert (await agent.call("GC", conf=conf))[0] == 0
        assert len(agent.programmer.programmed) == 2, "no list means: nothing is known"
        conf["cni.dev/valid-attachments"] = [{"containerID": "c1", "ifname": "eth0"}]
        assert await agent.call("GC", conf=conf) == (0, {})
        assert [e.spec.container_id for e in agent.programmer.programmed.values()] == ["c1"]
        held = [k for k in agent.datastore.contents() if "/handle/" in k]
        assert held == ["/calico/ipam/v2/handle/net.c1"]


async def test_many_pods_at_once_get_different_addresses(node, netns, tmp_path):
    pods = [netns.make(f"p{i}") for i in range(12)]
    async with agent_node(node, tmp_path) as agent:
        answers = await asyncio.gather(
            *(
                add(agent, where, CNI_CONTAINERID=f"c{i}", CNI_ARGS="IgnoreUnknown=1")
                for i, where in enumerate(pods)
            )
        )
        assert [code for code, _ in answers] == [0] * len(pods)
        found = [ip["address"] for _, result in answers for ip in result["ips"]]
        assert len(set(found)) == 2 * len(pods)


async def test_host_local_is_delegated_to(node, pod, tmp_path):
    ipam = {"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": str(tmp_path / "hl")}
    conf = {**CONF, "ipam": ipam}
    async with agent_node(node, tmp_path) as agent:
        code, result = await add(agent, pod, conf=conf)
        assert code == 0, result
        assert [ip["address"] for ip in result["ips"]] == ["10.77.0.2/32"]
        assert (await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=conf))[0] == 0
        assert not (tmp_path / "hl/net/10.77.0.2").exists()
        code, error = await add(agent, pod, conf={**CONF, "ipam": {"type": "no-such-ipam"}})
        assert (code, error["code"]) == (1, 7)
        assert agent.leftovers() == []


async def test_calico_ipam_serves_other_plugins(node, pod, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        arguments = {"plugin": "calico-ipam", "CNI_NETNS": pod.path}
        code, result = await agent.call("ADD", **arguments)
        assert code == 0, result
        assert "interfaces" not in result
        assert [ip["address"].rpartition("/")[2] for ip in result["ips"]] == ["32", "128"]
        conf = {**CONF, "cniVersion": "0.4.0"}
        assert (await agent.call("CHECK", conf=conf, **arguments))[0] == 0
        assert (await agent.call("DEL", **arguments))[0] == 0
        assert agent.leftovers() == []


@pytest.mark.parametrize(
    ("stdin", "environ", "code"),
    [
        (b"{", {}, 6),
        (b"", {}, 6),
        (b'{"cniVersion": "1.0.0", "name": "net"' + b" " * (1 << 20) + b"}", {}, 6),
        (b'{"cniVersion": "1.0.0", "name": "net"}{}', {}, 6),
        (b'{"cniVersion": "9.9.9", "name": "net"}', {}, 1),
        (None, {"CNI_NETNS": ""}, 4),
        (None, {"CNI_COMMAND": "HOP"}, 4),
        (None, {"CNI_NETNS": "/run/netns/brn-no-such-namespace"}, 8),
        (None, {"CNI_NETNS": "/etc/hostname"}, 8),
        (None, {"CNI_NETNS": "/proc/self/ns/mnt"}, 8),
        (b'{"cniVersion": "1.0.0", "name": "net", "mtu": "x"}', {}, 7),
        (b'{"cniVersion": "1.0.0", "name": "net"}', {}, 7),
    ],
    # The text of a megabyte would be a test's name otherwise.
    ids=itertools.count(),
)
async def test_bad_input_gets_the_specified_error_and_leaves_nothing(
    node, pod, tmp_path, stdin, environ, code
):
    async with agent_node(node, tmp_path) as agent:
        variables = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": pod.path,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(agent.bin_dir),
            **environ,
        }
        process = await asyncio.create_subprocess_exec(
            str(agent.bin_dir / "calico"),
            env=variables,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate(
            json.dumps(CONF).encode() if stdin is None else stdin
        )
        assert process.returncode == 1
        assert json.loads(stdout)["code"] == code, stdout
        assert stderr == b""
        assert agent.leftovers() == []


async def test_without_felix_an_add_waits_and_version_answers(tmp_path):
    install.install(
        tmp_path,
        None,
        socket_path=tmp_path / "absent.sock",
        lib_dir=tmp_path / "lib",
        conflist=b"",
    )
    for verb, code in (("ADD", 11), ("CHECK", 11), ("STATUS", 50)):
        stdout = await _run_client(tmp_path, verb)
        assert stdout["code"] == code
        assert stdout["cniVersion"] == "1.0.0"
    assert "1.1.0" in (await _run_client(tmp_path, "VERSION"))["supportedVersions"]


@pytest.mark.parametrize("answered", [b"", b"\0\0\0\0\0\0\0\x09{"])
async def test_a_felix_that_ends_before_it_has_answered_is_one_that_is_not_there(
    tmp_path, answered
):
    async def end_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(answered)
        writer.close()

    path = tmp_path / "cni.sock"
    install.install(tmp_path, None, socket_path=path, lib_dir=tmp_path / "lib", conflist=b"")
    async with await asyncio.start_unix_server(end_early, path):
        for verb, code in (("ADD", 11), ("STATUS", 50)):
            assert (await _run_client(tmp_path, verb))["code"] == code


@pytest.mark.parametrize("wrong", ["/etc/hostname", "/run/netns/brn-none"])
async def test_a_repeated_add_with_a_wrong_namespace_takes_nothing_from_the_pod(
    node, pod, tmp_path, wrong
):
    async with agent_node(node, tmp_path) as agent:
        added = await agent.call("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
        assert added[0] == 0
        before = await agent.ipam.ips_by_handle("net.c1")
        code, error = await agent.call("ADD", CNI_NETNS=wrong, CNI_ARGS=POD_ARGS)
        assert (code, error["code"]) == (1, 8)
        assert await agent.ipam.ips_by_handle("net.c1") == before
        assert await agent.call("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS) == added


async def test_standard_input_that_cannot_be_read_is_code_5(node, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        for bin_dir in (agent.bin_dir, tmp_path / "alone"):
            absent = tmp_path / "absent.sock"
            if bin_dir != agent.bin_dir:
                install.install(
                    bin_dir, None, socket_path=absent, lib_dir=tmp_path / "lib", conflist=b""
                )
            write_only = os.open(os.devnull, os.O_WRONLY)
            process = await asyncio.create_subprocess_exec(
                str(bin_dir / "calico"),
                env={"CNI_COMMAND": "DEL"},
                stdin=write_only,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            os.close(write_only)
            stdout, stderr = await process.communicate()
            assert (process.returncode, json.loads(stdout)["code"], stderr) == (1, 5, b"")


async def _run_client(folder: Path, verb: str) -> dict:
    process = await asyncio.create_subprocess_exec(
        str(folder / "calico"),
        env={"CNI_COMMAND": verb, "PATH": os.environ["PATH"]},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    stdout, _ = await process.communicate(json.dumps(CONF).encode())
    return json.loads(stdout)


async def test_a_foreign_program_on_the_socket_is_dropped(node, tmp_path):
    async with agent_node(node, tmp_path) as agent:
        reader, writer = await asyncio.open_unix_connection(agent.socket_path)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert agent.socket_path.stat().st_mode & 0o777 == 0o600


async def test_an_address_that_another_plugin_has_from_us_is_no_leak(node, tmp_path):
    """Its pod has no endpoint to name it: only its plugin's DEL gives it back, or its node."""
    conf = {**CONF, "type": "bridge"}
    async with agent_node(node, tmp_path) as agent:
        code, _ = await agent.call("ADD", plugin="calico-ipam", conf=conf, CNI_NETNS="/unused")
        assert code == 0
        collector = agent.ipam.collector()
        for _ in range(2):
            await collector.run_pass(Terms(grace_s=1e-6))
        assert len(await agent.ipam.ips_by_handle("net.c1")) == 2
        code, _ = await agent.call("DEL", plugin="calico-ipam", conf=conf)
        assert (code, agent.leftovers()) == (0, [])


async def test_at_the_limit_of_blocks_the_error_names_limit_and_pool(node, netns, tmp_path):
    settings = IpamConfig(strict_affinity=True, auto_allocate_blocks=True, max_blocks_per_host=1)
    pool = {"cidr": "10.66.0.0/29", "blockSize": 32, "nodeSelector": "!all()"}
    conf = {**CONF, "ipam": {"type": "calico-ipam", "ipv4_pools": ["10.66.0.0/29"]}}
    async with agent_node(node, tmp_path) as agent:
        agent.datastore.seed({
            "/calico/ipam/v2/config": encode(settings),
            "/calico/resources/v3/projectcalico.org/ippools/small": json.dumps(
                {"kind": "IPPool", "metadata": {"name": "small"}, "spec": pool}
            ).encode(),
        })  # fmt: skip
        first, second = netns.make("first"), netns.make("second")
        code, result = await add(agent, first, conf=conf)
        assert code == 0, result
        args = POD_ARGS.replace("web", "db")
        code, error = await add(agent, second, conf=conf, CNI_CONTAINERID="c2", CNI_ARGS=args)
        assert (code, error["code"]) == (1, 100)
        assert error["msg"] == (
            "cannot allocate new block due to per host block limit: 1 in pools: [10.66.0.0/29]"
        )
        assert (await agent.call("DEL", CNI_NETNS=first.path, CNI_ARGS=POD_ARGS))[0] == 0
        assert agent.leftovers() == []
