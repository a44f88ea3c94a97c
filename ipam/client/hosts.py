"""Which blocks are affine to a host: remembered for a while, read again when it matters.

Layer: ipam edge. Used by `ipam.client.assign`. A memory that is wrong costs a round trip, never an
address: assignments from an own block compare its affinity key (`lane.Guard`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ipam.affinity import Owner, Versioned
from ipam.client.records import Records
from libcalico.model.ipam import BlockAffinity
from libcalico.runtime.clock import Clock

# Affinities another process released or claimed for the same host are noticed after this.
MAX_AGE_S = 60.0


@dataclass(slots=True)
class Holdings:
    """One owner's affinities of one family, by block CIDR in key order. `checked`: blocks that a
    pool no longer selects and that could not be given back yet; asked once a listing."""

    affinities: dict[str, Versioned[BlockAffinity]]
    read_at: float
    checked: set[str] = field(default_factory=set)


class Hosts:
    """The holdings of the owners this process assigns for."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._holdings: dict[tuple[Owner, int], Holdings] = {}

    async def holdings(self, owner: Owner, version: int) -> Holdings:
        """As remembered, if that is young enough."""
        known = self._holdings.get((owner, version))
        if known is not None and self._clock.monotonic() - known.read_at < MAX_AGE_S:
            return known
        return await self.read(owner, version)

    async def younger(self, owner: Owner, version: int, than: float) -> Holdings:
        """As they were at the instant `than` (monotonic) or later."""
        known = self._holdings.get((owner, version))
        if known is not None and known.read_at >= than:
            return known
        return await self.read(owner, version)

    async def read(self, owner: Owner, version: int) -> Holdings:
        """As the datastore has them now."""
        affinities = await self._records.affinities(owner, version)
        fresh = Holdings(affinities, self._clock.monotonic())
        self._holdings[owner, version] = fresh
        return fresh

    def note(self, owner: Owner, cidr: str, affinity: Versioned[BlockAffinity]) -> None:
        """An affinity was written; mod_revision 0: it is gone."""
        known = self._holdings.get((owner, 6 if ":" in cidr else 4))
        if known is None:
            return
        if affinity.mod_revision:
            known.affinities[cidr] = affinity
        else:
            known.affinities.pop(cidr, None)
