"""calicoctl bgp: what an operator sees of a speaker with a BIRD neighbour, and of none."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
import yaml

from calicoctl.main import run
from tests.peers.base import Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.speaker import CalicoBgp
from tests.support.netns import eventually

OURS, THEIRS = "10.65.1.0/26", "10.65.2.0/26"


class Ctl:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        found = run(["bgp", *words])
        out, err = self._capsys.readouterr()
        assert found == code, (out, err)
        if code:
            assert out == ""
            assert err.count("\n") == 1, err
        return err if code else out


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fabric: Fabric) -> Ctl:
    monkeypatch.setenv("CALICO_RUN_DIR", str(fabric.directory / "calico1"))
    return Ctl(capsys)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_an_operator_looks_at_a_running_speaker(fabric: Fabric, ctl: Ctl):
    ours, bird = CalicoBgp(fabric, 1, blocks=(OURS,)), Bird(fabric, 2, routes=(THEIRS,))
    ours.configure(Neighbour(bird.v4))
    bird.configure(Neighbour(ours.v4, is_passive=True))
    bird.start()
    ours.start()
    ours.wait_kernel(THEIRS, "proto bgp")
    bird.wait_learned(OURS)
    assert rows(ctl("peers"))[1][:4] == ["Mesh_10_99_0_2", bird.v4, "64512", "Established"]
    assert json.loads(ctl("peers", "-o", "json"))["peers"][0]["received"] == 1
    by_cidr = {row[0]: row[1:4] for row in rows(ctl("routes")) if row}
    assert by_cidr[OURS] == ["-", "block", "2147482623"]
    assert by_cidr[THEIRS] == [bird.v4, "Mesh_10_99_0_2", "100"]
    assert rows(ctl("route", THEIRS))[1][-1] == "best"
    assert "via 10.99.0.2" in ctl("route", THEIRS)
    assert rows(ctl("advertised", bird.v4))[1][:2] == [OURS, ours.v4]
    assert rows(ctl("received", bird.v4))[1][0] == THEIRS
    shown = ctl("explain", OURS)
    assert "it is a block of this node" in shown
    found = yaml.safe_load(ctl("explain", THEIRS, "--peer", bird.v4, "-o", "yaml"))
    assert found["paths"][0]["outcome"] == "best"
    assert found["peers"] == [
        {
            "peer": bird.v4,
            "name": "Mesh_10_99_0_2",
            "told": False,
            "why": "the best path came from it",
        }
    ]
    assert "10.99.9.9" in ctl("advertised", "10.99.9.9", code=1)
    assert "not an address" in ctl("received", "nobody", code=1)
    assert "10.1.2.0/24" in ctl("explain", "10.1.2.0/24", code=1)
    assert "cidr" in ctl("route", "nonsense", code=1)


def test_a_speaker_that_does_not_run(ctl: Ctl):
    for words in (("peers",), ("routes",), ("explain", THEIRS), ("received", "10.0.0.1")):
        assert ctl(*words, code=1).startswith("calico-bgp is not running here (")


def test_metrics_are_served_when_asked_for_and_a_bad_setting_is_one_line(fabric: Fabric):
    ours = CalicoBgp(fabric, 1, blocks=(OURS,))
    ours.netns.run("ip", "link", "set", "lo", "up")
    ours.configure(Neighbour("10.99.0.2"))
    ours.settings_of_environment = {"BGP_PROMETHEUSMETRICSENABLED": "true"}
    ours.start()

    def fetch() -> str:
        with (
            contextlib.suppress(OSError),
            ours.netns.call(lambda: socket.create_connection(("127.0.0.1", 9092), 5)) as sock,
        ):
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return sock.makefile().read()
        return ""

    assert eventually(lambda: 'bgp_peer_up{name="Mesh_10_99_0_2",peer="10.99.0.2"} 0.0' in fetch())
    ours.stop()
    (ours.directory / "log").write_text("")
    ours.settings_of_environment = {"BGP_PROMETHEUSMETRICSPORT": "many"}
    ours.start()
    assert ours.process is not None
    assert ours.process.wait(timeout=10) == 1
    assert ours.log().count("\n") == 1
    assert "BGP_PROMETHEUSMETRICSPORT" in ours.log() or "PrometheusMetricsPort" in ours.log()
