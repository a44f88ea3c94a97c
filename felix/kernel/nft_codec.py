"""The packet-filter model as nf_tables netlink messages: pure, bytes out.

Layer: felix.kernel, no I/O. Used by felix.kernel.nft; the way back is nft_decode.

How a fresh process recognises what we wrote: every rule carries user data of two items, nft's own
comment (type 0, shown by `nft list`) and ours (type 100): format version, the rule's place and the
number of rules in its chain, and the digest of the whole chain. A chain whose rules all carry the
same digest, places 0..n-1 and count n is exactly what that digest says; a rule inserted, deleted or
replaced by anybody else breaks the row. nft keeps unknown items and does not show them.

  E1  one attribute never exceeds 65,535 bytes: elements are spread over several messages;
  E2  single-field intervals are a start element and an end element (first address after), the way
      the kernel's interval tree wants them; concatenated intervals are one element with both ends;
  E3  an anonymous set is filled before the rule that holds it, in the same batch, by its id.

Source: linux/netfilter/nf_tables.h; net/netfilter/nft_*.c; userdata types: libnftnl's udata.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from felix.dataplane.nft_port import (
    AddChain,
    AddElements,
    AddEntries,
    AddSet,
    AddTable,
    ClearChain,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    DeleteTable,
    Op,
    WriteRules,
)
from felix.kernel.nft_expr import LiteralSets, be32, encode_rule, verdict_data
from felix.rules.chain import IFNAME, BaseHook, Literal, key_length
from felix.rules.names import TABLE
from felix.rules.sets import MapValue, SetSpec
from libcalico.netlink.messages import attr, attr_text, nested

NFPROTO_INET = 1
NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE = 0, 2
NFT_MSG_NEWCHAIN, NFT_MSG_DELCHAIN = 3, 5
NFT_MSG_NEWRULE, NFT_MSG_DELRULE = 6, 8
NFT_MSG_NEWSET, NFT_MSG_DELSET = 9, 11
NFT_MSG_NEWSETELEM, NFT_MSG_DELSETELEM = 12, 14

NLM_F_EXCL, NLM_F_CREATE, NLM_F_APPEND = 0x200, 0x400, 0x800

SET_ANONYMOUS, SET_CONSTANT, SET_INTERVAL, SET_MAP, SET_CONCAT = 0x1, 0x2, 0x4, 0x8, 0x80
ELEM_INTERVAL_END = 0x1
DATA_VERDICT = 0xFFFFFF00

UDATA_COMMENT = 0
UDATA_SET_KEYBYTEORDER, UDATA_SET_COMMENT = 0, 7
UDATA_DIGEST = 100
DIGEST_FORMAT = 1
DIGEST_ITEM = struct.Struct(">BHH16s")
COMMENT_MAX_BYTES = 127

# Room for the attributes around the elements of one message (E1).
_ELEMENTS_BYTES = 60_000
_BYTEORDER_CONCAT, _BYTEORDER_HOST, _BYTEORDER_BIG = 0, 1, 2
_HEAD = struct.Struct("=HH")
NLA_F_NESTED = 0x8000


class Msg(NamedTuple):
    """One nf_tables message without its headers."""

    type: int
    flags: int
    payload: bytes


_TABLE_ATTR = attr_text(1, TABLE)  # NFTA_*_TABLE and NFTA_TABLE_NAME are all 1


@dataclass(slots=True)
class BatchEncoder:
    """Encodes the operations of one batch. Keeps the set ids unique within it."""

    _set_id: int = 0
    _by_type: dict[type, Callable[..., Iterator[Msg]]] = field(init=False)

    def __post_init__(self) -> None:
        self._by_type = {
            AddTable: self._add_table,
            DeleteTable: self._delete_table,
            AddChain: self._add_chain,
            ClearChain: self._clear_chain,
            WriteRules: self._write_rules,
            DeleteChain: self._delete_chain,
            AddSet: self._add_set,
            DeleteSet: self._delete_set,
            AddElements: self._add_elements,
            DeleteElements: self._delete_elements,
            AddEntries: self._add_entries,
        }

    def messages(self, op: Op) -> Iterator[Msg]:
        return self._by_type[type(op)](op)

    def _add_table(self, op: AddTable) -> Iterator[Msg]:
        payload = _TABLE_ATTR + be32(2, 0)
        if op.comment:
            payload += attr(6, udata(UDATA_COMMENT, comment_bytes(op.comment)))
        yield Msg(NFT_MSG_NEWTABLE, NLM_F_CREATE, payload)

    def _delete_table(self, _op: DeleteTable) -> Iterator[Msg]:
        yield Msg(NFT_MSG_DELTABLE, 0, _TABLE_ATTR)

    def _add_chain(self, op: AddChain) -> Iterator[Msg]:
        payload = _TABLE_ATTR + attr_text(3, op.name)
        if op.base is not None:
            payload += _base_attrs(op.base)
        if op.comment:
            payload += attr(12, udata(UDATA_COMMENT, comment_bytes(op.comment)))
        yield Msg(NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, payload)

    def _clear_chain(self, op: ClearChain) -> Iterator[Msg]:
        yield Msg(NFT_MSG_DELRULE, 0, _TABLE_ATTR + attr_text(2, op.name))

    def _delete_chain(self, op: DeleteChain) -> Iterator[Msg]:
        yield Msg(NFT_MSG_DELCHAIN, 0, _TABLE_ATTR + attr_text(3, op.name))

    def _write_rules(self, op: WriteRules) -> Iterator[Msg]:
        head = _TABLE_ATTR + attr_text(2, op.chain.name)
        count = len(op.chain.rules)
        for index, rule in enumerate(op.chain.rules):
            literals = LiteralSets(self._next_literal)
            expressions = encode_rule(rule, literals)
            for set_id, spec, literal in literals.made:
                yield from _literal_set(set_id, spec, literal)
            userdata = rule_userdata(rule.comment, op.digest, index, count)
            payload = head + expressions + attr(7, userdata)
            yield Msg(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, payload)

    def _next_literal(self) -> int:
        self._set_id += 1
        return self._set_id

    def _add_set(self, op: AddSet) -> Iterator[Msg]:
        self._set_id += 1
        payload = set_attrs(op.spec, op.spec.name, self._set_id, flags=0, size=0)
        yield Msg(NFT_MSG_NEWSET, NLM_F_CREATE | NLM_F_EXCL, payload)

    def _delete_set(self, op: DeleteSet) -> Iterator[Msg]:
        yield Msg(NFT_MSG_DELSET, 0, _TABLE_ATTR + attr_text(2, op.name))

    def _add_elements(self, op: AddElements) -> Iterator[Msg]:
        head = _TABLE_ATTR + attr_text(2, op.spec.name)
        for chunk in chunks(elements(op.spec, op.elements)):
            yield Msg(NFT_MSG_NEWSETELEM, NLM_F_CREATE, head + chunk)

    def _delete_elements(self, op: DeleteElements) -> Iterator[Msg]:
        head = _TABLE_ATTR + attr_text(2, op.spec.name)
        for chunk in chunks(elements(op.spec, op.elements)):
            yield Msg(NFT_MSG_DELSETELEM, 0, head + chunk)

    def _add_entries(self, op: AddEntries) -> Iterator[Msg]:
        head = _TABLE_ATTR + attr_text(2, op.spec.name)
        # EXCL: an entry with another value must have been deleted first, never be kept silently.
        for chunk in chunks([map_entry(op.spec, key, value) for key, value in op.entries]):
            yield Msg(NFT_MSG_NEWSETELEM, NLM_F_CREATE | NLM_F_EXCL, head + chunk)


def _literal_set(set_id: int, spec: SetSpec, literal: Literal) -> Iterator[Msg]:
    flags, size = SET_ANONYMOUS | SET_CONSTANT, len(literal.elements)
    payload = set_attrs(spec, spec.name, set_id, flags=flags, size=size)
    yield Msg(NFT_MSG_NEWSET, NLM_F_CREATE, payload)
    head = _TABLE_ATTR + attr_text(2, spec.name) + be32(4, set_id)
    for chunk in chunks(elements(spec, literal.elements)):
        yield Msg(NFT_MSG_NEWSETELEM, NLM_F_CREATE, head + chunk)


def _base_attrs(base: BaseHook) -> bytes:
    hook = nested(4, be32(1, base.hook.number), be32(2, base.priority))
    return hook + be32(5, 1) + attr_text(7, base.type)  # policy 1 = NF_ACCEPT


# ----------------------------------------------------------------------------------- user data


def udata(kind: int, value: bytes) -> bytes:
    return bytes((kind, len(value))) + value


def comment_bytes(comment: str) -> bytes:
    """NUL-terminated, cut at a character where it is too long."""
    data = comment.encode()
    if len(data) > COMMENT_MAX_BYTES:
        data = data[:COMMENT_MAX_BYTES].decode(errors="ignore").encode()
    return data + b"\0"


_MARK_HEAD = bytes((UDATA_DIGEST, DIGEST_ITEM.size))


def rule_userdata(comment: str, digest: bytes, index: int, count: int) -> bytes:
    mark = _MARK_HEAD + DIGEST_ITEM.pack(DIGEST_FORMAT, index, count, digest)
    return (udata(UDATA_COMMENT, comment_bytes(comment)) if comment else b"") + mark


# ------------------------------------------------------------------------------------ sets


def set_flags(spec: SetSpec) -> int:
    flags = SET_MAP if spec.is_map else 0
    if spec.interval:
        flags |= SET_INTERVAL | (SET_CONCAT if len(spec.key) > 1 else 0)
    return flags


def key_type_id(spec: SetSpec) -> int:
    """nft's number of a concatenation: six bits a field."""
    number = 0
    for part in spec.key:
        number = number << 6 | part.type_id
    return number


