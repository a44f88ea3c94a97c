"""calicoctl.node.tunnels on a real etcd: a node's tunnel addresses follow what pools want.

Source: datamodel 2.2 (handles, attributes); Calico node/pkg/allocateip.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from calicoctl.node.tunnels import TunnelAddresses
from ipam import tunnelplan
from ipam.client import IpamClient
from ipam.handles import Tunnel
from ipam.requests import AssignIP
from libcalico.datastore.api import Datastore
from libcalico.datastore.etcd import EtcdDatastore
from libcalico.datastore.etcd_link import EtcdConfig
from libcalico.datastore.resources import ResourceClient
from libcalico.errors import RevisionConflict
from libcalico.model import IPPool, Node
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.keys import ResourceKey, path_of
from libcalico.model.meta import ObjectMeta
from libcalico.net import parse_ip
from libcalico.testing.etcd import EtcdCluster
from tests.support.garbage import initialised
from tests.support.ipam import all_handles, audited, consistent, held

pytestmark = pytest.mark.etcd
IPIP = "ipip-tunnel-addr-n1"


class World:
    def __init__(self, store: Datastore) -> None:
        self.store, self.client, self.ipam = store, ResourceClient(store), IpamClient(store)

    async def pool(self, name: str, cidr: str, **spec: object) -> None:
        whole = IPPoolSpec(cidr=cidr, node_selector="all()", **spec)  # type: ignore[arg-type]
        await self.client.apply(IPPool(metadata=ObjectMeta(name=name), spec=whole))

    async def change(self, **labels: str) -> None:
        node = await self.node()
        metadata = msgspec.structs.replace(node.metadata, labels=labels)
        await self.client.update(msgspec.structs.replace(node, metadata=metadata))

    async def node(self) -> Node:
        return await self.client.get(Node, "n1")

    async def recorded(self, tunnel: Tunnel = Tunnel.IPIP) -> str:
        return tunnelplan.recorded(tunnel, await self.node())

    async def record(self, tunnel: Tunnel, address: str) -> None:
        await self.client.update(tunnelplan.with_address(tunnel, await self.node(), address))

    async def reconcile(self) -> None:
        """As a process that has just started."""
        await TunnelAddresses(self.store, "n1").reconcile()

    async def holds(self) -> dict[str, str | None]:
        return {str(address): handle for address, handle in (await held(self.store)).items()}


@pytest.fixture
async def world(etcd: EtcdCluster) -> AsyncIterator[World]:
    store = EtcdDatastore(EtcdConfig(etcd.endpoints))
    # The server is shared, and other tests compact it.
    since = (await store.list("/calico/")).revision + 1
    await initialised(store, (), ("n1", "n2"))
    found = World(store)
    await found.client.update(await _complete(found))
    yield found
    assert await audited(store, since) == []
    await consistent(store)
    await store.close()


async def _complete(world: World) -> Node:
    node = await world.node()
    metadata = msgspec.structs.replace(
        node.metadata, uid="u-1", creation_timestamp="2026-12-01T00:00:00Z"
    )
    return msgspec.structs.replace(node, metadata=metadata)


async def test_without_a_pool_that_wants_a_tunnel_nothing_is_written(world):
    await world.pool("plain", "10.65.0.0/24")
    before = (await world.store.list("/calico/")).revision
    await world.reconcile()
    assert (await world.store.list("/calico/")).revision == before


async def test_each_encapsulation_gets_its_address_handle_and_attributes(world):
    await world.pool("ipip", "10.65.0.0/24", ipip_mode="CrossSubnet")
    await world.pool("vxlan", "10.66.0.0/24", vxlan_mode="Always")
    await world.pool("vxlan6", "fd66::/112", vxlan_mode="Always")
    await world.reconcile()
    assert {
        await world.recorded(Tunnel.IPIP): IPIP,
        await world.recorded(Tunnel.VXLAN): "vxlan-tunnel-addr-n1",
        await world.recorded(Tunnel.VXLAN_V6): "vxlan-v6-tunnel-addr-n1",
    } == await world.holds()
    found = await world.ipam.assignment(parse_ip(await world.recorded()))
    assert found.attributes == {"node": "n1", "type": "ipipTunnelAddress"}
    before = (await world.store.list("/calico/")).revision
    await world.reconcile()
    assert (await world.store.list("/calico/")).revision == before, "a restart keeps all as it is"


@pytest.mark.parametrize("how", ["mode", "disabled", "deselected", "deleted"])
async def test_what_no_pool_wants_any_more_is_given_back(world, how):
    await world.pool("a", "10.65.0.0/24", ipip_mode="Always")
    await world.reconcile()
    assert await world.recorded()
    match how:
        case "mode":
            await world.pool("a", "10.65.0.0/24", ipip_mode="Never")
        case "disabled":
            await world.pool("a", "10.65.0.0/24", ipip_mode="Always", disabled=True)
        case "deselected":
            stored = await world.client.get(IPPool, "a")
            spec = msgspec.structs.replace(stored.spec, node_selector="zone == 'b'")
            await world.client.update(msgspec.structs.replace(stored, spec=spec))
        case "deleted":
            await world.client.delete("IPPool", "a")
    await world.reconcile()
    assert await world.recorded() == ""
    assert IPIP not in (await world.holds()).values()
    assert await all_handles(world.store) == {}


async def test_labels_of_the_node_decide(world):
    stored = IPPoolSpec(cidr="10.65.0.0/24", ipip_mode="Always", node_selector="zone == 'a'")
    await world.client.create(IPPool(metadata=ObjectMeta(name="a"), spec=stored))
    await world.reconcile()
    assert await world.recorded() == ""
    await world.change(zone="a")
    await world.reconcile()
    assert await world.holds() == {await world.recorded(): IPIP}


async def test_an_address_outside_what_is_wanted_is_replaced(world):
    await world.pool("a", "10.65.0.0/24", ipip_mode="Always")
    await world.reconcile()
    old = await world.recorded()
    await world.pool("a", "10.65.0.0/24", ipip_mode="Never")
    await world.pool("b", "10.70.0.0/24", ipip_mode="Always")
    await world.reconcile()
    new = await world.recorded()
    assert (old.startswith("10.65."), new.startswith("10.70.")) == (True, True)
    assert await world.holds() == {new: IPIP}


async def test_a_recorded_address_that_nobody_holds_is_taken_again(world):
    await world.pool("a", "10.65.0.0/24", ipip_mode="Always")
    await world.record(Tunnel.IPIP, "10.65.0.77")
    await world.reconcile()
    assert await world.holds() == {"10.65.0.77": IPIP}
    assert await world.recorded() == "10.65.0.77"


async def test_a_recorded_address_that_somebody_else_holds_is_theirs(world):
    await world.pool("a", "10.65.0.0/24", ipip_mode="Always")
    theirs = AssignIP(address=parse_ip("10.65.0.77"), host="n2", handle_id="net.pod")
    await world.ipam.assign_ip(theirs)
    await world.record(Tunnel.IPIP, "10.65.0.77")
    await world.reconcile()
    ours = await world.recorded()
    assert ours != "10.65.0.77"
    assert await world.holds() == {"10.65.0.77": "net.pod", ours: IPIP}


@pytest.mark.parametrize("step", ["assigning", "giving back"])
async def test_a_crash_beside_the_write_of_the_node_costs_no_address(world, monkeypatch, step):
    await world.pool("a", "10.65.0.0/24", ipip_mode="Always")
    if step == "giving back":
        await world.reconcile()
        await world.pool("a", "10.65.0.0/24", ipip_mode="Never")
    keeper = TunnelAddresses(world.store, "n1")
    with monkeypatch.context() as patched:
        if step == "assigning":
            patched.setattr(keeper._client, "update", _dies)
        else:
            patched.setattr(keeper._ipam.tunnels, "release", _dies)
        with pytest.raises(RevisionConflict):
            await keeper.reconcile()
    assert len(await world.holds()) == 1
    await world.reconcile()
    expected = {await world.recorded(): IPIP} if step == "assigning" else {}
    assert await world.holds() == expected


async def _dies(*args: object) -> None:
    raise RevisionConflict("Node(n1)")


async def test_one_bad_pool_costs_itself_alone(world):
    await world.pool("good", "10.65.0.0/24", ipip_mode="Always")
    key = ResourceKey("IPPool", "bad")
    value = (await world.store.get(path_of(ResourceKey("IPPool", "good")))).value
    value = value.replace(b'"all()"', b'"((("').replace(b'"good"', b'"bad"')
    await world.store.put(path_of(key), value)
    await world.reconcile()
    assert await world.holds() == {await world.recorded(): IPIP}


async def test_it_follows_what_changes_while_it_runs(world):
    running = asyncio.ensure_future(TunnelAddresses(world.store, "n1").run())
    try:
        await world.pool("a", "10.65.0.0/24", ipip_mode="Always")
        await until(lambda: _is(world, recorded=True))
        await world.pool("a", "10.65.0.0/24", ipip_mode="Never")
        await until(lambda: _is(world, recorded=False))
        stored = IPPoolSpec(cidr="10.70.0.0/24", ipip_mode="Always", node_selector="zone == 'a'")
        await world.client.create(IPPool(metadata=ObjectMeta(name="b"), spec=stored))
        await world.change(zone="a")
        await until(lambda: _is(world, recorded=True))
        assert not running.done()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def _is(world: World, *, recorded: bool) -> bool:
    found = await world.recorded()
    return bool(found) is recorded and (IPIP in (await world.holds()).values()) is recorded


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60.0):
        while not await condition():  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.05)
