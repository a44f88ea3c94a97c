"""The whole path with real packets: what `make lab` shows, and what must survive faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import pytest

from deploy.lab import demo, pods, shell
from deploy.lab.cluster import Cluster, up
from deploy.lab.shell import LabError, wait_until
from deploy.lab.topology import Machine, Options
from libcalico.runtime import unixsocket
from tests.support.flow import Flow

ALLOW_FRONTEND = demo.POLICY.encode()
ENDPOINTS = "/calico/resources/v3/projectcalico.org/workloadendpoints/"
SETTLE_S = 15.0


def eventually(condition, *, timeout_s: float = SETTLE_S) -> bool:
    return wait_until(condition, timeout_s=timeout_s, every_s=0.1)


def http(lab: Cluster, source: str, address: str) -> bool:
    return pods.can_http(lab, source, address, wait_s=1)


def apply(lab: Cluster, document: bytes = ALLOW_FRONTEND) -> None:
    lab.calicoctl("apply", "-f", "-", stdin=document)


def remove_policy(lab: Cluster, name: str = "web-from-frontend") -> None:
    lab.calicoctl("delete", "networkpolicy", name, "-n", "default", check=False)


def etcdctl(lab: Cluster, *arguments: str, stdin: bytes | None = None) -> str:
    command = ["etcdctl", f"--endpoints={lab.topology.etcd_endpoint}", *arguments]
    env = lab.environment() | {"ETCDCTL_API": "3"}
    done = shell.run(command, namespace=lab.topology.etcd.namespace, env=env, stdin=stdin)
    return done.stdout.decode()


def node_output(lab: Cluster, node: str, *command: str) -> str:
    return shell.run(list(command), namespace=lab.topology.node(node).namespace).stdout.decode()


@pytest.fixture
def start_flow(lab: Cluster, tmp_path: Path) -> Callable[[str, str], Flow]:
    """`start_flow(source, address)`: pings from a pod, already running."""

    def start(source: str, address: str) -> Flow:
        def spawn(command: list[str], out: BinaryIO) -> subprocess.Popen[bytes]:
            inside = lab.in_pod(source, command)
            return subprocess.Popen(inside, stdout=out, stderr=out, start_new_session=True)

        return Flow(spawn, tmp_path, address)

    return start


def test_the_demonstration_holds(lab):
    said: list[str] = []
    held = demo.run(lab, said.append)
    for name in list(lab.state.pods):
        pods.delete(lab, name)
    assert held, "\n".join(said)


def test_a_policy_blocks_and_allows_and_goes_again(lab, web):
    assert http(lab, "frontend", web)
    assert http(lab, "other", web)
    apply(lab)
    try:
        assert eventually(lambda: not http(lab, "other", web))
        assert http(lab, "frontend", web)
        assert not pods.can_ping(lab, "frontend", web, wait_s=1)
        realized = lambda: lab.calicoctl("get", "networkpolicy", "-o", "wide")  # noqa: E731
        assert eventually(lambda: " 3/3" in realized()), realized()
    finally:
        remove_policy(lab)
    assert eventually(lambda: http(lab, "other", web))


def test_a_pod_has_its_policy_before_its_add_has_answered(lab, web):
    apply(lab, ALLOW_FRONTEND.replace(b"app == 'web'", b"app == 'late'"))
    try:
        pods.add(lab, "late", node="node2", labels={"app": "late"})
        # Not "eventually": the very first packet after the answer must be refused.
        assert not pods.can_ping(lab, "other", lab.state.pods["late"].ips[0], wait_s=1)
    finally:
        remove_policy(lab)
        pods.delete(lab, "late")


def test_addresses_and_routes_are_given_back(lab):
    pods.add(lab, "brief", node="node1")
    address = lab.state.pods["brief"].ips[0]
    assert f"{address} dev cali" in node_output(lab, "node1", "ip", "route")
    pods.delete(lab, "brief")
    assert address not in node_output(lab, "node1", "ip", "route")
    assert "brief" not in etcdctl(lab, "get", "--prefix", "--keys-only", ENDPOINTS)
    assert f"{address} is not assigned" in lab.calicoctl("ipam", "show", f"--ip={address}")


def test_what_a_vanished_node_leaves_is_collected(lab):
    """A block of a node that nobody knows; a new leader looks at once."""
    block = {
        "cidr": "192.168.255.192/26", "affinity": "host:gone", "allocations": [None] * 64,
        "unallocated": list(range(64)), "attributes": [], "sequenceNumber": 1,
        "sequenceNumberForAllocation": {}, "deleted": False,
    }  # fmt: skip
    keys = (
        "/calico/ipam/v2/assignment/ipv4/block/192.168.255.192-26",
        "/calico/ipam/v2/host/gone/ipv4/block/192.168.255.192-26",
    )
    for key, value in zip(keys, (block, {"state": "confirmed", "deleted": False}), strict=True):
        etcdctl(lab, "put", key, json.dumps(value))
    lab.stop("controllers")
    lab.start_controllers()
    assert eventually(lambda: not any(etcdctl(lab, "get", key) for key in keys))


@pytest.mark.parametrize("role", ["calico-felix", "calico-bgp", "calico-confd", "everything"])
def test_killing_daemons_loses_no_packet_of_an_existing_flow(lab, web, start_flow, role):
    flow = start_flow("frontend", web)
    assert eventually(lambda: pods.can_ping(lab, "frontend", web))
    if role == "everything":
        lab.restart_node("node1", kill=True)
    else:
        victims = [pid for pid in lab.daemon_pids("node1") if role in command_of(pid)]
        assert len(victims) == 1, victims
        os.kill(victims[0], signal.SIGKILL)

        def is_back() -> bool:
            pids = set(lab.daemon_pids("node1")) - set(victims)
            return any(role in command_of(pid) for pid in pids)

        assert eventually(is_back)
        lab.wait_ready("node1")
        lab.wait_sessions()
    assert flow.lost() == 0


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def rules(lab: Cluster) -> set[tuple[str, int]]:
    """Chain and handle of every rule of node1: another handle is another rule."""
    listed = json.loads(node_output(lab, "node1", "nft", "-j", "list", "table", "inet", "calico"))
    return {
        (entry["rule"]["chain"], entry["rule"]["handle"])
        for entry in listed["nftables"]
        if "rule" in entry
    }


def routes(lab: Cluster) -> set[str]:
    return set(node_output(lab, "node1", "ip", "route").splitlines())


def sessions(lab: Cluster) -> dict[str, float]:
    """Neighbour of node1 -> since when its session has been what it is."""
    control = lab.state.node_directory("node1") / "run/bgp/control.sock"
    answer = unixsocket.ask(control, {"command": "peers"}, timeout_s=5)
    return {peer["address"]: peer["since"] for peer in answer["peers"]}


def test_a_restart_rewrites_nothing_that_is_right(lab, web):
    apply(lab)
    try:
        assert eventually(lambda: not http(lab, "other", web))
        before = rules(lab), routes(lab)
        assert before[0]
        lab.restart_node("node1", kill=True)
        assert eventually(lambda: (rules(lab), routes(lab)) == before), (rules(lab), routes(lab))
        assert not http(lab, "other", web)
    finally:
        remove_policy(lab)


def test_what_vanished_while_felix_was_away_goes_after_in_sync(lab):
    pods.add(lab, "orphan", node="node1", labels={"app": "orphan"})
    address = lab.state.pods["orphan"].ips[0]
    lab.stop("node1")
    assert address in node_output(lab, "node1", "ip", "route"), "a stop leaves the dataplane"
    path = etcdctl(lab, "get", "--prefix", "--keys-only", ENDPOINTS).split()
    (mine,) = [line for line in path if "orphan" in line]
    etcdctl(lab, "del", mine)
    lab.start_node("node1")
    lab.wait_ready("node1")
    assert eventually(lambda: address not in node_output(lab, "node1", "ip", "route"))
    lab.wait_sessions()
    pods.delete(lab, "orphan")


def test_a_pod_can_be_deleted_while_felix_is_down(lab):
    pods.add(lab, "widow", node="node2")
    address = lab.state.pods["widow"].ips[0]
    lab.stop("node2")
    try:
        pods.delete(lab, "widow")
        assert "widow" not in etcdctl(lab, "get", "--prefix", "--keys-only", ENDPOINTS)
        assert f"{address} is not assigned" in lab.calicoctl("ipam", "show", f"--ip={address}")
        with pytest.raises(LabError, match='"code": 11'):
            pods.add(lab, "early", node="node2")
    finally:
        lab.start_node("node2")
        lab.wait_ready("node2")
        lab.wait_sessions()


def test_etcd_may_go_away_and_come_back(lab, web, start_flow):
    apply(lab)
    try:
        assert eventually(lambda: not http(lab, "other", web))
        lab.wait_sessions()
        flow = start_flow("other", lab.state.pods["frontend"].ips[0])
        before = rules(lab), routes(lab), sessions(lab)
        lab.stop("etcd", grace_s=0)
        assert http(lab, "frontend", web)
        assert not http(lab, "other", web)
        lab.start_etcd()
        assert flow.lost() == 0
        assert (rules(lab), routes(lab), sessions(lab)) == before
    finally:
        remove_policy(lab)
    assert eventually(lambda: http(lab, "other", web), timeout_s=40)


CLOSED = """
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {{name: {name}-wire, labels: {{role: host}}}}
spec: {{node: {name}, expectedIPs: [{address}]}}
"""
NOTHING_FOR_HOSTS = """
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: nothing-for-hosts}
spec: {selector: role == 'host', types: [Ingress, Egress]}
"""


def answers(source: Machine, target: Machine, port: int) -> bool:
    """Whether the host `target` answers `source` at this port, if only by refusing."""
    probe = ["curl", "-s", "-o", "/dev/null", "--max-time", "1", f"telnet://{target.ipv4}:{port}"]
    done = shell.run(probe, namespace=source.namespace, check=False, stdin=b"")
    refused, timed_out = 7, 28
    assert done.returncode in (0, refused, timed_out), done
    return done.returncode != timed_out


def test_hosts_that_are_closed_to_everything_keep_their_cluster_alive(lab, web, start_flow):
    """Every host behind a deny-all: the datastore, BGP, new pods and policies go on."""
    machines = lab.topology.workers
    documents = "".join(CLOSED.format(name=m.name, address=m.ipv4) for m in machines)
    one, two, outside = *machines[:2], lab.topology.etcd
    assert answers(outside, one, 8080)
    flow = start_flow("frontend", web)
    apply(lab, (NOTHING_FOR_HOSTS + documents).encode())
    try:
        assert eventually(lambda: not answers(outside, one, 8080))
        assert answers(outside, one, 22)
        assert eventually(lambda: not answers(one, outside, 8080)), "nor out of it"
        assert eventually(lambda: not answers(two, outside, 8080))
        lab.restart_node("node1", kill=True)
        lab.wait_sessions()
        pods.add(lab, "newcomer", node="node3")
        assert eventually(lambda: pods.can_ping(lab, "newcomer", web))
        apply(lab)
        assert eventually(lambda: not http(lab, "other", web)), "felix hears its datastore"
        assert http(lab, "frontend", web)
        assert not answers(outside, one, 8080)
        assert flow.lost() == 0
    finally:
        remove_policy(lab)
        for machine in machines:
            lab.calicoctl("delete", "hostendpoint", f"{machine.name}-wire", check=False)
        lab.calicoctl("delete", "globalnetworkpolicy", "nothing-for-hosts", check=False)
        if "newcomer" in lab.state.pods:
            pods.delete(lab, "newcomer")
    assert eventually(lambda: answers(outside, one, 8080))


def test_one_malformed_object_does_not_stop_the_others(lab, web):
    bad = "/calico/resources/v3/projectcalico.org/networkpolicies/default/broken"
    worse = "/calico/resources/v3/projectcalico.org/networkpolicies/default/worse"
    etcdctl(lab, "put", bad, stdin=b'{"kind":"NetworkPolicy","spec":{"order":"first"')
    etcdctl(
        lab,
        "put",
        worse,
        stdin=b'{"kind":"NetworkPolicy","apiVersion":"projectcalico.org/v3",'
        b'"metadata":{"name":"worse","namespace":"default"},'
        b'"spec":{"selector":"this is (not a selector","types":["Ingress"]}}',
    )
    try:
        apply(lab)
        assert eventually(lambda: not http(lab, "other", web))
        assert http(lab, "frontend", web)
        log = (lab.state.node_directory("node1") / "log/node.log").read_text()
        assert "broken" in log
        assert "worse" in log
    finally:
        for key in (bad, worse):
            etcdctl(lab, "del", key)
        remove_policy(lab)


def test_routes_that_somebody_deletes_come_back(lab, web):
    routes = node_output(lab, "node1", "ip", "route").splitlines()
    local = next(line for line in routes if " cali" in line)
    learned = next(line for line in routes if "proto bgp" in line and "blackhole" not in line)
    for line in (local, learned):
        node_output(lab, "node1", "ip", "route", "del", *line.split()[:1])
    assert eventually(
        lambda: {local, learned} <= set(node_output(lab, "node1", "ip", "route").splitlines())
    )


def test_pods_reach_the_outside_masqueraded_and_not_otherwise(lab, web):
    switch = lab.topology.switch.namespace
    assert pods.can_ping(lab, "frontend", "192.0.2.1")
    listed = shell.run(["ip", "route"], namespace=switch).stdout.decode()
    assert "10.65." not in listed, "the outside knows no way to pods, so the answer proves NAT"


ONE_BLOCK = b"""
apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: one-block
spec:
  cidr: 10.77.0.0/26
  blockSize: 26
  ipipMode: Never
  vxlanMode: Never
