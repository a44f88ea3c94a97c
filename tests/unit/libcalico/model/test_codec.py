"""Stored bytes <-> objects: what is read, what is written, what survives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from libcalico import model
from libcalico.errors import DecodeError, InvalidInput
from libcalico.model import codec
from libcalico.model.keys import (
    BlockAffinityKey,
    BlockKey,
    FelixStatusKey,
    HandleKey,
    IpamConfigKey,
    IpamHostKey,
    ResourceKey,
    SubnetKey,
    UnknownKind,
    WorkloadEndpointStatusKey,
)

POOL = ResourceKey("IPPool", "a")


def _stored(obj: model.Model, **kwargs: Any) -> dict[str, Any]:
    value = json.loads(codec.encode(obj, **kwargs))
    assert isinstance(value, dict)
    return value


def _decode(kind: str, value: Any, revision: int = 7) -> Any:
    return codec.decode(kind, json.dumps(value).encode(), revision)


# --- reading ---


def test_the_revision_is_the_resource_version_whatever_is_stored() -> None:
    pool = _decode("IPPool", {"metadata": {"name": "a", "resourceVersion": "99"}}, 2**40)
    assert pool.metadata.resource_version == str(2**40)


def test_member_names_match_in_any_case_and_the_last_spelling_wins() -> None:
    raw = b"""{"KIND":"IPPool","APIVERSION":"x","Metadata":{"NAME":"a"},
        "SPEC":{"CIDR":"10.0.0.0/8","natoutgoing":false,"NATOUTGOING":true,"natOutgoing":false,
        "NatOutgoing":true,"BLOCKsize":27}}"""
    pool = codec.decode(POOL, raw, 1)
    assert pool.metadata.name == "a"
    assert pool.spec == model.IPPoolSpec(cidr="10.0.0.0/8", nat_outgoing=True, block_size=27)


def test_of_members_spelled_the_same_the_last_place_counts() -> None:
    raw = b'{"spec":{"cidr":"1.0.0.0/8","CIDR":"2.0.0.0/8","cidr":"3.0.0.0/8"}}'
    assert codec.decode(POOL, raw, 1).spec.cidr == "3.0.0.0/8"


def test_null_is_absent() -> None:
    policy = _decode(
        "NetworkPolicy",
        {
            "metadata": {"name": "a", "labels": None, "annotations": None, "uid": None},
            "spec": {
                "ingress": None,
                "order": None,
                "selector": None,
                "egress": [{"action": "Allow", "source": {"nets": None}, "destination": None}],
                "types": None,
            },
        },
    )
    assert policy.metadata.labels == {}
    assert policy.spec.ingress == ()
    assert policy.spec.egress == (model.Rule(action="Allow", source=model.EntityRule()),)


def test_null_inside_a_list_or_map_is_gos_zero_value() -> None:
    node_set = _decode("NetworkSet", {"spec": {"nets": ["10.0.0.0/8", None]}})
    assert node_set.spec.nets == ("10.0.0.0/8", "")
    profile = _decode("Profile", {"spec": {"labelsToApply": {"a": None}, "ingress": [None]}})
    assert profile.spec.labels_to_apply == {"a": ""}
    assert profile.spec.ingress == (model.Rule(),)


def test_missing_members_have_their_defaults() -> None:
    endpoint = _decode("WorkloadEndpoint", {})
    assert endpoint.metadata.labels == {}
    assert endpoint.spec == model.WorkloadEndpointSpec()
    node = _decode("Node", {"metadata": {"name": "n"}})
    assert node.status == model.NodeStatus()


def test_numbers_that_came_as_strings_are_numbers() -> None:
    peer = _decode("BGPPeer", {"spec": {"asNumber": "64512", "localASNumber": "1.10"}})
    assert (peer.spec.as_number, peer.spec.local_as_number) == (64512, 65546)
    rule = {"ACTION": "Allow", "protocol": "6", "destination": {"ports": ["80", "9:9", "a b"]}}
    policy = _decode("GlobalNetworkPolicy", {"spec": {"ingress": [rule]}})
    assert policy.spec.ingress[0].protocol == 6
    assert policy.spec.ingress[0].destination.ports == (80, 9, "a b"), "a bad one is as given"
    affinity = _decode("BlockAffinity", {"spec": {"deleted": True}})
    assert affinity.spec.deleted == "true"


def test_a_policy_of_a_foreign_writer_is_read() -> None:
    # As networking-calico writes them: no tier, types, order, labels or annotation.
    policy = _decode(
        "NetworkPolicy",
        {
            "kind": "NetworkPolicy",
            "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "ossg.default.x", "namespace": "openstack"},
            "spec": {"ingress": [{"action": "Allow", "ipVersion": 4}], "selector": "has(sg)"},
        },
    )
    assert policy.metadata.name == "ossg.default.x"
    assert policy.spec.types == ()
    assert policy.spec.ingress[0].ip_version == 4


def test_an_object_without_a_name_takes_that_of_its_key() -> None:
    key = ResourceKey("NetworkSet", "a", "ns")
    assert codec.decode(key, b'{"spec":{}}', 1).metadata == model.ObjectMeta(
        name="a", namespace="ns", resource_version="1"
    )


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b'{"spec":[]}', "Expected `object`, got `array` - at `$.spec`"),
        (b'{"spec":{"cidr":5}}', "Expected `str`, got `int` - at `$.spec.cidr`"),
        (b'{"spec":{"natOutgoing":"yes"}}', "Expected `bool`, got `str` - at `$.spec.natOutgoing`"),
        (b'{"Spec":{"BlockSize":"x"}}', "Expected `int | null`, got `str` - at `$.spec.blockSize`"),
        (b'{"metadata":{"labels":{"a":1}}}', "Expected `str`, got `int` - at"),
        (b'\xff{"spec":{}}', "malformed"),
        (b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
        (b'{"x":' + b"[" * 300 + b"]" * 300 + b"}", "nested too deeply"),
        (b'{"x":NaN}', "malformed"),
        (b'{"x":' + b"9" * 5000 + b"}", ""),
    ],
)
def test_what_cannot_be_read_is_a_decode_error_with_the_path(raw: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        codec.decode(POOL, raw, 1)
    assert reason in caught.value.reason
    assert caught.value.key == "/calico/resources/v3/projectcalico.org/ippools/a"
    assert caught.value.value == raw


def test_only_known_kinds_and_keys_are_decoded() -> None:
    with pytest.raises(UnknownKind):
        codec.decode("Pod", b"{}", 1)
    with pytest.raises(InvalidInput, match="not ours to decode"):
        codec.decode(SubnetKey("s"), b"{}", 1)
    assert codec.struct_of("Tier") is model.Tier
    assert codec.struct_of(POOL) is model.IPPool


# --- names of tiered policies ---


@pytest.mark.parametrize(
    ("metadata", "tier", "name"),
    [
        (
            {"name": "default.a", "annotations": {"projectcalico.org/metadata": '{"name":"b"}'}},
            "x",
            "b",
        ),
        ({"name": "default.a"}, None, "a"),
        ({"name": "default.a"}, "default", "a"),
        ({"name": "default.a"}, "sec", "default.a"),
        ({"name": "sec.a"}, "sec", "sec.a"),
        ({"name": "a.default.b"}, None, "a.default.b"),
        ({"name": "default.default.a"}, None, "default.a"),
        (
            {"name": "default.a", "annotations": {"projectcalico.org/metadata": "not json"}},
            None,
            "a",
        ),
        ({"name": "default.a", "annotations": {"projectcalico.org/metadata": "[1]"}}, None, "a"),
        (
            {"name": "default.a", "annotations": {"projectcalico.org/metadata": '{"name":5}'}},
            "t",
            "default.a",
        ),
    ],
)
@pytest.mark.parametrize(
    "kind",
    ["NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy"],
)
def test_the_name_of_a_policy_comes_from_the_annotation_or_loses_its_prefix(
    kind: str, metadata: dict[str, Any], tier: str | None, name: str
) -> None:
    policy = _decode(kind, {"metadata": metadata, "spec": {"tier": tier} if tier else {}})
    assert policy.metadata.name == name
    assert policy.metadata.annotations == {}


def test_other_kinds_keep_their_prefix_and_annotation() -> None:
    annotations = {"projectcalico.org/metadata": '{"name":"b"}'}
    for kind in ("StagedKubernetesNetworkPolicy", "NetworkSet", "Tier"):
        obj = _decode(kind, {"metadata": {"name": "default.a", "annotations": annotations}})
        assert obj.metadata.name == "default.a"
        assert obj.metadata.annotations == annotations


def test_a_policy_is_written_with_its_name_annotation() -> None:
    metadata = model.ObjectMeta(name='a"b', namespace="ns", annotations={"z": "1", "a": "2"})
    stored = _stored(model.NetworkPolicy(metadata=metadata))
    assert list(stored["metadata"]["annotations"]) == ["a", "projectcalico.org/metadata", "z"]
    assert json.loads(stored["metadata"]["annotations"]["projectcalico.org/metadata"]) == {
        "name": 'a"b'
    }
    assert metadata.annotations == {"z": "1", "a": "2"}, "the object is not changed"
    tier = _stored(model.Tier(metadata=model.ObjectMeta(name="t")))
    assert "annotations" not in tier["metadata"]


@pytest.mark.parametrize("annotation", ["[" * 100_000, '{"name":"\\ud800"}', "9" * 5000, ""])
def test_no_annotation_does_harm(annotation: str) -> None:
    metadata = {"name": "default.a", "annotations": {"projectcalico.org/metadata": annotation}}
    assert _decode("NetworkPolicy", {"metadata": metadata}).metadata.name == "a"


def test_the_shown_form_has_the_revision_and_no_bookkeeping() -> None:
    policy = model.NetworkPolicy(metadata=model.ObjectMeta(name="a", resource_version="5"))
    shown = codec.to_shown(policy)
    assert shown["metadata"] == {"name": "a", "resourceVersion": "5"}
    assert codec.to_shown(model.Tier())["metadata"] == {}
    noted = replace(policy, metadata=replace(policy.metadata, annotations={"n": "1"}))
    assert codec.to_shown(noted)["metadata"]["annotations"] == {"n": "1"}


# --- writing ---


def test_kind_and_version_come_first_and_are_forced() -> None:
    pool = codec.decode("IPPool", b'{"kind":"Tier","apiVersion":"v1","spec":{"cidr":"x"}}', 1)
    assert codec.encode(pool).startswith(b'{"kind":"IPPool","apiVersion":"projectcalico.org/v3",')


def test_revision_self_link_and_a_global_objects_namespace_are_not_stored() -> None:
    metadata = model.ObjectMeta(
        name="a", namespace="ns", resource_version="5", self_link="/x", uid="u"
    )
    assert _stored(model.IPPool(metadata=metadata))["metadata"] == {"name": "a", "uid": "u"}
    assert _stored(model.NetworkSet(metadata=metadata))["metadata"]["namespace"] == "ns"


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (model.Tier(), {"spec": {}, "status": {}}),
        (model.Node(), {"spec": {}, "status": {}}),
        (model.IPPool(), {"spec": {"cidr": ""}}),
        (model.FelixConfiguration(), {"spec": {"bpfLogLevel": ""}}),
        (model.StagedKubernetesNetworkPolicy(), {"spec": {"podSelector": {}}}),
        (model.KubeControllersConfiguration(), {"spec": {"controllers": {}}, "status": {}}),
        (model.BlockAffinity(), {"spec": {"state": "", "node": "", "cidr": "", "deleted": ""}}),
        (
            model.CalicoNodeStatus(),
            {
                "spec": {},
                "status": {
                    "lastUpdated": None,
                    "agent": {"birdV4": {}, "birdV6": {}},
                    "bgp": {
                        "numberEstablishedV4": 0,
                        "numberNotEstablishedV4": 0,
                        "numberEstablishedV6": 0,
                        "numberNotEstablishedV6": 0,
                    },
                    "routes": {},
                },
            },
        ),
    ],
)
def test_what_is_always_stored(obj: model.Resource, expected: dict[str, Any]) -> None:
    head = {"kind": obj.kind, "apiVersion": "projectcalico.org/v3", "metadata": {}}
    assert json.dumps(_stored(obj)) == json.dumps({**head, **expected})


def test_empty_values_are_left_out_unless_they_say_something() -> None:
    spec = model.FelixConfigurationSpec(
        log_prefix="",
        health_enabled=False,
        metadata_port=0,
        failsafe_inbound_host_ports=(),
        health_timeout_overrides=(),
        bpf_log_filters={},
        external_nodes_list=None,
    )
    assert _stored(model.FelixConfiguration(spec=spec))["spec"] == {
        "metadataPort": 0,
        "healthEnabled": False,
        "failsafeInboundHostPorts": [],
        "bpfLogLevel": "",
        "bpfLogFilters": {},
    }
    pool = model.IPPoolSpec(cidr="c", nat_outgoing=False, node_selector="", allowed_uses=())
    assert _stored(model.IPPool(spec=pool))["spec"] == {"cidr": "c"}


def test_empty_strings_inside_maps_and_lists_stay() -> None:
    profile = model.Profile(spec=model.ProfileSpec(labels_to_apply={"net": ""}))
    assert _stored(profile)["spec"] == {"labelsToApply": {"net": ""}}
    assert _stored(model.NetworkSet(spec=model.NetworkSetSpec(nets=("",))))["spec"] == {
        "nets": [""]
    }


def test_an_empty_side_of_a_rule_is_left_out_but_other_empty_parts_are_not() -> None:
    rule = model.Rule(
        action="Allow", source=model.EntityRule(), icmp=model.ICMPFields(), http=model.HTTPMatch()
    )
    policy = model.NetworkPolicy(spec=model.NetworkPolicySpec(ingress=(rule,)))
    assert _stored(policy)["spec"]["ingress"] == [{"action": "Allow", "icmp": {}, "http": {}}]
    node = model.Node(spec=model.NodeSpec(bgp=model.NodeBGPSpec()))
    assert _stored(node)["spec"] == {"bgp": {}}


@pytest.mark.parametrize(
    ("order", "text"),
    [(1_000_000.0, b"1000000"), (100.5, b"100.5"), (0.0, b"0"), (-1.0, b"-1"), (1e300, b"1e300")],
)
def test_a_whole_order_prints_as_an_integer(order: float, text: bytes) -> None:
    encoded = codec.encode(model.Tier(spec=model.TierSpec(order=order)))
    assert b'"order":' + text + b"}" in encoded


def test_map_keys_are_sorted_and_members_in_declaration_order() -> None:
    meta = model.ObjectMeta(name="a", labels={"b": "1", "a": "2"}, uid="u", generate_name="g")
    encoded = codec.encode(model.IPReservation(metadata=meta))
    assert b'{"name":"a","generateName":"g","uid":"u","labels":{"a":"2","b":"1"}}' in encoded


# --- IPAM data ---


def test_a_brand_new_block_and_an_emptied_one() -> None:
    key = BlockKey("10.0.0.0/31")
    raw = (
        b'{"cidr":"10.0.0.0/31","affinity":null,"allocations":[null,null],"unallocated":[0,1],'
        b'"attributes":null,"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}'
    )
    block = codec.decode(key, raw, 1)
    assert (block.affinity, block.host, block.attributes) == (None, None, None)
    assert block.attribute_of(0) is None
    assert codec.encode(block) == raw
    emptied = raw.replace(b'"attributes":null', b'"attributes":[]')
    assert codec.decode(key, emptied, 1).attributes == ()
    assert codec.encode(codec.decode(key, emptied, 1)) == emptied


def test_old_and_foreign_blocks_are_read() -> None:
    raw = (
        b'{"cidr":"10.0.0.0/31","hostAffinity":"old","allocations":[0,null],"unallocated":null,'
        b'"attributes":[{"handle_id":null,"secondary":null}],"sequenceNumber":18446744073709551615,'
        b'"sequenceNumberForAllocation":null}'
    )
    block = codec.decode(BlockKey("10.0.0.0/31"), raw, 1)
    assert block.allocations == (0, None)
    assert block.unallocated == ()
    assert block.sequence_number == 2**64 - 1
    assert block.sequence_number_for_allocation == {}
    stored = _stored(block)
    assert "hostAffinity" not in stored
    assert stored["attributes"] == [{}]


def test_an_index_beyond_the_attributes_is_no_attribute() -> None:
    raw = b'{"cidr":"10.0.0.0/32","allocations":[3],"attributes":[]}'
    assert codec.decode(BlockKey("10.0.0.0/32"), raw, 1).attribute_of(0) is None


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"state":""}', b'{"state":"","deleted":null}'])
def test_an_empty_affinity_is_a_confirmed_one(raw: bytes) -> None:
    affinity = codec.decode(BlockAffinityKey("h", "10.0.0.0/26"), raw, 1)
    assert affinity.effective_state == "confirmed"
    assert affinity.state == ""


def test_the_state_of_an_affinity_is_as_stored() -> None:
    affinity = codec.decode(BlockAffinityKey("h", "10.0.0.0/26"), b'{"state":"pending"}', 1)
    assert affinity.effective_state == "pending"
    assert codec.encode(affinity) == b'{"state":"pending","deleted":false}'


def test_an_empty_ipam_config_is_not_the_missing_one() -> None:
    stored = codec.decode(IpamConfigKey(), b"{}", 1)
    assert stored.auto_allocate_blocks is False
    assert model.ipam.MISSING_IPAM_CONFIG.auto_allocate_blocks is True
    assert codec.encode(stored) == b"{}"
    assert codec.encode(model.ipam.MISSING_IPAM_CONFIG) == b'{"auto_allocate_blocks":true}'


def test_small_values() -> None:
    assert codec.decode(IpamHostKey("h"), b"", 1) == model.ipam.HostMarker()
    status = codec.decode(WorkloadEndpointStatusKey("h", "k8s", "a/b", "e"), b'{"status":"up"}', 1)
    assert status.status == "up"
    raw = b'{"time":"2026-08-22T09:20:01Z","uptime":12,"first_update":false}'
    felix = codec.decode(FelixStatusKey("h"), raw, 1)
    assert felix.uptime == 12.0
    assert codec.encode(felix) == raw
    with pytest.raises(DecodeError):
        codec.decode(HandleKey("h"), b"", 1)


def test_decode_as_has_the_type_asked_for() -> None:
    handle = codec.decode_as(model.ipam.Handle, HandleKey("h"), b'{"block":{"c":2}}', 1)
    assert handle.block == {"c": 2}


# --- what we do not know ---

FOREIGN = {
    "kind": "NetworkPolicy",
    "apiVersion": "projectcalico.org/v3",
    "new": [1],
    "metadata": {"name": "a", "namespace": "n", "zone": {"x": None}},
    "spec": {
        "tier": "default",
        "future": {"deep": [1, {"y": 2}]},
        "ingress": [
            {
                "action": "Allow",
                "comment": "first",
                "source": {"nets": ["10.0.0.0/8"], "geo": "de"},
            },
            {"action": "Deny"},
            {"action": "Log", "comment": "third"},
        ],
        "selector": "all()",
    },
}


def test_unknown_members_survive_a_read_modify_write() -> None:
    policy, unknown = codec.decode_preserving("NetworkPolicy", json.dumps(FOREIGN).encode(), 7)
    assert unknown.paths() == [
        "metadata.zone",
        "new",
        "spec.future",
        "spec.ingress[0].comment",
        "spec.ingress[0].source.geo",
        "spec.ingress[2].comment",
    ]
    changed = replace(policy, spec=replace(policy.spec, selector="has(x)"))
    stored = _stored(changed, unknown=unknown)
    del stored["metadata"]["annotations"]
    expected = json.loads(json.dumps(FOREIGN))
    expected["spec"]["selector"] = "has(x)"
    assert stored == expected


def test_unknown_members_follow_their_list_item() -> None:
    policy, unknown = codec.decode_preserving("NetworkPolicy", json.dumps(FOREIGN).encode(), 7)
    first, second, third = policy.spec.ingress
    moved = replace(policy, spec=replace(policy.spec, ingress=(third, second, first)))
    rules = _stored(moved, unknown=unknown)["spec"]["ingress"]
    assert [rule.get("comment") for rule in rules] == ["third", None, "first"]
    edited = replace(first, action="Deny")
    in_place = replace(policy, spec=replace(policy.spec, ingress=(edited, second, third)))
    rules = _stored(in_place, unknown=unknown)["spec"]["ingress"]
    assert [rule.get("comment") for rule in rules] == ["first", None, "third"]
    assert rules[0]["source"]["geo"] == "de"
    removed = replace(policy, spec=replace(policy.spec, ingress=(second,)))
    rules = _stored(removed, unknown=unknown)["spec"]["ingress"]
    assert "third" not in [rule.get("comment") for rule in rules]


def test_an_unknown_member_keeps_its_otherwise_empty_owner() -> None:
    raw = b'{"metadata":{"name":"a"},"spec":{"ingress":[{"action":"Allow","source":{"geo":"de"}}]}}'
    policy, unknown = codec.decode_preserving("GlobalNetworkPolicy", raw, 1)
    assert policy.spec.ingress[0].source == model.EntityRule()
    stored = _stored(policy, unknown=unknown)
    assert stored["spec"]["ingress"] == [{"action": "Allow", "source": {"geo": "de"}}]


def test_unknown_members_of_an_owner_that_is_gone_return_in_their_place() -> None:
    raw = (
        b'{"spec":{"bgp":{"ipv4Address":"192.0.2.1/24","future":1},"orchRefs":[]},"status":{"s":2}}'
    )
    node, unknown = codec.decode_preserving("Node", raw, 1)
    cleared = replace(node, spec=replace(node.spec, bgp=None))
    stored = _stored(cleared, unknown=unknown)
    assert stored["spec"] == {"bgp": {"future": 1}}
    assert stored["status"] == {"s": 2}


def test_unknown_members_of_blocks_survive() -> None:
    raw = (
        b'{"cidr":"10.0.0.0/32","allocations":[0],"x":1,'
        b'"attributes":[{"handle_id":"a","y":2}],"sequenceNumber":5}'
    )
    block, unknown = codec.decode_preserving(BlockKey("10.0.0.0/32"), raw, 1)
    stored = _stored(block, unknown=unknown)
    assert stored["x"] == 1
    assert stored["attributes"] == [{"handle_id": "a", "y": 2}]


def test_without_unknown_members_nothing_is_carried() -> None:
    found = codec.decode_preserving(POOL, b'{"spec":{"CIDR":"10.0.0.0/8"}}', 1)
    assert not found.unknown
    assert found.unknown.paths() == []


def test_preserving_adds_what_reading_adds() -> None:
    raw = b'{"metadata":{"name":"default.a"},"new":1}'
    for text in (raw, b'{"metadata":{"name":"default.a"}}'):
        policy = codec.decode_preserving("NetworkPolicy", text, 8).obj
        assert policy.metadata == model.ObjectMeta(name="a", resource_version="8")


def test_a_member_of_a_wrong_kind_of_object_is_not_unknown() -> None:
    _, unknown = codec.decode_preserving(POOL, b'{"Kind":"Tier","spec":{"cidr":"x"}}', 1)
    assert not unknown


FILTER_RULE = {
    "cidr": "CIDR",
    "prefixLength": {"min": 1, "max": 2},
    "source": "RemotePeers",
    "interface": "eth0",
    "matchOperator": "In",
    "peerType": "eBGP",
    "communities": {"values": ["1:2"]},
    "asPathPrefix": [64512],
    "priority": 3,
    "action": "Accept",
    "operations": [{"setPriority": {"value": 4}}],
}
IPAM = {
    "strictAffinity": True,
    "autoAllocateBlocks": False,
    "maxBlocksPerHost": 5,
    "kubeVirtVMAddressPersistence": "Enabled",
    "ipCooldownSeconds": 6,
}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (
            "BGPFilter",
            {"exportV4": [FILTER_RULE | {"cidr": "10.0.0.0/8"}]}
            | {"importV6": [FILTER_RULE | {"cidr": "fd00::/64"}]},
        ),
        ("IPAMConfiguration", IPAM),
        ("IPAMConfig", IPAM),
    ],
)
def test_classes_that_share_members_keep_their_order_on_the_wire(
    kind: str, spec: dict[str, object]
) -> None:
    stored = {"kind": kind, "metadata": {"name": "default"}, "spec": spec}
    raw = json.dumps(stored).encode()
    written = json.loads(codec.encode(codec.decode(ResourceKey(kind, "default"), raw, 1)))["spec"]
    assert json.dumps(written) == json.dumps(spec)
