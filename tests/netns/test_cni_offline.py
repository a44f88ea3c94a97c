"""Pods that start while etcd is away: real etcd, felix, wires and policy."""

from __future__ import annotations

import signal

import pytest

from libcalico.model import Rule
from tests.support import calc
from tests.support.cni_node import CONF, CniNode
from tests.support.netns import Namespace, can_ping, eventually

WEB, DB = "node--1-k8s-web-eth0", "node--1-k8s-db-eth0"
RESERVE = "offline-reserve-node-1"
ENABLED = {"FELIX_IPAMOFFLINEALLOCATION": "Enabled", "FELIX_IPAMOFFLINERESERVE": "2"}
DENY = calc.np("no", selector="all()", ingress=(Rule(action="Deny"),), types=("Ingress",))


@pytest.fixture
def node(cni_node: CniNode) -> CniNode:
    return cni_node


@pytest.fixture
def ready(node: CniNode) -> CniNode:
    """felix in sync, its reserve filled."""
    start(node)
    return node


def start(node: CniNode, count: int = 4, **environ: str) -> None:
    node.start_felix(**{**ENABLED, **environ})
    node.wait_ready()
    assert eventually(lambda: reserved(node) == count, timeout_s=20, interval_s=0.1), node.log()
    assert eventually(lambda: node.metric("felix_cni_offline_reserve") == count, timeout_s=20)


def reserved(node: CniNode) -> int:
    return sum(handle == RESERVE for handle in node.holders().values())


def refuse(node: CniNode, container: str, pod: Namespace, name: str = "web") -> str:
    """An ADD that is told to come again; returns why."""
    code, error = node.call("ADD", container, pod.path, name)
    assert (code, error["code"]) == (1, 11), error
    return error["msg"]


def is_recorded(node: CniNode) -> bool:
    return eventually(lambda: node.journalled() == 0, timeout_s=40, interval_s=0.1)


def handles_of_pods(node: CniNode) -> dict[str, str]:
    return {a: handle for a, handle in node.holders().items() if handle != RESERVE}


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_pod_made_offline_has_network_and_policy_and_is_recorded_later(ready, netns, how):
    web, db = netns.make("web"), netns.make("db")
    before = ready.add("c0", db, pod="db")
    ready.stop_etcd() if how == "killed" else ready.signal_etcd(signal.SIGSTOP)
    addresses = ready.add("c1", web)
    assert ready.add("c1", web) == addresses, "a repeated ADD answers the same"
    result = ready.call("ADD", "c1", web.path)[1]
    assert ready.call("CHECK", "c1", web.path, conf={**CONF, "prevResult": result}) == (0, {})
    assert ready.routes() >= {*addresses, *before}
    assert can_ping(ready.ns, addresses[0])
    assert can_ping(db, addresses[0])
    assert can_ping(db, addresses[1])
    assert ready.journalled() == 1
    assert "the offline reserve has no address" not in ready.log()
    ready.start_etcd() if how == "killed" else ready.signal_etcd(signal.SIGCONT)
    assert is_recorded(ready), ready.log()
    assert ready.endpoints() == {WEB: "c1", DB: "c0"}
    assert handles_of_pods(ready) == {
        **dict.fromkeys(addresses, "net.c1"),
        **dict.fromkeys(before, "net.c0"),
    }
    assert eventually(lambda: reserved(ready) == 4, timeout_s=20), "filled up again"
    assert can_ping(db, addresses[0])
    assert ready.call("DEL", "c1", web.path) == (0, {})
    assert ready.handles() == {"net.c0", RESERVE}
    assert ready.violations() == []


def test_policy_holds_for_a_pod_made_offline(ready, netns):
    web, db = netns.make("web"), netns.make("db")
    ready.add("c0", db, pod="db")
    ready.store(DENY)
    assert eventually(lambda: "no" in ready.ruleset())
    ready.stop_etcd()
    addresses = ready.add("c1", web)
    assert not can_ping(db, addresses[0])
    assert can_ping(web, "192.0.2.1") is False, "egress to the host is the host's to allow"
    ready.start_etcd()
    assert is_recorded(ready), ready.log()
    assert not can_ping(db, addresses[0])


