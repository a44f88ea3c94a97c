"""`calico-node install-cni` into folders that do not take it: one line, nothing broken."""

from __future__ import annotations

import pytest

from tests.runtimes.host import ENVIRON
from tests.support.machine import Machine

BIN, CONF = "/opt/cni/bin", "/etc/cni/net.d"
INSTALL = ("calico-node", "install-cni", "--bin-dir", BIN, "--conf-dir", CONF)


@pytest.fixture
def machine(netns):
    made = Machine(netns.make("host"))
    made.run("mkdir", "-p", BIN, CONF)
    yield made
    made.close()


def install(machine: Machine, *more: str):
    return machine.attempt(*INSTALL, *more, env=ENVIRON | {"CALICO_CNI_CLIENT": "python"})


@pytest.mark.parametrize(("folder", "file"), [(BIN, "calico"), (CONF, "10-calico.conflist")])
@pytest.mark.parametrize(
    ("options", "reason"),
    [("ro", "Read-only file system"), ("size=4k,nr_inodes=2", "No space left on device")],
)
def test_a_folder_that_takes_nothing_is_named_in_one_line(machine, folder, file, options, reason):
    machine.run("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
    if options != "ro":
        # One inode is the folder itself, the other this file: there is none for ours.
        machine.run("touch", f"{folder}/taken")
    for more in ((), ("--watch",)):
        done = install(machine, *more)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [f"calico-node: install-cni: {folder}/{file}: {reason}"]
    assert [entry.name for entry in machine.path(folder).iterdir() if entry.name != "taken"] == []


def test_a_full_folder_keeps_what_was_installed_before(machine):
    assert install(machine).returncode == 0
    before = machine.path(f"{BIN}/calico").read_bytes()
    machine.path(f"{BIN}/calico").write_bytes(b"an older release")
    # Room for the old file and not for the new one beside it: half of it is written, then removed.
    machine.run("sh", "-ec", "mkdir /run/full; mount -t tmpfs -o size=8k tmpfs /run/full")
    machine.run("cp", f"{BIN}/calico", "/run/full/")
    machine.run("mount", "--bind", "/run/full", BIN)
    machine.run("sh", "-ec", f"dd if=/dev/zero of={BIN}/filler bs=4k count=1 2>/dev/null")
    done = install(machine)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"calico-node: install-cni: {BIN}/calico: No space left on device"
    ]
    names = sorted(entry.name for entry in machine.path(BIN).iterdir())
    assert names == ["calico", "filler"], "no scratch file is left"
    assert machine.path(f"{BIN}/calico").read_bytes() == b"an older release"
    machine.run("rm", f"{BIN}/filler")
    machine.run("mount", "-o", "remount,size=64k", BIN)
    assert install(machine).returncode == 0
    assert machine.path(f"{BIN}/calico").read_bytes() == before
