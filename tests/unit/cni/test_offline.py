"""cni.offline: the reckoning of pods made while the datastore was away, broken off anywhere.

Wires and policy are tests/netns/test_cni_offline.py's; here is what the datastore hears."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cni import netconf
from cni.addresses import Addresses
from cni.endpoints import EndpointStore
from cni.identity import identify
from cni.journal import Journal, OfflinePod, holder_of
from cni.offline import OfflinePods, OfflineSettings, OfflineTools
from cni.offline_parts import GuardedProgrammer
from cni.queue import DeleteQueue, delete_of
from cni.replay import Replayer
from cni.skel import CniError, Code, Request, Verb
from cni.standalone import forget_offline
from ipam.client import IpamClient
from ipam.errors import NoPools
from ipam.garbage import Terms
from ipam.requests import WORKLOAD, AssignIP, Release
from libcalico.datastore.api import Datastore
from libcalico.model import IPPool, Node, WorkloadEndpoint
from libcalico.model.codec import decode_as, encode
from libcalico.model.defaults import with_defaults
from libcalico.model.endpoints import WorkloadEndpointSpec
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import ResourceKey, key_of, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.net import parse_cidr_or_ip
from libcalico.testing.clock import FakeClock
from tests.support.cni import NODE, RecordingProgrammer, seeded_datastore
from tests.support.faulty import Fault, FaultyDatastore
from tests.support.ipam import (
    ImpatientClock,
    ask,
    audited,
    client,
    consistent,
    held,
    source,
)

KEY = ResourceKey("WorkloadEndpoint", "node--1-k8s-web-eth0", "prod")
RESERVE = f"offline-reserve-{NODE}"


def endpoint(container: str, *addresses: str) -> WorkloadEndpoint:
    spec = WorkloadEndpointSpec(
        orchestrator="k8s", node=NODE, container_id=container, pod="web", endpoint="eth0",
        ip_networks=tuple(f"{a}/128" if ":" in a else f"{a}/32" for a in addresses),
        interface_name="cali1", profiles=("net",),
    )  # fmt: skip
    metadata = ObjectMeta(name=KEY.name, namespace="prod", labels={})
    return WorkloadEndpoint(metadata=metadata, spec=spec)


def add_request(container: str) -> Request:
    return Request(
        plugin="calico", verb=Verb.ADD, container_id=container, netns="", ifname="eth0", path="",
        args={}, config={"name": "net"}, version="1.0.0",
    )  # fmt: skip


class Cut(FaultyDatastore):
    """From a certain call on the datastore is away; of that one only the answer may be lost."""

    def __init__(self, inner: Datastore, call: int, fault: Fault) -> None:
        def script(number: int, _: str) -> Fault:
            return Fault.OK if number < call else fault if number == call else Fault.REFUSE

        super().__init__(inner, script)

    async def create(self, key: str, value: bytes) -> int:
        return await self._call("create", lambda: self.inner.create(key, value))


class Life:
    """One felix: its memory goes with it, journal, queue and datastore stay."""

    def __init__(self, world: World, datastore: Datastore) -> None:
        self.programmer = RecordingProgrammer()
        self.ipam = IpamClient(datastore, clock=ImpatientClock())
        store, addresses = EndpointStore(datastore), Addresses(self.ipam)
        self.journal, self.queue = world.journal, DeleteQueue(world.folder / "queue")
        tools = OfflineTools(self.journal, self.queue, store, addresses, self.ipam, self.programmer)
        self.offline = OfflinePods(tools, NODE, lambda: world.settings, clock=FakeClock())
        guarded = GuardedProgrammer(self.programmer, self.journal)
        self.replayer = Replayer(self.queue, store, addresses, guarded, clock=FakeClock())
        self.offline.start()

    async def pod(self, container: str, *replaces: str) -> OfflinePod:
        """What an offline ADD leaves behind."""
        holder = holder_of(f"net.{container}", "eth0")
        pools = (await self.ipam.source.facts()).pools
        taken = self.offline.reserve.take(holder, [[p] for p in pools])
        assert taken is not None
        made = endpoint(container, *map(str, taken))
        entry = OfflinePod(
            network="net", container_id=container, ifname="eth0", namespace="prod",
            endpoint=KEY.name, handle_id=f"net.{container}", queued_at=time.time(),
            addresses=tuple(map(str, taken)), attributes={"node": NODE, "pod": "web"},
            record=encode(made).decode(), replaces=replaces,
        )  # fmt: skip
        self.journal.write(entry)
        await self.programmer.program(KEY, made)
        return entry


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.datastore = seeded_datastore()
        self.journal = Journal(folder / "journal")
        self.settings = OfflineSettings(is_enabled=True, reserve=2)

    def life(self, datastore: Datastore | None = None) -> Life:
        return Life(self, datastore or self.datastore)

    async def ready(self) -> Life:
        life = self.life()
        assert await life.offline.run_pass()
        assert life.offline.reserve.count() == 4
        return life

    def stored_container(self) -> str | None:
        value = self.datastore.contents().get(path_of(KEY))
        if value is None:
            return None
        return decode_as(WorkloadEndpoint, KEY, value, 1).spec.container_id

    async def holders(self) -> set[str | None]:
        return set((await held(self.datastore)).values()) - {RESERVE}


@pytest.fixture
async def world(tmp_path: Path):
    made = World(tmp_path)
    yield made
    assert await audited(made.datastore) == []
    await consistent(made.datastore)


async def test_a_pod_is_recorded_its_addresses_are_its_own_and_the_reserve_is_filled_again(world):
    life = await world.ready()
    entry = await life.pod("c1")
    assert await life.offline.run_pass()
    assert world.stored_container() == "c1"
    found = await held(world.datastore)
    assert {str(a) for a, handle in found.items() if handle == "net.c1"} == set(entry.addresses)
    assert life.programmer.confirmed[KEY] > 0
    assert world.journal.count() == 0
    assert life.offline.reserve.count() == 4
    assert not {str(a) for v in life.offline.reserve._free.values() for a in v} & set(
        entry.addresses
    )


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
@pytest.mark.parametrize("call", range(1, 31))
async def test_a_felix_that_dies_at_any_call_is_followed_by_one_that_finishes(world, call, fault):
    """From that call on the datastore is away; then the process is killed."""
    entry = await (await world.ready()).pod("c1")
    cut = Cut(world.datastore, call, fault)
    await world.life(cut).offline.run_pass()
    assert cut.calls >= call, "every step is met"
    after = world.life()
    if world.journal.count():
        assert KEY in after.programmer.programmed, "pinned before anything is known"
    assert await after.offline.run_pass()
    assert world.stored_container() == "c1"
    assert await world.holders() == {"net.c1"}
    assert world.journal.count() == 0
    assert after.offline.reserve.count() == 4
    assert len(await held(world.datastore)) == 6, entry


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
@pytest.mark.parametrize("call", range(1, 31))
async def test_a_pod_deleted_without_felix_at_any_call_leaves_nothing(world, call, fault):
    """The same death, then the DEL that runs alone, then the next felix."""
    entry = await (await world.ready()).pod("c1")
    await world.life(Cut(world.datastore, call, fault)).offline.run_pass()
    # What cni.standalone does when etcd is away: queue, then the journal.
    await DeleteQueue(world.folder / "queue").put(delete_of(entry, time.time()))
    await forget_offline(add_request("c1"), world.journal, DeleteQueue(world.folder / "queue"))
    after = world.life()
    assert await after.replayer.replay_all() == 0
    assert await after.offline.run_pass()
    assert world.stored_container() is None
    assert await world.holders() == set()
    assert after.offline.reserve.count() == 4
    assert len(await held(world.datastore)) == 4


@pytest.mark.parametrize("is_replayed_by_then", [True, False])
async def test_a_del_without_felix_wins_against_the_reckoning_of_that_moment(
    world, is_replayed_by_then
):
    life = await world.ready()
    await life.pod("c1")
    other = DeleteQueue(world.folder / "queue")

    def delete() -> None:
        entry = world.journal.of_attachment("net", "c1", "eth0")
        assert entry is not None
        if not is_replayed_by_then:
            other.write(delete_of(entry, time.time()))
        world.journal.remove(entry)

    world.datastore.before_next(delete, operations=["create"], prefix=path_of(KEY))
    assert await life.offline.run_pass()
    assert world.stored_container() == "c1", "it was too late for that"
    assert await life.replayer.replay_all() == 0
    assert world.stored_container() is None
    assert await world.holders() == set()


async def test_a_del_without_felix_queues_itself_whatever_the_datastore_said(world):
    await (await world.ready()).pod("c1")
    queue = DeleteQueue(world.folder / "queue")
    for _ in range(2):
        await forget_offline(add_request("c1"), world.journal, queue)
        await forget_offline(add_request("c9"), world.journal, queue)
        assert world.journal.count() == 0
        assert [entry.container_id for entry in queue.entries()] == ["c1"]


async def test_a_process_that_died_between_queue_and_journal_has_deleted(world):
    entry = await (await world.ready()).pod("c1")
    await DeleteQueue(world.folder / "queue").put(delete_of(entry, time.time()))
    after = world.life()
    assert KEY not in after.programmer.programmed
    assert await after.offline.run_pass()
    assert await after.replayer.replay_all() == 0
    assert world.stored_container() is None
    assert after.offline.reserve.count() == 4


@pytest.mark.parametrize("present", ["", "c0", "c3"])
async def test_only_what_the_pod_took_over_is_overwritten(world, present):
    if present:
        world.datastore.seed({path_of(KEY): encode(endpoint(present, "10.65.0.77"))})
    life = await world.ready()
    await life.pod("c1", "c0")
    assert await life.offline.run_pass()
    assert world.stored_container() == ("c3" if present == "c3" else "c1")
    assert (KEY in life.programmer.confirmed) == (present != "c3")
    assert await world.holders() == {"net.c1"}, "its DEL releases what is its own"


async def test_two_containers_of_one_pod_are_recorded_in_their_order(world):
    life = await world.ready()
    await life.pod("c1")
    await life.pod("c2", "c1")
    assert await life.offline.run_pass()
    assert world.stored_container() == "c2"
    assert await world.holders() == {"net.c1", "net.c2"}


async def test_the_replayed_del_of_the_former_container_leaves_the_new_one_its_policy(world):
    world.datastore.seed({path_of(KEY): encode(endpoint("c0", "10.65.0.77"))})
    life = await world.ready()
    entry = await life.pod("c1", "c0")
    before = msgspec.structs.replace(delete_of(entry, 1.0), container_id="c0", handle_id="net.c0")
    await life.queue.put(before)
    assert await life.replayer.replay_all() == 0
    assert world.stored_container() is None
    assert KEY in life.programmer.programmed, "the datastore does not show c1 yet"
    assert await life.offline.run_pass()
    assert world.stored_container() == "c1"


async def test_an_address_somebody_took_away_cuts_the_pod_off_and_stops_no_other(world, caplog):
    life = await world.ready()
    lost = await life.pod("c1")
    thief = IpamClient(world.datastore, clock=ImpatientClock())
    address = parse_cidr_or_ip(lost.addresses[0]).network_address
    await thief.release_ips([Release(address=address)])
    await thief.assign_ip(
        AssignIP(address=address, host=NODE, use=WORKLOAD, handle_id="net.x", attributes={})
    )
    assert await life.offline.run_pass()
    assert "lost its address and is cut off" in caplog.text
    assert KEY not in life.programmer.programmed
    assert world.stored_container() is None
    assert world.journal.count() == 0
    assert [path.suffix for path in (world.folder / "journal").iterdir()] == [".bad"]
    await thief.release_by_handle("net.x")


async def test_an_entry_that_cannot_be_read_stops_no_other(world, caplog):
    life = await world.ready()
    await life.pod("c1")
    path = world.folder / "journal" / ("0" * 24 + "-" + "0" * 24 + ".json")
    path.write_bytes(b"{")
    after = world.life()
    assert await after.offline.run_pass()
    assert caplog.text.count("not readable and set aside") == 1
    assert world.stored_container() == "c1"


async def test_switched_off_what_is_journalled_is_recorded_before_the_reserve_goes(world):
    await (await world.ready()).pod("c1")
    world.settings = OfflineSettings(is_enabled=False)
    after = world.life()
    world.datastore.fail_next(count=10, operations=["create"], prefix=path_of(KEY))
    assert not await after.offline.run_pass()
    assert RESERVE in set((await held(world.datastore)).values())
    world.datastore._faults.clear()
    assert await after.offline.run_pass()
    assert set((await held(world.datastore)).values()) == {"net.c1"}
    assert world.stored_container() == "c1"


async def test_a_smaller_reserve_gives_the_surplus_back(world):
    await world.ready()
    world.settings = OfflineSettings(is_enabled=True, reserve=1)
    after = world.life()
    assert await after.offline.run_pass()
    assert after.offline.reserve.count() == 2
    assert len(await held(world.datastore)) == 2


async def test_an_ordinary_add_of_a_journalled_pod_records_it_first_or_comes_again(world):
    life = await world.ready()
    await life.pod("c1")
    world.datastore.partition()
    with pytest.raises(CniError) as raised:
        await life.offline.settle(add_request("c1"))
    assert raised.value.code == Code.TRY_AGAIN_LATER
    world.datastore.heal()
    await life.offline.settle(add_request("c1"))
    await life.offline.settle(add_request("c9"))
    assert world.stored_container() == "c1"


@pytest.mark.parametrize(
    ("state", "is_enabled", "is_cut_off"),
    [("away", True, True), ("away", False, False), ("denied", True, False), ("there", True, False)],
)
async def test_only_a_datastore_that_does_not_answer_is_done_without(
    world, state, is_enabled, is_cut_off
):
    life = await world.ready()
    world.settings = OfflineSettings(is_enabled=is_enabled)
    if state == "away":
        world.datastore.partition()
    elif state == "denied":
        world.datastore.deny("/calico/")
    assert await life.offline.is_cut_off() is is_cut_off
    world.datastore.heal()
    world.datastore.allow()


async def test_others_fill_the_pool_take_blocks_and_delete_it_while_the_node_is_cut_off(world):
    """Whatever they do, what stands in the reserve is out of their reach."""
    life = await world.ready()
    entry = await life.pod("c1")
    pools = (await life.ipam.source.facts()).pools
    others = client(world.datastore, source(*pools, nodes=[NODE, "n2"]))
    got = await others.auto_assign(ask("greedy", "n2", v4=300))
    assert len(got.addresses) == 256 - 2, "borrowed and claimed all but the reserve"
    collector = others.collector()
    for _ in range(2):
        await collector.run_pass(Terms(grace_s=0.001, min_blocks=0))
    world.datastore.erase(path_of(ResourceKey("IPPool", "v4")))
    await others.affinities.release_pool(pools[0].cidr)
    assert await life.offline.run_pass()
    found = await held(world.datastore)
    assert {str(a) for a, handle in found.items() if handle == "net.c1"} == set(entry.addresses)
    assert world.stored_container() == "c1"


@pytest.mark.parametrize(
    ("ipam", "args", "node", "said"),
    [
        ({}, {}, NODE, ""),
        ({"ipv4_pools": ["v4"]}, {}, NODE, ""),
        ({"ipv4_pools": ["zspare"]}, {}, NODE, "no address left"),
        ({}, {"IP": "10.65.0.9"}, NODE, "a particular address"),
        ({}, {}, "n2", "the reserve is node-1's"),
    ],
)
async def test_what_an_offline_add_may_have(world, ipam, args, node, said):
    spare = IPPool(metadata=ObjectMeta(name="zspare"), spec=IPPoolSpec(cidr="10.99.0.0/24"))
    other = Node(metadata=ObjectMeta(name="n2"))
    world.datastore.seed({path_of(key_of(o)): encode(o) for o in (with_defaults(spare), other)})
    life = await world.ready()
    request = replace(
        add_request("c1"),
        args={"K8S_POD_NAME": "web", "K8S_POD_NAMESPACE": "prod", **args},
        config={"name": "net", "ipam": {"type": "calico-ipam", "assign_ipv6": "true"} | ipam},
    )
    conf = netconf.parse(request)
    workload = identify(request, conf, node=node, prefix="cali")
    addresses, _ = life.offline._stand_ins(request)
    if said:
        with pytest.raises(CniError, match=said) as raised:
            await addresses.assign(request, conf, workload)
        assert raised.value.code == Code.TRY_AGAIN_LATER
        assert life.offline.reserve.count() == 4
        return
    found = await addresses.assign(request, conf, workload)
    assert [":" in address for address in found] == [False, True]
    assert life.offline.reserve.count() == 2
    await addresses.release(request, conf, workload.handle_id)
    assert life.offline.reserve.count() == 4


async def test_a_pool_that_felix_knows_to_be_disabled_gives_nothing(world):
    life = await world.ready()
    key = ResourceKey("IPPool", "v4")
    pool = decode_as(IPPool, key, world.datastore.contents()[path_of(key)], 1)
    disabled = msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, disabled=True))
    world.datastore.seed({path_of(key): encode(disabled)})
    request = replace(
        add_request("c1"),
        args={"K8S_POD_NAME": "web", "K8S_POD_NAMESPACE": "prod"},
        config={"name": "net", "ipam": {"type": "calico-ipam"}},
    )
    conf = netconf.parse(request)
    workload = identify(request, conf, node=NODE, prefix="cali")
    addresses, _ = life.offline._stand_ins(request)
    with pytest.raises(NoPools):
        await addresses.assign(request, conf, workload)


async def test_run_records_as_soon_as_the_datastore_is_back(world):
    life = await world.ready()
    await life.pod("c1")
    world.datastore.partition()
    clock = life.offline._clock
    running = asyncio.ensure_future(life.offline.run())
    for _ in range(3):
        await _until(lambda: clock.next_deadline() is not None)
        await clock.advance(15.0)
    assert world.journal.count() == 1
    world.datastore.heal()
    for _ in range(1000):
        if world.journal.count() == 0:
            break
        await clock.advance(15.0)
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert world.stored_container() == "c1"


async def _until(check) -> None:
    for _ in range(1000):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never came true")
