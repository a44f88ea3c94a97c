"""libcalico.runtime.nodename: the order of places, and what is put in lower case."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from libcalico.model.names import node_name
from libcalico.runtime import nodename

HOST = {"HOSTNAME": "Host.Example"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"CALICO_LIB_DIR": str(tmp_path)} | HOST


def test_a_chosen_name_is_used_as_it_is_but_trimmed(environ, tmp_path):
    (tmp_path / "nodename").write_text("stored\n")
    assert nodename.resolve(environ | {"NODENAME": " Node-1\n"}) == "Node-1"


def test_then_what_calico_node_wrote(environ, tmp_path):
    nodename.nodename_file(environ).write_text("Stored\n")
    for unset in ({}, {"NODENAME": ""}, {"NODENAME": " "}):
        assert nodename.resolve(environ | unset) == "Stored"


def test_then_the_hosts_name_in_lower_case(environ, tmp_path):
    assert nodename.resolve(environ) == "host.example"
    (tmp_path / "nodename").write_bytes(b"\xff\n")  # not text: as if it were not there
    assert nodename.resolve(environ) == "host.example"
    (tmp_path / "nodename").write_text("\n")
    assert nodename.resolve(environ | {"HOSTNAME": " "}) == node_name(os.uname().nodename)


def test_a_caller_may_have_another_file_and_host_name(environ, tmp_path):
    (tmp_path / "nodename").write_text("stored\n")
    other = tmp_path / "other"
    assert nodename.resolve(environ, file=other, hostname="Given") == "Given"
    other.write_text("elsewhere")
    assert nodename.resolve(environ, file=other, hostname="Given") == "elsewhere"
