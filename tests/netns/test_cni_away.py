"""Pods that end while etcd is away, locked, or refuses us: real etcd, felix and wires."""

from __future__ import annotations

import json
import signal

import pytest

from libcalico.model.names import k8s_interface_name
from tests.support.cni_node import CONF, ETCD, CniNode
from tests.support.netns import can_ping, eventually

WEB = "node--1-k8s-web-eth0"
HOST_END = k8s_interface_name("prod", "web", prefix="cali")


@pytest.fixture
def node(cni_node: CniNode) -> CniNode:
    return cni_node


@pytest.fixture
def ready(node: CniNode) -> CniNode:
    node.start_felix()
    node.wait_ready()
    return node


def delete(node: CniNode, container: str, netns: str, **more) -> None:
    assert node.call("DEL", container, netns, **more) == (0, {})


def set_datastore_ready(node: CniNode, is_ready: bool) -> None:
    (path,) = node.keys("/clusterinformations/")
    information = json.loads(node.ns.run("etcdctl", "get", path, "--print-value-only"))
    information["spec"]["datastoreReady"] = is_ready
    node.ns.run("etcdctl", "put", path, json.dumps(information))


def is_replayed(node: CniNode) -> bool:
    return eventually(lambda: node.queued() == 0, timeout_s=30, interval_s=0.1)


def test_a_del_without_etcd_does_the_local_part_and_the_rest_later(ready, netns):
    pod = netns.make("pod")
    ready.add("c1", pod)
    assert HOST_END in ready.ruleset()
    ready.stop_etcd()
    for _ in range(2):
        delete(ready, "c1", pod.path)
        assert "eth0" not in pod.run("ip", "-o", "link")
        assert ready.routes() == set()
        assert HOST_END not in ready.ruleset()
        assert ready.queued() == 1
    assert ready.metric("felix_cni_queued_deletes") == 1
    assert ready.log().count("DEL queued until the datastore is back") == 2
    ready.start_etcd()
    assert is_replayed(ready), ready.log()
    assert ready.endpoints() == {}
    assert ready.handles() == set()
    assert ready.metric("felix_cni_queued_deletes") == 0
    assert ready.violations() == []


def test_calico_ipam_of_another_plugin_lets_go_locked_without_felix_and_without_etcd(ready):
    bridge = {**CONF, "type": "bridge"}
    wrong = {**bridge, "ipam": {"type": "no-such-plugin"}, "nodename": 7}
    ipam = {"plugin": "calico-ipam"}
    for number in range(3):
        assert ready.cni("ADD", "/x", conf=bridge, CNI_CONTAINERID=f"c{number}", **ipam)[0] == 0
    # felix ends when the datastore is locked, and waits: the DEL works alone.
    set_datastore_ready(ready, False)
    ready.kill_felix()
    assert ready.cni("DEL", conf=wrong, CNI_CONTAINERID="c0", **ipam) == (0, {})
    assert ready.queued() == 1
    set_datastore_ready(ready, True)
    assert ready.cni("DEL", conf=wrong, CNI_CONTAINERID="c1", **ipam) == (0, {})
    assert set(ready.holders().values()) == {"net.c0", "net.c2"}
    ready.stop_etcd()
    assert ready.cni("DEL", conf=wrong, CNI_CONTAINERID="c2", **ipam) == (0, {})
    assert ready.queued() == 2
    ready.start_etcd()
    ready.start_felix()
    ready.wait_ready()
    assert is_replayed(ready), ready.log()
    assert (ready.holders(), ready.handles()) == ({}, set())


def test_a_frozen_etcd_costs_patience_but_no_failure(ready, netns):
    pod = netns.make("pod")
    ready.add("c1", pod)
    ready.signal_etcd(signal.SIGSTOP)
    delete(ready, "c1", pod.path)
    assert "eth0" not in pod.run("ip", "-o", "link")
    assert ready.queued() == 1
    ready.signal_etcd(signal.SIGCONT)
    assert is_replayed(ready), ready.log()
    assert ready.endpoints() == {}
    assert ready.handles() == set()


def test_the_pod_that_came_after_is_not_touched(ready, netns):
    """felix is killed before it could replay; the pod is made anew; then a felix replays."""
    old, new = netns.make("old"), netns.make("new")
    ready.add("c1", old)
    ready.stop_etcd()
    delete(ready, "c1", old.path)
    ready.kill_felix()
    ready.start_etcd()
    # The entry stays unreadable until the pod is there again: as if the replay came very late.
    (entry,) = ready.queue.glob("*.json")
    late = entry.with_suffix(".late")
    entry.rename(late)
    ready.start_felix()
    ready.wait_ready()
    addresses = ready.add("c2", new)
    ready.kill_felix()
    late.rename(entry)
    ready.start_felix()
    ready.wait_ready()
    assert is_replayed(ready), ready.log()
    assert ready.endpoints() == {WEB: "c2"}
    assert ready.handles() == {"net.c2"}
    assert ready.routes() >= {addresses[0]}
    assert can_ping(ready.ns, addresses[0])
    assert ready.violations() == []


def test_the_same_container_again_does_its_queued_del_first(ready, netns):
    before, after = netns.make("before"), netns.make("after")
    ready.add("c1", before)
    ready.stop_etcd()
    delete(ready, "c1", before.path)
    code, error = ready.call("ADD", "c1", after.path)
    assert (code, error["code"]) == (1, 11)
    assert "an earlier DEL of this container still waits" in error["msg"]
    ready.start_etcd()
    for _ in range(100):
        code, result = ready.call("ADD", "c1", after.path)
        if code == 0:
            break
        assert result["code"] == 11
    assert code == 0, result
    assert ready.queued() == 0
    assert ready.endpoints() == {WEB: "c1"}
    assert can_ping(ready.ns, result["ips"][0]["address"].partition("/")[0])
    delete(ready, "c1", after.path)
    assert ready.handles() == set()
    assert ready.violations() == []


