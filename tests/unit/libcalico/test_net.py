"""libcalico.net: parsing as Go does, order, and the prefix trie."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from libcalico import net


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("192.0.2.1/32", "192.0.2.1/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("FD00:0:0:0:10::/64", "fd00:0:0:0::/64"),
        ("2001:DB8::1/32", "2001:db8::/32"),
        ("::/0", "::/0"),
    ],
)
def test_a_cidr_is_masked_and_canonical(text: str, canonical: str) -> None:
    assert net.parse_cidr(text) == ip_network(canonical)
    assert str(net.parse_cidr(text)) == str(ip_network(canonical))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0.0/255.0.0.0",
        "10.0.0/8",
        "010.0.0.0/8",
        "fe80::1%eth0/64",
        "fd00::/129",
        "fd00::/٦٤",
        " 10.0.0.0/8",
        "10.0.0.0/8 ",
        "10.0.0.0/8/8",
        "x/8",
    ],
)
def test_what_is_not_a_cidr_is_refused(text: str) -> None:
    with pytest.raises(net.AddressError):
        net.parse_cidr(text)


def test_a_strict_cidr_has_no_host_bits() -> None:
    assert str(net.parse_strict_cidr("10.0.0.0/8")) == "10.0.0.0/8"
    for text in ("10.0.0.1/8", "fd00::1/64"):
        with pytest.raises(net.AddressError, match="not strictly masked"):
            net.parse_strict_cidr(text)


def test_an_interface_keeps_its_host_bits() -> None:
    interface = net.parse_interface("192.0.2.11/24")
    assert str(interface.ip) == "192.0.2.11"
    assert str(interface.network) == "192.0.2.0/24"


def test_an_address_or_cidr_is_a_network_either_way() -> None:
    assert str(net.parse_cidr_or_ip("10.1.2.3")) == "10.1.2.3/32"
    assert str(net.parse_cidr_or_ip("fd00::1")) == "fd00::1/128"
    assert str(net.parse_cidr_or_ip("10.1.2.3/24")) == "10.1.2.0/24"


@pytest.mark.parametrize("text", ["", "10.0.0.0/8", "10.0.0.256", "fe80::1%eth0", "1.2.3", "::g"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(net.AddressError):
        net.parse_ip(text)


def test_a_mapped_address_is_ipv4() -> None:
    assert net.parse_ip("::ffff:10.0.0.1") == ip_address("10.0.0.1")


def test_a_network_sorts_directly_before_what_it_contains() -> None:
    texts = ["fd00::/16", "10.1.0.0/16", "10.0.0.0/8", "11.0.0.0/8", "10.0.0.0/16", "fd00::/64"]
    ordered = sorted(map(net.parse_cidr, texts), key=net.sort_key)
    assert [str(network) for network in ordered] == [
        "10.0.0.0/8",
        "10.0.0.0/16",
        "10.1.0.0/16",
        "11.0.0.0/8",
        "fd00::/16",
        "fd00::/64",
    ]


def test_only_a_catch_all_is_split() -> None:
    assert list(map(str, net.split_catch_all(ip_network("0.0.0.0/0")))) == [
        "0.0.0.0/1",
        "128.0.0.0/1",
    ]
    assert list(map(str, net.split_catch_all(ip_network("::/0")))) == ["::/1", "8000::/1"]
    assert net.split_catch_all(ip_network("10.0.0.0/8")) == (ip_network("10.0.0.0/8"),)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("10.0.0.0/8", "10.1.0.0/16", True),
        ("10.1.0.0/16", "10.0.0.0/8", True),
        ("10.0.0.0/16", "10.1.0.0/16", False),
        ("0.0.0.0/0", "10.0.0.0/8", True),
        ("fd00::/64", "fd00::/48", True),
        ("::/0", "0.0.0.0/0", False),
    ],
)
def test_overlap(one: str, other: str, expected: bool) -> None:
    assert net.overlap(ip_network(one), ip_network(other)) is expected


def test_networks_and_addresses_from_integers() -> None:
    assert net.network_of(4, 0x0A010203, 8) == ip_network("10.0.0.0/8")
    assert net.network_of(6, (0xFD << 120) + 1, 8) == ip_network("fd00::/8")
    assert net.address_of(4, 1) == ip_address("0.0.0.1")
    assert net.address_of(6, 1) == ip_address("::1")


@pytest.fixture
def trie() -> net.PrefixTrie[str]:
    trie: net.PrefixTrie[str] = net.PrefixTrie()
    for text in ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "fd00::/8", "fd00:10::/64"):
        trie.add(ip_network(text), text)
    return trie


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("10.1.3.3", "10.1.0.0/16"),
        ("10.9.9.9", "10.0.0.0/8"),
        ("fd00:10::1", "fd00:10::/64"),
        ("fd99::", "fd00::/8"),
    ],
)
def test_the_longest_prefix_wins(trie: net.PrefixTrie[str], address: str, expected: str) -> None:
    assert trie.lookup(ip_address(address)) == (ip_network(expected), expected)


def test_what_no_prefix_contains_is_not_found(trie: net.PrefixTrie[str]) -> None:
    assert trie.lookup(ip_address("11.0.0.1")) is None
    assert trie.lookup(ip_address("::1")) is None


def test_a_removed_network_uncovers_the_shorter_one(trie: net.PrefixTrie[str]) -> None:
    assert trie.remove(ip_network("10.1.2.0/24")) == "10.1.2.0/24"
    assert trie.remove(ip_network("10.1.2.0/24")) is None
    assert trie.remove(ip_network("10.3.0.0/16")) is None
    assert trie.lookup(ip_address("10.1.2.3")) == (ip_network("10.1.0.0/16"), "10.1.0.0/16")
    assert len(trie) == 4


def test_removing_one_network_leaves_the_others_of_its_length(trie: net.PrefixTrie[str]) -> None:
    trie.add(ip_network("10.2.0.0/16"), "other")
    assert trie.remove(ip_network("10.1.0.0/16")) == "10.1.0.0/16"
    assert trie.get(ip_network("10.2.0.0/16")) == "other"
    assert trie.lookup(ip_address("10.2.0.1")) == (ip_network("10.2.0.0/16"), "other")


def test_adding_again_replaces(trie: net.PrefixTrie[str]) -> None:
    trie.add(ip_network("10.0.0.0/8"), "new")
    assert trie.get(ip_network("10.0.0.0/8")) == "new"
    assert len(trie) == 5


def test_covering_and_covered_networks(trie: net.PrefixTrie[str]) -> None:
    assert trie.covering(ip_network("10.1.2.0/23")) == (ip_network("10.1.0.0/16"), "10.1.0.0/16")
    assert [text for _, text in trie.all_covering(ip_network("10.1.2.128/25"))] == [
        "10.1.2.0/24",
        "10.1.0.0/16",
        "10.0.0.0/8",
    ]
    assert [text for _, text in trie.all_covering(ip_network("10.2.0.0/16"))] == ["10.0.0.0/8"]
    assert trie.covering(ip_network("10.1.0.0/16")) == (ip_network("10.1.0.0/16"), "10.1.0.0/16")
    assert trie.covering(ip_network("0.0.0.0/0")) is None
    assert trie.get(ip_network("10.0.0.0/9")) is None
    assert [text for _, text in trie.covered_by(ip_network("10.1.0.0/16"))] == [
        "10.1.0.0/16",
        "10.1.2.0/24",
    ]
    assert trie.get(ip_network("10.2.0.0/16")) is None


def test_items_come_in_order(trie: net.PrefixTrie[str]) -> None:
    assert [text for _, text in trie.items()] == [
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.0/24",
        "fd00::/8",
        "fd00:10::/64",
    ]
