"""Numbers about a process for Prometheus: a registry per process, and a page to fetch it from.

Layer: runtime edge. Used by the daemons; importing it costs 90 ms (prometheus_client), so the
command line and the CNI client never do. Names follow Felix's where the meaning is the same.

There is no global registry: tests and several daemons in one process do not meet.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    exposition,
)

from libcalico.errors import ConfigError
from libcalico.runtime.httpd import HttpServer, Request, Response

# From a fast netlink write to a stuck apply, in seconds.
LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class MetricsTls:
    """Serve over TLS; with `client_ca_file` only to clients of that authority, or, with
    `is_client_optional`, also to those that show no certificate at all."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    is_client_optional: bool = False

    def context(self) -> ssl.SSLContext:
        """Errors: ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
            if self.client_ca_file:
                context.load_verify_locations(self.client_ca_file)
                optional = self.is_client_optional
                context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as err:
            raise ConfigError("metrics TLS", self.cert_file, str(err)) from err
        return context

    def contents(self) -> tuple[bytes, ...]:
        """What the files hold, to see a change by. Errors: ConfigError."""
        names = filter(None, (self.cert_file, self.key_file, self.client_ca_file))
        try:
            return tuple(Path(name).read_bytes() for name in names)
        except OSError as err:
            raise ConfigError("metrics TLS", self.cert_file, str(err)) from err


class Metrics:
    """One process' numbers. Ask for a metric once and keep it."""

    def __init__(self, *, process: bool = True, platform: bool = False) -> None:
        self.registry = CollectorRegistry()
        if process and Path("/proc/self/stat").exists():
            ProcessCollector(registry=self.registry)
        if platform:
            PlatformCollector(registry=self.registry)

    def counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, doc, labels, registry=self.registry)

    def gauge(self, name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, doc, labels, registry=self.registry)

    def gauge_from(self, name: str, doc: str, function: Callable[[], float]) -> None:
        """A gauge that is computed when somebody looks."""
        self.gauge(name, doc).set_function(function)

    def latency(self, name: str, doc: str, labels: Sequence[str] = ()) -> Histogram:
        """Seconds, in buckets that fit from netlink to a stuck dataplane."""
        return Histogram(name, doc, labels, buckets=LATENCY_BUCKETS_S, registry=self.registry)

    def page(self, request: Request) -> Response:
        encoder, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
        return Response(200, encoder(self.registry), content_type)


class MetricsServer(HttpServer):
    """`/metrics`. `run()` serves until cancelled. An empty host is every address.

    After `reload_certificates` it listens anew, with the certificates the files hold then."""

    def __init__(
        self, metrics: Metrics, host: str, port: int, *, tls: MetricsTls | None = None
    ) -> None:
        context = None if tls is None else tls.context()
        super().__init__(host, port, {"/metrics": metrics.page}, tls=context)
        self._files, self._loaded = tls, () if tls is None else tls.contents()
        self._is_renewed = asyncio.Event()

    def reload_certificates(self) -> bool:
        """True when they have changed. Errors: ConfigError; the old ones stay in use."""
        if self._files is None:
            return False
        contents = self._files.contents()
        if contents == self._loaded:
            return False
        self._tls, self._loaded = self._files.context(), contents
        self._is_renewed.set()
        return True

    async def run(self) -> None:
        await self.start()
        try:
            while True:
                await self._is_renewed.wait()
                self._is_renewed.clear()
                await self.stop()
                await self.start()
        finally:
            await self.stop()