def test_with_an_empty_reserve_the_runtime_comes_again_and_a_del_makes_room(node, netns):
    pods = [netns.make(f"p{i}") for i in range(3)]
    start(node)
    node.stop_etcd()
    for i in (0, 1):
        node.add(f"c{i}", pods[i], pod=f"p{i}")
    sticky = {**CONF, "ipam": {**CONF["ipam"], "sticky": True}}
    code, error = node.call("ADD", "c2", pods[2].path, "p2", conf=sticky)
    assert (code, error["code"]) == (1, 11)
    assert error["msg"] == "the datastore is away: a pod cannot get its sticky address"
    said = refuse(node, "c2", pods[2], "p2")
    assert said == "the datastore is away: the offline reserve has no address left for this pod"
    assert "eth0" not in pods[2].run("ip", "-o", "link")
    assert node.call("DEL", "c0", pods[0].path, "p0") == (0, {})
    node.add("c2", pods[2], pod="p2")
    assert (node.journalled(), node.queued()) == (2, 0)
    node.start_etcd()
    assert is_recorded(node), node.log()
    assert set(handles_of_pods(node).values()) == {"net.c1", "net.c2"}
    assert node.violations() == []


def test_switched_off_nothing_is_set_aside_and_the_runtime_comes_again(node, netns):
    start(node, 0, FELIX_IPAMOFFLINEALLOCATION="Disabled")
    assert node.handles() == set()
    node.stop_etcd()
    refuse(node, "c1", netns.make("pod"))


def test_a_reserve_is_given_up_when_it_is_switched_off(ready):
    ready.kill_felix()
    start(ready, 0, FELIX_IPAMOFFLINEALLOCATION="Disabled")
    assert ready.handles() == set()
    assert ready.violations() == []


@pytest.mark.parametrize("is_back_first", [True, False])
def test_a_felix_that_is_killed_meanwhile_keeps_the_pods_network(ready, netns, is_back_first):
    """Restarted while etcd is away felix is not in sync: nothing new starts, what runs goes on."""
    web, late = netns.make("web"), netns.make("late")
    ready.stop_etcd()
    addresses = ready.add("c1", web)
    ready.kill_felix()
    if is_back_first:
        ready.start_etcd()
    ready.start_felix(**ENABLED)
    if not is_back_first:
        waits = "waiting for the datastore"
        assert eventually(lambda: waits in ready.log(), timeout_s=30, interval_s=0.1)
        refuse(ready, "c2", late, "late")
        assert can_ping(ready.ns, addresses[0])
        ready.start_etcd()
    flow = web.spawn("ping", "-n", "-i", "0.05", "-c", "100", "-W", "1", "-q", addresses[0])
    ready.wait_ready()
    assert ready.routes() >= set(addresses), "in sync, and not swept"
    assert can_ping(ready.ns, addresses[0])
    assert is_recorded(ready), ready.log()
    assert flow.wait(timeout=30) == 0
    assert ready.endpoints() == {WEB: "c1"}
    assert set(handles_of_pods(ready).values()) == {"net.c1"}
    assert can_ping(ready.ns, addresses[0])
    assert ready.call("DEL", "c1", web.path) == (0, {})
    assert handles_of_pods(ready) == {}
    assert ready.violations() == []


def test_a_pod_made_and_deleted_offline_leaves_nothing(ready, netns):
    web, again = netns.make("web"), netns.make("again")
    ready.stop_etcd()
    ready.add("c1", web)
    assert ready.call("DEL", "c1", web.path) == (0, {})
    assert ready.routes() == set()
    assert (ready.journalled(), ready.queued()) == (0, 0)
    second = ready.add("c2", again)
    ready.start_etcd()
    assert is_recorded(ready), ready.log()
    assert ready.endpoints() == {WEB: "c2"}
    assert handles_of_pods(ready) == dict.fromkeys(second, "net.c2")
    assert ready.violations() == []


def test_without_felix_a_pod_made_offline_is_deleted_for_good(ready, netns):
    web = netns.make("web")
    ready.stop_etcd()
    ready.add("c1", web)
    ready.kill_felix()
    assert ready.call("DEL", "c1", web.path) == (0, {})
    assert ready.journalled() == 0
    ready.start_etcd()
    start(ready)
    assert eventually(lambda: ready.queued() == 0, timeout_s=30, interval_s=0.1)
    assert ready.endpoints() == {}
    assert ready.handles() == {RESERVE}
    assert eventually(lambda: ready.routes() == set())
    assert ready.violations() == []


def test_the_pods_new_container_takes_over_offline(ready, netns):
    """c1 is in the datastore; offline c2 takes its place, then comes c1's late DEL."""
    old, new = netns.make("old"), netns.make("new")
    ready.add("c1", old)
    ready.stop_etcd()
    addresses = ready.add("c2", new)
    assert ready.call("DEL", "c1", old.path) == (0, {})
    assert ready.routes() >= set(addresses), "the late DEL must not take c2's network"
    assert can_ping(ready.ns, addresses[0])
    ready.start_etcd()
    assert is_recorded(ready), ready.log()
    assert eventually(lambda: ready.queued() == 0, timeout_s=30, interval_s=0.1)
    assert ready.endpoints() == {WEB: "c2"}
    assert handles_of_pods(ready) == dict.fromkeys(addresses, "net.c2")
    assert can_ping(ready.ns, addresses[0])
    assert ready.violations() == []


