"""The matches of one rule as iptables words: one line, or several where iptables knows no OR.

Layer: pure. Used by render_iptables.

iptables takes one `-p`, `-s` and `-d` a rule, 15 ports a match and no lists of anything else. So
conditions are collected by field first, and then written:

  protocols   narrowed to a list (one line for each), or to exclusions; of several exclusions a mark
              bit keeps count over a few lines (`Words.excluded`)
  addresses   the first is `-s` or `-d`; lists, and whatever comes after the first, are sets
  ports       multiport, 15 at a time: positive ones in further lines, negated ones in further words
  pairs       a literal of several fields is taken apart into its elements, one line for each

  X1  the lines of a rule together match what the rule matches, in this family (property test);
  X2  a rule that no packet of this family can meet has no lines.

Source: iptables-extensions(8).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from felix.rules import ipt_names
from felix.rules.chain import (
    Between,
    Compare,
    CtState,
    CtStatus,
    Field,
    InNet,
    InState,
    InStatus,
    KeyType,
    Literal,
    Lookup,
    Marked,
    Match,
    key_of,
    split_key,
)
from felix.rules.match import ICMP_PROTOCOL, PORT_PROTOCOLS, merge_ranges
from felix.rules.sets import ADDRESS_TYPE, BITS, SetSpec, net_element

# A range counts twice.
_MULTIPORT_MAX = 15
_PROTOCOL_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp", 132: "sctp", 136: "udplite"}
_FAMILY_NUMBERS = {4: b"\x02", 6: b"\x0a"}
_ADDRESSES = {
    4: {Field.IP4_SADDR: "-s", Field.IP4_DADDR: "-d"},
    6: {Field.IP6_SADDR: "-s", Field.IP6_DADDR: "-d"},
}
_INTERFACES = {Field.IIFNAME: "-i", Field.OIFNAME: "-o"}
_PORTS = {Field.TH_SPORT: "--sports", Field.TH_DPORT: "--dports"}
_TYPES, _CODES = (Field.ICMP_TYPE, Field.ICMPV6_TYPE), (Field.ICMP_CODE, Field.ICMPV6_CODE)
_SET_DIRECTIONS = {
    Field.IIFNAME: "src",
    Field.OIFNAME: "dst",
    Field.IP4_SADDR: "src",
    Field.IP4_DADDR: "dst",
    Field.IP6_SADDR: "src",
    Field.IP6_DADDR: "dst",
    Field.TH_SPORT: "src",
    Field.TH_DPORT: "dst",
}

Ranges = list[tuple[int, int]]


class Unrenderable(ValueError):
    """A match that iptables has no words for: a bug of whoever made the rule."""


@dataclass(frozen=True, slots=True)
class LiteralSet:
    """A set that belongs to a rule. `elements` are interval elements of `spec`."""

    name: str
    spec: SetSpec
    elements: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """One line's matches. A packet must be of none of the `excluded` protocols."""

    text: str
    excluded: tuple[str, ...] = ()


@dataclass(slots=True)
class Found:
    """All lines of a rule's matches, and the sets they look up."""

    lines: list[Words] = field(default_factory=list)
    sets: set[str] = field(default_factory=set)
    literals: list[LiteralSet] = field(default_factory=list)


def words_of(matches: Sequence[Match], version: int) -> Found:
    found = Found()
    for conjunction in _apart(matches):
        draft = _Draft(version, found)
        if all(draft.add(match) for match in _with_codes(conjunction)):
            found.lines += draft.lines()
    return found


def _apart(matches: Sequence[Match]) -> Iterator[tuple[Match, ...]]:
    """X1: positive literals of several fields, one conjunction for each combination."""
    choices: list[list[tuple[Match, ...]]] = []
    for match in matches:
        is_combined = (
            isinstance(match, Lookup)
            and isinstance(match.members, Literal)
            and len(match.fields) > 1
            and not match.negated
        )
        if is_combined:
            assert isinstance(match, Lookup)
            choices.append(list(_elements_apart(match)))
        else:
            choices.append([(match,)])
    for chosen in itertools.product(*choices):
        yield tuple(itertools.chain(*chosen))


def _elements_apart(match: Lookup) -> Iterator[tuple[Match, ...]]:
    literal = match.members
    assert isinstance(literal, Literal)
    types = tuple(one.type for one in match.fields)
    for element in literal.elements:
        half = len(element) // 2 if literal.interval else 0
        first = [value for _type, value in split_key(types, element)]
        last = [value for _type, value in split_key(types, element[half:])]
        yield tuple(map(_between, match.fields, first, last))


