"""How fast the label index is: 10,000 selectors over 100,000 endpoints, built and changed.

Layer: tooling. The baseline does the same work the obvious way (libcalico.compute.linear: every
selector on every endpoint) in the same run; for the build on a sample of the endpoints, scaled.

The cluster: 1,000 namespaces with 100 pods each, 8 labels a pod (one of them unique), one more from
the namespace's profile. The selectors are a mix of what policies say: an app in a namespace, an app
in an environment, teams by inherited label, markers by has(), sets, prefixes, negations.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

from libcalico.compute.labelindex import LabelIndex
from libcalico.compute.linear import LinearIndex
from libcalico.selector import Selector
from libcalico.selector.parser import parse
from tests.bench.collector import settled

NAMES = {"labelindex-build", "labelindex-update"}

NAMESPACES, PODS = 1000, 100
SELECTORS = 10_000
BUILDS, UPDATES, SAMPLE = 3, 1000, 40
BUILD_LIMIT_S, UPDATE_LIMIT_MS = 1.0, 1.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Items in three columns: 100,000 triples would be as many objects for the collector, which the
    model's Structs are not either."""

    ids: list[str]
    labels: list[dict[str, str]]
    profiles: list[tuple[str, ...]]
    parents: dict[str, dict[str, str]]
    selectors: list[str]


def run() -> list[dict[str, Any]]:
    world = cluster()
    with settled():
        return _measured(world)


def _measured(world: Cluster) -> list[dict[str, Any]]:
    builds = []
    for _ in range(BUILDS):
        index = selectors = None
        seconds, index, selectors = build(world)
        builds.append(seconds)
    assert index is not None
    assert selectors is not None
    return [
        build_entry(builds, linear_build(world, selectors)),
        update_entry(index, world, selectors),
    ]


