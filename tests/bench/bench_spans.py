"""typha's span engine on the clusters of issue 6: objects in memory -> all spans known.

`spans-a1`     25,000 namespaces of 4 pods and 3 policies on 1,000 nodes: AppliedTo groups, address
               groups, and the nodes of each
`spans-bytes`  on it, what a node needs: its own endpoints, the policies and groups that span it,
               against all endpoints and policies; the largest of the 1,000 nodes
`spans-a3`     one namespace, 10,000 pods, 10,000 policies that all select and allow all
`spans-a7`     on it, 1,000 endpoints asked for their policies, 10,000 in each answer
`spans-a5`     1,000 namespaces of 100 pods, 10 policies each with pod and namespace selector

Every cluster is a process of its own, so that its memory is its own, with the collector set as in
the daemons: rare passes, and what is in memory before the load frozen. The baseline is the floor
under any engine: decoding the same objects from the datastore's JSON (a sample, scaled up); of the
queries, the selector of every policy on the endpoint, for a sample.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from calicoctl.spans import ClusterSpans
from libcalico.model import (
    EntityRule,
    NetworkPolicy,
    NetworkPolicySpec,
    ObjectMeta,
    Profile,
    ProfileSpec,
    Resource,
    Rule,
    WorkloadEndpoint,
    WorkloadEndpointSpec,
    codec,
)
from libcalico.model.keys import ResourceKey, key_of, path_of
from libcalico.selector import parse
from tests.bench.collector import settle
from typha.spans import SpanIndex

NAMES = ("spans-a1", "spans-bytes", "spans-a3", "spans-a7", "spans-a5")
LIMIT_S = {"a1": 4.0, "a3": 1.0, "a5": 3.0}
A1_LIMIT_MB, A7_LIMIT_S, BYTES_LIMIT = 700, 1.0, 0.01
NODES, RUNS, SAMPLE, QUERIES = 1000, 3, 5000, 1000
SAMPLE_QUERIES = 5

Entry = dict[str, Any]


def run(only: set[str]) -> list[Entry]:
    wanted = only or set(NAMES)
    needed = {"a1": {"spans-a1", "spans-bytes"}, "a3": {"spans-a3", "spans-a7"}, "a5": {"spans-a5"}}
    entries: list[Entry] = []
    for cluster, names in needed.items():
        if names & wanted:
            results = [_in_own_process(cluster) for _ in range(RUNS)]
            entries.append(_load_entry(cluster, results))
            if cluster == "a1":
                entries.append(_bytes_entry(results[0]))
            if cluster == "a3":
                entries.append(_query_entry(results))
    return entries


def _load_entry(cluster: str, results: list[dict[str, Any]]) -> Entry:
    times = sorted(item["seconds"] for item in results)
    value = statistics.median(times)
    floor = statistics.median(item["decode_seconds"] for item in results)
    rss_mb = max(item["rss_mb"] for item in results)
    fits = cluster != "a1" or rss_mb <= A1_LIMIT_MB
    return {
        "name": f"spans-{cluster}",
        "value": value,
        "unit": "s",
        "baseline": "decoding the same objects from JSON (sampled)",
        "baseline_value": floor,
        "ratio": value / floor,
        "limit": LIMIT_S[cluster],
        "ok": value <= LIMIT_S[cluster] and fits,
        "spread": [times[0], times[-1]],
        "note": f"{rss_mb} MB RSS, objects included; {results[0]['counts']}",
    }


def _bytes_entry(result: dict[str, Any]) -> Entry:
    share = result["largest_node_bytes"] / result["all_bytes"]
    return {
        "name": "spans-bytes",
        "value": share,
        "unit": "of all",
        "baseline": "bytes of all endpoints and policies, what every node reads in full mode",
        "baseline_value": 1.0,
        "ratio": share,
        "limit": BYTES_LIMIT,
        "ok": share < BYTES_LIMIT,
        "note": f"largest of {NODES} nodes {result['largest_node_bytes']} of {result['all_bytes']}"
        " bytes; as JSON, not on a wire; what every node needs left out on both sides",
    }


def _query_entry(results: list[dict[str, Any]]) -> Entry:
    times = sorted(item["query_seconds"] for item in results)
    value = statistics.median(times)
    floor = statistics.median(item["naive_query_seconds"] for item in results)
    return {
        "name": "spans-a7",
        "value": value,
        "unit": "s",
        "baseline": f"every policy's selector on the endpoint (sample of {SAMPLE_QUERIES}, scaled)",
        "baseline_value": floor,
        "ratio": value / floor,
        "limit": A7_LIMIT_S,
        "ok": value <= A7_LIMIT_S,
        "spread": [times[0], times[-1]],
    }


def _in_own_process(cluster: str) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# --- the clusters --------------------------------------------------------------------------------


def _pod(rnd: random.Random, number: int, namespace: str, labels: dict[str, str]) -> Resource:
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/32"
    node = f"node-{rnd.randrange(NODES)}"
    return WorkloadEndpoint(
        metadata=ObjectMeta(
            name=f"{node}-k8s-pod{number}-eth0",
            namespace=namespace,
            labels={
                "projectcalico.org/namespace": namespace,
                "projectcalico.org/orchestrator": "k8s",
                **labels,
            },
        ),
        spec=WorkloadEndpointSpec(
            orchestrator="k8s",
            node=node,
            pod=f"pod{number}",
            endpoint="eth0",
            interface_name=f"cali{number}",
            ip_networks=(address,),
            profiles=(f"kns.{namespace}",),
        ),
    )


def _policy(name: str, namespace: str, selector: str, source: EntityRule | None) -> Resource:
    return NetworkPolicy(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=NetworkPolicySpec(
            selector=selector,
            types=("Ingress",),
            ingress=(Rule(action="Allow", source=source),) if source else (),
        ),
    )


def _profile(namespace: str, labels: dict[str, str]) -> Resource:
    return Profile(
        metadata=ObjectMeta(name=f"kns.{namespace}"), spec=ProfileSpec(labels_to_apply=labels)
    )


def a1() -> list[Resource]:
    rnd, found = random.Random(6), []
    for number in range(25_000):
        namespace = f"namespace-{number}"
        found.append(_profile(namespace, {"pcns.name": namespace}))
        for pod in range(4):
            kind = pod // 2 + 1
            found.append(_pod(rnd, number * 4 + pod, namespace, {f"app-{kind}": f"scale-{kind}"}))
        found.append(_policy("default-deny", namespace, "all()", None))
        for kind in (1, 2):
            selector = f"app-{kind} == 'scale-{kind}'"
            found.append(_policy(f"app-{kind}", namespace, selector, EntityRule(selector=selector)))
    return found


def a3() -> list[Resource]:
    rnd, namespace = random.Random(6), "namespace"
    pods = [_pod(rnd, number, namespace, {"app": "one"}) for number in range(10_000)]
    source = EntityRule(selector="all()")
    rules = [_policy(f"policy-{n}", namespace, "all()", source) for n in range(10_000)]
    return [_profile(namespace, {}), *pods, *rules]


def a5() -> list[Resource]:
    rnd, found = random.Random(6), []
    for number in range(1000):
        namespace, company = f"namespace-{number}", f"company-{number % 100}"
        found.append(_profile(namespace, {"pcns.company": company}))
        for pod in range(100):
            found.append(_pod(rnd, number * 100 + pod, namespace, {"app": f"app-{pod % 10}"}))
        for kind in range(10):
            selector = f"app == 'app-{kind}'"
            source = EntityRule(selector=selector, namespace_selector=f"company == '{company}'")
            found.append(_policy(f"policy-{kind}", namespace, selector, source))
    return found


CLUSTERS: dict[str, Callable[[], list[Resource]]] = {"a1": a1, "a3": a3, "a5": a5}
# Policies, groups, and nodes of all policies' spans; a wrong workload must not look fast.
EXPECTED = {
    "a1": {"policies": 75_000, "groups": 50_000, "selectors": 75_000},
    "a3": {"policies": 10_000, "groups": 1, "selectors": 1},
    "a5": {"policies": 10_000, "groups": 1000, "selectors": 11_000},
}


# --- in a process of its own ---------------------------------------------------------------------


def measure(cluster: str) -> dict[str, Any]:
    objects = CLUSTERS[cluster]()
    settle()
    started = time.perf_counter()
    spans = ClusterSpans()
    spans.load(objects)
    changes = spans.index.flush()
    seconds = time.perf_counter() - started
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    counts = spans.index.dump()
    if spans.problems or counts != EXPECTED[cluster]:
        raise AssertionError(f"{cluster}: {counts}, {len(spans.problems)} problems")
    if len(changes.policies) != counts["policies"] or len(changes.groups) != counts["groups"]:
        raise AssertionError(f"{cluster}: not every policy and group has a span")
    result = {
        "seconds": seconds,
        "rss_mb": rss_mb,
        "counts": ", ".join(f"{count} {name}" for name, count in counts.items()),
        "decode_seconds": _decode_seconds(objects),
    }
    if cluster == "a1":
        result |= _bytes(spans.index, objects)
    if cluster == "a3":
        result |= _query(spans.index, objects)
    return result


def _decode_seconds(objects: list[Resource]) -> float:
    """Decoding all of them, scaled up from a random sample: namespaces repeat a pattern."""
    sample = random.Random(6).sample(objects, min(SAMPLE, len(objects)))
    stored = [(key_of(item), codec.encode(item)) for item in sample]
    started = time.perf_counter()
    for key, raw in stored:
        codec.decode(key, raw, 1)
    return (time.perf_counter() - started) * len(objects) / len(sample)


def _bytes(index: SpanIndex, objects: list[Resource]) -> dict[str, int]:
    """What all nodes read in full mode, and what the node with most needs of it."""
    size_by_key: dict[ResourceKey, int] = {}
    bytes_by_node: dict[str, int] = {}
    for item in objects:
        key = key_of(item)
        if isinstance(item, Profile) or not isinstance(key, ResourceKey):
            continue
        size_by_key[key] = len(path_of(key)) + len(codec.encode(item))
        if isinstance(item, WorkloadEndpoint):
            node = item.spec.node or ""
            bytes_by_node[node] = bytes_by_node.get(node, 0) + size_by_key[key]
    for node, keys in index.policies_by_node().items():
        bytes_by_node[node] += sum(map(size_by_key.__getitem__, keys))
    for node, groups in index.groups_by_node().items():
        for group_id in groups:
            bytes_by_node[node] += len(json.dumps([group_id, sorted(index.members(group_id))]))
    return {
        "all_bytes": sum(size_by_key.values()),
        "largest_node_bytes": max(bytes_by_node.values()),
    }


def _query(index: SpanIndex, objects: list[Resource]) -> dict[str, float]:
    pods = [item for item in objects if isinstance(item, WorkloadEndpoint)][:QUERIES]
    keys = [key for key in map(key_of, pods) if isinstance(key, ResourceKey)]
    started = time.perf_counter()
    answers = sum(len(index.policies_of(key)) for key in keys)
    seconds = time.perf_counter() - started
    if answers != QUERIES * 10_000:
        raise AssertionError(f"{answers} answers")
    policies = [item for item in objects if isinstance(item, NetworkPolicy)]
    selectors = [
        (item.metadata.namespace, parse(item.spec.selector or "all()")) for item in policies
    ]
    started = time.perf_counter()
    for pod in pods[:SAMPLE_QUERIES]:
        found = [
            selector
            for namespace, selector in selectors
            if namespace == pod.metadata.namespace and selector.evaluate(pod.metadata.labels)
        ]
        assert len(found) == len(policies)
    naive = (time.perf_counter() - started) * QUERIES / SAMPLE_QUERIES
    return {"query_seconds": seconds, "naive_query_seconds": naive}


def _main(report: Callable[[str], object]) -> None:
    report(json.dumps(measure(sys.argv[1])))


if __name__ == "__main__":
    _main(print)
