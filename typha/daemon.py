"""`calico-typha`: one watch on the datastore for all nodes. Wiring only.

Layer: top of typha.

    environment ─► TyphaConfig
    datastore ─► WatchSyncer (raw values) ─► Distributor ─► one Fanout per stream ─► TyphaServer
    datastore ◄─ Registry (who serves, who has room) ─► limit, moves

SIGTERM closes the listener, takes the registration away and says goodbye to the clients one after
the other. SIGHUP reads the certificates again, SIGUSR1 writes a state dump into the log directory.
A datastore that turns out older than what it has told us (restored from a backup) ends the process
with 129: a new one begins with what is there now, and says so to the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial

from libcalico.datastore.api import Datastore
from libcalico.datastore.config import ConnectionConfig, connect, for_daemon
from libcalico.datastore.peer_tls import PeerIdentity, PeerTls
from libcalico.datastore.tls import TlsConfig
from libcalico.errors import RestartRequired, SuiteError
from libcalico.model.keys import ResourceKey, prefix_of
from libcalico.model.validation import validate_stored
from libcalico.runtime import log, supervise
from libcalico.runtime.health import Health, HealthServer
from libcalico.runtime.metrics import Metrics, MetricsServer
from libcalico.runtime.supervise import Process, Restart
from libcalico.runtime.version import VERSION
from libcalico.syncer.streams import FELIX, SPANS
from libcalico.syncer.watcher import SyncerOptions, WatchSyncer
from typha import config as configuration
from typha.config import TyphaConfig
from typha.fanout import Limits
from typha.registry import Registry
from typha.server import TyphaServer
from typha.spans_fanout import SpansFanout
from typha.spans_feed import SpansFeed
from typha.streams import Distributor, as_stored

NAME = "calico-typha"
LOG = log.get(__name__)
_DATASTORE, _SERVER = "datastore", "server"
_LOOK_S, _STALLED_S = 1.0, 30.0
_MIB = 1024 * 1024


class Daemon:
    """All parts of one process, joined."""

    def __init__(self, process: Process, config: TyphaConfig, datastore: Datastore) -> None:
        """Errors: ConfigError for certificates that cannot be used."""
        self._process, self._config, self._datastore = process, config, datastore
        self.health = Health(clock=process.clock)
        self.health.register(_DATASTORE, live=False)
        self.health.register(_SERVER, timeout_s=_STALLED_S)
        limits = Limits(config.server_max_fall_behind_s, config.server_max_log_mb * _MIB)
        self.distributor = Distributor(limits, lambda: self.server.on_change())
        self.syncer = WatchSyncer(
            datastore,
            self.distributor.prefixes,
            self.distributor,
            options=SyncerOptions(decode=as_stored),
            clock=process.clock,
        )
        if config.mode == "spans":
            self.distributor.spans = SpansFanout(
                SpansFeed(validate_stored, _warn_of),
                lambda: self.distributor.positions_of(SPANS, self.syncer.positions()),
                max_fall_behind_s=config.server_max_fall_behind_s,
            )
        self.server = TyphaServer(
            config, self.distributor, self.syncer, tls=_tls(config), clock=process.clock
        )
        self.registry = Registry(
            datastore,
            self.server,
            config.advertised_address or config.server_host or _own_address(),
            count_nodes=self._count_nodes,
            clock=process.clock,
        )

    def _count_nodes(self) -> int:
        return self.distributor.fanouts[FELIX].cache.count_below(prefix_of("Node"))

    def spawn(self) -> None:
        process, config = self._process, self._config
        process.dumps.register("syncer", self.syncer.dump)
        process.dumps.register("server", self.server.dump)
        process.dumps.register("health", self.health.dump)
        if config.health_enabled:
            page = HealthServer(self.health, config.health_host, config.health_port)
            process.spawn("health", page.run, restart=Restart.ON_FAILURE)
        if config.prometheus_metrics_enabled:
            numbers = MetricsServer(
                self._metrics(), config.prometheus_metrics_host, config.prometheus_metrics_port
            )
            process.spawn("metrics", numbers.run, restart=Restart.ON_FAILURE)
        process.spawn("datastore", self._close_last)
        process.spawn("syncer", self.syncer.run)
        process.spawn("server", self.server.run)
        process.spawn("look", self._look)
        if config.registration_enabled:
            process.spawn("registry", self.registry.run)

    async def _close_last(self) -> None:
        """The registration is taken away over this connection (R1)."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.registry.is_gone.wait()
            await self._datastore.close()

    async def _look(self) -> None:
        """Health, readiness, and a datastore that went back in time."""
        is_ready = False
        while True:
            is_in_sync = self.distributor.has_been_in_sync
            self.health.report(_DATASTORE, ready=is_in_sync, detail=self.distributor.status.value)
            count = len(self.server.clients)
            is_listening = self.server.is_listening.is_set()
            self.health.report(_SERVER, ready=is_listening, detail=f"{count} clients")
            if is_in_sync and is_listening and not is_ready:
                is_ready = True
                LOG.info("in sync with the datastore, serving")
                self._process.notifier.ready()
            if self.syncer.stats.went_back:
                self._process.stop(RestartRequired("the datastore was restored from a backup"))
            await self._process.clock.sleep(_LOOK_S)

    def _metrics(self) -> Metrics:
        metrics, server = Metrics(), self.server
        stats = server.stats

        metrics.gauge_from("typha_connections_active", "Clients now.", lambda: len(server.clients))
        metrics.gauge_from("typha_connections_limit", "Clients at most.", lambda: server.limit)
        metrics.gauge_from("typha_connections_accepted", "Since start.", lambda: stats.accepted)
        metrics.gauge_from("typha_bytes_sent", "To clients.", lambda: stats.bytes_sent)
        metrics.gauge_from("typha_breadcrumbs", "Made since start.", lambda: stats.crumbs)
        metrics.gauge_from("typha_snapshots_made", "Since start.", lambda: stats.snapshots_made)
        metrics.gauge_from("typha_snapshots_sent", "Since start.", lambda: stats.snapshots)
        metrics.gauge_from(
            "typha_max_lag_seconds", "Of the client furthest behind.", server.max_lag_s
        )
        ended = metrics.gauge("typha_connections_ended", "By reason, since start.", ["reason"])
        for reason in server.end_reasons():
            ended.labels(reason).set_function(partial(_count, stats.ended, reason))
        return metrics


