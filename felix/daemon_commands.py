"""`calico-felix check-config` and `calico-felix render`: look, touch nothing.

Layer: felix.daemon. `render` is the codec of this component: what the datastore says now for this
node, as an nft script or as input of iptables-restore, made by the very managers the daemon runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from felix.calc.graph import CalcGraph
from felix.daemon_config import check_local, read_local
from felix.daemon_metrics import metrics_tls
from felix.daemon_notices import inert_notices
from felix.dataplane import ipt_wiring
from felix.dataplane.nft_wanted import WantedRuleset
from felix.dataplane.nft_wiring import nft_managers
from felix.rules.render_nft import script
from felix.rules.settings import RuleSettings
from libcalico.datastore.api import Datastore
from libcalico.datastore.config import connect
from libcalico.errors import DecodeError
from libcalico.model import (
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    IPPool,
    NetworkPolicy,
    NetworkSet,
    Node,
    Profile,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    Tier,
    WorkloadEndpoint,
)
from libcalico.model.codec import decode
from libcalico.model.keys import parse, prefix_of
from libcalico.model.validation import validate_stored
from libcalico.syncer.api import SyncStatus, Update

# What the calc graph uses.
GRAPH_KINDS = (
    WorkloadEndpoint.kind,
    HostEndpoint.kind,
    NetworkSet.kind,
    GlobalNetworkSet.kind,
    Profile.kind,
    Tier.kind,
    NetworkPolicy.kind,
    GlobalNetworkPolicy.kind,
    StagedNetworkPolicy.kind,
    StagedGlobalNetworkPolicy.kind,
    StagedKubernetesNetworkPolicy.kind,
    IPPool.kind,
    Node.kind,
)


def check_config(environ: Mapping[str, str], path: Path | None) -> int:
    """Problems of file and environment, one a line; 1 when there are any. What is good but has no
    effect is named, too. Errors: ConfigError for parameters that contradict each other."""
    problems = check_local(environ, path)
    for problem in problems:
        sys.stderr.write(f"calico-felix: {problem}\n")
    if problems:
        return 1
    live = read_local(environ, path).live
    if live.config.prometheus_metrics_enabled:
        metrics_tls(live.config)
    for notice in inert_notices(live):
        sys.stderr.write(f"calico-felix: {notice}\n")
    sys.stdout.write("configuration is good\n")
    return 0


def render(environ: Mapping[str, str], path: Path | None) -> int:
    """The rules of this node as text, from the datastore as it is now. Interfaces are not looked
    at: host endpoints that expect addresses stand nowhere in it. Errors: SuiteError."""
    local = read_local(environ, path)

    async def read() -> list[Update]:
        datastore = connect(local.connection)
        try:
            return await snapshot(datastore)
        finally:
            await datastore.close()

    updates = asyncio.run(read())
    text = render_snapshot(updates, local.node, RuleSettings.of(local.live.config))
    sys.stdout.write(text)
    return 0


async def snapshot(datastore: Datastore) -> list[Update]:
    """Everything the calc graph uses, each kind as one list."""
    updates = []
    for kind in GRAPH_KINDS:
        for kv in (await datastore.list(prefix_of(kind))).kvs:
            key = parse(kv.key)
            if key is None:
                continue
            try:
                value: object | None = decode(key, kv.value, kv.mod_revision)
            except DecodeError as err:
                sys.stderr.write(f"calico-felix: {err}{os.linesep}")
                value = None
            updates.append(Update(key, value, kv.mod_revision))
    return updates


def render_snapshot(updates: list[Update], node: str, settings: RuleSettings) -> str:
    """Pure: updates to text, through the graph and the managers."""
    graph = CalcGraph(
        node, validate=validate_stored, allow_source_spoofing=settings.allows_source_prefixes
    )
    graph.on_updates(updates)
    graph.on_status(SyncStatus.IN_SYNC)
    wanted = WantedRuleset()
    managers = nft_managers(wanted, settings)
    for intent in graph.flush():
        for manager in managers:
            manager.on_intent(intent)
    for manager in managers:
        manager.complete_deferred_work()
    if settings.iptables.is_in_use:
        return ipt_wiring.script(wanted, settings)
    return script(wanted.ruleset())
