"""YAML as Calico's library reads it: scalars, duplicates, aliases, bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from libcalico.model.yamltext import MAX_ALIAS_NODES, MAX_DEPTH, YamlError, load, resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("On", True),
        ("TRUE", True),
        ("no", False),
        ("off", False),
        ("y", "y"),
        ("n", "n"),
        ("tRUE", "tRUE"),
        ("", None),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("-0x1F", -31),
        ("010", 8),
        ("0o17", 15),
        ("0b101", 5),
        ("08", 8.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1e999", "1e999"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 18446744073709551616.0),
        ("1" * 5000, "1" * 5000),
        ("12:30:45", "12:30:45"),
        ("8000:8080", "8000:8080"),
        ("2026-08-22", "2026-08-22"),
        ("2026-08-22T09:15:00Z", "2026-08-22T09:15:00Z"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.1", "10.0.0.1"),
        ("ee:ee:ee:ee:ee:ee", "ee:ee:ee:ee:ee:ee"),
        ("11:22:33:44:55:06", "11:22:33:44:55:06"),
        ("-", "-"),
        ("+", "+"),
        ("...", "..."),
        ("0x", "0x"),
    ],
)
def test_a_plain_scalar(text: str, value: Any) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


def test_not_a_number() -> None:
    assert math.isnan(resolve(".nan"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment\n", None),
        ("---\n", None),
        ("a: 1\nb: [x, 'yes', \"5\"]\n", {"a": 1, "b": ["x", "yes", "5"]}),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
        ("true: x\n5: y\n1.50: z\n", {"true": "x", "5": "y", "1.5": "z"}),
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x 5\nb: *x\nc: &y [*x, *x]\nd: *y\n", {"a": 5, "b": 5, "c": [5, 5], "d": [5, 5]}),
        ("a: !!str 5\nb: !!int '5'\nc: !!float 5\n", {"a": "5", "b": 5, "c": 5.0}),
        ("a: !!str yes\nb: ! 5\n", {"a": "yes", "b": "5"}),
        ("a: !!binary aGk=\nb: !!timestamp 2026-01-01\n", {"a": "hi", "b": "2026-01-01"}),
        (
            "a: !!map {}\nb: !!seq []\nc: !!null ~\nd: !!bool on\n",
            {"a": {}, "b": [], "c": None, "d": True},
        ),
        ("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n", {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}),
        ("{<<: [{a: 1}, {a: 2, b: 2}]}", {"a": 1, "b": 2}),
        ("'<<': 1", {"<<": 1}),
        ("\ufeffa: 1", {"a": 1}),
        ("top", "top"),
        ('{"a": {"b": [1, null, true]}}', {"a": {"b": [1, None, True]}}),
    ],
)
def test_a_document(text: str, value: Any) -> None:
    assert load(text) == value


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\na: 2", 2, 'key "a" already set in map'),
        ("a:\n  b: 1\n  c: 2\n  b: 3", 4, 'key "b" already set in map'),
        ("5: 1\n'5': 2", 2, 'key "5" already set in map'),
        ("a: b: c", 1, "mapping values are not allowed in this context"),
        ("a:\n\t- x", 2, "found character that cannot start any token"),
        ("a: [b", 2, "did not find expected ',' or ']'"),
        ("a: *x", 1, "unknown anchor 'x' referenced"),
        ("&a [*a]", 1, "unknown anchor 'a' referenced"),
        ("? [a]\n: b", 1, "unsupported map key"),
        ("? ~\n: b", 1, "unsupported map key"),
        ("a: !foo x", 1, "cannot decode 'x' as a !foo"),
        ("a: !!int x", 1, "cannot decode 'x' as a tag:yaml.org,2002:int"),
        ("a: !!python/object:os.system x", 1, "cannot decode"),
        ("a: !!set {x}", 1, "cannot use tag"),
        ("a: !!binary '@'", 1, "!!binary value contains invalid base64 data"),
        ("{<<: 5}", 1, "map merge requires map"),
        ("a: 1\n---\nb: 2", 2, "more than one document"),
        ("a: '\u0007'", 1, "control characters are not allowed"),
        ("a: \ud800", 1, "invalid UTF-8"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), 1, "exceeded max depth"),
        ("[" * 100_000, 1, "nesting depth"),
    ],
)
def test_what_is_refused_and_where(text: str, line: int, reason: str) -> None:
    with pytest.raises(YamlError) as caught:
        load(text)
    assert reason in caught.value.reason
    assert caught.value.line == line
    assert str(caught.value).startswith(f"yaml: line {line}: ")


def test_nesting_is_allowed_up_to_the_limit() -> None:
    value = load("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    depth = 0
    while value:
        value, depth = value[0], depth + 1
    assert depth == MAX_DEPTH - 1


def test_an_alias_bomb_is_refused_before_it_is_walked() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(YamlError, match="excessive aliasing"):
        load("\n".join(lines))


def test_ordinary_use_of_aliases_is_allowed() -> None:
    text = "base: &b [1, 2, 3]\nlist: [" + ", ".join(["*b"] * 1000) + "]"
    assert load(text)["list"] == [[1, 2, 3]] * 1000
    assert MAX_ALIAS_NODES > 4000
