"""One node with everything real: etcd, felix and the installed CNI client, in a namespace.

Every test of the whole plugin uses it (fixture `cni_node`). Each part is a process of its own, as
on a host: etcd may be stopped, frozen and started again on its data, felix killed at any moment.
`violations` audits every revision since the beginning.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

from cni import install
from libcalico.model import IPPool, Node
from libcalico.model.codec import encode
from libcalico.model.defaults import initial_cluster_information, with_defaults
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import key_of, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import NodeStatus
from tests.support import calc
from tests.support.felix import ALLOW
from tests.support.netns import Namespace, NamespaceSet, add_uplink, eventually

NODE = "node-1"
ETCD = "http://127.0.0.1:2379"
ROOT = Path(__file__).parents[2]
POD_CIDRS = ("10.88.0.0/24", "fd88::/112")
ENDPOINTS = "/calico/resources/v3/projectcalico.org/workloadendpoints/"
HANDLES = "/calico/ipam/v2/handle/"
START_S = 30.0  # a busy machine imports Python modules slowly
CONF: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "net",
    "type": "calico",
    "policy": {"type": "k8s"},
    "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
}


def pod_args(pod: str) -> str:
    return f"IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME={pod}"


def pool(name: str, cidr: str, **spec: Any) -> Any:
    """Key and value of a pool with the defaults calicoctl gives it."""
    metadata = ObjectMeta(name=name)
    made = with_defaults(IPPool(metadata=metadata, spec=IPPoolSpec(cidr=cidr, **spec)))
    return key_of(made), made


class CniNode:
    """With its etcd running; felix is started by the test."""

    def __init__(self, netns: NamespaceSet, directory: Path) -> None:
        self.directory = directory
        self.ns = netns.make("node")
        add_uplink(self.ns)
        self.lib_dir = directory / "lib"
        self.queue = self.lib_dir / "cni-queue"
        self.bin_dir = directory / "bin"
        self.environ: dict[str, str] = {}
        self._etcd: subprocess.Popen[bytes] | None = None
        self._felix: subprocess.Popen[bytes] | None = None
        self.start_etcd()
        self._seed()
        install.install(
            self.bin_dir,
            None,
            socket_path=directory / "run" / "cni.sock",
            lib_dir=self.lib_dir,
            conflist=b"",
        )
        # What calico-node leaves for a DEL without felix.
        (self.lib_dir / "nodename").write_text(NODE + "\n")
        self.name_datastore(ETCD)

    def name_datastore(self, endpoint: str, **more: str) -> None:
        spec = {"datastoreType": "etcdv3", "etcdEndpoints": endpoint, **more}
        document = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": spec}
        (self.lib_dir / "cni-datastore.cfg").write_text(json.dumps(document))

    def _seed(self) -> None:
        status = NodeStatus(pod_cidrs=POD_CIDRS)
        resources: list[Any] = [
            initial_cluster_information("0" * 32),
            Node(metadata=ObjectMeta(name=NODE), status=status),
        ]
        objects = [(key_of(resource), resource) for resource in resources]
        objects += [pool("v4", "10.65.0.0/24"), pool("v6", "fd65::/112")]
        objects.append(calc.tier("default", 1_000_000, "Deny"))
        objects.append(calc.profile("kns.prod", ingress=(ALLOW,), egress=(ALLOW,)))
        objects.append(calc.profile("ksa.prod.default"))
        self.store(*objects)

    def store(self, *objects: Any) -> None:
        for key, value in objects:
            self.ns.run("etcdctl", "put", path_of(key), encode(value).decode())

    # ---- processes -----------------------------------------------------------------------------

    def start_etcd(self) -> None:
        peer = "http://127.0.0.1:2380"
        self._etcd = self.ns.spawn(
            "etcd",
            *("--data-dir", str(self.directory / "etcd")),
            *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
            *("--listen-peer-urls", peer, "--log-level", "error", "--unsafe-no-fsync"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        health = ("etcdctl", "endpoint", "health")
        assert eventually(lambda: self.ns.succeeds(*health), timeout_s=START_S)

    def stop_etcd(self) -> None:
        assert self._etcd is not None
        self._etcd.kill()
        self._etcd.wait()

    def signal_etcd(self, number: int) -> None:
        assert self._etcd is not None
        self._etcd.send_signal(number)

    def start_felix(self, **environ: str) -> None:
        self.set_environment(**environ)
        with (self.directory / "felix.log").open("ab") as log:
            self._felix = self.ns.spawn(
                *(sys.executable, "-m", "felix"),
                env=os.environ | self.environ,
                cwd="/",
                stderr=log,
            )

    def set_environment(self, **environ: str) -> None:
        """Felix's."""
        self.environ = {
            "NODENAME": NODE,
            "DATASTORE_TYPE": "etcdv3",
            "ETCD_ENDPOINTS": ETCD,
            "CALICO_RUN_DIR": str(self.directory / "run"),
            "CALICO_LIB_DIR": str(self.lib_dir),
            "CALICO_LOG_DIR": str(self.directory / "log"),
            "PYTHONPATH": str(ROOT),
            "FELIX_HEALTHENABLED": "true",
            "FELIX_PROMETHEUSMETRICSENABLED": "true",
            **environ,
        }

    def kill_felix(self) -> None:
        assert self._felix is not None
        self._felix.send_signal(signal.SIGKILL)
        self._felix.wait(timeout=20)

    def stop_felix(self) -> None:
        """As a service manager does; it must end by itself."""
        assert self._felix is not None
        self._felix.send_signal(signal.SIGTERM)
        self._felix.wait(timeout=30)

    def wait_felix_dead(self) -> None:
        assert self._felix is not None
        self._felix.wait(timeout=30)

    def wait_ready(self) -> None:
        probe = ("curl", "-sf", "-o", "/dev/null", "http://localhost:9099/readiness")
        ready = eventually(lambda: self.ns.succeeds(*probe), timeout_s=START_S, interval_s=0.1)
        assert ready, self.log()

    def log(self) -> str:
        return (self.directory / "felix.log").read_text()

    def metric(self, name: str) -> float:
        page = self.ns.run("curl", "-s", "http://localhost:9091/metrics")
        (line,) = [line for line in page.splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[1])

    # ---- the plugin ----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return f"{self.bin_dir}:/usr/lib/cni"

    def start_call(
        self, verb: str, container: str, netns: str, pod: str = "web", **more: Any
    ) -> subprocess.Popen[bytes]:
        """Execute the installed client as a runtime does, for a pod of this name."""
        conf = more.get("conf", CONF)
        environ = {"CNI_CONTAINERID": container, "CNI_ARGS": pod_args(pod)}
        return self._start(verb, netns, conf, "calico", environ)

    def _start(
        self, verb: str, netns: str, conf: dict[str, Any], plugin: str, environ: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        variables = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c1",
            "CNI_IFNAME": "eth0",
            "CNI_NETNS": netns,
            "CNI_PATH": self.path,
            **environ,
        }
        process = self.ns.spawn(
            str(self.bin_dir / plugin),
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(conf).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def call(
        self, verb: str, container: str, netns: str, pod: str = "web", **more: Any
    ) -> tuple[int, dict[str, Any]]:
        """The same to its end; exit code and decoded answer."""
        return _answer(self.start_call(verb, container, netns, pod, **more))

    def cni(
        self,
        verb: str,
        netns: str = "",
        *,
        conf: dict[str, Any],
        plugin: str = "calico",
        **environ: str,
    ) -> tuple[int, dict[str, Any]]:
        """Any call, of container c1 unless a variable says otherwise."""
        return _answer(self._start(verb, netns, conf, plugin, environ))

    def execute(
        self, plugin: str, *arguments: str, env: dict[str, str], stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        command = ["nsenter", f"--net={self.ns.path}", str(self.bin_dir / plugin), *arguments]
        return subprocess.run(
            command, env=env, input=stdin, capture_output=True, timeout=60, check=False
        )

    def calicoctl(self, *arguments: str) -> str:
        environ = ("env", f"ETCD_ENDPOINTS={ETCD}", "DATASTORE_TYPE=etcdv3")
        return self.ns.run(*environ, str(Path(sys.executable).with_name("calicoctl")), *arguments)

    def add(self, container: str, where: Namespace, pod: str = "web", **more: Any) -> list[str]:
        """An ADD that works; returns the addresses."""
        code, result = self.call("ADD", container, where.path, pod, **more)
        assert code == 0, result
        return [ip["address"].partition("/")[0] for ip in result["ips"]]

    # ---- what there is -------------------------------------------------------------------------

    def keys(self, part: str) -> list[str]:
        listed = self.ns.run("etcdctl", "get", "", "--from-key", "--keys-only").split()
        return [key for key in listed if part in key]

    def stored(self, prefix: str) -> dict[str, str]:
        """Keys and values of the datastore below a path."""
        shown = self.ns.run("etcdctl", "get", "--prefix", prefix, "-w", "json")
        found = json.loads(shown).get("kvs", ())
        return {b64decode(kv["key"]).decode(): b64decode(kv["value"]).decode() for kv in found}

    def endpoint_specs(self) -> dict[str, dict[str, Any]]:
        """By name."""
        stored = self.stored(ENDPOINTS)
        return {key.rpartition("/")[2]: json.loads(value)["spec"] for key, value in stored.items()}

    def endpoints(self) -> dict[str, str]:
        """Container ids of the stored endpoints by name."""
        return {name: spec["containerID"] for name, spec in self.endpoint_specs().items()}

    def leftovers(self) -> list[str]:
        """What pods could have left: endpoints, handles, interfaces, routes."""
        left = [*self.stored(ENDPOINTS), *self.stored(HANDLES)]
        left += [line for line in self.ns.run("ip", "-o", "link").splitlines() if ": cali" in line]
        for family in ("-4", "-6"):
            shown = self.ns.run("ip", family, "route", "show", "table", "all")
            left += [line for line in shown.splitlines() if " cali" in line]
        return left

    def handles(self) -> set[str]:
        return {key.rpartition("/")[2] for key in self.keys("/ipam/v2/handle/")}

    def journalled(self) -> int:
        journal = self.lib_dir / "cni-journal"
        return len(list(journal.glob("*.json"))) if journal.exists() else 0

    def holders(self) -> dict[str, str]:
        """Who holds which address: handle ids by address."""
        found = {}
        for key in self.keys("/block/"):
            if "/assignment/" not in key:
                continue
            block = json.loads(self.ns.run("etcdctl", "get", key, "--print-value-only"))
            network = ipaddress.ip_network(block["cidr"])
            for ordinal, index in enumerate(block["allocations"]):
                if index is not None:
                    address = str(network.network_address + ordinal)
                    found[address] = block["attributes"][index]["handle_id"]
        return found

    def queued(self) -> int:
        return len(list(self.queue.glob("*.json"))) if self.queue.exists() else 0

    def routes(self) -> set[str]:
        lines = self.ns.run("ip", "-4", "route").splitlines()
        lines += self.ns.run("ip", "-6", "route").splitlines()
        return {line.split()[0] for line in lines if " cali" in line and "fe80" not in line}

    def ruleset(self) -> str:
        return self.ns.run("nft", "list", "table", "inet", "calico")

    def violations(self) -> list[str]:
        """IPAM's audit of the whole history; and, at its end, blocks against handles."""
        command = (sys.executable, "-m", "tests.support.history", ETCD)
        done = subprocess.run(
            ["nsenter", f"--net={self.ns.path}", *command],
            capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def _answer(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
    stdout, stderr = process.communicate(timeout=90)
    assert b"Traceback" not in stderr, stderr.decode()
    return process.returncode, json.loads(stdout) if stdout.strip() else {}
