"""Policy as packets meet it: two workloads, their node and a host outside, IPv4 and IPv6.

    pod a (10.65.0.2) -- cali1 -+                        +-- remote (192.0.2.7)
                                node -- eth0 ----------- +
    pod b (10.65.0.3) -- cali2 -+   192.0.2.1

A closed port answers with a reset, so "refused" means that the packet got through both ways, and
silence means that it was dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from felix.intent import HostUpdate, PoolUpdate, SetDelta, SetUpdate
from felix.kernel.nft import NftKernel
from felix.rules.settings import DenyAction, HostAction, RuleSettings
from libcalico.compute.rules import Action, EntityMatch, IcmpMatch, SetKind
from libcalico.netlink import NextHop, Route, device_route, replace_route
from tests.support.netns import (
    Namespace,
    NamespaceSet,
    add_addresses,
    connect,
    eventually,
    why_unavailable,
    wire_workload,
)
from tests.support.nft import (
    ALLOW,
    DENY,
    PROFILE,
    Node,
    allow_all_profile,
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

POD_NETS = {"a": ("10.65.0.2/32", "fd00::2/128"), "b": ("10.65.0.3/32", "fd00::3/128")}
FAMILIES = [4, 6]


@dataclass(frozen=True, slots=True)
class World:
    node: Place
    a: Place
    b: Place
    remote: Place


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with NamespaceSet() as netns:
        yield build(netns)


def build(netns: NamespaceSet) -> World:
    node, remote = netns.make("node"), netns.make("remote")
    for namespace in (node, remote):
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")
    connect(node, "eth0", remote, "eth0")
    add_addresses(node, "eth0", "192.0.2.1/24", "2001:db8::1/64")
    add_addresses(remote, "eth0", "192.0.2.7/24", "2001:db8::7/64")
    node.sysctl("net/ipv4/ip_forward", "1")
    node.sysctl("net/ipv6/conf/all/forwarding", "1")
    _route(node, "0.0.0.0/0", "eth0", "192.0.2.7")
    _route(node, "::/0", "eth0", "2001:db8::7")
    _route(remote, "10.65.0.0/16", "eth0", "192.0.2.1")
    _route(remote, "fd00::/64", "eth0", "2001:db8::1")
    pods = []
    for number, (name, nets) in enumerate(POD_NETS.items(), start=1):
        pod = wire_workload(node, netns.make(f"pod-{name}"), f"cali{number}", *nets)
        node.sysctl(f"net/ipv4/conf/cali{number}/proxy_arp", "1")
        node.sysctl(f"net/ipv4/neigh/cali{number}/proxy_delay", "0")
        ifindex = node.link(f"cali{number}").ifindex
        node.socket.execute(*(replace_route(device_route(n, ifindex, protocol=3)) for n in nets))
        pods.append(Place(pod, *(net.split("/")[0] for net in nets)))
    place = Place(node, "192.0.2.1", "2001:db8::1")
    return World(place, *pods, Place(remote, "192.0.2.7", "2001:db8::7"))


def _route(namespace: Namespace, destination: str, ifname: str, gateway: str) -> None:
    hop = NextHop(namespace.link(ifname).ifindex, gateway)
    namespace.socket.execute(replace_route(Route(destination, (hop,))))


class Rig:
    """The world with a dataplane in its node."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.settings = RuleSettings()
        world.node.namespace.run("nft", "flush", "ruleset")
        for pod in (world.a, world.b):
            # What an earlier test left unanswered would only be asked again after a second.
            pod.namespace.run("ip", "-6", "neigh", "flush", "nud", "all", "dev", "eth0")
        self.node = Node(NftKernel.in_namespace(world.node.namespace.path))

    async def enforce(self, *intents: object, a: tuple = (), b: tuple = ()) -> None:
        """Both workloads with their tiers; more intents before them."""
        result = await self.node.push(
            allow_all_profile(),
            *intents,  # type: ignore[arg-type]
            workload("a", "cali1", *POD_NETS["a"], tiers=a),
            workload("b", "cali2", *POD_NETS["b"], tiers=b),
        )
        assert (result.failed, result.deferred) == (0, 0), result.error

    async def configure(self, settings: RuleSettings) -> None:
        """Felix restarted with another configuration."""
        self.node.kernel.close()
        kernel = NftKernel.in_namespace(self.world.node.namespace.path)
        self.node = Node(kernel, settings)
        await self.enforce()


