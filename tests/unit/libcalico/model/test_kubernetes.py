"""libcalico.model.kubernetes: EndpointSlices as policy reads them."""

from __future__ import annotations

import pytest

from libcalico.errors import InvalidInput
from libcalico.model.kubernetes import SlicePort, endpoint_slice


def k8s(**changes):
    return {
        "metadata": {
            "name": "web-x1",
            "namespace": "prod",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}],
        "ports": [{"name": "http", "port": 80}],
    } | changes


def test_a_slice_says_whose_it_is_and_where_it_answers():
    found = endpoint_slice(k8s(ports=[{"port": 80}, {"port": 53, "protocol": "UDP"}]))
    assert found.service == ("prod", "web")
    assert found.addresses == ("10.0.0.1", "10.0.0.2")
    assert found.ports == (SlicePort(port=80), SlicePort(protocol="UDP", port=53))


def test_endpoints_that_are_not_ready_count():
    pods = [{"addresses": ["10.0.0.1"], "conditions": {"ready": False, "serving": False}}]
    assert endpoint_slice(k8s(endpoints=pods)).addresses == ("10.0.0.1",)


def test_addresses_are_canonical_and_each_is_there_once():
    pods = [{"addresses": ["FD00::0:1"]}, {"addresses": ["fd00::1"]}]
    assert endpoint_slice(k8s(addressType="IPv6", endpoints=pods)).addresses == ("fd00::1",)


def test_host_names_are_no_addresses():
    pods = [{"addresses": ["web.example.org"]}]
    assert endpoint_slice(k8s(addressType="FQDN", endpoints=pods)).addresses == ()


def test_a_port_without_number_names_none():
    assert endpoint_slice(k8s(ports=[{"name": "any"}])).ports == ()
    assert endpoint_slice(k8s(ports=None, endpoints=None)).ports == ()


def test_a_slice_of_no_service_has_no_name():
    metadata = {"name": "x", "namespace": "prod"}
    assert endpoint_slice(k8s(metadata=metadata)).service == ("prod", "")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"metadata": {"name": "x"}}, "without name or namespace"),
        ({"metadata": []}, "metadata is not an object"),
        ({"endpoints": {}}, "endpoints is not a list"),
        ({"endpoints": [{"addresses": ["10.0.0"]}]}, "endpoints[0].addresses"),
        ({"endpoints": [{"addresses": [7]}]}, "endpoints[0].addresses"),
        ({"ports": [{"port": 0}]}, "ports[0].port"),
        ({"ports": [{"port": True}]}, "ports[0].port"),
        ({"ports": [{"port": 80, "protocol": "ICMP"}]}, "ports[0].protocol"),
    ],
)
def test_what_cannot_be_read_is_named(changes, place):
    with pytest.raises(InvalidInput) as caught:
        endpoint_slice(k8s(**changes))
    assert place in str(caught.value)
