"""confd with the BIRD engine: a real `bird` checks, takes and refuses what is rendered."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from confd import birdc
from confd.context import NodeIdentity
from confd.daemon import SHIPPED_FOR_BIRD, Confd, Options, engine_of
from confd.view import DatastoreView
from libcalico.errors import ConfigError
from libcalico.model import BGPPeer, Node
from libcalico.model.bgp import BGPPeerSpec
from libcalico.model.keys import key_of
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import NodeBGPSpec, NodeSpec
from libcalico.syncer.api import SyncStatus, Update
from tests.support.netns import Namespace, NamespaceSet, eventually

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.netns


def peer(name: str, **spec) -> BGPPeer:
    return BGPPeer(metadata=ObjectMeta(name=name), spec=BGPPeerSpec(**spec))


@pytest.fixture
def view() -> DatastoreView:
    bgp = NodeBGPSpec(ipv4_address="192.0.2.9/24", ipv6_address="2001:db8::9/64")
    node = Node(metadata=ObjectMeta(name="a"), spec=NodeSpec(bgp=bgp))
    made = DatastoreView()
    made.on_updates([Update(key_of(node), node, 1)])
    add(made, peer("one", peer_ip="192.0.2.1", as_number=65000))
    made.on_status(SyncStatus.IN_SYNC)
    return made


def add(view: DatastoreView, resource: BGPPeer) -> None:
    view.on_updates([Update(key_of(resource), resource, 1)])


def confd_of(view: DatastoreView, folder: Path, confdir: Path = SHIPPED_FOR_BIRD) -> Confd:
    environ = {
        "CALICO_RUN_DIR": str(folder / "run"),
        "CALICO_BGP_ENGINE": "bird",
        "PYTHONPATH": str(ROOT),
        "PATH": os.environ["PATH"] + ":/usr/sbin",
    }
    return Confd(view, NodeIdentity("a"), Options(confdir=confdir), environ)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with NamespaceSet() as netns:
        yield netns.make("bird")


def start(namespace: Namespace, run: Path) -> subprocess.Popen[bytes]:
    file, sock = str(run / "bgp/bird.cfg"), str(run / "bird.ctl")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = namespace.spawn("bird", "-f", "-c", file, "-s", sock, **quiet)
    assert eventually(lambda: "Daemon is up" in shown(run, "status"), timeout_s=10)
    return child


def shown(run: Path, *words: str) -> str:
    command = ["birdc", "-s", str(run / "bird.ctl"), "show", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_a_change_is_in_force_when_the_pass_is_over(view, tmp_path, namespace):
    run, confd = tmp_path / "run", confd_of(view, tmp_path)
    assert confd.render()
    assert (run / "bgp/bird.cfg").stat().st_mode & 0o777 == 0o600
    child = start(namespace, run)
    add(view, peer("two", peer_ip="2001:db8::2", as_number=65000, reachable_by="2001:db8::1"))
    assert confd.render()
    assert "Global_2001_db8__2" in shown(run, "protocols")
    assert child.poll() is None
    before = shown(run, "status")
    assert confd.render()  # nothing changed: nothing is reloaded
    assert shown(run, "status").split("Last reconf")[1] == before.split("Last reconf")[1]


def test_what_bird_refuses_stays_out_of_its_place(view, tmp_path):
    shutil.copytree(SHIPPED_FOR_BIRD, tmp_path / "c")
    confd = confd_of(view, tmp_path, tmp_path / "c")
    assert confd.render()
    good = (tmp_path / "run/bgp/bird.cfg").read_bytes()
    template = tmp_path / "c/templates/bird.cfg.j2"
    template.write_text(template.read_text() + "protocol nothing {}\n")
    assert not confd.render()
    assert "syntax error" in confd.counters.failed["10-bird.toml"]
    assert (tmp_path / "run/bgp/bird.cfg").read_bytes() == good


def test_a_reload_that_failed_is_made_again_without_a_change_of_the_file(view, tmp_path):
    shutil.copytree(SHIPPED_FOR_BIRD, tmp_path / "c")
    resource, taken = tmp_path / "c/conf.d/10-bird.toml", tmp_path / "taken"
    lines = resource.read_text().splitlines()
    lines[-1] = f'reload_cmd = ["cp", "{tmp_path}/ready", "{taken}"]'
    resource.write_text("\n".join(lines) + "\n")
    confd = confd_of(view, tmp_path, tmp_path / "c")
    assert not confd.render()
    assert "reload with cp failed" in confd.counters.failed["10-bird.toml"]
    (tmp_path / "ready").touch()
    assert confd.render()
    assert taken.exists()
    assert confd.counters.written == 1
    assert confd.counters.failed == {}


def test_a_refusal_of_the_running_bird_is_its_own_words(view, tmp_path, namespace, capsys):
    run = tmp_path / "run"
    confd_of(view, tmp_path).render()
    start(namespace, run)
    (run / "bad.cfg").write_text("router id nonsense;\n")
    assert birdc.main([str(run / "bird.ctl"), str(run / "bad.cfg")]) == 1
    assert "syntax error" in capsys.readouterr().err


def test_nobody_who_listens_is_no_failure(tmp_path):
    assert birdc.main([str(tmp_path / "no.ctl"), str(tmp_path / "x.cfg")]) == 0


def test_an_engine_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="CALICO_BGP_ENGINE"):
        engine_of({"CALICO_BGP_ENGINE": "quagga"})
