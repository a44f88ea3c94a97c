"""`calico-felix`: the agent of one node. Wiring only; every decision is somewhere else.

Layer: felix.daemon, the top of felix.

    environment, felix.cfg ─┐
    datastore ──────────────┴► configuration ─► everything below, once (a change that needs more
                                                ends the process with 129)
    datastore ─► syncer ─┬► ConfigWatcher      (or by way of typha: TyphaAddr)
                         ├► ClusterFacts ◄─ CNI agent ◄─ unix socket ◄─ /opt/cni/bin/calico
                         └► GraphFeed ─► CalcGraph ─► intents ─► Dataplane ─► kernel
                                             ▲ pin, retract         │
                                 EndpointProgrammer ◄───────────────┘ one cycle, acknowledged

Start: configuration, then a datastore that answers and is not locked, then the syncer. Nothing is
written to the kernel before it is in sync, so a restart changes nothing that is right. SIGTERM
stops the tasks and leaves the kernel as it is; so does a datastore that goes away. SIGHUP reads
felix.cfg, the certificates of the metrics page and the kernel again, SIGUSR1 writes a state dump
into the log directory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cni.facts import ClusterFacts
from felix import config_page, daemon_commands
from felix.calc.graph import CalcGraph
from felix.config import FelixConfig, typha_client
from felix.daemon_cni import build_cni
from felix.daemon_commands import GRAPH_KINDS
from felix.daemon_config import ConfigWatcher, LocalSettings, read_local, wait_for_datastore
from felix.daemon_dataplane import NodeDataplane, Ports, build_dataplane, open_kernel
from felix.daemon_feed import FanOut, GraphFeed, SpansFanOut
from felix.daemon_metrics import FelixHealth, FelixMetrics, metrics_server
from felix.daemon_mtu import MtuFile
from felix.daemon_notices import InertNotices
from felix.daemon_realization import RealizationReporter
from felix.daemon_status import ReportOptions, StatusFiles, StatusReporter, status_directory
from felix.dataplane.loop import CycleReport
from felix.dataplane.status_mgr import StatusSink
from felix.endpoint_programmer import FelixProgrammer, ProgrammerParts
from felix.intent import Intent
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import connect
from libcalico.errors import ConfigError, RestartRequired, SuiteError
from libcalico.model import ClusterInformation, FelixConfiguration, IPReservation
from libcalico.model.keys import IpamConfigKey, path_of, prefix_of
from libcalico.model.validation import validate_stored
from libcalico.runtime import log, paths, supervise
from libcalico.runtime.config import Changes
from libcalico.runtime.health import HealthServer
from libcalico.runtime.metrics import Metrics, MetricsServer
from libcalico.runtime.supervise import Process, Restart
from libcalico.runtime.version import VERSION
from libcalico.syncer import choice, streams
from libcalico.syncer.typha import TyphaSyncer
from libcalico.syncer.watcher import WatchSyncer

LOG = log.get(__name__)
# The CNI agent's kernel work. asyncio's own choice is six on two cores, and pods that start would
# queue behind pods that end, whose threads sleep in the kernel.
CNI_THREADS = 32

# Everything felix and the CNI agent follow.
PREFIXES = (
    *(prefix_of(kind) for kind in GRAPH_KINDS),
    prefix_of(IPReservation.kind),
    prefix_of(ClusterInformation.kind),
    prefix_of(FelixConfiguration.kind),
    path_of(IpamConfigKey()),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Console script. Returns the exit code."""
    options = _parse(sys.argv[1:] if argv is None else argv)
    path = None if options.config_file is None else Path(options.config_file)
    log.setup("info")
    if options.command == "parameters":
        sys.stdout.write(config_page.page())
        return 0
    try:
        if options.command == "check-config":
            return daemon_commands.check_config(os.environ, path)
        if options.command == "render":
            return daemon_commands.render(os.environ, path)
        local = read_local(os.environ, path)
    except SuiteError as err:
        sys.stderr.write(f"calico-felix: {err}\n")
        return 1
    log.setup(local.live.config.log_severity_screen)
    # Rare passes of the collector: nearly all that is allocated is kept, and in no cycle.
    gc.set_threshold(200_000, 50, 1000)
    # What was opened is closed after all tasks have ended, whatever ended them.
    with ExitStack() as closing:
        return supervise.run("calico-felix", lambda process: start(process, local, closing))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="calico-felix",
        description="Programs routes, interfaces and packet filters of this node.",
    )
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("-c", "--config-file", metavar="PATH", help="instead of felix.cfg")
    parser.add_argument(
        "command",
        nargs="?",
        default="run",
        choices=("run", "check-config", "render", "parameters"),
        help="run (default): the agent; check-config: say what is wrong with file and environment;"
        " render: print this node's rules as nft or iptables-restore reads them;"
        " parameters: print the reference page",
    )
    return parser.parse_args(argv)


