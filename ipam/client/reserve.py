"""Filling a node's offline reserve, and giving what was handed out of it to its pods.

Layer: ipam edge. Used by `ipam.client.IpamClient`, for cni; what a reserve is: `ipam.reserve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ipam import reserve
from ipam.batch import BlockMissing, HandOver
from ipam.blocks import Holder
from ipam.client.assign import Assigner
from ipam.client.lane import Terms
from ipam.client.parts import Parts
from ipam.client.release import Releaser
from ipam.requests import WORKLOAD, AutoAssign, Release
from libcalico.errors import NotFound
from libcalico.net import Address


class Reserves:
    """Reserves of nodes. Every method may raise DatastoreUnavailable, outcome unknown: look again
    with `held`."""

    def __init__(self, parts: Parts, assigner: Assigner, releaser: Releaser) -> None:
        self._parts, self._assigner, self._releaser = parts, assigner, releaser

    async def held(self, node: str) -> tuple[Address, ...]:
        """What the reserve holds, as the datastore has it now."""
        try:
            return await self._releaser.addresses_of(reserve.handle_of(node))
        except NotFound:
            return ()

    async def add(self, node: str, version: int, count: int) -> tuple[Address, ...]:
        """Up to `count` more. Errors: whatever `IpamClient.auto_assign` raises."""
        assigned = await self._assigner.auto_assign(
            AutoAssign(
                host=node,
                use=WORKLOAD,
                handle_id=reserve.handle_of(node),
                attributes=reserve.attributes_of(node),
                num_v4=count if version == 4 else 0,
                num_v6=count if version == 6 else 0,
            )
        )
        return tuple(interface.ip for interface in assigned.addresses)

    async def release(self, node: str, addresses: Iterable[Address]) -> None:
        """Give some back; one that is a pod's by now stays the pod's."""
        handle_id = reserve.handle_of(node)
        await self._releaser.release(Release(address=a, handle_id=handle_id) for a in addresses)

    async def release_all(self, node: str) -> None:
        """Give all back; none held is fine."""
        try:
            await self._releaser.release_handle(reserve.handle_of(node))
        except NotFound:
            return

    async def hand_over(
        self, address: Address, node: str, handle_id: str, attributes: Mapping[str, str]
    ) -> None:
        """One address from the node's reserve to a handle of the same node, in one write, whatever
        became of its pool and of the block's affinity. Done already is success.

        Errors: NotReserved when somebody else holds it, AddressInCooldown, MalformedBlock,
        RetriesExhausted."""
        facts = await self._parts.source.facts()
        cidr = await self._releaser.block_of(address, facts)
        if cidr is None:
            raise BlockMissing(str(address))
        operation = HandOver(address=address, node=node, holder=Holder(handle_id, dict(attributes)))
        terms = Terms(cooldown_s=facts.config.ip_cooldown_seconds)
        await self._parts.lanes.of(cidr).submit(operation, terms)
