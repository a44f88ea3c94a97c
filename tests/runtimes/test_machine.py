"""tests/support/machine.py: private places, and nothing left also after a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.machine import CGROUPS, Machine, remove_stale_cgroups
from tests.support.netns import eventually

ROOT = Path(__file__).parents[2]
_CRASHING = """
import sys, time
from tests.support.machine import Machine
from tests.support.netns import NamespaceSet

netns = NamespaceSet()
machine = Machine(netns.make("crash"))
machine.run("mkdir", sys.argv[1] + "/" + machine.cgroup)
machine.spawn("setsid", "sleep", "1000", log="sleep")
while not machine.processes("sleep")[1:]:
    time.sleep(0.01)
print(machine.cgroup, *machine.processes("sleep"), flush=True)
time.sleep(1000)
"""


def _hierarchy() -> Path:
    """A place for a control group: version 1 has one folder per controller, version 2 none."""
    return CGROUPS / "pids" if (CGROUPS / "pids").is_dir() else CGROUPS


def test_what_is_written_inside_is_not_seen_outside(netns):
    machine = Machine(netns.make("host"))
    for place in ("/etc/cni/net.d", "/opt/cni/bin", "/var/lib/calico", "/run/brn-test"):
        machine.run("sh", "-ec", f"mkdir -p {place}; echo here >{place}/brn-test")
        assert machine.path(place).joinpath("brn-test").read_text() == "here\n"
        assert not Path(place, "brn-test").exists()
    machine.close()


def test_a_killed_test_run_leaves_no_process_and_its_groups_are_found(netns):
    maker = subprocess.Popen(
        [sys.executable, "-c", _CRASHING, str(_hierarchy())],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        group, *pids = maker.stdout.readline().split()
        assert len(pids) == 2
    finally:
        maker.send_signal(signal.SIGKILL)
        maker.wait()
        maker.stdout.close()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert (_hierarchy() / group).exists()
    remove_stale_cgroups()
    assert not (_hierarchy() / group).exists()
    # Whichever test run starts next reaps the namespace; this one has done that already.
    subprocess.run(["ip", "netns", "del", group], check=False, capture_output=True, timeout=20)
