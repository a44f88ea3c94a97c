"""IptablesPort over the commands: iptables-save, iptables-restore, ipset.

Layer: felix.kernel (edge); implements felix.dataplane.ipt_port. Wired by the daemon.

There is no library for this that is not a wrapper of the same commands; in the legacy variant they
are the only way to take part in the xtables lock. A call takes 2 to 10 ms, so all run in a thread
of their own, one after the other, each with a bound: a tool that hangs is killed, and the driver
reads before it writes again.

  B1  a variant's own commands are taken (iptables-nft-save); a plain `iptables-save` only where
      there are none, as on systems that have one variant;
  B2  which refusals are about content (RestoreRefused) and which about the moment is decided here;
  B3  a tool gets its script as a whole, in a file without a name, not through a pipe: when felix is
      killed a pipe ends anywhere, and ipset takes a last line that was cut off for what it says,
      10.0.0.0/1 for 10.0.0.0/16;
  B4  a tool dies with felix: what it would still write, once it had the lock, is older than what
      the next felix reads.

Source: iptables-restore(8), ipset(8); Calico felix/environment/feature_detect_linux.go (detection).
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from felix.dataplane.ipt_port import RestoreRefused
from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed
from libcalico.runtime import log

LOG = log.get(__name__)

# How long a restore waits for the xtables lock, and how much longer it may take.
LOCK_WAIT_S = 30
_COMMAND_S = 15.0
_LINES_PER_S = 20_000  # the slowest we allow a script to be taken
_IN_USE_EXIT = 4  # xtables' RESOURCE_PROBLEM: the lock, or memory
_NOT_RUN_EXITS = (126, 127)  # setpriv's, when it could not run the tool
_FOR_NOW = re.compile(r"xtables lock|temporarily unavailable|Interrupted system call", re.I)
_LINE = re.compile(r"line:? (\d+)")
_KUBERNETES = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
_TEXT_CHARS = 300


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command left."""

    returncode: int
    stdout: str = ""
    stderr: str = ""


