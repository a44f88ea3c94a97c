"""calicoctl.results, .boxes and usage texts: the messages of datamodel 6.1, 6.5, 6.8."""

from __future__ import annotations

import pytest

from calicoctl.boxes import draw, percent
from calicoctl.main import run
from calicoctl.results import Outcome
from libcalico.errors import NotFound

ERROR = NotFound("IPPool(x)")
TEXT = "resource does not exist: IPPool(x) with error: <nil>"


def outcome(verb: str, kinds: list[str], handled: int, errors: int) -> tuple[str, str]:
    made = Outcome(verb, kinds, handled, [ERROR] * errors)
    error = made.error()
    return made.stdout(), "" if error is None else str(error)


@pytest.mark.parametrize(
    ("verb", "kinds", "handled", "errors", "expected"),
    [
        ("create", ["IPPool"], 1, 0, ("Successfully created 1 'IPPool' resource(s)", "")),
        ("apply", ["IPPool", "Node"], 2, 0, ("Successfully applied 2 resource(s)", "")),
        ("validate", ["Node"] * 3, 3, 0, ("Successfully validated 3 'Node' resource(s)", "")),
        ("create", ["IPPool"], 0, 1, ("", f"failed to create 'IPPool' resource: [{TEXT}]")),
        (
            "apply",
            ["IPPool"] * 2,
            0,
            2,
            ("", f"failed to apply any 'IPPool' resources: [{TEXT} {TEXT}]"),
        ),
        (
            "create",
            ["IPPool", "Node"],
            0,
            2,
            ("", f"failed to create any resources: [{TEXT} {TEXT}]"),
        ),
        (
            "create",
            ["IPPool"] * 3,
            2,
            1,
            (
                "Partial success: created the first 2 out of 3 'IPPool' resources:",
                f"hit error: [{TEXT}]",
            ),
        ),
        (
            "replace",
            ["IPPool"],
            1,
            1,
            (
                "Partial success: replaced the first 1 out of 1 'IPPool' resources:",
                f"hit error: {TEXT}",
            ),
        ),
        ("delete", ["IPPool"], 0, 1, ("", f"Failed to delete 'IPPool' resource: {TEXT}")),
        (
            "delete",
            ["IPPool"] * 2,
            1,
            1,
            (
                "Successfully deleted 1 'IPPool' resource(s)",
                f"Failed to delete 'IPPool' resource: {TEXT}",
            ),
        ),
    ],
)
def test_messages(verb, kinds, handled, errors, expected):
    assert outcome(verb, kinds, handled, errors) == expected


def test_a_box_as_the_data_model_draws_it():
    headers = ("GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE")
    rows = [
        ["IP Pool", "10.10.0.0/16", "65536", percent(3, 65536), "0 (0%)", percent(65533, 65536)],
        ["Block", "10.10.3.64/26", "64", percent(3, 64), "0 (0%)", percent(61, 64)],
    ]
    rule = "+----------+---------------+-----------+------------+--------------+--------------+"
    assert draw(headers, rows, right=(2, 3, 4, 5)).splitlines() == [
        rule,
        "| GROUPING | CIDR          | IPS TOTAL | IPS IN USE | IPS RESERVED | IPS FREE     |",
        rule,
        "| IP Pool  | 10.10.0.0/16  |     65536 |     3 (0%) |       0 (0%) | 65533 (100%) |",
        "| Block    | 10.10.3.64/26 |        64 |     3 (5%) |       0 (0%) |     61 (95%) |",
        rule,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jump"], 'unknown command "jump" for "calicoctl"'),
        (["get", "pools", "--nope"], "unknown flag: --nope"),
        (["-l", "loud", "version"], "unknown log level: loud, expected one of: panic"),
        (["get", "pods"], "resource type 'pods' is not supported"),
        (["get", "pools", "-o", "xml"], "unrecognized output format 'xml'"),
        (["get", "np", "-A", "-n", "x"], "cannot use both --namespace and --all-namespaces"),
        (["get", "nodes", "-n", "x"], "Node is not a namespaced resource"),
        (["get", "np", "p", "-A"], "cannot use --all-namespace flag for getting a single"),
        (["create", "-f", "/no/such/file"], "open /no/such/file: no such file or directory"),
        (["create"], 'required flag(s) "filename" not set'),
        (["delete", "pool"], "delete needs KIND and NAME"),
        (["delete", "pool", ""], "resource name may not be empty"),
        (["patch", "pool", "a"], 'required flag(s) "patch" not set'),
        (["label", "pool", "a", "x"], "invalid label x"),
        (["ipam", "configure"], "at least one configuration option must be specified"),
        (["get", "nodes", "-c", "/no/such.cfg"], "/no/such.cfg"),
        (["patch", "node"], "accepts 2 arg(s), received 1"),
        (["patch", "node", "a", "b"], "accepts 2 arg(s), received 3"),
        (["label", "node", "x"], "requires at least 3 arg(s), only received 2"),
        (["ipam", "foo"], 'unknown command "foo" for "calicoctl ipam"'),
        (["version", "extra"], 'unknown command "extra" for "calicoctl version"'),
        (["get", "pools", "-o"], "flag needs an argument: -o"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_1(arguments, message, capsys):
    assert run(arguments) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_semantic_faults_of_several_documents_name_object_and_document(tmp_path, capsys):
    pool = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: NAME}\n"
    good, bad = (pool + "spec: {cidr: CIDR}\n").split("CIDR")[0], "10.0.0.1/8}\n"
    file = tmp_path / "x.yaml"
    text = good.replace("NAME", "a") + "10.0.0.0/8}\n---\n" + good.replace("NAME", "b") + bad
    file.write_text(text)
    assert run(["validate", "-f", str(file)]) == 1
    captured = capsys.readouterr()
    assert "IPPool CIDR is not strictly masked" in captured.err
    assert "(IPPool(b), document 2)" in captured.err
    file.write_text(good.replace("NAME", "b") + bad)
    assert run(["validate", "-f", str(file)]) == 1
    assert "document" not in capsys.readouterr().err, "with one document Calico's text is enough"
