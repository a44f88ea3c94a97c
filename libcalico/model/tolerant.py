"""Reading JSON as Go's encoding/json does, for what the strict fast path refuses.

Layer: libcalico.model, pure. Used by codec only.

`tolerate` rewrites a parsed JSON value so that it decodes strictly: member names in any case become
the documented spelling (the last spelling wins), null becomes absent, unknown members are set
aside, numbers that Calico also reads from strings become numbers. What was set aside comes back as
an `Unknown`, which `codec.encode` weaves in again, so that a read-modify-write by us does not drop
what a newer or foreign writer stored.
Source: datamodel §1.2, §1.3; Go encoding/json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from libcalico.errors import ValidationError
from libcalico.model.scalars import normal_port, parse_as_number, parse_protocol
from libcalico.model.schema import Listing, Mapping, Record, Scalar, Shape

# Far beyond any real object, and far below the interpreter's own limit.
MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class UnknownItem:
    """What a list item had beyond its known part, and that part, to find the item again."""

    index: int
    known: Any
    unknown: Unknown


@dataclass(frozen=True, slots=True)
class Unknown:
    """Members nobody here knows, in the place where they were found."""

    members: dict[str, Any] = field(default_factory=dict)
    children: dict[str, Unknown] = field(default_factory=dict)
    items: dict[str, tuple[UnknownItem, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.members or self.children or self.items)

    def paths(self) -> list[str]:
        """The JSON paths of all unknown members, for a log line."""
        found = list(self.members)
        found += [f"{name}.{path}" for name, sub in self.children.items() for path in sub.paths()]
        for name, items in self.items.items():
            found += [f"{name}[{i.index}].{path}" for i in items for path in i.unknown.paths()]
        return sorted(found)


NOTHING_UNKNOWN = Unknown()


def parse_json(raw: bytes) -> Any:
    """Strict JSON text -> values. Of members spelled the same, the last one stands last.

    Errors: ValueError, also for nesting deeper than MAX_DEPTH.
    """
    try:
        msgspec.json.decode(raw)  # refuses what `json` lets pass: NaN, broken surrogates, bad UTF-8
        value = json.loads(raw, object_pairs_hook=_last_wins)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise ValueError(str(err)) from err
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    if is_deeper_than(value, MAX_DEPTH):
        raise ValueError("nested too deeply")
    return value


def is_deeper_than(value: Any, limit: int) -> bool:
    """Whether lists and objects are nested deeper than `limit`; looks without recursion."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for item in level
            if isinstance(item, list | dict)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def _last_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        members.pop(name, None)
        members[name] = value
    return members


def tolerate(record: Record, value: Any) -> tuple[Any, Unknown]:
    """Rewrite one JSON object for strict decoding; returns it and what it had beyond the schema.

    Values of a wrong type pass through unchanged: the strict decoder names them.
    """
    if not isinstance(value, dict):
        return value, NOTHING_UNKNOWN
    known: dict[str, Any] = {}
    members: dict[str, Any] = {}
    children: dict[str, Unknown] = {}
    items: dict[str, tuple[UnknownItem, ...]] = {}
    for name, raw in value.items():
        canonical = record.canonical(name)
        if canonical is None:
            if not (record.is_resource and name.lower() == "kind"):
                members[name] = raw
            continue
        children.pop(canonical, None)
        items.pop(canonical, None)
        if raw is None:
            known.pop(canonical, None)
            continue
        shape = record.members[canonical].shape
        if isinstance(shape, Record):
            known[canonical], unknown = tolerate(shape, raw)
            if unknown:
                children[canonical] = unknown
        elif isinstance(shape, Listing):
            known[canonical], found = _tolerate_list(shape, raw)
            if found:
                items[canonical] = found
        else:
            known[canonical] = _tolerate_leaf(shape, raw)
    return known, Unknown(members, children, items)


def _tolerate_list(shape: Listing, value: Any) -> tuple[Any, tuple[UnknownItem, ...]]:
    if not isinstance(value, list):
        return value, ()
    result, found = [], []
    for index, raw in enumerate(value):
        if raw is None and not shape.nullable_items:
            raw = _zero_item(shape.item)
        if isinstance(shape.item, Record):
            known, unknown = tolerate(shape.item, raw)
            result.append(known)
            if unknown:
                found.append(UnknownItem(index, known, unknown))
        else:
            result.append(_tolerate_leaf(shape.item, raw))
    return result, tuple(found)


def _zero_item(shape: Shape) -> Any:
    """What Go makes of a null inside a list."""
    if isinstance(shape, Record | Mapping):
        return {}
    return "" if isinstance(shape, Scalar) and shape.go == "string" else 0


def _tolerate_leaf(shape: Shape, value: Any) -> Any:
    if isinstance(shape, Mapping) and isinstance(value, dict):
        # A null value in a map of strings is Go's zero value.
        if isinstance(shape.value, Scalar):
            zero = _zero_item(shape.value)
            return {name: zero if item is None else item for name, item in value.items()}
        return value
    if isinstance(shape, Scalar):
        return _tolerate_scalar(shape.name, value)
    return value


def _tolerate_scalar(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower() if name == "bool_string" else value
    if not isinstance(value, str):
        return value
    try:
        if name == "as_number":
            return parse_as_number(value)
        if name == "protocol":
            return parse_protocol(value)
        if name == "port":
            return normal_port(value)
    except ValidationError:
        return value  # as given; validation will name it
    return value
