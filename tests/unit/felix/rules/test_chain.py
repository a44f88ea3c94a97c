"""felix.rules.chain: values, keys and references of the model."""

from __future__ import annotations

import pytest

from felix.rules.chain import (
    ACCEPT,
    IFNAME,
    INET_PROTO,
    INET_SERVICE,
    IPV4_ADDR,
    IPV6_ADDR,
    KEY_TYPES,
    Chain,
    Compare,
    Dispatch,
    Field,
    Literal,
    Lookup,
    NatByMap,
    References,
    Rule,
    goto,
    ifname_bytes,
    jump,
    key_length,
    key_of,
    of_family,
    of_protocol,
    references,
    split_key,
)


def test_a_concatenation_pads_every_part_to_whole_registers():
    key = key_of((IPV4_ADDR, b"\x0a\0\0\1"), (INET_PROTO, b"\x06"), (INET_SERVICE, b"\0\x50"))
    assert key == b"\x0a\0\0\1" + b"\x06\0\0\0" + b"\0\x50\0\0"
    assert key_length((IPV4_ADDR, INET_PROTO, INET_SERVICE)) == len(key)


def test_a_single_field_is_not_padded():
    assert key_length((INET_SERVICE,)) == 2
    assert key_length((INET_PROTO,)) == 1


def test_a_key_is_split_into_what_it_was_made_of():
    parts = [(IFNAME, ifname_bytes("cali1")), (IPV6_ADDR, bytes(range(16)))]
    assert list(split_key((IFNAME, IPV6_ADDR), key_of(*parts))) == parts


def test_interface_names_are_padded_to_the_kernels_size():
    assert ifname_bytes("cali0123456789a") == b"cali0123456789a\0"


def test_references_are_chains_of_verdicts_and_named_sets_only():
    chain = Chain(
        "c",
        (
            Rule((Lookup((Field.IP4_SADDR,), "s"),), (jump("a"),)),
            Rule((Lookup((Field.TH_DPORT,), Literal((b"\0\x50",))),), (goto("b"),)),
            Rule((), (Dispatch((Field.IIFNAME,), "m"),)),
            Rule((), (NatByMap(Field.IP4_DADDR, "n", False),)),
            Rule((Compare(Field.L4PROTO, b"\x06"),), (ACCEPT,)),
        ),
    )
    assert references(chain) == References(frozenset({"a", "b"}), frozenset({"s", "m", "n"}))


@pytest.mark.parametrize(("version", "number"), [(4, 2), (6, 10)])
def test_families_are_the_kernels_nfproto_numbers(version: int, number: int):
    assert of_family(version) == Compare(Field.NFPROTO, bytes([number]))


def test_a_negated_protocol_is_another_match():
    assert of_protocol(6) != of_protocol(6, negated=True)


def test_type_numbers_are_nfts_and_unique():
    numbers = {key_type.text: key_type.type_id for key_type in KEY_TYPES}
    assert numbers["ipv4_addr"] == 7
    assert numbers["ipv6_addr"] == 8
    assert numbers["inet_service"] == 13
    assert numbers["ifname"] == 41
    assert len(set(numbers.values())) == len(KEY_TYPES)
