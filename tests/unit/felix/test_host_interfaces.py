"""felix.host_interfaces: host endpoints find their interfaces (reference/datamodel.md 5.4)."""

from __future__ import annotations

import itertools

from felix.host_interfaces import assign_host_endpoints
from felix.intent import HostEndpointUpdate
from libcalico.model.keys import ResourceKey

INTERFACES = {"eth0": ["192.0.2.1", "fd00::1"], "eth1": ["198.51.100.1"], "lo": []}


def hep(name: str, interface: str = "", *ips: str) -> HostEndpointUpdate:
    return HostEndpointUpdate(ResourceKey("HostEndpoint", name), interface, ips, (), ())


def assigned(*endpoints: HostEndpointUpdate) -> dict[str, str]:
    """Interface -> name; the same for every order of the endpoints."""
    results = [
        assign_host_endpoints(order, INTERFACES) for order in itertools.permutations(endpoints)
    ]
    assert all(result == results[0] for result in results)
    found = {name: results[0].governing(name) for name in INTERFACES}
    return {name: endpoint.key.name for name, endpoint in found.items() if endpoint is not None}


def test_a_named_endpoint_stands_on_that_interface_only():
    """HI1."""
    assert assigned(hep("a", "eth0", "198.51.100.1")) == {"eth0": "a"}
    assert assigned(hep("a", "eth9")) == {}


def test_an_unnamed_endpoint_stands_where_one_of_its_addresses_is():
    """HI1, both families."""
    assert assigned(hep("a", "", "fd00::1")) == {"eth0": "a"}
    assert assigned(hep("a", "", "203.0.113.1", "198.51.100.1", "192.0.2.1")) == {
        "eth0": "a",
        "eth1": "a",
    }


def test_of_several_candidates_the_smallest_name_governs():
    """HI2."""
    assert assigned(hep("b", "eth0"), hep("c", "eth0"), hep("a", "", "192.0.2.1")) == {"eth0": "a"}
    assert assigned(hep("a", "eth0"), hep("b", "", "192.0.2.1")) == {"eth0": "a"}


def test_an_endpoint_for_any_interface_governs_the_rest():
    """HI3."""
    found = assigned(hep("0", "*"), hep("1", "*"), hep("z", "eth1"))
    assert found == {"eth0": "0", "lo": "0", "eth1": "z"}
    later = assign_host_endpoints([hep("0", "*")], INTERFACES).governing("eth7")
    assert later is not None
    assert later.key.name == "0"
