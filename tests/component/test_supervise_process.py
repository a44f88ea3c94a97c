"""libcalico.runtime.supervise as a real process: exit codes, signals, tasks that do not end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROLOGUE = """
import asyncio, sys
from libcalico.errors import RestartRequired, ConfigError
from libcalico.runtime import log, supervise
log.setup()
async def forever():
    await asyncio.get_running_loop().create_future()
def ready():
    print("ready", flush=True)
"""


def launch(body: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + body],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process


def finish(process: subprocess.Popen[str], timeout_s: float = 15) -> tuple[int, str]:
    try:
        _, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, err


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [('RestartRequired("x")', 129), ('ConfigError("env", "X", "bad")', 1), ("OSError(5)", 1)],
)
def test_failures_become_exit_codes(error: str, code: int):
    body = f"""
async def start(process):
    raise {error}
sys.exit(supervise.run("demo", start))
"""
    assert finish(launch(body))[0] == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_with_zero_and_without_a_traceback(number: signal.Signals):
    body = """
async def start(process):
    process.spawn("work", forever)
    ready()
sys.exit(supervise.run("demo", start))
"""
    process = launch(body)
    wait_ready(process)
    process.send_signal(number)
    code, err = finish(process)
    assert code == 0
    assert "Traceback" not in err


def test_a_task_that_does_not_end_is_named_and_left_behind():
    body = """
async def stubborn():
    while True:
        try:
            await forever()
        except asyncio.CancelledError:
            pass
async def start(process):
    process.spawn("mule", stubborn)
    ready()
async def main():
    process = supervise.Process("demo", grace_s=0.2)
    return await process.run(start)
sys.exit(asyncio.run(main()))
"""
    process = launch(body)
    wait_ready(process)
    process.send_signal(signal.SIGTERM)
    code, err = finish(process)
    assert code == 1
    assert "mule" in err


def test_a_second_signal_ends_at_once_but_for_one_that_is_the_same_request():
    """A group's signal comes twice: from its sender, and passed on by our supervisor."""
    body = """
async def slow_to_end():
    try:
        await forever()
    finally:
        ready()
        await forever()
async def start(process):
    process.spawn("slow", slow_to_end)
    ready()
sys.exit(supervise.run("demo", start))
"""
    process = launch(body)
    wait_ready(process)
    process.send_signal(signal.SIGTERM)
    wait_ready(process)
    began, sent = time.monotonic(), 0
    while process.poll() is None and time.monotonic() - began < 20:
        process.send_signal(signal.SIGTERM)
        sent += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    code, err = finish(process, timeout_s=5)
    assert code == 1
    assert "stopped again" in err
    assert sent > 1


def test_a_stop_before_the_loop_runs_is_quiet():
    body = """
import os, signal
async def start(process):
    process.spawn("work", forever)
real = asyncio.run
def hurried(coroutine):
    coroutine.close()
    os.kill(os.getpid(), signal.SIGTERM)
asyncio.run = hurried
sys.exit(supervise.run("demo", start))
"""
    code, err = finish(launch(body))
    assert (code, "Traceback" in err) == (0, False)
