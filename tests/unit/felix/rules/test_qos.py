"""felix.rules.qos: chains of limits and marks, as text."""

from __future__ import annotations

from felix.intent import DirectionLimits, QosControls
from felix.rules import qos
from felix.rules.chain import Chain
from felix.rules.render_nft import hook_text, rule_text
from felix.rules.settings import RuleSettings

LIMITS = DirectionLimits(packets_per_s=100, packet_burst=7, connections=5)


def lines(chain: Chain) -> list[str]:
    return [rule_text(rule) for rule in chain.rules]


def test_what_is_over_the_packet_rate_is_counted_and_dropped():
    chain = qos.packet_rate_chain("out", "cali1", LIMITS)
    assert lines(chain) == [
        "limit rate over 100/second burst 7 packets counter drop"
        ' comment "over 100 packets a second"'
    ]


def test_a_connection_too_many_is_reset():
    chain = qos.connections_chain("in", "cali1", LIMITS)
    assert lines(chain) == [
        "meta l4proto tcp ct state new ct count over 5 counter reject with tcp reset"
        ' comment "more than 5 connections"'
    ]


def test_marked_is_what_goes_outside_all_pools():
    assert lines(qos.dscp_chain(46)) == [
        "meta nfproto ipv4 ip daddr != @all-pools-4 ip dscp set 46",
        "meta nfproto ipv6 ip6 daddr != @all-pools-6 ip6 dscp set 46",
    ]


def test_marks_are_set_after_policy_on_packets_of_workloads():
    chain = qos.dscp_base_chain(RuleSettings(interface_prefixes=("cali", "tap")))
    assert hook_text(chain) == "type filter hook forward priority 0; policy accept;"
    assert lines(chain) == [
        'iifname "cali*" iifname vmap @dscp-egress',
        'iifname "tap*" iifname vmap @dscp-egress',
    ]


def test_names_differ_by_interface_direction_and_kind():
    names = {
        make(direction, ifname)
        for make in (qos.packet_rate_chain_name, qos.connections_chain_name)
        for direction in ("in", "out")
        for ifname in ("cali1", "cali1 ", "cali2")
    }
    assert len(names) == 12


def test_egress_is_what_a_workload_sends():
    controls = QosControls(DirectionLimits(connections=1), DirectionLimits(connections=2))
    assert qos.limits_of(controls, "in").connections == 1
    assert qos.limits_of(controls, "out").connections == 2
