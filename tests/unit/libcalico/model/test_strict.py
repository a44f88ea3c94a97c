"""The strict reader on single values; whole documents are tested in test_documents."""

from __future__ import annotations

from typing import Any

import pytest

from libcalico.model import ipam
from libcalico.model.schema import Free, Mapping, Scalar, Shape, record_of
from libcalico.model.strict import DECODE_PREFIX, Place, Reader, go_kind


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "bool"),
        (1, "number"),
        (1.5, "number"),
        ("x", "string"),
        (None, "null"),
        ([], "array"),
        ({}, "object"),
    ],
)
def test_what_go_calls_a_value(value: Any, kind: str) -> None:
    assert go_kind(value) == kind


def _read(shape: Shape, value: Any) -> tuple[Any, list[str]]:
    reader = Reader("")
    result = reader.value(shape, value, Place("Owner", "a[0].b"))
    return result, [reason.removeprefix(DECODE_PREFIX) for _, reason in reader.errors]


def _mismatch(given: str, go: str) -> list[str]:
    return [f"json: cannot unmarshal {given} into Go struct field Owner.a.b of type {go}"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("port", 0, 0),
        ("port", 65535, 65535),
        ("port", 80.0, 80),
        ("protocol", 255, 255),
        ("protocol", 0, 0),
        ("protocol", "TCP", "TCP"),
        ("dscp", 0, 0),
        ("dscp", 255, 255),
        ("dscp", "EF", "EF"),
        ("int", -(2**63), -(2**63)),
        ("int", 2**63 - 1, 2**63 - 1),
        ("int", 1e3, 1000),
        ("float", 5, 5.0),
        ("bool_string", True, "true"),
        ("bool_string", "false", "false"),
        ("bool_string", "", ""),
        ("as_number", 2**32 - 1, 2**32 - 1),
        ("as_number", 0, 0),
        ("str", 5.0, "5"),
        ("str", 2**70, str(2**70)),
        ("duration", "0", "0s"),
    ],
)
def test_a_value_that_fits(name: str, value: Any, expected: Any) -> None:
    result, errors = _read(Scalar(name, "int" if name == "int" else "string"), value)
    assert errors == []
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "errors"),
    [
        ("port", True, _mismatch("bool", "uint16")),
        ("port", -1, _mismatch("number -1", "uint16")),
        ("port", 65536, _mismatch("number 65536", "uint16")),
        ("port", {}, _mismatch("object", "uint16")),
        ("protocol", False, _mismatch("bool", "uint8")),
        ("protocol", 256, _mismatch("number 256", "uint8")),
        ("protocol", "256", ["protocol number invalid"]),
        ("protocol", -1, _mismatch("number -1", "uint8")),
        ("dscp", True, _mismatch("bool", "uint8")),
        ("dscp", 256, _mismatch("number 256", "uint8")),
        ("dscp", [1], _mismatch("array", "uint8")),
        ("dscp", -1, _mismatch("number -1", "uint8")),
        ("int", 2**63, _mismatch("number 9223372036854775808", "go")),
        ("int", -(2**63) - 1, _mismatch("number -9223372036854775809", "go")),
        ("int", 2.0**63, _mismatch("number 9.223372036854776e+18", "go")),
        ("int", 1.5, _mismatch("number 1.5", "go")),
        ("int", "5", _mismatch("string", "go")),
        ("float", True, _mismatch("bool", "go")),
        ("bool", 1, _mismatch("number", "go")),
        ("bool_string", "yes", _mismatch("string", "bool")),
        ("as_number", True, _mismatch("bool", "string")),
        ("as_number", 2**32, _mismatch("number", "string")),
        ("as_number", 1.5, _mismatch("number", "string")),
        ("duration", 5, _mismatch("number", "go")),
        ("duration", "5", ['time: missing unit in duration "5"']),
        ("str", float("nan"), ["json: unsupported value: NaN"]),
        ("float", float("-inf"), ["json: unsupported value: -Inf"]),
    ],
)
def test_a_value_that_does_not_fit(name: str, value: Any, errors: list[str]) -> None:
    assert _read(Scalar(name, "go"), value) == (None, errors)


def test_anything_finite_fits_a_free_member() -> None:
    value = {"a": [1, None, {"b": 1.5}]}
    assert _read(Free(), value) == (value, [])
    assert _read(Free(), {"a": {"b": float("nan")}})[1] == ["json: unsupported value: NaN"]
    assert _read(Free(), [float("inf")]) == (None, ["json: unsupported value: +Inf"])


def test_null_in_a_map_is_the_zero_value_of_its_kind() -> None:
    assert _read(Mapping(Scalar("int", "int")), {"a": None}) == ({"a": 0}, [])
    assert _read(Mapping(Scalar("str", "string")), {"a": None}) == ({"a": ""}, [])
    assert _read(Mapping(Free()), {"a": None}) == ({"a": None}, [])


def test_null_in_a_list_of_nullable_items_is_still_goes_zero() -> None:
    reader = Reader("")
    result = reader.record(record_of(ipam.Block), {"unallocated": [None]}, "")
    assert result == {"unallocated": [0]}


def test_a_top_level_value_that_is_no_object() -> None:
    reader = Reader("")
    assert reader.record(record_of(ipam.Handle), [1], "") == {}
    assert reader.errors == [
        ("", DECODE_PREFIX + "json: cannot unmarshal array into Go value of type v3.Handle")
    ]
