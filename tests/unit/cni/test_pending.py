"""cni.pending: which wire there is to remove, whatever became of the orders."""

from __future__ import annotations

import asyncio

import pytest

from cni.pending import PendingWire
from cni.skel import CniError, Code
from cni.veth import MadeWire, PodWire
from cni.wirer import WirerEnded

WIRE = PodWire("cali0", "eth0", "/run/netns/pod", ())
MADE = MadeWire("02:00:00:00:00:02", 1400)
ONE, OTHER = ("10.65.0.1",), ("10.65.0.2",)


class Kernel:
    """A Wirer that keeps what stands, and fails as told."""

    def __init__(self) -> None:
        self.standing: PodWire | None = None
        self.log: list[str] = []
        self.fails: BaseException | None = None
        self.name_is_taken = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    async def attempt(self, wire: PodWire) -> MadeWire | None:
        self.log.append("attempt")
        if self.name_is_taken:
            return None
        return await self._make(wire)

    async def make(self, wire: PodWire) -> MadeWire:
        self.log.append("make")
        return await self._make(wire)

    async def _make(self, wire: PodWire) -> MadeWire:
        await self.may_go_on.wait()
        assert self.standing is None
        if not isinstance(self.fails, CniError) or isinstance(self.fails, WirerEnded):
            self.standing = wire
        if self.fails is not None:
            raise self.fails
        return MADE

    async def delete_in_pod(self, netns: str, ifname: str) -> bool:
        assert (netns, ifname) == ("/run/netns/pod", "eth0")
        self.log.append("delete")
        self.standing = None
        return True

    async def delete_on_host(self, name: str) -> bool:
        raise AssertionError


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


async def begun(kernel: Kernel, addresses: tuple[str, ...] = ONE) -> PendingWire:
    pending = PendingWire(WIRE, kernel)
    pending.foresee(addresses)
    for _ in range(5):
        await asyncio.sleep(0)
    return pending


async def test_the_foreseen_wire_is_the_pods(kernel):
    pending = await begun(kernel)
    pending.foresee(OTHER)  # a second choice is not begun
    assert await pending.make(ONE) == MADE
    assert kernel.log == ["attempt"]
    assert kernel.standing is not None
    assert kernel.standing.addresses == ONE


async def test_another_choice_is_made_again(kernel):
    pending = await begun(kernel)
    assert await pending.make(OTHER) == MADE
    assert kernel.log == ["attempt", "delete", "make"]
    assert kernel.standing is not None
    assert kernel.standing.addresses == OTHER


async def test_without_foresight_or_with_a_taken_name_it_is_made_in_the_end(kernel):
    assert await PendingWire(WIRE, kernel).make(ONE) == MADE
    assert kernel.log == ["make"]
    kernel.standing, kernel.name_is_taken = None, True
    pending = await begun(kernel)
    assert await pending.make(ONE) == MADE
    assert kernel.log == ["make", "attempt", "make"]


@pytest.mark.parametrize("is_made", [True, False])
async def test_undoing_removes_what_was_made_and_nothing_else(kernel, is_made):
    kernel.name_is_taken = not is_made
    pending = await begun(kernel)
    await pending.undo()
    assert kernel.log == (["attempt", "delete"] if is_made else ["attempt"])


async def test_a_refused_wire_is_nobodys_to_remove(kernel):
    kernel.fails = CniError(Code.NETWORKING_FAILED, "refused")
    pending = await begun(kernel)
    with pytest.raises(CniError, match="refused"):
        await pending.make(ONE)
    await pending.undo()
    assert kernel.log == ["attempt"]


@pytest.mark.parametrize("when", ["attempt", "make"])
async def test_what_may_have_been_made_is_removed(kernel, when):
    """The process died after it had made the wire and before it said so."""
    kernel.fails = WirerEnded()
    pending = await begun(kernel) if when == "attempt" else PendingWire(WIRE, kernel)
    with pytest.raises(WirerEnded):
        await pending.make(ONE)
    await pending.undo()
    assert kernel.log == [when, "delete"]
    assert kernel.standing is None


@pytest.mark.parametrize("when", ["attempt", "make"])
async def test_a_cancelled_order_may_have_been_carried_out(kernel, when):
    kernel.may_go_on.clear()
    pending = await begun(kernel) if when == "attempt" else PendingWire(WIRE, kernel)
    making = asyncio.ensure_future(pending.make(ONE))
    for _ in range(5):
        await asyncio.sleep(0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    await pending.undo()
    assert kernel.log == [when, "delete"]


async def test_what_was_foreseen_but_not_ordered_yet_never_is(kernel):
    pending = PendingWire(WIRE, kernel)
    pending.foresee(ONE)
    await pending.undo()
    await asyncio.sleep(0)
    assert kernel.log == []
