"""The vocabulary of the validation tables: what a member must satisfy, and how a failure is told.

Layer: libcalico.model, pure. Users: the validation_* tables, validation_walk.

Calico validates twice and so do we, with the names each family uses:
  Go family    struct tags and struct-level checks; fields by their Go names (`CIDR`, `Nets[0]`),
               the value shown;
  CRD family   the OpenAPI schema, then the CEL rules; fields by their JSON path (`spec.cidr`, or
               the kind when the path is empty), no value.
All Go failures come first, then all of the schema, then all of CEL.

Source: reference/datamodel.md 4.1; Calico LCG/validator/v3/{validator,crd_validation}.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from libcalico.errors import FieldError


class Searcher(Protocol):
    """What a compiled pattern does."""

    def search(self, value: str, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Tag:
    """A field check by the name that error texts show (`gte=1` shows `gte`)."""

    name: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Member:
    """The rules of one member. Of `tags` the first that fails is told, as in Go.

    Go:   `tags` when the value is not empty; `always` also when it is; `each` on every item.
    CRD:  the rest. They look at what would be stored: an absent member satisfies all but
          `required`. `each_*` constrains the items of a list.
    """

    tags: tuple[Tag, ...] = ()
    always: tuple[Tag, ...] = ()
    each: tuple[Tag, ...] = ()
    required: bool = False
    enum: tuple[str | int, ...] = ()
    each_enum: tuple[str | int, ...] = ()
    pattern: str | None = None
    each_pattern: str | None = None
    # What applies the pattern, where it is more than a search in the text.
    regex: Searcher | None = None
    format_cidr: bool = False
    each_format_cidr: bool = False
    max_length: int | None = None
    each_max_length: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique: bool = False


@dataclass(slots=True)
class Report:
    """Failures found so far, by family."""

    go: list[FieldError] = field(default_factory=list)
    schema: list[FieldError] = field(default_factory=list)
    cel: list[FieldError] = field(default_factory=list)

    def tag(self, name: str, value: object, tag: str) -> None:
        """A field tag failed. The trailing blank is Calico's."""
        text = f"Reason: failed to validate Field: {name} because of Tag: {tag} "
        self.go.append(FieldError(name, _shown(value), text))

    def reason(self, name: str, value: object, text: str) -> None:
        """A struct-level Go check failed."""
        self.go.append(FieldError(name, value, text))

    def crd(self, path: str, detail: str) -> None:
        """A schema constraint failed."""
        self.schema.append(FieldError(path, None, detail))

    def rule(self, path: str, message: str) -> None:
        """A CEL rule failed."""
        self.cel.append(FieldError(path, None, message))

    def errors(self) -> tuple[FieldError, ...]:
        """Everything, but nothing twice: a second port 0 says no more than the first."""
        told: list[FieldError] = []
        for error in (*self.go, *self.schema, *self.cel):
            if error not in told:
                told.append(error)
        return tuple(told)


def _shown(value: object) -> object:
    """A map as Go prints it; anything else as it is."""
    if not isinstance(value, dict):
        return value
    return "map[" + " ".join(f"{key}:{value[key]}" for key in sorted(value)) + "]"


GoCheck = Callable[[Any, Report], None]


@dataclass(frozen=True, slots=True)
class Cel:
    """A CEL rule of a struct: the message when `holds` is false. `at`: a member below."""

    holds: Callable[[Any], bool]
    message: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class StructRules:
    """Everything said about one Struct class. Members by JSON name."""

    members: dict[str, Member] = field(default_factory=dict)
    go: tuple[GoCheck, ...] = ()
    cel: tuple[Cel, ...] = ()


def one_of(*names: str) -> Tag:
    return Tag("oneof", frozenset(names).__contains__)


def gt(bound: int) -> Tag:
    return Tag("gt", lambda value: value > bound)


def gte(bound: int) -> Tag:
    return Tag("gte", lambda value: value >= bound)


def lt(bound: int) -> Tag:
    return Tag("lt", lambda value: value < bound)


def lte(bound: int) -> Tag:
    return Tag("lte", lambda value: value <= bound)


def required_tag(value: Any) -> bool:
    return value not in (None, "", (), 0)


REQUIRED = Tag("required", required_tag)

# Words that Go writes in capitals where JSON begins with them in lower case.
_INITIALISMS = frozenset(
    {"as", "aws", "bgp", "bpf", "cidr", "dscp", "http", "icmp", "ip", "ipip", "mac", "mtu", "nat"}
    | {"qos", "ttl", "vxlan", "xdp"}
)
_LEADING = re.compile(r"[a-z]+")


def go_name(json_name: str) -> str:
    """The Go field behind a JSON member: `peerIP` -> PeerIP, `cidr` -> CIDR, `ipv4…` -> IPv4…."""
    found = _LEADING.match(json_name)
    word = found.group() if found else ""
    rest = json_name[len(word) :]
    if word == "ipv" and rest[:1].isdigit():
        return "IPv" + rest
    return (word.upper() if word in _INITIALISMS else word[:1].upper() + word[1:]) + rest


def quoted(values: Sequence[str | int]) -> str:
    """The allowed values as API machinery lists them."""
    return "supported values: " + ", ".join(f'"{value}"' for value in values)
