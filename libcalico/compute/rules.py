"""Rules as a dataplane can check them: selectors and named ports replaced by ids of address sets.

Layer: pure data. Made by `rule_compiler`; consumed by felix (rules, dataplane), which renders them.

Family-neutral: nets carry both families, sets have members of both; the renderer splits.
Names and semantics follow Calico's calc graph (reference/datamodel.md 5).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SetKind(enum.Enum):
    """What the members of an address set look like, as text.

    NET      "10.0.0.1/32", "fd00::/64": canonical, strictly masked; a /0 is split into two /1.
    IP_PORT  "10.0.0.1,tcp,8080": address, lower-case protocol (tcp udp sctp), port.
    """

    NET = "net"
    IP_PORT = "ip-port"


class Action(enum.Enum):
    ALLOW = "allow"
    DENY = "deny"
    PASS = "next-tier"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class PortRange:
    """Inclusive; first == last for one port."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class IcmpMatch:
    """`code` None matches any code of the type. Negated matches negate the pair."""

    type: int
    code: int | None = None


@dataclass(frozen=True, slots=True)
class EntityMatch:
    """One side of a rule. Fields are ANDed, members of one field ORed, except that `ports` and
    `named_port_sets` are ORed with each other. `None`/empty means no constraint.

    `sets`: ids of NET sets the address must all be in; `not_sets`: must be in none of them.
    `ip_port_sets`: (address, protocol, port) must be in one of them (Kubernetes services).
    """

    nets: tuple[str, ...] = ()
    not_nets: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    not_sets: tuple[str, ...] = ()
    ports: tuple[PortRange, ...] = ()
    named_port_sets: tuple[str, ...] = ()
    not_ports: tuple[PortRange, ...] = ()
    not_named_port_sets: tuple[str, ...] = ()
    ip_port_sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One policy rule with selectors replaced by set ids.

    `ip_version` 4, 6 or None (both). Protocols are IANA numbers. `index` is the rule's place in
    the user's list, for comments and explain. `unmatchable` rules (a positive match that nothing
    can satisfy, e.g. an unknown service) are kept so that indexes stay true; render as nothing.
    """

    action: Action
    index: int
    ip_version: int | None = None
    protocol: int | None = None
    not_protocol: int | None = None
    icmp: IcmpMatch | None = None
    not_icmp: IcmpMatch | None = None
    source: EntityMatch = EntityMatch()
    destination: EntityMatch = EntityMatch()
    unmatchable: bool = False
    annotations: tuple[tuple[str, str], ...] = ()
