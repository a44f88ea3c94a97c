"""libcalico.model.validation_cluster: controllers and node status; fragment -> exact failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libcalico.model.codec import decode
from libcalico.model.validation import problems

TEMPLATES = "KubeControllersConfiguration.Node.HostEndpoint.Templates"


def failures(kind: str, spec: dict[str, Any]) -> list[str]:
    document = {"kind": kind, "metadata": {"name": "default"}, "spec": spec}
    return [error.detail() for error in problems(decode(kind, json.dumps(document).encode(), 1))]


def with_templates(*templates: dict[str, Any]) -> dict[str, Any]:
    return {"controllers": {"node": {"hostEndpoint": {"templates": list(templates)}}}}


ROWS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("KubeControllersConfiguration", {"controllers": {}}, []),
    (
        "KubeControllersConfiguration",
        {"controllers": {"migration": {"policyNameMigrator": "Maybe"}}},
        ['spec.controllers.migration.policyNameMigrator (supported values: "Enabled", "Disabled")'],
    ),
    (
        "KubeControllersConfiguration",
        {"logSeverityScreen": "Loud", "prometheusMetricsPort": 65536, "controllers": {}},
        [
            'spec.logSeverityScreen (supported values: "None", "Debug", "Info", "Warning",'
            ' "Error", "Fatal", "Panic")',
            "spec.prometheusMetricsPort (spec.prometheusMetricsPort in body should be less than"
            " or equal to 65535)",
        ],
    ),
    (
        "KubeControllersConfiguration",
        {"controllers": {"loadBalancer": {"assignIPs": "All"}, "node": {"syncLabels": "On"}}},
        [
            'spec.controllers.node.syncLabels (supported values: "Enabled", "Disabled")',
            'spec.controllers.loadBalancer.assignIPs (supported values: "AllServices",'
            ' "RequestedServicesOnly")',
        ],
    ),
    (
        "KubeControllersConfiguration",
        with_templates({"interfacePattern": "eth.*"}),
        [f"{TEMPLATES} (Template name must be specified)"],
    ),
    (
        "KubeControllersConfiguration",
        with_templates({"generateName": "a", "interfacePattern": "e"}, {"generateName": "a"}),
        [
            f"{TEMPLATES}.a (Template name must be unique)",
            f"{TEMPLATES}.a (InterfaceCIDRs or InterfacePattern must be specified)",
        ],
    ),
    (
        "KubeControllersConfiguration",
        with_templates({"generateName": "a" * 254, "interfaceCIDRs": ["10.0.0.0/8"]}),
        [
            f"{TEMPLATES} (Template name must be shorter than 253 characters)",
            "spec.controllers.node.hostEndpoint.templates[0].generateName (may not be more than"
            " 253 bytes)",
        ],
    ),
    (
        "KubeControllersConfiguration",
        with_templates(
            {"generateName": "a", "interfacePattern": "(", "nodeSelector": "x", "labels": {"!": ""}}
        ),
        [
            "InterfacePattern = '(' (Reason: failed to validate Field: InterfacePattern because of"
            " Tag: regexp )",
            "Labels = 'map[!:]' (Reason: failed to validate Field: Labels because of Tag: labels )",
            "NodeSelector = 'x' (Reason: failed to validate Field: NodeSelector because of Tag:"
            " selector )",
        ],
    ),
    (
        "CalicoNodeStatus",
        {"node": "n", "classes": ["Agent", "BGP", "Routes"], "updatePeriodSeconds": 0},
        [],
    ),
    (
        "CalicoNodeStatus",
        {},
        [
            "spec.node (Required value)",
            "spec.classes (Required value)",
            "spec.updatePeriodSeconds (Required value)",
        ],
    ),
    (
        "CalicoNodeStatus",
        {"node": "n", "classes": ["Agent", "Agent", "All"], "updatePeriodSeconds": 86401},
        [
            'spec.classes[1] (Duplicate value: "Agent")',
            'spec.classes[2] (supported values: "Agent", "BGP", "Routes")',
            "spec.updatePeriodSeconds (spec.updatePeriodSeconds in body should be less than or"
            " equal to 86400)",
        ],
    ),
    ("ClusterInformation", {"datastoreReady": True}, []),
]


@pytest.mark.parametrize(("kind", "spec", "expected"), ROWS)
def test_a_spec(kind, spec, expected):
    assert failures(kind, spec) == expected
