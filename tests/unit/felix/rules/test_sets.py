"""felix.rules.sets: members as text, as elements, and flattened."""

from __future__ import annotations

import itertools
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix.rules.chain import INET_PROTO, INET_SERVICE, IPV4_ADDR, key_of
from felix.rules.sets import (
    FlatNets,
    SetSpec,
    address_bytes,
    host_addresses,
    ip_port_element,
    ip_port_set,
    net_element,
    net_set,
    outermost,
    parse_net,
    parse_nets,
)
from libcalico.errors import ValidationError


def covers(element: bytes, address: str) -> bool:
    half = len(element) // 2
    return element[:half] <= ip_address(address).packed <= element[half:]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("10.0.0.0/8", (4, 10 << 24, 8)),
        ("10.0.0.1", (4, (10 << 24) + 1, 32)),
        ("fd00::/64", (6, 0xFD << 120, 64)),
        ("::1", (6, 1, 128)),
    ],
)
def test_a_net_is_family_number_and_length(text: str, parsed: tuple[int, int, int]):
    assert parse_net(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "10.0.0", "10.0.0.256/32", "10.0.0.0/33", "fd00::/129", "x", "10.0.0.0/-1"]
)
def test_what_is_no_net_is_refused(text: str):
    with pytest.raises(ValidationError):
        parse_net(text)


@pytest.mark.parametrize("bad", ["10.0.0/8", "10.0.0.300/32", "10.0.0.0/40", "1.2.3.4.5/9", "a/1"])
def test_a_bad_member_among_many_is_refused_and_named(bad: str):
    with pytest.raises(ValidationError, match=bad):
        parse_nets(["10.0.0.1/32", bad, "10.0.0.2/32"])


V4_NETS = st.ip_addresses(v=4, network="10.0.0.0/24")
V6_NETS = st.ip_addresses(v=6, network="fd00::/120")


def networks(version: int, lengths: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    addresses = V4_NETS if version == 4 else V6_NETS
    return st.builds(
        lambda address, length: str(ip_network((address, length), strict=False)), addresses, lengths
    )


MIXED = st.lists(networks(4, st.integers(24, 32)) | networks(6, st.integers(120, 128)))


@given(MIXED)
def test_many_nets_parse_as_each_alone(texts: list[str]):
    expected: dict[int, list[tuple[int, int]]] = {4: [], 6: []}
    for text in texts:
        family, base, length = parse_net(text)
        expected[family].append((base, length))
    assert parse_nets(texts) == expected


def test_an_element_is_the_first_and_the_last_address():
    assert net_element(4, 10 << 24, 8) == bytes([10, 0, 0, 0, 10, 255, 255, 255])
    assert net_element(6, 1, 128) == bytes(15) + b"\1" + bytes(15) + b"\1"
    assert net_element(4, 0, 0) == bytes(4) + b"\xff" * 4


def test_an_address_port_member_is_a_padded_key():
    expected = key_of((IPV4_ADDR, b"\x0a\0\0\1"), (INET_PROTO, b"\x11"), (INET_SERVICE, b"\0\x35"))
    assert ip_port_element("10.0.0.1,udp,53") == expected
    assert len(ip_port_element("fd00::1,sctp,9")) == 24


@pytest.mark.parametrize("member", ["10.0.0.1", "10.0.0.1,quic,1", "10.0.0.1,tcp,70000", "x,tcp,1"])
def test_what_is_no_address_port_member_is_refused(member: str):
    with pytest.raises(ValidationError):
        ip_port_element(member)


def test_address_bytes_take_both_families():
    assert address_bytes("10.0.0.1") == b"\x0a\0\0\1"
    assert address_bytes("fd00::1") == b"\xfd" + bytes(14) + b"\1"


def test_only_the_outermost_nets_become_elements():
    nets = [parse_net(net)[1:] for net in ("10.0.0.0/24", "10.0.0.5/32", "10.0.1.0/25")]
    assert outermost(4, nets) == (
        net_element(4, 0x0A000000, 24),
        net_element(4, 0x0A000100, 25),
    )


def test_shapes_compare_without_name_and_comment():
    assert net_set("a", 4, "x").same_shape(net_set("b", 4))
    assert not net_set("a", 4).same_shape(net_set("a", 6))
    assert not net_set("a", 4).same_shape(SetSpec("a", (IPV4_ADDR,)))
    assert not ip_port_set("a", 4).same_shape(net_set("a", 4))
    assert SetSpec("m", (IPV4_ADDR,), verdicts=True).is_map


# A small universe, so that networks nest all the time.
NESTED = networks(4, st.sampled_from([24, 28, 30, 32]))


@given(st.lists(st.tuples(st.sets(NESTED, max_size=4), st.sets(NESTED, max_size=4)), max_size=6))
def test_deltas_lead_to_the_same_elements_as_starting_from_the_members(deltas):
    members: set[str] = set()
    flat = FlatNets(4)
    programmed: set[bytes] = set()
    for adding, removing in deltas:
        added, removed = adding - removing - members, removing & members
        members = (members | added) - removed
        to_add, to_delete = flat.change(
            [parse_net(net)[1:] for net in added], [parse_net(net)[1:] for net in removed]
        )
        assert not to_add & to_delete
        assert to_delete <= programmed
        assert not to_add & programmed
        programmed = (programmed | to_add) - to_delete
        assert programmed == set(outermost(4, [parse_net(net)[1:] for net in members]))
        assert programmed == flat.elements()


@given(st.sets(NESTED), V4_NETS)
def test_flattening_keeps_exactly_the_addresses(members: set[str], address):
    elements = sorted(outermost(4, [parse_net(net)[1:] for net in members]))
    wanted = any(address in ip_network(net) for net in members)
    assert any(covers(element, str(address)) for element in elements) == wanted
    for before, after in itertools.pairwise(elements):
        assert before[4:] < after[:4], "S1: elements overlap"


def test_hosts_are_read_at_once_and_anything_else_is_looked_at():
    assert host_addresses(["10.0.0.1/32", "255.1.2.3/32"]) == [b"\n\0\0\1", b"\xff\1\2\3"]
    for odd in (
        *("10.0.0.0/24", "256.0.0.1/32", "fd00::1/128", "10.0.0.1", "10.0.0/32", "10.0.0.1/032"),
        *("10.0.0.01/32", "10..0.1/32", "10.0.0.1.1/32", "10.0.0.\u0661/32", "\ud800", "", " "),
    ):
        assert host_addresses(["10.0.0.1/32", odd]) is None, odd
        assert host_addresses([odd, "10.0.0.1/32"]) is None, odd
    assert host_addresses(["10.0/32", "0.1.0.0.0.1/32"]) is None, "octets of eight, in two"
    assert host_addresses([]) is None


def test_flat_nets_of_hosts_are_those_of_their_networks():
    members = ["10.0.0.1/32", "10.0.0.9/32"]
    flat, other = FlatNets(4), FlatNets(4)
    flat.add_hosts(host_addresses(members) or [])
    other.add(parse_nets(members)[4])
    assert flat == other
    assert flat.elements() == {address * 2 for address in (b"\n\0\0\1", b"\n\0\0\x09")}
