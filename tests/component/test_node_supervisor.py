"""calicoctl.node.supervisor with real child processes: restarts, signals, no orphans."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from calicoctl.node import supervisor as module
from calicoctl.node.supervisor import Daemon, Supervisor

ROOT = Path(__file__).parents[2]
WAIT_S = 15.0
# Every child notes what happens to it in a file, one line each.
HANDLERS = """
import os, signal, sys, time
def note(text):
    with open(sys.argv[1], "a") as out:
        out.write(text + "\\n")
def on(number, frame):
    note(signal.Signals(number).name)
for name in ("SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), on)
"""
CHILD = HANDLERS + 'note(f"start {os.getpid()}")\n'
RUN = CHILD + "while True: time.sleep(60)\n"
STUBBORN = HANDLERS + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + RUN


def daemon(journal: Path, body: str = RUN, name: str = "demo") -> Daemon:
    return Daemon(name, (sys.executable, "-c", body, str(journal)), os.environ)


def lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


def starts(journal: Path) -> list[int]:
    return [int(line.split()[1]) for line in lines(journal) if line.startswith("start")]


async def until(condition: object) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextlib.asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[None]:
    task = asyncio.ensure_future(supervisor.run())
    try:
        yield
    finally:
        supervisor.stop()
        async with asyncio.timeout(WAIT_S):
            await task


def waits(caplog: pytest.LogCaptureFixture) -> list[float]:
    """What the supervisor waited before each new start."""
    ended = [r for r in caplog.records if r.getMessage() == "daemon ended"]
    return [r.fields["wait_s"] for r in ended]  # type: ignore[attr-defined]


KILLING = "killing what did not end in time"


async def test_every_daemon_runs_and_all_end_on_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    journals = [tmp_path / name for name in ("a", "b")]
    supervisor = Supervisor([daemon(journal, name=journal.name) for journal in journals])
    async with running(supervisor):
        await until(lambda: all(starts(journal) for journal in journals))
        pids = [starts(journal)[0] for journal in journals]
        dump = supervisor.dump()
        assert {entry["pid"] for entry in dump.values()} == set(pids)  # type: ignore[index]
    assert not any(is_alive(pid) for pid in pids)
    assert KILLING not in caplog.messages, "they were asked to end"


async def test_what_dies_is_started_again_after_a_growing_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    journal = tmp_path / "a"
    async with running(Supervisor([daemon(journal, CHILD + "sys.exit(1)")])):
        await until(lambda: len(starts(journal)) >= 3)
    first, second = waits(caplog)[:2]
    assert 0.3 < first < 0.6 < second


async def test_one_that_ran_for_a_while_is_waited_for_as_the_first_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "STABLE_AFTER_S", 0.0)
    journal = tmp_path / "a"
    async with running(Supervisor([daemon(journal, CHILD + "sys.exit(1)")])):
        await until(lambda: len(starts(journal)) >= 4)
    assert all(0.3 < wait < 0.6 for wait in waits(caplog)[:3])


async def test_a_killed_daemon_comes_back(tmp_path: Path):
    journal = tmp_path / "a"
    async with running(Supervisor([daemon(journal)])):
        await until(lambda: starts(journal))
        os.kill(starts(journal)[0], signal.SIGKILL)
        await until(lambda: len(starts(journal)) == 2)


async def test_exit_129_restarts_at_once_but_not_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MOMENT_S", 60.0)  # however slowly Python starts
    journal = tmp_path / "a"
    async with running(Supervisor([daemon(journal, CHILD + "sys.exit(129)")])):
        await until(lambda: len(starts(journal)) >= 4)
    assert waits(caplog)[0] == 0.0
    assert all(wait > 0.3 for wait in waits(caplog)[1:])


async def test_exit_129_after_more_than_a_moment_restarts_at_once_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MOMENT_S", 0.0)
    journal = tmp_path / "a"
    async with running(Supervisor([daemon(journal, CHILD + "sys.exit(129)")])):
        await until(lambda: len(starts(journal)) >= 4)
    assert waits(caplog)[:3] == [0.0] * 3


async def test_hup_and_usr1_reach_every_daemon(tmp_path: Path):
    journals = [tmp_path / name for name in ("a", "b")]
    supervisor = Supervisor([daemon(journal, name=journal.name) for journal in journals])
    async with running(supervisor):
        await until(lambda: all(starts(journal) for journal in journals))
        supervisor.send_signal(signal.SIGHUP)
        await until(lambda: all("SIGHUP" in lines(journal) for journal in journals))
        supervisor.send_signal(signal.SIGUSR1)
        await until(lambda: all("SIGUSR1" in lines(journal) for journal in journals))
        assert all(len(starts(journal)) == 1 for journal in journals)


async def test_a_daemon_that_does_not_handle_signals_yet_is_not_ended_by_them(tmp_path: Path):
    journal = tmp_path / "a"
    early = "import os, sys\nopen(sys.argv[1], 'a').write(f'start {os.getpid()}\\n')\n"
    early += "sys.stdin = open(sys.argv[1] + '.go')\nsys.stdin.read()\n"
    os.mkfifo(f"{journal}.go")
    supervisor = Supervisor([daemon(journal, early + RUN)])
    async with running(supervisor):
        await until(lambda: starts(journal))
        supervisor.send_signal(signal.SIGHUP)
        supervisor.send_signal(signal.SIGUSR1)
        (tmp_path / "a.go").write_text("")  # now it goes on and comes to its handlers
        await until(lambda: len(starts(journal)) == 2)
        supervisor.send_signal(signal.SIGHUP)
        await until(lambda: "SIGHUP" in lines(journal))
    assert len(set(starts(journal))) == 1


async def test_a_daemon_that_does_not_end_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    journal = tmp_path / "a"
    supervisor = Supervisor([daemon(journal, STUBBORN)], grace_s=0.3)
    async with running(supervisor):
        await until(lambda: starts(journal))
        pid = starts(journal)[0]
    assert KILLING in caplog.messages
    assert not is_alive(pid)


async def test_a_program_that_does_not_exist_stops_nobody_else(tmp_path: Path):
    journal = tmp_path / "a"
    missing = Daemon("missing", (str(tmp_path / "nothing"),), os.environ)
    async with running(Supervisor([missing, daemon(journal)])):
        await until(lambda: starts(journal))


async def test_stopping_while_a_daemon_is_being_started_leaves_nothing(tmp_path: Path):
    journal = tmp_path / "a"
    supervisor = Supervisor([daemon(journal)])
    task = asyncio.ensure_future(supervisor.run())
    await asyncio.sleep(0)
    supervisor.stop()
    async with asyncio.timeout(WAIT_S):
        await task
    assert not any(is_alive(pid) for pid in starts(journal))


def test_no_child_outlives_a_killed_supervisor(tmp_path: Path):
    journal = tmp_path / "a"
    body = f"""
import asyncio, os, sys
from calicoctl.node.supervisor import Daemon, Supervisor
child = Daemon("demo", (sys.executable, "-c", {RUN!r}, {str(journal)!r}), os.environ)
asyncio.run(Supervisor([child]).run())
"""
    parent = subprocess.Popen([sys.executable, "-c", body], cwd=ROOT)
    deadline = time.monotonic() + WAIT_S
    while not starts(journal):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (pid,) = starts(journal)
    parent.kill()
    parent.wait()
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["calico-node"])
def test_the_command_refuses_a_bad_variable_in_one_line(name: str):
    environ = {**os.environ, "IP": "here", "ETCD_ENDPOINTS": "http://127.0.0.1:1", "NODENAME": "n"}
    done = subprocess.run(
        [sys.executable, "-m", "calicoctl.node.main"], cwd=ROOT, env=environ,
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"{name}: environment: IP = 'here': is not an address"]
