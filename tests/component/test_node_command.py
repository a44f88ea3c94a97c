"""`calico-node` as a process, with a real etcd and stand-ins for the daemons it supervises."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calicoctl.node.registration import SERVICE_VARIABLES
from libcalico.datastore.config import from_file
from libcalico.testing.etcd import EtcdCluster
from tests.support.etcd import ClusterFactory

ROOT = Path(__file__).parents[2]
PREFIX = "/calico/resources/v3/projectcalico.org/"
WAIT_S = 30.0

pytestmark = pytest.mark.etcd

STAND_IN = """#!{python}
import json, os, signal, sys, time
name = os.path.basename(sys.argv[0])
def note(text):
    with open({journal!r}, "a") as out:
        out.write(name + " " + text + "\\n")
for number in (signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: note(signal.Signals(number).name))
with open({journal!r} + "." + name, "w") as out:
    json.dump(dict(os.environ), out)
note("start " + os.environ["NODENAME"])
while True:
    time.sleep(60)
"""
# A tree of its own beside the interpreter, as a virtual environment has it.
LAUNCH = "import sys; sys.executable = {executable!r}; from calicoctl.node.main import main; {call}"


class Node:
    """One calico-node; `journal` is written by the stand-ins."""

    def __init__(self, directory: Path, endpoint: str, **environ: str) -> None:
        self.directory = directory
        self.journal = directory / "journal"
        bin_dir = directory / "bin"
        bin_dir.mkdir(parents=True)
        for name in ("calico-felix", "calico-confd", "calico-bgp", "bird"):
            script = bin_dir / name
            script.write_text(STAND_IN.format(python=sys.executable, journal=str(self.journal)))
            script.chmod(0o755)
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "ETCD_ENDPOINTS": endpoint,
            "NODENAME": "n1",
            "IP": "192.0.2.11/24",
            "CALICO_IPV4POOL_CIDR": "10.65.0.0/16",
            "CALICO_LIB_DIR": str(directory / "lib"),
            "CALICO_RUN_DIR": str(directory / "run"),
            "CALICO_LOG_DIR": str(directory / "logs"),
            **environ,
        }
        code = LAUNCH.format(executable=str(bin_dir / "python"), call="sys.exit(main([]))")
        self.log = (directory / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], env=self.environ, stdout=self.log, stderr=self.log
        )

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def child_environment(self, name: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(Path(f"{self.journal}.{name}").read_text())
        return found

    def logged(self) -> str:
        return (self.directory / "log").read_text()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.logged()
            time.sleep(0.02)

    def wait_started(self) -> None:
        self.until(lambda: "Calico node started successfully" in self.logged())

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.log.close()


NodeMaker = Callable[..., Node]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[NodeMaker]:
    made: list[Node] = []

    def make(endpoint: str, **environ: str) -> Node:
        made.append(Node(tmp_path / f"node{len(made)}", endpoint, **environ))
        return made[-1]

    yield make
    for node in made:
        if not node.log.closed:
            node.end()


def stored(cluster: EtcdCluster, path: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        cluster.ctl("get", "--print-value-only", PREFIX + path) or "{}"
    )
    return found


def test_a_node_registers_and_runs_its_daemons_until_it_is_stopped(
    etcd: EtcdCluster, make_node: NodeMaker
):
    node = make_node(etcd.endpoints[0])
    node.wait_started()
    node.until(lambda: len(node.lines()) == 3)
    assert sorted(node.lines()) == [
        "calico-bgp start n1",
        "calico-confd start n1",
        "calico-felix start n1",
    ]
    spec = stored(etcd, "nodes/n1")["spec"]
    assert spec["bgp"] == {"ipv4Address": "192.0.2.11/24"}  # type: ignore[index]
    assert stored(etcd, "ippools/default-ipv4-ippool")["spec"]["cidr"] == "10.65.0.0/16"  # type: ignore[index]
    assert stored(etcd, "tiers/default")["kind"] == "Tier"
    assert stored(etcd, "felixconfigurations/default")["kind"] == "FelixConfiguration"
    assert (node.directory / "lib" / "nodename").read_text() == "n1\n"
    node.process.send_signal(signal.SIGHUP)
    node.until(lambda: sum(line.endswith("SIGHUP") for line in node.lines()) == 3)
    assert node.end() == 0


def test_the_bird_engine_runs_bird_once_its_configuration_is_there(
    etcd: EtcdCluster, make_node: NodeMaker, tmp_path: Path
):
    path = f"{tmp_path}/node0/bin:{os.environ['PATH']}"
    node = make_node(etcd.endpoints[0], CALICO_BGP_ENGINE="bird", PATH=path)
    node.wait_started()
    node.until(lambda: len(node.lines()) == 2)
    assert sorted(node.lines()) == ["calico-confd start n1", "calico-felix start n1"]
    file = node.directory / "run/bgp/bird.cfg"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    node.until(lambda: "bird start n1" in node.lines())
    assert len(node.lines()) == 3
    assert node.end() == 0


def test_an_engine_that_is_not_known_is_refused(etcd: EtcdCluster, make_node: NodeMaker):
    node = make_node(etcd.endpoints[0], CALICO_BGP_ENGINE="quagga")
    node.until(lambda: node.process.poll() is not None)
    assert node.process.returncode == 1
    assert "CALICO_BGP_ENGINE" in node.logged()


def test_a_node_of_a_pool_with_encapsulation_gets_its_tunnel_address(
    etcd: EtcdCluster, make_node: NodeMaker
):
    def address() -> object:
        bgp: dict[str, object] = stored(etcd, "nodes/n1")["spec"]["bgp"]  # type: ignore[index]
        return bgp.get("ipv4IPIPTunnelAddr")

    node = make_node(etcd.endpoints[0], CALICO_IPV4POOL_IPIP="Always")
    node.wait_started()
    node.until(address)
    found = str(address())
    assert found.startswith("10.65.")
    assert node.end() == 0
    assert address() == found, "it is the node's while the node is down"


def test_sigusr1_writes_our_state_and_asks_every_daemon_for_its_own(
    etcd: EtcdCluster, make_node: NodeMaker
):
    node = make_node(etcd.endpoints[0])
    node.wait_started()
    node.until(lambda: len(node.lines()) == 3)
    node.process.send_signal(signal.SIGUSR1)
    node.until(lambda: sum(line.endswith("SIGUSR1") for line in node.lines()) == 3)
    node.until(lambda: "state dump written" in node.logged())
    (path,) = (node.directory / "logs").glob("calico-node-*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    dump = json.loads(path.read_text())
    assert set(dump["daemons"]) == {"calico-felix", "calico-confd", "calico-bgp"}
    assert all(daemon["starts"] == 1 for daemon in dump["daemons"].values())


def test_one_connection_for_all_processes_of_a_node_and_for_cni(
    etcd: EtcdCluster, make_node: NodeMaker
):
    """However it was spelled: the daemons see one spelling, CNI a file only root can read."""
    node = make_node(
        "http://127.0.0.1:1",
        CALICO_ETCD_ENDPOINTS=etcd.endpoints[0],
        ETCD_USERNAME="",
        ETCD_PASSWORD="p: #x",
        ETCD_CA_CERT_FILE="",
    )
    node.wait_started()
    node.until(lambda: len(node.lines()) == 3)
    for name in ("calico-felix", "calico-confd", "calico-bgp"):
        child = node.child_environment(name)
        assert child["ETCD_ENDPOINTS"] == etcd.endpoints[0]
        assert "CALICO_ETCD_ENDPOINTS" not in child
    path = node.directory / "lib/cni-datastore.cfg"
    assert path.stat().st_mode & 0o777 == 0o600
    found = from_file(path)
    assert found.etcd_endpoints == etcd.endpoints[0]
    assert found.etcd_password == "p: #x"


def test_the_service_manager_hears_from_us_and_from_no_child(
    etcd: EtcdCluster, make_node: NodeMaker, tmp_path: Path
):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        node = make_node(
            etcd.endpoints[0], NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000"
        )
        heard = []
        while not ("READY=1" in heard and heard.count("WATCHDOG=1") >= 5):
            heard.append(manager.recv(4096).decode().splitlines()[0])
        node.until(lambda: len(node.lines()) == 3)
        for name in ("calico-felix", "calico-confd", "calico-bgp"):
            assert not SERVICE_VARIABLES & set(node.child_environment(name))
        node.process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in heard:
            heard.append(manager.recv(4096).decode())
        assert node.end() == 0
        assert heard.count("READY=1") == 1


@pytest.mark.parametrize("backend", ["none", "vxlan"])
def test_without_bgp_only_felix_runs(etcd: EtcdCluster, make_node: NodeMaker, backend: str):
    node = make_node(etcd.endpoints[0], CALICO_NETWORKING_BACKEND=backend)
    node.wait_started()
    node.until(lambda: node.lines())
    assert node.end() == 0
    assert node.lines() == ["calico-felix start n1"]


def test_a_duplicate_address_ends_with_one_line_naming_the_other_node(
    etcd: EtcdCluster, make_node: NodeMaker
):
    first = make_node(etcd.endpoints[0])
    first.wait_started()
    second = make_node(etcd.endpoints[0], NODENAME="n2")
    assert second.process.wait(timeout=WAIT_S) == 1
    last = second.logged().splitlines()[-1]
    assert last.startswith(
        "calico-node: Calico node 'n1' is already using the IPv4 address 192.0.2.11"
    )
    assert stored(etcd, "nodes/n2") == {}
    assert second.lines() == []


def test_a_node_started_before_etcd_waits_with_one_line_and_goes_on(
    etcd_cluster_factory: ClusterFactory, make_node: NodeMaker
):
    cluster = etcd_cluster_factory()
    (member,) = cluster.members
    member.kill()
    node = make_node(cluster.endpoints[0], CALICO_STARTUP_LOGLEVEL="debug")
    node.until(lambda: "waiting for the datastore" in node.logged())
    node.process.send_signal(signal.SIGHUP)  # nobody to pass it on to yet, and no reason to die
    node.until(lambda: node.logged().count("does not answer, trying again") >= 3)
    assert node.logged().count("waiting for the datastore") == 1
    assert node.process.poll() is None
    member.start()
    member.wait_ready()
    node.wait_started()
    assert node.end() == 0


def test_a_node_that_waits_for_etcd_can_be_stopped(make_node: NodeMaker):
    node = make_node("http://127.0.0.1:1")
    node.until(lambda: "waiting for the datastore" in node.logged())
    assert node.end() == 0
    assert node.lines() == []


def test_a_refused_login_ends_with_one_line(
    etcd_cluster_factory: ClusterFactory, make_node: NodeMaker
):
    cluster = etcd_cluster_factory()
    cluster.enable_auth("secret")
    node = make_node(cluster.endpoints[0], ETCD_USERNAME="root", ETCD_PASSWORD="wrong")
    assert node.process.wait(timeout=WAIT_S) == 1
    assert "connection is unauthorized" in node.logged().splitlines()[-1]
