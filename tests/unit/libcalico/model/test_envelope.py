"""Metadata on create and update."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from libcalico.errors import ValidationError
from libcalico.model import IPPool, IPPoolSpec, ObjectMeta, envelope

NOW = "2026-08-22T09:15:00Z"


def test_a_timestamp_has_whole_seconds_in_utc() -> None:
    assert envelope.format_timestamp(0) == "1970-01-01T00:00:00Z"
    assert envelope.format_timestamp(1787390100.999) == "2026-08-22T09:15:00Z"


def test_a_new_object_gets_a_uid_and_a_creation_time() -> None:
    pool = IPPool(metadata=ObjectMeta(name="a", resource_version="5"))
    created = envelope.for_create(pool, uid="u", created_at=NOW)
    assert created.metadata == ObjectMeta(name="a", uid="u", creation_timestamp=NOW)


def test_what_an_object_brings_stays() -> None:
    pool = IPPool(metadata=ObjectMeta(name="a", uid="mine", creation_timestamp="then"))
    assert envelope.for_create(pool, uid="u", created_at=NOW) == pool


def test_only_four_parts_of_a_users_metadata_count_on_create() -> None:
    metadata = ObjectMeta(
        name="a",
        namespace="n",
        labels={"l": "1"},
        annotations={"x": "2"},
        uid="u",
        creation_timestamp=NOW,
        resource_version="5",
        finalizers=("f",),
        generate_name="g",
    )
    assert envelope.from_input(IPPool(metadata=metadata)).metadata == ObjectMeta(
        name="a", namespace="n", labels={"l": "1"}, annotations={"x": "2"}
    )


def test_an_update_replaces_labels_and_annotations_and_nothing_else_of_the_metadata() -> None:
    stored = IPPool(
        metadata=ObjectMeta(
            name="a",
            uid="u",
            creation_timestamp=NOW,
            resource_version="7",
            labels={"old": "1"},
            annotations={"old": "1"},
            finalizers=("f",),
        ),
        spec=IPPoolSpec(cidr="10.0.0.0/8"),
    )
    given = IPPool(
        metadata=ObjectMeta(name="a", uid="other", labels={"new": "2"}),
        spec=IPPoolSpec(cidr="11.0.0.0/8"),
    )
    updated = envelope.for_update(stored, given)
    assert updated.spec == given.spec
    assert updated.metadata == replace(stored.metadata, labels={"new": "2"}, annotations={})


def test_the_revision_of_an_object() -> None:
    def revision(text: str | None) -> int:
        return envelope.revision_of(IPPool(metadata=ObjectMeta(resource_version=text)))

    assert revision(None) == revision("") == 0
    assert revision("9223372036854775807") == 2**63 - 1
    for bad in ("x", "-1", "1.5", "²", "9" * 5000):
        with pytest.raises(ValidationError, match="error with field ResourceVersion"):
            revision(bad)
