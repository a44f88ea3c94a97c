"""The packet-filter model: fields, matches, actions, rules, chains. Nothing here knows a tool.

Layer: pure. Built by the other modules of felix.rules, rendered to text by render_nft and to
netlink messages by felix.kernel.nft_codec, compared and tracked by felix.dataplane.nft_table.

Values are bytes in the kernel's own form (addresses and ports in network order, interface names
NUL-padded to 16): one canonical form, so equal rules are equal objects and hash alike.

  C1  a rule matches when all its matches do; its actions then run in order;
  C2  a field of one IP family may only be loaded behind a match on that family (`of_family`), a
      transport field only behind a match on the protocol: the kernel would read other bytes;
  C3  chains refer to each other and to sets by name only, so a chain can be replaced in place.

Source: the expressions of nf_tables (linux/netfilter/nf_tables.h); type numbers as in nft's
datatype.h (they are stored in sets, and nft prints by them).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

IFNAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class KeyType:
    """A type a set key or map value is made of. `type_id` is nft's number for it."""

    text: str
    type_id: int
    length: int

    @property
    def padded(self) -> int:
        """Bytes taken inside a concatenation: whole 32-bit registers."""
        return (self.length + 3) & ~3


IPV4_ADDR = KeyType("ipv4_addr", 7, 4)
IPV6_ADDR = KeyType("ipv6_addr", 8, 16)
INET_PROTO = KeyType("inet_proto", 12, 1)
INET_SERVICE = KeyType("inet_service", 13, 2)
IFNAME = KeyType("ifname", 41, IFNAME_BYTES)
NF_PROTO = KeyType("nf_proto", 2, 1)
ICMP_TYPE = KeyType("icmp_type", 14, 1)
ICMP_CODE = KeyType("icmp_code", 32, 1)
ICMPV6_TYPE = KeyType("icmpv6_type", 29, 1)
ICMPV6_CODE = KeyType("icmpv6_code", 33, 1)
KEY_TYPES = (
    IPV4_ADDR,
    IPV6_ADDR,
    INET_PROTO,
    INET_SERVICE,
    IFNAME,
    NF_PROTO,
    ICMP_TYPE,
    ICMP_CODE,
    ICMPV6_TYPE,
    ICMPV6_CODE,
)


class Field(enum.Enum):
    """What a match loads: (nft's words for it, its type)."""

    IIFNAME = ("iifname", IFNAME)
    OIFNAME = ("oifname", IFNAME)
    NFPROTO = ("meta nfproto", NF_PROTO)
    L4PROTO = ("meta l4proto", INET_PROTO)
    IP4_SADDR = ("ip saddr", IPV4_ADDR)
    IP4_DADDR = ("ip daddr", IPV4_ADDR)
    IP6_SADDR = ("ip6 saddr", IPV6_ADDR)
    IP6_DADDR = ("ip6 daddr", IPV6_ADDR)
    TH_SPORT = ("th sport", INET_SERVICE)
    TH_DPORT = ("th dport", INET_SERVICE)
    ICMP_TYPE = ("icmp type", ICMP_TYPE)
    ICMP_CODE = ("icmp code", ICMP_CODE)
    ICMPV6_TYPE = ("icmpv6 type", ICMPV6_TYPE)
    ICMPV6_CODE = ("icmpv6 code", ICMPV6_CODE)

    def __init__(self, text: str, key_type: KeyType) -> None:
        self.text = text
        self.type = key_type


# The address fields of each IP family.
SADDR = {4: Field.IP4_SADDR, 6: Field.IP6_SADDR}
DADDR = {4: Field.IP4_DADDR, 6: Field.IP6_DADDR}


class CtState(enum.IntFlag):
    """Connection states as the kernel's bit mask (NF_CT_STATE_BIT; nft prints their names)."""

    INVALID = 1
    ESTABLISHED = 2
    RELATED = 4
    NEW = 8
    UNTRACKED = 64


