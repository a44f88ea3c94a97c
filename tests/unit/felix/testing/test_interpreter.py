"""felix.testing.interpreter: verdicts read from hand-written intents."""

from __future__ import annotations

import pytest

from felix.intent import (
    HostEndpointUpdate,
    PolicyUpdate,
    ProfileUpdate,
    TierPolicies,
    WorkloadEndpointUpdate,
)
from felix.testing.dataplane import Contents
from felix.testing.interpreter import matches, outcome
from libcalico.compute.rules import Action, CompiledRule, EntityMatch, IcmpMatch, PortRange, SetKind
from libcalico.model.keys import ResourceKey
from libcalico.policy.evaluate import Outcome, Stage
from libcalico.policy.packet import Direction, Packet

W, H = ResourceKey("WorkloadEndpoint", "w", "prod"), ResourceKey("HostEndpoint", "h")
TCP = Packet.tcp("10.0.0.1", "10.0.0.2", 80, source_port=4000)
PING = Packet.icmp("fd00::1", "fd00::2", 128)

SETS = {
    "a": (SetKind.NET, frozenset({"10.0.0.0/31"})),
    "empty": (SetKind.NET, frozenset()),
    "web": (SetKind.IP_PORT, frozenset({"10.0.0.2,tcp,80"})),
}


def side(**fields) -> EntityMatch:
    return EntityMatch(**fields)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, True),
        ({"unmatchable": True}, False),
        ({"ip_version": 4}, True),
        ({"ip_version": 6}, False),
        ({"protocol": 6}, True),
        ({"protocol": 17}, False),
        ({"not_protocol": 6}, False),
        ({"not_protocol": 17}, True),
        ({"icmp": IcmpMatch(8)}, False),
        ({"not_icmp": IcmpMatch(8)}, True),
        ({"source": side(nets=("10.0.0.0/8",))}, True),
        ({"source": side(nets=("fd00::/8",))}, False),
        ({"source": side(not_nets=("10.0.0.0/8",))}, False),
        ({"source": side(sets=("a",))}, True),
        ({"source": side(sets=("a", "empty"))}, False),
        ({"destination": side(not_sets=("a",))}, True),
        ({"source": side(not_sets=("empty", "a"))}, False),
        ({"destination": side(ports=(PortRange(1, 79), PortRange(80, 90)))}, True),
        ({"destination": side(ports=(PortRange(81, 90),))}, False),
        ({"destination": side(ports=(PortRange(81, 90),), named_port_sets=("web",))}, True),
        ({"source": side(named_port_sets=("web",))}, False),
        ({"destination": side(not_ports=(PortRange(80, 80),))}, False),
        ({"destination": side(not_named_port_sets=("web",))}, False),
        ({"destination": side(ip_port_sets=("web",))}, True),
        ({"source": side(ip_port_sets=("web",))}, False),
    ],
)
def test_matching(fields, found):
    rule = CompiledRule(Action.ALLOW, 0, **fields)
    assert matches(Contents(sets=SETS), rule, TCP) is found


@pytest.mark.parametrize(
    ("match", "negated", "found"),
    [
        (IcmpMatch(128), None, True),
        (IcmpMatch(128, 0), None, True),
        (IcmpMatch(128, 1), None, False),
        (None, IcmpMatch(128, 0), False),
        (None, IcmpMatch(128, 1), True),
        (None, IcmpMatch(128), False),
    ],
)
def test_icmp(match, negated, found):
    rule = CompiledRule(Action.ALLOW, 0, icmp=match, not_icmp=negated)
    assert matches(Contents(), rule, PING) is found


def policies(**actions: tuple[Action, ...]) -> dict[ResourceKey, PolicyUpdate]:
    found = {}
    for name, listed in actions.items():
        key = ResourceKey("GlobalNetworkPolicy", name)
        rules = tuple(CompiledRule(action, i) for i, action in enumerate(listed))
        found[key] = PolicyUpdate(key, "t", rules, ())
    return found


def tier(*names: str, deny: bool = True) -> TierPolicies:
    keys = tuple(ResourceKey("GlobalNetworkPolicy", name) for name in names)
    return TierPolicies("t", keys, (), deny)


def profile(name: str, *actions: Action) -> ProfileUpdate:
    return ProfileUpdate(name, tuple(CompiledRule(item, i) for i, item in enumerate(actions)), ())


CONTENTS_POLICIES = policies(
    allow=(Action.LOG, Action.ALLOW, Action.DENY),
    deny=(Action.DENY,),
    passes=(Action.PASS, Action.DENY),
    silent=(Action.LOG,),
)
PROFILES = {
    "yes": profile("yes", Action.ALLOW),
    "no": profile("no", Action.DENY),
    "shrug": profile("shrug", Action.PASS, Action.DENY),
}


def decide(tiers, profiles=(), *, direction=Direction.INGRESS) -> Outcome:
    endpoint = WorkloadEndpointUpdate(W, "c", "", ("10.0.0.2/32",), profiles, tiers)
    contents = Contents(policies=CONTENTS_POLICIES, profiles=PROFILES, endpoints={W: endpoint})
    return outcome(contents, W, direction, TCP)


@pytest.mark.parametrize(
    ("tiers", "profiles", "allowed"),
    [
        ((), (), False),
        ((), ("yes",), True),
        ((), ("no", "yes"), False),
        ((), ("shrug", "yes"), True),
        ((tier("allow"),), (), True),
        ((tier("deny", "allow"),), ("yes",), False),
        ((tier("silent", "allow"),), (), True),
        ((tier("silent"),), ("yes",), False),
        ((tier("silent", deny=False),), ("yes",), True),
        ((tier("passes", "deny"), tier("allow")), (), True),
        ((tier("passes"),), ("yes",), True),
        ((tier("passes"), tier("deny")), ("yes",), False),
        ((tier("allow"), tier("deny")), (), True),
    ],
)
def test_tiers_and_profiles(tiers, profiles, allowed):
    assert decide(tiers, profiles) is (Outcome.ALLOW if allowed else Outcome.DENY)


def test_a_tier_that_does_not_govern_the_direction_takes_no_part():
    """The profiles here have no egress rules."""
    assert decide((tier("allow"),), ("yes",), direction=Direction.EGRESS) is Outcome.DENY


def host(**stages) -> Contents:
    endpoint = HostEndpointUpdate(H, "eth0", (), ("yes",), **{"tiers": (), **stages})
    return Contents(policies=CONTENTS_POLICIES, profiles=PROFILES, endpoints={H: endpoint})


def at(stage: Stage, **stages) -> Outcome:
    return outcome(host(**stages), H, Direction.INGRESS, TCP, stage=stage)


def test_the_stages_of_a_host_endpoint():
    """5.4."""
    assert at(Stage.UNTRACKED) is Outcome.UNDECIDED
    assert at(Stage.UNTRACKED, untracked_tiers=(tier("silent", deny=False),)) is Outcome.UNDECIDED
    assert at(Stage.UNTRACKED, untracked_tiers=(tier("deny", deny=False),)) is Outcome.DENY
    assert at(Stage.PRE_DNAT, pre_dnat_tiers=(tier("allow", deny=False),)) is Outcome.ALLOW
    assert at(Stage.FORWARD) is Outcome.ALLOW
    assert at(Stage.FORWARD, forward_tiers=(tier("silent"),)) is Outcome.DENY
    assert at(Stage.FORWARD, forward_tiers=(tier("passes"),)) is Outcome.UNDECIDED
    assert at(Stage.NORMAL) is Outcome.ALLOW
    assert at(Stage.NORMAL, tiers=(tier("deny"),)) is Outcome.DENY
