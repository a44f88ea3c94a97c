"""libcalico.model.validation_metadata: names, labels, annotations (datamodel 4.2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libcalico.model.codec import decode
from libcalico.model.validation import problems

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = LABEL + r"(\." + LABEL + ")*"
NAME = f"(name must consist of lower case alphanumeric characters, '-' or '.' (regex: {SUBDOMAIN}))"
SIMPLE = f"(name must consist of lower case alphanumeric characters or '-' (regex: {LABEL}))"
QUALIFIED = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for"
    " validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
SPECS: dict[str, dict[str, Any]] = {
    "IPPool": {"cidr": "10.0.0.0/16"},
    "HostEndpoint": {"node": "n", "interfaceName": "*"},
}


def failures(kind: str, **metadata: Any) -> list[str]:
    if kind in ("NetworkPolicy", "StagedNetworkPolicy"):
        metadata["namespace"] = "prod"
    document = {"kind": kind, "metadata": metadata, "spec": SPECS.get(kind, {})}
    return [error.detail() for error in problems(decode(kind, json.dumps(document).encode(), 1))]


NAMES: list[tuple[str, str, list[str]]] = [
    ("IPPool", "a.b-c.0", []),
    ("IPPool", "A", [f"Metadata.Name = 'A' {NAME}"]),
    ("IPPool", "a..b", [f"Metadata.Name = 'a..b' {NAME}"]),
    ("IPPool", "-a", [f"Metadata.Name = '-a' {NAME}"]),
    ("IPPool", "a\n", [f"Metadata.Name = 'a\n' {NAME}"]),
    ("IPPool", "a" * 253, []),
    ("IPPool", "a" * 255, [f"Metadata.Name = '{'a' * 255}' (name is too long by 2 bytes)"]),
    ("Tier", "tier-1", []),
    ("Tier", "a.b", [f"Metadata.Name = 'a.b' {SIMPLE}"]),
    ("Tier", "t" * 64, [f"Metadata.Name = '{'t' * 64}' (name is too long by 1 bytes)"]),
    ("NetworkPolicy", "allow-web", []),
    ("NetworkPolicy", "default.allow-web", []),
    ("NetworkPolicy", "knp.default.a.b.c", []),
    ("NetworkPolicy", "ossg.default.9f0e", []),
    ("NetworkPolicy", "a.b.c", [f"Metadata.Name = 'a.b.c' {SIMPLE}"]),
    ("NetworkPolicy", "A", [f"Metadata.Name = 'A' {NAME}", f"Metadata.Name = 'A' {SIMPLE}"]),
    ("StagedNetworkPolicy", "knp.default.x", []),
    ("GlobalNetworkPolicy", "a.b", []),
    ("GlobalNetworkPolicy", "knp.default.x", [f"Metadata.Name = 'knp.default.x' {SIMPLE}"]),
    ("StagedGlobalNetworkPolicy", "a.b.c", [f"Metadata.Name = 'a.b.c' {SIMPLE}"]),
    (
        "ClusterInformation",
        "mine",
        [
            "Metadata.Name = 'mine' (Cannot create a Cluster Information resource with a name"
            ' other than "default")'
        ],
    ),
    (
        "KubeControllersConfiguration",
        "mine",
        [
            "Metadata.Name = 'mine' (Cannot create a Kube Controllers Configuration resource with"
            ' a name other than "default")'
        ],
    ),
    (
        "IPAMConfiguration",
        "mine",
        [
            "Metadata.Name = 'mine' (Cannot create an IPAM Configuration resource with a name"
            ' other than "default")'
        ],
    ),
]


@pytest.mark.parametrize(("kind", "name", "expected"), NAMES)
def test_a_name(kind, name, expected):
    assert failures(kind, name=name) == expected


LABELS: list[tuple[dict[str, str], list[str]]] = [
    ({"a": "b", "example.com/A_b.c": "", "projectcalico.org/x": "V-1"}, []),
    ({"": "x"}, ["name part must be non-empty", f"name part {QUALIFIED}"]),
    ({"a b": "x"}, [f"name part {QUALIFIED}"]),
    (
        {"a/b/c": "x"},
        [
            f"a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g."
            " 'example.com/MyName')"
        ],
    ),
    ({"/a": "x"}, ["prefix part must be non-empty"]),
    (
        {"Bad/a": "x"},
        [
            "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric"
            " characters, '-' or '.', and must start and end with an alphanumeric character (e.g."
            f" 'example.com', regex used for validation is '{SUBDOMAIN}')"
        ],
    ),
    ({"n" * 64: "x"}, ["name part must be no more than 63 bytes"]),
]


@pytest.mark.parametrize(("labels", "reasons"), LABELS)
def test_a_label_key(labels, reasons):
    (key,) = labels if reasons else (None,)
    assert failures("IPPool", name="p", labels=labels) == [
        f"Metadata.Labels (label) = '{key}' ({reason})" for reason in reasons
    ]


def test_a_label_value():
    value = "-no"
    assert failures("IPPool", name="p", labels={"a": value}) == [
        f"Metadata.Labels (value) = '{value}' (a valid label must be an empty string or consist of"
        " alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
        " character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
        " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?'))"
    ]
    assert failures("IPPool", name="p", labels={"a": "v" * 64}) == [
        f"Metadata.Labels (value) = '{'v' * 64}' (must be no more than 63 bytes)"
    ]


def test_an_annotation_key_is_judged_in_lower_case_and_its_value_is_free():
    assert failures("IPPool", name="p", annotations={"Example.COM/x": "any \n thing"}) == []
    assert failures("IPPool", name="p", annotations={"a b": ""}) == [
        f"Metadata.Annotations (key) = 'a b' (name part {QUALIFIED})"
    ]


def test_annotations_have_a_total_size():
    size = 256 * 1024
    assert failures("IPPool", name="p", annotations={"k": "v" * (size - 1)}) == []
    assert failures("IPPool", name="p", annotations={"k": "v" * (size + 6)}) == [
        "Metadata.Annotations (key) (total size of annotations is too large by 7 bytes)"
    ]
