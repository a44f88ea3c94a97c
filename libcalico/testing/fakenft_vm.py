"""Expressions of nf_tables executed on one packet: what the kernel does with the bytes we send.

Layer: testing. Used by fakenft, which keeps tables, chains and sets.

It reads the expressions as netlink attributes, not our model: an encoder that writes a wrong
offset, register or length is found out here, without root.

Source: net/netfilter/nf_tables_core.c, nft_{meta,payload,cmp,bitwise,range,lookup,ct,nat}.c.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from libcalico.netlink.messages import iter_attrs, parse_attrs, read_text

ACCEPT, DROP = 1, 0
CONTINUE, BREAK, JUMP, GOTO, RETURN = -1, -2, -3, -4, -5
DATA_VERDICT = 0xFFFFFF00
_REGISTER_BYTES = 64 + 16

STATES = {"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}
PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132, "ipip": 4}


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet in words. `protocol` is a number or a key of PROTOCOLS."""

    src: str
    dst: str
    protocol: int | str = "tcp"
    sport: int = 40000
    dport: int = 80
    icmp_type: int = 8
    icmp_code: int = 0
    state: str = "new"
    is_dnat: bool = False

    @property
    def version(self) -> int:
        return 6 if ":" in self.src else 4

    @property
    def number(self) -> int:
        return self.protocol if isinstance(self.protocol, int) else PROTOCOLS[self.protocol]

    def network_header(self) -> bytes:
        src, dst = ipaddress.ip_address(self.src).packed, ipaddress.ip_address(self.dst).packed
        if self.version == 4:
            return struct.pack(">BBHHHBBH", 0x45, 0, 40, 0, 0, 64, self.number, 0) + src + dst
        return struct.pack(">IHBB", 0x60000000, 20, self.number, 64) + src + dst

    def transport_header(self) -> bytes:
        if self.number in (1, 58):
            return bytes((self.icmp_type, self.icmp_code)) + bytes(6)
        if self.number in (6, 17, 132, 136):
            return struct.pack(">HH", self.sport, self.dport) + bytes(16)
        return bytes(4)


