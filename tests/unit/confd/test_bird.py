"""confd.bird: texts of the datastore in BIRD's language, and what it cannot say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from confd import bird
from confd.context import BgpContext
from confd.peers import Session
from libcalico.model.bgp_filter import (
    BGPFilterCommunityMatch,
    BGPFilterOperation,
    BGPFilterPrefixLengthV4,
    BGPFilterPrependASPath,
    BGPFilterRuleV4,
    BGPFilterSetPriority,
)
from libcalico.model.speaker import KernelExport, PoolExport, SpeakerConfig

SESSION = Session("192.0.2.2", 179, "node", remote_as=1, local_as=1, local_address="192.0.2.1")


def context(*sessions: Session, mode: str = "EnabledNoEncapOnly", ipip: str = "Never"):
    speaker = SpeakerConfig(
        exabgp_sha256="",
        node_name="a",
        router_id="192.0.2.1",
        local_as=1,
        kernel=KernelExport(program_cluster_routes=mode),
        pools=(PoolExport(cidr="10.65.0.0/16", ipip_mode=ipip),),
    )
    return BgpContext("a", "192.0.2.1", 179, (), "Info", sessions, speaker)


@pytest.mark.parametrize("bad", ['a"b', "a\nb", "a\0b"])
def test_a_text_that_could_end_its_quotes_is_refused(bad):
    with pytest.raises(ValueError, match="cannot be written"):
        bird.text(bad)


def test_a_long_password_is_said_in_hex_and_a_short_one_costs_its_session():
    assert bird.password('quote " and more') == b'quote " and more'.hex(":")
    kept, left = replace(SESSION, password="plain;{}#"), replace(SESSION, password='a"b')
    made = bird.speakable(context(kept, left))
    assert made.sessions == (kept,)
    assert len(made.warnings) == 1
    assert "Node_192_0_2_2 is left out" in made.warnings[0]
    assert 'a"b' not in made.warnings[0]


def test_routes_through_the_tunnel_are_warned_of():
    assert "10.65.0.0/16" in bird.speakable(context(mode="Enabled", ipip="Always")).warnings[0]
    assert bird.speakable(context(ipip="Always")).warnings == ()


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({}, "true"),
        ({"cidr": "10.0.0.0/8"}, "(net ~ [ 10.0.0.0/8{8,32} ])"),
        ({"cidr": "10.0.0.0/8", "match_operator": "Equal"}, "(net = 10.0.0.0/8)"),
        ({"cidr": "10.0.0.0/8", "match_operator": "NotEqual"}, "(!(net = 10.0.0.0/8))"),
        (
            {
                "cidr": "10.0.0.0/8",
                "match_operator": "NotIn",
                "prefix_length": BGPFilterPrefixLengthV4(min=4, max=24),
            },
            "(!(net ~ [ 10.0.0.0/8{8,24} ]))",
        ),
        # Lengths that leave nothing: never an error of BIRD's parser.
        ({"cidr": "10.0.0.0/8", "prefix_length": BGPFilterPrefixLengthV4(max=4)}, "(false)"),
        ({"source": "RemotePeers", "peer_type": "eBGP"}, "(source = RTS_BGP) && (!to_internal)"),
        (
            {"communities": BGPFilterCommunityMatch(values=("1:2:3",)), "priority": 500},
            "((1,2,3) ~ bgp_large_community) && (bgp_local_pref = 2147483147)",
        ),
        ({"as_path_prefix": (65001, 65002)}, "(bgp_path ~ [= 65001 65002 * =])"),
    ],
)
def test_conditions(rule, text):
    assert bird.condition(BGPFilterRuleV4(action="Accept", **rule), 4) == text


def test_operations_are_done_only_by_a_rule_that_accepts():
    operations = (
        BGPFilterOperation(prepend_as_path=BGPFilterPrependASPath(prefix=(1, 2))),
        BGPFilterOperation(set_priority=BGPFilterSetPriority(value=7)),
    )
    made = bird.statements(BGPFilterRuleV4(action="Accept", operations=operations))
    assert made == [
        "bgp_path.prepend(2);",
        "bgp_path.prepend(1);",
        "bgp_local_pref = 2147483640;",
        "accept;",
    ]
    assert bird.statements(BGPFilterRuleV4(action="Reject", operations=operations)) == ["reject;"]


def test_long_filter_names_stay_apart_and_fit_into_a_symbol():
    first, second = "x" * 100, "x" * 99 + "y"
    names = {bird.function_name(name, "importFilterV4") for name in (first, second)}
    assert len(names) == 2
    assert max(map(len, names)) <= 64 + 2  # the quotes are not part of it
