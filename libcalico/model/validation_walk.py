"""Walks a resource and applies the tables: one pass, both families.

Layer: libcalico.model, pure. User: validation. The plan of a class (which members have rules or
hold other Structs) is made once from the schema, so that a member without either costs nothing.

Order within a family is Go's: members in declaration order, depth first, then the checks of the
struct itself.

Source: reference/datamodel.md 4; go-playground/validator (traversal), kube-openapi (texts).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from libcalico.errors import ValidationError
from libcalico.model import scalars
from libcalico.model.meta import Model, ObjectMeta
from libcalico.model.schema import Listing, Record, Scalar, Shape, record_of
from libcalico.model.validation_rules import (
    Member,
    Report,
    Searcher,
    StructRules,
    go_name,
    quoted,
)
from libcalico.model.validation_tags import cidr_of

Tables = Mapping[type[Model], StructRules]
ScalarCheck = Callable[[Any, str, Report], None]

_NO_RULES = StructRules()


@dataclass(frozen=True, slots=True)
class _Step:
    """One member to look at."""

    attribute: str
    json: str
    go: str
    rules: Member | None
    scalar: ScalarCheck | None
    is_list: bool
    holds_structs: bool
    # Must be looked at even when there is nothing there.
    even_empty: bool


class Walker:
    """The tables, and the plans made from them."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._plans: dict[type[Model], tuple[_Step, ...]] = {}

    def walk(self, value: Model, path: str, report: Report, *, crd: bool) -> None:
        """Check `value`, found at `path`, and everything below. `crd`: also the CRD family."""
        rules = self._tables.get(type(value), _NO_RULES)
        for step in self._plan(type(value)):
            member = getattr(value, step.attribute)
            # An empty text or list is as good as an absent one; a zero is a value.
            if member or isinstance(member, int) or step.even_empty:
                at = f"{path}.{step.json}" if path else step.json
                self._member(step, member, at, report, crd)
        for check in rules.go:
            check(value, report)
        if crd:
            for rule in rules.cel:
                if not rule.holds(value):
                    at = f"{path}.{rule.at}" if rule.at else path
                    report.rule(at or getattr(value, "kind", ""), rule.message)

    def _member(self, step: _Step, value: Any, path: str, report: Report, crd: bool) -> None:
        if step.rules is not None:
            _go_tags(step.rules, step.go, value, report)
            if crd:
                _schema(step.rules, path, value, report)
        if value is None or value == ():
            return
        if step.scalar is not None:
            for item in value if step.is_list else (value,):
                step.scalar(item, path, report)
        if step.holds_structs and not step.is_list:
            self.walk(value, path, report, crd=crd)
        elif step.holds_structs:
            for index, item in enumerate(value):
                self.walk(item, f"{path}[{index}]", report, crd=crd)

    def _plan(self, struct: type[Model]) -> tuple[_Step, ...]:
        plan = self._plans.get(struct)
        if plan is None:
            plan = self._plans[struct] = tuple(self._steps(struct))
        return plan

    def _steps(self, struct: type[Model]) -> Iterator[_Step]:
        members = self._tables.get(struct, _NO_RULES).members
        record = record_of(struct)
        unknown = members.keys() - record.members.keys()
        assert not unknown, f"rules for members that {struct.__name__} has not: {unknown}"
        for json, member in record.members.items():
            shape: Shape = member.shape
            is_list = isinstance(shape, Listing)
            inner = shape.item if isinstance(shape, Listing) else shape
            scalar = _SCALARS.get(inner.name) if isinstance(inner, Scalar) else None
            holds_structs = isinstance(inner, Record) and inner.struct is not ObjectMeta
            rules = members.get(json)
            if rules or scalar or holds_structs:
                go = go_name(json)
                even_empty = bool(rules and (rules.always or rules.required))
                yield _Step(
                    attribute=member.attribute,
                    json=json,
                    go=go,
                    rules=rules,
                    scalar=scalar,
                    is_list=is_list,
                    holds_structs=holds_structs,
                    even_empty=even_empty,
                )


def _go_tags(rules: Member, name: str, value: Any, report: Report) -> None:
    given = "" if value is None else value
    for tag in rules.always:
        if not tag.accepts(given):
            report.tag(name, given, tag.name)
            return
    if value is None or value in ("", ()):
        return
    for tag in rules.tags:
        if not tag.accepts(value):
            report.tag(name, value, tag.name)
            return
    for index, item in enumerate(value if rules.each else ()):
        for tag in rules.each:
            if not tag.accepts(item):
                report.tag(f"{name}[{index}]", item, tag.name)
                break


