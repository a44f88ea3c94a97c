"""Whole affinities: claiming ranges for a host, giving up a host's or a pool's.

Layer: ipam edge. Reached as `IpamClient.affinities`; used by calicoctl, the controllers and
`ipam.cascade`.

One block that fails does not stop the others; the first failure is raised at the end.
Source: datamodel §2.6; Calico libcalico-go/lib/ipam/ipam.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from ipam import pools
from ipam.affinity import HOST, Owner, owner_of
from ipam.blocks import network_of_block
from ipam.client.assign import Assigner
from ipam.client.parts import Parts
from ipam.errors import PoolRefused, RetriesExhausted
from ipam.requests import AutoAssign, Claimed
from libcalico.errors import AffinityLost, BlockNotEmpty, NotFound, RevisionConflict, SuiteError
from libcalico.model.ipam import Block
from libcalico.model.keys import (
    HOST_AFFINITIES_PREFIX,
    IpamHostKey,
    path_of,
)
from libcalico.net import Network
from libcalico.runtime import log

LOG = log.get(__name__)
MAX_CONFLICTS = 100


class AffinityClient:
    """Everything about block affinities that is not part of an assignment."""

    def __init__(self, parts: Parts, assigner: Assigner) -> None:
        self._parts = parts
        self._assigner = assigner
        self._records = parts.lanes.context.records

    async def ensure_blocks(self, request: AutoAssign) -> tuple[Network | None, Network | None]:
        """One block a family for the host, v4 and v6, for each family with `reserved_v4` or
        `reserved_v6`; an affine block is used whatever is free in it (Windows).

        Errors: as `IpamClient.auto_assign`."""
        return await self._assigner.ensure_blocks(request)

    async def claim(self, cidr: Network, owner: Owner) -> Claimed:
        """Every block of a range. Errors: PoolRefused (in no enabled pool, or smaller than a
        block)."""
        claimed: list[Network] = []
        failed: list[Network] = []
        for block in await self._blocks_in(cidr):
            owned = await self._parts.claims.claim(owner, str(block))
            (failed if owned is None else claimed).append(block)
        return Claimed(tuple(claimed), tuple(failed))

    async def release(self, cidr: Network, owner: Owner, *, must_be_empty: bool) -> None:
        """The owner's blocks of a range; those of others are left alone. Errors: PoolRefused,
        BlockNotEmpty."""
        await self._release_each(await self._blocks_in(cidr), owner, must_be_empty=must_be_empty)

    async def release_block(self, block: Block, *, must_be_empty: bool) -> None:
        """Whoever owns the block. Errors: BlockNotEmpty."""
        owner = owner_of(block)
        if owner is not None:
            cidr = network_of_block(block.cidr)
            await self._release_each([cidr], owner, must_be_empty=must_be_empty)

    async def release_host(self, owner: Owner, *, must_be_empty: bool) -> None:
        """Everything an owner has. Errors: the first, after all were tried."""
        cidrs = [
            network_of_block(cidr)
            for version in (4, 6)
            for cidr in await self._records.affinities(owner, version)
        ]
        await self._release_each(cidrs, owner, must_be_empty=must_be_empty)

    async def release_pool(self, pool: Network) -> None:
        """Every host's affinities inside a range, empty or not (virtual ones are not listed,
        datamodel §2.2). Errors: RetriesExhausted when hosts keep claiming."""
        for _ in range(MAX_CONFLICTS):
            listed = await self._records.affinities_under(HOST_AFFINITIES_PREFIX)
            pairs = [
                (Owner(key.host, HOST), block)
                for key, _ in listed
                if (block := network_of_block(key.cidr)).version == pool.version
                and block.network_address in pool
            ]
            if not pairs:
                return
            for owner, block in pairs:
                await self._release_each([block], owner, must_be_empty=False)
        raise RetriesExhausted

    async def remove_host(self, host: str) -> None:
        """All IPAM data of a host but its addresses: affinities, and the legacy marker."""
        await self.release_host(Owner(host), must_be_empty=False)
        store = self._records.datastore
        path = path_of(IpamHostKey(host))
        marker = await store.get(path)
        if marker is None:
            return
        try:
            await store.delete(path, mod_revision=marker.mod_revision)
        except (NotFound, RevisionConflict) as err:
            LOG.info("legacy host marker changed while it was deleted", node=host, error=err)

    async def _blocks_in(self, cidr: Network) -> Iterable[Network]:
        facts = await self._parts.source.facts()
        enabled = (pool for pool in facts.pools if pool.enabled)
        pool = pools.pool_of(enabled, cidr.network_address)
        if pool is None:
            raise PoolRefused(f"The requested CIDR ({cidr}) is not within any configured pools.")
        if cidr.prefixlen > pool.block_size:
            raise PoolRefused(f"The requested CIDR ({cidr}) is smaller than the minimum.")
        return cidr.subnets(new_prefix=pool.block_size)

    async def _release_each(
        self, cidrs: Iterable[Network], owner: Owner, *, must_be_empty: bool
    ) -> None:
        first: SuiteError | None = None
        for cidr in cidrs:
            try:
                await self._parts.claims.release(owner, str(cidr), must_be_empty=must_be_empty)
            except (NotFound, AffinityLost) as err:
                LOG.debug("no such affinity", cidr=str(cidr), node=owner.host, error=err)
            except BlockNotEmpty as err:
                first = first or err
            except SuiteError as err:
                LOG.warning("affinity not released", cidr=str(cidr), node=owner.host, error=err)
                first = first or err
        if first is not None:
            raise first
