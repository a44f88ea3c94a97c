"""What a writer does to the metadata of an object on create and on update.

Layer: libcalico.model, pure: the caller brings uid and time. Used by the CLI, node start-up,
controllers and cni. The checks that refuse a request are `validation_datastore`'s.

  EN1  an object that exists keeps its uid and creation time whatever an update says;
  EN2  labels and annotations of an update replace the stored ones; nothing else of them does.

Source: datamodel §1.3, §6.4; Calico LCG/clientv3/resources.go.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

from msgspec.structs import replace

from libcalico.errors import ValidationError
from libcalico.model.meta import ObjectMeta, Resource

_R = TypeVar("_R", bound=Resource)


def format_timestamp(seconds_since_epoch: float) -> str:
    """RFC 3339 in UTC with whole seconds, the form of creationTimestamp."""
    return datetime.fromtimestamp(int(seconds_since_epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def for_create(resource: _R, *, uid: str, created_at: str) -> _R:
    """The object as it is created: a uid and a creation time where it has none, no revision."""
    metadata = resource.metadata
    return replace(
        resource,
        metadata=replace(
            metadata,
            uid=metadata.uid or uid,
            creation_timestamp=metadata.creation_timestamp or created_at,
            resource_version=None,
        ),
    )


def from_input(resource: _R) -> _R:
    """A user's object reduced to the metadata a create takes from input (datamodel §6.4)."""
    metadata = resource.metadata
    return replace(
        resource,
        metadata=ObjectMeta(
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            annotations=metadata.annotations,
        ),
    )


def for_update(stored: _R, given: _R) -> _R:
    """`given` as the update of `stored`: spec, labels and annotations are its own."""
    metadata = replace(
        stored.metadata, labels=given.metadata.labels, annotations=given.metadata.annotations
    )
    return replace(given, metadata=metadata)


def revision_of(resource: Resource) -> int:
    """The mod revision an object was read at, 0 for none. Errors: ValidationError."""
    text = resource.metadata.resource_version
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValidationError.of("ResourceVersion", text)
    return int(text)
