"""Is an object acceptable? Every check of datamodel 4 that needs nothing but the object.

Layer: libcalico.model, pure; may use libcalico.selector. Users: calicoctl and all other writers
(after `defaults.with_defaults`), felix and confd (an object that fails is treated as absent).

    validate(resource)                      everything, as one ValidationError
    problems(resource)                      the same as a tuple, nothing raised
    validate_stored(resource)               what readers of stored objects refuse: VA4
and for the moment of writing, re-exported from validation_datastore:
    validate_create_metadata / validate_update_metadata(resource)
    validate_update(old, new)               immutable members
    validate_pool_overlap, validate_pool_blocks, validate_peer_filters, validate_policy_tier,
    validate_tier_delete, validate_profile_write      what other objects have to say

  VA1  all failures are found in one pass: Go family first, then schema, then CEL;
  VA2  nothing but ValidationError is raised, whatever text the members hold;
  VA3  kinds without CRD (Node, WorkloadEndpoint, LiveMigration, Profile) have no CRD family;
  VA4  readers check the Go family of the spec only, as Calico's felix does: an older or foreign
       policy that breaks a newer schema rule, or whose name, labels or annotations no writer would
       accept, is still enforced. Treating a deny policy as absent opens traffic. QoS controls out
       of range are brought into it by felix: they are no reason to cut a workload off.

The tables are by theme in validation_{policy,endpoints,network,felix,cluster}.
Source: reference/datamodel.md 4; Calico LCG/validator/v3.
"""

from __future__ import annotations

from dataclasses import replace

from libcalico.errors import FieldError, ValidationError
from libcalico.model import (
    validation_cluster,
    validation_endpoints,
    validation_felix,
    validation_network,
    validation_policy,
)
from libcalico.model.ippool import IPPool
from libcalico.model.meta import Resource
from libcalico.model.validation_datastore import (
    validate_create_metadata,
    validate_peer_filters,
    validate_policy_tier,
    validate_pool_blocks,
    validate_pool_overlap,
    validate_profile_write,
    validate_tier_delete,
    validate_update,
    validate_update_metadata,
)
from libcalico.model.validation_metadata import METADATA_CHECKS, check_metadata
from libcalico.model.validation_network import check_pool_cidr
from libcalico.model.validation_qos import WRITERS_CHECKS
from libcalico.model.validation_rules import Report
from libcalico.model.validation_walk import Walker

__all__ = [
    "problems",
    "validate",
    "validate_create_metadata",
    "validate_peer_filters",
    "validate_policy_tier",
    "validate_pool_blocks",
    "validate_pool_overlap",
    "validate_profile_write",
    "validate_stored",
    "validate_tier_delete",
    "validate_update",
    "validate_update_metadata",
]

WITHOUT_CRD = frozenset({"Node", "WorkloadEndpoint", "LiveMigration", "Profile"})

_TABLES = (
    validation_policy.TABLES
    | validation_endpoints.TABLES
    | validation_network.TABLES
    | validation_felix.TABLES
    | validation_cluster.TABLES
)
_WALKER = Walker(_TABLES)
# VA4.
_NOT_FOR_READERS = METADATA_CHECKS | WRITERS_CHECKS
_READERS_WALKER = Walker(
    {
        struct: replace(rules, go=tuple(c for c in rules.go if c not in _NOT_FOR_READERS))
        for struct, rules in _TABLES.items()
    }
)


def validate(resource: Resource) -> None:
    """Check a resource after defaulting. Errors: ValidationError with every failure."""
    found = problems(resource)
    if found:
        raise ValidationError(*found)


def validate_stored(resource: Resource) -> None:
    """Check what somebody else has stored (VA4). Errors: ValidationError with every failure."""
    found = problems(resource, is_stored=True)
    if found:
        raise ValidationError(*found)


def problems(resource: Resource, *, is_stored: bool = False) -> tuple[FieldError, ...]:
    """Every failure of a resource; empty when it is acceptable."""
    if isinstance(resource, IPPool):
        try:
            check_pool_cidr(resource.spec.cidr)
        except ValidationError as err:
            return err.errors
    report = Report()
    if is_stored:
        _READERS_WALKER.walk(resource, "", report, crd=False)
    else:
        check_metadata(resource, report)
        _WALKER.walk(resource, "", report, crd=resource.kind not in WITHOUT_CRD)
    return report.errors()
