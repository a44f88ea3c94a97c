"""cni.sweep: when an endpoint without a container goes, and when it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from cni import sandbox
from cni.addresses import Addresses
from cni.agent import Agent, OnNode, WhileAway
from cni.endpoints import NETWORK_ANNOTATION, SANDBOX_ANNOTATION, EndpointStore
from cni.facts import NamesOf
from cni.identity import Workload
from cni.queue import DeleteQueue
from cni.replay import Replayer
from cni.sweep import Sweeper, SweepParts, SweepTerms
from ipam.client import IpamClient
from ipam.requests import WORKLOAD, AutoAssign
from libcalico.errors import DatastoreUnavailable
from libcalico.model import WorkloadEndpoint
from libcalico.model.codec import encode
from libcalico.model.defaults import initial_cluster_information
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.keys import ResourceKey, key_of, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.model.names import EndpointIds
from libcalico.testing.clock import FakeClock
from tests.support.cni import NODE, RecordingProgrammer, seeded_datastore
from tests.support.ipam import ImpatientClock

KEY = ResourceKey("WorkloadEndpoint", "node--1-k8s-web-eth0", "prod")
OLD_NOTE = "an-old-boot 4:4026532000 /run/netns/old"
GRACE_S = 60.0


def endpoint(
    container: str = "c1", note: str = OLD_NOTE, interface: str = "caliweb0", network: str = "net"
) -> WorkloadEndpoint:
    spec = WorkloadEndpointSpec(
        orchestrator="k8s", node=NODE, container_id=container, pod="web", endpoint="eth0",
        ip_networks=("10.65.0.1/32",), interface_name=interface, profiles=("net",),
    )  # fmt: skip
    notes = {NETWORK_ANNOTATION: network, SANDBOX_ANNOTATION: note}
    metadata = ObjectMeta(
        name=KEY.name, namespace="prod", annotations={k: v for k, v in notes.items() if v}
    )
    return WorkloadEndpoint(metadata=metadata, spec=spec)


class World:
    def __init__(self, folder: Path) -> None:
        self.datastore = seeded_datastore()
        self.programmer = RecordingProgrammer()
        self.queue = DeleteQueue(folder / "queue")
        self.clock = FakeClock()
        self.store = EndpointStore(self.datastore)
        self.ipam = IpamClient(self.datastore, clock=ImpatientClock())
        addresses = Addresses(self.ipam)
        self.replayer = Replayer(
            self.queue, self.store, addresses, self.programmer, clock=self.clock
        )
        away = WhileAway(self.replayer)
        self.agent = Agent(self.programmer, self.store, addresses, away, OnNode(folder / "lib"))
        self.terms = SweepTerms(300.0, GRACE_S)
        self.looks = 0
        self.sweeper = Sweeper(
            SweepParts(
                self.agent,
                self.store,
                self.programmer,
                self.queue,
                self.clock,
                lambda: self.terms,
                host_names=self._host_names,
            )
        )

    def _host_names(self) -> set[str]:
        self.looks += 1
        return {"lo", "eth0"}

    def store_endpoint(self, value: WorkloadEndpoint) -> None:
        self.datastore.seed({path_of(KEY): encode(value)})

    async def pod(self, value: WorkloadEndpoint | None = None) -> None:
        """What an ADD leaves."""
        made = endpoint() if value is None else value
        request = AutoAssign(
            host=NODE, use=WORKLOAD, handle_id=f"net.{made.spec.container_id}",
            attributes={"node": NODE}, num_v4=1,
        )  # fmt: skip
        await self.ipam.auto_assign(request)
        self.store_endpoint(made)

    async def after_grace(self) -> int:
        """How many are swept by the second look."""
        await self.sweeper.sweep()
        await self.clock.advance(GRACE_S)
        return await self.sweeper.sweep()

    def left(self) -> list[str]:
        parts = ("/workloadendpoints/", "/ipam/v2/handle/")
        return [k for k in self.datastore.contents() if any(part in k for part in parts)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_after_the_grace_period_endpoint_and_addresses_go(world: World):
    await world.pod()
    assert await world.sweeper.sweep() == 0
    await world.clock.advance(GRACE_S - 1)
    assert await world.sweeper.sweep() == 0
    await world.clock.advance(1)
    assert await world.sweeper.sweep() == 1
    assert await world.replayer.replay_all() == 0
    assert world.left() == []


@pytest.mark.parametrize(
    "value",
    [
        endpoint(note=""),  # made before namespaces were noted, or by Calico's plugin
        endpoint(network=""),
        endpoint(container=""),
        endpoint(interface=""),
        endpoint(interface="lo"),  # the host has it
        endpoint(note=sandbox.note("/proc/self/ns/net")),  # there
    ],
)
async def test_what_is_not_proven_to_be_garbage_stays(world: World, value: WorkloadEndpoint):
    world.store_endpoint(value)
    assert await world.after_grace() == 0
    assert world.queue.count() == 0


async def test_of_another_node_nothing_is_swept(world: World):
    other = endpoint()
    world.store_endpoint(replace(other, spec=replace(other.spec, node="node-2")))
    assert await world.after_grace() == 0


async def test_an_endpoint_that_is_written_meanwhile_begins_anew(world: World):
    await world.pod()
    await world.sweeper.sweep()
    await world.clock.advance(GRACE_S)
    world.store_endpoint(endpoint("c2"))
    assert await world.sweeper.sweep() == 0
    assert world.queue.count() == 0


async def test_an_endpoint_taken_over_right_before_is_left_alone(world: World):
    """Between the look and the proof the pod's next container comes."""
    await world.pod()
    await world.sweeper.sweep()
    await world.clock.advance(GRACE_S)
    world.datastore.before_next(
        lambda: world.store_endpoint(endpoint("c2")), operations=["get"], prefix=path_of(KEY)
    )
    assert await world.sweeper.sweep() == 0
    assert world.queue.count() == 0


