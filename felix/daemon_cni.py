"""The CNI side of felix, joined: agent, queued DELs, pods made while the datastore is away, sweep.

Layer: felix.daemon. Wiring only; what each part promises is in cni/DESIGN.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from cni.addresses import Addresses
from cni.agent import Agent, OnNode, WhileAway
from cni.endpoints import EndpointStore
from cni.facts import ClusterFacts
from cni.journal import Journal
from cni.offline import OfflinePods, OfflineSettings, OfflineTools
from cni.offline_parts import GuardedProgrammer
from cni.queue import DeleteQueue
from cni.replay import Replayer
from cni.sweep import Sweeper, SweepParts, SweepTerms
from cni.wirer import ProcessWirer
from felix.daemon_config import LocalSettings
from felix.daemon_metrics import FelixMetrics
from felix.endpoint_programmer import FelixProgrammer
from ipam.client import IpamClient
from libcalico.datastore.api import Datastore
from libcalico.runtime import paths
from libcalico.runtime.supervise import Process, Restart


@dataclass(frozen=True, slots=True)
class CniSide:
    agent: Agent
    replayer: Replayer
    offline: OfflinePods
    sweeper: Sweeper

    def spawn(self, process: Process) -> None:
        """Everything but the agent's socket. The journal is read here: before the syncer runs."""
        self.offline.start()
        process.dumps.register("cni", self.agent.dump)
        process.dumps.register("cni-queue", self.replayer.dump)
        process.dumps.register("cni-offline", self.offline.dump)
        process.dumps.register("cni-sweep", self.sweeper.dump)
        process.spawn("cni-queue", self.replayer.run, restart=Restart.ON_FAILURE)
        process.spawn("cni-offline", self.offline.run, restart=Restart.ON_FAILURE)
        process.spawn("cni-sweep", self.sweeper.run, restart=Restart.ON_FAILURE)

    def observe(self, numbers: FelixMetrics) -> None:
        queue, journal = self.replayer.queue, self.offline.journal
        numbers.gauge_from(
            "felix_cni_queued_deletes", "DELs that wait for the datastore.", queue.count
        )
        numbers.gauge_from(
            "felix_cni_offline_pods", "Pods the datastore has not heard of.", journal.count
        )
        numbers.gauge_from(
            "felix_cni_offline_reserve",
            "Addresses for pods while the datastore is away.",
            self.offline.reserve.count,
        )


def build_cni(
    datastore: Datastore,
    facts: ClusterFacts,
    programmer: FelixProgrammer,
    local: LocalSettings,
    process: Process,
) -> CniSide:
    def settings() -> OfflineSettings:
        config = local.live.config
        return OfflineSettings(
            is_enabled=config.ipam_offline_allocation == "Enabled",
            reserve=config.ipam_offline_reserve,
        )

    def sweep() -> SweepTerms:
        config = local.live.config
        return SweepTerms(config.stale_endpoint_sweep_interval_s, config.stale_endpoint_grace_s)

    environ, clock = process.environ, process.clock
    ipam = IpamClient(datastore, facts)
    store, addresses = EndpointStore(datastore, facts), Addresses(ipam)
    queue = DeleteQueue(paths.cni_queue_dir(environ))
    journal = Journal(paths.cni_journal_dir(environ))
    tools = OfflineTools(journal, queue, store, addresses, ipam, programmer)
    offline = OfflinePods(tools, local.node, settings, clock=clock)
    guarded = GuardedProgrammer(programmer, journal)
    replayer = Replayer(queue, store, addresses, guarded, clock=clock)
    away = WhileAway(replayer, offline)
    on_node = OnNode(paths.lib_dir(environ), ProcessWirer())
    agent = Agent(programmer, store, addresses, away, on_node)
    sweeper = Sweeper(SweepParts(agent, store, programmer, queue, clock, sweep))
    return CniSide(agent, replayer, offline, sweeper)
