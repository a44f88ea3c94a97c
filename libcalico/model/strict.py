"""One object from plain values, strictly: every wrong member is named in the words of Go's decoder.

Layer: libcalico.model, pure. Used by documents only (C.f. tolerant, which forgives what a stored
object may have wrong; here a user wrote it and wants to hear).

The path of an error names the member with its list indices; the text's own path, as Go prints it,
has none. Scalars come out in the normal form Calico stores.
Source: datamodel §1.4, §6.4; Go encoding/json, Calico api/pkg/lib/numorstring.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from libcalico.errors import ValidationError
from libcalico.model.kinds import KindInfo
from libcalico.model.meta import Resource
from libcalico.model.scalars import (
    go_float_text,
    normal_duration,
    normal_port,
    parse_as_number,
    parse_protocol,
)
from libcalico.model.schema import Free, Listing, Mapping, Record, Scalar, Shape, record_of

_T = TypeVar("_T")

# Calico wraps every decoder error in this.
DECODE_PREFIX = "error unmarshaling JSON: while decoding JSON: "


def go_kind(value: Any) -> str:
    """What Go's decoder calls a JSON value in its errors."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    return "array" if isinstance(value, list) else "object"


class Wrong(Exception):
    """A value does not fit; the argument is the reason as Go words it."""


@dataclass(slots=True)
class Reader:
    """Walks one object along its shape and collects what is wrong instead of stopping there."""

    root: str
    errors: list[tuple[str, str]] = field(default_factory=list)

    def resource(self, info: KindInfo, value: dict[str, Any]) -> Resource | None:
        record = record_of(info.resource)
        members = {name: item for name, item in value.items() if name.lower() != "kind"}
        builtins = self.record(record, members, self.root)
        if self.errors:
            return None
        try:
            return msgspec.convert(builtins, info.resource)
        except msgspec.ValidationError as err:
            # Nothing is known to get here; if something does it must not be a traceback.
            self._wrong(self.root, f"json: {err}")
            return None

    def record(self, record: Record, value: Any, path: str) -> dict[str, Any]:
        """One object as builtins with documented member names."""
        result: dict[str, Any] = {}
        if not isinstance(value, dict):
            self._mismatch(value, path, record.struct.__name__, record.go)
            return result
        seen: set[str] = set()
        for name, item in value.items():
            where = f"{path}.{name}" if path else name
            canonical = record.canonical(name)
            if canonical is None:
                self._wrong(where, f'json: unknown field "{name}"')
            elif canonical in seen:
                self._wrong(where, f'json: field "{canonical}" is given twice, in different case')
            elif item is not None:
                seen.add(canonical)
                place = Place(record.struct.__name__, f"{path}.{canonical}" if path else canonical)
                result[canonical] = self.value(record.members[canonical].shape, item, place)
        return result

    def value(self, shape: Shape, value: Any, place: Place) -> Any:
        """One value in the form its shape asks for."""
        if isinstance(shape, Record):
            if not isinstance(value, dict):
                return self._mismatch(value, place.path, place.owner, shape.go)
            return self.record(shape, value, place.path)
        if isinstance(shape, Listing):
            return self._listing(shape, value, place)
        if isinstance(shape, Mapping):
            return self._mapping(shape, value, place)
        try:
            return _free(value) if isinstance(shape, Free) else _scalar(shape, value)
        except Wrong as err:
            self._wrong(place.path, str(err))
        except _Mismatch as err:
            self._mismatch(value, place.path, place.owner, err.go, shown=err.shown)
        return None

    def _listing(self, shape: Listing, value: Any, place: Place) -> Any:
        if not isinstance(value, list):
            return self._mismatch(value, place.path, place.owner, shape.go)
        result = []
        for index, item in enumerate(value):
            where = Place(place.owner, f"{place.path}[{index}]")
            zero = {} if isinstance(shape.item, Record | Mapping) else _zero(shape.item)
            result.append(self.value(shape.item, zero if item is None else item, where))
        return result

    def _mapping(self, shape: Mapping, value: Any, place: Place) -> Any:
        if not isinstance(value, dict):
            return self._mismatch(value, place.path, place.owner, shape.go)
        result = {}
        for name, item in value.items():
            where = Place(place.owner, f"{place.path}.{name}")
            zero = _zero(shape.value)
            result[name] = self.value(shape.value, zero if item is None else item, where)
        return result

    def _mismatch(self, value: Any, path: str, owner: str, go: str, *, shown: str = "") -> None:
        """Record Go's UnmarshalTypeError; its path has no root and no indices."""
        go_path = _without_indices(path[len(self.root) :].lstrip("."))
        what = f"Go struct field {owner}.{go_path}" if go_path else "Go value"
        given = go_kind(value) + (f" {shown}" if shown else "")
        self._wrong(path, f"json: cannot unmarshal {given} into {what} of type {go}")

    def _wrong(self, path: str, reason: str) -> None:
        self.errors.append((path, DECODE_PREFIX + reason))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: the Go struct that owns the member, and its path."""

    owner: str
    path: str


class _Mismatch(Exception):
    """A value of another JSON type than Go type `go`; `shown` when Go prints the value too."""

    def __init__(self, go: str, shown: str = "") -> None:
        super().__init__(go, shown)
        self.go, self.shown = go, shown


def _without_indices(path: str) -> str:
    result, depth = [], 0
    for character in path:
        depth += character == "["
        if not depth:
            result.append(character)
        depth -= character == "]"
    return "".join(result)


def _zero(shape: Shape) -> Any:
    """What Go makes of null inside a list or map."""
    if isinstance(shape, Scalar):
        return "" if shape.go == "string" else 0
    return None


def _free(value: Any) -> Any:
    """Anything JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Wrong(f"json: unsupported value: {go_float_text(value)}")
    if isinstance(value, list):
        return [_free(item) for item in value]
    if isinstance(value, dict):
        return {name: _free(item) for name, item in value.items()}
    return value


