"""The addresses a node takes for its own tunnel devices.

Layer: ipam edge. Reached as `IpamClient.tunnels`, by calico-node and by node deletion. The handle
names node and tunnel, so a node that forgot finds its address again, and node deletion frees it.

Source: datamodel §2.2; Calico node/pkg/allocateip.
"""

from __future__ import annotations

from collections.abc import Iterable

from ipam.client.assign import Assigner
from ipam.client.release import Releaser
from ipam.errors import NoPools
from ipam.handles import Tunnel
from ipam.requests import TUNNEL, AutoAssign, Release
from libcalico.errors import NotFound
from libcalico.net import Address, Network


class Tunnels:
    """Tunnel addresses of nodes."""

    def __init__(self, assigner: Assigner, releaser: Releaser) -> None:
        self._assigner = assigner
        self._releaser = releaser

    async def address(self, tunnel: Tunnel, node: str, pools: Iterable[Network]) -> Address:
        """The node's address for a tunnel, from one of `pools` (those with the encapsulation on).
        An address it holds already is kept while it lies in them; any other is given back.

        Errors: NoPools, PoolExhausted and whatever `IpamClient.auto_assign` raises."""
        wanted = tuple(pool for pool in pools if pool.version == tunnel.version)
        if not wanted:
            raise NoPools(f"no configured Calico pools for node {node}")
        kept, others = await self._held(tunnel, node, wanted)
        if others:
            requests = [Release(address=a, handle_id=tunnel.handle(node)) for a in others]
            (await self._releaser.release(requests)).raise_failed()
        return kept or await self._assign(tunnel, node, wanted)

    async def release(self, tunnel: Tunnel, node: str) -> None:
        """Give the address back; none held is fine."""
        try:
            await self._releaser.release_handle(tunnel.handle(node))
        except NotFound:
            return

    async def _held(
        self, tunnel: Tunnel, node: str, pools: tuple[Network, ...]
    ) -> tuple[Address | None, list[Address]]:
        try:
            held = await self._releaser.addresses_of(tunnel.handle(node))
        except NotFound:
            return None, []
        fitting = [address for address in held if any(address in pool for pool in pools)]
        kept = min(fitting, key=int, default=None)
        return kept, [address for address in held if address != kept]

    async def _assign(self, tunnel: Tunnel, node: str, pools: tuple[Network, ...]) -> Address:
        v4 = tunnel.version == 4
        assigned = await self._assigner.auto_assign(
            AutoAssign(
                host=node,
                use=TUNNEL,
                handle_id=tunnel.handle(node),
                attributes=tunnel.attributes(node),
                num_v4=int(v4),
                num_v6=int(not v4),
                pools_v4=pools if v4 else (),
                pools_v6=() if v4 else pools,
            )
        )
        error = assigned.partial_error()
        if error is not None:
            raise error
        return assigned.addresses[0].ip
