"""felix.dataplane.host_rules_mgr: who is asked at which stage, on which interface, how long.

Packets go through a fake kernel that executes the bytes we write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.config import SCHEMA, FelixConfig
from felix.intent import HostEndpointRemove, PolicyUpdate
from felix.rules.settings import DenyAction, HostAction, RuleSettings
from libcalico.runtime.config import LiveConfig, environment_layer
from libcalico.testing.fakenft import Packet
from tests.support.nft import (
    ALLOW,
    DENY,
    PROFILE,
    FakeNode,
    allow_all_profile,
    host_endpoint,
    host_key,
    policy,
    rule,
    tier,
    workload,
)

HERE, PEER = {4: "192.0.2.1", 6: "2001:db8::1"}, {4: "192.0.2.7", 6: "2001:db8::7"}
FAMILIES = [4, 6]
OPEN = tier("no", default_deny=False)


def untracked(name: str, ingress=(), egress=()) -> PolicyUpdate:
    return replace(policy(name, ingress, egress), untracked=True)


def pre_dnat(name: str, ingress=()) -> PolicyUpdate:
    return replace(policy(name, ingress), pre_dnat=True)


def early(name: str):
    """The tier of an untracked or preDNAT policy: it never denies at its end."""
    return tier(name, default_deny=False)


def to_us(family: int = 4, **fields: object) -> Packet:
    return Packet(PEER[family], HERE[family], **fields)  # type: ignore[arg-type]


def from_us(family: int = 4, **fields: object) -> Packet:
    return Packet(HERE[family], PEER[family], **fields)  # type: ignore[arg-type]


def host_chains(node: FakeNode) -> set[str]:
    (table,) = node.fake.tables.values()
    return {name for name in (*table.chains, *table.sets) if "host-" in name} - {
        "workload-to-host",
        "from-workload-to-host",
        "to-host",
    }


@pytest.fixture
async def node() -> FakeNode:
    made = FakeNode()
    await made.push(allow_all_profile())
    return made


# ------------------------------------------------------------------------------- normal stage


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_endpoint_with_neither_policy_nor_profile_is_closed_but_for_failsafes(
    node: FakeNode, family: int
):
    await node.push(host_endpoint("h", "eth0"))
    fake = node.fake
    assert fake.deliver(to_us(family, dport=80), "eth0") == "drop"
    assert fake.originate(from_us(family, dport=80), "eth0") == "drop"
    for port in (22, 179, 2379, 2380, 5473, 6443, 6666, 6667):
        assert fake.deliver(to_us(family, dport=port), "eth0") == "accept", port
    assert fake.deliver(to_us(family, protocol="udp", dport=68), "eth0") == "accept"
    assert fake.deliver(to_us(family, protocol="udp", dport=22), "eth0") == "drop"
    for port in (179, 2379, 2380, 5473, 6443, 6666, 6667):
        assert fake.originate(from_us(family, dport=port), "eth0") == "accept", port
    for port in (53, 67):
        sent = from_us(family, protocol="udp", dport=port)
        assert fake.originate(sent, "eth0") == "accept", port
    assert fake.originate(from_us(family, dport=22), "eth0") == "drop", "inbound only"
    assert fake.deliver(to_us(family), "eth1") == "accept", "other interfaces are not ours"
    assert fake.originate(from_us(family), "eth1") == "accept"
    assert fake.forward(to_us(family), "eth0", "eth1") == "accept", "forwarded: no policy"


async def test_policy_then_profiles_decide(node: FakeNode):
    web = policy("web", [rule(protocol=6, ports=[80])], [rule(protocol=6, ports=[443])])
    await node.push(web, host_endpoint("h", "eth0", tiers=[tier("web")], profiles=[PROFILE]))
    assert node.fake.deliver(to_us(dport=80), "eth0") == "accept"
    assert node.fake.deliver(to_us(dport=81), "eth0") == "drop", "end of the tier"
    assert node.fake.originate(from_us(dport=443), "eth0") == "accept"
    assert node.fake.originate(from_us(dport=80), "eth0") == "drop"
    ingress_only = host_endpoint("h", "eth0", tiers=[tier(ingress=["web"])], profiles=[PROFILE])
    await node.push(ingress_only)
    assert node.fake.originate(from_us(dport=80), "eth0") == "accept", "the profile's matter"


@pytest.mark.parametrize("state", ["established", "related"])
async def test_known_connections_pass_and_invalid_packets_do_not(node: FakeNode, state: str):
    await node.push(policy("no", [DENY], [DENY]), host_endpoint("h", "eth0", tiers=[tier("no")]))
    assert node.fake.deliver(to_us(state=state), "eth0") == "accept"
    assert node.fake.originate(from_us(state=state), "eth0") == "accept"
    assert node.fake.deliver(to_us(dport=22, state="invalid"), "eth0") == "drop"
    assert node.fake.originate(from_us(state="invalid"), "eth0") == "drop"


@pytest.mark.parametrize("kind", [130, 131, 132, 133, 134, 135, 136, 143])
async def test_no_policy_stops_neighbour_discovery(node: FakeNode, kind: int):
    await node.push(
        policy("no", [DENY], [DENY]),
        untracked("raw", [DENY], [DENY]),
        pre_dnat("early", [DENY]),
        host_endpoint(
            "h",
            "eth0",
            tiers=[tier("no")],
            untracked_tiers=[early("raw")],
            pre_dnat_tiers=[tier(ingress=["early"], default_deny=False)],
        ),
    )
    message = {"protocol": "icmpv6", "icmp_type": kind}
    assert node.fake.deliver(to_us(6, **message), "eth0") == "accept"
    assert node.fake.originate(from_us(6, **message), "eth0") == "accept"
    assert node.fake.deliver(to_us(6, protocol="icmpv6", icmp_type=128), "eth0") == "drop"


async def test_failsafes_can_name_the_peer_and_be_none():
    near = RuleSettings.of(_config(FAILSAFEINBOUNDHOSTPORTS="tcp:192.0.2.0/24:8080,udp:[::]/0:7"))
    node = FakeNode(near)
    await node.push(host_endpoint("h", "eth0"))
    assert node.fake.deliver(to_us(dport=8080), "eth0") == "accept"
    assert node.fake.deliver(to_us(6, dport=8080), "eth0") == "drop"
    assert node.fake.deliver(Packet("198.51.100.9", HERE[4], dport=8080), "eth0") == "drop"
    assert node.fake.deliver(to_us(6, protocol="udp", dport=7), "eth0") == "accept"
    assert node.fake.deliver(to_us(protocol="udp", dport=7), "eth0") == "drop"
    none = RuleSettings.of(
        _config(FAILSAFEINBOUNDHOSTPORTS="none", FAILSAFEOUTBOUNDHOSTPORTS="none")
    )
    node = FakeNode(none)
    await node.push(host_endpoint("h", "eth0"))
    assert node.fake.deliver(to_us(dport=22), "eth0") == "drop"
    assert node.fake.originate(from_us(protocol="udp", dport=53), "eth0") == "drop"


def _config(**environment: str) -> FelixConfig:
    named = {f"FELIX_{name}": value for name, value in environment.items()}
    return LiveConfig(SCHEMA, [environment_layer(SCHEMA, named)]).config


# ---------------------------------------------------------------------------------- forwarding


@pytest.mark.parametrize("family", FAMILIES)
async def test_apply_on_forward_polices_both_interfaces_of_forwarded_traffic(
    node: FakeNode, family: int
):
    web = policy("web", [rule(protocol=6, ports=[80, 81])], [rule(protocol=6, ports=[80, 82])])
    both = [tier("web")]
    await node.push(web, host_endpoint("h", "eth0", tiers=both, forward_tiers=both))
    fake, transit = node.fake, Packet(PEER[family], "10.1.1.1" if family == 4 else "fd01::1")
    assert fake.forward(replace(transit, dport=81), "eth0", "eth1") == "accept", "ingress"
    assert fake.forward(replace(transit, dport=82), "eth0", "eth1") == "drop"
    assert fake.forward(replace(transit, dport=82), "eth1", "eth0") == "accept", "egress"
    assert fake.forward(replace(transit, dport=81), "eth1", "eth0") == "drop"
    assert fake.forward(replace(transit, dport=22), "eth0", "eth1") == "drop", "no failsafes"
    assert fake.forward(replace(transit, dport=1, state="established"), "eth0", "eth1") == "accept"
    assert fake.forward(replace(transit, dport=81, state="invalid"), "eth0", "eth1") == "drop"
    assert fake.forward(replace(transit, dport=1), "eth1", "eth2") == "accept"


async def test_forward_policies_of_one_direction_leave_the_other_alone(node: FakeNode):
    ingress = [tier(ingress=["in"])]
    await node.push(policy("in", [DENY]), host_endpoint("h", "eth0", forward_tiers=ingress))
    assert node.fake.forward(to_us(), "eth0", "eth1") == "drop"
    assert node.fake.forward(to_us(), "eth1", "eth0") == "accept"
    await node.push(host_endpoint("h", "eth0", forward_tiers=[tier("in", default_deny=False)]))
    assert node.fake.forward(to_us(), "eth1", "eth0") == "accept", "what all tiers pass is allowed"


async def test_workload_and_host_policy_are_both_asked_about_what_is_forwarded(node: FakeNode):
    """The workload's egress and the interface's, the interface's ingress and the workload's."""
    pod = workload("a", "cali1", "10.65.0.2/32")
    forward = [tier("f")]
    await node.push(
        policy("f", [rule(protocol=6, ports=[80])], [rule(protocol=6, ports=[80])]),
        policy("p", [rule(protocol=6, ports=[80, 81])], [rule(protocol=6, ports=[80, 82])]),
        replace(pod, tiers=(tier("p"),)),
        host_endpoint("h", "eth0", forward_tiers=forward),
    )
    for port, into, out in ((80, True, True), (81, False, False), (82, False, False)):
        packet = Packet(PEER[4], "10.65.0.2", dport=port)
        assert (node.fake.forward(packet, "eth0", "cali1") == "accept") == into, port
        packet = Packet("10.65.0.2", PEER[4], dport=port)
        assert (node.fake.forward(packet, "cali1", "eth0") == "accept") == out, port
    await node.push(pod, host_endpoint("h", "eth0"))
    assert node.fake.forward(Packet("10.65.0.2", PEER[4], dport=9), "cali1", "eth0") == "accept"


# -------------------------------------------------------------------------------- early stages


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_untracked_policy_allows_is_not_tracked_nor_asked_again(
    node: FakeNode, family: int
):
    one = rule(protocol=17, ports=[7])
    await node.push(
        untracked("raw", [one, rule(DENY.action, protocol=17, ports=[8])], [one]),
        pre_dnat("early", [DENY]),
        host_endpoint(
            "h",
            "eth0",
            untracked_tiers=[early("raw")],
            pre_dnat_tiers=[tier(ingress=["early"], default_deny=False)],
        ),
    )
    fake = node.fake
    assert fake.deliver(to_us(family, protocol="udp", dport=7), "eth0") == "accept"
    assert "notrack" in fake.effects
    assert fake.deliver(to_us(family, protocol="udp", dport=8), "eth0") == "drop"
    assert fake.deliver(to_us(family, protocol="udp", dport=9), "eth0") == "drop", "preDNAT"
    assert fake.originate(from_us(family, protocol="udp", dport=7), "eth0") == "accept"
    assert "notrack" in fake.effects
    assert fake.originate(from_us(family, protocol="udp", dport=9), "eth0") == "drop", "normal"
    assert fake.deliver(to_us(family, protocol="udp", dport=7), "eth1") == "accept"
    assert "notrack" not in fake.effects


@pytest.mark.parametrize("family", FAMILIES)
async def test_failsafes_and_their_replies_stay_tracked(node: FakeNode, family: int):
    everything = untracked("raw", [ALLOW], [ALLOW])
    await node.push(everything, host_endpoint("h", "eth0", untracked_tiers=[early("raw")]))
    fake = node.fake
    for packet in (to_us(family, dport=22), to_us(family, sport=179, dport=40000)):
        fake.deliver(packet, "eth0")
        assert "notrack" not in fake.effects, packet
    for packet in (from_us(family, dport=2379), from_us(family, sport=22, dport=40000)):
        fake.originate(packet, "eth0")
        assert "notrack" not in fake.effects, packet
    fake.deliver(to_us(family, sport=22, dport=40000), "eth0")
    assert "notrack" in fake.effects, "22 is no port we ask others at"


async def test_pre_dnat_policy_lets_pass_and_denies_before_everything_else(node: FakeNode):
    forward = [tier("no")]
    await node.push(
        policy("no", [DENY], [DENY]),
        pre_dnat("early", [rule(protocol=6, ports=[80]), rule(DENY.action, protocol=6)]),
        host_endpoint(
            "h",
            "eth0",
            tiers=forward,
            forward_tiers=forward,
            pre_dnat_tiers=[tier(ingress=["early"], default_deny=False)],
        ),
    )
    fake = node.fake
    assert fake.deliver(to_us(dport=80), "eth0") == "accept"
    assert fake.forward(to_us(dport=80), "eth0", "eth1") == "accept"
    assert fake.forward(to_us(dport=80), "eth0", "eth0") == "drop", "it leaves by an endpoint, too"
    assert fake.deliver(to_us(dport=81), "eth0") == "drop"
    assert fake.deliver(to_us(dport=22), "eth0") == "accept", "a failsafe"
    assert fake.deliver(to_us(dport=81, state="established"), "eth0") == "accept"
    assert fake.deliver(to_us(protocol="udp", dport=81), "eth0") == "drop", "then normal policy"
    assert fake.deliver(to_us(dport=81), "eth1") == "accept"


async def test_what_an_early_stage_allows_still_meets_the_workloads_policy(node: FakeNode):
    await node.push(
        policy("no", [DENY]),
        pre_dnat("early", [ALLOW]),
        replace(workload("a", "cali1", "10.65.0.2/32"), tiers=(tier(ingress=["no"]),)),
        host_endpoint("h", "eth0", pre_dnat_tiers=[tier(ingress=["early"], default_deny=False)]),
    )
    assert node.fake.forward(Packet(PEER[4], "10.65.0.2"), "eth0", "cali1") == "drop"


async def test_a_mark_that_came_with_the_packet_is_worth_nothing(node: FakeNode):
    await node.push(
        pre_dnat("early", [rule(protocol=17)]),
        host_endpoint("h", "eth0", pre_dnat_tiers=[tier(ingress=["early"], default_deny=False)]),
    )
    marked = RuleSettings().marks.all
    assert node.fake.deliver(to_us(dport=80), "eth0", mark=marked) == "drop"
    assert node.fake.originate(from_us(dport=80), "eth0", mark=marked) == "drop"


# ------------------------------------------------------------------------- translated destinations


@pytest.mark.parametrize("deny", DenyAction)
async def test_a_translated_packet_is_judged_by_the_interface_it_leaves_by(deny: DenyAction):
    node = FakeNode(RuleSettings(deny_action=deny))
    web = policy("web", [], [rule(protocol=6, ports=[80])])
    only_egress = replace(tier("web"), ingress=())
    await node.push(web, allow_all_profile(), host_endpoint("h", "eth1", tiers=[only_egress]))
    fake = node.fake
    for port, verdict in ((80, "accept"), (81, "drop")):
        packet = from_us(dport=port, is_dnat=True)
        assert fake.originate(packet, "eth0", rerouted_to="eth1") == verdict
    away = from_us(dport=81, is_dnat=True)
    assert fake.originate(away, "eth1", rerouted_to="eth0") == "accept", "it leaves elsewhere"
    assert fake.originate(away, "eth1", rerouted_to="cali1") == "accept", "to a workload"
    plain = "reject" if deny is DenyAction.REJECT else "drop"
    assert fake.originate(from_us(dport=81), "eth1") == plain
    assert fake.forward(from_us(dport=81, is_dnat=True), "eth0", "eth1") == "accept", "not ours"


# ---------------------------------------------------------------------------- who stands where


async def test_the_star_endpoint_has_all_interfaces_that_no_other_has(node: FakeNode):
    web = policy("web", [rule(protocol=6, ports=[80])], [rule(protocol=6, ports=[80])])
    await node.push(
        web,
        host_endpoint("all", "*", tiers=[tier("web")]),
        host_endpoint("one", "eth0", profiles=[PROFILE]),
    )
    assert node.fake.deliver(to_us(dport=81), "eth0") == "accept"
    for ifname in ("eth1", "lo", "later0"):
        assert node.fake.deliver(to_us(dport=80), ifname) == "accept"
        assert node.fake.deliver(to_us(dport=81), ifname) == "drop"
        assert node.fake.originate(from_us(dport=81), ifname) == "drop"
        assert node.fake.deliver(to_us(dport=22), ifname) == "accept"


async def test_the_star_endpoint_has_no_workload_interface(node: FakeNode):
    settings = RuleSettings(endpoint_to_host=HostAction.ACCEPT)
    node = FakeNode(settings)
    closed = [tier("no")]
    await node.push(
        allow_all_profile(),
        policy("no", [DENY], [DENY]),
        pre_dnat("early", [DENY]),
        workload("a", "cali1", "10.65.0.2/32"),
        workload("b", "cali2", "10.65.0.3/32"),
        host_endpoint(
            "all",
            "*",
            tiers=closed,
            forward_tiers=closed,
            pre_dnat_tiers=[tier(ingress=["early"], default_deny=False)],
        ),
    )
    fake = node.fake
    assert fake.deliver(Packet("10.65.0.2", HERE[4]), "cali1") == "accept", "as configured"
    assert fake.originate(Packet(HERE[4], "10.65.0.2"), "cali1") == "accept"
    assert fake.forward(Packet("10.65.0.2", "10.65.0.3"), "cali1", "cali2") == "accept"
    assert fake.forward(Packet("10.65.0.2", PEER[4]), "cali1", "eth0") == "drop"


async def test_an_endpoint_governs_where_it_says_nothing_so_the_star_endpoint_does_not(
    node: FakeNode,
):
    forward = [tier("no")]
    await node.push(
        policy("no", [DENY], [DENY]),
        pre_dnat("early", [DENY]),
        host_endpoint("one", "eth0", profiles=[PROFILE]),
        host_endpoint(
            "all",
            "*",
            profiles=[PROFILE],
            forward_tiers=forward,
            pre_dnat_tiers=[tier(ingress=["early"], default_deny=False)],
        ),
    )
    assert node.fake.forward(to_us(), "eth0", "cali9") == "drop", "no such workload"
    assert node.fake.deliver(to_us(), "eth0") == "accept", "no preDNAT policy of its own"
    assert node.fake.deliver(to_us(), "eth1") == "drop"
    assert node.fake.forward(to_us(), "eth0", "eth1") == "drop", "leaves by the star's"


async def test_expected_addresses_are_followed_from_interface_to_interface(node: FakeNode):
    await node.push(host_endpoint("h", ips=["192.0.2.1"]))
    assert node.fake.deliver(to_us(), "eth0") == "accept"
    assert node.host.governed_by(host_key("h")) == ()
    node.interface("eth0", "192.0.2.1", "2001:db8::1")
    await node.push()
    assert node.fake.deliver(to_us(), "eth0") == "drop"
    assert node.host.governed_by(host_key("h")) == ("eth0",)
    node.interface("eth0")
    node.interface("eth1", "192.0.2.1")
    await node.push()
    assert node.fake.deliver(to_us(), "eth0") == "accept"
    assert node.fake.deliver(to_us(), "eth1") == "drop"
    node.host.on_interface("eth1", None)
    await node.push()
    assert node.host.governed_by(host_key("h")) == ()
    assert not host_chains(node)


async def test_an_interface_is_policed_from_its_first_packet(node: FakeNode):
    await node.push(host_endpoint("h", "eth7"))
    assert node.fake.deliver(to_us(), "eth7") == "drop"
    assert node.host.governed_by(host_key("h")) == ("eth7",)
    seen = len(node.fake.messages_seen)
    node.interface("eth7", "192.0.2.1")
    await node.push()
    assert len(node.fake.messages_seen) == seen, "nothing is left to be written"


async def test_of_two_that_claim_an_interface_the_first_name_governs(node: FakeNode):
    node.interface("eth0", "192.0.2.1")
    await node.push(
        host_endpoint("b", "eth0", profiles=[PROFILE]), host_endpoint("a", ips=["192.0.2.1"])
    )
    assert node.fake.deliver(to_us(), "eth0") == "drop"
    await node.push(HostEndpointRemove(host_key("a")))
    assert node.fake.deliver(to_us(), "eth0") == "accept"
    assert node.host.governed_by(host_key("b")) == ("eth0",)


@pytest.mark.parametrize("ifname", ["cali1", "kube-ipvs0"])
async def test_workload_and_excluded_interfaces_are_nobodys(node: FakeNode, ifname: str):
    node.interface(ifname, "192.0.2.1")
    await node.push(host_endpoint("n", ifname), host_endpoint("h", ips=["192.0.2.1"]))
    assert not host_chains(node)
    assert node.host.governed_by(host_key("n")) == node.host.governed_by(host_key("h")) == ()


# ----------------------------------------------------------------------------------- lifetimes


async def test_without_host_endpoints_there_is_nothing_of_theirs(node: FakeNode):
    assert not host_chains(node)
    full = tier("no")
    stages = {
        "tiers": [full],
        "forward_tiers": [full],
        "untracked_tiers": [early("raw")],
        "pre_dnat_tiers": [tier(ingress=["early"], default_deny=False)],
    }
    await node.push(
        policy("no", [DENY], [DENY]),
        untracked("raw", [ALLOW], [ALLOW]),
        pre_dnat("early", [ALLOW]),
        host_endpoint("h", "eth0", **stages),
        host_endpoint("all", "*", **stages),
    )
    assert len(host_chains(node)) > 20
    await node.push(HostEndpointRemove(host_key("h")), HostEndpointRemove(host_key("all")))
    assert not host_chains(node)
    assert not [name for name in node.chain_names() if name.startswith(("endpoint-", "tier-"))]
    assert node.fake.deliver(to_us(), "eth0") == "accept"


async def test_tier_and_policy_chains_are_shared_with_workloads(node: FakeNode):
    both = (tier("p"),)
    await node.push(policy("p", [ALLOW], [ALLOW]), workload("a", "cali1", tiers=both))
    before = {name for name in node.chain_names() if name.startswith(("tier-", "policy-"))}
    await node.push(host_endpoint("h", "eth0", tiers=both))
    after = {name for name in node.chain_names() if name.startswith(("tier-", "policy-"))}
    assert (before, len(before)) == (after, 4)
    await node.push(HostEndpointRemove(host_key("h")))
    after = {name for name in node.chain_names() if name.startswith(("tier-", "policy-"))}
    assert after == before


async def test_a_fresh_process_that_wants_the_same_writes_nothing(node: FakeNode):
    intents = [
        allow_all_profile(),
        policy("p", [ALLOW], [DENY]),
        pre_dnat("early", [ALLOW]),
        host_endpoint(
            "h",
            "eth0",
            tiers=[tier("p")],
            forward_tiers=[tier("p")],
            pre_dnat_tiers=[tier(ingress=["early"], default_deny=False)],
        ),
        host_endpoint("all", "*", profiles=[PROFILE]),
    ]
    await node.push(*intents)
    commits = node.fake.commits
    again = node.restarted()
    again.table.queue_resync("start")
    await again.push(*intents)
    assert node.fake.commits == commits


async def test_one_apply_is_one_transaction(node: FakeNode):
    commits = node.fake.commits
    await node.push(policy("p", [ALLOW], [DENY]), host_endpoint("h", "eth0", tiers=[tier("p")]))
    assert node.fake.commits == commits + 1


async def test_a_missing_policy_closes_and_failsafes_stay_open(node: FakeNode):
    await node.push(host_endpoint("h", "eth0", tiers=[tier("gone")], profiles=[PROFILE]))
    assert node.fake.deliver(to_us(dport=80), "eth0") == "drop"
    assert node.fake.deliver(to_us(dport=22), "eth0") == "accept"


async def test_what_the_kernel_refuses_is_a_problem_of_the_endpoint(node: FakeNode):
    new_chain = 3
    node.fake.refuse(new_chain, "host-in")
    await node.push(host_endpoint("h", "eth0"))
    assert "host-in" in node.host.problem(host_key("h"))
    node.fake.allow()
    await node.clock.advance(120)
    await node.push()
    assert node.host.problem(host_key("h")) == ""
    node.fake.refuse_element("dispatch-host-in", b"eth1\0")
    await node.push(host_endpoint("g", "eth1"))
    assert "eth1" in node.host.problem(host_key("g"))
    await node.push(host_endpoint("z", "eth0"))
    assert (node.host.count, node.host.active_count) == (3, 1), "g is refused, z governs nothing"
    assert node.host.problem(host_key("h")) == ""
    assert node.fake.deliver(to_us(), "eth0") == "drop", "the others are policed"


@pytest.mark.parametrize("others", [[], [host_endpoint("all", "*", profiles=[PROFILE])]])
async def test_an_interface_whose_entry_the_kernel_refuses_is_closed_but_for_failsafes(
    node: FakeNode, others
):
    await node.push(*others)
    opened = host_endpoint("g", "eth1", profiles=[PROFILE])
    node.fake.refuse_element("dispatch-host-in", b"eth1\0")
    node.fake.refuse_element("dispatch-host-out", b"eth1\0")
    result = await node.push(opened, host_endpoint("h", "eth0", profiles=[PROFILE]))
    assert result.deferred == 2
    assert node.fake.deliver(to_us(), "eth1") == "drop"
    assert node.fake.deliver(to_us(dport=22), "eth1") == "accept"
    assert node.fake.originate(from_us(), "eth1") == "drop"
    assert node.fake.originate(from_us(dport=2379), "eth1") == "accept"
    assert node.fake.deliver(to_us(), "eth0") == "accept", "the others go on"
    node.fake.allow()
    await node.clock.advance(120)
    await node.push()
    assert node.fake.deliver(to_us(), "eth1") == "accept"


@pytest.mark.parametrize(
    ("stage", "map_name"),
    [
        ("untracked_tiers", "dispatch-host-untracked-in"),
        ("pre_dnat_tiers", "dispatch-host-pre-dnat"),
        ("forward_tiers", "dispatch-host-forward-in"),
    ],
)
async def test_a_refused_entry_of_an_early_or_forward_stage_closes_too(
    node: FakeNode, stage: str, map_name: str
):
    def verdict() -> str:
        if stage == "forward_tiers":
            return node.fake.forward(Packet(PEER[4], "10.99.0.1"), "eth1", "eth9")
        return node.fake.deliver(to_us(), "eth1")

    policies = {
        "untracked_tiers": untracked("p", [ALLOW]),
        "pre_dnat_tiers": pre_dnat("p", [ALLOW]),
        "forward_tiers": policy("p", [ALLOW]),
    }
    tiers = {stage: [early("p")]}
    await node.push(policies[stage], host_endpoint("g", "eth1", profiles=[PROFILE], **tiers))
    assert verdict() == "accept"
    await node.push(HostEndpointRemove(host_key("g")))
    node.fake.refuse_element(map_name, b"eth1\0")
    await node.push(host_endpoint("g", "eth1", profiles=[PROFILE], **tiers))
    assert verdict() == "drop"


async def test_the_dump_says_who_governs_what(node: FakeNode):
    await node.push(host_endpoint("h", "eth0"), host_endpoint("all", "*"))
    dump = node.host.dump()
    assert {name: sorted(found) for name, found in dump.items()} == {
        "host-in": ["*", "eth0"],
        "host-out": ["*", "eth0"],
        "host-translated-out": ["*", "eth0"],
    }
    assert dump["host-in"]["eth0"]["endpoint"] == "h"  # type: ignore[index]
