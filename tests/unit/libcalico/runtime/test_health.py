"""libcalico.runtime.health: who answers for what, deadlines, and the table."""

from __future__ import annotations

from libcalico.runtime.health import Health, HealthServer
from libcalico.runtime.httpd import Request
from libcalico.testing.clock import FakeClock


def make() -> tuple[Health, FakeClock]:
    clock = FakeClock()
    return Health(clock=clock), clock


def test_nobody_registered_is_live_and_ready():
    health, _ = make()
    assert health.is_live
    assert health.is_ready


def test_before_its_first_report_a_reporter_is_live_and_not_ready():
    health, _ = make()
    health.register("calc", timeout_s=10)
    assert health.is_live
    assert not health.is_ready
    health.report("calc")
    assert health.is_ready


async def test_silence_beyond_the_timeout_is_neither_live_nor_ready():
    health, clock = make()
    health.register("calc", timeout_s=10)
    health.register("patient")
    health.report("calc")
    health.report("patient")
    await clock.advance(10)
    assert health.is_live
    await clock.advance(0.1)
    assert not health.is_live
    assert not health.is_ready
    assert [state.timed_out for state in health.states()] == [True, False]
    health.report("calc")
    assert health.is_live


async def test_one_that_never_reports_is_found_dead_too():
    health, clock = make()
    health.register("calc", timeout_s=10)
    await clock.advance(11)
    assert not health.is_live


def test_a_reporter_has_a_say_only_where_it_was_registered_for():
    health, _ = make()
    health.register("loop", ready=False)
    health.register("sync", live=False)
    health.report("loop", ready=False)
    health.report("sync", live=False)
    assert health.is_live
    assert health.is_ready
    health.report("loop", live=False)
    health.report("sync", ready=False, detail="waiting for the datastore")
    assert not health.is_live
    assert not health.is_ready
    assert "waiting for the datastore" in health.table()


async def test_a_simulated_hang_is_seen():
    health, clock = make()
    health.register("calc", timeout_s=10)
    health.report("calc")
    health.simulate_hang("calc")
    await clock.advance(11)
    health.report("calc")
    assert not health.is_live


async def test_a_timeout_can_be_overridden_later():
    health, clock = make()
    health.register("calc", timeout_s=10)
    health.set_timeout("calc", 100)
    health.set_timeout("unknown", 1)
    await clock.advance(50)
    assert health.is_live


def test_a_reporter_that_left_is_not_missed():
    health, _ = make()
    health.register("calc")
    health.report("calc", live=False, ready=False)
    health.unregister("calc")
    assert health.is_live
    assert health.dump() == {"live": True, "ready": True, "reporters": {}}


def test_the_pages_answer_by_status_and_with_a_table():
    health, _ = make()
    health.register("calc", timeout_s=10)
    server = HealthServer(health)
    live = server._pages["/liveness"](Request("/liveness", {}))
    ready = server._pages["/readiness"](Request("/readiness", {}))
    assert (live.status, ready.status) == (200, 503)
    assert ready.body.decode().splitlines() == [
        "COMPONENT  LIVE  READY  DETAIL",
        "calc       yes   no",
    ]