async def start(process: Process, local: LocalSettings, closing: ExitStack) -> None:
    """supervise's start function: wait for the datastore, build, spawn."""
    LOG.info("felix starts", node=local.node, reason=VERSION)
    threads = ThreadPoolExecutor(CNI_THREADS, "felix")
    asyncio.get_running_loop().set_default_executor(threads)
    health = FelixHealth(local.live.config, clock=process.clock)
    watcher = ConfigWatcher(local.live, local.node)
    process.dumps.register("config", watcher.dump)
    process.dumps.register("health", health.health.dump)
    health.starting("waiting for the datastore")
    _serve_health(process, local.live.config, health)
    datastore = connect(local.connection)
    agent_is_idle = asyncio.Event()
    agent_is_idle.set()
    process.spawn("datastore", lambda: _close_last(datastore, agent_is_idle))
    watcher.preload(await wait_for_datastore(datastore, local.node, clock=process.clock))
    config = local.live.config
    log.set_level(config.log_severity_screen)
    notices = InertNotices(local.live)
    notices.say()
    watcher.add_listener(lambda _changes: notices.say())
    ports = open_kernel(config, closing)
    felix = Felix(process, local, watcher, Edges(datastore, ports, health))
    felix.spawn(agent_is_idle)


@dataclass(frozen=True, slots=True)
class Edges:
    """What a test puts something else in place of."""

    datastore: Datastore
    ports: Ports
    health: FelixHealth


