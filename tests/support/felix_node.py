"""`calico-felix` as a process on a real kernel and a real etcd: a node in a namespace, two pods."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from libcalico.model.codec import encode
from libcalico.model.keys import path_of
from tests.support.calc import Object
from tests.support.felix import NODE
from tests.support.netns import (
    NamespaceSet,
    add_uplink,
    can_ping,
    eventually,
    why_unavailable,
    wire_workload,
)

A, B = ("10.65.0.1/32", "fd00:65::1/128"), ("10.65.0.2/32", "fd00:65::2/128")
ETCD = "http://127.0.0.1:2379"
ETCD_TOO = "http://127.0.0.2:2379"  # the same member, for those who are to lose their way to it
ROOT = Path(__file__).parents[2]
START_S = 30.0  # a busy machine imports Python modules slowly
# Felix with iptables for its dataplane.
IPTABLES = {"FELIX_NFTABLESMODE": "Disabled", "FELIX_IPTABLESBACKEND": "nft"}


def skip_unless_possible(*tools: str) -> None:
    """What a FelixNode needs, and the tools that a test runs besides."""
    missing = [tool for tool in ("etcd", *tools) if shutil.which(tool) is None]
    reason = why_unavailable("veth", "nft")
    if reason or missing:
        pytest.skip(reason or f"not installed: {' '.join(missing)}")


class FelixNode:
    """A namespace with an uplink, etcd and felix in it, and two pods."""

    def __init__(self, netns: NamespaceSet, directory: Path) -> None:
        self.directory = directory
        self.ns = netns.make("node")
        self.a, self.b = netns.make("a"), netns.make("b")
        add_uplink(self.ns)
        wire_workload(self.ns, self.a, "calia", *A)
        wire_workload(self.ns, self.b, "calib", *B)
        self._netns = netns
        self._felix: subprocess.Popen[bytes] | None = None
        self._etcd: subprocess.Popen[bytes] | None = None
        self.start_etcd()

    def start_etcd(self, *urls: str) -> None:
        """Listening at these, or at all it has."""
        peer = "http://127.0.0.1:2380"
        self._etcd = self.ns.spawn(
            "etcd",
            *("--data-dir", str(self.directory / "etcd")),
            *("--listen-client-urls", ",".join(urls or (ETCD, ETCD_TOO))),
            *("--advertise-client-urls", ETCD),
            *("--listen-peer-urls", peer, "--log-level", "error", "--unsafe-no-fsync"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert eventually(lambda: self.ns.succeeds("etcdctl", "endpoint", "health"), timeout_s=20)

    def stop_etcd(self) -> None:
        assert self._etcd is not None
        self._etcd.kill()
        self._etcd.wait()

    def store(self, *objects: Object) -> None:
        for key, value in objects:
            self.ns.run("etcdctl", "put", path_of(key), encode(value).decode())

    def erase(self, *objects: Object) -> None:
        for key, _ in objects:
            self.ns.run("etcdctl", "del", path_of(key))

    def start(self, **environ: str) -> None:
        command = (sys.executable, "-m", "felix")
        self._felix = self.spawn(*command, environ=environ, cwd="/")

    def spawn(
        self, *argv: str, environ: Mapping[str, str], **options: object
    ) -> subprocess.Popen[bytes]:
        """Run something with felix's environment, in the node; it writes to felix's log."""
        run = self.directory / "run"
        own = {
            "NODENAME": NODE,
            "DATASTORE_TYPE": "etcdv3",
            "ETCD_ENDPOINTS": ETCD,
            "CALICO_RUN_DIR": str(run),
            "CALICO_LIB_DIR": str(self.directory / "lib"),
            "CALICO_LOG_DIR": str(self.directory / "log"),
            "PYTHONPATH": str(ROOT),
            "FELIX_HEALTHENABLED": "true",
        }
        with (self.directory / "felix.log").open("ab") as log:
            return self.ns.spawn(*argv, env=os.environ | own | environ, stderr=log, **options)

    def is_ready(self) -> bool:
        return self.ns.succeeds("curl", "-sf", "-o", "/dev/null", "http://localhost:9099/readiness")

    def wait_ready(self) -> None:
        assert eventually(self.is_ready, timeout_s=START_S, interval_s=0.1), self.log()

    def send(self, number: int) -> None:
        assert self._felix is not None
        self._felix.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self._felix is not None
        self._felix.send_signal(number)
        return self._felix.wait(timeout=20)

    def signal(self, number: int) -> None:
        assert self._felix is not None
        self._felix.send_signal(number)

    def wait_exit(self) -> int:
        assert self._felix is not None
        return self._felix.wait(timeout=20)

    def log(self) -> str:
        return (self.directory / "felix.log").read_text()

    def routes(self) -> set[str]:
        lines = self.ns.run("ip", "-4", "route").splitlines()
        lines += self.ns.run("ip", "-6", "route").splitlines()
        return {line.split()[0] for line in lines if " cali" in line and "fe80" not in line}

    def ruleset(self) -> str:
        return self.ns.run("nft", "list", "table", "inet", "calico")

    def reach(self) -> tuple[bool, bool]:
        """Can pod a reach pod b, over IPv4 and IPv6?"""
        return can_ping(self.a, "10.65.0.2"), can_ping(self.a, "fd00:65::2")
