"""felix.rules.host: the stages of host endpoints as rules, and what no policy can take away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.rules import host
from felix.rules.chain import (
    ACCEPT,
    DROP,
    Dispatch,
    Hook,
    Literal,
    Lookup,
    SetMark,
    goto,
    ifname_bytes,
    jump,
)
from felix.rules.host import HostDispatch, applies, needed_chains, stage_chains
from felix.rules.nat import PRIORITY_DNAT, PRIORITY_SNAT
from felix.rules.render_nft import rule_text
from felix.rules.settings import DenyAction, Failsafe, RuleSettings
from felix.rules.static import PRIORITY_RECEIVER, PRIORITY_SENDER
from tests.support.nft import host_endpoint, tier

SETTINGS = RuleSettings()
MARKS = SETTINGS.marks
NOTHING, ENTRIES = HostDispatch(), HostDispatch(frozenset({"eth0"}))
BOTH = HostDispatch(frozenset({"eth0"}), default="endpoint-in-x")


def texts(chain) -> list[str]:
    """The rules without their comments."""
    return [rule_text(replace(rule, comment="")) for rule in chain.rules]


def needed(name: str, settings: RuleSettings = SETTINGS) -> list[str]:
    (chain,) = [chain for chain in needed_chains(settings) if chain.name == name]
    return texts(chain)


@pytest.mark.parametrize("stage", host.STAGES, ids=lambda stage: stage.name)
def test_a_stage_at_which_nobody_has_a_say_does_not_exist(stage):
    assert stage_chains(stage, NOTHING, SETTINGS, uses_marks=False) == ()
    has_chains = bool(stage_chains(stage, NOTHING, SETTINGS, uses_marks=True))
    assert has_chains == stage.is_raw, "marks are cleared where packets come from"


@pytest.mark.parametrize("stage", host.STAGES, ids=lambda stage: stage.name)
def test_interfaces_are_looked_up_first_then_the_star_endpoint_has_the_rest(stage):
    *_head, chain, closed = stage_chains(stage, BOTH, SETTINGS, uses_marks=False)
    lookup, guard, workloads, rest = chain.rules[-4:]
    assert lookup.actions == (Dispatch((stage.field,), stage.map.name),)
    names = Literal((ifname_bytes("eth0"),))
    assert guard.matches == (Lookup((stage.field,), names),)
    assert guard.actions == (goto(closed.name),)
    assert [rule.actions for rule in closed.rules] == [(jump(stage.needed),), (DROP,)]
    assert (workloads.matches[0].field, workloads.matches[0].value) == (stage.field, b"cali")
    assert workloads.actions == (ACCEPT,)
    assert rest.actions == (goto("endpoint-in-x"),)


def test_stages_stand_where_their_packets_are_what_they_ask_about():
    early = host.PRE_DNAT.hook
    assert (early.hook, early.priority < PRIORITY_DNAT) == (Hook.PREROUTING, True)
    assert early.priority > -200, "after connection tracking"
    for raw in (host.UNTRACKED_IN, host.UNTRACKED_OUT):
        assert raw.hook.priority < -200
    assert host.NORMAL_OUT.hook.priority > PRIORITY_DNAT
    assert host.TRANSLATED_OUT.hook.priority < PRIORITY_SNAT
    assert host.FORWARD_IN.hook.priority < PRIORITY_SENDER
    assert host.FORWARD_OUT.hook.priority > PRIORITY_RECEIVER


def test_marks_are_cleared_set_and_asked_for():
    raw, _closed = stage_chains(host.UNTRACKED_IN, ENTRIES, SETTINGS, uses_marks=True)
    assert raw.rules[0].actions == (SetMark(MARKS.all, False),)
    for stage in (host.PRE_DNAT, host.FORWARD_IN, host.NORMAL_IN, host.NORMAL_OUT):
        chain, _closed = stage_chains(stage, ENTRIES, SETTINGS, uses_marks=True)
        assert "mark & 0x00010000" in texts(chain)[0], stage.name
        chain, _closed = stage_chains(stage, ENTRIES, SETTINGS, uses_marks=False)
        assert "0x00010000" not in "".join(texts(chain)), stage.name
    chain, _closed = stage_chains(host.FORWARD_OUT, ENTRIES, SETTINGS, uses_marks=True)
    assert len(chain.rules) == 2, "another endpoint's interface"


def test_translated_packets_wait_for_postrouting():
    out, _closed = stage_chains(host.NORMAL_OUT, ENTRIES, SETTINGS, uses_marks=False)
    assert texts(out)[0].startswith("ct status dnat meta mark set meta mark | 0x00020000 accept")
    late, dispatch, _closed = stage_chains(host.TRANSLATED_OUT, ENTRIES, SETTINGS, uses_marks=False)
    assert texts(late) == [
        "meta mark & 0x00020000 == 0x00020000 meta mark set meta mark & 0xfffdffff"
        f" goto {dispatch.name}"
    ]


def test_only_rejecting_needs_policies_of_its_own_in_postrouting():
    assert host.direction_at(host.TRANSLATED_OUT, SETTINGS) == "out"
    rejecting = RuleSettings(deny_action=DenyAction.REJECT)
    assert host.direction_at(host.TRANSLATED_OUT, rejecting) == "late"
    assert host.direction_at(host.NORMAL_OUT, rejecting) == "out"


def test_normal_stages_apply_to_everybody_open_ones_to_those_with_policy_there():
    bare = host_endpoint("h", "eth0")
    assert [stage for stage in host.STAGES if applies(stage, bare)] == [
        host.NORMAL_IN,
        host.NORMAL_OUT,
        host.TRANSLATED_OUT,
    ]
    ingress = host_endpoint("h", "eth0", forward_tiers=[tier(ingress=["p"])])
    assert applies(host.FORWARD_IN, ingress)
    assert not applies(host.FORWARD_OUT, ingress)


# ------------------------------------------------------------------------------ needed chains


def test_failsafes_are_one_rule_for_the_ports_of_a_protocol():
    assert needed(host.NEEDED_IN) == [
        "ct state established,related accept",
        "ct state invalid drop",
        "meta nfproto ipv6 meta l4proto ipv6-icmp"
        " icmpv6 type { 130, 131, 132, 133, 134, 135, 136, 143 }"
        " accept",
        "meta l4proto tcp th dport { 22, 179, 2379-2380, 5473, 6443, 6666-6667 } accept",
        "meta l4proto udp th dport 68 accept",
    ]


def test_failsafes_of_a_network_are_of_its_family():
    failsafes = (
        Failsafe(6, 22, "192.0.2.0/24"),
        Failsafe(17, 7, "::/0"),
        Failsafe(6, 1, "fd00::1"),
    )
    settings = RuleSettings(inbound_failsafes=failsafes, outbound_failsafes=failsafes)
    assert needed(host.NEEDED_IN, settings)[3:] == [
        "meta nfproto ipv4 ip saddr 192.0.2.0/24 meta l4proto tcp th dport 22 accept",
        "meta nfproto ipv6 meta l4proto udp th dport 7 accept",
        "meta nfproto ipv6 ip6 saddr fd00::1 meta l4proto tcp th dport 1 accept",
    ]
    assert "ip daddr 192.0.2.0/24" in needed(host.NEEDED_OUT, settings)[3]


def test_before_tracking_replies_of_failsafes_are_safe_too():
    settings = RuleSettings(
        inbound_failsafes=(Failsafe(6, 22),), outbound_failsafes=(Failsafe(17, 53, "192.0.2.7"),)
    )
    assert needed(host.NEEDED_RAW_IN, settings)[1:] == [
        "meta l4proto tcp th dport 22 accept",
        "meta nfproto ipv4 ip saddr 192.0.2.7 meta l4proto udp th sport 53 accept",
    ]
    assert needed(host.NEEDED_RAW_OUT, settings)[1:] == [
        "meta nfproto ipv4 ip daddr 192.0.2.7 meta l4proto udp th dport 53 accept",
        "meta l4proto tcp th sport 22 accept",
    ]
    assert "ct state" not in "".join(needed(host.NEEDED_RAW_IN, settings))


def test_forwarded_packets_have_no_failsafes_and_invalid_ones_pass_when_so_configured():
    assert needed(host.NEEDED_FORWARD) == [
        "ct state established,related accept",
        "ct state invalid drop",
    ]
    assert needed(host.NEEDED_FORWARD, RuleSettings(drops_invalid=False)) == [
        "ct state established,related accept"
    ]
