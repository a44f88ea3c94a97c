"""cni.skel: the specification's checklist (reference/cni.md 2), one test a row."""

from __future__ import annotations

import json

import pytest

from cni import skel
from cni.skel import CniError, Code, Invocation, Verb

CONF = {"cniVersion": "1.0.0", "name": "net", "type": "calico"}
ENVIRON = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
}


def parse(environ=None, conf=None, stdin=None, **changes):
    variables = {**(ENVIRON if environ is None else environ), **changes}
    variables = {name: value for name, value in variables.items() if value is not None}
    body = json.dumps(CONF if conf is None else conf).encode() if stdin is None else stdin
    return skel.parse(Invocation("calico", variables, body))


def refusal(**arguments) -> CniError:
    with pytest.raises(CniError) as caught:
        parse(**arguments)
    return caught.value


def test_a_complete_request_is_taken_apart():
    request = parse(CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_NAMESPACE=prod;X=y")
    assert (request.verb, request.container_id, request.ifname) == (Verb.ADD, "c1", "eth0")
    assert request.args["K8S_POD_NAME"] == "web"
    assert (request.network, request.version) == ("net", "1.0.0")


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        ("ADD", "CNI_CONTAINERID"),
        ("ADD", "CNI_NETNS"),
        ("ADD", "CNI_IFNAME"),
        ("ADD", "CNI_PATH"),
        ("CHECK", "CNI_NETNS"),
        ("DEL", "CNI_CONTAINERID"),
        ("DEL", "CNI_IFNAME"),
        ("GC", "CNI_PATH"),
        ("STATUS", "CNI_PATH"),
    ],
)
def test_a_missing_variable_is_code_4_and_named(verb, missing):
    for absent in (None, ""):
        error = refusal(CNI_COMMAND=verb, **{missing: absent})
        assert error.code == Code.INVALID_ENVIRONMENT
        assert error.msg == f"required env variables [{missing}] missing"


def test_all_missing_variables_are_named_at_once():
    error = refusal(environ={"CNI_COMMAND": "ADD", "CNI_PATH": "/p"})
    assert "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME]" in error.msg


def test_del_needs_no_netns():
    assert parse(CNI_COMMAND="DEL", CNI_NETNS=None).netns == ""


def test_an_unknown_command_is_code_4():
    error = refusal(CNI_COMMAND="JUMP")
    assert (error.code, error.msg) == (4, "unknown CNI_COMMAND: JUMP")


@pytest.mark.parametrize("bad", ["-c", "a b", "a/b", ".x", "ä"])
def test_a_bad_container_id_is_code_4(bad):
    assert refusal(CNI_CONTAINERID=bad).code == 4


@pytest.mark.parametrize("bad", ["a" * 16, ".", "..", "a/b", "a:b", "a b", "a\tb"])
def test_a_bad_interface_name_is_code_4(bad):
    assert refusal(CNI_IFNAME=bad).code == 4


@pytest.mark.parametrize("stdin", [b"", b"{", b"[]", b"7", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_stdin_that_is_no_json_object_is_code_6(stdin):
    assert refusal(stdin=stdin).code == Code.DECODE_FAILURE


@pytest.mark.parametrize("name", [None, "", "a b", "-x", 7])
def test_a_bad_network_name_is_code_7(name):
    assert refusal(conf={**CONF, "name": name}).code == Code.INVALID_CONFIG


@pytest.mark.parametrize("version", ["2.0.0", "1.2.0", "0.9", "latest"])
def test_an_unknown_version_is_code_1_with_details(version):
    error = refusal(conf={**CONF, "cniVersion": version})
    assert (error.code, error.msg) == (1, "incompatible CNI versions")
    assert error.details == f'config is "{version}", plugin supports [{SUPPORTED}]'


SUPPORTED = "0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0"


def test_verbs_that_came_later_need_their_version():
    for verb, version in (("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "0.4.0")):
        assert refusal(CNI_COMMAND=verb, conf={**CONF, "cniVersion": version}).code == 1
    assert parse(CNI_COMMAND="CHECK", conf={**CONF, "cniVersion": "0.4.0"}).verb is Verb.CHECK


def test_no_version_means_the_oldest():
    assert parse(conf={"name": "net"}).version == "0.1.0"


@pytest.mark.parametrize("args", ["A", "A=b=c", "A=b;", ";", "=;x"])
def test_args_that_are_not_pairs_are_code_4(args):
    assert refusal(CNI_ARGS=args + ";IgnoreUnknown=1").code == 4


def test_unknown_args_are_refused_unless_they_may_be_ignored():
    assert refusal(CNI_ARGS="FOO=1").code == 4
    assert parse(CNI_ARGS="FOO=1;IgnoreUnknown=true").args["FOO"] == "1"


def test_version_answers_whatever_stdin_holds():
    for stdin in (b"", b"junk", b"[]", b'{"cniVersion": "0.4.0"}', b'{"cniVersion": 7}'):
        answer = skel.version_answer(stdin)
        body = json.loads(answer.stdout)
        assert answer.exit_code == 0
        assert body["supportedVersions"] == SUPPORTED.split()
    assert (
        json.loads(skel.version_answer(b'{"cniVersion":"0.4.0"}').stdout)["cniVersion"] == "0.4.0"
    )


def test_an_error_is_json_on_stdout_with_a_failing_exit():
    answer = skel.failure(CniError(11, "later", "why"), "0.4.0")
    assert answer.exit_code != 0
    assert json.loads(answer.stdout) == {
        "cniVersion": "0.4.0",
        "code": 11,
        "msg": "later",
        "details": "why",
    }


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_python_takes_for_a_number_and_json_does_not_is_code_6(number):
    error = refusal(stdin=b'{"cniVersion": "1.0.0", "name": "net", "x": %s}' % number.encode())
    assert (error.code, error.msg) == (6, f"error unmarshall network config: {number} is not JSON")


@pytest.mark.parametrize(("levels", "code"), [(99, 0), (100, 6), (400, 6), (100_000, 6)])
def test_a_configuration_is_not_nested_without_end(levels, code):
    opened, closed = b'{"x":' * levels, b"}" * levels
    stdin = b'{"cniVersion": "1.0.0", "name": "net", "x": ' + opened + b"1" + closed + b"}"
    if code:
        assert refusal(stdin=stdin).code == code
    else:
        assert parse(stdin=stdin).network == "net"


def test_many_members_side_by_side_are_not_deep():
    assert parse(conf={**CONF, "x": [[]] * 500}).network == "net"