class Outcome(Protocol):
    """Finished, or a fake's own."""

    @property
    def returncode(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


class Runner(Protocol):
    """Runs a command to its end. Errors: OSError, subprocess.TimeoutExpired."""

    def __call__(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Outcome: ...


class CommandRunner:
    """The real one; `prefix` is what runs the command (setpriv, and nsenter in tests)."""

    def __init__(self, *prefix: str) -> None:
        self._prefix = prefix

    @classmethod
    def dying_with_us(cls) -> CommandRunner:
        """B4, where there is a setpriv (util-linux). Runs commands in a thread that stays."""
        if shutil.which("setpriv") is None:
            return cls()
        return cls("setpriv", "--pdeathsig", "KILL", "--")

    def __call__(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Finished:
        with open(os.memfd_create("script"), "w+b") as script:
            script.write(stdin.encode())
            script.seek(0)
            done = subprocess.run(
                [*self._prefix, *argv],
                stdin=script,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                env=os.environ | {"LC_ALL": "C"},
            )
        return Finished(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )


class Variant(enum.Enum):
    """Which of the two iptables: over nf_tables, or over the kernel's own x_tables."""

    NFT = "nft"
    LEGACY = "legacy"

    @property
    def other(self) -> Variant:
        return Variant.LEGACY if self is Variant.NFT else Variant.NFT


Which = Callable[[str], str | None]


class IptablesKernel:
    """One variant in one network namespace."""

    def __init__(
        self,
        runner: Runner,
        variant: Variant,
        worker: KernelWorker,
        *,
        which: Which = shutil.which,
    ) -> None:
        self._runner, self.variant, self._worker, self._which = runner, variant, worker, which

    @property
    def has_own_commands(self) -> bool:
        """False where this variant is not installed, or is all that there is (B1)."""
        return self._which(f"iptables-{self.variant.value}-save") is not None

    def missing(self, versions: Sequence[int]) -> list[str]:
        """Commands that are not installed."""
        commands = [
            command_of(version, self.variant, verb, self._which)
            for version in versions
            for verb in ("save", "restore")
        ]
        return [name for name in (*commands, "ipset") if self._which(name) is None]

    async def save(self, version: int, table: str = "") -> str:
        options = ("-t", table) if table else ()
        return await self._output(self._command(version, "save"), *options)

    async def restore(self, version: int, script: str) -> None:
        command = self._command(version, "restore")
        # Ignored by the nft variant, which has no lock.
        await self._run((command, "--noflush", f"--wait={LOCK_WAIT_S}"), script, LOCK_WAIT_S)

    async def save_sets(self) -> str:
        return await self._output("ipset", "save")

    async def restore_sets(self, script: str) -> None:
        await self._run(("ipset", "restore", "-exist"), script, 0.0)

    def _command(self, version: int, verb: str) -> str:
        return command_of(version, self.variant, verb, self._which)

    async def _output(self, *argv: str) -> str:
        done = await self._worker.run(lambda: execute(self._runner, argv, "", _COMMAND_S * 2))
        if done.returncode != 0:
            raise ProgrammingFailed("run", " ".join(argv), done.returncode, _words(done.stderr))
        return done.stdout

    async def _run(self, argv: Sequence[str], script: str, wait_s: float) -> None:
        limit_s = _COMMAND_S + wait_s + script.count("\n") / _LINES_PER_S
        done = await self._worker.run(lambda: execute(self._runner, argv, script, limit_s))
        if done.returncode != 0:
            raise _failure(argv[0], done)


def open_iptables(
    backend: str, worker: KernelWorker, versions: Sequence[int], *, runner: Runner | None = None
) -> tuple[IptablesKernel, IptablesKernel]:
    """(the variant to use, the other one). `backend` is IptablesBackend: "legacy", "nft", "auto".

    Errors: ProgrammingFailed, naming the commands that are not installed."""
    run = runner or CommandRunner.dying_with_us()
    found = detect_variant(run)
    variant = found if backend == "auto" else Variant(backend)
    if variant is not found:
        LOG.warning("other programs use the other iptables", reason=found.value)
    made = IptablesKernel(run, variant, worker)
    missing = made.missing(versions)
    if missing:
        raise ProgrammingFailed("run", ", ".join(missing), 2, "not installed")
    LOG.info("iptables variant chosen", reason=variant.value)
    return made, IptablesKernel(run, variant.other, worker)


def command_of(version: int, variant: Variant, verb: str, which: Which = shutil.which) -> str:
    """B1. `verb` is "save" or "restore"."""
    family = "ip6tables" if version == 6 else "iptables"
    own = f"{family}-{variant.value}-{verb}"
    return own if which(own) else f"{family}-{verb}"


def execute(runner: Runner, argv: Sequence[str], stdin: str, timeout_s: float) -> Outcome:
    """Errors: ProgrammingFailed for a command that is missing or does not end."""
    try:
        return runner(argv, stdin, timeout_s)
    except FileNotFoundError as err:
        raise ProgrammingFailed("run", argv[0], err.errno or 2, "not installed") from err
    except OSError as err:
        raise ProgrammingFailed("run", argv[0], err.errno or 0, str(err)) from err
    except subprocess.TimeoutExpired as err:
        raise ProgrammingFailed("run", argv[0], 110, f"no answer in {timeout_s:.0f} s") from err


def _failure(tool: str, done: Outcome) -> ProgrammingFailed:
    """B2."""
    text = _words(done.stderr) or f"exit code {done.returncode}"
    is_for_now = done.returncode in (_IN_USE_EXIT, *_NOT_RUN_EXITS) or done.returncode < 0
    if is_for_now or _FOR_NOW.search(text):
        return ProgrammingFailed("run", tool, done.returncode, text)
    found = _LINE.search(done.stderr)
    return RestoreRefused(tool, int(found[1]) if found else 0, text)


def _words(stderr: str) -> str:
    """One line for logs, without the warnings and the advice to read the manual."""
    lines = [line.strip() for line in stderr.splitlines()]
    told = [line for line in lines if line and not line.startswith(("#", "Try `"))]
    return " ".join(told)[:_TEXT_CHARS]


# ------------------------------------------------------------------------------------ detection


def detect_variant(runner: Runner, *, which: Which = shutil.which) -> Variant:
    """The variant that others on this host use.

    Where kubelet left its mark in the mangle table, else the one with more rules, legacy when they
    have as many. Legacy is asked without naming a table: that would create it."""
    nft = [_try_save(runner, version, Variant.NFT, which) for version in (4, 6)]
    if any(mark in text for text in nft for mark in _KUBERNETES):
        return Variant.NFT
    legacy = [_try_save(runner, version, Variant.LEGACY, which) for version in (4, 6)]
    if any(mark in text for text in legacy for mark in _KUBERNETES):
        return Variant.LEGACY
    return Variant.LEGACY if _rules(legacy) >= _rules(nft) else Variant.NFT


def _try_save(runner: Runner, version: int, variant: Variant, which: Which) -> str:
    command = command_of(version, variant, "save", which)
    try:
        done = execute(runner, (command,), "", _COMMAND_S)
    except ProgrammingFailed as err:
        LOG.debug("an iptables variant was not asked", error=str(err))
        return ""
    return done.stdout if done.returncode == 0 else ""


def _rules(texts: Sequence[str]) -> int:
    return sum(line.startswith("-") for text in texts for line in text.splitlines())
