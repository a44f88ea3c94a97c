"""CHECK, STATUS and GC in full: everything that can be wrong, and other IPAM plugins being asked.

The other IPAM plugin is a script of this file: Debian's know no version 1.1.0.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from libcalico.model import IPPool, ObjectMeta
from libcalico.model.codec import encode
from libcalico.model.defaults import with_defaults
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import ResourceKey, key_of, path_of
from tests.support.cni import CONF, AgentNode, agent_node
from tests.support.netns import Namespace, NamespaceSet

POD_ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web"
POD_KEY = ResourceKey("WorkloadEndpoint", "node--1-k8s-web-eth0", "prod")
NEWEST = {**CONF, "cniVersion": "1.1.0"}
VALID = "cni.dev/valid-attachments"


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALICO_CNI_CLIENT", "python")


@pytest.fixture
def pod(netns: NamespaceSet) -> Namespace:
    return netns.make("pod")


@pytest.fixture
async def agent(node: Namespace, tmp_path: Path) -> AsyncIterator[AgentNode]:
    async with agent_node(node, tmp_path) as running:
        yield running


async def add(agent: AgentNode, pod: Namespace, conf=CONF, **environ: str) -> dict[str, Any]:
    environ = {"CNI_ARGS": POD_ARGS, **environ}
    code, result = await agent.call("ADD", CNI_NETNS=pod.path, conf=conf, **environ)
    assert code == 0, result
    return result


async def status(agent: AgentNode, code: int, **arguments: Any) -> dict[str, Any]:
    """Ask until it has this exit code: what was written reaches the agent through its syncer."""
    for _ in range(200):
        answer = await agent.call("STATUS", **arguments)
        if answer[0] == code:
            return answer[1]
    raise AssertionError(answer)


# --- CHECK -------------------------------------------------------------------------------------


async def edit(agent: AgentNode, **spec: object) -> None:
    path = path_of(POD_KEY)
    stored = json.loads(agent.datastore.contents()[path])
    stored["spec"] |= spec
    await agent.datastore.put(path, json.dumps(stored).encode())


def on_host(*command: str) -> Callable[..., None]:
    """HOST and ADDRESS are the pod's interface there and its IPv4 address."""

    def work(agent: AgentNode, pod: Namespace, host: str) -> None:
        address = agent.programmer.programmed[POD_KEY].spec.ip_networks[0].partition("/")[0]
        named = (part.replace("HOST", host).replace("ADDRESS", address) for part in command)
        agent.node.run(*named)

    return work


def in_pod(*command: str) -> Callable[..., None]:
    def work(agent: AgentNode, pod: Namespace, host: str) -> None:
        pod.run(*command)

    return work


def setting(name: str, value: str) -> Callable[..., None]:
    def work(agent: AgentNode, pod: Namespace, host: str) -> None:
        agent.node.sysctl(f"net/{name.replace('HOST', host)}", value)

    return work


def forget_policy(agent: AgentNode, pod: Namespace, host: str) -> None:
    agent.programmer.programmed.clear()


