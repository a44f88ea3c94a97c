"""Running programs in namespaces, and starting and stopping daemons by pid.

Layer: edge. A process is remembered as (pid, start time): a pid that was reused by somebody else
is never signalled. Nothing here touches the machine's own namespace: every `ip` command that
changes something names a namespace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

NETNS_DIR = Path("/run/netns")
# Daemons that this very process started: it has to reap them. Other `lab` commands are no parents.
_children: dict[int, subprocess.Popen[bytes]] = {}


class LabError(Exception):
    """Something the person at the keyboard should read; printed as one line."""


def enter(namespace: str, command: Sequence[str]) -> list[str]:
    """`nsenter` and not `ip netns exec`: the latter remounts /sys and hides the cgroups."""
    return ["nsenter", f"--net={NETNS_DIR / namespace}", *command]


def run(
    command: Sequence[str],
    *,
    namespace: str | None = None,
    check: bool = True,
    timeout_s: float = 60,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run to the end, capturing output. Errors: LabError with the command and its stderr."""
    full = enter(namespace, command) if namespace else list(command)
    try:
        done = subprocess.run(
            full, capture_output=True, timeout=timeout_s, env=env, input=stdin, check=False
        )
    except subprocess.TimeoutExpired as err:
        raise LabError(f"{' '.join(command)}: no answer within {timeout_s:.0f} s") from err
    except OSError as err:
        raise LabError(f"{command[0]}: {err.strerror}") from err
    if check and done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise LabError(f"{' '.join(command)}: exit {done.returncode}: {said}")
    return done


def ip(namespace: str | None, *arguments: str, check: bool = True) -> None:
    """`ip` inside a namespace; with None only for the verbs that make and list namespaces."""
    prefix = ["ip", "-n", namespace] if namespace else ["ip"]
    run([*prefix, *arguments], check=check)


def namespaces() -> set[str]:
    return {path.name for path in NETNS_DIR.iterdir()} if NETNS_DIR.is_dir() else set()


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def start(
    command: Sequence[str], *, namespace: str, log: Path, env: Mapping[str, str]
) -> tuple[int, int]:
    """Start a daemon in its own session, output appended to `log`. Returns (pid, start time)."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            enter(namespace, command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(env),
            start_new_session=True,
            cwd="/",
        )
    _children[child.pid] = child
    began = start_time(child.pid)
    if began is None:
        raise LabError(f"{command[0]}: ended at once; see {log}")
    return child.pid, began


def is_running(process: tuple[int, int]) -> bool:
    return start_time(process[0]) == process[1]


def stop(process: tuple[int, int], *, grace_s: float = 10) -> None:
    """SIGTERM, then SIGKILL after `grace_s`. A process that is already gone is fine."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        if not _alive(process):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process[0], number)
        if wait_until(lambda: not _alive(process), timeout_s=wait_s):
            return
    raise LabError(f"process {process[0]} does not end")


def _alive(process: tuple[int, int]) -> bool:
    child = _children.get(process[0])
    if child is not None and child.poll() is not None:
        del _children[process[0]]
    return is_running(process)


def processes_in(namespace: str) -> list[int]:
    """Pids whose network namespace is this one, whoever started them."""
    path = NETNS_DIR / namespace
    if not path.exists():
        return []
    inode = path.stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "ns/net").stat().st_ino == inode:
                    found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], *, timeout_s: float, every_s: float = 0.05) -> bool:
    """Poll until true; False when the time is up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