def _schema(rules: Member, path: str, value: Any, report: Report) -> None:
    """What the OpenAPI schema says of a member; an absent one has only to be allowed to be."""
    if value is None or value in ("", ()):
        if rules.required:
            report.crd(path, "Required value")
        return
    if rules.enum and value not in rules.enum:
        report.crd(path, quoted(rules.enum))
    if rules.max_length is not None and len(value.encode()) > rules.max_length:
        report.crd(path, f"may not be more than {rules.max_length} bytes")
    if rules.pattern is not None:
        _pattern(rules.pattern, rules.regex, path, value, report)
    if rules.format_cidr and ("/" not in value or cidr_of(value) is None):
        report.crd(path, f'{path} in body must be of type cidr: "{value}"')
    _bounds(rules, path, value, report)
    if isinstance(value, tuple):
        _items(rules, path, value, report)


def _pattern(pattern: str, regex: Searcher | None, path: str, value: Any, report: Report) -> None:
    if not (regex or _compiled(pattern)).search(value):
        report.crd(path, f"{path} in body should match '{pattern}'")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the schema. Go's `$` is the end of the text, Python's also before a newline."""
    text = pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern
    # Go takes flags in the middle, Python only in front.
    flags = re.IGNORECASE if "(?i)" in text else 0
    return re.compile(text.replace("(?i)", ""), flags | re.ASCII)


def _bounds(rules: Member, path: str, value: Any, report: Report) -> None:
    if rules.minimum is not None and value < rules.minimum:
        report.crd(path, f"{path} in body should be greater than or equal to {rules.minimum}")
    if rules.maximum is not None and value > rules.maximum:
        report.crd(path, f"{path} in body should be less than or equal to {rules.maximum}")
    if rules.min_items is not None and len(value) < rules.min_items:
        report.crd(path, f"{path} in body should have at least {rules.min_items} items")
    if rules.max_items is not None and len(value) > rules.max_items:
        report.crd(path, f"may not be more than {rules.max_items} items")


def _items(rules: Member, path: str, values: tuple[Any, ...], report: Report) -> None:
    seen: set[Any] = set()
    for index, item in enumerate(values):
        at = f"{path}[{index}]"
        if rules.unique and item in seen:
            report.crd(at, f'Duplicate value: "{item}"')
        if rules.unique:
            seen.add(item)
        if rules.each_enum and item not in rules.each_enum:
            report.crd(at, quoted(rules.each_enum))
        if rules.each_max_length is not None and len(item.encode()) > rules.each_max_length:
            report.crd(at, f"may not be more than {rules.each_max_length} bytes")
        if rules.each_pattern is not None:
            _pattern(rules.each_pattern, None, at, item, report)
        if rules.each_format_cidr and ("/" not in item or cidr_of(item) is None):
            report.crd(at, f'{at} in body must be of type cidr: "{item}"')


def _protocol(value: int | str, _path: str, report: Report) -> None:
    if value == 0:
        report.reason("Protocol", 0, "protocol number invalid")
        return
    try:
        scalars.protocol_number(value)
    except ValidationError as err:
        report.reason("Protocol", value, err.errors[0].reason)


def _port(value: int | str, _path: str, report: Report) -> None:
    bounds = str(value).split(":")
    if all(bound.isascii() and bound.isdigit() for bound in bounds) and len(bounds) <= 2:
        low, high = int(bounds[0]), int(bounds[-1])
        if low > high:
            report.reason("Port", high, "port range invalid")
        if not 1 <= low <= 65535 or not 1 <= high <= 65535:
            bad = high if 1 <= low <= 65535 else low
            text = "port range invalid, port number must be between 1 and 65535"
            report.reason("Port", bad, text)
        return
    try:
        scalars.parse_port(value)
    except ValidationError as err:
        report.reason("Port", value, err.errors[0].reason)


def _duration(value: str, path: str, report: Report) -> None:
    try:
        scalars.parse_duration_ns(value)
    except ValidationError as err:
        report.reason(path, value, err.errors[0].reason)


def _dscp(value: int | str, path: str, report: Report) -> None:
    try:
        scalars.parse_dscp(value)
    except ValidationError as err:
        report.reason(path, value, err.errors[0].reason)


_SCALARS: dict[str, ScalarCheck] = {
    "protocol": _protocol,
    "port": _port,
    "duration": _duration,
    "dscp": _dscp,
}
