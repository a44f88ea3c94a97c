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
from libcalico.syncer.api import SyncStatus, Update
from libcalico.testing.etcd import EtcdCluster


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


def test_only_real_changes_wake_the_loop(view):
    changed = asyncio.Event()
    sink = ChangeSink(view, changed)
    sink.on_updates([Update(key_of(RESOURCES[0]), RESOURCES[0], 5)])
    assert not changed.is_set()
    sink.on_updates([Update(key_of(RESOURCES[0]), None, 6)])
    assert changed.is_set()


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
