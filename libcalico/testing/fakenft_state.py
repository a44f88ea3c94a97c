"""What a fake nf_tables holds: tables, chains, rules, sets; and their form on the wire.

Layer: testing. Used by fakenft, which decides what a message does to it.

Source: net/netfilter/nf_tables_api.c, nft_set_{hash,rbtree,pipapo}.c.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NoReturn

from libcalico.netlink.messages import attr, attr_text, iter_attrs, nested, parse_attrs
from libcalico.testing.fakenft_vm import DATA_VERDICT, Decoded, Verdict, verdict_of

_JUMP_STACK = 16
ANONYMOUS, CONSTANT, INTERVAL, MAP, CONCAT = 1, 2, 4, 8, 0x80
_INTERVAL_END = 1
_DUMP_BYTES = 16 << 10


class Refused(Exception):
    """The kernel's no to one message."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode[number])
        self.errno = number


def refuse(number: int) -> NoReturn:
    raise Refused(number)


@dataclass(frozen=True, slots=True)
class FakeRule:
    handle: int
    program: tuple[Decoded, ...]
    raw: bytes
    userdata: bytes


@dataclass(frozen=True, slots=True)
class FakeChain:
    name: str
    rules: tuple[FakeRule, ...] = ()
    hook: tuple[int, int] | None = None  # number, priority
    type: str = ""
    userdata: bytes = b""
    handle: int = 0


@dataclass(slots=True)
class FakeElement:
    """`key_end` of concatenated intervals; `is_end` of tree intervals."""

    key: bytes
    key_end: bytes = b""
    is_end: bool = False
    value: Verdict | bytes | None = None
    userdata: bytes = b""


@dataclass(slots=True)
class FakeSet:
    name: str
    flags: int
    key_type: int
    key_length: int
    data_type: int = 0
    data_length: int = 0
    fields: tuple[int, ...] = ()
    userdata: bytes = b""
    elements: dict[tuple[bytes, bytes, bool], FakeElement] = field(default_factory=dict)

    @property
    def is_tree(self) -> bool:
        return bool(self.flags & INTERVAL) and not self.fields

    def copy(self) -> FakeSet:
        return replace(self, elements=dict(self.elements))

    def find(self, key: bytes) -> tuple[bool, object]:
        if self.is_tree:
            return self._find_in_tree(key)
        if self.fields:
            return self._find_in_boxes(key)
        element = self.elements.get((key, b"", False))
        return (True, element.value) if element is not None else (False, None)

    def _find_in_tree(self, key: bytes) -> tuple[bool, object]:
        """The nearest node at or below the key decides; at one key the start counts."""
        below = [e for e in self.elements.values() if e.key <= key]
        if not below:
            return False, None
        nearest = max(below, key=lambda element: (element.key, not element.is_end))
        return (not nearest.is_end, nearest.value)

    def _find_in_boxes(self, key: bytes) -> tuple[bool, object]:
        for element in self.elements.values():
            last = element.key_end or element.key
            if all(
                element.key[a:b] <= key[a:b] <= last[a:b] for a, b in _field_places(self.fields)
            ):
                return True, element.value
        return False, None

    def check(self) -> None:
        """Refuse overlapping intervals, as both interval back ends do."""
        if self.is_tree:
            inside = False
            for element in sorted(self.elements.values(), key=lambda e: (e.key, not e.is_end)):
                if element.is_end != inside:
                    refuse(errno.EEXIST)
                inside = not element.is_end
        elif self.fields:
            self._check_boxes()

    def _check_boxes(self) -> None:
        places = list(_field_places(self.fields))
        boxes = [(e.key, e.key_end or e.key) for e in self.elements.values()]
        for index, (first, last) in enumerate(boxes):
            for other_first, other_last in boxes[:index]:
                if all(
                    first[a:b] <= other_last[a:b] and other_first[a:b] <= last[a:b]
                    for a, b in places
                ):
                    refuse(errno.EEXIST)


