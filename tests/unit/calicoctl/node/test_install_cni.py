"""calicoctl.node.install_cni: what Calico's variables make of an installation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calicoctl.node.install_cni import Folders, once, plan
from libcalico.errors import ConfigError

TEMPLATE = """{"name": "mine", "cniVersion": "0.3.1", "plugins": [
  {"type": "calico", "nodename": "__KUBERNETES_NODE_NAME__", "mtu": __CNI_MTU__,
   "etcd_ca_cert_file": "__ETCD_CA_CERT_FILE__", "etcd_cert_file": "__ETCD_CERT_FILE__",
   "etcd_key_file": "__ETCD_KEY_FILE__", "etcd_endpoints": "__ETCD_ENDPOINTS__",
   "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}]}"""


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "bin", tmp_path / "net.d")


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("CALICO_CNI_CLIENT", "python")
    return {
        "CALICO_RUN_DIR": str(tmp_path / "run"),
        "CALICO_LIB_DIR": str(tmp_path / "lib"),
        "NODENAME": "node-1",
    }


def conf(folders: Folders, name: str = "10-calico.conflist") -> dict:
    return json.loads((folders.conf_dir / name).read_text())


def test_everything_is_installed_and_a_second_time_changes_nothing(folders, environ):
    assert [path.name for path in once(folders, environ)] == [
        "calico",
        "calico-ipam",
        "10-calico.conflist",
    ]
    assert once(folders, environ) == []
    assert conf(folders)["plugins"][0]["type"] == "calico"


def test_a_template_is_filled_in(folders, environ, tmp_path):
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "etcd-ca").write_text("the ca")
    (secrets / "etcd-key").write_text("the key")
    given = {
        "CNI_NETWORK_CONFIG": TEMPLATE,
        "CNI_NET_DIR": "/etc/cni/net.d",
        "CNI_MTU": "1400",
        "ETCD_ENDPOINTS": "https://192.0.2.2:2379",
        "ETCD_CERT_FILE": "/etc/calico/cert.pem",
        "TLS_ASSETS_DIR": str(secrets),
    }
    once(folders, environ | given)
    assert conf(folders)["plugins"][0] == {
        "type": "calico",
        "nodename": "node-1",
        "mtu": 1400,
        "etcd_endpoints": "https://192.0.2.2:2379",
        # Copied ones where the runtime sees them, otherwise the host's own.
        "etcd_ca_cert_file": "/etc/cni/net.d/calico-tls/etcd-ca",
        "etcd_cert_file": "/etc/calico/cert.pem",
        "etcd_key_file": "/etc/cni/net.d/calico-tls/etcd-key",
        "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"},
    }
    key = folders.conf_dir / "calico-tls/etcd-key"
    assert (key.read_text(), key.stat().st_mode & 0o777) == ("the key", 0o600)


def test_a_template_in_a_file_wins(folders, environ, tmp_path):
    file = tmp_path / "template"
    file.write_text(TEMPLATE.replace("mine", "of-the-file"))
    given = {"CNI_NETWORK_CONFIG": TEMPLATE, "CNI_NETWORK_CONFIG_FILE": str(file)}
    once(folders, environ | given)
    assert conf(folders)["name"] == "of-the-file"
    file.unlink()
    with pytest.raises(ConfigError, match="CNI_NETWORK_CONFIG_FILE"):
        once(folders, environ | given)


def test_another_name_replaces_our_configuration_and_nobody_elses(folders, environ):
    folders.conf_dir.mkdir()
    bridge = folders.conf_dir / "05-bridge.conflist"
    bridge.write_text('{"name": "b", "plugins": [{"type": "bridge"}]}')
    once(folders, environ)
    once(folders, environ | {"CNI_CONF_NAME": "20-calico.conflist"})
    names = sorted(path.name for path in folders.conf_dir.iterdir())
    assert names == ["05-bridge.conflist", "20-calico.conflist"]
    given = {"CNI_CONF_NAME": "20-calico.conflist", "CNI_OLD_CONF_NAME": bridge.name}
    once(folders, environ | given)
    assert bridge.exists()


def test_executables_may_be_left_out_or_kept(folders, environ):
    once(folders, environ | {"SKIP_CNI_BINARIES": "bandwidth, calico-ipam"})
    assert [path.name for path in folders.bin_dir.iterdir()] == ["calico"]
    (folders.bin_dir / "calico").write_text("theirs")
    once(folders, environ | {"UPDATE_CNI_BINARIES": "false"})
    assert (folders.bin_dir / "calico").read_text() == "theirs"
    assert (folders.bin_dir / "calico-ipam").exists()
    once(folders, environ)
    assert (folders.bin_dir / "calico").read_text() != "theirs"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CNI_MTU", "big"),
        ("CNI_CONF_NAME", "calico.txt"),
        ("UPDATE_CNI_BINARIES", "perhaps"),
        ("TLS_ASSETS_DIR", "/no/such/folder"),
        ("CNI_NETWORK_CONFIG_FILE", "/no/such/file"),
        ("CNI_NETWORK_CONFIG", "{"),
    ],
)
def test_a_bad_variable_is_named_and_nothing_is_installed(folders, environ, variable, value):
    with pytest.raises(ConfigError, match=variable):
        once(folders, environ | {variable: value})
    assert not folders.bin_dir.exists()
    assert not folders.conf_dir.exists()


def test_a_template_that_is_no_text_is_refused(folders, environ, tmp_path):
    file = tmp_path / "template"
    file.write_bytes(b"\xff\xfe{")
    with pytest.raises(ConfigError, match="CNI_NETWORK_CONFIG_FILE"):
        plan(folders, environ | {"CNI_NETWORK_CONFIG_FILE": str(file)})
