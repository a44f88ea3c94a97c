"""felix.kernel.nft_expr: rules as expressions, byte by byte where it matters."""

from __future__ import annotations

import pytest

from felix.kernel.nft_expr import LiteralSets, encode_match, encode_rule, verdict_data
from felix.rules.chain import (
    ACCEPT,
    DROP,
    RETURN,
    Between,
    Compare,
    CtState,
    CtStatus,
    Dispatch,
    Field,
    InNet,
    InState,
    InStatus,
    Literal,
    Lookup,
    Marked,
    Masquerade,
    Match,
    NoTrack,
    Reject,
    Rule,
    SetMark,
    SourceNat,
    goto,
    ifname_bytes,
    jump,
    of_family,
    port_bytes,
)
from libcalico.netlink.messages import iter_attrs, parse_attrs, read_text
from libcalico.testing.fakenft_vm import Context, Packet, decode

Expr = tuple[str, dict[int, bytes]]


def expressions(encoded: bytes) -> list[Expr]:
    found = []
    for _kind, listed in iter_attrs(memoryview(encoded)):
        attrs = parse_attrs(listed, 0)
        data = parse_attrs(attrs[2], 0) if 2 in attrs else {}
        found.append((read_text(attrs[1]), {kind: bytes(value) for kind, value in data.items()}))
    return found


def no_literals() -> LiteralSets:
    def refuse() -> int:
        raise AssertionError("no anonymous set expected")

    return LiteralSets(refuse)


def of(match: Match) -> list[Expr]:
    return expressions(encode_match(match, no_literals()))


def be(value: int) -> bytes:
    return value.to_bytes(4, "big")


def test_a_comparison_loads_into_register_one():
    load, compare = of(Compare(Field.TH_DPORT, port_bytes(80)))
    assert load == ("payload", {1: be(1), 2: be(2), 3: be(2), 4: be(2)})
    assert compare == ("cmp", {1: be(1), 2: be(0), 3: b"\x06\0\1\0\0\x50\0\0"})


def test_interface_prefixes_compare_fewer_bytes():
    _load, whole = of(Compare(Field.IIFNAME, ifname_bytes("cali1")))
    _load, prefix = of(Compare(Field.IIFNAME, b"cali"))
    assert len(whole[1][3]) == 4 + 16
    assert len(prefix[1][3]) == 4 + 4


@pytest.mark.parametrize(("prefix_len", "length"), [(8, 1), (16, 2), (24, 3)])
def test_prefixes_of_whole_octets_need_no_mask(prefix_len: int, length: int):
    load, compare = of(InNet(Field.IP4_SADDR, bytes([10, 1, 2, 0]), prefix_len))
    assert load[1][4] == be(length)
    assert compare[0] == "cmp"


def test_other_prefixes_are_masked():
    names = [name for name, _attrs in of(InNet(Field.IP4_SADDR, bytes([10, 0, 0, 0]), 12))]
    assert names == ["payload", "bitwise", "cmp"]


def test_ranges_are_negated_by_the_expression():
    (_load, plain), (_load2, negated) = (
        of(Between(Field.TH_SPORT, port_bytes(1), port_bytes(9), flag)) for flag in (False, True)
    )
    assert (plain[1][2], negated[1][2]) == (be(0), be(1))


def test_states_are_tested_as_a_host_order_mask():
    names = [name for name, _attrs in of(InState(CtState.ESTABLISHED | CtState.RELATED))]
    assert names == ["ct", "bitwise", "cmp"]


def test_a_concatenation_fills_consecutive_registers():
    fields = (Field.IP4_SADDR, Field.L4PROTO, Field.TH_DPORT)
    source, protocol, port, lookup = of(Lookup(fields, "s"))
    assert [source[1][1], protocol[1][1], port[1][1]] == [be(8), be(9), be(10)]
    assert lookup == ("lookup", {1: b"s\0", 2: be(8)})
    source, destination, _lookup = of(Lookup((Field.IP6_SADDR, Field.IP6_DADDR), "s"))
    assert (source[1][1], destination[1][1]) == (be(8), be(12))


def test_a_negated_lookup_has_the_flag():
    assert of(Lookup((Field.IP4_SADDR,), "s", True))[-1][1][5] == be(1)


def test_an_anonymous_set_is_asked_for_and_named_by_its_id():
    literals = LiteralSets(lambda: 7)
    literal = Literal((port_bytes(80),))
    lookup = Lookup((Field.TH_DPORT,), literal)
    found = expressions(encode_match(lookup, literals))[-1]
    assert (found[1][1], found[1][4]) == (b"__set%d\0", be(7))
    ((set_id, spec, made),) = literals.made
    assert (set_id, spec.name, made) == (7, "__set%d", literal)
    assert spec.key == (Field.TH_DPORT.type,)


