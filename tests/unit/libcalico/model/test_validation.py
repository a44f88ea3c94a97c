"""libcalico.model.validation as a whole: families in order, all failures at once, no crash."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libcalico.errors import ValidationError
from libcalico.model.codec import decode
from libcalico.model.kinds import KINDS
from libcalico.model.validation import problems, validate
from libcalico.model.validation_rules import go_name


def policy(spec):
    document = {"metadata": {"name": "Bad", "namespace": "n"}, "spec": spec}
    return decode("NetworkPolicy", json.dumps(document).encode(), 1)


def test_all_failures_come_at_once_go_then_schema_then_cel():
    rule = {"action": "allow", "protocol": "ICMP", "ipVersion": 6, "source": {"selector": "("}}
    with pytest.raises(ValidationError) as err:
        validate(policy({"ingress": [rule], "types": ["in"]}))
    assert [error.field for error in err.value.errors] == [
        "Metadata.Name",  # Go: the object's metadata
        "Selector",  # Go: members, depth first
        "Metadata.Name",  # Go: the struct itself
        "spec.ingress[0].action",  # schema
        "spec.types[0]",
        "spec.ingress[0]",  # CEL
    ]
    text = str(err.value)
    assert text.startswith("error with the following fields:\n-  Metadata.Name = 'Bad' (name must")
    assert text.endswith("-  spec.ingress[0] (protocol ICMP requires ipVersion 4)\n")


def test_one_failure_is_told_in_one_line():
    document = {"metadata": {"name": "ok", "namespace": "n"}, "spec": {"selector": "a=b"}}
    with pytest.raises(ValidationError) as err:
        validate(decode("NetworkPolicy", json.dumps(document).encode(), 1))
    assert str(err.value) == (
        "error with field Selector = 'a=b' "
        "(Reason: failed to validate Field: Selector because of Tag: selector )"
    )


def test_the_same_failure_is_told_once():
    rule = {"action": "Allow", "protocol": "TCP", "source": {"ports": [0, 0]}}
    document = {"metadata": {"name": "ok", "namespace": "n"}, "spec": {"ingress": [rule]}}
    found = problems(decode("NetworkPolicy", json.dumps(document).encode(), 1))
    assert [error.field for error in found] == ["Port"]


@pytest.mark.parametrize(
    ("json_name", "go"),
    [
        ("cidr", "CIDR"),
        ("peerIP", "PeerIP"),
        ("asNumber", "ASNumber"),
        ("ipNetworks", "IPNetworks"),
        ("ipv4Gateway", "IPv4Gateway"),
        ("ipv6VXLANTunnelAddr", "IPv6VXLANTunnelAddr"),
        ("natOutgoingAddress", "NATOutgoingAddress"),
        ("bpfL3IfacePattern", "BPFL3IfacePattern"),
        ("containerID", "ContainerID"),
        ("goGCThreshold", "GoGCThreshold"),
    ],
)
def test_the_go_name_of_a_member(json_name, go):
    assert go_name(json_name) == go


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(deadline=None)
@given(data=st.data())
def test_whatever_decodes_is_judged_without_a_crash(data):
    """Every kind, members filled with anything their type takes."""
    from libcalico.errors import DecodeError
    from libcalico.model.schema import record_of

    info = data.draw(st.sampled_from(KINDS))
    members = record_of(info.resource).members["spec"].shape.members
    names = data.draw(st.lists(st.sampled_from(sorted(members)), max_size=4, unique=True))
    spec = {name: data.draw(JSON) for name in names}
    document = {"metadata": {"name": data.draw(st.text(max_size=5))}, "spec": spec}
    try:
        resource = decode(info.kind, json.dumps(document).encode(), 1)
    except DecodeError:
        return
    for error in problems(resource):
        assert error.field