def swap_the_pair(agent: AgentNode, pod: Namespace, host: str) -> None:
    """The host's end looks right, but leads elsewhere."""
    agent.node.run("ip", "link", "set", host, "name", "real0")
    mac = ("address", "ee:ee:ee:ee:ee:ee")
    agent.node.run("ip", "link", "add", host, *mac, "type", "veth", "peer", "name", "elsewhere")
    agent.node.run("ip", "link", "set", host, "up")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (on_host("ip", "link", "set", "HOST", "down"), "host interface HOST is down"),
        (on_host("ip", "link", "set", "HOST", "name", "moved"), "interface HOST does not exist"),
        (
            on_host("ip", "link", "set", "HOST", "address", "02:00:00:00:00:09"),
            "host interface HOST has MAC 02:00:00:00:00:09",
        ),
        (
            on_host("ip", "addr", "flush", "dev", "HOST", "scope", "link"),
            "gateway fe80::ecee:eeff:feee:eeee is missing on HOST",
        ),
        (swap_the_pair, "HOST is not the other end of eth0"),
        (on_host("ip", "-4", "route", "flush", "dev", "HOST"), "ADDRESS"),
        (
            on_host("ip", "route", "replace", "ADDRESS/32", "dev", "lo"),
            "packets to ADDRESS do not go to HOST",
        ),
        (on_host("ip", "-6", "route", "flush", "dev", "HOST", "root", "fd65::/112"), "fd65::"),
        (setting("ipv4/conf/HOST/proxy_arp", "0"), "net/ipv4/conf/HOST/proxy_arp is 0, not 1"),
        (setting("ipv4/conf/HOST/forwarding", "0"), "net/ipv4/conf/HOST/forwarding is 0"),
        (setting("ipv6/conf/HOST/proxy_ndp", "0"), "net/ipv6/conf/HOST/proxy_ndp is 0, not 1"),
        (setting("ipv6/conf/HOST/forwarding", "0"), "net/ipv6/conf/HOST/forwarding is 0"),
        (in_pod("ip", "link", "set", "eth0", "down"), "interface eth0 is down"),
        (in_pod("ip", "link", "del", "eth0"), "interface eth0 does not exist in the pod"),
        (in_pod("ip", "-4", "addr", "flush", "dev", "eth0"), "address 10.65.0"),
        (in_pod("ip", "-6", "addr", "flush", "dev", "eth0", "scope", "global"), "address fd65::"),
        (in_pod("ip", "route", "del", "default"), "route 0.0.0.0/0 is missing in the pod"),
        (in_pod("ip", "-6", "route", "del", "default"), "route ::/0 is missing in the pod"),
        (
            in_pod("ip", "route", "replace", "default", "dev", "lo"),
            "route 0.0.0.0/0 is missing in the pod",
        ),
        (
            in_pod("ip", "link", "set", "eth0", "address", "02:00:00:00:00:09"),
            "interface eth0 of the pod has MAC 02:00:00:00:00:09",
        ),
        (forget_policy, "route or policy of the endpoint is not programmed"),
    ],
)
async def test_check_names_what_is_wrong_in_the_kernel(agent, pod, spoil, said):
    result = await add(agent, pod)
    host = result["interfaces"][0]["name"]
    check = {"CNI_NETNS": pod.path, "CNI_ARGS": POD_ARGS, "conf": {**CONF, "prevResult": result}}
    assert await agent.call("CHECK", **check) == (0, {})
    spoil(agent, pod, host)
    code, error = await agent.call("CHECK", **check)
    assert (code, error["code"]) == (1, 100)
    address = result["ips"][0]["address"].partition("/")[0]
    assert said.replace("HOST", host).replace("ADDRESS", address) in error["msg"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"containerID": "c2"}, "no endpoint node--1-k8s-web-eth0 of this container"),
        ({"node": "other"}, "says it is on node other, not node-1"),
        ({"interfaceName": "caliother"}, "interface caliother of node--1-k8s-web-eth0"),
        ({"ipNetworks": ["10.9.9.9/32"]}, "address 10.9.9.9 of endpoint"),
    ],
)
async def test_check_reads_the_record_from_the_datastore(agent, pod, spec, said):
    result = await add(agent, pod)
    await edit(agent, **spec)
    conf = {**CONF, "prevResult": result}
    code, error = await agent.call("CHECK", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=conf)
    assert (code, error["code"]) == (1, 100)
    assert said in error["msg"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"interfaces": [{"name": "br9"}]}, "interface br9 of the host, which prevResult names"),
        ({"interfaces": [{"name": "net1", "sandbox": "POD"}]}, "interface net1 of the pod"),
        ({"ips": [{"address": "10.65.0.250/32", "interface": 1}]}, "10.65.0.250 of prevResult"),
        ({"routes": [{"dst": "203.0.113.0/24"}]}, "route 203.0.113.0/24 of prevResult"),
    ],
)
async def test_check_looks_for_everything_prevresult_names(agent, pod, more, said):
    result = await add(agent, pod)
    for name, entries in json.loads(json.dumps(more).replace("POD", pod.path)).items():
        result[name] = [*result.get(name, ()), *entries]
    conf = {**CONF, "prevResult": result}
    code, error = await agent.call("CHECK", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=conf)
    assert (code, error["code"]) == (1, 100)
    assert said in error["msg"]


