"""One datastore, two engines: the kernel and the neighbours see the same routes."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from libcalico.model import BGPConfiguration, BGPFilter, BGPPeer, IPPool, Node
from libcalico.model.bgp import (
    BGPConfigurationSpec,
    BGPPassword,
    BGPPeerSpec,
    PrefixAdvertisement,
    SecretKeySelector,
    ServiceClusterIPBlock,
)
from libcalico.model.bgp_filter import (
    BGPFilterAddCommunity,
    BGPFilterCommunityMatch,
    BGPFilterOperation,
    BGPFilterPrefixLengthV4,
    BGPFilterPrependASPath,
    BGPFilterRuleV4,
    BGPFilterRuleV6,
    BGPFilterSetPriority,
    BGPFilterSpec,
)
from libcalico.model.ippool import IPPoolSpec
from libcalico.model.meta import ObjectMeta, Resource
from libcalico.model.node import NodeBGPSpec, NodeSpec
from tests.peers.base import PATIENCE_S, Fabric, Neighbour
from tests.peers.bird import Bird
from tests.peers.confd_node import BirdNode, ExabgpNode, heard_by, kernel_of, make, view_of
from tests.peers.speaker import CalicoBgp
from tests.support.netns import NamespaceSet, eventually

ENGINES = ("exabgp", "bird")


def meta(name: str, **labels: str) -> ObjectMeta:
    return ObjectMeta(name=name, labels=labels)


def node(number: int, **bgp) -> Node:
    spec = NodeBGPSpec(
        ipv4_address=f"10.99.0.{number}/24", ipv6_address=f"fd99::{number}/64", **bgp
    )
    return Node(metadata=meta(f"n{number}", number=str(number)), spec=NodeSpec(bgp=spec))


def peer(name: str, **spec) -> BGPPeer:
    return BGPPeer(metadata=meta(name), spec=BGPPeerSpec(**spec))


def pool(name: str, cidr: str, **spec) -> IPPool:
    return IPPool(metadata=meta(name), spec=IPPoolSpec(cidr=cidr, **spec))


def settings(**spec) -> BGPConfiguration:
    return BGPConfiguration(metadata=meta("default"), spec=BGPConfigurationSpec(**spec))


POOLS = (
    pool("v4", "10.65.0.0/16"),
    pool("hidden", "10.66.0.0/16", disable_bgp_export=True),
    pool("vxlan", "10.67.0.0/16", vxlan_mode="Always"),
    pool("v6", "fd65::/48"),
)
MESH = (node(1), node(2), node(3))
BLOCKS = ("10.65.1.0/26", "10.65.9.9/32", "fd65::100/122")
# Destination and metric of routes over a workload's interface.
WORKLOADS = (
    ("10.65.1.5/32", "1024"),  # in our block: stays inside it
    ("10.65.1.6/32", "512"),  # elevated: goes out although in our block
    ("10.65.2.7/32", "1024"),  # borrowed
    ("10.66.0.5/32", "1024"),  # in a pool that is not exported
    ("10.80.0.1/32", "1024"),  # in no pool
    ("fd65::205/128", "1024"),
)
# Of this host, but of no workload: nobody hears of it although it lies in a pool.
HOSTS_OWN = "10.65.40.0/26"
FOREIGN = (
    "10.65.20.0/26",
    "10.67.20.0/26",
    "10.70.0.0/24",
    "10.71.0.0/24",
    "10.96.3.0/24",
    "fd65::500/122",
)


@dataclass(frozen=True)
class Scenario:
    """`second`: how the BIRD neighbour sees us; `heard` and `in_kernel`: what proves that all is
    there, and that the scenario says something; `never`: what no side may have."""

    resources: tuple[Resource, ...]
    second: tuple[Neighbour, ...]
    third: tuple[Neighbour, ...] = ()
    heard: tuple[str, ...] = ("10.65.1.0/26", "10.65.1.6/32", "10.65.2.7/32")
    in_kernel: tuple[str, ...] = ("10.65.20.0/26",)
    never_heard: tuple[str, ...] = ("10.65.1.5/32", "10.66.0.5/32", "10.80.0.1/32")
    never_in_kernel: tuple[str, ...] = ("10.67.20.0/26",)
    secret: str = ""
    extra: str = ""


@dataclass
class Outcome:
    kernel: set[str] = field(default_factory=set)
    second: dict[str, tuple[str, ...]] = field(default_factory=dict)
    third: set[str] = field(default_factory=set)


V4, V6 = Neighbour("10.99.0.1"), Neighbour("fd99::1")
SERVICES = settings(
    service_cluster_ips=(ServiceClusterIPBlock(cidr="10.96.0.0/16"),),
    prefix_advertisements=(
        PrefixAdvertisement(cidr="10.65.0.0/16", communities=("64512:7", "64512:1:2")),
    ),
)
FILTER = BGPFilter(
    metadata=meta("all-of-it"),
    spec=BGPFilterSpec(
        export_v4=(
            BGPFilterRuleV4(action="Reject", cidr="10.65.2.7/32", match_operator="Equal"),
            BGPFilterRuleV4(action="Reject", source="RemotePeers", peer_type="eBGP"),
            BGPFilterRuleV4(
                action="Accept",
                cidr="10.80.0.0/16",
                match_operator="In",
                prefix_length=BGPFilterPrefixLengthV4(min=32),
                interface="cali*",
                operations=(
                    BGPFilterOperation(add_community=BGPFilterAddCommunity(value="65000:80")),
                    BGPFilterOperation(add_community=BGPFilterAddCommunity(value="65000:8:0")),
                    BGPFilterOperation(
                        prepend_as_path=BGPFilterPrependASPath(prefix=(64900, 64901))
                    ),
                ),
            ),
        ),
        import_v4=(
            BGPFilterRuleV4(action="Reject", cidr="10.70.0.0/16", peer_type="eBGP"),
            BGPFilterRuleV4(
                action="Accept",
                communities=BGPFilterCommunityMatch(values=("65002:71",)),
                as_path_prefix=(65002,),
                cidr="10.71.0.0/24",
                match_operator="Equal",
                operations=(BGPFilterOperation(set_priority=BGPFilterSetPriority(value=500)),),
            ),
            BGPFilterRuleV4(action="Reject", cidr="10.0.0.0/8", match_operator="NotIn"),
        ),
        export_v6=(BGPFilterRuleV6(action="Accept"),),
    ),
)
EXTERNAL = Neighbour("10.99.0.1", remote_as=64999, local_as=65002)
SCENARIOS = {
    "mesh": Scenario(
        (*MESH, *POOLS, SERVICES),
        (V4, V6),
        (V4, V6),
        heard=(
            "10.65.1.0/26",
            "10.65.9.9/32",
            "10.65.1.6/32",
            "10.65.2.7/32",
            "10.96.0.0/16",
            "fd65::100/122",
            "fd65::205/128",
        ),
        in_kernel=("10.65.20.0/26", "10.70.0.0/24", "fd65::500/122", "10.65.3.0/26"),
        never_in_kernel=("10.67.20.0/26", "10.96.3.0/24", "10.96.0.0/16"),
    ),
    "external-with-filter": Scenario(
        (
            node(1),
            node(3),
            *POOLS,
            FILTER,
            peer(
                "tor",
                peer_ip="10.99.0.2",
                as_number=65002,
                local_as_number=64999,
                filters=("all-of-it", "not-there"),
                keepalive_time="5s",
                max_restart_time="60s",
            ),
        ),
        (EXTERNAL,),
        (V4, V6),
        heard=("10.65.1.0/26", "10.65.1.6/32", "10.80.0.1/32"),
        in_kernel=("10.65.20.0/26", "10.71.0.0/24", "10.65.3.0/26"),
        never_heard=("10.65.1.5/32", "10.65.2.7/32", "10.66.0.5/32", "10.65.3.0/26"),
        never_in_kernel=("10.70.0.0/24",),
        extra="",
    ),
    "reflector": Scenario(
        (
            node(1, route_reflector_cluster_id="10.0.0.9"),
            node(2),
            node(3),
            *POOLS,
            settings(node_to_node_mesh_enabled=False),
            peer("rr", node_selector="number == '1'", peer_selector="number != '1'"),
        ),
        (V4, V6),
        (V4, V6),
        heard=("10.65.1.0/26", "10.65.3.0/26"),
        in_kernel=("10.65.20.0/26", "10.65.3.0/26"),
    ),
    "reflector-next-hop-self": Scenario(
        (
            node(1, route_reflector_cluster_id="10.0.0.9"),
            node(2),
            node(3),
            *POOLS,
            settings(node_to_node_mesh_enabled=False),
            peer(
                "rr",
                node_selector="number == '1'",
                peer_selector="number != '1'",
                next_hop_mode="Self",
            ),
        ),
        (V4, V6),
        (V4, V6),
        heard=("10.65.1.0/26", "10.65.3.0/26"),
    ),
    "password-and-hops": Scenario(
        (
            node(1),
            *POOLS,
            settings(
                program_cluster_routes="Disabled",
                ipv4_normal_route_priority=2000,
                bind_mode="NodeIP",
            ),
            peer(
                "tor",
                peer_ip="10.99.0.2",
                as_number=65002,
                ttl_security=1,
                keep_original_next_hop=True,
                password=BGPPassword(secret_key_ref=SecretKeySelector(name="bgp", key="tor")),
            ),
        ),
        (Neighbour("10.99.0.1", local_as=65002, password="s3; {c}#ret", ttl_security=True),),
        in_kernel=("10.70.0.0/24",),
        heard=("10.65.1.0/26", "10.65.1.5/32"),
        never_heard=("10.66.0.5/32", "10.80.0.1/32"),
        never_in_kernel=("10.65.20.0/26",),
        secret="s3; {c}#ret",
    ),
}


def add_workloads(speaker: ExabgpNode | BirdNode) -> None:
    netns = speaker.netns
    netns.run("ip", "link", "add", "cali1", "type", "veth", "peer", "name", "pod")
    for name in ("cali1", "pod"):
        netns.run("ip", "link", "set", name, "up")
    for destination, metric in WORKLOADS:
        netns.run(
            "ip", "route", "add", destination, "dev", "cali1", "metric", metric, "proto", "boot"
        )
    netns.run("ip", "route", "add", HOSTS_OWN, "via", "10.99.0.2", "proto", "static")


def run(scenario: Scenario, engine: str, directory: Path) -> Outcome:
    directory.mkdir()
    with NamespaceSet() as netns:
        fabric = Fabric(netns, directory)
        try:
            return _run(scenario, engine, fabric)
        finally:
            fabric.close()


def _run(scenario: Scenario, engine: str, fabric: Fabric) -> Outcome:
    first = make(engine, fabric, 1)
    second = Bird(fabric, 2, routes=FOREIGN, extra=scenario.extra)
    add_workloads(first)
    if scenario.secret:
        first.give_secret("bgp", "tor", scenario.secret)
    second.configure(*scenario.second)
    speakers: list[Bird | CalicoBgp] = [second]
    if scenario.third:
        third = CalicoBgp(fabric, 3, blocks=("10.65.3.0/26",))
        third.configure(*scenario.third)
        speakers.append(third)
    first.render(view_of(scenario.resources, BLOCKS))
    for speaker in (*speakers, first):
        speaker.start()
    for neighbour in scenario.second:
        second.wait_established(neighbour.address)
    second.wait_learned(*scenario.heard)
    for cidr in scenario.in_kernel:
        first.wait_kernel(cidr)
    outcome = settled(lambda: look(first, second, speakers[-1], scenario))
    for cidr in (HOSTS_OWN, *scenario.never_heard):
        assert cidr not in outcome.second, cidr
    for cidr in scenario.never_in_kernel:
        assert not first.kernel(cidr), cidr
    return outcome


def look(first, second, third, scenario) -> Outcome:
    heard: dict[str, tuple[str, ...]] = {}
    for neighbour in scenario.second:
        heard.update(heard_by(second, neighbour.address))
    learned = third.learned() if isinstance(third, CalicoBgp) else set()
    return Outcome(kernel_of(first), heard, learned)


def settled(look) -> Outcome:
    """What is seen twice in a row, half a second apart."""
    seen = [look()]

    def is_still() -> bool:
        time.sleep(0.5)
        seen.append(look())
        return seen[-1] == seen[-2]

    assert eventually(is_still, timeout_s=PATIENCE_S)
    return seen[-1]


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_engines_do_the_same(name, fabric, tmp_path):
    ours, birds = (run(SCENARIOS[name], engine, tmp_path / engine) for engine in ENGINES)
    assert birds.second == ours.second
    assert birds.kernel == ours.kernel
    assert birds.third == ours.third


def test_a_killed_bird_leaves_the_routes_where_they_are(fabric):
    first = BirdNode(fabric, 1)
    add_workloads(first)
    second = Bird(fabric, 2, routes=FOREIGN)
    second.configure(V4, V6)
    first.render(view_of((node(1), node(2), *POOLS), BLOCKS))
    for speaker in (second, first):
        speaker.start()
    second.wait_established("10.99.0.1", "fd99::1")
    second.wait_learned("10.65.1.0/26")
    first.wait_kernel("10.65.20.0/26")
    second.wait_kernel("10.65.1.0/26")
    changes = [
        n.netns.spawn("ip", "monitor", "route", stdout=subprocess.PIPE) for n in (first, second)
    ]
    before = {address: second.uptime_since(address) for address in ("10.99.0.1", "fd99::1")}
    first.kill()
    first.start()
    for address, old in before.items():
        assert eventually(lambda a=address, o=old: second.uptime_since(a) != o), address
    second.wait_established(*before)
    second.wait_learned("10.65.1.0/26")
    first.wait_kernel("10.65.20.0/26")
    assert eventually(lambda: "recovery" not in first.birdc("show", "status").lower())
    for monitor in changes:
        monitor.terminate()
        said = monitor.communicate(timeout=PATIENCE_S)[0].decode()
        # An IPv6 blackhole of its own BIRD takes away and puts back: seen in every run.
        assert not re.search(r"Deleted (10\.|fd65|blackhole 10\.)", said), said