"""


def pod_in(lab: Cluster, name: str, node: str, prefix: str) -> str:
    """A pod whose address begins so: as soon as felix there has heard which pools there are."""

    def has_one() -> bool:
        if name in lab.state.pods:
            pods.delete(lab, name)
        return pods.add(lab, name, node=node).ips[0].startswith(prefix)

    assert eventually(has_one), lab.state.pods[name].ips
    return lab.state.pods[name].ips[0]


@pytest.fixture
def one_block(lab: Cluster) -> Iterator[str]:
    """Pods get addresses of one block only, which is node1's; how they begin."""
    others = [name for name in lab.calicoctl("get", "ippools").split() if name.endswith("ippool")]
    made = ("owner", "borrower", "asker")
    try:
        for name in others:
            lab.calicoctl("patch", "ippool", name, "-p", '{"spec":{"disabled":true}}')
        lab.calicoctl("apply", "-f", "-", stdin=ONE_BLOCK)
        pod_in(lab, "owner", "node1", "10.77.0.")
        yield "10.77.0."
    finally:
        for name in made:
            if name in lab.state.pods:
                pods.delete(lab, name)
        for name in others:
            lab.calicoctl("patch", "ippool", name, "-p", '{"spec":{"disabled":false}}')
        lab.calicoctl("delete", "ippool", "one-block")