async def test_check_waits_a_moment_for_the_kernel(agent, pod):
    result = await add(agent, pod)
    conf = {**CONF, "prevResult": result}
    programmed = dict(agent.programmer.programmed)
    asked = []

    def at_the_second_look(key: ResourceKey) -> bool:
        asked.append(key)
        return len(asked) > 1 and key in programmed

    agent.programmer.endpoint_in_dataplane = at_the_second_look
    check = await agent.call("CHECK", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=conf)
    assert check == (0, {})
    assert len(asked) == 2


# --- another IPAM plugin -----------------------------------------------------------------------


class OtherIpam:
    """A plugin that notes what it is asked, and fails on demand."""

    def __init__(self, folder: Path, bin_dir: Path) -> None:
        self._folder = folder / "otheripam"
        self._folder.mkdir()
        answer = json.dumps({"cniVersion": "1.1.0", "ips": [{"address": "10.99.0.5/24"}]})
        script = f"""#!/bin/sh
cat >/dev/null
echo "$CNI_COMMAND" >>{self._folder}/calls
if [ -e {self._folder}/$CNI_COMMAND ]; then cat {self._folder}/$CNI_COMMAND; exit 1; fi
if [ "$CNI_COMMAND" = ADD ]; then echo '{answer}'; fi
"""
        program = bin_dir / "otheripam"
        program.write_text(script)
        program.chmod(0o755)

    def fail(self, verb: str, code: int) -> None:
        (self._folder / verb).write_text(json.dumps({"code": code, "msg": f"no {verb} today"}))

    @property
    def calls(self) -> list[str]:
        return (self._folder / "calls").read_text().split()


@pytest.fixture
def other(agent: AgentNode, tmp_path: Path) -> OtherIpam:
    return OtherIpam(tmp_path, agent.bin_dir)


OTHER = {**NEWEST, "ipam": {"type": "otheripam"}}


async def test_another_ipam_plugin_is_asked_for_every_verb(agent, pod, other):
    result = await add(agent, pod, OTHER)
    assert [ip["address"] for ip in result["ips"]] == ["10.99.0.5/32"]
    args = {"CNI_NETNS": pod.path, "CNI_ARGS": POD_ARGS}
    check = {**OTHER, "prevResult": result}
    assert await agent.call("CHECK", conf=check, **args) == (0, {})
    assert await agent.call("STATUS", conf=OTHER) == (0, {})
    valid = {**OTHER, VALID: [{"containerID": "c1", "ifname": "eth0"}]}
    assert await agent.call("GC", conf=valid) == (0, {})
    assert POD_KEY in agent.programmer.programmed
    assert await agent.call("DEL", conf=OTHER, **args) == (0, {})
    assert other.calls == ["ADD", "CHECK", "STATUS", "GC", "DEL"]
    assert agent.leftovers() == []


@pytest.mark.parametrize(("verb", "code"), [("CHECK", 117), ("STATUS", 51), ("GC", 120)])
async def test_another_ipam_plugins_error_is_passed_on(agent, pod, other, verb, code):
    result = await add(agent, pod, OTHER)
    other.fail(verb, code)
    conf = {**OTHER, "prevResult": result, VALID: [{"containerID": "c1", "ifname": "eth0"}]}
    answer = await agent.call(verb, conf=conf, CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
    # Of GC's errors, which are collected, there is one: its text stays.
    assert (answer[0], answer[1]["code"]) == (1, 100 if verb == "GC" else code)
    assert f"no {verb} today" in answer[1]["msg"]


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "../otheripam", "no such"])
async def test_a_plugin_that_cannot_be_one_is_not_found(agent, pod, other, name):
    conf = {**OTHER, "ipam": {"type": name}}
    code, error = await agent.call("ADD", conf=conf, CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS)
    assert (code, error["code"]) == (1, 7)
    assert "failed to find plugin" in error["msg"]


async def test_another_ipam_plugin_gets_del_when_its_add_fails(agent, pod, other):
    other.fail("ADD", 130)
    args = {"CNI_NETNS": pod.path, "CNI_ARGS": POD_ARGS}
    code, error = await agent.call("ADD", conf=OTHER, **args)
    assert (code, error["code"]) == (1, 130)
    assert other.calls == ["ADD", "DEL"]
    assert agent.leftovers() == []