def _with_codes(matches: Iterable[Match]) -> Iterator[Match]:
    """An ICMP type and the code behind it as one pair: iptables has no words for the code alone."""
    held: Compare | None = None
    for match in matches:
        plain = match if isinstance(match, Compare) and not match.negated else None
        if held is not None and plain is not None and plain.field in _CODES:
            pair = key_of((held.field.type, held.value), (plain.field.type, plain.value))
            yield Lookup((held.field, plain.field), Literal((pair,)))
            held = None
            continue
        if held is not None:
            yield held
            held = None
        if plain is not None and plain.field in _TYPES:
            held = plain
        else:
            yield match
    if held is not None:
        yield held


def _between(one: Field, first: bytes, last: bytes) -> Match:
    if first == last:
        return Compare(one, first)
    return Lookup((one,), Literal((first + last,), interval=True))


class _Draft:
    """The conditions of one conjunction, by field."""

    def __init__(self, version: int, found: Found) -> None:
        self._version, self._found = version, found
        self._allowed: set[int] | None = None
        self._excluded: set[int] = set()
        self._plain: list[str] = []  # words that stand for themselves
        self._nets: list[str] = []  # -s, -d
        self._has_net: set[Field] = set()
        self._ports: list[list[str]] = []  # alternatives
        self._icmp: list[list[str]] = []  # alternatives

    # Each `add` returns False when no packet of this family can match (X2).

    def add(self, match: Match) -> bool:
        words = _words_without_field(match)
        if words:
            self._plain.append(words)
            return True
        if isinstance(match, Lookup):
            return self._lookup(match)
        if isinstance(match, InNet):
            base = int.from_bytes(match.base, "big")
            return self._address(match.field, _cidr(match, base), match.negated)
        if isinstance(match, Between):
            ports = [(_number(match.first), _number(match.last))]
            return self._port(match.field, ports, match.negated)
        assert isinstance(match, Compare)
        return self._compare(match)

    def _compare(self, match: Compare) -> bool:
        one, value, negated = match.field, match.value, match.negated
        if one is Field.NFPROTO:
            return (value == _FAMILY_NUMBERS[self._version]) is not negated
        if one is Field.L4PROTO:
            return self._protocols({value[0]}, negated)
        if one in _INTERFACES:
            # Shorter than 16 bytes: any ending.
            name = value.rstrip(b"\0").decode() + ("+" if len(value) < 16 else "")
            self._plain.append(f"{_not(negated)}{_INTERFACES[one]} {name}")
            return True
        if one in _PORTS:
            return self._port(one, [(_number(value), _number(value))], negated)
        if one in _TYPES:
            return self._icmp_types([str(value[0])], negated)
        if one in _CODES:
            raise Unrenderable("an ICMP code without its type")
        return self._address(one, _address_text(value), negated)

    def _lookup(self, match: Lookup) -> bool:
        if isinstance(match.members, str):
            name = ipt_names.set_name(match.members, self._version)
            self._found.sets.add(match.members)
            return self._set(name, match.fields, match.negated)
        literal, one = match.members, match.fields[0]
        if match.fields in ((_TYPES[0], _CODES[0]), (_TYPES[1], _CODES[1])):
            types = tuple(part.type for part in match.fields)
            pairs = [_pair(types, element) for element in literal.elements]
            return self._icmp_types(pairs, match.negated)
        if len(match.fields) > 1:
            raise Unrenderable("a negated literal of several fields")
        if one is Field.L4PROTO:
            return self._protocols({element[0] for element in literal.elements}, match.negated)
        if one in _PORTS:
            return self._port(one, list(_port_ranges(literal)), match.negated)
        if one in _TYPES:
            return self._icmp_types([str(e[0]) for e in literal.elements], match.negated)
        return self._literal(one, literal, match.negated)

    # ------------------------------------------------------------------------- by field

    def _protocols(self, numbers: set[int], negated: bool) -> bool:
        if negated:
            self._excluded |= numbers
        else:
            self._allowed = numbers if self._allowed is None else self._allowed & numbers
        # Number 0 means "all" to iptables.
        return self._allowed is None or bool(self._allowed - self._excluded - {0})

    def _address(self, one: Field, text: str, negated: bool) -> bool:
        option = _ADDRESSES[self._version].get(one)
        if option is None:
            return False
        if one in self._has_net:
            return self._literal(one, Literal((_element(text),), interval=True), negated)
        self._has_net.add(one)
        self._nets.append(f"{_not(negated)}{option} {text}")
        return True

    def _literal(self, one: Field, literal: Literal, negated: bool) -> bool:
        if one not in _ADDRESSES[self._version]:
            return False
        elements = tuple(sorted(e if literal.interval else e + e for e in literal.elements))
        name = ipt_names.literal_set_name(self._version, *(e.hex() for e in elements))
        spec = SetSpec(name, (ADDRESS_TYPE[self._version],), interval=True)
        self._found.literals.append(LiteralSet(name, spec, elements))
        return self._set(name, (one,), negated)

    def _set(self, name: str, fields: tuple[Field, ...], negated: bool) -> bool:
        # The protocol is no dimension of its own: a port in an ipset comes with it. The address is
        # the first one there, whatever our order is.
        told = [one for one in fields if one is not Field.L4PROTO]
        told.sort(key=lambda one: one in _INTERFACES)
        directions = ",".join(_SET_DIRECTIONS[one] for one in told)
        self._plain.append(f"-m set {_not(negated)}--match-set {name} {directions}")
        return True

    def _port(self, one: Field, ports: Ranges, negated: bool) -> bool:
        chunks = [
            f"-m multiport {_not(negated)}{_PORTS[one]} {text}" for text in _multiports(ports)
        ]
        self._ports += [[chunk] for chunk in chunks] if negated else [chunks]
        return self._protocols(set(PORT_PROTOCOLS), negated=False)

    def _icmp_types(self, types: list[str], negated: bool) -> bool:
        option = "-m icmp {}--icmp-type" if self._version == 4 else "-m icmp6 {}--icmpv6-type"
        words = [f"{option.format(_not(negated))} {one}" for one in types]
        self._icmp += [[one] for one in words] if negated else [words]
        return self._protocols({ICMP_PROTOCOL[self._version]}, negated=False)

    # ------------------------------------------------------------------------- writing

    def lines(self) -> Iterator[Words]:
        protocols, excluded = self._protocol_words()
        choices = [protocols, *self._ports, *self._icmp]
        for chosen in itertools.product(*choices):
            head, *rest = chosen
            words = [head, *self._nets, *self._plain, *rest]
            yield Words(" ".join(filter(None, words)), excluded)

    def _protocol_words(self) -> tuple[list[str], tuple[str, ...]]:
        if self._allowed is not None:
            numbers = sorted(self._allowed - self._excluded - {0})
            return [f"-p {protocol_text(number)}" for number in numbers], ()
        names = [protocol_text(number) for number in sorted(self._excluded)]
        if len(names) > 1:
            return [""], tuple(names)
        return [f"! -p {name}" for name in names] or [""], ()


