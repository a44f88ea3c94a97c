"""felix.rules.ipt_match: conditions as words, alternatives as lines."""

from __future__ import annotations

import pytest

from felix.rules.chain import (
    ICMP_CODE,
    ICMP_TYPE,
    INET_PROTO,
    INET_SERVICE,
    Between,
    Compare,
    CtState,
    CtStatus,
    Field,
    InNet,
    InState,
    InStatus,
    Literal,
    Lookup,
    Marked,
    Match,
    ifname_bytes,
    key_of,
    of_family,
    of_protocol,
    port_bytes,
)
from felix.rules.ipt_match import Unrenderable, words_of
from felix.rules.sets import net_element

TEN = bytes([10, 0, 0, 0])
V6 = bytes([0xFD]) + bytes(15)
PAIR = key_of((ICMP_TYPE, b"\x08"), (ICMP_CODE, b"\x01"))


def interval(*ports: tuple[int, int]) -> Literal:
    elements = (port_bytes(first) + port_bytes(last) for first, last in ports)
    return Literal(tuple(elements), interval=True)


def protocols(*numbers: int) -> Literal:
    return Literal(tuple(bytes([number]) for number in numbers))


CASES: list[tuple[list[Match], list[str]]] = [
    ([], [""]),
    ([of_family(4), InNet(Field.IP4_SADDR, TEN, 8)], ["-s 10.0.0.0/8"]),
    ([Compare(Field.IP4_DADDR, TEN, negated=True)], ["! -d 10.0.0.0"]),
    ([of_protocol(6), Compare(Field.TH_DPORT, port_bytes(80))],
     ["-p tcp -m multiport --dports 80"]),
    ([of_protocol(17), Between(Field.TH_SPORT, port_bytes(1), port_bytes(9), True)],
     ["-p udp -m multiport ! --sports 1:9"]),
    ([of_protocol(47, negated=True)], ["! -p 47"]),
    ([Compare(Field.IIFNAME, b"cali")], ["-i cali+"]),
    ([Compare(Field.OIFNAME, ifname_bytes("cali1"), negated=True)], ["! -o cali1"]),
    ([InState(CtState.RELATED | CtState.ESTABLISHED)],
     ["-m conntrack --ctstate ESTABLISHED,RELATED"]),
    ([InStatus(CtStatus.DNAT)], ["-m conntrack --ctstate DNAT"]),
    ([Marked(0x10)], ["-m mark --mark 0x10/0x10"]),
    ([Lookup((Field.IP4_SADDR,), "set-s.a-4", negated=True)],
     ["-m set ! --match-set cali40s:a src"]),
    ([Lookup((Field.IP4_DADDR, Field.L4PROTO, Field.TH_DPORT), "set-n.a-4")],
     ["-m set --match-set cali40n:a dst,dst"]),
    ([Lookup((Field.IIFNAME, Field.IP4_SADDR), "sources-4")],
     ["-m set --match-set cali40wl-sources src,src"]),
    ([of_protocol(1), Compare(Field.ICMP_TYPE, b"\x08")], ["-p icmp -m icmp --icmp-type 8"]),
    ([of_protocol(1), Compare(Field.ICMP_TYPE, b"\x03"), Compare(Field.ICMP_CODE, b"\x04")],
     ["-p icmp -m icmp --icmp-type 3/4"]),
    ([of_protocol(1), Lookup((Field.ICMP_TYPE, Field.ICMP_CODE), Literal((PAIR,)), True)],
     ["-p icmp -m icmp ! --icmp-type 8/1"]),
    # alternatives: a line each
    ([Lookup((Field.L4PROTO,), protocols(6, 17)), Compare(Field.TH_DPORT, port_bytes(53))],
     ["-p tcp -m multiport --dports 53", "-p udp -m multiport --dports 53"]),
    ([of_protocol(6), Lookup((Field.TH_DPORT,), interval(*((n * 2, n * 2) for n in range(17))))],
     ["-p tcp -m multiport --dports 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28",
      "-p tcp -m multiport --dports 30,32"]),
    ([of_protocol(6),
      Lookup((Field.TH_DPORT,), interval(*((n * 2, n * 2) for n in range(17))), negated=True)],
     ["-p tcp -m multiport ! --dports 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28"
      " -m multiport ! --dports 30,32"]),
    # a literal of several fields, element by element
    ([Lookup((Field.L4PROTO, Field.TH_DPORT), Literal((
        key_of((INET_PROTO, b"\x06"), (INET_SERVICE, port_bytes(22))),
        key_of((INET_PROTO, b"\x11"), (INET_SERVICE, port_bytes(68))))))],
     ["-p tcp -m multiport --dports 22", "-p udp -m multiport --dports 68"]),
    ([Lookup((Field.IP4_SADDR, Field.TH_DPORT), Literal((
        TEN + port_bytes(1).ljust(4, b"\0") + TEN[:3] + b"\xff" + port_bytes(5).ljust(4, b"\0"),),
        interval=True)), of_protocol(6)],
     ["-p tcp -m set --match-set cali40l:ilmxg4mctdkpmnyrlgzi src -m multiport --dports 1:5"]),
    # what no packet can be
    ([of_family(6)], []),
    ([of_protocol(6), of_protocol(17)], []),
    ([of_protocol(6), of_protocol(6, negated=True)], []),
    ([of_protocol(0)], []),
    ([of_protocol(47), Compare(Field.TH_DPORT, port_bytes(1))], []),
    ([Compare(Field.IP6_SADDR, V6)], []),
]  # fmt: skip


