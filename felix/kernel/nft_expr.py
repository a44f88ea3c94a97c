"""One rule as a list of nf_tables expressions: pure, bytes out.

Layer: felix.kernel, no I/O. Used by nft_codec.

A match loads a field into register 1 (a concatenation into consecutive 32-bit registers) and
compares; actions are verdicts in the verdict register or expressions of their own. The encoded form
of loads and of frequent comparisons is cached: the same few make up most rules.

Source: linux/netfilter/nf_tables.h (attribute numbers are those of the enum named beside them).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from felix.rules.chain import (
    Action,
    Between,
    Compare,
    Count,
    CountConnections,
    Dispatch,
    Field,
    InNet,
    InState,
    InStatus,
    Limit,
    Literal,
    Log,
    Lookup,
    Marked,
    Masquerade,
    Match,
    NatByMap,
    NoTrack,
    Reject,
    Rule,
    SetDscp,
    SetMark,
    SourceNat,
    Verdict,
    VerdictCode,
    key_types,
)
from felix.rules.sets import SetSpec
from libcalico.netlink.messages import attr, attr_text, nested

_BE32 = struct.Struct(">I")
_BE64 = struct.Struct(">Q")

REG_VERDICT, REG_1, REG_2, REG32_00 = 0, 1, 2, 8
# nft_meta_keys, nft_payload_bases
_META = {
    Field.IIFNAME: 6,
    Field.OIFNAME: 7,
    Field.NFPROTO: 15,
    Field.L4PROTO: 16,
}
_META_MARK = 3
_CT_STATE, _CT_STATUS = 0, 2
_NETWORK, _TRANSPORT = 1, 2
_PAYLOAD = {
    Field.IP4_SADDR: (_NETWORK, 12),
    Field.IP4_DADDR: (_NETWORK, 16),
    Field.IP6_SADDR: (_NETWORK, 8),
    Field.IP6_DADDR: (_NETWORK, 24),
    Field.TH_SPORT: (_TRANSPORT, 0),
    Field.TH_DPORT: (_TRANSPORT, 2),
    Field.ICMP_TYPE: (_TRANSPORT, 0),
    Field.ICMP_CODE: (_TRANSPORT, 1),
    Field.ICMPV6_TYPE: (_TRANSPORT, 0),
    Field.ICMPV6_CODE: (_TRANSPORT, 1),
}
_VERDICTS = {
    VerdictCode.ACCEPT: 1,
    VerdictCode.DROP: 0,
    VerdictCode.JUMP: -3,
    VerdictCode.GOTO: -4,
    VerdictCode.RETURN: -5,
}
_CMP_EQ, _CMP_NEQ = 0, 1
_LOGLEVEL_NOTICE = 5
_TCP_RST, _ICMPX_UNREACH, _ICMPX_PORT_UNREACH = 1, 2, 1
_LIMIT_F_INV, _CONNLIMIT_F_INV = 1, 1
_CSUM_NONE, _CSUM_INET = 0, 1
_IP4_CHECKSUM_AT = 10
_NAT_SNAT, _NAT_DNAT = 0, 1
_NAT_PROTO_SPECIFIED, _NAT_RANDOM_FULLY = 0x2, 0x10
_NFPROTO_IPV4, _NFPROTO_IPV6 = 2, 10


# The kernel puts a free number for %d. Until then a set of the batch is found by its id.
ANONYMOUS_NAME = "__set%d"


@dataclass(slots=True)
class LiteralSets:
    """Anonymous sets met while encoding one rule: (id, shape, literal), in order."""

    next_id: Callable[[], int]
    made: list[tuple[int, SetSpec, Literal]] = field(default_factory=list)

    def add(self, lookup: Lookup, literal: Literal) -> int:
        set_id = self.next_id()
        types = key_types(lookup.fields)
        spec = SetSpec(ANONYMOUS_NAME, types, interval=literal.interval)
        self.made.append((set_id, spec, literal))
        return set_id


def encode_rule(rule: Rule, literals: LiteralSets) -> bytes:
    """NFTA_RULE_EXPRESSIONS of the rule."""
    parts = [encode_match(match, literals) for match in rule.matches]
    parts += [encode_action(action) for action in rule.actions]
    return nested(4, *parts)


def expression(name: str, *attrs: bytes) -> bytes:
    """NFTA_LIST_ELEM of NFTA_EXPR_NAME and NFTA_EXPR_DATA."""
    return nested(1, attr_text(1, name), nested(2, *attrs))


def be32(attr_type: int, value: int) -> bytes:
    return attr(attr_type, _BE32.pack(value & 0xFFFFFFFF))


def be64(attr_type: int, value: int) -> bytes:
    return attr(attr_type, _BE64.pack(value))


# ----------------------------------------------------------------------------------- matches


def _load(source: Field, register: int, length: int) -> bytes:
    if source in _META:
        return expression("meta", be32(2, _META[source]), be32(1, register))
    base, offset = _PAYLOAD[source]
    return expression("payload", be32(1, register), be32(2, base), be32(3, offset), be32(4, length))


_LOAD_REG1 = {source: _load(source, REG_1, source.type.length) for source in Field}


def _cmp(value: bytes, negated: bool) -> bytes:
    op = _CMP_NEQ if negated else _CMP_EQ
    return expression("cmp", be32(1, REG_1), be32(2, op), nested(3, attr(1, value)))


def _compare(match: Compare) -> bytes:
    return _LOAD_REG1[match.field] + _cmp(match.value, match.negated)


def _in_net(match: InNet) -> bytes:
    whole, rest = divmod(match.prefix_len, 8)
    if not rest:
        # A prefix of whole octets is a shorter load: one expression less per packet.
        return _load(match.field, REG_1, whole) + _cmp(match.base[:whole], match.negated)
    bits = len(match.base) * 8
    mask = ((1 << bits) - (1 << (bits - match.prefix_len))).to_bytes(len(match.base), "big")
    return _LOAD_REG1[match.field] + _mask(mask) + _cmp(match.base, match.negated)


def _mask(mask: bytes, flip: bytes = b"") -> bytes:
    """Register 1 becomes (itself & mask) ^ flip."""
    return expression(
        "bitwise",
        be32(1, REG_1),
        be32(2, REG_1),
        be32(3, len(mask)),
        nested(4, attr(1, mask)),
        nested(5, attr(1, flip or b"\0" * len(mask))),
    )


def _between(match: Between) -> bytes:
    op = _CMP_NEQ if match.negated else _CMP_EQ
    return _LOAD_REG1[match.field] + expression(
        "range",
        be32(1, REG_1),
        be32(2, op),
        nested(3, attr(1, match.first)),
        nested(4, attr(1, match.last)),
    )


def _in_state(match: InState) -> bytes:
    return _any_of(_CT_STATE, match.states)


def _in_status(match: InStatus) -> bytes:
    return _any_of(_CT_STATUS, match.statuses)


def _any_of(ct_key: int, bits: int) -> bytes:
    load = expression("ct", be32(1, REG_1), be32(2, ct_key))
    return load + _mask(_host32(bits)) + _cmp(b"\0\0\0\0", True)


def _host32(value: int) -> bytes:
    """Numbers that are no field of the packet stand in registers in host order."""
    return struct.pack("=I", value)


_LOAD_MARK = expression("meta", be32(2, _META_MARK), be32(1, REG_1))
_STORE_MARK = expression("meta", be32(2, _META_MARK), be32(3, REG_1))


def _marked(match: Marked) -> bytes:
    bits = _host32(match.bits)
    return _LOAD_MARK + _mask(bits) + _cmp(bits, False)


def _load_key(fields: tuple[Field, ...]) -> tuple[bytes, int]:
    """Load one field or a concatenation; returns the expressions and the first register."""
    if len(fields) == 1:
        return _LOAD_REG1[fields[0]], REG_1
    loads, register = b"", REG32_00
    for source in fields:
        loads += _load(source, register, source.type.length)
        register += source.type.padded // 4
    return loads, REG32_00


def _lookup(match: Lookup, literals: LiteralSets) -> bytes:
    load, register = _load_key(match.fields)
    if isinstance(match.members, str):
        where = attr_text(1, match.members)
    else:
        where = attr_text(1, ANONYMOUS_NAME) + be32(4, literals.add(match, match.members))
    flags = be32(5, 1) if match.negated else b""  # NFT_LOOKUP_F_INV
    return load + expression("lookup", where, be32(2, register), flags)


_MATCHES: dict[type, Callable[..., bytes]] = {
    Compare: _compare,
    InNet: _in_net,
    Between: _between,
    InState: _in_state,
    InStatus: _in_status,
    Marked: _marked,
}
_CACHE_LIMIT = 4096
_cache: dict[Match | Action, bytes] = {}


def encode_match(match: Match, literals: LiteralSets) -> bytes:
    if isinstance(match, Lookup):
        return _lookup(match, literals)
    return _cached(match, _MATCHES)


def encode_action(action: Action) -> bytes:
    return _cached(action, _ACTIONS)


_M = TypeVar("_M", Match, Action)


def _cached(item: _M, encoders: dict[type, Callable[..., bytes]]) -> bytes:
    found = _cache.get(item)
    if found is None:
        if len(_cache) >= _CACHE_LIMIT:
            _cache.clear()
        found = _cache[item] = encoders[type(item)](item)
    return found


# ----------------------------------------------------------------------------------- actions


def verdict_data(verdict: Verdict) -> bytes:
    """NFTA_DATA_VERDICT."""
    chain = attr_text(2, verdict.chain) if verdict.chain else b""
    return nested(2, be32(1, _VERDICTS[verdict.code]), chain)


def _verdict(action: Verdict) -> bytes:
    return expression("immediate", be32(1, REG_VERDICT), nested(2, verdict_data(action)))


def _dispatch(action: Dispatch) -> bytes:
    load, register = _load_key(action.fields)
    return load + expression(
        "lookup", attr_text(1, action.map_name), be32(2, register), be32(3, REG_VERDICT)
    )


def _reject(action: Reject) -> bytes:
    if action.tcp_reset:
        return expression("reject", be32(1, _TCP_RST), attr(2, b"\0"))
    code = attr(2, bytes([_ICMPX_PORT_UNREACH]))
    return expression("reject", be32(1, _ICMPX_UNREACH), code)


def _log(action: Log) -> bytes:
    return expression("log", attr_text(2, action.prefix), be32(5, _LOGLEVEL_NOTICE))


def _limit(action: Limit) -> bytes:
    return expression(
        "limit",
        be64(1, action.rate),
        be64(2, action.unit_s),
        be32(3, action.burst),
        be32(4, 0),
        be32(5, _LIMIT_F_INV if action.over else 0),
    )


def _count_connections(action: CountConnections) -> bytes:
    return expression("connlimit", be32(1, action.limit), be32(2, _CONNLIMIT_F_INV))


def _set_dscp(action: SetDscp) -> bytes:
    """Rewrite the header's first two bytes around the six bits; the checksum of IPv4 follows."""
    if action.version == 4:
        keep, value = b"\xff\x03", bytes((0, action.value << 2))
        checksum = be32(6, _CSUM_INET) + be32(7, _IP4_CHECKSUM_AT)
    else:
        keep, value = b"\xf0\x3f", (action.value << 6).to_bytes(2, "big")
        checksum = be32(6, _CSUM_NONE) + be32(7, 0)
    where = be32(2, _NETWORK) + be32(3, 0) + be32(4, 2)
    load = expression("payload", be32(1, REG_1), where)
    store = expression("payload", be32(5, REG_1), where, checksum, be32(8, 0))
    return load + _mask(keep, value) + store


