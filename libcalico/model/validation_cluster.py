"""Tables for the settings of the Kubernetes controllers and for node status requests.

Layer: libcalico.model, pure. User: validation.

Source: reference/datamodel.md 1.9, 4.5; Calico api/.../v3/{kubecontrollersconfig,nodestatus}.go,
LCG/clientv3/kubecontrollersconfig.go.
"""

from __future__ import annotations

from libcalico.model.cluster import (
    AutoHostEndpointConfig,
    KubeControllersConfigurationSpec,
    LoadBalancerControllerConfig,
    MigrationControllerConfig,
    NodeControllerConfig,
    Template,
)
from libcalico.model.meta import Model
from libcalico.model.node import CalicoNodeStatusSpec
from libcalico.model.validation_metadata import check_annotations
from libcalico.model.validation_rules import Member, Report, StructRules
from libcalico.model.validation_tags import (
    CIDRS,
    CREATE_DEFAULT_HOST_ENDPOINT,
    LABELS,
    MAX_SUBDOMAIN_BYTES,
    NAME,
    REGEXP,
    SELECTOR,
)

_SWITCH = Member(enum=("Enabled", "Disabled"))
_PORT = Member(minimum=0, maximum=65535)
_TEMPLATES = "KubeControllersConfiguration.Node.HostEndpoint.Templates"


def _check_templates(config: AutoHostEndpointConfig, report: Report) -> None:
    """Generated host endpoints are named after their template: names must be there and differ."""
    seen: set[str] = set()
    for template in config.templates:
        name = template.generate_name or ""
        if not name:
            report.reason(_TEMPLATES, None, "Template name must be specified")
        if len(name) > MAX_SUBDOMAIN_BYTES:
            report.reason(_TEMPLATES, None, "Template name must be shorter than 253 characters")
        if name and name in seen:
            report.reason(f"{_TEMPLATES}.{name}", None, "Template name must be unique")
        seen.add(name)
        if not template.interface_cidrs and not template.interface_pattern:
            reason = "InterfaceCIDRs or InterfacePattern must be specified"
            report.reason(f"{_TEMPLATES}.{name}", None, reason)


TABLES: dict[type[Model], StructRules] = {
    KubeControllersConfigurationSpec: StructRules(
        {
            "logSeverityScreen": Member(
                enum=("None", "Debug", "Info", "Warning", "Error", "Fatal", "Panic")
            ),
            "healthChecks": _SWITCH,
            "prometheusMetricsPort": _PORT,
            "debugProfilePort": _PORT,
        }
    ),
    NodeControllerConfig: StructRules({"syncLabels": _SWITCH}),
    AutoHostEndpointConfig: StructRules(
        {
            "autoCreate": _SWITCH,
            "createDefaultHostEndpoint": Member(tags=(CREATE_DEFAULT_HOST_ENDPOINT,)),
        },
        go=(_check_templates,),
    ),
    Template: StructRules(
        {
            "generateName": Member(tags=(NAME,), max_length=253),
            "interfaceCIDRs": Member(tags=(CIDRS,), unique=True),
            "interfacePattern": Member(tags=(REGEXP,)),
            "labels": Member(tags=(LABELS,)),
            "nodeSelector": Member(tags=(SELECTOR,)),
        },
        go=(lambda template, report: check_annotations(template.annotations, report),),
    ),
    LoadBalancerControllerConfig: StructRules(
        {"assignIPs": Member(enum=("AllServices", "RequestedServicesOnly"))}
    ),
    MigrationControllerConfig: StructRules({"policyNameMigrator": _SWITCH}),
    CalicoNodeStatusSpec: StructRules(
        {
            "node": Member(tags=(NAME,), required=True),
            "classes": Member(required=True, each_enum=("Agent", "BGP", "Routes"), unique=True),
            "updatePeriodSeconds": Member(required=True, minimum=0, maximum=86400),
        }
    ),
}