def _warn_of(key: ResourceKey, why: str) -> None:
    LOG.warning("an invalid object counts as absent", key=str(key), error=why)


def _count(ended: Counter[str], reason: str) -> float:
    return ended[reason]


def _tls(config: TyphaConfig) -> PeerTls | None:
    if not config.is_tls:
        return None
    files = TlsConfig(config.server_ca_file, config.server_cert_file, config.server_key_file)
    return PeerTls(files, PeerIdentity(config.client_cn, config.client_uri_san), is_server=True)


def _own_address() -> str:
    """What this host's name stands for; the name itself when that is nothing."""
    name = socket.gethostname()
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return name


async def start(process: Process, config: TyphaConfig, connection: ConnectionConfig) -> None:
    """supervise's start function."""
    LOG.info("typha starts", reason=VERSION)
    Daemon(process, config, connect(connection)).spawn()


def main(argv: Sequence[str] | None = None) -> int:
    """Console script. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=NAME, description="Fans the datastore out to the nodes.")
    parser.add_argument("--version", action="version", version=VERSION)
    parser.parse_args(argv)
    log.setup("info")
    try:
        live = configuration.read(os.environ)
        connection = for_daemon(os.environ)
        _tls(live.config)
    except SuiteError as err:
        sys.stderr.write(f"{NAME}: {err}\n")
        return 1
    log.set_level(live.config.log_severity_screen)
    return supervise.run(NAME, lambda process: start(process, live.config, connection))


if __name__ == "__main__":
    sys.exit(main())
