"""`calico-felix` as a process on a real kernel and a real etcd, pods wired by hand; judged by
packets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from libcalico.model import QoSControls, Rule
from libcalico.model.keys import path_of
from libcalico.netlink import (
    PROTO_KERNEL,
    EventStream,
    Group,
    RouteEvent,
    delete_route,
    device_route,
    replace_route,
)
from tests.support import calc
from tests.support.felix import NODE, basics, workload
from tests.support.felix_node import (
    ETCD,
    ROOT,
    START_S,
    A,
    B,
    FelixNode,
    skip_unless_possible,
)
from tests.support.flow import Flow
from tests.support.netns import (
    NamespaceSet,
    can_ping,
    eventually,
)

DENY = calc.np("no", selector="app == 'b'", ingress=(Rule(action="Deny"),), types=("Ingress",))


@pytest.fixture
def node(netns: NamespaceSet, tmp_path: Path) -> FelixNode:
    skip_unless_possible()
    made = FelixNode(netns, tmp_path)
    made.store(*basics(), workload("a", *A), workload("b", *B, labels={"app": "b"}))
    return made


# A connection of others, as conntrack writes one down.
STRANGERS = (
    *("-s", "198.51.100.1", "-d", "198.51.100.2", "-p", "tcp", "--sport", "1", "--dport", "2"),
    *("--state", "ESTABLISHED", "-t", "600"),
)
BOTH, NEITHER = (True, True), (False, False)


def metrics(node: FelixNode) -> str:
    return node.ns.run("curl", "-sf", "http://localhost:9091/metrics")


def test_pods_reach_each_other_and_a_policy_stops_them(node):
    assert node.reach() == NEITHER, "nobody routes yet"
    node.start(FELIX_PROMETHEUSMETRICSENABLED="true")
    node.wait_ready()
    # The pods' own neighbour discovery may still be at it: they were there before any gateway.
    assert eventually(lambda: node.reach() == BOTH)
    assert can_ping(node.ns, "10.65.0.1"), "the host reaches its pods"
    node.store(DENY)
    assert eventually(lambda: node.reach() == NEITHER)
    measured = "felix_policy_programming_seconds_count"
    assert eventually(lambda: f"{measured} 1.0" in metrics(node)), "one change, acknowledged once"
    node.erase(DENY)
    assert eventually(lambda: node.reach() == BOTH)
    assert eventually(lambda: f"{measured} 2.0" in metrics(node))
    assert node.ns.sysctl("net/ipv4/conf/calia/rp_filter") == "1"
    assert node.ns.sysctl("net/ipv4/ip_forward") == "1"
    assert node.ns.sysctl("net/ipv6/conf/all/forwarding") == "1"


def test_a_pod_that_pretends_to_be_another_is_not_heard(node):
    node.start()
    node.wait_ready()
    node.a.run("ip", "addr", "add", "10.65.0.77/32", "dev", "eth0")
    # The answer would go nowhere anyway: look at what arrives, not at what comes back.
    node.b.run("nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }")
    node.b.run("nft", "add rule inet t c ip saddr 10.65.0.77 counter comment spoofed")
    node.b.run("nft", "add rule inet t c ip saddr 10.65.0.1 counter comment honest")
    # Honest first: it makes the gateway known. The host answers no ARP from a foreign address, so
    # the other ping would never leave the pod and prove nothing.
    honest = ("ping", "-c1", "-W1", "-I", "10.65.0.1", "10.65.0.2")
    assert eventually(lambda: node.a.succeeds(*honest))
    assert not node.a.succeeds("ping", "-c1", "-W1", "-I", "10.65.0.77", "10.65.0.2")
    seen = node.b.run("nft", "list", "ruleset").splitlines()
    assert ["packets 0" in line for line in seen if "spoofed" in line] == [True]
    assert ["packets 0" in line for line in seen if "honest" in line] == [False]


def test_a_killed_felix_is_not_missed_and_its_successor_rewrites_nothing(node, tmp_path):
    node.start()
    node.wait_ready()
    before, rules = node.routes(), node.ruleset()
    flow = Flow(lambda ping, out: node.a.spawn(*ping, stdout=out), tmp_path, "10.65.0.2")
    monitor = node.ns.spawn("nft", "monitor", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    stream = EventStream.in_namespace(node.ns.path, Group.IPV4_ROUTE, Group.IPV6_ROUTE)
    assert node.stop(signal.SIGKILL) != 0
    node.start()
    node.wait_ready()
    assert flow.lost() == 0
    events = [event for event in stream.read() if isinstance(event, RouteEvent)]
    written_routes = [event for event in events if event.route.protocol != PROTO_KERNEL]
    stream.close()
    monitor.terminate()
    written = monitor.communicate(timeout=10)[0]
    assert written_routes == []
    assert written == b"", "no transaction at all"
    assert (node.routes(), node.ruleset()) == (before, rules)


def test_qos_controls_of_a_stored_endpoint_outlive_a_killed_felix(node):
    limits = QoSControls(
        ingress_bandwidth=10**7,
        egress_bandwidth=10**6,
        egress_packet_rate=1000,
        ingress_max_connections=9,
        dscp="EF",
    )
    plain = node.ns.run("tc", "qdisc", "show", "dev", "calia")
    node.store(workload("a", *A, qos_controls=limits))
    node.start()
    node.wait_ready()

    def programmed() -> list[str]:
        tools = (("nft", "-a", "-s", "list", "table", "inet", "calico"), ("tc", "-d", "qdisc"))
        redirect = ("tc", "filter", "show", "dev", "calia", "ingress")
        return [node.ns.run(*argv) for argv in (*tools, redirect, ("ip", "-o", "link"))]

    before = programmed()
    assert "limit rate over 1000/second" in before[0]
    assert "ct count over 9" in before[0]
    assert "ip dscp set ef" in before[0]
    assert "tbf ca11: dev calia root" in before[1]
    assert "rate 1Mbit" in before[1]
    assert "Redirect to device bwcali" in before[2]
    assert eventually(lambda: node.reach() == BOTH), "limited, not cut off"
    assert node.stop(signal.SIGKILL) != 0
    monitor = node.ns.spawn("nft", "monitor", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    node.start()
    node.wait_ready()
    monitor.terminate()
    assert monitor.communicate(timeout=10)[0] == b"", "no transaction at all"
    assert programmed() == before
    node.store(workload("a", *A))
    assert eventually(lambda: "bwcali" not in node.ns.run("ip", "-o", "link"))
    assert eventually(lambda: node.ns.run("tc", "qdisc", "show", "dev", "calia") == plain)
    assert "ct count" not in node.ruleset()


def test_orphans_wait_for_the_datastore_and_go_then(node):
    node.start()
    node.wait_ready()
    assert node.stop() == 0
    assert node.reach() == BOTH, "SIGTERM leaves the network as it is"
    index = node.ns.link("calia").ifindex
    orphan = device_route("10.65.0.99/32", index, protocol=3, metric=1024)
    node.ns.socket.execute(replace_route(orphan))
    node.ns.run("nft", "add chain inet calico left; add set inet calico left { type mark; }")
    node.erase(workload("b", *B))
    node.stop_etcd()
    node.start()
    assert eventually(lambda: "waiting for the datastore" in node.log(), timeout_s=START_S)
    assert node.routes() >= {"10.65.0.99", "10.65.0.1", "10.65.0.2"}
    assert node.reach() == BOTH
    before = node.ruleset()
    assert all(name in before for name in ("chain left", "set left", "calia", "calib"))
    node.start_etcd()
    node.wait_ready()
    assert node.routes() == {"10.65.0.1", "fd00:65::1"}
    after = node.ruleset()
    assert "calia" in after
    assert not any(name in after for name in ("left", "calib"))


def test_etcd_goes_away_and_the_network_stays_and_heals(node):
    node.start()
    node.wait_ready()
    node.stop_etcd()
    assert node.reach() == BOTH
    index = node.ns.link("calib").ifindex
    node.ns.socket.execute(
        delete_route(device_route("10.65.0.2/32", index, protocol=3, metric=1024))
    )
    assert eventually(lambda: node.reach() == BOTH), "repaired without a datastore"
    node.start_etcd()
    node.store(DENY)
    assert eventually(lambda: node.reach() == NEITHER, timeout_s=20)


def test_a_pod_that_goes_leaves_no_route_and_no_connection(node):
    node.start()
    node.wait_ready()
    assert node.reach() == BOTH
    if not node.ns.succeeds("conntrack", "-L"):
        pytest.skip("no conntrack tool")

    def is_tracked(address: str, family: str) -> bool:
        return address in node.ns.run("conntrack", "-L", "-f", family).replace("=", " ").split()

    addresses = (("10.65.0.2", "ipv4"), ("fd00:65::2", "ipv6"))
    assert all(is_tracked(*item) for item in addresses)
    node.ns.run("conntrack", "-I", *STRANGERS)
    assert is_tracked("198.51.100.1", "ipv4")
    node.erase(workload("b", *B))
    assert eventually(lambda: node.routes() == {"10.65.0.1", "fd00:65::1"})
    assert eventually(lambda: not any(is_tracked(*item) for item in addresses))
    assert is_tracked("198.51.100.1", "ipv4"), "what is nobody's of ours stays"
    assert node.reach() == NEITHER


def test_one_bad_object_is_warned_of_and_the_others_are_enforced(node):
    node.ns.run("etcdctl", "put", path_of(workload("broken", *A)[0]), "{not json")
    node.store(calc.np("bad", selector="app ==", types=("Ingress",)), DENY)
    node.start()
    node.wait_ready()
    assert node.reach() == NEITHER
    assert can_ping(node.b, "10.65.0.1")
    assert "does not parse" in node.log()
    assert eventually(lambda: "an invalid object is ignored" in node.log())


def test_a_configuration_that_needs_it_ends_felix_with_129_and_nothing_flickers(node):
    node.start()
    node.wait_ready()
    key = "/calico/resources/v3/projectcalico.org/felixconfigurations/default"
    spec = {"interfacePrefix": "tap"}
    document = {
        "kind": "FelixConfiguration",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "default"},
        "spec": spec,
    }
    node.ns.run("etcdctl", "put", key, json.dumps(document))
    assert node.wait_exit() == 129
    assert node.reach() == BOTH


def test_the_commands_that_only_look(node):
    environ = os.environ | {"ETCD_ENDPOINTS": ETCD, "NODENAME": NODE, "PYTHONPATH": str(ROOT)}

    def felix(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", f"--net={node.ns.path}", sys.executable, "-m", "felix", *arguments]
        return subprocess.run(
            command,
            env=environ | more,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert felix("check-config").returncode == 0
    wrong = felix("check-config", FELIX_IPV6SUPPORT="maybe", FELIX_NOSUCHTHING="1")
    assert wrong.returncode == 1
    assert "Ipv6Support" in wrong.stderr
    assert "NOSUCHTHING" in wrong.stderr
    refused = felix(FELIX_IPV6SUPPORT="maybe")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    rendered = felix("render")
    assert rendered.returncode == 0, rendered.stderr
    assert "calia" in rendered.stdout
    script = node.directory / "rules.nft"
    script.write_text(rendered.stdout)
    assert node.ns.succeeds("nft", "-c", "-f", str(script))
