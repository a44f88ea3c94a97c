"""IpamClient: everything the other components ask of IPAM.

Layer: ipam edge. Used by cni, felix (tunnel addresses), calicoctl and the controllers. One client
per process and datastore: requests of one process share writes only through one client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ipam.client.affinities import AffinityClient
from ipam.client.assign import Assigner
from ipam.client.claims import Claims
from ipam.client.collector import Collector
from ipam.client.hosts import Hosts
from ipam.client.lane import Context, Lanes
from ipam.client.parts import Parts
from ipam.client.records import Records
from ipam.client.release import Releaser
from ipam.client.reserve import Reserves
from ipam.client.settings import Settings
from ipam.client.source import DatastoreSource, Source
from ipam.client.sticky import StickyClaims
from ipam.client.tunnels import Tunnels
from ipam.requests import AssignIP, Assignment, AutoAssign, AutoAssigned, Release, Released
from ipam.utilization import PoolUse, utilization
from libcalico.datastore.api import Datastore
from libcalico.model.ipam import Block
from libcalico.net import Address, Interface
from libcalico.runtime.clock import SYSTEM, Clock


class IpamClient:
    """Without a `source` everything is read from the datastore for each request.

    DatastoreUnavailable from a write means: outcome unknown. The caller releases by handle, now or
    when the datastore is back; so does a caller that was cancelled.
    """

    def __init__(
        self, datastore: Datastore, source: Source | None = None, *, clock: Clock = SYSTEM
    ) -> None:
        self.records = Records(datastore)
        self.source = source or DatastoreSource(datastore)
        lanes = Lanes(Context(self.records, clock))
        hosts = Hosts(self.records, clock)
        parts = Parts(lanes, hosts, Claims(lanes, hosts), self.source)
        self._parts, self._lanes = parts, lanes
        self._assigner = Assigner(parts)
        self._releaser = Releaser(parts)
        self.affinities = AffinityClient(parts, self._assigner)
        self.settings = Settings(datastore)
        self.tunnels = Tunnels(self._assigner, self._releaser)
        self.reserves = Reserves(parts, self._assigner, self._releaser)
        self.claims = StickyClaims(parts, self._assigner)

    async def auto_assign(self, request: AutoAssign) -> AutoAssigned:
        """Any addresses. Fewer than asked for is no error here: see `partial_error`.

        Errors, and then nothing is held: UseRequired, PoolRefused, NoPools, NotFound (no Node
        object), BlockLimitReached, BlockNotFound, HandleLimitReached, RetriesExhausted,
        DatastoreUnavailable."""
        return await self._assigner.auto_assign(request)

    async def assign_ip(self, request: AssignIP) -> Interface:
        """One particular address, with its block's prefix length. Claims the block if it does not
        exist, whatever the block limit says.

        Errors: PoolRefused, AlreadyExists, AffinityLost (strict affinity), HandleLimitReached,
        RetriesExhausted, DatastoreUnavailable."""
        return await self._assigner.assign_ip(request)

    async def release_ips(self, requests: Iterable[Release]) -> Released:
        """Give addresses back. A wrong handle (BadHandle) or sequence number (BadSequenceNumber)
        refuses all of that block; look at `Released.failed`."""
        return await self._releaser.release(requests)

    async def release_by_handle(self, handle_id: str) -> tuple[Address, ...]:
        """Everything a handle holds; returns what was released.

        Errors: NotFound (often success for the caller), MalformedBlock, RetriesExhausted,
        DatastoreUnavailable."""
        return await self._releaser.release_handle(handle_id)

    async def ips_by_handle(self, handle_id: str) -> tuple[Address, ...]:
        """What a handle holds, as the datastore has it now. Errors: NotFound."""
        return await self._releaser.addresses_of(handle_id)

    async def assignment(self, address: Address) -> Assignment:
        """Who holds an address. Errors: AddressUnassigned and NotFound (no pool, no block),
        AddressInCooldown."""
        return await self._releaser.assignment(address)

    async def utilization(self, wanted: Collection[str] = ()) -> tuple[PoolUse, ...]:
        """How full the pools are; `wanted` names pools or CIDRs, empty means all."""
        facts = await self.source.facts()
        return utilization(facts.pools, await self.blocks(), facts.reservations, wanted)

    async def blocks(self) -> list[Block]:
        """Every block of both families, in key order."""
        return (await self.stored_blocks())[0]

    async def stored_blocks(self) -> tuple[list[Block], list[str]]:
        """As `blocks`, and the CIDRs of those that do not parse."""
        found: list[Block] = []
        unreadable: list[str] = []
        for version in (4, 6):
            listed, others = await self.records.stored_blocks(version)
            found += [record.value for record in listed.values() if record.value is not None]
            unreadable += others
        return found, unreadable

    def collector(self, may_write: Callable[[], bool] = lambda: True) -> Collector:
        """What finds and gives back garbage; `may_write` is asked before each step."""
        return Collector(self._parts, self._releaser, may_write)

    def dump(self) -> dict[str, object]:
        """State for the debug endpoint, with the counts of round trips."""
        records = self.records
        return {
            **self._lanes.dump(),
            "reads": records.reads,
            "transactions": records.transactions,
            "conflicts": records.conflicts,
        }
