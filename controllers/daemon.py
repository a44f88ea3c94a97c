"""`calico-kube-controllers`: wiring. Several may run; one works, the others wait (`leader`).

Layer: top of controllers.

    environment ─► settings ─► datastore ─► election ─► node controller (IPAM garbage collection)
                      ▲ KubeControllersConfiguration, before each pass

SIGTERM gives the leadership back and ends with 0; nothing has to be undone, every step of the
work is complete in itself. A setting that only a new process can take over ends it with 129.
SIGUSR1 writes a state dump into the log directory.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import uuid
from collections.abc import Sequence

from controllers.config import ControllersConfig, read_local
from controllers.leader import Leadership
from controllers.node import NodeController, NodeParts
from controllers.numbers import GcNumbers
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import ConnectionConfig, connect, for_daemon
from libcalico.errors import SuiteError
from libcalico.runtime import log, supervise
from libcalico.runtime.config import LiveConfig
from libcalico.runtime.health import Health, HealthServer
from libcalico.runtime.metrics import Metrics, MetricsServer
from libcalico.runtime.supervise import Process, Restart
from libcalico.runtime.version import VERSION

NAME = "calico-kube-controllers"
ELECTION, NODE_CONTROLLER = "election", "node-controller"
LOG = log.get(__name__)


class Daemon:
    """All parts of one process, joined."""

    def __init__(
        self, process: Process, live: LiveConfig[ControllersConfig], datastore: Datastore
    ) -> None:
        self._process, self._live, self._datastore = process, live, datastore
        lease_s = live.config.leader_lease_s
        self.health = Health(clock=process.clock)
        self.health.register(ELECTION, timeout_s=3.0 * lease_s)
        self.health.register(NODE_CONTROLLER, live=False)
        self.health.report(NODE_CONTROLLER, detail="another instance leads")
        self.metrics = Metrics()
        self._numbers = GcNumbers(self.metrics)
        self.leadership = Leadership(
            datastore,
            f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            ttl_s=lease_s,
            clock=process.clock,
            on_turn=lambda: self.health.report(ELECTION, detail=self.leadership.leader),
        )

    def spawn(self) -> None:
        process, config = self._process, self._live.config
        process.dumps.register("config", self._live.dump)
        process.dumps.register("health", self.health.dump)
        process.dumps.register("election", self.leadership.dump)
        if config.health_enabled:
            server = HealthServer(self.health, config.health_host, config.health_port)
            process.spawn("health", server.run, restart=Restart.ON_FAILURE)
        if config.prometheus_metrics_port:
            page = MetricsServer(
                self.metrics, config.prometheus_metrics_host, config.prometheus_metrics_port
            )
            process.spawn("metrics", page.run, restart=Restart.ON_FAILURE)
        process.spawn("controllers", self._run)
        process.notifier.ready()

    async def _run(self) -> None:
        try:
            await self.leadership.run(self._term)
        finally:
            await self._datastore.close()

    async def _term(self) -> None:
        controller = NodeController(
            NodeParts(
                self._datastore,
                self._live,
                self._numbers,
                self._process.clock,
                may_write=lambda: self.leadership.is_leader,
                on_pass=self._on_pass,
            )
        )
        self._process.dumps.register(NODE_CONTROLLER, controller.dump)
        try:
            await controller.run()
        finally:
            self._process.dumps.unregister(NODE_CONTROLLER)
            self.health.report(NODE_CONTROLLER, detail="another instance leads")

    def _on_pass(self, is_ready: bool, detail: str) -> None:
        self.health.report(NODE_CONTROLLER, ready=is_ready, detail=detail)


async def start(
    process: Process, live: LiveConfig[ControllersConfig], connection: ConnectionConfig
) -> None:
    """supervise's start function."""
    LOG.info("controllers start", reason=VERSION, key=",".join(live.config.enabled_controllers))
    Daemon(process, live, connect(connection)).spawn()


def main(argv: Sequence[str] | None = None) -> int:
    """Console script. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=NAME, description="Gives back what nodes and pods have left behind in IPAM."
    )
    parser.add_argument("--version", action="version", version=VERSION)
    parser.parse_args(argv)
    log.setup("info")
    try:
        live = read_local(os.environ)
        connection = for_daemon(os.environ)
    except SuiteError as err:
        sys.stderr.write(f"{NAME}: {err}\n")
        return 1
    log.set_level(live.config.log_level)
    return supervise.run(NAME, lambda process: start(process, live, connection))


if __name__ == "__main__":
    sys.exit(main())