@pytest.mark.parametrize(
    ("verdict", "code"), [(ACCEPT, 1), (DROP, 0), (RETURN, -5), (jump("c"), -3), (goto("c"), -4)]
)
def test_verdicts_are_the_kernels_numbers(verdict, code: int):
    attrs = parse_attrs(parse_attrs(memoryview(verdict_data(verdict)), 0)[2], 0)
    assert int.from_bytes(attrs[1], "big", signed=True) == code
    assert (2 in attrs) == bool(verdict.chain)


def test_a_dispatch_puts_the_answer_into_the_verdict_register():
    rule = Rule((), (Dispatch((Field.IIFNAME,), "m"),))
    encoded = encode_rule(rule, no_literals())
    listed = parse_attrs(memoryview(encoded), 0)[4]
    assert expressions(bytes(listed))[-1] == ("lookup", {1: b"m\0", 2: be(1), 3: be(0)})


def actions_of(*actions) -> list[Expr]:
    encoded = encode_rule(Rule((), actions), no_literals())
    return expressions(bytes(parse_attrs(memoryview(encoded), 0)[4]))


def test_rejecting_names_the_family_neutral_code():
    assert actions_of(Reject()) == [("reject", {1: be(2), 2: b"\1"})]


def test_notrack_has_no_data():
    assert actions_of(NoTrack()) == [("notrack", {})]


def test_ports_of_nat_go_through_registers():
    *_loads, (name, attrs) = actions_of(Masquerade((1, 2)))
    assert (name, attrs) == ("masq", {1: be(0x12), 2: be(2), 3: be(3)})
    *_loads, (name, attrs) = actions_of(SourceNat(b"\1\2\3\4", (1, 2)))
    assert attrs == {1: be(0), 2: be(2), 3: be(1), 4: be(1), 5: be(2), 6: be(3), 7: be(0x12)}
    assert actions_of(Masquerade()) == [("masq", {1: be(0x10)})]


def test_repeated_matches_are_encoded_alike():
    match = of_family(4)
    assert encode_match(match, no_literals()) is encode_match(match, no_literals())


def run(context: Context, matches=(), actions=()) -> bool:
    encoded = encode_rule(Rule(tuple(matches), tuple(actions)), no_literals())
    program = decode(parse_attrs(memoryview(encoded), 0)[4])
    return all(expression.run(context) for expression in program)


def test_marks_are_set_and_cleared_without_touching_other_bits():
    context = Context(Packet("10.0.0.1", "1.1.1.1"), "", "", {}.__getitem__)
    context.skb.mark = 0x4001
    assert not run(context, [Marked(0x10000)])
    run(context, actions=[SetMark(0x10000)])
    assert context.skb.mark == 0x14001
    assert run(context, [Marked(0x10000)])
    assert run(context, [Marked(0x4000)])
    assert not run(context, [Marked(0x30000)]), "all bits are asked for"
    run(context, actions=[SetMark(0x10001, False)])
    assert context.skb.mark == 0x4000


def test_a_translated_connection_is_told_by_its_status():
    for is_dnat in (True, False):
        packet = Packet("10.0.0.1", "1.1.1.1", is_dnat=is_dnat)
        context = Context(packet, "", "", {}.__getitem__)
        assert run(context, [InStatus(CtStatus.DNAT)]) == is_dnat


@pytest.mark.parametrize("prefix_len", range(1, 32))
def test_every_prefix_length_matches_its_net_and_no_other(prefix_len: int):
    mask = (0xFFFFFFFF << (32 - prefix_len)) & 0xFFFFFFFF
    base = 0xAAAAAAAA & mask
    rule = Rule((InNet(Field.IP4_SADDR, base.to_bytes(4, "big"), prefix_len),), ())
    encoded = parse_attrs(memoryview(encode_rule(rule, no_literals())), 0)[4]
    program = decode(encoded)

    def matches(address: int) -> bool:
        text = ".".join(map(str, address.to_bytes(4, "big")))
        context = Context(Packet(text, "1.1.1.1"), "", "", {}.__getitem__)
        return all(expression.run(context) for expression in program)

    inside, last_bit = base | (0x55555555 & ~mask), 1 << (32 - prefix_len)
    assert matches(base)
    assert matches(inside)
    assert not matches(base ^ last_bit)
