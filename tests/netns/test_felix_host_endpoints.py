"""Host endpoints through a whole felix: a process, a real etcd on the node itself, a real kernel.

neighbour (203.0.113.7) -- eth1 of the node (203.0.113.1)
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import calc
from tests.support.calc import rule
from tests.support.felix import NODE, basics, workload
from tests.support.felix_node import (
    A,
    B,
    FelixNode,
    skip_unless_possible,
)
from tests.support.flow import Flow
from tests.support.netns import (
    NamespaceSet,
    add_addresses,
    can_ping,
    connect,
    eventually,
)
from tests.support.probes import Place, tcp

FAMILIES = [4, 6]
SSH, ETCD, BGP, TYPHA, OTHER = 22, 2379, 179, 5473, 8080
STATUS = "/calico/felix/v1/host/here/endpoint/edge"
DENY_ALL = calc.gnp(
    "no",
    selector="role == 'edge'",
    types=("Ingress", "Egress"),
    ingress=(rule("Deny"),),
    egress=(rule("Deny"),),
)
EDGE = calc.hep("edge", "203.0.113.1", node=NODE, labels={"role": "edge"})
ALL = calc.hep(
    "all", node=NODE, interface_name="*", labels={"role": "all"},
    profiles=("projectcalico-default-allow",),
)  # fmt: skip


@dataclass(frozen=True)
class World:
    felix: FelixNode
    node: Place
    neighbour: Place

    def status(self) -> str:
        found = self.felix.ns.run("etcdctl", "get", "--print-value-only", STATUS)
        return json.loads(found)["status"] if found else ""

    def start(self) -> None:
        self.felix.start(
            FELIX_ENDPOINTREPORTINGENABLED="true", FELIX_ENDPOINTREPORTINGDELAYSECS="0.1"
        )
        self.felix.wait_ready()

    def reaches(self, port: int, *, family: int = 4) -> bool:
        return tcp(self.neighbour, self.node, port, family=family)

    def is_reached(self, port: int, *, family: int = 4) -> bool:
        return tcp(self.node, self.neighbour, port, family=family)


@pytest.fixture
def world(netns: NamespaceSet, tmp_path: Path) -> World:
    skip_unless_possible()
    felix = FelixNode(netns, tmp_path)
    far = netns.make("neighbour")
    far.sysctl("net/ipv6/conf/default/accept_dad", "0")
    connect(felix.ns, "eth1", far, "eth0")
    add_addresses(felix.ns, "eth1", "203.0.113.1/24", "2001:db8:9::1/64")
    add_addresses(far, "eth0", "203.0.113.7/24", "2001:db8:9::7/64")
    felix.store(*basics(), workload("a", *A), workload("b", *B, labels={"app": "b"}))
    return World(
        felix,
        Place(felix.ns, "203.0.113.1", "2001:db8:9::1"),
        Place(far, "203.0.113.7", "2001:db8:9::7"),
    )


def test_deny_all_on_a_host_endpoint_keeps_its_node_alive(world: World):
    """The datastore is asked over the very host that is closed; pods go on."""
    world.felix.store(EDGE, ALL, DENY_ALL)
    world.start()
    assert eventually(lambda: world.status() == "up")
    for family in FAMILIES:
        for port in (SSH, ETCD, BGP, TYPHA):
            assert world.reaches(port, family=family), port
        for port in (ETCD, BGP, TYPHA):
            assert world.is_reached(port, family=family), port
        assert not world.reaches(OTHER, family=family)
        assert not world.is_reached(OTHER, family=family)
    assert eventually(lambda: world.felix.reach() == (True, True))
    assert can_ping(world.felix.ns, "10.65.0.1"), "the host reaches its pods"
    closed_star = calc.gnp(
        "star", selector="role == 'all'", types=("Ingress", "Egress"), egress=(rule("Deny"),)
    )
    world.felix.store(closed_star)
    assert eventually(lambda: not tcp(world.node, world.node, OTHER, family=4)), "lo as well"
    world.felix.erase(DENY_ALL)
    assert eventually(lambda: "policy-in-no-" not in world.felix.ruleset()), "etcd is heard"
    assert not world.reaches(OTHER), "neither policy nor profile"
    world.felix.erase(EDGE, closed_star)
    assert eventually(lambda: world.reaches(OTHER) and world.is_reached(OTHER))
    assert eventually(lambda: world.status() == "")


def test_the_endpoint_follows_its_address_and_its_policy(world: World):
    world.start()
    assert world.reaches(OTHER)
    world.felix.store(EDGE)
    assert eventually(lambda: not world.reaches(OTHER))
    web = calc.gnp(
        "web",
        selector="role == 'edge'",
        types=("Ingress",),
        ingress=(rule(protocol="TCP", destination={"ports": (OTHER,)}),),
    )
    world.felix.store(web)
    for family in FAMILIES:
        assert eventually(lambda family=family: world.reaches(OTHER, family=family))
    world.felix.ns.run("ip", "addr", "del", "203.0.113.1/24", "dev", "eth1")
    assert eventually(lambda: world.status() == "error"), "it stands on no interface"
    assert eventually(lambda: world.reaches(OTHER + 1, family=6)), "eth1 is nobody's"
    add_addresses(world.felix.ns, "eth1", "203.0.113.1/24")
    assert eventually(lambda: world.status() == "up")
    assert not world.reaches(OTHER + 1, family=6)


def test_a_killed_felix_is_not_missed_by_its_host_endpoints(world: World, tmp_path: Path):
    ping = rule(protocol="ICMP")
    world.felix.store(
        EDGE,
        ALL,
        calc.gnp("ping", selector="role == 'edge'", types=("Ingress",), ingress=(ping,)),
    )
    world.start()
    assert eventually(lambda: world.status() == "up")
    before = world.felix.ruleset()
    far = world.neighbour.namespace
    flow = Flow(lambda argv, out: far.spawn(*argv, stdout=out), tmp_path, "203.0.113.1")
    for _ in range(2):
        assert world.felix.stop(signal.SIGKILL) != 0
        assert not world.reaches(OTHER), "felix is away"
        world.start()
    assert flow.lost() == 0
    assert not world.reaches(OTHER)
    assert world.felix.ruleset() == before
