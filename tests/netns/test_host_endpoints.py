"""Host endpoints as packets meet them, on a node that forwards between two networks.

pod (10.65.0.2) -- cali1 -+
                          node -- eth0 -- near (192.0.2.7)      192.0.2.1 on eth0
                          node -- eth1 -- far (198.51.100.7)    198.51.100.1 on eth1
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from felix.intent import HostEndpointRemove, Intent, PolicyUpdate
from felix.kernel.nft import NftKernel
from felix.rules.settings import DenyAction, HostAction, RuleSettings
from libcalico.compute.rules import EntityMatch, PortRange
from libcalico.netlink import NextHop, Route, device_route, replace_route
from tests.support.flow import Flow
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    connect,
    why_unavailable,
    wire_workload,
)
from tests.support.nft import (
    ALLOW,
    DENY,
    PROFILE,
    Node,
    allow_all_profile,
    host_endpoint,
    host_key,
    policy,
    rule,
    tier,
    workload,
)
from tests.support.probes import (
    SILENCE_S,
    Place,
    dial,
    family_socket,
    listen,
    ping,
    tcp,
    udp,
)

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "nft")), reason=why)

FAMILIES = [4, 6]
POD_NETS = "10.65.0.2/32", "fd00::2/128"
SSH, ETCD, BGP, TYPHA = 22, 2379, 179, 5473
DHCP_CLIENT, DHCP_SERVER, DNS = 68, 67, 53
ELSEWHERE = 80
NOTHING = [tier("no")]
DENY_ALL = policy("no", [DENY], [DENY])


@dataclass(frozen=True, slots=True)
class World:
    """`node1` is the node as the far network sees it."""

    node: Place
    node1: Place
    pod: Place
    near: Place
    far: Place


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with NamespaceSet() as netns:
        yield build(netns)


def build(netns: NamespaceSet) -> World:
    node, near, far = netns.make("node"), netns.make("near"), netns.make("far")
    for namespace in (node, near, far):
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")
    connect(node, "eth0", near, "eth0")
    connect(node, "eth1", far, "eth0")
    add_addresses(node, "eth0", "192.0.2.1/24", "2001:db8::1/64")
    add_addresses(node, "eth1", "198.51.100.1/24", "2001:db8:1::1/64")
    add_addresses(near, "eth0", "192.0.2.7/24", "2001:db8::7/64")
    add_addresses(far, "eth0", "198.51.100.7/24", "2001:db8:1::7/64")
    node.sysctl("net/ipv4/ip_forward", "1")
    node.sysctl("net/ipv6/conf/all/forwarding", "1")
    # The node's own is what makes it answer for the gateway of its workloads.
    for namespace, v4, v6 in (
        (near, "192.0.2.1", "2001:db8::1"),
        (far, "198.51.100.1", "2001:db8:1::1"),
        (node, "192.0.2.7", "2001:db8::7"),
    ):
        _route(namespace, "0.0.0.0/0", v4)
        _route(namespace, "::/0", v6)
    pod = wire_workload(node, netns.make("pod"), "cali1", *POD_NETS)
    node.sysctl("net/ipv4/conf/cali1/proxy_arp", "1")
    node.sysctl("net/ipv4/neigh/cali1/proxy_delay", "0")
    ifindex = node.link("cali1").ifindex
    node.socket.execute(*(replace_route(device_route(n, ifindex, protocol=3)) for n in POD_NETS))
    return World(
        Place(node, "192.0.2.1", "2001:db8::1"),
        Place(node, "198.51.100.1", "2001:db8:1::1"),
        Place(pod, "10.65.0.2", "fd00::2"),
        Place(near, "192.0.2.7", "2001:db8::7"),
        Place(far, "198.51.100.7", "2001:db8:1::7"),
    )


def _route(namespace: Namespace, destination: str, gateway: str) -> None:
    hop = NextHop(namespace.link("eth0").ifindex, gateway)
    namespace.socket.execute(replace_route(Route(destination, (hop,))))


class Rig:
    """The world with a dataplane in its node. `enforce` states everything anew."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._namespace = world.node.namespace
        self._namespace.run("nft", "flush", "ruleset")
        self._namespace.run("conntrack", "-F")
        for place in (world.node, world.near, world.far, world.pod):
            # Neighbours must be found again, under the policy of the test.
            place.namespace.run("ip", "neigh", "flush", "nud", "all", "dev", "lo")
            for ifname in ("eth0", "eth1"):
                place.namespace.succeeds("ip", "-6", "neigh", "flush", "dev", ifname)
        self.node = self.start()

    def start(self, settings: RuleSettings | None = None) -> Node:
        node = Node(NftKernel.in_namespace(self._namespace.path), settings)
        node.interface("eth0", "192.0.2.1", "2001:db8::1")
        node.interface("eth1", "198.51.100.1", "2001:db8:1::1")
        node.interface("lo", "127.0.0.1", "::1")
        return node

    def restart(self, settings: RuleSettings | None = None) -> None:
        """A fresh process on what the kernel holds."""
        self.node.kernel.close()
        self.node = self.start(settings)

    async def enforce(self, *intents: Intent) -> None:
        pod = workload("pod", "cali1", *POD_NETS)
        result = await self.node.push(allow_all_profile(), DENY_ALL, pod, *intents)
        assert (result.failed, result.deferred) == (0, 0), result.error

    def foreign(self, *lines: str) -> None:
        """Rules of somebody else."""
        for line in lines:
            self._namespace.run("nft", line)

    def ruleset(self) -> str:
        return self._namespace.run("nft", "-a", "list", "table", "inet", "calico")


