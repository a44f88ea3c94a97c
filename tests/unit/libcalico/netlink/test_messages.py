"""libcalico.netlink.messages: framing, attributes and error answers."""

from __future__ import annotations

import struct

import pytest

from libcalico.errors import WireError
from libcalico.netlink.messages import (
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Refusal,
    attr,
    attr_text,
    attr_u8,
    attr_u16,
    attr_u32,
    find_attrs,
    iter_attrs,
    iter_messages,
    message,
    nested,
    pack_address,
    pack_mac,
    pack_prefix,
    parse_attrs,
    parse_error,
    read_address,
    read_mac,
    read_s32,
    read_text,
    read_u32,
)


def received(message_type: int, body: bytes, flags: int = 0):
    (one,) = iter_messages(message(message_type, flags, body))
    return one


def test_messages_of_one_datagram_are_split_at_four_byte_boundaries():
    data = message(24, 0x400, b"abcde") + b"\0\0\0" + message(25, 0, b"")
    first, second = iter_messages(data)
    assert (first.type, first.flags, bytes(first.body)) == (24, 0x400 | NLM_F_REQUEST, b"abcde")
    assert (second.type, bytes(second.body)) == (25, b"")


@pytest.mark.parametrize("length", [0, 15, 21, 4096])
def test_a_message_length_that_does_not_fit_is_refused(length):
    with pytest.raises(WireError, match="netlink message"):
        list(iter_messages(struct.pack("=IHHII", length, 1, 0, 0, 0) + b"\0\0\0\0"))


def test_attributes_are_padded_and_nested_ones_are_marked():
    assert attr(1, b"abc") == bytes([7, 0, 1, 0]) + b"abc\0"
    assert attr_u8(2, 9)[:5] == bytes([5, 0, 2, 0, 9])
    assert len(attr_u16(2, 9)) == 8
    inner = attr_text(3, "veth")
    assert nested(4, inner) == struct.pack("=HH", 4 + len(inner), 4 | 0x8000) + inner


def test_attributes_are_read_back_without_the_nested_mark():
    body = (
        b"head"
        + attr_text(1, "eth0")
        + nested(2, attr_u32(5, 7))
        + attr(6, pack_mac("2:0:0:0:0:ff"))
    )
    found = parse_attrs(memoryview(body), 4)
    assert read_text(found[1]) == "eth0"
    assert read_u32(parse_attrs(found[2], 0)[5]) == 7
    assert read_mac(found[6]) == "02:00:00:00:00:ff"


def test_the_last_of_a_repeated_attribute_wins_and_iter_attrs_shows_them_all():
    body = memoryview(attr_u32(1, 7) + attr_u32(1, 8))
    assert read_u32(parse_attrs(body, 0)[1]) == 8
    assert [(t, read_u32(v)) for t, v in iter_attrs(body)] == [(1, 7), (1, 8)]


def test_only_what_is_looked_for_is_found_and_again_the_last_wins():
    body = memoryview(b"head" + attr_u32(1, 7) + nested(2, attr_u32(5, 9)) + attr_u32(1, 8))
    found = find_attrs(body, 4, frozenset({1, 2, 3}))
    assert (set(found), read_u32(found[1])) == ({1, 2}, 8)
    assert set(find_attrs(body, 4, frozenset({3}))) == set()


@pytest.mark.parametrize(
    "parse",
    [
        lambda body: parse_attrs(body, 0),
        lambda body: find_attrs(body, 0, frozenset()),
        lambda body: list(iter_attrs(body)),
    ],
)
@pytest.mark.parametrize("length", [0, 3, 9, 65535])
def test_an_attribute_length_that_does_not_fit_is_refused(parse, length):
    with pytest.raises(WireError, match="netlink attribute"):
        parse(memoryview(struct.pack("=HHI", length, 1, 0)))


@pytest.mark.parametrize("read", [read_u32, read_s32])
def test_a_short_number_is_refused(read):
    with pytest.raises(WireError):
        read(memoryview(b"\1\0\0"))


def test_zero_is_an_acknowledgement():
    assert parse_error(received(NLMSG_ERROR, struct.pack("=i", 0) + bytes(16))) is None


def test_a_refusal_has_the_errno_and_falls_back_to_its_standard_text():
    refusal = parse_error(received(NLMSG_ERROR, struct.pack("=i", -17) + bytes(16)))
    assert refusal == Refusal(17, "")
    failure = refusal.failure("add route", "10.0.0.0/8")
    assert (failure.operation, failure.key, failure.errno) == ("add route", "10.0.0.0/8", 17)
    assert failure.detail == "File exists"


@pytest.mark.parametrize("is_capped", [True, False])
def test_the_kernels_own_words_are_found_behind_the_echoed_request(is_capped):
    echo = message(24, 0, b"" if is_capped else b"payload!")
    body = struct.pack("=i", -22) + echo + attr_text(1, "Invalid prefix")
    flags = 0x200 | (0x100 if is_capped else 0)
    assert parse_error(received(NLMSG_ERROR, body, flags)) == Refusal(22, "Invalid prefix")


def test_the_tail_of_a_dump_carries_a_verdict_too():
    assert parse_error(received(NLMSG_DONE, struct.pack("=i", 0))) is None
    assert parse_error(received(NLMSG_DONE, struct.pack("=i", -4))) == Refusal(4, "")


@pytest.mark.parametrize(
    ("body", "flags"),
    [(b"\1", 0), (struct.pack("=i", -22), 0x200), (b"\xea\xff\xff\xff\0\0", 0x200)],
)
def test_a_truncated_error_is_refused(body, flags):
    with pytest.raises(WireError):
        parse_error(received(NLMSG_ERROR, body, flags))


@pytest.mark.parametrize("text", ["10.0.0.1", "fd00::1", "::", "255.255.255.255"])
def test_addresses_survive(text):
    family, packed = pack_address(text)
    assert read_address(family, packed) == text


@pytest.mark.parametrize("text", ["10.0.0", "fd00::1::", "", "host", "10.0.0.1/32"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(WireError):
        pack_address(text)


def test_an_address_of_the_wrong_length_is_refused():
    with pytest.raises(WireError):
        read_address(2, b"\1\2\3")
    with pytest.raises(WireError):
        read_address(7, b"\1\2\3\4")


def test_prefixes():
    assert pack_prefix("10.0.0.0/8") == (2, b"\x0a\0\0\0", 8)
    assert pack_prefix("fd00::1") == (10, b"\xfd" + bytes(14) + b"\1", 128)


@pytest.mark.parametrize(
    "text", ["10.0.0.0/33", "fd00::/129", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/x"]
)
def test_a_bad_prefix_length_is_refused(text):
    with pytest.raises(WireError):
        pack_prefix(text)


@pytest.mark.parametrize("text", ["", "02:00:00:00:00", "02:00:00:00:00:zz", "02:00:00:00:00:100"])
def test_what_is_no_mac_is_refused(text):
    with pytest.raises(WireError):
        pack_mac(text)
