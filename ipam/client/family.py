"""One automatic request, one address family: own blocks, a new one, borrowed addresses.

Layer: ipam edge. Used by `ipam.client.assign`; decisions are the pure modules'.

    own blocks, remembered ─full─► own blocks, read again ─full─► claim one ─none free─► reclaim an
    empty one ─none─► borrow (unless strict affinity)

  G1  in the common case one transaction: block, handle and the compare of the affinity key;
  G2  one request of a host looks for a new block at a time; those behind it find the block it got;
  G3  a request that fails gives back what it got, and says so if it cannot;
  G4  every loop is bounded by the number of blocks or by MAX_CONFLICTS.

Source: datamodel §2.3, §2.4; Calico libcalico-go/lib/ipam/{ipam.go,ipam_block_reader_writer.go}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from ipam import affinity, blocks, pools
from ipam.affinity import HOST, Versioned
from ipam.batch import Assigned, AssignMany, BlockMissing, Value
from ipam.blocks import BlockDraft, Holder, network_of_block
from ipam.client.fanout import for_each
from ipam.client.lane import Guard, Served, Terms
from ipam.client.parts import Parts, give_back, owner_for
from ipam.client.source import Facts
from ipam.errors import (
    BlockNotFound,
    HandleLimitReached,
    MalformedBlock,
    NoFreeBlocks,
    RetriesExhausted,
)
from ipam.requests import Assignments, AutoAssign, HostReserved
from libcalico.errors import (
    AffinityLost,
    BlockLimitReached,
    BlockNotEmpty,
    DatastoreUnavailable,
    DecodeError,
    NotFound,
    RevisionConflict,
    SuiteError,
)
from libcalico.model.ipam import Block
from libcalico.net import Interface, Network, parse_cidr, parse_interface
from libcalico.runtime import log

LOG = log.get(__name__)
MAX_CONFLICTS = 100
DEFAULT_MAX_BLOCKS = 20
# After so many lost claims the list of taken blocks is read again.
_RELIST_AFTER = 8

NO_MORE_AFFINE = "No more free affine blocks and strict affinity enabled"
FAILED_IN_BLOCK = "Failed to assign IPs in newly allocated block"


class Family:
    """What one request does for one family. Used once."""

    def __init__(self, parts: Parts, request: AutoAssign, facts: Facts, version: int) -> None:
        self._parts = parts
        self._request = request
        self._facts = facts
        self._version = version
        self._owner = owner_for(request.host, request.use)
        self._reserved: HostReserved | None = (
            request.reserved_v4 if version == 4 else request.reserved_v6
        )
        self._usable: tuple[pools.Pool, ...] = ()
        self._wanted = 0
        self._got: list[Interface] = []
        self._messages: list[str] = []
        # Own blocks with room that we could not get anything out of: not tried a second time (G4).
        self._failed: set[str] = set()
        # Every block of the family, when it had to be listed with values.
        self._listed: dict[str, Versioned[Block]] | None = None
        self._started_at = parts.lanes.context.clock.monotonic()

    async def assign(self, count: int) -> Assignments:
        """Errors: as `IpamClient.auto_assign`; then nothing is held (G3)."""
        self._wanted = count
        await self._prepare()
        try:
            await self._assign_affine()
            if self._missing and not self._facts.config.strict_affinity:
                await self._borrow()
        except SuiteError:
            handle_id = self._request.handle_id
            await give_back(self._parts, self._got, handle_id, self._facts)
            raise
        return Assignments(
            version=self._version,
            requested=count,
            addresses=tuple(self._got),
            messages=tuple(dict.fromkeys(self._messages)),
            reserved=self._reserved,
        )

    async def ensure_block(self) -> Network:
        """Any affine block, full or not."""
        await self._prepare()
        holdings = await self._parts.hosts.holdings(self._owner, self._version)
        for cidr in self._allowed(holdings.affinities):
            if await self._parts.claims.confirm(self._owner, cidr, self._reserved):
                return network_of_block(cidr)
        async with self._parts.search(self._owner, self._version):
            return parse_cidr(await self._claim_block(0))

    @property
    def _missing(self) -> int:
        return self._wanted - len(self._got)

    # ---- pools ---------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        request, v4 = self._request, self._version == 4
        labels = {}
        if self._owner.type == HOST:
            labels = dict(await self._parts.source.node_labels(request.host))
        query = pools.PoolQuery(
            version=self._version,
            host=request.host,
            use=request.use,
            node_labels=labels,
            namespace_labels=request.namespace_labels,
            explicit=request.pools_v4 if v4 else request.pools_v6,
            reserved=self._reserved,
        )
        selection = pools.select(self._facts.pools, query)
        self._usable = selection.usable
        await self._leave_pools(selection, query)

    async def _leave_pools(self, selection: pools.Selection, query: pools.PoolQuery) -> None:
        """Side effect of §2.4: empty blocks of pools that no longer select this node go back."""
        holdings = await self._parts.hosts.holdings(self._owner, self._version)
        for cidr in [cidr for cidr in holdings.affinities if cidr not in holdings.checked]:
            block = network_of_block(cidr)
            if pools.contains(selection.selecting, block):
                continue
            pool = pools.pool_of(selection.enabled, block.network_address)
            if pool is None or pool.selects_node(query.node_labels):
                continue
            holdings.checked.add(cidr)
            await self._release_if_empty(cidr)

    async def _release_if_empty(self, cidr: str) -> None:
        try:
            await self._parts.claims.release(self._owner, cidr, must_be_empty=True)
        except (AffinityLost, BlockNotEmpty, NotFound, RetriesExhausted, DecodeError) as err:
            LOG.debug("block kept that its pool no longer gives us", cidr=cidr, error=err)

    def _allowed(self, cidrs: Iterable[str]) -> list[str]:
        """Those in the pools of this request that are not wholly reserved."""
        reservations = self._facts.reservations
        found = []
        for cidr in cidrs:
            block = network_of_block(cidr)
            if pools.contains(self._usable, block) and not reservations.covers(block):
                found.append(cidr)
        return found

    # ---- own blocks ----------------------------------------------------------------------------

    async def _assign_affine(self) -> None:
        tried: set[str] = set()
        searches = 0
        while self._missing:
            cidr = await self._next_own(tried)
            if cidr is None:
                cidr = await self._search(tried)
                searches += 1
            if cidr is None:
                return
            if searches > MAX_CONFLICTS:
                raise RetriesExhausted
            tried.add(cidr)
            await self._assign_from_own(cidr)

    async def _next_own(self, tried: set[str]) -> str | None:
        """The first own block that is not known to be full, as far as we remember."""
        holdings = await self._parts.hosts.holdings(self._owner, self._version)
        for cidr in self._allowed(holdings.affinities):
            if cidr in tried:
                continue
            if not self._parts.lanes.is_known_full(cidr):
                return cidr
            tried.add(cidr)
        return None

    async def _assign_from_own(self, cidr: str) -> None:
        for _ in range(MAX_CONFLICTS):
            guard = await self._guard(cidr)
            if guard is None:
                return
            try:
                served = await self._submit(cidr, guard)
            except (AffinityLost, BlockMissing):
                # Released, stolen, or never finished: see what is left of it, then again.
                if await self._parts.claims.confirm(self._owner, cidr, self._reserved) is None:
                    return
                continue
            except (RevisionConflict, RetriesExhausted, MalformedBlock, DecodeError) as err:
                LOG.warning("assigning from a block failed", cidr=cidr, error=err)
                self._fail(cidr)
                return
            self._take(cidr, served)
            return
        self._fail(cidr)

    def _fail(self, cidr: str) -> None:
        self._failed.add(cidr)
        self._messages.append(FAILED_IN_BLOCK)

    async def _guard(self, cidr: str) -> Guard | None:
        """The confirmed affinity of an own block. None: it is not ours after all."""
        holdings = await self._parts.hosts.holdings(self._owner, self._version)
        known = holdings.affinities.get(cidr, Versioned())
        if affinity.is_confirmed(known.value):
            return Guard(self._owner.key(cidr), known.mod_revision)
        owned = await self._parts.claims.confirm(self._owner, cidr, self._reserved)
        return owned.guard if owned else None

    async def _submit(self, cidr: str, guard: Guard | None) -> Served:
        operation = AssignMany(
            count=self._missing,
            holder=Holder(self._request.handle_id, self._request.attributes),
            owner=self._owner,
            must_own=guard is not None,
            reservations=self._facts.reservations,
            max_alloc=self._request.max_alloc,
        )
        terms = Terms(
            cooldown_s=self._facts.config.ip_cooldown_seconds,
            guard=guard,
            remembered_ok=True,
            planned=partial(self._foresee, network_of_block(cidr)),
        )
        return await self._parts.lanes.of(cidr).submit(operation, terms)

    def _foresee(self, network: Network, planned: Value) -> None:
        """What a write will make ours is told, when with it the request has all it asks for."""
        assert isinstance(planned, Assigned)
        if self._request.foresee is not None and len(planned.ordinals) == self._missing:
            self._request.foresee((*self._got, *_interfaces(network, planned)))

    def _take(self, cidr: str, served: Served) -> None:
        assert isinstance(served.value, Assigned)
        self._got += _interfaces(network_of_block(cidr), served.value)

    # ---- a new block ---------------------------------------------------------------------------

    async def _search(self, tried: set[str]) -> str | None:
        """A block to try next, when all known ones are full. None: go on to borrowing.

        Errors: BlockLimitReached, BlockNotFound."""
        while (other := self._parts.searching.get((self._owner, self._version))) is not None:
            await other.wait()
            found_meanwhile = await self._next_own(tried)
            if found_meanwhile is not None:
                return found_meanwhile
        async with self._parts.search(self._owner, self._version):
            hosts = self._parts.hosts
            holdings = await hosts.younger(self._owner, self._version, self._started_at)
            own = self._allowed(holdings.affinities)
            roomy = await self._look_again(own)
            if roomy is not None:
                return roomy
            owned = sum(
                pools.contains(self._usable, network_of_block(cidr)) for cidr in holdings.affinities
            )
            try:
                return await self._claim_block(owned)
            except NoFreeBlocks:
                if self._facts.config.strict_affinity:
                    names = " ".join(self._pool_names())
                    self._messages.append(f"{NO_MORE_AFFINE}: pools [{names}]")
                return None

    async def _look_again(self, own: list[str]) -> str | None:
        """Full may have been a memory: others release addresses of our blocks as well."""
        lanes, records = self._parts.lanes, self._parts.lanes.context.records
        doubtful = [
            cidr
            for cidr in own
            if cidr not in self._failed and not lanes.is_known_full(cidr, self._started_at)
        ]
        views = await for_each(records.block, doubtful)
        for cidr, view in zip(doubtful, views, strict=True):
            self._parts.lanes.of(cidr).see(view)
            if view.value is not None and self._count_free(view.value):
                return cidr
        return None

    def _count_free(self, block: Block) -> int:
        if blocks.dangers_of(block):
            return 0
        draft = BlockDraft(block)
        now = self._parts.lanes.context.clock.wall()
        draft.collect(now, self._facts.config.ip_cooldown_seconds)
        return draft.count_free(self._facts.reservations)

    async def _claim_block(self, owned: int) -> str:
        """Errors: BlockLimitReached, BlockNotFound, NoFreeBlocks, RetriesExhausted."""
        limit = self._limit()
        if owned >= limit:
            self._messages.append(
                f"Need to allocate an IPAM block but could not - limit of {limit} blocks reached "
                "for this node"
            )
            raise BlockLimitReached(limit, self._pool_names())
        if not self._facts.config.auto_allocate_blocks:
            raise BlockNotFound
        return await self._claim_free() or await self._reclaim()

    def _pool_names(self) -> list[str]:
        return [str(pool.cidr) for pool in self._usable]

    def _limit(self) -> int:
        asked = self._request.max_blocks_per_host
        configured = self._facts.config.max_blocks_per_host
        limits = [limit for limit in (asked, configured) if limit > 0]
        return min(limits, default=DEFAULT_MAX_BLOCKS)

    async def _claim_free(self) -> str | None:
        """A block that does not exist yet. None: there is none."""
        records = self._parts.lanes.context.records
        taken: list[Network] = []
        for attempt in range(MAX_CONFLICTS):
            if attempt % _RELIST_AFTER == 0:
                taken = await records.block_cidrs(self._version)
            free = self._first_free(taken)
            if free is None:
                return None
            if await self._parts.claims.claim(self._owner, str(free), self._reserved):
                return str(free)
            taken.append(free)
        raise RetriesExhausted

    def _first_free(self, taken: list[Network]) -> Network | None:
        for pool in self._usable:
            free = pools.first_free(pool, self._request.host, taken, self._facts.reservations)
            if free is not None:
                return free
        return None

    async def _reclaim(self) -> str:
        """One of ours that lost its affinity key, or an empty one of somebody else.

        Errors: NoFreeBlocks."""
        now = self._parts.lanes.context.clock.wall()
        candidates = [b for b in await self._existing() if self._count_free(b)]
        mine = [block for block in candidates if block.affinity == str(self._owner)]
        others = [block for block in candidates if block.affinity != str(self._owner)]
        for block in mine:
            if await self._parts.claims.claim(self._owner, block.cidr, self._reserved):
                return block.cidr
        for block in others:
            if affinity.may_reclaim(block, now) and await self._take_over(block):
                return block.cidr
        raise NoFreeBlocks

    async def _take_over(self, block: Block) -> bool:
        claims = self._parts.claims
        try:
            if not await claims.reclaim(block):
                return False
        except (AffinityLost, BlockNotEmpty, NotFound, RetriesExhausted) as err:
            LOG.info("empty block not reclaimed", cidr=block.cidr, error=err)
            return False
        LOG.info("empty block reclaimed", cidr=block.cidr, node=self._owner.host)
        return await claims.claim(self._owner, block.cidr, self._reserved) is not None

    async def _existing(self) -> list[Block]:
        """The usable pools' blocks, pool by pool in walk order, as they are now."""
        self._listed = await self._parts.lanes.context.records.blocks(self._version)
        return [block for pool in self._usable for block in self._blocks_of(pool, self._listed)]

    def _blocks_of(self, pool: pools.Pool, listed: Mapping[str, Versioned[Block]]) -> list[Block]:
        networks = map(network_of_block, self._allowed(listed))
        ordered = pools.in_walk_order(pool, self._request.host, networks)
        found = (listed[str(network)].value for network in ordered)
        return [block for block in found if block is not None]

    # ---- borrowing -----------------------------------------------------------------------------

    async def _borrow(self) -> None:
        """From any block with room (§2.4). Its owner and everybody else route the /32 to us."""
        if self._listed is None:
            await self._existing()
        assert self._listed is not None
        exhausted = []
        for pool in self._usable:
            for block in self._blocks_of(pool, self._listed):
                if self._missing and self._count_free(block):
                    await self._borrow_from(block)
            if self._missing:
                exhausted.append(str(pool.cidr))
        if exhausted:
            self._messages.append(f"No IPs available in pools: [{' '.join(exhausted)}]")

    async def _borrow_from(self, block: Block) -> None:
        assert self._listed is not None
        self._parts.lanes.of(block.cidr).see(self._listed[block.cidr])
        try:
            self._take(block.cidr, await self._submit(block.cidr, None))
        except (HandleLimitReached, DatastoreUnavailable):
            raise
        except SuiteError as err:
            LOG.warning("borrowing from a block failed", cidr=block.cidr, error=err)


def _interfaces(network: Network, assigned: Assigned) -> list[Interface]:
    """Addresses with their block's prefix length."""
    return [parse_interface(f"{network[n]}/{network.prefixlen}") for n in assigned.ordinals]
