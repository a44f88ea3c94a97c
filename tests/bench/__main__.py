"""Run the benchmarks and print each figure beside its baseline.

Layer: tooling. Every `bench_*.py` beside this file offers `NAMES` (what it can measure, optional)
and `run() -> list[dict]`, or `run(only: set[str])` where measuring less saves time. An entry is
{"name", "value", "unit", "baseline", "baseline_value", "ratio", "limit", "ok"} plus optional
"spread" and "note"; `baseline` says what else did the same work in the same run. A benchmark whose
baseline cannot run raises: a bare time is worth nothing. All entries go to build/bench.json.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
Entry = dict[str, Any]


def modules() -> list[ModuleType]:
    names = sorted(path.stem for path in HERE.glob("bench_*.py"))
    return [importlib.import_module(f"{__package__}.{name}") for name in names]


def measure(module: ModuleType, only: set[str]) -> list[Entry]:
    names = set(getattr(module, "NAMES", ()))
    if only and names and not names & only:
        return []
    takes_only = bool(inspect.signature(module.run).parameters)
    entries: list[Entry] = module.run(only) if takes_only else module.run()
    return [entry for entry in entries if not only or entry["name"] in only]


def show(entry: Entry) -> str:
    mark = {True: "ok", False: "OVER", None: ""}[entry.get("ok")]
    limit = "-" if entry.get("limit") is None else f"{entry['limit']:g}"
    ratio = "-" if entry.get("ratio") is None else f"{entry['ratio']:.3f}"
    return (
        f"{entry['name']:<22} {entry['value']:>12.4g} {entry['unit']:<10} "
        f"{entry['baseline_value']:>12.4g}  {ratio:>8} {limit:>8}  {mark:<4} {entry['baseline']}"
        + (f"  [{entry['note']}]" if entry.get("note") else "")
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--only", default="", help="names, comma separated")
    only = {name for name in parser.parse_args().only.split(",") if name}
    heading = ("name", "value", "unit", "baseline", "ratio", "limit")
    print("{:<22} {:>12} {:<10} {:>12}  {:>8} {:>8}".format(*heading))
    entries: list[Entry] = []
    failed = 0
    for module in modules():
        try:
            found = measure(module, only)
        except Exception:  # noqa: BLE001 - one benchmark that cannot run must not hide the others
            failed += 1
            print(f"{module.__name__}: could not be measured", file=sys.stderr)
            traceback.print_exc()
            continue
        for entry in found:
            print(show(entry), flush=True)
        entries += found
    out = HERE.parents[1] / "build" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(entries, indent=1) + "\n")
    over = [entry["name"] for entry in entries if entry.get("ok") is False]
    if over:
        print("over their limit: " + ", ".join(over))
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