def set_attrs(spec: SetSpec, name: str, set_id: int, *, flags: int, size: int) -> bytes:
    payload = _TABLE_ATTR + attr_text(2, name) + be32(3, flags | set_flags(spec))
    payload += be32(4, key_type_id(spec)) + be32(5, key_length(spec.key))
    if spec.verdicts:
        payload += be32(6, DATA_VERDICT) + be32(7, 0)
    elif spec.data is not None:
        payload += be32(6, spec.data.type_id) + be32(7, spec.data.length)
    desc = be32(1, size) if size else b""
    if spec.interval and len(spec.key) > 1:
        fields = b"".join(nested(1, be32(1, part.length)) for part in spec.key)
        desc += nested(2, fields)
    if desc:
        payload += nested(9, desc)
    return payload + be32(10, set_id) + attr(13, _set_userdata(spec))


def _set_userdata(spec: SetSpec) -> bytes:
    data = udata(UDATA_SET_KEYBYTEORDER, struct.pack("=I", _byte_order(spec)))
    if spec.comment:
        data += udata(UDATA_SET_COMMENT, comment_bytes(spec.comment))
    return data


def _byte_order(spec: SetSpec) -> int:
    """What nft has to know to print a key: names read forward, numbers as on the wire."""
    if len(spec.key) > 1:
        return _BYTEORDER_CONCAT
    return _BYTEORDER_HOST if spec.key[0] is IFNAME else _BYTEORDER_BIG


