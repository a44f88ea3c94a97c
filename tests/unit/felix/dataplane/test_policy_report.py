"""felix.dataplane.policy_report: revisions in force, and the time it took (PR1 to PR4)."""

from __future__ import annotations

import pytest

from felix.dataplane.loop import CycleReport
from felix.dataplane.policy_report import PolicyReport
from felix.intent import PolicyRemove, PolicyUpdate
from libcalico.model.keys import ResourceKey
from libcalico.syncer.api import SyncStatus, Update
from libcalico.testing.clock import FakeClock
from tests.support import calc

WEB, DB = calc.np("web")[0], calc.np("db")[0]
STAGED = calc.snp("try")[0]


class World:
    def __init__(self, *, is_loaded: bool = True) -> None:
        self.clock, self.refused, self.took = FakeClock(), set(), []
        self.report = PolicyReport(
            lambda key: "too large" if key in self.refused else None, clock=self.clock
        )
        self.report.on_status(SyncStatus.IN_SYNC)
        self.report.add_listener(self.took.append)
        if is_loaded:
            self.cycle()

    def arrives(self, *keys: ResourceKey, revision: int = 7) -> None:
        self.report.on_updates([Update(key, None, revision) for key in keys])

    def hand(self, key: ResourceKey, revision: int | None = 7) -> None:
        message = PolicyRemove(key) if revision is None else update(key, revision)
        self.report.on_intent(message)

    def begin(self) -> None:
        self.report.complete_deferred_work()

    def end(self, *, is_filtering: bool = True) -> None:
        self.report.on_cycle(CycleReport(0.001, (), is_filtering))

    def cycle(self) -> None:
        self.begin()
        self.end()

    def dumped(self, part: str) -> dict[str, int | None]:
        return self.report.dump()[part]  # type: ignore[return-value]


def update(key: ResourceKey, revision: int) -> PolicyUpdate:
    return PolicyUpdate(key, "default", (), (), staged=key == STAGED, revision=revision)


async def test_a_change_is_measured_from_arrival_to_acknowledgement():
    """PR1, PR2."""
    world = World()
    world.arrives(WEB)
    await world.clock.advance(0.5)
    world.hand(WEB)
    world.report.on_published()
    world.begin()
    await world.clock.advance(0.25)
    assert world.dumped("waiting") == {str(WEB): 7}
    world.end()
    assert world.took == [pytest.approx(0.75)]
    assert (world.dumped("in_force"), world.dumped("waiting")) == ({str(WEB): 7}, {})


async def test_what_is_handed_over_during_a_cycle_waits_for_the_next():
    """PR1: that cycle wrote nothing of it."""
    world = World()
    world.arrives(WEB)
    world.begin()
    world.hand(WEB)
    world.end()
    assert (world.took, world.dumped("in_force")) == ([], {})
    world.cycle()
    assert len(world.took) == 1


async def test_changes_that_became_one_message_count_once_since_the_oldest():
    """PR2."""
    world = World()
    world.arrives(WEB, revision=7)
    world.hand(WEB, 7)
    world.report.on_published()
    await world.clock.advance(1)
    world.arrives(WEB, revision=8)
    world.hand(WEB, 8)
    world.report.on_published()
    await world.clock.advance(1)
    world.cycle()
    assert world.took == [pytest.approx(2)]
    assert world.dumped("in_force") == {str(WEB): 8}


async def test_a_cycle_that_could_not_write_the_filter_acknowledges_nothing():
    """PR1: and the wait counts."""
    world = World()
    world.arrives(WEB)
    world.hand(WEB)
    world.begin()
    world.end(is_filtering=False)
    assert world.dumped("in_force") == {}
    await world.clock.advance(3)
    world.cycle()
    assert world.took == [pytest.approx(3)]


async def test_a_policy_that_the_kernel_refuses_is_not_in_force_and_holds_up_no_other():
    """PR1."""
    world = World()
    world.arrives(WEB, DB)
    world.hand(WEB)
    world.hand(DB)
    world.refused = {WEB}
    world.cycle()
    assert world.dumped("in_force") == {str(DB): 7}
    world.refused = set()
    world.cycle()
    assert set(world.dumped("in_force")) == {str(WEB), str(DB)}
    assert len(world.took) == 2


