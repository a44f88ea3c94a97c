"""Parsers for the forms that only Felix parameters have.

Layer: felix.config, pure. Used by the parameter tables felix/config.py and felix/config_inert.py;
the general forms are in libcalico.runtime.parse. Every refusal is a ValueError with a reason.
Source: Calico felix/config/param_types.go; the patterns of reference/datamodel.md 1.9.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from libcalico.errors import InvalidInput
from libcalico.model.scalars import parse_dscp
from libcalico.runtime import parse
from libcalico.runtime.parse import PortRange

T = TypeVar("T")

_INTERFACE = re.compile(r"[a-zA-Z0-9_.-]{1,15}")
_INTERFACE_FILTER = re.compile(r"[a-zA-Z0-9:._+-]{1,15}")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_TIMEOUT_NAMES = (
    "CreationGracePeriod",
    "TCPSynSent",
    "TCPEstablished",
    "TCPFinsSeen",
    "TCPResetSeen",
    "UDPTimeout",
    "GenericTimeout",
    "ICMPTimeout",
)
MAX_NODE_PORT_RANGES = 7
MAX_REGION = 46
# Linux keeps the tables 253, 254 and 255 for itself; above 255 any 32-bit number goes.
MAX_ROUTE_TABLES = 65535


@dataclass(frozen=True, slots=True)
class TableRange:
    """Routing tables `first` to `last`, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class NamedTimeout:
    """A watchdog timeout for one health reporter; 0 switches its watchdog off."""

    name: str
    timeout_s: float


def optional(inner: Callable[[str], T]) -> Callable[[str], T | None]:
    """For parameters whose default is None (not set)."""

    def parse_optional(raw: str) -> T | None:
        return inner(raw)

    return parse_optional


def supported(*choices: str, missing: str, why: str) -> Callable[[str], str]:
    """One of the words, any case; `missing` is a word of Calico's that we cannot honour."""
    known = parse.one_of(*choices, missing)

    def parse_supported(raw: str) -> str:
        value = known(raw)
        if value == missing:
            raise ValueError(why)
        return value

    return parse_supported


# What rules/settings takes of the mask.
MARK_BITS = 2


def mark_mask(raw: str) -> int:
    """A 32-bit mask with room for the marks of host endpoints."""
    value = parse.mark_mask(raw)
    if value.bit_count() < MARK_BITS:
        raise ValueError(f"a mask needs at least {MARK_BITS} bits")
    return value


# The same, and what felix.rules.render_iptables takes.
IPTABLES_MARK_BITS = 5


def iptables_mark_mask(raw: str) -> int:
    """A 32-bit mask with room for verdicts too."""
    value = parse.mark_mask(raw)
    if value.bit_count() < IPTABLES_MARK_BITS:
        raise ValueError(f"a mask needs at least {IPTABLES_MARK_BITS} bits")
    return value


def interface_name(raw: str) -> str:
    value = raw.strip()
    if not _INTERFACE.fullmatch(value):
        raise ValueError(f"invalid interface name {value!r}")
    return value


def interface_filter(raw: str) -> str:
    """An interface name, or the beginning of one followed by `+`."""
    value = raw.strip()
    if not _INTERFACE_FILTER.fullmatch(value):
        raise ValueError(f"invalid interface filter {value!r}")
    return value


def interface_prefixes(raw: str) -> tuple[str, ...]:
    """One or more prefixes of workload interfaces; each must leave room for a name."""
    prefixes = parse.list_of(interface_name)(raw)
    if not prefixes:
        raise ValueError("at least one prefix is needed")
    if any(len(prefix) > 14 for prefix in prefixes):
        raise ValueError("a prefix has at most 14 characters")
    return prefixes


def region(raw: str) -> str:
    """An OpenStack region: a DNS label short enough for a key of the datastore."""
    value = raw.strip()
    if len(value) > MAX_REGION:
        raise ValueError("is too long")
    if not _DNS_LABEL.fullmatch(value):
        raise ValueError("must be a valid DNS label")
    return value


def node_port_ranges(raw: str) -> tuple[PortRange, ...]:
    ranges = parse.port_ranges(raw)
    if len(ranges) > MAX_NODE_PORT_RANGES:
        raise ValueError(f"node port ranges list is too long (max {MAX_NODE_PORT_RANGES})")
    return ranges


def table_range(raw: str) -> TableRange:
    """`min-max` within 1..250 (the deprecated single range)."""
    found = _table_range(raw)
    if found.last > 250:
        raise ValueError("must be a range of route table indices within 1..250")
    return found


def table_ranges(raw: str) -> tuple[TableRange, ...]:
    """`min-max`, comma separated; together at most 65535 tables."""
    ranges = parse.list_of(_table_range)(raw)
    if sum(item.last - item.first + 1 for item in ranges) > MAX_ROUTE_TABLES:
        raise ValueError("targets too many tables")
    return ranges


def _table_range(raw: str) -> TableRange:
    match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", raw)
    if match is None:
        raise ValueError(f"expected min-max, got {raw!r}")
    first, last = int(match[1]), int(match[2])
    if first < 1:
        raise ValueError("min must be >= 1")
    if first > last:
        raise ValueError("min must not be greater than max")
    if last > 0xFFFFFFFF:
        raise ValueError("max must be a 32-bit number")
    return TableRange(first, last)


def dscp(raw: str) -> int:
    """A code point 0..63 or a class name such as AF11."""
    try:
        return parse_dscp(raw.strip())
    except InvalidInput as err:
        raise ValueError("invalid DSCP value") from err


def health_timeouts(raw: str) -> tuple[NamedTimeout, ...]:
    """`name=duration,…`."""
    found = []
    for name, value in parse.key_values(raw):
        if not re.fullmatch(r"[a-zA-Z0-9_ -]+", name):
            raise ValueError(f"invalid health reporter name {name!r}")
        timeout_s = parse.seconds(value)
        if timeout_s < 0:
            raise ValueError("Timeout should not be negative")
        found.append(NamedTimeout(name, timeout_s))
    return tuple(found)


def conntrack_timeouts(raw: str) -> tuple[tuple[str, str], ...]:
    """`TCPSynSent=20s,TCPFinsSeen=Auto,…`; names in any case."""
    by_lower = {name.lower(): name for name in _TIMEOUT_NAMES}
    found = []
    for name, value in parse.key_values(raw):
        if name.lower() not in by_lower:
            raise ValueError(f"unknown timeout {name!r}")
        if value != "Auto":
            parse.seconds(value)
        found.append((by_lower[name.lower()], value))
    return tuple(found)


def feature_overrides(raw: str) -> tuple[tuple[str, bool], ...]:
    """`Name=true,Other=false`; `Name=` removes an override."""
    return tuple(
        (name, parse.boolean(value)) for name, value in parse.key_values(raw) if value != ""
    )


def rate_limit(raw: str) -> str:
    """`5/second`; also minute, hour, day."""
    value = raw.strip()
    if not re.fullmatch(r"[1-9]\d{0,3}/(?:second|minute|hour|day)", value):
        raise ValueError("expected a rate such as 5/second")
    return value


def log_prefix(raw: str) -> str:
    """The text before a logged packet; %t %k %n %p stand for tier, kind, name, namespace/name."""
    if not re.fullmatch(r"[a-zA-Z0-9%: /_-]*", raw):
        raise ValueError("only letters, digits, blanks and %:/_- are allowed")
    return raw
