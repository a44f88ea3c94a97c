"""felix.dataplane.refusals: set aside, tried again, forgotten."""

from __future__ import annotations

from felix.dataplane.refusals import Refusals, RefusedItem
from libcalico.testing.clock import FakeClock

CHAIN, SET = RefusedItem("chain", "c"), RefusedItem("set", "s")
ELEMENT = RefusedItem("element", "s", b"\1")


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.wishes: dict[tuple[str, str], object] = {}
        self.book = Refusals(lambda kind, name: self.wishes.get((kind, name)), clock=self.clock)

    def lifted(self, *, everything: bool = False) -> bool:
        self.book.lift(everything=everything)
        return "c" not in self.book.names("chain")


def test_kinds_are_told_apart():
    rig = Rig()
    for item in (CHAIN, SET, ELEMENT):
        rig.book.refuse(item, "no")
    assert rig.book.names("chain") == {"c"}
    assert rig.book.names("set") == {"s"}
    assert rig.book.elements() == {("s", b"\1")}
    assert rig.book.dump()["element s element 01"] == "no"


def test_each_refusal_doubles_the_wait_up_to_a_minute():
    rig = Rig()
    waits = []
    for _ in range(9):
        rig.book.refuse(CHAIN, "no")
        waits.append(rig.book.pending().retry_after_s)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert rig.book.pending().deferred == 1


async def test_it_is_tried_when_due_when_wanted_otherwise_and_when_asked():
    rig = Rig()
    rig.book.refuse(CHAIN, "no")
    assert not rig.lifted()
    await rig.clock.advance(1.0)
    assert rig.lifted()
    rig.book.refuse(CHAIN, "no")
    assert not rig.lifted()
    rig.wishes["chain", "c"] = "new"
    assert rig.lifted()
    rig.book.refuse(CHAIN, "no")
    assert not rig.lifted()
    assert rig.lifted(everything=True)


async def test_what_was_lifted_and_taken_is_forgotten_the_rest_stays():
    rig = Rig()
    rig.book.refuse(CHAIN, "no")
    await rig.clock.advance(1.0)
    rig.book.lift(everything=False)
    rig.book.refuse(SET, "no")
    rig.book.settle()
    assert list(rig.book.dump()) == ["set s"]
