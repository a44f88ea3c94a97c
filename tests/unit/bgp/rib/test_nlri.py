"""bgp.rib.nlri: prefixes in wire form."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgp.rib import nlri
from bgp.rib.nlri import IPV4, IPV6, is_martian, is_martian_next_hop, parse, split, text
from libcalico.errors import WireError


@pytest.mark.parametrize(
    ("cidr", "wire"),
    [
        ("0.0.0.0/0", "00"),
        ("10.0.0.0/8", "080a"),
        ("10.65.3.64/26", "1a0a410340"),
        ("192.0.2.1/32", "20c0000201"),
        ("::/0", "00"),
        ("fd65::100/122", "7afd650000000000000000000000000100"),
        ("2001:db8::/33", "2120010db800"),
    ],
)
def test_text_and_wire_are_two_forms_of_one_prefix(cidr, wire):
    family, encoded = parse(cidr)
    assert encoded.hex() == wire
    assert text(family, encoded) == cidr
    assert split(family, encoded, 0, len(encoded)) == [encoded]
    assert nlri.packed(family, encoded).hex()[: len(wire) - 2] == wire[2:]


def test_parse_drops_host_bits():
    assert parse("10.65.3.77/26") == parse("10.65.3.64/26")


@given(
    st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(0, 2**128 - 1).map(IPv6Address),
    st.integers(0, 128),
)
def test_a_prefix_of_an_address_is_that_of_ipaddress(address, length):
    length = min(length, address.max_prefixlen)
    network = ip_network(f"{address}/{length}", strict=False)
    expected = bytes([length]) + network.network_address.packed[: (length + 7) // 8]
    assert nlri.truncated(address.packed, length) == expected
    assert parse(f"{address}/{length}") == (IPV4 if address.version == 4 else IPV6, expected)


@pytest.mark.parametrize(
    ("cidr", "expected"),
    [
        ("169.254.0.0/16", True),
        ("169.254.1.1/32", True),
        ("169.254.0.0/15", False),
        ("169.255.0.0/16", False),
        ("fe80::/10", True),
        ("febf::1/128", True),
        ("fe80::/9", False),
        ("fec0::/10", False),
        ("0.0.0.0/0", False),
        ("::/0", False),
    ],
)
def test_link_local_prefixes(cidr, expected):
    assert nlri.is_link_local(*parse(cidr)) is expected


def test_bits_behind_the_length_do_not_make_another_prefix():
    dirty = bytes.fromhex("1a0a41037f") + bytes.fromhex("09ffff")
    assert split(IPV4, dirty, 0, len(dirty)) == [
        bytes.fromhex("1a0a410340"),
        bytes.fromhex("09ff80"),
    ]


def test_a_field_of_many_prefixes_within_a_message():
    data = b"xx" + bytes.fromhex("080a0c0a1000") + b"yy"
    assert [text(IPV4, n) for n in split(IPV4, data, 2, 8)] == [
        "10.0.0.0/8",
        "10.16.0.0/12",
        "0.0.0.0/0",
    ]


@pytest.mark.parametrize(
    ("family", "field"),
    [
        (IPV4, "210a00000000"),  # 33 bits
        (IPV4, "180a00"),  # cut short
        (IPV6, "8120010db8"),  # 129 bits
        (IPV6, "20"),
    ],
)
def test_an_unreadable_field_resets_the_session(family, field):
    data = bytes.fromhex(field)
    with pytest.raises(WireError) as caught:
        split(family, data, 0, len(data))
    assert (caught.value.code, caught.value.subcode) == (3, 10)


@pytest.mark.parametrize(
    ("cidr", "expected"),
    [
        ("0.0.0.0/0", False),
        ("10.0.0.0/8", False),
        ("127.0.0.0/8", True),
        ("224.0.0.0/4", True),
        ("255.255.255.255/32", True),
        ("0.1.2.0/24", True),
        ("::/0", False),
        ("fd00::/8", False),
        ("fe80::/64", True),
        ("ff02::/16", True),
        ("::1/128", True),
        ("::/128", True),
    ],
)
def test_martians(cidr, expected):
    assert is_martian(*parse(cidr)) is expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", False),
        ("0.0.0.0", True),
        ("127.0.0.1", True),
        ("224.0.0.1", True),
        ("fd00::1", False),
        ("fe80::1", True),
        ("ff02::1", True),
        ("::1", True),
        ("::", True),
    ],
)
def test_martian_next_hops(address, expected):
    assert is_martian_next_hop(nlri.pack_address(address)) is expected
    assert is_martian_next_hop(b"")