class CtStatus(enum.IntFlag):
    """What was done to a connection, as the kernel's bit mask (enum ip_conntrack_status)."""

    DNAT = 32


# ---------------------------------------------------------------------------------- matches


@dataclass(frozen=True, slots=True)
class Compare:
    """Field equals `value`. An interface name shorter than 16 bytes is a prefix ("cali*")."""

    field: Field
    value: bytes
    negated: bool = False


@dataclass(frozen=True, slots=True)
class InNet:
    """An address field lies in network `base`/`prefix_len` (0 < prefix_len < full)."""

    field: Field
    base: bytes
    prefix_len: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Between:
    """A port field lies in `first`..`last`, inclusive."""

    field: Field
    first: bytes
    last: bytes
    negated: bool = False


@dataclass(frozen=True, slots=True)
class InState:
    """The connection is in one of `states`."""

    states: CtState


@dataclass(frozen=True, slots=True)
class InStatus:
    """One of `statuses` is true of the connection."""

    statuses: CtStatus


@dataclass(frozen=True, slots=True)
class Marked:
    """All `bits` of the packet's mark are set."""

    bits: int


@dataclass(frozen=True, slots=True)
class Literal:
    """An anonymous set inside one rule. Elements as in SetSpec, sorted, disjoint.

    Interval elements are `first + last` (inclusive), others plain keys."""

    elements: tuple[bytes, ...]
    interval: bool = False


@dataclass(frozen=True, slots=True)
class Lookup:
    """The concatenation of `fields` is in a set: a named one or a Literal."""

    fields: tuple[Field, ...]
    members: str | Literal
    negated: bool = False


Match = Compare | InNet | Between | InState | InStatus | Marked | Lookup


# ---------------------------------------------------------------------------------- actions


class VerdictCode(enum.Enum):
    ACCEPT = "accept"
    DROP = "drop"
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ends the rule. ACCEPT ends the base chain, not the hook; DROP is final.

    RETURN from a chain entered by GOTO leaves the chain that did the GOTO too."""

    code: VerdictCode
    chain: str = ""


ACCEPT = Verdict(VerdictCode.ACCEPT)
DROP = Verdict(VerdictCode.DROP)
RETURN = Verdict(VerdictCode.RETURN)


def jump(chain: str) -> Verdict:
    return Verdict(VerdictCode.JUMP, chain)


def goto(chain: str) -> Verdict:
    return Verdict(VerdictCode.GOTO, chain)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Look the fields up in a verdict map; without an entry go on with the next rule."""

    fields: tuple[Field, ...]
    map_name: str


@dataclass(frozen=True, slots=True)
class Reject:
    """Drop and tell the sender: ICMP port unreachable of the packet's family, or a reset.

    A reset needs a match on TCP before it."""

    tcp_reset: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """Write a kernel log line (level notice) and go on. `prefix` at most 127 bytes."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Limit:
    """Go on with the rule only below this rate; only above it when `over`.

    `unit_s` is 1, 60, 3600 or 86400. The kernel counts per rule, anew when it is rewritten."""

    rate: int
    unit_s: int
    burst: int
    over: bool = False


@dataclass(frozen=True, slots=True)
class CountConnections:
    """Count the packet's connection; go on with the rule only when there are more than `limit`.

    Counted are those whose packets came this far, until they are closed or forgotten; anew when
    the rule is rewritten."""

    limit: int


@dataclass(frozen=True, slots=True)
class SetDscp:
    """Write the DSCP (0-63) of a packet of this IP version; ECN stays (RFC 2474, RFC 3168)."""

    version: int
    value: int


@dataclass(frozen=True, slots=True)
class Count:
    """Count packets and bytes."""


@dataclass(frozen=True, slots=True)
class NoTrack:
    """Do not track this packet's connection (raw stage only)."""


@dataclass(frozen=True, slots=True)
class SetMark:
    """Set `bits` of the packet's mark, or clear them; the others stay."""

    bits: int
    on: bool = True