def _set_mark(action: SetMark) -> bytes:
    keep = _host32(~action.bits & 0xFFFFFFFF)
    return _LOAD_MARK + _mask(keep, _host32(action.bits if action.on else 0)) + _STORE_MARK


def _count(_action: Count) -> bytes:
    return expression("counter", be64(1, 0), be64(2, 0))


def _no_track(_action: NoTrack) -> bytes:
    return nested(1, attr_text(1, "notrack"))


def _immediate(register: int, value: bytes) -> bytes:
    return expression("immediate", be32(1, register), nested(2, attr(1, value)))


def _port_range(ports: tuple[int, int] | None) -> tuple[bytes, int]:
    """Loads of a port range into registers 2 and 3, and the flags that say so."""
    if ports is None:
        return b"", _NAT_RANDOM_FULLY
    loads = _immediate(2, ports[0].to_bytes(2, "big")) + _immediate(3, ports[1].to_bytes(2, "big"))
    return loads, _NAT_RANDOM_FULLY | _NAT_PROTO_SPECIFIED


def _masquerade(action: Masquerade) -> bytes:
    loads, flags = _port_range(action.ports)
    registers = be32(2, 2) + be32(3, 3) if action.ports else b""
    return loads + expression("masq", be32(1, flags), registers)


def _source_nat(action: SourceNat) -> bytes:
    loads, flags = _port_range(action.ports)
    family = _NFPROTO_IPV4 if len(action.address) == 4 else _NFPROTO_IPV6
    registers = be32(5, 2) + be32(6, 3) if action.ports else b""
    nat = be32(1, _NAT_SNAT) + be32(2, family) + be32(3, REG_1) + be32(4, REG_1)
    return (
        _immediate(REG_1, action.address)
        + loads
        + expression("nat", nat, registers, be32(7, flags))
    )


def _nat_by_map(action: NatByMap) -> bytes:
    family = _NFPROTO_IPV4 if action.field.type.length == 4 else _NFPROTO_IPV6
    kind = _NAT_SNAT if action.source else _NAT_DNAT
    lookup = expression("lookup", attr_text(1, action.map_name), be32(2, REG_1), be32(3, REG_1))
    nat = expression("nat", be32(1, kind), be32(2, family), be32(3, REG_1))
    return _LOAD_REG1[action.field] + lookup + nat


_ACTIONS: dict[type, Callable[..., bytes]] = {
    Verdict: _verdict,
    Dispatch: _dispatch,
    Reject: _reject,
    Log: _log,
    Limit: _limit,
    CountConnections: _count_connections,
    Count: _count,
    SetDscp: _set_dscp,
    SetMark: _set_mark,
    NoTrack: _no_track,
    Masquerade: _masquerade,
    SourceNat: _source_nat,
    NatByMap: _nat_by_map,
}
