"""felix.rules.render_nft: the text form and the digest over it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.rules.chain import (
    ACCEPT,
    DROP,
    ICMP_CODE,
    ICMP_TYPE,
    IFNAME,
    INET_PROTO,
    INET_SERVICE,
    IPV4_ADDR,
    RETURN,
    BaseHook,
    Between,
    Chain,
    Compare,
    Count,
    CountConnections,
    CtState,
    CtStatus,
    Dispatch,
    Field,
    Hook,
    InNet,
    InState,
    InStatus,
    Limit,
    Literal,
    Log,
    Lookup,
    Marked,
    Masquerade,
    NatByMap,
    NoTrack,
    Reject,
    Rule,
    SetDscp,
    SetMark,
    SourceNat,
    goto,
    ifname_bytes,
    jump,
    key_of,
    of_family,
    of_protocol,
    port_bytes,
)
from felix.rules.render_nft import Ruleset, chain_digest, rule_text, script
from felix.rules.sets import MapValue, SetSpec, net_element, net_set

TEN = bytes([10, 0, 0, 0])


def interval(first: bytes, last: bytes) -> bytes:
    return first + last


CASES = [
    (Rule((of_family(4), InNet(Field.IP4_SADDR, TEN, 8)), (ACCEPT,)),
     "meta nfproto ipv4 ip saddr 10.0.0.0/8 accept"),
    (Rule((of_family(6), Compare(Field.IP6_DADDR, bytes(15) + b"\1", True)), (DROP,)),
     "meta nfproto ipv6 ip6 daddr != ::1 drop"),
    (Rule((of_protocol(6), Compare(Field.TH_DPORT, port_bytes(80))), (RETURN,)),
     "meta l4proto tcp th dport 80 return"),
    (Rule((of_protocol(250, negated=True),), (jump("x"),)), "meta l4proto != 250 jump x"),
    (Rule((Between(Field.TH_SPORT, port_bytes(1), port_bytes(9), True),), (goto("x"),)),
     "th sport != 1-9 goto x"),
    (Rule((InState(CtState.ESTABLISHED | CtState.RELATED),), (ACCEPT,)),
     "ct state established,related accept"),
    (Rule((Lookup((Field.IP4_SADDR,), "s", True),), (ACCEPT,)), "ip saddr != @s accept"),
    (Rule((Lookup((Field.TH_DPORT,), Literal(
        (interval(port_bytes(1), port_bytes(5)), interval(port_bytes(80), port_bytes(80))),
        interval=True)),), (ACCEPT,)), "th dport { 1-5, 80 } accept"),
    (Rule((Lookup((Field.IP4_SADDR,), Literal(
        (net_element(4, 10 << 24, 8), interval(TEN[:3] + b"\1", TEN[:3] + b"\2")),
        interval=True)),), (ACCEPT,)), "ip saddr { 10.0.0.0/8, 10.0.0.1-10.0.0.2 } accept"),
    (Rule((Lookup((Field.ICMP_TYPE, Field.ICMP_CODE), Literal(
        (key_of((ICMP_TYPE, b"\x08"), (ICMP_CODE, b"\0")),)), True),), (ACCEPT,)),
     "icmp type . icmp code != { 8 . 0 } accept"),
    (Rule((Compare(Field.IIFNAME, b"cali"),), (Dispatch((Field.IIFNAME,), "m"),)),
     'iifname "cali*" iifname vmap @m'),
    (Rule((Compare(Field.OIFNAME, ifname_bytes("eth0")),), (Count(), Reject())),
     'oifname "eth0" counter reject with icmpx port-unreachable'),
    (Rule((), (Limit(5, 60, 9), Log('p"q: '),), "it's"),
     "limit rate 5/minute burst 9 packets log prefix \"p'q: \" level notice comment \"it's\""),
    (Rule((), (Limit(5, 1, 9, over=True), DROP)), "limit rate over 5/second burst 9 packets drop"),
    (Rule((of_protocol(6),), (CountConnections(7), Reject(tcp_reset=True))),
     "meta l4proto tcp ct count over 7 reject with tcp reset"),
    (Rule((InStatus(CtStatus.DNAT),), (ACCEPT,)), "ct status dnat accept"),
    (Rule((Marked(0x10000),), (ACCEPT,)), "meta mark & 0x00010000 == 0x00010000 accept"),
    (Rule((), (SetMark(0x10000),)), "meta mark set meta mark | 0x00010000"),
    (Rule((), (SetMark(0x10000, False),)), "meta mark set meta mark & 0xfffeffff"),
    (Rule((of_family(4),), (SetDscp(4, 46),)), "meta nfproto ipv4 ip dscp set 46"),
    (Rule((of_family(6),), (SetDscp(6, 0),)), "meta nfproto ipv6 ip6 dscp set 0"),
    (Rule((), (NoTrack(),)), "notrack"),
    (Rule((), (Masquerade(),)), "masquerade fully-random"),
    (Rule((), (Masquerade((7, 7)),)), "masquerade to :7 fully-random"),
    (Rule((), (SourceNat(TEN, (1, 2)),)), "snat ip to 10.0.0.0:1-2 fully-random"),
    (Rule((), (SourceNat(bytes(15) + b"\1", (1, 2)),)), "snat ip6 to [::1]:1-2 fully-random"),
    (Rule((), (NatByMap(Field.IP6_DADDR, "n", False),)), "dnat ip6 to ip6 daddr map @n"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), CASES, ids=[text for _rule, text in CASES])
def test_a_rule_reads_as_nft_writes_it(rule: Rule, text: str):
    assert rule_text(rule) == text


def test_the_digest_sees_everything_a_rewrite_would_change():
    rule = Rule((of_protocol(6),), (ACCEPT,), "comment")
    chain = Chain("c", (rule, replace(rule, actions=(DROP,))))
    others = [
        replace(chain, rules=chain.rules[::-1]),
        replace(chain, rules=chain.rules[:1]),
        replace(chain, rules=(replace(rule, comment="x"), chain.rules[1])),
        replace(chain, rules=(replace(rule, matches=(of_protocol(17),)), chain.rules[1])),
    ]
    assert len({chain_digest(one) for one in (chain, *others)}) == 5
    assert chain_digest(replace(chain, name="other")) == chain_digest(chain)


def test_a_chain_without_rules_has_the_digest_the_kernel_can_show():
    assert chain_digest(Chain("c", ())) == b""


def test_digests_do_not_change_from_release_to_release():
    """A new digest rewrites every chain of every node at an upgrade: do it knowingly."""
    chain = Chain("c", (Rule((of_protocol(6),), (ACCEPT,), "x"),))
    assert chain_digest(chain).hex() == "2db4101eefff03b60b19e911d5d5867a"


def test_a_script_holds_sets_maps_and_chains_in_name_order():
    key = key_of((IPV4_ADDR, TEN), (INET_PROTO, b"\6"), (INET_SERVICE, port_bytes(80)))
    ruleset = Ruleset(
        (
            Chain("z", (Rule((), (DROP,)),)),
            Chain("b", (), BaseHook(Hook.FORWARD, -2), "hi"),
        ),
        (
            net_set("nets", 4, "some nets"),
            SetSpec("m", (IFNAME,), verdicts=True),
            SetSpec("d", (IPV4_ADDR,), data=IPV4_ADDR),
            SetSpec("k", (IPV4_ADDR, INET_PROTO, INET_SERVICE)),
        ),
        {"nets": [net_element(4, 10 << 24, 8)], "k": [key]},
        {
            "m": {ifname_bytes("cali1"): MapValue(goto("z"), comment="pod")},
            "d": {TEN: MapValue(data=TEN)},
        },
    )
    assert script(ruleset) == (
        "table inet calico {\n"
        "\tmap d {\n\t\ttype ipv4_addr : ipv4_addr\n\t\telements = { 10.0.0.0 : 10.0.0.0 }\n\t}\n"
        "\tset k {\n\t\ttype ipv4_addr . inet_proto . inet_service\n"
        "\t\telements = { 10.0.0.0 . tcp . 80 }\n\t}\n"
        "\tmap m {\n\t\ttype ifname : verdict\n"
        '\t\telements = { "cali1" comment "pod" : goto z }\n\t}\n'
        "\tset nets {\n\t\ttype ipv4_addr\n\t\tflags interval\n"
        '\t\tcomment "some nets"\n\t\telements = { 10.0.0.0/8 }\n\t}\n'
        '\tchain b {\n\t\tcomment "hi"\n'
        "\t\ttype filter hook forward priority -2; policy accept;\n\t}\n"
        "\tchain z {\n\t\tdrop\n\t}\n"
        "}\n"
    )
