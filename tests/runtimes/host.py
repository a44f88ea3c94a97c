"""A host with Brindle on it, as an operator sets one up: etcd, calico-node, the CNI plugin.

Everything is in its standard place, because the machine is one of its own (tests/support/machine).
An `outside` namespace is the host's gateway, for packets that come from elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.machine import Machine
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    connect,
    eventually,
)

NODE = "host1"
POOLS = {"CALICO_IPV4POOL_CIDR": "10.65.0.0/16", "CALICO_IPV6POOL_CIDR": "fd65::/64"}
HOST_V4, OUTSIDE_V4 = "192.0.2.1", "192.0.2.254"
HOST_V6, OUTSIDE_V6 = "2001:db8::1", "2001:db8::254"
START_S = 60.0  # a busy machine imports Python modules slowly
_BIN = Path(sys.executable).parent
ENVIRON = {
    "PATH": f"{_BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DATASTORE_TYPE": "etcdv3",
    "ETCD_ENDPOINTS": "http://127.0.0.1:2379",
    "NODENAME": NODE,
    "IP": f"{HOST_V4}/24",
    "IP6": f"{HOST_V6}/64",
    "CALICO_NETWORKING_BACKEND": "none",
    "FELIX_HEALTHENABLED": "true",
    **POOLS,
}


class Host:
    """etcd and calico-node run when this is made; the plugin is installed."""

    def __init__(self, netns: NamespaceSet) -> None:
        self.outside = netns.make("outside")
        self.netns = netns.make("host")
        _plug_in(self.netns, self.outside)
        self.machine = Machine(self.netns)
        self._node: subprocess.Popen[bytes] | None = None
        self.start_etcd()
        self.start_node()
        self.wait_ready()

    def start_etcd(self) -> None:
        self._etcd = self.machine.spawn(
            *("etcd", "--data-dir", "/run/etcd", "--log-level", "error", "--unsafe-no-fsync"),
            log="etcd",
            env=ENVIRON | {"ETCD_ENDPOINTS": ""},
        )
        health = ("etcdctl", "endpoint", "health")
        assert eventually(lambda: self.machine.attempt(*health).returncode == 0, timeout_s=START_S)

    def stop_etcd(self) -> None:
        """SIGKILL: the machine is gone from one moment to the next. Its data stays."""
        for pid in self.machine.processes("etcd"):
            os.kill(pid, signal.SIGKILL)
        self._etcd.wait(timeout=20)

    def start_node(self) -> None:
        self._node = self.machine.spawn("calico-node", log="calico-node", env=ENVIRON)

    def wait_ready(self) -> None:
        probe = ("curl", "-sf", "-o", "/dev/null", "http://localhost:9099/readiness")
        assert eventually(
            lambda: self.machine.attempt(*probe).returncode == 0,
            timeout_s=START_S,
            interval_s=0.1,
        ), self.machine.log("calico-node")

    def stop_node(self) -> None:
        """SIGTERM, as an operator stops the service; pods keep their network."""
        for pid in self.machine.processes("calico-node"):
            os.kill(pid, signal.SIGTERM)
        assert self._node is not None
        self._node.wait(timeout=30)

    def calicoctl(self, *arguments: str, **options: object) -> str:
        return self.machine.run("calicoctl", *arguments, env=ENVIRON, **options)

    def apply(self, document: dict[str, object]) -> None:
        self.calicoctl("apply", "-f", "-", input=json.dumps(document))

    def install_cni(self, **environ: str) -> str:
        folders = ("--bin-dir", "/opt/cni/bin", "--conf-dir", "/etc/cni/net.d")
        said = self.machine.run("calico-node", "install-cni", *folders, env=ENVIRON | environ)
        for name in ("loopback", "portmap"):
            self.machine.run("ln", "-sf", f"/usr/lib/cni/{name}", "/opt/cni/bin/")
        return said

    def in_namespace(self, path: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a host's program in a pod's network namespace; `path` is the machine's."""
        return self.machine.attempt("nsenter", f"--net={path}", *argv)

    def fetches(self, address: str, port: int) -> bool:
        """Does a web page come to the outside?"""
        url = f"http://[{address}]:{port}/" if ":" in address else f"http://{address}:{port}/"
        return self.outside.succeeds("curl", "-sf", "-o", "/dev/null", "--max-time", "1", url)

    def deletes(self) -> int:
        """How many DELs felix has served so far."""
        return self.machine.log("calico-node").count("pod disconnected")

    def keys(self, prefix: str) -> list[str]:
        listed = self.machine.run("etcdctl", "get", "--prefix", "--keys-only", prefix)
        return listed.split()

    def leftovers(self) -> list[str]:
        """What a pod could have left: endpoints, handles, addresses, interfaces, routes, policy."""
        left = self.keys("/calico/resources/v3/projectcalico.org/workloadendpoints/")
        left += self.keys("/calico/ipam/v2/handle/")
        left += [f"{name}: {n} addresses" for name, n in self.assigned().items() if n]
        for command in (("ip", "-o", "link"), ("ip", "route"), ("ip", "-6", "route")):
            left += [line for line in self.netns.run(*command).splitlines() if "cali" in line]
        rules = self.netns.run("nft", "list", "table", "inet", "calico")
        left += [
            line.strip() for line in rules.splitlines() if '"cali' in line and '"cali*"' not in line
        ]
        return left

    def assigned(self) -> dict[str, int]:
        """Addresses in use by block."""
        found = {}
        for key in self.keys("/calico/ipam/v2/assignment/"):
            block = json.loads(self.machine.run("etcdctl", "get", "--print-value-only", key))
            found[key.rpartition("/")[2]] = sum(i is not None for i in block["allocations"])
        return found


@contextmanager
def frozen(machine: Machine, program: str) -> Iterator[None]:
    """The machine's processes of that name hang as long as the block runs."""
    pids = machine.processes(program)
    assert pids, f"no {program} runs"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        # nsenter, which waits for one, stops together with it.
        for pid in pids + [_parent(pid) for pid in pids]:
            os.kill(pid, signal.SIGCONT)


def _parent(pid: int) -> int:
    """proc(5): the fourth field of stat; the second, the name, may have anything in it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _plug_in(host: Namespace, outside: Namespace) -> None:
    connect(host, "up0", outside, "down0")
    add_addresses(host, "up0", f"{HOST_V4}/24")
    add_addresses(outside, "down0", f"{OUTSIDE_V4}/24")
    for namespace, ifname, cidr in (
        (host, "up0", f"{HOST_V6}/64"),
        (outside, "down0", f"{OUTSIDE_V6}/64"),
    ):
        namespace.run("ip", "addr", "add", cidr, "dev", ifname, "nodad")
    host.run("ip", "route", "add", "default", "via", OUTSIDE_V4)
    host.run("ip", "-6", "route", "add", "default", "via", OUTSIDE_V6)
    outside.run("ip", "route", "add", POOLS["CALICO_IPV4POOL_CIDR"], "via", HOST_V4)
    outside.run("ip", "-6", "route", "add", POOLS["CALICO_IPV6POOL_CIDR"], "via", HOST_V6)
