"""The node's offline reserve as this process knows it: which addresses may be handed out now.

Layer: edge (IPAM). Used by cni.offline. What a reserve is in the datastore: `ipam.reserve`.

  O3  `take` gives only what the reserve held when the datastore was last asked, and what no pod of
      the journal has; in one process everything is taken from here, so nothing is given twice;
  O4  a released address comes back last in the line, and only when the datastore cannot have heard
      of its pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ipam.client import IpamClient
from ipam.pools import Pool
from libcalico.errors import Exhausted
from libcalico.net import Address
from libcalico.runtime import log

LOG = log.get(__name__)


class NodeReserve:
    def __init__(self, ipam: IpamClient, node: str) -> None:
        self._ipam, self.node = ipam, node
        self._free: dict[int, list[Address]] = {4: [], 6: []}
        self._taken: dict[str, tuple[Address, ...]] = {}

    def count(self) -> int:
        return sum(len(free) for free in self._free.values())

    def is_short(self, target: int) -> bool:
        return any(len(free) < target for free in self._free.values())

    def take(self, holder: str, usable: Sequence[Sequence[Pool]]) -> tuple[Address, ...] | None:
        """One address for each family of `usable` (its pools), or None and nothing is taken."""
        found: list[Address] = []
        for pools in usable:
            free = [a for version in self._free for a in self._free[version] if _is_in(a, pools)]
            if not free:
                return None
            found.append(free[0])
        for address in found:
            self._free[address.version].remove(address)
        self._taken[holder] = (*self._taken.get(holder, ()), *found)
        return tuple(found)

    def note_taken(self, holder: str, addresses: Iterable[Address]) -> None:
        """As the journal says."""
        self._taken[holder] = tuple(addresses)

    def put_back(self, holder: str, *, is_safe: bool) -> None:
        """O4. What is not safe to give out again is looked for when the datastore is back."""
        for address in self._taken.pop(holder, ()):
            if is_safe:
                self._free[address.version].append(address)

    async def refill(self, target: int) -> None:
        """Ask the datastore what the reserve holds, and bring it to `target` per family. Errors:
        DatastoreUnavailable."""
        held = await self._ipam.reserves.held(self.node)
        taken = {address for addresses in self._taken.values() for address in addresses}
        for version, before in self._free.items():
            present = [a for a in held if a.version == version and a not in taken]
            known = [a for a in before if a in present]
            free = known + [a for a in present if a not in known]
            self._free[version] = free[:target]
            surplus = free[target:]
            if surplus:
                await self._ipam.reserves.release(self.node, surplus)
            if len(free) < target:
                await self._add(version, target - len(free))

    async def _add(self, version: int, count: int) -> None:
        try:
            added = await self._ipam.reserves.add(self.node, version, count)
        except Exhausted as err:
            LOG.debug("the offline reserve stays short", node=self.node, error=err)
            return
        self._free[version] += added
        LOG.info("addresses set aside for offline use", node=self.node, count=len(added))

    async def give_up(self) -> None:
        """Offline allocation was switched off."""
        for free in self._free.values():
            free.clear()
        await self._ipam.reserves.release_all(self.node)


def _is_in(address: Address, pools: Sequence[Pool]) -> bool:
    return any(address.version == pool.version and address in pool.cidr for pool in pools)
