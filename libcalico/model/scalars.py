"""Scalar types of the specs: protocols, ports, AS numbers, DSCP, durations, Go-sized integers.

Layer: libcalico.model, pure. The annotated aliases are what the Structs declare; on the wire they
are plain JSON numbers and strings, so decoding costs nothing. The functions give them meaning:

  Protocol  1..255 or one of six names      `parse_protocol`, `protocol_number`
  Port      80, "8000:8080" or "http"       `parse_port` -> PortRange | str (a name)
  ASNumber  unsigned 32 bit                 `parse_as_number` also reads "1.10"
  Duration  a Go duration, "1m30s"          `parse_duration_ns`, `format_duration_ns`, `seconds`
  DSCP      0..63 or a class name           `parse_dscp`

Errors are `InvalidInput` subclasses carrying Calico's texts.
Source: datamodel §1.4, §6.4; Calico api/pkg/lib/numorstring; Go time.ParseDuration.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from msgspec import Meta

from libcalico.errors import ValidationError

# `extra` names the scalar to the schema walker (normalisation) and the Go type for error texts.
Protocol = Annotated[int | str, Meta(extra={"scalar": "protocol"})]
Port = Annotated[int | str, Meta(extra={"scalar": "port"})]
ASNumber = Annotated[int, Meta(ge=0, le=2**32 - 1, extra={"scalar": "as_number"})]
DSCP = Annotated[int | str, Meta(extra={"scalar": "dscp"})]
Duration = Annotated[str, Meta(extra={"scalar": "duration"})]
# A boolean that etcd's layout stores as the string "true" or "false".
BoolString = Annotated[str, Meta(extra={"scalar": "bool_string"})]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, extra={"go": "int32"})]
UInt8 = Annotated[int, Meta(ge=0, le=2**8 - 1, extra={"go": "uint8"})]
UInt16 = Annotated[int, Meta(ge=0, le=2**16 - 1, extra={"go": "uint16"})]
UInt32 = Annotated[int, Meta(ge=0, le=2**32 - 1, extra={"go": "uint32"})]

PROTOCOL_NUMBER_BY_NAME = {
    "TCP": 6,
    "UDP": 17,
    "ICMP": 1,
    "ICMPv6": 58,
    "SCTP": 132,
    "UDPLite": 136,
}
# The protocols that have ports in a rule.
PROTOCOLS_WITH_PORTS = frozenset({6, 17, 132})

# RFC 2474, 2597, 3246, 5865: the class names Calico knows.
DSCP_BY_NAME = {
    "DF": 0,
    "EF": 46,
    "AF11": 10,
    "AF12": 12,
    "AF13": 14,
    "AF21": 18,
    "AF22": 20,
    "AF23": 22,
    "AF31": 26,
    "AF32": 28,
    "AF33": 30,
    "AF41": 34,
    "AF42": 36,
    "AF43": 38,
    "CS0": 0,
    "CS1": 8,
    "CS2": 16,
    "CS3": 24,
    "CS4": 32,
    "CS5": 40,
    "CS6": 48,
    "CS7": 56,
}

_PORT_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_ALL_DIGITS = re.compile(r"[0-9]+")
_PORT_RANGE = re.compile(r"([0-9]+):([0-9]+)")


@dataclass(frozen=True, slots=True, order=True)
class PortRange:
    """Ports first..last, both included; one port has first == last."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}:{self.last}"


def _number(digits: str) -> int:
    """Decimal digits as a number; absurdly many become one that no range holds."""
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) < 20 else 10**20


def parse_port(value: int | str) -> PortRange | str:
    """A port as stored -> its range, or its name when it is a named port."""
    if isinstance(value, int):
        return _checked_range(value, value, value)
    if _ALL_DIGITS.fullmatch(value):
        return _checked_range(_number(value), _number(value), value)
    match = _PORT_RANGE.fullmatch(value)
    if match:
        return _parse_port_range(value, match[1], match[2])
    if ":" in value:
        raise ValidationError.of("Port", value, f"invalid port format ({value})")
    if not _PORT_NAME.fullmatch(value):
        raise ValidationError.of("Port", value, f"invalid name for named port ({value})")
    return value


def _parse_port_range(text: str, low: str, high: str) -> PortRange:
    first, last = _number(low), _number(high)
    if first > 65535:
        raise ValidationError.of("Port", text, f"invalid minimum port number in range ({text})")
    if last > 65535:
        raise ValidationError.of("Port", text, f"invalid maximum port number in range ({text})")
    if first > last:
        raise ValidationError.of(
            "Port",
            text,
            f"minimum port number ({low}) is greater than maximum port number ({high})"
            " in port range",
        )
    return PortRange(first, last)


def _checked_range(first: int, last: int, shown: object) -> PortRange:
    if not 0 <= first <= last <= 65535:
        raise ValidationError.of("Port", shown, f"invalid port format ({shown})")
    return PortRange(first, last)


def normal_port(value: int | str) -> int | str:
    """The form Calico stores: a number for one port, "lo:hi" for a range, else the name."""
    port = parse_port(value)
    if isinstance(port, str):
        return port
    return port.first if port.first == port.last else str(port)


