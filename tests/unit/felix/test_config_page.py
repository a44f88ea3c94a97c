"""felix.config_page: the reference page says what the tables say."""

from __future__ import annotations

from pathlib import Path

import felix
from felix import config_page, daemon
from felix.config import SCHEMA
from felix.config_inert import FACTS

COMMITTED = Path(felix.__file__).parent / "PARAMETERS.md"


def row(name: str) -> list[str]:
    """The cells of one parameter, wherever it stands."""
    lines = [line for line in config_page.page().splitlines() if line.startswith(f"| {name} |")]
    assert len(lines) == 1, name
    return [cell.strip() for cell in lines[0].split(" | ")]


def test_the_committed_page_is_current():
    """Else: calico-felix parameters > felix/PARAMETERS.md"""
    assert COMMITTED.read_text(encoding="utf-8") == config_page.page()


def test_every_parameter_that_somebody_can_set_stands_there_once():
    for param in SCHEMA.params:
        if param.attribute not in FACTS:
            assert row(param.name)[1] == f"`{param.env_name}`"


def test_defaults_are_written_as_they_would_be_typed():
    shown = {name: row(name)[2] for name in ("IPv4NormalRoutePriority", "RouteRefreshInterval")}
    assert shown == {"IPv4NormalRoutePriority": "`1024`", "RouteRefreshInterval": "`90s`"}
    assert row("Ipv6Support")[2] == "`true`"
    assert row("KubeNodePortRanges")[2] == "`30000-32767`"
    assert row("FailsafeOutboundHostPorts")[2].startswith("`udp:53,udp:67,tcp:179,")
    assert row("NftablesMarkMask")[2] == "`0xffff0000`"
    assert row("NATOutgoingAddress")[2] == ""


def test_what_has_no_effect_is_said_to_have_none():
    assert row("BPFEnabled")[3] == "accepted, no effect yet |"
    assert row("VXLANVNI")[3].startswith("accepted, no effect yet; in Calico: ")
    assert "no effect" not in row("InterfacePrefix")[3]
    assert row("InterfacePrefix")[3].endswith("*restart* |")


def test_the_page_is_printed_on_request(capsys):
    assert daemon.main(["parameters"]) == 0
    assert capsys.readouterr().out == config_page.page()
