"""One active instance: a key with a lease in the datastore says who it is.

Layer: controllers, edge. Used by controllers.daemon.

  E1  the leader's key carries a lease that the leader refreshes; when it dies the lease runs out
      and another instance creates the key. A leader that stops takes its lease back: no waiting;
  E2  a leader believes in its lease for `ttl_s` from the moment it *sent* the last refresh that
      was answered. The datastore counts from a later moment: two leaders never believe at once;
  E3  when that time is over the work is cancelled, and waited for, before anything else is done;
  E4  a key whose creation was not answered is recognised by the name in it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable

from libcalico.datastore.api import Datastore
from libcalico.errors import AlreadyExists, NotFound, SuiteError, Transient, Unauthorized
from libcalico.runtime import log
from libcalico.runtime.backoff import Throttle
from libcalico.runtime.clock import Clock

LOG = log.get(__name__)
LEADER_KEY = "/calico/brindle/v1/kube-controllers/leader"
_LEAST_RETRY_S = 0.2
_RELEASE_WITHIN_S = 2.0

Work = Callable[[], Awaitable[None]]


class Leadership:
    """`run(work)` runs it whenever, and as long as, this instance leads. `name` is unique."""

    def __init__(
        self,
        datastore: Datastore,
        name: str,
        *,
        ttl_s: int,
        clock: Clock,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self._datastore, self._name, self._ttl_s, self._clock = datastore, name, ttl_s, clock
        self._on_turn = on_turn
        self._lease = 0
        self._valid_until = 0.0
        self._other = ""
        self._throttle = Throttle()

    @property
    def is_leader(self) -> bool:
        """E2."""
        return bool(self._lease) and self._clock.monotonic() < self._valid_until

    @property
    def leader(self) -> str:
        return self._name if self.is_leader else self._other

    async def run(self, work: Work) -> None:
        """Until cancelled, or until `work` ends or fails."""
        try:
            while True:
                await self._until_leader()
                LOG.info("leading", node=self._name)
                if await self._lead(work):
                    return
                LOG.warning("not leading any more", node=self._name)
        finally:
            await self._resign()

    # ---- becoming leader -----------------------------------------------------------------------

    async def _until_leader(self) -> None:
        while True:
            self._on_turn()
            try:
                if await self._try():
                    return
            except (Transient, Unauthorized) as err:
                self._say_away(err)
            pause_s = max(self._ttl_s / 10, _LEAST_RETRY_S)
            await self._clock.sleep(pause_s * random.uniform(0.75, 1.25))

    async def _try(self) -> bool:
        found = await self._datastore.get(LEADER_KEY)
        if found is not None:
            holder = _holder(found.value)
            if holder != self._name:
                if holder != self._other:
                    LOG.info("waiting, another instance leads", peer=holder)
                self._other = holder
                return False
            return await self._refresh(found.lease)  # E4
        self._other = ""
        sent_at = self._clock.monotonic()
        lease = await self._datastore.grant_lease(self._ttl_s)
        try:
            await self._datastore.create(LEADER_KEY, self._value(), lease=lease)
        except AlreadyExists:
            await self._datastore.revoke_lease(lease)
            return False
        self._lease, self._valid_until = lease, sent_at + self._ttl_s
        return True

    def _value(self) -> bytes:
        return json.dumps({"holder": self._name}).encode()

    # ---- being leader --------------------------------------------------------------------------

    async def _lead(self, work: Work) -> bool:
        """True when the work is done; False when the lease is lost."""
        working = asyncio.ensure_future(work())
        keeping = asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
                return True
            return False
        finally:
            keeping.cancel()
            working.cancel()
            await asyncio.wait({working, keeping})  # E3
            self._lease = self._lease if self.is_leader else 0

    async def _keep(self) -> None:
        """Returns when the lease is lost."""
        while True:
            remaining_s = self._valid_until - self._clock.monotonic()
            if remaining_s <= 0:
                return
            await self._clock.sleep(min(remaining_s, self._ttl_s / 3))
            self._on_turn()
            try:
                async with asyncio.timeout(max(self._valid_until - self._clock.monotonic(), 0)):
                    if not await self._refresh(self._lease):
                        return
            except TimeoutError:
                LOG.warning("the lease was not refreshed in time", node=self._name)
            except (Transient, Unauthorized) as err:
                self._say_away(err)
                await self._clock.sleep(_LEAST_RETRY_S)

    async def _refresh(self, lease: int) -> bool:
        sent_at = self._clock.monotonic()
        try:
            ttl_s = await self._datastore.keep_lease_alive(lease)
        except NotFound:
            self._lease = 0
            return False
        self._lease, self._valid_until = lease, sent_at + min(ttl_s, self._ttl_s)
        return True

    async def _resign(self) -> None:
        """E1, at the end."""
        if not self._lease:
            return
        try:
            async with asyncio.timeout(_RELEASE_WITHIN_S):
                await self._datastore.revoke_lease(self._lease)
        except (SuiteError, TimeoutError) as err:
            LOG.warning("the lease will run out by itself", node=self._name, error=err)
        self._lease = 0

    def _say_away(self, error: SuiteError) -> None:
        if self._throttle.allows(self._clock.monotonic()):
            LOG.warning("waiting for the datastore", error=error)

    def dump(self) -> dict[str, object]:
        """Who leads, as far as this instance knows."""
        return {"name": self._name, "is_leader": self.is_leader, "leader": self.leader}


def _holder(value: bytes) -> str:
    """Who holds the key; a text nobody can read is somebody else."""
    try:
        found = json.loads(value)
    except ValueError:
        return "unknown"
    holder = found.get("holder") if isinstance(found, dict) else None
    return holder if isinstance(holder, str) and holder else "unknown"
