"""bgp.rib.update: UPDATEs taken apart and put together; what RFC 7606 says of broken ones."""

from __future__ import annotations

import pytest

from bgp.rib import update
from bgp.rib.attributes import PathAttributes, encode
from bgp.rib.nlri import IPV4, IPV6, parse, text
from bgp.rib.update import HEADER_BYTES, MAX_MESSAGE, end_of_rib, pack_announce, pack_withdraw
from libcalico.errors import WireError

GOOD = encode(PathAttributes(next_hop=bytes([10, 0, 0, 2])), asn4=True, with_next_hop=True)
PLAIN = encode(PathAttributes(), asn4=True, with_next_hop=False)
V6_HOP = bytes.fromhex("fd000000000000000000000000000002")


def nlris(family, count):
    if family is IPV4:
        return [parse(f"10.{i >> 8}.{i & 255}.0/24")[1] for i in range(count)]
    return [parse(f"fd00:{i:x}::/64")[1] for i in range(count)]


def body(withdrawn: bytes = b"", section: bytes = b"", announced: bytes = b"") -> bytes:
    size = len(withdrawn).to_bytes(2, "big"), len(section).to_bytes(2, "big")
    return size[0] + withdrawn + size[1] + section + announced


def mp_reach(value: bytes, flags: int = 0x80) -> bytes:
    return bytes([flags, 14, len(value)]) + value


def test_classic_fields():
    fields = update.parse(body(bytes.fromhex("080a"), GOOD, bytes.fromhex("10ac10")))
    assert fields.withdrawn == [(IPV4, [bytes.fromhex("080a")])]
    assert fields.announced == [(IPV4, [bytes.fromhex("10ac10")], b"")]
    assert fields.plain == GOOD
    assert fields.end_of_rib is None


def test_mp_fields_leave_the_plain_section():
    reach = mp_reach(bytes.fromhex("00020110") + V6_HOP + b"\0" + bytes.fromhex("20fd000001"))
    unreach = bytes([0x80, 15, 8]) + bytes.fromhex("00020120fd000002")
    fields = update.parse(body(section=reach + PLAIN + unreach))
    assert fields.announced == [(IPV6, [bytes.fromhex("20fd000001")], V6_HOP)]
    assert fields.withdrawn == [(IPV6, [bytes.fromhex("20fd000002")])]
    assert fields.plain == PLAIN


def test_the_link_local_half_of_a_next_hop_is_dropped():
    link_local = bytes.fromhex("fe80000000000000000000000000000a")
    value = bytes.fromhex("00020120") + V6_HOP + link_local + b"\0" + bytes.fromhex("08fd")
    assert update.parse(body(section=mp_reach(value) + PLAIN)).announced[0][2] == V6_HOP


def test_families_we_do_not_route_are_ignored():
    value = bytes.fromhex("0001800c") + bytes(12) + b"\0" + b"\x70" + bytes(14)
    fields = update.parse(body(section=mp_reach(value) + PLAIN))
    assert fields.announced == []
    assert fields.malformed == ""


@pytest.mark.parametrize("family", [IPV4, IPV6])
def test_end_of_rib_both_ways(family):
    assert update.parse(end_of_rib(family)[HEADER_BYTES:]).end_of_rib is family


def test_a_real_message_is_no_end_of_rib():
    unreach = bytes([0x80, 15, 3]) + bytes.fromhex("000201")
    assert update.parse(body(section=unreach + PLAIN)).end_of_rib is None
    assert update.parse(body(b"\x00", unreach)).end_of_rib is None


RESETS = {
    "no length": (b"\0", 1),
    "withdrawn too long": (b"\0\x09\0\0\0", 1),
    "attributes too long": (b"\0\0\0\x09\0", 1),
    "prefix of 40 bits": (body(announced=b"\x28\0\0\0\0\0", section=GOOD), 10),
    "withdrawn of 40 bits": (body(withdrawn=b"\x28\0\0\0\0\0"), 10),
    "two MP_REACH": (body(section=mp_reach(bytes.fromhex("00020110") + V6_HOP + b"\0") * 2), 1),
    "MP_REACH cut": (body(section=mp_reach(b"\0\x02\x01")), 9),
    "MP_REACH next hop of 5": (body(section=mp_reach(b"\0\x02\x01\x05" + bytes(6))), 9),
    "MP_REACH next hop past the end": (body(section=mp_reach(b"\0\x02\x01\x10" + bytes(9))), 9),
    "MP_UNREACH cut": (body(section=bytes([0x80, 15, 2]) + b"\0\x02"), 9),
    "prefixes may be in what cannot be read": (body(section=b"\x40\x01\x09\0"), 1),
}


@pytest.mark.parametrize(("data", "subcode"), RESETS.values(), ids=RESETS.keys())
def test_what_resets_the_session(data, subcode):
    with pytest.raises(WireError) as caught:
        update.parse(data)
    assert (caught.value.code, caught.value.subcode) == (3, subcode)


MALFORMED = {
    "attribute past the end": b"\x40\x01\x09\0",
    "header cut": b"\x40\x01",
    "extended header cut": b"\x50\x01\x00",
    "MP_REACH not optional": mp_reach(bytes.fromhex("00020110") + V6_HOP + b"\0", flags=0x40),
}


@pytest.mark.parametrize("extra", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_treats_the_message_as_a_withdrawal(extra):
    fields = update.parse(body(section=GOOD + extra, announced=bytes.fromhex("080a")))
    assert fields.malformed
    assert fields.announced[-1][1] == [bytes.fromhex("080a")]


def test_a_repeated_attribute_counts_once():
    fields = update.parse(body(section=GOOD + bytes.fromhex("40010102"), announced=b"\x00"))
    assert fields.plain == GOOD
    assert not fields.malformed


@pytest.mark.parametrize("family", [IPV4, IPV6])
def test_many_prefixes_are_packed_into_few_messages(family):
    wanted = nlris(family, 3000)
    next_hop = b"" if family is IPV4 else V6_HOP
    section = GOOD if family is IPV4 else PLAIN
    packed = pack_announce(family, section, next_hop, wanted)
    assert all(len(message) <= MAX_MESSAGE for message, _ in packed)
    assert len(packed) <= (4 if family is IPV4 else 7)
    found = []
    for message, part in packed:
        ((of, prefixes, hop),) = update.parse(message[HEADER_BYTES:]).announced
        assert of is family
        assert prefixes == part
        assert hop == next_hop
        found += prefixes
    assert found == wanted


@pytest.mark.parametrize("family", [IPV4, IPV6])
def test_withdrawals_are_packed_too(family):
    wanted = nlris(family, 3000)
    packed = pack_withdraw(family, wanted)
    assert len(packed) <= (3 if family is IPV4 else 7)
    found = []
    for message, _ in packed:
        assert len(message) <= MAX_MESSAGE
        found += update.parse(message[HEADER_BYTES:]).withdrawn[0][1]
    assert found == wanted


@pytest.mark.parametrize("size", range(3900, 4100))
def test_attributes_that_fill_the_message(size):
    section = bytes(size)
    for family, hop in ((IPV4, b""), (IPV6, V6_HOP)):
        longest = parse("10.0.0.1/32" if family is IPV4 else "fd00::1/128")[1]
        packed = pack_announce(family, section, hop, [longest])
        assert all(len(message) <= MAX_MESSAGE for message, _ in packed)
        if update.fits(section, hop):
            assert packed, text(family, longest)


def test_refresh_markers():
    assert update.refresh_marker(IPV6, 1)[16:].hex() == "0017050002" + "01" + "01"
