"""YAML text -> plain JSON-like values, as Calico's YAML library reads it, and hardened.

Layer: libcalico.model, pure. Used by documents (and by whoever else reads users' YAML).

Built on PyYAML's event stream rather than its loaders: those resolve scalars by other rules
(sexagesimal numbers, timestamps), accept duplicate keys, recurse per nesting level and share
aliased nodes without a bound.

  Y1  every failure is a `YamlError` with the line in the text;
  Y2  bounded: nesting depth, and the number of nodes that aliases add;
  Y3  values are None, bool, int, float, str, list, dict with str keys; nothing else.

Source: datamodel §6.4; sigs.k8s.io/yaml and its goyaml.v2 (resolve.go, decode.go) for the rules.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml import events

from libcalico.errors import InvalidInput
from libcalico.model.scalars import go_float_text

MAX_DEPTH = 100
MAX_ALIAS_NODES = 100_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"

_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_INT = re.compile(r"[-+]?(0b[01]+|0x[0-9a-fA-F]+|0o?[0-7]+|[1-9][0-9]*|0)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class YamlError(InvalidInput):
    """The text is not YAML we accept. `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line, self.reason = line, reason

    def __str__(self) -> str:
        return f"yaml: line {self.line}: {self.reason}"


@dataclass(slots=True)
class _Frame:
    """A collection under construction. For a map `key` is the key that waits for its value."""

    is_map: bool
    anchor: str | None
    line: int
    size_before: int
    items: list[Any] = field(default_factory=list)
    members: dict[str, Any] = field(default_factory=dict)
    merges: list[Any] = field(default_factory=list)
    key: str | None = None
    is_merge: bool = False


def load(text: str) -> Any:
    """The one document in `text`; None when it is empty. Errors: YamlError."""
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise YamlError(1, "invalid UTF-8") from err
    builder = _Builder()
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        raise YamlError(mark.line + 1 if mark else 1, err.problem or "syntax error") from err
    except yaml.YAMLError as err:
        raise YamlError(1, str(err).splitlines()[0]) from err
    return builder.root


def _events(text: str) -> Iterator[Any]:
    yield from yaml.parse(text, Loader=_Loader)


class _Builder:
    """Assembles the value from events, without recursion."""

    def __init__(self) -> None:
        self.root: Any = None
        self._documents = 0
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._nodes = 0
        self._alias_nodes = 0

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, events.ScalarEvent):
            self._nodes += 1
            value = _scalar(event, line)
            if event.anchor:
                self._anchors[event.anchor] = (value, 1)
            is_merge = event.value == _MERGE and event.implicit[0]
            self._place(value, line, is_merge=is_merge)
        elif isinstance(event, events.CollectionStartEvent):
            self._open(event, line)
        elif isinstance(event, events.CollectionEndEvent):
            self._close()
        elif isinstance(event, events.AliasEvent):
            self._alias(event.anchor, line)
        elif isinstance(event, events.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise YamlError(line, "more than one document")

    def _open(self, event: Any, line: int) -> None:
        is_map = isinstance(event, events.MappingStartEvent)
        wanted = _TAG + ("map" if is_map else "seq")
        if event.tag not in (None, "!", wanted):
            raise YamlError(line, f"cannot use tag {event.tag} here")
        if len(self._stack) >= MAX_DEPTH:
            raise YamlError(line, f"exceeded max depth of {MAX_DEPTH}")
        self._nodes += 1
        self._stack.append(_Frame(is_map, event.anchor, line, self._nodes))

    def _close(self) -> None:
        frame = self._stack.pop()
        value: Any = frame.items
        if frame.is_map:
            value = _merged(frame)
        if frame.anchor:
            self._anchors[frame.anchor] = (value, self._nodes - frame.size_before + 1)
        self._place(value, frame.line)

    def _alias(self, anchor: str | None, line: int) -> None:
        # An anchor is known once its value is complete, so a value cannot contain itself.
        if anchor is None or anchor not in self._anchors:
            raise YamlError(line, f"unknown anchor '{anchor}' referenced")
        value, size = self._anchors[anchor]
        self._nodes += size
        self._alias_nodes += size
        if self._alias_nodes > MAX_ALIAS_NODES:
            raise YamlError(line, "document contains excessive aliasing")
        self._place(value, line)

    def _place(self, value: Any, line: int, *, is_merge: bool = False) -> None:
        if not self._stack:
            self.root = value
            return
        frame = self._stack[-1]
        if not frame.is_map:
            frame.items.append(value)
        elif frame.key is None:
            frame.key, frame.is_merge = _key(value, line), is_merge
        else:
            self._add_member(frame, value, line)

    def _add_member(self, frame: _Frame, value: Any, line: int) -> None:
        key, frame.key = frame.key, None
        assert key is not None
        if frame.is_merge:
            frame.merges += value if isinstance(value, list) else [value]
            if not all(isinstance(merge, dict) for merge in frame.merges):
                raise YamlError(line, "map merge requires map or sequence of maps as the value")
        elif key in frame.members:
            raise YamlError(line, f'key "{key}" already set in map')
        else:
            frame.members[key] = value


def _merged(frame: _Frame) -> dict[str, Any]:
    """A map with its merges: own members win, then the earlier merge."""
    if not frame.merges:
        return frame.members
    result: dict[str, Any] = {}
    for merge in reversed(frame.merges):
        result.update(merge)
    result.update(frame.members)
    return result


def _key(value: Any, line: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return go_float_text(value)
    raise YamlError(line, "unsupported map key")


def _scalar(event: Any, line: int) -> Any:
    tag, text = event.tag, event.value
    if tag in (None, "!"):
        return resolve(text) if event.implicit[0] and tag is None else text
    name = tag.removeprefix(_TAG)
    if name in ("str", "timestamp"):
        return text
    if name == "binary":
        try:
            return base64.b64decode("".join(text.split()), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError) as err:
            raise YamlError(line, "!!binary value contains invalid base64 data") from err
    value = resolve(text)
    kinds = {"null": type(None), "bool": bool, "int": int, "float": int | float}
    if tag == name or name not in kinds or not isinstance(value, kinds[name]):
        raise YamlError(line, f"cannot decode {text!r} as a {tag}")
    return float(value) if name == "float" and isinstance(value, int) else value


def resolve(text: str) -> Any:
    """What a plain scalar means."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    plain = text.replace("_", "")
    value: int | float | None = _integer(plain) if _INT.fullmatch(plain) else None
    if value is None and _FLOAT.fullmatch(plain):
        value = float(plain)
    return text if value is None or math.isinf(value) else value


def _integer(plain: str) -> int | None:
    """A number in Go's notation; None for what 64 bits cannot hold."""
    digits = plain.lstrip("+-").lower()
    base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2])
    if base is None:
        base, digits = (8, digits) if digits.startswith("0") and digits != "0" else (10, digits)
    else:
        digits = digits[2:]
    if len(digits) > 66:  # more than the 64 digits of a binary number
        return None
    value = -int(digits, base) if plain.startswith("-") else int(digits, base)
    return value if -(2**63) <= value < 2**64 else None