@dataclass(frozen=True, slots=True)
class Masquerade:
    """Source NAT to the outgoing interface's address, from `ports` when given."""

    ports: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SourceNat:
    """Source NAT to one address."""

    address: bytes
    ports: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NatByMap:
    """Translate an address (source or destination) to what the map says for `field`.

    Without an entry the rule ends and the packet is not translated."""

    field: Field
    map_name: str
    source: bool


Action = (
    Verdict
    | Dispatch
    | Reject
    | Log
    | Limit
    | CountConnections
    | Count
    | SetDscp
    | SetMark
    | NoTrack
    | Masquerade
    | SourceNat
    | NatByMap
)


# ---------------------------------------------------------------------------- rules, chains


@dataclass(frozen=True, slots=True)
class Rule:
    matches: tuple[Match, ...]
    actions: tuple[Action, ...]
    comment: str = ""


class Hook(enum.Enum):
    """Where a base chain hangs: (nft's word, the kernel's number in the inet family)."""

    PREROUTING = ("prerouting", 0)
    INPUT = ("input", 1)
    FORWARD = ("forward", 2)
    OUTPUT = ("output", 3)
    POSTROUTING = ("postrouting", 4)

    def __init__(self, text: str, number: int) -> None:
        self.text = text
        self.number = number


@dataclass(frozen=True, slots=True)
class BaseHook:
    """A base chain's place. Its policy is always accept: what we refuse, a rule of ours drops."""

    hook: Hook
    priority: int
    type: str = "filter"


@dataclass(frozen=True, slots=True)
class Chain:
    name: str
    rules: tuple[Rule, ...]
    base: BaseHook | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class References:
    """What one chain needs to exist."""

    chains: frozenset[str]
    sets: frozenset[str]


def references(chain: Chain) -> References:
    chains: set[str] = set()
    sets: set[str] = set()
    for rule in chain.rules:
        for match in rule.matches:
            if isinstance(match, Lookup) and isinstance(match.members, str):
                sets.add(match.members)
        for action in rule.actions:
            if isinstance(action, Verdict) and action.chain:
                chains.add(action.chain)
            elif isinstance(action, Dispatch | NatByMap):
                sets.add(action.map_name)
    return References(frozenset(chains), frozenset(sets))


# --------------------------------------------------------------------------------- builders


def ifname_bytes(name: str) -> bytes:
    """An interface name as the kernel loads it."""
    return name.encode().ljust(IFNAME_BYTES, b"\0")


def port_bytes(port: int) -> bytes:
    return port.to_bytes(2, "big")


_FAMILIES = {4: Compare(Field.NFPROTO, b"\x02"), 6: Compare(Field.NFPROTO, b"\x0a")}


def of_family(version: int) -> Compare:
    """Only packets of IPv4 or IPv6 (NFPROTO_IPV4 2, NFPROTO_IPV6 10)."""
    return _FAMILIES[version]


def of_protocol(protocol: int, *, negated: bool = False) -> Compare:
    return Compare(Field.L4PROTO, bytes([protocol]), negated)


def key_of(*parts: tuple[KeyType, bytes]) -> bytes:
    """The key of a concatenation: each part padded to whole registers."""
    return b"".join(value.ljust(key_type.padded, b"\0") for key_type, value in parts)


def key_types(fields: tuple[Field, ...]) -> tuple[KeyType, ...]:
    return tuple(field.type for field in fields)


def key_length(types: tuple[KeyType, ...]) -> int:
    """Length of a set's key: a single field is not padded, a concatenation is."""
    return types[0].length if len(types) == 1 else sum(part.padded for part in types)


def split_key(types: tuple[KeyType, ...], key: bytes) -> Iterator[tuple[KeyType, bytes]]:
    """The parts of a key, padding removed."""
    at = 0
    for part in types:
        yield part, key[at : at + part.length]
        at += part.padded
