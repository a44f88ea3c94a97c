"""confd's whole pass: a synchronised view to files on disk, checked by ExaBGP's own parser."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from confd import daemon
from confd.context import NodeIdentity
from confd.daemon import SHIPPED, ChangeSink, Confd, Options
from confd.view import DatastoreView
from libcalico.model import BGPConfiguration, BGPPeer, Node
from libcalico.model.bgp import (
    BGPConfigurationSpec,
    BGPPassword,
    BGPPeerSpec,
    SecretKeySelector,
)
from libcalico.model.codec import encode
from libcalico.model.ipam import BlockAffinity
from libcalico.model.keys import BlockAffinityKey, key_of, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import NodeBGPSpec, NodeSpec
from libcalico.model.speaker import SpeakerConfig
from libcalico.runtime.notify import Notifier
from libcalico.syncer.api import SyncStatus, Update
from libcalico.testing.etcd import EtcdCluster
from tests.support.etcd import ClusterFactory


def node(name: str, ipv4: str, ipv6: str) -> Node:
    bgp = NodeBGPSpec(ipv4_address=ipv4, ipv6_address=ipv6)
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(bgp=bgp))


def peer(name: str, **spec) -> BGPPeer:
    return BGPPeer(metadata=ObjectMeta(name=name), spec=BGPPeerSpec(**spec))


# One peer of every kind of option that reaches exabgp.conf.
RESOURCES = [
    node("a", "192.0.2.9/24", "2001:db8::9/64"),
    node("b", "192.0.2.10/24", "2001:db8::a/64"),
    node("c", "192.0.2.11/24", "2001:db8::b/64"),
    peer("tor", peer_ip="198.51.100.1:1790", as_number=65000, ttl_security=2, keepalive_time="5s"),
    peer("v6", peer_ip="2001:db8:9::1", as_number=65001, source_address="None", node="a"),
    peer(
        "secret",
        peer_ip="198.51.100.2",
        as_number=65000,
        max_restart_time="0s",
        password=BGPPassword(secret_key_ref=SecretKeySelector(name="bgp", key="tor")),
    ),
    BGPConfiguration(
        metadata=ObjectMeta(name="default"), spec=BGPConfigurationSpec(as_number=64600)
    ),
]


@pytest.fixture
def view() -> DatastoreView:
    made = DatastoreView()
    made.on_updates([Update(key_of(resource), resource, 1) for resource in RESOURCES])
    block = BlockAffinityKey("a", "10.65.1.0/26")
    made.on_updates([Update(block, BlockAffinity(state="confirmed"), 1)])
    made.on_status(SyncStatus.IN_SYNC)
    return made


def environment(folder: Path) -> dict[str, str]:
    secrets = folder / "secrets/bgp"
    secrets.mkdir(parents=True, exist_ok=True)
    # Every character that could break a configuration file's syntax.
    (secrets / "tor").write_text('p"a;s{s}\\ w#ord\n')
    return {
        "CALICO_RUN_DIR": str(folder / "run"),
        "CALICO_SECRETS_DIR": str(folder / "secrets"),
        "PATH": os.environ["PATH"],
    }


def confd_of(view: DatastoreView, folder: Path, **options) -> Confd:
    return Confd(view, NodeIdentity("a"), Options(**options), environment(folder))


def files(folder: Path) -> tuple[Path, Path]:
    return folder / "run/bgp/exabgp.conf", folder / "run/bgp/speaker.json"


def test_a_pass_writes_both_files_as_one_generation(view, tmp_path):
    assert confd_of(view, tmp_path).render()
    exabgp, speaker = files(tmp_path)
    written = msgspec.json.decode(speaker.read_bytes(), type=SpeakerConfig)
    assert written.exabgp_sha256 == hashlib.sha256(exabgp.read_bytes()).hexdigest()
    assert [block.cidr for block in written.blocks] == ["10.65.1.0/26"]
    assert {p.address for p in written.peers} == {
        "192.0.2.10",
        "192.0.2.11",
        "2001:db8::a",
        "2001:db8::b",
        "198.51.100.1",
        "198.51.100.2",
        "2001:db8:9::1",
    }
    assert exabgp.stat().st_mode & 0o777 == 0o600


def test_a_second_pass_writes_nothing(view, tmp_path):
    confd = confd_of(view, tmp_path)
    confd.render()
    before = [path.stat().st_mtime_ns for path in files(tmp_path)]
    assert confd.render()
    assert [path.stat().st_mtime_ns for path in files(tmp_path)] == before
    assert confd.counters.written == 2


def test_a_template_that_breaks_leaves_the_last_good_files(view, tmp_path):
    shutil.copytree(SHIPPED / "templates", tmp_path / "c/templates")
    shutil.copytree(SHIPPED / "conf.d", tmp_path / "c/conf.d")
    confd = confd_of(view, tmp_path, confdir=tmp_path / "c")
    assert confd.render()
    before = [path.read_bytes() for path in files(tmp_path)]
    template = tmp_path / "c/templates/exabgp.conf.j2"
    good = template.read_text()
    for broken in ("{{ bgp.nothing }}", "{% for %}", "neighbor nowhere {\n"):
        template.write_text(good + broken)
        assert not confd.render()
        assert [path.read_bytes() for path in files(tmp_path)] == before
        assert confd.counters.failed
    template.write_text(good)
    assert confd.render()
    assert not confd.counters.failed


def test_a_changed_peer_reloads_the_speaker_once(view, tmp_path):
    received = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: received.append(number))
    try:
        (tmp_path / "run/bgp").mkdir(parents=True)
        (tmp_path / "run/bgp/calico-bgp.pid").write_text(f"{os.getpid()}\n")
        confd = confd_of(view, tmp_path)
        confd.render()
        assert len(received) == 1
        confd.render()
        assert len(received) == 1
        gone = key_of(RESOURCES[2])
        view.on_updates([Update(gone, None, 2)])
        confd.render()
        assert len(received) == 2
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_what_changes_during_a_pass_belongs_to_the_next(view, tmp_path):
    confd = confd_of(view, tmp_path)
    secret = tmp_path / "secrets/bgp/tor"
    secret.unlink()
    os.mkfifo(secret)  # the pass stops here, in the middle of the view, until somebody writes
    passing = asyncio.ensure_future(confd.render_aside())
    writer = await asyncio.to_thread(secret.open, "w")
    late = BlockAffinityKey("a", "10.65.9.0/26")
    view.on_updates([Update(late, BlockAffinity(state="confirmed"), 2)])
    writer.write("secret")
    writer.close()
    assert await passing
    _, speaker = files(tmp_path)
    blocks = [block["cidr"] for block in json.loads(speaker.read_text())["blocks"]]
    assert blocks == ["10.65.1.0/26"]
    secret.unlink()
    secret.write_text("secret")
    assert await confd.render_aside()
    assert "10.65.9.0/26" in speaker.read_text()


class Asked(Confd):
    """Counts how often the loop wanted to know whether it may render."""

    asked = 0

    @property
    def is_in_sync(self) -> bool:
        self.asked += 1
        return super().is_in_sync


async def test_nothing_is_written_before_the_view_is_in_sync(tmp_path):
    view, changed = DatastoreView(), asyncio.Event()
    sink = ChangeSink(view, changed)
    confd = Asked(view, NodeIdentity("a"), Options(), environment(tmp_path))
    loop = asyncio.ensure_future(daemon._for_ever(confd, changed, Notifier({})))
    sink.on_updates([Update(key_of(resource), resource, 1) for resource in RESOURCES[:2]])
    await until(lambda: confd.asked > 0)
    sink.on_updates([Update(key_of(RESOURCES[2]), RESOURCES[2], 1)])
    asked = confd.asked
    await until(lambda: confd.asked > asked)
    assert confd.counters.passes == 0
    sink.on_status(SyncStatus.IN_SYNC)
    await until(files(tmp_path)[1].exists)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_an_invalid_object_is_warned_of_once_and_the_others_are_rendered(tmp_path, caplog):
    view = DatastoreView(daemon._validated)
    bad = peer("bad", peer_ip="here", as_number=65000)
    view.on_updates([Update(key_of(resource), resource, 1) for resource in (*RESOURCES, bad)])
    view.on_status(SyncStatus.IN_SYNC)
    confd = confd_of(view, tmp_path)
    for _ in range(2):
        assert confd.render()
    (said,) = [r for r in caplog.records if r.getMessage() == "an invalid object is ignored"]
    assert said.fields["key"] == path_of(key_of(bad))
    assert "PeerIP = 'here'" in said.fields["error"]
    written = msgspec.json.decode(files(tmp_path)[1].read_bytes(), type=SpeakerConfig)
    assert "198.51.100.1" in {p.address for p in written.peers}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("..", "top"),
        (".", "top"),
        ("bgp", ".."),
        ("", "tor"),
        ("bgp", ""),
        ("../secrets/bgp", "tor"),
        ("bgp", "../bgp/tor"),
        ("bgp\0", "tor"),
    ],
)
def test_a_secrets_name_reaches_no_other_place(view, tmp_path, name, key):
    confd = confd_of(view, tmp_path)
    (tmp_path / "top").write_text("not a secret")
    (tmp_path / "secrets/top").write_text("not a secret")
    assert confd._secret("bgp", "tor") == 'p"a;s{s}\\ w#ord'
    assert confd._secret(name, key) is None


def test_a_secret_that_is_no_text_is_none(view, tmp_path):
    confd = confd_of(view, tmp_path)
    (tmp_path / "secrets/bgp/raw").write_bytes(b"\xff")
    assert confd._secret("bgp", "raw") is None


def test_only_real_changes_wake_the_loop(view):
    changed = asyncio.Event()
    sink = ChangeSink(view, changed)
    sink.on_updates([Update(key_of(RESOURCES[0]), RESOURCES[0], 5)])
    assert not changed.is_set()
    sink.on_updates([Update(key_of(RESOURCES[0]), None, 6)])
    assert changed.is_set()


WAIT_S = 20.0


class Running:
    """A calico-confd process."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self.folder = folder
        self.log = (folder / "log").open("w+")
        logs = {"CALICO_LOG_DIR": str(folder / "logs"), "CALICO_LIB_DIR": str(folder / "lib")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "confd.daemon", *arguments],
            env=environment(folder) | {"NODENAME": "a"} | logs | environ,
            stdout=self.log,
            stderr=self.log,
        )

    def logged(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.logged()
            time.sleep(0.02)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=WAIT_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(*arguments: str, **environ: str) -> Running:
        made.append(Running(tmp_path, *arguments, **environ))
        return made[-1]

    yield make
    for running in made:
        running.end()


@pytest.mark.parametrize("arguments", [["-onetime"], []])
def test_a_connection_that_can_never_work_ends_with_one_line(launch, tmp_path, arguments):
    missing = str(tmp_path / "ca.pem")
    confd = launch(*arguments, ETCD_ENDPOINTS="https://127.0.0.1:1", ETCD_CA_CERT_FILE=missing)
    assert confd.process.wait(timeout=WAIT_S) == 1, confd.logged()
    said = [line for line in confd.logged().splitlines() if line.startswith("calico-confd:")]
    assert len(said) == 1
    assert missing in said[0]
    assert "Traceback" not in confd.logged()


@pytest.mark.etcd
def test_a_watching_confd_renders_again_on_sighup_and_dumps_on_sigusr1(
    etcd: EtcdCluster, launch, tmp_path: Path
):
    for resource in RESOURCES:
        etcd.ctl("put", path_of(key_of(resource)), encode(resource).decode())
    confd = launch(ETCD_ENDPOINTS=etcd.endpoints[0])
    exabgp, speaker = files(tmp_path)
    confd.until(speaker.exists)
    before = exabgp.read_bytes()
    (tmp_path / "secrets/bgp/tor").write_text("changed")  # nobody watches secrets
    confd.process.send_signal(signal.SIGHUP)
    confd.until(lambda: exabgp.read_bytes() != before)
    confd.process.send_signal(signal.SIGUSR1)
    confd.until(lambda: "state dump written" in confd.logged())
    (path,) = (tmp_path / "logs").glob("calico-confd-*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    dump = json.loads(path.read_text())
    assert dump["confd"]["view"]["in_sync"] is True
    assert dump["confd"]["passes"] >= 2
    assert "changed" not in path.read_text()
    assert confd.end() == 0


@pytest.mark.etcd
def test_a_template_dropped_into_the_folder_is_rendered_without_a_signal(
    etcd: EtcdCluster, launch, tmp_path: Path
):
    for resource in RESOURCES:
        etcd.ctl("put", path_of(key_of(resource)), encode(resource).decode())
    for part in ("templates", "conf.d"):
        shutil.copytree(SHIPPED / part, tmp_path / "c" / part)
    confd = launch("-confdir", str(tmp_path / "c"), ETCD_ENDPOINTS=etcd.endpoints[0])
    confd.until(files(tmp_path)[1].exists)
    motd = tmp_path / "motd"
    (tmp_path / "c/templates/motd.j2").write_text("{{ bgp.node_name }} {{ bgp.router_id }}\n")
    (tmp_path / "c/conf.d/90-motd.toml").write_text(
        f'[template]\nsrc = "motd.j2"\ndest = "{motd}"\nmode = "0640"\n'
    )
    confd.until(motd.exists)
    assert motd.read_text() == "a 192.0.2.9\n"
    assert motd.stat().st_mode & 0o777 == 0o640
    (tmp_path / "c/templates/motd.j2").write_text("{{ bgp.nothing }}")
    confd.until(lambda: "not in force" in confd.logged())
    assert motd.read_text() == "a 192.0.2.9\n"
    assert confd.end() == 0


@pytest.mark.etcd
def test_a_confd_started_before_etcd_waits_with_one_line_and_goes_on(
    etcd_cluster_factory: ClusterFactory, launch, tmp_path: Path
):
    cluster = etcd_cluster_factory()
    (member,) = cluster.members
    for resource in RESOURCES:
        cluster.ctl("put", path_of(key_of(resource)), encode(resource).decode())
    member.kill()
    confd = launch(ETCD_ENDPOINTS=cluster.endpoints[0])
    confd.until(lambda: "waiting for the datastore" in confd.logged())
    confd.process.send_signal(signal.SIGHUP)  # nothing to render yet (C1), and no reason to die
    member.start()
    exabgp, speaker = files(tmp_path)
    confd.until(speaker.exists)
    # Every prefix was refused at least once, each by itself.
    assert confd.logged().count("waiting for the datastore") == 1
    before = exabgp.read_bytes()
    member.kill()
    member.start()
    member.wait_ready()
    cluster.ctl("del", path_of(key_of(RESOURCES[2])))
    confd.until(lambda: exabgp.read_bytes() != before)
    assert confd.end() == 0


@pytest.mark.etcd
def test_a_malformed_object_in_etcd_costs_itself_alone(etcd: EtcdCluster, launch, tmp_path: Path):
    for resource in RESOURCES:
        etcd.ctl("put", path_of(key_of(resource)), encode(resource).decode())
    for kind in ("bgppeers", "nodes", "bgpfilters", "ippools", "bgpconfigurations"):
        etcd.ctl("put", f"/calico/resources/v3/projectcalico.org/{kind}/broken", "{not json")
    invalid = peer("invalid", peer_ip="here", as_number=65000)
    etcd.ctl("put", path_of(key_of(invalid)), encode(invalid).decode())
    confd = launch(ETCD_ENDPOINTS=etcd.endpoints[0])
    exabgp, speaker = files(tmp_path)
    confd.until(speaker.exists)
    assert "198.51.100.1" in exabgp.read_text()
    assert confd.logged().count("a stored value does not parse") == 5
    ignored = [line for line in confd.logged().splitlines() if "object is ignored" in line]
    assert len(ignored) == 6
    assert any("bgppeers/invalid" in line for line in ignored)
    assert confd.end() == 0


@pytest.mark.etcd
def test_onetime_says_why_nothing_is_in_force(etcd: EtcdCluster, launch):
    confd = launch("-onetime", ETCD_ENDPOINTS=etcd.endpoints[0])
    assert confd.process.wait(timeout=WAIT_S) == 1
    assert confd.logged().splitlines()[-1] == (
        "calico-confd: nothing rendered: the node has no BGP configuration yet"
    )


@pytest.mark.etcd
def test_noop_changes_nothing_and_a_stage_file_is_kept_when_asked(
    etcd: EtcdCluster, launch, tmp_path: Path
):
    for resource in RESOURCES:
        etcd.ctl("put", path_of(key_of(resource)), encode(resource).decode())
    noop = launch("-onetime", "-noop", ETCD_ENDPOINTS=etcd.endpoints[0])
    assert noop.process.wait(timeout=WAIT_S) == 0, noop.logged()
    assert "would change" in noop.logged()
    exabgp, speaker = files(tmp_path)
    assert not exabgp.exists()
    assert not speaker.exists()
    keep = launch("-onetime", "-keep-stage-file", ETCD_ENDPOINTS=etcd.endpoints[0])
    assert keep.process.wait(timeout=WAIT_S) == 0, keep.logged()
    (kept,) = exabgp.parent.glob(".exabgp*.kept")
    assert kept.read_bytes() == exabgp.read_bytes()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_confdir_without_templates_is_refused_in_one_line(launch, tmp_path: Path):
    confd = launch("-confdir", str(tmp_path), ETCD_ENDPOINTS="http://127.0.0.1:1")
    assert confd.process.wait(timeout=WAIT_S) == 1
    assert confd.logged().splitlines() == [
        f"calico-confd: command line: -confdir = {tmp_path!r}: has no folder templates"
    ]


@pytest.mark.etcd
def test_onetime_against_etcd(etcd: EtcdCluster, tmp_path: Path):
    for resource in RESOURCES:
        etcd.ctl("put", path_of(key_of(resource)), encode(resource).decode())
    arguments = [sys.executable, "-m", "confd.daemon", "-onetime"]
    environ = environment(tmp_path) | {"ETCD_ENDPOINTS": etcd.endpoints[0], "NODENAME": "a"}
    done = subprocess.run(arguments, env=environ, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    speaker = json.loads(files(tmp_path)[1].read_text())
    assert speaker["local_as"] == 64600
    assert daemon.identity_of(environ).name == "a"