async def test_an_attachment_with_a_request_in_flight_is_waited_for(world: World):
    await world.pod()
    await world.sweeper.sweep()
    await world.clock.advance(GRACE_S)
    async with world.agent.held(("c1", "eth0")):
        seen = world.looks
        sweeping = asyncio.ensure_future(world.sweeper.sweep())
        while world.looks == seen:  # noqa: ASYNC110 - it is counted in a thread
            await asyncio.sleep(0)
        await world.clock.advance(0)
        assert not sweeping.done()
        world.datastore.erase(path_of(KEY))  # it was its DEL
    assert await sweeping == 0
    assert world.queue.count() == 0


async def test_an_interface_name_in_use_by_an_add_is_left_to_it(world: World):
    await world.pod()
    await world.sweeper.sweep()
    await world.clock.advance(GRACE_S)
    ids = EndpointIds(node=NODE, orchestrator="k8s", pod="web", endpoint="eth0")
    coming = Workload(
        ids=ids, key=KEY, name_prefix="node--1-k8s-web-", interface="caliweb0",
        interface_prefix="cali", handle_id="net.c2", container_id="c2", ifname="eth0",
    )  # fmt: skip
    with world.agent._names.claimed(coming, NamesOf()):
        assert await world.sweeper.sweep() == 0
    assert await world.sweeper.sweep() == 1


async def test_time_without_a_look_is_no_grace(world: World):
    await world.pod()
    await world.sweeper.sweep()
    await world.clock.advance(GRACE_S)
    world.programmer.ready = False
    assert await world.sweeper.sweep() == 0
    world.programmer.ready = True
    assert await world.sweeper.sweep() == 0


async def test_a_locked_datastore_is_not_swept(world: World):
    await world.pod()
    locked = initial_cluster_information("0" * 32)
    spec = replace(locked.spec, datastore_ready=False)
    cluster = replace(locked, spec=spec)
    world.datastore.seed({path_of(key_of(cluster)): encode(cluster)})
    assert await world.after_grace() == 0
    assert world.queue.count() == 0


async def test_a_datastore_that_is_away_costs_a_line_and_the_grace(
    world: World, caplog: pytest.LogCaptureFixture
):
    await world.pod()
    world.terms = SweepTerms(100.0, 100.0)
    running = asyncio.ensure_future(world.sweeper.run())
    await world.clock.advance(130)
    world.datastore.partition()
    with pytest.raises(DatastoreUnavailable):
        await world.sweeper.sweep()
    await world.clock.advance(250)
    assert [r.message for r in caplog.records].count("no sweep of stale endpoints") <= 5
    assert world.sweeper.dump() == {"suspects": [], "swept": 0}
    world.datastore.heal()
    await world.clock.advance(260)
    running.cancel()
    await asyncio.wait({running})


async def test_an_interval_of_zero_turns_it_off(world: World):
    await world.pod()
    world.terms = SweepTerms(0.0, 0.0)
    running = asyncio.ensure_future(world.sweeper.run())
    await world.clock.advance(1000)
    assert world.left() != []
    assert world.sweeper.dump()["suspects"] == []
    running.cancel()
    await asyncio.wait({running})