@pytest.mark.parametrize(("matches", "lines"), CASES)
def test_matches_as_words(matches: list[Match], lines: list[str]):
    found = words_of(matches, 4)
    named = [line for line in lines if "cali40l:" not in line]
    assert [words.text for words in found.lines if "cali40l:" not in words.text] == named
    assert len(found.lines) == len(lines)
    assert all(not words.excluded for words in found.lines)


def test_several_excluded_protocols_are_told_apart_by_the_renderer():
    (words,) = words_of([Lookup((Field.L4PROTO,), protocols(6, 17), negated=True)], 4).lines
    assert (words.text, words.excluded) == ("", ("tcp", "udp"))


def test_a_list_of_networks_and_a_second_condition_on_an_address_are_sets():
    nets = Literal((net_element(4, 10 << 24, 8), net_element(4, 11 << 24, 8)), interval=True)
    matches: list[Match] = [
        Lookup((Field.IP4_SADDR,), nets),
        InNet(Field.IP4_SADDR, TEN, 24, negated=True),
        InNet(Field.IP4_SADDR, TEN, 25, negated=True),
    ]
    found = words_of(matches, 4)
    first, second = found.literals
    assert first.elements == nets.elements
    assert second.elements == (net_element(4, 10 << 24, 25),)
    assert [words.text for words in found.lines] == [
        f"! -s 10.0.0.0/24 -m set --match-set {first.name} src"
        f" -m set ! --match-set {second.name} src"
    ]


def test_icmp_of_the_other_family_and_ipv6_words():
    of_v6: list[Match] = [
        of_family(6),
        of_protocol(58),
        Lookup((Field.ICMPV6_TYPE,), Literal((b"\x85", b"\x86"))),
    ]
    assert words_of(of_v6, 4).lines == []
    assert [words.text for words in words_of(of_v6, 6).lines] == [
        "-p ipv6-icmp -m icmp6 --icmpv6-type 133",
        "-p ipv6-icmp -m icmp6 --icmpv6-type 134",
    ]


def test_what_has_no_words_is_said_to_have_none():
    pairs = Literal((key_of((INET_PROTO, b"\x06"), (INET_SERVICE, port_bytes(22))),))
    with pytest.raises(Unrenderable):
        words_of([Lookup((Field.L4PROTO, Field.TH_DPORT), pairs, negated=True)], 4)
    with pytest.raises(Unrenderable):
        words_of([Compare(Field.ICMP_CODE, b"\1")], 4)
