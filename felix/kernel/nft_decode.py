"""nf_tables dumps back into the model: enough to recognise our objects. Pure, bytes in.

Layer: felix.kernel, no I/O. Used by felix.kernel.nft; the way there is nft_codec.

Rules are not decoded: their user data says which chain content they belong to (see nft_codec), and
that is all a resync needs. Sets are decoded to their elements.

  D1  nothing found in the kernel raises: an object we do not understand (made by another program,
      or by a later version of ours) is reported as unknown, and the driver replaces it;
  D2  what nft_codec encodes is decoded to an equal value (round trip, property test).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from felix.dataplane.nft_port import ChainImage
from felix.kernel.nft_codec import (
    DATA_VERDICT,
    DIGEST_FORMAT,
    DIGEST_ITEM,
    ELEM_INTERVAL_END,
    SET_ANONYMOUS,
    SET_CONCAT,
    SET_INTERVAL,
    SET_MAP,
    UDATA_COMMENT,
    UDATA_DIGEST,
)
from felix.rules.chain import (
    KEY_TYPES,
    BaseHook,
    Hook,
    KeyType,
    Verdict,
    VerdictCode,
    key_length,
)
from felix.rules.names import TABLE
from felix.rules.sets import MapValue, SetSpec
from libcalico.netlink.messages import parse_attrs, read_text

NFGENMSG_BYTES = 4
_TYPE_BY_ID = {key_type.type_id: key_type for key_type in KEY_TYPES}
_HOOK_BY_NUMBER = {hook.number: hook for hook in Hook}
_VERDICT_BY_NUMBER = {
    1: VerdictCode.ACCEPT,
    0: VerdictCode.DROP,
    -3: VerdictCode.JUMP,
    -4: VerdictCode.GOTO,
    -5: VerdictCode.RETURN,
}
_HEAD = struct.Struct("=HH")
_KNOWN_SET_FLAGS = SET_INTERVAL | SET_MAP | SET_CONCAT


def _be32(value: memoryview) -> int:
    return int.from_bytes(value, "big")


def _signed(value: memoryview) -> int:
    return int.from_bytes(value, "big", signed=True)


def _udata(data: bytes, wanted: int) -> bytes | None:
    """The first item of one type in a chain of (type, length, value)."""
    at = 0
    while at + 2 <= len(data):
        kind, length = data[at], data[at + 1]
        if kind == wanted:
            return data[at + 2 : at + 2 + length]
        at += 2 + length
    return None


# ------------------------------------------------------------------------------------ chains


def parse_chain(body: memoryview) -> tuple[str, BaseHook | None] | None:
    """(name, base hook) of a chain of our table; None for other tables'."""
    attrs = parse_attrs(body, NFGENMSG_BYTES)
    if read_text(attrs[1]) != TABLE:
        return None
    return read_text(attrs[3]), _base(attrs)


def _base(attrs: dict[int, memoryview]) -> BaseHook | None:
    if 4 not in attrs:
        return None
    hook = parse_attrs(attrs[4], 0)
    number, priority = _be32(hook[1]), _signed(hook[2])
    kind = read_text(attrs[7]) if 7 in attrs else ""
    accepts = 5 in attrs and _be32(attrs[5]) == 1
    # A base chain with policy drop is not ours: say so by an impossible type.
    known = _HOOK_BY_NUMBER.get(number, Hook.PREROUTING)
    return BaseHook(known, priority, kind if accepts and number < 5 else f"{kind}?")


@dataclass(slots=True)
class RuleMarks:
    """The marks found on the rules of one chain, in order."""

    marks: list[bytes | None] = field(default_factory=list)

    def digest(self) -> bytes | None:
        """The digest all rules agree on; b"" for no rules, None when they do not add up."""
        if not self.marks:
            return b""
        digests = set()
        for place, mark in enumerate(self.marks):
            if mark is None or len(mark) != DIGEST_ITEM.size:
                return None
            version, index, count, digest = DIGEST_ITEM.unpack(mark)
            if version != DIGEST_FORMAT or index != place or count != len(self.marks):
                return None
            digests.add(digest)
        return digests.pop() if len(digests) == 1 else None


def parse_rule(body: memoryview) -> tuple[str, bytes | None]:
    """(chain, mark) of a rule."""
    attrs = parse_attrs(body, NFGENMSG_BYTES)
    data = bytes(attrs[7]) if 7 in attrs else b""
    return read_text(attrs[2]), _udata(data, UDATA_DIGEST)


def chain_images(
    chains: Iterable[tuple[str, BaseHook | None]], rules: Iterable[tuple[str, bytes | None]]
) -> dict[str, ChainImage]:
    marks: dict[str, RuleMarks] = {}
    for chain, mark in rules:
        marks.setdefault(chain, RuleMarks()).marks.append(mark)
    return {name: ChainImage(base, marks.get(name, RuleMarks()).digest()) for name, base in chains}


# -------------------------------------------------------------------------------------- sets


def parse_set(body: memoryview) -> tuple[str, SetSpec | None] | None:
    """(name, shape) of a named set; None for anonymous ones, shape None when it is not ours."""
    attrs = parse_attrs(body, NFGENMSG_BYTES)
    flags = _be32(attrs[3]) if 3 in attrs else 0
    if flags & SET_ANONYMOUS:
        return None
    name = read_text(attrs[2])
    return name, None if flags & ~_KNOWN_SET_FLAGS else _spec(name, flags, attrs)


