"""cni.replay: queued DELs meet the datastore again, and whatever happened meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from cni.addresses import Addresses
from cni.endpoints import EndpointStore
from cni.queue import DeleteQueue, QueuedDelete
from cni.replay import Replayer
from cni.skel import CniError, Code
from ipam.client import IpamClient
from ipam.requests import WORKLOAD, AutoAssign
from libcalico.model import ClusterInformation, WorkloadEndpoint
from libcalico.model.codec import decode_as, encode
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.keys import ResourceKey, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.testing.clock import FakeClock
from tests.support.cni import NODE, RecordingProgrammer, seeded_datastore
from tests.support.ipam import ImpatientClock

KEY = ResourceKey("WorkloadEndpoint", "node--1-k8s-web-eth0", "prod")
QUEUED = QueuedDelete(
    network="net", container_id="c1", ifname="eth0", namespace="prod", endpoint=KEY.name,
    handle_id="net.c1", queued_at=1.0,
)  # fmt: skip


def endpoint(container: str) -> WorkloadEndpoint:
    spec = WorkloadEndpointSpec(
        orchestrator="k8s", node=NODE, container_id=container, pod="web", endpoint="eth0",
        ip_networks=("10.65.0.1/32",), interface_name="cali1", profiles=("net",),
    )  # fmt: skip
    metadata = ObjectMeta(name=KEY.name, namespace="prod", labels={})
    return WorkloadEndpoint(metadata=metadata, spec=spec)


class World:
    def __init__(self, folder: Path) -> None:
        self.datastore = seeded_datastore()
        self.programmer = RecordingProgrammer()
        self.queue = DeleteQueue(folder / "queue")
        self.clock = FakeClock()
        self.forget_ipam()

    def forget_ipam(self) -> None:
        """As a new process: nothing is remembered."""
        self.ipam = IpamClient(self.datastore, clock=ImpatientClock())
        self.replayer = Replayer(
            self.queue,
            EndpointStore(self.datastore),
            Addresses(self.ipam),
            self.programmer,
            clock=self.clock,
        )

    async def pod(self, container: str) -> None:
        """What an ADD leaves: an address, a record, a programmed endpoint."""
        request = AutoAssign(
            host=NODE, use=WORKLOAD, handle_id=f"net.{container}", attributes={"node": NODE},
            num_v4=1,
        )  # fmt: skip
        await self.ipam.auto_assign(request)
        self.datastore.seed({path_of(KEY): encode(endpoint(container))})
        self.programmer.programmed[KEY] = endpoint(container)

    def handles(self) -> set[str]:
        return {
            key.rpartition("/")[2] for key in self.datastore.contents() if "/ipam/v2/handle/" in key
        }

    def stored_container(self) -> str | None:
        value = self.datastore.contents().get(path_of(KEY))
        return (
            None if value is None else decode_as(WorkloadEndpoint, KEY, value, 1).spec.container_id
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_endpoint_addresses_and_entry_go(world):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    assert await world.replayer.replay_all() == 0
    assert world.stored_container() is None
    assert world.handles() == set()
    assert world.programmer.programmed == {}
    assert world.queue.count() == 0


async def test_a_pod_that_was_made_again_is_not_touched(world):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    await world.pod("c2")
    assert await world.replayer.replay_all() == 0
    assert world.stored_container() == "c2"
    assert world.handles() == {"net.c2"}
    assert set(world.programmer.programmed) == {KEY}


async def test_a_pod_that_is_made_again_at_this_moment_is_not_touched(world):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    taken_over = {path_of(KEY): encode(endpoint("c2"))}
    world.datastore.before_next(
        lambda: world.datastore.seed(taken_over), operations=["delete"], prefix=path_of(KEY)
    )
    assert await world.replayer.replay_all() == 0
    assert world.stored_container() == "c2"
    assert set(world.programmer.programmed) == {KEY}, "its policy must stay"
    assert world.handles() == set()


async def test_an_endpoint_somebody_else_wrote_since_goes_all_the_same(world):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    labelled = endpoint("c1")
    labelled = replace(labelled, metadata=replace(labelled.metadata, labels={"a": "b"}))
    world.datastore.before_next(
        lambda: world.datastore.seed({path_of(KEY): encode(labelled)}), operations=["delete"]
    )
    assert await world.replayer.replay_all() == 0
    assert world.stored_container() is None


@pytest.mark.parametrize(
    ("operation", "prefix", "count"),
    [
        ("get", "/calico/resources/", 1),
        ("delete", "/calico/resources/", 1),
        ("get", "/calico/ipam/", 5),  # IPAM looks again by itself: all its tries meet the fault
        ("txn", "/calico/ipam/", 5),
    ],
)
@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_replay_that_breaks_off_is_finished_by_the_next(
    world, operation, prefix, count, is_lost
):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    world.forget_ipam()
    fail = world.datastore.lose_answer_next if is_lost else world.datastore.fail_next
    fail(count=count, operations=[operation], prefix=prefix)
    first = await world.replayer.replay_all()
    world.datastore._faults.clear()
    assert first == 1 or is_lost, "a lost answer may be found out at once"
    assert await world.replayer.replay_all() == 0
    assert world.stored_container() is None
    assert world.handles() == set()
    assert world.queue.count() == 0


async def test_an_entry_of_calico_ipam_alone_touches_no_endpoint(world):
    await world.pod("c1")
    await world.queue.put(replace(QUEUED, endpoint=""))
    assert await world.replayer.replay_all() == 0
    assert world.handles() == set()
    assert world.stored_container() == "c1"


async def test_an_entry_whose_addresses_are_another_plugins_releases_nothing(world):
    await world.pod("c1")
    await world.queue.put(replace(QUEUED, handle_id=""))
    assert await world.replayer.replay_all() == 0
    assert world.handles() == {"net.c1"}
    assert world.stored_container() is None


async def test_while_the_datastore_is_away_or_locked_everything_waits(world, caplog):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    world.datastore.partition()
    assert await world.replayer.replay_all() == 1
    assert await world.replayer.replay_all() == 1
    assert caplog.text.count("queued DELs wait for the datastore") == 1
    world.datastore.heal()
    key = ResourceKey("ClusterInformation", "default")
    information = decode_as(ClusterInformation, key, world.datastore.contents()[path_of(key)], 1)
    locked = replace(information, spec=replace(information.spec, datastore_ready=False))
    world.datastore.seed({path_of(key): encode(locked)})
    assert await world.replayer.replay_all() == 1
    assert world.stored_container() == "c1"
    world.datastore.seed({path_of(key): encode(information)})
    assert await world.replayer.replay_all() == 0
    assert world.stored_container() is None


async def test_an_entry_that_cannot_be_finished_does_not_stop_the_next(world, caplog):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    block = next(key for key in world.datastore.contents() if "/ipv4/block/" in key)
    sound = world.datastore.contents()[block]
    world.datastore.seed({block: b"{not a block"})
    await world.queue.put(replace(QUEUED, container_id="c3", handle_id="", queued_at=2.0))
    assert await world.replayer.replay_all() == 1
    assert "a queued DEL cannot be finished yet" in caplog.text
    assert [entry.container_id for entry in world.queue.entries()] == ["c1"]
    world.datastore.seed({block: sound})
    assert await world.replayer.replay_all() == 0


async def test_an_add_of_the_container_does_its_queued_dels_first(world):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    await world.queue.put(replace(QUEUED, container_id="c9", handle_id="net.c9"))
    await world.replayer.settle("net", "c1")
    assert world.stored_container() is None
    assert [entry.container_id for entry in world.queue.entries()] == ["c9"]
    world.datastore.partition()
    with pytest.raises(CniError) as raised:
        await world.replayer.settle("net", "c9")
    assert raised.value.code == Code.TRY_AGAIN_LATER


async def test_a_pass_that_began_before_an_add_leaves_what_the_add_made(world):
    """The folder was read, then the ADD did the entry itself and made the container's new pod."""
    await world.pod("c1")
    await world.queue.put(QUEUED)
    entries = world.queue.entries()
    await world.replayer.settle("net", "c1")
    await world.pod("c1")
    for entry in entries:
        await world.replayer._replay(entry)
    assert world.stored_container() == "c1"
    assert world.handles() == {"net.c1"}


async def test_run_replays_at_start_and_when_woken_and_tries_until_it_succeeds(world):
    await world.pod("c1")
    await world.queue.put(QUEUED)
    running = asyncio.ensure_future(world.replayer.run())
    await _until(lambda: world.queue.count() == 0)
    await world.pod("c1")
    world.datastore.partition()
    await world.queue.put(QUEUED)
    for _ in range(3):
        await _until(lambda: world.clock.next_deadline() is not None)
        await world.clock.advance(15.0)
    assert world.queue.count() == 1
    world.datastore.heal()
    for _ in range(1000):
        if world.queue.count() == 0:
            break
        await world.clock.advance(15.0)
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert world.stored_container() is None


async def _until(check) -> None:
    for _ in range(1000):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never came true")
