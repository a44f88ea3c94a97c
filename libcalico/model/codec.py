"""Values <-> JSON bytes, for everything that is stored under a key.

Layer: libcalico.model, pure. Used by datastore users, syncers, ipam and the CLI.

  C1  decode accepts what any writer of this layout may have stored: member names in any case, null
      lists, unknown members, missing members, numbers as strings; anything else is a DecodeError
      that names the JSON path;
  C2  encode(decode(x)) stores the same values as x, in Calico's member order, with Calico's rules
      for what is left out; with the `Unknown` of `decode_preserving`, foreign members too;
  C3  `metadata.resource_version` is the mod revision on read and is never written;
  C4  the fast path is one call of msgspec per object; only what needs the tolerant path pays it.

Source: datamodel §0.3, §1.2-1.5; Calico libcalico-go/lib/backend/{model,etcdv3}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr

from libcalico.errors import DecodeError, InvalidInput
from libcalico.model import ipam, realization
from libcalico.model.keys import (
    BlockAffinityKey,
    BlockKey,
    FelixLastReportedKey,
    FelixStatusKey,
    HandleKey,
    HostEndpointStatusKey,
    IpamConfigKey,
    IpamHostKey,
    Key,
    PolicyRealizationKey,
    ResourceKey,
    UnknownKind,
    WorkloadEndpointStatusKey,
    identifier,
    path_of,
)
from libcalico.model.kinds import KIND_BY_NAME, KINDS, TIERED_POLICY_KINDS
from libcalico.model.meta import API_VERSION, NAME_ANNOTATION, Model, Resource
from libcalico.model.schema import Listing, Mapping, Record, Scalar, Shape, record_of
from libcalico.model.tolerant import (
    NOTHING_UNKNOWN,
    Unknown,
    UnknownItem,
    parse_json,
    tolerate,
)

_M = TypeVar("_M", bound=Model)

_STRUCT_BY_KEY_TYPE: dict[type[Key], type[Model]] = {
    BlockKey: ipam.Block,
    BlockAffinityKey: ipam.BlockAffinity,
    HandleKey: ipam.Handle,
    IpamConfigKey: ipam.IpamConfig,
    IpamHostKey: ipam.HostMarker,
    FelixStatusKey: ipam.FelixStatus,
    FelixLastReportedKey: ipam.FelixStatus,
    WorkloadEndpointStatusKey: ipam.EndpointStatus,
    HostEndpointStatusKey: ipam.EndpointStatus,
    PolicyRealizationKey: realization.PolicyRealization,
}
# An empty value of these is an empty object (datamodel §2.2, §1.6).
_EMPTY_ALLOWED = frozenset({ipam.BlockAffinity, ipam.HostMarker})

_FAST_ERRORS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class _Entry:
    """The decoder of one Struct class."""

    __slots__ = ("decoder", "has_name_rules", "is_resource", "struct")

    def __init__(self, struct: type[Model]) -> None:
        self.struct = struct
        self.decoder = msgspec.json.Decoder(struct)
        self.is_resource = issubclass(struct, Resource)
        self.has_name_rules = issubclass(struct, Resource) and struct.kind in TIERED_POLICY_KINDS


_ENTRY_BY_STRUCT: dict[type[Model], _Entry] = {
    struct: _Entry(struct)
    for struct in [*_STRUCT_BY_KEY_TYPE.values(), *(info.resource for info in KINDS)]
}
_ENTRY_BY_KIND = {info.kind: _ENTRY_BY_STRUCT[info.resource] for info in KINDS}
_ENTRY_BY_KEY_TYPE: dict[type[Key], _Entry] = {
    key_type: _ENTRY_BY_STRUCT[struct] for key_type, struct in _STRUCT_BY_KEY_TYPE.items()
}


class Preserved(NamedTuple):
    """A decoded object, and what its stored form had beyond our schema."""

    obj: Any
    unknown: Unknown


def struct_of(key: Key | str) -> type[Model]:
    """The Struct class stored under a key (or of a kind). Errors: UnknownKind, InvalidInput."""
    return _entry(key).struct


def _entry(key: Key | str) -> _Entry:
    kind = key.kind if isinstance(key, ResourceKey) else key
    if isinstance(kind, str):
        entry = _ENTRY_BY_KIND.get(kind)
        if entry is None:
            raise UnknownKind(kind)
        return entry
    found = _ENTRY_BY_KEY_TYPE.get(type(kind))
    if found is None:
        raise InvalidInput(f"values of {identifier(kind)} are not ours to decode")
    return found


def decode(key: Key | str, raw: bytes, mod_revision: int) -> Any:
    """The object stored under `key` (a kind name will do). Errors: DecodeError."""
    entry = _entry(key)
    try:
        obj = entry.decoder.decode(raw)
    except _FAST_ERRORS:
        obj = _decode_tolerantly(entry, key, raw).obj
    if entry.is_resource:
        _complete(entry, key, obj, mod_revision)
    return obj


def decode_as(struct: type[_M], key: Key, raw: bytes, mod_revision: int) -> _M:
    """`decode` for callers that know the class: the same, with its type."""
    obj = decode(key, raw, mod_revision)
    assert isinstance(obj, struct)
    return obj


def decode_preserving(key: Key | str, raw: bytes, mod_revision: int) -> Preserved:
    """As `decode`, and keeps unknown members for `encode(obj, unknown=...)`."""
    entry = _entry(key)
    try:
        found = Preserved(entry.decoder.decode(raw), NOTHING_UNKNOWN)
    except _FAST_ERRORS:
        found = _decode_tolerantly(entry, key, raw)
    if entry.is_resource:
        _complete(entry, key, found.obj, mod_revision)
    return found


def _decode_tolerantly(entry: _Entry, key: Key | str, raw: bytes) -> Preserved:
    if not raw and entry.struct in _EMPTY_ALLOWED:
        return Preserved(entry.struct(), NOTHING_UNKNOWN)
    try:
        value, unknown = tolerate(record_of(entry.struct), parse_json(raw))
        return Preserved(msgspec.convert(value, entry.struct), unknown)
    except (ValueError, msgspec.MsgspecError, RecursionError) as err:
        raise DecodeError(_shown(key), raw, str(err)) from err


def _shown(key: Key | str) -> str:
    return key if isinstance(key, str) else path_of(key)


def _complete(entry: _Entry, key: Key | str, obj: Any, mod_revision: int) -> None:
    """What reading adds to a stored resource. Nobody else has seen the object yet."""
    metadata = obj.metadata
    force_setattr(metadata, "resource_version", str(mod_revision))
    if entry.has_name_rules:
        _restore_policy_name(obj)
    if not metadata.name and isinstance(key, ResourceKey):
        force_setattr(metadata, "name", key.name)
        force_setattr(metadata, "namespace", key.namespace)


def _restore_policy_name(policy: Any) -> None:
    """Datamodel §0.3: the name is the annotation's; without one a leading `default.` goes.

    Only the *object's* name: its key stays where it is.
    """
    metadata = policy.metadata
    annotation = metadata.annotations.pop(NAME_ANNOTATION, None)
    name = _annotated_name(annotation)
    if name is None and (policy.spec.tier or "default") == "default":
        name = metadata.name.removeprefix("default.")
    if name:
        force_setattr(metadata, "name", name)


def _annotated_name(annotation: str | None) -> str | None:
    if not annotation:
        return None
    try:
        stored = msgspec.json.decode(annotation)
    except _FAST_ERRORS:
        return None
    name = stored.get("name") if isinstance(stored, dict) else None
    return name if isinstance(name, str) and name else None


def encode(obj: Model, *, unknown: Unknown = NOTHING_UNKNOWN) -> bytes:
    """The stored form of an object."""
    return msgspec.json.encode(to_stored(obj, unknown=unknown))


def to_stored(obj: Model, *, unknown: Unknown = NOTHING_UNKNOWN) -> dict[str, Any]:
    """The stored form as plain values, in the order of storage."""
    record = record_of(type(obj))
    builtins = msgspec.to_builtins(obj, order="deterministic")
    stored = _finish(record, builtins, unknown)
    if not isinstance(obj, Resource):
        return stored
    if obj.kind in TIERED_POLICY_KINDS:
        _annotate_name(stored["metadata"], obj.metadata.name)
    if not KIND_BY_NAME[obj.kind].namespaced:
        stored["metadata"].pop("namespace", None)
    stored.pop("kind", None)
    stored.pop("apiVersion", None)
    return {"kind": obj.kind, "apiVersion": API_VERSION, **stored}


def to_shown(obj: Resource) -> dict[str, Any]:
    """The form a user sees: as stored, with resourceVersion, without the name annotation."""
    stored = to_stored(obj)
    metadata = stored["metadata"]
    if obj.metadata.resource_version:
        metadata["resourceVersion"] = obj.metadata.resource_version
    if obj.kind in TIERED_POLICY_KINDS:
        metadata["annotations"].pop(NAME_ANNOTATION)
        if not metadata["annotations"]:
            del metadata["annotations"]
    return stored


def _annotate_name(metadata: dict[str, Any], name: str) -> None:
    text = json.dumps({"name": name}, separators=(",", ":"))
    annotations = {**metadata.get("annotations", {}), NAME_ANNOTATION: text}
    metadata["annotations"] = dict(sorted(annotations.items()))


def _finish(record: Record, value: dict[str, Any], unknown: Unknown) -> dict[str, Any]:
    """Apply Go's omit-empty rules to a value that lacks its defaults; put unknown members back."""
    result: dict[str, Any] = {}
    missing = record.always.difference(value)
    missing |= (unknown.children.keys() | unknown.items.keys()) - value.keys()
    # Only when something has to be put in between does the declaration order have to be walked.
    names = (
        [name for name in record.members if name in value or name in missing]
        if missing
        else (value)
    )
    for name in names:
        member = record.members.get(name)
        if member is None or name in record.never:
            continue  # the tag, written by the caller
        item = value.get(name, member.zero)
        item = _finish_member(member.shape, item, name, unknown)
        if name in record.always or not _omitted(member.shape, item):
            result[name] = item
    result.update(unknown.members)
    return result


