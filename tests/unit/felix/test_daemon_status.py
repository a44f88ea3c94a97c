"""felix.daemon_status: files and keys, and what happens when they cannot be written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from felix.config import SCHEMA, FelixConfig
from felix.daemon_status import ReportOptions, StatusFiles, StatusReporter, status_directory
from felix.dataplane.endpoint_mgr import EndpointStatus
from felix.dataplane.status_mgr import EndpointReport
from libcalico.model.keys import ResourceKey
from libcalico.runtime.config import Layer, LiveConfig, Source
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore

UP, DOWN = EndpointStatus.UP, EndpointStatus.DOWN
POD = ResourceKey("WorkloadEndpoint", "n1-k8s-web--0-eth0", "prod")
HOST = ResourceKey("HostEndpoint", "n1-uplink")
FILE = "k8s prod%2Fweb-0 eth0"
PREFIX = "/calico/felix/v2/no-region/host/n1/"
POD_KEY = f"{PREFIX}workload/k8s/prod%2fweb-0/endpoint/eth0"
HOST_KEY = "/calico/felix/v1/host/n1/endpoint/n1-uplink"


def report(key: ResourceKey = POD, status: EndpointStatus = UP) -> EndpointReport:
    return EndpointReport(key, status, "cali1", "02:00:00:00:00:01", ("10.0.0.1/32", "fd00::1/128"))


def configured(**raw: str) -> FelixConfig:
    return LiveConfig(SCHEMA, [Layer(Source.ENVIRONMENT, raw)]).config


# ------------------------------------------------------------------------------------ files


@pytest.fixture
def files(tmp_path: Path) -> StatusFiles:
    return StatusFiles(tmp_path / "endpoint-status", "n1")


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "endpoint-status").iterdir()}


def test_a_file_says_that_an_endpoint_is_up_and_goes_when_it_is_not(files, tmp_path):
    files.on_report(POD, report())
    content = json.loads((tmp_path / "endpoint-status" / FILE).read_text())
    assert content == {
        "ifaceName": "cali1",
        "mac": "02:00:00:00:00:01",
        "ipv4Nets": ["10.0.0.1/32"],
        "ipv6Nets": ["fd00::1/128"],
    }
    files.on_report(POD, report(status=DOWN))
    assert names(tmp_path) == set()
    files.on_report(POD, report())
    files.on_report(POD, None)
    assert names(tmp_path) == set()


def test_files_are_written_when_the_writer_comes_to_it_in_order(tmp_path):
    later: list[Callable[[], None]] = []
    files = StatusFiles(tmp_path / "endpoint-status", "n1", later.append)
    files.on_report(POD, report())
    files.on_complete()
    files.on_report(POD, None)
    assert not (tmp_path / "endpoint-status").exists()
    for work in later[:2]:
        work()
    assert names(tmp_path) == {FILE}
    later[2]()
    assert names(tmp_path) == set()


def test_stale_files_go_when_everything_present_was_reported_and_foreign_ones_stay(files, tmp_path):
    directory = tmp_path / "endpoint-status"
    directory.mkdir()
    for name in ("k8s prod%2Fold eth0", ".k8s prod%2Fhalf eth0", "README", FILE):
        (directory / name).write_text("{}")
    files.on_report(POD, report())
    assert "k8s prod%2Fold eth0" in names(tmp_path)
    files.on_complete()
    assert names(tmp_path) == {FILE, "README"}


def test_host_endpoints_and_odd_names_have_no_file(files, tmp_path):
    files.on_report(HOST, report(HOST))
    files.on_report(ResourceKey("WorkloadEndpoint", "odd", "prod"), report())
    files.on_complete()
    assert not (tmp_path / "endpoint-status").exists()


def test_a_directory_that_cannot_be_made_costs_a_warning(tmp_path):
    (tmp_path / "endpoint-status").write_text("a file is in the way")
    files = StatusFiles(tmp_path / "endpoint-status", "n1")
    files.on_report(POD, report())
    files.on_report(POD, None)


def test_where_the_files_live(monkeypatch):
    monkeypatch.setenv("CALICO_RUN_DIR", "/somewhere")
    assert status_directory(configured()) == Path("/somewhere/endpoint-status")
    assert status_directory(configured(EndpointStatusPathPrefix="/x")) == Path("/x/endpoint-status")
    assert status_directory(configured(EndpointStatusPathPrefix="none")) is None


# ------------------------------------------------------------------------------------- keys


class World:
    def __init__(self, **options: object) -> None:
        self.clock = FakeClock()
        self.datastore = MemoryDatastore(now=self.clock.monotonic)
        self.is_serving = True
        made = ReportOptions("n1", reports_endpoints=True, **options)  # type: ignore[arg-type]
        self.reporter = StatusReporter(
            self.datastore, made, clock=self.clock, is_serving=lambda: self.is_serving
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(self.reporter.run_endpoints()),
            asyncio.create_task(self.reporter.run_alive()),
        ]
        await self.clock.advance(0)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def endpoints(self) -> dict[str, str]:
        stored = self.datastore.contents("/calico/felix")
        return {k: json.loads(v)["status"] for k, v in stored.items() if "/endpoint/" in k}


async def test_endpoints_are_reported_after_all_present_ones_are_known():
    world = World()
    stale = f"{PREFIX}workload/k8s/prod%2fold/endpoint/eth0"
    elsewhere = stale.replace("/n1/", "/n2/")
    world.datastore.seed(dict.fromkeys((stale, elsewhere), b'{"status":"up"}'))
    async with world.running():
        world.reporter.on_report(POD, report())
        world.reporter.on_report(HOST, report(HOST, DOWN))
        await world.clock.advance(10)
        assert set(world.endpoints()) == {stale, elsewhere}
        world.reporter.on_complete()
        await world.clock.advance(2)
        assert world.endpoints() == {POD_KEY: "up", HOST_KEY: "down", elsewhere: "up"}
        world.reporter.on_report(HOST, None)
        await world.clock.advance(2)
        assert HOST_KEY not in world.endpoints()


async def test_reports_are_bounded_in_rate_and_the_last_state_wins():
    world = World(delay_s=5.0)
    world.reporter.on_complete()
    async with world.running():
        world.reporter.on_report(POD, report())
        await world.clock.advance(6)
        revision = world.datastore.revision
        for status in (DOWN, UP, DOWN, UP, DOWN):
            world.reporter.on_report(POD, report(status=status))
            await world.clock.advance(0.5)
        await world.clock.advance(6)
        assert world.endpoints() == {POD_KEY: "down"}
        assert world.datastore.revision - revision <= 2


async def test_a_datastore_that_is_away_is_tried_again():
    world = World()
    world.reporter.on_complete()
    world.datastore.partition()
    async with world.running():
        world.reporter.on_report(POD, report())
        await world.clock.advance(5)
        world.datastore.heal()
        await world.clock.advance(5)
        assert world.endpoints() == {POD_KEY: "up"}


async def test_what_somebody_else_deleted_is_no_trouble():
    world = World()
    world.reporter.on_complete()
    async with world.running():
        world.reporter.on_report(POD, report())
        await world.clock.advance(2)
        world.datastore.erase(POD_KEY)
        world.reporter.on_report(POD, None)
        world.reporter.on_report(HOST, report(HOST))
        await world.clock.advance(3)
        assert world.endpoints() == {HOST_KEY: "up"}


async def test_without_endpoint_reports_nothing_is_written_about_endpoints():
    clock = FakeClock()
    datastore = MemoryDatastore()
    reporter = StatusReporter(datastore, ReportOptions("n1"), clock=clock, is_serving=lambda: True)
    reporter.on_report(POD, report())
    assert reporter.dump()["wanted"] == 0


async def test_the_alive_report_carries_a_lease_and_its_copy_does_not():
    world = World(interval_s=30.0, ttl_s=90.0)
    async with world.running():
        await world.clock.advance(0)
        first = {kv.key: kv for kv in world.datastore.snapshot(PREFIX)}
        assert set(first) == {f"{PREFIX}status", f"{PREFIX}last_reported_status"}
        said = json.loads(first[f"{PREFIX}status"].value)
        assert said == {"time": "2023-11-14T22:13:20Z", "uptime": 0.0, "first_update": True}
        assert first[f"{PREFIX}status"].lease
        assert not first[f"{PREFIX}last_reported_status"].lease
        await world.clock.advance(31)
        said = json.loads(world.datastore.contents(PREFIX)[f"{PREFIX}status"])
        assert (said["first_update"], said["uptime"]) == (False, 30.0)
    await world.clock.advance(120)
    assert await world.datastore.get(f"{PREFIX}status") is None, "seen to be dead"
    assert await world.datastore.get(f"{PREFIX}last_reported_status") is not None


async def test_the_alive_report_begins_when_the_node_serves():
    world = World()
    world.is_serving = False
    async with world.running():
        await world.clock.advance(100)
        assert world.datastore.contents(PREFIX) == {}
        world.is_serving = True
        await world.clock.advance(1.5)
        assert f"{PREFIX}status" in world.datastore.contents(PREFIX)


async def test_an_alive_report_that_fails_is_made_good_at_the_next():
    world = World(interval_s=30.0)
    world.datastore.partition()
    async with world.running():
        await world.clock.advance(1)
        world.datastore.heal()
        await world.clock.advance(30)
        assert json.loads(world.datastore.contents(PREFIX)[f"{PREFIX}status"])["first_update"]


async def test_an_interval_of_zero_is_no_report():
    world = World(interval_s=0.0)
    async with world.running():
        await world.clock.advance(100)
        assert world.datastore.contents(PREFIX) == {}


def test_options_come_from_the_configuration():
    config = configured(
        EndpointReportingEnabled="true",
        ReportingIntervalSecs="5",
        ReportingTTLSecs="9",
        OpenstackRegion="east",
    )
    assert ReportOptions.of(config, "n1") == ReportOptions(
        "n1", "east", reports_endpoints=True, interval_s=5.0, ttl_s=9.0
    )
