"""Felix's numbers for Prometheus and its health reporters.

Layer: felix.daemon. Metric names are Calico's where the meaning is the same (felix_active_*,
felix_int_dataplane_*), so that existing dashboards work.
"""

from __future__ import annotations

from collections.abc import Callable

from felix.config import FelixConfig
from felix.dataplane.loop import CycleReport
from libcalico.errors import ConfigError
from libcalico.runtime import log
from libcalico.runtime.clock import Clock
from libcalico.runtime.config import LiveConfig
from libcalico.runtime.health import Health
from libcalico.runtime.metrics import Metrics, MetricsServer, MetricsTls

LOG = log.get(__name__)
# Names as in Calico, for healthTimeoutOverrides.
CALC = "CalculationGraph"
DATAPLANE = "InternalDataplaneMainLoop"
STARTUP = "FelixStartup"
_CALC_TIMEOUT_S = 30.0


class FelixHealth:
    """The reporters of this process: start-up, calculation, dataplane."""

    def __init__(self, config: FelixConfig, *, clock: Clock) -> None:
        self.health = Health(clock=clock)
        self.health.register(STARTUP, live=False)
        self._config = config
        self.has_started = False
        self._clock, self._started_at = clock, clock.monotonic()
        self._calc_hangs_after_s = config.debug_simulate_calc_graph_hang_after_s

    def starting(self, detail: str) -> None:
        self.health.report(STARTUP, ready=False, detail=detail)

    def built(self) -> None:
        """The loops exist from now on, and have to show that they live."""
        timeout_s = self._config.dataplane_watchdog_timeout_s
        self.health.register(CALC, timeout_s=_CALC_TIMEOUT_S, ready=False)
        self.health.register(DATAPLANE, timeout_s=timeout_s)
        for override in self._config.health_timeout_overrides:
            self.health.set_timeout(override.name, override.timeout_s)

    def started(self) -> None:
        self.has_started = True
        self.health.report(STARTUP, ready=True)

    def calc_is_alive(self) -> None:
        hang_s = self._calc_hangs_after_s
        if hang_s and self._clock.monotonic() - self._started_at > hang_s:
            self.health.simulate_hang(CALC)
        self.health.report(CALC)

    def on_cycle(self, report: CycleReport) -> None:
        """A failed cycle is not ready; that it happened shows that the loop lives."""
        total = report.total
        self.health.report(DATAPLANE, ready=report.is_filtering, detail=total.error)

    def dataplane_is_alive(self) -> None:
        """While there is nothing to apply (before in-sync) only life is reported."""
        self.health.report(DATAPLANE, ready=False, detail="waiting for the datastore")


def metrics_tls(config: FelixConfig) -> MetricsTls | None:
    """None: plain HTTP. Errors: ConfigError when clients must prove themselves and cannot."""
    demand = config.prometheus_metrics_client_auth
    authority = config.prometheus_metrics_ca_file if demand != "NoClientCert" else ""
    has_tls = bool(config.prometheus_metrics_cert_file)
    if demand.startswith("Require") and not (has_tls and authority):
        missing = "PrometheusMetricsCAFile" if has_tls else "PrometheusMetricsCertFile"
        reason = f"needs {missing}: nobody's certificate could be checked"
        raise ConfigError("metrics TLS", "PrometheusMetricsClientAuth", reason, demand)
    if not has_tls:
        return None
    return MetricsTls(
        config.prometheus_metrics_cert_file,
        config.prometheus_metrics_key_file,
        authority,
        is_client_optional=demand == "VerifyClientCertIfGiven",
    )


def metrics_server(metrics: Metrics, live: LiveConfig[FelixConfig]) -> MetricsServer | None:
    """None, after an error in the log, when the datastore demands what cannot be: without the page,
    rather than open to everybody, and rather than without felix on every node of the cluster.
    Errors: ConfigError when the demand is of this host's file or environment."""
    config = live.config
    try:
        tls = metrics_tls(config)
    except ConfigError as err:
        if live.source_of("prometheus_metrics_client_auth").is_local:
            raise
        LOG.error("the metrics page is not served", error=str(err))
        return None
    return MetricsServer(
        metrics, config.prometheus_metrics_host, config.prometheus_metrics_port, tls=tls
    )


class FelixMetrics:
    """What one cycle does, and what there is."""

    def __init__(self, metrics: Metrics) -> None:
        self._apply = metrics.latency(
            "felix_int_dataplane_apply_time_seconds", "Time of one dataplane cycle."
        )
        self._waited = metrics.latency(
            "felix_dataplane_update_latency_seconds",
            "From the oldest intent of a cycle to the end of that cycle.",
        )
        self._programming = metrics.latency(
            "felix_policy_programming_seconds",
            "From the arrival of a policy change to the kernel's acknowledgement.",
        )
        self._written = metrics.counter(
            "felix_dataplane_writes", "Objects written to the kernel.", ["driver"]
        )
        self._deleted = metrics.counter(
            "felix_dataplane_deletes", "Objects deleted from the kernel.", ["driver"]
        )
        self._failed = metrics.counter(
            "felix_int_dataplane_failures", "Writes the kernel refused.", ["driver"]
        )
        self._pending = metrics.gauge(
            "felix_dataplane_deferred", "Objects that wait for something.", ["driver"]
        )
        self._metrics = metrics

    def policy_programmed(self, took_s: float) -> None:
        self._programming.observe(took_s)

    def gauge_from(self, name: str, doc: str, function: Callable[[], float]) -> None:
        self._metrics.gauge_from(name, doc, function)

    def on_cycle(self, report: CycleReport) -> None:
        total = report.total
        if total.written or total.deleted or total.failed:
            self._apply.observe(report.took_s)
        if report.waited_s is not None:
            self._waited.observe(report.waited_s)
        for name, result in report.results:
            if result.written:
                self._written.labels(name).inc(result.written)
            if result.deleted:
                self._deleted.labels(name).inc(result.deleted)
            if result.failed:
                self._failed.labels(name).inc(result.failed)
            self._pending.labels(name).set(result.deferred)
