"""ipam.cascade: what goes with a Node and with an IPPool (datamodel §1.9, §2.6)."""

from __future__ import annotations

import asyncio
import json
from ipaddress import ip_address

import pytest

from ipam.cascade import delete_node, delete_pool
from ipam.client import IpamClient
from ipam.handles import Tunnel
from ipam.requests import AssignIP
from libcalico.errors import DatastoreUnavailable, NotFound, RevisionConflict
from libcalico.testing.clock import FakeClock
from libcalico.testing.datastore import MemoryDatastore
from tests.support.faulty import Fault, FaultyDatastore, nth
from tests.support.ipam import all_blocks, ask, audited, client, consistent, held, pool, source

PREFIX = "/calico/resources/v3/projectcalico.org/"
POOL = f"{PREFIX}ippools/a"
KNOWN = source(pool("a", "10.0.0.0/24", 30), pool("b", "fd00::/112", 124),
               nodes=["n1", "n1-b", "n2"])  # fmt: skip


def put(store: MemoryDatastore, kind: str, path: str, spec: object, **more: object) -> None:
    namespace, _, name = path.rpartition("/")
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    value = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata,
             "spec": spec, **more}  # fmt: skip
    plural = {"IPPool": "ippools", "BGPPeer": "bgppeers"}.get(kind, f"{kind.lower()}s")
    store.seed({f"{PREFIX}{plural}/{path}": json.dumps(value).encode()})


async def a_node_with_everything(store: MemoryDatastore) -> IpamClient:
    ipam = client(store, KNOWN)
    for node, escaped in (("n1", "n1"), ("n1-b", "n1--b")):
        got = await ipam.auto_assign(ask(f"pod-{node}", node, v4=1, v6=1))
        put(store, "WorkloadEndpoint", f"prod/{escaped}-k8s-web-eth0", {
            "node": node, "orchestrator": "k8s", "pod": "web", "endpoint": "eth0",
            "ipNetworks": [str(address.ip) for address in got.addresses],
        })  # fmt: skip
        tunnel = await ipam.tunnels.address(Tunnel.VXLAN, node, [KNOWN.current.pools[0].cidr])
        ipip = await ipam.tunnels.address(Tunnel.IPIP, node, [KNOWN.current.pools[0].cidr])
        put(store, "Node", node, {"ipv4VXLANTunnelAddr": str(tunnel),
                                  "bgp": {"ipv4IPIPTunnelAddr": str(ipip)}})  # fmt: skip
        await ipam.tunnels.address(Tunnel.WIREGUARD_V6, node, [KNOWN.current.pools[1].cidr])
        put(store, "BGPPeer", f"peer-{node}", {"node": node, "peerIP": "192.0.2.1"})
        put(store, "HostEndpoint", f"hep-{node}", {"node": node, "interfaceName": "eth0"})
        put(store, "FelixConfiguration", f"node.{node}", {})
        put(store, "BGPConfiguration", f"node.{node}", {})
        store.seed({f"/calico/ipam/v2/host/{node}": b""})
    put(store, "BGPPeer", "global", {"peerIP": "192.0.2.9"})
    put(store, "FelixConfiguration", "default", {})
    return ipam


def belongings(store: MemoryDatastore, node: str) -> list[str]:
    escaped = node.replace("-", "--")
    return [
        key for key in store.contents()
        if key.endswith((f"/{node}", f"-{node}", f"/node.{node}")) or f"/{escaped}-k8s" in key
        or f"/host/{node}/" in key
    ]  # fmt: skip


async def test_a_node_goes_with_all_it_had_and_a_node_of_similar_name_keeps_everything():
    store = MemoryDatastore()
    ipam = await a_node_with_everything(store)
    others = belongings(store, "n1-b")
    before = {key: store.contents()[key] for key in others}
    await delete_node(ipam, "n1")
    assert belongings(store, "n1") == []
    assert {key: store.contents()[key] for key in others} == before
    assert f"{PREFIX}bgppeers/global" in store.contents()
    assert f"{PREFIX}felixconfigurations/default" in store.contents()
    assert {block.host for block in (await all_blocks(store)).values()} == {"n1-b"}
    await consistent(store)


async def test_a_node_takes_its_offline_reserve_along_and_nobody_elses():
    store = MemoryDatastore()
    ipam = await a_node_with_everything(store)
    await ipam.reserves.add("n1", 4, 2)
    (kept,) = await ipam.reserves.add("n1-b", 4, 1)
    await delete_node(ipam, "n1")
    assert await ipam.reserves.held("n1") == ()
    assert await ipam.reserves.held("n1-b") == (kept,)
    assert await audited(store) == []
    await consistent(store)


