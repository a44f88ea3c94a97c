"""The commands of docs/containerd.md and docs/podman.md, run as they are written.

Every ```sh block is run, in order and in one shell, but those marked `<!-- host-only: NAME -->`:
in their place something does what that block does on a real host, or the machine has it already.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.runtimes.containerd import Containerd
from tests.runtimes.host import ENVIRON, Host
from tests.runtimes.podman import Podman, podman_has_no_cni
from tests.support.netns import eventually

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"(?:<!-- host-only: (\w+) -->\n)?```sh\n(.*?)```\n", re.DOTALL)
GUIDES = ["containerd", *([] if podman_has_no_cni() else ["podman"])]


def blocks(guide: str) -> list[tuple[str, str]]:
    """(name of the mark or "", commands) of every block."""
    text = (DOCS / f"{guide}.md").read_text()
    found = _BLOCK.findall(text)
    assert len(found) == text.count("```sh"), "a block that would not be run"
    return found


@pytest.fixture
def fresh(netns):
    """A host on which nobody has installed the plugin."""
    made = Host(netns)
    yield made
    made.machine.close()


def run_guide(host: Host, guide: str, stand_ins) -> None:
    script = []
    for mark, commands in blocks(guide):
        if not mark:
            script.append(commands)
        elif stand_ins[mark] is not None:
            run_shell(host, "".join(script))
            script = []
            stand_ins[mark]()
    run_shell(host, "".join(script))


def run_shell(host: Host, script: str) -> None:
    done = host.machine.attempt("bash", "-euxo", "pipefail", "-c", script, env=ENVIRON)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_does_what_it_says(fresh, guide, tmp_path):
    program = shutil.which(guide)
    if program is None:
        pytest.skip(f"not installed: {guide} (deploy/bootstrap --runtimes)")
    if guide == "containerd":
        containerd = Containerd(fresh, tmp_path)
        run_guide(fresh, guide, {"packages": None, "restart": containerd.start_daemon})
        containerd.stop_daemon()
    else:
        Podman.prepare(fresh)
        run_guide(fresh, guide, {"packages": None})
    assert eventually(lambda: fresh.leftovers() == []), fresh.leftovers()