# --------------------------------------------------------------------------------- elements


def elements(spec: SetSpec, keys: Sequence[bytes]) -> list[bytes]:
    """Elements of a plain set, or of a map to be deleted (keys suffice).

    A piece holds one element or several, and is not parted between two messages."""
    if not spec.interval:
        return _plain_elements(key_length(spec.key), keys)
    if len(spec.key) == 1:
        return _tree_elements(spec.key[0].length, keys)
    half = key_length(spec.key)
    return [_list_elem(_key(1, key[:half]) + _key(10, key[half:])) for key in keys]


def _plain_elements(size: int, keys: Iterable[bytes]) -> list[bytes]:
    prefix = _elem_prefix(size, 0)
    pad = b"\0" * (-size & 3)
    return [prefix + key + pad for key in keys]


def _tree_elements(size: int, keys: Sequence[bytes]) -> list[bytes]:
    """E2, start and end as one piece: they must not be parted between two messages.

    The end of a range that reaches the last address does not exist: it is left open."""
    start, end = _elem_prefix(size, 0), _elem_prefix(size, 8)
    if size == _V4_BYTES:
        return _v4_tree_elements(start, end, keys)
    pad = b"\0" * (-size & 3)
    tail = pad + be32(3, ELEM_INTERVAL_END)
    top = b"\xff" * size
    found: list[bytes] = []
    for key in keys:
        opening = start + key[:size] + pad
        last = key[size:]
        if last != top:
            after = (int.from_bytes(last, "big") + 1).to_bytes(size, "big")
            opening += end + after + tail
        found.append(opening)
    return found


