"""felix.endpoint_programmer: how long it waits, for what, and what it raises.

With a real dataplane behind it: tests/component/test_felix.py.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from felix.calc.graph import CalcGraph
from felix.config import SCHEMA
from felix.dataplane.loop import CycleReport
from felix.dataplane.manager import ApplyResult
from felix.dataplane.nft_wanted import WantedRuleset
from felix.endpoint_programmer import (
    FelixProgrammer,
    ProgrammerParts,
    policy_problem,
    policy_remains,
)
from felix.intent import WorkloadEndpointUpdate
from felix.rules.chain import DROP, ifname_bytes
from felix.rules.dispatch import EGRESS_MAP, INGRESS_MAP
from felix.rules.sets import MapValue
from libcalico.errors import ProgrammingFailed, Transient, ValidationError
from libcalico.runtime.config import LiveConfig
from libcalico.syncer.api import SyncStatus
from libcalico.testing.clock import FakeClock
from tests.support import calc

KEY, ENDPOINT = calc.wep("n1", "10.0.0.1/32")
IFNAME = "calin1"
DISPATCHED = MapValue(DROP)


class Dataplane:
    def __init__(self) -> None:
        self.is_in_sync = self.has_applied = True
        self.flushes = 0
        self.error = ""

    async def flush(self) -> CycleReport:
        self.flushes += 1
        await asyncio.sleep(0)
        return CycleReport(0.0, (("x", ApplyResult(error=self.error)),), True)


class Endpoints:
    def __init__(self) -> None:
        self.problems = [""]
        self.gone = [True]
        self.known = True

    def endpoint(self, key):
        if not self.known:
            return None
        return WorkloadEndpointUpdate(key, IFNAME, "", ("10.0.0.1/32",), (), ())

    def nets_of(self, key):
        return frozenset({"10.0.0.1/32"})

    def addresses_of(self, key):
        return frozenset({"10.0.0.1"})

    def problem(self, key):
        return self.problems.pop(0) if len(self.problems) > 1 else self.problems[0]

    def is_gone(self, key, nets):
        assert nets == {"10.0.0.1/32"}
        return self.gone.pop(0) if len(self.gone) > 1 else self.gone[0]


class Conntrack:
    def __init__(self) -> None:
        self.asked: list[tuple[frozenset[str], float]] = []
        self.problem = ""

    async def forgotten(self, addresses, patience_s):
        self.asked.append((addresses, patience_s))
        return self.problem


class World:
    def __init__(self) -> None:
        self.conntrack = Conntrack()
        self.clock, self.dataplane, self.endpoints = FakeClock(), Dataplane(), Endpoints()
        self.graph, self.ruleset = CalcGraph("here"), WantedRuleset()
        self.graph.on_status(SyncStatus.IN_SYNC)
        self.published = 0
        self.mtu_bytes = 0
        for spec in (EGRESS_MAP, INGRESS_MAP):
            self.ruleset.want_set(spec)
            self.dispatch(spec, DISPATCHED, DISPATCHED)
        parts = ProgrammerParts(
            self.graph,
            self.dataplane,  # type: ignore[arg-type]
            self.endpoints,  # type: ignore[arg-type]
            self.conntrack,  # type: ignore[arg-type]
            self.ruleset,
            self.publish,
            lambda: self.mtu_bytes,
        )
        config = LiveConfig(SCHEMA).config
        self.programmer = FelixProgrammer(parts, "here", lambda: config, clock=self.clock)

    def publish(self) -> None:
        self.published += 1
        self.graph.flush()

    def dispatch(self, spec, wanted, programmed) -> None:
        self.ruleset.want_entry(spec.name, ifname_bytes(IFNAME), wanted)
        self.ruleset.entries[spec.name].confirm(ifname_bytes(IFNAME), programmed)

    async def run(self, call):
        """Let the call finish while time passes."""
        task = asyncio.ensure_future(call)
        await self.clock.advance(5)
        assert task.done()
        return await task


@pytest.fixture
def world() -> World:
    return World()


async def test_one_cycle_is_enough_when_all_is_well(world):
    await world.run(world.programmer.program(KEY, ENDPOINT))
    assert (world.published, world.dataplane.flushes) == (1, 1)
    assert world.programmer.endpoint_in_dataplane(KEY)
    assert world.graph.dump()["held"] != {}, "pinned"


async def test_an_addresss_former_connections_are_waited_for(world):
    await world.run(world.programmer.program(KEY, ENDPOINT))
    assert world.conntrack.asked == [(frozenset({"10.0.0.1"}), 5.0)]
    world.conntrack.problem = "the kernel has not finished"
    with pytest.raises(ProgrammingFailed, match="has not finished"):
        await world.run(world.programmer.program(KEY, ENDPOINT))


async def test_a_problem_that_goes_away_is_waited_for(world):
    world.endpoints.problems = ["busy", "busy", ""]
    waiting = asyncio.ensure_future(world.programmer.program(KEY, ENDPOINT))
    await world.clock.advance(0.01)
    assert (world.dataplane.flushes, waiting.done()) == (1, False), "a little apart"
    await world.clock.advance(1)
    await waiting
    assert world.dataplane.flushes == 3


async def test_a_problem_that_stays_is_raised_after_about_a_second_with_the_kernels_words(world):
    world.endpoints.problems = ["no route"]
    world.dataplane.error = "replace route failed"
    with pytest.raises(ProgrammingFailed, match=r"no route \(replace route failed\)"):
        await world.run(world.programmer.program(KEY, ENDPOINT))
    assert world.dataplane.flushes == 6
    assert not world.programmer.endpoint_in_dataplane(KEY)


@pytest.mark.parametrize("spec", [EGRESS_MAP, INGRESS_MAP], ids=lambda spec: spec.name)
async def test_policy_must_be_acknowledged_in_both_directions(world, spec):
    world.dispatch(spec, DISPATCHED, None)
    with pytest.raises(ProgrammingFailed, match=f"policy of interface {IFNAME}"):
        await world.run(world.programmer.program(KEY, ENDPOINT))
    assert "not in the kernel" in policy_problem(world.ruleset, IFNAME)
    world.dispatch(spec, None, None)
    assert "no policy is wanted" in policy_problem(world.ruleset, IFNAME)


async def test_an_endpoint_the_graph_refuses_is_the_callers_mistake(world):
    key, endpoint = calc.wep("n1", "not-an-address")
    with pytest.raises(ValidationError):
        await world.run(world.programmer.program(key, endpoint))
    assert world.dataplane.flushes == 0


@pytest.mark.parametrize("lacks", ["is_in_sync", "has_applied"])
async def test_before_the_first_cycle_nothing_is_pinned(world, lacks):
    setattr(world.dataplane, lacks, False)
    with pytest.raises(Transient):
        await world.programmer.program(KEY, ENDPOINT)
    assert world.graph.dump()["held"] == {}
    await world.programmer.retract(KEY)
    assert world.dataplane.flushes == 0


async def test_retract_waits_until_routes_and_policy_are_gone(world):
    world.endpoints.gone = [False, False, True]
    for spec in (EGRESS_MAP, INGRESS_MAP):
        world.dispatch(spec, None, None)
    world.graph.pin(KEY, ENDPOINT)
    await world.run(world.programmer.retract(KEY))
    assert world.dataplane.flushes == 3
    assert world.graph.dump()["held"] == {}


async def test_what_cannot_be_retracted_is_an_error(world):
    world.endpoints.gone = [False]
    with pytest.raises(ProgrammingFailed, match="routes are still"):
        await world.run(world.programmer.retract(KEY))
    world.endpoints.gone = [True]
    world.dispatch(EGRESS_MAP, None, DISPATCHED)
    assert policy_remains(world.ruleset, IFNAME)
    with pytest.raises(ProgrammingFailed, match="policy of interface"):
        await world.run(world.programmer.retract(KEY))


async def test_an_unknown_endpoint_is_not_in_the_dataplane(world):
    world.endpoints.known = False
    assert not world.programmer.endpoint_in_dataplane(KEY)
    await world.run(world.programmer.retract(KEY))


async def test_confirm_reaches_the_graph(world):
    await world.run(world.programmer.program(KEY, ENDPOINT))
    await world.programmer.confirm(KEY, 7)
    held = world.graph.dump()["held"]
    assert [entry["revision"] for entry in held.values()] == [7]
    await asyncio.sleep(0)
    assert world.published == 2


async def test_what_is_remembered_in_one_turn_of_the_loop_is_published_together(world):
    other, _ = calc.wep("n2", "10.0.0.2/32")
    world.programmer.remember(KEY, ENDPOINT)
    world.programmer.remember(other, ENDPOINT)
    assert world.published == 0
    await asyncio.sleep(0)
    assert world.published == 1
    assert len(world.graph.dump()["held"]) == 2, "pinned, and nobody waits for the kernel"
    assert world.dataplane.flushes == 0


async def test_what_is_remembered_is_not_pinned_again(world, monkeypatch):
    pinned = []
    pin = CalcGraph.pin
    monkeypatch.setattr(
        CalcGraph, "pin", lambda self, key, value: (pinned.append(key), pin(self, key, value))
    )
    world.programmer.remember(KEY, ENDPOINT)
    await world.run(world.programmer.program(KEY, ENDPOINT))
    assert pinned == [KEY]
    # Another value of the same key is another endpoint.
    await world.run(world.programmer.program(KEY, msgspec.structs.replace(ENDPOINT)))
    assert pinned == [KEY, KEY]


def test_settings_come_from_the_configuration(world):
    settings = world.programmer.settings()
    assert (settings.node_name, settings.interface_prefix) == ("here", "cali")
    assert (settings.ipv6_support, settings.device_route_protocol) == (True, 3)


def test_the_settings_name_the_mtu_of_the_uplinks_as_it_is_now(world):
    """0: the CNI agent asks the kernel."""
    assert world.programmer.settings().mtu_bytes == 0
    world.mtu_bytes = 1450
    assert world.programmer.settings().mtu_bytes == 1450
