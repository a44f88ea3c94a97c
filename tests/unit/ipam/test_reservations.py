"""ipam.reservations: what automatic assignment leaves alone."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from ipam.reservations import NONE_RESERVED, Reservations


@pytest.mark.parametrize(
    ("cidrs", "whole"),
    [
        (["10.0.0.0/25", "10.0.0.128/25"], True),
        (["10.0.0.0/24"], True),
        (["10.0.0.0/8"], True),
        (["10.0.0.0/25", "10.0.0.64/26", "10.0.0.128/26", "10.0.0.192/26"], True),
        (["10.0.0.0/25"], False),
        (["10.0.0.0/25", "10.0.0.129/32"], False),
        (["fd00::/8"], False),
        ([], False),
    ],
)
def test_several_reservations_together_can_cover_a_block(cidrs: list[str], whole: bool):
    assert Reservations.of(cidrs).covers(ip_network("10.0.0.0/24")) is whole


@pytest.mark.parametrize(
    ("cidr", "address", "expected"),
    [
        ("10.0.0.7/30", "10.0.0.4", True),  # host bits are masked
        ("10.0.0.7", "10.0.0.7", True),  # a bare address
        (" 10.0.0.7/32 ", "10.0.0.7", True),
        ("10.0.0.7/30", "10.0.0.8", False),
        ("fd00::10/124", "fd00::1f", True),
        ("fd00::10/124", "fd00::20", False),
    ],
)
def test_addresses_are_matched(cidr: str, address: str, expected: bool):
    found = ip_address(address)
    assert Reservations.of([cidr]).contains(found.version, int(found)) is expected


def test_reserved_addresses_of_a_pool_are_counted_once():
    reserved = Reservations.of(["10.0.0.0/28", "10.0.0.8/29", "10.0.1.0/24", "9.0.0.0/8"])
    assert reserved.count_in(ip_network("10.0.0.0/16")) == 16 + 256
    assert reserved.count_in(ip_network("10.0.0.4/30")) == 4
    assert reserved.count_in(ip_network("fd00::/64")) == 0


def test_a_malformed_reservation_does_not_stop_the_others():
    reserved = Reservations.of(["not an address", "", "10.0.0.1"])
    assert reserved == Reservations.of(["10.0.0.1/32"])


def test_nothing_reserved_overlaps_nothing():
    assert not NONE_RESERVED.overlaps(ip_network("0.0.0.0/0"))
    assert not NONE_RESERVED.covers(ip_network("10.0.0.0/32"))


def test_touching_reservations_are_one_and_gaps_are_kept():
    reserved = Reservations.of(["10.0.0.2/31", "10.0.0.0/31", "10.0.0.8/29"])
    base = int(ip_address("10.0.0.0"))
    assert reserved.v4 == ((base, base + 3), (base + 8, base + 15))
    assert reserved.overlaps(ip_network("10.0.0.3/32"))
    assert not reserved.overlaps(ip_network("10.0.0.4/30"))
