"""felix.rules.render_iptables: rules with their verdicts, comments and hashes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix.rules.chain import (
    ACCEPT,
    DROP,
    RETURN,
    Action,
    Chain,
    Compare,
    Count,
    CountConnections,
    Dispatch,
    Field,
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
    jump,
    of_family,
    of_protocol,
)
from felix.rules.render_iptables import IptChain, MarkWords, comment_words, render_chain

MARKS = MarkWords.of_mask(0xFFFF0000)
A = "0x20000000/0x20000000"
CHECK = f"-m mark --mark {A} -j RETURN"
TCP = of_protocol(6)


def rules_of(*rules: Rule, version: int = 4) -> list[str]:
    (chain,) = render_chain(Chain("c", rules), version, MARKS).chains
    return list(chain.rules)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (DROP, "-j DROP"),
        (RETURN, "-j RETURN"),
        (goto("x"), "-g cali-x"),
        (Reject(), "-j REJECT --reject-with icmp-port-unreachable"),
        (Log("prefix: "), '-j LOG --log-prefix "prefix: " --log-level 5'),
        (NoTrack(), "-j CT --notrack"),
        (SetDscp(4, 46), "-j DSCP --set-dscp 0x2e"),
        (SetMark(0x10), "-j MARK --set-xmark 0x10/0x10"),
        (SetMark(0x10, on=False), "-j MARK --set-xmark 0x0/0x10"),
        (Masquerade(), "-j MASQUERADE --random-fully"),
        (Masquerade((1, 9)), "-j MASQUERADE --to-ports 1-9 --random-fully"),
        (SourceNat(bytes([1, 2, 3, 4])), "-j SNAT --to-source 1.2.3.4 --random-fully"),
        (SourceNat(bytes([1, 2, 3, 4]), (1, 9)), "-j SNAT --to-source 1.2.3.4:1-9 --random-fully"),
    ],
)
def test_actions(action: Action, text: str):
    assert rules_of(Rule((), (action,))) == [text]


def test_actions_in_ipv6():
    address = bytes([0xFD]) + bytes(14) + b"\1"
    assert rules_of(Rule((), (Reject(),)), version=6) == [
        "-j REJECT --reject-with icmp6-port-unreachable"
    ]
    assert rules_of(Rule((), (SourceNat(address, (1, 9)),)), version=6) == [
        "-j SNAT --to-source [fd00::1]:1-9 --random-fully"
    ]
    assert rules_of(Rule((), (SetDscp(4, 46),)), version=6) == []
    assert rules_of(Rule((of_family(4),), (DROP,)), version=6) == []


def test_an_accept_sets_its_bit_and_leaves():
    assert rules_of(Rule((TCP,), (Count(), ACCEPT), "why")) == [
        f'-p tcp -m comment --comment "why" -j MARK --set-xmark {A}',
        CHECK,
    ]


def test_after_a_jump_an_accept_is_looked_for_unless_nothing_follows():
    both = [Rule((), (jump("x"),)), Rule((), (jump("y"),))]
    assert rules_of(*both) == ["-j cali-x", CHECK, "-j cali-y"]


def test_several_excluded_protocols_take_the_scratch_bit():
    literal = Literal((b"\x06", b"\x11"))
    rule = Rule((Lookup((Field.L4PROTO,), literal, negated=True),), (DROP,))
    bit = "0x80000000"
    assert rules_of(rule) == [
        f"-j MARK --set-xmark {bit}/{bit}",
        f"-p tcp -j MARK --set-xmark 0x0/{bit}",
        f"-p udp -j MARK --set-xmark 0x0/{bit}",
        f"-m mark --mark {bit}/{bit} -j DROP",
    ]


def test_limits_are_conditions():
    assert rules_of(Rule((), (Limit(5, 60, 7), Log("x")))) == [
        '-m limit --limit 5/minute --limit-burst 7 -j LOG --log-prefix "x" --log-level 5'
    ]
    assert rules_of(Rule((TCP,), (CountConnections(3), Reject(tcp_reset=True)))) == [
        "-p tcp -m connlimit --connlimit-above 3 --connlimit-mask 0"
        " -j REJECT --reject-with tcp-reset"
    ]
    bit = "0x80000000"
    assert rules_of(Rule((TCP,), (Limit(5, 60, 7), Log("x"), DROP))) == [
        f"-j MARK --set-xmark 0x0/{bit}",
        f"-p tcp -m limit --limit 5/minute --limit-burst 7 -j MARK --set-xmark {bit}/{bit}",
        f'-m mark --mark {bit}/{bit} -j LOG --log-prefix "x" --log-level 5',
        f"-m mark --mark {bit}/{bit} -j DROP",
    ]


def test_another_rate_is_another_hash_table_and_none_is_higher_than_the_kernel_takes():
    def words(rate: int) -> list[str]:
        (rule,) = rules_of(Rule((), (Limit(rate, 1, 10, over=True), DROP)))
        return rule.split()

    assert words(5)[3] == "5/second"
    assert words(5)[7] != words(6)[7]
    assert len(words(5)[7]) == 15
    assert words(3_000_000)[3] == "1000000/second"


def test_what_stands_behind_a_lookup_is_a_chain_of_its_own():
    look_up = Dispatch((Field.IIFNAME,), "dispatch-egress")
    on_cali = Compare(Field.IIFNAME, b"cali")
    rules = (Rule((), (look_up,)), Rule((on_cali,), (look_up,)), Rule((), (DROP,)))
    made = render_chain(Chain("c", rules), 4, MARKS)
    assert [(chain.name, chain.rules) for chain in made.chains] == [
        ("cali-c", ("-g cali-from-wl-dispatch",)),
        ("cali-c-1", ("-i cali+ -g cali-from-wl-dispatch-1", "-g cali-c-2")),
        ("cali-c-2", ("-j DROP",)),
    ]
    assert [(use.root, use.then) for use in made.maps] == [
        ("cali-from-wl-dispatch", "cali-c-1"),
        ("cali-from-wl-dispatch-1", "cali-c-2"),
    ]


def test_a_lookup_at_the_end_has_nothing_behind_it():
    made = render_chain(
        Chain("c", (Rule((), (Dispatch((Field.IIFNAME,), "dispatch-egress"),)),)), 4, MARKS
    )
    assert [use.then for use in made.maps] == [""]
    assert len(made.chains) == 1


def test_a_map_of_addresses_is_a_chain_of_translations():
    made = render_chain(
        Chain("c", (Rule((), (NatByMap(Field.IP4_DADDR, "floating-4", False),)),)), 4, MARKS
    )
    assert made.chains[0].rules == ("-j cali-floating-4",)
    assert [(use.name, use.is_nat) for use in made.maps] == [("floating-4", True)]


def test_a_rule_that_changes_what_it_asks_is_matched_once():
    rule = Rule((Marked(0x10),), (SetMark(0x10, on=False), goto("x")))
    bit = "0x80000000"
    assert rules_of(rule) == [
        f"-j MARK --set-xmark 0x0/{bit}",
        f"-m mark --mark 0x10/0x10 -j MARK --set-xmark {bit}/{bit}",
        f"-m mark --mark {bit}/{bit} -j MARK --set-xmark 0x0/0x10",
        f"-m mark --mark {bit}/{bit} -g cali-x",
    ]


def test_a_hash_covers_the_chain_and_all_that_stands_before():
    chain = IptChain("cali-a", ("-j DROP", "-j RETURN"))
    assert [len(digest) for digest in chain.hashes] == [16, 16]
    other_name = IptChain("cali-b", chain.rules)
    other_first = IptChain("cali-a", ("-j LOG", "-j RETURN"))
    other_last = IptChain("cali-a", ("-j DROP", "-j LOG"))
    assert not set(chain.hashes) & set(other_name.hashes)
    assert not set(chain.hashes) & set(other_first.hashes)
    assert chain.hashes[0] == other_last.hashes[0]
    assert chain.hashes[1] != other_last.hashes[1]
    assert chain.lines[0] == f'-A cali-a -m comment --comment "cali:{chain.hashes[0]}" -j DROP'


def test_comments_and_prefixes_are_made_fit():
    assert comment_words("") == ""
    assert comment_words('tier "a"\\\n\u00e9') == '-m comment --comment "tier _a____"'
    assert len(comment_words("x" * 400)) == len('-m comment --comment ""') + 255
    (long,) = rules_of(Rule((), (Log("calico-packet for a long name: "),)))
    assert long.split('"')[1] == "calico-packet for a long na: "
    assert len(long.split('"')[1]) == 29


def test_marks_come_from_the_top_of_the_mask():
    marks = MarkWords.of_mask(0b1011_0011)
    assert (marks.accept, marks.allowed, marks.scratch) == ("0x10", "0x20", "0x80")
    with pytest.raises(ValueError, match="at least 5 bits"):
        MarkWords.of_mask(0b1111)


def test_equal_models_are_rendered_alike():
    rule = Rule((TCP, Compare(Field.IIFNAME, b"cali")), (ACCEPT,), "x")
    assert rules_of(rule) == rules_of(replace(rule))