@pytest.fixture
async def rig(world: World):
    made = Rig(world)
    yield made
    made.node.kernel.close()


def early(kind: str, ingress=(), egress=()) -> PolicyUpdate:
    return replace(policy("early", ingress, egress), **{kind: True})


EARLY = [tier("early", default_deny=False)]
EARLY_IN = [tier(ingress=["early"], default_deny=False)]
REACHED, DROPPED = True, False


# ------------------------------------------------------------------------------- normal stage


@pytest.mark.parametrize("family", FAMILIES)
async def test_deny_all_keeps_ssh_etcd_bgp_typha_and_dhcp_alive_both_ways(rig: Rig, family: int):
    node, near = rig.world.node, rig.world.near
    await rig.enforce(host_endpoint("h", "eth0", tiers=NOTHING))
    for port in (SSH, ETCD, BGP, TYPHA):
        assert tcp(near, node, port, family=family), port
    assert udp(near, node, DHCP_CLIENT, family=family)
    for port in (ETCD, BGP, TYPHA):
        assert tcp(node, near, port, family=family), port
    for port in (DHCP_SERVER, DNS):
        assert udp(node, near, port, family=family), port
    assert not tcp(near, node, ELSEWHERE, family=family)
    assert not udp(near, node, DNS, family=family)
    assert not ping(near, node, family=family)
    assert not tcp(node, near, ELSEWHERE, family=family)
    assert not udp(node, near, DHCP_CLIENT, family=family)
    assert not ping(node, near, family=family)
    assert tcp(rig.world.far, rig.world.node1, ELSEWHERE, family=family), "another interface"
    assert tcp(near, rig.world.far, ELSEWHERE, family=family), "forwarded"


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_established_connection_outlives_the_policy_that_ends_it(rig: Rig, family: int):
    node, near = rig.world.node, rig.world.near
    await rig.enforce(host_endpoint("h", "eth0", profiles=[PROFILE]))
    with listen(node, 7000, family=family) as server:
        with dial(near, node, 7000, family=family) as client:
            accepted, _peer = server.accept()
            with accepted:
                accepted.settimeout(2)
                await rig.enforce(host_endpoint("h", "eth0", tiers=NOTHING))
                client.sendall(b"still there?")
                assert accepted.recv(20) == b"still there?"
                accepted.sendall(b"yes")
                assert client.recv(20) == b"yes"
        assert not tcp(near, node, 7000, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_policy_of_the_host_lets_in_and_out_what_it_names(rig: Rig, family: int):
    node, near = rig.world.node, rig.world.near
    web = policy("web", [rule(protocol=6, ports=[8080])], [rule(protocol=6, ports=[8081])])
    await rig.enforce(web, host_endpoint("h", ips=["192.0.2.1"], tiers=[tier("web")]))
    assert tcp(near, node, 8080, family=family)
    assert not tcp(near, node, 8081, family=family)
    assert tcp(node, near, 8081, family=family)
    assert not tcp(node, near, 8080, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_star_endpoint_has_the_hosts_interfaces_and_no_workload(rig: Rig, family: int):
    world = rig.world
    rig.restart(RuleSettings(endpoint_to_host=HostAction.ACCEPT))
    await rig.enforce(host_endpoint("all", "*", tiers=NOTHING))
    for source, target in ((world.near, world.node), (world.far, world.node1)):
        assert not tcp(source, target, ELSEWHERE, family=family)
        assert tcp(source, target, SSH, family=family)
        assert not tcp(target, source, ELSEWHERE, family=family)
        assert tcp(target, source, ETCD, family=family)
    assert not tcp(world.node, world.node, ELSEWHERE, family=family), "lo is one of them"
    assert tcp(world.node, world.node, ETCD, family=family)
    assert tcp(world.pod, world.node, ELSEWHERE, family=family), "as configured for workloads"
    assert tcp(world.node, world.pod, ELSEWHERE, family=family)
    assert tcp(world.pod, world.near, ELSEWHERE, family=family), "forwarded"
    await rig.enforce(host_endpoint("one", "eth0", profiles=[PROFILE]))
    assert tcp(world.near, world.node, ELSEWHERE, family=family), "its own endpoint's matter"
    assert not tcp(world.far, world.node1, ELSEWHERE, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_workload_meets_its_policy_and_the_default_action_not_the_hosts(
    rig: Rig, family: int
):
    world = rig.world
    await rig.enforce(host_endpoint("all", "*", profiles=[PROFILE]))
    assert not tcp(world.pod, world.node, SSH, family=family), "no failsafe for workloads"
    assert tcp(world.pod, world.near, SSH, family=family)


@pytest.mark.parametrize("deny", DenyAction)
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_translated_destination_is_judged_where_it_leaves(
    rig: Rig, family: int, deny: DenyAction
):
    """The host connects to an address on eth0 that somebody translates to one on eth1."""
    world, ip = rig.world, "ip" if family == 4 else "ip6"
    target = world.far.v4 if family == 4 else f"[{world.far.v6}]"
    rig.foreign(
        "add table inet foreign",
        "add chain inet foreign out { type nat hook output priority -100; }",
        "add rule inet foreign out tcp dport { 8080, 8081 }"
        f" {ip} daddr {world.near.address(family)} dnat {ip} to {target}",
    )
    rig.restart(RuleSettings(deny_action=deny))
    web = policy("web", [], [rule(protocol=6, ports=[8080])])
    only_egress = replace(tier("web"), ingress=())
    await rig.enforce(web, host_endpoint("h", "eth1", tiers=[only_egress]))
    assert tcp(world.node, world.near, 8080, family=family)
    assert not tcp(world.node, world.near, 8081, family=family)
    assert tcp(world.node, world.near, 8082, family=family), "not translated, not ours"
    await rig.enforce(host_endpoint("h", "eth0", tiers=NOTHING))
    assert tcp(world.node, world.near, 8081, family=family), "it does not leave by eth0"


# ---------------------------------------------------------------------------------- forwarding


@pytest.mark.parametrize("family", FAMILIES)
async def test_apply_on_forward_on_a_node_that_forwards(rig: Rig, family: int):
    near, far, pod = rig.world.near, rig.world.far, rig.world.pod
    some = policy("some", [rule(protocol=6, ports=[80])], [rule(protocol=6, ports=[81])])
    both = [tier("some")]
    await rig.enforce(some, host_endpoint("h", "eth0", profiles=[PROFILE], forward_tiers=both))
    assert tcp(near, far, 80, family=family), "in by eth0"
    assert not tcp(near, far, 81, family=family)
    assert not tcp(near, far, SSH, family=family), "no failsafes on the way through"
    assert tcp(far, near, 81, family=family), "out by eth0"
    assert not tcp(far, near, 80, family=family)
    assert tcp(near, pod, 80, family=family)
    assert not tcp(near, pod, 81, family=family)
    assert tcp(pod, near, 81, family=family)
    assert not tcp(pod, near, 80, family=family)
    assert tcp(far, pod, 82, family=family), "neither way by eth0"
    assert tcp(near, rig.world.node, 82, family=family), "not forwarded"


# -------------------------------------------------------------------------------- early stages


@pytest.mark.parametrize("family", FAMILIES)
async def test_pre_dnat_policy_sees_the_destination_before_it_is_translated(rig: Rig, family: int):
    world, ip = rig.world, "ip" if family == 4 else "ip6"
    far = world.far.v4 if family == 4 else f"[{world.far.v6}]"
    rig.foreign(
        "add table inet foreign",
        "add chain inet foreign in { type nat hook prerouting priority -100; }",
        "add rule inet foreign in tcp dport { 8080, 8081 }"
        f" {ip} daddr {world.node.address(family)} dnat {ip} to {far}:80",
    )
    rules = [rule(protocol=6, ports=[8080]), rule(DENY.action, protocol=6)]
    endpoint = host_endpoint(
        "h", "eth0", profiles=[PROFILE], forward_tiers=NOTHING, pre_dnat_tiers=EARLY_IN
    )
    await rig.enforce(early("pre_dnat", rules), endpoint)
    assert tcp(world.near, world.node, 8080, family=family), "allowed, and not asked again"
    assert not tcp(world.near, world.node, 8081, family=family)
    assert not tcp(world.near, world.far, 80, family=family), "nobody asked for it by that name"
    assert tcp(world.near, world.node, SSH, family=family), "a failsafe"
    only_other = [rule(DENY.action, protocol=6, ports=[80])]
    await rig.enforce(early("pre_dnat", only_other), replace(endpoint, forward_tiers=()))
    assert tcp(world.near, world.node, 8080, family=family), "it is not 80 yet"


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_untracked_policy_allows_has_no_entry_in_conntrack(rig: Rig, family: int):
    node, near = rig.world.node, rig.world.near
    both = [rule(protocol=17, ports=[5000])]
    replies = [rule(protocol=17, source=_ports(5000))]
    raw = early("untracked", both, replies)
    await rig.enforce(raw, host_endpoint("h", "eth0", profiles=[PROFILE], untracked_tiers=EARLY))
    assert asked_and_answered(near, node, 5000, family=family)
    assert asked_and_answered(near, node, 5001, family=family)
    listed = node.namespace.run("conntrack", "-L", "-f", f"ipv{family}")
    assert "dport=5001" in listed
    assert "dport=5000" not in listed
    await rig.enforce(replace(raw, egress=()), host_endpoint("h", "eth0", untracked_tiers=EARLY))
    assert not asked_and_answered(near, node, 5000, family=family), "the answer is like any other"
    await rig.enforce(early("untracked", [DENY], [DENY]))
    assert tcp(near, node, SSH, family=family)
    assert tcp(node, near, ETCD, family=family)
    assert not udp(near, node, 5000, family=family)


def _ports(port: int) -> EntityMatch:
    return EntityMatch(ports=(PortRange(port, port),))


def asked_and_answered(client: Place, server: Place, port: int, *, family: int) -> bool:
    """One datagram to a listening socket, and one back."""

    def bound() -> socket.socket:
        made = family_socket(family, socket.SOCK_DGRAM)
        made.bind((server.address(family), port))
        made.settimeout(SILENCE_S)
        return made

    def connected() -> socket.socket:
        made = family_socket(family, socket.SOCK_DGRAM)
        made.connect((server.address(family), port))
        made.settimeout(SILENCE_S)
        return made

    with server.namespace.call(bound) as at, client.namespace.call(connected) as asking:
        asking.send(b"?")
        try:
            _data, peer = at.recvfrom(10)
            at.sendto(b"!", peer)
            return asking.recv(10) == b"!"
        except (TimeoutError, PermissionError):
            return False


# ----------------------------------------------------------------------------------- lifetimes


async def test_an_interface_that_appears_later_is_policed_from_its_first_packet(
    rig: Rig, netns: NamespaceSet
):
    await rig.enforce(host_endpoint("h", "late0", tiers=NOTHING))
    rig.foreign(
        "add table inet foreign",
        "add chain inet foreign in { type filter hook input priority 10; }",
        "add rule inet foreign in iifname late0 meta l4proto != ipv6-icmp counter comment came",
    )
    late = netns.make("late")
    late.sysctl("net/ipv6/conf/default/accept_dad", "0")
    node = rig.world.node.namespace
    connect(node, "late0", late, "eth0")
    add_addresses(node, "late0", "203.0.113.1/24")
    add_addresses(late, "eth0", "203.0.113.7/24")
    here, there = Place(node, "203.0.113.1", ""), Place(late, "203.0.113.7", "")
    assert not tcp(there, here, ELSEWHERE, family=4)
    (line,) = [line for line in node.run("nft", "list", "ruleset").splitlines() if "came" in line]
    assert "packets 0" in line
    assert tcp(there, here, SSH, family=4)
    assert not tcp(here, there, ELSEWHERE, family=4)


@pytest.mark.parametrize("family", FAMILIES)
async def test_removing_the_object_restores_traffic(rig: Rig, family: int):
    node, near, far = rig.world.node, rig.world.near, rig.world.far
    everything = host_endpoint(
        "h",
        "eth0",
        tiers=NOTHING,
        forward_tiers=NOTHING,
        pre_dnat_tiers=EARLY_IN,
    )
    await rig.enforce(early("pre_dnat", [DENY]), everything)
    assert not tcp(near, node, ELSEWHERE, family=family)
    assert not tcp(node, near, ELSEWHERE, family=family)
    assert not tcp(near, far, ELSEWHERE, family=family)
    await rig.enforce(HostEndpointRemove(host_key("h")))
    assert tcp(near, node, ELSEWHERE, family=family)
    assert tcp(node, near, ELSEWHERE, family=family)
    assert tcp(near, far, ELSEWHERE, family=family)
    assert "host-in" not in rig.ruleset()


async def test_a_restart_loses_nothing_and_writes_nothing(rig: Rig, tmp_path: Path):
    node, near = rig.world.node, rig.world.near
    some = policy("some", [rule(protocol=1), ALLOW], [ALLOW])
    intents: list[Intent] = [
        some,
        early("pre_dnat", [rule(DENY.action, protocol=6, ports=[81])]),
        host_endpoint("h", "eth0", tiers=[tier("some")], pre_dnat_tiers=EARLY_IN),
        host_endpoint("all", "*", profiles=[PROFILE]),
    ]
    await rig.enforce(*intents)
    before = rig.ruleset()
    flow = Flow(lambda ping, out: near.namespace.spawn(*ping, stdout=out), tmp_path, node.v4)
    monitor = node.namespace.spawn(
        "nft", "monitor", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    for _ in range(3):
        rig.restart()
        await rig.enforce(*intents)
    assert flow.lost() == 0
    monitor.terminate()
    said, _ = monitor.communicate(timeout=10)
    assert b"inet calico" not in said
    assert rig.ruleset() == before, "rules kept their handles"
    assert not tcp(near, node, 81, family=4)


async def test_nothing_of_anybody_else_is_touched(rig: Rig):
    rig.foreign(
        "add table inet foreign",
        "add chain inet foreign in { type filter hook input priority -1; }",
        "add rule inet foreign in tcp dport 9 drop",
    )
    before = rig.world.node.namespace.run("nft", "-a", "list", "table", "inet", "foreign")
    await rig.enforce(host_endpoint("all", "*", tiers=NOTHING, forward_tiers=NOTHING))
    await rig.enforce(HostEndpointRemove(host_key("all")))
    after = rig.world.node.namespace.run("nft", "-a", "list", "table", "inet", "foreign")
    assert after == before
