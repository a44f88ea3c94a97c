"""cni.wirer: wires made and removed by a process of their own, whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cni import veth, wirecheck, wirer_process
from cni.skel import CniError, Code
from cni.wirer import ProcessWirer, WirerEnded
from cni.wirer_wire import Order, Verb, encode_orders
from libcalico.netlink.namespace import _set_namespace
from tests.support.cni import CONF, agent_node
from tests.support.netns import Namespace, NamespaceSet

WIRE = veth.PodWire("cali0", "eth0", "", ("10.65.0.2", "fd65::2"), 1400, "02:00:00:00:00:02")
ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web"


@pytest.fixture
def pod(netns: NamespaceSet) -> Namespace:
    return netns.make("pod")


@pytest.fixture
async def wirer(node: Namespace) -> AsyncIterator[ProcessWirer]:
    """Its loop's threads, and so the process, are in the node's namespace."""
    there = os.open(node.path, os.O_RDONLY)
    enter = (there, "the node")
    with ThreadPoolExecutor(4, initializer=_set_namespace, initargs=enter) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        made = ProcessWirer()
        await made.start()
        yield made
        await made.stop()
    os.close(there)


def to(pod: Namespace) -> veth.PodWire:
    return replace(WIRE, netns=pod.path)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition) -> None:
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came true")


async def test_a_wire_is_made_in_the_nodes_namespace_and_removed(node, pod, wirer):
    assert await wirer.attempt(to(pod)) == veth.MadeWire(WIRE.mac, 1400)
    assert node.call(lambda: wirecheck.wire(to(pod)).problems) == ()
    assert await wirer.attempt(replace(to(pod), pod_name="eth1")) is None, "the name is taken"
    assert await wirer.delete_in_pod(pod.path, "eth0")
    assert not await wirer.delete_in_pod(pod.path, "eth0")
    assert await wirer.make(to(pod)) == veth.MadeWire(WIRE.mac, 1400)
    assert await wirer.delete_on_host("cali0")
    assert not await wirer.delete_on_host("cali0")


async def test_many_at_once(node, netns, wirer):
    pods = [netns.make(f"pod{i}") for i in range(20)]
    wires = [
        replace(WIRE, netns=pod.path, host_name=f"cali{i}", addresses=(f"10.65.1.{i}",))
        for i, pod in enumerate(pods)
    ]
    assert all(await asyncio.gather(*map(wirer.attempt, wires)))
    for wire in wires:
        assert node.call(lambda wire=wire: wirecheck.wire(wire).problems) == ()
    assert all(await asyncio.gather(*(wirer.delete_in_pod(w.netns, "eth0") for w in wires)))
    assert "cali" not in node.run("ip", "link")


@pytest.mark.parametrize("netns_path", ["/nowhere", "/dev/null", "/tmp/\udcff\udc80", "pipe"])
async def test_what_is_refused_says_the_same_as_in_a_thread(wirer, tmp_path, netns_path):
    if netns_path == "pipe":
        netns_path = str(tmp_path / "pipe")
        os.mkfifo(netns_path)
    wire = replace(WIRE, netns=netns_path)
    with pytest.raises(CniError) as there:
        await wirer.attempt(wire)
    with pytest.raises(CniError) as here:
        veth.attempt(wire)
    assert there.value.code == here.value.code == Code.INVALID_NETNS
    assert there.value.msg == here.value.msg.encode("utf-8", "backslashreplace").decode()


async def test_a_signal_to_the_whole_unit_does_not_end_it_but_its_socket_does(wirer, pod):
    pid = wirer.pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert await wirer.attempt(to(pod)) is not None
    assert wirer.pid == pid
    await wirer.stop()
    assert not is_running(pid)


async def test_it_is_started_again_when_it_has_ended(wirer, pod):
    """Orders on their way are answered, their outcome unknown."""
    pid = wirer.pid
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(wirer.attempt(to(pod)))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WirerEnded):
        await waiting
    assert await wirer.attempt(to(pod)) is not None
    assert wirer.pid not in (0, pid)
    assert not is_running(pid)


async def test_an_order_is_waited_for_when_its_caller_is_cancelled(wirer, pod):
    os.kill(wirer.pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(wirer.attempt(to(pod)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    os.kill(wirer.pid, signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert "eth0" in pod.run("ip", "link")


async def test_more_orders_than_the_socket_takes_wait_their_turn(node, wirer):
    os.kill(wirer.pid, signal.SIGSTOP)
    orders = [asyncio.ensure_future(wirer.delete_on_host(f"cali{i}")) for i in range(8000)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wirer._unsent
    os.kill(wirer.pid, signal.SIGCONT)
    assert not any(await asyncio.gather(*orders))


@pytest.mark.parametrize("when", ["attempt", "delete"])
async def test_an_agent_whose_wirer_is_killed_leaves_nothing_after_the_next_del(
    node, pod, tmp_path, when
):
    async with agent_node(node, tmp_path, wirer=ProcessWirer) as agent:
        environ = {"CNI_NETNS": pod.path, "CNI_ARGS": ARGS}
        wirer = agent.wirer
        if when == "delete":
            assert (await agent.call("ADD", **environ))[0] == 0
        await until(lambda: wirer.pid)
        os.kill(wirer.pid, signal.SIGSTOP)
        verb = "ADD" if when == "attempt" else "DEL"
        asked = asyncio.ensure_future(agent.call(verb, conf=CONF, **environ))
        await until(lambda: wirer._reports)
        os.kill(wirer.pid, signal.SIGKILL)
        code, error = await asked
        assert (code, error["code"]) == (1, 11)
        assert (await agent.call("DEL", **environ))[0] == 0
        assert agent.leftovers() == []
        assert (await agent.call("ADD", **environ))[0] == 0
        assert (await agent.call("DEL", **environ))[0] == 0
        assert agent.leftovers() == []


def test_a_felix_that_died_with_reports_unread_is_an_end_like_any_other():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(wirer_process.main, [str(theirs.detach())])
        nobody = Order.of(1, Verb.DELETE_ON_HOST, None, name="cali-nobody")
        ours.send(encode_orders([nobody]))
        assert select.select([ours], [], [], 10)[0]
        ours.close()
        assert running.result(10) == 0