def _finish_member(shape: Shape, value: Any, name: str, unknown: Unknown) -> Any:
    if isinstance(shape, Record):
        child = unknown.children.get(name, NOTHING_UNKNOWN)
        return _finish(shape, value or {}, child)
    if isinstance(shape, Listing) and value is not None:
        if isinstance(shape.item, Record):
            return _finish_list(shape.item, value, unknown.items.get(name, ()))
        return list(value)  # msgspec leaves tuples as they are
    if isinstance(shape, Scalar) and shape.name == "float":
        return _go_float(value)
    return value


def _finish_list(
    record: Record, values: Sequence[dict[str, Any]], items: tuple[UnknownItem, ...]
) -> list[dict[str, Any]]:
    if not items:
        return [_finish(record, value, NOTHING_UNKNOWN) for value in values]
    found = _match_items(record, values, items)
    return [_finish(record, value, found.get(i, NOTHING_UNKNOWN)) for i, value in enumerate(values)]


def _match_items(
    record: Record, values: Sequence[dict[str, Any]], items: tuple[UnknownItem, ...]
) -> dict[int, Unknown]:
    """Give unknown members back to the items they came from.

    An item is found by its known part (it may have moved); one that was edited, by its place.
    """
    found: dict[int, Unknown] = {}
    edited: list[UnknownItem] = []
    for item in items:
        known = msgspec.to_builtins(msgspec.convert(item.known, record.struct))
        places = [i for i, value in enumerate(values) if value == known and i not in found]
        if places:
            found[item.index if item.index in places else places[0]] = item.unknown
        else:
            edited.append(item)
    for item in edited:
        if item.index < len(values):
            found.setdefault(item.index, item.unknown)
    return found


def _omitted(shape: Shape, value: Any) -> bool:
    if value is None:
        return True
    if isinstance(shape, Record):
        return shape.omit_when_empty and not value
    if isinstance(shape, Listing | Mapping):
        return not value and not shape.nullable
    return value == "" and isinstance(value, str)


def _go_float(value: Any) -> Any:
    """Go prints a whole float64 below 1e21 without a fraction."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value