def test_a_deletion_is_a_change():
    """PR2."""
    world = World()
    world.hand(WEB)
    world.cycle()
    world.arrives(WEB)
    world.hand(WEB, None)
    world.cycle()
    assert (len(world.took), world.dumped("in_force")) == (1, {})


def test_a_policy_that_becomes_active_without_a_change_is_not_measured():
    world = World()
    world.hand(WEB)
    world.cycle()
    assert (world.took, world.dumped("in_force")) == ([], {str(WEB): 7})


def test_a_change_that_concerns_nobody_here_is_forgotten():
    world = World()
    world.arrives(WEB)
    world.report.on_published()
    world.hand(WEB)  # later, for a new endpoint
    world.cycle()
    assert world.took == []


def test_what_is_found_at_start_is_not_measured():
    """PR3."""
    world = World(is_loaded=False)
    world.arrives(WEB)
    world.hand(WEB)
    world.cycle()
    assert (world.took, world.dumped("in_force")) == ([], {str(WEB): 7})


def test_staged_policies_are_listed_and_never_in_force():
    """PR4."""
    world = World()
    world.arrives(STAGED)
    world.hand(STAGED)
    world.cycle()
    assert (world.took, world.dumped("in_force"), world.dumped("staged")) == (
        [],
        {},
        {str(STAGED): 7},
    )
    assert world.report.staged_count == 1
    world.hand(STAGED, None)
    world.cycle()
    assert world.report.staged_count == 0


def test_a_kind_is_realized_up_to_what_the_kernel_acknowledged():
    """PR5, PM1."""
    world = World()
    world.arrives(WEB, revision=7)
    assert world.report.realized() == {}
    world.hand(WEB, 7)
    world.report.on_published()
    world.begin()
    assert world.report.realized() == {}
    world.end(is_filtering=False)
    assert world.report.realized() == {}, "the filter could not be written"
    world.cycle()
    assert world.report.realized() == {WEB.kind: 7}


def test_what_concerns_nobody_here_is_realized_without_a_cycle():
    """PM1."""
    world = World()
    world.arrives(WEB, revision=7)
    world.report.on_published()
    assert world.report.realized() == {WEB.kind: 7}


def test_what_concerns_nobody_here_waits_for_what_came_before_it():
    """PM1: the mark says "everything up to"."""
    world = World()
    world.arrives(WEB, revision=7)
    world.hand(WEB, 7)
    world.report.on_published()
    world.arrives(DB, revision=8)
    world.report.on_published()
    assert world.report.realized() == {}, "handed over, and in no cycle yet"
    world.begin()
    world.arrives(DB, revision=9)
    world.report.on_published()
    assert world.report.realized() == {}, "in a cycle that is not acknowledged"
    world.end()
    assert world.report.realized() == {WEB.kind: 9}


def test_while_the_datastore_is_listed_nothing_counts_as_realized():
    """PM3."""
    world = World()
    world.report.on_status(SyncStatus.RESYNC)
    world.arrives(WEB, revision=9)
    world.report.on_published()
    world.cycle()
    assert world.report.realized() == {}
    world.report.on_status(SyncStatus.IN_SYNC)
    world.report.on_published()
    assert world.report.realized() == {WEB.kind: 9}


def test_what_is_found_at_start_is_realized_with_the_first_cycle():
    world = World(is_loaded=False)
    world.arrives(WEB, STAGED)
    world.report.on_published()
    assert (world.report.is_loaded, world.report.realized()) == (False, {})
    world.cycle()
    assert world.report.is_loaded
    assert world.report.realized() == {WEB.kind: 7, STAGED.kind: 7}


def test_what_the_kernel_refuses_is_named_also_when_it_was_in_force_before():
    """PR5: its set may have grown too large."""
    world = World()
    for key in (WEB, DB):
        world.arrives(key)
        world.hand(key)
    world.report.on_published()
    world.refused = {DB}
    world.cycle()
    assert (world.report.realized(), world.report.closed()) == ({WEB.kind: 7}, {DB: "too large"})
    world.refused = {WEB}
    world.cycle()
    assert world.report.closed() == {WEB: "too large"}


async def test_another_message_without_a_change_does_not_hide_the_change_before_it():
    """PR2."""
    world = World()
    world.arrives(WEB)
    world.hand(WEB, 7)
    world.report.on_published()
    world.hand(WEB, 7)
    await world.clock.advance(1)
    world.cycle()
    assert world.took == [pytest.approx(1)]
