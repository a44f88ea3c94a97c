"""iptables as packets meet it: the world and tests of test_nft_packets on both variants, and what
only iptables has: rules of others in the same chains, a lock, a variant of the other kind.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from felix.dataplane.leftovers import IpSetLeftover, IptablesLeftover, Leftovers, NftLeftover
from felix.intent import DirectionLimits, NatMapping, QosControls, SetDelta, SetUpdate
from felix.kernel.iptables import CommandRunner, IptablesKernel, Variant, detect_variant
from felix.kernel.nft import NftKernel
from felix.rules.settings import DenyAction, LogRate, RuleSettings
from libcalico.compute.rules import EntityMatch, SetKind
from libcalico.testing.fakeiptables import FakeIptables
from tests.netns import test_nft_packets as packets
from tests.support.flow import Flow
from tests.support.iptables import SETTINGS, FakeIptNode, InlineWorker, IptNode
from tests.support.netns import NamespaceSet, eventually, why_unavailable
from tests.support.nft import (
    ALLOW,
    DENY,
    Node,
    allow_all_profile,
    host_endpoint,
    policy,
    rule,
    tier,
    workload,
)
from tests.support.probes import tcp

pytestmark = pytest.mark.skipif(bool(why := why_unavailable("veth", "nft")), reason=why)

VARIANTS = list(Variant)


class IptRig(packets.Rig):
    """The world with iptables in its node. `node` is an IptNode."""

    def __init__(self, world: packets.World, variant: Variant) -> None:
        super().__init__(world)
        self.node.kernel.close()
        self.variant = variant
        namespace = world.node.namespace
        for family in ("iptables", "ip6tables"):
            for table in ("raw", "mangle", "nat", "filter"):
                command = f"{family}-legacy"
                namespace.run(command, "-t", table, "-F")
                namespace.run(command, "-t", table, "-X")
        namespace.run("ipset", "destroy")
        self.runner = CommandRunner("nsenter", f"--net={namespace.path}")
        self.node = self.fresh()

    def fresh(self, settings: RuleSettings | None = None) -> IptNode:
        """A felix that was started again."""
        return IptNode(self.runner, settings, variant=self.variant)

    async def configure(self, settings: RuleSettings) -> None:
        self.node = self.fresh(replace(settings, folds=False, guards_maps=False))
        await self.enforce()

    def rules(self, chain: str, *, table: str = "filter") -> list[str]:
        command = f"iptables-{self.variant.value}"
        return self.world.node.namespace.run(command, "-t", table, "-S", chain).splitlines()[1:]


@pytest.fixture(scope="module")
def world() -> Iterator[packets.World]:
    with NamespaceSet() as netns:
        yield packets.build(netns)


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.value)
def rig(world: packets.World, request: pytest.FixtureRequest) -> IptRig:
    return IptRig(world, request.param)


test_without_an_endpoint_closed = packets.test_without_an_endpoint_a_workload_interface_is_closed
test_ingress_and_egress_policy = packets.test_ingress_and_egress_policy_are_both_asked
test_workloads_reach_the_host = packets.test_workloads_reach_the_host_only_as_configured
test_errors_about_allowed_packets = (
    packets.test_errors_about_allowed_packets_pass_where_policy_denies_all_else
)
test_a_workload_is_no_router = packets.test_a_workload_is_no_router
test_the_traffic_class = packets.test_the_traffic_class_of_packets_is_left_alone
test_ports_and_protocols = packets.test_ports_and_protocols
test_sets_follow_their_members = packets.test_sets_follow_their_members
test_named_ports = packets.test_named_ports_are_address_and_port
test_pass_and_the_tiers_after_it = packets.test_pass_and_the_tiers_after_it
test_nat_outgoing = packets.test_what_leaves_a_nat_pool_has_the_nodes_address
test_nat_exclusions = packets.test_nodes_are_not_translated_for_when_they_are_excluded
test_antispoof = packets.test_a_workload_cannot_use_addresses_that_are_not_its_own


# ------------------------------------------------------------------------------ the words we use


def everything() -> list[object]:
    """Every kind of match and action that the renderer writes."""
    net_set = SetUpdate("s:a", SetKind.NET, frozenset({"10.0.0.0/24", "0.0.0.0/1", "fd00::/64"}))
    port_set = SetUpdate("n:web", SetKind.IP_PORT, frozenset({"10.0.0.2,tcp,80", "fd00::2,udp,5"}))
    nets = EntityMatch(nets=("10.0.0.0/8", "11.0.0.0/8"), not_nets=("10.1.0.0/16",))
    rules = [
        rule(ports=range(1, 60, 2)),
        rule(source=EntityMatch(sets=("s:a",), not_named_port_sets=("n:web",))),
        rule(source=nets, ip_version=4),
        rule(protocol=6, destination=EntityMatch(named_port_sets=("n:web",))),
        rule(packets.Action.LOG),
        rule(packets.Action.PASS, protocol=47),
        rule(not_protocol=6, destination=EntityMatch(not_named_port_sets=("n:web",))),
        *(
            rule(protocol=1, icmp=packets.IcmpMatch(kind, code))
            for kind, code in ((8, None), (3, 4))
        ),
        *(rule(protocol=58, not_icmp=packets.IcmpMatch(kind, 1)) for kind in (1, 128)),
    ]
    limits = DirectionLimits(packets_per_s=20_000, packet_burst=5_000, connections=5)
    pod = workload("a", "cali1", "10.65.0.2/32", "fd00::2/128", tiers=[tier("every")])
    pod = replace(
        pod,
        nats=(NatMapping("10.65.0.2", "1.2.3.4"), NatMapping("fd00::2", "2001:db8::5")),
        allowed_source_prefixes=("10.9.0.0/16",),
        qos=QosControls(limits, limits, dscp=10),
    )
    early = {"untracked": True}, {"pre_dnat": True}
    raw, dnat = (replace(policy(f"e{n}", [ALLOW]), **flag) for n, flag in enumerate(early))
    many = [workload(f"x{n}", f"cali{n:x}y", f"10.66.{n}.2/32") for n in range(30)]
    stages = {
        "tiers": [tier("every")],
        "untracked_tiers": [tier(ingress=["e0"], default_deny=False)],
        "pre_dnat_tiers": [tier(ingress=["e1"], default_deny=False)],
        "forward_tiers": [tier("every")],
    }
    host = [host_endpoint("h", "eth9", **stages), host_endpoint("all", "*", **stages)]
    return [
        net_set,
        port_set,
        allow_all_profile(),
        policy("every", rules),
        raw,
        dnat,
        pod,
        *many,
        *host,
    ]


@pytest.mark.parametrize("deny", DenyAction)
async def test_the_kernel_takes_every_word_and_a_restart_writes_nothing(
    rig: IptRig, deny: DenyAction
):
    settings = replace(
        SETTINGS,
        translates_floating_ips=True,
        nat_ports=(1000, 2000),
        nat_excludes_hosts=True,
        nat_interface_filter="eth+",
        log_rate=LogRate(5, 60, 7),
        allows_source_prefixes=True,
        allows_dhcp_to_host=True,
        deny_action=deny,
    )
    first, second = rig.fresh(settings), rig.fresh(settings)
    result = await first.push(*everything())  # type: ignore[arg-type]
    assert (result.failed, result.deferred) == (0, 0), result.error
    again = await second.push(*everything())  # type: ignore[arg-type]
    assert (again.written, again.deleted) == (0, 0)
    second.table.queue_resync("test")
    assert (await second.push()).written == 0


async def test_a_set_of_250_000_members_grows_and_shrinks(world: packets.World):
    rig = IptRig(world, Variant.NFT)
    few = frozenset(f"10.200.0.{n}/32" for n in range(10))
    many = frozenset(f"{20 + n // 65536}.{n // 256 % 256}.{n % 256}.1/32" for n in range(250_000))
    uses = policy("big", [rule(source=EntityMatch(sets=("s:big",)))])
    await rig.enforce(SetUpdate("s:big", SetKind.NET, few), uses, b=(tier(ingress=["big"]),))
    namespace = rig.world.node.namespace

    def count() -> int:
        return len(namespace.run("ipset", "save", "cali40s:big").splitlines()) - 1

    assert (await rig.node.push(SetDelta("s:big", many, frozenset()))).failed == 0
    assert count() == 250_010
    assert (await rig.node.push(SetDelta("s:big", frozenset(), many))).failed == 0
    assert count() == 10


# ------------------------------------------------------------------------------------- others


@contextmanager
def somebody_else(rig: IptRig, directory: Path) -> Iterator[tuple[Path, Path]]:
    """Inserts and deletes its own rule some hundred times a second, until the end of the `with`.
    Two files: what it could not do, and a byte for every round."""
    problems, rounds = directory / "problems", directory / "rounds"
    command = f"iptables-{rig.variant.value} -w 20"
    rule = "-s 192.0.2.99 -j ACCEPT"
    loop = f"""trap 'exit 0' TERM
        while :; do
            {command} -I FORWARD 1 {rule} 2>>{problems} || echo insert >>{problems}
            {command} -D FORWARD {rule} 2>>{problems} || echo delete >>{problems}
            printf . >>{rounds}
        done"""
    problems.touch()
    rounds.touch()
    process = rig.world.node.namespace.spawn("sh", "-c", loop)
    try:
        yield problems, rounds
    finally:
        process.terminate()
        process.wait()


async def test_rules_of_others_come_and_go_and_none_is_lost(rig: IptRig, tmp_path: Path):
    namespace, command = rig.world.node.namespace, f"iptables-{rig.variant.value}"
    fixed = [f"-A FORWARD -s 198.51.100.{number}/32 -j ACCEPT" for number in range(5)]
    for line in fixed:
        namespace.run(command, *line.split())
    await rig.enforce()
    with somebody_else(rig, tmp_path) as (problems, rounds):
        for number in itertools.count():
            if number >= 25 and len(rounds.read_bytes()) >= 100:
                break
            await rig.enforce(policy("web", [rule(ports=[80 + number % 100])]), b=(tier("web"),))
            rig.node.table.queue_resync("test")
            await rig.node.push()
        told = [
            line
            for line in problems.read_text().splitlines()
            if line and not line.startswith("# Warning")
        ]
        assert told == []
    rig.node.table.queue_resync("test")
    await rig.node.push()
    rules = rig.rules("FORWARD")
    kept = [line for line in rules if "198.51.100." in line]
    assert kept == fixed
    assert [line.endswith("-j cali-FORWARD") for line in rules[:2]] == [True, False]


async def test_hooks_that_others_flush_are_restored(rig: IptRig):
    await rig.enforce(policy("no", [DENY]), b=(tier(ingress=["no"]),))
    world = rig.world
    world.node.namespace.run(f"iptables-{rig.variant.value}", "-F", "FORWARD")
    assert tcp(world.a, world.b, family=4), "open: nobody leads to our chains"
    await rig.node.clock.advance(5.0)
    await rig.node.push()
    assert not tcp(world.a, world.b, family=4)


async def test_a_lock_that_somebody_holds_is_waited_for(
    world: packets.World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rig = IptRig(world, Variant.LEGACY)  # the other one has none
    lock = tmp_path / "xtables.lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    await rig.enforce()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        writing = asyncio.create_task(
            asyncio.to_thread(
                asyncio.run, rig.enforce(policy("no", [DENY]), b=(tier(ingress=["no"]),))
            )
        )
        while time.monotonic() - began < 20.0:
            assert not writing.done()
            await asyncio.sleep(0.5)
        fcntl.flock(held, fcntl.LOCK_UN)
    await writing
    assert not tcp(rig.world.a, rig.world.b, family=4)


# ----------------------------------------------------------------------------------- switching


async def test_a_switch_of_the_dataplane_never_opens_and_loses_nothing(rig: IptRig, tmp_path: Path):
    """Under probes and a flow: what is denied stays denied, both ways, what is allowed goes on, and
    the old one is gone at the end."""
    world, answered = rig.world, []
    denied = (
        policy("no", [DENY]),
        workload("b", "cali2", *packets.POD_NETS["b"], tiers=[tier("no")]),
    )
    nft_kernel = NftKernel.in_namespace(world.node.namespace.path)
    await rig.enforce()
    await rig.node.push(*denied)

    is_over = threading.Event()

    def probe() -> None:
        while not is_over.is_set():
            answered.append(tcp(world.a, world.b, 22, family=4, timeout_s=0.05))

    async def some_probes() -> None:
        enough = len(answered) + 3
        assert await asyncio.to_thread(eventually, lambda: len(answered) >= enough)

    probing = asyncio.create_task(asyncio.to_thread(probe))
    namespace = world.a.namespace
    flow = await asyncio.to_thread(
        Flow, lambda ping, out: namespace.spawn(*ping, stdout=out), tmp_path, world.remote.v4
    )
    everybody = (allow_all_profile(), workload("a", "cali1", *packets.POD_NETS["a"]), *denied)
    port = IptablesKernel(rig.runner, rig.variant, InlineWorker())
    for _ in range(3):
        nft = Node(nft_kernel)
        assert (await nft.push(*everybody)).failed == 0
        old = [IptablesLeftover(port, rig.variant.value, (4, 6)), IpSetLeftover(port)]
        assert (await Leftovers(old).apply()).deferred == 0
        assert "cali" not in world.node.namespace.run(f"iptables-{rig.variant.value}-save")
        assert world.node.namespace.run("ipset", "list", "-n") == ""
        await some_probes()
        rig.node = rig.fresh()
        assert (await rig.node.push(*everybody)).failed == 0
        assert (await Leftovers([NftLeftover(nft_kernel)]).apply()).deleted == 1
        await some_probes()
    assert await asyncio.to_thread(flow.lost) == 0
    is_over.set()
    await probing
    nft_kernel.close()
    assert len(answered) >= 18
    assert not any(answered)


async def test_the_variant_is_the_one_others_use(world: packets.World):
    rig = IptRig(world, Variant.NFT)
    namespace = world.node.namespace
    assert detect_variant(rig.runner) is Variant.LEGACY, "none has more rules"
    for _ in range(2):
        namespace.run("iptables-nft", "-A", "FORWARD", "-s", "192.0.2.99", "-j", "ACCEPT")
    assert detect_variant(rig.runner) is Variant.NFT
    namespace.run("iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    assert detect_variant(rig.runner) is Variant.LEGACY


def test_the_fake_prints_what_the_tools_print(world: packets.World):
    """The parsers of saves are tried on both; so are names, hashes and sets."""
    rig, fake = IptRig(world, Variant.LEGACY), FakeIptNode(fake=FakeIptables())
    pods = (allow_all_profile(), workload("a", "cali1", *packets.POD_NETS["a"]))
    asyncio.run(rig.node.push(*pods))
    fake.pushed(*pods)
    real_state = {
        key: dict(s.chains.programmed_items()) for key, s in rig.node.table._tables.items()
    }
    fake_state = {key: dict(s.chains.programmed_items()) for key, s in fake.table._tables.items()}
    assert real_state == fake_state
    for node in (rig.node, fake):
        node.table.queue_resync("test")
        assert asyncio.run(node.push()).written == 0
