"""IpamClient.tunnels: a node's own addresses (datamodel §2.2)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from ipam.errors import NoPools
from ipam.handles import Tunnel
from ipam.requests import TUNNEL
from libcalico.errors import PoolExhausted
from libcalico.testing.datastore import MemoryDatastore
from tests.support.ipam import all_blocks, ask, client, consistent, held, pool, source

A, B = ip_network("10.0.0.0/24"), ip_network("10.0.1.0/24")
KNOWN = source(
    pool("a", "10.0.0.0/24"), pool("b", "10.0.1.0/24"), pool("c", "fd00::/112"),
    pool("w", "10.0.2.0/24", allowed_uses=("Workload",)),
)  # fmt: skip


@pytest.mark.parametrize("tunnel", list(Tunnel))
async def test_a_tunnel_address_is_filed_under_the_nodes_handle(tunnel: Tunnel):
    store = MemoryDatastore()
    ipam = client(store, KNOWN)
    pools = [A, ip_network("fd00::/112")]
    address = await ipam.tunnels.address(tunnel, "n1", pools)
    assert address.version == tunnel.version
    found = await ipam.assignment(address)
    assert found.handle_id == tunnel.handle("n1")
    assert dict(found.attributes) == tunnel.attributes("n1")
    await consistent(store)


async def test_a_node_that_asks_again_keeps_its_address():
    store = MemoryDatastore()
    first = await client(store, KNOWN).tunnels.address(Tunnel.VXLAN, "n1", [A])
    assert await client(store, KNOWN).tunnels.address(Tunnel.VXLAN, "n1", [B, A]) == first
    assert len(await held(store)) == 1


async def test_an_address_of_a_pool_without_the_tunnel_is_given_back():
    store = MemoryDatastore()
    ipam = client(store, KNOWN)
    first = await ipam.tunnels.address(Tunnel.IPIP, "n1", [A])
    second = await ipam.tunnels.address(Tunnel.IPIP, "n1", [B])
    assert first in A
    assert second in B
    assert await held(store) == {second: "ipip-tunnel-addr-n1"}


async def test_a_second_address_of_the_handle_is_given_back():
    store = MemoryDatastore()
    ipam = client(store, KNOWN)
    first = await ipam.tunnels.address(Tunnel.IPIP, "n1", [A])
    extra = ask(None, use=TUNNEL)
    await ipam.auto_assign(replace(extra, handle_id=Tunnel.IPIP.handle("n1")))
    assert await ipam.tunnels.address(Tunnel.IPIP, "n1", [A]) == first
    assert list(await held(store)) == [first]


async def test_giving_back_is_idempotent():
    store = MemoryDatastore()
    ipam = client(store, KNOWN)
    await ipam.tunnels.address(Tunnel.WIREGUARD, "n1", [A])
    await ipam.tunnels.release(Tunnel.WIREGUARD, "n1")
    await ipam.tunnels.release(Tunnel.WIREGUARD, "n1")
    assert await held(store) == {}


async def test_pools_for_workloads_only_and_no_pools_are_refused():
    ipam = client(MemoryDatastore(), KNOWN)
    with pytest.raises(NoPools, match="Tunnel"):
        await ipam.tunnels.address(Tunnel.IPIP, "n1", [ip_network("10.0.2.0/24")])
    with pytest.raises(NoPools):
        await ipam.tunnels.address(Tunnel.VXLAN_V6, "n1", [A])


async def test_a_full_pool_is_an_error():
    store = MemoryDatastore()
    ipam = client(store, source(pool("a", "10.0.0.0/32", 32)))
    await ipam.auto_assign(ask("x"))
    assert list(await all_blocks(store)) == ["10.0.0.0/32"]
    with pytest.raises(PoolExhausted, match="Assigned 0 out of 1"):
        await ipam.tunnels.address(Tunnel.IPIP, "n1", [ip_network("10.0.0.0/32")])
    assert ip_address("10.0.0.0") in await held(store)
