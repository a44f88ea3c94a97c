"""A whole node for CNI tests: etcd, calico-felix and the installed executables in one namespace.

    with CniNode(netns, directory) as node:
        code, result = node.cni("ADD", pod, conf=CONF)

Everything is a process of its own, as on a host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any, Self

from cni import install
from libcalico.model import IPPool, Node
from libcalico.model.codec import encode
from libcalico.model.defaults import initial_cluster_information, with_defaults
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import key_of, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import NodeStatus
from tests.support import calc
from tests.support.felix import NODE
from tests.support.netns import NamespaceSet, add_uplink, eventually

ETCD = "http://127.0.0.1:2379"
ROOT = Path(__file__).parents[2]
START_S = 30.0  # a busy machine imports Python modules slowly
POD_CIDRS = ("10.88.0.0/24", "fd88::/112")


class CniNode:
    """`cni` runs an installed executable as a runtime does."""

    def __init__(self, netns: NamespaceSet, directory: Path) -> None:
        self.directory = directory
        self.ns = netns.make("node")
        self.lib_dir, self.run_dir = directory / "lib", directory / "run"
        self.bin_dir = directory / "bin"
        add_uplink(self.ns)
        install.install(
            self.bin_dir,
            None,
            socket_path=self.run_dir / "cni.sock",
            lib_dir=self.lib_dir,
            conflist=b"",
        )
        self._felix: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start_etcd()
        self.start_felix()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """The namespace takes its processes with it."""

    @property
    def path(self) -> str:
        return f"{self.bin_dir}:/usr/lib/cni"

    def _start_etcd(self) -> None:
        peer = "http://127.0.0.1:2380"
        self.ns.spawn(
            "etcd",
            *("--data-dir", str(self.directory / "etcd")),
            *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
            *("--listen-peer-urls", peer, "--log-level", "error", "--unsafe-no-fsync"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert eventually(lambda: self.ns.succeeds("etcdctl", "endpoint", "health"), timeout_s=20)
        status = NodeStatus(pod_cidrs=POD_CIDRS)
        pools = {"v4": "10.65.0.0/26", "v6": "fd65::/122", "other": "10.66.0.0/26"}
        resources = [
            initial_cluster_information("0" * 32),
            Node(metadata=ObjectMeta(name=NODE), status=status),
            *(
                with_defaults(
                    IPPool(
                        metadata=ObjectMeta(name=name),
                        spec=IPPoolSpec(
                            cidr=cidr, node_selector="all()" if name != "other" else "!all()"
                        ),
                    )
                )
                for name, cidr in pools.items()
            ),
        ]
        objects = [(key_of(resource), resource) for resource in resources]
        for key, value in [*objects, calc.tier("default", 1_000_000, "Deny")]:
            self.ns.run("etcdctl", "put", path_of(key), encode(value).decode())

    def start_felix(self) -> None:
        own = {
            "NODENAME": NODE,
            "DATASTORE_TYPE": "etcdv3",
            "ETCD_ENDPOINTS": ETCD,
            "CALICO_RUN_DIR": str(self.run_dir),
            "CALICO_LIB_DIR": str(self.lib_dir),
            "CALICO_LOG_DIR": str(self.directory / "log"),
            "PYTHONPATH": str(ROOT),
            "FELIX_HEALTHENABLED": "true",
            "FELIX_WORKLOADSOURCESPOOFING": "Any",
            "FELIX_MTUIFACEPATTERN": "^up0$",
        }
        with (self.directory / "felix.log").open("ab") as log:
            self._felix = self.ns.spawn(
                *(sys.executable, "-m", "felix"), env=os.environ | own, cwd="/", stderr=log
            )
        ready = ("curl", "-sf", "-o", "/dev/null", "http://localhost:9099/readiness")
        assert eventually(lambda: self.ns.succeeds(*ready), timeout_s=START_S), self.log()

    def stop_felix(self) -> None:
        assert self._felix is not None
        self._felix.terminate()
        self._felix.wait(timeout=20)

    def log(self) -> str:
        return (self.directory / "felix.log").read_text()

    def cni(
        self,
        verb: str,
        netns: str = "",
        *,
        conf: dict[str, Any],
        plugin: str = "calico",
        **environ: str,
    ) -> tuple[int, dict[str, Any]]:
        """Exit code and decoded standard output ({} for none)."""
        variables = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": netns,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": self.path,
            **environ,
        }
        done = self.execute(plugin, env=variables, stdin=json.dumps(conf).encode())
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}

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

    def stored(self, prefix: str) -> dict[str, str]:
        """Keys and values of the datastore below a path."""
        shown = self.ns.run("etcdctl", "get", "--prefix", prefix, "-w", "json")
        found = json.loads(shown).get("kvs", ())
        return {b64decode(kv["key"]).decode(): b64decode(kv["value"]).decode() for kv in found}

    def endpoints(self) -> list[dict[str, Any]]:
        prefix = "/calico/resources/v3/projectcalico.org/workloadendpoints/"
        return [json.loads(value) for value in self.stored(prefix).values()]

    def leftovers(self) -> list[str]:
        """What pods could have left: endpoints, handles, interfaces, routes, rules for them."""
        left = [*self.stored("/calico/resources/v3/projectcalico.org/workloadendpoints/")]
        left += self.stored("/calico/ipam/v2/handle/")
        left += [line for line in self.ns.run("ip", "-o", "link").splitlines() if ": cali" in line]
        for family in ("-4", "-6"):
            shown = self.ns.run("ip", family, "route", "show", "table", "all")
            left += [line for line in shown.splitlines() if " cali" in line]
        return left
