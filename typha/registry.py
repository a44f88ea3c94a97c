"""This typha's registration in the datastore, and who else serves: for discovery and balance.

Layer: typha edge.

  R1  the registration has a lease: a typha that dies is gone after LEASE_S; one that ends takes it
      away itself, before it says goodbye to its clients;
  R2  without the datastore nothing is known of others: nobody is moved then;
  R3  nobody is moved on figures older than two rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from libcalico.datastore.api import Datastore
from libcalico.errors import NotFound, SuiteError, Transient, Unauthorized
from libcalico.runtime import log
from libcalico.runtime.backoff import Throttle
from libcalico.runtime.clock import SYSTEM, Clock
from libcalico.syncer.typhas import SERVERS_PREFIX, ServerRecord, encode_record, registered
from typha.balance import connection_limit, roomiest
from typha.server import TyphaServer

LOG = log.get(__name__)
LEASE_S, ROUND_S = 15, 3.0


class Registry:
    """Registers, follows the others, sets the server's limit, moves clients."""

    def __init__(
        self,
        datastore: Datastore,
        server: TyphaServer,
        address: str,
        *,
        count_nodes: Callable[[], int],
        clock: Clock = SYSTEM,
    ) -> None:
        self._datastore, self._server, self._address = datastore, server, address
        self._count_nodes, self._clock = count_nodes, clock
        self._lease = 0
        self._said: ServerRecord | None = None
        self._throttle = Throttle(60.0)
        self.servers: dict[str, ServerRecord] = {}
        #: Set while nothing has to be taken away from the datastore.
        self.is_gone = asyncio.Event()
        self.is_gone.set()

    async def run(self) -> None:
        self.is_gone.clear()
        try:
            await self._server.is_listening.wait()
            while True:
                await self._try_round()
                await self._balance()
        finally:
            # R1. Without a datastore the lease does it.
            with contextlib.suppress(SuiteError):
                if self._lease:
                    await self._datastore.revoke_lease(self._lease)
            self.is_gone.set()

    async def _try_round(self) -> None:
        try:
            await self._round()
        except (Transient, Unauthorized) as err:
            self.servers = {}  # R2
            if self._throttle.allows(self._clock.monotonic()):
                LOG.warning("not registered", error=str(err))

    async def _round(self) -> None:
        config = self._server.config
        self.servers = await registered(self._datastore)
        others = self.servers.keys() - {self._server.name}
        self._server.limit = connection_limit(
            self._count_nodes(),
            len(others) + 1,
            lower=config.max_connections_lower_limit,
            upper=config.max_connections_upper_limit,
        )
        await self._keep_lease()
        server = self._server
        record = ServerRecord(self._address, server.port, len(server.clients), server.limit)
        if record != self._said or server.name not in self.servers:
            key = SERVERS_PREFIX + server.name
            await self._datastore.put(key, encode_record(record), lease=self._lease)
            self._said = record

    async def _keep_lease(self) -> None:
        if self._lease:
            try:
                await self._datastore.keep_lease_alive(self._lease)
            except NotFound:
                self._lease = 0
        if not self._lease:
            self._lease = await self._datastore.grant_lease(LEASE_S)
            self._said = None

    async def _balance(self) -> None:
        """Until the next round: one client at a time, as long as another has more room."""
        server, config = self._server, self._server.config
        until = self._clock.monotonic() + ROUND_S
        moved = 0
        while (now := self._clock.monotonic()) < until:
            await self._clock.sleep(min(config.connection_drop_interval_s, until - now))
            if config.connection_rebalancing_mode != "auto":
                continue
            to = roomiest(server.name, len(server.clients) + moved, self.servers)
            if to is None or to.clients + moved >= to.limit or not server.move_one(to):
                continue
            # The others' figures are of the last round: what we sent since counts as theirs.
            moved += 1
            key = next(name for name, record in self.servers.items() if record is to)
            grown = ServerRecord(to.address, to.port, to.clients + 1, to.limit)
            self.servers = {**self.servers, key: grown}
