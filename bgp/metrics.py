"""Numbers per peer for Prometheus, and the page they are fetched from.

Layer: edge. Made by bgp.daemon when it is asked for; importing prometheus_client costs 90 ms and
8 MB, so only then. Named as Felix's: BGP_PROMETHEUSMETRICSENABLED (false), …HOST (127.0.0.1), …PORT
(9092). Plain HTTP, in the turns of the event loop: bounds as in libcalico.runtime.httpd.

Nothing is counted twice: the numbers are read off the RIB when somebody looks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bgp.eventloop import EventLoop
from bgp.rib.rib import Rib
from bgp.speaker.engine import SessionState
from libcalico.errors import ConfigError
from libcalico.runtime import httpd, log, parse
from libcalico.runtime.config import LiveConfig, Schema, environment_layer, param

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LOG = log.get(__name__)
VISITORS_AT_MOST = 64
REQUEST_S = 5.0
States = Callable[[], Mapping[str, SessionState]]


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Where to serve the page."""

    prometheus_metrics_enabled: bool = param(
        False,
        parse=parse.boolean,
        env_name="BGP_PROMETHEUSMETRICSENABLED",
        doc="Serve /metrics.",
    )
    prometheus_metrics_host: str = param(
        "127.0.0.1",
        parse=lambda raw: str(parse.address(raw)),
        env_name="BGP_PROMETHEUSMETRICSHOST",
        doc="Address to serve them on; 0.0.0.0 or :: for every one.",
    )
    prometheus_metrics_port: int = param(
        9092, parse=parse.port, env_name="BGP_PROMETHEUSMETRICSPORT", doc="Port to serve them on."
    )


SCHEMA = Schema.of(MetricsConfig, prefix="")


def settings(environ: Mapping[str, str]) -> MetricsConfig:
    """Errors: ConfigError for a bad variable."""
    return LiveConfig(SCHEMA, [environment_layer(SCHEMA, environ)]).config


class PeerNumbers:
    """A collector of prometheus_client: `collect` is called for each visit."""

    def __init__(self, rib: Rib, states: States) -> None:
        self._rib = rib
        self._states = states

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        states = self._states()
        labels = ("peer", "name")
        peers = [((p.address, p.options.name), p) for p in self._rib.peers.values()]

        def gauge(name: str, doc: str, value: Callable[[Any], float]) -> Metric:
            made = GaugeMetricFamily(name, doc, labels=labels)
            for label, peer in peers:
                made.add_metric(label, value(peer))
            return made

        def counter(name: str, doc: str, value: Callable[[Any], int]) -> Metric:
            made = CounterMetricFamily(name, doc, labels=labels)
            for label, peer in peers:
                made.add_metric(label, value(peer))
            return made

        def since(peer: Any) -> float:
            state = states.get(peer.address)
            return state.since if state else 0.0

        yield gauge("bgp_peer_up", "1: Established.", lambda p: p.session is not None)
        yield gauge("bgp_peer_state_since_seconds", "Unix time of the state.", since)
        yield gauge("bgp_peer_routes_received", "Before import filters.", lambda p: p.received())
        yield gauge("bgp_peer_routes_advertised", "What it is told.", lambda p: p.advertised())
        yield gauge(
            "bgp_peer_routes_stale",
            "Kept through its restart, unconfirmed.",
            lambda p: sum(map(len, p.stale.values())),
        )
        yield counter("bgp_peer_updates_received", "UPDATEs.", lambda p: p.counters.updates)
        yield counter(
            "bgp_peer_updates_malformed",
            "UPDATEs treated as withdrawal (RFC 7606).",
            lambda p: p.counters.malformed,
        )
        yield self._selected(GaugeMetricFamily)

    def _selected(self, family_of_gauges: Any) -> Metric:
        made: Metric = family_of_gauges("bgp_routes_selected", "Prefixes.", labels=["family"])
        for family, table in self._rib.tables.items():
            made.add_metric([family.name], len(table.selected))  # type: ignore[attr-defined]
        return made


class MetricsPage:
    """Listens; answers GET /metrics and closes."""

    def __init__(self, config: MetricsConfig, rib: Rib, states: States, events: EventLoop) -> None:
        """Errors: ConfigError, the address cannot be used."""
        from libcalico.runtime.metrics import Metrics

        metrics = Metrics()
        metrics.registry.register(PeerNumbers(rib, states))
        self.pages = {"/metrics": metrics.page}
        self.events = events
        self._visitors: set[_Visitor] = set()
        where = (config.prometheus_metrics_host, config.prometheus_metrics_port)
        try:
            is_v6 = ":" in where[0]
            family = socket.AF_INET6 if is_v6 else socket.AF_INET
            self._listener = socket.create_server(where, family=family, backlog=VISITORS_AT_MOST)
        except OSError as err:
            raise ConfigError("metrics", "listen", str(err), f"{where[0]}:{where[1]}") from err
        self._listener.setblocking(False)
        events.on_readable(self._listener, self._accept)

    def close(self) -> None:
        for visitor in list(self._visitors):
            self.drop(visitor)
        self.events.forget(self._listener)
        self._listener.close()

    def tick(self, now: float) -> None:
        for visitor in list(self._visitors):
            if visitor.is_overdue(now):
                self.drop(visitor)

    def drop(self, visitor: _Visitor) -> None:
        self.events.forget(visitor.sock)
        visitor.sock.close()
        self._visitors.discard(visitor)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as err:
            LOG.debug("metrics visitor went away", reason=err)
            return
        if len(self._visitors) >= VISITORS_AT_MOST:
            sock.close()
            return
        sock.setblocking(False)
        visitor = _Visitor(sock, self)
        self._visitors.add(visitor)
        self.events.on_readable(sock, visitor.read)


class _Visitor:
    """One request, one answer."""

    def __init__(self, sock: socket.socket, page: MetricsPage) -> None:
        self.sock = sock
        self._page = page
        self._head = b""
        self._unsent = b""
        self._since: float | None = None

    def is_overdue(self, now: float) -> bool:
        if self._since is None:
            self._since = now
        return now - self._since > REQUEST_S

    def read(self) -> None:
        try:
            data = self.sock.recv(httpd.MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._head += data
        if not data or len(self._head) > httpd.MAX_REQUEST_BYTES:
            self._page.drop(self)
        elif b"\r\n\r\n" in self._head:
            self._unsent = httpd.answer(self._page.pages, self._head.partition(b"\r\n\r\n")[0])
            self._page.events.on_writable(self.sock, self.write)

    def write(self) -> None:
        try:
            sent = self.sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._page.drop(self)
