"""felix.daemon_metrics: what a cycle tells Prometheus and the health page."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import generate_latest

from felix.config import SCHEMA, FelixConfig
from felix.daemon_metrics import FelixHealth, FelixMetrics, metrics_server, metrics_tls
from felix.dataplane.loop import CycleReport
from felix.dataplane.manager import NOTHING_DONE, ApplyResult
from libcalico.errors import ConfigError
from libcalico.runtime.config import Layer, LiveConfig, Source
from libcalico.runtime.metrics import Metrics, MetricsTls
from libcalico.testing.clock import FakeClock


def configured(**raw: str) -> FelixConfig:
    return LiveConfig(SCHEMA, [Layer(Source.ENVIRONMENT, raw)]).config


def cycle(result: ApplyResult, *, is_filtering: bool = True) -> CycleReport:
    return CycleReport(0.003, (("nft", result),), is_filtering, 0.2 if result.written else None)


def lines(metrics: Metrics) -> list[str]:
    return generate_latest(metrics.registry).decode().splitlines()


def test_a_cycle_is_counted_by_driver_and_an_idle_one_is_not_timed():
    metrics = Metrics(process=False)
    numbers = FelixMetrics(metrics)
    numbers.gauge_from("felix_seven", "Seven.", lambda: 7)
    numbers.on_cycle(cycle(NOTHING_DONE))
    numbers.on_cycle(cycle(ApplyResult(written=3, deleted=2, failed=1, deferred=4)))
    found = lines(metrics)
    assert 'felix_dataplane_writes_total{driver="nft"} 3.0' in found
    assert 'felix_dataplane_deletes_total{driver="nft"} 2.0' in found
    assert 'felix_int_dataplane_failures_total{driver="nft"} 1.0' in found
    assert 'felix_dataplane_deferred{driver="nft"} 4.0' in found
    assert "felix_int_dataplane_apply_time_seconds_count 1.0" in found
    assert "felix_dataplane_update_latency_seconds_sum 0.2" in found
    assert "felix_seven 7.0" in found


def test_the_time_a_policy_took_is_a_histogram():
    metrics = Metrics(process=False)
    FelixMetrics(metrics).policy_programmed(0.03)
    assert "felix_policy_programming_seconds_sum 0.03" in lines(metrics)
    assert 'felix_policy_programming_seconds_bucket{le="0.05"} 1.0' in lines(metrics)


async def test_a_felix_that_waits_for_its_datastore_is_alive_and_not_ready():
    clock = FakeClock()
    health = FelixHealth(configured(), clock=clock)
    health.starting("waiting")
    await clock.advance(10_000)
    assert health.health.is_live
    assert not health.health.is_ready


async def test_a_felix_that_serves_is_ready_until_a_loop_hangs():
    clock = FakeClock()
    health = FelixHealth(configured(DataplaneWatchdogTimeout="60"), clock=clock)
    health.built()
    health.calc_is_alive()
    health.dataplane_is_alive()
    assert not health.health.is_ready
    health.on_cycle(cycle(NOTHING_DONE))
    assert not health.has_started
    health.started()
    assert health.health.is_ready
    await clock.advance(61)
    health.calc_is_alive()
    assert not health.health.is_live, "the dataplane was not heard of for longer than allowed"
    health.on_cycle(cycle(NOTHING_DONE))
    assert health.health.is_live


def test_a_filter_that_is_not_written_is_not_ready_but_alive():
    health = FelixHealth(configured(), clock=FakeClock())
    health.built()
    health.started()
    health.calc_is_alive()
    health.on_cycle(cycle(ApplyResult(failed=1, error="no"), is_filtering=False))
    assert health.health.is_live
    assert not health.health.is_ready
    assert "no" in health.health.table()


async def test_timeouts_can_be_overridden():
    clock = FakeClock()
    config = configured(HealthTimeoutOverrides="InternalDataplaneMainLoop=200s")
    health = FelixHealth(config, clock=clock)
    health.built()
    health.on_cycle(cycle(NOTHING_DONE))
    await clock.advance(150)
    health.calc_is_alive()
    assert health.health.is_live


async def test_a_simulated_hang_of_the_calculation_is_seen():
    clock = FakeClock()
    health = FelixHealth(configured(DebugSimulateCalcGraphHangAfter="5"), clock=clock)
    health.built()
    for _ in range(10):
        await clock.advance(5)
        health.calc_is_alive()
        health.on_cycle(cycle(NOTHING_DONE))
    assert not health.health.is_live


FILES = {"PrometheusMetricsCertFile": "/c", "PrometheusMetricsKeyFile": "/k"}
WITH_CA = FILES | {"PrometheusMetricsCAFile": "/ca"}


@pytest.mark.parametrize(
    ("raw", "demand", "expected"),
    [
        ({}, "NoClientCert", None),
        (FILES, "NoClientCert", MetricsTls("/c", "/k")),
        (WITH_CA, "NoClientCert", MetricsTls("/c", "/k")),
        (WITH_CA, "RequireAndVerifyClientCert", MetricsTls("/c", "/k", "/ca")),
        (WITH_CA, "RequireAnyClientCert", MetricsTls("/c", "/k", "/ca")),
        (WITH_CA, "VerifyClientCertIfGiven", MetricsTls("/c", "/k", "/ca", True)),
    ],
)
def test_what_the_metrics_page_demands_of_its_clients(raw, demand, expected):
    config = configured(**raw, PrometheusMetricsClientAuth=demand)
    assert metrics_tls(config) == expected


@pytest.mark.parametrize("demand", ["RequireAndVerifyClientCert", "RequireAnyClientCert"])
@pytest.mark.parametrize("raw", [{}, FILES, {"PrometheusMetricsCAFile": "/ca"}])
def test_a_demand_that_could_not_be_checked_is_refused(raw, demand):
    with pytest.raises(ConfigError, match="PrometheusMetricsClientAuth"):
        metrics_tls(configured(**raw, PrometheusMetricsClientAuth=demand))


def test_such_a_demand_in_the_datastore_costs_the_page_and_not_felix(caplog):
    raw = {"PrometheusMetricsClientAuth": "RequireAnyClientCert"}
    live = LiveConfig(SCHEMA, [Layer(Source.DATASTORE_GLOBAL, raw)])
    with caplog.at_level(logging.ERROR):
        assert metrics_server(Metrics(process=False), live) is None
    assert caplog.messages == ["the metrics page is not served"]
    live.set_layer(Layer(Source.DATASTORE_GLOBAL, {}))
    assert metrics_server(Metrics(process=False), live) is not None


def test_such_a_demand_of_this_host_stops_felix():
    raw = {"PrometheusMetricsClientAuth": "RequireAnyClientCert"}
    live = LiveConfig(SCHEMA, [Layer(Source.ENVIRONMENT, raw)])
    with pytest.raises(ConfigError, match="PrometheusMetricsClientAuth"):
        metrics_server(Metrics(process=False), live)