def test_pool_and_affinity_may_go_while_we_are_away(ready, netns):
    """The node is cut off (felix frozen out, etcd reachable for others is not possible here): the
    pool is disabled and deleted right after etcd is back, before felix runs."""
    web = netns.make("web")
    ready.stop_etcd()
    addresses = ready.add("c1", web)
    ready.kill_felix()
    ready.start_etcd()
    (pool,) = ready.keys("/ippools/v4")
    ready.ns.run("etcdctl", "del", pool)
    (affinity,) = [key for key in ready.keys("/ipam/v2/host/") if "/ipv4/" in key]
    ready.ns.run("etcdctl", "del", affinity)
    ready.start_felix(**ENABLED)
    ready.wait_ready()
    assert is_recorded(ready), ready.log()
    assert handles_of_pods(ready) == dict.fromkeys(addresses, "net.c1")
    assert can_ping(ready.ns, addresses[0])
    assert ready.call("DEL", "c1", web.path) == (0, {})
    assert handles_of_pods(ready) == {}


def test_an_address_taken_away_by_hand_cuts_the_pod_off(ready, netns):
    web = netns.make("web")
    ready.stop_etcd()
    addresses = ready.add("c1", web)
    ready.kill_felix()
    ready.start_etcd()
    for key in ready.keys("/assignment/ipv4/block/"):
        text = ready.ns.run("etcdctl", "get", key, "--print-value-only")
        ready.ns.run("etcdctl", "put", key, text.strip().replace(RESERVE, "net.thief"))
    ready.start_felix(**ENABLED)
    ready.wait_ready()
    assert is_recorded(ready), ready.log()
    assert "lost its address and is cut off" in ready.log()
    assert eventually(lambda: not set(addresses) & ready.routes())
    assert ready.endpoints() == {}
    assert ready.call("DEL", "c1", web.path) == (0, {})
    assert "net.c1" not in handles_of_pods(ready).values()


def test_a_pod_that_was_about_to_be_recorded_is_deleted_the_long_way(ready, netns):
    """etcd went away again in the middle: what it has heard of the pod nobody knows."""
    web = netns.make("web")
    ready.stop_etcd()
    ready.add("c1", web)
    (entry,) = (ready.lib_dir / "cni-journal").glob("*.json")
    begun = entry.read_text().replace('"is_begun":false', '"is_begun":true')
    entry.with_suffix(".new").write_text(begun)
    entry.with_suffix(".new").rename(entry)  # felix looks at it all the time
    assert ready.call("DEL", "c1", web.path) == (0, {})
    assert ready.routes() == set()
    assert (ready.journalled(), ready.queued()) == (0, 1)
    assert ready.metric("felix_cni_offline_reserve") == 2, "not given out again before it is known"
    ready.start_etcd()
    assert eventually(lambda: ready.queued() == 0, timeout_s=30, interval_s=0.1)
    assert eventually(lambda: ready.metric("felix_cni_offline_reserve") == 4, timeout_s=20)
    assert ready.endpoints() == {}
    assert ready.handles() == {RESERVE}
    assert ready.violations() == []


def test_a_felix_killed_in_the_middle_of_an_add_leaves_what_the_del_finds(ready, netns):
    """SIGKILL at different moments of an offline ADD; the runtime's DEL follows without felix."""
    ready.stop_etcd()
    pods = [netns.make(f"p{i}") for i in range(2)]
    started = [ready.start_call("ADD", f"c{i}", pod.path, f"p{i}") for i, pod in enumerate(pods)]
    # Killed when the first of them is in the journal; the other is somewhere on its way.
    assert eventually(lambda: ready.journalled() > 0, timeout_s=20, interval_s=0.001)
    ready.kill_felix()
    for process in started:
        process.communicate(timeout=60)
    for i, pod in enumerate(pods):
        assert ready.call("DEL", f"c{i}", pod.path, f"p{i}") == (0, {})
        assert "eth0" not in pod.run("ip", "-o", "link")
    assert ready.journalled() == 0
    ready.start_etcd()
    start(ready)
    assert eventually(lambda: ready.queued() == 0, timeout_s=30, interval_s=0.1)
    assert ready.endpoints() == {}
    assert ready.handles() == {RESERVE}
    assert eventually(lambda: ready.routes() == set())
    assert ready.violations() == []
