"""The envelope every v3 object shares: the Struct base classes and ObjectMeta.

Layer: libcalico.model, pure. Used by every resource module and by the codec.

All model classes are frozen msgspec Structs: they decode natively, compare by value and may be
handed to anybody. They refuse unknown members, so that the codec's fast path notices when an object
needs the tolerant one (see `libcalico.model.codec`).

How a field is declared says when it is stored, as Go's encoder would:
  `x: T | None = None`       stored when not None, also when zero (strings: when not "")
  `x: bool = False`          stored when not zero
  `x: tuple[T, ...] = ()`    stored when not empty
  `x: tuple[T, ...] | None`  stored when not None: an empty list says something
  named in `ALWAYS`          stored in any case
Because a foreign writer may have stored "" where Calico omits, test optional strings for truth, not
for None.

Source: datamodel §1.3; k8s.io/apimachinery meta/v1 ObjectMeta for member order.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct, field

API_GROUP = "projectcalico.org"
API_VERSION = "projectcalico.org/v3"

# Stored on a policy so that its v3 name survives older key layouts; never shown (datamodel §0.3).
NAME_ANNOTATION = "projectcalico.org/metadata"
TIER_LABEL = "projectcalico.org/tier"
NAMESPACE_LABEL = "projectcalico.org/namespace"
ORCHESTRATOR_LABEL = "projectcalico.org/orchestrator"
SERVICE_ACCOUNT_LABEL = "projectcalico.org/serviceaccount"


class Model(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Base of every model Struct. `gc=False` is safe: decoded values hold no reference cycles."""

    # JSON members that are written even when they are empty.
    ALWAYS: ClassVar[tuple[str, ...]] = ()
    # JSON members that are read but never written.
    NEVER: ClassVar[tuple[str, ...]] = ()
    # A value without any member set is left out by its owner (Go's omitzero).
    OMIT_WHEN_EMPTY: ClassVar[bool] = False


class OwnerReference(Model, frozen=True, kw_only=True):
    """A Kubernetes owner, stored as given."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("apiVersion", "kind", "name", "uid")

    api_version: str = field(default="", name="apiVersion")
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = field(default=None, name="blockOwnerDeletion")


class ObjectMeta(Model, frozen=True, kw_only=True):
    """Name, labels and bookkeeping. `resource_version` is the mod revision, never stored."""

    NEVER: ClassVar[tuple[str, ...]] = ("selfLink", "resourceVersion")

    name: str = ""
    generate_name: str | None = field(default=None, name="generateName")
    namespace: str = ""
    self_link: str | None = field(default=None, name="selfLink")
    uid: str | None = None
    resource_version: str | None = field(default=None, name="resourceVersion")
    generation: int | None = None
    creation_timestamp: str | None = field(default=None, name="creationTimestamp")
    deletion_timestamp: str | None = field(default=None, name="deletionTimestamp")
    deletion_grace_period_seconds: int | None = field(
        default=None, name="deletionGracePeriodSeconds"
    )
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = field(default=(), name="ownerReferences")
    finalizers: tuple[str, ...] = ()
    managed_fields: tuple[dict[str, Any], ...] = field(default=(), name="managedFields")


class Resource(Model, frozen=True, kw_only=True, tag_field="kind"):
    """Base of the v3 kinds. The subclass' tag is its kind, written first; apiVersion follows."""

    kind: ClassVar[str] = ""

    api_version: str = field(default=API_VERSION, name="apiVersion")
    metadata: ObjectMeta = field(default_factory=ObjectMeta)


class ListMeta(Model, frozen=True, kw_only=True):
    """Metadata of a list document."""

    self_link: str | None = field(default=None, name="selfLink")
    resource_version: str | None = field(default=None, name="resourceVersion")
    continue_: str | None = field(default=None, name="continue")
    remaining_item_count: int | None = field(default=None, name="remainingItemCount")


class Condition(Model, frozen=True, kw_only=True):
    """A Kubernetes status condition."""

    ALWAYS: ClassVar[tuple[str, ...]] = ("type", "status", "reason", "message")

    type: str = ""
    status: str = ""
    observed_generation: int = field(default=0, name="observedGeneration")
    last_transition_time: str | None = field(default=None, name="lastTransitionTime")
    reason: str = ""
    message: str = ""
