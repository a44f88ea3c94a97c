"""Batches the kernel refuses, and how: held against the fake (unit) and the real one (netns)."""

from __future__ import annotations

import errno
from dataclasses import dataclass

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
    Op,
    WriteRules,
)
from felix.rules.chain import (
    ACCEPT,
    DROP,
    IFNAME,
    INET_PROTO,
    INET_SERVICE,
    IPV4_ADDR,
    BaseHook,
    Chain,
    Field,
    Hook,
    Literal,
    Lookup,
    Rule,
    goto,
    ifname_bytes,
    jump,
    key_of,
    port_bytes,
)
from felix.rules.sets import MapValue, SetSpec, net_element, net_set

DIGEST = bytes(16)
NETS = net_set("s", 4)
MAP = SetSpec("m", (IFNAME,), verdicts=True)
BOXES = SetSpec("b", (IPV4_ADDR, INET_PROTO, INET_SERVICE), interval=True)
BASE = BaseHook(Hook.FORWARD, 0)


def chain(name: str, *actions: object) -> Chain:
    return Chain(name, tuple(Rule((), (action,)) for action in actions))  # type: ignore[arg-type]


def write(name: str, *actions: object) -> WriteRules:
    return WriteRules(chain(name, *actions), DIGEST)


def net(base: int, length: int = 32) -> bytes:
    return net_element(4, base, length)


def box(first: int, last: int, port: int) -> bytes:
    low, high = first.to_bytes(4, "big"), last.to_bytes(4, "big")
    tail = ((INET_PROTO, b"\6"), (INET_SERVICE, port_bytes(port)))
    return key_of((IPV4_ADDR, low), *tail) + key_of((IPV4_ADDR, high), *tail)


ANONYMOUS = WriteRules(
    Chain(
        "c",
        tuple(
            Rule((Lookup((Field.L4PROTO,), Literal((bytes([number]), b"\xff"))),), (ACCEPT,))
            for number in (6, 17)
        ),
    ),
    DIGEST,
)
USES_SET = WriteRules(Chain("c", (Rule((Lookup((Field.IP4_SADDR,), "s"),), (ACCEPT,)),)), DIGEST)
SETUP: tuple[Op, ...] = (AddTable(), AddChain("c"), AddChain("d"), AddSet(NETS), AddSet(MAP))
ETH0 = ifname_bytes("eth0")


@dataclass(frozen=True, slots=True)
class Case:
    """`before` is committed first; of `ops` the one at `place` is refused with `number`.

    number 0: everything is taken."""

    name: str
    ops: tuple[Op, ...]
    place: int = 0
    number: int = 0
    before: tuple[Op, ...] = SETUP


CASES = [
    Case("a chain without a table", (AddChain("c"),), 0, errno.ENOENT, ()),
    Case("a chain twice", (AddChain("c"),), 0, errno.EEXIST),
    Case("a table twice", (AddTable(),)),
    Case("a name too long", (AddChain("c" * 300),), 0, errno.ERANGE),
    Case("rules of no chain", (write("x", DROP),), 0, errno.ENOENT),
    Case("a jump nowhere", (write("c", jump("x")),), 0, errno.ENOENT),
    Case("a jump to a base chain", (AddChain("e", BASE), write("c", jump("e"))), 1,
         errno.EOPNOTSUPP),
    Case("a lookup in no set", (DeleteSet("s"), USES_SET), 1, errno.ENOENT),
    Case("clearing no chain", (ClearChain("x"),), 0, errno.ENOENT),
    Case("clearing an empty chain", (ClearChain("c"),)),
    Case("deleting no chain", (DeleteChain("x"),), 0, errno.ENOENT),
    Case("deleting a chain in use", (write("c", jump("d")), DeleteChain("d")), 1, errno.EBUSY),
    Case("deleting a chain a map leads to",
         (AddEntries(MAP, ((ETH0, MapValue(goto("d"))),)), DeleteChain("d")), 1, errno.EBUSY),
    Case("deleting a chain with its rules", (write("c", DROP), DeleteChain("c"))),
    Case("deleting the user before the used",
         (write("c", jump("d")), ClearChain("c"), DeleteChain("d"))),
    Case("anonymous sets over and over", (ClearChain("c"), ANONYMOUS), before=(*SETUP, ANONYMOUS)),
    Case("a set twice", (AddSet(NETS),), 0, errno.EEXIST),
    Case("deleting no set", (DeleteSet("x"),), 0, errno.ENOENT),
    Case("deleting a set in use", (USES_SET, DeleteSet("s")), 1, errno.EBUSY),
    Case("deleting a set after its user", (USES_SET, ClearChain("c"), DeleteSet("s"))),
    Case("replacing a set in one go", (DeleteSet("s"), AddSet(NETS))),
    Case("elements of no set", (AddElements(net_set("x", 4), (net(1),)),), 0, errno.ENOENT),
    Case("a key of another length", (AddElements(net_set("s", 6), (bytes(32),)),), 0,
         errno.EINVAL),
    Case("deleting no element", (DeleteElements(NETS, (net(1),)),), 0, errno.ENOENT),
    Case("an element twice", (AddElements(NETS, (net(9),)), AddElements(NETS, (net(9),)))),
    Case("neighbours", (AddElements(NETS, (net(8), net(9), net(10))),)),
    Case("a net replaced by parts of it",
         (DeleteElements(NETS, (net(256, 24),)), AddElements(NETS, (net(256), net(511)))),
         before=(*SETUP, AddElements(NETS, (net(256, 24),)))),
    Case("parts replaced by their net",
         (DeleteElements(NETS, (net(256), net(511))), AddElements(NETS, (net(256, 24),))),
         before=(*SETUP, AddElements(NETS, (net(256), net(511))))),
    Case("an entry with another verdict", (AddEntries(MAP, ((ETH0, MapValue(ACCEPT)),)),), 0,
         errno.EEXIST, (*SETUP, AddEntries(MAP, ((ETH0, MapValue(DROP)),)))),
    Case("an entry replaced",
         (DeleteElements(MAP, (ETH0,)), AddEntries(MAP, ((ETH0, MapValue(ACCEPT)),))),
         before=(*SETUP, AddEntries(MAP, ((ETH0, MapValue(DROP)),)))),
    Case("an entry that leads nowhere", (AddEntries(MAP, ((ETH0, MapValue(goto("x"))),)),), 0,
         errno.ENOENT),
    Case("nets that overlap", (AddElements(NETS, (net(256, 24),)), AddElements(NETS, (net(300),))),
         1, errno.EEXIST),
    Case("boxes side by side",
         (AddSet(BOXES), AddElements(BOXES, (box(1, 5, 80), box(6, 9, 80))))),
    Case("boxes apart by port",
         (AddSet(BOXES), AddElements(BOXES, (box(1, 5, 80), box(1, 5, 81))))),
    Case("boxes that overlap", (AddSet(BOXES), AddElements(BOXES, (box(1, 5, 80), box(4, 9, 80)))),
         1, errno.EEXIST),
    Case("a circle",
         (AddChain("e", BASE), write("e", jump("c")), write("c", jump("d")), write("d", jump("c"))),
         3, errno.EMLINK),
]  # fmt: skip
