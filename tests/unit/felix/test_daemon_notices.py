"""felix.daemon_notices: what has no effect is said, by name and source, once."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from felix import daemon
from felix.config import SCHEMA
from felix.daemon_notices import GapNotices, InertNotices, inert_notices
from felix.intent import (
    HostEndpointRemove,
    HostEndpointUpdate,
    Intent,
    PoolRemove,
    PoolUpdate,
)
from libcalico.model.keys import ResourceKey
from libcalico.runtime.config import Layer, LiveConfig, Source

ENVIRON = {"NODENAME": "n1", "ETCD_ENDPOINTS": "http://127.0.0.1:2379"}


def live(**values: str) -> LiveConfig:
    return LiveConfig(SCHEMA, [Layer(Source.ENVIRONMENT, values, "environment")])


def test_only_what_somebody_has_set_is_named_with_its_source():
    config = live(VXLANVNI="5", InterfacePrefix="tap")
    config.set_layer(Layer(Source.DATASTORE_GLOBAL, {"XDPEnabled": "false", "Variant": "Calico"}))
    assert inert_notices(config) == [
        "datastore global: XDPEnabled: accepted, no effect yet",
        "environment: VXLANVNI: accepted, no effect yet",
    ]
    assert inert_notices(live()) == []
    assert inert_notices(live(XDPEnabled="true")) == []


def test_each_is_said_once_and_again_when_it_comes_back(caplog):
    config = live(VXLANVNI="5")
    notices = InertNotices(config)

    def said() -> int:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            notices.say()
        return len(caplog.records)

    assert [said(), said()] == [1, 0]
    config.set_layer(Layer(Source.ENVIRONMENT, {}))
    assert said() == 0
    config.set_layer(Layer(Source.ENVIRONMENT, {"VXLANVNI": "5"}))
    assert said() == 1


def run(monkeypatch: pytest.MonkeyPatch, *argv: str, **environ: str) -> int:
    for name, value in {**ENVIRON, **environ}.items():
        monkeypatch.setenv(name, value)
    return daemon.main(argv)


@pytest.mark.parametrize("command", ["run", "check-config"])
@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("FELIX_DATASTORETYPE", "kubernetes", "only etcdv3 is supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused_at_start_in_one_line(
    monkeypatch, capsys, tmp_path: Path, command, variable, value, why
):
    file = tmp_path / "felix.cfg"
    file.write_text("")
    code = run(monkeypatch, "-c", str(file), command, **{variable: value})
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 1
    assert why in line
    assert value in line


def test_check_config_names_what_has_no_effect(monkeypatch, capsys, tmp_path: Path):
    file = tmp_path / "felix.cfg"
    file.write_text("RouteSource = WorkloadIPs\n")
    assert run(monkeypatch, "-c", str(file), "check-config", FELIX_NFTABLESMODE="Auto") == 0
    said = capsys.readouterr()
    assert said.out == "configuration is good\n"
    assert said.err == "calico-felix: file: RouteSource: accepted, no effect yet\n"


class Gaps:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.notices, self._caplog = GapNotices(), caplog

    def said(self, *intents: Intent) -> list[str]:
        self._caplog.clear()
        with self._caplog.at_level(logging.WARNING):
            for intent in intents:
                self.notices.on_intent(intent)
            self.notices.complete_deferred_work()
        return [
            " ".join([record.getMessage(), *map(str, record.fields.values())])
            for record in self._caplog.records
        ]


@pytest.fixture
def gaps(caplog: pytest.LogCaptureFixture) -> Gaps:
    return Gaps(caplog)


def test_each_host_endpoint_that_ignores_policies_is_said_once(gaps):
    key = ResourceKey("HostEndpoint", "all")
    enforced = HostEndpointUpdate(key, "*", (), (), ())
    ignoring = replace(enforced, ignores_untracked=True)
    assert gaps.said(enforced) == []
    (line,) = gaps.said(ignoring)
    assert "ignores doNotTrack policies" in line
    assert "all" in line
    assert gaps.said(ignoring) == []
    assert gaps.said(enforced) == []
    assert len(gaps.said(ignoring)) == 1
    assert gaps.said(HostEndpointRemove(key)) == []
    assert len(gaps.said(ignoring)) == 1


@pytest.mark.parametrize(
    "modes", [("Always", "Never"), ("Never", "CrossSubnet")], ids=("ipip", "vxlan")
)
def test_each_pool_that_wants_tunnels_is_said_once(gaps, modes):
    (line,) = gaps.said(PoolUpdate("10.0.0.0/16", False, *modes))
    assert "no tunnels yet" in line
    assert "10.0.0.0/16" in line
    assert gaps.said(PoolUpdate("10.0.0.0/16", True, *modes)) == []
    assert gaps.said(PoolUpdate("10.1.0.0/16", True)) == []
    assert gaps.said(PoolUpdate("10.0.0.0/16", True)) == []
    assert len(gaps.said(PoolUpdate("10.0.0.0/16", True, *modes))) == 1
    assert gaps.said(PoolRemove("10.0.0.0/16")) == []
    assert len(gaps.said(PoolUpdate("10.0.0.0/16", True, *modes))) == 1
