"""Which objects a command is about: from files, or from KIND and names; and their namespaces.

Layer: pure but for load. Used by calicoctl.commands. The rules are datamodel 6.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from calicoctl.kinds import CliKind
from calicoctl.load import Given, load
from calicoctl.results import CommandFailed
from calicoctl.session import metadata_of
from libcalico.model.kinds import KIND_BY_NAME
from libcalico.model.meta import ObjectMeta, Resource

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Source:
    """What -f -R --skip-empty -c -n say, the options of every command about objects."""

    filename: str = ""
    recursive: bool = False
    skip_empty: bool = False
    config: str = ""
    namespace: str = ""


def from_files(source: Source) -> list[Given]:
    """Errors: CommandFailed."""
    loaded = load(source.filename, is_recursive=source.recursive, skip_empty=source.skip_empty)
    return [
        Given(with_namespace(given.resource, source.namespace), given.place) for given in loaded
    ]


def from_names(kind: CliKind, names: Sequence[str], namespace: str) -> list[Given]:
    """Bare objects that carry kind, name and namespace, for delete."""
    if any(not name for name in names):
        raise CommandFailed("resource name may not be empty")
    struct = kind.info.resource
    bare = [struct(metadata=ObjectMeta(name=name)) for name in names]
    return [Given(with_namespace(resource, namespace)) for resource in bare]


def with_namespace(resource: Resource, namespace: str) -> Resource:
    """The object with its namespace settled. Errors: CommandFailed."""
    metadata = metadata_of(resource)
    given = metadata.namespace
    if not KIND_BY_NAME[resource.kind].namespaced:
        if namespace:
            raise CommandFailed(f"{resource.kind} is not namespaced")
        return resource
    if given and namespace and given != namespace:
        raise CommandFailed(
            f"resource namespace does not match client namespace. {given} != {namespace}"
        )
    settled = given or namespace or DEFAULT_NAMESPACE
    if settled == given:
        return resource
    return msgspec.structs.replace(
        resource, metadata=msgspec.structs.replace(metadata, namespace=settled)
    )
