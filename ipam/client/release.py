"""Releasing addresses, by themselves or by handle, and reading who holds one.

Layer: ipam edge. Used by `ipam.client.IpamClient`; decisions are the pure modules'.

  H1  addresses of one block go in one write, with their handles; blocks are served at once, and
      one that fails does not stop the others;
  H2  a release by handle ends only when the handle, as the datastore has it, names no block we
      have not been to;
  H3  after a release an empty block whose pool no longer selects its owner's node goes back;
      failing at that is logged, the addresses are free already (datamodel §2.6.6).

Source: datamodel §2.6; Calico libcalico-go/lib/ipam/ipam.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ipam import blocks, pools
from ipam.affinity import HOST, Versioned, owner_of
from ipam.batch import ReleaseHandle, ReleaseMany
from ipam.blocks import ReleaseEffect, network_of_block
from ipam.client.fanout import for_each
from ipam.client.lane import Guard, Served, Terms
from ipam.client.parts import Parts
from ipam.client.source import Facts
from ipam.errors import AddressInCooldown, AddressUnassigned
from ipam.requests import Assignment, Failure, Release, Released
from libcalico.errors import AffinityLost, BlockNotEmpty, NotFound, SuiteError
from libcalico.model.ipam import Block, Handle
from libcalico.model.keys import BlockKey, HandleKey, identifier
from libcalico.model.names import normal_handle_id
from libcalico.net import Address, Network, address_of
from libcalico.runtime import log

LOG = log.get(__name__)


@dataclass(frozen=True, slots=True)
class _Group:
    """What is to be released from one block; None: no block holds these."""

    cidr: str | None
    requests: tuple[Release, ...]


class Releaser:
    """`IpamClient`'s releasing half."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._records = parts.lanes.context.records

    # ---- by address ----------------------------------------------------------------------------

    async def release(
        self,
        requests: Iterable[Release],
        *,
        guard: Guard | None = None,
        facts: Facts | None = None,
    ) -> Released:
        """See `IpamClient.release_ips`. With a guard nothing is written once that has changed;
        `facts`: what the caller has read a moment ago."""
        facts = facts or await self._parts.source.facts()
        groups = await self._group(tuple(requests), facts)

        async def serve(group: _Group) -> Released:
            return await self._release_group(group, facts, guard)

        parts = await for_each(serve, groups)
        return Released(
            released=tuple(r for part in parts for r in part.released),
            unallocated=tuple(a for part in parts for a in part.unallocated),
            failed=tuple(f for part in parts for f in part.failed),
        )

    async def _release_group(self, group: _Group, facts: Facts, guard: Guard | None) -> Released:
        if group.cidr is None:
            return Released(unallocated=tuple(r.address for r in group.requests))
        try:
            served = await self._submit(group.cidr, ReleaseMany(group.requests), facts, guard)
        except SuiteError as err:
            return Released(failed=tuple(Failure(request, err) for request in group.requests))
        effect = served.value
        assert isinstance(effect, ReleaseEffect)
        free = set(effect.unallocated)
        return Released(
            released=tuple(r for r in group.requests if r.address not in free),
            unallocated=effect.unallocated,
        )

    async def _group(self, requests: Sequence[Release], facts: Facts) -> list[_Group]:
        """By block. The pool gives it away, disabled or not; else all blocks are looked through."""
        existing: list[Network] | None = None
        by_block: dict[str | None, list[Release]] = {}
        for request in requests:
            pool = pools.pool_of(facts.pools, request.address)
            if pool is not None:
                cidr: str | None = str(pools.block_of(pool, request.address))
            else:
                existing = existing or await self._all_block_cidrs()
                cidr = _covering(existing, request.address)
            by_block.setdefault(cidr, []).append(request)
        return [_Group(cidr, tuple(group)) for cidr, group in by_block.items()]

    async def _all_block_cidrs(self) -> list[Network]:
        return [*await self._records.block_cidrs(4), *await self._records.block_cidrs(6)]

    # ---- by handle -----------------------------------------------------------------------------

    async def release_handle(self, handle_id: str) -> tuple[Address, ...]:
        """See `IpamClient.release_by_handle`."""
        facts = await self._parts.source.facts()
        handle_id = normal_handle_id(handle_id)
        known = self._remembered(handle_id)
        # A handle remembered as gone may have been made again by somebody else.
        if known is None or known.value is None or not known.value.block:
            known = await self._read_handle(handle_id)
            if known.value is None:
                raise NotFound(identifier(HandleKey(handle_id)))
        released: list[Address] = []
        visited: set[str] = set()
        while known.value is not None:
            waiting = sorted(known.value.block.keys() - visited)
            if not waiting:
                break  # what is left over-counts: nothing of it is in any block (§0.13)
            for cidr in waiting:
                visited.add(cidr)
                released += await self._release_from(cidr, handle_id, facts)
            before, known = known, self._remembered(handle_id)
            if known is None or known is before:
                known = await self._read_handle(handle_id)
        return tuple(released)

    def _remembered(self, handle_id: str) -> Versioned[Handle] | None:
        return self._parts.lanes.context.handles.get(handle_id)

    async def _read_handle(self, handle_id: str) -> Versioned[Handle]:
        found = await self._records.handle(handle_id)
        self._parts.lanes.context.handles[handle_id] = found
        return found

    async def _release_from(self, cidr: str, handle_id: str, facts: Facts) -> list[Address]:
        served = await self._submit(cidr, ReleaseHandle(handle_id), facts)
        assert isinstance(served.value, ReleaseEffect)
        network = network_of_block(cidr)
        base = int(network.network_address)
        return [address_of(network.version, base + o) for o, _, _ in served.value.released]

    # ---- both ----------------------------------------------------------------------------------

    async def _submit(
        self,
        cidr: str,
        operation: ReleaseMany | ReleaseHandle,
        facts: Facts,
        guard: Guard | None = None,
    ) -> Served:
        terms = Terms(cooldown_s=facts.config.ip_cooldown_seconds, guard=guard)
        served = await self._parts.lanes.of(cidr).submit(operation, terms)
        if served.block is not None:
            try:
                await self._leave_pool(served.block, facts)
            except SuiteError as err:
                LOG.warning("block affinity not re-checked", cidr=cidr, error=err)
        return served

    async def _leave_pool(self, block: Block, facts: Facts) -> None:
        """H3."""
        owner = owner_of(block)
        if owner is None or owner.type != HOST or not blocks.is_empty(block):
            return
        enabled = (pool for pool in facts.pools if pool.enabled)
        pool = pools.pool_of(enabled, network_of_block(block.cidr).network_address)
        if pool is None or pool.selects_every_node:
            return
        try:
            labels = await self._parts.source.node_labels(owner.host)
            if not pool.selects_node(labels):
                await self._parts.claims.release(owner, block.cidr, must_be_empty=True)
        except (NotFound, AffinityLost, BlockNotEmpty):
            return  # no such node, not his, in use again: nothing to give back

    # ---- looking -------------------------------------------------------------------------------

    async def addresses_of(self, handle_id: str) -> tuple[Address, ...]:
        """See `IpamClient.ips_by_handle`."""
        handle_id = normal_handle_id(handle_id)
        handle = (await self._read_handle(handle_id)).value
        if handle is None:
            raise NotFound(identifier(HandleKey(handle_id)))
        views = await for_each(self._records.block, sorted(handle.block))
        found: list[Address] = []
        for view in views:
            if view.value is not None:
                found += blocks.addresses_of(view.value, handle_id)
        return tuple(found)

    async def block_of(self, address: Address, facts: Facts) -> str | None:
        """The block an address lies in, also when its pool is gone; None: there is none."""
        (group,) = await self._group((Release(address=address),), facts)
        return group.cidr

    async def assignment(self, address: Address) -> Assignment:
        """See `IpamClient.assignment`."""
        facts = await self._parts.source.facts()
        cidr = await self.block_of(address, facts)
        if cidr is None:
            raise NotFound(str(address), "No valid IPPool")
        block = (await self._records.block(cidr)).value
        if block is None:
            raise NotFound(identifier(BlockKey(cidr)))
        if blocks.is_cooling(block, address):
            raise AddressInCooldown(str(address))
        found = blocks.assignment_of(block, address)
        if found is None:
            raise AddressUnassigned(str(address))
        return found


def _covering(cidrs: Iterable[Network], address: Address) -> str | None:
    return next((str(c) for c in cidrs if c.version == address.version and address in c), None)
