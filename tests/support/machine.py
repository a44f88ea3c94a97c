"""A machine of its own for software that expects to own one: container runtimes, their plugins.

Used by tests/runtimes. Inside it the places that runtimes and Brindle use (/etc, /opt, /var, /run)
can be written as on a real host, and nothing of it reaches the host:

  network   a namespace of tests/support/netns.py, `brn-…`
  mounts    private; /etc, /opt and /var are overlays on a tmpfs, /run and the stores are tmpfs
  pids      its own; when the first process dies the kernel kills all others

So nothing is left to clean up, also after a crash: the first process dies with the test run
(`setpriv --pdeathsig`, `unshare --kill-child`), and with it every container, mount and file.
Control groups alone are the host's: they get the name that `Machine.cgroup` gives, and are removed
by it.

    with NamespaceSet() as netns:
        machine = Machine(netns.make("host"))
        machine.run("containerd", "--version")
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.netns import Namespace, eventually

CGROUPS = Path("/sys/fs/cgroup")
# What podman and ctr use without being told another; removed if they were not there before.
_DEFAULT_GROUPS = {"libpod_parent", "default"}
_GROUP = re.compile(r"brn-t(\d+)x\d+-")
# The first process inherits orphans; with SIGCHLD ignored the kernel reaps them. (A shell's `trap`
# would not do: dash keeps SIGCHLD for itself.)
_FIRST = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv("/bin/sleep", ["sleep", "infinity"])
"""
# Other people's namespaces must not live on because we have a copy of their mounts.
_MOUNTS = """
! mountpoint -q /run/netns || umount -R -l /run/netns
mount -t tmpfs tmpfs /run
for top in etc opt var; do
    layer=/run/.machine/$top
    mkdir -p $layer/upper $layer/work
    mount -t overlay -o lowerdir=/$top,upperdir=$layer/upper,workdir=$layer/work overlay /$top
done
for store in containerd containers; do
    rm -rf /var/lib/$store && mkdir /var/lib/$store
    mount -t tmpfs tmpfs /var/lib/$store
done
rm -rf /etc/cni /etc/containerd /etc/calico /opt/cni /opt/containerd
rm -rf /var/lib/cni /var/lib/calico /var/log/calico
"""


class Machine:
    """Made in a network namespace; ends with `close`, or with that namespace."""

    def __init__(self, netns: Namespace) -> None:
        remove_stale_cgroups()
        self._others = {name for name in _DEFAULT_GROUPS if _tops(name)}
        self.netns = netns
        self.cgroup = netns.name
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"]
        command += ["--kill-child", "--mount-proc", sys.executable, "-ISc", _FIRST]
        self._holder = netns.spawn(*command, stdin=subprocess.DEVNULL)
        self._first = 0
        assert eventually(self._has_started), "the machine's first process does not start"
        self.run("sh", "-ec", _MOUNTS)

    def _has_started(self) -> bool:
        """nsenter and setpriv become unshare by exec, unshare forks the first process."""
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        if not children.strip():
            return False
        self._first = int(children)
        return Path(f"/proc/{self._first}/comm").read_text().strip() == "sleep"

    def command(self, *argv: str) -> list[str]:
        return ["nsenter", f"--target={self._first}", "--mount", "--net", "--pid", "--", *argv]

    def run(self, *argv: str, timeout_s: float = 60.0, **options: Any) -> str:
        """Returns stdout. Errors: CalledProcessError, which shows what the program said."""
        done = self.attempt(*argv, timeout_s=timeout_s, **options)
        if done.returncode:
            raise AssertionError(
                f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def attempt(
        self, *argv: str, timeout_s: float = 60.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **options}
        if "input" in options:
            del options["stdin"]
        return subprocess.run(self.command(*argv), timeout=timeout_s, check=False, **options)

    def spawn(self, *argv: str, log: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a daemon; what it says goes to the machine's /run/<log>.log."""
        with self.path(f"/run/{log}.log").open("ab") as sink:
            return self.netns.spawn(
                *self.command(*argv), stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, **options
            )

    def path(self, inside: str | Path) -> Path:
        """A file of the machine, as seen from here."""
        return Path(f"/proc/{self._first}/root{inside}")

    def log(self, name: str) -> str:
        return self.path(f"/run/{name}.log").read_text(errors="replace")

    def processes(self, name: str) -> list[int]:
        """Process ids, as seen from here, of the machine's processes of this name."""
        mine = os.readlink(f"/proc/{self._first}/ns/pid")
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                is_named = (entry / "comm").read_text().strip() == name[:15]
                if is_named and os.readlink(entry / "ns/pid") == mine:
                    found.append(int(entry.name))
        return sorted(found)

    def mounts(self) -> list[str]:
        return Path(f"/proc/{self._first}/mounts").read_text().splitlines()

    def close(self) -> None:
        """Kill everything, wait for its end, remove its control groups."""
        if self._holder.poll() is None:
            self._holder.kill()
        self._holder.wait()
        for name in (self.cgroup, *sorted(_DEFAULT_GROUPS - self._others)):
            remove_cgroups(name)


def remove_cgroups(name: str) -> None:
    """The groups of this name in every hierarchy, deepest first. They are empty soon: the kernel
    ends the processes of a killed pid namespace by itself."""
    deadline = time.monotonic() + 10.0
    for top in _tops(name):
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()
            if not top.exists():
                break
            assert time.monotonic() < deadline, f"{top} is still in use"
            time.sleep(0.02)


def remove_stale_cgroups() -> None:
    """What a crashed test run left: the maker's pid is in the name."""
    for parent in (CGROUPS, *CGROUPS.iterdir()):
        for entry in parent.glob("brn-t*"):
            made = _GROUP.match(entry.name)
            if made and not Path(f"/proc/{made[1]}").exists():
                remove_cgroups(entry.name)


def _tops(name: str) -> list[Path]:
    return [parent / name for parent in (CGROUPS, *CGROUPS.iterdir()) if (parent / name).is_dir()]
