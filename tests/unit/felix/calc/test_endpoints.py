"""felix.calc.endpoints: what of an endpoint concerns its node."""

from __future__ import annotations

from felix.calc import endpoints
from tests.support.calc import hep


def test_facts_of_a_local_host_endpoint():
    key, endpoint = hep("h", "192.0.2.1", "FD00::1", "192.0.2.1", profiles=("p", "p"))
    found = endpoints.local_host(key, endpoint)
    assert found.interface == ""
    assert found.expected_ips == ("192.0.2.1", "fd00::1")
    assert found.profiles == ("p",)
