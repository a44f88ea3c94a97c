"""cni.standalone: which node a DEL without felix is for, and an answer whatever happens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cni import standalone
from cni.skel import Invocation
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


def test_members_that_are_no_text_count_as_absent(environ):
    wrong = {"nodename": 7, "nodename_file": [], "hostname": {}}
    assert node_of(wrong, environ) == "written"
    assert node_of({"nodename_file": "a\0b", "hostname": "h"}, environ) == "h"


class Broken(Mapping[str, str]):
    """An environment that nobody thought of."""

    def __getitem__(self, name: str) -> str:
        raise RuntimeError(f"cannot read {name}")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


async def test_what_nobody_thought_of_is_an_error_in_cnis_form():
    variables = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"}
    conf = json.dumps({"cniVersion": "1.0.0", "name": "net"}).encode()
    invocation = Invocation("calico", variables | {"CNI_PATH": "/x"}, conf)
    answer = await standalone.run(invocation, Broken())
    error = json.loads(answer.stdout)
    assert (answer.exit_code, error["cniVersion"], error["code"]) == (1, "1.0.0", 999)
    assert error["msg"].startswith("RuntimeError: cannot read ")
    assert "test_standalone.py:" in error["details"]
