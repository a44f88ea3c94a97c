"""Keep the node's tunnel addresses as pools want them, for as long as the node runs.

Layer: edge (datastore). A task of calico-node; a few reads at start and none later where no pool
has an encapsulation on. felix builds no tunnel devices yet: the addresses are what Calico's nodes
of the same cluster, and operators, find in the Node object and in IPAM.

  U1  an address is ours before the Node object names it, and is given back after it does not: a
      crash in between leaves the handle, by which the next pass finds the address again;
  U2  a recorded address that nobody holds is taken again if it is free; one that somebody else
      holds is theirs, and is replaced;
  U3  the Node object is changed by compare-and-swap, these fields alone;
  U4  one bad pool costs itself alone.

Source: datamodel §2.2; Calico node/pkg/allocateip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from calicoctl.node.registration import completed
from ipam import tunnelplan
from ipam.client import IpamClient
from ipam.handles import Tunnel
from ipam.requests import TUNNEL, AssignIP
from libcalico.datastore.api import Datastore
from libcalico.datastore.resources import ResourceClient
from libcalico.errors import InvalidInput, NotFound, SuiteError, Transient
from libcalico.model import IPPool, Node
from libcalico.model.keys import ResourceKey, path_of, prefix_of
from libcalico.net import Address, AddressError, Network, parse_ip
from libcalico.runtime import log
from libcalico.runtime.backoff import Backoff, Throttle
from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.syncer.api import SyncStatus, Update
from libcalico.syncer.watcher import WatchSyncer

LOG = log.get(__name__)
# As Calico: what no event told of is found within five minutes.
PERIOD_S = 300.0


class TunnelAddresses:
    """`run()` until cancelled; also the sink of its own watch."""

    def __init__(
        self,
        datastore: Datastore,
        node: str,
        *,
        host_encryption: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        self._datastore, self._node, self._clock = datastore, node, clock
        self._host_encryption = host_encryption
        self._client = ResourceClient(datastore)
        self._ipam = IpamClient(datastore)
        self._changed = asyncio.Event()
        self._throttle = Throttle(60.0)
        # Tunnels known to hold nothing, so that a pass without wishes asks for nothing.
        self._free: set[Tunnel] = set()

    async def run(self) -> None:
        prefixes = (prefix_of("IPPool", None), path_of(ResourceKey("Node", self._node)))
        syncer = WatchSyncer(self._datastore, prefixes, self, clock=self._clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(syncer.run())
            tasks.create_task(self._keep())

    def on_updates(self, updates: Sequence[Update]) -> None:
        self._changed.set()

    def on_status(self, status: SyncStatus) -> None:
        if status is SyncStatus.IN_SYNC:
            self._changed.set()

    async def _keep(self) -> None:
        backoff = Backoff(0.5, 30.0)
        await self._changed.wait()
        while True:
            self._changed.clear()
            try:
                await self.reconcile()
            except SuiteError as err:
                if self._throttle.allows(self._clock.monotonic()):
                    level = LOG.info if isinstance(err, Transient) else LOG.warning
                    level("tunnel addresses are not as wanted yet", node=self._node, error=err)
                await self._clock.sleep(backoff.next_s())
                continue
            backoff.reset()
            waiting = asyncio.ensure_future(self._changed.wait())
            asleep = asyncio.ensure_future(self._clock.sleep(PERIOD_S))
            try:
                await asyncio.wait({waiting, asleep}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                asleep.cancel()

    async def reconcile(self) -> None:
        """One pass. Errors: SuiteError; the pass may be repeated."""
        try:
            node = await self._client.get(Node, self._node)
        except NotFound:
            return
        serving = await self._serving(node)
        wanted, unwanted = node, []
        for tunnel in Tunnel:
            cidrs = serving[tunnel]
            recorded = tunnelplan.recorded(tunnel, node)
            if cidrs:
                self._free.discard(tunnel)
                address = str(await self._address(tunnel, cidrs, recorded))
                if address != recorded:
                    wanted = tunnelplan.with_address(tunnel, wanted, address)
                    LOG.info("tunnel address assigned", tunnel=tunnel.value, address=address)
            elif recorded or tunnel not in self._free:
                unwanted.append(tunnel)
                if recorded:
                    wanted = tunnelplan.with_address(tunnel, wanted, None)
                    LOG.info("tunnel address given back", tunnel=tunnel.value, address=recorded)
        if wanted != node:
            await self._client.update(completed(wanted))
        for tunnel in unwanted:
            await self._ipam.tunnels.release(tunnel, self._node)
            self._free.add(tunnel)

    async def _serving(self, node: Node) -> dict[Tunnel, tuple[Network, ...]]:
        """The pools that serve each tunnel; one that cannot be made sense of serves none (U4)."""
        serving: dict[Tunnel, tuple[Network, ...]] = dict.fromkeys(Tunnel, ())
        encrypts = self._host_encryption
        for pool in await self._client.list(IPPool):
            try:
                found = [
                    (tunnel, tunnelplan.wanted(tunnel, node, [pool], host_encryption=encrypts))
                    for tunnel in Tunnel
                ]
            except (InvalidInput, AddressError) as err:
                if self._throttle.allows(self._clock.monotonic()):
                    LOG.warning("pool ignored", name=pool.metadata.name, error=err)
                continue
            for tunnel, cidrs in found:
                serving[tunnel] += cidrs
        return serving

    async def _address(self, tunnel: Tunnel, pools: tuple[Network, ...], recorded: str) -> Address:
        try:
            await self._ipam.ips_by_handle(tunnel.handle(self._node))
        except NotFound:
            again = _parsed(recorded)
            if again is not None and any(again in pool for pool in pools):
                await self._take_again(tunnel, again)
        return await self._ipam.tunnels.address(tunnel, self._node, pools)

    async def _take_again(self, tunnel: Tunnel, address: Address) -> None:
        """U2."""
        try:
            await self._ipam.assign_ip(
                AssignIP(
                    address=address,
                    host=self._node,
                    use=TUNNEL,
                    handle_id=tunnel.handle(self._node),
                    attributes=tunnel.attributes(self._node),
                )
            )
        except Transient:
            raise
        except SuiteError as err:
            LOG.warning("the recorded tunnel address is not ours", address=address, error=err)


def _parsed(text: str) -> Address | None:
    try:
        return parse_ip(text) if text else None
    except AddressError:
        return None