def parse_protocol(value: int | str) -> int | str:
    """The form Calico stores: numeric strings become numbers, names stay as written."""
    if isinstance(value, str) and _ALL_DIGITS.fullmatch(value):
        value = _number(value)
    if isinstance(value, int) and not 0 <= value <= 255:
        raise ValidationError.of("Protocol", value, "protocol number invalid")
    return value


def protocol_number(value: int | str) -> int:
    """The IP protocol number of a stored protocol."""
    protocol = parse_protocol(value)
    if isinstance(protocol, int):
        return protocol
    number = PROTOCOL_NUMBER_BY_NAME.get(protocol)
    if number is None:
        raise ValidationError.of("Protocol", value, "protocol name invalid")
    return number


def parse_as_number(value: int | str) -> int:
    """An AS number from a number, a decimal string or "<high 16>.<low 16>"."""
    if isinstance(value, int):
        number, valid = value, True
    else:
        parts = value.split(".")
        valid = len(parts) <= 2 and all(_ALL_DIGITS.fullmatch(part) for part in parts)
        if not valid:
            raise ValidationError.of("ASNumber", value, "invalid AS Number format")
        if len(parts) == 2:
            high, low = _number(parts[0]), _number(parts[1])
            valid = high <= 0xFFFF and low <= 0xFFFF
            number = (high << 16) + low
        else:
            number = _number(value)
    if not valid or not 0 <= number <= 2**32 - 1:
        raise ValidationError.of("ASNumber", value, "invalid AS Number format")
    return number


def parse_dscp(value: int | str) -> int:
    """The DSCP code point of a number or class name (names in any case)."""
    if isinstance(value, str):
        if not _ALL_DIGITS.fullmatch(value):
            code = DSCP_BY_NAME.get(value.upper())
            if code is None:
                raise ValidationError.of("DSCP", value, "invalid DSCP value")
            return code
        value = _number(value)
    if not 0 <= value <= 63:
        raise ValidationError.of("DSCP", value, "invalid DSCP value")
    return value


_NS_BY_UNIT = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_NUMBER = re.compile(r"([0-9]*)(?:\.([0-9]*))?")
_DURATION_UNIT = re.compile(r"[^.0-9]+")
_MAX_DURATION_NS = 2**63 - 1


def parse_duration_ns(text: str) -> int:
    """A Go duration string -> nanoseconds. "0" needs no unit; everything else does."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise _bad_duration(text, "invalid duration")
    position, total = 0, 0
    while position < len(rest):
        number = _DURATION_NUMBER.match(rest, position)
        if number is None or not (number[1] or number[2]):
            raise _bad_duration(text, "invalid duration")
        unit = _DURATION_UNIT.match(rest, number.end())
        if unit is None:
            raise _bad_duration(text, "missing unit in duration")
        if unit[0] not in _NS_BY_UNIT:
            raise _bad_duration(text, f'unknown unit "{unit[0]}" in duration')
        size = _NS_BY_UNIT[unit[0]]
        # More digits of a fraction than these are far below a nanosecond.
        whole, fraction = _number(number[1]), (number[2] or "")[:20]
        total += whole * size + int(fraction or 0) * size // 10 ** len(fraction)
        if total > _MAX_DURATION_NS:
            raise _bad_duration(text, "invalid duration")
        position = unit.end()
    return sign * total


def _bad_duration(text: str, reason: str) -> ValidationError:
    return ValidationError.of("Duration", text, f'time: {reason} "{text}"')


def format_duration_ns(nanoseconds: int) -> str:
    """Nanoseconds -> the normal form Go prints: "1m30s", "1.5s", "500ms", "0s"."""
    if nanoseconds == 0:
        return "0s"
    sign = "-" if nanoseconds < 0 else ""
    value = abs(nanoseconds)
    for unit, size in (("ns", 1_000), ("µs", 1_000_000), ("ms", 1_000_000_000)):
        if value < size:
            return sign + _decimal(value, size // 1_000) + unit
    seconds, fraction = divmod(value, 1_000_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = _decimal(seconds * 1_000_000_000 + fraction, 1_000_000_000) + "s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def _decimal(value: int, scale: int) -> str:
    whole, fraction = divmod(value, scale)
    if not fraction:
        return str(whole)
    digits = len(str(scale)) - 1
    return f"{whole}.{fraction:0{digits}d}".rstrip("0")


def normal_duration(text: str) -> str:
    """Any Go duration -> its normal form ("90s" -> "1m30s")."""
    return format_duration_ns(parse_duration_ns(text))


def seconds(text: str) -> float:
    """A stored duration in seconds."""
    return parse_duration_ns(text) / 1_000_000_000


def go_float_text(value: float) -> str:
    """A float as Go's %v prints it: shortest digits, an exponent from 1e+06 on and below 1e-04."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    negative, digit_tuple, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    all_digits = "".join(map(str, digit_tuple))
    point = len(all_digits) + exponent  # digits before the decimal point
    digits = all_digits.lstrip("0").rstrip("0") or "0"
    point = 1 if digits == "0" else point - (len(all_digits) - len(all_digits.lstrip("0")))
    sign = "-" if negative else ""
    power = point - 1
    if power < -4 or power >= 6:
        fraction = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'-' if power < 0 else '+'}{abs(power):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    whole = digits[:point].ljust(point, "0")
    return sign + whole + ("." + digits[point:] if len(digits) > point else "")
