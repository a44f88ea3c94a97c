"""Protocols, ports, AS numbers, DSCP, durations: Calico's forms and Calico's texts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libcalico.errors import ValidationError
from libcalico.model import scalars
from libcalico.model.scalars import PortRange


@pytest.mark.parametrize(
    ("value", "parsed", "stored"),
    [
        (80, PortRange(80, 80), 80),
        ("80", PortRange(80, 80), 80),
        ("8000:8080", PortRange(8000, 8080), "8000:8080"),
        ("80:80", PortRange(80, 80), 80),
        ("http-alt", "http-alt", "http-alt"),
        (0, PortRange(0, 0), 0),
        ("0:65535", PortRange(0, 65535), "0:65535"),
    ],
)
def test_a_port_is_a_number_a_range_or_a_name(
    value: int | str, parsed: PortRange | str, stored: int | str
) -> None:
    assert scalars.parse_port(value) == parsed
    assert scalars.normal_port(value) == stored


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("65536", "invalid port format (65536)"),
        (65536, "invalid port format (65536)"),
        (-1, "invalid port format (-1)"),
        ("9" * 5000, "invalid port format"),
        ("1:65536", "invalid maximum port number in range (1:65536)"),
        ("65536:1", "invalid minimum port number in range (65536:1)"),
        (
            "65535:1",
            "minimum port number (65535) is greater than maximum port number (1) in port range",
        ),
        ("a:b", "invalid port format (a:b)"),
        ("a b", "invalid name for named port (a b)"),
        ("", "invalid name for named port ()"),
        ("x" * 129, "invalid name for named port"),
    ],
)
def test_a_bad_port_is_refused_in_calicos_words(value: int | str, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        scalars.parse_port(value)
    assert caught.value.errors[0].reason.startswith(text)


def test_a_port_range_prints_as_it_is_stored() -> None:
    assert str(PortRange(80, 80)) == "80"
    assert str(PortRange(80, 90)) == "80:90"


@pytest.mark.parametrize(
    ("value", "stored", "number"),
    [
        ("TCP", "TCP", 6),
        ("6", 6, 6),
        (17, 17, 17),
        ("UDPLite", "UDPLite", 136),
        ("SCTP", "SCTP", 132),
    ],
)
def test_a_protocol_is_a_number_or_one_of_six_names(
    value: int | str, stored: int | str, number: int
) -> None:
    assert scalars.parse_protocol(value) == stored
    assert scalars.protocol_number(value) == number


def test_a_protocol_name_has_one_spelling() -> None:
    with pytest.raises(ValidationError, match="protocol name invalid"):
        scalars.protocol_number("tcp")
    with pytest.raises(ValidationError, match="protocol number invalid"):
        scalars.parse_protocol("256")


@pytest.mark.parametrize(
    ("value", "number"),
    [(64512, 64512), ("64512", 64512), ("1.10", 65546), ("65535.65535", 2**32 - 1), (0, 0)],
)
def test_an_as_number_has_three_forms(value: int | str, number: int) -> None:
    assert scalars.parse_as_number(value) == number


@pytest.mark.parametrize("value", [-1, 2**32, "", "x", "1.2.3", "1.", "65536.1", "1.65536", "-1"])
def test_a_bad_as_number_is_refused(value: int | str) -> None:
    with pytest.raises(ValidationError):
        scalars.parse_as_number(value)


def test_dscp_has_numbers_and_class_names() -> None:
    assert scalars.parse_dscp("EF") == 46
    assert scalars.parse_dscp("ef") == 46
    assert scalars.parse_dscp("AF11") == 10
    assert scalars.parse_dscp("CS7") == 56
    assert scalars.parse_dscp("23") == 23
    for bad in ("", "ZZ", 64, -1, "64"):
        with pytest.raises(ValidationError):
            scalars.parse_dscp(bad)


def test_dscp_classes_follow_their_formulas() -> None:
    # RFC 2597: AFxy is 8x + 2y; RFC 2474: CSx is 8x.
    classes = {f"AF{x}{y}": 8 * x + 2 * y for x in range(1, 5) for y in range(1, 4)}
    classes |= {f"CS{x}": 8 * x for x in range(8)}
    assert classes | {"DF": 0, "EF": 46} == scalars.DSCP_BY_NAME


def test_the_protocols_that_have_ports() -> None:
    names = {"TCP", "UDP", "SCTP"}
    assert {scalars.protocol_number(name) for name in names} == scalars.PROTOCOLS_WITH_PORTS


@pytest.mark.parametrize(
    ("alias", "low", "high"),
    [
        (scalars.UInt8, 0, 255),
        (scalars.UInt16, 0, 65535),
        (scalars.UInt32, 0, 2**32 - 1),
        (scalars.Int32, -(2**31), 2**31 - 1),
        (scalars.ASNumber, 0, 2**32 - 1),
    ],
)
def test_sized_integers_have_gos_bounds(alias: Any, low: int, high: int) -> None:
    for value in (low, high):
        assert msgspec.convert(value, alias) == value
    for value in (low - 1, high + 1):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, alias)


def test_the_longest_duration() -> None:
    assert scalars.parse_duration_ns("9223372036854775807ns") == 2**63 - 1
    with pytest.raises(ValidationError, match="invalid duration"):
        scalars.parse_duration_ns("9223372036854775808ns")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("90s", "1m30s"),
        ("0", "0s"),
        ("0s", "0s"),
        ("1500ms", "1.5s"),
        ("1.5s", "1.5s"),
        (".5s", "500ms"),
        ("15m", "15m0s"),
        ("1h", "1h0m0s"),
        ("86400s", "24h0m0s"),
        ("500ms", "500ms"),
        ("1us", "1µs"),
        ("1µs", "1µs"),
        ("1500ns", "1.5µs"),
        ("1ns", "1ns"),
        ("-90s", "-1m30s"),
        ("+1s", "1s"),
        ("1m30s", "1m30s"),
        ("1h1ns", "1h0m0.000000001s"),
        ("0.1234567891234s", "123.456789ms"),
    ],
)
def test_a_duration_has_one_normal_form(text: str, normal: str) -> None:
    assert scalars.normal_duration(text) == normal
    assert scalars.normal_duration(normal) == normal


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", 'time: invalid duration ""'),
        ("90", 'time: missing unit in duration "90"'),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
        ("s", 'time: invalid duration "s"'),
        (".s", 'time: invalid duration ".s"'),
        ("1s ", 'time: unknown unit "s " in duration "1s "'),
        ("1" * 5000 + "h", "time: invalid duration"),
        ("3000000h", "time: invalid duration"),
    ],
)
def test_a_bad_duration_is_refused_in_gos_words(text: str, reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        scalars.parse_duration_ns(text)
    assert caught.value.errors[0].reason.startswith(reason)


def test_seconds() -> None:
    assert scalars.seconds("1m30s") == 90
    assert scalars.seconds("500ms") == 0.5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1_000_000.0, "1e+06"),
        (1000.0, "1000"),
        (1_500_000.0, "1.5e+06"),
        (0.000015, "1.5e-05"),
        (100.5, "100.5"),
        (123456.0, "123456"),
        (1234567.0, "1.234567e+06"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (0.0, "0"),
        (-0.0, "-0"),
        (-2.5, "-2.5"),
        (1e100, "1e+100"),
        (5e-324, "5e-324"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_a_float_prints_as_in_go(value: float, text: str) -> None:
    assert scalars.go_float_text(value) == text
