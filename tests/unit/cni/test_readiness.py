"""cni.readiness: gates are asked until they open, for half a minute."""

from __future__ import annotations

import pytest

from cni import readiness
from cni.skel import CniError
from libcalico.testing.clock import FakeClock


class Gates:
    """Answers what it is told, one after the other; the last again and again."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, url: str) -> str:
        self.asked.append(url)
        left = self.answers[url]
        return left.pop(0) if len(left) > 1 else left[0]


class SleepingClock(FakeClock):
    """Sleeping passes the time at once."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.slept_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


async def test_open_gates_cost_no_wait():
    gates, clock = Gates(a=[""], b=[""]), SleepingClock()
    before = clock.monotonic()
    await readiness.wait(["a", "b"], ask=gates, clock=clock)
    assert gates.asked == ["a", "b"]
    assert clock.monotonic() == before


async def test_a_gate_is_asked_again_until_it_opens():
    gates = Gates(a=["refused", "response code 500", ""])
    await readiness.wait(["a"], ask=gates, clock=SleepingClock())
    assert gates.asked == ["a"] * 3


@pytest.mark.parametrize("url", ["http://127.0.0.1:port/x", "http://[::1/x"])
async def test_a_url_that_cannot_be_asked_is_a_closed_gate(url):
    assert await readiness.probe(url)


async def test_a_gate_that_never_opens_is_named():
    gates, clock = Gates(a=[""], b=["response code 503"]), SleepingClock()
    before = clock.monotonic()
    with pytest.raises(CniError) as caught:
        await readiness.wait(["a", "b"], ask=gates, clock=clock)
    assert (caught.value.code, caught.value.details) == (11, "response code 503")
    assert "readiness gate b is not ready" in caught.value.msg
    assert clock.monotonic() - before == 30
    assert gates.asked.count("b") == 7