_V4_BYTES = 4
_V4_TAIL = be32(3, ELEM_INTERVAL_END)


def _v4_tree_elements(start: bytes, end: bytes, keys: Sequence[bytes]) -> list[bytes]:
    """The same for IPv4, of which there are most: as many intervals in one piece as a message
    holds, copied from one and filled in byte by byte of their addresses."""
    size = len(start) + len(end) + 2 * _V4_BYTES + len(_V4_TAIL)
    step = _ELEMENTS_BYTES // size
    return [_v4_piece(start, end, keys[at : at + step]) for at in range(0, len(keys), step)]


def _v4_piece(start: bytes, end: bytes, keys: Sequence[bytes]) -> bytes:
    count, both = len(keys), b"".join(keys)
    after = [last + 1 for last in struct.unpack(f">{2 * count}I", both)[1::2]]
    open_at = after.index(1 << 32) if max(after) >> 32 else count
    if open_at < count:  # it reaches the last address: a start alone
        parts = [_v4_piece(start, end, keys[:open_at])] if open_at else []
        parts.append(start + keys[open_at][:_V4_BYTES])
        rest = keys[open_at + 1 :]
        return b"".join([*parts, _v4_piece(start, end, rest)] if rest else parts)
    ends = struct.pack(f">{count}I", *after)
    one = start + bytes(_V4_BYTES) + end + bytes(_V4_BYTES) + _V4_TAIL
    first_at, end_at = len(start), len(start) + _V4_BYTES + len(end)
    piece = bytearray(one * count)
    for byte in range(_V4_BYTES):
        piece[first_at + byte :: len(one)] = both[byte :: 2 * _V4_BYTES]
        piece[end_at + byte :: len(one)] = ends[byte::_V4_BYTES]
    return bytes(piece)


def _elem_prefix(size: int, extra: int) -> bytes:
    """Headers of an element whose key has `size` bytes and is followed by `extra` more bytes."""
    padded = (size + 3) & ~3
    return (
        _HEAD.pack(12 + padded + extra, 1 | NLA_F_NESTED)
        + _HEAD.pack(8 + padded, 1 | NLA_F_NESTED)
        + _HEAD.pack(4 + size, 1)
    )


def _key(attr_type: int, key: bytes) -> bytes:
    return nested(attr_type, attr(1, key))


def _list_elem(body: bytes) -> bytes:
    return nested(1, body)


def map_entry(spec: SetSpec, key: bytes, value: MapValue) -> bytes:
    body = _key(1, key)
    if value.verdict is not None:
        body += nested(2, verdict_data(value.verdict))
    else:
        body += nested(2, attr(1, value.data))
    if value.comment:
        body += attr(6, udata(UDATA_COMMENT, comment_bytes(value.comment)))
    return _list_elem(body)


def chunks(encoded: Sequence[bytes]) -> Iterator[bytes]:
    """Element-list attributes, each small enough for one message (E1)."""
    start, size = 0, 0
    for index, one in enumerate(encoded):
        if size + len(one) > _ELEMENTS_BYTES:
            yield nested(3, *encoded[start:index])
            start, size = index, 0
        size += len(one)
    if start < len(encoded):
        yield nested(3, *encoded[start:])
