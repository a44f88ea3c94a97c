"""What a lab remembers between two commands: its options, processes and pods.

Layer: edge (one JSON file). The file is written by rename, so a killed `lab` leaves it whole, and
it is written before a process or namespace is used, so `lab down` always knows what to remove.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.lab.topology import Options, Topology
from libcalico.runtime.files import replace_file

ROOT = Path(os.environ.get("BRINDLE_LAB_DIR", "/run/brindle-lab"))


@dataclass(slots=True)
class Pod:
    name: str
    node: str
    container_id: str
    namespace: str = "default"
    labels: dict[str, str] = field(default_factory=dict)
    ips: list[str] = field(default_factory=list)


@dataclass(slots=True)
class LabState:
    """`processes` maps a role ("etcd", "node1", "http-web1") to (pid, start time)."""

    name: str
    options: Options
    processes: dict[str, tuple[int, int]] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        return Topology(self.name, self.options)

    @property
    def directory(self) -> Path:
        return ROOT / self.name

    def node_directory(self, node: str) -> Path:
        return self.directory / node

    def save(self) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=1)
        replace_file(self.directory / "state.json", text.encode(), 0o644, is_durable=False)


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Held by every command that changes a lab, from before it reads the state to after its last
    save: two at a time would overwrite each other's. A lab that is not there has no lock."""
    try:
        directory = os.open(ROOT / name, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def load(name: str) -> LabState | None:
    try:
        raw: dict[str, Any] = json.loads((ROOT / name / "state.json").read_text())
    except OSError:
        return None
    return LabState(
        name=raw["name"],
        options=Options(**raw["options"]),
        processes={role: (pair[0], pair[1]) for role, pair in raw["processes"].items()},
        pods={pod: Pod(**value) for pod, value in raw["pods"].items()},
    )
