"""Which tunnel addresses a node should have, and where its Node object records them.

Layer: ipam, pure. Used by calico-node (calicoctl.node.tunnels).

  T1  a pool serves a tunnel when it is enabled, selects the node, allows the use Tunnel and has the
      tunnel's encapsulation on; WireGuard needs none, but the node's published key of the family;
  T2  recording an address changes that one field; a part left empty is dropped, as Calico does.

Source: datamodel §2.2; Calico node/pkg/allocateip/allocateip.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ipam import pools
from ipam.handles import Tunnel
from ipam.requests import TUNNEL
from libcalico.model import Node
from libcalico.model.ippool import IPPool
from libcalico.model.node import NodeBGPSpec, NodeWireguardSpec
from libcalico.net import Network

_ON = ("Always", "CrossSubnet")


def wanted(
    tunnel: Tunnel, node: Node, resources: Iterable[IPPool], *, host_encryption: bool = False
) -> tuple[Network, ...]:
    """The pools that serve `tunnel` on `node` (T1), in the order given; none: it wants no address.

    `host_encryption`: WireGuard devices then use the node's own address.
    Errors: AddressError, SelectorSyntaxError for a pool that does not parse."""
    wireguard = tunnel in (Tunnel.WIREGUARD, Tunnel.WIREGUARD_V6)
    if wireguard and (host_encryption or not _public_key(tunnel, node)):
        return ()
    labels = node.metadata.labels or {}
    found = []
    for resource in resources:
        pool = pools.from_resource(resource)
        if not pool.enabled or pool.version != tunnel.version or TUNNEL not in pool.allowed_uses:
            continue
        if (wireguard or _encapsulates(tunnel, resource)) and pool.selects_node(labels):
            found.append(pool.cidr)
    return tuple(found)


def _public_key(tunnel: Tunnel, node: Node) -> str | None:
    v4 = tunnel is Tunnel.WIREGUARD
    return node.status.wireguard_public_key if v4 else node.status.wireguard_public_key_v6


def _encapsulates(tunnel: Tunnel, resource: IPPool) -> bool:
    spec = resource.spec
    return (spec.ipip_mode if tunnel is Tunnel.IPIP else spec.vxlan_mode) in _ON


def recorded(tunnel: Tunnel, node: Node) -> str:
    """The address text in the Node object; empty when there is none."""
    bgp, wireguard = node.spec.bgp or NodeBGPSpec(), node.spec.wireguard or NodeWireguardSpec()
    address = {
        Tunnel.IPIP: bgp.ipv4_ipip_tunnel_addr,
        Tunnel.VXLAN: node.spec.ipv4_vxlan_tunnel_addr,
        Tunnel.VXLAN_V6: node.spec.ipv6_vxlan_tunnel_addr,
        Tunnel.WIREGUARD: wireguard.interface_ipv4_address,
        Tunnel.WIREGUARD_V6: wireguard.interface_ipv6_address,
    }[tunnel]
    return address or ""


def with_address(tunnel: Tunnel, node: Node, address: str | None) -> Node:
    """The Node with `address` recorded, or with None removed (T2)."""
    spec = node.spec
    bgp, wireguard = spec.bgp or NodeBGPSpec(), spec.wireguard or NodeWireguardSpec()
    if tunnel is Tunnel.IPIP:
        bgp = replace(bgp, ipv4_ipip_tunnel_addr=address)
        spec = replace(spec, bgp=None if bgp == NodeBGPSpec() else bgp)
    elif tunnel is Tunnel.VXLAN:
        spec = replace(spec, ipv4_vxlan_tunnel_addr=address)
    elif tunnel is Tunnel.VXLAN_V6:
        spec = replace(spec, ipv6_vxlan_tunnel_addr=address)
    else:
        v4 = tunnel is Tunnel.WIREGUARD
        name = "interface_ipv4_address" if v4 else "interface_ipv6_address"
        wireguard = replace(wireguard, **{name: address})
        spec = replace(spec, wireguard=None if wireguard == NodeWireguardSpec() else wireguard)
    return replace(node, spec=spec)
