"""The settings of `calico-kube-controllers`: environment over KubeControllersConfiguration.

Layer: controllers, pure but for the types. A controller that we do not have is refused by name.
Source: datamodel §1.9 KubeControllersConfiguration; Calico kube-controllers/pkg/config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ipam.garbage import Terms
from libcalico.model.cluster import KubeControllersConfiguration
from libcalico.runtime import parse
from libcalico.runtime.config import Layer, LiveConfig, Schema, Source, environment_layer, param

NODE = "node"
#: Calico's names; those we do not have yet are refused, not ignored.
CONTROLLERS = (NODE,)


def _controller(raw: str) -> str:
    if raw not in CONTROLLERS:
        raise ValueError(f"there is no controller {raw!r} here, only: {', '.join(CONTROLLERS)}")
    return raw


def _controllers(raw: str) -> tuple[str, ...]:
    found = parse.list_of(_controller)(raw)
    if not found:
        raise ValueError("names no controller")
    return found


def _period(raw: str) -> float:
    found = parse.duration(raw)
    if found <= 0:
        raise ValueError("must be more than nothing")
    return found


def _grace(raw: str) -> float:
    found = parse.duration(raw)
    if found < 0:
        raise ValueError("must not be negative")
    return found


@dataclass(frozen=True, slots=True)
class ControllersConfig:
    """One row per parameter."""

    enabled_controllers: tuple[str, ...] = param(
        (NODE,), parse=_controllers, env_name="ENABLED_CONTROLLERS", doc="Which controllers run."
    )
    node_is_enabled: bool = param(
        True, parse=parse.boolean, env_name="", doc="False: the resource leaves the node out."
    )
    leak_grace_period_s: float = param(
        900.0,
        parse=_grace,
        env_name="LEAK_GRACE_PERIOD",
        doc="An address nobody names is released after this; 0: only those of vanished nodes.",
    )
    reconciler_period_s: float = param(
        300.0,
        parse=_period,
        env_name="RECONCILER_PERIOD",
        doc="Time between two collections, at most half of the grace period.",
    )
    min_blocks_per_node: int = param(
        1,
        parse=parse.integer(0),
        env_name="IPAM_MIN_BLOCKS_PER_NODE",
        doc="Blocks of a pool that a node keeps although they are empty.",
    )
    leader_lease_s: int = param(
        15,
        parse=parse.integer(2, 3600),
        env_name="LEADER_LEASE_SECONDS",
        doc="After this another instance takes over from one that died.",
    )
    log_level: str = param(
        "info",
        parse=parse.one_of("debug", "info", "warning", "error", "fatal", "panic", "none"),
        env_name="LOG_LEVEL",
        doc="Least severity on stderr.",
    )
    health_enabled: bool = param(
        True, parse=parse.boolean, env_name="HEALTH_ENABLED", restart=True, doc="Serve health."
    )
    health_host: str = param(
        "localhost", parse=parse.text, env_name="HEALTH_HOST", restart=True, doc="Address of it."
    )
    health_port: int = param(
        9097, parse=parse.port, env_name="HEALTH_PORT", restart=True, doc="Its port."
    )
    prometheus_metrics_host: str = param(
        "", parse=parse.text, env_name="PROMETHEUS_METRICS_HOST", restart=True, doc="Address."
    )
    prometheus_metrics_port: int = param(
        9094,
        parse=parse.port_or_zero,
        env_name="PROMETHEUS_METRICS_PORT",
        restart=True,
        doc="Port of the metrics page; 0: none.",
    )

    @property
    def period_s(self) -> float:
        """Calico looks twice in a grace period, so that what is ripe goes soon after."""
        if self.leak_grace_period_s <= 0:
            return self.reconciler_period_s
        return min(self.reconciler_period_s, self.leak_grace_period_s / 2)

    @property
    def terms(self) -> Terms:
        return Terms(self.leak_grace_period_s, self.min_blocks_per_node)


SCHEMA = Schema.of(ControllersConfig, prefix="")


def read_local(environ: Mapping[str, str]) -> LiveConfig[ControllersConfig]:
    """Errors: ConfigError for a bad variable."""
    return LiveConfig(SCHEMA, [environment_layer(SCHEMA, environ)])


def layer_of(stored: KubeControllersConfiguration | None) -> Layer:
    """What the resource says; without one nothing. A resource without a node controller turns it
    off, but not against ENABLED_CONTROLLERS (see `is_enabled`)."""
    values: dict[str, str] = {}
    if stored is not None:
        spec = stored.spec
        node = spec.controllers.node
        values = {
            "NodeIsEnabled": str(node is not None),
            "LogLevel": spec.log_severity_screen or "",
            "HealthEnabled": str(spec.health_checks == "Enabled") if spec.health_checks else "",
            "PrometheusMetricsPort": _text(spec.prometheus_metrics_port),
            "LeakGracePeriod": (node.leak_grace_period or "") if node else "",
            "ReconcilerPeriod": (node.reconciler_period or "") if node else "",
        }
    return Layer(Source.DATASTORE_GLOBAL, values, "KubeControllersConfiguration(default)")


def is_enabled(live: LiveConfig[ControllersConfig]) -> bool:
    """Whether the node controller is to run: the environment's word, else the resource's."""
    if live.source_of("enabled_controllers").is_local:
        return True
    return live.config.node_is_enabled


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