def _scalar(shape: Scalar, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise Wrong(f"json: unsupported value: {go_float_text(value)}")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        # Go writes a whole float as an integer when it turns YAML into JSON.
        value = value if shape.name in ("float", "str") else int(value)
    return _SCALARS[shape.name](shape, value)


def _str(shape: Scalar, value: Any) -> str:
    """Text; numbers and booleans that nobody quoted are taken as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return go_float_text(value)
    if not isinstance(value, str):
        raise _Mismatch(shape.go)
    return value


def _int(shape: Scalar, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Mismatch(shape.go)
    low = -(2**63) if shape.low is None else shape.low
    high = 2**63 - 1 if shape.high is None else shape.high
    if isinstance(value, float) or not low <= value <= high:
        shown = go_float_text(value) if isinstance(value, float) else str(value)
        raise _Mismatch(shape.go, shown)
    return value


def _float(shape: Scalar, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Mismatch(shape.go)
    return float(value)


def _bool(shape: Scalar, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Mismatch(shape.go)
    return value


def _bool_string(shape: Scalar, value: Any) -> str:
    text = _str(shape, value)
    if text not in ("", "true", "false"):
        raise _Mismatch("bool")
    return text


def _duration(shape: Scalar, value: Any) -> str:
    # Go's Duration reads a JSON string only: a bare number has no unit.
    if not isinstance(value, str):
        raise _Mismatch(shape.go)
    return _parsed(normal_duration, value)


def _as_number(shape: Scalar, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**32 - 1:
        return value
    # Go tries a string next, and says so.
    if not isinstance(value, str):
        raise _Mismatch("string")
    return _parsed(parse_as_number, value)


def _protocol(shape: Scalar, value: Any) -> int | str:
    if isinstance(value, str):
        return _parsed(parse_protocol, value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Mismatch("uint8")
    if not 0 <= value <= 255:
        raise _Mismatch("uint8", str(value))
    return value


def _port(shape: Scalar, value: Any) -> int | str:
    if isinstance(value, str):
        return _parsed(normal_port, value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Mismatch("uint16")
    if not 0 <= value <= 65535:
        raise _Mismatch("uint16", str(value))
    return value


def _dscp(shape: Scalar, value: Any) -> int | str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Mismatch("uint8")
    if not 0 <= value <= 255:
        raise _Mismatch("uint8", str(value))
    return value


def _parsed(parse: Callable[[str], _T], value: str) -> _T:
    try:
        return parse(value)
    except ValidationError as err:
        raise Wrong(err.errors[0].reason) from err


_SCALARS: dict[str, Callable[[Scalar, Any], Any]] = {
    "str": _str,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "bool_string": _bool_string,
    "duration": _duration,
    "as_number": _as_number,
    "protocol": _protocol,
    "port": _port,
    "dscp": _dscp,
}