def _words_without_field(match: Match) -> str:
    """What is asked of the connection or the mark; "" for all else."""
    if isinstance(match, InState):
        names = [str(one.name) for one in CtState if one & match.states]
        return f"-m conntrack --ctstate {','.join(names)}"
    if isinstance(match, InStatus):
        # iptables counts "was translated" among the states.
        names = [str(one.name) for one in CtStatus if one & match.statuses]
        return f"-m conntrack --ctstate {','.join(names)}"
    if isinstance(match, Marked):
        return f"-m mark --mark {match.bits:#x}/{match.bits:#x}"
    return ""


def protocol_text(number: int) -> str:
    return _PROTOCOL_NAMES.get(number, str(number))


def _not(negated: bool) -> str:
    return "! " if negated else ""


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _address_text(value: bytes) -> str:
    return str(IPv4Address(value)) if len(value) == 4 else str(IPv6Address(value))


def _cidr(match: InNet, base: int) -> str:
    bits = match.field.type.length * 8
    masked = base >> (bits - match.prefix_len) << (bits - match.prefix_len)
    return f"{_address_text(masked.to_bytes(bits // 8, 'big'))}/{match.prefix_len}"


def _element(text: str) -> bytes:
    """The interval element of an address or network."""
    address, _slash, length = text.partition("/")
    version = 6 if ":" in address else 4
    base = int(IPv6Address(address) if version == 6 else IPv4Address(address))
    return net_element(version, base, int(length) if length else BITS[version])


def _pair(types: tuple[KeyType, ...], element: bytes) -> str:
    return "/".join(str(value[0]) for _type, value in split_key(types, element))


def _port_ranges(literal: Literal) -> Iterator[tuple[int, int]]:
    for element in literal.elements:
        first = _number(element[:2])
        yield first, _number(element[2:]) if literal.interval else first


def _multiports(ports: Iterable[tuple[int, int]]) -> list[str]:
    """Lists that multiport takes, as few as possible."""
    found: list[str] = []
    room = 0
    for first, last in merge_ranges(ports):
        size = 1 if first == last else 2
        text = str(first) if first == last else f"{first}:{last}"
        if room < size:
            found.append(text)
            room = _MULTIPORT_MAX
        else:
            found[-1] += f",{text}"
        room -= size
    return found
