"""Using a sticky claim: making it, or taking it over from whoever used it last.

Layer: ipam edge. Used by `ipam.client.IpamClient`, for cni; what a claim is: `ipam.sticky`.

  Y1  what the identity holds is read from the datastore, never remembered;
  Y2  an attempt that fails later keeps the claim: it is the identity's, and another container of
      it may be using it already;
  Y3  the fence is taken last: the handle is read, then the blocks. As long as they show us as the
      user, nobody came after us, and the handle's revision is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ipam import pools, sticky
from ipam.affinity import HOST, Owner
from ipam.batch import Rebind
from ipam.blocks import Holder, addresses_of, assignment_of
from ipam.client.assign import Assigner
from ipam.client.fanout import for_each
from ipam.client.lane import Guard, Terms
from ipam.client.parts import Parts
from ipam.client.source import Facts
from ipam.errors import (
    ClaimGone,
    ClaimTaken,
    HandleLimitReached,
    PoolRefused,
    RetriesExhausted,
)
from ipam.requests import AssignIP, AutoAssign
from libcalico.errors import AffinityLost, AlreadyExists
from libcalico.model.keys import HandleKey
from libcalico.net import Address

MAX_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Bound:
    """Claimed addresses, IPv4 first, and what stands as long as nobody else used them since."""

    addresses: tuple[Address, ...]
    fence: Guard


@dataclass(frozen=True, slots=True)
class _Held:
    """One address of a claim, and who is written down as its user."""

    address: Address
    cidr: str
    attributes: Mapping[str, str]


class StickyClaims:
    """The claims of all identities."""

    def __init__(self, parts: Parts, assigner: Assigner) -> None:
        self._parts, self._assigner = parts, assigner
        self._records = parts.lanes.context.records

    async def bind(self, request: AutoAssign, wanted: Sequence[Address] = ()) -> Bound:
        """One address of each family asked for (`wanted`: exactly these), the identity's for ever.
        `request.handle_id` and `.attributes` are of `sticky.Identity`.

        Errors: PoolRefused when the claim may not be used on this host, or is another address than
        wanted; ClaimTaken; what `auto_assign` and `assign_ip` raise; PoolExhausted."""
        return await _Binding(self, request, {a.version: a for a in wanted}).run()


class _Binding:
    """One request on its way."""

    def __init__(self, of: StickyClaims, request: AutoAssign, wanted: dict[int, Address]) -> None:
        assert request.handle_id is not None
        self._parts, self._assigner, self._records = of._parts, of._assigner, of._records
        self._request, self._wanted = request, wanted
        self._handle_id = request.handle_id
        counts = {4: request.num_v4, 6: request.num_v6}
        self._versions = sorted(wanted) or [v for v, count in counts.items() if count]

    async def run(self) -> Bound:
        facts = await self._parts.source.facts()
        for _ in range(MAX_ATTEMPTS):
            held = await self._held()
            try:
                await self._use(held, facts)
            except ClaimGone:
                continue
            except (HandleLimitReached, AlreadyExists):
                # Another request of the identity made it meanwhile; else somebody has the address.
                if set(self._versions) & (await self._held()).keys() <= held.keys():
                    raise
                continue
            return await self._bound()
        raise RetriesExhausted

    async def _use(self, held: Mapping[int, _Held], facts: Facts) -> None:
        for version in self._versions:
            if version in held:
                await self._rebind(held[version], facts)
            else:
                await self._make(version, facts)

    async def _held(self) -> dict[int, _Held]:
        """By family (Y1)."""
        handle = await self._records.handle(self._handle_id)
        self._parts.lanes.context.handles[self._handle_id] = handle
        cidrs = sorted(handle.value.block) if handle.value else []
        found: dict[int, _Held] = {}
        for cidr, view in zip(cidrs, await for_each(self._records.block, cidrs), strict=True):
            self._parts.lanes.of(cidr).see(view)
            for address in addresses_of(view.value, self._handle_id) if view.value else ():
                assignment = assignment_of(view.value, address) if view.value else None
                if assignment is not None:
                    found[address.version] = _Held(address, cidr, assignment.attributes)
        return found

    async def _place(self, version: int) -> sticky.Place:
        request = self._request
        labels = await self._parts.source.node_labels(request.host)
        explicit = request.pools_v4 if version == 4 else request.pools_v6
        return sticky.Place(request.host, labels, explicit)

    async def _make(self, version: int, facts: Facts) -> None:
        """Errors: as `bind`; HandleLimitReached when somebody was quicker."""
        request, wanted = self._request, self._wanted.get(version)
        if wanted is None:
            one = replace(request, num_v4=int(version == 4), num_v6=int(version == 6), max_alloc=1)
            assigned = await self._assigner.auto_assign(one)
            error = assigned.partial_error()
            if error is not None:
                raise error
            return
        pool = pools.pool_of((p for p in facts.pools if p.enabled), wanted)
        # Of an address in no pool `assign_ip` says so, in Calico's words.
        refused = pool and sticky.refusal(pool, wanted, await self._place(version))
        if refused:
            raise PoolRefused(refused)
        await self._assigner.assign_ip(
            AssignIP(
                address=wanted,
                host=request.host,
                use=request.use,
                handle_id=self._handle_id,
                attributes=request.attributes,
                max_alloc=1,
            )
        )

    async def _rebind(self, held: _Held, facts: Facts) -> None:
        """Errors: PoolRefused, ClaimGone."""
        address, cidr, request = held.address, held.cidr, self._request
        wanted = self._wanted.get(address.version)
        if wanted is not None and wanted != address:
            raise PoolRefused(
                f"{wanted} is asked for, but the sticky address of {self._handle_id} is {address}: "
                "release it first"
            )
        pool = pools.pool_of(facts.pools, address)
        refused = sticky.refusal(pool, address, await self._place(address.version))
        if refused or pool is None:
            raise PoolRefused(refused)
        operation = Rebind(
            address=address,
            holder=Holder(self._handle_id, request.attributes),
            owner=Owner(request.host, HOST),
            must_own=facts.config.strict_affinity,
        )
        try:
            terms = Terms(cooldown_s=facts.config.ip_cooldown_seconds)
            await self._parts.lanes.of(cidr).submit(operation, terms)
        except AffinityLost as err:
            raise PoolRefused(
                f"sticky address {address} cannot be used on node {request.host}: strict affinity, "
                f'and block {cidr} of IP pool "{pool.name}" is not of this node'
            ) from err

    async def _bound(self) -> Bound:
        """Y3. Errors: ClaimTaken."""
        handle = await self._records.handle(self._handle_id)
        held = await self._held()
        ours = dict(self._request.attributes)
        for version in self._versions:
            if version not in held or dict(held[version].attributes) != ours:
                raise ClaimTaken(self._handle_id)
        addresses = tuple(held[version].address for version in self._versions)
        return Bound(addresses, Guard(HandleKey(self._handle_id), handle.mod_revision))
