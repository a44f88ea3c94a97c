"""iptables rules against intents, and against the objects: random packets must agree.

The worlds, packets and readings are those of test_nft_rules; only what stands between is another:
rules as iptables words, a driver that writes them, and a fake that parses the words and executes
them on the packet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from felix.intent import (
    Intent,
    PolicyUpdate,
    ProfileUpdate,
    SetUpdate,
    TierPolicies,
    WorkloadEndpointUpdate,
)
from felix.rules.settings import DenyAction, HostAction
from felix.testing.dataplane import FakeDataplane
from felix.testing.interpreter import matches
from libcalico.compute.rules import Action, CompiledRule
from libcalico.model.keys import ResourceKey
from libcalico.policy.packet import Direction
from libcalico.testing.fakenft_vm import Packet
from tests.property import test_host_endpoints as hosts
from tests.property import test_nft_rules as worlds
from tests.support import calc
from tests.support.calc_random import Maker
from tests.support.host_oracle import Oracle, host_cluster, intents_of
from tests.support.iptables import FakeIptNode, with_settings
from tests.support.nft import host_endpoint, policy_key, workload_key

HEALTH = list(HealthCheck)
A = worlds.A


def node_with(intents: Iterable[Intent]) -> FakeIptNode:
    node = FakeIptNode()
    result = asyncio.run(node.push(*intents))
    assert (result.failed, result.deferred) == (0, 0), result.error
    return node


@settings(max_examples=200, deadline=None, suppress_health_check=HEALTH)
@given(worlds.full_rules().filter(lambda rule: rule.action is not Action.LOG))
def test_one_rule_matches_what_it_says(rule: CompiledRule):
    plane = FakeDataplane()
    plane.apply(worlds.SETS)
    rule = replace(rule, action=Action.ALLOW)
    nets = (f"{A[0]}/32", f"{A[1]}/128")
    endpoint = WorkloadEndpointUpdate(workload_key("a"), "cali1", "", nets, ("p",), ())
    node = node_with([*worlds.SETS, ProfileUpdate("p", (rule,), ()), endpoint])
    for probe in worlds.PROBES:
        expected = matches(plane.contents(), rule, worlds.in_words(probe))
        assert (node.fake.forward(probe, "eth0", "cali1") == "accept") == expected, probe


@settings(max_examples=60, deadline=None, suppress_health_check=HEALTH)
@given(worlds.worlds())
def test_rules_in_the_kernel_decide_as_intents_say(world: list[Intent]):
    plane = FakeDataplane()
    plane.apply(world)
    node = node_with(world)
    for probe in worlds.PROBES:
        into = node.fake.forward(probe, "eth0", "cali1")
        assert into == worlds.expected(plane, Direction.INGRESS, probe), ("ingress", probe)
        out = worlds.reply(probe)
        sent = node.fake.forward(out, "cali1", "eth0")
        assert sent == worlds.expected(plane, Direction.EGRESS, out), ("egress", out)


@settings(max_examples=60, deadline=None, suppress_health_check=HEALTH)
@given(cluster=worlds.clusters(), packets=st.lists(worlds.sent(), min_size=6, max_size=12))
def test_packets_meet_what_the_objects_say(
    cluster: dict[ResourceKey, object], packets: list[Packet]
):
    assume(not worlds.is_contested(cluster))
    contents = calc.Rig(*cluster.items()).contents
    intents: list[Intent] = [
        *(SetUpdate(name, kind, members) for name, (kind, members) in contents.sets.items()),
        *contents.policies.values(),
        *contents.profiles.values(),
        *contents.endpoints.values(),
    ]
    worlds.compare_with_objects(cluster, node_with(intents), packets)


# ------------------------------------------------------------------------------- host endpoints


@st.composite
def host_worlds(draw: st.DrawFn) -> list[Intent]:
    """A workload, and host endpoints with policies at all stages, named and for any interface."""
    intents = list(worlds.SETS)
    kinds = {"n": {}, "u": {"untracked": True}, "d": {"pre_dnat": True}}
    kinds["f"] = {"apply_on_forward": True}
    for kind, flags in kinds.items():
        for number in (1, 2):
            rules = [worlds.numbered(draw(worlds.RULE_LISTS)) for _ in range(2)]
            if kind == "d":
                rules[1] = ()
            made = PolicyUpdate(policy_key(f"{kind}{number}"), "default", *rules)
            intents.append(replace(made, **flags))
    intents.append(ProfileUpdate("q", *(worlds.numbered(draw(worlds.RULE_LISTS)) for _ in "io")))
    nets = (f"{A[0]}/32", f"{A[1]}/128")
    intents.append(WorkloadEndpointUpdate(workload_key("a"), "cali1", "", nets, ("q",), ()))

    def tiers(kind: str, *, default_deny: bool) -> tuple[TierPolicies, ...]:
        names = [name for name in (f"{kind}1", f"{kind}2") if draw(st.booleans())]
        both = tuple(map(policy_key, names))
        egress = () if kind == "d" else both
        return (TierPolicies("default", both, egress, default_deny),) if names else ()

    for interface in draw(st.lists(st.sampled_from(["eth0", "eth1", "*"]), unique=True)):
        intents.append(
            host_endpoint(
                interface.replace("*", "all"),
                interface,
                profiles=("q",) if draw(st.booleans()) else (),
                tiers=tiers("n", default_deny=draw(st.booleans())),
                untracked_tiers=tiers("u", default_deny=False),
                pre_dnat_tiers=tiers("d", default_deny=False),
                forward_tiers=tiers("f", default_deny=draw(st.booleans())),
            )
        )
    return intents


@st.composite
def on_the_wire(draw: st.DrawFn) -> Packet:
    probe = draw(st.sampled_from(worlds.PROBES))
    state = draw(st.sampled_from(["new", "new", "new", "established", "invalid"]))
    port = draw(st.sampled_from([probe.dport, 22, 179]))
    return replace(probe, state=state, dport=port, is_dnat=draw(st.sampled_from([False, True])))


@settings(max_examples=80, deadline=None, suppress_health_check=HEALTH)
@given(host_worlds(), st.lists(on_the_wire(), min_size=10, max_size=20))
def test_host_endpoints_decide_as_in_nftables(world: list[Intent], packets: list[Packet]):
    """The other dataplane is the oracle: it shares intents and model, and no word of iptables."""
    ours = node_with(world)
    with worlds.node_with(world) as theirs:
        for packet in packets:
            for iif, oif in (("eth0", "eth1"), ("eth0", "cali1"), ("cali1", "eth1")):
                forwarded = ours.fake.forward(packet, iif, oif)
                expected = theirs.fake.forward(packet, iif, oif)
                assert (forwarded == "accept") == (expected == "accept"), (packet, iif, oif)
            for name in ("eth0", "eth2", "cali1"):
                delivered = ours.fake.deliver(packet, name, mark=0x30000)
                expected = theirs.fake.deliver(packet, name, mark=0x30000)
                assert (delivered == "accept") == (expected == "accept"), (packet, name)
                assert ("notrack" in ours.fake.effects) == ("notrack" in theirs.fake.effects)
                sent = ours.fake.originate(packet, name, rerouted_to="eth1")
                expected = theirs.fake.originate(packet, name, rerouted_to="eth1")
                assert (sent == "accept") == (expected == "accept"), (packet, name)


@settings(max_examples=40, deadline=None, suppress_health_check=HEALTH)
@given(st.integers(0, 2**64))
def test_host_endpoints_do_what_the_objects_say(seed: int):
    maker = Maker(seed)
    cluster = host_cluster(maker)
    deny = DenyAction.REJECT if seed % 2 else DenyAction.DROP
    node = FakeIptNode(with_settings(deny_action=deny, endpoint_to_host=HostAction.ACCEPT))
    result = node.pushed(*intents_of(cluster))
    assert (result.failed, result.deferred) == (0, 0), result.error
    scene = hosts.Scene(maker, Oracle.of(cluster), node, cluster)  # type: ignore[arg-type]
    hosts.compare(scene)
    hosts.compare_with_workloads(scene)


@settings(max_examples=40, deadline=None, suppress_health_check=HEALTH)
@given(before=worlds.worlds(), after=worlds.worlds())
def test_an_edited_world_ends_as_a_fresh_one_and_a_restart_writes_nothing(before, after):
    edited, fresh = node_with(before), node_with(after)
    edited.pushed(*after)
    assert edited.fake.tables == fresh.fake.tables
    assert {name: found.members for name, found in edited.fake.sets.items()} == {
        name: found.members for name, found in fresh.fake.sets.items()
    }
    edited.fake.scripts.clear()
    result = edited.restarted().pushed(*after)
    assert (result.written, result.deleted, edited.fake.scripts) == (0, 0, [])
