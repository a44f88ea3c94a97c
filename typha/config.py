"""The parameters of `calico-typha`: TYPHA_<NAME>, named as Calico's where they mean the same.

Layer: typha, pure but for the types. Read by `typha.daemon`.
Source: Calico typha/pkg/config/config_params.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from libcalico.errors import ConfigError
from libcalico.runtime import parse
from libcalico.runtime.config import LiveConfig, Schema, environment_layer, param

PREFIX = "TYPHA_"


def _positive(raw: str) -> float:
    found = parse.seconds(raw)
    if found <= 0:
        raise ValueError("must be more than nothing")
    return found


@dataclass(frozen=True, slots=True)
class TyphaConfig:
    """One row per parameter. Times are seconds."""

    log_severity_screen: str = param(
        "info",
        parse=parse.one_of("debug", "info", "warning", "error", "fatal", "panic", "none"),
        doc="Least severity on stderr.",
    )
    server_host: str = param("", parse=parse.text, doc="Address to listen on; empty: all.")
    server_port: int = param(5473, parse=parse.port_or_zero, doc="Port; 0: any that is free.")
    advertised_address: str = param(
        "", parse=parse.text, doc="What is registered for clients; empty: the address of this host."
    )
    registration_enabled: bool = param(
        True, parse=parse.boolean, doc="Register in the datastore, for etcd:// clients and balance."
    )
    server_key_file: str = param("", parse=parse.text, doc="Key of the certificate.")
    server_cert_file: str = param("", parse=parse.text, doc="Certificate shown to clients.")
    server_ca_file: str = param(
        "", parse=parse.text, name="CAFile", doc="CA that clients' certificates must be of."
    )
    client_cn: str = param(
        "", parse=parse.text, name="ClientCN", doc="Common name clients must show."
    )
    client_uri_san: str = param(
        "", parse=parse.text, name="ClientURISAN", doc="URI SAN clients must show."
    )
    allow_plaintext: bool = param(
        False, parse=parse.boolean, doc="Serve without TLS when there are no certificates."
    )
    mode: str = param(
        "full",
        parse=parse.one_of("full", "spans"),
        doc="spans: compute policy for the cluster, and serve each node what concerns it.",
    )
    server_min_batching_age_s: float = param(
        0.02,
        parse=parse.seconds,
        name="ServerMinBatchingAgeThresholdSecs",
        doc="Changes closer together than this go out together.",
    )
    server_max_fall_behind_s: float = param(
        300.0, parse=_positive, name="ServerMaxFallBehindSecs", doc="Then a slow client is left."
    )
    server_fall_behind_grace_s: float = param(
        300.0,
        parse=parse.seconds,
        name="ServerNewClientFallBehindGracePeriod",
        doc="More time for one that is taking its snapshot.",
    )
    server_max_log_mb: int = param(
        64, parse=parse.integer(1), doc="MiB of changes kept for slow clients, per stream."
    )
    server_ping_interval_s: float = param(
        10.0, parse=_positive, name="ServerPingIntervalSecs", doc="Between two pings."
    )
    server_pong_timeout_s: float = param(
        60.0, parse=_positive, name="ServerPongTimeoutSecs", doc="Silence that ends a connection."
    )
    server_handshake_timeout_s: float = param(
        10.0, parse=_positive, name="ServerHandshakeTimeoutSecs", doc="Time to greet, with TLS."
    )
    max_connections_upper_limit: int = param(
        10_000, parse=parse.integer(1), doc="Never more clients than this."
    )
    max_connections_lower_limit: int = param(
        400, parse=parse.integer(1), doc="Room for this many, however small the cluster."
    )
    connection_rebalancing_mode: str = param(
        "auto", parse=parse.one_of("auto", "none"), doc="none: clients are never asked to move."
    )
    connection_drop_interval_s: float = param(
        0.5, parse=_positive, name="ConnectionDropIntervalSecs", doc="Between two that are moved."
    )
    shutdown_timeout_s: float = param(
        5.0, parse=parse.seconds, name="ShutdownTimeoutSecs", doc="Goodbyes are spread over this."
    )
    health_enabled: bool = param(True, parse=parse.boolean, doc="Serve health.")
    health_host: str = param("localhost", parse=parse.text, doc="Address of it.")
    health_port: int = param(9098, parse=parse.port, doc="Its port.")
    prometheus_metrics_enabled: bool = param(False, parse=parse.boolean, doc="Serve metrics.")
    prometheus_metrics_host: str = param("", parse=parse.text, doc="Address of them.")
    prometheus_metrics_port: int = param(9093, parse=parse.port_or_zero, doc="Their port.")

    @property
    def is_tls(self) -> bool:
        return bool(self.server_cert_file or self.server_key_file or self.server_ca_file)

    def check(self) -> None:
        """What contradicts itself. Errors: ConfigError."""
        if not self.is_tls and not self.allow_plaintext:
            reason = "no certificates: set them, or TYPHA_ALLOWPLAINTEXT=true to serve without TLS"
            raise ConfigError("environment", "ServerCertFile", reason)
        if self.max_connections_lower_limit > self.max_connections_upper_limit:
            reason = "is above MaxConnectionsUpperLimit"
            raise ConfigError("environment", "MaxConnectionsLowerLimit", reason)


def read(environ: Mapping[str, str]) -> LiveConfig[TyphaConfig]:
    """Errors: ConfigError."""
    schema = Schema.of(TyphaConfig, prefix=PREFIX)
    live = LiveConfig(schema, [environment_layer(schema, environ)])
    live.config.check()
    return live
