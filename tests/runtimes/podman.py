"""podman 4 with CNI networking on a test host."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.runtimes.host import ENVIRON, Host
from tests.support.images import BUSYBOX, busybox_image

LAST_PODMAN_WITH_CNI = 4
# What a test machine needs: limits that it may not raise, cgroups without systemd.
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]

[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
# As docs/podman.md has it.
NETWORK_CONF = """
[network]
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
network_config_dir = "/etc/cni/net.d"
default_network = "k8s-pod-network"
"""
STORAGE_CONF = """
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""


@cache
def podman_version() -> str:
    """Empty when podman is not installed."""
    if shutil.which("podman") is None:
        return ""
    said = subprocess.run(
        ["podman", "--version"], capture_output=True, text=True, timeout=20, check=False
    )
    found = re.search(r"\d+(\.\d+)*", said.stdout)
    return found[0] if found else ""


def podman_has_no_cni() -> bool:
    """True also where Debian's podman would have none and the tests' packages leave it out."""
    version = podman_version() or _debian_podman()
    return bool(version) and int(version.partition(".")[0]) > LAST_PODMAN_WITH_CNI


def _debian_podman() -> str:
    release = re.search(r'^VERSION_ID="?(\d+)', Path("/etc/os-release").read_text(), re.MULTILINE)
    return "5" if release and int(release[1]) > 12 else ""


class Podman:
    """Its commands, run as root on the host."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.machine = host.machine
        self.prepare(host)
        drop_ins = self.machine.path("/etc/containers/containers.conf.d")
        drop_ins.mkdir(exist_ok=True)
        (drop_ins / "brindle.conf").write_text(NETWORK_CONF)
        self.run("load", "-q", "-i", str(busybox_image(folder)))

    @staticmethod
    def prepare(host: Host) -> None:
        """podman's own settings, nothing of the network."""
        for name, text in (("containers", CONTAINERS_CONF), ("storage", STORAGE_CONF)):
            host.machine.path(f"/etc/containers/{name}.conf").write_text(text)

    def run(self, *arguments: str) -> str:
        return self.machine.run("podman", *arguments, env=ENVIRON).strip()

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.machine.attempt("podman", *arguments, env=ENVIRON)

    def start(self, name: str, *options: str) -> str:
        """A container with a web server on port 80; returns its IPv4 address."""
        serve = ("httpd", "-f", "-p", "80", "-h", "/www")
        self.run("run", "-d", "--name", name, *options, *self.image, *serve)
        return self.address(name)

    @property
    def image(self) -> tuple[str, ...]:
        """The last options of `podman run`; a command may follow."""
        return "--cgroup-parent", f"/{self.machine.cgroup}", "--entrypoint", "", BUSYBOX

    def inspect(self, name: str) -> dict[str, Any]:
        (found,) = json.loads(self.run("inspect", name))
        return dict(found)

    def network(self, name: str) -> dict[str, Any]:
        (network,) = self.inspect(name)["NetworkSettings"]["Networks"].values()
        return dict(network)

    def address(self, name: str) -> str:
        return str(self.network(name)["IPAddress"])

    def remove_all(self) -> None:
        self.run("rm", "-af", "-t", "0")

    def left(self) -> list[str]:
        """Of containers, in our datastore and kernel and in podman's."""
        left = self.host.leftovers()
        left += self.run("ps", "-aq").split()
        left += [line for line in self.machine.mounts() if line.startswith("nsfs ")]
        left += [f"conmon {pid}" for pid in self.machine.processes("conmon")]
        results = self.machine.path("/var/lib/cni/results")
        left += [entry.name for entry in results.glob("*")] if results.exists() else []
        return left