class Felix:
    """All parts of a running felix, joined."""

    def __init__(
        self, process: Process, local: LocalSettings, watcher: ConfigWatcher, edges: Edges
    ) -> None:
        self._process, self._local, self._watcher, self._edges = process, local, watcher, edges
        config = local.live.config
        self._reporter = StatusReporter(
            edges.datastore,
            ReportOptions.of(config, local.node),
            clock=process.clock,
            is_serving=lambda: self.programmer.is_ready(),
        )
        self.dataplane: NodeDataplane = build_dataplane(
            config, edges.ports, self._sinks(config), clock=process.clock
        )
        self.graph = CalcGraph(
            local.node,
            validate=validate_stored,
            allow_source_spoofing=config.workload_source_spoofing == "Any",
            in_spans=_is_in_spans(config),
        )
        self.feed = GraphFeed(
            self.graph,
            self._deliver,
            clock=process.clock,
            is_alive=self._on_feed_alive,
        )
        self.programmer = FelixProgrammer(
            ProgrammerParts(
                self.graph,
                self.dataplane.loop,
                self.dataplane.endpoints,
                self.dataplane.conntrack,
                self.dataplane.wanted,
                self.feed.publish,
                self.dataplane.uplinks.mtu_bytes,
            ),
            local.node,
            lambda: local.live.config,
            clock=process.clock,
        )
        self.facts = ClusterFacts(local.node)
        self.syncer = self._build_syncer(config)
        self._realization = RealizationReporter(
            edges.datastore,
            ReportOptions.of(config, local.node),
            self.dataplane.policies,
            self.graph.shortcomings,
            clock=process.clock,
        )
        self.cni = build_cni(edges.datastore, self.facts, self.programmer, local, process)

    def _build_syncer(self, config: FelixConfig) -> WatchSyncer | TyphaSyncer:
        """Errors: ConfigError."""
        typha, clock = typha_client(config), self._process.clock
        datastore, node = self._edges.datastore, self._local.node
        policies = self.dataplane.policies
        others = (self._watcher, self.facts, policies)
        if _is_in_spans(config):
            sink = SpansFanOut(self.feed, policies.on_positions, *others)
            return choice.spans_syncer(typha, datastore, node, sink, clock=clock)
        following = choice.Following(streams.FELIX, PREFIXES, node)
        return choice.syncer(typha, datastore, following, FanOut(*others, self.feed), clock=clock)

    def _deliver(self, intents: Sequence[Intent]) -> None:
        self.dataplane.loop.on_intents(intents)
        self.dataplane.policies.on_published()
        self.programmer.on_published()
        self._realization.wake()

    def _sinks(self, config: FelixConfig) -> list[StatusSink]:
        sinks: list[StatusSink] = [self._reporter]
        directory = status_directory(config)
        if directory is not None:
            writer = ThreadPoolExecutor(1, "status-files")
            sinks.append(StatusFiles(directory, self._local.node, writer.submit))
        return sinks

    def spawn(self, agent_is_idle: asyncio.Event) -> None:
        """Start all tasks. Order does not matter: each waits for what it needs.

        `agent_is_idle` is clear while CNI requests may be in flight."""
        process, loop = self._process, self.dataplane.loop
        self._edges.health.built()
        self._observe()
        self._watcher.add_listener(_on_config_change)
        self._watcher.on_restart(self._on_restart)
        process.on_reload(lambda: self._watcher.reload_file(self._local.path))
        process.on_reload(lambda: loop.queue_resync("SIGHUP"))
        process.dumps.register("syncer", self.syncer.dump)
        process.dumps.register("graph", self.graph.dump)
        process.dumps.register("story", self.graph.story)
        process.dumps.register("dataplane", loop.dump)
        process.dumps.register("policies", self.dataplane.policies.dump)
        process.dumps.register("endpoints", self.dataplane.endpoints.dump)
        process.dumps.register("host-endpoints", self.dataplane.hosts.dump)
        process.dumps.register("status", self.dataplane.status.dump)
        process.dumps.register("conntrack", self.dataplane.conntrack.dump)
        self.cni.spawn(process)
        process.spawn("dataplane", loop.run)
        process.spawn("kernel-events", loop.watch_kernel)
        process.spawn("conntrack", self.dataplane.conntrack.run)
        sweep = self.dataplane.sweep
        if sweep is not None:
            process.dumps.register("policy-sweep", sweep.dump)
            process.spawn("policy-sweep", sweep.run)
        process.spawn("calc", self.feed.run)
        process.spawn("syncer", self.syncer.run)
        process.spawn("status-endpoints", self._reporter.run_endpoints)
        process.spawn("status-alive", self._reporter.run_alive)
        process.spawn("status-policies", self._realization.run)
        serve = partial(self._serve_cni, agent_is_idle)
        process.spawn("cni", serve, restart=Restart.ON_FAILURE)

    async def _serve_cni(self, agent_is_idle: asyncio.Event) -> None:
        agent_is_idle.clear()
        try:
            await self.cni.agent.serve(paths.cni_socket(self._process.environ))
        finally:
            agent_is_idle.set()

    def _observe(self) -> None:
        config = self._local.live.config
        self.dataplane.loop.add_observer(self._on_cycle)
        mtu = MtuFile(
            paths.lib_dir(self._process.environ) / "mtu",
            self.dataplane.uplinks.mtu_bytes,
            is_required=config.require_mtu_file,
            on_missing=self._process.stop,
        )
        self.dataplane.loop.add_observer(mtu.on_cycle)
        if not config.prometheus_metrics_enabled:
            return
        metrics = Metrics(
            process=config.prometheus_process_metrics_enabled,
            platform=config.prometheus_go_metrics_enabled,
        )
        numbers = FelixMetrics(metrics)
        self.dataplane.loop.add_observer(numbers.on_cycle)
        endpoints = self.dataplane.endpoints
        numbers.gauge_from(
            "felix_active_local_endpoints", "Workloads of this node.", lambda: endpoints.count
        )
        hosts = self.dataplane.hosts
        numbers.gauge_from("felix_host_endpoints", "Of this node.", lambda: hosts.count)
        numbers.gauge_from(
            "felix_active_host_endpoints",
            "Those that govern an interface, with their policy in the kernel.",
            lambda: hosts.active_count,
        )
        policies = self.dataplane.policies
        policies.add_listener(numbers.policy_programmed)
        numbers.gauge_from(
            "felix_staged_policies",
            "Staged policies that select a workload of this node.",
            lambda: policies.staged_count,
        )
        stats, live = self.syncer.stats, self._local.live
        numbers.gauge_from(
            "felix_config_errors", "Parameters with a bad value.", lambda: live.error_count
        )
        numbers.gauge_from(
            "felix_syncer_missed", "Changes only a comparison found.", lambda: stats.missed
        )
        numbers.gauge_from(
            "felix_invalid_objects", "Objects ignored.", lambda: len(self.graph.problems)
        )
        self.cni.observe(numbers)
        server = metrics_server(metrics, live)
        if server is None:
            return
        self._process.on_reload(partial(_reload_certificates, server))
        self._process.spawn("metrics", server.run, restart=Restart.ON_FAILURE)

    def _on_cycle(self, report: CycleReport) -> None:
        self._realization.wake()
        self._edges.health.on_cycle(report)
        if report.is_filtering and not self._edges.health.has_started:
            LOG.info("in sync with the datastore, kernel up to date")
            self._edges.health.started()
            self._process.notifier.ready()
            # What was loaded stays for good: no collector pass need look at it again (a full one
            # over a large cluster stops the world for a quarter of a second).
            gc.freeze()

    def _on_feed_alive(self) -> None:
        self._edges.health.calc_is_alive()
        if not self.dataplane.loop.is_in_sync:
            self._edges.health.dataplane_is_alive()

    def _on_restart(self, reason: RestartRequired) -> None:
        LOG.info("restarting", reason=str(reason))
        self._process.stop(reason)


def _is_in_spans(config: FelixConfig) -> bool:
    return config.typha_mode == "spans"


def _on_config_change(changes: Changes) -> None:
    """Parameters that need no restart: only the log level acts by itself, others are read anew."""
    if "log_severity_screen" in changes.changed:
        log.set_level(str(changes.changed["log_severity_screen"][1]))


def _reload_certificates(server: MetricsServer) -> None:
    try:
        if server.reload_certificates():
            LOG.info("certificates of the metrics page renewed")
    except ConfigError as err:
        LOG.error("the certificates of the metrics page stay as they were", error=str(err))


def _serve_health(process: Process, config: FelixConfig, health: FelixHealth) -> None:
    if config.health_enabled:
        server = HealthServer(health.health, config.health_host, config.health_port)
        process.spawn("health", server.run, restart=Restart.ON_FAILURE)


async def _close_last(datastore: Datastore, agent_is_idle: asyncio.Event) -> None:
    """Close the connection when the tasks are told to end, but let the CNI agent roll back first:
    an ADD in flight has an address to give back."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await agent_is_idle.wait()
        await datastore.close()


if __name__ == "__main__":
    sys.exit(main())