class RouteWatch:
    """The kernel's own word of when routes of other nodes came and went."""

    def __init__(self, lab: Cluster, nodes: Sequence[str], directory: Path) -> None:
        self._files = {node: directory / f"{node}.routes" for node in nodes}
        self._watches = []
        for node, path in self._files.items():
            with path.open("wb") as out:
                command = lab.in_node(node, ["stdbuf", "-oL", "ip", "-ts", "monitor", "route"])
                self._watches.append(subprocess.Popen(command, stdout=out))

    def after_s(self, since: datetime, address: str, *, is_gone: bool) -> dict[str, float]:
        """Seconds by node from an instant to the first such line of it."""
        found: dict[str, float] = {}
        for node, path in self._files.items():
            for line in path.read_text().splitlines():
                stamp, _, said = line.strip("[").partition("] ")
                if address in said.split() and said.startswith("Deleted") == is_gone:
                    seconds = (datetime.fromisoformat(stamp) - since).total_seconds()
                    found.setdefault(node, round(seconds, 3))
        return found

    def stop(self) -> None:
        for watch in self._watches:
            watch.kill()
            watch.wait()


def test_a_borrowed_address_is_routed_everywhere_and_gone_after_its_release(
    lab, one_block, tmp_path
):
    def next_hops(address: str) -> dict[str, str]:
        return {
            node: node_output(lab, node, "ip", "route", "show", f"{address}/32")
            for node in ("node1", "node3")
        }

    pod_in(lab, "borrower", "node2", one_block)
    pods.delete(lab, "borrower")
    pod_in(lab, "asker", "node3", one_block)  # it borrows as well
    watch = RouteWatch(lab, ("node1", "node3"), tmp_path)
    try:
        address = pods.add(lab, "borrower", node="node2").ips[0]
        added_at = datetime.now()
        assert address.startswith(one_block)
        via = f"via {lab.topology.node('node2').ipv4} "
        everywhere = eventually(lambda: all(via in said for said in next_hops(address).values()))
        assert everywhere, next_hops(address)
        assert "dev cali" in node_output(lab, "node2", "ip", "route", "show", f"{address}/32")
        for pod in ("owner", "asker"):
            assert eventually(lambda pod=pod: pods.can_ping(lab, pod, address))
        sys.stdout.write(f"routed after s: {watch.after_s(added_at, address, is_gone=False)}\n")
        pods.delete(lab, "borrower")
        deleted_at = datetime.now()
        assert eventually(lambda: not any(next_hops(address).values())), next_hops(address)
        assert not node_output(lab, "node2", "ip", "route", "show", f"{address}/32")
        sys.stdout.write(f"gone after s: {watch.after_s(deleted_at, address, is_gone=True)}\n")
    finally:
        watch.stop()
    assert f"{address} is not assigned" in lab.calicoctl("ipam", "show", f"--ip={address}")


def test_a_lab_that_is_up_is_not_made_again(lab):
    with pytest.raises(LabError, match="is up already"):
        up("e2e", Options())
