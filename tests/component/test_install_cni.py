"""`calico-node install-cni --watch` as a process: what it installed stays installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
TEMPLATE = '{"name": "%s", "type": "calico", "etcd_key_file": "__ETCD_KEY_FILE__"}'


class Installer:
    """Files of one host in a folder, and the process that looks after them."""

    def __init__(self, folder: Path) -> None:
        self.bin_dir, self.conf_dir = folder / "bin", folder / "net.d"
        self.client, self.conf = self.bin_dir / "calico", self.conf_dir / "10-calico.conf"
        self.template, self.secrets = folder / "etc/template", folder / "secrets"
        for file, text in (
            (self.template, TEMPLATE % "first"),
            (self.secrets / "etcd-key", "first key"),
        ):
            file.parent.mkdir()
            file.write_text(text)
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "CALICO_CNI_CLIENT": "python",
            "CALICO_RUN_DIR": str(folder / "run"),
            "CALICO_LIB_DIR": str(folder / "lib"),
            "CALICO_LOG_DIR": str(folder / "log"),
            "CNI_CONF_NAME": self.conf.name,
            "CNI_NETWORK_CONFIG_FILE": str(self.template),
            "TLS_ASSETS_DIR": str(self.secrets),
            "NODENAME": "node-1",
        }
        self._log = folder / "installer.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> Path:
        return self.conf_dir / "calico-tls/etcd-key"

    def start(self) -> None:
        command = [sys.executable, "-m", "calicoctl.node.main", "install-cni", "--watch"]
        command += ["--bin-dir", str(self.bin_dir), "--conf-dir", str(self.conf_dir)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)

    def until(self, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not check():
            assert time.monotonic() < deadline, self.log()
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        return self._log.read_text()


def has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


@pytest.fixture
def installer(tmp_path: Path) -> Iterator[Installer]:
    made = Installer(tmp_path)
    made.start()
    made.until(lambda: "watching" in made.log())
    assert has(made.conf, "first")
    yield made
    assert made.process is not None
    made.process.terminate()
    assert made.process.wait(timeout=20) == 0, made.log()
    assert "Traceback" not in made.log()
    assert has(made.conf, "name"), "everything stays installed"


def test_what_is_removed_comes_back(installer):
    before = installer.client.read_text()
    installer.client.unlink()
    installer.until(installer.client.exists)
    assert installer.client.read_text() == before
    installer.conf.unlink()
    installer.until(lambda: has(installer.conf, "first"))
    installer.key.unlink()
    installer.until(lambda: has(installer.key, "first key"))
    # And whole folders, which the watch loses with them.
    for folder, file in (
        (installer.conf_dir, installer.conf),
        (installer.bin_dir, installer.client),
    ):
        shutil.rmtree(folder)
        installer.until(file.exists)
        file.unlink()
        installer.until(file.exists)


def test_what_another_calico_writes_over_it_is_replaced(installer):
    before = installer.client.read_text()
    installer.client.write_bytes(b"\x7fELF another release")
    installer.until(lambda: installer.client.read_bytes() == before.encode())
    other = installer.conf.with_name("theirs.tmp")
    other.write_text(TEMPLATE % "theirs")
    other.replace(installer.conf)
    installer.until(lambda: has(installer.conf, "first"))


def test_new_templates_and_certificates_are_installed(installer):
    installer.template.write_text(TEMPLATE % "second")
    installer.until(lambda: has(installer.conf, "second"))
    # As the kubelet rotates a secret: a link that is renamed over the old one.
    (installer.secrets / "next").write_text("second key")
    (installer.secrets / "link").symlink_to("next")
    (installer.secrets / "link").replace(installer.secrets / "etcd-key")
    installer.until(lambda: has(installer.key, "second key"))
    assert installer.key.stat().st_mode & 0o777 == 0o600


def test_a_template_that_breaks_is_told_of_and_changes_nothing(installer):
    installer.template.write_text("{")
    installer.until(lambda: "trying again" in installer.log())
    assert has(installer.conf, "first")
    installer.template.write_text(TEMPLATE % "mended")
    installer.until(lambda: has(installer.conf, "mended"))


def test_sighup_has_it_look(installer):
    # A hard link changes the file behind the watched folder's back.
    hidden = installer.conf_dir.parent / "hidden"
    os.link(installer.conf, hidden)
    count = installer.log().count('"installed"')
    hidden.write_text(TEMPLATE % "hidden")
    assert has(installer.conf, "hidden")
    installer.process.send_signal(signal.SIGHUP)
    installer.until(lambda: has(installer.conf, "first"))
    # The file is there a moment before the line about it.
    installer.until(lambda: installer.log().count('"installed"') > count)


def test_a_first_installation_that_fails_ends_with_one_line(tmp_path):
    made = Installer(tmp_path)
    made.bin_dir.write_text("a file, no folder")
    made.start()
    assert made.process.wait(timeout=20) == 1
    said = made.log().strip().splitlines()
    assert len(said) == 1
    assert str(made.bin_dir) in said[0]
