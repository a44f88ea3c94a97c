"""Parsers from a raw configuration string to a value; every refusal is a ValueError with a reason.

Layer: runtime, but pure (no I/O). Used in the parameter tables (`libcalico.runtime.config.param`).
The accepted forms are Felix's (felix/config/param_types.go): what a Calico user has in felix.cfg or
in the environment keeps working; besides, durations may carry Go's units (`90`, `90s`, `1m30s`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_TRUE = frozenset({"true", "1", "yes", "y", "t"})
_FALSE = frozenset({"false", "0", "no", "n", "f"})
_GO_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_DURATION = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+")
_GO_PART = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)")
_PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_PORT_PROTOCOLS = ("tcp", "udp", "sctp")


@dataclass(frozen=True, slots=True)
class ProtoPort:
    """One failsafe port: `tcp:22`, `udp:10.0.0.0/8:53`, `tcp:[fd00::]/8:443`. `net` None is any."""

    protocol: str
    port: int
    net: IPNetwork | None = None


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports `first` to `last`, both included."""

    first: int
    last: int


def text(raw: str) -> str:
    return raw.strip()


def boolean(raw: str) -> bool:
    word = raw.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("expected true or false")


def matching(pattern: str, *, what: str) -> Callable[[str], str]:
    """Text that matches `pattern` as a whole."""
    compiled = re.compile(pattern)

    def parse(raw: str) -> str:
        value = raw.strip()
        if not compiled.fullmatch(value):
            raise ValueError(f"invalid {what}")
        return value

    return parse


def integer(low: int | None = None, high: int | None = None) -> Callable[[str], int]:
    """A whole number (decimal, or hexadecimal with 0x) within bounds."""

    def parse(raw: str) -> int:
        try:
            value = int(raw.strip(), 0)
        except ValueError:
            value = _leading_zeros(raw)
        if low is not None and value < low:
            raise ValueError(f"must be at least {low}")
        if high is not None and value > high:
            raise ValueError(f"must be at most {high}")
        return value

    return parse


def _leading_zeros(raw: str) -> int:
    """int(x, 0) refuses `007`; operators write it."""
    if not re.fullmatch(r"[+-]?[0-9]+", raw.strip()):
        raise ValueError("expected a whole number")
    return int(raw.strip())


def number(raw: str) -> float:
    if not _PLAIN_NUMBER.fullmatch(raw.strip()):
        raise ValueError("expected a number")
    return float(raw)


def mark_mask(raw: str) -> int:
    """A 32-bit mask with at least one bit set; hexadecimal or decimal."""
    value = integer(0, 0xFFFFFFFF)(raw)
    if value == 0:
        raise ValueError("a mask needs at least one bit")
    return value


def seconds(raw: str) -> float:
    """Seconds: a bare number, or a Go duration."""
    return duration(raw, unit_s=1.0)


def millis(raw: str) -> float:
    """Milliseconds when bare, or a Go duration. The value is in **seconds** like every interval."""
    return duration(raw, unit_s=0.001)


def duration(raw: str, *, unit_s: float = 1.0) -> float:
    """A Go duration (`1m30s`) or a bare number of `unit_s`; returns seconds."""
    value = raw.strip()
    if _PLAIN_NUMBER.fullmatch(value):
        return float(value) * unit_s
    if not _GO_DURATION.fullmatch(value):
        raise ValueError("expected a duration such as 90, 90s or 1m30s")
    total = sum(float(count) * _GO_UNIT_S[unit] for count, unit in _GO_PART.findall(value))
    return -total if value.startswith("-") else total


def one_of(*choices: str) -> Callable[[str], str]:
    """One of the given words, any case; returned in the documented spelling."""
    by_lower = {choice.lower(): choice for choice in choices}

    def parse(raw: str) -> str:
        found = by_lower.get(raw.strip().lower())
        if found is None:
            raise ValueError("expected one of " + ", ".join(choices))
        return found

    return parse


def list_of(item: Callable[[str], T], *, separator: str = ",") -> Callable[[str], tuple[T, ...]]:
    """Separated items; blanks around them and empty ones are dropped."""

    def parse(raw: str) -> tuple[T, ...]:
        return tuple(item(part) for part in map(str.strip, raw.split(separator)) if part)

    return parse


def address(raw: str) -> IPAddress:
    return ipaddress.ip_address(raw.strip())


def address_v4(raw: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(raw.strip())


def address_v6(raw: str) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(raw.strip())


def cidr(raw: str) -> IPNetwork:
    """An address or a CIDR; host bits are masked away, as Felix does."""
    return ipaddress.ip_network(raw.strip(), strict=False)


def regexp(raw: str) -> re.Pattern[str]:
    try:
        return re.compile(raw)
    except re.error as err:
        raise ValueError(f"invalid regular expression: {err}") from err


def name_patterns(raw: str) -> tuple[re.Pattern[str], ...]:
    """Comma separated names; one between slashes is a regular expression (`eth0,/^veth/`).

    Match with `pattern.search(name)`: plain names are anchored here.
    """
    return list_of(_name_pattern)(raw)


def _name_pattern(raw: str) -> re.Pattern[str]:
    if len(raw) > 2 and raw.startswith("/") and raw.endswith("/"):
        return regexp(raw[1:-1])
    if not re.fullmatch(r"[a-zA-Z0-9:._+-]{1,15}", raw):
        raise ValueError(f"invalid interface name {raw!r}")
    return re.compile(f"^{re.escape(raw)}$")


def key_values(raw: str) -> tuple[tuple[str, str], ...]:
    """`k=v,k2=v2`; a key may come once."""
    pairs = []
    for part in filter(None, map(str.strip, raw.split(","))):
        name, found, value = part.partition("=")
        if not found or not name.strip():
            raise ValueError(f"expected key=value, got {part!r}")
        pairs.append((name.strip(), value.strip()))
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a key is given twice")
    return tuple(pairs)


port = integer(1, 65535)


def port_or_zero(raw: str) -> int:
    """A port, where 0 switches the listener off."""
    return integer(0, 65535)(raw)


def port_range(raw: str) -> PortRange:
    """`lo:hi` or one port."""
    first, found, last = raw.strip().partition(":")
    result = PortRange(port(first), port(last if found else first))
    if result.first > result.last:
        raise ValueError(
            f"minimum port number ({first}) is greater than maximum port number ({last})"
        )
    return result


def proto_port(raw: str) -> ProtoPort:
    """A failsafe entry; a bare number means TCP (Felix's old form)."""
    fields = raw.strip()
    if fields.isdigit():
        return ProtoPort("tcp", _failsafe_port(fields))
    protocol, _, rest = fields.partition(":")
    if protocol.lower() not in _PORT_PROTOCOLS:
        raise ValueError(f"unknown protocol in {raw!r}: expected tcp, udp or sctp")
    net_text, found, port_text = rest.rpartition(":")
    if not found:
        return ProtoPort(protocol.lower(), _failsafe_port(rest))
    net = cidr(net_text.replace("[", "").replace("]", ""))
    return ProtoPort(protocol.lower(), _failsafe_port(port_text), net)


def _failsafe_port(raw: str) -> int:
    # Port 0 is refused by nobody upstream and matches nothing: a typo, so refuse it.
    return port(raw)


proto_ports = list_of(proto_port)
cidrs = list_of(cidr)
words = list_of(text)
port_ranges = list_of(port_range)
