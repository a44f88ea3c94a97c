"""Assigning addresses, any or a particular one.

Layer: ipam edge. Used by `ipam.client.IpamClient`. The work of an automatic request is done by
`ipam.client.family`, once for each family; if the second fails the first is given back.

Source: datamodel §2.4, §2.5; Calico libcalico-go/lib/ipam/ipam.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ipam import pools
from ipam.batch import AssignOne, BlockMissing
from ipam.blocks import Holder
from ipam.client.family import Family
from ipam.client.lane import Terms
from ipam.client.parts import Parts, give_back, owner_for
from ipam.client.source import Facts
from ipam.errors import PoolRefused, RetriesExhausted
from ipam.requests import AssignIP, Assignments, AutoAssign, AutoAssigned
from libcalico.errors import SuiteError
from libcalico.net import Interface, Network, parse_interface

MAX_CONFLICTS = 100


class Assigner:
    """`IpamClient`'s assigning half."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def auto_assign(self, request: AutoAssign) -> AutoAssigned:
        """See `IpamClient.auto_assign`."""
        facts = await self._parts.source.facts()
        got: list[Assignments | None] = []
        for version, count in ((4, request.num_v4), (6, request.num_v6)):
            if not count:
                got.append(None)
                continue
            is_last = version == 6 or not request.num_v6
            foresee = _foresees_rest(request, got, is_last=is_last)
            family = Family(self._parts, replace(request, foresee=foresee), facts, version)
            try:
                got.append(await family.assign(count))
            except SuiteError:
                for earlier in filter(None, got):
                    await give_back(self._parts, earlier.addresses, request.handle_id, facts)
                raise
        return AutoAssigned(*got)

    async def ensure_blocks(self, request: AutoAssign) -> tuple[Network | None, Network | None]:
        """See `AffinityClient.ensure_blocks`."""
        facts = await self._parts.source.facts()
        found: list[Network | None] = []
        for version, reserved in ((4, request.reserved_v4), (6, request.reserved_v6)):
            family = Family(self._parts, request, facts, version)
            found.append(await family.ensure_block() if reserved else None)
        return found[0], found[1]

    async def assign_ip(self, request: AssignIP) -> Interface:
        """See `IpamClient.assign_ip`."""
        facts = await self._parts.source.facts()
        pool = _pool_for(request, facts)
        owner = owner_for(request.host, request.use)
        cidr = str(pools.block_of(pool, request.address))
        operation = AssignOne(
            address=request.address,
            holder=Holder(request.handle_id, request.attributes),
            owner=owner,
            must_own=facts.config.strict_affinity,
            max_alloc=request.max_alloc,
        )
        terms = Terms(cooldown_s=facts.config.ip_cooldown_seconds)
        for _ in range(MAX_CONFLICTS):
            try:
                await self._parts.lanes.of(cidr).submit(operation, terms)
            except BlockMissing:
                # Regardless of the block limit (§2.5). Lost to another host: then it exists.
                await self._parts.claims.claim(owner, cidr, request.reserved)
                continue
            return parse_interface(f"{request.address}/{pool.block_size}")
        raise RetriesExhausted


def _foresees_rest(
    request: AutoAssign, got: list[Assignments | None], *, is_last: bool
) -> Callable[[tuple[Interface, ...]], None] | None:
    """`request.foresee` for one of its families: all addresses are known with the last one's."""
    foresee = request.foresee
    if foresee is None or not is_last:
        return None
    earlier = AutoAssigned(*got).addresses
    return lambda addresses: foresee((*earlier, *addresses))


def _pool_for(request: AssignIP, facts: Facts) -> pools.Pool:
    enabled = (pool for pool in facts.pools if pool.enabled)
    pool = pools.pool_of(enabled, request.address)
    if pool is None:
        raise PoolRefused("The provided IP address is not in a configured pool\n")
    if request.use and request.use not in pool.allowed_uses:
        raise PoolRefused(
            f'IP address {request.address} is in IP pool "{pool.name}", which is not allowed for '
            f'use "{request.use}" (allowedUses: [{" ".join(pool.allowed_uses)}])'
        )
    return pool
