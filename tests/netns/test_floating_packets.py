"""Floating addresses as packets meet them, in the world of test_nft_packets: nftables and iptables.

remote, b, node, and a itself --> 203.0.113.2 = pod a (10.65.0.2)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from felix.intent import NatMapping, PolicyUpdate, WorkloadEndpointUpdate
from felix.kernel.iptables import Variant
from felix.rules.settings import RuleSettings
from libcalico.compute.rules import EntityMatch
from libcalico.netlink import NextHop, Route, replace_route
from tests.netns import test_nft_packets as packets
from tests.netns.test_ipt_packets import IptRig
from tests.support.netns import NamespaceSet, why_unavailable
from tests.support.nft import policy, rule, tier, workload
from tests.support.probes import Place, dial, listen, tcp

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "nft")), reason=why)

PORT = 7002
SILENCE_S = 0.2
EXTERNAL = {4: "203.0.113.2", 6: "2001:db8:f::2"}
OTHER = {4: "203.0.113.3", 6: "2001:db8:f::3"}
SETTINGS = RuleSettings(translates_floating_ips=True)


@pytest.fixture(scope="module")
def world() -> Iterator[packets.World]:
    """The outside knows the way to the floating addresses; the node has no route of theirs."""
    with NamespaceSet() as netns:
        made = packets.build(netns)
        remote = made.remote.namespace
        ifindex = remote.link("eth0").ifindex
        for net, gateway in (("203.0.113.0/24", made.node.v4), ("2001:db8:f::/64", made.node.v6)):
            remote.socket.execute(replace_route(Route(net, (NextHop(ifindex, gateway),))))
        yield made


@pytest.fixture(params=["nftables", "iptables-nft"])
async def rig(world: packets.World, request: pytest.FixtureRequest):
    is_nftables = request.param == "nftables"
    made = packets.Rig(world) if is_nftables else IptRig(world, Variant.NFT)
    await made.configure(SETTINGS)
    yield made
    if is_nftables:
        made.node.kernel.close()


def pod_a(*mappings: dict[int, str], **spec: object) -> WorkloadEndpointUpdate:
    """Pod a, to which every one of the external addresses leads."""
    nets = packets.POD_NETS["a"]
    inside = {4: nets[0].split("/")[0], 6: nets[1].split("/")[0]}
    nats = tuple(NatMapping(inside[v], outside[v]) for outside in mappings for v in outside)
    return replace(workload("a", "cali1", *nets, **spec), nats=nats)


async def push(rig: packets.Rig, *intents: object) -> None:
    result = await rig.node.push(*intents)  # type: ignore[arg-type]
    assert (result.failed, result.deferred) == (0, 0), result.error


def source_seen(source: Place, outside: dict[int, str], server: Place, *, family: int) -> str:
    """The address under which the pod sees who connects to an external address."""
    target = replace(server, v4=outside[4], v6=outside[6])
    with listen(server, PORT, family=family) as listening:
        with dial(source, target, PORT, family=family) as client:
            accepted, peer = listening.accept()
            with accepted:
                accepted.settimeout(2)
                client.sendall(b"there")
                assert accepted.recv(10) == b"there"
                accepted.sendall(b"back")
                assert client.recv(10) == b"back"
        return peer[0]


def answers(source: Place, outside: dict[int, str], port: int = 80, *, family: int) -> bool:
    target = Place(source.namespace, outside[4], outside[6])
    return tcp(source, target, port, family=family, timeout_s=SILENCE_S)


async def test_everybody_reaches_a_pod_by_its_external_address_until_it_is_taken_away(
    rig: packets.Rig,
):
    world = rig.world
    await push(rig, pod_a(EXTERNAL))
    for family in packets.FAMILIES:
        for source in (world.remote, world.b, world.node):
            seen = source_seen(source, EXTERNAL, world.a, family=family)
            assert seen == source.address(family), "the source is not translated"
        itself = source_seen(world.a, EXTERNAL, world.a, family=family)
        assert itself == EXTERNAL[family], "its own address would be answered past the node"
        outgoing = packets.peer_seen(world.a, world.remote, family=family)
        assert outgoing == world.a.address(family), "only inward connections are translated"
        assert packets.peer_seen(world.b, world.a, family=family) == world.b.address(family)
    await push(rig, pod_a())
    for family in packets.FAMILIES:
        assert not answers(world.remote, EXTERNAL, family=family)
        assert not answers(world.a, EXTERNAL, family=family)
        assert tcp(world.remote, world.a, family=family), "by its own address, as before"


def egress_to(name: str, addresses: dict[int, str]) -> PolicyUpdate:
    nets = (f"{addresses[4]}/32", f"{addresses[6]}/128")
    rules = [
        rule(ip_version=4 if ":" not in net else 6, destination=EntityMatch((net,))) for net in nets
    ]
    return policy(name, [], rules)


async def test_policy_judges_the_pod_that_an_external_address_leads_to(rig: packets.Rig):
    world = rig.world
    web = policy("web", [rule(protocol=6, ports=[80])])
    inside = egress_to("inside", {4: world.a.v4, 6: world.a.v6})
    outside = egress_to("outside", EXTERNAL)
    await push(rig, web, inside, outside, pod_a(EXTERNAL, tiers=[tier(ingress=["web"])]))
    for family in packets.FAMILIES:
        assert answers(world.remote, EXTERNAL, family=family)
        assert not answers(world.remote, EXTERNAL, 81, family=family), "ingress policy of a"
    for name in ("inside", "outside"):
        b = workload("b", "cali2", *packets.POD_NETS["b"], tiers=[tier(name)])
        await push(rig, b)
        for family in packets.FAMILIES:
            assert answers(world.b, EXTERNAL, family=family) is (name == "inside"), name


async def test_a_pod_that_changes_its_external_address_still_reaches_itself(rig: packets.Rig):
    world = rig.world
    for mappings in ((EXTERNAL,), (OTHER,), (EXTERNAL,), (EXTERNAL, OTHER), (OTHER,)):
        await push(rig, pod_a(*mappings))
        for family in packets.FAMILIES:
            for outside in mappings:
                seen = source_seen(world.a, outside, world.a, family=family)
                assert seen in [mapping[family] for mapping in mappings]
