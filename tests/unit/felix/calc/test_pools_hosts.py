"""felix.calc.pools_hosts: pools by CIDR, hosts by address."""

from __future__ import annotations

import pytest

from felix.calc.pools_hosts import Pools, host_update
from felix.intent import HostUpdate, PoolUpdate
from libcalico.errors import InvalidInput
from libcalico.model import NodeAddress, NodeBGPSpec
from tests.support.calc import node, pool


def test_of_two_pools_with_one_cidr_the_smaller_name_counts():
    """H1."""
    pools = Pools()
    pools.update(*pool("b", "10.0.0.0/16", nat_outgoing=True))
    pools.update(*pool("a", "10.0.0.0/16"))
    assert pools.flush() == {"10.0.0.0/16": PoolUpdate("10.0.0.0/16", False)}
    pools.update(pool("a", "")[0], None)
    assert pools.flush() == {"10.0.0.0/16": PoolUpdate("10.0.0.0/16", True)}
    pools.update(pool("b", "")[0], None)
    assert pools.flush() == {"10.0.0.0/16": None}
    assert pools.flush() == {}


def test_a_pool_whose_cidr_changes_leaves_the_old_one():
    pools = Pools()
    pools.update(*pool("a", "10.0.0.0/16"))
    pools.update(*pool("a", "FD00:0::/64", ipip_mode="Never", vxlan_mode="Always"))
    assert pools.flush() == {
        "10.0.0.0/16": None,
        "fd00::/64": PoolUpdate("fd00::/64", False, "Never", "Always"),
    }
    assert pools.dump() == {"a": "fd00::/64"}


def test_a_cidr_that_does_not_parse_is_refused_and_changes_nothing():
    pools = Pools()
    pools.update(*pool("a", "10.0.0.0/16"))
    with pytest.raises(InvalidInput):
        pools.update(*pool("a", "10.0.0.0"))
    assert pools.dump() == {"a": "10.0.0.0/16"}


@pytest.mark.parametrize(
    ("spec", "ipv4", "ipv6"),
    [
        ({}, None, None),
        ({"bgp": NodeBGPSpec(ipv4_address="192.0.2.1/24")}, "192.0.2.1", None),
        ({"bgp": NodeBGPSpec(ipv6_address="FD00::1")}, None, "fd00::1"),
        (
            {
                "bgp": NodeBGPSpec(ipv4_address="192.0.2.1/24"),
                "addresses": (
                    NodeAddress(address="198.51.100.1", type="CalicoNodeIP"),
                    NodeAddress(address="fd00::2/64", type="CalicoNodeIP"),
                ),
            },
            "192.0.2.1",
            "fd00::2",
        ),
        (
            {
                "addresses": (
                    NodeAddress(address="203.0.113.1", type="ExternalIP"),
                    NodeAddress(address="198.51.100.1", type="InternalIP"),
                    NodeAddress(address="198.51.100.9", type="Hostname"),
                )
            },
            "198.51.100.1",
            None,
        ),
    ],
)
def test_where_a_nodes_address_comes_from(spec, ipv4, ipv6):
    key, value = node("n", **spec)
    assert host_update(key.name, value) == HostUpdate("n", ipv4, ipv6)


def test_a_node_with_an_address_that_does_not_parse_is_refused():
    _, value = node("n", bgp=NodeBGPSpec(ipv4_address="one.two"))
    with pytest.raises(InvalidInput):
        host_update("n", value)