class SetView(Protocol):
    """What a lookup needs of a set."""

    key_length: int

    def find(self, key: bytes) -> tuple[bool, object]:
        """(present, value): the value is a Verdict, bytes, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    code: int
    chain: str = ""


@dataclass(slots=True)
class Skb:
    """What sticks to a packet from hook to hook: its mark, and whether it is left untracked."""

    mark: int = 0
    is_untracked: bool = False


@dataclass(slots=True)
class Context:
    """One packet on its way through one hook."""

    packet: Packet
    iifname: str
    oifname: str
    sets: Callable[[str], SetView]
    logs: list[str] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    skb: Skb = field(default_factory=Skb)
    registers: bytearray = field(default_factory=lambda: bytearray(_REGISTER_BYTES))
    verdict: Verdict | None = None

    def load(self, register: int, value: bytes) -> None:
        """Store and zero the rest of the last 32-bit register, as the kernel does."""
        at = _offset(register)
        padded = value + b"\0" * (-len(value) & 3)
        self.registers[at : at + len(padded)] = padded

    def read(self, register: int, length: int) -> bytes:
        at = _offset(register)
        return bytes(self.registers[at : at + length])


def _offset(register: int) -> int:
    """Registers 1-4 are 16 bytes each, 8 and up 4 bytes each, over the same memory."""
    if 1 <= register <= 4:
        return (register - 1) * 16
    if 8 <= register < 24:
        return (register - 8) * 4
    raise ValueError(f"register {register}")


def _number(value: memoryview) -> int:
    return int.from_bytes(value, "big")


Attrs = dict[int, memoryview]
# An expression returns False to end the rule (NFT_BREAK).
Expression = Callable[[Context], bool]


@dataclass(frozen=True, slots=True)
class Decoded:
    """One expression: what it does, and what it refers to."""

    name: str
    run: Expression
    chain: str = ""
    set_name: str = ""
    set_id: int = 0
    # The same lookup in a set of another name: anonymous sets are named when they are made.
    bind: Callable[[str], Expression] | None = None


class Unsupported(Exception):
    """The kernel would refuse it (or this fake does not know it, which is as good)."""


def decode(expressions: memoryview) -> tuple[Decoded, ...]:
    """NFTA_RULE_EXPRESSIONS as a program. Errors: Unsupported."""
    found: list[Decoded] = []
    for kind, listed in iter_attrs(expressions):
        if kind != 1:
            raise Unsupported(f"list attribute {kind}")
        attrs = parse_attrs(listed, 0)
        name = read_text(attrs[1])
        build = _BUILDERS.get(name)
        if build is None:
            raise Unsupported(name)
        found.append(build(parse_attrs(attrs[2], 0) if 2 in attrs else {}))
    return tuple(found)


def _data(value: memoryview) -> bytes:
    return bytes(parse_attrs(value, 0)[1])


def verdict_of(value: memoryview) -> Verdict:
    """NFTA_DATA_VERDICT inside a data attribute."""
    attrs = parse_attrs(parse_attrs(value, 0)[2], 0)
    code = int.from_bytes(attrs[1], "big", signed=True)
    if code not in (ACCEPT, DROP, JUMP, GOTO, RETURN):
        raise Unsupported(f"verdict {code}")
    if (code in (JUMP, GOTO)) != (2 in attrs):
        raise Unsupported("a jump needs a chain, and only a jump does")
    return Verdict(code, read_text(attrs[2]) if 2 in attrs else "")


# --------------------------------------------------------------------------------- loading


def _meta(attrs: Attrs) -> Decoded:
    if 3 in attrs:
        return _meta_write(attrs)
    key, register = _number(attrs[2]), _number(attrs[1])

    def run(context: Context) -> bool:
        packet = context.packet
        values = {
            6: context.iifname.encode().ljust(16, b"\0"),
            7: context.oifname.encode().ljust(16, b"\0"),
            15: bytes([2 if packet.version == 4 else 10]),
            16: bytes([packet.number]),
            3: struct.pack("=I", context.skb.mark),
        }
        if key in (6, 7) and not values[key].strip(b"\0"):
            return False  # no such interface at this hook
        context.load(register, values[key])
        return True

    if key not in (3, 6, 7, 15, 16):
        raise Unsupported(f"meta {key}")
    return Decoded("meta", run)


def _meta_write(attrs: Attrs) -> Decoded:
    register = _number(attrs[3])
    if _number(attrs[2]) != 3:
        raise Unsupported("only the mark is written")

    def run(context: Context) -> bool:
        (context.skb.mark,) = struct.unpack("=I", context.read(register, 4))
        return True

    return Decoded("meta", run)


def _payload(attrs: Attrs) -> Decoded:
    if 5 in attrs:
        return _payload_write(attrs)
    register, base = _number(attrs[1]), _number(attrs[2])
    offset, length = _number(attrs[3]), _number(attrs[4])
    if base not in (1, 2):
        raise Unsupported(f"payload base {base}")

    def run(context: Context) -> bool:
        packet = context.packet
        header = packet.network_header() if base == 1 else packet.transport_header()
        value = header[offset : offset + length]
        if len(value) < length:
            return False
        context.load(register, value)
        return True

    return Decoded("payload", run)


def _payload_write(attrs: Attrs) -> Decoded:
    """Only the first two bytes of the network header, which hold the DSCP."""
    register, checksum = _number(attrs[5]), (_number(attrs[6]), _number(attrs[7]))
    if [_number(attrs[number]) for number in (2, 3, 4)] != [1, 0, 2]:
        raise Unsupported("only the start of the network header is written")

    def run(context: Context) -> bool:
        before, after = context.packet.network_header()[:2], context.read(register, 2)
        word = int.from_bytes(after, "big")
        if context.packet.version == 4:
            dscp, rest, good = word >> 2 & 63, 0xFF03, (1, 10)
        else:
            dscp, rest, good = word >> 6 & 63, 0xF03F, (0, 0)
        if (int.from_bytes(before, "big") ^ word) & rest or checksum != good:
            context.effects.append("broken header")
        context.effects.append(f"dscp {dscp}")
        return True

    return Decoded("payload", run)


def _ct(attrs: Attrs) -> Decoded:
    register, key = _number(attrs[1]), _number(attrs[2])
    if key not in (0, 2):
        raise Unsupported("only ct state and status")

    def run(context: Context) -> bool:
        is_untracked = context.skb.is_untracked
        if key == 2:
            # An untracked packet has no connection to have a status.
            value = 32 if context.packet.is_dnat else 0
            context.load(register, struct.pack("=I", value))
            return not is_untracked
        value = STATES["untracked" if is_untracked else context.packet.state]
        context.load(register, struct.pack("=I", value))
        return True

    return Decoded("ct", run)


def _immediate(attrs: Attrs) -> Decoded:
    register = _number(attrs[1])
    if register == 0:
        verdict = verdict_of(attrs[2])

        def decide(context: Context) -> bool:
            context.verdict = verdict
            return True

        return Decoded("immediate", decide, chain=verdict.chain)
    value = _data(attrs[2])

    def run(context: Context) -> bool:
        context.load(register, value)
        return True

    return Decoded("immediate", run)


# ------------------------------------------------------------------------------- comparing


def _cmp(attrs: Attrs) -> Decoded:
    register, op, value = _number(attrs[1]), _number(attrs[2]), _data(attrs[3])
    if op not in (0, 1):
        raise Unsupported(f"cmp {op}")
    return Decoded("cmp", lambda context: (context.read(register, len(value)) == value) != op)


def _bitwise(attrs: Attrs) -> Decoded:
    source, target, length = (_number(attrs[number]) for number in (1, 2, 3))
    mask, flip = _data(attrs[4]), _data(attrs[5])
    if not length == len(mask) == len(flip):
        raise Unsupported("bitwise lengths")

    def run(context: Context) -> bool:
        pairs = zip(context.read(source, length), mask, flip, strict=True)
        context.load(target, bytes(value & m ^ x for value, m, x in pairs))
        return True

    return Decoded("bitwise", run)


def _range(attrs: Attrs) -> Decoded:
    register, op = _number(attrs[1]), _number(attrs[2])
    first, last = _data(attrs[3]), _data(attrs[4])
    if len(first) != len(last) or first > last:
        raise Unsupported("range")

    def run(context: Context) -> bool:
        return (first <= context.read(register, len(first)) <= last) != op

    return Decoded("range", run)


def _lookup(attrs: Attrs) -> Decoded:
    name, source = read_text(attrs[1]), _number(attrs[2])
    target = _number(attrs[3]) if 3 in attrs else None
    is_negated = bool(_number(attrs[5]) & 1) if 5 in attrs else False
    if is_negated and target is not None:
        raise Unsupported("a negated map")

    def bind(bound: str) -> Expression:
        def run(context: Context) -> bool:
            members = context.sets(bound)
            present, value = members.find(context.read(source, members.key_length))
            if present == is_negated:
                return False
            if target == 0:
                assert isinstance(value, Verdict), "a verdict map"
                context.verdict = value
            elif target is not None:
                assert isinstance(value, bytes), "a data map"
                context.load(target, value)
            return True

        return run

    set_id = _number(attrs[4]) if 4 in attrs else 0
    return Decoded("lookup", bind(name), set_name=name, set_id=set_id, bind=bind)


# --------------------------------------------------------------------------------- effects


def _log(attrs: Attrs) -> Decoded:
    prefix = read_text(attrs[2])
    if len(prefix.encode()) > 127:
        raise Unsupported("log prefix")

    def run(context: Context) -> bool:
        context.logs.append(prefix)
        return True

    return Decoded("log", run)


def _limit(attrs: Attrs) -> Decoded:
    """Time stands still: an inverted limit lets its burst pass and matches ever after. (Others
    always match: what they protect is a log line.)"""
    rate, burst, is_inverted = _number(attrs[1]), _number(attrs[3]), _number(attrs[5]) & 1
    if not rate:
        raise Unsupported("limit without a rate")
    left = [burst]

    def run(_context: Context) -> bool:
        left[0] -= 1
        return not is_inverted or left[0] < 0

    return Decoded("limit", run)


def _connlimit(attrs: Attrs) -> Decoded:
    limit, is_inverted = _number(attrs[1]), bool(_number(attrs[2]) & 1)
    connections: set[tuple[object, ...]] = set()

    def run(context: Context) -> bool:
        packet = context.packet
        connection = (packet.src, packet.dst, packet.number, packet.sport, packet.dport)
        is_over = len(connections | {connection}) > limit
        if not is_over:
            connections.add(connection)
        return is_over == is_inverted

    return Decoded("connlimit", run)


def _reject(attrs: Attrs) -> Decoded:
    kind = _number(attrs[1])
    if kind not in (1, 2):
        raise Unsupported(f"reject {kind}")

    def run(context: Context) -> bool:
        if kind == 1 and context.packet.number != PROTOCOLS["tcp"]:
            return False
        context.effects.append("reset" if kind == 1 else "reject")
        context.verdict = Verdict(DROP)
        return True

    return Decoded("reject", run)


def _notrack(_attrs: Attrs) -> Decoded:
    def run(context: Context) -> bool:
        context.effects.append("notrack")
        context.skb.is_untracked = True
        return True

    return Decoded("notrack", run)


def _nothing(name: str) -> Callable[[Attrs], Decoded]:
    return lambda _attrs: Decoded(name, lambda _context: True)


def _masq(_attrs: Attrs) -> Decoded:
    def run(context: Context) -> bool:
        context.effects.append("masquerade")
        context.verdict = Verdict(ACCEPT)
        return True

    return Decoded("masq", run)


def _nat(attrs: Attrs) -> Decoded:
    kind = {0: "snat", 1: "dnat"}[_number(attrs[1])]
    length = {2: 4, 10: 16}[_number(attrs[2])]
    register = _number(attrs[3])

    def run(context: Context) -> bool:
        address = ipaddress.ip_address(context.read(register, length))
        context.effects.append(f"{kind} {address}")
        context.verdict = Verdict(ACCEPT)
        return True

    return Decoded("nat", run)


_BUILDERS: dict[str, Callable[[Attrs], Decoded]] = {
    "meta": _meta,
    "payload": _payload,
    "ct": _ct,
    "immediate": _immediate,
    "cmp": _cmp,
    "bitwise": _bitwise,
    "range": _range,
    "lookup": _lookup,
    "log": _log,
    "limit": _limit,
    "connlimit": _connlimit,
    "counter": _nothing("counter"),
    "reject": _reject,
    "notrack": _notrack,
    "masq": _masq,
    "nat": _nat,
}