@pytest.fixture
async def rig(world: World):
    made = Rig(world)
    yield made
    made.node.kernel.close()


# ------------------------------------------------------------------------------- directions


@pytest.mark.parametrize("family", FAMILIES)
async def test_without_an_endpoint_a_workload_interface_is_closed(rig: Rig, family: int):
    await rig.node.push()
    world = rig.world
    assert not tcp(world.a, world.b, family=family)
    assert not tcp(world.remote, world.a, family=family)
    assert not tcp(world.a, world.remote, family=family)
    assert tcp(world.node, world.remote, family=family), "the host itself is not ours"


@pytest.mark.parametrize("family", FAMILIES)
async def test_profiles_let_through_local_to_local_out_and_in(rig: Rig, family: int):
    await rig.enforce()
    world = rig.world
    for source, target in ((world.a, world.b), (world.a, world.remote), (world.remote, world.a)):
        assert tcp(source, target, family=family)
        assert udp(source, target, family=family)
        assert ping(source, target, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_ingress_and_egress_policy_are_both_asked(rig: Rig, family: int):
    world = rig.world
    await rig.enforce(policy("in", [DENY], [ALLOW]), b=(tier("in"),))
    assert not tcp(world.a, world.b, family=family), "the receiver's ingress policy"
    assert not tcp(world.remote, world.b, family=family)
    assert tcp(world.b, world.a, family=family)
    await rig.enforce(policy("in", [ALLOW], [DENY]), b=(tier("in"),))
    assert not tcp(world.b, world.a, family=family), "the sender's egress policy"
    assert not tcp(world.b, world.remote, family=family)
    assert tcp(world.a, world.b, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_host_reaches_its_own_workloads(rig: Rig, family: int):
    await rig.enforce(policy("no", [DENY], [DENY]), a=(tier("no"),))
    assert tcp(rig.world.node, rig.world.a, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_workloads_reach_the_host_only_as_configured(rig: Rig, family: int):
    await rig.enforce()
    assert not tcp(rig.world.a, rig.world.node, family=family)
    await rig.configure(RuleSettings(endpoint_to_host=HostAction.ACCEPT))
    assert tcp(rig.world.a, rig.world.node, family=family)
    await rig.enforce(policy("no", [ALLOW], [DENY]), a=(tier("no"),))
    assert not tcp(rig.world.a, rig.world.node, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_rejected_packets_are_answered(rig: Rig, family: int):
    await rig.configure(RuleSettings(deny_action=DenyAction.REJECT))
    await rig.enforce(policy("no", [DENY]), b=(tier("no"),))
    world = rig.world
    assert udp(world.a, world.b, family=family), "port unreachable"
    listening = listen(world.b, 80, family=family)
    with listening, pytest.raises(ConnectionRefusedError):
        dial(world.a, world.b, 80, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_errors_about_allowed_packets_pass_where_policy_denies_all_else(
    rig: Rig, family: int
):
    """The port unreachable of b is related to the datagram of a, and asks no policy."""
    world = rig.world
    to_b = policy("to-b", [], [rule(protocol=17, ports=[53])])
    from_a = policy("from-a", [rule(protocol=17, ports=[53])], [])
    await rig.enforce(to_b, from_a, a=(tier("to-b"),), b=(tier("from-a"),))
    assert udp(world.a, world.b, 53, family=family)
    assert not udp(world.b, world.a, 53, family=family)
    assert not ping(world.b, world.a, family=family), "no other ICMP of b"


ROUTER_ADVERTISEMENT = bytes([134, 0, 0, 0, 64, 0]) + (1800).to_bytes(2, "big") + bytes(8)
WATCH = """
add table inet watch
add chain inet watch seen { type filter hook prerouting priority -400; }
add rule inet watch seen iifname cali1 icmpv6 type nd-router-advert counter
"""


async def test_a_workload_is_no_router(rig: Rig):
    """Not even for a host that believes router advertisements and lets workloads in."""
    node, pod = rig.world.node.namespace, rig.world.a.namespace
    node.sysctl("net/ipv6/conf/cali1/accept_ra", "2")

    def advertise() -> None:
        def send() -> None:
            with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as raw:
                raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
                raw.sendto(ROUTER_ADVERTISEMENT, ("ff02::1", 0, 0, socket.if_nametoindex("eth0")))

        pod.call(send)

    def believed() -> str:
        return node.run("ip", "-6", "route", "show", "default", "dev", "cali1")

    try:
        assert eventually(lambda: [advertise(), believed()][1] != ""), "it would be believed"
        await rig.configure(replace(rig.settings, endpoint_to_host=HostAction.ACCEPT))
        node.run("ip", "-6", "route", "del", "default", "dev", "cali1")
        node.run("nft", WATCH)
        advertise()
        assert eventually(
            lambda: "packets 0" not in node.run("nft", "list", "table", "inet", "watch")
        )
        assert believed() == ""
    finally:
        node.sysctl("net/ipv6/conf/cali1/accept_ra", "0")
        node.run("ip", "-6", "route", "flush", "proto", "ra")
        node.run("nft", "add table inet watch; delete table inet watch")


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_traffic_class_of_packets_is_left_alone(rig: Rig, family: int):
    world = rig.world
    await rig.enforce(policy("web", [ALLOW]), b=(tier(ingress=["web"]),))
    kind = "ip" if family == 4 else "ip6"
    world.b.namespace.run(
        *("nft", "add table inet t; add chain inet t c { type filter hook input priority 0; };"),
        f"add rule inet t c {kind} dscp ef counter",
    )
    try:
        marked = ("ping", f"-{family}", "-n", "-Q", "0xb8", "-c", "1", "-W", "1")
        assert world.a.namespace.succeeds(*marked, world.b.address(family))
        assert "counter packets 1 " in world.b.namespace.run("nft", "list", "table", "inet", "t")
    finally:
        world.b.namespace.run("nft", "delete", "table", "inet", "t")


async def test_the_listing_names_tier_policy_and_rule_and_counts_when_asked(rig: Rig):
    world = rig.world

    def listed() -> list[str]:
        return world.node.namespace.run("nft", "list", "table", "inet", "calico").splitlines()

    def about(text: str) -> list[str]:
        return [line.strip() for line in listed() if f'comment "{text}"' in line]

    rules = [rule(protocol=17, ports=[port]) for port in range(50, 60)]
    await rig.enforce(policy("web", rules), b=(tier(ingress=["web"]),))
    assert len(about("default: policy default/web rules 0-9")) == 1
    assert '\t\tcomment "tier default, NetworkPolicy default/web, ingress"' in listed()
    assert not [line for line in listed() if "counter" in line]
    await rig.configure(replace(rig.settings, counts=True, folds=False))
    await rig.enforce(policy("web", rules), b=(tier(ingress=["web"]),))
    assert udp(world.a, world.b, 53, family=4)
    for number in range(10):
        (line,) = about(f"default: policy default/web rule {number}")
        assert f"counter packets {int(number == 3)} " in line


# ------------------------------------------------------------------------------------ matches


@pytest.mark.parametrize("family", FAMILIES)
async def test_ports_and_protocols(rig: Rig, family: int):
    world = rig.world
    rules = [rule(protocol=6, ports=[80, 443]), rule(protocol=17, ports=[53])]
    await rig.enforce(policy("web", rules), b=(tier(ingress=["web"]),))
    assert tcp(world.a, world.b, 80, family=family)
    assert tcp(world.a, world.b, 443, family=family)
    assert not tcp(world.a, world.b, 53, family=family)
    assert udp(world.a, world.b, 53, family=family)
    assert not udp(world.a, world.b, 80, family=family)
    assert not ping(world.a, world.b, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_sets_follow_their_members(rig: Rig, family: int):
    world = rig.world
    from_friends = rule(source=EntityMatch(sets=("s:friends",)))
    friends = SetUpdate("s:friends", SetKind.NET, frozenset({"192.0.2.0/24", "2001:db8::/64"}))
    await rig.enforce(friends, policy("friends", [from_friends]), b=(tier(ingress=["friends"]),))
    assert tcp(world.remote, world.b, family=family)
    assert not tcp(world.a, world.b, family=family)
    added = frozenset({"10.65.0.2/32", "fd00::2/128"})
    await rig.node.push(SetDelta("s:friends", added, friends.members))
    assert tcp(world.a, world.b, family=family)
    assert not tcp(world.remote, world.b, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_named_ports_are_address_and_port(rig: Rig, family: int):
    world = rig.world
    members = frozenset({"10.65.0.3,tcp,8080", "fd00::3,tcp,8080"})
    named = rule(protocol=6, destination=EntityMatch(named_port_sets=("n:http",)))
    await rig.enforce(
        SetUpdate("n:http", SetKind.IP_PORT, members),
        policy("named", [named]),
        a=(tier(ingress=["named"]),),
        b=(tier(ingress=["named"]),),
    )
    assert tcp(world.remote, world.b, 8080, family=family)
    assert not tcp(world.remote, world.b, 8081, family=family)
    assert not tcp(world.remote, world.a, 8080, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_icmp_by_type(rig: Rig, family: int):
    protocol, echo = (1, 8) if family == 4 else (58, 128)
    world = rig.world
    echo_only = rule(protocol=protocol, icmp=IcmpMatch(echo))
    await rig.enforce(policy("echo", [echo_only]), b=(tier(ingress=["echo"]),))
    assert ping(world.a, world.b, family=family)
    assert not tcp(world.a, world.b, family=family)
    no_echo = rule(protocol=protocol, not_icmp=IcmpMatch(echo))
    await rig.enforce(policy("echo", [no_echo]), b=(tier(ingress=["echo"]),))
    assert not ping(world.a, world.b, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_many_rules_in_one_lookup(rig: Rig, family: int):
    world = rig.world
    nets = [f"10.{n}.0.0/16" for n in range(100, 140)] + ["10.65.0.0/16", "fd00::/64"]
    nets += [f"fd{n:02x}::/16" for n in range(1, 40)]
    rules = [rule(protocol=6, ports=[80], source=EntityMatch(nets=(net,))) for net in nets]
    await rig.enforce(policy("many", rules), b=(tier(ingress=["many"]),))
    assert tcp(world.a, world.b, 80, family=family)
    assert not tcp(world.a, world.b, 81, family=family)
    assert not tcp(world.remote, world.b, 80, family=family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_pass_and_the_tiers_after_it(rig: Rig, family: int):
    world = rig.world
    first = policy("first", [rule(Action.PASS, protocol=6, ports=[80, 81]), DENY], tier="early")
    second = policy("second", [rule(protocol=6, ports=[80])])
    tiers = (tier(ingress=["first"], name="early"), tier(ingress=["second"]))
    await rig.enforce(first, second, b=tiers)
    assert tcp(world.a, world.b, 80, family=family)
    assert not tcp(world.a, world.b, 81, family=family), "passed, then the second tier's end"
    assert not tcp(world.a, world.b, 82, family=family), "denied in the first tier"


# --------------------------------------------------------------------------- connections, NAT


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_established_connection_outlives_policy_restart_and_rewrite(rig: Rig, family: int):
    await rig.enforce()
    world = rig.world
    with listen(world.b, 7000, family=family) as server:
        with dial(world.a, world.b, 7000, family=family) as client:
            accepted, _peer = server.accept()
            with accepted:
                accepted.settimeout(2)
                await rig.enforce(policy("no", [DENY], [DENY]), b=(tier("no"),))
                for word in (b"one", b"two"):
                    client.sendall(word)
                    assert accepted.recv(10) == word
                    accepted.sendall(word)
                    assert client.recv(10) == word
                    rig.node.kernel.close()
                    kernel = NftKernel.in_namespace(world.node.namespace.path)
                    rig.node = Node(kernel)
                    await rig.enforce(policy("no", [DENY], [DENY]), b=(tier("no"),))
        assert not tcp(world.a, world.b, 7000, family=family), "new ones are not let in"


def peer_seen(source: Place, target: Place, *, family: int) -> str:
    """The address a connection seems to come from."""
    with listen(target, 7001, family=family) as server:
        client = dial(source, target, 7001, family=family)
        accepted, peer = server.accept()
        client.close()
        accepted.close()
        return peer[0]


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_leaves_a_nat_pool_has_the_nodes_address(rig: Rig, family: int):
    world = rig.world
    pools = [PoolUpdate("10.65.0.0/16", nat_outgoing=True), PoolUpdate("fd00::/64", True)]
    await rig.enforce(*pools)
    assert peer_seen(world.a, world.remote, family=family) == world.node.address(family)
    assert peer_seen(world.a, world.b, family=family) == world.a.address(family)
    await rig.enforce(*(replace(pool, nat_outgoing=False) for pool in pools))
    assert peer_seen(world.a, world.remote, family=family) == world.a.address(family)


@pytest.mark.parametrize("family", FAMILIES)
async def test_nodes_are_not_translated_for_when_they_are_excluded(rig: Rig, family: int):
    """NATOutgoingExclusions IPPoolsAndHostIPs; pools are excluded in any case."""
    world = rig.world
    intents = [
        *(PoolUpdate(cidr, nat_outgoing=True) for cidr in ("10.65.0.0/16", "fd00::/64")),
        HostUpdate("n2", world.remote.v4, world.remote.v6),
    ]
    await rig.enforce(*intents)
    assert peer_seen(world.a, world.remote, family=family) == world.node.address(family)
    await rig.configure(replace(rig.settings, nat_excludes_hosts=True))
    await rig.enforce(*intents)
    assert peer_seen(world.a, world.remote, family=family) == world.a.address(family)


# ---------------------------------------------------------------------------------- antispoof


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_workload_cannot_use_addresses_that_are_not_its_own(rig: Rig, family: int):
    world = rig.world
    spare = {4: "10.65.0.77", 6: "fd00::77"}[family]
    plain = "/32" if family == 4 else "/128"
    add_addresses(world.a.namespace, "eth0", spare + plain)
    node_link = world.node.namespace.link("cali1").ifindex
    route = replace_route(device_route(spare + plain, node_link, protocol=3))
    world.node.namespace.socket.execute(route)
    await rig.enforce()
    own = world.a.address(family)
    assert _udp_from(world.a, own, world.remote, family=family)
    assert not _udp_from(world.a, spare, world.remote, family=family)
    prefixes = ("10.65.0.64/26", "fd00::/64")
    await rig.configure(RuleSettings(allows_source_prefixes=True))
    allowed = replace(workload("a", "cali1", *POD_NETS["a"]), allowed_source_prefixes=prefixes)
    await rig.node.push(allowed)
    assert _udp_from(world.a, spare, world.remote, family=family)
    world.a.namespace.run("ip", "addr", "del", spare + plain, "dev", "eth0")


def _udp_from(source: Place, address: str, target: Place, *, family: int) -> bool:
    def attempt() -> bool:
        with family_socket(family, socket.SOCK_DGRAM) as client:
            client.settimeout(SILENCE_S)
            client.bind((address, 0))
            client.connect((target.address(family), 53))
            client.send(b"x")
            try:
                client.recv(10)
            except ConnectionRefusedError:
                return True
            except TimeoutError:
                return False
            return True

    return source.namespace.call(attempt)


# -------------------------------------------------------------------------------- fail closed


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("missing", ["policy", "profile", "set"])
async def test_what_is_missing_closes(rig: Rig, family: int, missing: str):
    world = rig.world
    odd = policy("odd", [ALLOW, rule(source=EntityMatch(sets=("s:gone",)))])
    tiers = {"policy": (tier(ingress=["gone"]),), "set": (tier(ingress=["odd"]),), "profile": ()}
    profiles = ("gone", PROFILE) if missing == "profile" else (PROFILE,)
    await rig.enforce(odd)
    await rig.node.push(
        workload("b", "cali2", *POD_NETS["b"], tiers=tiers[missing], profiles=profiles)
    )
    assert not tcp(world.a, world.b, family=family)
    assert tcp(world.remote, world.a, family=family), "others are not affected"


async def test_policy_is_swapped_without_a_gap(rig: Rig):
    """A denied port stays closed while the policy around it is rewritten all the time."""
    world = rig.world
    versions = [
        policy("web", [rule(protocol=6, ports=[80, 8000 + number]), rule(Action.DENY)])
        for number in range(20)
    ]
    await rig.enforce(versions[0], b=(tier(ingress=["web"]),))
    answered = []

    async def probe() -> None:
        for _ in range(6):
            denied = await asyncio.to_thread(tcp, world.a, world.b, 22, family=4, timeout_s=0.1)
            answered.append(denied)
            assert await asyncio.to_thread(tcp, world.a, world.b, 80, family=4)

    probing = asyncio.create_task(probe())
    while not probing.done():
        for version in versions:
            await rig.node.push(version)
            await asyncio.sleep(0)
    await probing
    assert answered == [False] * 6
