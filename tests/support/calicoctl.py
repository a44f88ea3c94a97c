"""calicoctl in this process against the session's etcd; the fixture is imported by conftest."""

from __future__ import annotations

from pathlib import Path

import pytest

from calicoctl.main import run
from libcalico.testing.etcd import EtcdCluster


class Ctl:
    """Runs commands; `out` and `err` are the last one's."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys, self._folder = capsys, folder
        self.out = self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = run(arguments)
        self.out, self.err = self._capsys.readouterr()
        assert found == code, (self.out, self.err)
        assert "Traceback" not in self.err
        return self.out

    def file(self, text: str, name: str = "x.yaml") -> str:
        path = self._folder / name
        path.write_text(text)
        return str(path)


@pytest.fixture
def ctl(
    etcd: EtcdCluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Ctl:
    monkeypatch.setenv("ETCD_ENDPOINTS", etcd.endpoints[0])
    monkeypatch.setenv("DATASTORE_TYPE", "etcdv3")
    return Ctl(capsys, tmp_path)