def _spec(name: str, flags: int, attrs: dict[int, memoryview]) -> SetSpec | None:
    key = _key_types(_be32(attrs[4]) if 4 in attrs else 0)
    if key is None or key_length(key) != _be32(attrs[5]):
        return None
    verdicts, data = False, None
    if flags & SET_MAP:
        number = _be32(attrs[6]) if 6 in attrs else 0
        verdicts = number == DATA_VERDICT
        data = None if verdicts else _TYPE_BY_ID.get(number)
        if data is None and not verdicts:
            return None
    return SetSpec(name, key, interval=bool(flags & SET_INTERVAL), verdicts=verdicts, data=data)


def _key_types(number: int) -> tuple[KeyType, ...] | None:
    types: list[KeyType] = []
    while number:
        part = _TYPE_BY_ID.get(number & 0x3F)
        if part is None:
            return None
        types.append(part)
        number >>= 6
    return tuple(reversed(types)) or None


# ---------------------------------------------------------------------------------- elements


def element_list(body: memoryview) -> memoryview:
    """The list attribute of a dump message, or nothing."""
    return parse_attrs(body, NFGENMSG_BYTES).get(3, body[:0])


@dataclass(slots=True)
class ElementCollector:
    """Gathers the elements of one set over all messages of a dump."""

    spec: SetSpec
    _plain: set[bytes] = field(default_factory=set)
    _starts: list[bytes] = field(default_factory=list)
    _ends: list[bytes] = field(default_factory=list)
    entries: dict[bytes, MapValue] = field(default_factory=dict)

    def add(self, listed: memoryview) -> None:
        if self.spec.is_map:
            for attrs in _each(listed):
                self._add_entry(attrs)
        elif self.spec.interval and len(self.spec.key) == 1:
            self._add_tree(bytes(listed), self.spec.key[0].length)
        else:
            for attrs in _each(listed):
                last = _value(attrs[10]) if 10 in attrs else b""
                key = _value(attrs[1])
                # An element without an end in an interval set is a single point.
                self._plain.add(key + (last or key) if self.spec.interval else key)

    def elements(self) -> set[bytes]:
        if self.spec.interval and len(self.spec.key) == 1 and not self.spec.is_map:
            return set(self._join())
        return self._plain

    def _add_entry(self, attrs: dict[int, memoryview]) -> None:
        comment = _udata(bytes(attrs[6]), UDATA_COMMENT) if 6 in attrs else None
        text = comment.rstrip(b"\0").decode("utf-8", "replace") if comment else ""
        self.entries[_value(attrs[1])] = _map_value(attrs.get(2), text)

    def _add_tree(self, listed: bytes, size: int) -> None:
        """The hot loop of a resync: headers at fixed places, one pass, no objects."""
        at, end = 0, len(listed)
        value_at, flags_at = 12, 12 + ((size + 3) & ~3)
        unpack = _HEAD.unpack_from
        while at + value_at + size <= end:
            length, _type = unpack(listed, at)
            key = listed[at + value_at : at + value_at + size]
            is_end = False
            if length > flags_at:
                is_end = _has_end_flag(listed, at + flags_at, at + length)
            (self._ends if is_end else self._starts).append(key)
            at += (length + 3) & ~3

    def _join(self) -> Iterator[bytes]:
        """Pair starts with ends (E2 of nft_codec); a start without an end reaches the top."""
        size = self.spec.key[0].length
        ends = sorted(self._ends)
        place = 0
        for start in sorted(self._starts):
            while place < len(ends) and ends[place] <= start:
                place += 1
            if place == len(ends):
                yield start + b"\xff" * size
            else:
                last = int.from_bytes(ends[place], "big") - 1
                yield start + last.to_bytes(size, "big")


def _has_end_flag(listed: bytes, at: int, end: int) -> bool:
    while at + 4 <= end:
        length, kind = _HEAD.unpack_from(listed, at)
        if kind & 0x3FFF == 3:  # NFTA_SET_ELEM_FLAGS
            return bool(int.from_bytes(listed[at + 4 : at + 8], "big") & ELEM_INTERVAL_END)
        at += max(4, (length + 3) & ~3)
    return False


def _each(listed: memoryview) -> Iterator[dict[int, memoryview]]:
    at, end = 0, len(listed)
    while at + 4 <= end:
        length, _type = _HEAD.unpack_from(listed, at)
        yield parse_attrs(listed[at + 4 : at + length], 0)
        at += max(4, (length + 3) & ~3)


def _value(data: memoryview) -> bytes:
    return bytes(parse_attrs(data, 0)[1])


def _map_value(data: memoryview | None, comment: str) -> MapValue:
    if data is None:
        return MapValue(None, b"", comment)
    attrs = parse_attrs(data, 0)
    if 2 not in attrs:
        return MapValue(None, bytes(attrs[1]), comment)
    verdict = parse_attrs(attrs[2], 0)
    code = _VERDICT_BY_NUMBER.get(_signed(verdict[1]), VerdictCode.DROP)
    return MapValue(Verdict(code, read_text(verdict[2]) if 2 in verdict else ""), b"", comment)


def parse_generation(body: memoryview) -> int:
    return _be32(parse_attrs(body, NFGENMSG_BYTES)[1])
