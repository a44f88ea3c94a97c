"""What the parts of the client share, and the two things every assignment needs of it.

Layer: ipam edge. Used by the other modules of `ipam.client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ipam.affinity import HOST, VIRTUAL, Owner
from ipam.batch import ReleaseMany
from ipam.client.claims import Claims
from ipam.client.hosts import Hosts
from ipam.client.lane import Lanes, Terms
from ipam.client.source import Facts, Source
from ipam.requests import LOAD_BALANCER_USE, Release
from libcalico.errors import SuiteError
from libcalico.net import Interface
from libcalico.runtime import log

LOG = log.get(__name__)


@dataclass(slots=True)
class Parts:
    """What assignments are made with."""

    lanes: Lanes
    hosts: Hosts
    claims: Claims
    source: Source
    #: One request of an owner and family looks for a new block at a time (G2). Set when it is done;
    #: all that wait look at what it found at the same moment, and share the next write.
    searching: dict[tuple[Owner, int], asyncio.Event] = field(default_factory=dict)

    @asynccontextmanager
    async def search(self, owner: Owner, version: int) -> AsyncIterator[None]:
        key = owner, version
        while key in self.searching:
            await self.searching[key].wait()
        self.searching[key] = done = asyncio.Event()
        try:
            yield
        finally:
            del self.searching[key]
            done.set()


def owner_for(host: str, use: str) -> Owner:
    """Load balancer addresses belong to nobody's host (§2.3)."""
    return Owner(host, VIRTUAL if use == LOAD_BALANCER_USE else HOST)


async def give_back(
    parts: Parts, addresses: Iterable[Interface], handle_id: str | None, facts: Facts
) -> None:
    """Undo an assignment whose request failed as a whole (G3)."""
    by_block: dict[str, list[Release]] = {}
    for address in addresses:
        release = Release(address=address.ip, handle_id=handle_id or "")
        by_block.setdefault(str(address.network), []).append(release)
    terms = Terms(cooldown_s=facts.config.ip_cooldown_seconds)
    for cidr, releases in by_block.items():
        try:
            await parts.lanes.of(cidr).submit(ReleaseMany(tuple(releases)), terms)
        except SuiteError as err:
            LOG.error("addresses of a failed request were not given back", cidr=cidr, error=err)
