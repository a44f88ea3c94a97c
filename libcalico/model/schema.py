"""The shape of every Struct, compiled once, for the tolerant decoder, encoder and document reader.

Layer: libcalico.model, pure. Used by codec and documents only.

msgspec decodes what fits in one call; everything it has no words for (member names in any case,
null where Go sees a zero value, unknown members that must survive, Go's omit-empty rules, Go's
error texts) is driven by these shapes, so that no kind needs code of its own.
Source: datamodel §1.2-1.4; Go encoding/json for the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import msgspec
from msgspec import inspect

from libcalico.model.meta import Model, Resource


@dataclass(frozen=True, slots=True)
class Scalar:
    """A leaf. `name` is str, int, float, bool or one of `scalars`' own; `go` the Go type's name."""

    name: str
    go: str
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A list. `nullable`: None and () differ, so an empty list is stored."""

    item: Shape
    nullable: bool = False
    go: str = ""
    nullable_items: bool = False


@dataclass(frozen=True, slots=True)
class Mapping:
    """A map with free keys."""

    value: Shape
    nullable: bool = False
    go: str = ""


@dataclass(frozen=True, slots=True)
class Free:
    """Anything; carried verbatim."""

    go: str = "interface {}"


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a record: its attribute, its shape, and the value it has when absent."""

    attribute: str
    shape: Shape
    nullable: bool
    zero: Any


@dataclass(slots=True)
class Record:
    """A Struct class. `members` is in declaration order, which is the order of storage."""

    struct: type[Model]
    members: dict[str, Member] = field(default_factory=dict)
    name_by_lower: dict[str, str] = field(default_factory=dict)
    always: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    is_resource: bool = False

    @property
    def go(self) -> str:
        return "v3." + self.struct.__name__

    @property
    def omit_when_empty(self) -> bool:
        return self.struct.OMIT_WHEN_EMPTY

    def canonical(self, name: str) -> str | None:
        """The documented spelling of a member name in any case, None when there is no such."""
        if name in self.members:
            return name
        return self.name_by_lower.get(name.lower())


Shape = Scalar | Listing | Mapping | Free | Record


@cache
def record_of(struct: type[Model]) -> Record:
    """The shape of a Struct class."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return _record(info)


class _Records:
    """Shapes by class, so that a class used twice is compiled once."""

    by_class: ClassVar[dict[type[Model], Record]] = {}


def _record(info: inspect.StructType) -> Record:
    struct = info.cls
    assert issubclass(struct, Model)
    known = _Records.by_class.get(struct)
    if known is not None:
        return known
    record = Record(struct, is_resource=issubclass(struct, Resource))
    _Records.by_class[struct] = record
    for entry in info.fields:
        shape, nullable = _shape(entry.type)
        record.members[entry.encode_name] = Member(entry.name, shape, nullable, _zero(entry))
    record.name_by_lower = {name.lower(): name for name in record.members}
    always = set(struct.ALWAYS)
    if record.is_resource:
        # Go's omitempty does not apply to structs: these three are always there.
        always |= {"apiVersion", "metadata", "spec"}
    record.always, record.never = frozenset(always), frozenset(struct.NEVER)
    return record


def _zero(entry: inspect.Field) -> Any:
    if entry.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(entry.default)
    if entry.default_factory is not msgspec.NODEFAULT:
        return msgspec.to_builtins(entry.default_factory())
    return None


def _shape(kind: inspect.Type) -> tuple[Shape, bool]:
    """The shape of a type, and whether it also allows null."""
    extra: dict[str, Any] = {}
    if isinstance(kind, inspect.Metadata):
        extra, kind = kind.extra or {}, kind.type
    if isinstance(kind, inspect.UnionType):
        return _union(kind, extra)
    return _plain(kind, extra), False


def _union(kind: inspect.UnionType, extra: dict[str, Any]) -> tuple[Shape, bool]:
    nullable = any(isinstance(option, inspect.NoneType) for option in kind.types)
    options = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
    if "scalar" in extra or len(options) > 1:
        scalar = extra.get("scalar")
        for option in options:
            if isinstance(option, inspect.Metadata) and option.extra:
                scalar = option.extra.get("scalar", scalar)
        return Scalar(str(scalar), "string"), nullable
    shape, _ = _shape(options[0])
    if isinstance(shape, Listing | Mapping):
        shape = replace(shape, nullable=nullable)
    return shape, nullable


def _plain(kind: inspect.Type, extra: dict[str, Any]) -> Shape:
    if isinstance(kind, inspect.StructType):
        return _record(kind)
    if isinstance(kind, inspect.VarTupleType):
        item, nullable_items = _shape(kind.item_type)
        return Listing(item, go="[]" + item.go, nullable_items=nullable_items)
    if isinstance(kind, inspect.DictType):
        value, _ = _shape(kind.value_type)
        return Mapping(value, go="map[string]" + value.go)
    return _leaf(kind, extra)


def _leaf(kind: inspect.Type, extra: dict[str, Any]) -> Shape:
    if isinstance(kind, inspect.IntType):
        name = extra.get("scalar", "int")
        return Scalar(name, extra.get("go", "int"), kind.ge, kind.le)
    if isinstance(kind, inspect.StrType):
        return Scalar(extra.get("scalar", "str"), "string")
    if isinstance(kind, inspect.FloatType):
        return Scalar("float", "float64")
    if isinstance(kind, inspect.BoolType):
        return Scalar("bool", "bool")
    return Free()
