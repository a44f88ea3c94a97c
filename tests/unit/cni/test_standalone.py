"""cni.standalone: which node a DEL without felix is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni.standalone import node_of


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "nodename").write_text("written\n")
    (tmp_path / "other").write_text("elsewhere\n")
    return {"CALICO_LIB_DIR": str(tmp_path), "HOSTNAME": "Host"}


def test_the_configurations_members_come_before_their_equals(environ, tmp_path):
    other, missing = str(tmp_path / "other"), str(tmp_path / "missing")
    assert node_of({"nodename": "Given"}, environ | {"NODENAME": "env"}) == "Given"
    assert node_of({"nodename_file": other}, environ | {"NODENAME": " env "}) == "env"
    assert node_of({"nodename_file": other, "hostname": "h"}, environ) == "elsewhere"
    assert node_of({"hostname": "h"}, environ) == "written"
    assert node_of({"nodename_file": missing, "hostname": "Old"}, environ) == "Old"
    assert node_of({"nodename_file": missing}, environ) == "host"
