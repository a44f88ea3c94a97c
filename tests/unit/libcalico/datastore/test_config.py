"""libcalico.datastore.config and .srv: calicoctl.cfg, the environment, and DNS answers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from libcalico.datastore import config
from libcalico.datastore.config import ConfigFileError, ConnectionConfig
from libcalico.datastore.srv import SrvRecord, decode_answer, encode_question
from libcalico.datastore.tls import TlsConfig
from libcalico.errors import ConfigError, NotSupported, WireError

GOOD = """
apiVersion: projectcalico.org/v3
kind: CalicoAPIConfig
metadata: {}
spec:
  datastoreType: etcdv3
  etcdEndpoints: "https://a:2379, https://b:2379"
  etcdCACertFile: /p/ca.pem
  etcdCertFile: /p/c.pem
  etcdKeyFile: /p/k.pem
  etcdUsername: user
  etcdPassword: 12345
"""
HEAD = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\n"


def test_a_file_is_read_completely():
    found = config.parse_file(GOOD, "calicoctl.cfg").etcd()
    assert found.endpoints == ("https://a:2379", "https://b:2379")
    assert found.tls == TlsConfig("/p/ca.pem", "/p/c.pem", "/p/k.pem")
    assert (found.username, found.password) == ("user", "12345")


def test_a_daemon_takes_its_environment_before_the_operators_file(tmp_path):
    file = tmp_path / "calicoctl.cfg"
    file.write_text(GOOD)
    environ = {"ETCD_ENDPOINTS": "http://env:1"}
    assert config.for_daemon(environ, file).etcd_endpoints == "http://env:1"
    assert config.for_daemon({"CALICO_ETCD_ENDPOINTS": "http://c:1"}, file).source == "environment"
    assert config.for_daemon({"ETCD_DISCOVERY_SRV": "d"}, file).etcd_discovery_srv == "d"
    assert config.for_daemon({}, file).etcd_username == "user"
    assert config.for_daemon({}, tmp_path / "none.cfg") == config.from_environment({})


def test_a_child_gets_one_spelling_and_nothing_that_was_overridden():
    environ = {
        "PATH": "/bin",
        "CALICO_ETCD_ENDPOINTS": "http://c:1",
        "ETCD_ENDPOINTS": "http://plain:1",
        "ETCD_KEY_FILE": "/k",
    }
    settled = config.from_environment(environ)
    child = config.to_environment(settled, environ)
    assert child == {"PATH": "/bin", "ETCD_ENDPOINTS": "http://c:1", "ETCD_KEY_FILE": "/k"}
    assert config.from_environment(child) == settled
    from_file = config.parse_file(GOOD, "environment")
    assert config.from_environment(config.to_environment(from_file, environ)) == from_file


def test_a_child_is_not_given_half_a_connection_whose_certificates_are_inline(tmp_path):
    file = tmp_path / "calicoctl.cfg"
    inline = ConnectionConfig(str(file), etcd_endpoints="https://a:1", etcd_ca_cert="PEM")
    file.write_text(config.to_file_text(inline))
    child = config.to_environment(inline, {"DATASTORE_TYPE": "etcdv3", "HOME": "/"})
    assert child == {"HOME": "/"}
    assert config.for_daemon(child, file) == inline


@pytest.mark.parametrize(
    "given",
    [
        config.parse_file(GOOD, "x"),
        ConnectionConfig("x"),
        ConnectionConfig("x", etcd_password="no", etcd_username="0x1F", etcd_endpoints="a: b # c"),
        ConnectionConfig("x", etcd_ca_cert="-----BEGIN\n a\n\nb\n"),
        ConnectionConfig("x", etcd_password='"\\\t\u00e9\U0001f600 '),
        ConnectionConfig("x", datastore_type="kubernetes", etcd_discovery_srv="e" * 300),
    ],
)  # fmt: skip
def test_what_is_written_is_read_back_the_same(given: ConnectionConfig):
    assert config.parse_file(config.to_file_text(given), "x") == given


def test_json_is_yaml_and_names_match_any_case():
    text = (
        '{"apiversion": "projectcalico.org/v3", "Kind": "CalicoAPIConfig",'
        ' "spec": {"ETCDENDPOINTS": "http://a:1"}}'
    )
    assert config.parse_file(text, "x").etcd_endpoints == "http://a:1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "invalid config file: unknown APIVersion ''"),
        ("apiVersion: v1\nkind: CalicoAPIConfig", "invalid config file: unknown APIVersion 'v1'"),
        (
            "apiVersion: projectcalico.org/v3\nkind: IPPool",
            "invalid config file: expected kind 'CalicoAPIConfig', got 'IPPool'",
        ),
        (HEAD + "spec: {etcdEndpoint: x}", 'json: unknown field "etcdEndpoint"'),
        (HEAD + "spek: {}", 'json: unknown field "spek"'),
        (HEAD + "spec: {etcdEndpoints: a, etcdEndpoints: b}", 'key "etcdEndpoints" already set'),
        (HEAD + "spec: {etcdEndpoints: [a, b]}", "json: cannot unmarshal array into Go struct"),
        (HEAD + "spec: [", "syntax error in /etc/x.cfg: failed to parse config as YAML/JSON: "),
        ("- a\n- b", "json: cannot unmarshal into an object"),
    ],
)
def test_a_bad_file_is_refused_with_calicos_words(text: str, said: str):
    with pytest.raises(ConfigFileError) as caught:
        config.parse_file(text, "/etc/x.cfg")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_for_kubernetes_are_accepted_and_do_nothing():
    text = HEAD + "spec: {datastoreType: kubernetes, kubeconfig: /k, k8sClientQPS: 5.5}"
    assert config.parse_file(text, "x").effective_type == "kubernetes"


def test_the_environment_with_the_prefix_wins():
    found = config.from_environment(
        {
            "ETCD_ENDPOINTS": "http://plain:1",
            "CALICO_ETCD_ENDPOINTS": "http://prefixed:1",
            "ETCD_CA_CERT_FILE": "/ca",
            "CALICO_ETCD_USERNAME": "",
            "ETCD_USERNAME": "user",
        }
    )
    assert found.etcd_endpoints == "http://prefixed:1"
    assert found.etcd_ca_cert_file == "/ca"
    assert found.etcd_username == "user"


def test_a_file_that_exists_decides_alone(tmp_path: Path):
    path = tmp_path / "my.cfg"
    path.write_text(HEAD + "spec: {etcdEndpoints: 'http://file:1'}")
    environ = {"ETCD_ENDPOINTS": "http://env:1", "ETCD_USERNAME": "user"}
    found = config.load(path, environ)
    assert (found.etcd_endpoints, found.etcd_username) == ("http://file:1", "")


def test_without_the_default_file_the_environment_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "calicoctl.cfg")
    environ = {"ETCD_ENDPOINTS": "http://env:1"}
    assert config.load(None, environ).etcd_endpoints == "http://env:1"
    assert config.load(tmp_path / "calicoctl.cfg", environ).etcd_endpoints == "http://env:1"
    with pytest.raises(ConfigFileError, match="No such file"):
        config.load(tmp_path / "other.cfg", environ)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "kubernetes"),
        ({"etcd_endpoints": "http://a:1"}, "etcdv3"),
        ({"datastore_type": "kubernetes", "etcd_endpoints": "http://a:1"}, "kubernetes"),
    ],
)
def test_the_type_follows_from_the_endpoints(settings: dict[str, str], expected: str):
    assert ConnectionConfig("x", **settings).effective_type == expected


def test_other_datastores_are_refused_with_advice():
    with pytest.raises(NotSupported, match="ETCD_ENDPOINTS"):
        config.connect(ConnectionConfig("environment"))
    with pytest.raises(ConfigError, match="unknown datastore type: zookeeper"):
        config.connect(ConnectionConfig("x", datastore_type="zookeeper"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "no etcd endpoints specified"),
        ({"etcd_endpoints": " , "}, "no etcd endpoints specified"),
        (
            {"etcd_endpoints": "http://a:1", "etcd_discovery_srv": "example.org"},
            'use either "etcdEndpoints" or "etcdDiscoverySrv"',
        ),
        (
            {"etcd_endpoints": "https://a:1", "etcd_key": "x", "etcd_ca_cert_file": "/ca"},
            "Cannot mix inline certificate-key and certificate / key files",
        ),
        ({"etcd_endpoints": "ftp://a:1"}, "expected http:// or https://"),
        ({"etcd_endpoints": "http://"}, "expected scheme://host:port"),
        ({"etcd_endpoints": "http://a:1/path"}, "expected scheme://host:port"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], said: str):
    with pytest.raises(ConfigError) as caught:
        ConnectionConfig("x", **settings).etcd()
    assert said in str(caught.value)


def test_half_a_login_is_no_login():
    found = ConnectionConfig("x", etcd_endpoints="http://a:1", etcd_username="user").etcd()
    assert found.username == ""


def test_secrets_do_not_show_in_representations():
    found = config.parse_file(GOOD, "x")
    assert "12345" not in repr(found)
    assert "12345" not in repr(found.etcd())


def test_inline_certificates_are_passed_on():
    found = ConnectionConfig(
        "x", etcd_endpoints="https://a:1", etcd_ca_cert="CA", etcd_cert="C", etcd_key="K"
    ).etcd()
    material = found.tls.load()
    assert (material.ca, material.certificate, material.key) == (b"CA", b"C", b"K")


def test_a_certificate_file_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        TlsConfig(ca_file=str(tmp_path / "ca.pem")).load()
    assert str(caught.value) == f"{tmp_path}/ca.pem: etcdCACertFile: No such file or directory"
    with pytest.raises(ConfigError, match="certificate and key go together"):
        TlsConfig(cert="C").load()


def test_a_file_signature_changes_with_the_file(tmp_path: Path):
    path = tmp_path / "ca.pem"
    tls = TlsConfig(ca_file=str(path))
    signatures = [tls.signature()]
    path.write_text("one")
    signatures.append(tls.signature())
    path.write_text("three")
    signatures.append(tls.signature())
    other = tmp_path / "other"
    other.write_text("seven")
    other.rename(path)
    signatures.append(tls.signature())
    assert len(set(signatures)) == 4
    assert tls.signature() == signatures[-1]


# ---- SRV records -------------------------------------------------------------------------------


def labels(name: str) -> bytes:
    parts = name.split(".")
    return b"".join(bytes([len(part)]) + part.encode() for part in parts) + b"\0"


def srv(priority: int, weight: int, port: int, target: bytes) -> bytes:
    data = struct.pack(">HHH", priority, weight, port) + target
    return b"\xc0\x0c" + struct.pack(">HHIH", 33, 1, 60, len(data)) + data


def dns_answer(*records: bytes, identifier: int = 7, flags: int = 0x8180) -> bytes:
    question = encode_question("_etcd-client._tcp.example.org", identifier)[12:]
    header = struct.pack(">HHHHHH", identifier, flags, 1, len(records), 0, 0)
    return header + question + b"".join(records)


def test_a_question_is_well_formed():
    question = encode_question("_x._tcp.example.org", 7)
    assert question == (
        b"\0\x07\x01\0\0\x01\0\0\0\0\0\0" + labels("_x._tcp.example.org") + b"\0\x21\0\x01"
    )


def test_records_are_read_with_and_without_compression():
    # 0xc0 0x1f points at "example.org" inside the question.
    offset = 12 + len(b"\x0c_etcd-client\x04_tcp")
    answer = dns_answer(
        srv(10, 5, 2379, labels("a.example.org")),
        srv(0, 1, 2380, b"\x01b" + struct.pack(">H", 0xC000 | offset)),
    )
    assert decode_answer(answer, 7) == (
        SrvRecord(10, 5, 2379, "a.example.org"),
        SrvRecord(0, 1, 2380, "b.example.org"),
    )


def test_a_name_that_does_not_exist_has_no_records():
    assert decode_answer(dns_answer(flags=0x8183), 7) == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        dns_answer(identifier=8),
        dns_answer(flags=0x0100),
        dns_answer(srv(1, 1, 1, labels("a")))[:-3],
        dns_answer(srv(1, 1, 1, b"\xc0\x3a" * 2)),  # a name that points at itself
    ],
)
def test_malformed_answers_are_wire_errors(data: bytes):
    with pytest.raises(WireError):
        decode_answer(data, 7)
