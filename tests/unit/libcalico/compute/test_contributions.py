"""libcalico.compute.contributions: what endpoints and network sets contribute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libcalico.compute import contributions
from libcalico.compute.members import EndpointPort
from libcalico.errors import InvalidInput
from libcalico.net import parse_cidr_or_ip
from tests.support.calc import gnetset, netset, wep


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1/32"),
        ("10.0.0.1/32", "10.0.0.1/32"),
        ("255.255.255.255", "255.255.255.255/32"),
        ("10.0.3.1/16", "10.0.0.0/16"),
        ("0.0.0.0", "0.0.0.0/32"),
        ("FD00:0::1", "fd00::1/128"),
        ("fd00::1:1/64", "fd00::/64"),
    ],
)
def test_canonical_cidr(text, canonical):
    assert contributions.cidr(text) == canonical


@pytest.mark.parametrize(
    "text", ["10.0.0.256", "10.0.0.01", "10.0.0", "10.0.0.1/33", "10.0.0.1/32x", "", "١.0.0.1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidInput):
        contributions.cidr(text)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["", "/32", "/8", "/0"]))
def test_the_short_cut_for_host_addresses_agrees_with_the_parser(number, suffix):
    text = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0)) + suffix
    assert contributions.cidr(text) == str(parse_cidr_or_ip(text))


def test_set_members_are_unique_and_hold_no_catch_all():
    catch_alls = ["::/0", "10.0.0.1", "10.0.0.1/32", "0.0.0.0/0", "128.0.0.0/1"]
    found = contributions.set_members(catch_alls)
    assert found == ("::/1", "8000::/1", "10.0.0.1/32", "0.0.0.0/1", "128.0.0.0/1")


def test_labels_of_a_workload_are_kept_as_they_are_when_nothing_has_to_change():
    _, endpoint = wep("a", "10.0.0.1", labels={"app": "x"})
    item = contributions.of_workload("prod", endpoint)
    assert item is not None
    assert item.labels is endpoint.metadata.labels


def test_the_service_account_comes_from_the_spec():
    _, endpoint = wep("a", "10.0.0.1", service_account_name="builder")
    item = contributions.of_workload("prod", endpoint)
    assert item is not None
    assert item.labels["projectcalico.org/serviceaccount"] == "builder"
    assert "projectcalico.org/serviceaccount" not in endpoint.metadata.labels


def test_the_namespace_label_is_filled_in_where_a_foreign_writer_left_it_out():
    _, endpoint = wep("a", "10.0.0.1")
    endpoint.metadata.labels.clear()
    item = contributions.of_workload("prod", endpoint)
    assert item is not None
    assert item.labels == {"projectcalico.org/namespace": "prod"}


def test_a_network_set_is_of_its_namespace():
    _, networks = netset("s", "10.0.0.0/8", labels={"a": "b"}, namespace="dev")
    item = contributions.of_network_set(networks, "dev")
    assert item.labels == {"a": "b", "projectcalico.org/namespace": "dev"}
    assert item.parents == ("kns.dev",)
    _, everywhere = gnetset("g", "10.0.0.0/8", labels={"a": "b"})
    assert contributions.of_global_network_set(everywhere).parents == ()


def test_only_named_ports_of_protocols_with_ports_can_be_named():
    _, endpoint = wep(
        "a",
        "10.0.0.1",
        ports=[
            ("web", "TCP", 80),
            ("", "TCP", 81),
            ("x", "ICMP", 1),
            ("s", 132, 7),
            ("u", "UDP", 9),
        ],
    )
    assert contributions.named_ports(endpoint.spec.ports) == (
        EndpointPort("web", "tcp", 80),
        EndpointPort("s", "sctp", 7),
        EndpointPort("u", "udp", 9),
    )
