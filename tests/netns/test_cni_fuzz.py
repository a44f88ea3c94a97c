"""A thousand requests as no runtime sends them, through the installed executables: real etcd, felix
and wires. Whatever comes, the answer has CNI's form, and nothing is left when the pods are gone.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cni import install
from tests.support.cni_fuzz import Pair, Places
from tests.support.cni_node import CniNode
from tests.support.netns import Namespace, NamespaceSet, eventually

PODS, AT_ONCE, BOUND_S = 14, 8, 30.0
WITH_FELIX, WITHOUT_FELIX = 900, 100
SILENT = (b"DEL", b"CHECK", b"GC", b"STATUS")


@pytest.fixture
def c_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one a node gets where there is a compiler."""
    has_compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    monkeypatch.setenv("CALICO_CNI_CLIENT", "c" if has_compiler else "python")


@pytest.fixture
def node(c_client: None, cni_node: CniNode, monkeypatch: pytest.MonkeyPatch) -> CniNode:
    made = cni_node
    monkeypatch.setenv("CALICO_CNI_CLIENT", "python")
    install.install(
        python_bin(made),
        None,
        socket_path=made.directory / "run" / "cni.sock",
        lib_dir=made.lib_dir,
        conflist=b"",
    )
    made.start_felix()
    made.wait_ready()
    return made


def python_bin(node: CniNode) -> Path:
    return node.directory / "python-bin"


class Fuzzed:
    """Executes pairs and judges every answer; `added` are the ADDs that were told success."""

    def __init__(self, node: CniNode) -> None:
        self._node = node
        self._permits = asyncio.Semaphore(AT_ONCE)
        self.complaints: list[str] = []
        self.added: list[Pair] = []
        self.seen: Counter[str] = Counter()

    async def run(self, pairs: Iterable[Pair]) -> None:
        async with asyncio.TaskGroup() as group:
            for pair in pairs:
                group.create_task(self._one(pair))

    async def _one(self, pair: Pair) -> None:
        async with self._permits:
            try:
                code, stdout, stderr = await self._execute(pair)
                complaint = judged(pair, code, stdout, stderr)
            except TimeoutError:
                code, stdout, complaint = -1, b"", f"no answer within {BOUND_S:.0f} s"
        self.seen[f"{pair.verb.decode(errors='replace')[:8]} {min(code, 1)}"] += 1
        if complaint:
            small = {name: value[:200] for name, value in pair.environ.items()}
            self.complaints.append(
                f"{complaint}\n  {pair.plugin} python={pair.is_python} {small}\n"
                f"  {pair.stdin[:1500]!r}\n  -> {code} {stdout[:600]!r}"
            )
        if pair.verb == b"ADD" and code == 0:
            self.added.append(pair)

    async def _execute(self, pair: Pair) -> tuple[int, bytes, bytes]:
        bin_dir = python_bin(self._node) if pair.is_python else self._node.bin_dir
        process = await asyncio.create_subprocess_exec(
            *("nsenter", f"--net={self._node.ns.path}", str(bin_dir / pair.plugin)),
            env=pair.environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(BOUND_S):
                stdout, stderr = await process.communicate(pair.stdin)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        return process.returncode, stdout, stderr


def judged(pair: Pair, code: int, stdout: bytes, stderr: bytes) -> str:
    """What is wrong with an answer; "" when nothing is."""
    if b"Traceback" in stdout + stderr:
        return f"a traceback: {stderr.decode(errors='replace')[-1500:]}"
    if not pair.verb:
        # As the reference's: a person ran it, and is told on stderr what this is.
        return "" if (code, stdout) == (0, b"") else "without a command"
    if code == 0 and pair.verb in SILENT:
        return "a silent verb speaks" if stdout else ""
    try:
        answer = json.loads(stdout, parse_constant=not_json)
    except ValueError as err:
        return f"no JSON: {err}; {stderr.decode(errors='replace')[-300:]}"
    if not isinstance(answer, dict) or "cniVersion" not in answer:
        return "no object, or without a version"
    if code == 0:
        return "a result with a code" if "code" in answer else ""
    return judged_error(answer) if code == 1 else "an odd exit code"


def judged_error(answer: dict[str, Any]) -> str:
    if type(answer.get("code")) is not int or answer["code"] <= 0:
        return "an error without a code"
    if not isinstance(answer.get("msg"), str) or not answer["msg"]:
        return "an error without a message"
    return "an internal error" if answer["code"] == 999 else ""


def not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def programmed(where: Namespace) -> set[str]:
    """Links, addresses, routes and rules of a namespace."""
    shown = [where.run("ip", "-o", "link", "show").replace("\\", "")]
    shown.append(where.run("ip", "-br", "addr", "show"))
    for family in ("-4", "-6"):
        shown.append(where.run("ip", family, "route", "show", "table", "all"))
        shown.append(where.run("ip", family, "rule", "show"))
    return {line.strip() for text in shown for line in text.splitlines()}


def is_settled(where: Namespace) -> bool:
    """Whether the uplink's two ends have the addresses the kernel gives them in its own time."""
    shown = where.run("ip", "-6", "addr", "show", "scope", "link")
    routes = where.run("ip", "-6", "route", "show", "table", "local")
    has_both = all(f"dev {name} " in routes for name in ("up0", "up1"))
    return has_both and "tentative" not in shown


async def test_whatever_comes_gets_an_answer_and_leaves_nothing(
    node: CniNode, netns: NamespaceSet
) -> None:
    pods = [netns.make(f"p{i}") for i in range(PODS)]
    # The last two are the host's own, as felix sees it.
    odd = [str(node.directory), "/etc/hostname", "/run/netns/brn-none", "/dev/null", "a" * 5000]
    odd += ["relative", node.ns.path, "/proc/self/ns/net"]
    places = Places(str(node.bin_dir), [pod.path for pod in pods], odd)
    assert eventually(lambda: is_settled(node.ns), timeout_s=20, interval_s=0.1)
    before = programmed(node.ns)

    fuzzed = Fuzzed(node)
    await fuzzed.run(places.pairs(1, WITH_FELIX, python_every=6))
    node.kill_felix()
    await fuzzed.run(places.pairs(2, WITHOUT_FELIX, python_every=2))
    node.start_felix()
    node.wait_ready()
    assert eventually(lambda: node.queued() == 0, timeout_s=30, interval_s=0.1), node.log()
    # Failed ADDs have cleaned up behind themselves: only those that succeeded are ended.
    ended = list({id(pair): as_del(pair) for pair in fuzzed.added}.values())
    ending = Fuzzed(node)
    await ending.run(ended)

    assert fuzzed.complaints + ending.complaints == [], fuzzed.seen
    assert ending.seen == Counter({"DEL 0": len(ended)})
    for said in ("ADD 0", "ADD 1", "DEL 0", "DEL 1", "CHECK 1", "GC 0", "STATUS 0", "VERSION 0"):
        assert fuzzed.seen[said], fuzzed.seen
    assert (node.endpoints(), node.holders(), node.handles()) == ({}, {}, set())
    assert programmed(node.ns) == before
    for pod in pods:
        assert pod.run("ip", "-o", "link").count("\n") == 1, pod.run("ip", "-o", "link")
    assert "Traceback" not in node.log(), node.log()[-3000:]


def as_del(pair: Pair) -> Pair:
    environ = {**pair.environ, b"CNI_COMMAND": b"DEL"}
    return Pair(pair.plugin, environ, pair.config, pair.stdin)
