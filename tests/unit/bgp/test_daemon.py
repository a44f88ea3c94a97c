"""bgp.daemon: the decisions outside the loop (the daemon itself runs in tests/peers)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from bgp.daemon import Signals, check_restart, listen_addresses, write_pid_file
from libcalico.errors import RestartRequired
from libcalico.model.speaker import KernelExport, LocalBlock
from tests.unit.bgp.builders import config

RESTARTS = [
    {"listen_port": 1790},
    {"listen_addresses": ("10.0.0.1",)},
    {"kernel": KernelExport(table=100)},
    {"kernel": KernelExport(protocol=12)},
]


@pytest.mark.parametrize("changes", RESTARTS)
def test_what_only_a_new_process_can_take_over(changes: dict[str, object]):
    with pytest.raises(RestartRequired) as caught:
        check_restart(config(), msgspec.structs.replace(config(), **changes))
    assert caught.value.exit_code == 129


def test_everything_else_is_taken_over_in_place():
    changed = msgspec.structs.replace(
        config(),
        blocks=(LocalBlock(cidr="10.65.1.0/26"),),
        kernel=KernelExport(metric=900, program_cluster_routes="Disabled"),
        router_id="9.9.9.9",
    )
    check_restart(config(), changed)


def test_where_to_listen():
    assert listen_addresses(config(listen_addresses=("10.0.0.1", "fd00::1"))) == (
        "10.0.0.1",
        "fd00::1",
    )
    assert listen_addresses(config())[0] == "0.0.0.0"


def test_one_process_per_directory(tmp_path: Path):
    path = tmp_path / "calico-bgp.pid"
    path.write_text("99999999999 left by a process that was killed\n")
    fd = write_pid_file(path)
    assert path.read_text() == f"{os.getpid()}\n"
    with pytest.raises(OSError):  # noqa: PT011
        write_pid_file(path)
    os.close(fd)
    os.close(write_pid_file(path))


@pytest.mark.parametrize(
    ("number", "flag"),
    [
        (signal.SIGTERM, "stop"),
        (signal.SIGINT, "stop"),
        (signal.SIGHUP, "reload"),
        (signal.SIGUSR1, "dump"),
    ],
)
def test_signals_are_remembered_and_wake_the_loop(number: int, flag: str):
    before = {n: signal.getsignal(n) for n in (15, 2, 1, 10)}
    signals = Signals()
    signals.install()
    try:
        os.kill(os.getpid(), number)
        signals.wait(5.0)
        assert [name for name in ("stop", "reload", "dump") if getattr(signals, name)] == [flag]
        os.kill(os.getpid(), number)
        signals.drain()
        signals.drain()
    finally:
        signal.set_wakeup_fd(-1)
        for n, handler in before.items():
            signal.signal(n, handler)
        signals.close()
