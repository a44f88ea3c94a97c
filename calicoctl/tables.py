"""The tables that felix would make for some endpoints: the cluster, compiled.

Layer: pure. Used by calicoctl.explain and calicoctl.dryrun. The endpoints asked about go through
the calculation that felix runs (felix.calc) as if they were of one node, the rest of the cluster as
it is; what came out is then asked about packets, with the code that felix's own sweep of
connections uses (felix.rules.verdict).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from felix.calc import CalcGraph
from felix.dataplane.intent_book import IntentBook
from felix.intent import HostEndpointUpdate
from felix.rules import verdict
from libcalico.errors import InvalidInput
from libcalico.model import HostEndpoint, Resource, WorkloadEndpoint
from libcalico.model.keys import ResourceKey, key_of
from libcalico.policy.evaluate import Stage, Verdict
from libcalico.policy.packet import Direction, Packet
from libcalico.syncer.api import SyncStatus, Update

# No node is called so: a name has no slash.
_NODE = "/asked"


class Ignored(InvalidInput):
    """Felix does not believe in an endpoint; the text says why."""


class Tables:
    """`local`: the endpoints asked about."""

    def __init__(self, resources: Iterable[Resource], local: Iterable[ResourceKey]) -> None:
        asked = frozenset(local)
        graph = CalcGraph(_NODE, allow_source_spoofing=True)
        keyed = ((key_of(resource), resource) for resource in resources)
        graph.on_updates(
            [Update(key, _here(item) if key in asked else item, 1) for key, item in keyed]
        )
        graph.on_status(SyncStatus.IN_SYNC)
        self.book = IntentBook()
        self._hosts: dict[ResourceKey, HostEndpointUpdate] = {}
        for intent in graph.flush():
            self.book.take(intent)
            if isinstance(intent, HostEndpointUpdate):
                self._hosts[intent.key] = intent
        self._graph = graph

    def decide(
        self,
        key: ResourceKey,
        direction: Direction,
        packet: Packet,
        *,
        stage: Stage = Stage.NORMAL,
    ) -> Verdict:
        """Tiers and profiles of one endpoint. Errors: Ignored."""
        endpoint = self.book.workloads.get(key) or self._hosts.get(key)
        if endpoint is None:
            why = self._graph.refusal_of(key) or "it is not in the tables"
            raise Ignored(f"{key.kind} {key.namespace}/{key.name} is ignored by felix: {why}")
        return verdict.decide(self.book, endpoint, direction, packet, stage=stage)


def _here(resource: Resource) -> Resource:
    if not isinstance(resource, WorkloadEndpoint | HostEndpoint):
        return resource
    spec = msgspec.structs.replace(resource.spec, node=_NODE)
    return msgspec.structs.replace(resource, spec=spec)
