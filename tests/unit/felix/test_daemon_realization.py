"""felix.daemon_realization: what is said, how often, and how it ends (RR1 to RR4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from felix.daemon_realization import EXCEPTIONS, RealizationReporter, realization
from felix.daemon_status import ReportOptions
from felix.dataplane.loop import CycleReport
from felix.dataplane.policy_report import PolicyReport
from libcalico.model.keys import BlockKey, ResourceKey
from libcalico.model.realization import PolicyException, PolicyRealization
from libcalico.syncer.api import SyncStatus, Update
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore
from tests.support import calc

PATH = "/calico/felix/v2/policy-realization/no-region/host/n1"
WEB, DB = calc.np("web")[0], calc.np("db")[0]
TTL_S, INTERVAL_S = 9.0, 3.0


class World:
    def __init__(self, *, interval_s: float = INTERVAL_S, reports_policies: bool = True) -> None:
        self.clock = FakeClock()
        self.datastore = MemoryDatastore(now=self.clock.monotonic)
        self.policies = PolicyReport(lambda key: None, clock=self.clock)
        self.problems: dict[ResourceKey, str] = {}
        self.reporter = RealizationReporter(
            self.datastore,
            ReportOptions(
                "n1", reports_policies=reports_policies, interval_s=interval_s, ttl_s=TTL_S
            ),
            self.policies,
            lambda: (self.problems, {}, 0),
            clock=self.clock,
        )

    def load(self) -> None:
        self.policies.on_status(SyncStatus.IN_SYNC)
        self.policies.complete_deferred_work()
        self.policies.on_cycle(CycleReport(0.001, (), is_filtering=True))
        self.reporter.wake()

    def change(self, revision: int) -> None:
        """A policy of nobody here: done with at once (RR3)."""
        self.policies.on_updates([Update(WEB, None, revision)])
        self.policies.on_published()
        self.reporter.wake()

    def said(self) -> dict[str, object] | None:
        stored = self.datastore.contents(PATH)
        return json.loads(stored[PATH]) if stored else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reporter.run())
        await self.clock.advance(0)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_nothing_is_said_before_the_kernel_has_what_was_found():
    """RR1."""
    world = World()
    async with world.running():
        world.reporter.wake()
        await world.clock.advance(20)
        assert world.said() is None
        world.load()
        await world.clock.advance(2)
        assert world.said() == {}


async def test_a_change_is_said_and_what_says_the_same_is_not_written():
    """RR2, RR3."""
    world = World(interval_s=1000.0)
    world.load()
    async with world.running():
        world.change(7)
        await world.clock.advance(2)
        assert world.said() == {"revisions": {"NetworkPolicy": 7}}
        revision = world.datastore.revision
        for _ in range(5):
            world.reporter.wake()
            await world.clock.advance(2)
        assert world.datastore.revision == revision


async def test_a_burst_is_written_once_a_second():
    """RR2."""
    world = World(interval_s=1000.0)
    world.load()
    async with world.running():
        await world.clock.advance(2)
        before = world.datastore.revision
        for revision in range(100):
            world.change(100 + revision)
            await world.clock.advance(0.1)
        await world.clock.advance(2)
        assert world.said() == {"revisions": {"NetworkPolicy": 199}}
        assert world.datastore.revision - before <= 12


async def test_it_stays_as_long_as_felix_says_so_and_ends_with_its_lease():
    """RR2."""
    world = World()
    world.load()
    async with world.running():
        await world.clock.advance(5 * TTL_S)
        # Reading is what makes a MemoryDatastore look at its leases.
        assert await world.datastore.get(PATH) is not None
    await world.clock.advance(TTL_S + 1)
    assert await world.datastore.get(PATH) is None


async def test_a_datastore_that_was_away_is_told_when_it_is_back():
    world = World()
    world.load()
    world.datastore.partition()
    async with world.running():
        await world.clock.advance(30)
        world.datastore.heal()
        await world.clock.advance(3)
        assert world.said() == {}


async def test_no_alive_report_is_not_about_policies_and_a_parameter_of_their_own_is():
    """calico-node writes reportingInterval 0s into every new cluster."""
    world = World(interval_s=0.0)
    world.load()
    async with world.running():
        await world.clock.advance(2)
        assert world.said() is not None
    silent = World(reports_policies=False)
    silent.load()
    async with silent.running():
        await silent.clock.advance(100)
        assert silent.said() is None


def test_every_reason_is_named_and_what_is_no_policy_is_left_out():
    said = realization(
        {"NetworkPolicy": 7},
        {WEB: "set s: no space"},
        {DB: "spec.order: is no number", BlockKey("10.0.0.0/26"): "odd", calc.tier("t")[0]: "odd"},
        {WEB: "http", calc.gnp("all")[0]: "http"},
    )
    assert said == PolicyRealization(
        revisions={"NetworkPolicy": 7},
        exceptions=(
            PolicyException(kind="GlobalNetworkPolicy", name="all", reason="in part: http"),
            PolicyException(
                kind="NetworkPolicy",
                name="db",
                namespace="prod",
                reason="ignored: spec.order: is no number",
            ),
            PolicyException(
                kind="NetworkPolicy",
                name="web",
                namespace="prod",
                reason="refused: set s: no space",
            ),
        ),
    )


def test_exceptions_are_bounded_and_the_rest_is_counted():
    """RR4."""
    many = {calc.np(f"p{n}")[0]: "x" * 5000 for n in range(EXCEPTIONS + 20)}
    said = realization({}, many, {}, {}, 3)
    assert (len(said.exceptions), said.unlisted) == (EXCEPTIONS, 23)
    assert max(len(item.reason) for item in said.exceptions) <= 200