def _field_places(fields: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    at = 0
    for length in fields:
        yield at, at + length
        at += (length + 3) & ~3


@dataclass(slots=True)
class FakeTable:
    """Chains are values; sets are copied before a batch changes them."""

    name: str
    chains: dict[str, FakeChain] = field(default_factory=dict)
    sets: dict[str, FakeSet] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    set_name_by_id: dict[int, str] = field(default_factory=dict)
    userdata: bytes = b""

    def draft(self) -> FakeTable:
        return FakeTable(self.name, dict(self.chains), dict(self.sets), userdata=self.userdata)

    def set_to_change(self, name: str) -> FakeSet:
        if name not in self.sets:
            refuse(errno.ENOENT)
        if name not in self.fresh:
            self.sets[name] = self.sets[name].copy()
            self.fresh.add(name)
        return self.sets[name]

    def targets(self, chain: FakeChain) -> Iterator[str]:
        """Chains that a chain can lead to, through maps as well."""
        for expression in (one for rule in chain.rules for one in rule.program):
            if expression.chain:
                yield expression.chain
            yield from self.map_targets(expression.set_name)

    def map_targets(self, name: str) -> Iterator[str]:
        """Chains that the elements of a verdict map lead to; none for any other set."""
        members = self.sets.get(name)
        for element in members.elements.values() if members is not None else ():
            if isinstance(element.value, Verdict) and element.value.chain:
                yield element.value.chain

    def chain_users(self, name: str) -> int:
        jumps = sum(
            expression.chain == name
            for chain in self.chains.values()
            for rule in chain.rules
            for expression in rule.program
        )
        entries = sum(
            isinstance(element.value, Verdict) and element.value.chain == name
            for members in self.sets.values()
            for element in members.elements.values()
        )
        return jumps + entries

    def set_users(self, name: str) -> int:
        return sum(
            expression.set_name == name
            for chain in self.chains.values()
            for rule in chain.rules
            for expression in rule.program
        )

    def check_loops(self) -> None:
        depth_by_chain: dict[str, int] = {}
        active: set[str] = set()

        def depth(name: str) -> int:
            if name in active:
                refuse(errno.EMLINK)
            if name not in depth_by_chain:
                active.add(name)
                below = [depth(target) for target in self.targets(self.chains[name])]
                active.discard(name)
                depth_by_chain[name] = 1 + max(below, default=0)
            return depth_by_chain[name]

        for name in self.chains:
            if depth(name) > _JUMP_STACK:
                refuse(errno.EMLINK)


# ------------------------------------------------------------------------------- attributes


def be32(attr_type: int, value: int) -> bytes:
    return attr(attr_type, (value & 0xFFFFFFFF).to_bytes(4, "big"))


def concat_fields(attrs: dict[int, memoryview]) -> tuple[int, ...]:
    if 9 not in attrs:
        return ()
    desc = parse_attrs(attrs[9], 0)
    if 2 not in desc:
        return ()
    return tuple(
        int.from_bytes(parse_attrs(item, 0)[1], "big") for _kind, item in iter_attrs(desc[2])
    )


def parse_elements(members: FakeSet, attrs: dict[int, memoryview]) -> Iterator[FakeElement]:
    for _kind, listed in iter_attrs(attrs[3]):
        inner = parse_attrs(listed, 0)
        element = FakeElement(bytes(parse_attrs(inner[1], 0)[1]))
        if len(element.key) != members.key_length:
            refuse(errno.EINVAL)
        if 10 in inner:
            if not members.fields:
                refuse(errno.EINVAL)
            element.key_end = bytes(parse_attrs(inner[10], 0)[1])
        if 3 in inner:
            element.is_end = bool(int.from_bytes(inner[3], "big") & _INTERVAL_END)
        if 2 in inner:
            if not members.flags & MAP:
                refuse(errno.EINVAL)
            is_verdict = members.data_type == DATA_VERDICT
            value = verdict_of(inner[2]) if is_verdict else bytes(parse_attrs(inner[2], 0)[1])
            element.value = value
        element.userdata = bytes(inner[6]) if 6 in inner else b""
        yield element


def chain_attrs(table: str, chain: FakeChain) -> bytes:
    payload = attr_text(1, table) + attr_text(3, chain.name) + attr(2, chain.handle.to_bytes(8))
    if chain.hook is not None:
        payload += nested(4, be32(1, chain.hook[0]), be32(2, chain.hook[1]))
        payload += be32(5, 1) + attr_text(7, chain.type)
    return payload + (attr(12, chain.userdata) if chain.userdata else b"")


def rule_attrs(rule: FakeRule) -> bytes:
    payload = attr(3, rule.handle.to_bytes(8, "big")) + attr(4 | 0x8000, rule.raw)
    return payload + (attr(7, rule.userdata) if rule.userdata else b"")


def set_attrs(table: str, members: FakeSet) -> bytes:
    payload = attr_text(1, table) + attr_text(2, members.name) + be32(3, members.flags)
    payload += be32(4, members.key_type) + be32(5, members.key_length)
    if members.flags & MAP:
        payload += be32(6, members.data_type) + be32(7, members.data_length)
    return payload + (attr(13, members.userdata) if members.userdata else b"")


def element_attrs(members: FakeSet, element: FakeElement) -> bytes:
    body = nested(1, attr(1, element.key))
    if element.key_end:
        body += nested(10, attr(1, element.key_end))
    if isinstance(element.value, Verdict):
        chain = attr_text(2, element.value.chain) if element.value.chain else b""
        body += nested(2, nested(2, be32(1, element.value.code), chain))
    elif element.value is not None:
        body += nested(2, attr(1, element.value))
    if element.is_end:
        body += be32(3, _INTERVAL_END)
    if element.userdata:
        body += attr(6, element.userdata)
    return nested(1, body)


def parts(encoded: list[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for one in encoded:
        if size + len(one) > _DUMP_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one)
    if part:
        yield part
