"""Users' documents: what is read, what is refused, and that every error says where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libcalico import model
from libcalico.errors import InvalidInput
from libcalico.model import codec, documents
from libcalico.model.documents import DocumentErrors, read_documents, read_resources, resource_from

PREFIX = "error unmarshaling JSON: while decoding JSON: "


def _yaml(kind: str, spec: str, metadata: str = "{name: a}") -> str:
    return f"apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {metadata}\nspec: {spec}\n"


def _one(text: str) -> Any:
    (resource,) = read_resources(text)
    return resource


def _errors(text: str | bytes) -> list[tuple[int, str, str]]:
    return [
        (error.document, error.path, error.reason)
        for document in read_documents(text)
        for error in document.errors
    ]


POOL = """\
apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: pool-a
  labels: {team: net}
spec:
  cidr: 10.10.0.0/16
  ipipMode: CrossSubnet
  natOutgoing: true
  blockSize: 26
  allowedUses: [Workload, Tunnel]
"""
POOL_OBJECT = model.IPPool(
    metadata=model.ObjectMeta(name="pool-a", labels={"team": "net"}),
    spec=model.IPPoolSpec(
        cidr="10.10.0.0/16",
        ipip_mode="CrossSubnet",
        nat_outgoing=True,
        block_size=26,
        allowed_uses=("Workload", "Tunnel"),
    ),
)
POOL_JSON = json.dumps(
    {
        "kind": "IPPool",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "pool-a", "labels": {"team": "net"}},
        "spec": {
            "cidr": "10.10.0.0/16",
            "ipipMode": "CrossSubnet",
            "natOutgoing": True,
            "blockSize": 26,
            "allowedUses": ["Workload", "Tunnel"],
        },
    },
    indent="\t",
)


@pytest.mark.parametrize("text", [POOL, POOL_JSON, POOL.encode(), "\ufeff" + POOL, "---\n" + POOL])
def test_yaml_and_json_give_the_same_object(text: str | bytes) -> None:
    assert read_resources(text) == (POOL_OBJECT,)


def test_member_names_match_in_any_case() -> None:
    assert read_resources(POOL.replace("cidr", "CIDR").replace("spec", "Spec")) == (POOL_OBJECT,)
    assert read_resources(POOL.replace("kind", "Kind").replace("apiVersion", "APIVERSION")) == (
        POOL_OBJECT,
    )


def test_documents_are_separated_by_lines_that_begin_with_dashes() -> None:
    text = f"---\n{POOL}--- this line is discarded\n# nothing\n---\n\n---\r\n{POOL_JSON}"
    found = read_documents(text)
    assert [(document.number, document.resources) for document in found] == [
        (1, (POOL_OBJECT,)),
        (2, (POOL_OBJECT,)),
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "---\n---\n", "# comment", "null", b""])
def test_nothing_is_no_document(text: str | bytes) -> None:
    assert read_documents(text) == ()


def test_a_list_object_and_an_array_give_their_items() -> None:
    body = json.loads(POOL_JSON)
    item = {"metadata": body["metadata"], "spec": body["spec"]}
    listing = {
        "kind": "IPPoolList",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"resourceVersion": "12"},
        "items": [item, body],
    }
    assert read_resources(json.dumps(listing)) == (POOL_OBJECT, POOL_OBJECT)
    assert read_resources(json.dumps([body, listing])) == (POOL_OBJECT,) * 3
    empty = {"kind": "IPPoolList", "apiVersion": "projectcalico.org/v3", "items": None}
    assert read_resources(json.dumps(empty)) == ()


def test_unquoted_values_become_text_where_text_is_wanted() -> None:
    labels = "{a: 5, b: yes, c: 1.50, d: null, e: 0x10, f: 1000000.0, g: 2026-01-01}"
    pool = _one(_yaml("IPPool", "{cidr: 10.0.0.0/8}", f"{{name: 12, labels: {labels}}}"))
    assert pool.metadata.name == "12"
    assert pool.metadata.labels == {
        "a": "5",
        "b": "true",
        "c": "1.5",
        "d": "",
        "e": "16",
        "f": "1e+06",
        "g": "2026-01-01",
    }


def test_null_is_absent_and_whole_floats_are_integers() -> None:
    pool = _one(_yaml("IPPool", "{cidr: x, blockSize: 26.0, natOutgoing: null, nodeSelector: }"))
    assert pool.spec == model.IPPoolSpec(cidr="x", block_size=26)
    tier = _one(_yaml("Tier", "{order: 10}"))
    assert tier.spec.order == 10.0
    assert isinstance(tier.spec.order, float)


def test_values_come_out_in_the_form_that_is_stored() -> None:
    policy = _one(
        _yaml(
            "GlobalNetworkPolicy",
            "{ingress: [{action: Allow, protocol: '6', notProtocol: UDP,"
            " destination: {ports: ['80', 443, '8000:8080', '9:9', http]}}]}",
        )
    )
    (rule,) = policy.spec.ingress
    assert (rule.protocol, rule.not_protocol) == (6, "UDP")
    assert rule.destination.ports == (80, 443, "8000:8080", 9, "http")
    peer = _one(
        _yaml("BGPPeer", "{asNumber: '1.10', localASNumber: 4200000000, maxRestartTime: 90s}")
    )
    assert (peer.spec.as_number, peer.spec.local_as_number) == (65546, 4200000000)
    assert peer.spec.max_restart_time == "1m30s"


def test_free_form_members_are_kept_as_they_are() -> None:
    spec = (
        "{podSelector: {matchLabels: {a: b}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}"
    )
    policy = _one(_yaml("StagedKubernetesNetworkPolicy", spec))
    assert policy.spec.pod_selector == {"matchLabels": {"a": "b"}}
    assert policy.spec.ingress == ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},)


@pytest.mark.parametrize(
    ("kind", "spec", "path", "reason"),
    [
        (
            "IPPool",
            "{disabled: 'x'}",
            "spec.disabled",
            "json: cannot unmarshal string into Go struct field IPPoolSpec.spec.disabled"
            " of type bool",
        ),
        ("IPPool", "{bogus: 1}", "spec.bogus", 'json: unknown field "bogus"'),
        (
            "IPPool",
            "{cidr: [1]}",
            "spec.cidr",
            "json: cannot unmarshal array into Go struct field IPPoolSpec.spec.cidr of type string",
        ),
        (
            "IPPool",
            "{allowedUses: Workload}",
            "spec.allowedUses",
            "json: cannot unmarshal string into Go struct field IPPoolSpec.spec.allowedUses"
            " of type []string",
        ),
        (
            "IPPool",
            "{allowedUses: [Workload, {}]}",
            "spec.allowedUses[1]",
            "json: cannot unmarshal object into Go struct field IPPoolSpec.spec.allowedUses"
            " of type string",
        ),
        (
            "IPPool",
            "{blockSize: 26.5}",
            "spec.blockSize",
            "json: cannot unmarshal number 26.5 into Go struct field IPPoolSpec.spec.blockSize"
            " of type int",
        ),
        (
            "IPPool",
            "{blockSize: yes}",
            "spec.blockSize",
            "json: cannot unmarshal bool into Go struct field IPPoolSpec.spec.blockSize"
            " of type int",
        ),
        (
            "IPPool",
            "{blockSize: .inf}",
            "spec.blockSize",
            "json: unsupported value: +Inf",
        ),
        (
            "BGPPeer",
            "{asNumber: -1}",
            "spec.asNumber",
            "json: cannot unmarshal number into Go struct field BGPPeerSpec.spec.asNumber"
            " of type string",
        ),
        (
            "BGPPeer",
            "{asNumber: 4294967296}",
            "spec.asNumber",
            "json: cannot unmarshal number into Go struct field BGPPeerSpec.spec.asNumber"
            " of type string",
        ),
        ("BGPPeer", "{asNumber: x}", "spec.asNumber", "invalid AS Number format"),
        (
            "BGPPeer",
            "{ttlSecurity: 300}",
            "spec.ttlSecurity",
            "json: cannot unmarshal number 300 into Go struct field BGPPeerSpec.spec.ttlSecurity"
            " of type uint8",
        ),
        (
            "BGPPeer",
            "{keepaliveTime: 5x}",
            "spec.keepaliveTime",
            'time: unknown unit "x" in duration "5x"',
        ),
        (
            "BGPPeer",
            "{keepaliveTime: 90}",
            "spec.keepaliveTime",
            "json: cannot unmarshal number into Go struct field BGPPeerSpec.spec.keepaliveTime"
            " of type string",
        ),
        (
            "NetworkPolicy",
            "{egress: [{action: Allow}, {destination: {ports: [80, 65536]}}]}",
            "spec.egress[1].destination.ports[1]",
            "json: cannot unmarshal number 65536 into Go struct field"
            " EntityRule.spec.egress.destination.ports of type uint16",
        ),
        (
            "NetworkPolicy",
            "{egress: [{destination: {ports: ['1:65536']}}]}",
            "spec.egress[0].destination.ports[0]",
            "invalid maximum port number in range (1:65536)",
        ),
        (
            "NetworkPolicy",
            "{egress: [{destination: {ports: ['65535:1']}}]}",
            "spec.egress[0].destination.ports[0]",
            "minimum port number (65535) is greater than maximum port number (1) in port range",
        ),
        (
            "NetworkPolicy",
            "{egress: [{protocol: 300}]}",
            "spec.egress[0].protocol",
            "json: cannot unmarshal number 300 into Go struct field Rule.spec.egress.protocol"
            " of type uint8",
        ),
        (
            "NetworkPolicy",
            "{egress: [{protocol: [TCP]}]}",
            "spec.egress[0].protocol",
            "json: cannot unmarshal array into Go struct field Rule.spec.egress.protocol"
            " of type uint8",
        ),
        (
            "NetworkPolicy",
            "{ingress: [Allow]}",
            "spec.ingress[0]",
            "json: cannot unmarshal string into Go struct field NetworkPolicySpec.spec.ingress"
            " of type v3.Rule",
        ),
        (
            "Tier",
            "{order: high}",
            "spec.order",
            "json: cannot unmarshal string into Go struct field TierSpec.spec.order"
            " of type float64",
        ),
        (
            "Tier",
            "[]",
            "spec",
            "json: cannot unmarshal array into Go struct field Tier.spec of type v3.TierSpec",
        ),
        (
            "Profile",
            "{labelsToApply: {a: [1]}}",
            "spec.labelsToApply.a",
            "json: cannot unmarshal array into Go struct field ProfileSpec.spec.labelsToApply.a"
            " of type string",
        ),
        (
            "Profile",
            "{labelsToApply: x}",
            "spec.labelsToApply",
            "json: cannot unmarshal string into Go struct field ProfileSpec.spec.labelsToApply"
            " of type map[string]string",
        ),
        (
            "BlockAffinity",
            "{deleted: maybe}",
            "spec.deleted",
            "json: cannot unmarshal string into Go struct"
            " field BlockAffinitySpec.spec.deleted of type bool",
        ),
        (
            "FelixConfiguration",
            "{istioDSCPMark: 999}",
            "spec.istioDSCPMark",
            "json: cannot unmarshal number"
            " 999 into Go struct field FelixConfigurationSpec.spec.istioDSCPMark of type uint8",
        ),
        (
            "StagedKubernetesNetworkPolicy",
            "{podSelector: {a: .nan}}",
            "spec.podSelector.a",
            "json: unsupported value: NaN",
        ),
        (
            "IPPool",
            "{cidr: x, CIDR: y}",
            "spec.CIDR",
            'json: field "cidr" is given twice, in different case',
        ),
    ],
)
def test_a_wrong_member_is_named_in_gos_words(kind: str, spec: str, path: str, reason: str) -> None:
    assert _errors(_yaml(kind, spec)) == [(1, path, PREFIX + reason)]


def test_every_error_is_reported_with_its_document_and_field() -> None:
    bad_list = json.dumps(
        {
            "kind": "BGPPeerList",
            "apiVersion": "projectcalico.org/v3",
            "more": 1,
            "metadata": {"resourceVersion": []},
            "items": [{"spec": {"node": {}}}, 7],
        }
    )
    text = "\n---\n".join(
        [
            _yaml(
                "IPPool", "{disabled: x, blockSize: y, bogus: 1}", "{name: a, labels: [], zone: 1}"
            ),
            POOL,
            "a: 1\nb: 2\na: 3",
            f"[{POOL_JSON}, 7, {bad_list}]",
            "just text",
        ]
    )
    assert [(number, path) for number, path, _ in _errors(text)] == [
        (1, "metadata.labels"),
        (1, "metadata.zone"),
        (1, "spec.disabled"),
        (1, "spec.blockSize"),
        (1, "spec.bogus"),
        (3, ""),
        (4, "[1]"),
        (4, "[2].more"),
        (4, "[2].metadata.resourceVersion"),
        (4, "[2].items[0].spec.node"),
        (4, "[2].items[1]"),
        (5, ""),
    ]
    found = read_documents(text)
    assert found[1].resources == (POOL_OBJECT,), "a good document is not spoiled by a bad one"
    assert [bool(document.resources) for document in found] == [False, True, False, False, False]
    with pytest.raises(DocumentErrors) as caught:
        read_resources(text)
    assert len(caught.value.errors) == 12
    assert str(caught.value).splitlines()[2] == (
        f"{PREFIX}json: cannot unmarshal string into Go struct field IPPoolSpec.spec.disabled"
        " of type bool (document 1, field spec.disabled)"
    )


def test_a_syntax_error_has_the_line_in_the_file() -> None:
    text = f"{POOL}---\na: 1\na: 2\n"
    line = POOL.count("\n") + 3
    reason = f'error converting YAML to JSON: yaml: line {line}: key "a" already set in map'
    assert _errors(text) == [(2, "", reason)]
    assert str(read_documents(text)[1].errors[0]) == reason + " (document 2)"


@pytest.mark.parametrize(
    ("head", "kind", "version"),
    [
        ({"kind": "Foo", "apiVersion": "projectcalico.org/v3"}, "Foo", "projectcalico.org/v3"),
        ({"kind": "IPPool", "apiVersion": "v1"}, "IPPool", "v1"),
        ({"kind": "IPPool"}, "IPPool", ""),
        ({"apiVersion": "projectcalico.org/v3"}, "", "projectcalico.org/v3"),
        (
            {"kind": "FooList", "apiVersion": "projectcalico.org/v3"},
            "FooList",
            "projectcalico.org/v3",
        ),
        ({"kind": "List", "apiVersion": "projectcalico.org/v3"}, "List", "projectcalico.org/v3"),
        ({"kind": 5, "apiVersion": "projectcalico.org/v3"}, "5", "projectcalico.org/v3"),
    ],
)
def test_an_unknown_kind_or_version_is_refused(
    head: dict[str, Any], kind: str, version: str
) -> None:
    reason = f"unknown resource type ({kind}) and/or version ({version})"
    assert _errors(json.dumps(head)) == [(1, "", reason)]


def test_the_items_of_a_list_must_be_a_list() -> None:
    head = {"kind": "TierList", "apiVersion": "projectcalico.org/v3", "items": {}}
    reason = "json: cannot unmarshal object into Go struct field TierList.items of type []v3.Tier"
    assert _errors(json.dumps(head)) == [(1, "items", PREFIX + reason)]


def test_duplicate_members_are_refused_in_json_too() -> None:
    text = POOL_JSON.replace('"natOutgoing": true', '"natOutgoing": true, "natOutgoing": true')
    ((_, _, reason),) = _errors(text.replace("\t", " "))
    assert 'key "natOutgoing" already set in map' in reason


def test_a_document_that_is_too_large_is_refused() -> None:
    text = "# " + "x" * documents.MAX_DOCUMENT_BYTES
    assert [error[2] for error in _errors(text)] == ["document is larger than 10485760 bytes"]


def test_a_flood_of_errors_is_cut() -> None:
    members = ", ".join(f"x{i}: 1" for i in range(500))
    found = _errors(_yaml("IPPool", "{" + members + "}"))
    assert len(found) == documents.MAX_ERRORS_PER_DOCUMENT


@pytest.mark.parametrize("text", [b"\xff\xfe", b"kind: \xc3\x28"])
def test_bytes_that_are_not_utf8_are_refused(text: bytes) -> None:
    ((number, _, reason),) = _errors(text)
    assert number == 1
    assert "invalid UTF-8" in reason


def test_deeply_nested_json_is_refused() -> None:
    for depth in (150, 900, 100_000):
        ((_, _, reason),) = _errors("[" * depth + "]" * depth)
        assert "depth" in reason


def test_one_resource_from_plain_values() -> None:
    assert resource_from(json.loads(POOL_JSON)) == POOL_OBJECT
    with pytest.raises(InvalidInput, match="unknown resource type"):
        resource_from({"kind": "Foo"})
    with pytest.raises(InvalidInput, match="exactly one"):
        resource_from([])


def test_what_is_written_can_be_read_again() -> None:
    shown = codec.to_shown(POOL_OBJECT)
    assert resource_from(shown) == POOL_OBJECT
