"""Names, labels and annotations: what every object's metadata must satisfy.

Layer: libcalico.model, pure. User: validation. All of it is Go family. Kinds with narrower names
(tiers, policies) get both texts for a name that breaks both rules, as in Calico.

Source: reference/datamodel.md 4.2; Calico LCG/validator/v3/validator.go `validateObjectMeta`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from libcalico.model.kinds import KIND_BY_NAME, NameRule
from libcalico.model.meta import NAMESPACE_LABEL, ObjectMeta, Resource
from libcalico.model.policy import RuleMetadata
from libcalico.model.validation_rules import Report
from libcalico.model.validation_tags import (
    LABEL_FORMAT,
    MAX_LABEL_BYTES,
    MAX_SUBDOMAIN_BYTES,
    SUBDOMAIN_FORMAT,
    is_name,
    label_value_problems,
    qualified_name_problems,
)

MAX_ANNOTATION_BYTES = 256 * 1024

_TIER_NAME = re.compile(LABEL_FORMAT)
_POLICY_NAME = re.compile(
    rf"{LABEL_FORMAT}(\.{LABEL_FORMAT})?|(?:knp|ossg)\.default\.({SUBDOMAIN_FORMAT})"
)
_GLOBAL_POLICY_NAME = re.compile(rf"({LABEL_FORMAT}\.)?{LABEL_FORMAT}")

_NAME_REASON = (
    "name must consist of lower case alphanumeric characters, '-' or '.'"
    f" (regex: {SUBDOMAIN_FORMAT})"
)
_LABEL_NAME_REASON = (
    f"name must consist of lower case alphanumeric characters or '-' (regex: {LABEL_FORMAT})"
)
_KIND_IN_WORDS = {
    "ClusterInformation": "a Cluster Information",
    "KubeControllersConfiguration": "a Kube Controllers Configuration",
    "IPAMConfiguration": "an IPAM Configuration",
}


def check_metadata(resource: Resource, report: Report) -> None:
    """The rules all kinds share, and the names of the kinds that have one object only."""
    metadata = resource.metadata
    _check_length(metadata.name, MAX_SUBDOMAIN_BYTES, report)
    if not is_name(metadata.name):
        report.reason("Metadata.Name", metadata.name, _NAME_REASON)
    check_annotations(metadata.annotations, report)
    _check_labels(metadata.labels, report)
    info = KIND_BY_NAME.get(resource.kind)
    if info and info.name_rule is NameRule.DEFAULT_ONLY and metadata.name != "default":
        words = _KIND_IN_WORDS.get(resource.kind, f"a {resource.kind}")
        text = f'Cannot create {words} resource with a name other than "default"'
        report.reason("Metadata.Name", metadata.name, text)


def check_annotations(annotations: Mapping[str, str], report: Report) -> None:
    size = 0
    for key, value in annotations.items():
        for problem in qualified_name_problems(key.lower()):
            report.reason("Metadata.Annotations (key)", key, problem)
        size += len(key.encode()) + len(value.encode())
    if size > MAX_ANNOTATION_BYTES:
        text = f"total size of annotations is too large by {size - MAX_ANNOTATION_BYTES} bytes"
        # Calico prints all of them as the value; a quarter of a megabyte helps nobody.
        report.reason("Metadata.Annotations (key)", None, text)


def check_tier_name(resource: Resource, report: Report) -> None:
    _check_length(resource.metadata.name, MAX_LABEL_BYTES, report)
    _check_name(resource.metadata, _TIER_NAME, report)


def check_policy_name(resource: Resource, report: Report) -> None:
    _check_name(resource.metadata, _POLICY_NAME, report)


def check_global_policy_name(resource: Resource, report: Report) -> None:
    _check_name(resource.metadata, _GLOBAL_POLICY_NAME, report)


def check_network_set_labels(resource: Resource, report: Report) -> None:
    """The namespace label is ours to add when endpoints and sets are matched."""
    if NAMESPACE_LABEL in resource.metadata.labels:
        text = f"{NAMESPACE_LABEL} is not a valid label name"
        report.reason("Metadata.Labels (label)", NAMESPACE_LABEL, text)


def check_rule_annotations(metadata: RuleMetadata, report: Report) -> None:
    check_annotations(metadata.annotations, report)


MetadataCheck = Callable[[Resource, Report], None]
# Checks that stand in the tables of the kinds; `check_metadata` is called for all of them.
METADATA_CHECKS = frozenset(
    {
        check_tier_name,
        check_policy_name,
        check_global_policy_name,
        check_network_set_labels,
        check_rule_annotations,
    }
)


def _check_name(metadata: ObjectMeta, pattern: re.Pattern[str], report: Report) -> None:
    if not pattern.fullmatch(metadata.name):
        report.reason("Metadata.Name", metadata.name, _LABEL_NAME_REASON)


def _check_length(name: str, limit: int, report: Report) -> None:
    excess = len(name.encode()) - limit
    if excess > 0:
        report.reason("Metadata.Name", name, f"name is too long by {excess} bytes")


def _check_labels(labels: Mapping[str, str], report: Report) -> None:
    for key, value in labels.items():
        for problem in qualified_name_problems(key):
            report.reason("Metadata.Labels (label)", key, problem)
        for problem in label_value_problems(value):
            report.reason("Metadata.Labels (value)", value, problem)