# --- STATUS ------------------------------------------------------------------------------------


async def lock(agent: AgentNode) -> None:
    path = path_of(ResourceKey("ClusterInformation", "default"))
    stored = json.loads(agent.datastore.contents()[path])
    stored["spec"]["datastoreReady"] = False
    await agent.datastore.put(path, json.dumps(stored).encode())


async def disable_v6(agent: AgentNode) -> None:
    path = path_of(ResourceKey("IPPool", "v6"))
    stored = json.loads(agent.datastore.contents()[path])
    stored["spec"]["disabled"] = True
    await agent.datastore.put(path, json.dumps(stored).encode())


async def be_unready(agent: AgentNode) -> None:
    agent.programmer.ready = False


async def be_in_trouble(agent: AgentNode) -> None:
    agent.programmer.said_trouble = "the kernel refuses"


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lock, 50, "the datastore is locked"),
        (disable_v6, 50, "no enabled IP pool for IPv6"),
        (be_unready, 50, "not in sync"),
        (be_in_trouble, 51, "the kernel refuses"),
    ],
)
async def test_status_says_why_no_pod_can_be_added(agent, spoil, code, said):
    assert await agent.call("STATUS", conf=NEWEST) == (0, {})
    await spoil(agent)
    error = await status(agent, 1, conf=NEWEST)
    assert error["code"] == code
    assert said in error["msg"]


async def test_status_knows_pools_by_name_and_missing_plugins(agent):
    named = {**NEWEST["ipam"], "ipv4_pools": ["v4"], "ipv6_pools": ["no-such-pool"]}
    code, error = await agent.call("STATUS", conf={**NEWEST, "ipam": named})
    assert (code, error["code"]) == (1, 50)
    assert "no-such-pool" in error["msg"]
    one_family = {**named, "assign_ipv6": "false"}
    assert await agent.call("STATUS", conf={**NEWEST, "ipam": one_family}) == (0, {})
    code, error = await agent.call("STATUS", conf={**NEWEST, "ipam": {"type": "nowhere"}})
    assert (code, error["code"]) == (1, 50)


# --- GC ----------------------------------------------------------------------------------------


async def test_gc_with_an_empty_list_releases_everything_of_its_network_alone(agent, netns, other):
    pods = [netns.make(f"p{i}") for i in range(3)]
    plain = {"CNI_ARGS": "IgnoreUnknown=1"}
    await add(agent, pods[0], NEWEST, CNI_CONTAINERID="c0", **plain)
    await add(agent, pods[1], OTHER | {"name": "second"}, CNI_CONTAINERID="c1", **plain)
    await add(agent, pods[2], OTHER, CNI_CONTAINERID="c2", CNI_ARGS=POD_ARGS)
    assert await agent.call("GC", conf={**NEWEST, VALID: []}) == (0, {})
    left = {e.spec.container_id for e in agent.programmer.programmed.values()}
    assert left == {"c1"}, "what another plugin addressed goes too, another network's stays"
    assert not [key for key in agent.datastore.contents() if "/handle/" in key]


async def test_gc_collects_errors_and_goes_on(agent, netns):
    pods = [netns.make(f"p{i}") for i in range(3)]
    for number, pod in enumerate(pods):
        args = {"CNI_ARGS": "IgnoreUnknown=1", "CNI_CONTAINERID": f"c{number}"}
        await add(agent, pod, NEWEST, **args)
    prefix = "/calico/resources/v3/projectcalico.org/workloadendpoints/"
    agent.datastore.fail_next(operations=["delete"], prefix=prefix)
    code, error = await agent.call("GC", conf={**NEWEST, VALID: []})
    assert (code, error["code"]) == (1, 100)
    assert error["msg"].count("node--1-cni-c") == 1
    left = [key for key in agent.datastore.contents() if key.startswith(prefix)]
    assert len(left) == 1, "the one that failed; the two others are gone"
    assert await agent.call("GC", conf={**NEWEST, VALID: []}) == (0, {})
    assert agent.leftovers() == []


