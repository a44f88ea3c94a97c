"""What the span engine says a node needs is what that node's felix computes for itself."""

from __future__ import annotations

import random

from calicoctl.spans import ClusterSpans
from felix.calc import CalcGraph
from felix.intent import SetUpdate
from libcalico.model import (
    EntityRule,
    GlobalNetworkPolicy,
    GlobalNetworkPolicySpec,
    NetworkPolicy,
    NetworkPolicySpec,
    NetworkSet,
    NetworkSetSpec,
    ObjectMeta,
    Profile,
    ProfileSpec,
    Resource,
    Rule,
    WorkloadEndpoint,
    WorkloadEndpointPort,
    WorkloadEndpointSpec,
)
from libcalico.model.keys import key_of
from libcalico.syncer.api import SyncStatus, Update

CLUSTERS = 60
NODES = ("node-0", "node-1", "node-2")
SELECTORS = ("all()", "a == '1'", "has(b)", "!has(b)", "a == '1' && b == '2'", "b in {'1','2'}")
NAMESPACE_SELECTORS = (None, None, "team == 'x'", "all()", "global()")
HTTP = WorkloadEndpointPort(name="http", protocol="TCP", port=80)


def side(rnd: random.Random, ports: tuple[str, ...] = ()) -> EntityRule:
    return EntityRule(
        selector=rnd.choice((None, *SELECTORS)),
        namespace_selector=rnd.choice(NAMESPACE_SELECTORS),
        not_selector=rnd.choice((None, None, "a == '2'")),
        ports=ports,
    )


def rule(rnd: random.Random) -> Rule:
    ports = rnd.choice(((), ("http",)))
    return Rule(action="Allow", protocol="TCP", source=side(rnd), destination=side(rnd, ports))


def pod(rnd: random.Random, namespace: str, number: int) -> Resource:
    node = rnd.choice(NODES)
    labels = {label: rnd.choice("12") for label in rnd.sample("abc", rnd.randrange(4))}
    return WorkloadEndpoint(
        metadata=ObjectMeta(
            name=f"{node}-k8s-p{number}-eth0",
            namespace=namespace,
            labels={"projectcalico.org/namespace": namespace, **labels},
        ),
        spec=WorkloadEndpointSpec(
            orchestrator="k8s",
            node=node,
            pod=f"p{number}",
            endpoint="eth0",
            interface_name=f"cali{namespace}{number}",
            ip_networks=(f"10.0.0.{rnd.randrange(12)}/32",),
            profiles=(f"kns.{namespace}",),
            ports=rnd.choice(((), (HTTP,))),
        ),
    )


def cluster(rnd: random.Random) -> list[Resource]:
    found: list[Resource] = []
    for namespace in ("n1", "n2", "n3"):
        labels = {"pcns.team": rnd.choice("xy")}
        found.append(
            Profile(
                metadata=ObjectMeta(name=f"kns.{namespace}"),
                spec=ProfileSpec(labels_to_apply=labels),
            )
        )
        found += [pod(rnd, namespace, number) for number in range(rnd.randrange(5))]
        found.append(
            NetworkSet(
                metadata=ObjectMeta(name="set", namespace=namespace, labels={"a": "1"}),
                spec=NetworkSetSpec(nets=("192.0.2.0/24",)),
            )
        )
        for number in range(rnd.randrange(4)):
            spec = NetworkPolicySpec(
                selector=rnd.choice(("", *SELECTORS)),
                types=rnd.choice((("Ingress",), ("Ingress", "Egress"))),
                ingress=(rule(rnd),),
                egress=(rule(rnd),),
            )
            meta = ObjectMeta(name=f"p{number}", namespace=namespace)
            found.append(NetworkPolicy(metadata=meta, spec=spec))
    for number in range(rnd.randrange(3)):
        wide = GlobalNetworkPolicySpec(
            selector=rnd.choice(SELECTORS), types=("Ingress",), ingress=(rule(rnd),)
        )
        found.append(GlobalNetworkPolicy(metadata=ObjectMeta(name=f"g{number}"), spec=wide))
    return found


def test_a_node_needs_the_policies_and_sets_that_its_felix_computes():
    needed = 0
    for seed in range(CLUSTERS):
        objects = cluster(random.Random(seed))
        spans = ClusterSpans()
        spans.load(objects)
        spans.index.flush()
        assert not spans.problems
        policies, groups = spans.index.policies_by_node(), spans.index.groups_by_node()
        for node in NODES:
            graph = CalcGraph(node)
            graph.on_updates([Update(key_of(item), item, 1) for item in objects])
            graph.on_status(SyncStatus.IN_SYNC)
            sets = {i.set_id: i.members for i in graph.flush() if isinstance(i, SetUpdate)}
            keys = [
                key_of(item)
                for item in objects
                if isinstance(item, NetworkPolicy | GlobalNetworkPolicy)
            ]
            active = {key for key in keys if graph.endpoints_of(key)}
            assert active == set(policies.get(node, ())), (seed, node)
            held = {group: spans.index.members(group) for group in groups.get(node, ())}
            assert {set_id: frozenset(members) for set_id, members in sets.items()} == held
            needed += len(held)
    assert needed > 5 * CLUSTERS
