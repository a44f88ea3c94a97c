"""The mechanical part of the house style: sizes, docstrings, names, and calls that are never right.

Layer: tooling. Run by `make check`. Counts each kind of finding and compares with
`ratchet.json`, whose numbers may only go down: a finding above its ceiling fails the run, a count
below it asks for the ceiling to be lowered (`check_style.py --update`).
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RATCHET = Path(__file__).with_name("ratchet.json")
PACKAGES = (
    "libcalico",
    "ipam",
    "felix",
    "bgp",
    "confd",
    "cni",
    "typha",
    "controllers",
    "calicoctl",
)
MODULE_LINES, FUNCTION_LINES, PARAMETERS, NESTING = 800, 70, 5, 3
BAD_MODULE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base"}
Finding = tuple[str, str]


def findings_in(path: Path) -> Iterator[Finding]:
    text = path.read_text()
    tree = ast.parse(text)
    where = str(path.relative_to(ROOT))
    if text.count("\n") > MODULE_LINES:
        yield "long_module", where
    if path.stem in BAD_MODULE_NAMES:
        yield "nameless_module", where
    if not ast.get_docstring(tree) and text.strip():
        yield "module_without_docstring", where
    for node in ast.walk(tree):
        for kind in _node_findings(node):
            yield kind, f"{where}:{getattr(node, 'lineno', 0)}"


def _node_findings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _function_findings(node)
    elif isinstance(node, ast.ExceptHandler):
        if node.type is None:
            yield "bare_except"
        elif all(isinstance(line, ast.Pass) for line in node.body) and len(node.body) == 1:
            yield "silent_except"
    elif isinstance(node, ast.Call) and any(
        word.arg == "shell" and isinstance(word.value, ast.Constant) and word.value.value
        for word in node.keywords
    ):
        yield "shell_true"


def _function_findings(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES:
        yield "long_function"
    positional = [*node.args.posonlyargs, *node.args.args]
    count = len(positional) + len(node.args.kwonlyargs)
    count -= bool(positional) and positional[0].arg in {"self", "cls"}
    # A click command has one parameter per option of the command line: that is its user's business.
    if count > PARAMETERS and not _is_command(node):
        yield "many_parameters"
    if _depth(node.body) > NESTING:
        yield "deep_nesting"


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(decorator, ast.Call)
        and ast.unparse(decorator.func).endswith((".command", ".group"))
        for decorator in node.decorator_list
    )


def _depth(body: list[ast.stmt]) -> int:
    """Nesting of compound statements; an elif chain counts once, nested functions start anew."""
    deepest = 0
    for statement in body:
        inner: list[list[ast.stmt]] = []
        if isinstance(statement, ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try):
            chained = isinstance(statement, ast.If) and len(statement.orelse) == 1
            orelse = statement.orelse
            if chained and isinstance(orelse[0], ast.If):
                deepest = max(deepest, _depth(orelse))
                orelse = []
            inner = [statement.body, orelse]
            if isinstance(statement, ast.Try):
                inner += [handler.body for handler in statement.handlers] + [statement.finalbody]
        elif isinstance(statement, ast.Match):
            inner = [case.body for case in statement.cases]
        if inner:
            deepest = max(deepest, 1 + max(_depth(part) for part in inner))
    return deepest


def main() -> int:
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for kind, where in findings_in(path):
                found[kind].append(where)
    ceilings: dict[str, int] = json.loads(RATCHET.read_text()) if RATCHET.exists() else {}
    counts = {kind: len(places) for kind, places in sorted(found.items())}
    if "--update" in sys.argv:
        lowered = {k: min(v, ceilings.get(k, v)) for k, v in counts.items()}
        RATCHET.write_text(json.dumps(lowered, indent=2) + "\n")
        return 0
    over = {k: n for k, n in counts.items() if n > ceilings.get(k, 0)}
    for kind, count in over.items():
        print(f"{kind}: {count} found, ceiling {ceilings.get(kind, 0)}")
        print("".join(f"  {where}\n" for where in found[kind]), end="")
    for kind, ceiling in ceilings.items():
        if counts.get(kind, 0) < ceiling:
            print(f"{kind}: down to {counts.get(kind, 0)} from {ceiling}; lower it with --update")
    print("style: failed" if over else f"style: {sum(counts.values())} findings within ceilings")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
