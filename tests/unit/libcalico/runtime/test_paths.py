"""libcalico.runtime.paths: every place has a default and can be moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from libcalico.runtime import paths


def test_the_standard_places():
    assert paths.run_dir({}) == Path("/var/run/calico")
    assert paths.lib_dir({}) == Path("/var/lib/calico")
    assert paths.log_dir({}) == Path("/var/log/calico")
    assert paths.cni_socket({}) == Path("/var/run/calico/cni.sock")
    assert paths.bgp_dir({}) == Path("/var/run/calico/bgp")
    assert paths.cni_datastore_file({}) == Path("/var/lib/calico/cni-datastore.cfg")


def test_every_place_can_be_moved():
    environ = {"CALICO_RUN_DIR": "/r", "CALICO_LIB_DIR": "/l", "CALICO_LOG_DIR": "/g"}
    found = [paths.run_dir(environ), paths.lib_dir(environ), paths.log_dir(environ)]
    assert found == [Path("/r"), Path("/l"), Path("/g")]
    assert paths.cni_socket(environ) == Path("/r/cni.sock")
    assert paths.cni_datastore_file(environ) == Path("/l/cni-datastore.cfg")


def test_an_empty_variable_is_no_place():
    assert paths.run_dir({"CALICO_RUN_DIR": ""}) == Path("/var/run/calico")


def test_without_an_argument_the_process_environment_decides(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CALICO_RUN_DIR", "/elsewhere")
    assert paths.run_dir() == Path("/elsewhere")
