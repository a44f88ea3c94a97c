"""felix.kernel.iptables: which command is run how, and what its answer means."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from felix.dataplane.ipt_port import RestoreRefused
from felix.kernel.iptables import (
    CommandRunner,
    Finished,
    IptablesKernel,
    Variant,
    command_of,
    detect_variant,
    execute,
    open_iptables,
)
from felix.kernel.worker import KernelWorker
from libcalico.errors import ProgrammingFailed
from tests.support.iptables import InlineWorker
from tests.support.netns import eventually

EVERYTHING = {
    f"ip{six}tables-{variant}{verb}"
    for six in ("", "6")
    for variant in ("nft-", "legacy-", "")
    for verb in ("save", "restore")
} | {"ipset"}


class Answers:
    """A runner that notes what it is asked and answers by command."""

    def __init__(self, **answers: Finished) -> None:
        self.answers = {name.replace("_", "-"): answer for name, answer in answers.items()}
        self.calls: list[tuple[tuple[str, ...], str]] = []

    def __call__(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Finished:
        self.calls.append((tuple(argv), stdin))
        return self.answers.get(argv[0], Finished(0))


def kernel(runner: Answers, variant: Variant = Variant.NFT) -> IptablesKernel:
    return IptablesKernel(runner, variant, InlineWorker(), which=installed(EVERYTHING))


def installed(names: set[str]):
    return lambda name: name if name in names else None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"ip6tables-legacy-save", "ip6tables-save"}, "ip6tables-legacy-save"),
        ({"ip6tables-save"}, "ip6tables-save"),
    ],
)
def test_a_variants_own_command_where_there_is_one(names: set[str], expected: str):
    assert command_of(6, Variant.LEGACY, "save", installed(names)) == expected


async def test_commands_never_flush_and_wait_for_the_lock():
    runner = Answers()
    made = kernel(runner)
    await made.restore(6, "*filter\nCOMMIT\n")
    await made.restore_sets("destroy x\n")
    await made.save(4, "filter")
    await made.save(4)
    assert runner.calls == [
        (("ip6tables-nft-restore", "--noflush", "--wait=30"), "*filter\nCOMMIT\n"),
        (("ipset", "restore", "-exist"), "destroy x\n"),
        (("iptables-nft-save", "-t", "filter"), ""),
        (("iptables-nft-save",), ""),
    ]


@pytest.mark.parametrize(
    ("stderr", "line", "words"),
    [
        ("iptables-restore: line 7 failed\n", 7, "line 7 failed"),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): Set cali40s:x doesn't exist.\n\n"
            "Error occurred at line: 3\nTry `iptables-restore -h' for more information.\n",
            3,
            "Set cali40s:x doesn't exist. Error occurred at line: 3",
        ),
        (
            "# Warning: iptables-legacy tables present, use iptables-legacy to see them\n"
            "iptables-restore v1.8.9 (nf_tables): \nline 5: RULE_APPEND failed (No such file)\n",
            5,
            "RULE_APPEND failed",
        ),
        ("something else\n", 0, "something else"),
    ],
)
async def test_a_refusal_names_its_line(stderr: str, line: int, words: str):
    made = kernel(Answers(iptables_nft_restore=Finished(2, "", stderr)))
    with pytest.raises(RestoreRefused) as caught:
        await made.restore(4, "")
    assert caught.value.line == line
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Warning" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        Finished(4, "", "Another app is currently holding the xtables lock."),
        Finished(1, "", "iptables-restore: line 3 failed: Resource temporarily unavailable"),
        Finished(-9, "", ""),
    ],
)
async def test_what_is_about_the_moment_is_no_refusal(answer: Finished):
    made = kernel(Answers(iptables_nft_restore=answer))
    with pytest.raises(ProgrammingFailed) as caught:
        await made.restore(4, "")
    assert not isinstance(caught.value, RestoreRefused)


async def test_a_reading_that_fails_is_not_an_empty_one():
    made = kernel(Answers(iptables_nft_save=Finished(1, "*filter\n", "no")))
    with pytest.raises(ProgrammingFailed, match="no"):
        await made.save(4, "filter")


async def test_a_missing_command_is_one_clear_line():
    def missing(argv: Sequence[str], stdin: str, timeout_s: float) -> Finished:
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    with pytest.raises(ProgrammingFailed, match=r"run ipset failed .*not installed"):
        await IptablesKernel(missing, Variant.NFT, InlineWorker()).save_sets()
    made = IptablesKernel(Answers(), Variant.NFT, InlineWorker(), which=installed({"ipset"}))
    assert made.missing((4,)) == ["iptables-save", "iptables-restore"]
    assert kernel(Answers()).missing((4, 6)) == []


def test_a_command_that_does_not_end_is_killed():
    with pytest.raises(ProgrammingFailed, match="no answer"):
        execute(CommandRunner(), (sys.executable, "-c", "import time; time.sleep(60)"), "", 0.05)


async def test_the_real_runner_hands_over_and_takes_back():
    worker = KernelWorker()
    try:
        script = (
            "import sys; sys.stdout.write(sys.stdin.read()); sys.stderr.write('e'); sys.exit(3)"
        )
        done = await worker.run(
            lambda: execute(CommandRunner(), (sys.executable, "-c", script), "in", 20.0)
        )
    finally:
        worker.close()
    assert (done.returncode, done.stdout, done.stderr) == (3, "in", "e")


def test_the_runner_speaks_english_and_keeps_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LC_ALL", "xx_XX")
    monkeypatch.setenv("XTABLES_LOCKFILE", "/elsewhere")
    done = CommandRunner("env")(("env",), "", 20.0)
    assert "LC_ALL=C" in done.stdout.splitlines()
    assert "XTABLES_LOCKFILE=/elsewhere" in done.stdout.splitlines()
    assert os.environ["LC_ALL"] == "xx_XX"


RULE, HINT = "-A INPUT -j ACCEPT\n", ":KUBE-KUBELET-CANARY - [0:0]\n"


@pytest.mark.parametrize(
    ("nft", "legacy", "expected"),
    [
        ("", "", Variant.LEGACY),
        (RULE, "", Variant.NFT),
        (RULE, RULE, Variant.LEGACY),
        (RULE * 2, RULE, Variant.NFT),
        (HINT, RULE * 50, Variant.NFT),
        (RULE * 50, HINT, Variant.LEGACY),
    ],
)
def test_the_variant_others_use_is_taken(nft: str, legacy: str, expected: Variant):
    runner = Answers(iptables_nft_save=Finished(0, nft), iptables_legacy_save=Finished(0, legacy))
    assert detect_variant(runner, which=installed(EVERYTHING)) is expected
    # A table that is named would be created by asking for it.
    assert all(len(argv) == 1 for argv, _stdin in runner.calls)


def test_a_variant_that_cannot_be_asked_has_no_rules():
    def runner(argv: Sequence[str], stdin: str, timeout_s: float) -> Finished:
        if "legacy" in argv[0]:
            raise subprocess.TimeoutExpired(list(argv), timeout_s)
        return Finished(0, RULE)

    assert detect_variant(runner, which=installed(EVERYTHING)) is Variant.NFT


def test_a_backend_that_is_configured_is_taken_and_doubted(caplog: pytest.LogCaptureFixture):
    """Nothing has rules here, so legacy would be detected."""
    with caplog.at_level("WARNING"):
        used, other = open_iptables("nft", InlineWorker(), (4, 6), runner=Answers())
    assert (used.variant, other.variant) == (Variant.NFT, Variant.LEGACY)
    assert [record.message for record in caplog.records] == [
        "other programs use the other iptables"
    ]
    caplog.clear()
    used, other = open_iptables("auto", InlineWorker(), (4,), runner=Answers())
    assert (used.variant, other.variant) == (Variant.LEGACY, Variant.NFT)
    assert caplog.records == []


def test_a_variant_without_commands_of_its_own_is_nobody_elses():
    """Else what is cleared there would be what is in use."""
    only_plain = installed({"iptables-save", "iptables-restore", "ipset"})
    made = IptablesKernel(Answers(), Variant.LEGACY, InlineWorker(), which=only_plain)
    assert not made.has_own_commands
    assert kernel(Answers()).has_own_commands


SLOW_TOOL = """
echo $$ >"$1/begun.new"; mv "$1/begun.new" "$1/begun"
while [ ! -e "$1/go" ]; do sleep 0.01; done
cat >"$1/got"; touch "$1/ended"
"""
RUNS_IT = """
import sys
from felix.kernel.iptables import CommandRunner
runner = eval(sys.argv[1])
runner(("sh", "-c", sys.argv[2], "sh", sys.argv[3]), sys.stdin.read(), 60.0)
"""


def killed_while_its_tool_runs(runner: str, script: str, directory: Path) -> int:
    """A felix that has begun to run a tool with this script is dead; the tool's pid."""
    (directory / "script").write_text(script)
    with (directory / "script").open("rb") as source:
        argv = (sys.executable, "-c", RUNS_IT, runner, SLOW_TOOL, str(directory))
        felix = subprocess.Popen(argv, stdin=source)
    assert eventually((directory / "begun").exists)
    felix.kill()
    felix.wait()
    return int((directory / "begun").read_text())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_tool_has_its_whole_script_though_felix_is_killed(tmp_path: Path):
    # Longer than what a pipe holds. Cut off, a network of the last line would be another one.
    script = "".join(f"add set 10.{n // 256}.{n % 256}.0/24\n" for n in range(20_000))
    killed_while_its_tool_runs("CommandRunner()", script, tmp_path)
    (tmp_path / "go").touch()
    assert eventually((tmp_path / "ended").exists)
    assert (tmp_path / "got").read_text() == script


def test_a_tool_dies_with_felix(tmp_path: Path):
    pid = killed_while_its_tool_runs("CommandRunner.dying_with_us()", "", tmp_path)
    assert eventually(lambda: not is_running(pid))
    assert not (tmp_path / "got").exists()


async def test_a_tool_that_could_not_be_run_is_no_refusal():
    answers = Answers(ipset=Finished(127, stderr="setpriv: failed to execute ipset: No such file"))
    with pytest.raises(ProgrammingFailed) as caught:
        await kernel(answers).restore_sets("destroy s\n")
    assert not isinstance(caught.value, RestoreRefused)
