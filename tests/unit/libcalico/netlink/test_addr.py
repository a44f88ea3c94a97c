"""libcalico.netlink.addr: what is built reads back; dumps filter."""

from __future__ import annotations

import struct

import pytest

from libcalico.errors import WireError
from libcalico.netlink.addr import (
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
    RTM_NEWADDR,
    Address,
    delete_address,
    list_addresses,
    parse_address,
    set_address,
)
from libcalico.netlink.messages import attr, iter_messages, message


def reread(request):
    (one,) = iter_messages(request.message)
    return one


@pytest.mark.parametrize("cidr", ["192.0.2.7/24", "10.0.0.1/32", "fd00::7/64"])
def test_an_address_reads_back_with_its_host_bits(cidr):
    flags = IFA_F_NODAD if ":" in cidr else 0
    found = parse_address(reread(set_address(4, cidr, scope=253)))
    assert found == Address(4, cidr, 253, flags)
    assert found.address == cidr.partition("/")[0]
    assert parse_address(reread(delete_address(4, cidr))).cidr == cidr


def test_no_prefix_route_is_a_flag():
    found = parse_address(reread(set_address(4, "10.0.0.1/24", prefix_route=False)))
    assert found.flags == IFA_F_NOPREFIXROUTE


@pytest.mark.parametrize(("flags", "is_usable"), [(0x80, True), (0x40, False), (0x08, False)])
def test_a_tentative_or_duplicate_address_is_not_usable(flags, is_usable):
    assert Address(4, "fd00::1/64", flags=flags).is_usable == is_usable


def test_a_point_to_point_address_is_ours_not_the_peers():
    head = struct.pack("=BBBBi", 2, 32, 0x80, 0, 4)
    body = head + attr(1, b"\x0a\0\0\2") + attr(2, b"\x0a\0\0\1")
    (one,) = iter_messages(message(RTM_NEWADDR, 0, body))
    assert parse_address(one) == Address(4, "10.0.0.1/32", flags=0x80)


def test_strange_and_short_messages():
    (mpls,) = iter_messages(message(RTM_NEWADDR, 0, struct.pack("=BBBBi", 28, 0, 0, 0, 1)))
    assert parse_address(mpls) is None
    (bare,) = iter_messages(message(RTM_NEWADDR, 0, struct.pack("=BBBBi", 2, 0, 0, 0, 1)))
    assert parse_address(bare) is None
    (short,) = iter_messages(message(RTM_NEWADDR, 0, b"x"))
    with pytest.raises(WireError):
        parse_address(short)


def test_a_dump_filters_by_family_and_interface():
    v4, v6 = reread(set_address(4, "10.0.0.1/32")), reread(set_address(5, "fd00::1/64"))
    assert list_addresses().parse(v4).ifindex == 4
    assert list_addresses(10).parse(v4) is None
    assert list_addresses(10).parse(v6).family == 10
    assert list_addresses(ifindex=4).parse(v6) is None
    assert list_addresses().parse(reread(delete_address(4, "10.0.0.1/32"))) is None
