"""ipam.tunnelplan: which pools give a node its tunnel addresses, and where they are recorded."""

from __future__ import annotations

import pytest

from ipam import tunnelplan
from ipam.handles import Tunnel
from libcalico.model import Node
from libcalico.model.ippool import IPPool, IPPoolSpec
from libcalico.model.meta import ObjectMeta
from libcalico.model.node import NodeBGPSpec, NodeSpec, NodeStatus

V4, V6 = "10.10.0.0/16", "fd00:10::/64"
KEYS = NodeStatus(wireguard_public_key="k4", wireguard_public_key_v6="k6")
RACK = Node(metadata=ObjectMeta(name="n1", labels={"rack": "a"}), status=KEYS)
KEYLESS = Node(metadata=ObjectMeta(name="n1"))


def pool(cidr: str = V4, **spec: object) -> IPPool:
    return IPPool(metadata=ObjectMeta(name="p"), spec=IPPoolSpec(cidr=cidr, **spec))


@pytest.mark.parametrize(
    ("tunnel", "node", "given", "serves"),
    [
        (Tunnel.IPIP, RACK, pool(ipip_mode="Always"), True),
        (Tunnel.IPIP, RACK, pool(ipip_mode="CrossSubnet"), True),
        (Tunnel.IPIP, RACK, pool(ipip_mode="Never"), False),
        (Tunnel.IPIP, RACK, pool(vxlan_mode="Always"), False),
        (Tunnel.IPIP, RACK, pool(V6, ipip_mode="Always"), False),
        (Tunnel.IPIP, RACK, pool(ipip_mode="Always", disabled=True), False),
        (Tunnel.IPIP, RACK, pool(ipip_mode="Always", allowed_uses=("Workload",)), False),
        (Tunnel.IPIP, RACK, pool(ipip_mode="Always", node_selector="rack == 'a'"), True),
        (Tunnel.IPIP, RACK, pool(ipip_mode="Always", node_selector="rack == 'b'"), False),
        (Tunnel.VXLAN, RACK, pool(vxlan_mode="CrossSubnet"), True),
        (Tunnel.VXLAN, RACK, pool(ipip_mode="Always"), False),
        (Tunnel.VXLAN, RACK, pool(V6, vxlan_mode="Always"), False),
        (Tunnel.VXLAN_V6, RACK, pool(V6, vxlan_mode="Always"), True),
        (Tunnel.VXLAN_V6, RACK, pool(vxlan_mode="Always"), False),
        (Tunnel.WIREGUARD, RACK, pool(), True),
        (Tunnel.WIREGUARD, KEYLESS, pool(), False),
        (Tunnel.WIREGUARD_V6, RACK, pool(V6), True),
        (Tunnel.WIREGUARD_V6, RACK, pool(), False),
        (Tunnel.WIREGUARD_V6, KEYLESS, pool(V6), False),
    ],
)
def test_a_pool_serves_the_tunnels_it_is_made_for(tunnel, node, given, serves):
    assert [str(c) for c in tunnelplan.wanted(tunnel, node, [given])] == [given.spec.cidr] * serves


@pytest.mark.parametrize("tunnel", [Tunnel.WIREGUARD, Tunnel.WIREGUARD_V6])
def test_host_encryption_uses_the_nodes_own_address(tunnel):
    assert tunnelplan.wanted(tunnel, RACK, [pool(), pool(V6)], host_encryption=True) == ()


@pytest.mark.parametrize("tunnel", Tunnel)
def test_an_address_is_recorded_in_its_own_field_and_removed_without_a_trace(tunnel):
    node = tunnelplan.with_address(tunnel, RACK, "x")
    assert [t for t in Tunnel if tunnelplan.recorded(t, node)] == [tunnel]
    assert tunnelplan.with_address(tunnel, node, None) == RACK


def test_the_rest_of_the_bgp_part_stays():
    before = Node(spec=NodeSpec(bgp=NodeBGPSpec(ipv4_address="192.0.2.1/24")))
    node = tunnelplan.with_address(Tunnel.IPIP, before, "10.10.0.1")
    assert node.spec.bgp.ipv4_address == "192.0.2.1/24"
    assert tunnelplan.with_address(Tunnel.IPIP, node, None) == before