def cluster() -> Cluster:
    rnd = random.Random(20260822)
    ids, all_labels = [], []
    for number in range(NAMESPACES * PODS):
        namespace = f"ns-{number // PODS}"
        labels = {
            "projectcalico.org/namespace": namespace,
            "projectcalico.org/orchestrator": "k8s",
            "app": f"app-{rnd.randrange(200)}",
            "env": rnd.choice(["prod", "stage", "dev"]),
            "role": f"role-{rnd.randrange(5)}",
            f"marker-{number % 31}": "true",
            "pod-template-hash": f"{rnd.randrange(20_000):08x}",
            "statefulset.kubernetes.io/pod-name": f"pod-{number}",
        }
        ids.append(f"pod-{number}")
        all_labels.append(labels)
    profiles = [(f"kns.ns-{n}",) for n in range(NAMESPACES)]
    return Cluster(
        ids=ids,
        labels=all_labels,
        profiles=[profiles[number // PODS] for number in range(NAMESPACES * PODS)],
        parents={f"kns.ns-{n}": {"pcns.team": f"team-{n % 20}"} for n in range(NAMESPACES)},
        selectors=[selector_text(rnd, number) for number in range(SELECTORS)],
    )


def selector_text(rnd: random.Random, number: int) -> str:
    app, other = f"app-{rnd.randrange(200)}", f"app-{rnd.randrange(200)}"
    env, role = rnd.choice(["prod", "stage", "dev"]), f"role-{rnd.randrange(5)}"
    marker, team = f"marker-{rnd.randrange(31)}", f"team-{rnd.randrange(20)}"
    namespace = f"projectcalico.org/namespace == 'ns-{rnd.randrange(NAMESPACES)}'"
    kinds = (
        f"app == '{app}' && {namespace}",
        f"(app == '{app}' || app == '{other}') && {namespace}",
        f"role == '{role}' && {namespace}",
        f"has({marker}) && {namespace}",
        f"app == '{app}' && env == '{env}' && role == '{role}'",
        f"pcns.team == '{team}' && app == '{app}'",
        f"has({marker}) && app == '{app}' && env != '{env}'",
        f"app in {{'{app}', '{other}'}} && pcns.team == '{team}'",
        f"app starts with '{app[:5]}' && role != '{role}' && has({marker})",
        f"!has({marker}) && pcns.team == '{team}' && env == '{env}' && app != '{app}'",
    )
    return kinds[number % len(kinds)]


def build(world: Cluster) -> tuple[float, LabelIndex[str, int], list[Selector]]:
    """From objects and selector texts in memory to all matches known."""
    parse.cache_clear()
    gc.collect()
    started = time.perf_counter()
    index: LabelIndex[str, int] = LabelIndex()
    for name, labels in world.parents.items():
        index.update_parent(name, labels)
    for item_id, labels, names in zip(world.ids, world.labels, world.profiles, strict=True):
        index.update_item(item_id, labels, names)
    selectors = [parse(text) for text in world.selectors]
    for number, selector in enumerate(selectors):
        index.update_selector(number, selector)
    deltas = index.flush()
    seconds = time.perf_counter() - started
    assert deltas, "nothing matched: the workload is wrong"
    return seconds, index, selectors


def linear_build(world: Cluster, selectors: list[Selector]) -> float:
    """The same by evaluation, on a sample of the endpoints, scaled to all."""
    linear: LinearIndex[str, int] = LinearIndex()
    for name, labels in world.parents.items():
        linear.update_parent(name, labels)
    for number in random.Random(1).sample(range(len(world.ids)), SAMPLE):
        linear.update_item(world.ids[number], world.labels[number], world.profiles[number])
    for number, selector in enumerate(selectors):
        linear.update_selector(number, selector)
    started = time.perf_counter()
    linear.flush()
    return (time.perf_counter() - started) * len(world.ids) / SAMPLE


def build_entry(builds: list[float], baseline_s: float) -> dict[str, Any]:
    value = statistics.median(builds)
    return {
        "name": "labelindex-build",
        "value": value,
        "unit": "s",
        "baseline": f"every selector on every endpoint (sample of {SAMPLE}, scaled)",
        "baseline_value": baseline_s,
        "ratio": value / baseline_s,
        "limit": BUILD_LIMIT_S,
        "ok": value <= BUILD_LIMIT_S,
        "spread": [min(builds), max(builds)],
        "note": "parsing included",
    }


def update_entry(
    index: LabelIndex[str, int], world: Cluster, selectors: list[Selector]
) -> dict[str, Any]:
    """One label of one endpoint changes, and its selectors are known again."""
    rnd = random.Random(2)
    took_ms, baseline_ms = [], []
    for turn in range(UPDATES):
        number = rnd.randrange(len(world.ids))
        key, value = rnd.choice(
            [
                ("app", f"app-{rnd.randrange(200)}"),
                ("env", rnd.choice(["prod", "stage", "dev"])),
                ("role", f"role-{rnd.randrange(5)}"),
                (f"marker-{rnd.randrange(31)}", "true"),
                ("projectcalico.org/namespace", f"ns-{rnd.randrange(NAMESPACES)}"),
            ]
        )
        changed = world.labels[number] | {key: value}
        started = time.perf_counter()
        index.update_item(world.ids[number], changed, world.profiles[number])
        index.flush()
        took_ms.append((time.perf_counter() - started) * 1000)
        if turn % 50 == 0:
            started = time.perf_counter()
            sum(selector.evaluate(changed) for selector in selectors)
            baseline_ms.append((time.perf_counter() - started) * 1000)
    took_ms.sort()
    value, p99 = statistics.median(took_ms), took_ms[len(took_ms) * 99 // 100]
    baseline = statistics.median(baseline_ms)
    return {
        "name": "labelindex-update",
        "value": value,
        "unit": "ms",
        "baseline": f"every one of {len(selectors)} selectors on the endpoint",
        "baseline_value": baseline,
        "ratio": value / baseline,
        "limit": UPDATE_LIMIT_MS,
        "ok": value <= UPDATE_LIMIT_MS,
        "spread": [took_ms[0], took_ms[-1]],
        "note": f"p99 {p99:.3f} ms",
    }
