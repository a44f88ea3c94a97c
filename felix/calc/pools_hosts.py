"""IP pools and node addresses, for NAT outgoing, overlays and host lists.

Layer: felix.calc, pure. Used by graph.py.

  H1  one pool per CIDR: of several objects with the same one, that with the smallest name counts;
  H2  a disabled pool still counts: it hands out no new address, but its traffic is still NATed;
  H3  a node without any address is announced with none, a node that does not exist is not.

Source: Calico libcalico-go/lib/backend/syncersv1/updateprocessors/{ippool,felixnode}processor.go.
"""

from __future__ import annotations

from collections.abc import Iterator

from felix.intent import HostUpdate, PoolUpdate
from libcalico import net
from libcalico.model import IPPool, Node
from libcalico.model.keys import ResourceKey

# Where a node's address is looked for when it has none for BGP, best first.
_ADDRESS_TYPES = ("CalicoNodeIP", "InternalIP", "ExternalIP")


class Pools:
    def __init__(self) -> None:
        self._pool_by_key: dict[ResourceKey, PoolUpdate] = {}
        self._keys_by_cidr: dict[str, set[ResourceKey]] = {}
        self._dirty: set[str] = set()

    def update(self, key: ResourceKey, pool: IPPool | None) -> None:
        """Errors: AddressError for a CIDR that does not parse."""
        wanted = None if pool is None else pool_update(pool)
        before = self._pool_by_key.pop(key, None)
        if before is not None:
            self._dirty.add(before.cidr)
            keys = self._keys_by_cidr[before.cidr]
            keys.discard(key)
            if not keys:
                del self._keys_by_cidr[before.cidr]
        if wanted is not None:
            self._dirty.add(wanted.cidr)
            self._pool_by_key[key] = wanted
            self._keys_by_cidr.setdefault(wanted.cidr, set()).add(key)

    def flush(self) -> dict[str, PoolUpdate | None]:
        """Every CIDR that may have changed."""
        dirty, self._dirty = self._dirty, set()
        return {cidr: self._winner(cidr) for cidr in dirty}

    def dump(self) -> dict[str, object]:
        return {key.name: pool.cidr for key, pool in sorted(self._pool_by_key.items())}

    def _winner(self, cidr: str) -> PoolUpdate | None:
        keys = self._keys_by_cidr.get(cidr)
        return self._pool_by_key[min(keys)] if keys else None  # H1


def pool_update(pool: IPPool) -> PoolUpdate:
    spec = pool.spec
    return PoolUpdate(
        cidr=str(net.parse_cidr(spec.cidr)),
        nat_outgoing=spec.nat_outgoing,
        ipip_mode=spec.ipip_mode or "Never",
        vxlan_mode=spec.vxlan_mode or "Never",
    )


def host_update(name: str, node: Node) -> HostUpdate:
    """The node's address of each family. Errors: AddressError."""
    return HostUpdate(name, _address(node, 4), _address(node, 6))


def _address(node: Node, version: int) -> str | None:
    for text in _candidates(node, version):
        address = net.parse_ip(text.partition("/")[0])
        if address.version == version:
            return str(address)
    return None


def _candidates(node: Node, version: int) -> Iterator[str]:
    """Best first: BGP's own, then by type."""
    bgp = node.spec.bgp
    own = (bgp.ipv4_address if version == 4 else bgp.ipv6_address) if bgp is not None else None
    if own:
        yield own
    for kind in _ADDRESS_TYPES:
        for item in node.spec.addresses:
            if item.type == kind:
                yield item.address
