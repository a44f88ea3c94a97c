"""What felix has to admit: that something it was asked for is not there.

Layer: felix.daemon. InertNotices: at start and after changes of the configuration, also for
`check-config`. GapNotices: a manager of the dataplane, for what objects ask and nothing acts on.

  G1  each thing is said once, and again only after it had gone and come back.
"""

from __future__ import annotations

import dataclasses

from felix.config import SCHEMA, FelixConfig
from felix.config_inert import FACTS, NO_EFFECT, InertParams
from felix.intent import HostEndpointRemove, HostEndpointUpdate, Intent, PoolRemove, PoolUpdate
from libcalico.runtime import log
from libcalico.runtime.config import LiveConfig, Source

LOG = log.get(__name__)
INERT = frozenset(item.name for item in dataclasses.fields(InertParams))
_REPORTED = INERT - FACTS


def inert_notices(live: LiveConfig[FelixConfig]) -> list[str]:
    """One line per parameter that somebody has set to another than its default and nothing acts on.

    The default itself is what happens anyway, and FelixConfiguration `default` is full of it."""
    return [f"{source.label}: {name}: {NO_EFFECT}" for name, source in _inert(live)]


def _inert(live: LiveConfig[FelixConfig]) -> list[tuple[str, Source]]:
    rows = [row for row in SCHEMA.params if row.attribute in _REPORTED]
    set_rows = [row for row in rows if getattr(live.config, row.attribute) != row.default]
    found = [(row.name, live.source_of(row.attribute)) for row in set_rows]
    return [(name, source) for name, source in found if source is not Source.DEFAULT]


class InertNotices:
    """G1, for the parameters."""

    def __init__(self, live: LiveConfig[FelixConfig]) -> None:
        self._live = live
        self._said: set[tuple[str, Source]] = set()

    def say(self) -> None:
        present = _inert(self._live)
        for name, source in present:
            if (name, source) not in self._said:
                LOG.warning("parameter accepted, no effect yet", key=name, source=source.label)
        self._said = set(present)


class GapNotices:
    """felix.dataplane.manager.Manager; G1, for pools that want tunnels and for policies that host
    endpoints ignore."""

    def __init__(self) -> None:
        self._ignoring: set[str] = set()
        self._pools: set[str] = set()

    def on_intent(self, intent: Intent) -> None:
        if isinstance(intent, HostEndpointUpdate):
            self._on_host(intent.key.name, ignores_untracked=intent.ignores_untracked)
        elif isinstance(intent, HostEndpointRemove):
            self._ignoring.discard(intent.key.name)
        elif isinstance(intent, PoolUpdate):
            self._on_pool(intent)
        elif isinstance(intent, PoolRemove):
            self._pools.discard(intent.cidr)

    def complete_deferred_work(self) -> None:
        """There is nothing to program."""

    def _on_host(self, name: str, *, ignores_untracked: bool) -> None:
        if not ignores_untracked:
            self._ignoring.discard(name)
            return
        if name not in self._ignoring:
            LOG.warning("a host endpoint for all interfaces ignores doNotTrack policies", key=name)
        self._ignoring.add(name)

    def _on_pool(self, pool: PoolUpdate) -> None:
        if pool.ipip_mode == pool.vxlan_mode == "Never":
            self._pools.discard(pool.cidr)
            return
        if pool.cidr not in self._pools:
            LOG.warning(
                "no tunnels yet: pods of this pool are reachable across nodes only where the"
                " underlay routes them",
                cidr=pool.cidr,
                ipip=pool.ipip_mode,
                vxlan=pool.vxlan_mode,
            )
        self._pools.add(pool.cidr)