@pytest.mark.parametrize(
    "listed",
    [{}, "c1", [7], [{}], [{"containerID": "c1"}], [{"containerID": 7, "ifname": "eth0"}]],
)
async def test_a_list_that_cannot_be_read_removes_nothing(agent, pod, listed):
    await add(agent, pod, NEWEST)
    code, error = await agent.call("GC", conf={**NEWEST, VALID: listed})
    assert (code, error["code"]) == (1, 7)
    assert error["msg"].startswith(VALID)
    assert POD_KEY in agent.programmer.programmed


async def test_a_readiness_gate_is_a_url_of_the_node(agent, pod, node):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.0 204 No Content\r\n\r\n")
        writer.close()

    asked: list[bytes] = []
    server = await asyncio.start_server(serve, sock=node.call(listening_socket))
    port = server.sockets[0].getsockname()[1]
    async with server:
        gate = f"http://127.0.0.1:{port}/ready"
        await add(agent, pod, {**CONF, "readiness_gates": [gate]})
    assert asked == [b"GET /ready HTTP/1.1\r\n"]


def listening_socket() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


# --- calico-ipam for other plugins -------------------------------------------------------------

BRIDGE = {**NEWEST, "type": "bridge"}


async def test_calico_ipam_gives_all_that_is_asked_for_or_nothing(agent):
    wanted = {"runtimeConfig": {"ips": ["10.65.0.9/24", "fd99::9/64"]}}
    code, error = await agent.call(
        "ADD", plugin="calico-ipam", conf=BRIDGE | wanted, CNI_NETNS="/x"
    )
    assert (code, "not in a configured pool" in error["msg"]) == (1, True)
    assert agent.leftovers() == []


async def test_calico_ipam_gives_nothing_when_one_family_has_no_address(agent):
    spec = IPPoolSpec(cidr="fd66::7/128", block_size=128)
    tiny = with_defaults(IPPool(metadata=ObjectMeta(name="tiny"), spec=spec))
    await agent.datastore.put(path_of(key_of(tiny)), encode(tiny))
    conf = BRIDGE | {"ipam": {**BRIDGE["ipam"], "ipv6_pools": ["tiny"]}}
    arguments = {"plugin": "calico-ipam", "conf": conf, "CNI_NETNS": "/x"}
    await status(agent, 0, plugin="calico-ipam", conf=conf)
    assert (await agent.call("ADD", **arguments))[0] == 0
    before = agent.leftovers()
    code, error = await agent.call("ADD", CNI_CONTAINERID="c2", **arguments)
    assert (code, error["code"]) == (1, 100)
    assert "IPv6" in error["msg"]
    assert agent.leftovers() == before


async def test_a_refused_add_leaves_calico_ipam_what_the_container_had_before(agent):
    arguments = {"plugin": "calico-ipam", "CNI_NETNS": "/x"}
    assert (await agent.call("ADD", conf=BRIDGE, **arguments))[0] == 0
    before = await agent.ipam.ips_by_handle("net.c1")
    wanted = {"runtimeConfig": {"ips": ["10.65.0.99/24", "fd99::9/64"]}}
    code, _ = await agent.call("ADD", conf=BRIDGE | wanted, CNI_IFNAME="eth1", **arguments)
    assert code == 1
    assert await agent.ipam.ips_by_handle("net.c1") == before


async def test_a_failing_add_gives_nothing_back_of_another_interface_of_its_container(agent):
    """Both have one handle: what the one fails with must not be what the other was just given."""
    arguments = {"plugin": "calico-ipam", "CNI_NETNS": "/x"}
    failing = BRIDGE | {"runtimeConfig": {"ips": ["10.65.0.99/24", "fd99::9/64"]}}

    async def until(what: str, count: int) -> None:
        async with asyncio.timeout(20):
            while agent.agent.dump()[what] < count:  # noqa: ASYNC110  a number, no event
                await asyncio.sleep(0.005)

    agent.datastore.stall()
    first = asyncio.ensure_future(agent.call("ADD", conf=failing, **arguments))
    await until("busy_attachments", 1)
    second = asyncio.ensure_future(agent.call("ADD", conf=BRIDGE, CNI_IFNAME="eth1", **arguments))
    await until("waiting", 1)
    agent.datastore.resume()
    assert (await first)[0] == 1
    code, result = await second
    assert code == 0
    held = {f"{address}" for address in await agent.ipam.ips_by_handle("net.c1")}
    assert {ip["address"].partition("/")[0] for ip in result["ips"]} == held