@pytest.mark.parametrize("datastore", ["away", "unknown"])
def test_without_felix_and_etcd_the_del_is_queued_and_felix_replays_it_at_start(
    ready, netns, datastore
):
    pod, gone = netns.make("pod"), netns.make("gone")
    ready.add("c1", pod)
    ready.add("c2", gone, pod="gone")
    ready.kill_felix()
    if datastore == "away":
        ready.stop_etcd()
    else:
        ready.name_datastore("")
    gone.remove()
    delete(ready, "c1", pod.path)
    delete(ready, "c2", gone.path, pod="gone")
    assert "eth0" not in pod.run("ip", "-o", "link")
    assert ready.queued() == 2
    if datastore == "away":
        ready.start_etcd()
    ready.start_felix()
    ready.wait_ready()
    assert is_replayed(ready), ready.log()
    assert ready.endpoints() == {}
    assert ready.handles() == set()
    assert eventually(lambda: ready.routes() == set())


def test_a_locked_datastore_is_not_written(ready, netns):
    pod = netns.make("pod")
    ready.add("c1", pod)
    set_datastore_ready(ready, False)
    # felix ends when the datastore is locked, and waits: the DEL works alone.
    ready.kill_felix()
    delete(ready, "c1", pod.path)
    assert "eth0" not in pod.run("ip", "-o", "link")
    assert ready.endpoints() == {WEB: "c1"}
    assert ready.handles() == {"net.c1"}
    set_datastore_ready(ready, True)
    ready.start_felix()
    ready.wait_ready()
    assert is_replayed(ready), ready.log()
    assert ready.endpoints() == {}
    assert ready.handles() == set()


def test_a_block_that_does_not_parse_keeps_the_release_until_it_is_mended(ready, netns):
    pod = netns.make("pod")
    ready.add("c1", pod)
    kept = {
        key: ready.ns.run("etcdctl", "get", key, "--print-value-only").strip()
        for key in ready.keys("/assignment/")
    }
    for key in kept:
        ready.ns.run("etcdctl", "put", key, "{garbage")
    delete(ready, "c1", pod.path)
    assert "eth0" not in pod.run("ip", "-o", "link")
    assert (ready.endpoints(), ready.queued()) == ({}, 1)
    for key, value in kept.items():
        ready.ns.run("etcdctl", "put", key, value)
    assert is_replayed(ready), ready.log()
    assert ready.handles() == set()


def test_an_etcd_that_refuses_our_user_is_like_one_that_is_away(node, netns):
    pod = netns.make("pod")

    def ctl(*arguments: str) -> None:
        node.ns.run("etcdctl", "--user", "root:root", *arguments)

    for command in (
        "user add root:root", "user grant-role root root", "user add us:us", "role add us",
        "role grant-permission us readwrite --prefix=true /calico/", "user grant-role us us",
        "auth enable",
    ):  # fmt: skip
        node.ns.run("etcdctl", *command.split())
    login = {"ETCD_USERNAME": "us", "ETCD_PASSWORD": "us"}
    node.name_datastore(ETCD, etcdUsername="us", etcdPassword="us")
    node.start_felix(**login)
    node.wait_ready()
    node.add("c1", pod)
    ctl("user", "revoke-role", "us", "us")
    delete(node, "c1", pod.path)
    assert "eth0" not in pod.run("ip", "-o", "link")
    assert "permission denied" in node.log()
    node.kill_felix()
    delete(node, "c1", pod.path)
    assert node.queued() == 1
    ctl("user", "grant-role", "us", "us")
    node.start_felix(**login)
    node.wait_ready()
    assert is_replayed(node), node.log()
    ctl("auth", "disable")
    assert node.endpoints() == {}
    assert node.handles() == set()


def test_a_damaged_entry_stops_no_other(ready, netns):
    pod, other = netns.make("pod"), netns.make("other")
    ready.add("c1", pod)
    ready.add("c2", other, pod="other")
    ready.stop_etcd()
    delete(ready, "c1", pod.path)
    (damaged,) = ready.queue.glob("*.json")
    delete(ready, "c2", other.path, pod="other")
    damaged.write_bytes(damaged.read_bytes()[:50])
    ready.start_etcd()
    assert is_replayed(ready), ready.log()
    assert eventually(lambda: ready.handles() == {"net.c1"})
    assert [path.suffix for path in ready.queue.iterdir()] == [".bad"]
    assert ready.log().count("is not readable and set aside") == 1


def test_another_plugins_addresses_are_given_back_at_once(ready, netns, tmp_path):
    ipam = {"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": str(tmp_path / "hl")}
    conf = {**CONF, "ipam": ipam}
    pod = netns.make("pod")
    ready.add("c1", pod, conf=conf)
    ready.stop_etcd()
    delete(ready, "c1", pod.path, conf=conf)
    assert not (tmp_path / "hl/net/10.77.0.2").exists()
    ready.start_etcd()
    assert is_replayed(ready), ready.log()
    assert ready.endpoints() == {}


def test_a_queue_that_cannot_be_written_has_the_runtime_come_again(ready, netns):
    pod = netns.make("pod")
    ready.add("c1", pod)
    ready.stop_etcd()
    ready.queue.write_text("in the way")
    code, error = ready.call("DEL", "c1", pod.path)
    assert (code, error["code"]) == (1, 11)
    assert "cannot be queued" in error["msg"]
    ready.queue.unlink()
    delete(ready, "c1", pod.path)
