"""felix.dataplane.policy_sweep: which connections end when policy changes (PS1 to PS5)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from felix.dataplane.loop import CycleReport
from felix.dataplane.manager import InterfaceState
from felix.dataplane.policy_sweep import PolicySweep
from felix.dataplane.ports import TrackedConnection
from libcalico.policy.packet import Packet
from libcalico.testing.clock import FakeClock
from libcalico.testing.kernel import FakeKernel
from tests.support import calc
from tests.support.calc import ALLOW, Rig, np, profile, rule, wep

WEB, DB, FAR = "10.0.0.1", "10.0.0.2", "10.9.0.9"
HOST = "192.0.2.1"
OPEN = profile("kns.prod", ingress=ALLOW, egress=ALLOW)
CLUSTER = (
    wep("web", WEB, "fd00::1", labels={"app": "web"}, profiles=("kns.prod",)),
    wep("db", DB, "fd00::2", labels={"app": "db"}, profiles=("kns.prod",)),
    OPEN,
    calc.tier("default", 1, "Deny"),
)
DENY_DB = np("no", selector="app == 'db'", types=("Ingress",), ingress=())


def only_from(selector: str):
    """Lets only these talk to db."""
    allow = rule(source={"selector": selector})
    return np("only", selector="app == 'db'", types=("Ingress",), ingress=(allow,))


def tracked(packet: Packet, *, name: str = "", master: str = "") -> TrackedConnection:
    original = (name or f"{packet.source}>{packet.destination}").encode()
    return TrackedConnection(packet, original, master.encode())


class World:
    """Calc, the sweep and a kernel with connections."""

    def __init__(self, *objects) -> None:
        self.kernel, self.clock = FakeKernel(), FakeClock()
        self.sweep = PolicySweep(self.kernel, clock=self.clock)
        self.rig = Rig(*CLUSTER, *objects)
        self.sweep.on_interface("eth0", InterfaceState("eth0", 2, True, True, (HOST,)))
        self._take(self.rig.last)

    def _take(self, intents) -> None:
        for intent in intents:
            self.sweep.on_intent(intent)

    def has(self, *connections: TrackedConnection) -> None:
        self.kernel.tracked += connections

    def left(self) -> list[str]:
        return [c.original.decode() for c in self.kernel.tracked]

    def asked(self) -> list[frozenset[str]]:
        """Whose connections were asked for, after the first time."""
        return self.kernel.conntrack_readings[1:]

    def put(self, *objects) -> None:
        self._take(self.rig.now(*objects))

    def remove(self, *objects) -> None:
        self._take(self.rig.without(*objects))

    async def cycle(self, *, is_filtering: bool = True) -> None:
        self.sweep.complete_deferred_work()
        self.sweep.on_cycle(CycleReport(0.001, (), is_filtering))
        await self.clock.advance(1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        task = asyncio.create_task(self.sweep.run())
        await self.cycle()
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_connection_that_is_denied_now_ends_and_its_neighbour_stays():
    """PS2."""
    async with World().running() as world:
        world.has(tracked(Packet.tcp(WEB, DB, 80)), tracked(Packet.tcp(DB, WEB, 80)))
        world.put(DENY_DB)
        await world.cycle()
        assert world.left() == [f"{DB}>{WEB}"]


@pytest.mark.parametrize(("web", "db"), [(WEB, DB), ("fd00::1", "fd00::2")])
async def test_what_a_policy_still_allows_stays_in_both_families(web, db):
    async with World().running() as world:
        pings = tracked(Packet.icmp(web, db, 8 if ":" not in web else 128), name="ping")
        world.has(tracked(Packet.tcp(web, db, 80)), tracked(Packet.tcp(web, db, 81), name="81"))
        world.has(pings)
        http = rule(protocol="TCP", destination={"ports": (80,)})
        world.put(np("p", selector="app == 'db'", types=("Ingress",), ingress=(http,)))
        await world.cycle()
        assert world.left() == [f"{web}>{db}"]


async def test_egress_is_judged_at_the_workload_that_began():
    """PS2."""
    async with World().running() as world:
        world.has(tracked(Packet.tcp(WEB, FAR, 80)), tracked(Packet.tcp(FAR, WEB, 80)))
        world.put(np("p", selector="app == 'web'", types=("Egress",), egress=()))
        await world.cycle()
        assert world.left() == [f"{FAR}>{WEB}"]


async def test_nothing_ends_before_the_kernel_has_the_rules():
    """PS1."""
    async with World().running() as world:
        world.has(tracked(Packet.tcp(WEB, DB, 80)))
        world.put(DENY_DB)
        await world.clock.advance(5)
        assert len(world.left()) == 1
        await world.cycle(is_filtering=False)
        assert len(world.left()) == 1
        await world.cycle()
        assert world.left() == []


async def test_what_is_handed_over_during_a_cycle_waits_for_the_next():
    """PS1."""
    async with World().running() as world:
        world.has(tracked(Packet.tcp(WEB, DB, 80)))
        world.sweep.complete_deferred_work()
        world.put(DENY_DB)
        world.sweep.on_cycle(CycleReport(0.001, (), True))
        await world.clock.advance(1)
        assert len(world.left()) == 1
        await world.cycle()
        assert world.left() == []


async def test_edited_rules_a_profile_and_an_order_are_changes_of_policy():
    """PS4."""
    allow_all = np("yes", selector="app == 'db'", types=("Ingress",), order=1.0, ingress=ALLOW)
    for change in (
        (np("yes", selector="app == 'db'", types=("Ingress",), order=1.0, ingress=()),),
        (np("yes", selector="app == 'db'", types=("Ingress",), order=9.0, ingress=ALLOW),),
    ):
        deny = np("zz", selector="app == 'db'", order=5.0, ingress=(rule("Deny"),))
        async with World(allow_all, deny).running() as world:
            world.has(tracked(Packet.tcp(WEB, DB, 80)))
            world.put(*change)
            await world.cycle()
            assert world.left() == [], change
    async with World().running() as world:
        world.has(tracked(Packet.tcp(WEB, DB, 80)))
        world.put(profile("kns.prod", egress=ALLOW))
        await world.cycle()
        assert world.left() == []


async def test_a_peer_that_leaves_a_set_loses_its_connections():
    """PS4: by its own address."""
    peer = wep("far", FAR, labels={"role": "friend"}, node=calc.ELSEWHERE)
    async with World(only_from("role == 'friend'"), peer).running() as world:
        friend = tracked(Packet.tcp(FAR, DB, 80))
        world.has(friend, tracked(Packet.tcp(FAR, WEB, 80)))
        world.put(wep("far", FAR, node=calc.ELSEWHERE))
        await world.cycle()
        assert world.left() == [f"{FAR}>{WEB}"]
        assert world.asked() == [{FAR}]


async def test_a_peer_that_comes_to_a_denied_set_loses_its_connections():
    """PS4."""
    deny = rule("Deny", source={"selector": "role == 'foe'"})
    policy = np("p", selector="app == 'db'", types=("Ingress",), ingress=(deny, rule("Allow")))
    async with World(policy, wep("far", FAR, node=calc.ELSEWHERE)).running() as world:
        world.has(tracked(Packet.tcp(FAR, DB, 80)))
        world.put(wep("far", FAR, labels={"role": "foe"}, node=calc.ELSEWHERE))
        await world.cycle()
        assert world.left() == []


async def test_a_network_that_leaves_a_set_ends_the_connections_of_whom_the_set_governs():
    """PS4."""
    partners = calc.netset("n", "10.9.0.0/16", labels={"role": "friend"})
    async with World(only_from("role == 'friend'"), partners).running() as world:
        world.has(tracked(Packet.tcp(FAR, DB, 80)))
        world.put(calc.netset("n", "10.8.0.0/16", labels={"role": "friend"}))
        await world.cycle()
        assert world.left() == []


async def test_a_named_port_of_a_peer_that_moves_is_looked_at_alone():
    """PS4: by its own address."""
    port = rule(protocol="TCP", destination={"ports": ("http",)})
    policy = np("p", selector="app == 'db'", types=("Egress",), egress=(port,))
    before = wep("far", FAR, ports=[("http", "TCP", 80)], node=calc.ELSEWHERE)
    async with World(policy, before).running() as world:
        world.has(tracked(Packet.tcp(DB, FAR, 80)), tracked(Packet.tcp(DB, FAR, 8080), name="new"))
        world.put(wep("far", FAR, ports=[("http", "TCP", 8080)], node=calc.ELSEWHERE))
        await world.cycle()
        assert world.left() == ["new"]
        assert world.asked() == [{FAR}]


async def test_a_new_policy_concerns_those_whom_it_governs():
    """PS4: and not everybody whom its new sets hold."""
    friend = wep("far", FAR, labels={"role": "friend"}, node=calc.ELSEWHERE)
    async with World(friend).running() as world:
        world.put(only_from("role == 'friend'"))
        await world.cycle()
        assert world.asked() == [{DB, "fd00::2"}]


async def test_a_peer_that_comes_to_an_allow_list_reads_no_table():
    """PS4: nothing is tightened by it."""
    async with World(only_from("role == 'friend'")).running() as world:
        world.put(wep("far", FAR, labels={"role": "friend"}, node=calc.ELSEWHERE))
        await world.cycle()
        assert world.asked() == []


async def test_named_ports_that_move_are_changes():
    """PS4."""
    port = rule(protocol="TCP", destination={"ports": ("http",)})
    policy = np("p", selector="app == 'db'", types=("Ingress",), ingress=(port,))
    named = {"labels": {"app": "db"}, "profiles": ("kns.prod",)}
    before = wep("db", DB, ports=[("http", "TCP", 80)], **named)
    async with World(policy, before).running() as world:
        world.has(tracked(Packet.tcp(WEB, DB, 80)))
        world.put(wep("db", DB, ports=[("http", "TCP", 8080)], **named))
        await world.cycle()
        assert world.left() == []


async def test_what_is_no_change_of_policy_reads_no_table():
    """PS4: pods and members come and go all the time."""
    async with World(DENY_DB).running() as world:
        readings = list(world.kernel.conntrack_readings)
        world.put(np("new", selector="app == 'nobody'"), wep("far", FAR, node=calc.ELSEWHERE))
        world.put(calc.snp("try", selector="app == 'db'"))
        world.put(wep("more", "10.0.0.3", profiles=("kns.prod",)))
        world.put(DENY_DB)
        await world.cycle()
        assert world.kernel.conntrack_readings == readings


async def test_after_a_start_all_workloads_are_looked_at():
    """PS4: policy may have changed while felix was away."""
    world = World(DENY_DB)
    world.has(tracked(Packet.tcp(WEB, DB, 80)), tracked(Packet.tcp(DB, WEB, 80)))
    async with world.running():
        assert world.left() == [f"{DB}>{WEB}"]


async def test_the_host_and_its_own_workload_are_not_policed():
    """PS3."""
    async with World().running() as world:
        world.has(tracked(Packet.tcp(HOST, DB, 80)), tracked(Packet.tcp(FAR, DB, 80)))
        world.put(DENY_DB)
        await world.cycle()
        assert world.left() == [f"{HOST}>{DB}"]
        world.sweep.on_interface("eth0", None)
        world.put(np("no", selector="app == 'db'", types=("Ingress",), ingress=(rule("Deny"),)))
        await world.cycle()
        assert world.left() == []


async def test_dhcp_with_the_host_stays():
    """PS3."""
    async with World().running() as world:
        world.has(tracked(Packet.udp(DB, HOST, 67, source_port=68), name="dhcp"))
        world.has(tracked(Packet.udp(DB, HOST, 53, source_port=68), name="dns"))
        world.has(tracked(Packet.udp(DB, FAR, 67, source_port=68), name="elsewhere"))
        world.put(np("p", selector="app == 'db'", types=("Egress",), egress=()))
        await world.cycle()
        assert world.left() == ["dhcp"]


async def test_what_is_related_goes_and_stays_with_its_master():
    """PS2."""
    async with World().running() as world:
        world.has(tracked(Packet.tcp(WEB, DB, 21), name="ftp"))
        world.has(tracked(Packet.tcp(DB, WEB, 21), name="other ftp"))
        world.has(tracked(Packet.tcp(DB, WEB, 2000), name="data", master="ftp"))
        world.has(tracked(Packet.tcp(WEB, DB, 2000), name="other data", master="other ftp"))
        world.put(DENY_DB)
        await world.cycle()
        assert world.left() == ["other ftp", "other data"]


@pytest.mark.parametrize("operation", ["list connections", "delete connection"])
async def test_what_failed_is_tried_again(operation):
    """PS5."""
    async with World().running() as world:
        world.has(tracked(Packet.tcp(WEB, DB, 80)))
        world.kernel.fail_next(operation, error=errno.ENOBUFS, times=2)
        world.put(DENY_DB)
        await world.cycle()
        await world.clock.advance(1)
        assert world.left() == []


async def test_many_changes_share_a_reading():
    """PS4."""
    async with World().running() as world:
        world.put(DENY_DB)
        world.put(np("more", selector="app == 'web'"))
        world.put(np("other", selector="app == 'web'", ingress=ALLOW))
        await world.cycle()
        assert world.asked() == [{WEB, "fd00::1", DB, "fd00::2"}]


async def test_dump_counts():
    async with World().running() as world:
        world.has(tracked(Packet.tcp(WEB, DB, 80)))
        world.put(DENY_DB)
        await world.cycle()
        assert world.sweep.dump() == {"host": False, "writing": [], "due": [], "deleted": 1}


# ------------------------------------------------------------------------------ the node itself

PEER, SIX, PEER_SIX = "192.0.2.7", "2001:db8::1", "2001:db8::7"
UPLINK = calc.hep("edge", HOST, SIX, labels={"role": "edge"}, profiles=("kns.prod",))
EVERY = calc.hep("all", interface_name="*", labels={"role": "edge"}, profiles=("kns.prod",))
DENY_EDGE = calc.gnp(
    "closed",
    selector="role == 'edge'",
    types=("Ingress", "Egress"),
    ingress=(rule("Deny", protocol="TCP", destination={"ports": (8080,)}),),
    egress=(rule("Deny", protocol="TCP", destination={"ports": (8080,)}),),
)


def tcp_to(source: str, target: str, port: int = 8080) -> Packet:
    return Packet.tcp(source, target, port)


def both_ways(port: int = 8080) -> list[TrackedConnection]:
    return [
        tracked(tcp_to(PEER, HOST, port)),
        tracked(tcp_to(HOST, PEER, port)),
        tracked(tcp_to(PEER_SIX, SIX, port)),
        tracked(tcp_to(SIX, PEER_SIX, port)),
    ]


def host_world(*objects, **interfaces: tuple[str, ...]) -> World:
    world = World(*objects)
    for name, addresses in ({"eth0": (HOST, SIX)} | interfaces).items():
        world.sweep.on_interface(name, InterfaceState(name, 2, True, True, addresses))
    return world


async def test_connections_of_the_node_end_when_its_only_interface_denies_them_in_both_families():
    world = host_world(UPLINK, lo=("127.0.0.1",), cali1=())
    world.has(*both_ways())
    async with world.running():
        assert len(world.left()) == 4
        world.put(DENY_EDGE)
        await world.cycle()
        assert world.left() == []


async def test_while_another_interface_could_have_let_it_in_it_stays():
    world = host_world(UPLINK, eth1=("198.51.100.1",))
    world.has(*both_ways())
    async with world.running():
        world.put(DENY_EDGE)
        await world.cycle()
        assert len(world.left()) == 4, "nobody governs eth1"
        world.put(EVERY)
        await world.cycle()
        assert world.left() == [], "and now all interfaces deny it"


async def test_what_policy_of_the_host_is_never_asked_about_stays():
    world = host_world(UPLINK)
    ssh = [tracked(tcp_to(PEER, HOST, 22)), tracked(tcp_to(HOST, PEER, 2379))]
    own = [tracked(tcp_to(HOST, HOST)), tracked(tcp_to(HOST, WEB)), tracked(tcp_to(PEER, FAR))]
    world.has(*ssh, *own)
    everything = calc.gnp(
        "closed", selector="role == 'edge'", types=("Ingress", "Egress"), ingress=(), egress=()
    )
    async with world.running():
        world.put(everything)
        await world.cycle()
        assert len(world.left()) == 5


async def test_an_early_policy_may_have_allowed_it_so_it_stays():
    early = calc.gnp(
        "early",
        selector="role == 'edge'",
        types=("Ingress",),
        ingress=(rule("Allow"),),
        pre_dnat=True,
        apply_on_forward=True,
    )
    world = host_world(UPLINK, early)
    world.has(*both_ways())
    async with world.running():
        world.put(DENY_EDGE)
        await world.cycle()
        assert len(world.left()) == 4


async def test_sets_profiles_and_addresses_that_govern_the_node_are_looked_at():
    only = calc.gnp(
        "only",
        selector="role == 'edge'",
        types=("Ingress",),
        ingress=(rule("Allow", source={"selector": "app == 'web'"}),),
    )
    far = wep("far", PEER, node=calc.ELSEWHERE, labels={"app": "web"})
    world = host_world(UPLINK, only, far)
    world.has(tracked(tcp_to(PEER, HOST)))
    async with world.running():
        assert len(world.left()) == 1
        world.put(wep("far", PEER, node=calc.ELSEWHERE, labels={"app": "other"}))
        await world.cycle()
        assert world.left() == []