async def test_calico_ipam_waits_for_a_locked_datastore(agent):
    arguments = {"plugin": "calico-ipam", "CNI_NETNS": "/x"}
    assert (await agent.call("ADD", conf=BRIDGE, **arguments))[0] == 0
    before = await agent.ipam.ips_by_handle("net.c1")
    await lock(agent)
    error = await status(agent, 1, plugin="calico-ipam", conf=BRIDGE)
    assert error["code"] == 50
    for verb in ("ADD", "DEL"):
        code, error = await agent.call(verb, conf=BRIDGE, **arguments)
        assert (code, error["code"]) == (1, 11), verb
    assert await agent.ipam.ips_by_handle("net.c1") == before


async def test_an_address_that_is_taken_is_not_given_twice(agent):
    wanted = {"runtimeConfig": {"ips": ["10.65.0.9/24"]}}
    for container, code in (("c1", 0), ("c2", 1)):
        answer = await agent.call(
            "ADD",
            plugin="calico-ipam",
            conf=BRIDGE | wanted,
            CNI_CONTAINERID=container,
            CNI_NETNS="/x",
        )
        assert answer[0] == code
    assert answer[1]["code"] == 11
    assert "10.65.0.9" in answer[1]["details"]


async def test_calico_ipam_takes_no_address_in_another_nodes_name(agent):
    conf = {**BRIDGE, "nodename": "other"}
    code, error = await agent.call("ADD", plugin="calico-ipam", conf=conf, CNI_NETNS="/x")
    assert (code, error["code"], "nodename" in error["msg"]) == (1, 7, True)


async def test_calico_ipam_deletes_whatever_the_configuration_says_and_knows_its_status(agent):
    assert (await agent.call("ADD", plugin="calico-ipam", conf=BRIDGE, CNI_NETNS="/x"))[0] == 0
    wrong = {**BRIDGE, "mtu": "wrong", "prevResult": 7, "ipam": {"type": []}, "args": 1}
    assert await agent.call("DEL", plugin="calico-ipam", conf=wrong) == (0, {})
    assert agent.leftovers() == []
    assert await agent.call("STATUS", plugin="calico-ipam", conf=BRIDGE) == (0, {})
    none = {**BRIDGE["ipam"], "ipv6_pools": ["fd77::/64"]}
    code, error = await agent.call("STATUS", plugin="calico-ipam", conf={**BRIDGE, "ipam": none})
    assert (code, error["code"]) == (1, 50)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("no-such-pool", '"no-such-pool" is neither the name of an IP pool nor a CIDR'),
        ("10.65.0.0/240", '"10.65.0.0/240" is neither the name of an IP pool nor a CIDR'),
        ("v6", '"v6" isn\'t a IPv4 address'),
    ],
)
async def test_a_pool_that_is_none_is_named_with_its_member(agent, pod, named, said):
    conf = {**CONF, "ipam": {**CONF["ipam"], "ipv4_pools": [named]}}
    code, error = await agent.call("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=conf)
    assert (code, error["code"]) == (1, 7)
    assert error["msg"] == f"ipv4_pools: {said}"
    assert agent.leftovers() == []


async def test_a_pod_goes_whatever_its_configuration_says(agent, pod):
    await add(agent, pod)
    ipam = {**CONF["ipam"], "assign_ipv4": 7}
    wrong = {**CONF, "ipam": ipam, "policy": 1, "nodename": [], "args": "x", "mtu": "wrong"}
    assert await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=wrong) == (0, {})
    assert agent.leftovers() == []


async def test_a_bad_prevresult_is_found_before_anything_is_done(agent, pod):
    before = {"routes": [{"dst": "nonsense"}]}
    conf = {**CONF, "prevResult": before}
    code, error = await agent.call("ADD", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=conf)
    assert (code, error["code"]) == (1, 6)
    assert agent.leftovers() == []
    assert await agent.call("DEL", CNI_NETNS=pod.path, CNI_ARGS=POD_ARGS, conf=conf) == (0, {})