async def test_what_a_missing_node_left_behind_is_cleaned_up_and_it_is_not_found():
    store = MemoryDatastore()
    ipam = await a_node_with_everything(store)
    await store.delete(f"{PREFIX}nodes/n1")
    with pytest.raises(NotFound):
        await delete_node(ipam, "n1")
    assert belongings(store, "n1") == []


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE])
async def test_a_deletion_that_broke_off_anywhere_can_be_repeated(fault: Fault):
    for number in range(1, 60):
        store = MemoryDatastore()
        await a_node_with_everything(store)
        broken = FaultyDatastore(store, nth(number, fault))
        try:
            await delete_node(client(broken, KNOWN), "n1")  # type: ignore[arg-type]
        except DatastoreUnavailable:
            await delete_node(client(store, KNOWN), "n1")
        assert belongings(store, "n1") == []
        assert all("n1-b" in str(handle) for handle in (await held(store)).values())
        if broken.calls < number:
            break
    else:
        pytest.fail("the deletion never ran without the fault")


async def test_an_address_that_belongs_to_another_node_by_now_is_left_alone():
    """An endpoint may be a leftover; Calico would take the address from its new holder."""
    store = MemoryDatastore()
    ipam = client(store, KNOWN)
    await ipam.assign_ip(
        AssignIP(address=ip_address("10.0.0.9"), host="n2", handle_id="net.new",
                 attributes={"node": "n2"})
    )  # fmt: skip
    put(store, "Node", "n1", {})
    put(
        store,
        "WorkloadEndpoint",
        "prod/n1-k8s-old-eth0",
        {"node": "n1", "pod": "old", "ipNetworks": ["10.0.0.9/32", "10.0.0.77/32", "rubbish"]},
    )
    await delete_node(ipam, "n1")
    assert await held(store) == {ip_address("10.0.0.9"): "net.new"}


async def test_a_wrong_revision_deletes_nothing():
    store = MemoryDatastore()
    ipam = await a_node_with_everything(store)
    before = store.contents()
    with pytest.raises(RevisionConflict):
        await delete_node(ipam, "n1", mod_revision=3)
    assert store.contents() == before


# ---- pools -------------------------------------------------------------------------------------


async def turns() -> None:
    """Enough for the deletion to get to its pause, or to its end."""
    for _ in range(200):
        await asyncio.sleep(0)


async def run(store: MemoryDatastore, **terms: object) -> None:
    clock = FakeClock()
    task = asyncio.ensure_future(
        delete_pool(client(store, KNOWN, clock), "a", clock=clock, **terms)  # type: ignore[arg-type]
    )
    await turns()
    if not task.done():
        disabled = json.loads(store.contents()[POOL])["spec"]["disabled"]
        assert disabled  # before anything is given up
        await clock.advance(0.5)
    await task


def a_pool(store: MemoryDatastore, **spec: object) -> None:
    put(store, "IPPool", "a", {"cidr": "10.0.0.0/24", "blockSize": 30, **spec}, foreign={"x": 1})


async def test_a_pool_is_disabled_its_affinities_released_and_then_it_goes():
    store = MemoryDatastore()
    ipam = client(store, KNOWN)
    a_pool(store)
    await ipam.auto_assign(ask("x", "n1", v4=5))
    await ipam.auto_assign(ask("y", "n2", v6=1))
    await ipam.release_by_handle("net.y")
    await run(store)
    assert POOL not in store.contents()
    # Blocks in use survive as orphans, empty ones are gone, the other pool is untouched.
    affinities = [(cidr[:2], b.affinity) for cidr, b in (await all_blocks(store)).items()]
    assert affinities == [("10", None), ("10", None), ("fd", "host:n2")]
    assert len(await held(store)) == 5
    assert await audited(store) == []
    await consistent(store)


async def test_a_pool_that_is_disabled_already_is_not_written_again():
    store = MemoryDatastore()
    a_pool(store, disabled=True)
    revision = store.revision
    await run(store)
    assert store.revision == revision + 1


async def test_a_pool_that_is_unknown_or_changed_is_refused():
    store = MemoryDatastore()
    with pytest.raises(NotFound):
        await run(store)
    a_pool(store)
    with pytest.raises(RevisionConflict):
        await run(store, mod_revision=1)
    assert "disabled" not in json.loads(store.contents()[POOL])["spec"]


async def test_members_we_do_not_know_survive_the_disabling():
    store = MemoryDatastore()
    a_pool(store)
    clock = FakeClock()
    ipam = client(store, KNOWN, clock)
    task = asyncio.ensure_future(delete_pool(ipam, "a", clock=clock))
    await turns()
    assert json.loads(store.contents()[POOL])["foreign"] == {"x": 1}
    await clock.advance(0.5)
    await task


@pytest.mark.parametrize("value", [b'{"spec": [', b'{"spec": {"cidr": "nonsense"}}'])
async def test_a_pool_that_does_not_parse_can_be_deleted(value: bytes):
    store = MemoryDatastore()
    store.seed({POOL: value})
    await delete_pool(client(store, KNOWN), "a", clock=FakeClock())
    assert POOL not in store.contents()


async def test_a_node_that_does_not_parse_can_be_deleted_with_all_it_had():
    store = MemoryDatastore()
    ipam = await a_node_with_everything(store)
    store.seed({f"{PREFIX}nodes/n1": b'{"spec": ['})
    await delete_node(ipam, "n1")
    assert belongings(store, "n1") == []
