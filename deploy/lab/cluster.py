"""Bring a lab up and take it down: wires, etcd, one calico-node per node namespace.

Layer: edge. Used by `lab` and by tests/e2e. `up` is not idempotent on purpose: it refuses when the
lab exists, so that nobody loses a running one; `down` removes whatever is there, also after a
crash half way, by name (`brn-<lab>-…`) and by remembered pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.lab import shell
from deploy.lab.shell import LabError, ip
from deploy.lab.state import ROOT, LabState, load
from deploy.lab.topology import (
    CLUSTER_ID,
    MAX_NODES,
    OUTSIDE_V4,
    OUTSIDE_V6,
    POOL_V4,
    POOL_V6,
    Machine,
    Options,
)
from libcalico.runtime import unixsocket

BIN = Path(sys.executable).parent
Say = Callable[[str], None]


def quiet(_: str) -> None:
    """A `Say` for tests."""


class Cluster:
    """A running lab. Get one with `up` or `attach`."""

    def __init__(self, state: LabState, say: Say = quiet) -> None:
        self.state = state
        self.topology = state.topology
        self._say = say

    # --- environment and commands -------------------------------------------------------------

    def environment(self, node: Machine | None = None) -> dict[str, str]:
        """What a program of this lab runs with. Inherits only what a login shell would give."""
        base = {
            "PATH": f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": os.environ.get("HOME", "/root"),
            "LANG": "C.UTF-8",
            "DATASTORE_TYPE": "etcdv3",
            "ETCD_ENDPOINTS": self.topology.etcd_endpoint,
        }
        if node is None:
            return base
        home = self.state.node_directory(node.name)
        base |= {
            "NODENAME": node.name,
            "CALICO_RUN_DIR": str(home / "run"),
            "CALICO_LIB_DIR": str(home / "lib"),
            "CALICO_LOG_DIR": str(home / "log"),
        }
        return base

    def node_environment(self, node: Machine) -> dict[str, str]:
        """The environment of a node's calico-node."""
        options = self.state.options
        env = self.environment(node) | {
            "IP": "autodetect",
            "IP_AUTODETECTION_METHOD": "interface=eth.*",
            "CALICO_IPV4POOL_CIDR": POOL_V4,
            "CALICO_IPV4POOL_NAT_OUTGOING": "true",
            "CALICO_NETWORKING_BACKEND": "bird",
            "FELIX_HEALTHENABLED": "true",
            "FELIX_NFTABLESMODE": "Enabled",
            "FELIX_IPV6SUPPORT": "true" if options.ipv6 else "false",
        }
        if options.ipv6:
            env |= {
                "IP6": "autodetect",
                "IP6_AUTODETECTION_METHOD": "interface=eth.*",
                "CALICO_IPV6POOL_CIDR": POOL_V6,
                "CALICO_IPV6POOL_NAT_OUTGOING": "true",
            }
        return env

    def calicoctl(self, *arguments: str, stdin: bytes | None = None, check: bool = True) -> str:
        """calicoctl as the operator would run it, from the etcd host. Returns its stdout."""
        done = shell.run(
            [str(BIN / "calicoctl"), *arguments],
            namespace=self.topology.etcd.namespace,
            env=self.environment(),
            stdin=stdin,
            check=check,
        )
        return done.stdout.decode()

    def in_node(self, name: str, command: Sequence[str]) -> list[str]:
        return shell.enter(self.topology.node(name).namespace, command)

    def in_pod(self, name: str, command: Sequence[str]) -> list[str]:
        if name not in self.state.pods:
            known = ", ".join(sorted(self.state.pods)) or "none"
            raise LabError(f"no pod {name!r}; there are: {known}")
        return shell.enter(self.topology.pod_namespace(name), command)

    # --- coming up ----------------------------------------------------------------------------

    def build(self) -> None:
        """Everything from nothing. On failure what was made stays for `lab down` to remove."""
        self.state.save()
        self._say("wires: a switch namespace and one namespace per machine")
        self._make_switch()
        for machine in (self.topology.etcd, *self.topology.nodes):
            self._make_machine(machine)
        self._say(f"etcd: {self.topology.etcd_endpoint} in {self.topology.etcd.namespace}")
        self.start_etcd()
        names = " ".join(node.name for node in self.topology.nodes)
        self._say(f"nodes: starting calico-node on {names}")
        for node in self.topology.nodes:
            self.start_node(node.name)
        for node in self.topology.nodes:
            self.wait_ready(node.name)
        if self.state.options.rr:
            self._say("route reflectors: mesh off, every node peers with rr1 and rr2")
            self._configure_reflectors()
        # Not waited for: nobody needs the collector at once.
        self.start_controllers()
        self._say("BGP: waiting for the sessions")
        self.wait_sessions()

    def _make_switch(self) -> None:
        switch = self.topology.switch.namespace
        ip(None, "netns", "add", switch)
        ip(switch, "link", "set", "lo", "up")
        ip(switch, "link", "add", "br0", "type", "bridge", "forward_delay", "0", "stp_state", "0")
        ip(switch, "addr", "add", f"{OUTSIDE_V4}/24", "dev", "br0")
        ip(switch, "addr", "add", f"{OUTSIDE_V6}/64", "dev", "br0", "nodad")
        ip(switch, "link", "set", "br0", "up")

    def _make_machine(self, machine: Machine) -> None:
        switch = self.topology.switch.namespace
        ip(None, "netns", "add", machine.namespace)
        ip(machine.namespace, "link", "set", "lo", "up")
        port = f"to-{machine.name}"[:15]
        peer = ("peer", "name", "eth0", "netns", machine.namespace)
        ip(switch, "link", "add", port, "type", "veth", *peer)
        ip(switch, "link", "set", port, "master", "br0", "up")
        ip(machine.namespace, "addr", "add", f"{machine.ipv4}/24", "dev", "eth0")
        ip(machine.namespace, "addr", "add", f"{machine.ipv6}/64", "dev", "eth0", "nodad")
        ip(machine.namespace, "link", "set", "eth0", "up")
        # A node needs a default route: proxy ARP answers for 169.254.1.1 only because of it.
        ip(machine.namespace, "route", "add", "default", "via", OUTSIDE_V4)
        ip(machine.namespace, "-6", "route", "add", "default", "via", OUTSIDE_V6)

    def start_etcd(self) -> None:
        etcd = self.topology.etcd
        url, peer_url = self.topology.etcd_endpoint, f"http://{etcd.ipv4}:2380"
        listen = f"{url},http://127.0.0.1:2379"
        command = ["etcd", "--name=lab", f"--data-dir={self.state.directory / 'etcd'}"]
        command += [f"--listen-client-urls={listen}", f"--advertise-client-urls={url}"]
        command += [f"--listen-peer-urls={peer_url}", f"--initial-cluster=lab={peer_url}"]
        command += [f"--initial-advertise-peer-urls={peer_url}", "--unsafe-no-fsync"]
        self.start("etcd", command, namespace=etcd.namespace, log="etcd.log")
        health = ["etcdctl", f"--endpoints={url}", "endpoint", "health"]
        env = self.environment() | {"ETCDCTL_API": "3"}

        def healthy() -> bool:
            done = shell.run(health, namespace=etcd.namespace, env=env, check=False)
            return done.returncode == 0

        if not shell.wait_until(healthy, timeout_s=30):
            raise LabError(f"etcd does not answer; see {self.state.directory / 'etcd.log'}")

    def start_controllers(self) -> None:
        """The IPAM garbage collection, beside etcd."""
        command = [str(BIN / "calico-kube-controllers")]
        namespace = self.topology.etcd.namespace
        self.start("controllers", command, namespace=namespace, log="controllers.log")

    def start_node(self, name: str) -> None:
        node = self.topology.node(name)
        home = self.state.node_directory(name)
        for part in ("run", "lib", "log", "cni/bin", "cni/net.d"):
            (home / part).mkdir(parents=True, exist_ok=True)
        install = ["install-cni", "--bin-dir", str(home / "cni/bin")]
        install += ["--conf-dir", str(home / "cni/net.d")]
        env = self.node_environment(node)
        command = str(BIN / "calico-node")
        shell.run([command, *install], namespace=node.namespace, env=env)
        self.start(name, [command], namespace=node.namespace, log=f"{name}/log/node.log", env=env)

    def start(
        self,
        role: str,
        command: Sequence[str],
        *,
        namespace: str,
        log: str,
        env: dict[str, str] | None = None,
    ) -> None:
        """Start a process of the lab and remember it under `role`."""
        self.state.processes[role] = shell.start(
            command,
            namespace=namespace,
            log=self.state.directory / log,
            env=self.environment() if env is None else env,
        )
        self.state.save()

    def stop(self, role: str, *, grace_s: float = 15) -> None:
        process = self.state.processes.pop(role, None)
        if process is not None:
            shell.stop(process, grace_s=grace_s)
            self.state.save()

    def restart_node(self, name: str, *, kill: bool = False) -> None:
        """Stop and start a node's daemons; with `kill` by SIGKILL of all of them at once."""
        node = self.topology.node(name)
        if kill:
            for pid in self.daemon_pids(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.stop(name)
        self.start_node(node.name)
        self.wait_ready(node.name)
        self.wait_sessions()

    def daemon_pids(self, name: str) -> list[int]:
        """calico-node and its children: what carries our run directory in its environment."""
        marker = f"CALICO_RUN_DIR={self.state.node_directory(name) / 'run'}".encode()
        found = []
        for pid in shell.processes_in(self.topology.node(name).namespace):
            with contextlib.suppress(OSError):
                if marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    # --- waiting ------------------------------------------------------------------------------

    def wait_ready(self, name: str, timeout_s: float = 60) -> None:
        node = self.topology.node(name)
        url = "http://localhost:9099/readiness"
        probe = ["curl", "-s", "-o", "/dev/null", "-f", "--max-time", "2", url]

        def ready() -> bool:
            self._check_running(name)
            return shell.run(probe, namespace=node.namespace, check=False).returncode == 0

        if not shell.wait_until(ready, timeout_s=timeout_s, every_s=0.2):
            log = self.state.node_directory(name) / "log/node.log"
            raise LabError(f"{name} is not ready after {timeout_s:.0f} s; see {log}")

    def _check_running(self, role: str) -> None:
        process = self.state.processes.get(role)
        if process is None or not shell.is_running(process):
            tail = self._log_tail(self.state.node_directory(role) / "log/node.log")
            raise LabError(f"{role} ended by itself: {tail}")

    @staticmethod
    def _log_tail(log: Path) -> str:
        try:
            lines = log.read_text(errors="replace").splitlines()
        except OSError:
            return "it left no log"
        return lines[-1] if lines else "its log is empty"

    def expected_peers(self, node: Machine) -> set[str]:
        """Addresses this node must have sessions with, both families when the lab has IPv6."""
        others = [other for other in self.topology.nodes if other != node]
        if self.state.options.rr and node not in self.topology.reflectors:
            others = list(self.topology.reflectors)
        addresses = {other.ipv4 for other in others}
        if self.state.options.ipv6:
            addresses |= {other.ipv6 for other in others}
        return addresses

    def peers(self, name: str) -> dict[str, str]:
        """Neighbour address -> session state, asked from the node's calico-bgp."""
        control = self.state.node_directory(name) / "run/bgp/control.sock"
        answer = unixsocket.ask(control, {"command": "peers"}, timeout_s=5)
        return {peer["address"]: peer["state"] for peer in answer.get("peers", ())}

    def established(self, name: str) -> set[str]:
        try:
            found = self.peers(name)
        except (unixsocket.NoAnswer, unixsocket.BadAnswer):
            return set()
        return {address for address, state in found.items() if state.lower() == "established"}

    def wait_sessions(self, timeout_s: float = 60) -> None:
        def missing() -> dict[str, set[str]]:
            gaps = {n.name: self.expected_peers(n) - self.established(n.name) for n in nodes}
            return {name: gap for name, gap in gaps.items() if gap}

        nodes = self.topology.nodes
        if not shell.wait_until(lambda: not missing(), timeout_s=timeout_s, every_s=0.2):
            gaps = "; ".join(f"{n} lacks {', '.join(sorted(g))}" for n, g in missing().items())
            raise LabError(f"BGP sessions missing after {timeout_s:.0f} s: {gaps}")

    def _configure_reflectors(self) -> None:
        for reflector in self.topology.reflectors:
            patch = {
                "metadata": {"labels": {"route-reflector": "true"}},
                "spec": {"bgp": {"routeReflectorClusterID": CLUSTER_ID}},
            }
            self.calicoctl("patch", "node", reflector.name, "-p", json.dumps(patch))
        documents = (
            {
                "apiVersion": "projectcalico.org/v3",
                "kind": "BGPConfiguration",
                "metadata": {"name": "default"},
                "spec": {"nodeToNodeMeshEnabled": False, "asNumber": 64512},
            },
            {
                "apiVersion": "projectcalico.org/v3",
                "kind": "BGPPeer",
                "metadata": {"name": "reflectors"},
                "spec": {"nodeSelector": "all()", "peerSelector": "has(route-reflector)"},
            },
        )
        self.calicoctl("apply", "-f", "-", stdin=json.dumps(documents).encode())

    # --- going down ---------------------------------------------------------------------------

    def destroy(self) -> None:
        destroy(self.state.name, self._say)


def up(name: str, options: Options, say: Say = quiet) -> Cluster:
    if os.geteuid() != 0:
        raise LabError("network namespaces need root: run it with sudo")
    if not 1 <= options.nodes <= MAX_NODES:
        raise LabError(f"--nodes {options.nodes}: must be between 1 and {MAX_NODES}")
    if load(name) is not None or any(ns.startswith(f"brn-{name}-") for ns in shell.namespaces()):
        raise LabError(f"lab {name!r} is up already; `{_command(name, 'down')}` removes it")
    cluster = Cluster(LabState(name, options), say)
    cluster.build()
    return cluster


def _command(name: str, verb: str) -> str:
    return f"lab {verb}" if name == "lab" else f"lab --name {name} {verb}"


def attach(name: str, say: Say = quiet) -> Cluster:
    state = load(name)
    if state is None:
        raise LabError(f"lab {name!r} is not up; `{_command(name, 'up')}` makes it")
    return Cluster(state, say)


def destroy(name: str, say: Say = quiet) -> None:
    """Remove processes, namespaces and files of a lab, whatever state it is in."""
    if os.geteuid() != 0:
        raise LabError("network namespaces need root: run it with sudo")
    state = load(name)
    if state is not None:
        # Nodes first, etcd last: nobody should log that the datastore has gone.
        roles = sorted(state.processes, key=lambda role: (role == "etcd", role))
        for role in roles:
            shell.stop(state.processes[role])
    mine = sorted(ns for ns in shell.namespaces() if ns.startswith(f"brn-{name}-"))
    for namespace in mine:
        for pid in shell.processes_in(namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ip(None, "netns", "delete", namespace)
    shutil.rmtree(ROOT / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        ROOT.rmdir()
    say(f"removed lab {name!r}: {len(mine)} namespaces" if mine or state else "nothing to remove")
