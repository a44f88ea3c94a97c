"""Objects of a cluster -> typha's span engine: which policies apply to an endpoint, and where.

Layer: pure. Used by calicoctl.commands.typha and the spans benchmarks. Whom a policy selects and
which address sets its rules name is compiled as every felix does it (libcalico.compute), so an
answer here is what the nodes do.

  Z1  an object that felix refuses (validation, a selector in a rule) counts as absent; `problems`
      says why;
  Z2  staged policies have a span too: felix computes them, and does not enforce them;
  Z3  not counted: rules of profiles, and the endpoints of services.

Source: felix/calc/graph.py (`_on_workload`, `_on_policy` and their like).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from calicoctl.output import table
from libcalico.compute import contributions, policies
from libcalico.compute.contributions import Contribution
from libcalico.compute.rule_compiler import SetDefinition, SetsById, compile_rules
from libcalico.errors import InvalidInput
from libcalico.model import (
    GlobalNetworkPolicy,
    GlobalNetworkSet,
    HostEndpoint,
    NetworkPolicy,
    NetworkSet,
    Profile,
    Resource,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
    StagedNetworkPolicy,
    WorkloadEndpoint,
)
from libcalico.model.keys import ResourceKey, key_of
from typha.spans import Group, Place, SpanIndex

POLICY_KINDS: tuple[type[Resource], ...] = (
    NetworkPolicy,
    GlobalNetworkPolicy,
    StagedNetworkPolicy,
    StagedGlobalNetworkPolicy,
    StagedKubernetesNetworkPolicy,
)
KINDS: tuple[type[Resource], ...] = (
    WorkloadEndpoint,
    HostEndpoint,
    NetworkSet,
    GlobalNetworkSet,
    Profile,
    *POLICY_KINDS,
)


class ClusterSpans:
    """The engine and what was refused. Load everything, then flush the index once."""

    def __init__(self) -> None:
        self.index = SpanIndex()
        self.problems: dict[ResourceKey, str] = {}

    def load(self, resources: Iterable[Resource]) -> None:
        for resource in resources:
            key = key_of(resource)
            if not isinstance(key, ResourceKey) or not isinstance(resource, KINDS):
                continue
            try:
                self._take(key, resource)
            except InvalidInput as err:
                self.problems[key] = str(err)

    def _take(self, key: ResourceKey, resource: Resource) -> None:
        match resource:
            case WorkloadEndpoint():
                item = contributions.of_workload(key.namespace, resource)
                self._put(key, item, resource.spec.node)
            case HostEndpoint():
                self._put(key, contributions.of_host_endpoint(resource), resource.spec.node)
            case NetworkSet():
                self._put(key, contributions.of_network_set(resource, key.namespace), "")
            case GlobalNetworkSet():
                self._put(key, contributions.of_global_network_set(resource), "")
            case Profile():
                self.index.update_parent(key.name, resource.spec.labels_to_apply)
            case _:
                self._take_policy(key, resource)

    def _put(self, key: ResourceKey, item: Contribution | None, node: str | None) -> None:
        if item is None:  # an endpoint without an address does not exist yet
            return
        place = Place(node or "", item.addresses, item.ports)
        self.index.update_item(key, item.labels, item.parents, place)

    def _take_policy(self, key: ResourceKey, resource: Resource) -> None:
        policy = policies.of_resource(key, resource, 0)
        if policy is None:
            return
        sets: SetsById = {}
        if policy.governs_ingress:
            compile_rules(policy.ingress, policy.namespace, sets)
        if policy.governs_egress:
            compile_rules(policy.egress, policy.namespace, sets)
        groups = {
            set_id: Group(found.selector, found.port)
            for set_id, found in sets.items()
            if isinstance(found, SetDefinition)
        }
        self.index.update_policy(key, policy.selector, groups)


def describe(spans: ClusterSpans, endpoint: Resource) -> dict[str, object]:
    """Which policies select an endpoint, by name, and what each means for the cluster.

    Shape: `nodes` is the size of the policy's span, `groups` how many address groups its rules
    name, `members` how many addresses (or addresses with port) these hold together. Flush first."""
    key, index = key_of(endpoint), spans.index
    assert isinstance(key, ResourceKey)
    assert isinstance(endpoint, WorkloadEndpoint | HostEndpoint)
    rows = []
    for policy in sorted(index.policies_of(key)):
        groups = index.groups_of(policy)
        rows.append(
            {
                "kind": policy.kind,
                "namespace": policy.namespace,
                "name": policy.name,
                "nodes": len(index.span(policy)),
                "groups": len(groups),
                "members": sum(len(index.members(group)) for group in groups),
            }
        )
    name = f"{key.namespace}/{key.name}".lstrip("/")
    return {"endpoint": name, "node": endpoint.spec.node or "", "policies": rows}


def as_json(answer: dict[str, object]) -> str:
    return json.dumps(answer, indent=2)


def as_text(answer: dict[str, object]) -> str:
    first = f"{answer['endpoint']} on node {answer['node'] or '<none>'}"
    rows = answer["policies"]
    assert isinstance(rows, list)
    if not rows:
        return f"{first}: no policy selects it"
    cells = [
        (
            f"{row['kind']} " + f"{row['namespace']}/{row['name']}".lstrip("/"),
            *(str(row[column]) for column in ("nodes", "groups", "members")),
        )
        for row in rows
    ]
    return f"{first}:\n{table(('POLICY', 'NODES', 'GROUPS', 'MEMBERS'), cells).rstrip()}"
